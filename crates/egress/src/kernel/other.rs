//! Another configuration while the daemon runs: peers that come, go, or are others now.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use keiro_linux::{
    epe::{Change, OwnAddress},
    rule::SourceRule,
};

use super::{Kernel, Peer};
use crate::forwarding::{Configured, ForwardingError, PeerIndex};

impl Peer {
    /// Whether it is the same but for what it is called.
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
            Configured::Endpoint(peers) => {
                let peers = peers.iter();
                peers
                    .map(|(&at, peer)| (at, Peer::of_endpoint(peer)))
                    .collect()
            }
        };
        let before = std::mem::replace(&mut self.plan.peers, peers);
        let now = &self.plan.peers;
        let same: BTreeSet<PeerIndex> = before
            .iter()
            .filter(|(at, peer)| now.get(at).is_some_and(|now| peer.is(now)))
            .map(|(at, _)| *at)
            .collect();
        let gone = before.iter().filter(|(at, _)| !same.contains(at));
        let gone: Vec<Peer> = gone.map(|(_, peer)| peer.clone()).collect();
        let new = now.iter().filter(|(at, _)| !same.contains(at));
        let new: Vec<Peer> = new.map(|(_, peer)| peer.clone()).collect();
        self.ways
            .retain(|hop, _| hop.peer.is_none_or(|peer| same.contains(&peer)));
        let mut changes: Vec<Change> = gone.iter().flat_map(|peer| self.remove(peer)).collect();
        changes.extend(new.iter().flat_map(|peer| self.furnish(peer)));
        if let (Configured::Asbr { reflectors, .. }, Some(guard)) =
            (configured, &mut self.plan.guard)
        {
            guard.reflectors = reflectors.iter().map(|one| one.address).collect();
            changes.extend(self.guard_anew());
        }
        self.apply(&changes)
    }

    /// What takes a server's peer away: first nothing leads to its table, then it goes.
    fn remove(&mut self, peer: &Peer) -> Vec<Change> {
        let (Some(server), Some(interface)) = (&self.plan.server, self.interface) else {
            // A border router's went with its session.
            return Vec::new();
        };
        let priority = server.priority;
        let mut changes = Vec::new();
        if let Some(own) = peer.own.map(IpAddr::from) {
            let address = OwnAddress {
                address: own,
                interface,
            };
            changes.push(Change::RemoveAddress(address));
            changes.push(Change::RemoveRule(SourceRule {
                priority,
                source: own,
                table: peer.table,
            }));
        }
        changes.extend(self.numbers.clear(peer.table));
        changes.push(Change::OpenTable(peer.table));
        self.forget(peer.table);
        changes
    }

    /// What a server's peer has without any route.
    fn furnish(&self, peer: &Peer) -> Vec<Change> {
        let (Some(server), Some(interface)) = (&self.plan.server, self.interface) else {
            return Vec::new();
        };
        let mut changes = vec![Change::CloseTable(peer.table)];
        if let Some(own) = peer.own.map(IpAddr::from) {
            changes.push(Change::SetRule(SourceRule {
                priority: server.priority,
                source: own,
                table: peer.table,
            }));
            changes.push(Change::SetAddress(OwnAddress {
                address: own,
                interface,
            }));
        }
        changes
    }

    /// As [`guard`](Self::guard); where it is known what all peers are behind, what was behind
    /// others is open again.
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
