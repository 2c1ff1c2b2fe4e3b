//! The probe itself.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use b70_client::{Api, ClientError, CompletionRequest, Deadlines, Endpoint, ErrorKind, Health, Phase, Slot};
use b70_procguard::{Host, KernelEventKind, KernelLog, ProcStat};

use super::{
    Activity, KernelFindings, LivenessReport, LivenessState as State, ProbeOptions, ProbeStep, activity::observe,
    recovery,
};
use crate::error::WorkerError;

/// Between two looks at `/slots`.
const PAUSE: Duration = Duration::from_millis(60);
/// Kept back from the calls for looking at the process.
const RESERVE: Duration = Duration::from_millis(600);

/// A verdict with its reason.
type CardVerdict = (State, String);

struct Prober<'a> {
    url: &'a str,
    host: &'a Host,
    options: &'a ProbeOptions,
    until: Instant,
    steps: Vec<ProbeStep>,
    kernel: KernelFindings,
}

/// Probes a server within a deadline.
///
/// The order: `/health` (is it there, does it load), `/props` (does it sleep), `/slots` (does somebody use it, and does that
/// progress), then one token. Where nothing comes through the queue in time, the process is looked at, because a long batch
/// answers nothing either: engines (or, without a card, CPU threads) that work make it busy.
///
/// # Errors
/// An address that is none, or a server that wants another API key. A server that does not answer is a verdict.
pub fn probe(url: &str, host: &Host, options: &ProbeOptions) -> Result<LivenessReport, WorkerError> {
    let started = Instant::now();
    let deadline = options.deadline.clamp(Duration::from_millis(200), Duration::from_secs(3600));
    let kernel = match options.card {
        None => KernelFindings::NotAsked,
        Some(pci) => {
            let started = options.pid.and_then(|pid| ProcStat::read(host, pid).ok().flatten()).map(|s| s.start_time);
            KernelFindings::of(host, &KernelLog::read(host), pci, started)
        }
    };
    let mut prober = Prober { url, host, options, until: started + deadline, steps: Vec::new(), kernel };
    let (state, mut reason) = prober.run()?;
    if !state.is_serving()
        && let Some(worst) = prober.kernel.gravest()
    {
        reason.push_str(&format!("; the kernel says of its card: {}", worst.message));
    }
    let recovery = recovery::plan(state, options.pid, options.card, &prober.kernel);
    Ok(LivenessReport {
        schema_version: 1,
        url: url.to_owned(),
        state,
        reason,
        deadline_s: deadline.as_secs_f64(),
        seconds: started.elapsed().as_secs_f64(),
        steps: prober.steps,
        pid: options.pid,
        card: options.card,
        kernel: prober.kernel,
        recovery,
    })
}

impl Prober<'_> {
    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    fn endpoint(&self, limit: Duration) -> Result<Endpoint, WorkerError> {
        let limit = limit.max(Duration::from_millis(50));
        let mut endpoint = Endpoint::new(self.url)?.with_deadlines(Deadlines::within(limit));
        if let Some(key) = &self.options.api_key {
            endpoint = endpoint.with_api_key(key.clone());
        }
        Ok(endpoint)
    }

    fn note(&mut self, call: &str, started: Instant, result: Result<String, &ClientError>) {
        let (code, detail) = match result {
            Ok(detail) => ("ok".to_owned(), detail),
            Err(error) => (error.code().to_owned(), error.to_string()),
        };
        let seconds = started.elapsed().as_secs_f64();
        self.steps.push(ProbeStep { call: call.into(), code, detail, seconds });
    }

    fn run(&mut self) -> Result<CardVerdict, WorkerError> {
        if let Some(verdict) = self.health()? {
            return Ok(verdict);
        }
        if let Some(verdict) = self.props()? {
            return Ok(verdict);
        }
        if let Some(verdict) = self.slots()? {
            return Ok(verdict);
        }
        self.completion()
    }

    /// `None`: it is there and has its model.
    fn health(&mut self) -> Result<Option<CardVerdict>, WorkerError> {
        let started = Instant::now();
        // All of the time: the HTTP threads of an overloaded machine may be late without being dead.
        let answer = self.endpoint(self.left().saturating_sub(RESERVE))?.health();
        let note = match &answer {
            Ok(Health::Ready) => Ok("ready".to_owned()),
            Ok(Health::Loading(words)) => Ok(format!("loading: {words}")),
            Err(error) => Err(error),
        };
        self.note("health", started, note);
        let error = match answer {
            Ok(Health::Ready) => return Ok(None),
            Ok(Health::Loading(words)) => return Ok(Some((State::Loading, format!("it loads its model: {words}")))),
            Err(error) => error,
        };
        Ok(Some(match error.kind() {
            ErrorKind::Timeout { during: Phase::Connect, .. } if !self.is_loopback() => {
                (State::Lost, format!("no connection: {error}"))
            }
            ErrorKind::Timeout { .. } => {
                // Not even the HTTP threads: only a process that certainly works is given the benefit of the doubt.
                return Ok(Some(self.silent("its HTTP threads do not answer")));
            }
            // Another server may have no /health; what follows decides.
            ErrorKind::Status { status: 404 | 405, .. } => return Ok(None),
            ErrorKind::Status { status: 401 | 403, .. } => {
                return Err(WorkerError::Unauthorized { url: self.url.into() });
            }
            _ => (State::Lost, format!("no server answers there: {error}")),
        }))
    }

    fn is_loopback(&self) -> bool {
        b70_client::BaseUrl::parse(self.url).is_ok_and(|base| base.is_loopback())
    }

    fn props(&mut self) -> Result<Option<CardVerdict>, WorkerError> {
        let started = Instant::now();
        let answer = self.endpoint(self.left().saturating_sub(RESERVE))?.props();
        let asleep = matches!(&answer, Ok(props) if props.is_sleeping == Some(true));
        let note = match &answer {
            Ok(_) if asleep => Ok("asleep".to_owned()),
            Ok(props) => Ok(props.model_path.clone().unwrap_or_else(|| "no model path".into())),
            Err(error) => Err(error),
        };
        self.note("props", started, note);
        match answer {
            Ok(_) if asleep => {
                Ok(Some((State::Asleep, "it unloaded its model after idling; the next request wakes it".into())))
            }
            Ok(_) => Ok(None),
            Err(error) => self.failed(&error, "/props is not answered"),
        }
    }

    /// What a failed call means; `None` if only that call is not offered.
    fn failed(&mut self, error: &ClientError, silence: &str) -> Result<Option<CardVerdict>, WorkerError> {
        Ok(match error.kind() {
            ErrorKind::Timeout { .. } => Some(self.silent(silence)),
            ErrorKind::Connect { .. } | ErrorKind::Disconnected { .. } | ErrorKind::Io { .. } => {
                Some((State::Lost, format!("it went away while it was probed: {error}")))
            }
            ErrorKind::Status { status: 401 | 403, .. } => {
                return Err(WorkerError::Unauthorized { url: self.url.into() });
            }
            _ if error.is_loading() => Some((State::Loading, "it loads its model".into())),
            _ => None,
        })
    }

    /// Looks at `/slots` until it is idle, or progress or its absence is certain.
    fn slots(&mut self) -> Result<Option<CardVerdict>, WorkerError> {
        let mut first: Option<BTreeMap<i64, Progress>> = None;
        loop {
            let started = Instant::now();
            let answer = self.endpoint(self.left().saturating_sub(RESERVE))?.slots();
            let slots = match answer {
                Ok(slots) => slots,
                Err(error) => {
                    self.note("slots", started, Err(&error));
                    return self.failed(&error, "nothing passes its task queue");
                }
            };
            let working: BTreeMap<i64, Progress> =
                slots.iter().filter(|s| s.is_processing).map(|s| (s.id.unwrap_or(-1), progress(s))).collect();
            let has_idle = slots.iter().any(|s| !s.is_processing);
            if first.is_none() || working.is_empty() {
                let note = format!("{} of {} slots work", working.len(), slots.len());
                self.note("slots", started, Ok(note));
            }
            if working.is_empty() || (has_idle && first.is_none()) {
                return Ok(None);
            }
            if let Some(before) = &first
                && let Some(text) = advanced(before, &working)
            {
                self.note("slots", started, Ok(text.clone()));
                return Ok(Some((State::Busy, text)));
            }
            first.get_or_insert(working);
            if self.left() <= RESERVE + PAUSE {
                return Ok(Some(self.silent("its slots work without any progress")));
            }
            thread::sleep(PAUSE);
        }
    }

    fn completion(&mut self) -> Result<CardVerdict, WorkerError> {
        let started = Instant::now();
        let request = CompletionRequest::cold(Api::Native, "1", 1);
        let mut got = false;
        let answer = self
            .endpoint(self.left().saturating_sub(RESERVE))?
            .stream_with(&request, &mut |event| got |= event.has_text() || !event.tokens.is_empty());
        let error = match answer {
            Ok(record) => {
                let tokens = record.token_ids().len();
                self.note("completion", started, Ok(format!("{tokens} token(s)")));
                return Ok((State::Healthy, "it generated a token for the probe".into()));
            }
            Err(failure) => failure.error,
        };
        self.note("completion", started, Err(&error));
        if got {
            return Ok((State::Healthy, "it generated a token for the probe, then the stream broke".into()));
        }
        match error.kind() {
            ErrorKind::Timeout { .. } => Ok(self.silent("no token came")),
            ErrorKind::Status { status: 500..=599, .. } | ErrorKind::Server { .. }
                if !error.is_loading() && error.status() != Some(501) =>
            {
                Ok((State::Wedged, format!("it fails to generate: {error}")))
            }
            ErrorKind::Status { status: 400 | 404 | 405 | 422 | 501, .. } => {
                Ok((State::Healthy, format!("it refuses completions, so only its task queue was proved: {error}")))
            }
            _ => {
                Ok(self.failed(&error, "no token came")?.unwrap_or((State::Wedged, format!("no token came: {error}"))))
            }
        }
    }

    /// Nothing came in time: is it a long batch, or a hang?
    fn silent(&mut self, what: &str) -> CardVerdict {
        if let Some(event) = self.kernel.gravest().filter(|event| event.kind >= KernelEventKind::EngineReset) {
            return (State::Wedged, format!("{what}, and its card was reset or lost: {}", event.message));
        }
        let Some(pid) = self.options.pid else {
            let limit = self.options.deadline.as_secs_f64();
            return (
                State::Wedged,
                format!("{what} within {limit:.1} s; its process is not known, so a longer batch is not excluded"),
            );
        };
        let started = Instant::now();
        let activity = observe(self.host, pid, self.options.card);
        let seconds = started.elapsed().as_secs_f64();
        self.steps.push(ProbeStep {
            call: "activity".into(),
            code: activity.code().into(),
            detail: activity.text().into(),
            seconds,
        });
        let text = format!("{what}; {}", activity.text());
        match activity {
            Activity::Working(_) => (State::Busy, text),
            Activity::Idle(_) | Activity::Halted(_) | Activity::Unknown(_) => (State::Wedged, text),
        }
    }
}

/// What moves while a slot works.
type Progress = (Option<i64>, Option<u64>, Option<u64>);

fn progress(slot: &Slot) -> Progress {
    (slot.id_task, slot.n_decoded, slot.n_prompt_tokens_processed)
}

/// How the slots that worked before have moved; a slot that ended its task has moved too.
fn advanced(before: &BTreeMap<i64, Progress>, now: &BTreeMap<i64, Progress>) -> Option<String> {
    before.iter().find_map(|(id, was)| match now.get(id) {
        Some(is) if is == was => None,
        Some(is) if is.0 != was.0 => Some(format!("slot {id} went on to another task")),
        Some(is) => {
            Some(format!("slot {id} works: {} tokens generated", is.1.map_or_else(|| "?".into(), |n| n.to_string())))
        }
        None => Some(format!("slot {id} ended its task")),
    })
}
