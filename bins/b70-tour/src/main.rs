//! Entry point of `b70-tour`.

fn main() {}
