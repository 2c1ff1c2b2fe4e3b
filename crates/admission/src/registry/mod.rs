//! Registry of artifacts made elsewhere: their identities, never their payload.
//!
//! A record says which bytes an artifact had, from which model it was made, by which packer and in which layout. It does
//! not say that any program can use it: `binding_status` stays
//! `external-artifact-registered-loader-binding-required`, since a stock llama.cpp has no loader that binds serialized
//! reordered weights.

mod artifact;
mod outcome;
mod record;
mod store;
mod verify;

pub use artifact::Artifact;
pub use outcome::{GcPlan, GcRecord, Listed, RegisterOutcome, Registered, RegistryVerdict};
pub use record::pack_key;
pub use store::{RegisterRequest, Registry};
