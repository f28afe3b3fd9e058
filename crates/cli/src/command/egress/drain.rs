//! `keiro egress drain` and `undrain`.

use std::{
    thread,
    time::{Duration, Instant},
};

use keiro_egress::{
    control::{Answer, Request},
    status::DrainStatus,
};
use serde::Serialize;

use super::{ask, unexpected};
use crate::{args, failure::Failure, output};

#[derive(Serialize)]
struct Drained {
    #[serde(flatten)]
    status: DrainStatus,
    took_ms: u64,
}

/// Drains, or ends it, and then asks until everything is sent.
pub(super) fn drain(args: &args::Drain, draining: bool) -> Result<(), Failure> {
    let start = Instant::now();
    let peer = || args.peer.clone();
    let mut request = Request::Drain {
        peer: peer(),
        draining,
    };
    loop {
        let status = match ask(&args.socket, request)? {
            Answer::Drain(status) => *status,
            other => return Err(unexpected(&other)),
        };
        request = Request::DrainProgress { peer: peer() };
        let took = start.elapsed();
        if status.draining != draining {
            return Err(Failure::new(format!(
                "another command has {} {} in the meantime",
                if draining { "undrained" } else { "drained" },
                status.peer
            ))
            .hint("`keiro show egress` shows how it is now; ask again if it is to be otherwise"));
        }
        if status.unsent.is_empty() {
            return match args.json {
                true => output::json(&Drained {
                    status,
                    took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
                }),
                false => output::text(text(&status, took)),
            };
        }
        if took >= args.wait.0 {
            return Err(Failure::new(format!(
                "after {} s not everything was sent to {}; {} goes on, and this command shows its progress again",
                took.as_secs(),
                status.unsent.join(", "),
                if draining { "draining" } else { "its end" },
            )));
        }
        thread::sleep(EVERY);
    }
}

fn text(status: &DrainStatus, took: Duration) -> String {
    let DrainStatus { peer, routes, .. } = status;
    let time = format!("everything was sent within {:.2} s", took.as_secs_f64());
    let best = status.best_paths.unwrap_or_default();
    if !status.draining {
        return format!(
            "{peer} is used again: {time}; it has the best path of {best} destinations\n"
        );
    }
    let session = match status.up {
        true => "",
        false => "; its session is down",
    };
    let left = match best {
        0 => "No best path is its own.".to_owned(),
        _ => {
            let examples = status.examples.iter().map(ToString::to_string);
            let examples = examples.collect::<Vec<_>>().join(", ");
            let more = match best > status.examples.len() {
                true => ", …",
                false => "",
            };
            format!(
                "Destinations that have no other path and stay with it: {best} ({examples}{more})."
            )
        }
    };
    format!(
        "{peer} is drained: {routes} routes are the last choice{session}; {time}\n{left}\n\
         `keiro show egress` at a server shows the subflows that are left. End the session when there are none.\n\
         This lasts until `keiro egress undrain {peer}`, or until the daemon ends: `drain = true` in its file lasts longer.\n"
    )
}

/// How often the daemon is asked for the progress. Ours.
const EVERY: Duration = Duration::from_millis(50);
