//! The `keiro` command: the daemons, and the tools that configure, ask and measure.
//!
//! Reads the command line and carries out one command; what each does is in [`command`].
#![forbid(unsafe_code)]

mod args;
mod command;
mod names;
mod usage;

use std::{env, process::ExitCode};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use keiro_terminal::{failure, output};

use crate::args::Cli;

/// Begins every message.
const PROGRAM: &str = "keiro";

fn main() -> ExitCode {
    keiro_terminal::run(PROGRAM, with_tip, |cli: Cli| command::run(cli.command))
}

/// Adds the right command where another daemon's habit or an earlier name of a command was typed.
fn with_tip(mut error: clap::Error) -> clap::Error {
    let unknown = match error.kind() {
        ErrorKind::InvalidSubcommand => error.get(ContextKind::InvalidSubcommand),
        ErrorKind::UnknownArgument => error.get(ContextKind::InvalidArg),
        _ => return error,
    };
    let Some(ContextValue::String(unknown)) = unknown else {
        return error;
    };
    let command = env::args_os().nth(1).unwrap_or_default();
    let command = command.to_str().unwrap_or_default();
    if let Some(tip) = tip(command, unknown) {
        let tip = ContextValue::StyledStrs(vec![tip.into()]);
        error.insert(ContextKind::Suggested, tip);
    }
    error
}

/// What to type instead of `unknown`; `command` is the first word of the command line.
fn tip(command: &str, unknown: &str) -> Option<&'static str> {
    match (command, unknown) {
        // As `nginx -t` and `… check` do elsewhere.
        ("check", "check") | ("gateway", "check" | "--check" | "--test" | "-t") => {
            Some("`keiro config check FILE` reports everything that is wrong with a configuration")
        }
        ("lab", "lab") => {
            Some("laboratories are a program of their own: `keiro-lab up`, `run`, `list`, `down`")
        }
        ("experiment", "experiment") => {
            Some("experiments are in a program of their own: `keiro-lab experiment`")
        }
        ("demo", "demo") => Some("the demonstration is in a program of its own: `keiro-lab demo`"),
        _ => None,
    }
}
