//! System calls for which neither rustix nor nix has a safe one: file leases, and the start of a writeback.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::io::Errno;

/// Answer of a lease probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseProbe {
    /// Nobody has the file open for writing, and no writable shared mapping of it exists.
    NoWriters,
    /// Somebody can write it at this moment.
    Writers,
    /// The kernel gave no answer: not the owner, or a file system without leases.
    NoAnswer(Errno),
}

/// Asks for a read lease and gives it back at once. `fd` must be open read-only.
///
/// The kernel refuses the lease (`EAGAIN`) while any writable handle or writable shared mapping of the file exists, so
/// an instant of success is proof that there was none at that instant. See fcntl(2), `F_SETLEASE`.
pub(crate) fn probe_lease(fd: BorrowedFd<'_>) -> LeaseProbe {
    match lease(fd) {
        Ok(()) => {
            // Unlocking a lease one holds cannot fail; were it to, closing the file ends it.
            let _ = fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK);
            LeaseProbe::NoWriters
        }
        Err(Errno::AGAIN) => LeaseProbe::Writers,
        Err(e) => LeaseProbe::NoAnswer(e),
    }
}

fn lease(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    // An opener who breaks the lease in the time we hold it makes the kernel signal us. The default signal, SIGIO,
    // would kill the process; SIGURG is ignored unless someone installed a handler. Without it, no lease.
    fcntl(fd, F_SETSIG, libc::SIGURG)?;
    fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK).map(drop)
}

#[expect(unsafe_code, reason = "rustix and nix offer no F_SETLEASE or F_SETSIG")]
fn fcntl(fd: BorrowedFd<'_>, command: libc::c_int, argument: libc::c_int) -> Result<libc::c_int, Errno> {
    // SAFETY: fcntl with these commands and integer arguments touches no memory of ours; `fd` is open, since it is
    // borrowed for the length of this call.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, argument) } {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        answer => Ok(answer),
    }
}

/// `F_SETSIG` of asm-generic/fcntl.h, the same on every Linux architecture but absent from the libc crate for some.
const F_SETSIG: libc::c_int = 10;

/// Asks the kernel to begin writing a file's dirty pages to the disk, without waiting for them. Advice: fsync is what counts,
/// and file systems in memory have nothing to do.
#[expect(unsafe_code, reason = "rustix and nix offer no sync_file_range")]
pub(crate) fn start_writeback(fd: BorrowedFd<'_>) {
    // SAFETY: the call takes integers alone and touches no memory of ours; `fd` is open, since it is borrowed.
    let _ = unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}
