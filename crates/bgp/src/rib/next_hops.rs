//! An index from next hops to the routes that use them, so that a change of reachability visits
//! only the routes concerned.
//!
//! The entry of a route is the number of its next hop and its prefix: 9 octets for IPv4, 21 for
//! IPv6, in sets that are half to two thirds full. Local routes, and VPN routes, which are
//! forwarded to a SID, have no entry. A next hop stays in the index as long as a route uses it.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{Ipv4Net, Ipv6Net};

use super::{NeighbourId, Path, Source};
use crate::address::Destination;

/// A next hop together with the neighbour whose routes use it.
pub type NextHop = (NeighbourId, IpAddr);

#[derive(Debug, Default)]
pub(super) struct NextHops {
    known: BTreeMap<NextHop, Tracked>,
    /// Next-hop number, address and prefix length of each route.
    v4: BTreeSet<[u8; 9]>,
    v6: BTreeSet<[u8; 21]>,
    /// Numbers that are free for reuse.
    free: Vec<u32>,
    /// Next hops that were set unreachable and that no route uses any more.
    unused: BTreeSet<NextHop>,
}

#[derive(Debug)]
struct Tracked {
    number: u32,
    /// The number of routes, at least one.
    routes: usize,
    unreachable: bool,
}

/// The next hop on which a path depends; `None`: the path needs no resolution.
pub(super) fn next_hop_of(destination: &Destination, path: &Path) -> Option<NextHop> {
    match (destination, path.source) {
        (Destination::Vpn6(..) | Destination::Vpn4(..), _) | (_, Source::Local) => None,
        (_, Source::Neighbour(id)) => Some((id, path.attributes.next_hop)),
    }
}

impl NextHops {
    pub(super) fn is_reachable(&self, next_hop: &NextHop) -> bool {
        !self
            .known
            .get(next_hop)
            .is_some_and(|known| known.unreachable)
    }

    pub(super) fn contains(&self, next_hop: &NextHop) -> bool {
        self.known.contains_key(next_hop)
    }

    /// Records that a route uses the next hop; repeated calls have no effect.
    pub(super) fn add(&mut self, next_hop: NextHop, destination: &Destination) {
        let next = self.known.len() as u32;
        let known = match self.known.entry(next_hop) {
            Entry::Occupied(occupied) => occupied.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(Tracked {
                number: self.free.pop().unwrap_or(next),
                routes: 0,
                unreachable: false,
            }),
        };
        let new = match destination {
            Destination::V4(net) => self.v4.insert(key4(known.number, net)),
            Destination::V6(net) => self.v6.insert(key6(known.number, net)),
            Destination::Vpn6(..) | Destination::Vpn4(..) => false,
        };
        known.routes += usize::from(new);
    }

    /// Records that no path to the destination uses the next hop any more.
    pub(super) fn remove(&mut self, next_hop: NextHop, destination: &Destination) {
        let Entry::Occupied(mut occupied) = self.known.entry(next_hop) else {
            return;
        };
        let known = occupied.get_mut();
        let removed = match destination {
            Destination::V4(net) => self.v4.remove(&key4(known.number, net)),
            Destination::V6(net) => self.v6.remove(&key6(known.number, net)),
            Destination::Vpn6(..) | Destination::Vpn4(..) => false,
        };
        known.routes -= usize::from(removed);
        if known.routes == 0 {
            let Tracked {
                number,
                unreachable,
                ..
            } = occupied.remove();
            self.free.push(number);
            if unreachable {
                self.unused.insert(next_hop);
            }
        }
    }

    /// Sets the reachability of a next hop. Returns its number if that changed; a next hop without
    /// routes is not stored.
    pub(super) fn set(&mut self, next_hop: NextHop, unreachable: bool) -> Option<u32> {
        let Some(known) = self.known.get_mut(&next_hop) else {
            if unreachable {
                self.unused.insert(next_hop);
            }
            return None;
        };
        let before = std::mem::replace(&mut known.unreachable, unreachable);
        (before != unreachable).then_some(known.number)
    }

    /// The routes that use the next hop with this number.
    pub(super) fn routes(&self, number: u32) -> impl Iterator<Item = Destination> {
        let (first, last) = (key4_of(number, [0; 5]), key4_of(number, [u8::MAX; 5]));
        let v4 = self.v4.range(first..=last).filter_map(|key| {
            let (address, length) = (key[4..8].first_chunk::<4>()?, key[8]);
            Some(Destination::V4(
                Ipv4Net::new(Ipv4Addr::from(*address), length).ok()?,
            ))
        });
        let (first, last) = (key6_of(number, [0; 17]), key6_of(number, [u8::MAX; 17]));
        let v6 = self.v6.range(first..=last).filter_map(|key| {
            let (address, length) = (key[4..20].first_chunk::<16>()?, key[20]);
            Some(Destination::V6(
                Ipv6Net::new(Ipv6Addr::from(*address), length).ok()?,
            ))
        });
        v4.chain(v6)
    }

    pub(super) fn take_unused(&mut self) -> BTreeSet<NextHop> {
        std::mem::take(&mut self.unused)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    #[cfg(test)]
    pub(super) fn all(&self, next_hop: &NextHop) -> BTreeSet<Destination> {
        let known = self.known.get(next_hop);
        known.map_or_else(BTreeSet::new, |known| self.routes(known.number).collect())
    }
}

fn key4(number: u32, net: &Ipv4Net) -> [u8; 9] {
    let mut prefix = [net.prefix_len(); 5];
    prefix[..4].copy_from_slice(&net.addr().octets());
    key4_of(number, prefix)
}

fn key6(number: u32, net: &Ipv6Net) -> [u8; 21] {
    let mut prefix = [net.prefix_len(); 17];
    prefix[..16].copy_from_slice(&net.addr().octets());
    key6_of(number, prefix)
}

fn key4_of(number: u32, prefix: [u8; 5]) -> [u8; 9] {
    let mut key = [0; 9];
    key[..4].copy_from_slice(&number.to_be_bytes());
    key[4..].copy_from_slice(&prefix);
    key
}

fn key6_of(number: u32, prefix: [u8; 17]) -> [u8; 21] {
    let mut key = [0; 21];
    key[..4].copy_from_slice(&number.to_be_bytes());
    key[4..].copy_from_slice(&prefix);
    key
}
