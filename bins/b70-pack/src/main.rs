//! Entry point of `b70-pack`.

fn main() {}
