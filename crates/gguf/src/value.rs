//! Metadata values as they lie in the file: scalars decoded, strings and arrays borrowed.

use std::fmt;

/// The type tag of a metadata value or of an array's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ValueType {
    /// Unsigned byte, tag 0.
    U8 = 0,
    /// Signed byte, tag 1.
    I8 = 1,
    /// 16-bit unsigned, tag 2.
    U16 = 2,
    /// 16-bit signed, tag 3.
    I16 = 3,
    /// 32-bit unsigned, tag 4.
    U32 = 4,
    /// 32-bit signed, tag 5.
    I32 = 5,
    /// IEEE binary32, tag 6.
    F32 = 6,
    /// One byte, tag 7; every byte but 0 is true.
    Bool = 7,
    /// Length (u64) and bytes, tag 8.
    String = 8,
    /// Element type, count and elements, tag 9.
    Array = 9,
    /// 64-bit unsigned, tag 10.
    U64 = 10,
    /// 64-bit signed, tag 11.
    I64 = 11,
    /// IEEE binary64, tag 12.
    F64 = 12,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type with this tag.
    pub fn from_tag(tag: i32) -> Option<Self> {
        usize::try_from(tag).ok().and_then(|index| Self::ALL.get(index).copied())
    }

    /// The tag stored in the file.
    pub fn tag(self) -> u32 {
        u32::from(self as u8)
    }

    /// Bytes of one value, for types of a fixed size; `None` for strings and arrays.
    pub fn fixed_bytes(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    /// Lower-case name, for example `u32`.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A metadata value. Strings are bytes: GGUF says UTF-8, but no reader in use enforces it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// Unsigned byte.
    U8(u8),
    /// Signed byte.
    I8(i8),
    /// 16-bit unsigned.
    U16(u16),
    /// 16-bit signed.
    I16(i16),
    /// 32-bit unsigned.
    U32(u32),
    /// 32-bit signed.
    I32(i32),
    /// IEEE binary32.
    F32(f32),
    /// Boolean.
    Bool(bool),
    /// String, without its length.
    String(&'a [u8]),
    /// Array of scalars or strings.
    Array(Array<'a>),
    /// 64-bit unsigned.
    U64(u64),
    /// 64-bit signed.
    I64(i64),
    /// IEEE binary64.
    F64(f64),
}

impl<'a> Value<'a> {
    /// The type of this value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The text of a string value; `None` for other types and for strings that are not UTF-8.
    pub fn as_str(&self) -> Option<&'a str> {
        match self {
            Self::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The value of any unsigned or non-negative signed integer type.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            Self::I8(v) => v.try_into().ok(),
            Self::I16(v) => v.try_into().ok(),
            Self::I32(v) => v.try_into().ok(),
            Self::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// The array, if the value is one.
    pub fn as_array(&self) -> Option<&Array<'a>> {
        match self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }

    /// Whether both are the same bytes in the file, apart from booleans, which compare by truth.
    /// (`==` follows IEEE rules and finds a NaN unequal to itself.)
    pub fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::F32(a), Self::F32(b)) => a.to_bits() == b.to_bits(),
            (Self::F64(a), Self::F64(b)) => a.to_bits() == b.to_bits(),
            _ => self == other,
        }
    }

    /// Decodes one value of a fixed-size type from exactly its bytes.
    pub(crate) fn decode_fixed(value_type: ValueType, bytes: &[u8]) -> Option<Value<'static>> {
        Some(match value_type {
            ValueType::U8 => Value::U8(u8::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::Bool => Value::Bool(u8::from_le_bytes(bytes.try_into().ok()?) != 0),
            ValueType::U64 => Value::U64(u64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(bytes.try_into().ok()?)),
            ValueType::String | ValueType::Array => return None,
        })
    }
}

/// An array value: its element type, its length and the encoded elements, decoded on iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Array<'a> {
    element_type: ValueType,
    count: u64,
    raw: &'a [u8],
}

impl<'a> Array<'a> {
    /// The caller has checked that `raw` holds exactly `count` elements of `element_type`.
    pub(crate) fn new(element_type: ValueType, count: u64, raw: &'a [u8]) -> Self {
        Self { element_type, count, raw }
    }

    /// Type of every element; never [`ValueType::Array`].
    pub fn element_type(&self) -> ValueType {
        self.element_type
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements as encoded in the file: little-endian, strings with their u64 lengths.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// The elements in order, decoded one at a time.
    pub fn iter(&self) -> ArrayIter<'a> {
        ArrayIter { element_type: self.element_type, left: self.count, rest: self.raw }
    }

    /// Element `index`: in constant time, except for strings, which are walked.
    pub fn get(&self, index: u64) -> Option<Value<'a>> {
        if index >= self.count {
            return None;
        }
        match self.element_type.fixed_bytes() {
            Some(size) => {
                let start = usize::try_from(index.checked_mul(size)?).ok()?;
                let end = start.checked_add(usize::try_from(size).ok()?)?;
                Value::decode_fixed(self.element_type, self.raw.get(start..end)?)
            }
            None => self.iter().nth(usize::try_from(index).ok()?),
        }
    }
}

impl<'a> IntoIterator for &Array<'a> {
    type Item = Value<'a>;
    type IntoIter = ArrayIter<'a>;

    fn into_iter(self) -> ArrayIter<'a> {
        self.iter()
    }
}

/// Iterator over the elements of an [`Array`].
#[derive(Debug, Clone)]
pub struct ArrayIter<'a> {
    element_type: ValueType,
    left: u64,
    rest: &'a [u8],
}

impl<'a> Iterator for ArrayIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        if self.left == 0 {
            return None;
        }
        let (value, rest) = if let Some(size) = self.element_type.fixed_bytes() {
            let (bytes, rest) = self.rest.split_at_checked(size as usize)?;
            (Value::decode_fixed(self.element_type, bytes)?, rest)
        } else {
            let (length, rest) = self.rest.split_first_chunk::<8>()?;
            let (bytes, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
            (Value::String(bytes), rest)
        };
        self.left -= 1;
        self.rest = rest;
        Some(value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        (left, Some(left))
    }
}

impl ExactSizeIterator for ArrayIter<'_> {}
