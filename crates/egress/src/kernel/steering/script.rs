//! The tables of nftables that mark new connections, one for each family, as text for nft.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{Display, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use keiro_linux::nft;

use crate::steering::{
    Assignment, BITS_V4, BITS_V6, Egress,
    slots::{Group, SLOTS, Slots},
};

#[derive(Debug)]
pub(super) struct Script {
    /// Of the hash that assigns connections to groups.
    pub(super) seed: u32,
    pub(super) first_mark: u32,
    pub(super) ports: BTreeSet<u16>,
    /// EPE addresses, whose connections leave by a peer already.
    pub(super) own: BTreeSet<IpAddr>,
    pub(super) changes: Changes,
}

/// Elements to be removed and added, by family and map.
#[derive(Debug, Default)]
pub(super) struct Changes {
    gone: BTreeMap<(&'static str, &'static str), Vec<String>>,
    new: BTreeMap<(&'static str, &'static str), Vec<String>>,
}

/// An element of a map.
#[derive(Debug, PartialEq, Eq)]
struct Element {
    family: &'static str,
    map: &'static str,
    key: String,
    value: String,
}

impl Script {
    /// Removes the tables.
    pub(super) fn removal() -> String {
        nft::removal(TABLE)
    }

    /// Makes the tables anew, in one transaction.
    pub(super) fn table(&self, slots: &Slots, assigned: &BTreeMap<IpNet, Assignment>) -> String {
        let mut maps: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
        for assignment in assigned.values() {
            for element in self.elements(assignment) {
                let of_map = maps.entry((element.family, element.map)).or_default();
                of_map.push(element.pair());
            }
        }
        let tables = nft::IP_FAMILIES.map(|family| self.table_of(family, slots, &maps));
        Self::removal() + &tables.concat()
    }

    fn table_of(
        &self,
        family: &str,
        slots: &Slots,
        maps: &BTreeMap<(&str, &str), Vec<String>>,
    ) -> String {
        let roles = slots.groups().map(|group| {
            let range = slots.range(group);
            format!("{}-{} : {}", range.start, range.end - 1, number(group))
        });
        let elements = |map: &str| list(maps.get(&(family, map)).into_iter().flatten());
        let (kind, mask) = match family {
            IPV4 => {
                let mask = Ipv4Addr::from_bits(u32::MAX << (32 - BITS_V4));
                ("ipv4_addr", mask.to_string())
            }
            _ => {
                let mask = Ipv6Addr::from_bits(u128::MAX << (128 - BITS_V6));
                ("ipv6_addr", mask.to_string())
            }
        };
        let own = self.own.iter().filter(|own| family_of(**own) == family);
        let (own, roles) = (list(own), list(roles));
        let (ports, seed) = (list(&self.ports), self.seed);
        let (explored, steered) = (elements(BY_GROUP), elements(BY_PREFIX));
        format!(
            "table {family} {TABLE} {{
  set own {{ type {kind}; {own} }}
  set ports {{ type inet_service; {ports} }}
  map groups {{ type mark : mark; flags interval; {roles} }}
  map {BY_GROUP} {{ type {kind} . mark : mark; {explored} }}
  map {BY_PREFIX} {{ type {kind} : mark; {steered} }}
  chain connection {{
    meta mark set jhash {family} saddr . tcp sport mod {SLOTS} seed {seed:#x}
    meta mark set meta mark map @groups
    meta mark set {family} saddr & {mask} . meta mark map @{BY_GROUP} accept
    meta mark set 0
    meta mark set {family} saddr & {mask} map @{BY_PREFIX}
  }}
  chain input {{
    type filter hook input priority mangle; policy accept;
    tcp flags & (fin | syn | rst | ack) == syn meta mark 0 tcp dport @ports {family} daddr != @own jump connection
  }}
}}
"
        )
    }

    /// Notes what changes with the assignment of a prefix.
    pub(super) fn change(&mut self, before: Option<&Assignment>, after: Option<&Assignment>) {
        let of = |one: Option<&Assignment>| one.map(|one| self.elements(one)).unwrap_or_default();
        let (before, after) = (of(before), of(after));
        for element in before.iter().filter(|one| !after.contains(one)) {
            let gone = self.changes.gone.entry((element.family, element.map));
            gone.or_default().push(element.pair());
        }
        for element in after.iter().filter(|one| !before.contains(one)) {
            let new = self.changes.new.entry((element.family, element.map));
            new.or_default().push(element.pair());
        }
    }

    /// What was noted since the last call; `None`: nothing.
    pub(super) fn take_changes(&mut self) -> Option<String> {
        let Changes { gone, new } = std::mem::take(&mut self.changes);
        let mut text = String::new();
        for (verb, maps) in [("delete", gone), ("add", new)] {
            for ((family, map), elements) in maps {
                let elements = elements.join(", ");
                // Writing to a string cannot fail.
                let _ = writeln!(
                    text,
                    "{verb} element {family} {TABLE} {map} {{ {elements} }}"
                );
            }
        }
        (!text.is_empty()).then_some(text)
    }

    pub(super) fn forget_changes(&mut self) {
        self.changes = Changes::default();
    }

    /// The elements of a prefix.
    fn elements(&self, assignment: &Assignment) -> Vec<Element> {
        let prefix = assignment.prefix.network();
        let family = family_of(prefix);
        let groups = assignment.groups.iter().map(|(group, egress)| Element {
            family,
            map: BY_GROUP,
            key: format!("{prefix} . {:#x}", number(*group)),
            value: self.mark(*egress),
        });
        let own = (assignment.egress != Egress::BestPath).then(|| Element {
            family,
            map: BY_PREFIX,
            key: prefix.to_string(),
            value: self.mark(assignment.egress),
        });
        groups.chain(own).collect()
    }

    fn mark(&self, egress: Egress) -> String {
        match egress {
            Egress::BestPath => "0x0".to_owned(),
            Egress::Peer(peer) => format!("{:#x}", self.first_mark + peer.0 as u32),
        }
    }
}

impl Element {
    fn pair(&self) -> String {
        format!("{} : {}", self.key, self.value)
    }
}

fn family_of(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => IPV4,
        IpAddr::V6(_) => IPV6,
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

/// Families of nftables.
const IPV4: &str = "ip";
const IPV6: &str = "ip6";
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
        let ipv4 = Assignment {
            prefix: "192.0.2.0/24".parse().unwrap(),
            ..assignment(peer, &[])
        };
        script.change(None, Some(&ipv4));
        let text = script.take_changes().unwrap();
        assert_eq!(
            text,
            "add element ip keiro_steering by_prefix { 192.0.2.0 : 0x101 }\n"
        );
        let table = script.table(&slots, &BTreeMap::from([(ipv4.prefix, ipv4)]));
        for part in [
            "map by_prefix { type ipv4_addr : mark; elements = { 192.0.2.0 : 0x101 }; }",
            "map by_prefix { type ipv6_addr : mark;  }",
            "ip saddr & 255.255.255.0 . meta mark map @by_group accept",
            "set own { type ipv4_addr;  }",
        ] {
            assert!(table.contains(part), "{part} in {table}");
        }
    }
}
