//! The `keiro-lab` command: laboratories, experiments and the demonstration.
//!
//! It drives the `keiro` program as a black box; [`keiro`] finds it.
#![forbid(unsafe_code)]

mod args;
mod command;
mod keiro;

use std::process::ExitCode;

use clap::CommandFactory;
use keiro_terminal::{failure, manual, output};

use crate::args::Cli;

fn main() -> ExitCode {
    // Answers a shell that completes a command line, and ends.
    manual::complete(Cli::command);
    keiro_terminal::run("keiro-lab", std::convert::identity, |cli: Cli| {
        command::run(cli.command)
    })
}
