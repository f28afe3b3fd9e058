//! What Keiro's commands share: exit status, failures, output, man pages, shell completion.
//!
//! A command's binary defines its command line and carries it out; [`run`] turns the outcome into
//! messages and an exit status. Data goes to standard output through [`output`], messages go to
//! standard error.
#![forbid(unsafe_code)]

pub mod failure;
pub mod manual;
pub mod output;
mod printable;

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Parser, error::ErrorKind};

use failure::Failure;

pub use printable::printable;

/// Version and commit, as in `0.1.0 (99b912e0cd)`.
pub const VERSION: &str = env!("KEIRO_VERSION");

/// Exit status of a command line that cannot be understood: EX_USAGE of sysexits(3).
pub const USAGE: u8 = 64;

/// Reads the command line, carries it out with `command`, and gives the exit status. A shell that completes a command
/// line is answered instead.
///
/// `program` begins every message; `explain` may add a tip to what clap finds wrong.
pub fn run<Cli: Parser>(
    program: &str,
    explain: impl FnOnce(clap::Error) -> clap::Error,
    command: impl FnOnce(Cli) -> Result<ExitCode, Failure>,
) -> ExitCode {
    manual::complete(Cli::command);
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&explain(error)),
    };
    match command(cli) {
        Ok(code) => code,
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            // A full disk behind standard error must not turn a failure into a crash.
            let _ = write!(io::stderr(), "{}", failure.message(program));
            match failure {
                Failure::Usage { .. } => ExitCode::from(USAGE),
                Failure::Output(_) | Failure::Failed { .. } => ExitCode::FAILURE,
            }
        }
    }
}

/// Help and the version arrive as errors too.
fn refuse(error: &clap::Error) -> ExitCode {
    // Nothing is left to do where not even the message can be written.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(USAGE),
    }
}
