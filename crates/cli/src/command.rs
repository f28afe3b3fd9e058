//! The commands, one module each, and which one is meant.

mod config;
mod default_route;
mod doctor;
mod egress;
mod explain;
mod figures;
mod firewall;
mod flowstats;
mod gateway;
mod gencert;
mod hooks;
mod init;
mod installed_files;
mod join;
mod keys;
mod leave;
mod machine;
mod measure;
mod messages;
mod offline;
mod openings;
mod plan;
mod program;
mod query;
mod record;
mod run_as;
mod show;
mod sites;
mod socket;
mod support;
mod top;
mod web;

use std::process::ExitCode;

use clap::CommandFactory;
use keiro_linux::secret_memory;
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
    if holds_secrets(&command) {
        secret_memory::protect()
            .map_err(|error| Failure::new("cannot keep keys out of core files").because(error))?;
    }
    match command {
        Command::Genkey => keys::genkey().map(success),
        Command::Gentoken => keys::gentoken().map(success),
        Command::Gencert(args) => gencert::gencert(&args).map(success),
        Command::Pubkey => keys::pubkey().map(success),
        Command::Init(args) => init::init(&args).map(success),
        Command::Invite(args) => sites::invite(&args).map(success),
        Command::Revoke(args) => sites::revoke(&args).map(success),
        Command::Rename(args) => sites::rename(&args).map(success),
        Command::Sites(args) => sites::sites(&args).map(success),
        Command::Join(args) => join::join(&args).map(success),
        Command::Leave(args) => leave::leave(&args).map(success),
        Command::Config(args) => config::config(&args).map(success),
        Command::Gateway(args) => gateway::gateway(&args).map(success),
        Command::Asbr(args) => egress::asbr(&args).map(success),
        Command::Egress(args) => egress::egress(&args).map(success),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Status(query) => show::status(&query).map(success),
        Command::Hooks(args) => hooks::hooks(&args),
        Command::Support(args) => support::support(&args).map(success),
        Command::Top(args) => top::top(&args).map(success),
        Command::Show(args) => show::show_one(&args).map(success),
        Command::Monitor(args) => query::monitor(&args).map(success),
        Command::Plan(args) => plan::plan(&args),
        Command::Explain(args) => explain::explain(&args).map(success),
        Command::Apply(args) => plan::apply(&args),
        Command::Reload(args) => query::reload(&args).map(success),
        Command::Send(args) => messages::send(&args),
        Command::Receive(args) => messages::receive(&args),
        Command::Measure(args) => usage::measure(&args).and_then(|()| measure::measure(&args)),
        Command::Completion { shell } => manual::completion(PROGRAM, shell).map(success),
        Command::Man { output } => manual::man(Cli::command(), output.as_deref()).map(success),
        Command::Flowstats(args) => flowstats::flowstats(&args).map(success),
        Command::Web(args) => web::web(&args),
    }
}

/// Daemons, and commands that read or make a private key.
fn holds_secrets(command: &Command) -> bool {
    matches!(
        command,
        Command::Genkey
            | Command::Gentoken
            | Command::Gencert(_)
            | Command::Pubkey
            | Command::Init(_)
            | Command::Invite(_)
            | Command::Revoke(_)
            | Command::Sites(_)
            | Command::Join(_)
            | Command::Doctor(_)
            | Command::Support(_)
            | Command::Hooks(_)
            | Command::Gateway(_)
            | Command::Asbr(_)
            | Command::Egress(_)
            | Command::Flowstats(_)
            | Command::Measure(_)
    )
}

fn success(_: ()) -> ExitCode {
    ExitCode::SUCCESS
}
