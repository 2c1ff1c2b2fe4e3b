//! The evidence boundary: pure functions over calibration rows that decide what a result may be used for.
//!
//! A gate looks at what was measured and never at what a file claims. [`judge`] runs all of them; what it returns,
//! [`Judged`], is the only calibration result that can be written, and [`Judged::promotion`] the only source of a
//! [`PromotionEligible`]. A file that claims to be promotion-eligible becomes a
//! [`Claim`](crate::calibration::Claim) when it is read, and is judged again.
//!
//! The codes are stable; those of the final gate are upstream's.

mod code;
mod crossover;
mod judge;
mod rows;

pub use code::{Code, GateOutcome};
pub use crossover::crossover;
#[cfg(feature = "validate")]
pub(crate) use judge::is_forbidden;
pub use judge::{Judged, PromotionEligible, identity, judge, realistic_final};
pub use rows::{cached_zero, interval_rate, screening};

/// Tokens an answer must be allowed to have for a promotion.
pub const PROMOTION_MAX_TOKENS: u64 = 512;
/// Events the primary rate is taken over.
pub const PROMOTION_WINDOW: u64 = 100;
/// Prompts a suite must have for a promotion.
pub const PROMOTION_PROMPTS: usize = 12;
/// Classes of prompts a suite must have for a promotion.
pub const PROMOTION_CLASSES: usize = 5;
