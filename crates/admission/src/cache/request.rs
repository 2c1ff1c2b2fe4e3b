//! What to prepare, and how much space to leave.

use std::time::Duration;

use b70_manifest::pack::ToolRecord;
use b70_store::{Error, Result, Root, Sha256};

use super::source::ModelSource;
use crate::documents::{Fingerprint, HostFacts};

/// How much space must stay free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    /// 64 MiB and 2 % of the file system (of the bytes to be copied, where it states no size).
    Default,
    /// So many bytes.
    Bytes(u64),
}

impl Reserve {
    pub(super) fn bytes(self, root: &Root, needed: u64) -> Result<u64> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Default => {
                let stat =
                    rustix::fs::fstatvfs(root).map_err(|e| Error::io("stat the file system of", root.path(), e))?;
                let capacity = stat.f_blocks.saturating_mul(stat.f_frsize);
                let of = if capacity == 0 { needed } else { capacity };
                Ok((64 << 20) + of / 50)
            }
        }
    }
}

/// What to prepare.
#[derive(Debug, Clone, Copy)]
pub struct PrepareRequest<'a> {
    /// What the model is for: `target`, `draft`.
    pub role: &'a str,
    /// The model.
    pub source: &'a ModelSource,
    /// The digest it must have, when a document or the user states one.
    pub sha256: Option<Sha256>,
    /// Copy even if there is a valid entry.
    pub force: bool,
    /// Whether the copy becomes immutable (chattr(1), `+i`), so that it may rest unread. It needs root, and a file system that knows
    /// the flag.
    pub immutable: bool,
    /// Space that must stay free.
    pub reserve: Reserve,
    /// How long to wait for another prepare of the same model.
    pub wait: Duration,
    /// Name of the program that makes the entry; its version is this library's.
    pub tool: &'a str,
    /// The packer that the model-pack manifest names.
    pub packing_tool: Option<&'a ToolRecord>,
    /// Architecture of the device, from the model-pack manifest.
    pub target_architecture: Option<&'a str>,
    /// The build beside which the copy is made.
    pub build: Option<&'a Fingerprint>,
    /// Kernel and packages of the host.
    pub host: Option<&'a HostFacts>,
    /// Whether to measure what the copy buys: it reads up to 128 MiB of the source once more.
    pub measure: bool,
}
