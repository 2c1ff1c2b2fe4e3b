//! The ggml tensor types a GGUF file may name: identifier, names, and the size of a block.
//!
//! A type stores its elements in blocks: `block_elements` neighbours along the fastest axis share
//! `block_bytes` bytes. Plain types (F32, I8, …) are blocks of one element. The table is the one of
//! ggml as of llama.cpp b11434 (identifiers 0 to 42); identifiers that once named a type and no longer
//! do are listed apart, so that a file using one is told so instead of hearing "unknown".
//!
//! ```
//! use b70_gguf::GgmlType;
//!
//! let q4_0 = GgmlType::from_name("Q4_0").expect("in the table");
//! assert_eq!((q4_0, q4_0.id(), q4_0.ggml_name()), (GgmlType::Q4_0, 2, "GGML_TYPE_Q4_0"));
//! assert_eq!(q4_0.row_bytes(5120), Some(2880));
//! assert_eq!(q4_0.row_bytes(33), None); // not a whole number of blocks
//! ```

const PREFIX: &str = "GGML_TYPE_";

macro_rules! table {
    ($($id:literal $name:ident $elements:literal $bytes:literal;)*) => {
        /// A tensor type of ggml, under its own name.
        #[allow(non_camel_case_types, reason = "IQ2_XXS and its like are the names that users know")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum GgmlType {$(
            #[doc = concat!("Blocks of ", $elements, " elements in ", $bytes, " bytes.")]
            $name = $id,
        )*}

        impl GgmlType {
            /// Every type in use, by ascending identifier.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The type with this identifier, unless it is unknown or removed.
            pub fn from_id(id: u32) -> Option<Self> {
                match id {
                    $($id => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The name of ggml's enumerator, for example `GGML_TYPE_Q4_0`.
            pub fn ggml_name(self) -> &'static str {
                match self {
                    $(Self::$name => concat!("GGML_TYPE_", stringify!($name)),)*
                }
            }

            /// Elements of a block, along the fastest axis, and its bytes.
            fn block(self) -> (u64, u64) {
                match self {
                    $(Self::$name => ($elements, $bytes),)*
                }
            }
        }
    };
}

table! {
    0 F32 1 4;
    1 F16 1 2;
    2 Q4_0 32 18;
    3 Q4_1 32 20;
    6 Q5_0 32 22;
    7 Q5_1 32 24;
    8 Q8_0 32 34;
    9 Q8_1 32 36;
    10 Q2_K 256 84;
    11 Q3_K 256 110;
    12 Q4_K 256 144;
    13 Q5_K 256 176;
    14 Q6_K 256 210;
    15 Q8_K 256 292;
    16 IQ2_XXS 256 66;
    17 IQ2_XS 256 74;
    18 IQ3_XXS 256 98;
    19 IQ1_S 256 50;
    20 IQ4_NL 32 18;
    21 IQ3_S 256 110;
    22 IQ2_S 256 82;
    23 IQ4_XS 256 136;
    24 I8 1 1;
    25 I16 1 2;
    26 I32 1 4;
    27 I64 1 8;
    28 F64 1 8;
    29 IQ1_M 256 56;
    30 BF16 1 2;
    34 TQ1_0 256 54;
    35 TQ2_0 256 66;
    39 MXFP4 32 17;
    40 NVFP4 64 36;
    41 Q1_0 128 18;
    42 Q2_0 64 18;
}

impl GgmlType {
    /// Identifiers whose type was withdrawn from ggml, with the name they had.
    pub const REMOVED: &[(u32, &str)] = &[
        (4, "Q4_2"),
        (5, "Q4_3"),
        (31, "Q4_0_4_4"),
        (32, "Q4_0_4_8"),
        (33, "Q4_0_8_8"),
        (36, "IQ4_NL_4_4"),
        (37, "IQ4_NL_4_8"),
        (38, "IQ4_NL_8_8"),
    ];

    /// The type with this name, in either style (`Q4_0` or `GGML_TYPE_Q4_0`).
    pub fn from_name(name: &str) -> Option<Self> {
        let short = name.strip_prefix(PREFIX).unwrap_or(name);
        Self::ALL.iter().find(|ty| ty.name() == short).copied()
    }

    /// The former name of a removed identifier.
    pub fn removed_name(id: u32) -> Option<&'static str> {
        Self::REMOVED.iter().find(|(removed, _)| *removed == id).map(|(_, name)| *name)
    }

    /// The number stored in a GGUF tensor entry.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// The short name, for example `Q4_0`.
    pub fn name(self) -> &'static str {
        self.ggml_name().trim_start_matches(PREFIX)
    }

    /// Elements per block, along the fastest axis.
    pub fn block_elements(self) -> u64 {
        self.block().0
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> u64 {
        self.block().1
    }

    /// Bytes of a row of `elements` elements: `(elements / block_elements) · block_bytes`.
    ///
    /// `None` if the row is not a whole number of blocks or the product leaves `u64`. Dividing first
    /// matters: multiplying first wraps for rows whose true size still fits.
    pub fn row_bytes(self, elements: u64) -> Option<u64> {
        if !elements.is_multiple_of(self.block_elements()) {
            return None;
        }
        (elements / self.block_elements()).checked_mul(self.block_bytes())
    }

    /// Bytes of a tensor of this shape, fastest axis first, without padding. An empty shape is one element.
    ///
    /// `None` as for [`GgmlType::row_bytes`].
    pub fn tensor_bytes(self, shape: &[u64]) -> Option<u64> {
        let (row, outer) = shape.split_first().map_or((1, shape), |(row, outer)| (*row, outer));
        outer.iter().try_fold(self.row_bytes(row)?, |bytes, &n| bytes.checked_mul(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_covers_every_identifier_once() {
        for id in 0..43 {
            assert!(GgmlType::from_id(id).is_some() != GgmlType::removed_name(id).is_some(), "identifier {id}");
        }
        assert!(GgmlType::from_id(43).is_none() && GgmlType::from_id(u32::MAX).is_none());
        assert!(GgmlType::ALL.windows(2).all(|pair| pair[0].id() < pair[1].id()));
    }

    #[test]
    fn both_name_styles_resolve() {
        for &ty in GgmlType::ALL {
            assert_eq!(GgmlType::from_name(ty.name()), Some(ty));
            assert_eq!(GgmlType::from_name(ty.ggml_name()), Some(ty));
        }
        assert!(GgmlType::from_name("Q4_2").is_none());
    }

    #[test]
    fn sizes_divide_before_they_multiply() {
        let q4_0 = GgmlType::Q4_0;
        // Multiplying first would wrap this row to two bytes.
        assert_eq!(q4_0.row_bytes(5_124_095_576_030_431_008), Some(2_882_303_761_517_117_442));
        assert_eq!(q4_0.tensor_bytes(&[32, 3, 2]), Some(108));
        assert_eq!(q4_0.tensor_bytes(&[16, 2]), None);
        assert_eq!(q4_0.tensor_bytes(&[]), None);
        assert_eq!(GgmlType::F32.tensor_bytes(&[]), Some(4));
        assert_eq!(GgmlType::F32.tensor_bytes(&[u64::MAX / 4 + 1]), None);
    }
}
