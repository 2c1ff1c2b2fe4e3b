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
use std::path::{Path, PathBuf};
use std::time::Duration;

use b70_manifest::UnixTime;
use b70_store::{Error, Job, Progress, Result, Sha256, What, hash_many};
use serde::Serialize;
use serde_json::{Map, Value};

pub use host::{HostRoots, host_facts};

use crate::documents::{Compiler, Fingerprint, Known, RuntimeSource};
use crate::error::AdmissionError;

/// Format of the document.
pub const FINGERPRINT_FORMAT: &str = "b70-build-fingerprint-v1";

/// Binaries that are looked for when none is named.
pub const DEFAULT_BINARIES: [&str; 2] = ["llama-server", "test-backend-ops"];

/// What to take the fingerprint of.
#[derive(Debug, Clone)]
pub struct FingerprintRequest<'a> {
    /// The source tree.
    pub runtime: &'a Path,
    /// The build folder, the one with `CMakeCache.txt`.
    pub build: &'a Path,
    /// Names of binaries in `bin/` of the build folder, or paths below the build folder. Empty: [`DEFAULT_BINARIES`].
    pub binaries: &'a [String],
    /// Where the host is read.
    pub host: &'a HostRoots,
    /// How long Git and rpm may take, each call.
    pub deadline: Duration,
}

impl<'a> FingerprintRequest<'a> {
    /// The default binaries on this host, one minute for each call.
    pub fn new(runtime: &'a Path, build: &'a Path, host: &'a HostRoots) -> Self {
        Self { runtime, build, binaries: &[], host, deadline: Duration::from_secs(60) }
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
/// What cannot be determined is `unknown` in the document, with the reason beside it; an error is only a source tree or
/// build folder that is not there, or cancellation.
pub fn fingerprint(
    request: &FingerprintRequest<'_>,
    pool: &rayon::ThreadPool,
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
    let tree = source.identify(request.deadline, pool, progress)?;
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
    let built = binaries(request, &build, &cache, &mut doubts, pool, progress)?;
    let compiler = Compiler {
        path: doubts.settle("/compiler/path", cache.known(&["CMAKE_CXX_COMPILER"])),
        version: doubts.settle("/compiler/version", cache.compiler_version(&build)),
        extra: Map::new(),
    };
    let target_architecture = doubts.settle("/target_architecture", cache.known(&["GGML_SYCL_DEVICE_ARCH"]));
    let (host, why) = host::host_facts_with_reasons(request.host, request.deadline);
    doubts.0.extend(why);
    let (newer_than_binaries, mut warnings) = source.newer_than(&built.paths)?;
    if !cache.is_of(&runtime) {
        warnings.push(format!(
            "the build folder was configured for {}, not for this source tree",
            cache.get("CMAKE_HOME_DIRECTORY").unwrap_or("an unnamed tree")
        ));
    }
    let mut reasons: Vec<String> =
        doubts.0.iter().map(|(pointer, why)| format!("{pointer} is unknown: {why}")).collect();
    reasons.extend(warnings.iter().cloned());
    if !built.binaries.values().any(|digest| digest.value().is_some()) {
        reasons.push("none of the named binaries is in the build folder".to_owned());
    }
    let now = UnixTime::now();
    let mut fingerprint = Fingerprint {
        schema_version: 1,
        format: Some(FINGERPRINT_FORMAT.to_owned()),
        sha256: Sha256([0; 32]),
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
    fingerprint.sha256 = fingerprint_sha256(&fingerprint)?;
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

fn binaries(
    request: &FingerprintRequest<'_>,
    build: &Path,
    cache: &cmake::Cache,
    doubts: &mut Doubts,
    pool: &rayon::ThreadPool,
    progress: &Progress<'_>,
) -> Result<Built, AdmissionError> {
    let names: Vec<String> = if request.binaries.is_empty() {
        DEFAULT_BINARIES.iter().map(|&name| name.to_owned()).collect()
    } else {
        request.binaries.to_vec()
    };
    let mut built = Built { binaries: BTreeMap::new(), libraries: BTreeMap::new(), paths: Vec::new() };
    let mut present: Vec<(String, PathBuf)> = Vec::new();
    for name in names {
        let path = if name.contains('/') { build.join(&name) } else { build.join("bin").join(&name) };
        if let Err(error) = b70_store::RelPath::new(&name) {
            let pointer = format!("/binaries/{}", token(&name));
            built.binaries.insert(name, doubts.settle(&pointer, Err(error.to_string())));
            continue;
        }
        match path.metadata() {
            Ok(metadata) if metadata.is_file() => present.push((name, path)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                built.binaries.insert(name, Known::Absent);
            }
            other => {
                let why = other.map_or_else(|e| e.to_string(), |_| "it is no regular file".to_owned());
                let pointer = format!("/binaries/{}", token(&name));
                built.binaries.insert(name, doubts.settle(&pointer, Err(why)));
            }
        }
    }
    let paths: Vec<PathBuf> = present.iter().map(|(_, path)| path.clone()).collect();
    let loaded = elf::libraries(&paths, build, cache.get("GGML_BACKEND_DL").is_some_and(cmake::is_true));
    for (path, why) in loaded.faults {
        let name = path.strip_prefix(build).unwrap_or(&path).to_string_lossy().into_owned();
        doubts.0.insert(format!("/libraries/{}", token(&name)), why);
    }
    let jobs: Vec<Job<'_>> = present
        .iter()
        .map(|(_, path)| path.as_path())
        .chain(loaded.paths.iter().map(PathBuf::as_path))
        .map(Job::from)
        .collect();
    let mut digests = hash_many(&jobs, What::Sha256, pool, progress).into_iter();
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
