//! The `keiro` command.
#![forbid(unsafe_code)]

fn main() {}
