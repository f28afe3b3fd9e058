//! Which of a socket's receive drops are the fault of strangers, so that no peer sends less for them.
//!
//! A drop is a stranger's if the buffer would have had room without what strangers sent just before.
//! What was dropped is not seen; strangers are taken to have sent the same share of it as of what was
//! read.

use std::collections::BTreeMap;

use crate::{
    id::SocketId,
    session::{ReceiveOverflows, SocketDrops, UnauthenticatedDrops},
};

/// Divides the receive drops of each socket among peers and unauthenticated senders.
#[derive(Debug, Default)]
pub(super) struct OverflowAttribution(BTreeMap<SocketId, Arrivals>);

#[derive(Debug, Default)]
struct Arrivals {
    /// Datagrams since the counters were read last, and half of what was there before.
    strangers: u64,
    peers: u64,
    /// The counters as they were read last.
    counted: ReceiveOverflows,
    /// Of these, the peers' own.
    of_peers: ReceiveOverflows,
}

impl OverflowAttribution {
    pub(super) fn on_datagram(&mut self, socket: SocketId, is_of_peer: bool) {
        let arrivals = self.0.entry(socket).or_default();
        match is_of_peer {
            true => arrivals.peers = arrivals.peers.saturating_add(1),
            false => arrivals.strangers = arrivals.strangers.saturating_add(1),
        }
    }

    /// Divides what the kernel's counters of a socket show among peers and strangers.
    pub(super) fn on_counters(
        &mut self,
        socket: SocketId,
        counters: ReceiveOverflows,
    ) -> SocketDrops {
        self.0.entry(socket).or_default().on_counters(counters)
    }
}

impl Arrivals {
    fn on_counters(&mut self, counters: ReceiveOverflows) -> SocketDrops {
        let dropped = counters.socket.saturating_sub(self.counted.socket);
        let socket = self.of_peers(dropped);
        let strangers = UnauthenticatedDrops {
            dropped: dropped - socket,
            arrivals: self.strangers.saturating_add(self.peers),
        };
        let system = self.of_peers(counters.system.saturating_sub(self.counted.system));
        self.of_peers = ReceiveOverflows {
            socket: self.of_peers.socket.saturating_add(socket),
            system: self.of_peers.system.saturating_add(system),
        };
        self.counted = ReceiveOverflows {
            socket: counters.socket.max(self.counted.socket),
            system: counters.system.max(self.counted.system),
        };
        // What waited in the buffer when it overflowed is read later than the counter.
        self.strangers /= 2;
        self.peers /= 2;
        SocketDrops {
            of_peers: self.of_peers,
            strangers,
        }
    }

    /// Of `dropped` drops, those that there would have been without strangers.
    fn of_peers(&self, dropped: u64) -> u64 {
        let (strangers, peers) = (u128::from(self.strangers), u128::from(self.peers));
        let unseen = u128::from(dropped) * strangers / (strangers + peers).max(1);
        let by_strangers = strangers + unseen;
        dropped.saturating_sub(u64::try_from(by_strangers).unwrap_or(u64::MAX))
    }
}
