//! Configuration changes at run time: egress peers that are added, removed or replaced.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use keiro_linux::{
    epe::{Change, OwnAddress},
    rule::SourceRule,
};

use super::{Kernel, Peer, failed, path_manager, vrf};
use crate::{
    config::Mptcp,
    forwarding::{Configured, ForwardingError, PeerIndex, Via},
    multipath::ConnectionSettings,
};

impl Peer {
    /// Whether only the name differs.
    fn is(&self, other: &Self) -> bool {
        let name = other.name.clone();
        *other
            == Self {
                name,
                ..self.clone()
            }
    }
}

impl Kernel {
    pub(super) fn adopt(&mut self, configured: &Configured<'_>) -> Vec<ForwardingError> {
        let peers: BTreeMap<PeerIndex, Peer> = match configured {
            Configured::Asbr { peers, .. } => {
                let peers = peers.iter();
                peers.map(|(&at, peer)| (at, Peer::of_asbr(peer))).collect()
            }
            Configured::Endpoint { peers, .. } => {
                let peers = peers.iter();
                peers
                    .map(|(&at, peer)| (at, Peer::of_endpoint(peer)))
                    .collect()
            }
        };
        // Done first, while the old routes and addresses still exist.
        let mut errors = match configured {
            Configured::Endpoint { others, .. } => self.take_back(&peers, others),
            Configured::Asbr { .. } => Vec::new(),
        };
        let before = std::mem::replace(&mut self.plan.peers, peers);
        let now = &self.plan.peers;
        self.draining.retain(|at| now.contains_key(&at));
        let same: BTreeSet<PeerIndex> = before
            .iter()
            .filter(|(at, peer)| now.get(at).is_some_and(|now| peer.is(now)))
            .map(|(at, _)| *at)
            .collect();
        let gone = before.iter().filter(|(at, _)| !same.contains(at));
        let gone: Vec<Peer> = gone.map(|(_, peer)| peer.clone()).collect();
        let new = now.iter().filter(|(at, _)| !same.contains(at));
        let new: Vec<Peer> = new.map(|(_, peer)| peer.clone()).collect();
        self.next_hops.forget(|via| match via {
            Via::Router { peer, .. } => peer.is_some_and(|peer| !same.contains(&peer)),
            Via::Segment(_) | Via::Blackhole { .. } => false,
        });
        let mut changes: Vec<Change> = gone.iter().flat_map(|peer| self.remove(peer)).collect();
        changes.extend(new.iter().flat_map(|peer| self.furnish(peer)));
        if let (Configured::Asbr { reflectors, .. }, Some(guard)) =
            (configured, &mut self.plan.guard)
        {
            guard.reflectors = reflectors.iter().map(|one| one.address).collect();
            changes.extend(self.guard_anew());
        }
        if !gone.is_empty() || !new.is_empty() {
            changes.extend(self.steer_anew());
        }
        errors.extend(self.remove_vrfs(&gone));
        errors.extend(self.apply(&changes));
        if !vrf::of(&new).is_empty() {
            errors.extend(self.make_vrfs());
        }
        errors.extend(self.announce_addresses(&gone));
        if let Some(marks) = &mut self.segment_marks {
            marks.set(super::segment_marks::wanted(&self.plan));
        }
        errors
    }

    /// Returns steered prefixes to the best path, as the egress peers are others.
    fn steer_anew(&mut self) -> Vec<Change> {
        let Some(steering) = &mut self.steering else {
            return Vec::new();
        };
        steering.restart(super::now(), &self.plan);
        let tables = steering.tables();
        let mut changes: Vec<Change> = tables.flat_map(|table| self.numbers.clear(table)).collect();
        let (before, after) = (&self.reconciler.wanted().marks, self.plan.mark_rules());
        let gone = before.difference(&after).copied().map(Change::RemoveMark);
        let new = after.difference(before).copied().map(Change::SetMark);
        changes.extend(gone.chain(new));
        changes
    }

    /// Moves connections off egress peers that are removed or replaced.
    fn take_back(
        &mut self,
        now: &BTreeMap<PeerIndex, Peer>,
        others: &ConnectionSettings<'_>,
    ) -> Vec<ForwardingError> {
        let Some(paths) = &mut self.paths else {
            return Vec::new();
        };
        let (state, peers) = (self.reconciler.wanted(), &self.plan.peers);
        let draining = &self.draining;
        let reaches = |peer: PeerIndex, client| {
            let of = peers.get(&peer);
            let route = of.and_then(|of| state.route(of.table, client));
            route.is_some_and(|(to, _)| !draining.contains(peer, to))
        };
        let addresses = now.iter();
        let addresses = addresses.filter_map(|(at, peer)| Some((*at, peer.own?)));
        paths.set(super::now(), &addresses.collect(), others, &reaches)
    }

    /// Updates the endpoints that the kernel announces, and the listeners for joins.
    fn announce_addresses(&mut self, gone: &[Peer]) -> Vec<ForwardingError> {
        let own = |peers: &[Peer]| -> Vec<IpAddr> {
            peers.iter().flat_map(Peer::own_addresses).collect()
        };
        let mut errors = Vec::new();
        let all: Vec<Peer> = self.plan.peers.values().cloned().collect();
        let mptcp = self.plan.server.as_ref().map(|server| server.mptcp);
        if mptcp == Some(Mptcp::Kernel) {
            let gone = own(gone).into_iter().collect();
            let changed = path_manager::remove_endpoints(&gone).map(drop);
            let changed = changed.and_then(|()| path_manager::set_endpoints(&own(&all)));
            if let Err(error) = changed {
                errors.push(failed(
                    "the kernel announces other addresses".into(),
                    &error,
                ));
            }
        }
        if let Some(listeners) = &mut self.join_listeners
            && let Err(error) = listeners.set(&own(&all))
        {
            errors.push(failed("joins are refused somewhere".into(), &error));
        }
        errors
    }

    /// Removes a server's peer: first its rule and address, then its table.
    fn remove(&mut self, peer: &Peer) -> Vec<Change> {
        let (Some(server), Some(interface)) = (&self.plan.server, self.interface) else {
            // A border router's state was removed with its session.
            return Vec::new();
        };
        let priority = server.priority;
        let mut changes = Vec::new();
        for address in peer.own_addresses() {
            changes.push(Change::RemoveAddress(OwnAddress { address, interface }));
            changes.push(Change::RemoveRule(SourceRule {
                priority,
                source: address,
                table: peer.table,
            }));
        }
        changes.extend(self.numbers.clear(peer.table));
        changes.push(Change::OpenTable(peer.table));
        changes.push(Change::OpenIpv4(peer.table));
        self.forget(peer.table);
        changes
    }

    /// Adds a server's peer, without routes.
    fn furnish(&self, peer: &Peer) -> Vec<Change> {
        let (Some(server), Some(interface)) = (&self.plan.server, self.interface) else {
            return Vec::new();
        };
        let mut changes = vec![
            Change::CloseTable(peer.table),
            Change::CloseIpv4(peer.table),
        ];
        for address in peer.own_addresses() {
            changes.push(Change::SetRule(SourceRule {
                priority: server.priority,
                source: address,
                table: peer.table,
            }));
            changes.push(Change::SetAddress(OwnAddress { address, interface }));
        }
        changes
    }

    /// As [`guard`](Self::guard), but also removes rules for interfaces no longer used, provided
    /// that the interfaces of all peers are known.
    fn guard_anew(&mut self) -> Vec<Change> {
        let before = self.reconciler.wanted().drops.clone();
        let peers: Vec<Peer> = self.plan.peers.values().cloned().collect();
        let known = peers
            .iter()
            .all(|peer| peer.at(&mut self.reconciler).is_ok());
        let kept = match known {
            true => BTreeSet::new(),
            false => before.clone(),
        };
        let after = self.plan.drops(&mut self.reconciler, &kept);
        let new = after.difference(&before).copied().map(Change::SetDrop);
        let gone = before.difference(&after).copied().map(Change::RemoveDrop);
        new.chain(gone).collect()
    }
}
