//! Owned metadata values and their encoding.

use crate::value::{Value, ValueType};

/// A metadata value to be written.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the variants are those of `Value`, owned")]
pub enum MetadataValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(Vec<u8>),
    Array(MetadataArray),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array to be written.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the variants are the element types")]
pub enum MetadataArray {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<Vec<u8>>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

macro_rules! from {
    ($($rust:ty => $variant:ident)*) => {$(
        impl From<$rust> for MetadataValue {
            fn from(value: $rust) -> Self {
                Self::$variant(value)
            }
        }

        impl From<Vec<$rust>> for MetadataValue {
            fn from(values: Vec<$rust>) -> Self {
                Self::Array(MetadataArray::$variant(values))
            }
        }
    )*};
}

from! {
    u8 => U8
    i8 => I8
    u16 => U16
    i16 => I16
    u32 => U32
    i32 => I32
    f32 => F32
    bool => Bool
    u64 => U64
    i64 => I64
    f64 => F64
}

impl From<&str> for MetadataValue {
    fn from(value: &str) -> Self {
        Self::String(value.as_bytes().to_vec())
    }
}

impl From<String> for MetadataValue {
    fn from(value: String) -> Self {
        Self::String(value.into_bytes())
    }
}

impl From<Vec<String>> for MetadataValue {
    fn from(values: Vec<String>) -> Self {
        Self::Array(MetadataArray::String(values.into_iter().map(String::into_bytes).collect()))
    }
}

impl From<Vec<Vec<u8>>> for MetadataValue {
    fn from(values: Vec<Vec<u8>>) -> Self {
        Self::Array(MetadataArray::String(values))
    }
}

pub(crate) fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

impl MetadataValue {
    /// Appends the type tag and the value.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        macro_rules! scalar {
            ($tag:ident, $value:expr) => {{
                out.extend_from_slice(&ValueType::$tag.tag().to_le_bytes());
                out.extend_from_slice(&$value.to_le_bytes());
            }};
        }
        match self {
            Self::U8(v) => scalar!(U8, v),
            Self::I8(v) => scalar!(I8, v),
            Self::U16(v) => scalar!(U16, v),
            Self::I16(v) => scalar!(I16, v),
            Self::U32(v) => scalar!(U32, v),
            Self::I32(v) => scalar!(I32, v),
            Self::F32(v) => scalar!(F32, v),
            Self::Bool(v) => scalar!(Bool, u8::from(*v)),
            Self::U64(v) => scalar!(U64, v),
            Self::I64(v) => scalar!(I64, v),
            Self::F64(v) => scalar!(F64, v),
            Self::String(v) => {
                out.extend_from_slice(&ValueType::String.tag().to_le_bytes());
                string(out, v);
            }
            Self::Array(array) => {
                out.extend_from_slice(&ValueType::Array.tag().to_le_bytes());
                array.encode(out);
            }
        }
    }

    /// Whether a value read from a file is this one.
    pub fn matches(&self, value: &Value<'_>) -> bool {
        match (self, value) {
            (Self::String(a), Value::String(b)) => a == b,
            (Self::Array(array), Value::Array(b)) => {
                // Arrays are compared as encoded: element type, count, elements.
                let mut encoded = Vec::new();
                array.encode(&mut encoded);
                encoded[..4] == b.element_type().tag().to_le_bytes()
                    && encoded[4..12] == b.len().to_le_bytes()
                    && encoded[12..] == *b.raw()
            }
            (Self::String(_) | Self::Array(_), _) => false,
            _ => {
                let mut encoded = Vec::new();
                self.encode(&mut encoded);
                Value::decode_fixed(value.value_type(), &encoded[4..])
                    .is_some_and(|own| encoded[..4] == value.value_type().tag().to_le_bytes() && own.same(value))
            }
        }
    }
}

impl MetadataArray {
    fn encode(&self, out: &mut Vec<u8>) {
        macro_rules! elements {
            ($tag:ident, $values:expr, $encode:expr) => {{
                out.extend_from_slice(&ValueType::$tag.tag().to_le_bytes());
                out.extend_from_slice(&($values.len() as u64).to_le_bytes());
                for value in $values {
                    $encode(&mut *out, value);
                }
            }};
        }
        macro_rules! fixed {
            ($tag:ident, $values:expr, $ty:ty) => {
                elements!($tag, $values, |out: &mut Vec<u8>, v: &$ty| out.extend_from_slice(&v.to_le_bytes()))
            };
        }
        match self {
            Self::U8(v) => fixed!(U8, v, u8),
            Self::I8(v) => fixed!(I8, v, i8),
            Self::U16(v) => fixed!(U16, v, u16),
            Self::I16(v) => fixed!(I16, v, i16),
            Self::U32(v) => fixed!(U32, v, u32),
            Self::I32(v) => fixed!(I32, v, i32),
            Self::F32(v) => fixed!(F32, v, f32),
            Self::U64(v) => fixed!(U64, v, u64),
            Self::I64(v) => fixed!(I64, v, i64),
            Self::F64(v) => fixed!(F64, v, f64),
            Self::Bool(v) => elements!(Bool, v, |out: &mut Vec<u8>, v: &bool| out.push(u8::from(*v))),
            Self::String(v) => elements!(String, v, |out: &mut Vec<u8>, v: &Vec<u8>| string(out, v)),
        }
    }
}
