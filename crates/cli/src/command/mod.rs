//! The commands, one module each, and which one is meant.

mod config;
mod egress;
mod flowstats;
mod gateway;
mod init;
mod keys;
mod measure;
mod messages;
mod offline;
mod plan;
mod query;
mod show;
mod socket;

use std::process::ExitCode;

use clap::CommandFactory;
use keiro_terminal::manual;

use crate::{
    PROGRAM,
    args::{Cli, Command},
    failure::Failure,
    usage,
};

type Outcome = Result<ExitCode, Failure>;

/// Carries out a command and gives the exit status.
///
/// # Errors
/// What went wrong; the exit status is 1 then, 64 if it is the command line.
pub(crate) fn run(command: Command) -> Outcome {
    match command {
        Command::Genkey => keys::genkey().map(done),
        Command::Pubkey => keys::pubkey().map(done),
        Command::Init(args) => init::init(&args).map(done),
        Command::Config(args) => config::config(&args).map(done),
        Command::Gateway(args) => gateway::gateway(&args).map(done),
        Command::Asbr(args) => egress::asbr(&args).map(done),
        Command::Egress(args) => egress::egress(&args).map(done),
        Command::Status(query) => show::status(&query).map(done),
        Command::Show(args) => show::show_one(&args).map(done),
        Command::Monitor(args) => query::monitor(&args).map(done),
        Command::Plan(args) => plan::plan(&args),
        Command::Explain(args) => query::explain(&args).map(done),
        Command::Apply(args) => query::apply(&args),
        Command::Reload(args) => query::reload(&args).map(done),
        Command::Send(args) => messages::send(&args),
        Command::Receive(args) => messages::receive(&args),
        Command::Measure(args) => usage::measure(&args).and_then(|()| measure::measure(&args)),
        Command::Completion { shell } => {
            manual::completion(PROGRAM, Cli::command(), shell).map(done)
        }
        Command::Man { output } => manual::man(Cli::command(), output.as_deref()).map(done),
        Command::Flowstats(args) => flowstats::flowstats(&args).map(done),
    }
}

fn done((): ()) -> ExitCode {
    ExitCode::SUCCESS
}
