//! What to run, and what of it is there.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use b70_procguard::{
    CardVerdict, Cards, GpuRef, Host, Lease, LeaseKind, LeaseOwner, LeaseRoot, PciAddress, Usage, UsageOptions,
    pin_to_card,
};
use b70_store::{Error as StoreError, open_source};
use serde_json::{Value, json};

use crate::error::GoldenError;

/// The tests of upstream's fork that a focused run executes when none is named. A stock build has none of them.
pub const DEFAULT_TESTS: [&str; 3] = ["MUL_MAT_Q4_0_REORDER", "SWIGLU_MMVQ_ADD", "MMVQ_ADD_RMS_Q8_MMVQ_ADD"];

/// On which card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardChoice {
    /// On this one, holding its lease, with the variables that pin a program to it.
    Card(GpuRef),
    /// On none: the run takes no lease and pins nothing.
    NoGpu,
}

/// A focused run.
#[derive(Debug)]
pub struct FocusedRequest<'a> {
    /// Folder with the golden set; logs, results and receipts go below it.
    pub artifact_root: &'a Path,
    /// The build folder.
    pub build: &'a Path,
    /// The source tree; by default the one the build was configured for.
    pub runtime: Option<&'a Path>,
    /// The test binary; by default `bin/test-backend-ops` of the build folder.
    pub binary: Option<&'a Path>,
    /// On which card.
    pub card: CardChoice,
    /// Backend to test, as the binary's flag `-b` takes it; by default all devices but the CPU.
    pub backend: Option<String>,
    /// Tests, as the binary's flag `-o` takes them; one process each.
    pub tests: Vec<String>,
    /// The environment that the tests inherit, text only ([`text_environment`](crate::text_environment)).
    pub inherited: Vec<(String, String)>,
    /// Variables to set for the tests; each counts for the key, whatever its name.
    pub overrides: Vec<(String, String)>,
    /// How long one test may take.
    pub timeout: Duration,
    /// Reuse a pass of exactly this key.
    pub reuse_pass: bool,
    /// Where leases are.
    pub lease_root: &'a Path,
    /// How long to wait for the card's lease.
    pub wait: Duration,
    /// Raised by the caller to end the run.
    pub cancel: &'a AtomicBool,
}

impl FocusedRequest<'_> {
    pub(super) fn check(&self) -> Result<(), GoldenError> {
        let wrong = |name, found: &str, expected: &str| {
            Err(GoldenError::Parameter { name, found: found.to_owned(), expected: expected.to_owned() })
        };
        if self.tests.is_empty() {
            return wrong("op", "none", "at least one test");
        }
        if self.tests.iter().any(|op| op.is_empty() || op.contains('\0')) {
            return wrong("op", "an empty name", "the name of a test");
        }
        for (i, op) in self.tests.iter().enumerate() {
            if self.tests[..i].contains(op) {
                return wrong("op", op, "each test once");
            }
        }
        if self.timeout.is_zero() {
            return wrong("timeout", "0", "a positive number of seconds");
        }
        if let Some((name, _)) =
            self.overrides.iter().find(|(n, v)| n.is_empty() || n.contains(['=', '\0']) || v.contains('\0'))
        {
            return wrong("env", name, "NAME=VALUE");
        }
        Ok(())
    }
}

/// What a request resolves to on this machine.
pub(super) struct Prepared {
    pub(super) build: PathBuf,
    pub(super) binary: PathBuf,
    pub(super) source: PathBuf,
    /// Names of binaries for the fingerprint.
    pub(super) binaries: Vec<String>,
    pub(super) card: Value,
    pci: Option<PciAddress>,
    /// Variables set for the tests.
    pub(super) explicit: Vec<(String, String)>,
    /// Variables taken away from the tests.
    pub(super) removed: Vec<String>,
    /// Why a pass could not be reused whatever its key.
    pub(super) doubts: Vec<String>,
}

impl Prepared {
    pub(super) fn new(request: &FocusedRequest<'_>) -> Result<Self, GoldenError> {
        let build = request.build.canonicalize().map_err(|source| GoldenError::Io {
            action: "open the build folder",
            path: request.build.to_path_buf(),
            source,
        })?;
        let default = build.join("bin").join("test-backend-ops");
        let named = request.binary.unwrap_or(&default);
        let binary =
            named.canonicalize().map_err(|e| GoldenError::Binary { path: named.to_path_buf(), why: e.to_string() })?;
        // Reading it shows that it is a regular file.
        open_source(&binary)?;
        let mut doubts = Vec::new();
        let mut binaries: Vec<String> = b70_admission::DEFAULT_BINARIES.map(str::to_owned).to_vec();
        match binary.strip_prefix(&build).ok().and_then(Path::to_str) {
            Some("bin/test-backend-ops") => {}
            Some(inside) if inside.contains('/') => binaries.push(inside.to_owned()),
            // The fingerprint takes a bare name for one in bin/.
            _ => doubts.push(format!(
                "{} lies in no folder of the build folder, so the libraries it loads are not in the fingerprint",
                binary.display()
            )),
        }
        let source = match request.runtime {
            Some(runtime) => runtime.to_path_buf(),
            None => source_of_build(&build)?,
        };
        let mut prepared = Self {
            build,
            binary,
            source,
            binaries,
            card: Value::String("absent".to_owned()),
            pci: None,
            explicit: Vec::new(),
            removed: Vec::new(),
            doubts,
        };
        if let CardChoice::Card(wanted) = request.card {
            let host = Host::real();
            let cards =
                Cards::scan(&host).map_err(|e| GoldenError::Card(format!("the cards cannot be listed: {e}")))?;
            let card = cards.resolve(wanted).map_err(|e| GoldenError::Card(e.to_string()))?;
            let id = |text: &str| text.trim_start_matches("0x").to_owned();
            prepared.card = json!({ "pci": card.pci.to_string(), "device_id": format!("{}:{}", id(&card.vendor_id), id(&card.device_id)) });
            prepared.pci = Some(card.pci);
            let pinning = pin_to_card(&cards, card.pci).map_err(|e| GoldenError::Card(e.to_string()))?;
            (prepared.explicit, prepared.removed) = (pinning.set, pinning.unset);
        }
        prepared.explicit.extend(request.overrides.iter().cloned());
        prepared.removed.retain(|name| prepared.explicit.iter().all(|(set, _)| set != name));
        Ok(prepared)
    }

    /// Takes the card's lease and looks whether somebody without a lease uses it.
    pub(super) fn lease(&self, request: &FocusedRequest<'_>) -> Result<Option<Lease>, GoldenError> {
        let Some(pci) = self.pci else { return Ok(None) };
        let io = |source: std::io::Error| GoldenError::Io {
            action: "take a lease in",
            path: request.lease_root.to_path_buf(),
            source,
        };
        let owner = LeaseOwner::this_process(format!("b70-golden focused {}", request.tests.join(","))).map_err(io)?;
        let mut lease = LeaseRoot::open(request.lease_root)?.acquire(pci, LeaseKind::Card, &owner, request.wait)?;
        let host = Host::real();
        let cards = Cards::scan(&host).map_err(|e| GoldenError::Card(format!("the cards cannot be listed: {e}")))?;
        let usage = Usage::scan(&host, &cards, &UsageOptions::default());
        if let Some(used) = usage.cards.iter().find(|card| card.pci == pci && card.verdict == CardVerdict::Used) {
            let owners = used.owners.iter().map(|o| format!("{} ({})", o.pid, o.comm)).collect::<Vec<_>>().join(", ");
            return Err(GoldenError::Card(format!("{pci} is used without a lease by {owners}; end it first")));
        }
        lease.make_inheritable().map_err(io)?;
        Ok(Some(lease))
    }
}

/// The source tree a build was configured for, from its `CMakeCache.txt`.
///
/// # Errors
/// No such file, or no entry `CMAKE_HOME_DIRECTORY` in it: then the tree must be named.
pub(crate) fn source_of_build(build: &Path) -> Result<PathBuf, GoldenError> {
    let path = build.join("CMakeCache.txt");
    let wrong = |why: &str| GoldenError::BadFile { path: path.clone(), why: why.to_owned() };
    let file = match open_source(&path) {
        Ok(file) => file,
        Err(StoreError::Missing { .. }) => return Err(wrong("there is none; name the source tree with --runtime")),
        Err(error) => return Err(error.into()),
    };
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, 16 << 20), &mut bytes)
        .map_err(|source| GoldenError::Io { action: "read", path: path.clone(), source })?;
    String::from_utf8_lossy(&bytes)
        .lines()
        .find_map(|line| line.strip_prefix("CMAKE_HOME_DIRECTORY:INTERNAL=").map(PathBuf::from))
        .ok_or_else(|| wrong("it does not name its source tree; name it with --runtime"))
}
