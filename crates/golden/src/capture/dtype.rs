//! Element types of captured tensors.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An element type. Block types are stored as bytes: their shape counts elements, a file's shape counts bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the meaning")]
pub enum Dtype {
    F64,
    F32,
    F16,
    Bf16,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
    /// Blocks of 32, 18 bytes each.
    #[serde(rename = "q4_0")]
    Q4_0,
    /// Blocks of 32, 34 bytes each.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// Blocks of 32, 36 bytes each.
    #[serde(rename = "q8_1")]
    Q8_1,
}

impl Dtype {
    /// Elements and bytes of one unit.
    pub fn unit(self) -> (u64, u64) {
        match self {
            Self::F64 | Self::I64 | Self::U64 => (1, 8),
            Self::F32 | Self::I32 | Self::U32 => (1, 4),
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => (1, 2),
            Self::I8 | Self::U8 | Self::Bool => (1, 1),
            Self::Q4_0 => (32, 18),
            Self::Q8_0 => (32, 34),
            Self::Q8_1 => (32, 36),
        }
    }

    /// Bytes of a dense tensor of this shape, last dimension fastest; `None` when rows are not whole blocks or the product
    /// overflows.
    pub fn bytes(self, shape: &[u64]) -> Option<u64> {
        let (elements, size) = self.unit();
        let (last, rows) = shape.split_last().unwrap_or((&1, &[]));
        if !last.is_multiple_of(elements) {
            return None;
        }
        rows.iter().try_fold((last / elements).checked_mul(size)?, |bytes, d| bytes.checked_mul(*d))
    }

    /// Whether elements are grouped in blocks.
    pub fn is_block(self) -> bool {
        self.unit().0 > 1
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl FromStr for Dtype {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        serde_json::from_value(serde_json::Value::String(text.to_owned()))
            .map_err(|_| format!("no dtype is called {text:?}"))
    }
}
