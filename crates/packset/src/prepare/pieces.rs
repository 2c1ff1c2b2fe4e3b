//! The pieces that a model is cut into: the tensors to pack, and what lies between them.

use crate::model::Model;

/// The longest piece between tensors.
const GAP: u64 = 16 << 20;
/// A tensor to be packed, as the pipeline sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Too large to be held: its bytes are hashed in passing, and it is packed from the file by itself.
    pub(super) oversize: bool,
}

/// Bytes that are read at once and stay until everything that needs them has had them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) len: usize,
    pub(super) tensor: Option<usize>,
    /// A tensor that is packed from another reading and that these bytes are of: both readings must have the same digest.
    pub(super) part_of: Option<usize>,
    /// Whether the model's own hashes need it.
    pub(super) hashed: bool,
    /// Whether it is the last of its file.
    pub(super) ends_file: bool,
}

/// Cuts the model: whole files when they are hashed, the tensors alone otherwise.
pub(super) fn cut(model: &Model, wanted: &[Wanted], hash: bool) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for file in 0..model.paths().count() {
        let here = |tensor: &usize| wanted[*tensor].file == file && (hash || !wanted[*tensor].oversize);
        let mut tensors: Vec<usize> = (0..wanted.len()).filter(here).collect();
        tensors.sort_by_key(|&tensor| wanted[tensor].offset);
        let mut at = 0;
        // What is not held whole is read in parts.
        let parts = |pieces: &mut Vec<Piece>, from: u64, to: u64, part_of: Option<usize>| {
            let mut offset = from;
            while hash && offset < to {
                let len = (to - offset).min(GAP) as usize;
                pieces.push(Piece { file, offset, len, tensor: None, part_of, hashed: true, ends_file: false });
                offset += len as u64;
            }
        };
        for tensor in tensors {
            let Wanted { offset, len, oversize, .. } = wanted[tensor];
            parts(&mut pieces, at, offset, None);
            at = offset + len;
            if oversize {
                parts(&mut pieces, offset, at, Some(tensor));
                continue;
            }
            let (len, tensor) = (len as usize, Some(tensor));
            pieces.push(Piece { file, offset, len, tensor, part_of: None, hashed: hash, ends_file: false });
        }
        parts(&mut pieces, at, model.file_size(file), None);
        if let Some(last) = pieces.last_mut() {
            last.ends_file = true;
        }
    }
    pieces
}
