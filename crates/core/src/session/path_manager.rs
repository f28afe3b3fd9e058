//! The paths to one peer: which there are, which of them is polled next, which answers a challenge.
//!
//! What one path is like is [`path`](super::path)'s; which application takes which path is
//! `path_selection`'s.

mod copies;
mod path_matcher;

use std::{net::SocketAddr, time::Duration};

use keiro_units::{Instant, Probability};

pub(crate) use self::path_matcher::Arrival;
use self::path_matcher::PathMatcher;
use super::path::{DroppedInFlight, Path, UsedNumbers};
use crate::{
    config::{AggregationConfig, PathConfig},
    id::{PathId, SocketId},
    snapshot::PathState,
    table::Table,
};

/// The paths to one peer.
#[derive(Debug, Default)]
pub(crate) struct PathManager {
    paths: Table<PathId, Path>,
    /// Of paths that were removed: packet numbers are never used twice under the same keys.
    used_numbers: Table<PathId, UsedNumbers>,
    /// The peer knows of a limit or of terms of a path that was removed. It may take another one for the same, so that
    /// new ones announce theirs even if they have none.
    removed_announced: bool,
    /// Which paths of the peer arrive on ours.
    path_matcher: PathMatcher,
    /// Paths take turns to send, beginning after this one.
    last_polled: Option<PathId>,
}

/// How the response to a challenge arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivedResponse {
    pub(crate) received_at: Instant,
    pub(crate) socket: SocketId,
    /// The path that it came over, as the peer numbers it.
    pub(crate) number: u8,
}

/// A challenge that was answered, and of which path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathValidated {
    pub(crate) path: PathId,
    pub(crate) validated: super::validation::Validated,
}

impl PathManager {
    pub(crate) fn get(&self, id: PathId) -> Option<&Path> {
        self.paths.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: PathId) -> Option<&mut Path> {
        self.paths.get_mut(id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Path> {
        self.paths.values()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Path> {
        self.paths.values_mut()
    }

    pub(crate) fn ids(&self) -> Vec<PathId> {
        self.paths.keys().collect()
    }

    /// The longest round trip of the paths that are up.
    pub(crate) fn rtt_max(&self) -> Duration {
        let up = self.iter().filter(|path| path.is_up());
        let longest = up.filter_map(|path| path.rtt().smoothed()).max();
        longest.unwrap_or_default()
    }

    /// Our path that a packet came over: it arrived at `socket` from `remote`, over the path that the peer
    /// numbers `number`.
    pub(crate) fn on_packet(
        &mut self,
        socket: SocketId,
        remote: SocketAddr,
        number: u8,
    ) -> Arrival {
        self.path_matcher
            .on_packet(&self.paths, socket, remote, number)
    }

    /// The paths whose packets use `socket` here.
    pub(crate) fn ids_of_socket(&self, socket: SocketId) -> Vec<PathId> {
        let on_socket = self.iter().filter(|path| path.socket() == socket);
        on_socket.map(Path::id).collect()
    }

    /// The path between `socket` and `remote`; if there is none, the first of the socket.
    pub(crate) fn between_mut(
        &mut self,
        socket: SocketId,
        remote: SocketAddr,
    ) -> Option<&mut Path> {
        let on_socket = self.paths.values().filter(|path| path.socket() == socket);
        let best = on_socket.min_by_key(|path| path.remote() != Some(remote));
        let id = best.map(Path::id)?;
        self.paths.get_mut(id)
    }

    /// Another path of the same socket that is up.
    pub(crate) fn sibling_up(&self, id: PathId) -> Option<PathId> {
        let socket = self.get(id)?.socket();
        let mut siblings = self
            .iter()
            .filter(|path| path.socket() == socket && path.id() != id);
        siblings.find(|path| path.is_up()).map(Path::id)
    }

    /// Challenges abandoned paths at once that share the socket of a path that has gone down, unless another
    /// of them is up.
    pub(crate) fn resume_siblings(&mut self, now: Instant, of: PathId) {
        let Some(socket) = self.get(of).map(Path::socket) else {
            return;
        };
        if self.sibling_up(of).is_none() {
            let on_socket = self.iter_mut().filter(|path| path.socket() == socket);
            on_socket.for_each(|path| path.resume(now));
        }
    }

    pub(crate) fn any_up(&self) -> bool {
        self.iter().any(Path::is_up)
    }

    pub(crate) fn any_validating(&self) -> bool {
        self.iter()
            .any(|path| path.state() == PathState::Validating)
    }

    /// The path that is up and has the shortest round trip; one that costs more, or whose probes are limited, only if
    /// there is no other, and at last one whose budget is used up.
    pub(crate) fn fastest(&self) -> Option<PathId> {
        let up = self.iter().filter(|path| path.is_up());
        up.min_by_key(|path| {
            let round_trip = path.rtt().smoothed_or_initial();
            let terms = path.terms();
            let price = (terms.is_spent, terms.price());
            (price, path.is_limited(), round_trip, path.id())
        })
        .map(Path::id)
    }

    /// The path over which packets of the peer's path `number` are acknowledged, which arrived at `socket`: the
    /// one over which they came, so that RTT samples are of one path; any other if that one is not usable.
    pub(crate) fn for_acks(&self, number: u8, socket: Option<SocketId>) -> Option<PathId> {
        let on_socket = self
            .iter()
            .filter(|path| Some(path.socket()) == socket && path.remote().is_some());
        let paired = self.path_matcher.path_of(number);
        let same = on_socket.min_by_key(|path| Some(path.id()) != paired);
        match same {
            Some(path) if path.state() != PathState::Down => Some(path.id()),
            _ => {
                let up = self.iter().find(|path| path.is_up());
                up.or(same).map(Path::id)
            }
        }
    }

    /// Sockets and addresses at which the peer may be reached, each once.
    pub(crate) fn remotes(&self) -> Vec<(SocketId, SocketAddr)> {
        let mut remotes = Vec::new();
        for path in self.iter().filter(|path| !path.is_unbound()) {
            let remote = path.remote().map(|remote| (path.socket(), remote));
            remotes.extend(remote.filter(|remote| !remotes.contains(remote)));
        }
        remotes
    }

    /// Paths that `configs` does not name, or names with another socket.
    pub(crate) fn not_in(&self, configs: &[PathConfig]) -> Vec<PathId> {
        let named: Vec<(PathId, SocketId)> = configs
            .iter()
            .map(|config| (config.id, config.socket))
            .collect();
        self.iter()
            .filter(|path| !named.contains(&(path.id(), path.socket())))
            .map(Path::id)
            .collect()
    }

    /// Adds or changes a path. What waited or was in flight is returned if it is not up.
    pub(crate) fn configure(
        &mut self,
        now: Instant,
        config: &PathConfig,
        aggregation: &AggregationConfig,
        probe_share: Probability,
    ) -> Option<DroppedInFlight> {
        let Some(path) = self.paths.get_mut(config.id) else {
            let first = self.used_numbers.remove(config.id).unwrap_or_default();
            let mut path = Path::new(config, aggregation, first);
            if self.removed_announced {
                path.announce_always();
            }
            self.paths.insert(config.id, path);
            return None;
        };
        if path.reconfigure(now, config, probe_share) {
            self.path_matcher.forget(config.id);
        }
        (!path.is_up()).then(|| path.drop_in_flight())
    }

    /// Removes a path; what waited or was in flight on it.
    pub(crate) fn remove(&mut self, id: PathId) -> Option<DroppedInFlight> {
        let mut path = self.paths.remove(id)?;
        self.removed_announced |= path.announcements().next().is_some();
        let dropped = path.drop_in_flight();
        self.path_matcher.forget(id);
        self.used_numbers.insert(id, path.used_numbers());
        Some(dropped)
    }

    pub(crate) fn on_trains_enabled(&mut self, share: Probability) {
        if share == Probability::ZERO {
            self.iter_mut().for_each(Path::on_trains_disabled);
        }
    }

    /// The peer has restarted: packet numbers begin again on every path, from `first_number`.
    pub(crate) fn on_peer_restarted(
        &mut self,
        now: Instant,
        first_number: u64,
        probe_share: Probability,
    ) {
        self.used_numbers.clear();
        self.removed_announced = false;
        self.path_matcher = PathMatcher::default();
        for path in self.paths.values_mut() {
            path.on_peer_restarted(now, first_number, probe_share);
        }
    }

    /// Takes the response to a challenge, which came over the peer's path `number` to `socket`.
    pub(crate) fn on_response(
        &mut self,
        now: Instant,
        token: u64,
        response: ArrivedResponse,
    ) -> Option<PathValidated> {
        let found = self.iter_mut().find_map(|path| {
            Some(PathValidated {
                path: path.id(),
                validated: path.on_response(now, token, response.received_at)?,
            })
        })?;
        // The peer answers over the path that has been challenged, so the two belong together.
        if self.get(found.path).map(Path::socket) == Some(response.socket) {
            self.path_matcher.on_response(found.path, response.number);
        }
        Some(found)
    }

    /// The order in which paths are asked for packets.
    pub(crate) fn polling_order(&self) -> Vec<PathId> {
        let mut ids = self.ids();
        let later = ids.partition_point(|id| Some(*id) <= self.last_polled);
        ids.rotate_left(later);
        ids
    }

    /// A path has had its turn.
    pub(crate) fn on_polled(&mut self, id: PathId) {
        self.last_polled = Some(id);
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        self.path_matcher.check_invariants(&self.paths);
        for (id, path) in self.paths.iter() {
            assert_eq!(id, path.id(), "paths are kept by their id");
            assert!(
                !self.used_numbers.contains(id),
                "used numbers are those of removed paths"
            );
            path.check_invariants();
        }
    }
}
