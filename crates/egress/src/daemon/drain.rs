//! Draining of egress peers by a command (RFC 8326): best paths and connections move to other peers before
//! a session is ended.

use keiro_bgp::rib::{NeighbourId, Source};

use super::{Daemon, Role, now};
use crate::status::{DaemonEvent, DrainStatus};

impl<R: Role> Daemon<R> {
    /// Drains an egress peer until the daemon ends, or uses it again.
    ///
    /// # Errors
    /// Why not, and what to do instead.
    pub(super) fn drain(&mut self, peer: &str, draining: bool) -> Result<DrainStatus, String> {
        let id = self.egress_peer(peer)?;
        let neighbour = self.neighbours[usize::from(id.0)].as_ref();
        let neighbour = neighbour.expect("it was found by its name");
        let (address, is_configured) = (neighbour.address, neighbour.drain);
        let is_other = match draining {
            true => self.drained.insert(address),
            false => self.drained.remove(&address),
        };
        if is_other && !is_configured {
            self.on_drain(id, peer, draining);
        }
        if is_configured && !draining {
            return Err(format!(
                "the configuration has `drain = true` for `{peer}`; remove that, and reload"
            ));
        }
        Ok(self.drain_status(id, peer))
    }

    /// How far a drain or its end has come.
    ///
    /// # Errors
    /// There is no such egress peer.
    pub(super) fn drain_progress(&self, peer: &str) -> Result<DrainStatus, String> {
        let id = self.egress_peer(peer)?;
        Ok(self.drain_status(id, peer))
    }

    fn on_drain(&mut self, id: NeighbourId, peer: &str, draining: bool) {
        if self.record.take().is_some() {
            tracing::warn!("recording ends: the policies are others");
        }
        match draining {
            true => tracing::warn!(
                peer,
                "it is drained until `undrain`, or until this daemon ends"
            ),
            false => tracing::info!(peer, "it is used again"),
        }
        let config = self.speaker_config(id).expect("it was found by its name");
        self.speaker.set_policies(now(), id, config);
        self.turn();
        self.notify_monitors(&DaemonEvent::Draining {
            peer: peer.to_owned(),
            draining,
        });
    }

    fn egress_peer(&self, name: &str) -> Result<NeighbourId, String> {
        let peers = self.role.indices().into_iter();
        let peers: Vec<NeighbourId> = peers.filter_map(|at| self.role.neighbour_of(at)).collect();
        if peers.is_empty() {
            return Err(
                "this daemon has no sessions with egress peers; ask the border router's, `keiro asbr`"
                    .to_owned(),
            );
        }
        let found = peers.iter().find(|id| self.name(**id) == name);
        found.copied().ok_or_else(|| {
            let shown = peers.iter().take(PEERS_SHOWN).map(|id| self.name(*id));
            let shown: Vec<&str> = shown.collect();
            let rest = match peers.len() > PEERS_SHOWN {
                true => ", …",
                false => "",
            };
            format!(
                "there is no egress peer `{name}`; there are {}{rest}",
                shown.join(", ")
            )
        })
    }

    fn drain_status(&self, id: NeighbourId, peer: &str) -> DrainStatus {
        let unsent = self.connections.unsent(&self.speaker);
        let unsent: Vec<String> = unsent.map(|id| self.name(id).to_owned()).collect();
        // Looking at all routes takes a while, and best paths matter when they are announced.
        let (mut best_paths, mut examples) = (None, Vec::new());
        if unsent.is_empty() {
            let all = self.speaker.rib().iter();
            let own = all.filter(|(_, paths)| {
                let best = paths.first().filter(|path| path.reachable);
                best.is_some_and(|path| path.source == Source::Neighbour(id))
            });
            let mut own = own.map(|(destination, _)| destination.prefix());
            examples.extend(own.by_ref().take(EXAMPLES_MAX));
            best_paths = Some(examples.len() + own.count());
        }
        DrainStatus {
            peer: peer.to_owned(),
            draining: self.is_drained(id),
            up: self.speaker.is_up(id),
            routes: self.speaker.status(id).routes.values().sum(),
            unsent,
            best_paths,
            examples,
        }
    }

    /// By its configuration or a command.
    pub(super) fn is_drained(&self, id: NeighbourId) -> bool {
        let neighbour = self.neighbours[usize::from(id.0)].as_ref();
        neighbour.is_some_and(|it| it.drain || self.drained.contains(&it.address))
    }

    /// Forgets those that are not neighbours any more.
    pub(super) fn forget_drained(&mut self) {
        let all = &self.neighbours;
        let is_there = |address| all.iter().flatten().any(|one| one.address == address);
        self.drained.retain(|address| is_there(*address));
    }
}

/// Prefixes without another path that are named. Ours.
const EXAMPLES_MAX: usize = 10;
/// Peers that a message names. Ours.
const PEERS_SHOWN: usize = 20;
