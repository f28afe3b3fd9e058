//! Which routes have which next hop, and whether packets can be sent there: where that changes, the
//! routes concerned are found without a look at the others.
//!
//! A route's entry is the number of its next hop and its prefix: 9 octets of IPv4, 21 of IPv6, in
//! sets that are half to two thirds full. Routes of our own and VPN routes, whose packets go to a
//! segment, have none. A next hop is known as long as a route has it.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{Ipv4Net, Ipv6Net};

use super::{NeighbourId, Path, Source};
use crate::address::Destination;

/// A next hop, and whose routes have it.
pub type NextHop = (NeighbourId, IpAddr);

/// All of them.
#[derive(Debug, Default)]
pub(super) struct NextHops {
    known: BTreeMap<NextHop, Known>,
    /// Number, address and length of each route.
    v4: BTreeSet<[u8; 9]>,
    v6: BTreeSet<[u8; 21]>,
    /// Numbers below that of `known` and these together which nobody has.
    free: Vec<u32>,
    /// Were said to be lost, and no route has them.
    unused: BTreeSet<NextHop>,
}

#[derive(Debug)]
struct Known {
    number: u32,
    /// How many there are, at least one.
    routes: usize,
    lost: bool,
}

/// The next hop on which a path depends; `None`: it depends on none.
pub(super) fn of(destination: &Destination, path: &Path) -> Option<NextHop> {
    match (destination, path.source) {
        (Destination::Vpn6(..), _) | (_, Source::Local) => None,
        (_, Source::Neighbour(id)) => Some((id, path.attributes.next_hop)),
    }
}

impl NextHops {
    /// Whether nothing else was said of it.
    pub(super) fn is_reachable(&self, next_hop: &NextHop) -> bool {
        !self.known.get(next_hop).is_some_and(|known| known.lost)
    }

    /// Whether a route has it.
    pub(super) fn contains(&self, next_hop: &NextHop) -> bool {
        self.known.contains_key(next_hop)
    }

    /// A route has it; again, for all that is known here.
    pub(super) fn add(&mut self, next_hop: NextHop, destination: &Destination) {
        let next = self.known.len() as u32;
        let known = match self.known.entry(next_hop) {
            Entry::Occupied(occupied) => occupied.into_mut(),
            Entry::Vacant(vacant) => vacant.insert(Known {
                number: self.free.pop().unwrap_or(next),
                routes: 0,
                lost: false,
            }),
        };
        let new = match destination {
            Destination::V4(net) => self.v4.insert(key4(known.number, net)),
            Destination::V6(net) => self.v6.insert(key6(known.number, net)),
            Destination::Vpn6(..) => false,
        };
        known.routes += usize::from(new);
    }

    /// No path to a destination has it any more.
    pub(super) fn remove(&mut self, next_hop: NextHop, destination: &Destination) {
        let Entry::Occupied(mut occupied) = self.known.entry(next_hop) else {
            return;
        };
        let known = occupied.get_mut();
        let gone = match destination {
            Destination::V4(net) => self.v4.remove(&key4(known.number, net)),
            Destination::V6(net) => self.v6.remove(&key6(known.number, net)),
            Destination::Vpn6(..) => false,
        };
        known.routes -= usize::from(gone);
        if known.routes == 0 {
            let Known { number, lost, .. } = occupied.remove();
            self.free.push(number);
            if lost {
                self.unused.insert(next_hop);
            }
        }
    }

    /// What is said of it from now on. The number of its routes, if that is something else; one
    /// without routes is not remembered.
    pub(super) fn set(&mut self, next_hop: NextHop, lost: bool) -> Option<u32> {
        let Some(known) = self.known.get_mut(&next_hop) else {
            if lost {
                self.unused.insert(next_hop);
            }
            return None;
        };
        let before = std::mem::replace(&mut known.lost, lost);
        (before != lost).then_some(known.number)
    }

    /// Those of a number.
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

    /// Those that were said to be lost and that no route has, since it was asked last.
    pub(super) fn take_unused(&mut self) -> BTreeSet<NextHop> {
        std::mem::take(&mut self.unused)
    }

    /// How many are known.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// All destinations of one.
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
