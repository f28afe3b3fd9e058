//! The `keiro-lab` command: laboratories, experiments and the demonstration.
//!
//! It drives the `keiro` program as a black box; [`keiro`] finds it.
#![forbid(unsafe_code)]

mod args;
mod command;
mod keiro;

use std::process::ExitCode;

use keiro_terminal::{failure, output};

use crate::args::Cli;

fn main() -> ExitCode {
    keiro_terminal::run("keiro-lab", std::convert::identity, |cli: Cli| {
        command::run(cli.command)
    })
}
