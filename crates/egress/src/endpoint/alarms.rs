//! What is wrong with the routes that a server receives, and with the way to their segments.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use keiro_bgp::{
    address::{Destination, RouteDistinguisher, RouteTarget},
    speaker::Speaker,
};

use keiro_units::Instant;

use super::Endpoint;
use crate::{
    alarms::{Alarm, Cause},
    census::Group,
    config::EndpointPeer,
    forwarding::Forwarding,
    status::covering,
};

/// Route targets and routers that are listed in a text. Ours.
const LISTED_MAX: usize = 5;

type Groups = BTreeMap<Group, usize>;

impl Endpoint {
    pub(super) fn find_alarms(
        &self,
        now: Instant,
        speaker: &Speaker,
        groups: &Groups,
        forwarding: &mut dyn Forwarding,
    ) -> Vec<Alarm> {
        let mut all = shared_distinguishers(groups);
        for peer in self.peers.values() {
            all.extend(without_segment(peer, groups));
            if self.settled {
                all.extend(self.without_routes(peer, groups));
            }
        }
        all.extend(self.unreachable_segments(forwarding));
        all.extend(self.shared_locators(speaker, groups));
        all.extend(self.kept_routes(forwarding));
        all.extend(self.silent_segments(now));
        all
    }

    fn silent_segments(&self, now: Instant) -> Vec<Alarm> {
        let silent = self.probes.liveness.silent(now);
        silent
            .map(|(sid, since)| {
                let consequence = match self.probes.avoided.contains(&sid) {
                    true => "its routes are not used until it answers",
                    false => "its routes are used all the same, since no segment answers",
                };
                Alarm {
                    cause: Cause::SegmentSilent,
                    subject: sid.to_string(),
                    text: format!(
                        "probes through segment {sid} have had no answer for {} s, so packets by it are probably lost; \
                         {consequence}",
                        since.as_secs()
                    ),
                }
            })
            .collect()
    }

    /// Every reflector has announced everything, and nothing has the target of this peer.
    fn without_routes(&self, peer: &EndpointPeer, groups: &Groups) -> Option<Alarm> {
        if groups.keys().any(|group| group.targets.contains(&peer.rt)) {
            return None;
        }
        let mut text = format!(
            "no route with its route target {} is received, so nothing leaves by it: its session at the border \
             router is down, or the target is another one there",
            peer.rt
        );
        let known: BTreeSet<RouteTarget> = self.peers.values().map(|peer| peer.rt).collect();
        let mut others: BTreeMap<RouteTarget, usize> = BTreeMap::new();
        for (group, count) in groups {
            if group.targets.iter().all(|target| !known.contains(target)) {
                for target in &group.targets {
                    *others.entry(*target).or_default() += count;
                }
            }
        }
        if !others.is_empty() {
            let listed = others.iter().take(LISTED_MAX);
            let listed: Vec<String> = listed
                .map(|(target, count)| format!("{target} ({count})"))
                .collect();
            let more = others.len().saturating_sub(LISTED_MAX);
            let more = match more {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            text.push_str(&format!(
                "; route targets that no [[peer]] here has, with their routes: {}{more}",
                listed.join(", ")
            ));
        }
        Some(Alarm {
            cause: Cause::TargetAbsent,
            subject: peer.name.clone(),
            text,
        })
    }

    /// The segments in use that no route leads to.
    fn unreachable_segments(&self, forwarding: &mut dyn Forwarding) -> Vec<Alarm> {
        let mut users: BTreeMap<Ipv6Addr, (Vec<&str>, usize)> = BTreeMap::new();
        for (at, table) in &self.tables {
            let Some(peer) = self.peers.get(at) else {
                continue;
            };
            for (sid, count) in table.segments() {
                let of = users.entry(*sid).or_default();
                of.0.push(&peer.name);
                of.1 += count;
            }
        }
        users.retain(|sid, _| !forwarding.leads_to(IpAddr::V6(*sid)));
        let users = users.into_iter();
        users
            .map(|(sid, (peers, routes))| Alarm {
                cause: Cause::LocatorUnreachable,
                subject: sid.to_string(),
                text: format!(
                    "no route of this host leads to segment {sid} of {}, so packets by its {routes} routes are lost: \
                     the border router must announce its locator (`announce_locator`), or the IGP",
                    peers.join(", ")
                ),
            })
            .collect()
    }

    /// Segments whose best route leads to another border router than the one that announces them.
    fn shared_locators(&self, speaker: &Speaker, groups: &Groups) -> Vec<Alarm> {
        let routers: BTreeSet<Ipv4Addr> = groups.keys().filter_map(|group| group.router).collect();
        let mut all = BTreeMap::new();
        for group in groups.keys() {
            let imported = self
                .peers
                .values()
                .any(|peer| group.targets.contains(&peer.rt));
            let (Some(sid), Some(router), true) = (group.sid, group.router, imported) else {
                continue;
            };
            let Some((prefix, leads_to)) = route_to(speaker, sid) else {
                continue;
            };
            if leads_to != router && routers.contains(&leads_to) {
                all.entry(sid).or_insert_with(|| Alarm {
                    cause: Cause::LocatorShared,
                    subject: sid.to_string(),
                    text: format!(
                        "router {router} announces segment {sid}, but the route to it, {prefix}, leads to router \
                         {leads_to}: both have the same locator, or the first does not announce its own"
                    ),
                });
            }
        }
        all.into_values().collect()
    }

    fn kept_routes(&self, forwarding: &mut dyn Forwarding) -> Option<Alarm> {
        let routes = forwarding.earlier_routes();
        let name = |id: u16| self.config.reflectors.get(usize::from(id));
        let missing = self.awaited.iter().filter_map(|(id, family)| {
            let reflector = name(id.0)?;
            Some(format!("{} ({family})", reflector.name))
        });
        let missing: Vec<String> = missing.take(LISTED_MAX).collect();
        (routes > 0 && !missing.is_empty()).then(|| Alarm {
            cause: Cause::EarlierRoutes,
            subject: "kernel".to_owned(),
            text: format!(
                "{routes} routes of an earlier run are still used although no neighbour has announced them to this one; \
                 End-of-RIB is missing from {}, and is waited for at most {} s after its session came up; enable \
                 graceful restart there",
                missing.join(", "),
                super::END_OF_RIB_TIME.as_secs()
            ),
        })
    }
}

/// The longest unicast route to an address, and the router that announces it.
fn route_to(speaker: &Speaker, address: Ipv6Addr) -> Option<(IpNet, Ipv4Addr)> {
    let host = IpNet::from(IpAddr::V6(address));
    let (prefix, best) = covering(host).find_map(|prefix| {
        let best = speaker.rib().best(&Destination::unicast(prefix))?;
        Some((prefix, best))
    })?;
    Some((prefix, speaker.originator(best)?))
}

fn without_segment(peer: &EndpointPeer, groups: &Groups) -> Option<Alarm> {
    let of_peer = groups
        .iter()
        .filter(|(group, _)| group.targets.contains(&peer.rt));
    let (mut routes, mut from) = (0, BTreeSet::new());
    for (group, count) in of_peer.filter(|(group, _)| group.sid.is_none()) {
        routes += count;
        let router = group.router.map(|router| format!(" from router {router}"));
        from.insert(format!("{}{}", group.rd, router.unwrap_or_default()));
    }
    let from: Vec<String> = from.into_iter().take(LISTED_MAX).collect();
    (routes > 0).then(|| Alarm {
        cause: Cause::NoSegment,
        subject: peer.name.clone(),
        text: format!(
            "{routes} routes have its route target {} and no SRv6 SID, and are not used ({}): the border router \
             must announce an SRv6 L3 service with them (RFC 9252)",
            peer.rt,
            from.join(", ")
        ),
    })
}

/// Distinguishers with which several routers announce routes.
fn shared_distinguishers(groups: &Groups) -> Vec<Alarm> {
    let mut routers: BTreeMap<RouteDistinguisher, BTreeSet<Ipv4Addr>> = BTreeMap::new();
    for group in groups.keys() {
        routers.entry(group.rd).or_default().extend(group.router);
    }
    let shared = routers.into_iter().filter(|(_, routers)| routers.len() > 1);
    shared
        .map(|(rd, routers)| {
            let routers = routers.iter().take(LISTED_MAX).map(Ipv4Addr::to_string);
            let routers: Vec<String> = routers.collect();
            Alarm {
                cause: Cause::DistinguisherShared,
                subject: rd.to_string(),
                text: format!(
                    "routers {} announce routes with the route distinguisher {rd}, so that their routes to one prefix \
                     hide each other: give each egress peer its own `rd`",
                    routers.join(", ")
                ),
            }
        })
        .collect()
}
