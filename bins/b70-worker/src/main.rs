//! Entry point of `b70-worker`.

fn main() {}
