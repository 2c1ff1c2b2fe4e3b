//! Reads that may block in a driver, given up at a deadline.

use std::{
    io,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use crate::host::Host;

/// At most this many readers are left behind, stuck, before no more are started.
const MAX_STUCK: usize = 4;

type Job = (String, bool);
type Answer = io::Result<Vec<u8>>;

/// Reads files in another thread. A read that does not come back in time is abandoned with its thread: nothing can
/// interrupt a thread that waits in a driver, and reading fdinfo of an xe client waits for queues being torn down.
pub(crate) struct DeadlineReader {
    host: Host,
    worker: Option<(mpsc::Sender<Job>, mpsc::Receiver<Answer>)>,
    stuck: usize,
    per_read: Duration,
    until: Instant,
}

impl DeadlineReader {
    pub(crate) fn new(host: &Host, per_read: Duration, until: Instant) -> Self {
        Self { host: host.clone(), worker: None, stuck: 0, per_read, until }
    }

    pub(crate) fn read(&mut self, path: &str, later: bool) -> Answer {
        let timed_out = |what: &str| io::Error::new(io::ErrorKind::TimedOut, what.to_owned());
        let left = self.until.saturating_duration_since(Instant::now()).min(self.per_read);
        if left.is_zero() {
            return Err(timed_out("the scan's deadline passed before it was read"));
        }
        if self.stuck >= MAX_STUCK {
            return Err(timed_out("too many earlier reads are stuck in the driver"));
        }
        if self.worker.is_none() {
            self.worker = Some(start(self.host.clone())?);
        }
        let Some((jobs, answers)) = &self.worker else { return Err(timed_out("no reader")) };
        let sent = jobs.send((path.to_owned(), later)).is_ok();
        let answer = if sent { answers.recv_timeout(left) } else { Err(mpsc::RecvTimeoutError::Disconnected) };
        answer.unwrap_or_else(|_| {
            self.worker = None;
            self.stuck += 1;
            Err(timed_out("the read did not return in time: the driver may be stuck"))
        })
    }
}

fn start(host: Host) -> io::Result<(mpsc::Sender<Job>, mpsc::Receiver<Answer>)> {
    let (jobs, inbox) = mpsc::channel::<Job>();
    let (outbox, answers) = mpsc::channel();
    thread::Builder::new().name("b70-fdinfo".into()).spawn(move || {
        for (path, later) in inbox {
            let answer = if later { host.read_later(&path) } else { host.read(&path) };
            if outbox.send(answer).is_err() {
                break;
            }
        }
    })?;
    Ok((jobs, answers))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::host::Source;

    #[derive(Debug)]
    struct Stuck;

    impl Source for Stuck {
        fn read(&self, path: &str) -> io::Result<Vec<u8>> {
            if path.contains("stuck") {
                loop {
                    thread::park();
                }
            }
            Ok(b"fine".to_vec())
        }
        fn list(&self, _: &str) -> io::Result<Vec<String>> {
            Ok(Vec::new())
        }
        fn link(&self, _: &str) -> io::Result<String> {
            Err(io::ErrorKind::NotFound.into())
        }
        fn exists(&self, _: &str) -> io::Result<bool> {
            Ok(true)
        }
        fn access_rw(&self, _: &str) -> io::Result<()> {
            Ok(())
        }
        fn drm_minor(&self, _: &str, _: &str) -> Option<u32> {
            None
        }
    }

    #[test]
    fn a_stuck_read_is_given_up_and_the_next_one_works() {
        let host = Host::from_source(Arc::new(Stuck));
        let mut reader =
            DeadlineReader::new(&host, Duration::from_millis(20), Instant::now() + Duration::from_secs(60));
        assert_eq!(reader.read("/a", false).unwrap(), b"fine");
        assert_eq!(reader.read("/stuck", false).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(reader.read("/b", true).unwrap(), b"fine");
        for _ in 0..MAX_STUCK {
            assert!(reader.read("/stuck", false).is_err());
        }
        let e = reader.read("/b", false).unwrap_err();
        assert!(e.to_string().contains("too many"), "{e}");
    }
}
