//! The one module with `unsafe`: what a child does between `fork` and `exec`.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    os::unix::process::CommandExt as _,
    process::Command,
};

/// Makes the child the leader of a session of its own, with a lease's descriptor kept open across `exec`.
///
/// The parent's descriptor keeps its close-on-exec flag: only this child inherits the lock, not one that another thread, or
/// the next start, makes.
#[expect(unsafe_code, reason = "std offers no safe way to run code in the child")]
pub(crate) fn in_own_session(command: &mut Command, lease: Option<BorrowedFd<'_>>) {
    let lease = lease.map(|fd| fd.as_raw_fd());
    let prepare = move || {
        nix::unistd::setsid().map_err(io::Error::from)?;
        if let Some(fd) = lease {
            // SAFETY: fcntl with F_SETFD and an integer touches no memory. The caller holds the lease until the child
            // has been spawned, so the number names the lease's descriptor in the child too.
            if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } == -1 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure only makes the system calls setsid and fcntl, which are async-signal-safe, and allocates nothing
    // (an io::Error of an errno is a number). It owns all that it uses.
    unsafe {
        command.pre_exec(prepare);
    }
}
