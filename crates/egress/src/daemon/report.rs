//! What a daemon reports: answers of its control socket, and events for monitors and the log.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::mpsc,
};

use ipnet::IpNet;
use keiro_bgp::{address::Destination, rib::NeighbourId, session::State};
use keiro_linux::clock;
use keiro_stats_export::Stats;

use super::{Daemon, PeerState, Role, now, session_bfd};
use crate::{
    control::{Answer, ControlSocket, Reply, Request},
    forwarding::ForwardingError,
    looking_glass::{self, Received, RouteQuery, RoutesPage},
    stats::{EgressStats, NeighbourStats},
    status::{
        Compared, DaemonEvent, Explanation, NeighbourStatus, NotAdvertised, PathStatus, Status,
        Steered, TimedEvent, covering, word,
    },
};

/// Queued events per monitor. Ours.
const MONITOR_QUEUE_MAX: usize = 1024;

impl<R: Role> Daemon<R> {
    /// Sends an event to all monitors; a monitor whose queue is full is disconnected.
    pub(crate) fn notify_monitors(&mut self, what: &DaemonEvent) {
        if self.monitors.is_empty() {
            return;
        }
        let event = TimedEvent {
            unix_ms: clock::unix_time().as_millis() as u64,
            what: what.clone(),
        };
        self.monitors
            .retain(|monitor| monitor.try_send(event.clone()).is_ok());
    }

    /// Sends the changes of egress peers to monitors.
    pub(super) fn report_peers(&mut self) {
        if self.monitors.is_empty() {
            return;
        }
        let now = self.peer_states();
        let before = std::mem::replace(&mut self.reported_peers, now.clone());
        let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
        for name in names {
            // A peer that is missing on one side has no routes there.
            let of = |all: &BTreeMap<String, PeerState>| all.get(name).copied().unwrap_or_default();
            let (had, has) = (of(&before), of(&now));
            if had != has {
                self.notify_monitors(&DaemonEvent::Peer {
                    peer: name.clone(),
                    routes_before: had.0,
                    routes: has.0,
                    sid: has.1,
                });
            }
        }
    }

    fn peer_states(&self) -> BTreeMap<String, PeerState> {
        let peers = self.role.peers(&self.speaker).into_iter();
        peers
            .map(|peer| (peer.name, (peer.stats.routes as usize, peer.sid)))
            .collect()
    }

    /// Reports decisions of the comparison and of steering.
    pub(super) fn report_decisions(&mut self) {
        while let Some(steered) = self.forwarding.poll_steered() {
            let Steered {
                prefix,
                from,
                to,
                in_force,
                reason,
                gain,
            } = &steered;
            tracing::info!(%prefix, ?from, ?to, in_force, ?reason, ?gain, "client prefix steered");
            self.notify_monitors(&DaemonEvent::Steered(steered));
        }
        while let Some(compared) = self.forwarding.poll_decision() {
            let Compared {
                prefix,
                mode,
                confident,
                evidence,
            } = &compared;
            tracing::info!(%prefix, ?mode, confident, ?evidence, "client prefix");
            self.notify_monitors(&DaemonEvent::Compared(compared));
        }
    }

    pub(crate) fn report_errors(&mut self, errors: &[ForwardingError]) {
        if errors.is_empty() {
            return;
        }
        self.stats.refused += errors.len() as u64;
        for reason in self.health.note_refusals(errors) {
            tracing::error!("not forwarded as wanted: {reason}");
            self.notify_monitors(&DaemonEvent::Refused { reason });
        }
    }

    /// Answers pending requests of the control socket.
    pub(super) fn answer(&mut self) {
        while let Some(asked) = self.control.as_ref().and_then(ControlSocket::take) {
            let mut view = None;
            let answer = match asked.request {
                Request::Status => Answer::Status(Box::new(self.status())),
                Request::Explain(prefix) => Answer::Explanation(Box::new(self.explain(prefix))),
                Request::VerifiedStatus => {
                    view = self.forwarding.view();
                    Answer::Status(Box::new(self.status()))
                }
                Request::VerifiedExplain(prefix) => {
                    view = self.forwarding.view();
                    Answer::Explanation(Box::new(self.explain(prefix)))
                }
                Request::Routes(query) => match self.list_routes(&query) {
                    Ok(page) => Answer::Routes(page),
                    Err(reason) => Answer::Refused(reason),
                },
                Request::Monitor => {
                    self.monitor(&asked.reply);
                    continue;
                }
                Request::Reload => {
                    self.reload(vec![asked.reply]);
                    continue;
                }
                Request::DrainProgress { peer } => match self.drain_progress(&peer) {
                    Ok(status) => Answer::Drain(Box::new(status)),
                    Err(reason) => Answer::Refused(reason),
                },
                Request::Drain { peer, draining } => {
                    let answer = match self.drain(&peer, draining) {
                        Ok(status) => Answer::Drain(Box::new(status)),
                        Err(reason) => Answer::Refused(reason),
                    };
                    let _ = asked.reply.send(Reply::Answer(answer, None));
                    continue;
                }
            };
            let reply = Reply::Answer(answer, view);
            // The client may have disconnected.
            let _ = asked.reply.send(reply);
        }
    }

    fn monitor(&mut self, reply: &mpsc::Sender<Reply>) {
        let (sender, all) = mpsc::sync_channel(MONITOR_QUEUE_MAX);
        if reply.send(Reply::Events(all)).is_ok() {
            if self.monitors.is_empty() {
                self.reported_peers = self.peer_states();
            }
            self.monitors.push(sender);
        }
    }

    /// By number; empty: the neighbour was removed.
    fn names(&self) -> Vec<&str> {
        let names = self.neighbours.iter().map(|one| one.as_ref());
        names
            .map(|one| one.map_or("", |one| one.name.as_str()))
            .collect()
    }

    fn list_routes(&self, query: &RouteQuery) -> Result<RoutesPage, String> {
        let received = Received {
            speaker: &self.speaker,
            names: &self.names(),
            usage: &|destination, path| self.role.usage(&self.speaker, destination, path),
        };
        looking_glass::page(&received, query)
    }

    fn explain(&self, asked: IpNet) -> Explanation {
        let names = self.names();
        let rib = self.speaker.rib();
        let known = |prefix: &IpNet| !rib.paths(&Destination::unicast(*prefix)).is_empty();
        let prefix = covering(asked).find(known);
        let paths = prefix.map_or(&[][..], |prefix| rib.paths(&Destination::unicast(prefix)));
        let shown = paths.iter().map(|path| {
            let of = prefix.unwrap_or(asked);
            PathStatus::of(&self.speaker, &names, of, &paths[0], path)
        });
        let installed = self.forwarding.installed_routes(asked);
        let (kernel, of_peers) = installed.unzip();
        let mut peers = self.role.explain(&self.speaker, asked, &names);
        for (peer, route) in peers.iter_mut().zip(of_peers.into_iter().flatten()) {
            peer.kernel = route;
        }
        Explanation {
            asked,
            prefix,
            paths: shown.collect(),
            kernel,
            peers,
            not_advertised: self.not_advertised(prefix.unwrap_or(asked)),
            compared: self.forwarding.compared(asked),
            steered: self.forwarding.steered(asked),
        }
    }

    /// Why a prefix is not advertised, in any form, to neighbours that should get it.
    fn not_advertised(&self, prefix: IpNet) -> Vec<NotAdvertised> {
        let mut destinations = vec![Destination::unicast(prefix)];
        destinations.extend(self.speaker.exports_of(prefix));
        let mut all = Vec::new();
        for (place, config) in self.neighbours.iter().enumerate() {
            let id = NeighbourId(place as u16);
            let Some(config) = config else { continue };
            for destination in &destinations {
                if let Some(reason) = self.speaker.not_advertised(id, destination) {
                    all.push(NotAdvertised {
                        neighbour: config.name.clone(),
                        destination: destination.to_string(),
                        reason: reason.to_owned(),
                    });
                }
            }
        }
        all
    }

    fn status(&self) -> Status {
        let now = now();
        let bfd = self.bfd.snapshot();
        let bfd_of = |id| bfd.as_ref().and_then(|all| all.sessions.get(&id));
        let neighbours = self.neighbours.iter().enumerate();
        let neighbours = neighbours.filter_map(|(place, config)| {
            let config = config.as_ref()?;
            let id = NeighbourId(place as u16);
            let status = self.speaker.status(id);
            let session = bfd_of(id);
            let routes = status.routes.iter();
            Some(NeighbourStatus {
                name: config.name.clone(),
                address: config.address,
                asn: config.asn,
                state: word(status.state).to_owned(),
                up_seconds: status.up_since.map(|since| (now - since).as_secs()),
                routes: routes.map(|(family, n)| (family.to_string(), *n)).collect(),
                stale_seconds: status.stale_until.map(|until| (until - now).as_secs()),
                stats: Stats(NeighbourStats {
                    up: status.state == State::Established,
                    stale_routes: status.stale as u64,
                    updates: status.updates,
                    times_down: status.times_down,
                    since_down: status.last_down.map(|last| now - last),
                    advertised: status.advertised as u64,
                    not_advertised: status.not_advertised as u64,
                    draining: self.is_drained(id),
                    times_up: status.times_up,
                    malformed_updates: status.malformed_updates,
                    discarded_attributes: status.discarded_attributes,
                    bfd_up: session.map(|it| it.status.state == keiro_bfd::State::Up),
                    bfd_failures: session.map(|it| it.status.failures),
                }),
                last_error: status.last_error,
                bfd: session.map(|it| session_bfd::status(it, now)),
            })
        });
        let mut peers = self.role.peers(&self.speaker);
        for (at, peer) in self.role.indices().into_iter().zip(&mut peers) {
            peer.stats.0.subflows = self.forwarding.subflows(at).map(|count| count as u64);
            peer.stats.0.segment = Some(peer.sid.is_some());
        }
        let (kernel, of_peers) = self.forwarding.installed().unzip();
        for (peer, state) in peers.iter_mut().zip(of_peers.into_iter().flatten()) {
            peer.set_kernel(state);
        }
        let alarms = self.health.raised();
        Status {
            role: self.role.name().to_owned(),
            asn: self.config.asn,
            router_id: self.config.router_id,
            vrps: self.config.vrps.as_ref().map(|vrps| vrps.len()),
            stats: Stats(EgressStats {
                destinations: self.speaker.rib().len() as u64,
                unknown_connections: self.connections.unknown_connections,
                raised_alarms: alarms.len() as u64,
                earlier_routes: self.forwarding.earlier_routes() as u64,
                ..self.stats
            }),
            alarms,
            further_alarms: self.health.further(),
            bfd_discarded: bfd.as_ref().map(|all| {
                let by_reason = all.discards.by_reason().into_iter();
                by_reason
                    .map(|(reason, n)| (reason.to_owned(), n))
                    .collect()
            }),
            config_rejected: self.reloading.rejected.clone(),
            neighbours: neighbours.collect(),
            peers,
            comparison: self.forwarding.comparison(),
            steering: self.forwarding.steering(),
            kernel,
        }
    }
}
