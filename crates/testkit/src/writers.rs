//! Writers that change a file's bytes in ways that its inode does not tell (or not in time).
#![expect(unsafe_code, reason = "the writers are made of maps and system calls that no safe crate offers")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::Path;
use std::thread::JoinHandle;

/// Opens a file for reading and writing; one without permission to write as its owner can, its mode left as it was.
pub fn open_to_write(path: &Path) -> File {
    let open = || File::options().read(true).write(true).open(path);
    open().unwrap_or_else(|_| {
        let was = path.metadata().expect("the file is there").permissions();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).expect("it is ours");
        let file = open().expect("it may be written now");
        std::fs::set_permissions(path, was).expect("it is ours");
        file
    })
}

/// A shared mapping of a whole file, to be stored to.
#[derive(Debug)]
pub struct SharedMap(memmap2::MmapMut);

impl SharedMap {
    /// Maps a file and closes it: from then on no descriptor tells of the writer.
    pub fn of(path: &Path) -> Self {
        let file = open_to_write(path);
        // SAFETY: the tests keep the file's length as it is for as long as the map lives.
        Self(unsafe { memmap2::MmapMut::map_mut(&file) }.expect("it can be mapped"))
    }

    /// Flips the bits of `mask` at `at`, after reading there: the page is present then, and on tmpfs no time stamp moves.
    pub fn flip(&mut self, at: usize, mask: u8) {
        let read = std::hint::black_box(self.0[at]);
        self.0[at] = read ^ mask;
    }
}

/// One store through a mapping that reads first, as whoever may open the file for writing can make it.
pub fn flip_through_map(path: &Path, at: usize, mask: u8) {
    SharedMap::of(path).flip(at, mask);
}

#[repr(C)]
struct MoveExtent {
    reserved: i32,
    donor: u32,
    from: u64,
    donor_from: u64,
    blocks: u64,
    moved: u64,
}

#[repr(C)]
#[derive(Default)]
struct SwapExtents {
    version: i64,
    target: i64,
    other: i64,
    offset: i64,
    length: i64,
    pad: [u8; 16],
    stat: [u64; 17],
}

const EXT4_IOC_MOVE_EXT: libc::Ioctl = 0xC028_660F_u32 as libc::Ioctl;
const UFFDIO_API: libc::Ioctl = 0xC018_AA3F_u32 as libc::Ioctl;
const UFFDIO_REGISTER: libc::Ioctl = 0xC020_AA00_u32 as libc::Ioctl;
const UFFDIO_COPY: libc::Ioctl = 0xC028_AA03_u32 as libc::Ioctl;
const XFS_IOC_SWAPEXT: libc::Ioctl = 0xC0C0_586D_u32 as libc::Ioctl;

/// Gives a file the blocks of a new one beside it that was never written, below its inode, so that it reads as zeros:
/// `EXT4_IOC_MOVE_EXT` on ext4, `XFS_IOC_SWAPEXT` on XFS. Neither asks for a privilege beyond opening both for writing.
pub fn exchange_extents(victim: &Path) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(victim)?;
    file.sync_all()?;
    let stat = file.metadata()?;
    let other = victim.with_extension("unwritten");
    let donor = File::options().read(true).write(true).create(true).truncate(true).open(&other)?;
    std::fs::remove_file(&other)?;
    // SAFETY: a system call with integer arguments.
    if unsafe { libc::fallocate(donor.as_raw_fd(), 0, 0, stat.len() as libc::off_t) } != 0 {
        return Err(io::Error::last_os_error());
    }
    donor.sync_all()?;
    let mut extent = MoveExtent {
        reserved: 0,
        // ext4 keeps what its first file reads: the victim is the other one.
        donor: file.as_raw_fd() as u32,
        from: 0,
        donor_from: 0,
        blocks: stat.len().div_ceil(4096),
        moved: 0,
    };
    // SAFETY: the call reads and writes the one structure it is given, which has the layout of linux/ext4.h.
    if unsafe { libc::ioctl(donor.as_raw_fd(), EXT4_IOC_MOVE_EXT, &raw mut extent) } == 0 {
        // What is cached of the victim may still be as it was; the disk is not.
        // SAFETY: a system call with integer arguments.
        let _ = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        return Ok(());
    }
    let refused = io::Error::last_os_error();
    if refused.raw_os_error() != Some(libc::ENOTTY) {
        return Err(refused);
    }
    let mut swap = SwapExtents {
        target: file.as_raw_fd().into(),
        other: donor.as_raw_fd().into(),
        length: stat.len() as i64,
        ..SwapExtents::default()
    };
    // struct xfs_bstat: the inode number, and the times by which XFS sees whether the file changed since.
    swap.stat[0] = stat.ino();
    (swap.stat[7], swap.stat[8]) = (stat.mtime() as u64, stat.mtime_nsec() as u64);
    (swap.stat[9], swap.stat[10]) = (stat.ctime() as u64, stat.ctime_nsec() as u64);
    // SAFETY: as above, with the layout of xfs_fs.h.
    match unsafe { libc::ioctl(file.as_raw_fd(), XFS_IOC_SWAPEXT, &raw mut swap) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A write whose source page has not arrived yet: the times of the file move when it begins, its bytes when it is
/// [released](Self::release). It needs root (`userfaultfd` for faults of the kernel).
#[derive(Debug)]
pub struct StalledWrite {
    faults: OwnedFd,
    page: usize,
    bytes: Box<[u8; 4096]>,
    writer: Option<JoinHandle<io::Result<()>>>,
}

impl StalledWrite {
    /// Begins to write `bytes`, at most 4096, at the start of the file.
    pub fn begin(path: &Path, bytes: &[u8]) -> io::Result<Self> {
        let len = bytes.len();
        let mut filled = Box::new([0; 4096]);
        filled[..len].copy_from_slice(bytes);
        let check = |answer: libc::c_int| if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) };
        // SAFETY: a system call with an integer argument; the descriptor it returns is owned by nobody else.
        let faults = unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
            OwnedFd::from_raw_fd(check(fd as libc::c_int)?)
        };
        // SAFETY: an anonymous mapping of one page at an address of the kernel's choice; it is never unmapped.
        let page = unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), 4096, rights, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page = page as usize;
        // struct uffdio_api {api, features, ioctls} and struct uffdio_register {start, len, mode, ioctls}.
        let mut api = [0xAA_u64, 0, 0];
        let mut register = [page as u64, 4096, 1, 0];
        // SAFETY: both calls read and write the structures they are given, of the sizes that their numbers state.
        unsafe {
            check(libc::ioctl(faults.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()))?;
            check(libc::ioctl(faults.as_raw_fd(), UFFDIO_REGISTER, register.as_mut_ptr()))?;
        }
        let file = open_to_write(path);
        let before = file.metadata()?;
        let writer = std::thread::spawn(move || {
            // SAFETY: the kernel reads the page, which is mapped for ever, and waits until it has arrived.
            let written = unsafe { libc::pwrite(file.as_raw_fd(), page as *const libc::c_void, len, 0) };
            if written == len as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
        });
        // The write is under way once the times have moved, or at the latest in a moment.
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(2));
            let now = path.metadata()?;
            if (now.ctime(), now.ctime_nsec()) != (before.ctime(), before.ctime_nsec()) {
                break;
            }
        }
        Ok(Self { faults, page, bytes: filled, writer: Some(writer) })
    }

    /// Lets the bytes arrive.
    pub fn release(mut self) -> io::Result<()> {
        self.arrive()
    }

    fn arrive(&mut self) -> io::Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        // struct uffdio_copy {dst, src, len, mode, copy}.
        let mut copy = [self.page as u64, self.bytes.as_ptr() as u64, 4096, 0, 0];
        // SAFETY: the call reads 4096 bytes of `bytes` and fills the page that `begin` mapped and registered.
        if unsafe { libc::ioctl(self.faults.as_raw_fd(), UFFDIO_COPY, copy.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        writer.join().expect("the writer does not panic")
    }
}

impl Drop for StalledWrite {
    fn drop(&mut self) {
        let _ = self.arrive();
    }
}
