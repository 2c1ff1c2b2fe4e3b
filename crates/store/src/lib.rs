//! Files that can be trusted: names that stay in their root, locks, publishing, digests, receipts.
//!
//! # Purpose
//!
//! Models and packs are gigabytes; reading them again at every start costs minutes, and not reading them risks running
//! bytes nobody vouched for. This crate answers "are these the expected bytes?" as cheaply as is honest, and it writes
//! files such that the answer is never "half of them".
//!
//! # Vocabulary
//!
//! - *digest*: SHA-256 is the identity of bytes, BLAKE3 the fast re-check of bytes whose SHA-256 is known.
//! - *root*: an open directory. A name from a document opens beneath it without links, or not at all.
//! - *publish*: build a file or folder unseen, make it durable, read it back, and only then give it its name.
//! - *incumbent*: what already has the name. It is verified and kept, or replaced by rename; never overwritten.
//! - *receipt*: a record of one deep validation that spares the next one reading where the kernel keeps the bytes still, and
//!   SHA-256 elsewhere. See [`Receipt`].
//! - *lease probe*: a read lease taken and given back at once; that it is granted proves that nobody can write at this instant.
//! - *evidence*, *trust*, *reason*: on what a receipt rests, which rung admitted, and why it was not a better one.
//!
//! # Example
//!
//! ```
//! use std::collections::BTreeMap;
//! use b70_store::*;
//!
//! # fn main() -> Result<()> {
//! # let scratch = tempfile::tempdir().expect("a scratch folder");
//! # let folder = scratch.path();
//! let root = Root::open(folder)?;
//! let payload = RelPath::new("payload.bin")?;
//! let made = publish_bytes(&root, &payload, b"weights", 0o444, OnExisting::ReplaceDamaged)?;
//! assert_eq!(made.outcome, PublishOutcome::Created);
//!
//! let files = [Expected { name: payload, size: 7, sha256: Some(made.content.sha256) }];
//! let bindings = BTreeMap::new();
//! let subject =
//!     Subject { root: &root, files: &files, format: "example-v2", bindings: &bindings, extras: Extras::Ignore };
//! let how = HashOptions::default();
//! let receipt = RelPath::new("receipt.json")?;
//!
//! // No receipt yet: the bytes are hashed, and where the file system allows, a receipt is offered.
//! let first = admit(&subject, Receipt::load(&root, &receipt), &how)?;
//! assert!(first.is_admitted() && first.trust == Trust::Sha256);
//! if let Some(new) = first.refreshed {
//!     new.store(&root, &receipt)?;
//!     // From now on a look at the inodes is enough, until one of them changes.
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Limits
//!
//! - Linux 5.6 or newer (`openat2`); receipts on tmpfs need the unique mount ids of Linux 6.8.
//! - Locks ([`lock()`]) save work; correctness never rests on them, since some cluster file systems grant them to all.
//! - No receipt sees root writing the block device, bugs of a file system, DAX or decay of the medium: verify deeply
//!   from time to time ([`HashOptions::max_age`]).
//! - The fault points of the tests (`B70_FAULT_*` in the environment, see [`fault_step`]) are empty without the feature
//!   `fault`; with it they can only make an operation fail or die, and skip no check.
#![deny(unsafe_code)]

mod digest;
mod error;
mod exposure;
mod fault;
mod headroom;
mod identity;
mod immutable;
mod lock;
mod many;
mod path;
mod progress;
mod publish;
mod receipt;
mod roots;
mod stage;
mod still;
mod streams;
mod sys;
mod text;

pub use digest::{
    Blake3, Content, DigestKind, Digests, Hasher, Job, ParseDigestError, Sha256, Source, hash_file, on_threads, pool,
    sha256_file, spawn_scoped,
};
pub use error::{Error, Mismatch, Result};
pub use exposure::{Exposure, Owners};
pub use fault::step as fault_step;
pub use headroom::{Headroom, Limit, headroom, meminfo_bytes, memory_limits};
pub use identity::{
    Boot, FieldChange, FileIdentity, FileSystem, FsKind, Scope, file_system_of, identity_at, identity_of,
};
pub use immutable::{is_immutable, make_immutable, probe_immutable};
pub use lock::{LockFile, LockGuard, OnDrop, lock};
pub use many::{hash_many, hash_many_with};
pub use path::{DirEntry, EntryKind, NameFault, RelPath, Root, open_source, read_bounded};
pub use progress::Progress;
pub use publish::{
    DirOutcome, HiddenDir, OnExisting, Orphan, PublishOutcome, Published, Reservation, Sweep, TempFile, publish_bytes,
    read_back, replace_bytes, sweep_orphans,
};
pub use receipt::{
    Admission, DirectoryHint, Examination, Expected, Extras, HashOptions, LeaseEvidence, Quiet, Receipt, ReceiptFile,
    ReceiptReason, ReceiptVerdict, Standing, Subject, Trust, admit, admit_with, examine, issue,
};
pub use roots::{Env, RootKind, default_root, git_work_tree, open_or_create, open_ram_root, refuse_in_git};
pub use stage::{StageFile, make_all_immutable, stage};
pub use still::{SealedFile, StillMap};
pub use streams::{Sha256Streams, StreamKernel};
pub use text::{json_bytes, random_token};
