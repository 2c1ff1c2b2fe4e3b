//! Digests, file identity, trust receipts, locks, atomic publish, RAM model cache, artifact registry, fingerprints.
#![deny(unsafe_code)]

mod cache;
mod digest;
mod documents;
mod error;
mod fault;
mod fingerprint;
mod headroom;
mod identity;
mod lock;
mod path;
mod progress;
mod publish;
mod receipt;
mod registry;
mod roots;
mod sys;

pub use cache::{
    CacheStatus, DropAction, DropPlan, ENTRY_FORMAT, ENTRY_NAME, Look, ModelCache, ModelSource, ModelSourceFile, PrepareAction,
    PrepareRequest, Prepared, Reserve, StagingReport, StagingVerdict, Warmed, WarmedFile, model_sha256,
};
pub use digest::{
    Blake3, Content, Digests, Hasher, Job, ParseDigestError, Sha256, Source, What, hash_file, hash_many, pool,
};
pub use documents::{
    ArtifactError, ArtifactFile, CacheAdmission, CacheCopy, CacheEntry, CacheRuntime, Compiler, Fingerprint, HostFacts,
    Known, RegisteredArtifact, RegistryRecord, RuntimeSource,
};
pub use error::{Error, Mismatch, Result};
pub use fault::step as fault_step;
pub use fingerprint::{
    DEFAULT_BINARIES, FINGERPRINT_FORMAT, FingerprintReport, FingerprintRequest, HostRoots, fingerprint,
    fingerprint_sha256, host_facts,
};
pub use headroom::{Headroom, HostPaths, Limit, headroom};
pub use identity::{Boot, FieldChange, FileIdentity, FileSystem, FsKind, Scope};
pub use lock::{LockGuard, lock, lock_all};
pub use path::{Entry, EntryKind, NameFault, RelPath, Root, open_source};
pub use progress::Progress;
pub use publish::{
    DirOutcome, OnExisting, Orphan, Outcome, Published, Reservation, StagingDir, Sweep, TempFile, publish_bytes,
    replace_bytes, sweep_orphans,
};
pub use receipt::{
    Admission, DirectoryHint, Evidence, Examination, Expected, Extras, How, MAX_RECEIPT_BYTES, QUIET_GUARD, Quiet,
    RULE, Reason, Receipt, ReceiptFile, Standing, Subject, Trust, Verdict, admit, examine, issue,
};
pub use registry::{
    Artifact, GcPlan, GcRecord, Listed, REGISTRY_FORMAT, RegisterOutcome, RegisterRequest, Registered, Registry,
    RegistryVerdict, folder_sha256, pack_key,
};
pub use roots::{Env, RootKind, default_root, git_work_tree, open_or_create, open_ram_root, refuse_in_git};
