//! `/proc/PID/fdinfo/FD` of a DRM descriptor: who a client is, what memory it holds, how much it has computed.

use std::collections::BTreeMap;

use b70_manifest::PciAddress;

/// Memory of one client in one region, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegionUse {
    /// With backing store in that region (like RSS).
    pub resident: Option<u64>,
    /// All buffers made, instantiated or not (like VSZ).
    pub total: Option<u64>,
}

impl RegionUse {
    /// Resident bytes, or the total where the driver prints no resident figure.
    pub fn held(&self) -> u64 {
        self.resident.or(self.total).unwrap_or(0)
    }
}

/// One parsed file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FdInfo {
    /// `drm-driver`: present in every DRM fdinfo.
    pub driver: String,
    /// `drm-pdev`.
    pub pdev: Option<PciAddress>,
    /// `drm-client-id`: one per open file of the kernel. Descriptors that were duplicated or inherited share it.
    pub client_id: Option<u64>,
    /// Memory by region: `vram0`, `gtt`, `system`, `stolen` (xe), `local0`, `system0` (i915), `vram`, `gtt`, `cpu` (amdgpu).
    pub regions: BTreeMap<String, RegionUse>,
    /// Work so far by engine: `drm-cycles-*` (xe), else `drm-engine-*` in nanoseconds. Empty when the driver printed none.
    pub work: BTreeMap<String, u64>,
}

impl FdInfo {
    /// Parses the file; `None` if it is not that of a DRM descriptor. Lines it cannot read are skipped, unless they
    /// are a memory figure: then the whole file counts as unreadable, because a lost figure would look like no use.
    pub fn parse(text: &str) -> Result<Option<Self>, FdInfoError> {
        let mut info = Self::default();
        let mut cycles = BTreeMap::new();
        let mut engines = BTreeMap::new();
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let Some(key) = key.trim().strip_prefix("drm-") else { continue };
            let value = value.trim();
            let figure = |v: &str| parse_size(v).ok_or_else(|| FdInfoError { line: line.trim().to_owned() });
            match key {
                "driver" => value.clone_into(&mut info.driver),
                "pdev" => info.pdev = value.parse().ok(),
                "client-id" => info.client_id = value.parse().ok(),
                _ => {
                    if let Some(region) = key.strip_prefix("resident-").or_else(|| key.strip_prefix("memory-")) {
                        let bytes = figure(value)?;
                        let slot = &mut info.regions.entry(region.to_owned()).or_default().resident;
                        // `memory-` is the old name of `resident-`; where both stand they agree, the larger is safe.
                        *slot = Some(slot.map_or(bytes, |old| old.max(bytes)));
                    } else if let Some(region) = key.strip_prefix("total-").filter(|k| !k.starts_with("cycles")) {
                        info.regions.entry(region.to_owned()).or_default().total = Some(figure(value)?);
                    } else if let Some(engine) = key.strip_prefix("cycles-") {
                        cycles.insert(engine.to_owned(), number(value));
                    } else if let Some(engine) = key.strip_prefix("engine-").filter(|k| !k.starts_with("capacity")) {
                        engines.insert(engine.to_owned(), number(value));
                    }
                }
            }
        }
        if info.driver.is_empty() {
            return Ok(None);
        }
        let work = if cycles.is_empty() { engines } else { cycles };
        info.work = work.into_iter().filter_map(|(k, v)| v.map(|v| (k, v))).collect();
        Ok(Some(info))
    }

    /// Bytes held in the card's own memory.
    pub fn vram(&self) -> u64 {
        self.sum(|region| region.starts_with("vram") || region.starts_with("local"))
    }

    /// Bytes held by this client in the host's memory: staging buffers, and whatever was evicted from the card and
    /// will return with the client's next submission.
    pub fn host_memory(&self) -> u64 {
        self.sum(|region| region.starts_with("gtt") || region.starts_with("system"))
    }

    fn sum(&self, wanted: impl Fn(&str) -> bool) -> u64 {
        self.regions.iter().filter(|(name, _)| wanted(name)).fold(0, |sum, (_, r)| sum.saturating_add(r.held()))
    }

    /// Has any engine worked between this sample and a later one of the same client?
    pub fn worked_until(&self, later: &Self) -> bool {
        later.work.iter().any(|(engine, after)| self.work.get(engine).is_some_and(|before| after > before))
    }
}

/// A memory line in a form no kernel is known to print.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fdinfo line {line:?} has no size in bytes, KiB or MiB")]
pub struct FdInfoError {
    line: String,
}

fn number(value: &str) -> Option<u64> {
    value.split_ascii_whitespace().next()?.parse().ok()
}

/// `4096`, `4 KiB`, `16 MiB`: a number without unit is bytes. (`GiB` is not printed today and is taken all the same.)
fn parse_size(value: &str) -> Option<u64> {
    let mut parts = value.split_ascii_whitespace();
    let number: u64 = parts.next()?.parse().ok()?;
    let shift = match parts.next() {
        None | Some("B") => 0,
        Some("KiB" | "kB") => 10,
        Some("MiB") => 20,
        Some("GiB") => 30,
        Some(_) => return None,
    };
    if parts.next().is_some() { None } else { number.checked_mul(1 << shift) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const XE: &str = "pos:\t0\nflags:\t02100002\nmnt_id:\t26\nino:\t512\ndrm-driver:\txe\ndrm-client-id:\t3\n\
        drm-pdev:\t0000:03:00.0\ndrm-total-system:\t0\ndrm-resident-system:\t0\ndrm-total-gtt:\t192 KiB\n\
        drm-resident-gtt:\t192 KiB\ndrm-total-vram0:\t23992 KiB\ndrm-resident-vram0:\t16 MiB\ndrm-total-stolen:\t0\n\
        drm-cycles-rcs:\t28257900\ndrm-total-cycles-rcs:\t7655183225\ndrm-cycles-ccs:\t0\ndrm-total-cycles-ccs:\t7655183225\n\
        drm-engine-capacity-ccs:\t4\n";

    #[test]
    fn an_xe_client_is_read() {
        let info = FdInfo::parse(XE).unwrap().unwrap();
        assert_eq!((info.driver.as_str(), info.client_id), ("xe", Some(3)));
        assert_eq!(info.pdev.unwrap().to_string(), "0000:03:00.0");
        assert_eq!(info.vram(), 16 << 20, "resident, not total");
        assert_eq!(info.host_memory(), 192 << 10);
        assert_eq!(info.work["rcs"], 28_257_900);
        assert_eq!(info.work.len(), 2, "capacities and total cycles are not work");
    }

    #[test]
    fn all_three_units_and_the_old_name_are_read() {
        for (line, bytes) in [
            ("drm-resident-vram0:\t17179869184", 17_179_869_184),
            ("drm-resident-vram0: 16777216 KiB", 17_179_869_184),
            ("drm-resident-vram0:16384 MiB", 17_179_869_184),
            ("drm-memory-vram: 512 KiB", 524_288),
            ("drm-total-vram0: 5 MiB", 5_242_880),
            ("drm-total-local0: 1 KiB", 1024),
        ] {
            let info = FdInfo::parse(&format!("drm-driver: xe\n{line}\n")).unwrap().unwrap();
            assert_eq!(info.vram(), bytes, "{line}");
        }
    }

    #[test]
    fn a_figure_that_cannot_be_read_is_an_error_and_never_zero() {
        for line in [
            "drm-resident-vram0: many",
            "drm-resident-vram0: 1 TiB",
            "drm-total-vram0: 99999999999999999999",
            "drm-resident-vram0:",
        ] {
            assert!(FdInfo::parse(&format!("drm-driver: xe\n{line}\n")).is_err(), "{line}");
        }
    }

    #[test]
    fn other_files_are_not_drm() {
        assert_eq!(FdInfo::parse("pos:\t0\nflags:\t02\ninotify wd:3 ino:1\n"), Ok(None));
    }

    #[test]
    fn work_is_a_difference() {
        let sample = |n: u64| FdInfo::parse(&format!("drm-driver: xe\ndrm-cycles-ccs: {n}\n")).unwrap().unwrap();
        assert!(sample(1).worked_until(&sample(2)));
        assert!(!sample(2).worked_until(&sample(2)));
        let missing = FdInfo::parse("drm-driver: xe\n").unwrap().unwrap();
        assert!(!sample(1).worked_until(&missing) && missing.work.is_empty());
        let i915 = FdInfo::parse("drm-driver: i915\ndrm-engine-render: 55 ns\ndrm-engine-capacity-video: 2\n")
            .unwrap()
            .unwrap();
        assert_eq!(i915.work, BTreeMap::from([("render".to_owned(), 55)]));
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "(drm-[a-z0-9-]{0,20}:[ \t]{0,2}[0-9]{0,22} ?[KMG]?i?B?\n){0,8}", junk in ".{0,60}") {
            let _ = FdInfo::parse(&text);
            let _ = FdInfo::parse(&junk);
        }

        #[test]
        fn every_printed_size_is_read_exactly(bytes in 0u64..1 << 44) {
            // The three ways kernels print: plain, stepped while aligned, stepped and truncated.
            let aligned = if bytes % (1 << 20) == 0 { format!("{} MiB", bytes >> 20) } else if bytes % 1024 == 0 { format!("{} KiB", bytes >> 10) } else { bytes.to_string() };
            proptest::prop_assert_eq!(parse_size(&aligned), Some(bytes));
            proptest::prop_assert_eq!(parse_size(&format!("{} KiB", bytes >> 10)), Some(bytes >> 10 << 10));
        }
    }
}
