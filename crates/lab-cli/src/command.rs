//! The commands, one module per subject.

mod demo;
mod experiment;
mod gateway;
mod lab;
mod max_min;

use std::process::ExitCode;

use clap::CommandFactory;
use keiro_terminal::manual;

use crate::{
    args::{Cli, Command},
    failure::Failure,
};

type Outcome = Result<ExitCode, Failure>;

/// Carries out a command and gives the exit status.
pub(crate) fn run(command: Command) -> Outcome {
    match command {
        Command::Up { topology } => lab::up(&topology),
        Command::Down { name } => lab::down(&name),
        Command::Run {
            topology,
            host,
            command,
        } => lab::run(&topology, &host, &command),
        Command::Exec {
            name,
            host,
            command,
        } => lab::exec(&name, &host, &command),
        Command::List { json } => lab::list(json),
        Command::Echo { listen, message } => lab::echo(listen, message.0),
        Command::Gateway(args) => gateway::gateway(&args).map(success),
        Command::Experiment(args) => experiment::experiment(&args),
        Command::MaxMin(args) => max_min::max_min(&args),
        Command::Demo(args) => demo::demo(&args).map(success),
        Command::Completion { shell } => manual::completion("keiro-lab", shell).map(success),
        Command::Man { output } => manual::man(Cli::command(), output.as_deref()).map(success),
    }
}

fn success(_: ()) -> ExitCode {
    ExitCode::SUCCESS
}
