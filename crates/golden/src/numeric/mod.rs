//! The numbers of a set: random values, blocks, and the reference product.

mod blocks;
mod fp16;
mod mt19937;
mod product;

pub use blocks::{BLOCK, Q4_0_BYTES, Q8_0_BYTES, Q8_1_BYTES, ggml_q4_0, ggml_q8_0, ggml_q8_1};
pub(crate) use blocks::{contract_q4_0, contract_q8_1};
pub use mt19937::Mt19937;
pub(crate) use product::{Activations, product_rows};
