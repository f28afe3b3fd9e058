//! The path that an application is on, or why it is on none.

use std::collections::BTreeSet;

use keiro_control::{
    config::{AppIndex, PathIndex, Peer, PeerIndex},
    protocol::EventKind,
};
use keiro_core::PathState;

use super::View;

impl View<'_> {
    /// The path that carries what an application sends; `None`: that waits.
    pub(super) fn path_in_use(&self, index: AppIndex) -> Option<PathIndex> {
        let peer = &self.gateway.config[self.gateway.config[index].peer];
        let is_on = self.is_reached(peer) && !self.input.waiting.contains(&index);
        self.last_place(index).filter(|_| is_on)
    }

    /// The path of an application, or the one that it was on last.
    pub(super) fn last_place(&self, index: AppIndex) -> Option<PathIndex> {
        self.input.now.get(&index).copied()
    }

    /// Where an application was that is nowhere now; before the start, where it has not been anywhere since.
    pub(super) fn last_path(&self, app: &str, place: Option<PathIndex>) -> Option<PathIndex> {
        let status = self.gateway.status.app(app);
        let moved = status.and_then(|status| status.last_move.as_ref());
        let left = match moved.map(|moved| &moved.kind) {
            Some(EventKind::AppMoved {
                from: Some(from),
                to: None,
                ..
            }) => self.gateway.config.path_named(from),
            _ => None,
        };
        left.or(place)
    }

    /// Why an application that is on no path is on none, as a clause.
    pub(super) fn why_no_path(&self, index: AppIndex) -> String {
        let config = &self.gateway.config;
        let app = &config[index];
        let peer = &config[app.peer];
        let (name, peer_name) = (&app.name, &peer.name);
        if !self.is_reached(peer) {
            return format!("no path to {peer_name} is up");
        }
        let spent = self.spent(app.peer);
        if spent.is_empty() || app.is_essential() {
            return "it waits for its path to answer".to_owned();
        }
        let whose = |path: &PathIndex| {
            let path = &config[*path];
            match self.gateway.running_config.is_spent(path) {
                true => path.name.to_string(),
                false => format!("{} at {peer_name}", path.name),
            }
        };
        let spent: Vec<String> = spent.iter().map(whose).collect();
        format!(
            "the budget of the month of {} is used up, no other path to {peer_name} is up, and {name} is not essential",
            spent.join(" and ")
        )
    }

    /// The paths to a peer that are up and whose budget of the month is used up.
    pub(super) fn spent(&self, peer: PeerIndex) -> BTreeSet<PathIndex> {
        let config = &self.gateway.config;
        let up = self.input.up.keys().filter(|(_, to)| *to == peer);
        up.map(|(path, _)| *path)
            .filter(|path| {
                self.input
                    .terms(config[*path].terms(), *path, peer)
                    .is_spent
            })
            .collect()
    }

    /// The paths to a peer of which nothing has shown what they carry.
    pub(super) fn assumed(&self, peer: &Peer) -> BTreeSet<PathIndex> {
        let all = (0..self.gateway.config.paths.len()).map(PathIndex);
        let is_assumed = |path: PathIndex| {
            self.path(path, peer)
                .is_some_and(|shown| shown.rate_assumed)
        };
        all.filter(|path| is_assumed(*path)).collect()
    }

    /// A path to the peer is up.
    fn is_reached(&self, peer: &Peer) -> bool {
        let session = self.session(peer.name.as_str());
        let mut paths = session.iter().flat_map(|session| &session.paths);
        paths.any(|path| path.state == PathState::Up)
    }
}
