//! The table of nftables that marks new connections, as text for nft.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{Display, Write},
    net::Ipv6Addr,
};

use ipnet::IpNet;

use crate::steering::{
    Assignment, BITS_V6, Egress,
    slots::{Group, SLOTS, Slots},
};

#[derive(Debug)]
pub(super) struct Script {
    /// Of the hash that assigns connections to groups.
    pub(super) seed: u32,
    pub(super) first_mark: u32,
    pub(super) ports: BTreeSet<u16>,
    /// EPE addresses, whose connections leave by a peer already.
    pub(super) own: BTreeSet<Ipv6Addr>,
    pub(super) changes: Changes,
}

/// Elements to be removed and added.
#[derive(Debug, Default)]
pub(super) struct Changes {
    gone: BTreeMap<&'static str, Vec<String>>,
    new: BTreeMap<&'static str, Vec<String>>,
}

impl Script {
    /// Removes the table; added first, so that the removal of one that is not there is no error.
    pub(super) fn removal() -> String {
        format!("table {FAMILY} {TABLE}\ndelete table {FAMILY} {TABLE}\n")
    }

    /// Makes the table anew, in one transaction.
    pub(super) fn table(&self, slots: &Slots, assigned: &BTreeMap<IpNet, Assignment>) -> String {
        let roles = slots.groups().map(|group| {
            let range = slots.range(group);
            format!("{}-{} : {}", range.start, range.end - 1, number(group))
        });
        let mut maps: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for assignment in assigned.values() {
            for (map, key, value) in self.elements(assignment) {
                maps.entry(map)
                    .or_default()
                    .push(format!("{key} : {value}"));
            }
        }
        let elements = |map: &str| list(maps.get(map).into_iter().flatten());
        let mask = Ipv6Addr::from_bits(u128::MAX << (128 - BITS_V6));
        let (own, roles) = (list(&self.own), list(roles));
        let (ports, seed) = (list(&self.ports), self.seed);
        let (explored, steered) = (elements(BY_GROUP), elements(BY_PREFIX));
        format!(
            "table {FAMILY} {TABLE}\ndelete table {FAMILY} {TABLE}\ntable {FAMILY} {TABLE} {{
  set own {{ type ipv6_addr; {own} }}
  set ports {{ type inet_service; {ports} }}
  map groups {{ type mark : mark; flags interval; {roles} }}
  map {BY_GROUP} {{ type ipv6_addr . mark : mark; {explored} }}
  map {BY_PREFIX} {{ type ipv6_addr : mark; {steered} }}
  chain connection {{
    meta mark set jhash ip6 saddr . tcp sport mod {SLOTS} seed {seed:#x}
    meta mark set meta mark map @groups
    meta mark set ip6 saddr & {mask} . meta mark map @{BY_GROUP} accept
    meta mark set 0
    meta mark set ip6 saddr & {mask} map @{BY_PREFIX}
  }}
  chain input {{
    type filter hook input priority mangle; policy accept;
    tcp flags & (fin | syn | rst | ack) == syn meta mark 0 tcp dport @ports ip6 daddr != @own jump connection
  }}
}}
"
        )
    }

    /// Notes what changes with the assignment of a prefix.
    pub(super) fn change(&mut self, before: Option<&Assignment>, after: Option<&Assignment>) {
        let of = |one: Option<&Assignment>| one.map(|one| self.elements(one)).unwrap_or_default();
        let (before, after) = (of(before), of(after));
        for (map, key, value) in before.iter().filter(|one| !after.contains(one)) {
            let gone = self.changes.gone.entry(*map).or_default();
            gone.push(format!("{key} : {value}"));
        }
        for (map, key, value) in after.iter().filter(|one| !before.contains(one)) {
            let new = self.changes.new.entry(*map).or_default();
            new.push(format!("{key} : {value}"));
        }
    }

    /// What was noted since the last call; `None`: nothing.
    pub(super) fn take_changes(&mut self) -> Option<String> {
        let Changes { gone, new } = std::mem::take(&mut self.changes);
        let mut text = String::new();
        for (verb, maps) in [("delete", gone), ("add", new)] {
            for (map, elements) in maps {
                let elements = elements.join(", ");
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "{verb} element {FAMILY} {TABLE} {map} {{ {elements} }}"
                );
            }
        }
        (!text.is_empty()).then_some(text)
    }

    pub(super) fn forget_changes(&mut self) {
        self.changes = Changes::default();
    }

    /// Map, key and value of the elements of a prefix.
    fn elements(&self, assignment: &Assignment) -> Vec<(&'static str, String, String)> {
        let IpNet::V6(prefix) = assignment.prefix else {
            // Segments carry only IPv6.
            return Vec::new();
        };
        let prefix = prefix.network();
        let groups = assignment.groups.iter().map(|(group, egress)| {
            let key = format!("{prefix} . {:#x}", number(*group));
            (BY_GROUP, key, self.mark(*egress))
        });
        let own = (assignment.egress != Egress::BestPath)
            .then(|| (BY_PREFIX, prefix.to_string(), self.mark(assignment.egress)));
        groups.chain(own).collect()
    }

    fn mark(&self, egress: Egress) -> String {
        match egress {
            Egress::BestPath => "0x0".to_owned(),
            Egress::Peer(peer) => format!("{:#x}", self.first_mark + peer.0 as u32),
        }
    }
}

/// The number of a group, no hash.
fn number(group: Group) -> u32 {
    let first = u32::from(SLOTS);
    match group {
        Group::Confirm => first,
        Group::Control => first + 1,
        Group::Explore(place) => first + 2 + u32::from(place),
    }
}

/// `elements = { … };`, or nothing.
fn list<T: Display>(all: impl IntoIterator<Item = T>) -> String {
    let all: Vec<String> = all.into_iter().map(|one| one.to_string()).collect();
    match all.is_empty() {
        true => String::new(),
        false => format!("elements = {{ {} }};", all.join(", ")),
    }
}

pub(super) const FAMILY: &str = "ip6";
pub(super) const TABLE: &str = "keiro_steering";
const BY_GROUP: &str = "by_group";
const BY_PREFIX: &str = "by_prefix";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forwarding::PeerIndex;

    fn assignment(egress: Egress, groups: &[(Group, Egress)]) -> Assignment {
        Assignment {
            prefix: "2001:db8:1::/48".parse().unwrap(),
            version: 1,
            egress,
            groups: groups.iter().copied().collect(),
            announced: BTreeSet::new(),
        }
    }

    #[test]
    fn only_what_differs_between_assignments_is_changed() {
        let mut script = Script {
            seed: 0x1234,
            first_mark: 0x100,
            ports: BTreeSet::from([443]),
            own: BTreeSet::from(["2001:db8::e".parse().unwrap()]),
            changes: Changes::default(),
        };
        let peer = Egress::Peer(PeerIndex(1));
        let explored = assignment(Egress::BestPath, &[(Group::Explore(1), peer)]);
        script.change(None, Some(&explored));
        let text = script.take_changes().unwrap();
        assert_eq!(
            text,
            "add element ip6 keiro_steering by_group { 2001:db8:1:: . 0x3eb : 0x101 }\n"
        );
        let steered = assignment(peer, &[(Group::Control, Egress::BestPath)]);
        script.change(Some(&explored), Some(&steered));
        let text = script.take_changes().unwrap();
        assert_eq!(
            text,
            "delete element ip6 keiro_steering by_group { 2001:db8:1:: . 0x3eb : 0x101 }\n\
             add element ip6 keiro_steering by_group { 2001:db8:1:: . 0x3e9 : 0x0 }\n\
             add element ip6 keiro_steering by_prefix { 2001:db8:1:: : 0x101 }\n"
        );
        script.change(Some(&steered), Some(&steered));
        assert_eq!(script.take_changes(), None);
        let slots = Slots::new(vec![PeerIndex(0), PeerIndex(1)], 0.01, 0.1);
        let all = BTreeMap::from([(steered.prefix, steered)]);
        let table = script.table(&slots, &all);
        for part in [
            "elements = { 0-9 : 1002, 10-19 : 1003, 500-599 : 1000, 800-819 : 1001 };",
            "map by_prefix { type ipv6_addr : mark; elements = { 2001:db8:1:: : 0x101 }; }",
            "ip6 saddr & ffff:ffff:ffff:: . meta mark map @by_group accept",
            "set ports { type inet_service; elements = { 443 }; }",
        ] {
            assert!(table.contains(part), "{part} in {table}");
        }
    }
}
