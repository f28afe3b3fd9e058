//! Routes of the Endpoint Manager: best paths go to the main table, VPN routes of each egress peer
//! to its own table, through segments [egress §4.1].

mod alarms;
mod probes;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use ipnet::IpNet;
use keiro_bgp::{
    address::{Destination, Family, RouteDistinguisher},
    rib::{NeighbourId, Path},
    speaker::{Changes, Event, Input, Speaker},
};
use keiro_stats_export::Stats;
use keiro_units::Instant;

use self::{probes::Probes, table::PeerTable};
use crate::{
    alarms::Alarm,
    asbr::best_paths,
    census::Group,
    config::{Class, ConfigError, EndpointConfig, EndpointPeer, Neighbour, SpeakerConfig},
    daemon::{Role, keep_speaker, keep_tables, keep_value},
    draining::Draining,
    forwarding::{Configured, Forwarding, ForwardingError, PeerIndex, RouteChange, Table, Via},
    looking_glass::{Usage, best_usage},
    multipath::ConnectionSettings,
    stats::EgressPeerStats,
    status::{
        PathStatus, PeerExplanation, PeerStatus, Reloaded, SegmentStatus, UnusedReason, covering,
    },
};

pub struct Endpoint {
    config: EndpointConfig,
    /// A peer added later gets an index that was never used.
    peers: BTreeMap<PeerIndex, EndpointPeer>,
    next_peer: usize,
    /// The peers to which routes of a distinguisher have belonged.
    distinguishers: BTreeMap<RouteDistinguisher, BTreeSet<PeerIndex>>,
    /// The contents of each peer's table.
    tables: BTreeMap<PeerIndex, PeerTable>,
    /// Routes of the tables that connections leave.
    draining: Draining,
    /// End-of-RIB markers still missing after the start.
    awaited: BTreeSet<(NeighbourId, Family)>,
    settled: bool,
    probes: Probes,
}

impl Endpoint {
    pub fn new(config: EndpointConfig) -> Self {
        let awaited = config.reflectors.iter().enumerate();
        let awaited = awaited.flat_map(|(place, reflector)| {
            let id = NeighbourId(place as u16);
            reflector.families.iter().map(move |family| (id, *family))
        });
        Self {
            peers: (0..)
                .map(PeerIndex)
                .zip(config.peers.iter().cloned())
                .collect(),
            next_peer: config.peers.len(),
            tables: BTreeMap::new(),
            draining: Draining::default(),
            distinguishers: BTreeMap::new(),
            awaited: awaited.collect(),
            settled: false,
            probes: Probes::default(),
            config,
        }
    }

    /// Whether IPv4 routes come from any reflector.
    fn has_ipv4(&self) -> bool {
        self.config.reflectors.iter().any(Neighbour::has_ipv4)
    }

    /// The peers that import a path, by route target.
    fn peers_of(&self, path: &Path) -> impl Iterator<Item = PeerIndex> {
        let targets: Vec<_> = path.attributes.route_targets().collect();
        let peers = self.peers.iter();
        peers
            .filter(move |(_, peer)| targets.contains(&peer.rt))
            .map(|(peer, _)| *peer)
    }

    /// The paths of a peer to a prefix, one per distinguisher.
    fn paths<'a>(
        &'a self,
        speaker: &'a Speaker,
        peer: PeerIndex,
        prefix: IpNet,
    ) -> impl Iterator<Item = (RouteDistinguisher, &'a Path)> {
        let rt = self.peers[&peer].rt;
        let distinguishers = self.distinguishers.iter();
        distinguishers
            .filter(move |(_, peers)| peers.contains(&peer))
            .filter_map(move |(rd, _)| {
                Some((*rd, speaker.rib().best(&Destination::vpn(*rd, prefix))?))
            })
            .filter(|(_, path)| path.attributes.service.is_some())
            .filter(move |(_, path)| path.attributes.route_targets().any(|found| found == rt))
    }

    /// Whether a path's segment answers, or is not known not to.
    fn is_alive(&self, path: &Path) -> bool {
        let service = path.attributes.service;
        let sid = service.map(|service| service.sid(path.label));
        sid.is_none_or(|sid| !self.probes.avoided.contains(&sid))
    }

    /// The next hop that a peer's table should have for a prefix, and whether connections leave it;
    /// `None`: no route.
    fn wanted(&self, speaker: &Speaker, peer: PeerIndex, prefix: IpNet) -> Option<(Via, bool)> {
        let paths = self.paths(speaker, peer, prefix);
        let paths = paths.map(|(_, path)| path);
        let paths: Vec<&Path> = paths.filter(|path| self.is_alive(path)).collect();
        let best = speaker.best_among(&paths)?;
        let service = best.attributes.service?;
        let via = Via::Segment(service.sid(best.label));
        Some((via, best.attributes.is_draining()))
    }

    /// Updates which routes connections leave.
    fn set_draining(
        &mut self,
        peer: PeerIndex,
        routes: &[(IpNet, bool)],
        forwarding: &mut dyn Forwarding,
    ) {
        self.draining.set(peer, routes);
        forwarding.set_draining(peer, routes);
    }

    /// The routes of a peer's table are gone.
    fn forget_draining(&mut self, peer: PeerIndex, forwarding: &mut dyn Forwarding) {
        let routes = self.draining.end_of(peer);
        if !routes.is_empty() {
            self.set_draining(peer, &routes, forwarding);
        }
    }

    /// Why received routes that cover a prefix are not in a peer's table; `None`: there are none.
    fn unused(&self, speaker: &Speaker, peer: PeerIndex, asked: IpNet) -> Option<UnusedReason> {
        let rt = self.peers[&peer].rt;
        let of_peer = self.distinguishers.iter();
        let of_peer = of_peer.filter(|(_, peers)| peers.contains(&peer));
        let rds: Vec<RouteDistinguisher> = of_peer.map(|(rd, _)| *rd).collect();
        covering(asked).find_map(|prefix| {
            let best = |rd| speaker.rib().best(&Destination::vpn(rd, prefix));
            let mut paths = rds.iter().filter_map(|rd| best(*rd));
            let found = paths.find(|path| path.attributes.route_targets().any(|of| of == rt))?;
            match found.attributes.service {
                None => Some(UnusedReason::NoSegment { prefix }),
                Some(service) => {
                    let sid = service.sid(found.label);
                    let avoided = self.probes.avoided.contains(&sid);
                    avoided.then_some(UnusedReason::Silent { prefix, sid })
                }
            }
        })
    }

    /// Records the peers to which changed routes belong.
    fn note_distinguishers(&mut self, speaker: &Speaker, changes: &Changes) {
        for destination in &changes.best {
            let (Some(rd), Some(path)) =
                (destination.distinguisher(), speaker.rib().best(destination))
            else {
                continue;
            };
            let peers: Vec<PeerIndex> = self.peers_of(path).collect();
            // Routes that no configured peer imports leave no trace.
            if !peers.is_empty() {
                self.distinguishers.entry(rd).or_default().extend(peers);
            }
        }
    }

    /// Peers without any routes: nothing with their distinguishers is announced any more.
    fn bereft(&self, speaker: &Speaker) -> BTreeSet<PeerIndex> {
        let is_announced = |rd: RouteDistinguisher| {
            Destination::first_of_vpn(rd).into_iter().any(|first| {
                let next = speaker.rib().from(first).next();
                next.is_some_and(|(next, _)| next.distinguisher() == Some(rd))
            })
        };
        let mut bereft: BTreeSet<PeerIndex> = self.tables.keys().copied().collect();
        for (rd, peers) in &self.distinguishers {
            if is_announced(*rd) {
                bereft.retain(|peer| !peers.contains(peer));
            }
        }
        bereft
    }

    /// Clears the tables of peers that lost all routes, each at once, before routes are handled one
    /// by one, since packets still leave by them.
    fn clear(
        &mut self,
        bereft: &BTreeSet<PeerIndex>,
        forwarding: &mut dyn Forwarding,
    ) -> Vec<ForwardingError> {
        let mut errors = Vec::new();
        for peer in bereft {
            let Some(table) = self.tables.get_mut(peer) else {
                continue;
            };
            if !table.is_empty() {
                errors.extend(forwarding.clear(Table::Peer(*peer)).err());
                table.clear();
                self.probes.on_cleared(*peer);
                self.forget_draining(*peer, forwarding);
            }
        }
        errors
    }

    /// Updates the tables to the current routes.
    fn update(
        &mut self,
        speaker: &Speaker,
        touched: BTreeSet<(PeerIndex, IpNet)>,
        forwarding: &mut dyn Forwarding,
    ) -> Vec<ForwardingError> {
        let mut list = Vec::with_capacity(touched.len());
        let mut draining: BTreeMap<PeerIndex, Vec<(IpNet, bool)>> = BTreeMap::new();
        for (peer, prefix) in touched {
            let wanted = self.wanted(speaker, peer, prefix);
            let (via, drains) = (wanted.map(|(via, _)| via), wanted.is_some_and(|it| it.1));
            if drains != self.draining.contains(peer, prefix) {
                let of_peer = draining.entry(peer).or_default();
                of_peer.push((prefix, drains));
            }
            let table = self.tables.entry(peer).or_default();
            if table.set(prefix, via) != via {
                list.push(RouteChange {
                    table: Table::Peer(peer),
                    destination: prefix,
                    via,
                });
            }
        }
        for (peer, routes) in draining {
            self.set_draining(peer, &routes, forwarding);
        }
        let mut errors = Vec::new();
        // A peer that lost all routes: at once, not one by one.
        for (peer, table) in &self.tables {
            let of_peer = Table::Peer(*peer);
            if table.is_empty() && list.iter().any(|change| change.table == of_peer) {
                list.retain(|change| change.table != of_peer);
                errors.extend(forwarding.clear(of_peer).err());
                self.probes.on_cleared(*peer);
            }
        }
        list.sort_by_key(|change| change.via.is_some());
        errors.extend(forwarding.change(&list));
        errors
    }

    /// The VPN routes of new peers.
    fn routes_of(
        &mut self,
        speaker: &Speaker,
        peers: &BTreeSet<PeerIndex>,
    ) -> BTreeSet<(PeerIndex, IpNet)> {
        let mut touched = BTreeSet::new();
        for (destination, _) in speaker.rib().iter() {
            let (Some(rd), Some(path)) =
                (destination.distinguisher(), speaker.rib().best(destination))
            else {
                continue;
            };
            let of_path: Vec<PeerIndex> = self.peers_of(path).collect();
            for peer in of_path.into_iter().filter(|peer| peers.contains(peer)) {
                self.distinguishers.entry(rd).or_default().insert(peer);
                touched.insert((peer, destination.prefix()));
            }
        }
        touched
    }
}

impl Role for Endpoint {
    type Config = EndpointConfig;

    fn load(path: &std::path::Path) -> Result<EndpointConfig, ConfigError> {
        EndpointConfig::load(path)
    }

    fn speaker_of(config: &EndpointConfig) -> &SpeakerConfig {
        &config.speaker
    }

    fn neighbours_of(config: &EndpointConfig) -> Vec<Neighbour> {
        config.reflectors.clone()
    }

    fn keep(&self, config: &mut EndpointConfig) -> Result<Vec<String>, String> {
        let old = &self.config;
        let mut lines = keep_speaker(&old.speaker, &mut config.speaker)?;
        let known = self.peers.values();
        let known = known.map(|peer| (peer.rt, peer.table, peer.table_said));
        let new = config.peers.iter_mut();
        keep_tables(
            known,
            new.map(|peer| (peer.rt, &mut peer.table, peer.table_said)),
        );
        let to = &mut lines;
        keep_value("interface", &old.interface, &mut config.interface, to);
        keep_value("nexthop_ids", &old.nexthop_ids, &mut config.nexthop_ids, to);
        let priority = &mut config.rule_priority;
        keep_value("rule_priority", &old.rule_priority, priority, to);
        keep_value("mptcp", &old.mptcp, &mut config.mptcp, to);
        keep_value(
            "helper_ports",
            &old.helper_ports,
            &mut config.helper_ports,
            to,
        );
        keep_value(
            "evidence_file",
            &old.evidence_file,
            &mut config.evidence_file,
            to,
        );
        keep_value("steering", &old.steering, &mut config.steering, to);
        Ok(lines)
    }

    fn is_other(&self, _: NeighbourId, _: &EndpointConfig) -> bool {
        false
    }

    fn differs(&self, config: &EndpointConfig) -> Reloaded {
        let by_name = |peers: &[EndpointPeer]| -> BTreeMap<String, _> {
            let terms = |peer: &EndpointPeer| {
                let addresses = (peer.address, peer.ipv4_address);
                (peer.rt, addresses, peer.table, peer.vrf)
            };
            let peers = peers.iter();
            peers.map(|peer| (peer.name.clone(), terms(peer))).collect()
        };
        let (before, now) = (by_name(&self.config.peers), by_name(&config.peers));
        let only = |of: &BTreeMap<String, _>, not: &BTreeMap<String, _>| -> Vec<String> {
            let names = of.keys().filter(|name| !not.contains_key(*name));
            names.cloned().collect()
        };
        let preferred = |of: &EndpointConfig| -> Vec<_> {
            let classes = of.classes.iter();
            let names = |class: &Class| -> Vec<String> {
                let places = class.prefer.iter();
                places.map(|at| of.peers[*at].name.clone()).collect()
            };
            classes
                .map(|class| (class.name.clone(), class.ports.clone(), names(class)))
                .collect()
        };
        let sections = [
            ("class", preferred(&self.config) != preferred(config)),
            ("comparison", self.config.comparison != config.comparison),
        ];
        let sections = sections.into_iter().filter(|(_, other)| *other);
        let changed = now.iter().filter(|(name, terms)| {
            let before = before.get(*name);
            before.is_some_and(|before| before != *terms)
        });
        Reloaded {
            peers_changed: changed.map(|(name, _)| name.clone()).collect(),
            peers_added: only(&now, &before),
            peers_removed: only(&before, &now),
            sections: sections.map(|(name, _)| name.to_owned()).collect(),
            ..Reloaded::default()
        }
    }

    fn adopt(
        &mut self,
        config: EndpointConfig,
        ids: &[NeighbourId],
        speaker: &Speaker,
        forwarding: &mut dyn Forwarding,
    ) -> (Vec<Input>, Vec<ForwardingError>) {
        let mut peers = BTreeMap::new();
        // By their places in the file.
        let mut places = Vec::new();
        let mut new = BTreeSet::new();
        for peer in &config.peers {
            let key = |peer: &EndpointPeer| {
                let addresses = (peer.address, peer.ipv4_address);
                (peer.rt, peer.table, addresses, peer.vrf)
            };
            let mut known = self.peers.iter();
            let at = match known.find(|(_, known)| key(known) == key(peer)) {
                Some((at, _)) => *at,
                None => {
                    let at = PeerIndex(self.next_peer);
                    self.next_peer += 1;
                    new.insert(at);
                    at
                }
            };
            places.push(at);
            peers.insert(at, peer.clone());
        }
        let before = std::mem::replace(&mut self.peers, peers);
        self.tables.retain(|at, _| self.peers.contains_key(at));
        self.draining.retain(|at| self.peers.contains_key(&at));
        self.distinguishers.retain(|_, of| {
            of.retain(|at| self.peers.contains_key(at));
            !of.is_empty()
        });
        self.awaited.retain(|(id, _)| ids.contains(id));
        if !self.settled {
            let known: BTreeSet<IpAddr> =
                self.config.reflectors.iter().map(|r| r.address).collect();
            let all = ids.iter().zip(&config.reflectors);
            for (id, reflector) in all.filter(|(_, one)| !known.contains(&one.address)) {
                let families = reflector.families.iter();
                self.awaited.extend(families.map(|family| (*id, *family)));
            }
        }
        self.config = config;
        let classes: Vec<Class> = self
            .config
            .classes
            .iter()
            .map(|class| Class {
                prefer: class.prefer.iter().map(|place| places[*place].0).collect(),
                ..class.clone()
            })
            .collect();
        // The routes of changed peers are gone, those for probes too.
        for at in before.keys().filter(|at| !self.peers.contains_key(at)) {
            self.probes.on_cleared(*at);
        }
        let mut errors = forwarding.follow_configuration(&Configured::Endpoint {
            peers: &self.peers,
            others: ConnectionSettings {
                classes: &classes,
                comparison: self.config.comparison,
            },
        });
        let touched = self.routes_of(speaker, &new);
        errors.extend(self.update(speaker, touched, forwarding));
        errors.extend(forwarding.follow());
        (Vec::new(), errors)
    }

    fn neighbours(&self) -> Vec<Neighbour> {
        Self::neighbours_of(&self.config)
    }

    fn tracks_routes(&self, _: NeighbourId) -> bool {
        false
    }

    fn begin(&mut self) -> Vec<Input> {
        Vec::new()
    }

    fn on_event(&mut self, event: &Event, speaker: &Speaker, _: &mut dyn Forwarding) -> Vec<Input> {
        match event {
            Event::EndOfRib(id, family) => {
                self.awaited.remove(&(*id, *family));
            }
            Event::Up(id) => {
                let agreed = speaker.status(*id).negotiated.families;
                self.awaited
                    .retain(|(of, family)| of != id || agreed.contains(family));
            }
            _ => {}
        }
        Vec::new()
    }

    fn on_changes(
        &mut self,
        speaker: &Speaker,
        changes: &Changes,
        forwarding: &mut dyn Forwarding,
    ) -> (Vec<Input>, Vec<ForwardingError>) {
        // First, since the last route of one distinguisher may go with the first of another.
        self.note_distinguishers(speaker, changes);
        let bereft = match changes.best.is_empty() {
            true => BTreeSet::new(),
            false => self.bereft(speaker),
        };
        let mut errors = self.clear(&bereft, forwarding);
        let mut touched: BTreeSet<(PeerIndex, IpNet)> = BTreeSet::new();
        for destination in &changes.best {
            let Some(rd) = destination.distinguisher() else {
                continue;
            };
            let peers = self.distinguishers.get(&rd).into_iter().flatten();
            for peer in peers.filter(|peer| !bereft.contains(peer)) {
                touched.insert((*peer, destination.prefix()));
            }
        }
        errors.extend(self.update(speaker, touched, forwarding));
        errors.extend(forwarding.change(&best_paths(speaker, changes, |_| None)));
        errors.extend(forwarding.follow());
        (Vec::new(), errors)
    }

    fn on_applied(&mut self, forwarding: &mut dyn Forwarding) -> Vec<ForwardingError> {
        if !self.awaited.is_empty() || self.settled {
            return Vec::new();
        }
        self.settled = true;
        forwarding.settled()
    }

    fn alarms(
        &self,
        now: Instant,
        speaker: &Speaker,
        groups: &BTreeMap<Group, usize>,
        forwarding: &mut dyn Forwarding,
    ) -> Vec<Alarm> {
        self.find_alarms(now, speaker, groups, forwarding)
    }

    fn tend(
        &mut self,
        now: Instant,
        speaker: &Speaker,
        groups: &BTreeMap<Group, usize>,
        forwarding: &mut dyn Forwarding,
    ) -> Vec<ForwardingError> {
        self.tend_probes(now, speaker, groups, forwarding)
    }

    fn poll_timeout(&self, speaker: &Speaker) -> Option<Instant> {
        let due = self
            .awaited
            .iter()
            .filter_map(|(id, _)| overdue_at(*id, speaker));
        due.chain(self.probes.poll_timeout()).min()
    }

    fn handle_timeout(&mut self, now: Instant, speaker: &Speaker) -> Vec<(NeighbourId, Family)> {
        let is_overdue = |(id, _): &(NeighbourId, Family)| {
            overdue_at(*id, speaker).is_some_and(|due| due <= now)
        };
        let overdue: Vec<_> = self.awaited.iter().copied().filter(is_overdue).collect();
        for one in &overdue {
            self.awaited.remove(one);
        }
        overdue
    }

    fn name(&self) -> &'static str {
        "egress"
    }

    fn peers(&self, _: &Speaker) -> Vec<PeerStatus> {
        let peers = self.peers.iter();
        peers
            .map(|(at, peer)| {
                let table = self.tables.get(at);
                let segments = table.into_iter().flat_map(PeerTable::segments);
                let mut segments: Vec<SegmentStatus> = segments
                    .map(|(&sid, &routes)| SegmentStatus {
                        sid,
                        routes,
                        answers: self.probes.liveness.answers(&sid),
                    })
                    .collect();
                segments.sort_by_key(|one| std::cmp::Reverse(one.routes));
                PeerStatus {
                    name: peer.name.clone(),
                    rt: peer.rt.to_string(),
                    sid: segments.first().map(|most| most.sid),
                    segments,
                    address: Some(peer.address),
                    ipv4_address: peer.ipv4_address,
                    stats: Stats(EgressPeerStats {
                        routes: table.map_or(0, PeerTable::len) as u64,
                        draining_routes: Some(self.draining.len_of(*at) as u64),
                        ..EgressPeerStats::default()
                    }),
                    kernel: None,
                }
            })
            .collect()
    }

    fn explain(&self, speaker: &Speaker, asked: IpNet, names: &[&str]) -> Vec<PeerExplanation> {
        let explain = |(at, peer): (&PeerIndex, &EndpointPeer)| {
            let table = self.tables.get(at);
            let found = covering(asked).find_map(|prefix| Some((prefix, table?.route(&prefix)?)));
            let paths: Vec<_> = found.map_or(Vec::new(), |(prefix, _)| {
                self.paths(speaker, *at, prefix).collect()
            });
            let all: Vec<&Path> = paths.iter().map(|(_, path)| *path).collect();
            let best = speaker.best_among(&all);
            let shown = paths.iter().filter_map(|(rd, path)| {
                let mut status = PathStatus::of(speaker, names, found?.0, best?, path);
                status.distinguisher = Some(rd.to_string());
                Some(status)
            });
            PeerExplanation {
                name: peer.name.clone(),
                address: Some(peer.address),
                ipv4_address: peer.ipv4_address,
                prefix: found.map(|(prefix, _)| prefix),
                via: found.map(|(_, via)| via.to_string()),
                paths: shown.collect(),
                unused: match (found, asked) {
                    (Some(_), _) => None,
                    (None, IpNet::V4(_)) if !self.has_ipv4() => Some(UnusedReason::Ipv4),
                    (None, _) => self.unused(speaker, *at, asked),
                },
                kernel: None,
            }
        };
        self.peers.iter().map(explain).collect()
    }

    fn usage(&self, speaker: &Speaker, destination: &Destination, path: &Path) -> Usage {
        if !destination.is_vpn() {
            return best_usage(speaker, destination, path);
        }
        let Some(service) = path.attributes.service else {
            return Err("it has no SRv6 SID".to_owned());
        };
        let sid = service.sid(path.label);
        let importing: Vec<PeerIndex> = self.peers_of(path).collect();
        let uses = |peer: &&PeerIndex| {
            let table = self.tables.get(*peer);
            table.and_then(|table| table.route(&destination.prefix())) == Some(Via::Segment(sid))
        };
        let tables = importing.iter().filter(uses);
        let tables: Vec<String> = tables
            .map(|peer| format!("table of {}", self.peers[peer].name))
            .collect();
        match tables.is_empty() {
            false => Ok(tables),
            true if importing.is_empty() => Err("no [[peer]] has its route target".to_owned()),
            true if self.probes.avoided.contains(&sid) => {
                Err("its segment does not answer".to_owned())
            }
            true => Err("another route with the same target is preferred".to_owned()),
        }
    }

    fn indices(&self) -> Vec<PeerIndex> {
        self.peers.keys().copied().collect()
    }

    fn end(&mut self, _: &mut dyn Forwarding) {
        // Connections continue with the installed routes until the next start or cleanup.
    }
}

/// When the End-of-RIBs of a neighbour are overdue; `None`: its session is down.
fn overdue_at(id: NeighbourId, speaker: &Speaker) -> Option<Instant> {
    Some(speaker.up_since(id)? + END_OF_RIB_TIME)
}

/// How long routes of an earlier run wait for End-of-RIB after the session came up: as long as the
/// speaker keeps stale routes (RFC 4724 §4.2).
const END_OF_RIB_TIME: Duration = Duration::from_secs(360);

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use keiro_bgp::speaker::{Action, ConnectionId, Direction, NeighbourConfig};

    use super::*;
    use crate::forwarding::Memory;

    const CONFIG: &str = r#"
[egress]
asn = 65000
router_id = "10.0.0.20"
[[reflector]]
name = "border"
address = "fd00:1::1"
passive = true
[[peer]]
name = "transit-a"
rt = "65000:10"
address = "fd00:e::a"
"#;
    const ID: NeighbourId = NeighbourId(0);

    fn speaker(router_id: [u8; 4], neighbour: NeighbourConfig) -> Speaker {
        let mut speaker = Speaker::new(keiro_bgp::speaker::SpeakerConfig {
            asn: 65000,
            router_id: router_id.into(),
        });
        speaker.add_neighbour(neighbour);
        speaker.handle(Instant::ZERO, Input::Start(ID));
        speaker
    }

    /// The server with a session to a reflector that announces nothing, not even End-of-RIB.
    fn connected(config: &EndpointConfig, now: Instant) -> Speaker {
        let of_reflector = config.reflectors[0].speaker_config();
        let of_server = NeighbourConfig {
            passive: false,
            ..of_reflector.clone()
        };
        let mut server = speaker([10, 0, 0, 20], of_reflector);
        let mut reflector = speaker([10, 0, 0, 1], of_server);
        let incoming = ConnectionId::new(ID, Direction::Incoming);
        let outgoing = ConnectionId::new(ID, Direction::Outgoing);
        assert_eq!(reflector.poll_action(), Some(Action::Connect(ID)));
        server.handle(now, Input::IncomingConnection(ID));
        assert_eq!(server.poll_action(), Some(Action::Accept(ID)));
        let local: IpAddr = "fd00:1::2".parse().unwrap();
        server.handle(now, Input::Connected(incoming, local));
        reflector.handle(now, Input::Connected(outgoing, local));
        while !server.is_up(ID) {
            let mut out = Vec::new();
            server.transmit(incoming, &mut out, 1);
            reflector.handle(now, Input::Received(outgoing, out));
            let mut out = Vec::new();
            reflector.transmit(outgoing, &mut out, 1);
            // OPEN and KEEPALIVE; UPDATEs follow once both sides are up.
            server.handle(now, Input::Received(incoming, out));
        }
        server
    }

    #[test]
    fn a_reflector_without_end_of_rib_does_not_keep_the_routes_of_an_earlier_run_for_ever() {
        let config = EndpointConfig::parse(CONFIG, "egress.toml").unwrap();
        let families = config.reflectors[0].families.len();
        let mut role = Endpoint::new(config.clone());
        let memory = Memory::default();
        let mut forwarding: Box<dyn Forwarding> = Box::new(memory.clone());
        let began = Instant::ZERO + Duration::from_secs(1);
        let mut none = Speaker::new(keiro_bgp::speaker::SpeakerConfig {
            asn: 65000,
            router_id: [10, 0, 0, 20].into(),
        });
        none.add_neighbour(config.reflectors[0].speaker_config());
        assert_eq!(
            role.poll_timeout(&none),
            None,
            "no session: nothing is overdue"
        );
        let speaker = connected(&config, began);
        let due = role.poll_timeout(&speaker).unwrap();
        assert_eq!(due, began + END_OF_RIB_TIME);
        assert_eq!(
            role.handle_timeout(due - Duration::from_nanos(1), &speaker),
            []
        );
        assert_eq!(role.handle_timeout(due, &speaker).len(), families);
        assert_eq!(role.poll_timeout(&speaker), None);
        role.on_changes(&speaker, &Changes::default(), &mut *forwarding);
        assert!(!memory.contents().settled, "best paths may wait");
        role.on_applied(&mut *forwarding);
        assert!(memory.contents().settled);
    }
}
