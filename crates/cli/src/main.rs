//! The `keiro` command: all roles and tools behind one name.
//!
//! Reads the command line, carries out one command, and turns what went wrong into a message and
//! an exit status. What a command does is in [`command`]; data goes to standard output through
//! [`output`], messages go to standard error.
#![forbid(unsafe_code)]

mod args;
mod command;
mod failure;
mod output;
mod usage;

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
};

use clap::{
    Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::{args::Cli, failure::Failure};

/// Exit status of a command line that cannot be understood: EX_USAGE of sysexits(3).
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let error = with_tip(error);
            // Nothing can be done where not even the message can be written.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(USAGE),
            };
        }
    };
    match command::run(cli.command) {
        Ok(code) => code,
        Err(failure) if failure.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            // A full disk behind standard error must not turn a failure into a crash.
            let _ = write!(io::stderr(), "{failure}");
            match failure {
                Failure::Usage { .. } => ExitCode::from(USAGE),
                Failure::Output(_) | Failure::Said { .. } => ExitCode::FAILURE,
            }
        }
    }
}

/// Who asks for a check of a gateway's configuration as other daemons do it (`nginx -t`, `… check`) is told how.
fn with_tip(mut error: clap::Error) -> clap::Error {
    let asked = match error.kind() {
        ErrorKind::InvalidSubcommand => error.get(ContextKind::InvalidSubcommand),
        ErrorKind::UnknownArgument => error.get(ContextKind::InvalidArg),
        _ => return error,
    };
    let Some(ContextValue::String(asked)) = asked else {
        return error;
    };
    let command = env::args_os().nth(1).unwrap_or_default();
    let asks_to_check = match command.to_str() {
        Some("check") => asked == "check",
        Some("gateway") => ["check", "--check", "--test", "-t"].contains(&asked.as_str()),
        _ => false,
    };
    if asks_to_check {
        let tip = "`keiro config check FILE` says everything that is wrong with a configuration";
        let tip = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tip);
    }
    error
}
