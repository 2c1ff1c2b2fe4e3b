//! What a result may be used for.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// The class of evidence a document states. Nothing warm, reused or synthetic is ever promotion-eligible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum EvidenceClass {
    /// Results of persistent, possibly warm workers.
    DevelopmentScreenOnly,
    /// A byte-identical copy prepared to start faster.
    DevelopmentInitializationOnly,
    /// Packs and stages prepared to start faster.
    DevelopmentInitializationCacheOnly,
    /// Registered artifacts of a development iteration.
    DevelopmentIterationOnly,
    /// Golden corpora, captures and resets.
    DiagnosticOnly,
    /// Runs of focused backend tests.
    FocusedDiagnosticOnly,
    /// Fixtures made from random numbers.
    SyntheticKernelContractDiagnosticOnly,
    /// A calibration whose rows are incomplete or invalid.
    InvalidOrIncomplete,
    /// A calibration that passed the screening gate alone.
    FreshResponseScreening,
    /// A calibration that passed the final gate.
    PromotionGradeFreshResponse,
}

/// The value `false`, for documents that can never be promotion-eligible; reading `true` is an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct NeverEligible;

impl Serialize for NeverEligible {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bool(false)
    }
}

impl<'de> Deserialize<'de> for NeverEligible {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if bool::deserialize(deserializer)? {
            Err(D::Error::custom("this kind of document is never promotion-eligible; expected false"))
        } else {
            Ok(Self)
        }
    }
}

impl JsonSchema for NeverEligible {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NeverEligible".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "title": "Promotion eligible",
            "description": "Always false: this kind of document can never support a promotion.",
            "const": false,
        })
    }
}
