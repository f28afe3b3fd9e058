//! The program `keiro-web`, which `keiro web` runs: pages over control sockets.
#![forbid(unsafe_code)]

mod args;

use std::{convert::Infallible, process::ExitCode};

use clap::CommandFactory;
use keiro_terminal::{failure::Failure, manual, output};
use keiro_web::{Access, Listen, Options, Proxy, Token, serve};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Cli, Command};

const PROGRAM: &str = "keiro-web";

fn main() -> ExitCode {
    keiro_terminal::run(PROGRAM, std::convert::identity, |cli: Cli| {
        match &cli.command {
            Some(Command::Man { output }) => {
                manual::man(Cli::command(), output.as_deref()).map(|()| ExitCode::SUCCESS)
            }
            Some(Command::Completion { shell }) => {
                manual::completion(PROGRAM, *shell).map(|()| ExitCode::SUCCESS)
            }
            None => run(cli),
        }
    })
}

fn run(cli: Cli) -> Result<ExitCode, Failure> {
    let options = options(cli)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new("cannot start").because(error))?;
    runtime.block_on(async {
        let stopped = async {
            let (mut terminate, mut interrupt) =
                (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
            tokio::select! {
                _ = terminate.recv() => {},
                _ = interrupt.recv() => {},
            }
            Ok::<(), std::io::Error>(())
        };
        let at = at(&options.listen);
        let served = serve(options, |address| {
            let at = address.map_or(at, |address| format!("http://{address}/"));
            output::message!("{PROGRAM}: pages are at {at}");
            // Without systemd there is nothing to notify.
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        });
        tokio::select! {
            stopped = stopped => stopped.map(|()| ExitCode::SUCCESS).map_err(|error| Failure::new("cannot wait for signals").because(error)),
            served = served => match served {
                Ok(never) => Ok(unreachable_code(never)),
                Err(error) => Err(Failure::new(error.to_string()).hint("another address with --listen ADDRESS:PORT")),
            },
        }
    })
}

fn unreachable_code(never: Infallible) -> ExitCode {
    match never {}
}

fn at(listen: &Listen) -> String {
    match listen {
        Listen::Tcp(address) => format!("http://{address}/"),
        Listen::Unix(path) => path.display().to_string(),
    }
}

fn options(cli: Cli) -> Result<Options, Failure> {
    let listen = match cli.listen_unix {
        Some(path) => Listen::Unix(path),
        None => Listen::Tcp(cli.listen),
    };
    let failed = |error: keiro_web::AccessError| {
        let text = error.to_string();
        match text.split_once("; try: ") {
            Some((what, hint)) => Failure::new(what).hint(hint),
            None => Failure::new(text),
        }
    };
    let token = cli
        .token_file
        .as_deref()
        .map(Token::load)
        .transpose()
        .map_err(failed)?;
    let proxy = cli
        .proxy
        .zip(cli.proxy_header)
        .map(|(address, header)| Proxy { address, header });
    let access = Access::new(&listen, token, proxy).map_err(failed)?;
    Ok(Options {
        listen,
        sockets: cli.sockets,
        egress: cli.egress,
        access,
        hosts: cli.hosts,
    })
}
