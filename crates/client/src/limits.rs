//! How long a call may take and how much it may take in.

use std::time::{Duration, Instant};

use crate::error::{ErrorKind, Phase};

/// Deadlines of one call. Every call has all of them; none is infinite: more than [`Deadlines::LONGEST`] counts as that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Resolving the name and connecting.
    pub connect: Duration,
    /// From the request's first byte sent to the first byte of the response.
    pub first_byte: Duration,
    /// Streams: from the request's first byte sent to the first event with data. llama-server sends the response head as
    /// soon as a slot takes the request, so that reading the prompt falls into this span and not into `first_byte`.
    pub first_event: Duration,
    /// The longest silence afterwards. In a stream only events with data end a silence: pings do not, or a server whose
    /// HTTP thread lives while its inference hangs would never be noticed.
    pub idle: Duration,
    /// The whole call, connecting included.
    pub total: Duration,
}

impl Default for Deadlines {
    /// For generation: 5 s to connect, 300 s to the first byte and the first event, 60 s of silence, 900 s in total.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            first_byte: Duration::from_secs(300),
            first_event: Duration::from_secs(300),
            idle: Duration::from_secs(60),
            total: Duration::from_secs(900),
        }
    }
}

impl Deadlines {
    /// The longest deadline, 30 days.
    pub const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

    /// Clamped to [`Deadlines::LONGEST`], so that adding one to a moment cannot overflow.
    fn clamped(self) -> Self {
        let clamp = |limit: Duration| limit.min(Self::LONGEST);
        Self {
            connect: clamp(self.connect),
            first_byte: clamp(self.first_byte),
            first_event: clamp(self.first_event),
            idle: clamp(self.idle),
            total: clamp(self.total),
        }
    }

    /// The same limit for every phase: for probes, whose answer is due at once or not at all.
    pub fn within(limit: Duration) -> Self {
        Self { connect: limit, first_byte: limit, first_event: limit, idle: limit, total: limit }
    }
}

/// Bounds on what is taken from a server, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The response head (status line and headers), and the trailers.
    pub head: usize,
    /// Number of header lines, at most [`Limits::MAX_HEADERS`].
    pub headers: usize,
    /// The decoded body of an ordinary response.
    pub body: usize,
    /// All bytes of a streamed response as they came from the socket.
    pub stream: usize,
    /// One line of a stream.
    pub line: usize,
    /// The data of one event.
    pub event: usize,
    /// Events of a stream, pings included: a ping of two bytes becomes an entry of a hundred in the record.
    pub events: usize,
}

impl Limits {
    /// The most header lines a response may have.
    pub const MAX_HEADERS: usize = 256;
}

impl Default for Limits {
    /// 64 KiB of head in at most 128 lines, 64 MiB of body, 256 MiB of stream, 8 MiB per line and per event, a million
    /// events.
    fn default() -> Self {
        Self {
            head: 64 << 10,
            headers: 128,
            body: 64 << 20,
            stream: 256 << 20,
            line: 8 << 20,
            event: 8 << 20,
            events: 1 << 20,
        }
    }
}

/// The clock of one call.
#[derive(Debug)]
pub(crate) struct CallClock {
    deadlines: Deadlines,
    started: Instant,
    sent: Instant,
    last_progress: Instant,
    phase: Phase,
}

impl CallClock {
    pub(crate) fn start(deadlines: Deadlines) -> Self {
        let now = Instant::now();
        Self { deadlines: deadlines.clamped(), started: now, sent: now, last_progress: now, phase: Phase::Connect }
    }

    /// Called immediately before the request's first byte is written.
    pub(crate) fn mark_sent(&mut self) {
        self.sent = Instant::now();
        self.phase = Phase::FirstByte;
    }

    pub(crate) fn connect_seconds(&self) -> f64 {
        self.sent.duration_since(self.started).as_secs_f64()
    }

    /// Seconds from the request's first byte to `at`.
    pub(crate) fn offset(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.sent).as_secs_f64()
    }

    /// Bytes arrived; `streaming` tells whether a first event is still awaited.
    pub(crate) fn bytes_arrived(&mut self, at: Instant, streaming: bool) {
        match (self.phase, streaming) {
            (Phase::FirstByte, true) => self.phase = Phase::FirstEvent,
            (Phase::FirstByte, false) => self.phase = Phase::Idle,
            _ => {}
        }
        if !streaming {
            self.last_progress = at;
        }
    }

    /// An event with data arrived.
    pub(crate) fn event_arrived(&mut self, at: Instant) {
        self.phase = Phase::Idle;
        self.last_progress = at;
    }

    /// The next moment at which the call has to give up, and the phase whose deadline that is.
    pub(crate) fn next_deadline(&self) -> (Instant, Phase) {
        let d = &self.deadlines;
        let phase = match self.phase {
            Phase::Connect => self.started + d.connect,
            Phase::FirstByte => self.sent + d.first_byte,
            Phase::FirstEvent => self.sent + d.first_event,
            Phase::Idle | Phase::Total => self.last_progress + d.idle,
        };
        let total = self.started + d.total;
        if total < phase { (total, Phase::Total) } else { (phase, self.phase) }
    }

    /// Time left until the next deadline, or the timeout it has become.
    pub(crate) fn remaining(&self) -> Result<Duration, ErrorKind> {
        let (deadline, phase) = self.next_deadline();
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.timeout(phase)) } else { Ok(left) }
    }

    fn timeout(&self, phase: Phase) -> ErrorKind {
        let d = &self.deadlines;
        let limit = match phase {
            Phase::Connect => d.connect,
            Phase::FirstByte => d.first_byte,
            Phase::FirstEvent => d.first_event,
            Phase::Idle => d.idle,
            Phase::Total => d.total,
        };
        ErrorKind::Timeout { phase, during: self.phase, limit_s: limit.as_secs_f64() }
    }
}
