//! Planning from a configuration alone, for those who ask before anything runs.

use keiro_control::{
    config::{Config, PathIndex, Peer, PeerIndex},
    protocol::PlanSnapshot,
};

use crate::{
    planning::{Facts, Question},
    show::plan_snapshot,
};

/// What the gateway would plan if every path were up and nothing had been measured.
///
/// Paths without `delay` count as having none, applications without `length` or `interval` as
/// sending next to nothing. Nothing is in force, so nothing changes.
pub fn plan_of(config: &Config) -> PlanSnapshot {
    let mut facts = Facts::default();
    for (number, peer) in config.peers.iter().enumerate() {
        let leads_there = |path: &PathIndex| reaches(*path, peer);
        let paths = (0..config.paths.len()).map(PathIndex).filter(leads_there);
        facts
            .up
            .extend(paths.map(|path| ((path, PeerIndex(number)), None)));
    }
    let planned = Question::new(config, &facts).answer(config);
    PlanSnapshot {
        changes: 0,
        ..plan_snapshot(config, &planned, &facts.now)
    }
}

/// A peer without any endpoint comes to us, over whichever path it likes.
fn reaches(path: PathIndex, peer: &Peer) -> bool {
    peer.endpoints.is_empty() || peer.endpoints.contains_key(&path)
}
