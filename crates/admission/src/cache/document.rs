//! The document of a fresh entry.

use b70_manifest::pack::ToolRecord;
use b70_manifest::{EvidenceClass, NeverEligible, UnixTime};
use b70_store::{Content, RelPath, Root, Sha256};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::entry::{FILES, IDENTITY, SHA256_STATUS, ShardRecord, UNVOUCHED};
use super::folder::{ENTRY_FORMAT, ModelCache};
use super::request::PrepareRequest;
use crate::documents::{CacheAdmission, CacheCopy, CacheEntry, CacheRuntime, Fingerprint, HostFacts, Known};
use crate::error::AdmissionError;

/// Key in [`CacheEntry::extra`] of the packer that the model-pack manifest names.
const SPEC_PACKER: &str = "spec_packing_tool";

impl ModelCache {
    pub(super) fn entry(
        &self,
        request: &PrepareRequest<'_>,
        key: &Sha256,
        contents: &[(RelPath, Content)],
        copy_seconds: f64,
        staged: &Root,
    ) -> Result<CacheEntry, AdmissionError> {
        let now = UnixTime::now();
        let size = request.source.size();
        let first = &contents[0].0;
        let stat = staged.stat(first)?;
        let (mut source_extra, mut cached_extra) = (Map::new(), Map::new());
        if contents.len() > 1 || first.as_str().is_none() {
            let files: Vec<ShardRecord> = contents
                .iter()
                .map(|(name, c)| ShardRecord { name: name.clone(), sha256: c.sha256, size_bytes: c.size })
                .collect();
            let files = to_value(&files);
            source_extra.insert(FILES.to_owned(), files.clone());
            cached_extra.insert(FILES.to_owned(), files);
        }
        if request.sha256.is_none() {
            source_extra.insert(SHA256_STATUS.to_owned(), UNVOUCHED.into());
        }
        let identities: Vec<_> = request.source.files.iter().map(|f| f.identity).collect();
        source_extra.insert(IDENTITY.to_owned(), to_value(&identities));
        let mut extra = Map::new();
        if let Some(packer) = request.packing_tool {
            extra.insert(SPEC_PACKER.to_owned(), to_value(packer));
        }
        let copy = |path: &std::path::Path, extra| CacheCopy {
            path: path.to_string_lossy().into_owned(),
            sha256: *key,
            size_bytes: size,
            extra,
        };
        let cached_path = self.entry_path(key).join(first.as_path());
        Ok(CacheEntry {
            schema_version: 1,
            format: ENTRY_FORMAT.to_owned(),
            evidence_class: EvidenceClass::DevelopmentInitializationOnly,
            promotion_eligible: NeverEligible,
            role: request.role.to_owned(),
            source: copy(request.source.path(), source_extra),
            cached: copy(&cached_path, cached_extra),
            created_unix: now,
            created_utc: None,
            copy_seconds,
            copy_mib_per_second: size as f64 / f64::from(1 << 20) / copy_seconds.max(1e-9),
            packing_tool: Some(ToolRecord {
                path: request.tool.to_owned(),
                revision: env!("CARGO_PKG_VERSION").into(),
                extra: Map::new(),
            }),
            runtime: Some(runtime(request.build)),
            driver: Some(driver(request.host)),
            target_architecture: Some(target(request)),
            kernel_abi: Some("gguf-byte-stream-v1".to_owned()),
            layout: Some("original-gguf-no-offline-reorder".to_owned()),
            admission: CacheAdmission {
                sha256: *key,
                size_bytes: size,
                mtime_ns: stat.mtime_ns,
                ctime_ns: stat.ctime_ns,
                verified_unix: now,
                extra: Map::new(),
            },
            extra,
        })
    }
}

fn to_value<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).expect("it has string keys only")
}

fn runtime(build: Option<&Fingerprint>) -> CacheRuntime {
    // Nobody looked for one: that is not to say that there is none.
    let unknown = CacheRuntime {
        commit: Known::Unknown,
        dirty: Known::Unknown,
        dirty_patch_sha256: Known::Unknown,
        extra: Map::new(),
    };
    build.map_or(unknown, |build| CacheRuntime {
        commit: build.runtime.commit.clone(),
        dirty: build.runtime.dirty.clone(),
        dirty_patch_sha256: build.runtime.dirty_patch_sha256.clone(),
        extra: Map::new(),
    })
}

fn driver(host: Option<&HostFacts>) -> Map<String, Value> {
    let (kernel, packages) =
        host.map_or((json!("unknown"), json!("unknown")), |host| (to_value(&host.kernel), to_value(&host.packages)));
    Map::from_iter([("kernel".to_owned(), kernel), ("packages".to_owned(), packages)])
}

fn target(request: &PrepareRequest<'_>) -> String {
    let built = request.build.map(|build| match &build.target_architecture {
        Known::Value(target) => target.as_str(),
        Known::Absent => "absent",
        Known::Unknown => "unknown",
    });
    request.target_architecture.or(built).unwrap_or("unknown").to_owned()
}
