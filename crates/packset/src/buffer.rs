//! Large buffers for tensor data: on page boundaries, so that packing may store whole cache lines past the cache, and
//! touched by the kernel in one go, since page faults one by one cost more than filling the pages.

use std::io;

use memmap2::{MmapMut, MmapOptions};

/// Zeroed memory of its own; given back to the system when dropped.
#[derive(Debug)]
pub(crate) struct Buffer(MmapMut);

impl Buffer {
    /// A buffer of `len` bytes.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        MmapOptions::new().len(len.max(1)).populate().map_anon().map(Self)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The first `len` bytes.
    pub(crate) fn get(&self, len: usize) -> &[u8] {
        &self.0[..len]
    }

    pub(crate) fn get_mut(&mut self, len: usize) -> &mut [u8] {
        &mut self.0[..len]
    }
}

/// A buffer that grows when more is asked for, and otherwise stays: memory is touched once.
#[derive(Debug, Default)]
pub(crate) struct Growing(Option<Buffer>);

impl Growing {
    /// The first `len` bytes, whatever they hold.
    pub(crate) fn get_mut(&mut self, len: usize) -> io::Result<&mut [u8]> {
        let buffer = match self.0.take() {
            Some(buffer) if buffer.len() >= len => buffer,
            _ => Buffer::new(len)?,
        };
        Ok(self.0.insert(buffer).get_mut(len))
    }
}
