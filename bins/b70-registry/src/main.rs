//! Entry point of `b70-registry`.

fn main() {}
