//! Entry point of `b70-golden`.

fn main() {}
