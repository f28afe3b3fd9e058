//! Which AS may announce a prefix: validated payloads of route origin authorizations, and what they
//! say of a route (RFC 6811).
//!
//! Where they come from is the caller's: whoever validates certificates and signatures.

use ipnet::IpNet;

/// One validated payload: an AS may announce a prefix, and what is within it up to some length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vrp {
    /// The prefix.
    pub prefix: IpNet,
    /// The longest that may be announced, in bits.
    pub length_max: u8,
    /// The AS; 0: nobody may (RFC 6483 §4).
    pub asn: u32,
}

/// What the payloads say of a route (RFC 6811 §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Validity {
    /// Its origin may announce it.
    Valid,
    /// Others may, or it is longer than it may be.
    Invalid,
    /// Nobody has said anything about it.
    NotFound,
}

/// All payloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vrps {
    /// In order, each once.
    all: Vec<Vrp>,
    /// The prefixes of `all` in order, so that what covers a prefix comes before it.
    prefixes: Vec<Covering>,
}

/// A prefix that has payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Covering {
    prefix: IpNet,
    /// Where its payloads begin.
    first: usize,
    /// The longest one of the others that covers it, by its place; `None`: none does.
    within: Option<usize>,
}

impl Vrps {
    /// Of payloads in any order, some of which may be there several times.
    pub fn new(mut all: Vec<Vrp>) -> Self {
        for vrp in &mut all {
            vrp.prefix = vrp.prefix.trunc();
        }
        all.sort_unstable();
        all.dedup();
        let mut prefixes: Vec<Covering> = Vec::new();
        for (first, vrp) in all.iter().enumerate() {
            let last = prefixes.len().checked_sub(1);
            if last.is_some_and(|last| prefixes[last].prefix == vrp.prefix) {
                continue;
            }
            let mut within = last;
            while let Some(place) = within
                && !prefixes[place].prefix.contains(&vrp.prefix)
            {
                within = prefixes[place].within;
            }
            prefixes.push(Covering {
                prefix: vrp.prefix,
                first,
                within,
            });
        }
        Self { all, prefixes }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// What they say of a route. `origin`: the last AS of its path; `None`: a set, which nobody
    /// is.
    pub fn validity(&self, prefix: IpNet, origin: Option<u32>) -> Validity {
        let prefix = prefix.trunc();
        // What lies in order between a prefix and what covers it is covered by that as well.
        let behind = self.prefixes.partition_point(|one| one.prefix <= prefix);
        let mut place = behind.checked_sub(1);
        let mut validity = Validity::NotFound;
        while let Some(at) = place {
            let covering = &self.prefixes[at];
            place = covering.within;
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

    /// RFC 6811 §2, word for word.
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
    fn a_route_is_valid_where_its_origin_may_announce_that_length() {
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
            "AS 0 is nobody"
        );
        assert_eq!(of("11.0.0.0/8", Some(65001)), Validity::NotFound);
    }

    fn prefix() -> impl Strategy<Value = IpNet> {
        // Few bits, so that prefixes cover each other.
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
        fn looking_up_is_the_definition(
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
