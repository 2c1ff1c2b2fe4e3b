//! What a copy in memory buys: the measured read rate of the source against that of the copy.

use std::fs::File;
use std::time::Instant;

use b70_store::{Error, Progress, Result, file_system_of};
use serde::Serialize;

use super::entry::Opened;
use super::residency::{Residency, read_range};
use super::source::ModelSource;

/// Windows that are measured, and the length of each.
const WINDOWS: u64 = 8;
const WINDOW: u64 = 16 << 20;

/// Residency from which on the page cache holds "it": a few pages may always be missing.
const HELD: f64 = 0.99;

/// Whether the copy is worth its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StagingVerdict {
    /// The source lies in memory itself: the copy buys nothing.
    SourceIsInMemory,
    /// The page cache already holds the source: starts are as fast without the copy until the kernel drops those pages.
    PageCacheAlreadyHoldsIt,
    /// The copy is read faster than the cold source.
    Faster,
    /// No gain was measured.
    NoGainMeasured,
}

/// Measured rates. They are of this moment and this machine, and say nothing of generation speed.
#[derive(Debug, Clone, PartialEq, Serialize, schemars::JsonSchema)]
pub struct StagingReport {
    /// The verdict.
    pub verdict: StagingVerdict,
    /// The verdict as a sentence.
    pub text: String,
    /// Bytes of the source.
    pub source_bytes: u64,
    /// Of these, in memory before anything was read.
    pub source_resident_bytes: u64,
    /// Bytes that were read to measure.
    pub sample_bytes: u64,
    /// Whether the kernel let go of the sample before it was read: only then is the rate one of the medium.
    pub source_was_cold: bool,
    /// Read rate of the source.
    pub source_mib_per_second: f64,
    /// Read rate of the copy.
    pub ram_mib_per_second: f64,
    /// Seconds a full read of the model saves at these rates; not negative.
    pub seconds_saved_per_load: f64,
}

/// The half that must be measured before the copy fills the page cache.
#[derive(Debug)]
pub(super) struct Before {
    windows: Vec<(usize, u64, u64)>,
    source_bytes: u64,
    resident: u64,
    sample: u64,
    cold: bool,
    seconds: f64,
    in_memory: bool,
}

/// Up to [`WINDOWS`] windows spread over the largest file.
fn windows(source: &ModelSource) -> Vec<(usize, u64, u64)> {
    let Some((index, file)) = source.files.iter().enumerate().max_by_key(|(_, f)| f.identity.size) else {
        return Vec::new();
    };
    let size = file.identity.size;
    if size <= WINDOWS * WINDOW {
        return vec![(index, 0, size)];
    }
    let page = rustix::param::page_size() as u64;
    (0..WINDOWS).map(|i| (index, (size - WINDOW) / (WINDOWS - 1) * i / page * page, WINDOW)).collect()
}

pub(super) fn before(source: &ModelSource, progress: &Progress<'_>) -> Result<Before> {
    let mut resident = 0;
    let mut in_memory = true;
    for file in &source.files {
        resident += Residency::map(&file.file, &file.path)?.resident()?;
        in_memory &= file_system_of(&file.file, &file.path)?.kind.in_memory();
    }
    let windows = windows(source);
    let (mut cold, mut seconds, mut sample) = (!in_memory, 0.0, 0);
    for &(index, offset, len) in &windows {
        progress.check()?;
        let file = &source.files[index];
        // Dirty or mapped pages stay; what stayed shows in the count and makes the rate "not cold".
        let _ = rustix::fs::fadvise(&file.file, offset, std::num::NonZeroU64::new(len), rustix::fs::Advice::DontNeed);
        let left = Residency::map(&file.file, &file.path)?.resident_range(offset as usize, len as usize)?;
        cold &= left * 20 < len;
        seconds += timed(&file.file, offset, len).map_err(|e| Error::io("read", &file.path, e))?;
        sample += len;
    }
    Ok(Before { windows, source_bytes: source.size(), resident, sample, cold, seconds, in_memory })
}

fn timed(file: &File, offset: u64, len: u64) -> std::io::Result<f64> {
    let start = Instant::now();
    read_range(file, offset, len)?;
    Ok(start.elapsed().as_secs_f64())
}

fn rate(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / f64::from(1 << 20) / seconds.max(1e-9)
}

impl Before {
    pub(super) fn finish(self, copy: &Opened, progress: &Progress<'_>) -> Result<StagingReport> {
        let mut seconds = 0.0;
        for &(index, offset, len) in &self.windows {
            progress.check()?;
            let name = &copy.files[index].name;
            let file = copy.folder.open_file(name)?;
            seconds += timed(&file, offset, len).map_err(|e| Error::io("read", copy.folder.join(name), e))?;
        }
        let (source_rate, ram_rate) = (rate(self.sample, self.seconds), rate(self.sample, seconds));
        let saved = rate_seconds(self.source_bytes, source_rate) - rate_seconds(self.source_bytes, ram_rate);
        let held = self.resident as f64 >= HELD * self.source_bytes as f64;
        let (verdict, text) = if self.in_memory {
            (StagingVerdict::SourceIsInMemory, "the source lies in memory already; the copy buys nothing".to_owned())
        } else if held {
            let text = "the page cache already holds it: until the kernel drops those pages a start reads the source \
                        as fast as the copy";
            (StagingVerdict::PageCacheAlreadyHoldsIt, text.to_owned())
        } else if ram_rate > source_rate {
            let from = if self.cold { "cold source" } else { "source (partly in memory)" };
            let text = format!(
                "a full read takes {saved:.1} s less from the copy ({ram_rate:.0} MiB/s) than from the {from} \
                 ({source_rate:.0} MiB/s)"
            );
            (StagingVerdict::Faster, text)
        } else {
            (StagingVerdict::NoGainMeasured, "the copy was not read faster than the source".to_owned())
        };
        Ok(StagingReport {
            verdict,
            text,
            source_bytes: self.source_bytes,
            source_resident_bytes: self.resident,
            sample_bytes: self.sample,
            source_was_cold: self.cold,
            source_mib_per_second: source_rate,
            ram_mib_per_second: ram_rate,
            seconds_saved_per_load: saved.max(0.0),
        })
    }
}

fn rate_seconds(bytes: u64, mib_per_second: f64) -> f64 {
    bytes as f64 / f64::from(1 << 20) / mib_per_second.max(1e-9)
}
