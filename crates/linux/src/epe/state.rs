//! The kernel state of egress peer engineering, and the changes from one such state to another.
//!
//! Nothing here talks to the kernel: [`State::difference`] returns changes, and [`State::carry_out`] applies
//! one to a state.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use ipnet::IpNet;

use crate::{
    interface,
    nexthop::Nexthop,
    rule::{DropRule, MarkRule, SourceRule},
    seg6::Sid,
};

/// Nexthop objects, routes, segments, rules and addresses of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Nexthop objects by their number.
    pub nexthops: BTreeMap<u32, Nexthop>,
    /// Routing tables by their number, from 1.
    pub tables: BTreeMap<u32, Table>,
    /// Segments by their address.
    pub sids: BTreeMap<Ipv6Addr, Sid>,
    /// Rules that select tables.
    pub rules: BTreeSet<SourceRule>,
    /// Rules that select tables by mark.
    pub marks: BTreeSet<MarkRule>,
    pub drops: BTreeSet<DropRule>,
    pub addresses: BTreeSet<OwnAddress>,
}

/// The owner's part of a routing table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Closed: an IPv6 packet without a route here is unreachable, and not looked up in other tables. An
    /// egress peer's table is closed so that only announced prefixes use the peer.
    pub closed: bool,
    /// The same for IPv4 packets.
    pub closed_ipv4: bool,
    /// Nexthop object of each prefix.
    pub routes: BTreeMap<IpNet, u32>,
}

/// A local address with a rule: an EPE address [egress §4.1.3]. It has no prefix route and is deprecated:
/// used if bound or announced, but never selected as a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnAddress {
    pub address: IpAddr,
    /// Index of its interface.
    pub interface: u32,
}

/// One change of a [`State`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Makes a nexthop object, or replaces one, which redirects all its routes.
    SetNexthop(u32, Nexthop),
    /// Removes a nexthop object and all its routes.
    RemoveNexthop(u32),
    /// Makes IPv6 destinations without a route in a table unreachable.
    CloseTable(u32),
    OpenTable(u32),
    /// The same for IPv4 destinations.
    CloseIpv4(u32),
    OpenIpv4(u32),
    /// Makes a route, or changes its nexthop.
    SetRoute(RouteKey, u32),
    RemoveRoute(RouteKey),
    /// Makes a segment, or changes its behaviour.
    SetSid(Sid),
    /// Removes a segment.
    RemoveSid(Ipv6Addr),
    SetRule(SourceRule),
    RemoveRule(SourceRule),
    SetMark(MarkRule),
    RemoveMark(MarkRule),
    /// Makes a rule that drops packets.
    SetDrop(DropRule),
    RemoveDrop(DropRule),
    SetAddress(OwnAddress),
    RemoveAddress(OwnAddress),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteKey {
    /// The table, from 1.
    pub table: u32,
    /// The destination; bits beyond the prefix length are ignored.
    pub destination: IpNet,
}

/// Effect of a change on a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Adds,
    Replaces,
    Removes,
    Nothing,
    /// The nexthop object does not exist.
    NoNexthop,
}

impl State {
    /// The changes that turn this state into `wanted`, in an order in which no packet leaks. Rules that drop
    /// come first and go last. Unwanted entries are removed first, a table is closed before it is filled and
    /// filled before a rule selects it, and a rule precedes its address. A segment comes after the rules of marks
    /// and goes before them.
    pub fn difference(&self, wanted: &Self) -> Vec<Change> {
        let mut all = Vec::new();
        let new = wanted.drops.difference(&self.drops);
        all.extend(new.copied().map(Change::SetDrop));
        let gone = self.addresses.difference(&wanted.addresses);
        all.extend(gone.copied().map(Change::RemoveAddress));
        let gone = self.rules.difference(&wanted.rules);
        all.extend(gone.copied().map(Change::RemoveRule));
        let gone = self.sids.keys().filter(|a| !wanted.sids.contains_key(a));
        all.extend(gone.copied().map(Change::RemoveSid));
        let gone = self.marks.difference(&wanted.marks);
        all.extend(gone.copied().map(Change::RemoveMark));
        self.routes_removed(wanted, &mut all);
        let nexthops = wanted.nexthops.iter();
        let changed = nexthops.filter(|&(id, nexthop)| self.nexthops.get(id) != Some(nexthop));
        all.extend(changed.map(|(&id, &nexthop)| Change::SetNexthop(id, nexthop)));
        self.routes_set(wanted, &mut all);
        let gone = self
            .nexthops
            .keys()
            .filter(|id| !wanted.nexthops.contains_key(id));
        all.extend(gone.copied().map(Change::RemoveNexthop));
        let opened = self.tables.iter().filter(|&(number, table)| {
            table.closed && !wanted.tables.get(number).is_some_and(|table| table.closed)
        });
        all.extend(opened.map(|(&number, _)| Change::OpenTable(number)));
        let opened = self.tables.iter().filter(|&(number, table)| {
            let wanted = wanted.tables.get(number);
            table.closed_ipv4 && !wanted.is_some_and(|table| table.closed_ipv4)
        });
        all.extend(opened.map(|(&number, _)| Change::OpenIpv4(number)));
        let new = wanted.marks.difference(&self.marks);
        all.extend(new.copied().map(Change::SetMark));
        let changed = wanted
            .sids
            .iter()
            .filter(|&(a, sid)| self.sids.get(a) != Some(sid));
        all.extend(changed.map(|(_, &sid)| Change::SetSid(sid)));
        let new = wanted.rules.difference(&self.rules);
        all.extend(new.copied().map(Change::SetRule));
        let new = wanted.addresses.difference(&self.addresses);
        all.extend(new.copied().map(Change::SetAddress));
        let gone = self.drops.difference(&wanted.drops);
        all.extend(gone.copied().map(Change::RemoveDrop));
        all
    }

    /// Unwanted routes, except those that are removed with their nexthop object.
    fn routes_removed(&self, wanted: &Self, all: &mut Vec<Change>) {
        let none = Table::default();
        for (&table, present) in &self.tables {
            let wanted_table = wanted.tables.get(&table).unwrap_or(&none);
            for (&destination, nexthop) in &present.routes {
                let stays = wanted.nexthops.contains_key(nexthop);
                if stays && !wanted_table.routes.contains_key(&destination) {
                    all.push(Change::RemoveRoute(RouteKey { table, destination }));
                }
            }
        }
    }

    fn routes_set(&self, wanted: &Self, all: &mut Vec<Change>) {
        let none = Table::default();
        for (&table, wanted_table) in &wanted.tables {
            let present = self.tables.get(&table).unwrap_or(&none);
            if wanted_table.closed && !present.closed {
                all.push(Change::CloseTable(table));
            }
            if wanted_table.closed_ipv4 && !present.closed_ipv4 {
                all.push(Change::CloseIpv4(table));
            }
            for (&destination, &nexthop) in &wanted_table.routes {
                if present.routes.get(&destination) != Some(&nexthop) {
                    all.push(Change::SetRoute(RouteKey { table, destination }, nexthop));
                }
            }
        }
    }

    /// Applies a change, and returns its effect.
    pub(crate) fn carry_out(&mut self, change: &Change) -> Effect {
        let set = |before: Option<bool>| match before {
            None => Effect::Adds,
            Some(true) => Effect::Nothing,
            Some(false) => Effect::Replaces,
        };
        let removed = |there: bool| match there {
            true => Effect::Removes,
            false => Effect::Nothing,
        };
        let added = |new: bool| match new {
            true => Effect::Adds,
            false => Effect::Nothing,
        };
        match *change {
            Change::SetNexthop(id, nexthop) => {
                set(self.nexthops.insert(id, nexthop).map(|old| old == nexthop))
            }
            Change::RemoveNexthop(id) => {
                self.remove_routes_of(id);
                removed(self.nexthops.remove(&id).is_some())
            }
            Change::CloseTable(number) => {
                let table = self.tables.entry(number).or_default();
                added(!std::mem::replace(&mut table.closed, true))
            }
            Change::OpenTable(number) => {
                let table = self.tables.get_mut(&number);
                let was = table.is_some_and(|t| std::mem::replace(&mut t.closed, false));
                self.drop_if_empty(number);
                removed(was)
            }
            Change::CloseIpv4(number) => {
                let table = self.tables.entry(number).or_default();
                added(!std::mem::replace(&mut table.closed_ipv4, true))
            }
            Change::OpenIpv4(number) => {
                let table = self.tables.get_mut(&number);
                let was = table.is_some_and(|t| std::mem::replace(&mut t.closed_ipv4, false));
                self.drop_if_empty(number);
                removed(was)
            }
            Change::SetRoute(_, nexthop) if !self.nexthops.contains_key(&nexthop) => {
                Effect::NoNexthop
            }
            Change::SetRoute(key, nexthop) => {
                let routes = &mut self.tables.entry(key.table).or_default().routes;
                let old = routes.insert(key.destination.trunc(), nexthop);
                set(old.map(|old| old == nexthop))
            }
            Change::RemoveRoute(key) => {
                let table = self.tables.get_mut(&key.table);
                let there = table.and_then(|t| t.routes.remove(&key.destination.trunc()));
                self.drop_if_empty(key.table);
                removed(there.is_some())
            }
            Change::SetSid(sid) => set(self.sids.insert(sid.address(), sid).map(|old| old == sid)),
            Change::RemoveSid(address) => removed(self.sids.remove(&address).is_some()),
            Change::SetRule(rule) => added(self.rules.insert(rule)),
            Change::RemoveRule(rule) => removed(self.rules.remove(&rule)),
            Change::SetMark(rule) => added(self.marks.insert(rule)),
            Change::RemoveMark(rule) => removed(self.marks.remove(&rule)),
            Change::SetDrop(rule) => added(self.drops.insert(rule)),
            Change::RemoveDrop(rule) => removed(self.drops.remove(&rule)),
            Change::SetAddress(address) => added(self.addresses.insert(address)),
            Change::RemoveAddress(address) => removed(self.addresses.remove(&address)),
        }
    }

    /// The route by which a table reaches `address`, that of the longest prefix: its destination and its
    /// nexthop object. `None` if unreachable.
    pub fn route(&self, table: u32, address: IpAddr) -> Option<(IpNet, u32)> {
        let routes = &self.tables.get(&table)?.routes;
        let host = IpNet::from(address);
        // Tables have up to millions of routes, addresses only 128 prefixes.
        let mut prefixes = (0..=host.prefix_len()).rev();
        prefixes.find_map(|bits| {
            let prefix = IpNet::new(address, bits).ok()?.trunc();
            Some((prefix, *routes.get(&prefix)?))
        })
    }

    /// The route by which a table reaches all of `prefix`, the longest one that covers it and is no default
    /// route: its prefix and its nexthop object. `None` if there is none.
    pub fn covering_route(&self, table: u32, prefix: IpNet) -> Option<(IpNet, u32)> {
        let routes = &self.tables.get(&table)?.routes;
        let mut asked = prefix.trunc();
        loop {
            // The last one before it covers it, or shares fewer bits with it than any that does.
            let (found, nexthop) = routes.range(..=asked).next_back()?;
            if found.prefix_len() > 0 && found.contains(&asked) {
                return Some((*found, *nexthop));
            }
            let bits = shared_bits(found, &asked).min(asked.prefix_len().checked_sub(1)?);
            asked = IpNet::new(asked.addr(), bits).ok()?.trunc();
            if bits == 0 {
                return None;
            }
        }
    }

    /// Number of routes.
    pub fn routes(&self) -> usize {
        self.tables.values().map(|table| table.routes.len()).sum()
    }

    fn remove_routes_of(&mut self, id: u32) {
        for table in self.tables.values_mut() {
            table.routes.retain(|_, nexthop| *nexthop != id);
        }
        self.tables.retain(|_, table| *table != Table::default());
    }

    fn drop_if_empty(&mut self, number: u32) {
        if self.tables.get(&number) == Some(&Table::default()) {
            self.tables.remove(&number);
        }
    }
}

/// The number of leading bits that two networks have in common; 0 for other families.
fn shared_bits(one: &IpNet, other: &IpNet) -> u8 {
    let bits = match (one.addr(), other.addr()) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => 0,
    };
    bits.min(128) as u8
}

impl fmt::Display for OwnAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "address {} of interface {}",
            self.address,
            interface::shown(self.interface)
        )
    }
}

impl fmt::Display for RouteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "route {} table {}", self.destination, self.table)
    }
}

impl fmt::Display for Change {
    /// In the syntax of `ip`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetNexthop(id, nexthop) => write!(f, "set nexthop {id} {nexthop}"),
            Self::RemoveNexthop(id) => write!(f, "remove nexthop {id}"),
            Self::CloseTable(table) => write!(f, "add route unreachable default table {table}"),
            Self::OpenTable(table) => write!(f, "remove route unreachable default table {table}"),
            Self::CloseIpv4(table) => write!(f, "add route unreachable 0.0.0.0/0 table {table}"),
            Self::OpenIpv4(table) => write!(f, "remove route unreachable 0.0.0.0/0 table {table}"),
            Self::SetRoute(key, nexthop) => write!(f, "set {key} nhid {nexthop}"),
            Self::RemoveRoute(key) => write!(f, "remove {key}"),
            Self::SetSid(sid) => write!(f, "set {sid}"),
            Self::RemoveSid(address) => write!(f, "remove segment {address}"),
            Self::SetRule(rule) => write!(f, "add {rule}"),
            Self::RemoveRule(rule) => write!(f, "remove {rule}"),
            Self::SetMark(rule) => write!(f, "add {rule}"),
            Self::RemoveMark(rule) => write!(f, "remove {rule}"),
            Self::SetDrop(rule) => write!(f, "add {rule}"),
            Self::RemoveDrop(rule) => write!(f, "remove {rule}"),
            Self::SetAddress(address) => write!(f, "add {address}"),
            Self::RemoveAddress(address) => write!(f, "remove {address}"),
        }
    }
}

#[cfg(test)]
mod tests;
