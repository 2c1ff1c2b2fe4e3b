//! Every kernel this CPU offers against the reference, on the machine it will run on.

use std::ops::Range;

use b70_packset::{MatrixShape, Threads};
use schemars::JsonSchema;
use serde::Serialize;

use crate::geometry::Geometry;
use crate::kernels::Kernel;
use crate::reference;

/// Shapes at and around the kernels' boundaries: one and two tiles (a line of scales), odd tile counts, the tiles of a
/// stage (8), the blocks of an unpacking run (32), and more pieces than a small pool has threads.
pub(crate) const BOUNDARY_SHAPES: [MatrixShape; 20] = [
    MatrixShape { k: 32, n: 16 },
    MatrixShape { k: 32, n: 32 },
    MatrixShape { k: 32, n: 48 },
    MatrixShape { k: 32, n: 112 },
    MatrixShape { k: 32, n: 128 },
    MatrixShape { k: 32, n: 144 },
    MatrixShape { k: 64, n: 16 },
    MatrixShape { k: 64, n: 32 },
    MatrixShape { k: 96, n: 48 },
    MatrixShape { k: 128, n: 64 },
    MatrixShape { k: 160, n: 80 },
    MatrixShape { k: 256, n: 272 },
    MatrixShape { k: 992, n: 16 },
    MatrixShape { k: 992, n: 48 },
    MatrixShape { k: 1024, n: 16 },
    MatrixShape { k: 1024, n: 32 },
    MatrixShape { k: 1056, n: 48 },
    MatrixShape { k: 1056, n: 144 },
    MatrixShape { k: 2080, n: 16 },
    MatrixShape { k: 96, n: 1040 },
];

/// Distances from a multiple of 64 at which buffers are placed: (source, payload).
const PLACES: [(usize, usize); 5] = [(0, 0), (2, 32), (34, 16), (63, 1), (1, 63)];

/// Bytes around each output that must stay untouched; two lines on either side.
const GUARD: usize = 128;
/// What the guards are filled with.
const GUARD_BYTE: u8 = 0xa7;

/// What [`self_test`] found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SelfTest {
    /// Version of this document's form, 1.
    pub schema_version: u64,
    /// Whether every case of every kernel passed.
    pub status: SelfTestStatus,
    /// One entry for each kernel that ran.
    pub kernels: Vec<KernelReport>,
    /// Kernels this CPU cannot run; they are not tested.
    pub skipped: Vec<SkippedKernel>,
}

/// Whether a self-test passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SelfTestStatus {
    /// Every case of every kernel passed.
    Passed,
    /// At least one case failed, or a kernel had none.
    Failed,
}

/// The cases of one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KernelReport {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Cases run; a case packs or unpacks one tensor.
    pub cases: u64,
    /// Cases whose output equalled the reference and whose guards were intact.
    pub passed: u64,
    /// Bytes of all outputs.
    pub bytes: u64,
    /// The first case that failed, if any.
    pub first_failure: Option<Failure>,
}

/// A kernel that was not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SkippedKernel {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// CPU features it needs.
    pub needs: &'static str,
}

/// A case in which a kernel was wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Failure {
    /// `pack` or `unpack`.
    pub operation: &'static str,
    /// The tensor's shape.
    pub shape: MatrixShape,
    /// How it was threaded.
    pub threads: Threads,
    /// Distance of the input from a multiple of 64.
    pub input_offset: usize,
    /// Distance of the output from a multiple of 64.
    pub output_offset: usize,
    /// What was wrong.
    pub what: Fault,
}

/// What a kernel did wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Fault {
    /// Output byte `at` differs from the reference.
    Byte {
        /// Offset in the output.
        at: usize,
        /// The reference's byte.
        expected: u8,
        /// The kernel's byte.
        found: u8,
    },
    /// A byte outside the output was changed.
    Guard,
    /// The kernel refused buffers of the right size.
    Refused,
}

impl SelfTest {
    /// Whether every case of every kernel passed.
    pub fn passed(&self) -> bool {
        self.kernels.iter().all(KernelReport::passed)
    }
}

impl KernelReport {
    /// Whether every case passed, and there were some.
    pub fn passed(&self) -> bool {
        self.cases > 0 && self.passed == self.cases
    }
}

/// Runs `only`, or every kernel this CPU offers, against [`mod@reference`] at every boundary size: packing and unpacking,
/// one thread and pool, aligned and unaligned buffers, guard bytes around every output. Takes well under a second when
/// optimised.
pub fn self_test(only: Option<Kernel>) -> SelfTest {
    let kernels = only.map_or_else(Kernel::available, |kernel| vec![kernel]);
    let mut reports: Vec<_> = kernels
        .iter()
        .map(|kernel| KernelReport { kernel: kernel.name(), cases: 0, passed: 0, bytes: 0, first_failure: None })
        .collect();
    for shape in BOUNDARY_SHAPES {
        let geometry = Geometry::new(shape).expect("the shapes above are valid");
        let source = random_bytes(geometry.source_len() as usize, shape.k * 31 + shape.n);
        let mut payload = vec![0; source.len()];
        reference::pack(shape, &source, &mut payload).expect("buffers of the geometry's lengths");
        for (kernel, report) in kernels.iter().zip(&mut reports) {
            for threads in [Threads::One, Threads::Pool] {
                for (at_source, at_payload) in PLACES {
                    let places = [(at_source, at_payload), (at_payload, at_source)];
                    for (operation, (input, output), (input_offset, output_offset)) in
                        [("pack", (&source, &payload), places[0]), ("unpack", (&payload, &source), places[1])]
                    {
                        let run = |input: &[u8], output: &mut [u8]| match operation {
                            "pack" => kernel.pack(&geometry, input, output, threads).is_ok(),
                            _ => kernel.unpack(&geometry, input, output, threads).is_ok(),
                        };
                        report.cases += 1;
                        report.bytes += output.len() as u64;
                        match guarded(input, output, input_offset, output_offset, run) {
                            None => report.passed += 1,
                            Some(what) if report.first_failure.is_none() => {
                                report.first_failure =
                                    Some(Failure { operation, shape, threads, input_offset, output_offset, what });
                            }
                            Some(_) => {}
                        }
                    }
                }
            }
        }
    }
    let skipped = match only {
        Some(_) => Vec::new(),
        None => Kernel::known()
            .into_iter()
            .filter(|name| Kernel::by_name(name).is_err())
            .map(|kernel| SkippedKernel { kernel, needs: Kernel::needs(kernel).unwrap_or_default() })
            .collect(),
    };
    let passed = reports.iter().all(KernelReport::passed);
    let status = if passed { SelfTestStatus::Passed } else { SelfTestStatus::Failed };
    SelfTest { schema_version: 1, status, kernels: reports, skipped }
}

/// Runs on copies of the input and of guarded output space at the given distances from a multiple of 64; returns what
/// was wrong.
fn guarded(
    input: &[u8],
    expected: &[u8],
    input_offset: usize,
    output_offset: usize,
    run: impl Fn(&[u8], &mut [u8]) -> bool,
) -> Option<Fault> {
    let (mut from, mut to) = (vec![GUARD_BYTE; input.len() + 128], vec![GUARD_BYTE; expected.len() + 2 * GUARD + 128]);
    let start = align_up(&from) + input_offset;
    from[start..start + input.len()].copy_from_slice(input);
    let output = align_up(&to) + GUARD + output_offset;
    let output = output..output + expected.len();
    if !run(&from[start..start + input.len()], &mut to[output.clone()]) {
        return Some(Fault::Refused);
    }
    fault(expected, &to, output)
}

/// Compares the bytes at `output` with `expected`, and all others with the guard.
fn fault(expected: &[u8], buffer: &[u8], output: Range<usize>) -> Option<Fault> {
    let found = &buffer[output.clone()];
    if let Some(at) = (0..expected.len()).find(|&at| expected[at] != found[at]) {
        return Some(Fault::Byte { at, expected: expected[at], found: found[at] });
    }
    let untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == GUARD_BYTE);
    (!untouched(&buffer[..output.start]) || !untouched(&buffer[output.end..])).then_some(Fault::Guard)
}

fn align_up(buffer: &[u8]) -> usize {
    buffer.as_ptr().addr().wrapping_neg() % 64
}

/// Reproducible bytes (xorshift64).
pub(crate) fn random_bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check must be able to fail: a wrong byte, a touched guard on either side, a refusal.
    #[test]
    fn faults_are_found() {
        let expected = [1, 2, 3, 4];
        let mut buffer = [GUARD_BYTE; 12];
        buffer[4..8].copy_from_slice(&expected);
        assert_eq!(fault(&expected, &buffer, 4..8), None);
        for (at, what) in [(3, Fault::Guard), (8, Fault::Guard), (6, Fault::Byte { at: 2, expected: 3, found: 0 })] {
            let mut broken = buffer;
            broken[at] = 0;
            assert_eq!(fault(&expected, &broken, 4..8), Some(what));
        }
        assert_eq!(guarded(&expected, &expected, 3, 5, |_, _| false), Some(Fault::Refused));
    }

    #[test]
    fn a_report_without_cases_has_not_passed() {
        let report = KernelReport { kernel: "scalar", cases: 0, passed: 0, bytes: 0, first_failure: None };
        assert!(!report.passed());
    }
}
