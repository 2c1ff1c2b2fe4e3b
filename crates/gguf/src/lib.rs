//! Strict, zero-copy reader of GGUF directories, and a writer for fixtures.
