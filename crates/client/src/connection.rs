//! One request and one response over one TCP connection, with every read stamped before anything looks at its bytes.

use std::io::{self, ErrorKind as IoKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use crate::address::BaseUrl;
use crate::cancel::{CancelToken, WatchGuard};
use crate::error::ErrorKind;
use crate::limits::CallClock;

/// What the consumer of the bytes wants next.
pub(crate) enum Flow {
    /// More bytes; an event with data arrived in these, or not.
    More { progress: bool, streaming: bool },
    /// The response is complete.
    Done,
}

/// Takes each read with the moment it returned; an empty slice tells that the peer closed.
pub(crate) type Sink<'a> = dyn FnMut(&CallClock, Instant, &[u8]) -> Result<Flow, ErrorKind> + 'a;

const READ_BUFFER: usize = 64 << 10;

pub(crate) struct Connection {
    socket: TcpStream,
    cancel: CancelToken,
    _watch: WatchGuard,
}

impl Connection {
    /// Connects within the clock's deadline, trying each address of the host.
    pub(crate) fn open(base: &BaseUrl, cancel: &CancelToken, clock: &CallClock) -> Result<Self, ErrorKind> {
        if cancel.is_cancelled() {
            return Err(ErrorKind::Cancelled);
        }
        let mut last = None;
        for address in base.resolve(clock.remaining()?)? {
            match TcpStream::connect_timeout(&address, clock.remaining()?) {
                Ok(socket) => {
                    let setup = |source| ErrorKind::Connect { address: address.to_string(), source };
                    socket.set_nodelay(true).map_err(setup)?;
                    let watch = cancel.watch(&socket).map_err(setup)?;
                    if cancel.is_cancelled() {
                        return Err(ErrorKind::Cancelled);
                    }
                    return Ok(Self { socket, cancel: cancel.clone(), _watch: watch });
                }
                Err(source) => {
                    // A connect that ran into its timeout is the deadline's error, not the address's.
                    clock.remaining()?;
                    last = Some(ErrorKind::Connect { address: address.to_string(), source });
                }
            }
        }
        Err(last.expect("resolve gives at least one address"))
    }

    /// Sends the request and hands each read to `sink`, with the moment it returned, until `sink` is done.
    pub(crate) fn exchange(
        &mut self,
        request: &[u8],
        clock: &mut CallClock,
        sink: &mut Sink<'_>,
    ) -> Result<(), ErrorKind> {
        clock.mark_sent();
        self.send(request, clock)?;
        let mut buffer = vec![0; READ_BUFFER];
        loop {
            let (at, length) = self.receive(&mut buffer, clock)?;
            match sink(clock, at, &buffer[..length])? {
                Flow::Done => return Ok(()),
                Flow::More { progress, streaming } => {
                    if progress {
                        clock.event_arrived(at);
                    } else {
                        clock.bytes_arrived(at, streaming);
                    }
                }
            }
        }
    }

    fn send(&mut self, mut request: &[u8], clock: &CallClock) -> Result<(), ErrorKind> {
        let io_error = |source| ErrorKind::Io { doing: "sending", source };
        while !request.is_empty() {
            self.socket.set_write_timeout(Some(clock.remaining()?)).map_err(io_error)?;
            match self.socket.write(request) {
                Ok(written) => request = &request[written..],
                Err(error) if is_retry(&error) => {}
                // A server may answer (413, 401) and close before it has read everything: the answer decides.
                Err(error) if is_closed(&error) => break,
                Err(error) => return Err(io_error(error)),
            }
            self.check_cancelled()?;
        }
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8], clock: &CallClock) -> Result<(Instant, usize), ErrorKind> {
        let io_error = |source| ErrorKind::Io { doing: "receiving", source };
        loop {
            self.socket.set_read_timeout(Some(clock.remaining()?)).map_err(io_error)?;
            let result = self.socket.read(buffer);
            let at = Instant::now();
            self.check_cancelled()?;
            match result {
                Ok(length) => return Ok((at, length)),
                Err(error) if is_retry(&error) => {}
                Err(error) if is_closed(&error) => return Ok((at, 0)),
                Err(error) => return Err(io_error(error)),
            }
        }
    }

    fn check_cancelled(&self) -> Result<(), ErrorKind> {
        if self.cancel.is_cancelled() { Err(ErrorKind::Cancelled) } else { Ok(()) }
    }
}

/// A timeout is only a reason to look at the clock again, since the kernel's timers are coarser than it.
fn is_retry(error: &io::Error) -> bool {
    matches!(error.kind(), IoKind::Interrupted | IoKind::WouldBlock | IoKind::TimedOut)
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), IoKind::ConnectionReset | IoKind::ConnectionAborted | IoKind::BrokenPipe)
}
