//! The Endpoint Manager's routes: best paths into the main table, and the VPN routes of each egress
//! peer into a table of its own, by segments [egress §4.1].

use std::collections::{BTreeMap, BTreeSet};

use ipnet::{IpNet, Ipv6Net};
use keiro_bgp::{
    address::{Destination, Family, RouteDistinguisher},
    rib::{NeighbourId, Path},
    speaker::{Changes, Event, Input, Speaker},
};

use crate::{
    asbr::best_paths,
    config::{EndpointConfig, EndpointPeer, Neighbour},
    daemon::Role,
    forwarding::{Forwarding, ForwardingError, PeerIndex, RouteChange, Table, Via},
    status::{PathStatus, PeerExplanation, PeerStatus, covering},
};

/// The Endpoint Manager's part of the daemon.
pub struct Endpoint {
    config: EndpointConfig,
    /// For which peers routes of a distinguisher have been.
    distinguishers: BTreeMap<RouteDistinguisher, BTreeSet<PeerIndex>>,
    /// What is in each peer's table.
    tables: Vec<BTreeMap<Ipv6Net, Via>>,
    /// What neighbours have still to announce for the first time.
    awaited: BTreeSet<(NeighbourId, Family)>,
    settled: bool,
    /// VPN routes whose SID cannot be used.
    pub unusable: u64,
}

impl Endpoint {
    /// For a configuration.
    pub fn new(config: EndpointConfig) -> Self {
        let awaited = config.reflectors.iter().enumerate();
        let awaited = awaited.flat_map(|(place, reflector)| {
            let id = NeighbourId(place as u16);
            reflector.families.iter().map(move |family| (id, *family))
        });
        Self {
            tables: vec![BTreeMap::new(); config.peers.len()],
            distinguishers: BTreeMap::new(),
            awaited: awaited.collect(),
            settled: false,
            unusable: 0,
            config,
        }
    }

    /// The routes in an egress peer's table.
    pub fn table(&self, peer: PeerIndex) -> &BTreeMap<Ipv6Net, Via> {
        &self.tables[peer.0]
    }

    /// The peers that a path is for.
    fn peers_of(&self, path: &Path) -> impl Iterator<Item = PeerIndex> {
        let targets: Vec<_> = path.attributes.route_targets().collect();
        let peers = self.config.peers.iter().enumerate();
        peers
            .filter(move |(_, peer)| targets.contains(&peer.rt))
            .map(|(place, _)| PeerIndex(place))
    }

    /// The paths of a peer's to a prefix, one of each distinguisher.
    fn paths<'a>(
        &'a self,
        speaker: &'a Speaker,
        peer: PeerIndex,
        prefix: Ipv6Net,
    ) -> impl Iterator<Item = (RouteDistinguisher, &'a Path)> {
        let rt = self.config.peers[peer.0].rt;
        let distinguishers = self.distinguishers.iter();
        distinguishers
            .filter(move |(_, peers)| peers.contains(&peer))
            .filter_map(move |(rd, _)| {
                Some((*rd, speaker.rib().best(&Destination::Vpn6(*rd, prefix))?))
            })
            .filter(|(_, path)| path.attributes.service.is_some())
            .filter(move |(_, path)| path.attributes.route_targets().any(|found| found == rt))
    }

    /// Where a peer's table is to lead to for a prefix; `None`: nowhere.
    fn wanted(&self, speaker: &Speaker, peer: PeerIndex, prefix: Ipv6Net) -> Option<Via> {
        let paths = self.paths(speaker, peer, prefix);
        let paths: Vec<&Path> = paths.map(|(_, path)| path).collect();
        let best = speaker.best_among(&paths)?;
        let service = best.attributes.service?;
        Some(Via::Segment(service.sid(best.label)))
    }
}

impl Role for Endpoint {
    fn neighbours(&self) -> Vec<Neighbour> {
        self.config.reflectors.clone()
    }

    fn is_watched(&self, _: NeighbourId) -> bool {
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
                let agreed = speaker.status(*id).terms.families;
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
        let mut touched: BTreeSet<(PeerIndex, Ipv6Net)> = BTreeSet::new();
        for destination in &changes.best {
            let Destination::Vpn6(rd, prefix) = destination else {
                continue;
            };
            if let Some(path) = speaker.rib().best(destination) {
                self.unusable += u64::from(path.attributes.service.is_none());
                let peers: Vec<PeerIndex> = self.peers_of(path).collect();
                // Routes of nobody whom we know leave nothing behind.
                if !peers.is_empty() {
                    self.distinguishers.entry(*rd).or_default().extend(peers);
                }
            }
            for peer in self.distinguishers.get(rd).into_iter().flatten() {
                touched.insert((*peer, *prefix));
            }
        }
        let mut list = Vec::with_capacity(touched.len());
        for (peer, prefix) in touched {
            let via = self.wanted(speaker, peer, prefix);
            let table = &mut self.tables[peer.0];
            let before = match via {
                Some(via) => table.insert(prefix, via),
                None => table.remove(&prefix),
            };
            if before != via {
                list.push(RouteChange {
                    table: Table::Peer(peer),
                    destination: prefix.into(),
                    via,
                });
            }
        }
        let mut errors = Vec::new();
        // A peer that has lost everything: at once, not one by one.
        for (place, table) in self.tables.iter().enumerate() {
            let of_peer = Table::Peer(PeerIndex(place));
            if table.is_empty() && list.iter().any(|change| change.table == of_peer) {
                list.retain(|change| change.table != of_peer);
                errors.extend(forwarding.clear(of_peer).err());
            }
        }
        list.sort_by_key(|change| change.via.is_some());
        errors.extend(forwarding.change(&list));
        errors.extend(forwarding.change(&best_paths(speaker, changes)));
        errors.extend(forwarding.follow());
        if self.awaited.is_empty() && !self.settled {
            self.settled = true;
            errors.extend(forwarding.settled());
        }
        (Vec::new(), errors)
    }

    fn name(&self) -> &'static str {
        "egress"
    }

    fn peers(&self, _: &Speaker) -> Vec<PeerStatus> {
        let peers = self.config.peers.iter().zip(&self.tables);
        peers
            .map(|(peer, table)| PeerStatus {
                name: peer.name.clone(),
                rt: peer.rt.to_string(),
                sid: None,
                address: Some(peer.address),
                routes: table.len(),
                subflows: None,
                kernel: None,
            })
            .collect()
    }

    fn explain(&self, speaker: &Speaker, asked: IpNet, names: &[&str]) -> Vec<PeerExplanation> {
        let peers = self.config.peers.iter().zip(&self.tables).enumerate();
        let explain =
            |(place, (peer, table)): (usize, (&EndpointPeer, &BTreeMap<Ipv6Net, Via>))| {
                let found = covering(asked).find_map(|prefix| match prefix {
                    IpNet::V6(prefix) => table.get(&prefix).map(|via| (prefix, *via)),
                    IpNet::V4(_) => None,
                });
                let paths: Vec<_> = found.map_or(Vec::new(), |(prefix, _)| {
                    self.paths(speaker, PeerIndex(place), prefix).collect()
                });
                let all: Vec<&Path> = paths.iter().map(|(_, path)| *path).collect();
                let best = speaker.best_among(&all);
                let told = paths.iter().filter_map(|(rd, path)| {
                    let mut told = PathStatus::of(speaker, names, found?.0.into(), best?, path);
                    told.distinguisher = Some(rd.to_string());
                    Some(told)
                });
                PeerExplanation {
                    name: peer.name.clone(),
                    address: Some(peer.address),
                    prefix: found.map(|(prefix, _)| prefix.into()),
                    via: found.map(|(_, via)| via.to_string()),
                    paths: told.collect(),
                    kernel: None,
                }
            };
        peers.map(explain).collect()
    }

    fn end(&mut self, _: &mut dyn Forwarding) {
        // Connections go on by what is there, until it starts again or is told to clean up.
    }
}
