//! Tracks the resolution of next hops. The kernel does not resolve a next hop through another route
//! when a route is installed, so each one is looked up, repeatedly, and the speaker is informed
//! which are unreachable.
//!
//! A next hop is tracked as long as a route uses it. Once the speaker is informed that a next hop
//! is unreachable, no installed route uses it; it is still tracked until it becomes reachable, or
//! until no route in the RIB has it ([`NextHopTracker::forget_unused`]). Keiro's own routes do not
//! count for resolution ([`super::underlay_routes`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::{IpAddr, Ipv6Addr},
};

use keiro_linux::{
    epe::{RouteKey, RouteUpdate},
    interface,
    nexthop::Nexthop,
    seg6::Encapsulation,
};

use super::{Kernel, failed, underlay_routes::OWN_PROTOCOLS};
use crate::forwarding::{ForwardingError, NextHop, PeerIndex, Via};

/// The state of all next hops, and the changes not reported yet.
#[derive(Debug)]
pub(super) struct NextHopTracker {
    /// The last resolution; `None`: unreachable.
    known: BTreeMap<Via, Option<Nexthop>>,
    /// Unreported changes: why a next hop is unreachable; `None`: reachable again.
    changes: BTreeMap<(Option<PeerIndex>, IpAddr), Option<String>>,
    /// The maximum number of tracked next hops.
    max: usize,
    /// Whether the full tracker was reported, and whether routes wait for a resolution.
    full_reported: bool,
    has_pending: bool,
}

/// The resolution of a next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Resolution {
    Via(Nexthop),
    /// Unreachable, for this reason.
    Unreachable(String),
    /// Not known yet, or the tracker is full.
    Pending,
}

/// Resolutions during one batch of changes, so that each next hop is looked up once.
pub(super) type Resolutions = BTreeMap<Via, Resolution>;

impl Default for NextHopTracker {
    fn default() -> Self {
        Self::up_to(NEXT_HOPS_MAX)
    }
}

impl NextHopTracker {
    fn up_to(max: usize) -> Self {
        Self {
            known: BTreeMap::new(),
            changes: BTreeMap::new(),
            max,
            full_reported: false,
            has_pending: false,
        }
    }

    /// Whether there is nothing to resolve again.
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty() && !self.has_pending
    }

    /// The next change to report.
    pub(super) fn poll(&mut self) -> Option<NextHop> {
        let ((peer, address), lost) = self.changes.pop_first()?;
        Some(NextHop {
            peer,
            address,
            lost,
        })
    }

    /// Drops the next hops for which `goes` is true; they are resolved when needed again.
    pub(super) fn forget(&mut self, goes: impl Fn(&Via) -> bool) {
        let gone: Vec<Via> = self.known.keys().filter(|via| goes(via)).copied().collect();
        for via in gone {
            if self.known.remove(&via) == Some(None) {
                self.report(via, None);
            }
        }
    }

    /// No installed route uses the next hop any more. An unreachable one is kept, since routes in
    /// the RIB may have it.
    pub(super) fn release(&mut self, via: &Via) {
        if self.known.get(via).is_some_and(Option::is_some) {
            self.known.remove(via);
        }
    }

    /// No route in the RIB has the unreachable next hop any more. `used`: whether an installed
    /// route uses it nevertheless.
    pub(super) fn forget_unused(
        &mut self,
        peer: Option<PeerIndex>,
        address: IpAddr,
        used: impl Fn(&Via) -> bool,
    ) {
        let with = |link_local| Via::Router {
            peer,
            address,
            link_local,
        };
        let last = with(Some(Ipv6Addr::from_bits(u128::MAX)));
        let known = self.known.range(with(None)..=last).map(|(via, _)| *via);
        let unused: Vec<Via> = known.filter(|via| !used(via)).collect();
        for via in unused {
            self.known.remove(&via);
        }
    }

    fn report(&mut self, via: Via, lost: Option<String>) {
        if let Via::Router { peer, address, .. } = via {
            self.changes.insert((peer, address), lost);
        }
    }

    /// Whether the next hop is tracked, or can be.
    fn has_room_for(&self, via: &Via) -> bool {
        self.known.len() < self.max || self.known.contains_key(via)
    }

    /// Called when a next hop cannot be tracked; returns an error the first time.
    fn on_full(&mut self) -> Option<ForwardingError> {
        self.has_pending = true;
        let reported = mem::replace(&mut self.full_reported, true);
        let reason = "as many are in use, or lead unreachable; routes by others wait";
        (!reported).then(|| failed(format!("more than {} next hops", self.max), &reason))
    }

    /// Stores the resolution of a next hop for which there [`is room`](Self::has_room_for).
    fn record(&mut self, via: Via, resolution: &Resolution) {
        let way = match resolution {
            Resolution::Via(way) => Some(*way),
            Resolution::Unreachable(_) => None,
            Resolution::Pending => {
                self.has_pending = true;
                return;
            }
        };
        let before = self.known.insert(via, way);
        match resolution {
            Resolution::Unreachable(reason) => self.report(via, Some(reason.clone())),
            _ if before == Some(None) => self.report(via, None),
            _ => {}
        }
    }
}

impl Kernel {
    /// The desired state of a route; a route with an unreachable next hop is removed. `None`: the
    /// resolution is pending.
    pub(super) fn wanted(
        &mut self,
        key: RouteKey,
        via: Via,
        resolutions: &mut Resolutions,
        errors: &mut Vec<ForwardingError>,
    ) -> Option<RouteUpdate> {
        let resolution = resolutions.entry(via);
        let nexthop = match resolution.or_insert_with(|| self.resolve(via, errors)) {
            Resolution::Via(nexthop) => Some(*nexthop),
            // Reported once for the next hop, not for each of its routes.
            Resolution::Unreachable(_) if matches!(via, Via::Router { .. }) => None,
            Resolution::Unreachable(reason) => {
                errors.push(failed(format!("no {key} {via}"), reason));
                None
            }
            Resolution::Pending => return None,
        };
        Some(RouteUpdate { key, nexthop })
    }

    /// Resolves the next hop of a route.
    fn resolve(&mut self, via: Via, errors: &mut Vec<ForwardingError>) -> Resolution {
        // Only routers are tracked.
        if !matches!(via, Via::Router { .. }) {
            return self.resolve_now(via, None);
        }
        if let Some(Some(known)) = self.next_hops.known.get(&via) {
            return Resolution::Via(*known);
        }
        if !self.next_hops.has_room_for(&via) {
            errors.extend(self.next_hops.on_full());
            return Resolution::Pending;
        }
        let resolution = self.resolve_now(via, None);
        self.next_hops.record(via, &resolution);
        resolution
    }

    /// Looks up a next hop now; `before`: the earlier resolution.
    fn resolve_now(&mut self, via: Via, before: Option<Nexthop>) -> Resolution {
        let (peer, address, link_local) = match via {
            Via::Segment(sid) => {
                let segment = |interface| Nexthop::Segment {
                    sid,
                    mode: Encapsulation::Reduced,
                    interface,
                };
                let to = self.interface.map(segment).map(Resolution::Via);
                return to.unwrap_or_else(|| unreachable("segments are for servers"));
            }
            Via::Blackhole { ipv4 } => return Resolution::Via(Nexthop::Blackhole { ipv4 }),
            Via::Router {
                peer,
                address,
                link_local,
            } => (peer, address, link_local),
        };
        let peer = peer.and_then(|peer| self.plan.peers.get(&peer));
        if let Some(name) = peer.and_then(|peer| peer.interface.as_deref()) {
            let Some(interface) = interface::index(name) else {
                return unreachable(&format!("there is no interface `{name}`"));
            };
            let address = link_local.map_or(address, IpAddr::from);
            return Resolution::Via(Nexthop::Gateway { address, interface });
        }
        let way = match self.reconciler.resolve(address) {
            Ok(Some(way)) => way,
            Ok(None) => {
                return unreachable("no route leads there; the interior routing has to have one");
            }
            // A failed lookup is no evidence of unreachability.
            Err(error) => {
                return before.map_or_else(|| unreachable(&error.to_string()), Resolution::Via);
            }
        };
        let way = match OWN_PROTOCOLS.contains(&way.protocol) {
            false => way,
            true => match self.underlay_routes.lookup(address) {
                Some(Some(way)) => way,
                Some(None) => {
                    return unreachable(
                        "only a route of Keiro's own leads there; the interior routing has to have one",
                    );
                }
                // One of Keiro's routes has just covered it: keep the earlier resolution until more
                // is known.
                None => return before.map_or(Resolution::Pending, Resolution::Via),
            },
        };
        if way.gateway.is_some() && peer.is_some_and(|peer| peer.on_link) {
            return unreachable(
                "it is on none of our links; if that is so, ttl_security = false allows it",
            );
        }
        Resolution::Via(Nexthop::Gateway {
            address: way.gateway.unwrap_or(address),
            interface: way.interface,
        })
    }

    /// Resolves all next hops again, and moves the routes of those that changed.
    pub(super) fn re_resolve_next_hops(&mut self) -> Vec<ForwardingError> {
        let known = self.next_hops.known.iter();
        let known: Vec<_> = known.map(|(via, way)| (*via, *way)).collect();
        self.underlay_routes.begin_round();
        let mut wanted = Vec::new();
        for (via, before) in known {
            let resolution = self.resolve_now(via, before);
            let way = match &resolution {
                Resolution::Via(way) => Some(*way),
                Resolution::Unreachable(_) => None,
                // It was unreachable before.
                Resolution::Pending => continue,
            };
            if way == before {
                continue;
            }
            self.next_hops.record(via, &resolution);
            let routes = self.routers.of(&via);
            wanted.extend(routes.map(|key| RouteUpdate { key, nexthop: way }));
            if !self.routers.uses(&via) {
                self.next_hops.release(&via);
            }
        }
        let mut errors = Vec::new();
        wanted.extend(self.retry_pending(&mut errors));
        self.underlay_routes.end_round();
        if !wanted.is_empty() {
            tracing::info!(routes = wanted.len(), "next hops lead elsewhere");
            errors.extend(self.put(&wanted));
        }
        errors
    }

    /// Resolves the next hops of routes that were pending.
    fn retry_pending(&mut self, errors: &mut Vec<ForwardingError>) -> Vec<RouteUpdate> {
        let mut wanted = Vec::new();
        if !mem::take(&mut self.next_hops.has_pending) {
            return wanted;
        }
        let known = &self.next_hops.known;
        let waiting = self.routers.vias().filter(|via| !known.contains_key(via));
        let waiting: BTreeSet<Via> = waiting.copied().collect();
        // Report again only after there was room in the meantime.
        self.next_hops.full_reported &= waiting.iter().any(|via| !self.next_hops.has_room_for(via));
        let mut resolutions = Resolutions::new();
        for via in waiting {
            let keys: Vec<RouteKey> = self.routers.of(&via).collect();
            let routes = keys.into_iter();
            let routes = routes.filter_map(|key| self.wanted(key, via, &mut resolutions, errors));
            wanted.extend(routes);
        }
        wanted
    }
}

fn unreachable(reason: &str) -> Resolution {
    Resolution::Unreachable(reason.to_owned())
}

/// The maximum number of tracked next hops; routes with others wait. Ours.
const NEXT_HOPS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn via(number: u16) -> Via {
        Via::Router {
            peer: None,
            address: [0xfd00, 0, 0, 0, 0, 0, 0, number].into(),
            link_local: None,
        }
    }

    /// Returns whether the next hop was tracked, as for a route.
    fn add(tracker: &mut NextHopTracker, number: u16, leads: bool) -> bool {
        if !tracker.has_room_for(&via(number)) {
            return false;
        }
        let way = Nexthop::Gateway {
            address: IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, number]),
            interface: 2,
        };
        let resolution = match leads {
            true => Resolution::Via(way),
            false => unreachable("unreachable"),
        };
        tracker.record(via(number), &resolution);
        true
    }

    fn known(tracker: &NextHopTracker) -> Vec<Via> {
        tracker.known.keys().copied().collect()
    }

    #[test]
    fn bound_on_next_hops_holds_until_one_is_released() {
        let mut tracker = NextHopTracker::up_to(3);
        assert!(add(&mut tracker, 1, false));
        let lost = tracker.poll().unwrap();
        assert_eq!(lost.lost.as_deref(), Some("unreachable"));
        assert!(add(&mut tracker, 2, true) && add(&mut tracker, 3, true));
        for leads in [true, false] {
            assert!(!add(&mut tracker, 4, leads));
        }
        assert_eq!(known(&tracker), [via(1), via(2), via(3)]);
        assert!(
            tracker.on_full().is_some() && tracker.on_full().is_none(),
            "once"
        );
        // Tracked next hops need no more room.
        assert!(add(&mut tracker, 3, true));
        // No route uses the third any more; the first is unreachable, and routes in the RIB may
        // have it.
        for number in [1, 3] {
            tracker.release(&via(number));
        }
        assert_eq!(known(&tracker), [via(1), via(2)]);
        assert!(add(&mut tracker, 4, true));
        assert_eq!(known(&tracker), [via(1), via(2), via(4)]);
        assert_eq!(tracker.poll(), None, "nothing is to be reported");
        // It is reachable again and dropped like others.
        assert!(add(&mut tracker, 1, true));
        assert_eq!(tracker.poll().unwrap().lost, None);
        tracker.release(&via(1));
        assert_eq!(known(&tracker), [via(2), via(4)]);
    }

    #[test]
    fn unresolved_next_hops_are_dropped_when_unused() {
        let mut tracker = NextHopTracker::default();
        let on_link = |number| match via(number) {
            Via::Router { peer, address, .. } => Via::Router {
                peer,
                address,
                link_local: Some("fe80::1".parse().unwrap()),
            },
            other => other,
        };
        for number in 1..=3 {
            assert!(add(&mut tracker, number, false));
        }
        tracker.record(on_link(2), &unreachable("unreachable"));
        let address = |number| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, number]);
        let other = Some(PeerIndex(1));
        tracker.forget_unused(other, address(2), |_| false);
        assert_eq!(known(&tracker).len(), 4, "another one's next hop");
        tracker.forget_unused(None, address(3), |by| *by == via(3));
        tracker.forget_unused(None, address(2), |_| false);
        assert_eq!(known(&tracker), [via(1), via(3)]);
        assert!(!tracker.is_empty());
    }
}
