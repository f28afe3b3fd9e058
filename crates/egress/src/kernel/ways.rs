//! Where next hops lead: the kernel follows no route from one to the next, so it is asked for its way to
//! each, again and again, and whoever chooses among routes is told which lead nowhere.
//!
//! A next hop is asked for as long as a route is by it. One that leads nowhere is, after it was told, by no
//! route: it is asked for until it leads somewhere again, or nobody has it any more
//! ([`Ways::forget_unused`]). Routes of Keiro's own are no way ([`super::beneath`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::{IpAddr, Ipv6Addr},
};

use keiro_linux::{
    epe::{RouteKey, Wanted},
    interface,
    nexthop::Nexthop,
    seg6::Encapsulation,
};

use super::{Kernel, beneath::OURS, failed};
use crate::forwarding::{ForwardingError, NextHop, PeerIndex, Via};

/// What is known of next hops, and what of it has yet to be told.
#[derive(Debug)]
pub(super) struct Ways {
    /// As last asked; `None`: nowhere.
    known: BTreeMap<Via, Option<Nexthop>>,
    /// The last word on each: why it leads nowhere; `None`: it leads somewhere again.
    news: BTreeMap<(Option<PeerIndex>, IpAddr), Option<String>>,
    /// How many are known at most.
    most: usize,
    /// Whether routes wait for room, and whether for anything.
    refuses: bool,
    waits: bool,
}

/// Where a route leads that is by a next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// There.
    To(Nexthop),
    /// Nowhere, for this reason.
    Nowhere(String),
    /// That is not known yet, or there is no room to know it.
    Later,
}

/// The answers that one round of changes has had, so that each next hop is asked for once.
pub(super) type Answers = BTreeMap<Via, Answer>;

impl Default for Ways {
    fn default() -> Self {
        Self::up_to(WAYS_MAX)
    }
}

impl Ways {
    fn up_to(most: usize) -> Self {
        Self {
            known: BTreeMap::new(),
            news: BTreeMap::new(),
            most,
            refuses: false,
            waits: false,
        }
    }

    /// Whether there is nothing to ask again for.
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty() && !self.waits
    }

    /// What has become of one.
    pub(super) fn poll(&mut self) -> Option<NextHop> {
        let ((peer, address), lost) = self.news.pop_first()?;
        Some(NextHop {
            peer,
            address,
            lost,
        })
    }

    /// Those that `goes` says are asked for when they are needed again.
    pub(super) fn forget(&mut self, goes: impl Fn(&Via) -> bool) {
        let gone: Vec<Via> = self.known.keys().filter(|via| goes(via)).copied().collect();
        for via in gone {
            if self.known.remove(&via) == Some(None) {
                self.tell(via, None);
            }
        }
    }

    /// No route is by it any more. One that leads nowhere may still be somebody's.
    pub(super) fn release(&mut self, via: &Via) {
        if self.known.get(via).is_some_and(Option::is_some) {
            self.known.remove(via);
        }
    }

    /// Nobody has a next hop any more, so that it need not be known that it leads nowhere. `used`: whether
    /// a route is by it after all.
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

    fn tell(&mut self, via: Via, lost: Option<String>) {
        if let Via::Router { peer, address, .. } = via {
            self.news.insert((peer, address), lost);
        }
    }

    /// Whether it is known, or there is room for it.
    fn takes(&self, via: &Via) -> bool {
        self.known.len() < self.most || self.known.contains_key(via)
    }

    /// There is no room for one; what to tell of it, once.
    fn refuse(&mut self) -> Option<ForwardingError> {
        self.waits = true;
        let told = mem::replace(&mut self.refuses, true);
        let reason = "as many are in use, or lead nowhere; routes by others wait";
        (!told).then(|| failed(format!("more than {} next hops", self.most), &reason))
    }

    /// Remembers where one leads that it [`takes`](Self::takes).
    fn learn(&mut self, via: Via, answer: &Answer) {
        let way = match answer {
            Answer::To(way) => Some(*way),
            Answer::Nowhere(_) => None,
            Answer::Later => {
                self.waits = true;
                return;
            }
        };
        let before = self.known.insert(via, way);
        match answer {
            Answer::Nowhere(reason) => self.tell(via, Some(reason.clone())),
            _ if before == Some(None) => self.tell(via, None),
            _ => {}
        }
    }
}

impl Kernel {
    /// What a route becomes for [`Numbers`](keiro_linux::epe::Numbers); one that leads nowhere is none.
    /// `None`: that is not known yet.
    pub(super) fn wanted(
        &mut self,
        key: RouteKey,
        via: Via,
        answers: &mut Answers,
        errors: &mut Vec<ForwardingError>,
    ) -> Option<Wanted> {
        let answer = answers.entry(via);
        let nexthop = match answer.or_insert_with(|| self.answer(via, errors)) {
            Answer::To(nexthop) => Some(*nexthop),
            // Which is told once, and not for each of its routes.
            Answer::Nowhere(_) if matches!(via, Via::Router { .. }) => None,
            Answer::Nowhere(reason) => {
                errors.push(failed(format!("no {key} {via}"), reason));
                None
            }
            Answer::Later => return None,
        };
        Some(Wanted { key, nexthop })
    }

    /// Where a next hop leads that a route is by.
    fn answer(&mut self, via: Via, errors: &mut Vec<ForwardingError>) -> Answer {
        // Nothing is to be remembered of these.
        if matches!(via, Via::Segment(_)) {
            return self.ask(via, None);
        }
        if let Some(Some(known)) = self.ways.known.get(&via) {
            return Answer::To(*known);
        }
        if !self.ways.takes(&via) {
            errors.extend(self.ways.refuse());
            return Answer::Later;
        }
        let answer = self.ask(via, None);
        self.ways.learn(via, &answer);
        answer
    }

    /// Where a next hop leads now; `before`: where it led.
    fn ask(&mut self, via: Via, before: Option<Nexthop>) -> Answer {
        let (peer, address, link_local) = match via {
            Via::Segment(sid) => {
                let segment = |interface| Nexthop::Segment {
                    sid,
                    mode: Encapsulation::Reduced,
                    interface,
                };
                let to = self.interface.map(segment).map(Answer::To);
                return to.unwrap_or_else(|| nowhere("segments are for servers"));
            }
            Via::Router {
                peer,
                address,
                link_local,
            } => (peer, address, link_local),
        };
        let peer = peer.and_then(|peer| self.plan.peers.get(&peer));
        if let Some(name) = peer.and_then(|peer| peer.interface.as_deref()) {
            let Some(interface) = interface::index(name) else {
                return nowhere(&format!("there is no interface `{name}`"));
            };
            let address = link_local.map_or(address, IpAddr::from);
            return Answer::To(Nexthop::Gateway { address, interface });
        }
        let way = match self.reconciler.way_to(address) {
            Ok(Some(way)) => way,
            Ok(None) => {
                return nowhere("no route leads there; the interior routing has to have one");
            }
            // A question that has failed says nothing of the way.
            Err(error) => {
                return before.map_or_else(|| nowhere(&error.to_string()), Answer::To);
            }
        };
        let way = match OURS.contains(&way.protocol) {
            false => way,
            true => match self.beneath.way_to(address) {
                Some(Some(way)) => way,
                Some(None) => {
                    return nowhere(
                        "only a route of Keiro's own leads there; the interior routing has to have one",
                    );
                }
                // It has just been covered, and goes on until more is known.
                None => return before.map_or(Answer::Later, Answer::To),
            },
        };
        if way.gateway.is_some() && peer.is_some_and(|peer| peer.on_link) {
            return nowhere(
                "it is on none of our links; if that is so, ttl_security = false allows it",
            );
        }
        Answer::To(Nexthop::Gateway {
            address: way.gateway.unwrap_or(address),
            interface: way.interface,
        })
    }

    /// Leads routes by routers elsewhere whose way has changed.
    pub(super) fn follow_ways(&mut self) -> Vec<ForwardingError> {
        let known = self.ways.known.iter();
        let known: Vec<_> = known.map(|(via, way)| (*via, *way)).collect();
        self.beneath.begin_round();
        let mut wanted = Vec::new();
        for (via, before) in known {
            let answer = self.ask(via, before);
            let way = match &answer {
                Answer::To(way) => Some(*way),
                Answer::Nowhere(_) => None,
                // It led nowhere before.
                Answer::Later => continue,
            };
            if way == before {
                continue;
            }
            self.ways.learn(via, &answer);
            let routes = self.routers.of(&via);
            wanted.extend(routes.map(|key| Wanted { key, nexthop: way }));
            if !self.routers.uses(&via) {
                self.ways.release(&via);
            }
        }
        let mut errors = Vec::new();
        wanted.extend(self.waiting(&mut errors));
        self.beneath.end_round();
        if !wanted.is_empty() {
            tracing::info!(routes = wanted.len(), "next hops lead elsewhere");
            errors.extend(self.put(&wanted));
        }
        errors
    }

    /// Routes that have waited until it is known where their next hops lead, and no longer do.
    fn waiting(&mut self, errors: &mut Vec<ForwardingError>) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        if !mem::take(&mut self.ways.waits) {
            return wanted;
        }
        let known = &self.ways.known;
        let waiting = self.routers.vias().filter(|via| !known.contains_key(via));
        let waiting: BTreeSet<Via> = waiting.copied().collect();
        // Said again only where it has become enough meanwhile.
        self.ways.refuses &= waiting.iter().any(|via| !self.ways.takes(via));
        let mut answers = Answers::new();
        for via in waiting {
            let keys: Vec<RouteKey> = self.routers.of(&via).collect();
            let routes = keys.into_iter();
            let routes = routes.filter_map(|key| self.wanted(key, via, &mut answers, errors));
            wanted.extend(routes);
        }
        wanted
    }
}

fn nowhere(reason: &str) -> Answer {
    Answer::Nowhere(reason.to_owned())
}

/// Next hops that are remembered; while all are in use or lead nowhere, no other is taken. Ours.
const WAYS_MAX: usize = 10_000;

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

    /// Whether it was taken, as a route's is.
    fn add(ways: &mut Ways, number: u16, leads: bool) -> bool {
        if !ways.takes(&via(number)) {
            return false;
        }
        let way = Nexthop::Gateway {
            address: IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, number]),
            interface: 2,
        };
        let answer = match leads {
            true => Answer::To(way),
            false => nowhere("nowhere"),
        };
        ways.learn(via(number), &answer);
        true
    }

    fn known(ways: &Ways) -> Vec<Via> {
        ways.known.keys().copied().collect()
    }

    #[test]
    fn at_the_bound_others_wait_until_one_is_not_in_use_any_more() {
        let mut ways = Ways::up_to(3);
        assert!(add(&mut ways, 1, false));
        let lost = ways.poll().unwrap();
        assert_eq!(lost.lost.as_deref(), Some("nowhere"));
        assert!(add(&mut ways, 2, true) && add(&mut ways, 3, true));
        for leads in [true, false] {
            assert!(!add(&mut ways, 4, leads));
        }
        assert_eq!(known(&ways), [via(1), via(2), via(3)]);
        assert!(ways.refuse().is_some() && ways.refuse().is_none(), "once");
        // Those that are known are no new ones.
        assert!(add(&mut ways, 3, true));
        // A route by the third goes; what leads nowhere may be somebody's whose routes are not chosen.
        for number in [1, 3] {
            ways.release(&via(number));
        }
        assert_eq!(known(&ways), [via(1), via(2)]);
        assert!(add(&mut ways, 4, true));
        assert_eq!(known(&ways), [via(1), via(2), via(4)]);
        assert_eq!(ways.poll(), None, "nothing is to be told of that");
        // It leads somewhere, and goes as others do.
        assert!(add(&mut ways, 1, true));
        assert_eq!(ways.poll().unwrap().lost, None);
        ways.release(&via(1));
        assert_eq!(known(&ways), [via(2), via(4)]);
    }

    #[test]
    fn what_leads_nowhere_is_forgotten_when_nobody_has_it_and_no_route_is_by_it() {
        let mut ways = Ways::default();
        let on_link = |number| match via(number) {
            Via::Router { peer, address, .. } => Via::Router {
                peer,
                address,
                link_local: Some("fe80::1".parse().unwrap()),
            },
            segment @ Via::Segment(_) => segment,
        };
        for number in 1..=3 {
            assert!(add(&mut ways, number, false));
        }
        ways.learn(on_link(2), &nowhere("nowhere"));
        let address = |number| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, number]);
        let other = Some(PeerIndex(1));
        ways.forget_unused(other, address(2), |_| false);
        assert_eq!(known(&ways).len(), 4, "another one's next hop");
        ways.forget_unused(None, address(3), |by| *by == via(3));
        ways.forget_unused(None, address(2), |_| false);
        assert_eq!(known(&ways), [via(1), via(3)]);
        assert!(!ways.is_empty());
    }
}
