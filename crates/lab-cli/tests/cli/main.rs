//! The keiro-lab command as a user runs it: one file per subject.

mod command_line;
mod experiment;
#[path = "../../../cli/tests/harness/mod.rs"]
mod harness;
mod keiro;
mod lab;

/// The program that [`harness`] runs.
const PROGRAM: &str = env!("CARGO_BIN_EXE_keiro-lab");
