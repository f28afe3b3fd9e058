//! Probes through segments, and what follows if they get no answer: routes by a silent segment leave the
//! tables until it answers, so that connections move to other paths.
//!
//! The table of a peer has a route to each of its segments by that segment. A probe is sent to the segment's
//! address: no egress peer announces it, so the table at the other end has no route to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv6Addr,
};

use ipnet::{IpNet, Ipv6Net};
use keiro_bgp::speaker::Speaker;
use keiro_units::Instant;

use super::Endpoint;
use crate::{
    census::Group,
    forwarding::{Forwarding, ForwardingError, PeerIndex, RouteChange, Table, Via},
    liveness::Liveness,
};

/// Segments that are probed. A site has one per border router and egress peer. Ours.
const PROBED_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Probes {
    pub(super) liveness: Liveness,
    /// Segments whose routes are not used.
    pub(super) avoided: BTreeSet<Ipv6Addr>,
    /// What is probed, and from the address of which peer.
    targets: BTreeMap<Ipv6Addr, PeerIndex>,
    /// The targets whose route has been put into the peer's table.
    routed: BTreeSet<Ipv6Addr>,
    due: Option<Instant>,
}

impl Probes {
    /// The routes of a peer's table were removed, those for probes too.
    pub(super) fn on_cleared(&mut self, peer: PeerIndex) {
        let targets = &self.targets;
        self.routed.retain(|sid| targets.get(sid) != Some(&peer));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }
}

impl Endpoint {
    /// Sends probes if it is time, and moves routes away from segments that do not answer.
    pub(super) fn tend_probes(
        &mut self,
        now: Instant,
        speaker: &Speaker,
        groups: &BTreeMap<Group, usize>,
        forwarding: &mut dyn Forwarding,
    ) -> Vec<ForwardingError> {
        let Some(interval) = self.config.probe_interval else {
            return self.end_probes(speaker, groups, forwarding);
        };
        if self.probes.due.is_some_and(|due| due > now) {
            return Vec::new();
        }
        self.probes.due = Some(now + interval);
        let mut errors = self.follow_targets(groups, forwarding);
        for (sid, answered) in forwarding.probe(&self.probes.targets) {
            self.probes.liveness.on_probed(now, sid, answered);
        }
        let avoided = self.probes.liveness.avoided();
        if avoided != self.probes.avoided {
            let changed: BTreeSet<Ipv6Addr> = self
                .probes
                .avoided
                .symmetric_difference(&avoided)
                .copied()
                .collect();
            self.probes.avoided = avoided;
            errors.extend(self.move_routes(speaker, groups, &changed, forwarding));
        }
        errors
    }

    /// Nothing is probed any more, and every segment is used.
    fn end_probes(
        &mut self,
        speaker: &Speaker,
        groups: &BTreeMap<Group, usize>,
        forwarding: &mut dyn Forwarding,
    ) -> Vec<ForwardingError> {
        let ended = std::mem::take(&mut self.probes);
        let routed = ended
            .targets
            .iter()
            .filter(|(sid, at)| ended.routed.contains(*sid) && self.peers.contains_key(*at));
        let changes: Vec<RouteChange> = routed
            .map(|(sid, at)| probe_route(*sid, *at, false))
            .collect();
        let mut errors = match changes.is_empty() {
            true => Vec::new(),
            false => forwarding.change(&changes),
        };
        if !ended.avoided.is_empty() {
            errors.extend(self.move_routes(speaker, groups, &ended.avoided, forwarding));
        }
        errors
    }

    /// Probes the segments in use, and those whose routes are not used because they are silent.
    fn follow_targets(
        &mut self,
        groups: &BTreeMap<Group, usize>,
        forwarding: &mut dyn Forwarding,
    ) -> Vec<ForwardingError> {
        let mut targets = BTreeMap::new();
        for (at, table) in &self.tables {
            // The router that takes a probe off takes it for IPv6.
            targets.extend(table.ipv6_segments().map(|sid| (sid, *at)));
        }
        let announced = groups.keys().filter_map(|group| group.sid);
        let announced: BTreeSet<Ipv6Addr> = announced.collect();
        for (sid, at) in &self.probes.targets {
            if announced.contains(sid) && self.peers.contains_key(at) {
                targets.entry(*sid).or_insert(*at);
            }
        }
        while targets.len() > PROBED_MAX {
            targets.pop_last();
        }
        let before = std::mem::replace(&mut self.probes.targets, targets);
        let now = &self.probes.targets;
        let moved = before.iter().filter(|(sid, at)| now.get(*sid) != Some(at));
        let mut changes = Vec::new();
        for (sid, at) in moved {
            if self.probes.routed.remove(sid) && self.peers.contains_key(at) {
                changes.push(probe_route(*sid, *at, false));
            }
        }
        for (sid, at) in now {
            if self.probes.routed.insert(*sid) {
                changes.push(probe_route(*sid, *at, true));
            }
        }
        self.probes.liveness.retain(|sid| now.contains_key(sid));
        match changes.is_empty() {
            true => Vec::new(),
            false => forwarding.change(&changes),
        }
    }

    /// Decides again on the routes of the egress peers that have one of these segments.
    fn move_routes(
        &mut self,
        speaker: &Speaker,
        groups: &BTreeMap<Group, usize>,
        segments: &BTreeSet<Ipv6Addr>,
        forwarding: &mut dyn Forwarding,
    ) -> Vec<ForwardingError> {
        let of_segment = |group: &&Group| group.sid.is_some_and(|sid| segments.contains(&sid));
        let mut peers = BTreeSet::new();
        for group in groups.keys().filter(of_segment) {
            let importing = self.peers.iter();
            let importing = importing.filter(|(_, peer)| group.targets.contains(&peer.rt));
            peers.extend(importing.map(|(at, _)| *at));
        }
        let touched = self.routes_of(speaker, &peers);
        let mut errors = self.update(speaker, touched, forwarding);
        errors.extend(forwarding.follow());
        errors
    }
}

/// The route to a segment by itself in a peer's table.
fn probe_route(sid: Ipv6Addr, peer: PeerIndex, there: bool) -> RouteChange {
    RouteChange {
        table: Table::Peer(peer),
        destination: IpNet::V6(Ipv6Net::from(sid)),
        via: there.then_some(Via::Segment(sid)),
    }
}
