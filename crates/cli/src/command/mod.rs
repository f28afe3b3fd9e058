//! The commands, one module each, and which one is meant.

mod config;
mod demo;
mod egress;
mod experiment;
mod flowstats;
mod gateway;
mod init;
mod keys;
mod lab;
mod manual;
mod measure;
mod messages;
mod offline;
mod plan;
mod query;
mod show;
mod socket;

use std::process::ExitCode;

use crate::{args::Command, failure::Failure, usage};

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
        Command::Lab(args) => lab::lab(args),
        Command::Completion { shell } => manual::completion(shell).map(done),
        Command::Man { output } => manual::man(output.as_deref()).map(done),
        Command::Flowstats(args) => flowstats::flowstats(&args).map(done),
        Command::Experiment(args) => experiment::experiment(&args),
        Command::Demo(args) => demo::demo(&args).map(done),
    }
}

fn done((): ()) -> ExitCode {
    ExitCode::SUCCESS
}
