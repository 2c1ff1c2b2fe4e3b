//! Large buffers for tensor data: on page boundaries, so that packing may store whole cache lines past the cache, and of
//! huge pages where the system has them, so that touching them the first time is cheap.

use std::io;

use memmap2::{Advice, MmapMut};

/// Zeroed memory of its own; given back to the system when dropped.
#[derive(Debug)]
pub(crate) struct Buffer(MmapMut);

impl Buffer {
    /// A buffer of `len` bytes.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let map = MmapMut::map_anon(len.max(1))?;
        // Advice only.
        let _ = map.advise(Advice::HugePage);
        Ok(Self(map))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

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
