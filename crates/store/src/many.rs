//! Many files at once, over the threads of a pool and side by side in each.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::digest::{
    BUFFER, Blake3, DigestKind, Digests, Job, LANE_BUFFER, Reader, changed, hash_pipelined, hash_serial, on_threads,
};
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::streams::{Sha256Streams, StreamKernel};

/// Hashes many files over the threads of [`on_threads`]; the results stand in the order of `jobs`. Each thread hashes as many files
/// side by side as share a core well ([`StreamKernel::best`], at most sixteen), and all together hold at most 768 open; fewer large files than threads are read ahead
/// and, for BLAKE3, split over the pool.
///
/// One file's failure does not stop the others, so that a report can name all of them; cancellation does.
pub fn hash_many(jobs: &[Job<'_>], what: DigestKind, progress: &Progress<'_>) -> Vec<Result<Digests>> {
    hash_many_with(jobs, what, StreamKernel::best(), progress)
}

/// [`hash_many`] with a kernel of choice.
pub fn hash_many_with(
    jobs: &[Job<'_>],
    what: DigestKind,
    kernel: StreamKernel,
    progress: &Progress<'_>,
) -> Vec<Result<Digests>> {
    match on_threads(|| hash_here(jobs, what, kernel, progress)) {
        Ok(results) => results,
        // Threads that the system refuses keep every file from being hashed.
        Err(error) => {
            jobs.iter().map(|job| Err(Error::io("hash", job.path(), io::Error::other(error.to_string())))).collect()
        }
    }
}

/// [`hash_many_with`] by the threads of the pool that this one belongs to.
fn hash_here(
    jobs: &[Job<'_>],
    what: DigestKind,
    kernel: StreamKernel,
    progress: &Progress<'_>,
) -> Vec<Result<Digests>> {
    let threads = rayon::current_num_threads();
    if jobs.len() < threads || jobs.len() == 1 {
        let one = |job: &Job<'_>| {
            let (opened, path, len) = job.open()?;
            hash_pipelined(opened, &path, len, what, progress)
        };
        return jobs.iter().map(one).collect();
    }
    let shares = Shares::new(jobs, threads);
    let mut results: Vec<Option<Result<Digests>>> = Vec::new();
    results.resize_with(jobs.len(), || None);
    let most = (MOST_OPEN / threads).max(1);
    let width = if what.sha256() { kernel.width().min(jobs.len().div_ceil(threads)).min(most) } else { 1 };
    let done = rayon::broadcast(|context| {
        let me = context.index();
        if width > 1 {
            return hash_side_by_side(jobs, what, kernel, (width, most), &shares, me, progress);
        }
        let mut buffer = vec![0; BUFFER];
        let mut done = Vec::new();
        while let Some(i) = shares.own(me).or_else(|| shares.of_others(me)) {
            let result = jobs[i]
                .open()
                .and_then(|(opened, path, len)| hash_serial(opened, &path, len, what, &mut buffer, progress));
            done.push((i, result));
        }
        done
    });
    for (i, result) in done.into_iter().flatten() {
        results[i] = Some(result);
    }
    results.into_iter().map(|r| r.unwrap_or(Err(Error::Cancelled))).collect()
}

/// Files that all workers together hold open: well below the usual limit of 1024.
const MOST_OPEN: usize = 768;

/// Who hashes what: every worker gets about as many bytes as the others, and helps them when it has done its own. Sixteen
/// streams cost one worker as much as one stream, so that taking files off a common heap would leave the last ones to
/// whoever came first.
struct Shares(Vec<Share>);

struct Share {
    /// The largest first, so that what is left to the end is small.
    jobs: Vec<usize>,
    next: AtomicUsize,
}

impl Shares {
    fn new(jobs: &[Job<'_>], workers: usize) -> Self {
        let mut by_size: Vec<(u64, usize)> = jobs.iter().enumerate().map(|(i, job)| (job.size_hint(), i)).collect();
        by_size.sort_by_key(|&(size, _)| std::cmp::Reverse(size));
        let mut shares: Vec<Share> =
            (0..workers.max(1)).map(|_| Share { jobs: Vec::new(), next: AtomicUsize::new(0) }).collect();
        let mut loads = vec![0_u64; shares.len()];
        for (size, job) in by_size {
            let least = (0..loads.len()).min_by_key(|&i| loads[i]).unwrap_or(0);
            // A small file costs something, too.
            loads[least] = loads[least].saturating_add(size.max(4096));
            shares[least].jobs.push(job);
        }
        Self(shares)
    }

    fn own(&self, me: usize) -> Option<usize> {
        let share = &self.0[me];
        share.jobs.get(share.next.fetch_add(1, Ordering::Relaxed)).copied()
    }

    fn of_others(&self, me: usize) -> Option<usize> {
        (1..self.0.len()).find_map(|i| self.own((me + i) % self.0.len()))
    }
}

/// A file under way.
struct Stream<'a> {
    job: usize,
    path: PathBuf,
    len: u64,
    reader: Reader<'a>,
    blake3: Option<Box<blake3::Hasher>>,
}

/// Worker `me` with `width` lanes and up to twice as many files, at most `most`: those with the most bytes left have the lanes, so
/// that files of one size end together and no lane is empty before. Where a file ends, the next one begins.
fn hash_side_by_side(
    jobs: &[Job<'_>],
    what: DigestKind,
    kernel: StreamKernel,
    (width, most): (usize, usize),
    shares: &Shares,
    me: usize,
    progress: &Progress<'_>,
) -> Vec<(usize, Result<Digests>)> {
    let mut streams: Vec<Option<Stream<'_>>> = Vec::new();
    streams.resize_with((2 * width).min(most), || None);
    let mut digests = Sha256Streams::new(streams.len(), kernel);
    let mut buffer = vec![0; streams.len() * LANE_BUFFER];
    let mut done = Vec::new();
    loop {
        let mut idle = streams.iter().all(Option::is_none);
        for stream in &mut streams {
            while stream.is_none() {
                // Others are helped by one who has nothing else to do, with one file at a time.
                let other = || if idle { shares.of_others(me) } else { None };
                let Some(job) = shares.own(me).or_else(other) else { break };
                idle = false;
                match jobs[job].open() {
                    Ok((opened, path, len)) => {
                        let blake3 = what.blake3().then(|| Box::new(blake3::Hasher::new()));
                        let reader = Reader::new(opened);
                        *stream = Some(Stream { job, path, len, reader, blake3 });
                    }
                    Err(error) => done.push((job, Err(error))),
                }
            }
        }
        if streams.iter().all(Option::is_none) {
            return done;
        }
        let mut chosen: Vec<(u64, usize)> = streams
            .iter()
            .enumerate()
            .filter_map(|(i, stream)| {
                stream.as_ref().map(|stream| (stream.len.saturating_sub(stream.reader.done()), i))
            })
            .collect();
        chosen.sort_unstable_by_key(|&(left, i)| (std::cmp::Reverse(left), i));
        // Those that have been read need no lane, only a look at whether that was their end.
        let reading = chosen.iter().take_while(|(left, _)| *left > 0).count();
        chosen.drain(width.min(reading)..reading);
        let mut bytes = 0;
        for (&(_, i), buffer) in chosen.iter().zip(buffer.chunks_exact_mut(LANE_BUFFER)) {
            let Some(stream) = &mut streams[i] else { continue };
            match advance(stream, buffer, progress) {
                Ok(n) if n > 0 => bytes += n as u64,
                end => {
                    let sha256 = Some(digests.take(i));
                    let Some(Stream { job, reader, blake3, .. }) = streams[i].take() else { continue };
                    let size = reader.done();
                    let blake3 = blake3.map(|hasher| Blake3(*hasher.finalize().as_bytes()));
                    done.push((job, end.map(|_| Digests { sha256, blake3, size })));
                }
            }
        }
        let mut slices: Vec<&[u8]> = vec![&[]; streams.len()];
        for (&(_, i), buffer) in chosen.iter().zip(buffer.chunks_exact(LANE_BUFFER)) {
            if let Some(stream) = &streams[i] {
                slices[i] = stream.reader.bytes(buffer);
            }
        }
        digests.update(&slices);
        progress.add(bytes);
    }
}

/// Reads the next bytes of a stream, for BLAKE3 too; 0 at its end, which must be where it was when the file was opened.
fn advance(stream: &mut Stream<'_>, buffer: &mut [u8], progress: &Progress<'_>) -> Result<usize> {
    progress.check()?;
    let read = stream.reader.advance(buffer);
    let n = read.map_err(|e| Error::io("read", &stream.path, e))?;
    let done = stream.reader.done();
    if done > stream.len || (n == 0 && done < stream.len) {
        return Err(changed(&stream.path, stream.len, done));
    }
    if let Some(blake3) = &mut stream.blake3 {
        blake3.update(stream.reader.bytes(buffer));
    }
    Ok(n)
}
