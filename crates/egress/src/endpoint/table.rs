//! The contents of an egress peer's table at a server.

use std::{collections::BTreeMap, net::Ipv6Addr};

use ipnet::IpNet;

use crate::forwarding::Via;

/// Routes, and how many of them each segment has.
#[derive(Debug, Default)]
pub(super) struct PeerTable {
    routes: BTreeMap<IpNet, Via>,
    segments: BTreeMap<Ipv6Addr, usize>,
    /// The same of IPv6 routes alone.
    ipv6_segments: BTreeMap<Ipv6Addr, usize>,
}

impl PeerTable {
    pub(super) fn len(&self) -> usize {
        self.routes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    pub(super) fn route(&self, prefix: &IpNet) -> Option<Via> {
        self.routes.get(prefix).copied()
    }

    /// The segments in use, with the number of their routes.
    pub(super) fn segments(&self) -> &BTreeMap<Ipv6Addr, usize> {
        &self.segments
    }

    /// The segments that IPv6 packets take.
    pub(super) fn ipv6_segments(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.ipv6_segments.keys().copied()
    }

    /// Sets or removes a route, and returns the one before.
    pub(super) fn set(&mut self, prefix: IpNet, via: Option<Via>) -> Option<Via> {
        let before = match via {
            Some(via) => self.routes.insert(prefix, via),
            None => self.routes.remove(&prefix),
        };
        if before == via {
            return before;
        }
        count(&mut self.segments, before, via);
        if let IpNet::V6(_) = prefix {
            count(&mut self.ipv6_segments, before, via);
        }
        debug_assert_eq!(self.segments.values().sum::<usize>(), self.routes.len());
        before
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Counts a route that has another segment.
fn count(segments: &mut BTreeMap<Ipv6Addr, usize>, before: Option<Via>, after: Option<Via>) {
    if let Some(Via::Segment(sid)) = after {
        *segments.entry(sid).or_default() += 1;
    }
    if let Some(Via::Segment(sid)) = before
        && let Some(count) = segments.get_mut(&sid)
    {
        *count -= 1;
        if *count == 0 {
            segments.remove(&sid);
        }
    }
}
