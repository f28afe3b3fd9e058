//! The border router: egress peers in, their routes out with segments [egress §3.1].
//!
//! A segment is there while its peer's session is up: it is made first and then told, and removed
//! before anybody is told that it is gone, so that no packet leaves by a peer that does not want it.
//! It leads to the peer's own table, which holds what the peer announces and is closed otherwise.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use ipnet::IpNet;
use keiro_bgp::{
    address::Destination,
    rib::{NeighbourId, Source},
    speaker::{Changes, Event, Input, Speaker, VpnExport},
    srv6::{Label, Service},
};

use crate::{
    config::{AsbrConfig, Behaviour, ConfigError, EgressPeer, Neighbour, SpeakerConfig},
    daemon::Role,
    forwarding::{Configured, Forwarding, ForwardingError, PeerIndex, RouteChange, Table, Via},
    reload::{keep_speaker, keep_tables, keep_value, needs},
    status::{PathStatus, PeerExplanation, PeerStatus, covering},
};

/// The border router's part of the daemon.
pub struct Asbr {
    config: AsbrConfig,
    /// By the numbers of their neighbours.
    peers: BTreeMap<PeerIndex, EgressPeer>,
    /// Those whose segment is there.
    segments: BTreeSet<PeerIndex>,
}

/// End.DT6 (RFC 8986 §10.2): the packet inside is looked up in a table.
const END_DT6: u16 = 18;
/// The same of a segment to a neighbour.
const END_DX6: u16 = 16;

impl Asbr {
    /// For a configuration.
    pub fn new(config: AsbrConfig) -> Self {
        Self {
            peers: (0..)
                .map(PeerIndex)
                .zip(config.peers.iter().cloned())
                .collect(),
            segments: BTreeSet::new(),
            config,
        }
    }

    fn peer_of(&self, id: NeighbourId) -> Option<PeerIndex> {
        let peer = PeerIndex(usize::from(id.0));
        self.peers.contains_key(&peer).then_some(peer)
    }

    fn open(&mut self, peer: PeerIndex, forwarding: &mut dyn Forwarding) -> Option<Input> {
        let config = &self.peers[&peer];
        if let Err(error) = forwarding.add_segment(peer, config.sid) {
            let name = &config.neighbour.name;
            tracing::error!(peer = name, %error, "no segment: its routes are not exported");
            return None;
        }
        self.segments.insert(peer);
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
        };
        Some(Input::Export(config.rd, export))
    }

    fn close(&mut self, peer: PeerIndex, forwarding: &mut dyn Forwarding) -> Option<Input> {
        if !self.segments.remove(&peer) {
            return None;
        }
        let config = &self.peers[&peer];
        if let Err(error) = forwarding.remove_segment(peer, config.sid) {
            tracing::error!(peer = config.neighbour.name, %error, "a segment stays");
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
                peer.sid,
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
        // Peers come first among neighbours.
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
        // A peer that restarts keeps its segment as long as its routes.
        let keeps = !up && has_routes(speaker, id);
        match (up, keeps) {
            (true, _) => self.open(peer, forwarding).into_iter().collect(),
            (false, true) => Vec::new(),
            (false, false) => self.close(peer, forwarding).into_iter().collect(),
        }
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
            // The table of one without a segment is gone, with all its routes.
            let Some(peer) = self
                .peer_of(*id)
                .filter(|peer| self.segments.contains(peer))
            else {
                continue;
            };
            let path = speaker.route_of(*id, destination);
            list.push(RouteChange {
                table: Table::Peer(peer),
                destination: destination.prefix(),
                via: path.map(|path| via(path, Some(peer))),
            });
        }
        // What is no longer announced is closed before anything is opened.
        list.sort_by_key(|change| change.via.is_some());
        let mut errors = forwarding.change(&list);
        let best = best_paths(speaker, changes, |id| self.peer_of(id));
        errors.extend(forwarding.change(&best));
        (inputs, errors)
    }

    fn name(&self) -> &'static str {
        "asbr"
    }

    fn peers(&self, speaker: &Speaker) -> Vec<PeerStatus> {
        let peers = self.peers.iter();
        peers
            .map(|(&at, peer)| {
                let routes = speaker.status(id_of(at)).routes;
                PeerStatus {
                    name: peer.neighbour.name.clone(),
                    rt: peer.rt.to_string(),
                    sid: self.segments.contains(&at).then_some(peer.sid),
                    address: None,
                    routes: routes.values().sum(),
                    subflows: None,
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
                // One that is not considered is told as such.
                let mut all = speaker.rib().paths(&of).iter();
                let any = || all.find(|path| path.source == Source::Neighbour(id));
                Some((prefix, speaker.route_of(id, &of).or_else(any)?))
            };
            let found = covering(asked).find_map(route);
            let paths = found.map(|(of, path)| PathStatus::of(speaker, names, of, path, path));
            PeerExplanation {
                name: peer.neighbour.name.clone(),
                address: None,
                prefix: found.map(|(prefix, _)| prefix),
                via: found
                    .filter(|(_, path)| path.reachable && self.segments.contains(at))
                    .map(|(_, path)| via(path, Some(*at)).to_string()),
                paths: paths.into_iter().collect(),
                kernel: None,
            }
        };
        self.peers.iter().map(explain).collect()
    }

    fn indices(&self) -> Vec<PeerIndex> {
        self.peers.keys().copied().collect()
    }

    fn end(&mut self, forwarding: &mut dyn Forwarding) {
        for peer in self.segments.clone() {
            self.close(peer, forwarding);
        }
        // Best paths are of sessions that end now.
        if let Err(error) = forwarding.clear(Table::Main) {
            tracing::error!(%error, "best paths stay in the main table");
        }
    }
}

/// Under which number a peer is the speaker's neighbour.
fn id_of(peer: PeerIndex) -> NeighbourId {
    NeighbourId(peer.0 as u16)
}

/// Prefixes of our own.
fn originated(config: &AsbrConfig) -> BTreeSet<IpNet> {
    let locator = config.announce_locator.then_some(config.locator.into());
    config.announce.iter().copied().chain(locator).collect()
}

/// What the main table needs for the best paths that have changed.
pub(crate) fn best_paths(
    speaker: &Speaker,
    changes: &Changes,
    peer_of: impl Fn(NeighbourId) -> Option<PeerIndex>,
) -> Vec<RouteChange> {
    let unicast = changes
        .best
        .iter()
        .filter(|destination| !matches!(destination, Destination::Vpn6(..)));
    let change = |destination: &Destination| {
        let best = speaker.rib().best(destination).and_then(|path| {
            // Routes of our own are the machine's already.
            let Source::Neighbour(from) = path.source else {
                return None;
            };
            Some(via(path, peer_of(from)))
        });
        RouteChange {
            table: Table::Main,
            destination: destination.prefix(),
            via: best,
        }
    };
    unicast.map(change).collect()
}

fn via(path: &keiro_bgp::rib::Path, peer: Option<PeerIndex>) -> Via {
    Via::Router {
        peer,
        address: path.attributes.next_hop,
        link_local: path.attributes.link_local,
    }
}

fn has_routes(speaker: &Speaker, id: NeighbourId) -> bool {
    speaker.status(id).routes.values().any(|count| *count > 0)
}
