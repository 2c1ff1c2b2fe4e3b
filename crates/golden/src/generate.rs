//! Making the tensors of a set.

use b70_manifest::golden::GoldenRule;
use b70_packset::{Layout as _, MatrixShape, Threads};
use b70_xe2pack::Xe2DpasV2;
use rayon::prelude::*;

use crate::error::GoldenError;
use crate::numeric::{
    Activations, BLOCK, Mt19937, Q4_0_BYTES, Q8_1_BYTES, contract_q4_0, contract_q8_1, ggml_q4_0, ggml_q8_1,
    product_rows,
};

/// Bound of the weights' values.
pub(crate) const WEIGHT_BOUND: f64 = 0.75;
/// Bound of the inputs' values.
pub(crate) const INPUT_BOUND: f64 = 1.25;
/// Name of the weights' file.
pub const WEIGHTS: &str = "weights.q4_0.bin";
/// Name of the packed weights' file.
pub const PACKED: &str = "weights.xe2-dpas-v2.bin";

/// The largest number of weights of a set: a little more than the largest matrix of a 27B model has.
const MAX_WEIGHTS: u64 = 1 << 31;
/// The largest width.
const MAX_WIDTH: u64 = 4096;
/// Weights drawn before they are quantised: 8 MiB of f64.
const CHUNK: usize = 1 << 20;
/// Rows of the weights that one piece of the product has.
const ROWS: usize = 8;

/// Which set to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetParameters {
    /// Columns of the weights, a multiple of 32.
    pub k: u64,
    /// Rows of the weights.
    pub n: u64,
    /// Seed: the weights are drawn from it, the input of width M from seed + M.
    pub seed: u64,
    /// Widths M, ascending.
    pub widths: Vec<u64>,
    /// How values become blocks.
    pub rule: GoldenRule,
    /// Whether the weights are also packed for Xe2 DPAS; N must then be a multiple of 16.
    pub packed: bool,
}

impl Default for SetParameters {
    fn default() -> Self {
        Self { k: 5120, n: 256, seed: 270_036, widths: vec![1, 4, 8, 16], rule: GoldenRule::Contract, packed: false }
    }
}

/// One tensor file in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FixtureTensor {
    /// Name of its file.
    pub name: String,
    /// Type of the elements: `q4_0`, `q8_1`, `f32`, `q4_0-xe2-dpas-v2`.
    pub dtype: &'static str,
    /// Rows and columns.
    pub shape: [u64; 2],
    /// The bytes, little-endian.
    pub bytes: Vec<u8>,
}

impl SetParameters {
    /// Refuses what cannot be made, before anything is allocated.
    ///
    /// # Errors
    /// [`GoldenError::Parameter`] with the parameter, what was found and what is expected.
    pub fn check(&self) -> Result<(), GoldenError> {
        let wrong =
            |name: &'static str, found: String, expected: String| Err(GoldenError::Parameter { name, found, expected });
        if self.k == 0 || !self.k.is_multiple_of(BLOCK as u64) {
            return wrong(
                "k",
                self.k.to_string(),
                "a positive multiple of 32 (a Q4_0 block has 32 columns)".to_owned(),
            );
        }
        if self.n == 0 {
            return wrong("n", "0".to_owned(), "at least one row".to_owned());
        }
        if self.packed && !self.n.is_multiple_of(16) {
            return wrong(
                "n",
                self.n.to_string(),
                "a multiple of 16 when packing (a DPAS tile has 16 rows)".to_owned(),
            );
        }
        if self.widths.is_empty() {
            return wrong("widths", "none".to_owned(), "at least one width".to_owned());
        }
        if let Some(width) = self.widths.iter().find(|m| **m == 0 || **m > MAX_WIDTH) {
            return wrong("widths", width.to_string(), format!("widths of 1 to {MAX_WIDTH}"));
        }
        if !self.widths.is_sorted_by(|a, b| a < b) {
            let found = self.widths.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
            return wrong("widths", found, "ascending widths, each once".to_owned());
        }
        let widest = self.widths.iter().max().copied().unwrap_or(1);
        let sizes = [("k·n", self.k, self.n), ("k·m", self.k, widest), ("m·n", self.n, widest)];
        for (name, a, b) in sizes {
            if a.checked_mul(b).is_none_or(|product| product > MAX_WEIGHTS) {
                return wrong(name, format!("{a}·{b}"), format!("at most {MAX_WEIGHTS} elements"));
            }
        }
        if self.seed.checked_add(widest).is_none() {
            return wrong("seed", self.seed.to_string(), format!("at most 2^64 − 1 − {widest}: inputs use seed + M"));
        }
        Ok(())
    }

    /// Every file a set of these parameters has: name, type, shape, bytes.
    pub(crate) fn files(&self) -> Vec<(String, &'static str, [u64; 2], u64)> {
        let k_blocks = self.k / BLOCK as u64;
        let weights = self.n * k_blocks * Q4_0_BYTES as u64;
        let mut files = vec![(WEIGHTS.to_owned(), "q4_0", [self.n, self.k], weights)];
        for &m in &self.widths {
            files.push((input_name(m), "q8_1", [m, self.k], m * k_blocks * Q8_1_BYTES as u64));
            files.push((expected_name(m), "f32", [m, self.n], m * self.n * 4));
        }
        if self.packed {
            files.push((PACKED.to_owned(), "q4_0-xe2-dpas-v2", [self.n, self.k], weights));
        }
        files
    }
}

/// File of the input of width `m`.
pub fn input_name(m: u64) -> String {
    format!("input-m{m}.q8_1.bin")
}

/// File of the expected output of width `m`.
pub fn expected_name(m: u64) -> String {
    format!("expected-m{m}.f32.bin")
}

/// Makes all tensors of a set on the threads of [`b70_store::on_threads`]. The bytes do not depend on the number of threads: every stream
/// of random values is drawn by one thread, and what is spread over threads has no order of its own.
///
/// # Errors
/// As [`SetParameters::check`].
pub fn generate(parameters: &SetParameters) -> Result<Vec<FixtureTensor>, GoldenError> {
    parameters.check()?;
    b70_store::on_threads(|| generate_here(parameters))?
}

fn generate_here(p: &SetParameters) -> Result<Vec<FixtureTensor>, GoldenError> {
    let (weights, inputs) =
        rayon::join(|| weights(p), || p.widths.par_iter().map(|&m| input(p, m)).collect::<Vec<Vec<u8>>>());
    let expected = expected(p, &weights, &inputs);
    let packed = if p.packed {
        let shape = MatrixShape { k: p.k, n: p.n };
        let mut payload = vec![0; weights.len()];
        Xe2DpasV2::new()
            .pack(shape, &weights, &mut payload, Threads::Pool)
            .map_err(|error| GoldenError::Packing { why: error.to_string() })?;
        Some(payload)
    } else {
        None
    };
    let mut bytes = vec![weights];
    for (input, expected) in inputs.into_iter().zip(expected) {
        bytes.extend([input, expected]);
    }
    bytes.extend(packed);
    let files = p.files().into_iter().zip(bytes);
    Ok(files.map(|((name, dtype, shape, _), bytes)| FixtureTensor { name, dtype, shape, bytes }).collect())
}

fn single(values: &[f64; BLOCK]) -> [f32; BLOCK] {
    values.map(|x| x as f32)
}

fn quantise_weights(rule: GoldenRule, values: &[f64], out: &mut [u8]) {
    let blocks = out.as_chunks_mut::<Q4_0_BYTES>().0;
    for (values, block) in values.as_chunks::<BLOCK>().0.iter().zip(blocks) {
        match rule {
            GoldenRule::Contract => contract_q4_0(values, block),
            GoldenRule::Ggml => ggml_q4_0(&single(values), block),
        }
    }
}

/// Draws chunk after chunk on one thread while the others quantise the chunk before.
fn weights(p: &SetParameters) -> Vec<u8> {
    let elements = (p.k * p.n) as usize;
    let mut generator = Mt19937::from_python_seed(p.seed);
    let mut out = vec![0_u8; elements / BLOCK * Q4_0_BYTES];
    let mut drawn = vec![0.0_f64; CHUNK.min(elements)];
    let mut next = drawn.clone();
    generator.fill_uniform(WEIGHT_BOUND, &mut drawn);
    let mut left = elements - drawn.len();
    let mut filled = drawn.len();
    let mut rest = out.as_mut_slice();
    while filled > 0 {
        let (now, later) = rest.split_at_mut(filled / BLOCK * Q4_0_BYTES);
        let following = left.min(CHUNK);
        rayon::join(
            || generator.fill_uniform(WEIGHT_BOUND, &mut next[..following]),
            || {
                const PIECE: usize = 256;
                now.par_chunks_mut(PIECE * Q4_0_BYTES)
                    .zip(drawn[..filled].par_chunks(PIECE * BLOCK))
                    .for_each(|(out, values)| quantise_weights(p.rule, values, out));
            },
        );
        std::mem::swap(&mut drawn, &mut next);
        (rest, filled, left) = (later, following, left - following);
    }
    out
}

fn input(p: &SetParameters, m: u64) -> Vec<u8> {
    let mut values = vec![0.0; (m * p.k) as usize];
    Mt19937::from_python_seed(p.seed + m).fill_uniform(INPUT_BOUND, &mut values);
    let mut out = vec![0; values.len() / BLOCK * Q8_1_BYTES];
    for (values, block) in values.as_chunks::<BLOCK>().0.iter().zip(out.as_chunks_mut::<Q8_1_BYTES>().0) {
        match p.rule {
            GoldenRule::Contract => contract_q8_1(values, block),
            GoldenRule::Ggml => ggml_q8_1(&single(values), block),
        }
    }
    out
}

/// The outputs of all widths: weight rows are spread over the threads, each row is taken apart once for all widths.
fn expected(p: &SetParameters, weights: &[u8], inputs: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let k_blocks = p.k as usize / BLOCK;
    let n = p.n as usize;
    let activations = Activations::new(k_blocks, &inputs.concat());
    let rows = activations.rows();
    let mut products = vec![0.0_f32; n * rows];
    products
        .par_chunks_mut(ROWS * rows)
        .zip(weights.par_chunks(ROWS * k_blocks * Q4_0_BYTES))
        .for_each(|(out, weights)| product_rows(weights, &activations, out));
    let mut first = 0;
    p.widths
        .iter()
        .map(|&m| {
            let mut bytes = vec![0; m as usize * n * 4];
            for (i, out) in bytes.chunks_exact_mut(4).enumerate() {
                let (row, column) = (i / n, i % n);
                out.copy_from_slice(&products[column * rows + first + row].to_le_bytes());
            }
            first += m as usize;
            bytes
        })
        .collect()
}
