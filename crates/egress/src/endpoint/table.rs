//! The contents of an egress peer's table at a server.

use std::{collections::BTreeMap, net::Ipv6Addr};

use ipnet::Ipv6Net;

use crate::forwarding::Via;

/// Routes, and how many of them each segment has.
#[derive(Debug, Default)]
pub(super) struct PeerTable {
    routes: BTreeMap<Ipv6Net, Via>,
    segments: BTreeMap<Ipv6Addr, usize>,
}

impl PeerTable {
    pub(super) fn len(&self) -> usize {
        self.routes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    pub(super) fn route(&self, prefix: &Ipv6Net) -> Option<Via> {
        self.routes.get(prefix).copied()
    }

    /// The segments in use, with the number of their routes.
    pub(super) fn segments(&self) -> &BTreeMap<Ipv6Addr, usize> {
        &self.segments
    }

    /// Sets or removes a route, and returns the one before.
    pub(super) fn set(&mut self, prefix: Ipv6Net, via: Option<Via>) -> Option<Via> {
        let before = match via {
            Some(via) => self.routes.insert(prefix, via),
            None => self.routes.remove(&prefix),
        };
        if before == via {
            return before;
        }
        if let Some(Via::Segment(sid)) = via {
            *self.segments.entry(sid).or_default() += 1;
        }
        if let Some(Via::Segment(sid)) = before
            && let Some(count) = self.segments.get_mut(&sid)
        {
            *count -= 1;
            if *count == 0 {
                self.segments.remove(&sid);
            }
        }
        debug_assert_eq!(self.segments.values().sum::<usize>(), self.routes.len());
        before
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
