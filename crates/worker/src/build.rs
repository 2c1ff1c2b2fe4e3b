//! Which build a server is: its fingerprint, if a document vouches for it.

use std::{collections::BTreeMap, path::PathBuf};

use b70_admission::{Fingerprint, Known, fingerprint_sha256};
use b70_manifest::{Sha256Hex, document};

use crate::{error::WorkerError, identity::BinaryDigests};

/// Fields that `b70-registry fingerprint --json` prints beside the document's own.
const OF_THE_REPORT: [&str; 4] = ["fit_for_pass_reuse", "reasons", "newer_than_binaries", "unknown_because"];

/// What is known of a worker's build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BuildFingerprint {
    /// A fingerprint document lists this very executable.
    Known(Sha256Hex),
    /// None does, for this reason. Never equal to another unknown one.
    Unknown(String),
}

impl BuildFingerprint {
    /// Looks for the worker's executable and libraries in a fingerprint document.
    ///
    /// # Errors
    /// A document that cannot be used, or one that is of another build: its digests of the same files differ.
    pub(crate) fn find(
        document: Option<&PathBuf>,
        executable: &str,
        digests: &BinaryDigests,
    ) -> Result<Self, WorkerError> {
        let Some(path) = document else {
            return Ok(Self::Unknown(
                "no fingerprint document is given (build_fingerprint, --build-fingerprint)".into(),
            ));
        };
        let mut found = document::read::<Fingerprint>(path)?;
        // What the command adds for its reader is not part of the fingerprint.
        found.extra.retain(|name, _| !OF_THE_REPORT.contains(&name.as_str()));
        let differs = |why: String| WorkerError::OtherBuild { path: path.clone(), why };
        let whole = fingerprint_sha256(&found).map_err(|e| differs(e.to_string()))?;
        if let Some(said) = found.sha256.value().filter(|said| **said != whole) {
            return Err(differs(format!("it says sha256 {said}, and its content has {whole}")));
        }
        let executables = BTreeMap::from([(executable.to_owned(), digests.binary)]);
        for (there, here) in [(&found.binaries, &executables), (&found.libraries, &digests.libraries)] {
            for (name, here) in here {
                if let Some(Known::Value(there)) = there.get(name).filter(|there| there.value() != Some(here)) {
                    return Err(differs(format!("{name} has {there} there and {here} here")));
                }
            }
        }
        Ok(match (found.binaries.get(executable), found.sha256) {
            (Some(Known::Value(_)), Known::Value(sha256)) => Self::Known(sha256),
            (Some(Known::Value(_)), _) => {
                Self::Unknown(format!("{} gives no digest: what the build loads is not known", path.display()))
            }
            _ => Self::Unknown(format!("{} does not list {executable}", path.display())),
        })
    }

    /// The digest, if it is known.
    pub(crate) fn sha256(&self) -> Option<Sha256Hex> {
        match self {
            Self::Known(sha256) => Some(*sha256),
            Self::Unknown(_) => None,
        }
    }

    /// The sentence of a plan and of the record.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Known(sha256) => format!("build fingerprint {sha256}"),
            Self::Unknown(why) => format!("build fingerprint unknown: {why}"),
        }
    }
}
