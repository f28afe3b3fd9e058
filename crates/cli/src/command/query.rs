//! Asking the running gateway: the connection, and the commands that are one question each.

use std::{io, os::unix::net::UnixStream, path::Path, time::Duration};

use keiro_control::protocol::{
    ErrorResponse, Request, Response,
    client::{Client, ClientError},
};
use serde::Serialize;

use super::socket::Socket;
use crate::{args, failure::Failure, output};

/// How long the gateway may take to answer. Ours: planning for its largest configuration takes
/// less than a second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to the gateway at `socket`.
///
/// # Errors
/// None answers there, or this user may not ask.
pub(super) fn connect(socket: &Path) -> Result<Client<UnixStream>, Failure> {
    let unreachable = |error| Socket::Control(socket).unreachable(error);
    let stream = UnixStream::connect(socket).map_err(unreachable)?;
    stream
        .set_read_timeout(Some(ANSWER_TIMEOUT))
        .map_err(unreachable)?;
    Ok(Client::new(stream))
}

/// Asks one question.
///
/// # Errors
/// As [`connect`], or what the gateway says against it.
pub(super) fn ask(socket: &args::Socket, request: &Request) -> Result<Response, Failure> {
    let socket = &socket.socket;
    connect(socket)?
        .request(request)
        .map_err(|error| failed(socket, error))
}

/// What a failed exchange over `socket` is to the user.
fn failed(socket: &Path, error: ClientError) -> Failure {
    match error {
        ClientError::Refused(error) => error.into(),
        ClientError::Io(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            ) =>
        {
            Failure::new("the gateway does not answer")
                .because(format!(
                    "nothing came within {} s",
                    ANSWER_TIMEOUT.as_secs()
                ))
                .hint("`journalctl -u keiro-gateway` may say why")
        }
        ClientError::Closed | ClientError::Io(_) => Socket::Control(socket).closed(error),
        ClientError::TooLong(_) | ClientError::NotUnderstood(_) => {
            Socket::Control(socket).not_understood(error)
        }
    }
}

/// An answer to another question than was asked.
pub(super) fn unexpected(response: &Response) -> Failure {
    let name = serde_json::to_value(response).ok();
    let name = name
        .as_ref()
        .and_then(|v| v["response"].as_str())
        .unwrap_or("unknown");
    Failure::new(format!(
        "the gateway answered something else than was asked: `{name}`"
    ))
    .hint("are `keiro` and the running gateway of one version? `keiro --version`, `keiro status`")
}

/// Shows a value as JSON or as text. A reader that has gone changes nothing of the exit status.
pub(super) fn show<T: Serialize>(
    query: &args::Query,
    value: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    output::allow_closed_reader(match query.json {
        true => output::json(value),
        false => output::text(text(value)),
    })
}

#[derive(Serialize)]
struct Reloaded<'a> {
    changes: &'a keiro_control::config::ConfigDiff,
    needs_restart: &'a [String],
    problems: &'a [String],
    warnings: &'a [String],
}

/// A reload that changed nothing.
#[derive(Serialize)]
struct Refused<'a> {
    error: &'a ErrorResponse,
}

pub(super) fn reload(args: &args::Reload) -> Result<(), Failure> {
    let query = &args.query;
    if args.egress {
        return super::egress::reload(query);
    }
    let socket = &query.socket.socket;
    let answer = connect(socket)?.request(&Request::Reload {});
    if let (true, Err(ClientError::Refused(refused))) = (query.json, &answer) {
        output::allow_closed_reader(output::json(&Refused { error: refused }))?;
    }
    match answer.map_err(|error| failed(socket, error))? {
        Response::Reloaded {
            changes,
            needs_restart,
            problems,
            warnings,
        } => {
            let reloaded = Reloaded {
                changes: &changes,
                needs_restart: &needs_restart,
                problems: &problems,
                warnings: &warnings,
            };
            show(query, &reloaded, |r| format!("{}\n", r.changes))?;
            for warning in &warnings {
                output::message!("keiro: warning: {warning}");
            }
            for line in needs_restart.iter().chain(&problems) {
                output::message!("keiro: {line}");
            }
            Ok(())
        }
        other => Err(unexpected(&other)),
    }
}

pub(super) fn monitor(args: &args::Monitor) -> Result<(), Failure> {
    if args.egress {
        return super::egress::monitor(args);
    }
    if let Some(peer) = &args.qlog {
        return monitor_qlog(args, peer);
    }
    let mut client = connect(&args.socket.socket)?;
    let failed = |error| failed(&args.socket.socket, error);
    match client.request(&Request::Monitor {}).map_err(failed)? {
        Response::Monitoring {} => {}
        other => return Err(unexpected(&other)),
    }
    let mut left = args.count.map(std::num::NonZeroU64::get);
    while left != Some(0) {
        match client.next_event() {
            Ok(event) => {
                output::json_line(&event)?;
                left = left.map(|left| left - 1);
            }
            // Nothing happened for a while.
            Err(ClientError::Io(e))
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) => {}
            Err(ClientError::Closed) => {
                return Err(Failure::new("the gateway stopped")
                    .hint("`journalctl -u keiro-gateway` says why"));
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

/// How often packets are fetched from the gateway. Ours: its buffer has room for 0.2 s at 100,000
/// packets/s.
const QLOG_INTERVAL: Duration = Duration::from_millis(100);

/// Prints the packets on the paths to a peer as qlog until the reader closes.
fn monitor_qlog(args: &args::Monitor, peer: &str) -> Result<(), Failure> {
    let socket = &args.socket.socket;
    let mut client = connect(socket)?;
    let mut from = None;
    let mut left = args.count.map(std::num::NonZeroU64::get);
    let mut has_header = false;
    loop {
        let response = client
            .request(&Request::Qlog {
                peer: peer.to_owned(),
                from,
            })
            .map_err(|error| failed(socket, error))?;
        let Response::Qlog {
            header,
            events,
            next,
            ..
        } = response
        else {
            return Err(unexpected(&response));
        };
        from = Some(next);
        if !has_header {
            output::qlog_record(&header)?;
            has_header = true;
        }
        for event in &events {
            if left == Some(0) {
                return Ok(());
            }
            output::qlog_record(event)?;
            left = left.map(|left| left - 1);
        }
        if left == Some(0) {
            return Ok(());
        }
        std::thread::sleep(QLOG_INTERVAL);
    }
}
