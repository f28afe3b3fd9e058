//! `keiro asbr`, `keiro egress`: logging, configuration, then the daemon; and what it tells.

use std::path::Path;

use keiro_egress::{
    asbr::Asbr,
    config::{AsbrConfig, ConfigError, EndpointConfig, SpeakerConfig},
    daemon::{Daemon, Role},
    endpoint::Endpoint,
    forwarding::{Forwarding, Memory},
    kernel::{self, Kernel, KernelError},
    status::{self, Status},
};
use keiro_linux::{
    epe::{EpeError, Report},
    signal::Signals,
};

use super::gateway::log;
use crate::{
    args,
    failure::Failure,
    output::{self, human::NONE, table::Table},
};

pub(crate) fn asbr(args: &args::Asbr) -> Result<(), Failure> {
    if args.daemon.cleanup {
        return cleaned(kernel::cleanup_asbr());
    }
    let config = AsbrConfig::load(&args.config).map_err(|error| said(&error))?;
    let speaker = config.speaker.clone();
    run(&speaker, &args.daemon, || {
        let kernel = args.daemon.kernel(|| Kernel::asbr(&config))?;
        Ok((Asbr::new(config), kernel))
    })
}

pub(crate) fn egress(args: &args::Egress) -> Result<(), Failure> {
    if args.daemon.cleanup {
        return cleaned(kernel::cleanup_endpoint());
    }
    let config = EndpointConfig::load(&args.config).map_err(|error| said(&error))?;
    let speaker = config.speaker.clone();
    run(&speaker, &args.daemon, || {
        let kernel = args.daemon.kernel(|| Kernel::endpoint(&config))?;
        Ok((Endpoint::new(config), kernel))
    })
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

/// `make`: the role, and where its routes and segments are put.
fn run<R: Role>(
    config: &SpeakerConfig,
    args: &args::EgressDaemon,
    make: impl FnOnce() -> Result<(R, Box<dyn Forwarding>), Failure>,
) -> Result<(), Failure> {
    log(args.log_format, args.verbose);
    let signals = Signals::block()
        .map_err(|error| Failure::new("cannot take signals over").because(error))?;
    let (role, forwarding) = make()?;
    let mut daemon = Daemon::start(role, config, forwarding)?;
    if let Some(path) = &args.record {
        record_to(&mut daemon, path)?;
    }
    Ok(daemon.serve(Some(signals))?)
}

fn record_to<R: Role>(daemon: &mut Daemon<R>, path: &Path) -> Result<(), Failure> {
    Ok(daemon.record_to(path)?)
}

impl args::EgressDaemon {
    /// Where routes and segments are put.
    fn kernel(
        &self,
        open: impl FnOnce() -> Result<Kernel, KernelError>,
    ) -> Result<Box<dyn Forwarding>, Failure> {
        if self.dry_run {
            return Ok(Box::new(Memory::default()));
        }
        match open() {
            Ok(kernel) => Ok(Box::new(kernel)),
            Err(error) => Err(Failure::new("cannot put routes into the kernel")
                .because(error)
                .hint("--dry-run exchanges routes and changes nothing there")),
        }
    }
}

fn cleaned(result: Result<Report, EpeError>) -> Result<(), Failure> {
    let report = result
        .map_err(|error| Failure::new("cannot remove what is in the kernel").because(error))?;
    match report.failures.first() {
        None => output::text(format!(
            "{} entries removed from the kernel\n",
            report.carried_out
        )),
        Some(first) => {
            Err(Failure::new(format!("not everything is removed: {report}"))
                .because(first.to_string()))
        }
    }
}

fn said(error: &ConfigError) -> Failure {
    Failure::new(error.to_string())
}
