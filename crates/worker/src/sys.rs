//! The one module with `unsafe`: what a child does between `fork` and `exec`.

use std::{
    io::{self, Read as _, Write as _},
    os::fd::{AsRawFd as _, BorrowedFd},
    os::unix::net::UnixStream,
    os::unix::process::CommandExt as _,
    process::{Child, Command},
    sync::{Mutex, PoisonError},
    thread::{self, JoinHandle},
};

use rustix::io::{Errno, FdFlags, fcntl_setfd};

/// Makes the child the leader of a session of its own, with a lease's descriptor kept open across `exec`.
///
/// The parent's descriptor keeps its close-on-exec flag: only this child inherits the lock, not one that another thread, or
/// the next start, makes.
#[expect(unsafe_code, reason = "std offers no safe way to run code in the child")]
pub(crate) fn in_own_session(command: &mut Command, lease: Option<BorrowedFd<'_>>) {
    let lease = lease.map(|fd| fd.as_raw_fd());
    let prepare = move || {
        rustix::process::setsid()?;
        if let Some(fd) = lease {
            // SAFETY: the caller holds the lease until the child has been spawned, so the number names the lease's
            // descriptor in the child too.
            fcntl_setfd(unsafe { BorrowedFd::borrow_raw(fd) }, FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: the closure only makes the system calls setsid and fcntl (rustix has no state of its own), and allocates nothing
    // (an io::Error of an errno is a number). It owns all that it uses.
    unsafe {
        command.pre_exec(prepare);
    }
}

/// A child that has been forked and waits before it becomes its program, so that it can be recorded first: whoever dies in
/// between leaves nothing running that no record names. The child ends when this is dropped, or its maker dies.
pub(crate) struct HeldBack {
    pid: u32,
    gate: UnixStream,
    spawning: JoinHandle<io::Result<Child>>,
}

static FORKING: Mutex<()> = Mutex::new(());

impl HeldBack {
    /// Forks.
    pub(crate) fn fork(mut command: Command) -> io::Result<Self> {
        // One at a time: a child that was forked between another's pair and fork would keep the other's gate open, and that
        // one its own.
        let _one = FORKING.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut gate, behind) = UnixStream::pair()?;
        wait_at(&mut command, &gate, &behind);
        // `spawn` returns once the child has become its program, or cannot: another thread waits for that. It has no name of its
        // own, which the child would have, too. Its end of the
        // pair is closed then, so that the reading below ends in any case.
        let spawning = thread::Builder::new().spawn(move || {
            let child = command.spawn();
            drop(behind);
            child
        })?;
        let mut pid = [0; 4];
        match gate.read_exact(&mut pid) {
            Ok(()) => Ok(Self { pid: u32::from_ne_bytes(pid), gate, spawning }),
            Err(error) => Err(join(spawning).err().unwrap_or(error)),
        }
    }

    /// The child's number. It is not collected before [`release`](Self::release), so that the number means this child.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets the child become its program.
    pub(crate) fn release(mut self) -> io::Result<Child> {
        // A child that has died meanwhile is found by the joining.
        let _ = self.gate.write_all(&[1]);
        join(self.spawning)
    }

    /// Ends the child without its having become its program.
    pub(crate) fn give_up(self) {
        drop(self.gate);
        // The error is that the child was not let through.
        let _ = self.spawning.join();
    }
}

fn join(spawning: JoinHandle<io::Result<Child>>) -> io::Result<Child> {
    spawning.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts it panicked")))
}

/// Makes the child tell its number through `behind` and wait there for one byte. It goes no further when the other end is
/// closed.
#[expect(unsafe_code, reason = "std offers no safe way to run code in the child")]
fn wait_at(command: &mut Command, gate: &UnixStream, behind: &UnixStream) {
    let (gate, behind) = (gate.as_raw_fd(), behind.as_raw_fd());
    let prepare = move || {
        let pid = std::process::id().to_ne_bytes();
        let mut byte = [0_u8; 1];
        // SAFETY: both numbers name the pair in the child, since the caller holds it until the child was spawned; the
        // child's copy of the other end is closed once, by its only user.
        let behind = unsafe {
            // Its own copy would keep the wait from ending when the parent dies.
            rustix::io::close(gate);
            BorrowedFd::borrow_raw(behind)
        };
        if rustix::io::write(behind, &pid)? != pid.len() {
            return Err(Errno::PIPE.into());
        }
        loop {
            match rustix::io::read(behind, &mut byte) {
                Ok(0) => return Err(Errno::CANCELED.into()),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    };
    // SAFETY: the closure makes system calls only (rustix has no state of its own) and allocates nothing (an io::Error of an errno is a number, and
    // std::process::id is getpid). It owns all that it uses.
    unsafe {
        command.pre_exec(prepare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &std::path::Path) -> Command {
        let mut command = Command::new("touch");
        command.arg(path);
        command
    }

    #[test]
    fn a_child_that_is_held_back_runs_only_when_it_is_released() {
        let folder = tempfile::tempdir().expect("a folder");
        let (given_up, released) = (folder.path().join("given-up"), folder.path().join("released"));
        let held = HeldBack::fork(touch(&given_up)).expect("forked");
        assert_eq!(
            std::fs::read(format!("/proc/{}/comm", held.pid())).ok(),
            std::fs::read("/proc/thread-self/comm").ok()
        );
        held.give_up();
        // As when its maker dies: the other end is closed, and nobody waits for the child.
        let held = HeldBack::fork(touch(&given_up)).expect("forked");
        drop(held.gate);
        assert!(held.spawning.join().expect("no panic").is_err(), "it was not let through");
        assert!(!given_up.exists());

        let held = HeldBack::fork(touch(&released)).expect("forked");
        let pid = held.pid();
        let mut child = held.release().expect("started");
        assert_eq!(child.id(), pid);
        assert!(child.wait().expect("it ends").success());
        assert!(released.exists());
    }

    #[test]
    fn what_keeps_a_child_from_its_program_is_told_when_it_is_released() {
        let held = HeldBack::fork(Command::new("/nonexistent/server")).expect("forked");
        assert_eq!(held.release().expect_err("there is none").kind(), io::ErrorKind::NotFound);
        let mut failing = Command::new("true");
        failing.current_dir("/nonexistent");
        assert_eq!(HeldBack::fork(failing).err().map(|error| error.kind()), Some(io::ErrorKind::NotFound));
    }
}
