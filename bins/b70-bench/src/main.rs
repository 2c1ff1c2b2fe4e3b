//! Entry point of `b70-bench`.

fn main() {}
