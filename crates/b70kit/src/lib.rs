//! The libraries of b70kit under one name, for programs that use several of them.
//!
//! A program that needs one of them may as well depend on that crate alone: what is here is the same, re-exported.
//!
//! # The Q4_0 tensors of a model
//! ```
//! use b70kit::gguf::{GgmlType, GgufWriter, SplitModel};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.gguf");
//! # let mut writer = GgufWriter::new();
//! # writer.metadata("general.architecture", "llama").tensor("blk.0.ffn_up.weight", GgmlType::Q4_0, &[64, 16], vec![7; 576]);
//! # writer.tensor("blk.0.attn_norm.weight", GgmlType::F32, &[64], vec![0; 256]);
//! # writer.write_file(&path)?;
//! let model = SplitModel::open(&path)?; // one file, or any shard of a split model
//! for tensor in model.tensors().iter().filter(|tensor| tensor.ggml_type == GgmlType::Q4_0) {
//!     let bytes = model.read_tensor(tensor)?;
//!     let blocks = bytes.len() as u64 / tensor.ggml_type.block_bytes();
//!     println!("{} {:?}: {blocks} blocks", tensor.name_lossy(), tensor.shape);
//!     assert_eq!(blocks, 32);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A pack set: prepared, verified, opened
//! ```
//! use b70kit::packs::{Depth, Model, PrepareOptions, SetDir, TensorPlan, VerifyOptions, VerifyStatus, Xe2DpasV2};
//! use b70kit::packs::{ALL_PLAN, prepare, verify};
//!
//! # use b70kit::gguf::{GgmlType, GgufWriter};
//! # let folder = tempfile::tempdir()?;
//! # let (path, cache_root) = (folder.path().join("model.gguf"), folder.path().join("packs"));
//! # let mut writer = GgufWriter::new();
//! # writer.metadata("general.architecture", "llama").tensor("blk.0.ffn_up.weight", GgmlType::Q4_0, &[64, 16], vec![7; 576]);
//! # writer.write_file(&path)?;
//! let layout = Xe2DpasV2::new();
//! let plan = TensorPlan::built_in(ALL_PLAN, &layout).expect("a plan of this name");
//! let prepared = prepare(&Model::open(&path)?, &plan, &layout, &PrepareOptions::new(&cache_root))?;
//!
//! let set = SetDir::open(&cache_root, prepared.set_key)?;
//! let options = VerifyOptions { depth: Depth::Deep, ..VerifyOptions::default() };
//! assert_eq!(verify(&set, &layout, &options)?.status, VerifyStatus::Ready);
//! let (manifest, _) = set.read_manifest()?;
//! assert_eq!(manifest.tensors[0].identity.tensor_name, "blk.0.ffn_up.weight");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Who uses a card, and its lease
//! ```
//! use std::time::Duration;
//!
//! use b70kit::cards::{Cards, Host, LeaseKind, LeaseOwner, LeaseRoot, Usage, UsageOptions};
//!
//! let host = Host::real();
//! let cards = Cards::scan(&host)?;
//! # let cards = Cards::assumed(&["0000:03:00.0".parse()?]); // this machine may have none
//! for card in Usage::scan(&host, &cards, &UsageOptions::default()).cards {
//!     println!("{}: {:?}, used by {:?}", card.pci, card.verdict, card.owners);
//! }
//!
//! # let folder = tempfile::tempdir()?;
//! # let lease_root = &folder.path().join("leases");
//! // `cards::DEFAULT_LEASE_ROOT` is where the kit's own programs take theirs.
//! let leases = LeaseRoot::open(lease_root)?;
//! let owner = LeaseOwner::this_process("my tuner")?;
//! let lease = leases.acquire(&cards.cards[0], LeaseKind::Card, &owner, Duration::from_secs(5))?;
//! assert!(leases.acquire(&cards.cards[0], LeaseKind::Card, &owner, Duration::ZERO).is_err());
//! drop(lease); // given back
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

/// GGUF files: directories, tensors and their bytes, a writer.
pub use b70_gguf as gguf;

/// Pack sets and the layout of the Xe2 DPAS kernel.
pub mod packs {
    pub use b70_packset::*;
    pub use b70_xe2pack::{ALL_PLAN, Kernel, KernelError, SelfTest, Xe2DpasV2, self_test};
}

/// Models in RAM, registered artifacts, fingerprints of builds and hosts.
pub use b70_admission as artifacts;

/// Physical cards: which there are, who uses them, leases.
pub use b70_procguard as cards;

/// Servers, one a card: start, watch, stop.
pub use b70_worker as workers;

/// Deterministic fixtures of a kernel, and the runner that reuses only exact passes.
pub use b70_golden as fixtures;

/// Cold calibration, comparison, reports.
pub use b70_bench as calibration;

/// Documents on disk, their schemas, digests.
pub use b70_manifest as documents;

/// Files that can be trusted: roots, locks, publishing, digests, receipts.
pub use b70_store as store;
