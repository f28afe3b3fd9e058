//! Laboratories: `keiro-lab up`, `down`, `run`, `exec`, `list`.

use std::{
    ffi::OsString,
    io::IsTerminal,
    net::SocketAddr,
    process::{Command, ExitCode, ExitStatus},
    time::Duration,
};

use keiro_lab::{
    Host, Interrupts, Lab, LabError, Leftovers, Topology,
    lab::{self, Record},
    traffic::transactions::Server,
};
use keiro_units::ByteCount;
use serde::Serialize;

use super::Outcome;
use crate::{
    args,
    failure::Failure,
    output::{self, table::Table},
};

/// How long the owner of a laboratory may take to remove it. Ours: ending its programs takes up
/// to 2 s each way.
const DOWN_TIMEOUT: Duration = Duration::from_secs(15);

pub(super) fn down(name: &str) -> Outcome {
    lab::remove(name, DOWN_TIMEOUT)?;
    output::message!("removed laboratory `{name}`");
    Ok(ExitCode::SUCCESS)
}

/// Prints its address, and serves until a signal ends the process.
pub(super) fn echo(listen: SocketAddr, message: ByteCount) -> Outcome {
    keiro_linux::limit::raise_open_files();
    let server =
        Server::start_here(listen, message).map_err(|e| Failure::new("cannot serve").because(e))?;
    output::text(format!("{}\n", server.address()))?;
    loop {
        std::thread::park();
    }
}

fn make(args: &args::TopologyFile, interrupts: &Interrupts) -> Result<Lab, Failure> {
    let topology = Topology::load(&args.topology)?;
    let mut builder = Lab::builder(&topology)
        .interrupts(interrupts)
        .seed(args.seed);
    if let Some(name) = &args.name {
        builder = builder.name(name);
    }
    if args.force {
        builder = builder.leftovers(Leftovers::Remove);
    }
    Ok(builder.up()?)
}

fn interrupts(grace: Duration) -> Result<Interrupts, Failure> {
    Interrupts::install(grace).map_err(|e| Failure::new("cannot watch for signals").because(e))
}

pub(super) fn up(args: &args::TopologyFile) -> Outcome {
    // The laboratory is dropped in this thread; the grace is only for one that hangs.
    let interrupts = interrupts(DOWN_TIMEOUT)?;
    let lab = make(args, &interrupts)?;
    let mut table = Table::new(&["host", "namespace"]);
    for host in lab.hosts() {
        table.row([host.name(), host.namespace()]);
    }
    output::text(table)?;
    output::message!(
        "laboratory `{}` is up; Ctrl-C or `keiro-lab down {}` removes it",
        lab.name(),
        lab.name()
    );
    while interrupts.wait(Duration::from_secs(3600)).is_none() {}
    lab.down()?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn run(args: &args::TopologyFile, host: &str, command: &[OsString]) -> Outcome {
    let interrupts = interrupts(DOWN_TIMEOUT)?;
    let lab = make(args, &interrupts)?;
    let process = lab
        .host(host)?
        .spawn(command_in(lab.host(host)?, command))?;
    let unwaitable = |e| Failure::new("cannot wait for the command").because(e);
    let status = loop {
        if let Some(status) = process
            .wait(Duration::from_millis(200))
            .map_err(unwaitable)?
        {
            break Some(status);
        }
        if interrupts.received().is_some() {
            break None;
        }
    };
    lab.down()?;
    Ok(status.map_or(ExitCode::FAILURE, exit_code))
}

pub(super) fn exec(name: &str, host: &str, command: &[OsString]) -> Outcome {
    let host = lab::attach(name, host)?;
    let mut command = command_in(&host, command);
    let status = command.status().map_err(|source| LabError::Spawn {
        host: host.name().to_owned(),
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    })?;
    Ok(exit_code(status))
}

fn command_in(host: &Host, words: &[OsString]) -> Command {
    // The command line asks for one at least.
    let (program, arguments) = words.split_first().expect("a command has a first word");
    let mut command = host.command(program);
    command.args(arguments);
    command
}

/// As shells do: the program's own, or 128 and the signal that ended it.
fn exit_code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    record: Record,
    /// The process that made it still runs.
    alive: bool,
}

pub(super) fn list(json: bool) -> Outcome {
    let listed = |record: Record| Listed {
        alive: record.is_alive(),
        record,
    };
    let labs: Vec<Listed> = lab::list().into_iter().map(listed).collect();
    if json {
        output::json(&labs)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["laboratory", "state", "process>", "hosts"]);
    for lab in &labs {
        let hosts: Vec<&str> = lab
            .record
            .namespaces
            .iter()
            .filter_map(|ns| ns.host.as_deref())
            .collect();
        table.row([
            lab.record.name.clone(),
            if lab.alive { "up" } else { "left over" }.to_owned(),
            lab.record.pid.to_string(),
            hosts.join(" "),
        ]);
    }
    if table.is_empty() {
        if std::io::stdout().is_terminal() {
            output::message!("no laboratories");
        }
    } else {
        output::text(table)?;
    }
    Ok(ExitCode::SUCCESS)
}
