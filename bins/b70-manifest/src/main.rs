//! Entry point of `b70-manifest`.

fn main() {}
