//! Typed documents of b70kit, and the rules they share.
//!
//! This crate is the floor of the workspace: it knows no process, no network and no file beyond one document. It owns
//! *canonical JSON* (the text whose SHA-256 is a key), the *types* of every document on disk, the *evidence classes* that
//! say what a result may be used for, and the *exit codes* all binaries share.
//!
//! # Vocabulary
//! - *canonical hash*: SHA-256 of the canonical JSON of an object.
//! - *evidence class*: what a result may be used for. Nothing warm, reused or synthetic is ever promotion-eligible.
//! - *upstream*: the four Python scripts whose files the kit reads; `lab-…` in kinds, and `Lab…` in types, names their files.
//! - *claim*: what a loaded document says of itself; it is believed only after the rule that produced it ran again.
//!
//! # Example
//! ```
//! use b70_manifest::{canonical_sha256, pack::TensorIdentity};
//!
//! let identity = TensorIdentity {
//!     target_model_sha256: "20c9c45d4d25b492b82117960b5f715ef9daff75e4e14c4fb878fa3793fb379a".parse()?,
//!     tensor_name: "blk.0.ffn_gate.weight".into(),
//!     tensor_shape: [5120, 17408],
//!     tensor_type: "GGML_TYPE_Q4_0".into(),
//!     pack_layout_version: 2,
//!     target_architecture: "bmg-g31".into(),
//!     layout_name: None,
//! };
//! assert_eq!(
//!     canonical_sha256(&identity)?.to_string(),
//!     "d0e6b93028b5c683db77749b9d0229fac944de51474ffcdf0b5e4057bd99ebf3"
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//! `validate`, on by default: [`validate`] checks a document against its schema and rules with every error at once,
//! `document::read` reads one by it, [`migrate`] and [`editor`] build on it. It compiles a JSON Schema validator; a crate
//! that only makes documents or parses their types does without.
//!
//! # Limits
//! Canonical JSON has no floats. Types describe form; whether a file's bytes agree with what a document says of them is
//! decided by `b70-store` and `b70-packset`.
#![forbid(unsafe_code)]

pub mod artifact;
pub mod calibration;
mod canonical;
pub mod document;
#[cfg(feature = "validate")]
pub mod editor;
mod evidence;
pub mod exit;
pub mod gate;
pub mod golden;
mod hex;
#[cfg(feature = "validate")]
pub mod migrate;
pub mod model_pack;
pub mod pack;
mod pci;
mod report;
pub mod schema;
#[cfg(feature = "validate")]
mod span;
pub mod state;
mod time;
#[cfg(feature = "validate")]
pub mod validate;
mod words;
pub mod workers;

pub use canonical::{CanonicalError, canonical_json, canonical_sha256};
pub use evidence::{EvidenceClass, NeverEligible};
pub use hex::{Blake3Hex, ParseDigestError, Sha256Hex};
pub use pci::{GpuRef, ParsePciError, PciAddress};
pub use report::{ErrorEnvelope, ErrorReport, Explain};
pub use time::UnixTime;
