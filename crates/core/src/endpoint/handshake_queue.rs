//! Initiations that wait to be read. Reading one takes key agreements, as long as a hundred packets
//! take, so that only a few are read at once.
//!
//! Those from peers' addresses and from proven ones take turns; those of strangers come last. Within
//! each, networks take turns, so that no network keeps the others out.

use std::{
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

use keiro_units::Instant;

use super::{handshake_load::SourceClass, networks::network};
use crate::{datagram::DatagramMeta, wire::INITIATION_LEN};

/// Initiations are read this far apart on average. Ours: one takes 0.1 ms, and 0.25 ms if it is
/// answered.
const SPACING: Duration = Duration::from_millis(1);
/// As many may be read at once after a pause.
const BURST: u32 = 4;
/// Initiations of one [`SourceClass`] that wait at most; beyond that the oldest of the network that has
/// most gives way.
const WAITING_MAX: usize = 128;

/// An initiation that was admitted.
pub(super) struct WaitingInitiation {
    pub(super) meta: DatagramMeta,
    pub(super) packet: [u8; INITIATION_LEN],
}

/// The initiations that wait.
#[derive(Default)]
pub(super) struct HandshakeQueue {
    peer_addresses: NetworkQueues,
    proven: NetworkQueues,
    strangers: NetworkQueues,
    /// The last one read was from a peer's address.
    was_peer_address: bool,
    /// When the next one may be read if none may be read ahead.
    next: Instant,
}

/// Initiations of one source_class, by network.
#[derive(Default)]
struct NetworkQueues {
    by_network: BTreeMap<IpAddr, VecDeque<WaitingInitiation>>,
    len: usize,
    last: Option<IpAddr>,
}

impl HandshakeQueue {
    /// Adds an initiation; `false` if another had to give way.
    pub(super) fn push(
        &mut self,
        source_class: SourceClass,
        initiation: WaitingInitiation,
    ) -> bool {
        let queues = match source_class {
            SourceClass::PeerAddress => &mut self.peer_addresses,
            SourceClass::Proven => &mut self.proven,
            SourceClass::Stranger => &mut self.strangers,
        };
        queues.push(initiation)
    }

    /// The initiation to be read now, if one waits and it is time.
    pub(super) fn poll(&mut self, now: Instant) -> Option<WaitingInitiation> {
        self.due().filter(|due| *due <= now)?;
        let [first, second] = match self.was_peer_address {
            true => [SourceClass::Proven, SourceClass::PeerAddress],
            false => [SourceClass::PeerAddress, SourceClass::Proven],
        };
        let (source_class, initiation) = [first, second, SourceClass::Stranger]
            .into_iter()
            .find_map(|source_class| Some((source_class, self.queues_of(source_class).pop()?)))?;
        self.was_peer_address = source_class == SourceClass::PeerAddress;
        self.next = self.next.max(now) + SPACING;
        Some(initiation)
    }

    /// When the next one is to be read; `None`: none waits.
    pub(super) fn due(&self) -> Option<Instant> {
        let waits = self.len() > 0;
        waits.then(|| self.next - SPACING * (BURST - 1))
    }

    pub(super) fn len(&self) -> usize {
        self.peer_addresses.len + self.proven.len + self.strangers.len
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        for queues in [&self.peer_addresses, &self.proven, &self.strangers] {
            assert!(queues.len <= WAITING_MAX, "initiations that wait");
            let waiting = queues.by_network.values().map(VecDeque::len).sum::<usize>();
            assert_eq!(queues.len, waiting, "initiations that wait are counted");
        }
    }

    fn queues_of(&mut self, source_class: SourceClass) -> &mut NetworkQueues {
        match source_class {
            SourceClass::PeerAddress => &mut self.peer_addresses,
            SourceClass::Proven => &mut self.proven,
            SourceClass::Stranger => &mut self.strangers,
        }
    }
}

impl NetworkQueues {
    /// `false` if another had to give way.
    fn push(&mut self, initiation: WaitingInitiation) -> bool {
        let has_room = self.len < WAITING_MAX;
        if !has_room {
            self.drop_one();
        }
        let network = network(initiation.meta.remote.ip());
        let waiting = self.by_network.entry(network).or_default();
        waiting.push_back(initiation);
        self.len += 1;
        has_room
    }

    fn drop_one(&mut self) {
        let most = self.by_network.iter().max_by_key(|(_, of)| of.len());
        if let Some(network) = most.map(|(network, _)| *network) {
            self.pop_of(network);
        }
    }

    /// The oldest of the network whose turn it is.
    fn pop(&mut self) -> Option<WaitingInitiation> {
        let network = self.next_network()?;
        self.last = Some(network);
        self.pop_of(network)
    }

    /// The network behind the one that had the last turn.
    fn next_network(&self) -> Option<IpAddr> {
        let after = |last| {
            let later = (std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded);
            self.by_network.range(later).next()
        };
        let next = self.last.and_then(after);
        let next = next.or_else(|| self.by_network.first_key_value());
        next.map(|(network, _)| *network)
    }

    fn pop_of(&mut self, network: IpAddr) -> Option<WaitingInitiation> {
        let waiting = self.by_network.get_mut(&network)?;
        let initiation = waiting.pop_front()?;
        if waiting.is_empty() {
            self.by_network.remove(&network);
        }
        self.len -= 1;
        Some(initiation)
    }
}
