//! The border router: egress peers in, their routes out with segments [egress §3.1].
//!
//! A segment is there while its peer's session is up: it is made first and then told, and removed
//! before anybody is told that it is gone, so that no packet leaves by a peer that does not want it.
//! It leads to the peer's own table, which holds what the peer announces and is closed otherwise.

use ipnet::IpNet;
use keiro_bgp::{
    address::Destination,
    rib::{NeighbourId, Source},
    speaker::{Changes, Event, Input, Speaker, VpnExport},
    srv6::{Label, Service},
};

use crate::{
    config::{AsbrConfig, Behaviour, EgressPeer, Neighbour},
    daemon::Role,
    forwarding::{Forwarding, ForwardingError, PeerIndex, RouteChange, Table, Via},
    status::{PathStatus, PeerExplanation, PeerStatus, covering},
};

/// The border router's part of the daemon.
pub struct Asbr {
    config: AsbrConfig,
    /// By peer: whether its segment is there.
    segments: Vec<bool>,
}

/// End.DT6 (RFC 8986 §10.2): the packet inside is looked up in a table.
const END_DT6: u16 = 18;
/// The same of a segment to a neighbour.
const END_DX6: u16 = 16;

impl Asbr {
    /// For a configuration.
    pub fn new(config: AsbrConfig) -> Self {
        let segments = vec![false; config.peers.len()];
        Self { config, segments }
    }

    fn peer_of(&self, id: NeighbourId) -> Option<PeerIndex> {
        let place = usize::from(id.0);
        (place < self.config.peers.len()).then_some(PeerIndex(place))
    }

    fn open(&mut self, peer: PeerIndex, forwarding: &mut dyn Forwarding) -> Option<Input> {
        let config = &self.config.peers[peer.0];
        if let Err(error) = forwarding.add_segment(peer, config.sid) {
            let name = &config.neighbour.name;
            tracing::error!(peer = name, %error, "no segment: its routes are not exported");
            return None;
        }
        self.segments[peer.0] = true;
        let export = VpnExport {
            from: NeighbourId(peer.0 as u16),
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
        if !std::mem::take(&mut self.segments[peer.0]) {
            return None;
        }
        let config = &self.config.peers[peer.0];
        if let Err(error) = forwarding.remove_segment(peer, config.sid) {
            tracing::error!(peer = config.neighbour.name, %error, "a segment stays");
        }
        Some(Input::Unexport(config.rd))
    }
}

impl Role for Asbr {
    fn neighbours(&self) -> Vec<Neighbour> {
        let peers = self.config.peers.iter().map(|peer| peer.neighbour.clone());
        let inside = self.config.reflectors.iter().cloned();
        peers.chain(inside).collect()
    }

    fn is_watched(&self, id: NeighbourId) -> bool {
        self.peer_of(id).is_some()
    }

    fn begin(&mut self) -> Vec<Input> {
        let locator = self.config.announce_locator.then_some(self.config.locator);
        let own = self.config.announce.iter().copied();
        let own = own.chain(locator.map(Into::into));
        own.map(Input::Originate).collect()
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
        for place in 0..self.config.peers.len() {
            let id = NeighbourId(place as u16);
            if !speaker.is_up(id) && !has_routes(speaker, id) {
                inputs.extend(self.close(PeerIndex(place), forwarding));
            }
        }
        let mut list: Vec<RouteChange> = Vec::with_capacity(changes.of_neighbours.len());
        for (id, destination) in &changes.of_neighbours {
            // The table of one without a segment is gone, with all its routes.
            let Some(peer) = self.peer_of(*id).filter(|peer| self.segments[peer.0]) else {
                continue;
            };
            let path = speaker.route_of(*id, destination);
            list.push(RouteChange {
                table: Table::Peer(peer),
                destination: destination.prefix(),
                via: path.map(via),
            });
        }
        // What is no longer announced is closed before anything is opened.
        list.sort_by_key(|change| change.via.is_some());
        let mut errors = forwarding.change(&list);
        errors.extend(forwarding.change(&best_paths(speaker, changes)));
        (inputs, errors)
    }

    fn name(&self) -> &'static str {
        "asbr"
    }

    fn peers(&self, speaker: &Speaker) -> Vec<PeerStatus> {
        let peers = self.config.peers.iter().enumerate();
        peers
            .map(|(place, peer)| {
                let routes = speaker.status(NeighbourId(place as u16)).routes;
                PeerStatus {
                    name: peer.neighbour.name.clone(),
                    rt: peer.rt.to_string(),
                    sid: self.segments[place].then_some(peer.sid),
                    address: None,
                    routes: routes.values().sum(),
                    subflows: None,
                    kernel: None,
                }
            })
            .collect()
    }

    fn explain(&self, speaker: &Speaker, asked: IpNet, names: &[&str]) -> Vec<PeerExplanation> {
        let peers = self.config.peers.iter().enumerate();
        let explain = |(place, peer): (usize, &EgressPeer)| {
            let id = NeighbourId(place as u16);
            let route =
                |prefix| Some((prefix, speaker.route_of(id, &Destination::unicast(prefix))?));
            let found = covering(asked).find_map(route);
            let paths = found.map(|(of, path)| PathStatus::of(speaker, names, of, path, path));
            PeerExplanation {
                name: peer.neighbour.name.clone(),
                address: None,
                prefix: found.map(|(prefix, _)| prefix),
                via: found
                    .filter(|_| self.segments[place])
                    .map(|(_, path)| via(path).to_string()),
                paths: paths.into_iter().collect(),
                kernel: None,
            }
        };
        peers.map(explain).collect()
    }

    fn end(&mut self, forwarding: &mut dyn Forwarding) {
        for place in 0..self.config.peers.len() {
            self.close(PeerIndex(place), forwarding);
        }
        // Best paths are of sessions that end now.
        if let Err(error) = forwarding.clear(Table::Main) {
            tracing::error!(%error, "best paths stay in the main table");
        }
    }
}

/// What the main table needs for the best paths that have changed.
pub(crate) fn best_paths(speaker: &Speaker, changes: &Changes) -> Vec<RouteChange> {
    let unicast = changes
        .best
        .iter()
        .filter(|destination| !matches!(destination, Destination::Vpn6(..)));
    let change = |destination: &Destination| {
        let best = speaker.rib().best(destination);
        RouteChange {
            table: Table::Main,
            destination: destination.prefix(),
            // Routes of our own are the machine's already.
            via: best.filter(|path| path.source != Source::Local).map(via),
        }
    };
    unicast.map(change).collect()
}

fn via(path: &keiro_bgp::rib::Path) -> Via {
    Via::Router {
        address: path.attributes.next_hop,
        link_local: path.attributes.link_local,
    }
}

fn has_routes(speaker: &Speaker, id: NeighbourId) -> bool {
    speaker.status(id).routes.values().any(|count| *count > 0)
}
