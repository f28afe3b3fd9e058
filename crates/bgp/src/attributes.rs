//! Path attributes, and an interner that stores equal sets once.

use std::{
    cmp::Ordering,
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use crate::{address::RouteTarget, srv6::Service};

/// The path attributes of a route. Routes with equal attributes share one set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attributes {
    /// ORIGIN (RFC 4271 §5.1.1).
    pub origin: Origin,
    pub as_path: AsPath,
    pub next_hop: IpAddr,
    /// The link-local next hop, where the neighbour sent one (RFC 2545 §3).
    pub link_local: Option<Ipv6Addr>,
    pub med: Option<u32>,
    /// LOCAL_PREF; `None`: [`DEFAULT_LOCAL_PREF`] applies.
    pub local_pref: Option<u32>,
    pub atomic: bool,
    /// AGGREGATOR: AS number and router.
    pub aggregator: Option<(u32, Ipv4Addr)>,
    /// Communities (RFC 1997).
    pub communities: Box<[u32]>,
    /// Extended communities (RFC 4360), as on the wire.
    pub extended: Box<[u64]>,
    /// Large communities (RFC 8092).
    pub large: Box<[[u32; 3]]>,
    /// ORIGINATOR_ID, set by a route reflector (RFC 4456).
    pub originator: Option<Ipv4Addr>,
    /// CLUSTER_LIST: the route reflectors that the route passed.
    pub clusters: Box<[Ipv4Addr]>,
    /// The SRv6 L3 service (RFC 9252).
    pub service: Option<Service>,
    /// Optional transitive attributes that the speaker does not know and propagates unchanged.
    pub unknown: Box<[UnknownAttribute]>,
    /// Packets to the destination are dropped here, by a rule of the import policy (RFC 7999). Not on the wire.
    pub blackhole: bool,
}

/// An attribute that is propagated unchanged (RFC 4271 §9).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnknownAttribute {
    pub flags: u8,
    pub kind: u8,
    pub value: Box<[u8]>,
}

/// ORIGIN, in order of preference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    #[default]
    Igp,
    Egp,
    Incomplete,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AsPath(pub Box<[Segment]>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Segment {
    /// An ordered AS_SEQUENCE; the origin AS is last.
    Sequence(Box<[u32]>),
    /// An unordered AS_SET.
    Set(Box<[u32]>),
}

/// The community 65535:0 (RFC 8326 §5).
pub(crate) const GRACEFUL_SHUTDOWN: u32 = 0xffff_0000;
/// RFC 1997.
pub(crate) const NO_EXPORT: u32 = 0xffff_ff01;
/// The LOCAL_PREF of a route without that attribute.
pub const DEFAULT_LOCAL_PREF: u32 = 100;

impl Attributes {
    /// The attributes of a locally originated route.
    pub fn local(next_hop: IpAddr) -> Self {
        Self {
            origin: Origin::Igp,
            as_path: AsPath::default(),
            next_hop,
            link_local: None,
            med: None,
            local_pref: None,
            atomic: false,
            aggregator: None,
            communities: Box::default(),
            extended: Box::default(),
            large: Box::default(),
            originator: None,
            clusters: Box::default(),
            service: None,
            unknown: Box::default(),
            blackhole: false,
        }
    }

    /// Whether the router that announces the route is about to lose it (RFC 8326), so that it is the last
    /// choice.
    pub fn is_draining(&self) -> bool {
        self.local_pref == Some(0) && self.communities.contains(&GRACEFUL_SHUTDOWN)
    }

    pub(crate) fn add_community(&mut self, community: u32) {
        if !self.communities.contains(&community) {
            let with = self.communities.iter().copied().chain([community]);
            self.communities = with.collect();
        }
    }

    /// The route targets of a VPN route.
    pub fn route_targets(&self) -> impl Iterator<Item = RouteTarget> + '_ {
        self.extended
            .iter()
            .filter_map(|&community| RouteTarget::of_community(community))
    }
}

impl AsPath {
    /// A path with one AS_SEQUENCE; empty if `asns` is empty.
    pub fn sequence(asns: &[u32]) -> Self {
        if asns.is_empty() {
            return Self::default();
        }
        Self([Segment::Sequence(asns.into())].into())
    }

    /// The length used by the decision process: an AS_SET counts as one (RFC 4271 §9.1.2.2).
    pub fn length(&self) -> usize {
        self.0
            .iter()
            .map(|segment| match segment {
                Segment::Sequence(asns) => asns.len(),
                Segment::Set(_) => 1,
            })
            .sum()
    }

    pub fn contains(&self, asn: u32) -> bool {
        self.asns().any(|found| found == asn)
    }

    /// All AS numbers, from the neighbouring AS to the origin AS.
    pub fn asns(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.0.iter().flat_map(|segment| match segment {
            Segment::Sequence(asns) | Segment::Set(asns) => asns.iter().copied(),
        })
    }

    /// The neighbouring AS; `None`: the route is from this AS, or the path begins with an AS_SET.
    pub fn neighbour(&self) -> Option<u32> {
        match self.0.first()? {
            Segment::Sequence(asns) => asns.first().copied(),
            Segment::Set(_) => None,
        }
    }

    /// The origin AS; `None`: the route is from this AS, or the path ends with an AS_SET.
    pub fn origin(&self) -> Option<u32> {
        match self.0.last()? {
            Segment::Sequence(asns) => asns.last().copied(),
            Segment::Set(_) => None,
        }
    }

    /// Returns the path with `asn` prepended `times` times.
    pub fn prepended(&self, asn: u32, times: usize) -> Self {
        if times == 0 {
            return self.clone();
        }
        let mut first = vec![asn; times];
        let mut rest = &*self.0;
        // RFC 4271 §5.1.2: a segment holds at most 255 AS numbers.
        if let [Segment::Sequence(asns), after @ ..] = rest
            && asns.len() + times <= usize::from(u8::MAX)
        {
            first.extend(asns);
            rest = after;
        }
        let head = Segment::Sequence(first.into());
        Self(std::iter::once(head).chain(rest.iter().cloned()).collect())
    }
}

/// Stores every distinct set of attributes once, so that a route needs only a pointer.
#[derive(Debug, Default)]
pub struct Interner {
    sets: BTreeSet<Arc<Attributes>>,
    /// The number of sets after the last sweep.
    swept: usize,
}

impl Interner {
    /// Returns the shared copy of these attributes.
    pub fn intern(&mut self, attributes: Attributes) -> Arc<Attributes> {
        if let Some(found) = self.sets.get(&attributes) {
            return Arc::clone(found);
        }
        if self.sets.len() >= 2 * self.swept.max(SWEEP_MIN) {
            // Keep only the sets that a route still uses.
            self.sets.retain(|set| Arc::strong_count(set) > 1);
            self.swept = self.sets.len();
        }
        let new = Arc::new(attributes);
        self.sets.insert(Arc::clone(&new));
        new
    }

    /// The number of distinct sets held, including unused ones not swept yet.
    pub fn len(&self) -> usize {
        self.sets.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }
}

/// No sweep below this number of sets, since it would free little. Ours.
const SWEEP_MIN: usize = 4096;

/// Compares two sets; equal pointers need no deep comparison.
pub(crate) fn same(a: &Arc<Attributes>, b: &Arc<Attributes>) -> bool {
    Arc::ptr_eq(a, b) || a.cmp(b) == Ordering::Equal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_path_is_prepended_at_its_front() {
        let path = AsPath::sequence(&[65001, 65002]);
        assert_eq!(path.prepended(65000, 2).asns().count(), 4);
        assert_eq!(path.prepended(65000, 1).neighbour(), Some(65000));
        assert_eq!(path.prepended(65000, 1).origin(), Some(65002));
        assert_eq!(path.prepended(65000, 0), path);
        let long = AsPath::sequence(&[7; 255]).prepended(65000, 1);
        assert_eq!((long.0.len(), long.length()), (2, 256));
        let set = AsPath([Segment::Set([1, 2, 3].into())].into());
        assert_eq!(
            (set.length(), set.neighbour(), set.origin()),
            (1, None, None)
        );
    }

    #[test]
    fn equal_attributes_are_interned_and_unused_ones_freed() {
        let mut interner = Interner::default();
        let set = |med| Attributes {
            med: Some(med),
            ..Attributes::local(IpAddr::from([192, 0, 2, 1]))
        };
        let kept = interner.intern(set(0));
        assert!(Arc::ptr_eq(&kept, &interner.intern(set(0))));
        for med in 1..=50_000 {
            interner.intern(set(med));
        }
        assert!(interner.len() <= 2 * SWEEP_MIN + 1, "{}", interner.len());
        assert!(Arc::ptr_eq(&kept, &interner.intern(set(0))));
    }
}
