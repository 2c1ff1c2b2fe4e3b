//! `.safetensors`: a u64 length, a JSON object of that many bytes, and the tensors' bytes.
//!
//! The reader is as strict as the format's description: no name twice, offsets that fill the data without gap or overlap,
//! sizes that agree with type and shape.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::{Dtype, FileTensor};

/// The largest header that is read.
const MAX_HEADER: u64 = 16 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The header's entries in file order, duplicates kept so that they can be refused.
struct Entries(Vec<(String, TensorEntry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let entry = map.next_value().map_err(|e| A::Error::custom(format!("tensor {name:?}: {e}")))?;
                    entries.push((name, entry));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

pub(super) fn parse(bytes: &[u8], wanted: &str) -> Result<FileTensor, String> {
    let (length, rest) = bytes.split_first_chunk::<8>().ok_or("neither .npy nor .safetensors: shorter than 8 bytes")?;
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER || length > rest.len() as u64 {
        return Err(format!(
            "neither .npy nor a sound .safetensors: a header of {length} bytes does not fit in the file"
        ));
    }
    let (header, data) = rest.split_at(length as usize);
    if !header.starts_with(b"{") {
        return Err("neither .npy nor a sound .safetensors: the header is not a JSON object".to_owned());
    }
    let Entries(entries) =
        serde_json::from_slice(header).map_err(|e| format!("the header is not a JSON object of tensors: {e}"))?;
    let mut tensors: Vec<(String, TensorEntry, Dtype)> = Vec::new();
    for (name, entry) in entries {
        let dtype = dtype(&entry.dtype).ok_or_else(|| format!("tensor {name:?} has type {:?}", entry.dtype))?;
        tensors.push((name, entry, dtype));
    }
    tensors.sort_by_key(|(_, entry, _)| entry.data_offsets);
    let mut end = 0;
    for (name, entry, dtype) in &tensors {
        let [from, to] = entry.data_offsets;
        if from != end || to < from || to > data.len() as u64 {
            return Err(format!(
                "tensor {name:?} lies at {from}..{to}, expected it to start at {end} and end by {}",
                data.len()
            ));
        }
        let size = dtype.bytes(&entry.shape).ok_or_else(|| format!("the shape of tensor {name:?} overflows"))?;
        if size != to - from {
            return Err(format!(
                "tensor {name:?}: {dtype} {:?} needs {size} bytes, the file gives it {}",
                entry.shape,
                to - from
            ));
        }
        end = to;
    }
    if end != data.len() as u64 {
        return Err(format!("{} bytes after the last tensor", data.len() as u64 - end));
    }
    let mut names: Vec<&str> = tensors.iter().map(|(name, ..)| name.as_str()).collect();
    names.sort_unstable();
    if let Some((twice, _)) = names.iter().zip(names.iter().skip(1)).find(|(one, two)| one == two) {
        return Err(format!("tensor {twice:?} is listed twice"));
    }
    let listed = names.iter().take(8).copied().collect::<Vec<_>>().join(", ");
    let (name, entry, dtype) = tensors
        .into_iter()
        .find(|(name, ..)| name == wanted)
        .ok_or_else(|| format!("no tensor is called {wanted:?}; the file has {listed}"))?;
    let [from, to] = entry.data_offsets;
    let bytes = data[from as usize..to as usize].to_vec();
    Ok(FileTensor { name: Some(name), dtype, shape: entry.shape, bytes })
}

fn dtype(name: &str) -> Option<Dtype> {
    Some(match name {
        "F64" => Dtype::F64,
        "F32" => Dtype::F32,
        "F16" => Dtype::F16,
        "BF16" => Dtype::Bf16,
        "I64" => Dtype::I64,
        "I32" => Dtype::I32,
        "I16" => Dtype::I16,
        "I8" => Dtype::I8,
        "U64" => Dtype::U64,
        "U32" => Dtype::U32,
        "U16" => Dtype::U16,
        "U8" => Dtype::U8,
        "BOOL" => Dtype::Bool,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
    }

    const TWO: &str = r#"{"__metadata__":{"a":"b"},"y":{"dtype":"U8","shape":[4],"data_offsets":[8,12]},"x":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}"#;

    #[test]
    fn tensors_by_name() {
        let bytes = file(TWO, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let x = parse(&bytes, "x").expect("a right file");
        assert_eq!((x.dtype, x.shape, x.bytes), (Dtype::F32, vec![2, 1], vec![1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(parse(&bytes, "y").expect("a right file").bytes, [9, 10, 11, 12]);
        assert!(parse(&bytes, "z").expect_err("no such tensor").contains("the file has x, y"));
        for end in 0..bytes.len() {
            assert!(parse(&bytes[..end], "x").is_err(), "cut at {end}");
        }
    }

    #[test]
    fn refusals() {
        let x =
            |shape: &str, offsets: &str| format!(r#""x":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}"#);
        for (header, why) in [
            (format!("{{{}}}", x("[3]", "[0,8]")), "needs 12 bytes"),
            (format!("{{{}}}", x("[1]", "[4,8]")), "expected it to start at 0"),
            (format!("{{{}}}", x("[2]", "[8,0]")), "expected it to start at 0"),
            (format!("{{{}}}", x("[1]", "[0,4]")), "4 bytes after"),
            (format!("{{{}}}", x("[4]", "[0,16]")), "end by 8"),
            (format!("{{{}}}", x("[4294967296,4294967296]", "[0,8]")), "overflows"),
            (format!("{{{},{}}}", x("[1]", "[0,4]"), x("[1]", "[4,8]")), "twice"),
            (r#"{"x":{"dtype":"F4","shape":[2],"data_offsets":[0,8]}}"#.to_owned(), "has type"),
            (r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}}"#.to_owned(), "more"),
            ("[]".to_owned(), "not a JSON object"),
            ("{".to_owned(), "not a JSON object"),
        ] {
            let error = parse(&file(&header, &[0; 8]), "x").expect_err(&header);
            assert!(error.contains(why), "{header}: {error}");
        }
        assert!(parse(&u64::MAX.to_le_bytes(), "x").expect_err("no header").contains("does not fit"));
    }
}
