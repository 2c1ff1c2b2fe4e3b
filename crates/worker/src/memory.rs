//! Is there memory for the models that a plan would load?
//!
//! What is certain blocks, what is only likely is said:
//! - A model's file goes through memory whatever the server does with it. If what is not in memory yet is more than the
//!   machine has available (or a cgroup leaves), the start would push out everything else, or be killed: blocked, unless
//!   the caller allows it.
//! - On a card, the driver of a B70 has been seen to take as much host memory as a buffer has device memory. That depends on
//!   kernel and driver, so a lack of room for it is a note.
//! - What cannot be read is a note as well: a guard that fails closed here would forbid every start in a container.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use b70_admission::resident_bytes;
use b70_store::{FsKind, meminfo_bytes, memory_limits};

use crate::{lane::GpuMode, resolve::ResolvedCommand};

/// The room of this machine, and what the workers looked at so far would take of it.
pub(crate) struct MemoryPlan {
    room: Result<(u64, String), String>,
    /// The most that can be in the page cache.
    cached: u64,
    /// Servers share the pages of a file.
    counted: BTreeSet<PathBuf>,
    missing: u64,
    on_cards: u64,
}

/// What is said of one worker.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryVerdict {
    pub(crate) blocked: Option<String>,
    pub(crate) note: Option<String>,
}

impl MemoryPlan {
    /// Looks at this machine.
    pub(crate) fn look() -> Self {
        let room = match memory_limits(Path::new("/")) {
            Ok(limits) => limits
                .into_iter()
                .min_by_key(|limit| limit.available_bytes)
                .map(|limit| (limit.available_bytes, limit.source))
                .ok_or_else(|| "the kernel names no limit".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let cached = fs::read_to_string("/proc/meminfo").map_or(u64::MAX, |text| page_cache(&text));
        Self { room, cached, counted: BTreeSet::new(), missing: 0, on_cards: 0 }
    }

    /// Adds a worker to the plan and judges the whole.
    pub(crate) fn add(&mut self, command: &ResolvedCommand, mode: GpuMode, allow_low: bool) -> MemoryVerdict {
        let mut verdict = MemoryVerdict::default();
        let (available, source) = match &self.room {
            Ok((available, source)) => (*available, source.clone()),
            Err(why) => {
                verdict.note = Some(format!("memory for the model is unchecked: {why}"));
                return verdict;
            }
        };
        let models = [Some(&command.target_model), command.draft_model.as_ref()];
        for path in models.into_iter().flatten().flat_map(|model| shards(Path::new(&model.path))) {
            // A file that is not there is another check's.
            let Ok(size) = path.metadata().map(|m| m.len()) else { continue };
            self.on_cards = self.on_cards.saturating_add(size);
            if self.counted.insert(path.clone()) {
                self.missing = self.missing.saturating_add(self.not_in_memory(&path, size, available));
            }
        }
        if self.missing > available {
            let text = format!(
                "{} bytes of model files are not in memory yet, and {available} are available ({source}): loading them would push out everything else, or be killed",
                self.missing
            );
            if allow_low {
                verdict.note = Some(format!("{text}; allowed by --allow-low-memory"));
            } else {
                verdict.blocked = Some(format!("{text}; --allow-low-memory starts it all the same"));
            }
        } else if mode == GpuMode::Required && self.missing.saturating_add(self.on_cards) > available {
            verdict.note = Some(format!(
                "memory may run short: a B70's driver may take as much host memory as the {} bytes of models have on the cards, and {available} are available ({source})",
                self.on_cards
            ));
        }
        verdict
    }

    /// Bytes of a file outside memory. Pages are counted only where the answer matters: a count takes as long as the file
    /// is large.
    fn not_in_memory(&self, path: &Path, size: u64, available: u64) -> u64 {
        let fits = |bytes: u64| self.missing.saturating_add(bytes) <= available;
        let at_least = size.saturating_sub(self.cached);
        if in_memory(path) {
            0
        } else if fits(size) {
            size
        } else if fits(at_least) {
            size.saturating_sub(resident_bytes(path).unwrap_or(0))
        } else {
            at_least
        }
    }
}

fn in_memory(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|fs| FsKind::from_f_type(fs.f_type as u64) == FsKind::Tmpfs)
}

/// Bytes of file pages in memory, those of file systems in memory among them.
fn page_cache(meminfo: &str) -> u64 {
    ["Cached", "Buffers"].iter().filter_map(|key| meminfo_bytes(meminfo, key)).fold(0, u64::saturating_add)
}

/// The files of a model: all shards if its name is that of a first shard.
fn shards(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let total = name
        .strip_suffix(".gguf")
        .and_then(|stem| stem.rsplit_once("-00001-of-"))
        .and_then(|(stem, total)| Some((stem, total.parse::<u32>().ok().filter(|n| *n <= 99_999)?)));
    match total {
        Some((stem, total)) => {
            (1..=total).map(|n| path.with_file_name(format!("{stem}-{n:05}-of-{total:05}.gguf"))).collect()
        }
        None => vec![path.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use b70_manifest::state::{ModelChoice, ModelCopy};

    use super::*;

    fn command(path: &Path) -> ResolvedCommand {
        let target_model = ModelChoice {
            path: path.display().to_string(),
            sha256: None,
            copy: ModelCopy::Source,
            reason: "test".into(),
            trust: None,
            extra: serde_json::Map::new(),
        };
        ResolvedCommand::bare("w", target_model)
    }

    fn plan(available: u64, cached: u64) -> MemoryPlan {
        let room = Ok((available, "MemAvailable".to_owned()));
        MemoryPlan { room, cached, counted: BTreeSet::new(), missing: 0, on_cards: 0 }
    }

    #[test]
    fn what_is_certain_blocks_and_what_is_likely_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("a.gguf"), dir.path().join("b.gguf"));
        for path in [&one, &other] {
            // A hole: nothing of it is in memory.
            fs::File::create(path).unwrap().set_len(1000 << 20).unwrap();
        }
        let mib = 1 << 20;
        let add = |plan: &mut MemoryPlan, path: &Path, mode| plan.add(&command(path), mode, false);
        let mut roomy = plan(5000 * mib, 0);
        assert_eq!(add(&mut roomy, &one, GpuMode::Required), MemoryVerdict::default());
        let mut tight = plan(1500 * mib, 0);
        assert!(add(&mut tight, &one, GpuMode::Required).note.unwrap().contains("may run short"));
        let mut cpu = plan(1500 * mib, 0);
        assert_eq!(add(&mut cpu, &one, GpuMode::Absent), MemoryVerdict::default());
        assert_eq!(add(&mut cpu, &one, GpuMode::Absent), MemoryVerdict::default(), "servers share a file's pages");
        let blocked = add(&mut cpu, &other, GpuMode::Absent).blocked.unwrap();
        assert!(blocked.contains(&(2000 * mib).to_string()) && blocked.contains("MemAvailable"), "{blocked}");
        let mut allowed = plan(500 * mib, 0);
        let verdict = allowed.add(&command(&one), GpuMode::Absent, true);
        assert!(verdict.blocked.is_none() && verdict.note.unwrap().contains("--allow-low-memory"));
        // The cache might hold it, so its pages are counted: none is there.
        let mut counted = plan(900 * mib, 4000 * mib);
        assert!(add(&mut counted, &one, GpuMode::Absent).blocked.is_some());
        let mut blind = plan(0, 0);
        blind.room = Err("no /proc".into());
        assert!(add(&mut blind, &one, GpuMode::Absent).note.unwrap().contains("unchecked: no /proc"));
    }

    #[test]
    fn every_shard_of_a_model_counts() {
        assert_eq!(shards(Path::new("/m/x.gguf")), [PathBuf::from("/m/x.gguf")]);
        let three = shards(Path::new("/m/x-00001-of-00003.gguf"));
        assert_eq!((three.len(), three[2].to_str()), (3, Some("/m/x-00003-of-00003.gguf")));
        assert_eq!(page_cache("MemTotal: 9 kB\nBuffers:   2 kB\nCached:  3 kB\nSwapCached: 7 kB\n"), 5 * 1024);
    }
}
