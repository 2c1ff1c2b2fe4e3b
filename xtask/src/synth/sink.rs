//! A sink that hashes and writes on a thread of its own while the next bytes are being made.

use std::fs::File;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use b70_manifest::Sha256Hex;
use sha2::{Digest, Sha256};

/// Bytes of one hand-over; at most four of them exist at a time.
const CHUNK: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct HashingSink {
    pending: Vec<u8>,
    full: SyncSender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
    writer: JoinHandle<io::Result<(File, Sha256Hex)>>,
}

impl HashingSink {
    pub(super) fn new(file: File) -> Self {
        let (full, incoming) = sync_channel::<Vec<u8>>(2);
        let (give_back, empty) = sync_channel::<Vec<u8>>(4);
        let writer = thread::spawn(move || {
            let (mut file, mut digest) = (file, Sha256::new());
            for mut chunk in incoming {
                digest.update(&chunk);
                file.write_all(&chunk)?;
                chunk.clear();
                // Nobody waits for the last ones.
                let _ = give_back.send(chunk);
            }
            file.sync_all()?;
            Ok((file, Sha256Hex::from_bytes(digest.finalize().into())))
        });
        Self { pending: Vec::with_capacity(CHUNK), full, empty, writer }
    }

    /// Writes what is left, waits until the disk has it, and returns the file and the SHA-256 of all bytes.
    pub(super) fn finish(mut self) -> io::Result<(File, Sha256Hex)> {
        // A failed hand-over means that the writer has stopped: its own error says why.
        let _ = self.hand_over();
        drop(self.full);
        self.writer.join().unwrap_or_else(|_| Err(io::Error::other("the writing thread panicked")))
    }

    fn hand_over(&mut self) -> io::Result<()> {
        let next = self.empty.try_recv().unwrap_or_else(|_| Vec::with_capacity(CHUNK));
        let chunk = std::mem::replace(&mut self.pending, next);
        self.full.send(chunk).map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "writing has failed"))
    }
}

impl Write for HashingSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.pending.len() == CHUNK {
            self.hand_over()?;
        }
        let n = bytes.len().min(CHUNK - self.pending.len());
        self.pending.extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
