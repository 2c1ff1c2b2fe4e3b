//! Build identity: everything a backend test's result depends on, and one digest over it.
//!
//! Nothing is executed but Git (and rpm, where that is the package database), without a shell, with a clean environment
//! and a deadline. Libraries are found by reading ELF headers, as the dynamic loader would.
//!
//! A part is a value, `absent` (looked for and certainly not there) or `unknown` (could not be determined). `unknown`
//! equals nothing: a fingerprint with an unknown part cannot vouch for a pass on another day. Neither can one whose
//! source was edited after the binaries were built: the pass would be for code that never ran.

mod cmake;
mod elf;
mod git;
mod host;
mod process;
mod source;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use b70_manifest::UnixTime;
use b70_procguard::Host;
use b70_store::{DigestKind, EntryKind, Error, Job, Progress, Result, Sha256, hash_many};
use serde::Serialize;
use serde_json::{Map, Value};

pub use host::host_facts;

use crate::documents::{Compiler, Fingerprint, Known, RuntimeSource};
use crate::error::AdmissionError;

/// Format of the document.
pub(crate) const FINGERPRINT_FORMAT: &str = "b70-build-fingerprint-v1";

/// Binaries that are looked for when none is named.
pub const DEFAULT_BINARIES: [&str; 2] = ["llama-server", "test-backend-ops"];

/// What to take the fingerprint of.
#[derive(Debug, Clone)]
pub struct FingerprintRequest<'a> {
    /// The source tree.
    pub runtime: &'a Path,
    /// The build folder, the one with `CMakeCache.txt`; or the folder of a prebuilt release.
    pub build: &'a Path,
    /// Names of binaries in `bin/` of the build folder or, where that has none, in the folder itself; or paths below it.
    /// Empty: [`DEFAULT_BINARIES`].
    pub binaries: &'a [String],
    /// Where the host is read.
    pub host: Host,
    /// How long Git and rpm may take, each call.
    pub deadline: Duration,
}

impl<'a> FingerprintRequest<'a> {
    /// The default binaries on this machine, one minute for each call.
    pub fn new(runtime: &'a Path, build: &'a Path) -> Self {
        Self { runtime, build, binaries: &[], host: Host::real(), deadline: Duration::from_secs(60) }
    }
}

/// A fingerprint and what it may be used for.
#[derive(Debug, Clone, Serialize, schemars::JsonSchema)]
pub struct FingerprintReport {
    /// The document.
    #[serde(flatten)]
    pub fingerprint: Fingerprint,
    /// Whether a test pass recorded under this fingerprint may stand for a run today.
    pub fit_for_pass_reuse: bool,
    /// Why not, each reason.
    pub reasons: Vec<String>,
    /// Source files edited after the binaries were built, at most 20, relative to the tree.
    #[serde(serialize_with = "crate::documents::lossy::list")]
    pub newer_than_binaries: Vec<PathBuf>,
    /// Why a part is unknown: JSON pointer and reason.
    pub unknown_because: BTreeMap<String, String>,
}

/// Collects why parts are unknown while they are looked for.
#[derive(Debug, Default)]
struct Doubts(BTreeMap<String, String>);

impl Doubts {
    /// A part that could not be determined is `unknown`, and the reason is kept.
    fn settle<T>(&mut self, pointer: &str, part: Result<Known<T>, String>) -> Known<T> {
        match part {
            Ok(Known::Unknown) => {
                self.0.insert(pointer.to_owned(), "it could not be determined".to_owned());
                Known::Unknown
            }
            Ok(known) => known,
            Err(why) => {
                self.0.insert(pointer.to_owned(), why);
                Known::Unknown
            }
        }
    }
}

fn token(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Takes the fingerprint.
///
/// What cannot be determined is `unknown` in the document, with the reason beside it. When that is a binary or what it
/// loads, so is the digest: it would be the same for builds that differ. An error is only a source tree or
/// build folder that is not there, or cancellation.
pub fn fingerprint(
    request: &FingerprintRequest<'_>,
    progress: &Progress<'_>,
) -> Result<FingerprintReport, AdmissionError> {
    let runtime = folder(request.runtime)?;
    let build = folder(request.build)?;
    let mut doubts = Doubts::default();
    let cache = cmake::Cache::read(&build);
    let cmake_cache_sha256 =
        doubts.settle("/cmake_cache_sha256", cache.as_ref().map(cmake::Cache::digest).map_err(Clone::clone));
    let cache = cache.unwrap_or_default();
    let source = source::Source::new(&runtime, &build);
    let tree = source.identify(request.deadline, progress)?;
    let mut part = |name: &str, part: Result<Known<String>, String>| doubts.settle(&format!("/runtime/{name}"), part);
    let commit = part("commit", tree.commit);
    let dirty = doubts.settle("/runtime/dirty", tree.dirty);
    let dirty_patch_sha256 = doubts.settle("/runtime/dirty_patch_sha256", tree.dirty_patch_sha256);
    let tree_sha256 = match tree.tree_sha256 {
        Ok(digest) => digest,
        Err(why) => {
            doubts.0.insert("/runtime/tree_sha256".to_owned(), why);
            None
        }
    };
    let built = binaries(request, &build, &cache, &mut doubts, progress)?;
    let compiler = Compiler {
        path: doubts.settle("/compiler/path", cache.known(&["CMAKE_CXX_COMPILER"])),
        version: doubts.settle("/compiler/version", cache.compiler_version(&build)),
        extra: Map::new(),
    };
    let target_architecture = doubts.settle("/target_architecture", cache.known(&["GGML_SYCL_DEVICE_ARCH"]));
    let (host, why) = host::host_facts_with_reasons(&request.host, request.deadline);
    doubts.0.extend(why);
    let (newer_than_binaries, mut warnings) = source.newer_than(&built.paths)?;
    if !cache.is_of(&runtime) {
        warnings.push(format!(
            "the build folder was configured for {}, not for this source tree",
            cache.get("CMAKE_HOME_DIRECTORY").unwrap_or("an unnamed tree")
        ));
    }
    let none = !built.binaries.values().any(|digest| digest.value().is_some());
    let uncertain = none || doubts.0.keys().any(|p| p.starts_with("/binaries") || p.starts_with("/libraries"));
    if uncertain {
        let why = "not every file that the binaries load is known, so no digest is given".to_owned();
        doubts.0.insert("/sha256".to_owned(), why);
    }
    let mut reasons: Vec<String> =
        doubts.0.iter().map(|(pointer, why)| format!("{pointer} is unknown: {why}")).collect();
    reasons.extend(warnings.iter().cloned());
    if none {
        reasons.push("none of the named binaries is in the build folder".to_owned());
    }
    let now = UnixTime::now();
    let mut fingerprint = Fingerprint {
        schema_version: 1,
        format: Some(FINGERPRINT_FORMAT.to_owned()),
        sha256: Known::Unknown,
        runtime: RuntimeSource {
            path: Some(runtime.to_string_lossy().into_owned()),
            commit,
            dirty,
            dirty_patch_sha256,
            tree_sha256,
            extra: Map::new(),
        },
        build_dir: build.to_string_lossy().into_owned(),
        cmake_cache_sha256,
        binaries: built.binaries,
        libraries: built.libraries,
        compiler,
        target_architecture,
        host,
        created_unix: Some(now),
        created_utc: Some(now.rfc3339()),
        unknown: doubts.0.keys().cloned().collect(),
        warnings,
        extra: Map::new(),
    };
    if !uncertain {
        fingerprint.sha256 = Known::Value(fingerprint_sha256(&fingerprint)?);
    }
    Ok(FingerprintReport {
        fit_for_pass_reuse: reasons.is_empty(),
        fingerprint,
        reasons,
        newer_than_binaries,
        unknown_because: doubts.0,
    })
}

/// The canonical SHA-256 of a fingerprint: of the document without `schema_version`, `format`, `sha256`,
/// `created_unix`, `created_utc`, `unknown` and `warnings`.
pub fn fingerprint_sha256(fingerprint: &Fingerprint) -> Result<Sha256, AdmissionError> {
    let document = |why: String| AdmissionError::Document { path: PathBuf::from(&fingerprint.build_dir), why };
    let Value::Object(mut map) = serde_json::to_value(fingerprint).map_err(|e| document(e.to_string()))? else {
        return Err(document("a fingerprint is an object".to_owned()));
    };
    for key in ["schema_version", "format", "sha256", "created_unix", "created_utc", "unknown", "warnings"] {
        map.remove(key);
    }
    b70_manifest::canonical_sha256(&Value::Object(map)).map_err(|e| document(e.to_string()))
}

fn folder(path: &Path) -> Result<PathBuf> {
    let path = path.canonicalize().map_err(|e| Error::io("open the folder", path, e))?;
    if path.is_dir() { Ok(path) } else { Err(Error::Kind { path, found: "file", expected: "directory" }) }
}

struct Built {
    binaries: BTreeMap<String, Known<Sha256>>,
    libraries: BTreeMap<String, Known<Sha256>>,
    /// Every file of the two.
    paths: Vec<PathBuf>,
}

/// A binary's name without `./`, and where it lies: a plain name in `bin/`, or beside `bin/` where that has none, as in
/// the flat folder of a release; `./NAME` only there.
fn locate(build: &Path, name: &str) -> (String, PathBuf) {
    let plain = name.strip_prefix("./").unwrap_or(name);
    let (flat, in_bin) = (build.join(plain), build.join("bin").join(plain));
    let as_path = name.contains('/') || (!in_bin.exists() && flat.is_file());
    (plain.to_owned(), if as_path { flat } else { in_bin })
}

/// What stands where a regular file was expected.
fn not_a_file(path: &Path) -> String {
    match path.metadata() {
        Ok(meta) => format!("it is a {}, expected a regular file", EntryKind::from_mode(meta.mode()).name()),
        Err(e) => format!("it cannot be examined: {e}"),
    }
}

/// The real file of a binary, beside which it looks for its libraries; none when it is not there.
fn real_binary(build: &Path, path: &Path) -> Result<Option<PathBuf>, String> {
    match path.canonicalize() {
        Ok(real) if !real.is_file() => Err(not_a_file(&real)),
        Ok(real) if !real.starts_with(build) => {
            Err(format!("it is a link to {}, outside the build folder; name that build folder", real.display()))
        }
        Ok(real) => Ok(Some(real)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && path.symlink_metadata().is_err() => Ok(None),
        Err(e) => Err(e.to_string()),
    }
}

fn binaries(
    request: &FingerprintRequest<'_>,
    build: &Path,
    cache: &cmake::Cache,
    doubts: &mut Doubts,
    progress: &Progress<'_>,
) -> Result<Built, AdmissionError> {
    let names: Vec<String> = if request.binaries.is_empty() {
        DEFAULT_BINARIES.iter().map(|&name| name.to_owned()).collect()
    } else {
        request.binaries.to_vec()
    };
    let mut built = Built { binaries: BTreeMap::new(), libraries: BTreeMap::new(), paths: Vec::new() };
    let mut present: BTreeMap<String, PathBuf> = BTreeMap::new();
    for name in names {
        let (name, path) = locate(build, &name);
        let pointer = format!("/binaries/{}", token(&name));
        let found = match b70_store::RelPath::new(&name) {
            Err(error) => Err(error.to_string()),
            Ok(_) => real_binary(build, &path),
        };
        match found {
            Ok(Some(real)) => match present.insert(name.clone(), real.clone()) {
                Some(other) if other != real => {
                    let why = format!("two files have this name: {} and {}", other.display(), real.display());
                    doubts.0.insert(pointer, why);
                }
                _ => {}
            },
            Ok(None) => {
                built.binaries.insert(name, Known::Absent);
            }
            Err(why) => {
                built.binaries.insert(name, doubts.settle(&pointer, Err(why)));
            }
        }
    }
    let paths: Vec<PathBuf> = present.values().cloned().collect();
    let mut modules = Vec::new();
    // Where such a build looks for backends first; a folder that is not there has none.
    let module_folder = cache.get("GGML_BACKEND_DIR").filter(|folder| !folder.is_empty());
    if let Some(folder) = module_folder.and_then(|folder| build.join(folder).canonicalize().ok()) {
        if folder.starts_with(build) {
            modules.push(folder);
        } else {
            let why =
                format!("backends are loaded from {} (GGML_BACKEND_DIR), outside the build folder", folder.display());
            doubts.0.insert("/libraries".to_owned(), why);
        }
    }
    let loaded = elf::libraries(&paths, build, &modules, cache.is_empty());
    for (path, why) in loaded.faults {
        let name = path.strip_prefix(build).unwrap_or(&path).to_string_lossy().into_owned();
        doubts.0.insert(format!("/libraries/{}", token(&name)), why);
    }
    let jobs: Vec<Job<'_>> = present
        .values()
        .map(PathBuf::as_path)
        .chain(loaded.paths.iter().map(PathBuf::as_path))
        .map(Job::from)
        .collect();
    let mut digests = hash_many(&jobs, DigestKind::Sha256, progress).into_iter();
    progress.check()?;
    let known = |result: Option<Result<b70_store::Digests>>| match result {
        Some(Ok(digests)) => Ok(digests.sha256.map_or(Known::Unknown, Known::Value)),
        Some(Err(e)) => Err(e.to_string()),
        None => Ok(Known::Unknown),
    };
    for (name, path) in present {
        let digest = doubts.settle(&format!("/binaries/{}", token(&name)), known(digests.next()));
        built.binaries.insert(name, digest);
        built.paths.push(path);
    }
    for path in loaded.paths {
        let name = path.strip_prefix(build).unwrap_or(&path).to_string_lossy().into_owned();
        let digest = doubts.settle(&format!("/libraries/{}", token(&name)), known(digests.next()));
        built.libraries.insert(name, digest);
        built.paths.push(path);
    }
    Ok(built)
}
