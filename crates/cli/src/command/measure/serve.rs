//! `keiro measure --serve`: the other host of a measurement.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    process::ExitCode,
    thread,
    time::Duration,
};

use keiro_control::key::load_private_key;
use keiro_linux::{
    epoll::{Epoll, Interest, ReadyList},
    signal::{Signal, Signals},
};
use keiro_measure::net::{Access, Limits, Server, ServerEvent};

use super::super::{Outcome, keys::public_key, run_as};
use crate::{args, failure::Failure, usage};

/// Serves at `address`, without one at all of both families, until a signal ends it.
pub(super) fn serve(address: Option<SocketAddr>, args: &args::MeasureNet) -> Outcome {
    let access = access(args)?;
    let system = |error| Failure::new("cannot watch for signals").because(error);
    // Before any thread is started, so that all of them leave signals alone.
    let mut signals = Signals::block().map_err(system)?;
    let limits = Limits {
        clients: args.clients.into(),
        ..Limits::default()
    };
    let open = matches!(access, Access::Open);
    let bind = |address| Server::bind(address, access.clone(), limits, report_event);
    let servers = match address {
        Some(address) => vec![bind(address)?],
        None => {
            let mut servers = vec![bind((Ipv4Addr::UNSPECIFIED, args::MEASURE_PORT).into())?];
            // A machine without IPv6 has nothing to serve there.
            servers.extend(bind((Ipv6Addr::UNSPECIFIED, args::MEASURE_PORT).into()).ok());
            servers
        }
    };
    give_up_privileges(&args.user)?;
    let bound: Vec<String> = servers
        .iter()
        .filter_map(|server| Some(server.address().ok()?.to_string()))
        .collect();
    let bound = bound.join(" and ");
    crate::output::message!(
        "keiro: serving measurements on {bound} over TCP and UDP; Ctrl-C ends it"
    );
    if open {
        crate::output::message!(
            "keiro: WARNING: --open: anyone who can reach {bound} can use up this host's bandwidth; \
             for laboratories only"
        );
    }
    thread::scope(|scope| {
        let serving: Vec<_> = servers
            .iter()
            .map(|server| scope.spawn(|| server.run()))
            .collect();
        let waited = wait_for_stop(&mut signals, || serving.iter().any(|s| s.is_finished()));
        servers
            .iter()
            .for_each(|server| server.stop_handle().stop());
        for one in serving {
            let served = one.join().expect("the server does not panic");
            served.map_err(|error| Failure::new("cannot serve").because(error))?;
        }
        waited.map_err(system)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Becomes another user as soon as the key is read and the ports are open. Serving needs no privilege.
fn give_up_privileges(user: &args::User) -> Result<(), Failure> {
    let (run_as, warning) = run_as::choose(user)?;
    if let Some(warning) = warning {
        crate::output::message!("keiro: {warning}");
    }
    run_as.give_up(&[]).map_err(run_as::refused)?;
    Ok(())
}

fn access(args: &args::MeasureNet) -> Result<Access, Failure> {
    if args.open {
        return Ok(Access::Open);
    }
    let Some(key) = &args.key else {
        return Err(usage::server_key_missing());
    };
    if args.allow.is_empty() {
        return Err(usage::none_allowed());
    }
    let private = load_private_key(key)?;
    crate::output::message!(
        "keiro: this server's public key is {}",
        public_key(&private)
    );
    Ok(Access::Keys {
        private,
        allowed: args.allow.clone(),
    })
}

fn report_event(event: &ServerEvent) {
    match event {
        ServerEvent::Came {
            from,
            key: Some(key),
        } => crate::output::message!("keiro: {from} measures, key {key}"),
        ServerEvent::Came { from, key: None } => crate::output::message!("keiro: {from} measures"),
        ServerEvent::Went { from, bytes } => {
            crate::output::message!("keiro: {from} has gone after {bytes} bytes over TCP");
        }
        ServerEvent::Refused { from, why } => {
            crate::output::message!("keiro: {from} not served: {why}");
        }
        ServerEvent::AlsoRefused { count } => {
            crate::output::message!("keiro: {count} more connections were not served");
        }
    }
}

/// Waits for SIGINT or SIGTERM, or until `ended`.
pub(super) fn wait_for_stop(
    signals: &mut Signals,
    ended: impl Fn() -> bool,
) -> std::io::Result<()> {
    let epoll = Epoll::new()?;
    epoll.add(signals, 0, Interest::Read)?;
    let mut ready = ReadyList::new(1);
    while !ended() {
        epoll.wait(&mut ready, Some(STEP))?;
        while let Some(signal) = signals.take()? {
            if signal == Signal::Stop {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// How often the end of the work is looked for; ours.
const STEP: Duration = Duration::from_millis(20);
