//! What egress peer engineering keeps in the kernel, and the way from one such state to another.
//!
//! Nothing here talks to the kernel: [`State::difference`] gives changes, and
//! [`State::carry_out`] says what each of them does to a state.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use ipnet::IpNet;

use crate::{
    nexthop::Nexthop,
    rule::{DropRule, SourceRule},
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
    /// Rules that lead to tables.
    pub rules: BTreeSet<SourceRule>,
    /// Rules that drop.
    pub drops: BTreeSet<DropRule>,
    /// Addresses.
    pub addresses: BTreeSet<OwnAddress>,
}

/// Our part of a routing table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// What has no IPv6 route here is unreachable, instead of being looked up in other tables: for an
    /// egress peer's table, so that nothing that the peer has not announced leaks to the best path.
    pub closed: bool,
    /// To where, by which nexthop object.
    pub routes: BTreeMap<IpNet, u32>,
}

/// An address of this host's that has a rule: an EPE address [egress §4.1.3]. No route to a prefix
/// comes with it, and it is deprecated: used where it is bound to or announced, never chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnAddress {
    /// The address.
    pub address: IpAddr,
    /// The number of the interface that it is of.
    pub interface: u32,
}

/// One change of a [`State`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Makes a nexthop object, or leads all routes of one that is there elsewhere.
    SetNexthop(u32, Nexthop),
    /// Removes a nexthop object and all its routes.
    RemoveNexthop(u32),
    /// Makes what a table has no route for unreachable.
    CloseTable(u32),
    /// Takes that back.
    OpenTable(u32),
    /// Makes a route, or leads one that is there elsewhere.
    SetRoute(RouteKey, u32),
    /// Removes a route.
    RemoveRoute(RouteKey),
    /// Serves a segment, or gives one another behaviour.
    SetSid(Sid),
    /// Serves a segment no longer.
    RemoveSid(Ipv6Addr),
    /// Makes a rule.
    SetRule(SourceRule),
    /// Removes a rule.
    RemoveRule(SourceRule),
    /// Makes a rule that drops.
    SetDrop(DropRule),
    /// Removes one.
    RemoveDrop(DropRule),
    /// Adds an address.
    SetAddress(OwnAddress),
    /// Removes an address.
    RemoveAddress(OwnAddress),
}

/// Which route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteKey {
    /// The table, from 1.
    pub table: u32,
    /// Where to; bits beyond the prefix length do not count.
    pub destination: IpNet,
}

/// What a change does to a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It adds something.
    Adds,
    /// It changes something.
    Replaces,
    /// It removes something.
    Removes,
    /// It changes nothing.
    Nothing,
    /// There is no such nexthop object.
    NoNexthop,
}

impl State {
    /// The changes that make `wanted` of this, in an order in which no packet leaks: what drops is
    /// there first and gone last; what is not wanted goes, a table is closed before it is filled, filled before a rule leads to it,
    /// and a rule is there before its address.
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

    /// Routes that are not wanted; those that go with their nexthop object are left to it.
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
            for (&destination, &nexthop) in &wanted_table.routes {
                if present.routes.get(&destination) != Some(&nexthop) {
                    all.push(Change::SetRoute(RouteKey { table, destination }, nexthop));
                }
            }
        }
    }

    /// Carries out a change, and says what it does to this state.
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
            Change::SetDrop(rule) => added(self.drops.insert(rule)),
            Change::RemoveDrop(rule) => removed(self.drops.remove(&rule)),
            Change::SetAddress(address) => added(self.addresses.insert(address)),
            Change::RemoveAddress(address) => removed(self.addresses.remove(&address)),
        }
    }

    /// The nexthop object by which `address` is reached through a table: the longest prefix's.
    /// `None`: it is not.
    pub fn route(&self, table: u32, address: IpAddr) -> Option<u32> {
        let routes = &self.tables.get(&table)?.routes;
        let host = IpNet::from(address);
        // Tables have up to millions of routes, addresses 128 prefixes.
        let mut prefixes = (0..=host.prefix_len()).rev();
        prefixes.find_map(|bits| {
            let prefix = IpNet::new(address, bits).ok()?.trunc();
            routes.get(&prefix).copied()
        })
    }

    /// How many routes there are.
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

impl fmt::Display for OwnAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "address {} of interface {}",
            self.address, self.interface
        )
    }
}

impl fmt::Display for RouteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "route {} table {}", self.destination, self.table)
    }
}

impl fmt::Display for Change {
    /// As `ip` would have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetNexthop(id, nexthop) => write!(f, "set nexthop {id} {nexthop}"),
            Self::RemoveNexthop(id) => write!(f, "remove nexthop {id}"),
            Self::CloseTable(table) => write!(f, "add route unreachable default table {table}"),
            Self::OpenTable(table) => write!(f, "remove route unreachable default table {table}"),
            Self::SetRoute(key, nexthop) => write!(f, "set {key} nhid {nexthop}"),
            Self::RemoveRoute(key) => write!(f, "remove {key}"),
            Self::SetSid(sid) => write!(f, "set {sid}"),
            Self::RemoveSid(address) => write!(f, "remove segment {address}"),
            Self::SetRule(rule) => write!(f, "add {rule}"),
            Self::RemoveRule(rule) => write!(f, "remove {rule}"),
            Self::SetDrop(rule) => write!(f, "add {rule}"),
            Self::RemoveDrop(rule) => write!(f, "remove {rule}"),
            Self::SetAddress(address) => write!(f, "add {address}"),
            Self::RemoveAddress(address) => write!(f, "remove {address}"),
        }
    }
}

#[cfg(test)]
mod tests;
