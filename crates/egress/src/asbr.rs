//! The border router: egress peers, and their routes with segments [egress §3.1].
//!
//! A peer has a segment while its session is up. The segment is created before it is announced, and
//! removed before its withdrawal is sent, so that no packet is sent to a peer that does not want
//! it. The segment leads to the peer's own table, which has the peer's routes only; everything else
//! is unreachable there.

mod alarms;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv6Addr,
    path::Path,
};

use ipnet::IpNet;
use keiro_bgp::{
    address::{Destination, Family, RouteDistinguisher},
    rib::{NeighbourId, Source},
    speaker::{Changes, Event, Input, Speaker, VpnExport},
    srv6::{Label, Service},
};
use keiro_stats_export::Stats;
use keiro_units::Instant;

use crate::{
    alarms::Alarm,
    census::Group,
    config::{AsbrConfig, Behaviour, ConfigError, EgressPeer, Neighbour, SpeakerConfig},
    daemon::{Role, keep_speaker, keep_tables, keep_value, needs},
    forwarding::{Configured, Forwarding, ForwardingError, PeerIndex, RouteChange, Table, Via},
    looking_glass::{Usage, best_usage},
    stats::EgressPeerStats,
    status::{PathStatus, PeerExplanation, PeerStatus, SegmentStatus, UnusedReason, covering},
};

pub struct Asbr {
    config: AsbrConfig,
    peers: BTreeMap<PeerIndex, EgressPeer>,
    /// Peers that have a segment.
    segments: BTreeSet<PeerIndex>,
    /// Of these, those that have one for IPv4 too.
    ipv4_segments: BTreeSet<PeerIndex>,
    /// Those whose segment for IPv4 waits for the marks of its packets.
    ipv4_waiting: BTreeSet<PeerIndex>,
}

/// End.DT6 (RFC 8986 §10.2): looks the inner packet up in a table.
const END_DT6: u16 = 18;
/// End.DT4: the same for IPv4.
const END_DT4: u16 = 19;
/// End.DX6: sends the inner packet to a neighbour.
const END_DX6: u16 = 16;

impl Asbr {
    pub fn new(config: AsbrConfig) -> Self {
        Self {
            peers: (0..)
                .map(PeerIndex)
                .zip(config.peers.iter().cloned())
                .collect(),
            segments: BTreeSet::new(),
            ipv4_segments: BTreeSet::new(),
            ipv4_waiting: BTreeSet::new(),
            config,
        }
    }

    fn peer_of(&self, id: NeighbourId) -> Option<PeerIndex> {
        let peer = PeerIndex(usize::from(id.0));
        self.peers.contains_key(&peer).then_some(peer)
    }

    /// Whether a peer's table has routes to destinations like this one.
    fn has_table_for(&self, peer: PeerIndex, destination: &Destination) -> bool {
        match destination.prefix() {
            IpNet::V4(_) => self.ipv4_segments.contains(&peer),
            IpNet::V6(_) => true,
        }
    }

    fn open(&mut self, peer: PeerIndex, forwarding: &mut dyn Forwarding) -> Option<Input> {
        let config = &self.peers[&peer];
        if let Err(error) = add_segment(peer, config.sid, forwarding) {
            let name = &config.neighbour.name;
            tracing::error!(peer = name, %error, "no segment: its routes are not exported");
            // It may have been there since before a graceful restart.
            return self.close(peer, forwarding);
        }
        self.segments.insert(peer);
        self.open_ipv4(peer, forwarding);
        Some(self.export(peer))
    }

    /// Adds the segment for IPv4, if it is configured; returns whether it is there.
    fn open_ipv4(&mut self, peer: PeerIndex, forwarding: &mut dyn Forwarding) -> bool {
        let config = &self.peers[&peer];
        let Some(sid) = config.ipv4_sid else {
            return false;
        };
        self.ipv4_waiting.remove(&peer);
        if let Err(error) = add_segment(peer, sid, forwarding) {
            let name = &config.neighbour.name;
            tracing::error!(peer = name, %error, "no segment: its IPv4 routes are not exported");
            self.ipv4_segments.remove(&peer);
            if !forwarding.can_lead_ipv4(sid) {
                self.ipv4_waiting.insert(peer);
            }
            return false;
        }
        self.ipv4_segments.insert(peer);
        true
    }

    /// What is exported of a peer that has a segment.
    fn export(&self, peer: PeerIndex) -> Input {
        let config = &self.peers[&peer];
        let has_ipv4 = self.ipv4_segments.contains(&peer);
        let export = VpnExport {
            from: id_of(peer),
            targets: vec![config.rt],
            service: Service {
                sid: config.sid,
                behaviour: match config.behaviour {
                    Behaviour::Table => END_DT6,
                    Behaviour::Neighbour => END_DX6,
                },
                structure: None,
            },
            label: Label::IMPLICIT_NULL,
            ipv4: config.ipv4_sid.filter(|_| has_ipv4).map(|sid| Service {
                sid,
                behaviour: END_DT4,
                structure: None,
            }),
        };
        Input::Export(config.rd, export)
    }

    /// Removes segments for IPv4 whose packets are not led to the table any more, and adds those that had
    /// to wait.
    fn follow_ipv4(&mut self, forwarding: &mut dyn Forwarding) -> Vec<Input> {
        let mut inputs = Vec::new();
        for peer in self.ipv4_segments.clone() {
            let config = &self.peers[&peer];
            let sid = config.ipv4_sid.filter(|sid| forwarding.has_lost_ipv4(*sid));
            let Some(sid) = sid else {
                continue;
            };
            let name = &config.neighbour.name;
            tracing::error!(peer = name, %sid, "the segment for IPv4 is removed: nftables does not mark its packets");
            if let Err(error) = forwarding.remove_segment(peer, sid) {
                tracing::error!(peer = name, %error, "a segment stays");
            }
            self.ipv4_segments.remove(&peer);
            self.ipv4_waiting.insert(peer);
            inputs.push(self.export(peer));
        }
        for peer in self.ipv4_waiting.clone() {
            let sid = self.peers[&peer].ipv4_sid;
            if sid.is_some_and(|sid| forwarding.can_lead_ipv4(sid))
                && self.open_ipv4(peer, forwarding)
            {
                tracing::info!(
                    peer = self.peers[&peer].neighbour.name,
                    "the segment for IPv4 is there"
                );
                inputs.push(self.export(peer));
            }
        }
        inputs
    }

    fn close(&mut self, peer: PeerIndex, forwarding: &mut dyn Forwarding) -> Option<Input> {
        if !self.segments.remove(&peer) {
            return None;
        }
        self.ipv4_waiting.remove(&peer);
        let config = &self.peers[&peer];
        // The table goes with the last one.
        let ipv4_sid = config.ipv4_sid.filter(|_| self.ipv4_segments.remove(&peer));
        for sid in ipv4_sid.into_iter().chain([config.sid]) {
            if let Err(error) = forwarding.remove_segment(peer, sid) {
                tracing::error!(peer = config.neighbour.name, %error, "a segment stays");
            }
        }
        Some(Input::Unexport(config.rd))
    }
}

impl Role for Asbr {
    type Config = AsbrConfig;

    fn load(path: &Path) -> Result<AsbrConfig, ConfigError> {
        AsbrConfig::load(path)
    }

    fn speaker_of(config: &AsbrConfig) -> &SpeakerConfig {
        &config.speaker
    }

    fn neighbours_of(config: &AsbrConfig) -> Vec<Neighbour> {
        let peers = config.peers.iter().map(|peer| peer.neighbour.clone());
        peers.chain(config.reflectors.iter().cloned()).collect()
    }

    fn keep(&self, config: &mut AsbrConfig) -> Result<Vec<String>, String> {
        let old = &self.config;
        if config.locator != old.locator {
            return Err(needs("locator", &old.locator));
        }
        let mut lines = keep_speaker(&old.speaker, &mut config.speaker)?;
        keep_value(
            "nexthop_ids",
            &old.nexthop_ids,
            &mut config.nexthop_ids,
            &mut lines,
        );
        let known = self.peers.values();
        let known = known.map(|peer| (peer.neighbour.address, peer.table, peer.table_said));
        let new = config.peers.iter_mut();
        let new = new.map(|peer| (peer.neighbour.address, &mut peer.table, peer.table_said));
        keep_tables(known, new);
        let priority = (&old.rule_priority, &mut config.rule_priority);
        keep_value("rule_priority", priority.0, priority.1, &mut lines);
        Ok(lines)
    }

    fn is_other(&self, id: NeighbourId, config: &AsbrConfig) -> bool {
        let Some(old) = self.peer_of(id).map(|peer| &self.peers[&peer]) else {
            return false;
        };
        let mut new = config.peers.iter();
        let new = new.find(|peer| peer.neighbour.address == old.neighbour.address);
        let key = |peer: &EgressPeer| {
            let interface = peer.interface.clone();
            (
                (peer.sid, peer.ipv4_sid),
                peer.behaviour,
                peer.rd,
                peer.rt,
                peer.table,
                interface,
            )
        };
        new.is_none_or(|new| key(new) != key(old))
    }

    fn adopt(
        &mut self,
        config: AsbrConfig,
        ids: &[NeighbourId],
        _: &Speaker,
        forwarding: &mut dyn Forwarding,
    ) -> (Vec<Input>, Vec<ForwardingError>) {
        let (before, now) = (originated(&self.config), originated(&config));
        let gone = before.difference(&now).copied().map(Input::Retract);
        let new = now.difference(&before).copied().map(Input::Originate);
        let inputs = gone.chain(new).collect();
        // The peers are the first neighbours.
        let peers = ids.iter().zip(&config.peers);
        let peers = peers.map(|(id, peer)| (PeerIndex(usize::from(id.0)), peer.clone()));
        self.peers = peers.collect();
        self.config = config;
        let errors = forwarding.follow_configuration(&Configured::Asbr {
            peers: &self.peers,
            reflectors: &self.config.reflectors,
        });
        (inputs, errors)
    }

    fn neighbours(&self) -> Vec<Neighbour> {
        Self::neighbours_of(&self.config)
    }

    fn tracks_routes(&self, id: NeighbourId) -> bool {
        self.peer_of(id).is_some()
    }

    fn own_distinguishers(&self) -> BTreeSet<RouteDistinguisher> {
        self.peers.values().map(|peer| peer.rd).collect()
    }

    fn interface_of(&self, id: NeighbourId) -> Option<&str> {
        self.peers[&self.peer_of(id)?].interface.as_deref()
    }

    fn neighbour_of(&self, peer: PeerIndex) -> Option<NeighbourId> {
        self.peers.contains_key(&peer).then(|| id_of(peer))
    }

    fn begin(&mut self) -> Vec<Input> {
        originated(&self.config)
            .into_iter()
            .map(Input::Originate)
            .collect()
    }

    fn on_event(
        &mut self,
        event: &Event,
        speaker: &Speaker,
        forwarding: &mut dyn Forwarding,
    ) -> Vec<Input> {
        let (id, up) = match event {
            Event::Up(id) => (*id, true),
            Event::Down(id, _) => (*id, false),
            _ => return Vec::new(),
        };
        let Some(peer) = self.peer_of(id) else {
            return Vec::new();
        };
        // During a graceful restart the segment is kept as long as the routes are.
        let keeps = !up && has_routes(speaker, id);
        match (up, keeps) {
            (true, _) => self.open(peer, forwarding).into_iter().collect(),
            (false, true) => Vec::new(),
            (false, false) => self.close(peer, forwarding).into_iter().collect(),
        }
    }

    fn on_tended(&mut self, forwarding: &mut dyn Forwarding) -> Vec<Input> {
        self.follow_ipv4(forwarding)
    }

    fn on_changes(
        &mut self,
        speaker: &Speaker,
        changes: &Changes,
        forwarding: &mut dyn Forwarding,
    ) -> (Vec<Input>, Vec<ForwardingError>) {
        let mut inputs = Vec::new();
        let open: Vec<PeerIndex> = self.segments.iter().copied().collect();
        for peer in open {
            let id = id_of(peer);
            if !speaker.is_up(id) && !has_routes(speaker, id) {
                inputs.extend(self.close(peer, forwarding));
            }
        }
        let mut list: Vec<RouteChange> = Vec::with_capacity(changes.by_neighbour.len());
        for (id, destination) in &changes.by_neighbour {
            // A peer without a segment has no table.
            let peer = self.peer_of(*id);
            let peer = peer.filter(|peer| self.segments.contains(peer));
            let is_ipv6 = matches!(destination.prefix(), IpNet::V6(_));
            // Also while the segment for IPv4 waits, so that the table is full when it comes.
            let Some(peer) = peer.filter(|at| is_ipv6 || self.peers[at].ipv4_sid.is_some()) else {
                continue;
            };
            let path = speaker.route_of(*id, destination);
            list.push(RouteChange {
                table: Table::Peer(peer),
                destination: destination.prefix(),
                via: path.map(|path| via(path, destination.prefix(), Some(peer))),
            });
        }
        // Removals come first, so that no traffic moves to a table that still has old routes.
        list.sort_by_key(|change| change.via.is_some());
        let mut errors = forwarding.change(&list);
        let best = best_paths(speaker, changes, |id| self.peer_of(id));
        errors.extend(forwarding.change(&best));
        (inputs, errors)
    }

    fn alarms(
        &self,
        _: Instant,
        speaker: &Speaker,
        groups: &BTreeMap<Group, usize>,
        forwarding: &mut dyn Forwarding,
    ) -> Vec<Alarm> {
        self.find_alarms(speaker, groups, forwarding)
    }

    fn name(&self) -> &'static str {
        "asbr"
    }

    fn peers(&self, speaker: &Speaker) -> Vec<PeerStatus> {
        let peers = self.peers.iter();
        peers
            .map(|(&at, peer)| {
                let status = speaker.status(id_of(at));
                let routes_of = |family| status.routes.get(&family).copied().unwrap_or_default();
                let open = self.segments.contains(&at);
                let sid = open.then_some(peer.sid);
                let ipv4_sid = peer.ipv4_sid.filter(|_| self.ipv4_segments.contains(&at));
                let ipv4 = ipv4_sid.map(|sid| (sid, routes_of(Family::Ipv4)));
                let segments = [(peer.sid, routes_of(Family::Ipv6))]
                    .into_iter()
                    .chain(ipv4);
                // IPv4 without a segment is not in its table.
                let routes: usize = segments.clone().map(|(_, routes)| routes).sum();
                PeerStatus {
                    name: peer.neighbour.name.clone(),
                    rt: peer.rt.to_string(),
                    sid,
                    segments: segments
                        .filter(|_| open)
                        .map(|(sid, routes)| SegmentStatus {
                            sid,
                            routes,
                            answers: None,
                        })
                        .collect(),
                    address: None,
                    ipv4_address: None,
                    stats: Stats(EgressPeerStats {
                        routes: routes as u64,
                        ..EgressPeerStats::default()
                    }),
                    kernel: None,
                }
            })
            .collect()
    }

    fn explain(&self, speaker: &Speaker, asked: IpNet, names: &[&str]) -> Vec<PeerExplanation> {
        let explain = |(at, peer): (&PeerIndex, &EgressPeer)| {
            let id = id_of(*at);
            let route = |prefix| {
                let of = Destination::unicast(prefix);
                // A route whose next hop is unreachable is shown with `reachable` false.
                let mut all = speaker.rib().paths(&of).iter();
                let any = || all.find(|path| path.source == Source::Neighbour(id));
                Some((prefix, speaker.route_of(id, &of).or_else(any)?))
            };
            let found = covering(asked).find_map(route);
            let paths = found.map(|(of, path)| PathStatus::of(speaker, names, of, path, path));
            PeerExplanation {
                name: peer.neighbour.name.clone(),
                address: None,
                ipv4_address: None,
                prefix: found.map(|(prefix, _)| prefix),
                via: found
                    .filter(|(of, path)| {
                        let there = self.segments.contains(at)
                            && self.has_table_for(*at, &Destination::unicast(*of));
                        path.reachable && there
                    })
                    .map(|(of, path)| via(path, of, Some(*at)).to_string()),
                paths: paths.into_iter().collect(),
                unused: match asked {
                    IpNet::V4(_) if peer.ipv4_sid.is_none() || self.ipv4_waiting.contains(at) => {
                        Some(UnusedReason::Ipv4)
                    }
                    _ => None,
                },
                kernel: None,
            }
        };
        self.peers.iter().map(explain).collect()
    }

    fn usage(
        &self,
        speaker: &Speaker,
        destination: &Destination,
        path: &keiro_bgp::rib::Path,
    ) -> Usage {
        let best = best_usage(speaker, destination, path);
        if destination.is_vpn() {
            return Err("border routers use no VPN routes".to_owned());
        }
        let Source::Neighbour(id) = path.source else {
            return best;
        };
        let peer = self.peer_of(id).filter(|at| self.segments.contains(at));
        let of_peer = speaker.route_of(id, destination);
        let in_table = of_peer.is_some_and(|route| std::ptr::eq(route, path));
        match peer {
            Some(peer) if in_table && self.has_table_for(peer, destination) => {
                let table = format!("table of {}", self.peers[&peer].neighbour.name);
                let tables = [table].into_iter().chain(best.into_iter().flatten());
                Ok(tables.collect())
            }
            _ => best,
        }
    }

    fn indices(&self) -> Vec<PeerIndex> {
        self.peers.keys().copied().collect()
    }

    fn end(&mut self, forwarding: &mut dyn Forwarding) {
        for peer in self.segments.clone() {
            self.close(peer, forwarding);
        }
        // Best paths depend on sessions that end now.
        if let Err(error) = forwarding.clear(Table::Main) {
            tracing::error!(%error, "best paths stay in the main table");
        }
    }
}

/// Adds a segment. One that was refused halfway is removed, as it would be installed later.
fn add_segment(
    peer: PeerIndex,
    sid: Ipv6Addr,
    forwarding: &mut dyn Forwarding,
) -> Result<(), ForwardingError> {
    forwarding.add_segment(peer, sid).inspect_err(|_| {
        if let Err(error) = forwarding.remove_segment(peer, sid) {
            tracing::debug!(%sid, %error, "nothing to remove of a refused segment");
        }
    })
}

/// The neighbour number of an egress peer.
fn id_of(peer: PeerIndex) -> NeighbourId {
    NeighbourId(peer.0 as u16)
}

/// The prefixes to originate.
fn originated(config: &AsbrConfig) -> BTreeSet<IpNet> {
    let locator = config.announce_locator.then_some(config.locator.into());
    config.announce.iter().copied().chain(locator).collect()
}

/// The changes to the main table for changed best paths.
pub(crate) fn best_paths(
    speaker: &Speaker,
    changes: &Changes,
    peer_of: impl Fn(NeighbourId) -> Option<PeerIndex>,
) -> Vec<RouteChange> {
    let unicast = changes
        .best
        .iter()
        .filter(|destination| !destination.is_vpn());
    let change = |destination: &Destination| {
        let best = speaker.rib().best(destination).and_then(|path| {
            // Routes of this speaker exist on the machine already.
            let Source::Neighbour(from) = path.source else {
                return None;
            };
            Some(via(path, destination.prefix(), peer_of(from)))
        });
        RouteChange {
            table: Table::Main,
            destination: destination.prefix(),
            via: best,
        }
    };
    unicast.map(change).collect()
}

fn via(path: &keiro_bgp::rib::Path, to: IpNet, peer: Option<PeerIndex>) -> Via {
    if path.attributes.blackhole {
        let ipv4 = matches!(to, IpNet::V4(_));
        return Via::Blackhole { ipv4 };
    }
    Via::Router {
        peer,
        address: path.attributes.next_hop,
        link_local: path.attributes.link_local,
    }
}

fn has_routes(speaker: &Speaker, id: NeighbourId) -> bool {
    speaker.status(id).routes.values().any(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a forwarding plane does with segments for IPv4.
    #[derive(Default)]
    struct Marked {
        there: BTreeSet<Ipv6Addr>,
        /// Segments that are refused after half of their changes.
        refused: bool,
        lost: bool,
    }

    impl Forwarding for Marked {
        fn add_segment(&mut self, _: PeerIndex, sid: Ipv6Addr) -> Result<(), ForwardingError> {
            self.there.insert(sid);
            let error = || ForwardingError {
                what: "no segment".to_owned(),
                reason: "refused".to_owned(),
            };
            (!self.refused).then_some(()).ok_or_else(error)
        }

        fn remove_segment(&mut self, _: PeerIndex, sid: Ipv6Addr) -> Result<(), ForwardingError> {
            self.there.remove(&sid);
            Ok(())
        }

        fn can_lead_ipv4(&self, _: Ipv6Addr) -> bool {
            !self.refused && !self.lost
        }

        fn has_lost_ipv4(&self, _: Ipv6Addr) -> bool {
            self.lost
        }

        fn change(&mut self, _: &[RouteChange]) -> Vec<ForwardingError> {
            Vec::new()
        }

        fn clear(&mut self, _: Table) -> Result<(), ForwardingError> {
            Ok(())
        }

        fn settled(&mut self) -> Vec<ForwardingError> {
            Vec::new()
        }
    }

    fn asbr() -> Asbr {
        let text = r#"
[asbr]
asn = 65000
router_id = "192.0.2.1"
locator = "2001:db8:a::/64"

[[peer]]
name = "b"
asn = 65001
address = "2001:db8:1::1"
rd = "65000:1"
rt = "65000:1"
function = 1
ipv4 = true

[[reflector]]
name = "r"
address = "2001:db8:ff::1"
ipv4 = true
"#;
        Asbr::new(AsbrConfig::parse(text, "asbr.toml").unwrap())
    }

    fn exports_ipv4(input: &Input) -> bool {
        matches!(input, Input::Export(_, export) if export.ipv4.is_some())
    }

    #[test]
    fn nothing_stays_of_a_segment_that_was_refused_halfway() {
        let (mut asbr, mut forwarding) = (asbr(), Marked::default());
        forwarding.refused = true;
        assert!(asbr.open(PeerIndex(0), &mut forwarding).is_none());
        assert_eq!(forwarding.there, BTreeSet::new());
    }

    #[test]
    fn a_segment_for_ipv4_goes_and_comes_with_the_marks_of_its_packets() {
        let (mut asbr, mut forwarding) = (asbr(), Marked::default());
        let peer = PeerIndex(0);
        assert!(exports_ipv4(&asbr.open(peer, &mut forwarding).unwrap()));
        assert_eq!(forwarding.there.len(), 2);
        assert!(asbr.follow_ipv4(&mut forwarding).is_empty());
        forwarding.lost = true;
        let inputs = asbr.follow_ipv4(&mut forwarding);
        assert!(inputs.len() == 1 && !exports_ipv4(&inputs[0]));
        assert_eq!(forwarding.there, BTreeSet::from([asbr.peers[&peer].sid]));
        assert!(asbr.follow_ipv4(&mut forwarding).is_empty());
        forwarding.lost = false;
        let inputs = asbr.follow_ipv4(&mut forwarding);
        assert!(inputs.len() == 1 && exports_ipv4(&inputs[0]));
        assert_eq!(forwarding.there.len(), 2);
        assert!(asbr.follow_ipv4(&mut forwarding).is_empty());
    }
}
