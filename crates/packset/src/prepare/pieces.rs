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
    /// Whether the model's own hashes need it.
    pub(super) hashed: bool,
    /// Whether it is the last of its file.
    pub(super) ends_file: bool,
}

/// Cuts the model: whole files when they are hashed, the tensors alone otherwise.
pub(super) fn cut(model: &Model, wanted: &[Wanted], hash: bool) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for file in 0..model.paths().count() {
        let mut tensors: Vec<usize> =
            (0..wanted.len()).filter(|&tensor| wanted[tensor].file == file && !wanted[tensor].oversize).collect();
        tensors.sort_by_key(|&tensor| wanted[tensor].offset);
        let mut at = 0;
        let gap = |pieces: &mut Vec<Piece>, from: u64, to: u64| {
            let mut from = from;
            while hash && from < to {
                let len = (to - from).min(GAP);
                pieces.push(Piece {
                    file,
                    offset: from,
                    len: len as usize,
                    tensor: None,
                    hashed: true,
                    ends_file: false,
                });
                from += len;
            }
        };
        for tensor in tensors {
            let Wanted { offset, len, .. } = wanted[tensor];
            gap(&mut pieces, at, offset);
            pieces.push(Piece {
                file,
                offset,
                len: len as usize,
                tensor: Some(tensor),
                hashed: hash,
                ends_file: false,
            });
            at = offset + len;
        }
        gap(&mut pieces, at, model.file_size(file));
        if let Some(last) = pieces.last_mut() {
            last.ends_file = true;
        }
    }
    pieces
}
