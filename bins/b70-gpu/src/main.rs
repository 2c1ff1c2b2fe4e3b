//! Entry point of `b70-gpu`.

fn main() {}
