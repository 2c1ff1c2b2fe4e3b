//! What a result depends on besides the build: kernel, GPU user-space packages, GPU firmware, PCI ids.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use b70_procguard::{Card, Cards, Host};
use b70_store::{Sha256, open_source, read_bounded};
use serde_json::Map;

use super::Doubts;
use super::process::run;
use crate::documents::{HostFacts, Known};

/// The largest package database or firmware file that is read.
const MAX_BYTES: u64 = 256 << 20;

/// Beginnings of the names of packages that make up a GPU's user space under Debian, Fedora, SUSE and Arch names:
/// compute runtime, graphics compiler, memory manager, Level Zero, Vulkan driver, oneAPI run time and compiler, kernel
/// firmware.
const PACKAGES: [&str; 23] = [
    "intel-opencl",
    "intel-level-zero",
    "intel-compute-runtime",
    "intel-graphics-compiler",
    "intel-igc",
    "intel-gmmlib",
    "intel-metee",
    "intel-gsc",
    "intel-ocloc",
    "intel-oneapi",
    "libigc",
    "libigdfcl",
    "libigdgmm",
    "libze",
    "level-zero",
    "oneapi-level-zero",
    "libmetee",
    "mesa-vulkan",
    "mesa-libGL",
    "vulkan-intel",
    "linux-firmware",
    "firmware-intel-graphics",
    "firmware-misc-nonfree",
];

fn is_gpu_package(name: &str) -> bool {
    PACKAGES.iter().any(|prefix| name.starts_with(prefix)) || name == "mesa" || name == "gmmlib"
}

type Packages = BTreeMap<String, String>;

/// The host's facts; what could not be determined is `unknown`.
pub fn host_facts(host: &Host, deadline: Duration) -> HostFacts {
    host_facts_with_reasons(host, deadline).0
}

/// The same, with the reason for each unknown part by its JSON pointer in a fingerprint.
pub(super) fn host_facts_with_reasons(host: &Host, deadline: Duration) -> (HostFacts, BTreeMap<String, String>) {
    let mut doubts = Doubts::default();
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let cards = cards(host);
    let firmware = match &cards {
        Err(why) => Err(why.clone()),
        Ok(cards) if cards.is_empty() => Ok(Known::Absent),
        Ok(cards) => firmware(host.root(), cards),
    };
    let pci_ids = cards
        .map(|cards| if cards.is_empty() { Known::Absent } else { Known::Value(cards.iter().map(pci_id).collect()) });
    let facts = HostFacts {
        kernel: Known::Value(kernel),
        packages: doubts.settle("/host/packages", packages(host, deadline)),
        firmware: doubts.settle("/host/firmware", firmware),
        pci_ids: doubts.settle("/host/pci_ids", pci_ids),
        extra: Map::new(),
    };
    (facts, doubts.0)
}

fn read_text(path: &Path) -> Result<String, String> {
    let bytes = open_source(path).and_then(|file| read_bounded(&file, path, MAX_BYTES)).map_err(|e| e.to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn exists(path: &Path) -> Result<bool, String> {
    path.try_exists().map_err(|e| format!("{}: {e}", path.display()))
}

/// All package databases of the host together; absent when there is one and it names no package of a GPU's.
fn packages(host: &Host, deadline: Duration) -> Result<Known<Packages>, String> {
    let mut found = Packages::new();
    let mut databases = 0;
    let dpkg = host.root().join("var/lib/dpkg/status");
    if exists(&dpkg)? {
        databases += 1;
        found.extend(dpkg_packages(&read_text(&dpkg)?));
    }
    let pacman = host.root().join("var/lib/pacman/local");
    if exists(&pacman)? {
        databases += 1;
        for entry in std::fs::read_dir(&pacman).map_err(|e| format!("{}: {e}", pacman.display()))? {
            let entry = entry.map_err(|e| format!("{}: {e}", pacman.display()))?;
            // `<name>-<version>-<release>`, where a name may have dashes and the other two may not.
            let name = entry.file_name().to_string_lossy().into_owned();
            let mut parts = name.rsplitn(3, '-');
            if let (Some(release), Some(version), Some(name)) = (parts.next(), parts.next(), parts.next())
                && is_gpu_package(name)
            {
                found.insert(name.to_owned(), format!("{version}-{release}"));
            }
        }
    }
    let rpm = ["usr/lib/sysimage/rpm", "var/lib/rpm"].iter().map(|p| host.root().join(p));
    let mut has_rpm = false;
    for path in rpm {
        // Debian's rpm package leaves an empty folder.
        has_rpm |= exists(&path)? && std::fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some());
    }
    if has_rpm {
        if !host.is_real() {
            return Err("the packages are in an rpm database, which is not to be asked here".to_owned());
        }
        databases += 1;
        found.extend(rpm_packages(deadline)?);
    }
    match (databases, found.is_empty()) {
        (0, _) => Err("there is no database of dpkg, rpm or pacman".to_owned()),
        (_, true) => Ok(Known::Absent),
        _ => Ok(Known::Value(found)),
    }
}

fn dpkg_packages(status: &str) -> Packages {
    let mut found = Packages::new();
    for paragraph in status.split("\n\n") {
        let field = |name: &str| paragraph.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let (Some(name), Some(version)) = (field("Package"), field("Version")) else { continue };
        let installed = field("Status").is_some_and(|s| s.ends_with(" installed"));
        if installed && is_gpu_package(name) {
            // Two architectures of one package may be installed side by side.
            let key = match (found.contains_key(name), field("Architecture")) {
                (true, Some(architecture)) => format!("{name}:{architecture}"),
                _ => name.to_owned(),
            };
            found.insert(key, version.to_owned());
        }
    }
    found
}

fn rpm_packages(deadline: Duration) -> Result<Packages, String> {
    let mut text = Vec::new();
    let format = "%{NAME} %|EPOCH?{%{EPOCH}:}:{}|%{VERSION}-%{RELEASE}.%{ARCH}\\n";
    run("rpm", &["-qa", "--queryformat", format], Path::new("/"), &[], deadline, &mut |piece| {
        if text.len() < MAX_BYTES as usize {
            text.extend_from_slice(piece);
        }
    })?;
    Ok(String::from_utf8_lossy(&text)
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| is_gpu_package(name))
        .map(|(name, version)| (name.to_owned(), version.to_owned()))
        .collect())
}

/// Intel's display-class PCI devices, sorted by address.
fn cards(host: &Host) -> Result<Vec<Card>, String> {
    // A machine without a PCI bus has /sys/bus all the same; without that, nothing can be said.
    if !exists(&host.root().join("sys/bus"))? {
        return Err(format!("{} is not there", host.root().join("sys/bus").display()));
    }
    let found = Cards::scan(host).map_err(|e| format!("/sys/bus/pci/devices: {e}"))?;
    match found.unreadable.into_iter().next() {
        Some(why) => Err(why),
        None => Ok(found.cards.into_iter().filter(|card| card.vendor_id == "0x8086").collect()),
    }
}

/// `vendor:device`.
fn pci_id(card: &Card) -> String {
    format!("8086:{}", card.device_id.trim_start_matches("0x"))
}

/// The firmware files of the cards' drivers as they are installed, by name, each with its SHA-256. They are what the
/// driver loads at its next start; which version runs now, only root can read.
fn firmware(root: &Path, cards: &[Card]) -> Result<Known<Packages>, String> {
    let mut found = Packages::new();
    for card in cards {
        let Some(driver) = &card.driver else {
            return Err(format!("the card {} has no driver whose firmware could be looked for", pci_id(card)));
        };
        let folder = root.join("lib/firmware").join(driver);
        if !exists(&folder)? {
            return Err(format!("{} is not there", folder.display()));
        }
        for entry in std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))? {
            let path = entry.map_err(|e| format!("{}: {e}", folder.display()))?.path();
            if !path.is_file() {
                continue;
            }
            let bytes =
                open_source(&path).and_then(|file| read_bounded(&file, &path, MAX_BYTES)).map_err(|e| e.to_string())?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            found.insert(format!("{driver}/{name}"), Sha256::of(&bytes).to_string());
        }
    }
    Ok(if found.is_empty() { Known::Absent } else { Known::Value(found) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dpkg_names_only_what_is_installed() {
        let status = "Package: libze1\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.21.9\n\n\
                      Package: intel-opencl-icd\nStatus: deinstall ok config-files\nVersion: 25.1\n\n\
                      Package: bash\nStatus: install ok installed\nVersion: 5.2\n";
        assert_eq!(dpkg_packages(status), Packages::from([("libze1".to_owned(), "1.21.9".to_owned())]));
    }
}
