//! Answers to strangers that wait to leave. Packets of peers leave first, unless they would keep the
//! answers back for ever.

use std::{collections::VecDeque, net::SocketAddr};

use super::handshake_load::ReplyShare;
use crate::id::SocketId;

/// Replies that wait on each [`ReplyShare`] at most; more are dropped, their receivers ask again.
const WAITING_MAX: usize = 256;
/// Replies that leave without a look at the peers, after these had nothing to send. Ours: they take
/// some 50 µs.
const WITHOUT_A_LOOK: u32 = 16;
/// Batches of peers for each reply while they always have something to send.
const BATCHES_PER_REPLY: u32 = 8;

/// A packet that leaves beside the pacers.
pub(super) struct UnpacedPacket {
    pub(super) socket: SocketId,
    pub(super) remote: SocketAddr,
    pub(super) bytes: Vec<u8>,
}

impl From<(SocketId, SocketAddr, Vec<u8>)> for UnpacedPacket {
    fn from((socket, remote, bytes): (SocketId, SocketAddr, Vec<u8>)) -> Self {
        Self {
            socket,
            remote,
            bytes,
        }
    }
}

/// Cookie and version replies.
#[derive(Default)]
pub(super) struct Replies {
    to_peer_addresses: VecDeque<UnpacedPacket>,
    to_strangers: VecDeque<UnpacedPacket>,
    /// Replies that may leave before the peers are asked again.
    allowed: u32,
    batches: u32,
}

impl Replies {
    /// Whether there was room.
    pub(super) fn push(&mut self, share: ReplyShare, packet: UnpacedPacket) -> bool {
        let waiting = match share {
            ReplyShare::PeerAddress => &mut self.to_peer_addresses,
            ReplyShare::Strangers => &mut self.to_strangers,
        };
        let has_room = waiting.len() < WAITING_MAX;
        if has_room {
            waiting.push_back(packet);
        }
        has_room
    }

    pub(super) fn is_empty(&self) -> bool {
        self.to_peer_addresses.is_empty() && self.to_strangers.is_empty()
    }

    /// A reply that leaves before the peers are asked for packets.
    pub(super) fn poll_before_peers(&mut self) -> Option<UnpacedPacket> {
        self.allowed = self.allowed.checked_sub(1)?;
        self.pop()
    }

    /// The peers have nothing to send.
    pub(super) fn poll_behind_peers(&mut self) -> Option<UnpacedPacket> {
        self.batches = 0;
        let reply = self.pop()?;
        self.allowed = WITHOUT_A_LOOK - 1;
        Some(reply)
    }

    /// A peer had something to send.
    pub(super) fn on_peer_served(&mut self) {
        self.allowed = 0;
        self.batches += 1;
        if self.batches >= BATCHES_PER_REPLY {
            self.batches = 0;
            self.allowed = 1;
        }
    }

    fn pop(&mut self) -> Option<UnpacedPacket> {
        let to_peer = self.to_peer_addresses.pop_front();
        to_peer.or_else(|| self.to_strangers.pop_front())
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        for waiting in [&self.to_peer_addresses, &self.to_strangers] {
            assert!(waiting.len() <= WAITING_MAX, "replies that wait");
        }
    }
}
