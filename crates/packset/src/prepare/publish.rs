//! The documents of a finished run: index, checksum list and manifest.

use b70_manifest::pack::{LayoutRecord, PackSet, SourceModel, TensorPack};
use b70_manifest::{EvidenceClass, NeverEligible, Sha256Hex, UnixTime};
use b70_store::{json_bytes, replace_bytes};

use super::run::{Account, Counts, Run};
use crate::error::PackError;
use crate::index::{INDEX_FILE, runtime_index};
use crate::keys::set_identity;
use crate::set::{MANIFEST_FILE, SUMS_FILE, clear_the_way, rel};
use crate::spec::tool_record;
use crate::sums::{MAX_SUMS_BYTES, sums};
use crate::verify::same_tensor;

impl Run<'_> {
    /// Writes index, checksum list and manifest, in this order; keeps them when they already say the same. Returns the names
    /// of those that an earlier run had finished and that were damaged since.
    pub(super) fn publish_set(
        &self,
        entries: &[TensorPack],
        counts: &Counts,
        account: &Account<'_>,
    ) -> Result<Vec<String>, PackError> {
        self.model.check_unchanged()?;
        let root = self.set.root();
        let index = runtime_index(
            self.plan.format_prefix(),
            self.set_key,
            self.sha256,
            self.layout.descriptor(),
            self.layout.source_type().id(),
            entries,
        )?;
        let existing = self.set.read_manifest().ok().filter(|(document, _)| self.says(document, entries, &index));
        let index_good = self.set.read_index().is_ok_and(|found| found == index.as_bytes());
        let sums_good = |manifest: &[u8]| {
            let found = root.read(&rel(SUMS_FILE), MAX_SUMS_BYTES);
            found.is_ok_and(|found| found == sums(entries, index.as_bytes(), manifest).into_bytes())
        };
        if let Some(other) = self.other_tool.as_ref().filter(|other| other.finished) {
            // What another tool finished and is sound stays as it is, without the list that this crate adds to its own.
            if existing.is_some() && index_good && counts.packed + counts.imported == 0 {
                return Ok(Vec::new());
            }
            if !self.options.force {
                return Err(other.refusal(&self.set, "it changed while it was checked", "a set that nobody changes"));
            }
        }
        let mut damaged = Vec::new();
        let mut note = |bad: bool, name: &str| {
            if bad {
                damaged.push(name.to_owned());
            }
        };
        match &existing {
            Some((document, bytes)) => {
                note(!index_good, INDEX_FILE);
                note(!sums_good(bytes), SUMS_FILE);
                if damaged.is_empty()
                    && counts.packed + counts.imported == 0
                    && (document.source_model.hash_validated || !account.hash_validated)
                {
                    return Ok(damaged);
                }
            }
            // The manifest comes last: where one is, the set had been finished once.
            None => note(!matches!(root.try_stat(&rel(MANIFEST_FILE)), Ok(None)), MANIFEST_FILE),
        }
        let document = self.document(entries, counts, account, &index);
        let bytes = json_bytes(root.path(), &document)?;
        for (name, bytes) in [
            (INDEX_FILE, index.as_bytes()),
            (SUMS_FILE, sums(entries, index.as_bytes(), &bytes).as_bytes()),
            (MANIFEST_FILE, &bytes[..]),
        ] {
            clear_the_way(root, &rel(name))?;
            replace_bytes(root, &rel(name), bytes, 0o444)?;
        }
        Ok(damaged)
    }

    /// Whether a manifest says what this run found; times and counters of the run that wrote it are its own.
    fn says(&self, document: &PackSet, entries: &[TensorPack], index: &str) -> bool {
        let prefix = self.plan.format_prefix();
        document.schema_version == 1
            && document.format == format!("{prefix}-pack-set-v2")
            && document.status == "ready"
            && document.evidence_class == EvidenceClass::DevelopmentInitializationCacheOnly
            && document.key == self.set_key
            && document.identity == set_identity(self.layout, self.sha256, prefix, self.keys.clone())
            && document.source_model.sha256 == self.sha256
            && LayoutRecord { extra: serde_json::Map::default(), ..document.layout.clone() } == self.layout.record()
            && document.tensor_count == entries.len() as u64
            && document.payload_size_bytes == entries.iter().map(|entry| entry.payload.size_bytes).sum::<u64>()
            && document.tensors.len() == entries.len()
            && document.tensors.iter().zip(entries).all(|(a, b)| same_but_for_blake3(a, b))
            && document.runtime_index.path == INDEX_FILE
            && document.runtime_index.format == format!("{prefix}-runtime-index-v1")
            && document.runtime_index.size_bytes == index.len() as u64
            && document.runtime_index.sha256 == Sha256Hex::of(index.as_bytes())
    }

    fn document(&self, entries: &[TensorPack], counts: &Counts, account: &Account<'_>, index: &str) -> PackSet {
        let prefix = self.plan.format_prefix();
        let created = UnixTime::now();
        let model_path = std::path::absolute(self.model.path()).unwrap_or_else(|_| self.model.path().to_path_buf());
        PackSet {
            schema_version: 1,
            format: format!("{prefix}-pack-set-v2"),
            status: "ready".to_owned(),
            evidence_class: EvidenceClass::DevelopmentInitializationCacheOnly,
            promotion_eligible: NeverEligible,
            key: self.set_key,
            identity: set_identity(self.layout, self.sha256, prefix, self.keys.clone()),
            source_model: SourceModel {
                path: model_path.display().to_string(),
                sha256: self.sha256,
                size_bytes: self.model.size_bytes(),
                hash_validated: account.hash_validated,
                vouched_by: Some(account.vouched_by.to_owned()),
                extra: serde_json::Map::default(),
            },
            gguf: self.model.facts(),
            layout: self.layout.record(),
            tool: self
                .options
                .tool
                .cloned()
                .unwrap_or_else(|| tool_record(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))),
            plan: Some(self.plan.name().to_owned()),
            tensor_count: entries.len() as u64,
            packed_count_this_run: counts.packed,
            reused_count_this_run: counts.reused,
            imported_count_this_run: counts.imported,
            payload_size_bytes: entries.iter().map(|entry| entry.payload.size_bytes).sum(),
            model_hash_seconds_this_run: account.model_hash_seconds,
            pack_seconds_this_run: account.pack_seconds,
            tensors: entries.to_vec(),
            runtime_index: crate::import::index_record(prefix, index),
            loader_contract: crate::import::loader_contract(),
            created_unix: created,
            created_utc: Some(created.rfc3339()),
            extra: serde_json::Map::default(),
        }
    }
}

/// Whether a manifest's entry is that of this run; sets of other packers record no BLAKE3.
fn same_but_for_blake3(recorded: &TensorPack, entry: &TensorPack) -> bool {
    if recorded.payload.blake3.is_some() {
        return same_tensor(recorded, entry);
    }
    let mut recorded = recorded.clone();
    recorded.payload.blake3 = entry.payload.blake3;
    same_tensor(&recorded, entry)
}
