//! What is wrong with a border router's host, and with other routers that use what is its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use keiro_bgp::{
    address::{Destination, RouteDistinguisher},
    rib::Source,
    speaker::Speaker,
};

use super::Asbr;
use crate::{
    alarms::{Alarm, Cause},
    census::Group,
    forwarding::Forwarding,
};

impl Asbr {
    pub(super) fn find_alarms(
        &self,
        speaker: &Speaker,
        groups: &BTreeMap<Group, usize>,
        forwarding: &mut dyn Forwarding,
    ) -> Vec<Alarm> {
        let mut all = Vec::new();
        if forwarding.forwards(false) == Some(false) {
            all.push(Alarm {
                cause: Cause::ForwardingOff,
                subject: "host".to_owned(),
                text: "this host forwards no packets, so that everything sent to its segments is lost: \
                       `sysctl net.ipv6.conf.all.forwarding=1` changes that"
                    .to_owned(),
            });
        }
        let has_ipv4 = self.peers.values().any(|peer| peer.ipv4_sid.is_some());
        if has_ipv4 && forwarding.forwards(true) == Some(false) {
            all.push(Alarm {
                cause: Cause::ForwardingOff,
                subject: "host, IPv4".to_owned(),
                text: "this host forwards no IPv4 packets, so that those sent to its segments are lost: \
                       `sysctl net.ipv4.ip_forward=1` changes that"
                    .to_owned(),
            });
        }
        all.extend(self.ipv4_waiting.iter().map(|at| Alarm {
            cause: Cause::NoSegment,
            subject: self.peers[at].neighbour.name.clone(),
            text: "its IPv4 routes have no segment and are not exported, because nftables does not mark packets: \
                   look whether `nft list table ip6 keiro_segments` works"
                .to_owned(),
        }));
        all.extend(self.shared_locator(speaker, groups));
        all.extend(self.shared_distinguishers(groups));
        all
    }

    /// Other routers that announce our locator, or segments in it.
    fn shared_locator(&self, speaker: &Speaker, groups: &BTreeMap<Group, usize>) -> Option<Alarm> {
        let locator = self.config.locator;
        let of_locator = speaker.rib().paths(&Destination::V6(locator)).iter();
        let others = of_locator.filter(|path| path.source != Source::Local);
        let mut routers: BTreeSet<Ipv4Addr> =
            others.filter_map(|path| speaker.originator(path)).collect();
        let with_sid = groups.keys().filter(|group| {
            let inside = |sid| locator.contains(&sid);
            group.sid.is_some_and(inside)
        });
        routers.extend(with_sid.filter_map(|group| group.router));
        let routers: Vec<String> = routers.iter().map(Ipv4Addr::to_string).collect();
        (!routers.is_empty()).then(|| Alarm {
            cause: Cause::LocatorShared,
            subject: locator.to_string(),
            text: format!(
                "this router's locator {locator} is announced by router {} too, so that servers send packets for its \
                 segments to either: give each border router its own `locator`",
                routers.join(", ")
            ),
        })
    }

    /// Distinguishers of our egress peers with which other routers announce routes.
    fn shared_distinguishers(&self, groups: &BTreeMap<Group, usize>) -> Vec<Alarm> {
        let mut shared: BTreeMap<RouteDistinguisher, BTreeSet<Ipv4Addr>> = BTreeMap::new();
        for group in groups.keys() {
            if self.peers.values().any(|peer| peer.rd == group.rd) {
                shared.entry(group.rd).or_default().extend(group.router);
            }
        }
        let name = |rd| {
            let mut peers = self.peers.values();
            let peer = peers.find(|peer| peer.rd == rd);
            peer.map_or("", |peer| peer.neighbour.name.as_str())
        };
        shared
            .into_iter()
            .map(|(rd, routers)| {
                let routers: Vec<String> = routers.iter().map(Ipv4Addr::to_string).collect();
                Alarm {
                    cause: Cause::DistinguisherShared,
                    subject: rd.to_string(),
                    text: format!(
                        "router {} announces routes with the route distinguisher {rd} of {}, so that routes to one \
                         prefix hide each other at the reflectors: give each egress peer its own `rd`",
                        routers.join(", "),
                        name(rd)
                    ),
                }
            })
            .collect()
    }
}
