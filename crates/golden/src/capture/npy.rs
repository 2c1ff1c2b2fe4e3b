//! `.npy`, NumPy's file of one array: magic, version, length of the header, a Python dictionary with exactly the keys
//! `descr`, `fortran_order` and `shape`, padding, and the elements (NumPy Enhancement Proposal 1).

use super::{Dtype, FileTensor};

pub(super) const MAGIC: &[u8] = b"\x93NUMPY";

/// Longest header that is read; NumPy itself warns from 10,000 on.
const MAX_HEADER: usize = 64 << 10;

pub(super) fn parse(bytes: &[u8]) -> Result<FileTensor, String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("no .npy file")?;
    let (&[major, minor], rest) = rest.split_first_chunk::<2>().ok_or("the file ends within its version")?;
    let (length, rest) = match (major, minor) {
        (1, 0) => {
            let (n, rest) = rest.split_first_chunk::<2>().ok_or("the file ends within the header's length")?;
            (usize::from(u16::from_le_bytes(*n)), rest)
        }
        (2 | 3, 0) => {
            let (n, rest) = rest.split_first_chunk::<4>().ok_or("the file ends within the header's length")?;
            (u32::from_le_bytes(*n) as usize, rest)
        }
        _ => return Err(format!("version {major}.{minor} of .npy; known are 1.0, 2.0 and 3.0")),
    };
    if length > MAX_HEADER || length > rest.len() {
        return Err(format!("a header of {length} bytes does not fit in the file"));
    }
    let (header, data) = rest.split_at(length);
    let header = std::str::from_utf8(header).map_err(|_| "the header is not UTF-8")?;
    let (dtype, shape) = Header { text: header, at: 0 }.parse()?;
    let expected = dtype.bytes(&shape).ok_or("the shape overflows")?;
    if data.len() as u64 != expected {
        return Err(format!("{dtype} {shape:?} needs {expected} bytes, the file has {}", data.len()));
    }
    Ok(FileTensor { name: None, dtype, shape, bytes: data.to_vec() })
}

struct Header<'a> {
    text: &'a str,
    at: usize,
}

impl Header<'_> {
    fn parse(mut self) -> Result<(Dtype, Vec<u64>), String> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.expect('{')?;
        while !self.eat('}') {
            let key = self.string()?;
            self.expect(':')?;
            let again = match key.as_str() {
                "descr" => descr.replace(self.string()?).is_some(),
                "fortran_order" => fortran.replace(self.boolean()?).is_some(),
                "shape" => shape.replace(self.tuple()?).is_some(),
                _ => return Err(format!("unknown key {key:?} in the header")),
            };
            if again {
                return Err(format!("the header has {key:?} twice"));
            }
            if !self.eat(',') {
                self.expect('}')?;
                break;
            }
        }
        if !self.text[self.at..].trim().is_empty() {
            return Err("text after the header's dictionary".to_owned());
        }
        let (Some(descr), Some(fortran), Some(shape)) = (descr, fortran, shape) else {
            return Err("the header lacks one of descr, fortran_order and shape".to_owned());
        };
        if fortran && shape.len() > 1 {
            return Err("the array is in Fortran order; save it with numpy.ascontiguousarray".to_owned());
        }
        let dtype = match descr.as_str() {
            "<f8" => Dtype::F64,
            "<f4" => Dtype::F32,
            "<f2" => Dtype::F16,
            "<i8" => Dtype::I64,
            "<i4" => Dtype::I32,
            "<i2" => Dtype::I16,
            "|i1" => Dtype::I8,
            "<u8" => Dtype::U64,
            "<u4" => Dtype::U32,
            "<u2" => Dtype::U16,
            "|u1" => Dtype::U8,
            "|b1" => Dtype::Bool,
            other => return Err(format!("elements of type {other:?}; known are little-endian numbers and bool")),
        };
        Ok((dtype, shape))
    }

    fn skip(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn eat(&mut self, c: char) -> bool {
        self.skip();
        let found = self.text[self.at..].starts_with(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    fn expect(&mut self, c: char) -> Result<(), String> {
        if self.eat(c) { Ok(()) } else { Err(format!("expected {c:?} at byte {} of the header", self.at)) }
    }

    fn string(&mut self) -> Result<String, String> {
        let quote = if self.eat('\'') {
            '\''
        } else {
            self.expect('"')?;
            '"'
        };
        let rest = &self.text[self.at..];
        let end = rest.find(quote).ok_or("a string of the header does not end")?;
        self.at += end + 1;
        Ok(rest[..end].to_owned())
    }

    fn boolean(&mut self) -> Result<bool, String> {
        self.skip();
        for (word, value) in [("True", true), ("False", false)] {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(format!("expected True or False at byte {} of the header", self.at))
    }

    fn tuple(&mut self) -> Result<Vec<u64>, String> {
        let mut items = Vec::new();
        self.expect('(')?;
        while !self.eat(')') {
            self.skip();
            let rest = &self.text[self.at..];
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            items.push(
                rest[..digits].parse().map_err(|_| format!("expected a length at byte {} of the header", self.at))?,
            );
            self.at += digits;
            if items.len() > 32 {
                return Err("more than 32 dimensions".to_owned());
            }
            if !self.eat(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = [MAGIC, &[1, 0]].concat();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn arrays() {
        let bytes = file("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n", &[7; 24]);
        let found = parse(&bytes).expect("a right file");
        assert_eq!((found.dtype, found.shape, found.bytes.len()), (Dtype::F32, vec![2, 3], 24));
        let found =
            parse(&file("{'shape': (3,), 'fortran_order': True, 'descr': '|u1'}", &[1, 2, 3])).expect("a vector");
        assert_eq!(found.shape, [3]);
        let found = parse(&file("{'descr':'<f8','fortran_order':False,'shape':()}", &[0; 8])).expect("a scalar");
        assert!(found.shape.is_empty());
    }

    #[test]
    fn refusals() {
        for (header, why) in [
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}", "needs 24 bytes, the file has 8"),
            ("{'descr': '>f4', 'fortran_order': False, 'shape': (2,)}", "little-endian"),
            ("{'descr': '|O', 'fortran_order': False, 'shape': (2,)}", "known are"),
            ("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 1)}", "Fortran"),
            ("{'descr': '<f4', 'shape': (2,)}", "lacks"),
            ("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", "twice"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551615, 9)}", "overflows"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "expected a length"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", "expected a length"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x", "text after"),
            ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", "expected"),
            ("", "expected '{'"),
        ] {
            let error = parse(&file(header, &[0; 8])).expect_err(header);
            assert!(error.contains(why), "{header}: {error}");
        }
    }

    #[test]
    fn every_cut_is_refused() {
        let bytes = file("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", &[7; 8]);
        for end in 0..bytes.len() {
            assert!(parse(&bytes[..end]).is_err(), "{end}");
        }
    }
}
