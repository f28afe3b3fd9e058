//! Which of our paths a packet of the peer came over, where several of them share a socket.
//!
//! A gateway with one address may have a peer with several uplinks, and a gateway with one uplink a peer with
//! several addresses. Packets then arrive at one socket that belong to different paths. The peer numbers its
//! paths, and each number is paired with one of our paths of the socket at which its packets arrive. Without
//! that, a path would follow the peer from one of its uplinks to the other with every packet.

use std::net::SocketAddr;

use super::Path;
use crate::{
    id::{PathId, SocketId},
    table::Table,
};

/// Our path on which each of the peer's arrives, by the peer's number. Several may arrive on one of ours, as where
/// the peer reaches one socket at two addresses.
#[derive(Debug, Default)]
pub(super) struct PathMatcher {
    pairs: Table<u8, Pair>,
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    path: PathId,
    /// Where the peer's path was last seen; `None`: nothing but an answer has come over it.
    remote: Option<SocketAddr>,
}

/// What a packet came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// This path of ours.
    Path(PathId),
    /// A path of the peer for which none of ours is left at the socket: each of our paths there is up for another
    /// one. The value is their number.
    Beyond(usize),
    /// No path uses the socket.
    NoPath,
}

impl PathMatcher {
    /// Our path on which the peer's path `number` arrives; `None`: not known yet.
    pub(super) fn path_of(&self, number: u8) -> Option<PathId> {
        self.pairs.get(number).map(|pair| pair.path)
    }

    /// Decides for an authentic packet of the peer's path `number`, in this order: the path that leads to `remote`;
    /// the one that is paired with the number, so that a peer that appears elsewhere keeps its path; one that has no
    /// pair and no address; one without a pair; any that is not up.
    pub(super) fn on_packet(
        &mut self,
        paths: &Table<PathId, Path>,
        socket: SocketId,
        remote: SocketAddr,
        number: u8,
    ) -> Arrival {
        let mut best: Option<(Rank, PathId)> = None;
        let mut count = 0;
        for path in paths.values().filter(|path| path.socket() == socket) {
            count += 1;
            let rank = self.rank(path, remote, number);
            if let Some(rank) = rank
                && best.is_none_or(|(other, _)| rank < other)
            {
                best = Some((rank, path.id()));
            }
        }
        let Some((rank, id)) = best else {
            return match count {
                0 => Arrival::NoPath,
                _ => Arrival::Beyond(count),
            };
        };
        if rank == Rank::NotUp {
            self.forget(id);
        }
        let seen = Pair {
            path: id,
            remote: Some(remote),
        };
        let is_new = self.path_of(number) != Some(id);
        self.pairs.insert(number, seen);
        if is_new && rank == Rank::SameRemote {
            // What was paired with it while it was looked for elsewhere would take it there again.
            self.pairs
                .retain(|_, other| other.path != id || other.remote == seen.remote);
        }
        Arrival::Path(id)
    }

    fn rank(&self, path: &Path, remote: SocketAddr, number: u8) -> Option<Rank> {
        if path.remote() == Some(remote) {
            return Some(Rank::SameRemote);
        }
        if self.path_of(number) == Some(path.id()) {
            return Some(Rank::Paired);
        }
        let is_paired = self.pairs.values().any(|pair| pair.path == path.id());
        match is_paired {
            false if path.remote().is_none() => Some(Rank::Vacant),
            false => Some(Rank::Unpaired),
            true if !path.is_up() => Some(Rank::NotUp),
            true => None,
        }
    }

    /// The peer answers a challenge over its path `number`: that one arrives on ours, if nothing else is known.
    pub(super) fn on_response(&mut self, id: PathId, number: u8) {
        self.pairs.get_or_insert_with(number, || Pair {
            path: id,
            remote: None,
        });
    }

    /// The path is gone, or leads elsewhere.
    pub(super) fn forget(&mut self, id: PathId) {
        self.pairs.retain(|_, pair| pair.path != id);
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self, paths: &Table<PathId, Path>) {
        assert!(
            self.pairs.values().all(|pair| paths.contains(pair.path)),
            "pairs are those of paths that there are"
        );
    }
}

/// How well a path of ours suits a packet, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    SameRemote,
    Paired,
    Vacant,
    Unpaired,
    NotUp,
}
