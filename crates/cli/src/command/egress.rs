//! `keiro asbr`, `keiro egress`: logging, configuration, then the daemon; and what it tells.

use std::path::Path;

use keiro_egress::{
    asbr::Asbr,
    config::{AsbrConfig, ConfigError, EndpointConfig, SpeakerConfig},
    daemon::{Daemon, Role},
    endpoint::Endpoint,
    forwarding::{Forwarding, Memory},
    status::{self, Status},
};
use keiro_linux::signal::Signals;

use super::gateway::log;
use crate::{
    args,
    failure::Failure,
    output::{self, human::NONE, table::Table},
};

pub(crate) fn asbr(args: &args::Asbr) -> Result<(), Failure> {
    let config = AsbrConfig::load(&args.config).map_err(|error| said(&error))?;
    let speaker = config.speaker.clone();
    run(Asbr::new(config), &speaker, &args.daemon)
}

pub(crate) fn egress(args: &args::Egress) -> Result<(), Failure> {
    let config = EndpointConfig::load(&args.config).map_err(|error| said(&error))?;
    let speaker = config.speaker.clone();
    run(Endpoint::new(config), &speaker, &args.daemon)
}

pub(super) fn show(args: &args::ShowEgress) -> Result<(), Failure> {
    let status = status::ask(&args.socket).map_err(|error| {
        Failure::new(format!("{}: no daemon answers", args.socket.display()))
            .because(error)
            .hint("--socket names the `control_socket` of the daemon's configuration")
    })?;
    match args.json {
        true => output::json(&status),
        false => output::text(shown(&status)),
    }
}

fn shown(status: &Status) -> String {
    let mut neighbours = Table::new(&[
        "neighbour",
        "address",
        "AS>",
        "state",
        "up>",
        "routes>",
        "told>",
        "last down",
    ]);
    for neighbour in &status.neighbours {
        let up = neighbour.up_seconds;
        neighbours.row([
            neighbour.name.clone(),
            neighbour.address.to_string(),
            neighbour.asn.to_string(),
            neighbour.state.clone(),
            up.map_or(NONE.to_owned(), |seconds| format!("{seconds} s")),
            neighbour.routes.values().sum::<usize>().to_string(),
            neighbour.told.to_string(),
            neighbour.last_error.clone().unwrap_or(NONE.to_owned()),
        ]);
    }
    let mut peers = Table::new(&["egress peer", "target", "segment", "address", "routes>"]);
    for peer in &status.peers {
        let or_none = |address: Option<std::net::Ipv6Addr>| {
            address.map_or(NONE.to_owned(), |address| address.to_string())
        };
        peers.row([
            peer.name.clone(),
            peer.rt.clone(),
            or_none(peer.sid),
            or_none(peer.address),
            peer.routes.to_string(),
        ]);
    }
    let Status {
        role,
        asn,
        router_id,
        destinations,
        refused,
        ..
    } = status;
    format!(
        "{role}, AS {asn}, {router_id}: {destinations} destinations, {refused} changes refused\n\n{neighbours}\n{peers}"
    )
}

fn run<R: Role>(role: R, config: &SpeakerConfig, args: &args::EgressDaemon) -> Result<(), Failure> {
    log(args.log_format, args.verbose);
    let signals = Signals::block()
        .map_err(|error| Failure::new("cannot take signals over").because(error))?;
    let mut daemon = Daemon::start(role, config, forwarding(args)?)?;
    if let Some(path) = &args.record {
        record_to(&mut daemon, path)?;
    }
    Ok(daemon.serve(Some(signals))?)
}

fn record_to<R: Role>(daemon: &mut Daemon<R>, path: &Path) -> Result<(), Failure> {
    Ok(daemon.record_to(path)?)
}

/// Where routes and segments are put.
fn forwarding(args: &args::EgressDaemon) -> Result<Box<dyn Forwarding>, Failure> {
    if args.dry_run {
        return Ok(Box::new(Memory::default()));
    }
    Err(
        Failure::new("this version exchanges routes, but does not put them into the kernel yet")
            .hint("add --dry-run to see what it would do"),
    )
}

fn said(error: &ConfigError) -> Failure {
    Failure::new(error.to_string())
}
