//! Routes of egress peers that are about to be lost (RFC 8326): they stay in the tables, and connections
//! leave them.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use crate::forwarding::PeerIndex;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Draining(BTreeMap<PeerIndex, BTreeSet<IpNet>>);

impl Draining {
    pub(crate) fn contains(&self, peer: PeerIndex, route: IpNet) -> bool {
        self.0.get(&peer).is_some_and(|all| all.contains(&route))
    }

    pub(crate) fn set(&mut self, peer: PeerIndex, routes: &[(IpNet, bool)]) {
        let all = self.0.entry(peer).or_default();
        for (route, draining) in routes {
            match draining {
                true => _ = all.insert(*route),
                false => _ = all.remove(route),
            }
        }
        if all.is_empty() {
            self.0.remove(&peer);
        }
    }

    /// The changes after which a peer has no such routes.
    pub(crate) fn end_of(&self, peer: PeerIndex) -> Vec<(IpNet, bool)> {
        let all = self.0.get(&peer).into_iter().flatten();
        all.map(|route| (*route, false)).collect()
    }

    pub(crate) fn len_of(&self, peer: PeerIndex) -> usize {
        self.0.get(&peer).map_or(0, BTreeSet::len)
    }

    /// Forgets what is of other peers.
    pub(crate) fn retain(&mut self, stays: impl Fn(PeerIndex) -> bool) {
        self.0.retain(|peer, _| stays(*peer));
    }
}
