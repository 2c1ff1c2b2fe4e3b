//! Folders and files that decide which process is signalled must not be another user's.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use b70_store::{Exposure, Owners, Root, identity_at, identity_of, open_or_create};
use rustix::fs::OFlags;

use crate::{error::WorkerError, lane::WorkerPaths};

/// The largest record that is read.
const MAX_RECORD: u64 = 4 << 20;

fn untrusted(path: &Path, why: String) -> WorkerError {
    WorkerError::Untrusted { path: path.to_owned(), why }
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Opens a worker's folder, making it and those above it if needed. It must be the caller's, and no stranger may be able
/// to put another in its place: a runtime root in a shared temporary folder could have been made by anybody.
pub(crate) fn own_directory(paths: &WorkerPaths) -> Result<Root, WorkerError> {
    let root = open_or_create(&paths.directory, 0o755)?;
    // The worker's own, then `workers`, then the runtime root.
    for (depth, path) in paths.directory.ancestors().take(3).enumerate() {
        let above = depth > 0;
        let owners = Owners::only(me()).or_group().or_root(above).or_sticky(above);
        match owners.exposure(&identity_at(path)?) {
            None => {}
            Some(Exposure::Owner(owner)) => {
                let me = me();
                return Err(untrusted(
                    path,
                    format!(
                        "it belongs to user {owner}, and you are user {me}: act as that user, or use another runtime_root"
                    ),
                ));
            }
            Some(Exposure::Writers(mode)) => {
                return Err(untrusted(
                    path,
                    format!("mode {mode:04o}: everybody may replace what is in it (chmod o-w)"),
                ));
            }
        }
    }
    Ok(root)
}

/// Opens a file for writing without following a link at its name, and without waiting for the reader of a pipe.
pub(crate) fn open_own(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()).open(path)
}

/// Reads a record, and whose it is; `None` if there is none.
pub(crate) fn read_record(path: &Path) -> Result<Option<(Vec<u8>, u32)>, WorkerError> {
    let error = |e: io::Error| WorkerError::io(path, "read", e);
    // Not blocking: a pipe of that name must not hold the reader up.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    let file = match options.read(true).custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(error(e)),
    };
    let meta = file.metadata().map_err(error)?;
    if !meta.is_file() || meta.len() > MAX_RECORD {
        return Err(untrusted(path, format!("a record is a plain file of at most {MAX_RECORD} bytes")));
    }
    let identity = identity_of(&file, path)?;
    if let Some(Exposure::Writers(mode)) = Owners::only(identity.uid).or_group().exposure(&identity) {
        return Err(untrusted(path, format!("mode {mode:04o}: everybody may write it")));
    }
    let mut bytes = Vec::new();
    file.take(MAX_RECORD).read_to_end(&mut bytes).map_err(error)?;
    Ok(Some((bytes, identity.uid)))
}

/// Why the caller does not signal by a record of that user. Root above all: a user's record could name anybody's process.
pub(crate) fn not_ours(owner: u32) -> Option<String> {
    (owner != me()).then(|| format!("its record belongs to user {owner}, and you are user {}: act as that user", me()))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, symlink},
        path::PathBuf,
    };

    use super::*;

    fn paths(root: &Path) -> WorkerPaths {
        let directory = root.join("workers/w");
        WorkerPaths {
            pid: directory.join("server.pid"),
            log: directory.join("server.log"),
            launcher_log: directory.join("launcher.log"),
            identity: directory.join("resolved-identity.json"),
            directory,
        }
    }

    #[test]
    fn folders_that_others_may_change_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(&dir.path().join("state"));
        own_directory(&paths).unwrap();
        for path in paths.directory.ancestors().take(3).map(PathBuf::from).collect::<Vec<_>>() {
            let mode = |mode: u32| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            mode(0o777);
            let error = own_directory(&paths).unwrap_err().to_string();
            assert!(error.contains("everybody may replace"), "{error}");
            mode(0o755);
        }
        own_directory(&paths).unwrap();
    }

    #[test]
    fn records_that_others_may_write_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record");
        assert!(read_record(&path).unwrap().is_none());
        fs::write(&path, "{}").unwrap();
        assert_eq!(read_record(&path).unwrap().unwrap(), (b"{}".to_vec(), me()));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(read_record(&path).unwrap_err().to_string().contains("everybody may write"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        symlink(&path, dir.path().join("link")).unwrap();
        assert!(read_record(&dir.path().join("link")).is_err(), "a link is not followed");
        assert!(open_own(&dir.path().join("link"), OpenOptions::new().append(true)).is_err());
        assert_eq!((not_ours(me()), not_ours(me() + 1).is_some()), (None, true));
    }
}
