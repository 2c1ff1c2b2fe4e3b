//! Entry point of `b70-cache`.

fn main() {}
