//! Documents of cold calibration: the suite, one endpoint's result, a whole run, a comparison, upstream's older results.
//!
//! A [`CalibrationResult`] that was read from a file is a claim. It cannot be written back: only
//! [`gate::judge`](crate::gate::judge) makes a document that can, and what that document says of itself comes from the
//! gates alone.

mod compare;
mod result;
mod row;
mod suite;

pub use compare::{BootstrapInterval, CardEffect, Comparison, ComparisonVerdict, CrossoverGroup, Effect, Interval};
pub use result::{
    CalibrationResult, CalibrationRun, CardIdentity, Claim, EndpointIdentity, LabCalibrationResult, Measured,
    MetricSummary, RunEndpoint, RunIdentity, Settings, SuiteIdentity, SuitePromptIdentity,
};
pub use row::CalibrationRow;
pub use suite::{CalibrationSuite, SuiteDocument, SuiteEntry, SuiteItem, UNCLASSIFIED, fixed_suite_classes};
