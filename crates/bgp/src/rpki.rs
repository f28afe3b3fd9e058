//! Route origin validation (RFC 6811) with validated ROA payloads (VRPs).
//!
//! The caller supplies the VRPs; validating certificates and signatures is left to an RPKI
//! validator.

use ipnet::IpNet;

/// A validated ROA payload: an AS may originate a prefix and more specifics up to a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vrp {
    pub prefix: IpNet,
    /// The longest permitted prefix, in bits.
    pub length_max: u8,
    /// The AS; 0: no AS may originate the prefix (RFC 6483 §4).
    pub asn: u32,
}

/// The validation state of a route (RFC 6811 §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Validity {
    /// A VRP permits the origin AS and the prefix length.
    Valid,
    /// VRPs cover the prefix, but none permits the origin AS and the prefix length.
    Invalid,
    /// No VRP covers the prefix.
    NotFound,
}

/// A set of VRPs, indexed by prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vrps {
    /// Sorted, without duplicates.
    all: Vec<Vrp>,
    /// The prefixes of `all` in order; a covering prefix comes before the prefixes that it covers.
    prefixes: Vec<PrefixEntry>,
}

/// A prefix with VRPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PrefixEntry {
    prefix: IpNet,
    /// Index of its first VRP.
    first: usize,
    /// Index of the longest prefix that covers this one; `None`: there is none.
    parent: Option<usize>,
}

impl Vrps {
    /// Accepts VRPs in any order, with duplicates.
    pub fn new(mut all: Vec<Vrp>) -> Self {
        for vrp in &mut all {
            vrp.prefix = vrp.prefix.trunc();
        }
        all.sort_unstable();
        all.dedup();
        let mut prefixes: Vec<PrefixEntry> = Vec::new();
        for (first, vrp) in all.iter().enumerate() {
            let last = prefixes.len().checked_sub(1);
            if last.is_some_and(|last| prefixes[last].prefix == vrp.prefix) {
                continue;
            }
            let mut parent = last;
            while let Some(place) = parent
                && !prefixes[place].prefix.contains(&vrp.prefix)
            {
                parent = prefixes[place].parent;
            }
            prefixes.push(PrefixEntry {
                prefix: vrp.prefix,
                first,
                parent,
            });
        }
        Self { all, prefixes }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The validation state of a route. `origin` is the last AS of its path; `None`: the path ends
    /// with an AS_SET, which matches no VRP.
    pub fn validity(&self, prefix: IpNet, origin: Option<u32>) -> Validity {
        let prefix = prefix.trunc();
        // A prefix that sorts between a covering prefix and `prefix` is itself covered by that
        // prefix, so following `within` from the last one finds all that cover `prefix`.
        let behind = self.prefixes.partition_point(|one| one.prefix <= prefix);
        let mut place = behind.checked_sub(1);
        let mut validity = Validity::NotFound;
        while let Some(at) = place {
            let covering = &self.prefixes[at];
            place = covering.parent;
            if !covering.prefix.contains(&prefix) {
                continue;
            }
            validity = Validity::Invalid;
            let end = self
                .prefixes
                .get(at + 1)
                .map_or(self.all.len(), |n| n.first);
            let permits = |vrp: &Vrp| {
                vrp.asn != 0 && Some(vrp.asn) == origin && prefix.prefix_len() <= vrp.length_max
            };
            if self.all[covering.first..end].iter().any(permits) {
                return Validity::Valid;
            }
        }
        validity
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vrp(prefix: &str, length_max: u8, asn: u32) -> Vrp {
        Vrp {
            prefix: prefix.parse().unwrap(),
            length_max,
            asn,
        }
    }

    /// The definition of RFC 6811 §2, as a reference.
    fn by_definition(all: &[Vrp], prefix: IpNet, origin: Option<u32>) -> Validity {
        let mut covered = all
            .iter()
            .filter(|vrp| vrp.prefix.contains(&prefix))
            .peekable();
        if covered.peek().is_none() {
            return Validity::NotFound;
        }
        let matches = |vrp: &Vrp| {
            prefix.prefix_len() <= vrp.length_max && vrp.asn != 0 && origin == Some(vrp.asn)
        };
        match covered.any(matches) {
            true => Validity::Valid,
            false => Validity::Invalid,
        }
    }

    #[test]
    fn route_is_rpki_valid_for_its_origin_up_to_max_length() {
        let all = Vrps::new(vec![
            vrp("2001:db8::/32", 40, 65001),
            vrp("2001:db8:c::/48", 48, 65002),
            vrp("2001:db8:c::/48", 48, 65003),
            vrp("10.0.0.0/8", 8, 0),
        ]);
        let of = |prefix: &str, origin| all.validity(prefix.parse().unwrap(), origin);
        assert_eq!(of("2001:db8::/32", Some(65001)), Validity::Valid);
        assert_eq!(of("2001:db8:100::/40", Some(65001)), Validity::Valid);
        assert_eq!(
            of("2001:db8:100::/48", Some(65001)),
            Validity::Invalid,
            "too long"
        );
        assert_eq!(
            of("2001:db8::/32", Some(65002)),
            Validity::Invalid,
            "another's"
        );
        assert_eq!(of("2001:db8:c::/48", Some(65002)), Validity::Valid);
        assert_eq!(of("2001:db8:c::/48", Some(65003)), Validity::Valid);
        assert_eq!(of("2001:db8:c::/48", Some(65001)), Validity::Invalid);
        assert_eq!(of("2001:db8:d::/48", Some(65002)), Validity::Invalid);
        assert_eq!(of("2001:db8::/32", None), Validity::Invalid, "of a set");
        assert_eq!(
            of("2001:db0::/28", Some(65001)),
            Validity::NotFound,
            "not covered"
        );
        assert_eq!(of("2001:db9::/32", Some(65001)), Validity::NotFound);
        assert_eq!(
            of("10.0.0.0/8", Some(0)),
            Validity::Invalid,
            "AS 0 permits no origin"
        );
        assert_eq!(of("11.0.0.0/8", Some(65001)), Validity::NotFound);
    }

    fn prefix() -> impl Strategy<Value = IpNet> {
        // Short prefixes, so that they often cover each other.
        let v4 = (0u8..16, 0u8..=4).prop_map(|(bits, length)| {
            IpNet::new([bits << 4, 0, 0, 0].into(), length)
                .unwrap()
                .trunc()
        });
        let v6 = (0u16..64, 0u8..=6).prop_map(|(bits, length)| {
            IpNet::new([bits << 10, 0, 0, 0, 0, 0, 0, 0].into(), length)
                .unwrap()
                .trunc()
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn origin_validation_agrees_with_rfc_6811(
            all in prop::collection::vec((prefix(), 0u8..8, 0u32..3), 0..40),
            asked in prop::collection::vec((prefix(), prop::option::of(0u32..3)), 40),
        ) {
            let all: Vec<Vrp> = all
                .into_iter()
                .map(|(prefix, length_max, asn)| Vrp { prefix, length_max, asn })
                .collect();
            let fast = Vrps::new(all.clone());
            for (prefix, origin) in asked {
                prop_assert_eq!(
                    fast.validity(prefix, origin),
                    by_definition(&all, prefix, origin),
                    "{} {:?}", prefix, origin
                );
            }
        }
    }
}
