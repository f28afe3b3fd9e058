//! What a route says about itself, and the store that keeps every such set once.

use std::{
    cmp::Ordering,
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use crate::{address::RouteTarget, srv6::Service};

/// The path attributes of a route. Sets are shared by all routes that have the same one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attributes {
    /// Where the route comes from (RFC 4271 §5.1.1).
    pub origin: Origin,
    /// The autonomous systems it passed.
    pub as_path: AsPath,
    /// Where packets go.
    pub next_hop: IpAddr,
    /// The same on the link, where the neighbour has said it (RFC 2545 §3).
    pub link_local: Option<Ipv6Addr>,
    /// MULTI_EXIT_DISC.
    pub med: Option<u32>,
    /// LOCAL_PREF; `None`: the default of 100 counts.
    pub local_pref: Option<u32>,
    /// ATOMIC_AGGREGATE.
    pub atomic: bool,
    /// AGGREGATOR: AS and router.
    pub aggregator: Option<(u32, Ipv4Addr)>,
    /// Communities (RFC 1997).
    pub communities: Box<[u32]>,
    /// Extended communities (RFC 4360), as on the wire.
    pub extended: Box<[u64]>,
    /// Large communities (RFC 8092).
    pub large: Box<[[u32; 3]]>,
    /// The router that brought the route into this AS, set by a reflector (RFC 4456).
    pub originator: Option<Ipv4Addr>,
    /// The reflectors it passed.
    pub clusters: Box<[Ipv4Addr]>,
    /// The SRv6 L3 service (RFC 9252).
    pub service: Option<Service>,
    /// Optional transitive attributes that are passed on without being understood.
    pub unknown: Box<[UnknownAttribute]>,
}

/// An attribute that is passed on as it is (RFC 4271 §9).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnknownAttribute {
    /// Its flags.
    pub flags: u8,
    /// Its type.
    pub kind: u8,
    /// Its value.
    pub value: Box<[u8]>,
}

/// ORIGIN; the first is preferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// IGP.
    #[default]
    Igp,
    /// EGP.
    Egp,
    /// Incomplete.
    Incomplete,
}

/// AS_PATH.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AsPath(pub Box<[Segment]>);

/// One segment of an AS_PATH.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Segment {
    /// In order, the last the origin.
    Sequence(Box<[u32]>),
    /// Without order.
    Set(Box<[u32]>),
}

/// LOCAL_PREF of a route that has none.
pub const DEFAULT_LOCAL_PREF: u32 = 100;

impl Attributes {
    /// A route of our own, with nothing said but where packets go.
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
        }
    }

    /// Whom the VPN route is for.
    pub fn route_targets(&self) -> impl Iterator<Item = RouteTarget> + '_ {
        self.extended
            .iter()
            .filter_map(|&community| RouteTarget::of_community(community))
    }
}

impl AsPath {
    /// A path of one sequence; empty for no AS.
    pub fn sequence(asns: &[u32]) -> Self {
        if asns.is_empty() {
            return Self::default();
        }
        Self([Segment::Sequence(asns.into())].into())
    }

    /// The length that counts in the choice: a set is one (RFC 4271 §9.1.2.2).
    pub fn length(&self) -> usize {
        self.0
            .iter()
            .map(|segment| match segment {
                Segment::Sequence(asns) => asns.len(),
                Segment::Set(_) => 1,
            })
            .sum()
    }

    /// Whether an AS is anywhere in it.
    pub fn contains(&self, asn: u32) -> bool {
        self.asns().any(|found| found == asn)
    }

    /// All ASes, from the neighbour to the origin.
    pub fn asns(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.0.iter().flat_map(|segment| match segment {
            Segment::Sequence(asns) | Segment::Set(asns) => asns.iter().copied(),
        })
    }

    /// The neighbouring AS; `None`: the route comes from this AS, or begins with a set.
    pub fn neighbour(&self) -> Option<u32> {
        match self.0.first()? {
            Segment::Sequence(asns) => asns.first().copied(),
            Segment::Set(_) => None,
        }
    }

    /// The AS that announces the prefix; `None`: this one, or a set.
    pub fn origin(&self) -> Option<u32> {
        match self.0.last()? {
            Segment::Sequence(asns) => asns.last().copied(),
            Segment::Set(_) => None,
        }
    }

    /// With `asn` put in front `times` times.
    pub fn prepended(&self, asn: u32, times: usize) -> Self {
        if times == 0 {
            return self.clone();
        }
        let mut first = vec![asn; times];
        let mut rest = &*self.0;
        // RFC 4271 §5.1.2: a segment holds at most 255.
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

/// Every set of attributes once, so that routes hold a pointer.
#[derive(Debug, Default)]
pub struct Interner {
    sets: BTreeSet<Arc<Attributes>>,
    /// How many there were after the last sweep.
    swept: usize,
}

impl Interner {
    /// The shared one that is the same.
    pub fn intern(&mut self, attributes: Attributes) -> Arc<Attributes> {
        if let Some(found) = self.sets.get(&attributes) {
            return Arc::clone(found);
        }
        if self.sets.len() >= 2 * self.swept.max(SWEEP_MIN) {
            // Those that nobody else holds.
            self.sets.retain(|set| Arc::strong_count(set) > 1);
            self.swept = self.sets.len();
        }
        let new = Arc::new(attributes);
        self.sets.insert(Arc::clone(&new));
        new
    }

    /// How many different sets are held, unused ones among them.
    pub fn len(&self) -> usize {
        self.sets.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }
}

/// Fewer unused sets are not worth looking for. Ours.
const SWEEP_MIN: usize = 4096;

/// Compares without looking at what is the same memory.
pub(crate) fn same(a: &Arc<Attributes>, b: &Arc<Attributes>) -> bool {
    Arc::ptr_eq(a, b) || a.cmp(b) == Ordering::Equal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_grows_at_its_front() {
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
    fn the_same_attributes_are_held_once_and_unused_ones_go() {
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
