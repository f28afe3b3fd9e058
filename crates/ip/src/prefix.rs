//! The prefixes of one tenant: the peer of an address by longest match, and whether a sender may use a source
//! address.
//!
//! Every tenant has its own table, so address plans of different tenants may overlap.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::{Prefix, PrefixMap};

/// Prefixes of one tenant with their owners: a peer or the local network.
///
/// IPv4 and IPv6 are separate: `0.0.0.0/0` does not cover IPv6.
#[derive(Clone, Debug)]
pub struct PrefixTable<V> {
    // An empty trie already takes memory, and many tenants have one IP version only.
    v4: Option<Box<PrefixMap<Ipv4Net, V>>>,
    v6: Option<Box<PrefixMap<Ipv6Net, V>>>,
}

/// A prefix overlaps an existing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("prefix {prefix} overlaps {present} of the same tenant")]
pub struct Overlap {
    pub prefix: IpNet,
    /// The existing one.
    pub present: IpNet,
}

impl<V> Default for PrefixTable<V> {
    fn default() -> Self {
        Self { v4: None, v6: None }
    }
}

impl<V> PrefixTable<V> {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a prefix; bits beyond its length are ignored. It may overlap longer or shorter prefixes, because
    /// the longest match decides. Where overlaps are not desired, check [`Self::overlapping`] first.
    ///
    /// # Errors
    /// The same prefix exists already; the table is unchanged.
    pub fn insert(&mut self, prefix: IpNet, value: V) -> Result<(), Overlap> {
        let prefix = prefix.trunc();
        if self.exactly(&prefix).is_some() {
            let present = prefix;
            return Err(Overlap { prefix, present });
        }
        match prefix {
            IpNet::V4(prefix) => self.v4.get_or_insert_default().insert(prefix, value),
            IpNet::V6(prefix) => self.v6.get_or_insert_default().insert(prefix, value),
        };
        Ok(())
    }

    /// Removes exactly this prefix and returns its owner; `None` if it does not exist.
    pub fn remove(&mut self, prefix: IpNet) -> Option<V> {
        match prefix.trunc() {
            IpNet::V4(prefix) => self.v4.as_mut()?.remove(&prefix),
            IpNet::V6(prefix) => self.v6.as_mut()?.remove(&prefix),
        }
    }

    /// The owner of exactly this prefix; `None` if it does not exist.
    pub fn exactly(&self, prefix: &IpNet) -> Option<&V> {
        match prefix.trunc() {
            IpNet::V4(prefix) => self.v4.as_ref()?.get(&prefix),
            IpNet::V6(prefix) => self.v6.as_ref()?.get(&prefix),
        }
    }

    /// A prefix that overlaps `prefix`: the shortest that contains it, otherwise the first inside; `None` if
    /// there is none.
    pub fn overlapping(&self, prefix: IpNet) -> Option<IpNet> {
        match prefix.trunc() {
            IpNet::V4(prefix) => overlapping(self.v4.as_ref()?, &prefix).map(IpNet::V4),
            IpNet::V6(prefix) => overlapping(self.v6.as_ref()?, &prefix).map(IpNet::V6),
        }
    }

    /// The owner of the longest prefix that contains `address`; `None` if none does.
    ///
    /// It answers both questions of a tunnel: the peer of a destination, and whether a source may send from a
    /// peer, which requires that packets to it would be sent to that peer.
    #[inline]
    pub fn longest_match(&self, address: IpAddr) -> Option<&V> {
        match address {
            IpAddr::V4(address) => {
                let (_, value) = self.v4.as_ref()?.get_lpm(&Ipv4Net::from(address))?;
                Some(value)
            }
            IpAddr::V6(address) => {
                let (_, value) = self.v6.as_ref()?.get_lpm(&Ipv6Net::from(address))?;
                Some(value)
            }
        }
    }

    /// All prefixes with their owners: IPv4 first, each in the order of addresses.
    pub fn iter(&self) -> impl Iterator<Item = (IpNet, &V)> {
        let v4 = self.v4.iter().flat_map(|map| map.iter());
        let v6 = self.v6.iter().flat_map(|map| map.iter());
        v4.map(|(prefix, value)| (prefix.into(), value))
            .chain(v6.map(|(prefix, value)| (prefix.into(), value)))
    }

    /// Number of prefixes.
    pub fn len(&self) -> usize {
        self.v4.as_ref().map_or(0, |map| map.len()) + self.v6.as_ref().map_or(0, |map| map.len())
    }

    /// Whether the table is empty, so that nothing can be sent or received.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<V: PartialEq> PrefixTable<V> {
    /// Whether a packet from `source` may have been sent by `sender`: the longest match has that owner.
    #[inline]
    pub fn admits_source(&self, source: IpAddr, sender: &V) -> bool {
        self.longest_match(source) == Some(sender)
    }
}

fn overlapping<P: Prefix, V>(map: &PrefixMap<P, V>, prefix: &P) -> Option<P> {
    let around = map.get_spm(prefix).map(|(prefix, _)| prefix);
    around.or_else(|| map.children(prefix).next().map(|(prefix, _)| prefix))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn table(prefixes: &[&str]) -> PrefixTable<usize> {
        let mut table = PrefixTable::new();
        for (index, prefix) in prefixes.iter().enumerate() {
            table.insert(net(prefix), index).unwrap();
        }
        table
    }

    #[test]
    fn the_longest_prefix_wins_and_ip_versions_are_separate() {
        let table = table(&[
            "0.0.0.0/0",
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.1.2.3/32",
            "2001:db8::/32",
        ]);
        for (destination, expected) in [
            ("192.0.2.1", Some(0)),
            ("10.200.0.1", Some(1)),
            ("10.1.2.4", Some(2)),
            ("10.1.2.3", Some(3)),
            ("2001:db8:ffff::1", Some(4)),
            ("2001:db9::1", None),
        ] {
            assert_eq!(
                table.longest_match(address(destination)).copied(),
                expected,
                "{destination}"
            );
        }
    }

    #[test]
    fn a_prefix_is_there_once_whatever_its_host_bits() {
        let mut table = table(&["10.1.2.3/16"]);
        let error = table.insert(net("10.1.9.9/16"), 7).unwrap_err();
        assert_eq!(
            error.to_string(),
            "prefix 10.1.0.0/16 overlaps 10.1.0.0/16 of the same tenant"
        );
        assert_eq!(table.exactly(&net("10.1.4.4/16")), Some(&0));
        assert_eq!(table.remove(net("10.1.5.5/16")), Some(0));
        assert_eq!(table.remove(net("10.1.0.0/16")), None);
        assert!(table.is_empty());
    }

    #[test]
    fn overlaps_are_found_in_both_directions() {
        let table = table(&["10.1.0.0/16", "2001:db8::/32"]);
        for (prefix, expected) in [
            ("10.0.0.0/8", Some("10.1.0.0/16")),
            ("0.0.0.0/0", Some("10.1.0.0/16")),
            ("10.1.2.0/24", Some("10.1.0.0/16")),
            ("10.1.0.0/16", Some("10.1.0.0/16")),
            ("10.2.0.0/16", None),
            ("::/0", Some("2001:db8::/32")),
            ("2001:db8::1/128", Some("2001:db8::/32")),
            ("2001:db9::/32", None),
        ] {
            assert_eq!(
                table.overlapping(net(prefix)),
                expected.map(net),
                "{prefix}"
            );
        }
    }

    #[test]
    fn a_source_is_admitted_only_from_where_it_would_be_answered() {
        let table = table(&["0.0.0.0/0", "10.1.0.0/16"]);
        assert!(table.admits_source(address("10.1.2.3"), &1));
        assert!(!table.admits_source(address("10.1.2.3"), &0));
        assert!(!table.admits_source(address("10.2.2.3"), &1));
        assert!(!table.admits_source(address("::1"), &0));
        assert!(!PrefixTable::new().admits_source(address("10.1.2.3"), &0));
    }

    #[test]
    fn a_table_may_be_moved_to_the_data_thread() {
        fn assert_send<T: Send>(_: T) {}
        assert_send(table(&["10.0.0.0/8"]));
    }

    fn any_net() -> impl Strategy<Value = IpNet> {
        // Few leading bits, so that prefixes meet.
        let v4 = (0u32..64, 0u8..=32).prop_map(|(bits, length)| {
            IpNet::new(IpAddr::from((bits << 26 | bits).to_be_bytes()), length).unwrap()
        });
        let v6 = (0u128..64, 0u8..=128).prop_map(|(bits, length)| {
            IpNet::new(IpAddr::from((bits << 122 | bits).to_be_bytes()), length).unwrap()
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn matches_are_those_of_a_plain_search(
            nets in prop::collection::vec(any_net(), 0..40),
            removed in prop::collection::vec(any_net(), 0..10),
            asked in prop::collection::vec(any_net(), 1..40),
        ) {
            let mut table = PrefixTable::new();
            let mut plain: Vec<IpNet> = Vec::new();
            for prefix in nets {
                let fresh = !plain.contains(&prefix.trunc());
                prop_assert_eq!(table.insert(prefix, prefix.trunc()).is_ok(), fresh);
                if fresh {
                    plain.push(prefix.trunc());
                }
            }
            for prefix in removed {
                let there = plain.iter().position(|p| *p == prefix.trunc()).map(|at| plain.remove(at));
                prop_assert_eq!(table.remove(prefix), there);
            }
            prop_assert_eq!(table.len(), plain.len());
            prop_assert_eq!(table.iter().count(), plain.len());
            for prefix in asked {
                let address = prefix.addr();
                let longest = plain.iter().filter(|p| p.contains(&address)).max_by_key(|p| p.prefix_len());
                prop_assert_eq!(table.longest_match(address), longest);
                let common = |p: &&IpNet| p.contains(&prefix.trunc()) || prefix.trunc().contains(*p);
                prop_assert_eq!(table.overlapping(prefix).is_some(), plain.iter().any(|p| common(&p)));
            }
        }
    }
}
