//! Turns: how much is done for a peer before others are served.
//!
//! Peers share a socket and a thread. In a turn, each has packets handled up to a cost that a model gives
//! ([`cost`](crate::session)); further ones wait in a queue of the peer's own, in their order, and are handled
//! in later turns. So what others get does not depend on what one of them sends (deficit round robin,
//! Shreedhar and Varghese 1996).

use std::collections::{BTreeMap, VecDeque};

use std::time::Duration;

use keiro_units::Instant;

use crate::{datagram::DatagramMeta, id::PeerId};

/// Cost after which a peer's packets wait for the next turn. Ours: thousands of packets of ordinary traffic,
/// more than a batch of the kernel has.
const QUANTUM: u64 = 500_000;
/// While packets wait and none arrive, turns begin this far apart: what a quantum takes by the model.
const SPACING: Duration = Duration::from_nanos(QUANTUM);
/// Cost of packets that have waited, of all peers in one turn.
const WAITED_MAX: u64 = 1_000_000;
/// Packets of a peer that wait, and their bytes; then the oldest is dropped. Ours: two batches of the kernel.
const PACKETS_MAX: usize = 512;
const BYTES_MAX: usize = 1 << 20;

/// What was done in this turn, and what waits.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The driver has begun one. Drivers that begin none have everything handled at once.
    has_begun: bool,
    begun_at: Instant,
    /// What was done for peers in this turn.
    spent: BTreeMap<PeerId, u64>,
    /// What was done of that for packets that had waited.
    spent_on_waiting: u64,
    waiting: BTreeMap<PeerId, Waiting>,
    /// Peers whose packets wait take turns, beginning after this one.
    last_served: Option<PeerId>,
}

#[derive(Debug, Default)]
struct Waiting {
    packets: VecDeque<(DatagramMeta, Vec<u8>)>,
    bytes: usize,
}

impl Turns {
    /// A turn begins.
    pub(super) fn begin(&mut self, now: Instant) {
        // What a packet cost is known after it: what was too much counts in the next turns, those included that
        // could have begun since the last one.
        let passed = now.saturating_duration_since(self.begun_at).as_nanos() / SPACING.as_nanos();
        let paid = QUANTUM.saturating_mul(u64::try_from(passed).unwrap_or(u64::MAX).max(1));
        self.spent.retain(|_, spent| {
            *spent = spent.saturating_sub(paid);
            *spent > 0
        });
        self.has_begun = true;
        self.begun_at = now;
        self.spent_on_waiting = 0;
    }

    /// A packet of the peer may be handled now: it has something left of its turn, and none waits before.
    pub(super) fn admits(&self, peer: PeerId) -> bool {
        !self.has_begun || !self.waiting.contains_key(&peer) && !self.is_spent(peer)
    }

    /// Something was done for a peer.
    pub(super) fn on_cost(&mut self, peer: PeerId, cost: u64) {
        if self.has_begun {
            *self.spent.entry(peer).or_default() += cost;
        }
    }

    /// Keeps a packet for a later turn. How many others were dropped for it.
    pub(super) fn push(&mut self, peer: PeerId, meta: DatagramMeta, packet: Vec<u8>) -> u64 {
        let waiting = self.waiting.entry(peer).or_default();
        waiting.bytes += packet.len();
        waiting.packets.push_back((meta, packet));
        let mut dropped = 0;
        while waiting.packets.len() > PACKETS_MAX || waiting.bytes > BYTES_MAX {
            let Some((_, oldest)) = waiting.packets.pop_front() else {
                break;
            };
            waiting.bytes -= oldest.len();
            dropped += 1;
        }
        dropped
    }

    /// The next packet that has waited, of the peer whose turn it is. `None`: there is none, or enough was
    /// done.
    pub(super) fn poll(&mut self) -> Option<(PeerId, DatagramMeta, Vec<u8>)> {
        if self.spent_on_waiting >= WAITED_MAX {
            return None;
        }
        let after = |peer: &PeerId| Some(*peer) > self.last_served;
        let may = |peer: &PeerId| !self.is_spent(*peer);
        let next = self.waiting.keys().copied().filter(may);
        let peer = next.clone().find(after).or_else(|| next.clone().next())?;
        self.last_served = Some(peer);
        let waiting = self.waiting.get_mut(&peer)?;
        let (meta, packet) = waiting.packets.pop_front()?;
        waiting.bytes -= packet.len();
        if waiting.packets.is_empty() {
            self.waiting.remove(&peer);
        }
        Some((peer, meta, packet))
    }

    /// A packet that had waited was handled.
    pub(super) fn on_waited(&mut self, cost: u64) {
        self.spent_on_waiting += cost;
    }

    /// When the next turn begins for packets that wait; `None`: none does.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.begun_at + SPACING)
    }

    /// A peer was removed.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.waiting.remove(&peer);
        self.spent.remove(&peer);
    }

    fn is_spent(&self, peer: PeerId) -> bool {
        self.spent.get(&peer).is_some_and(|spent| *spent >= QUANTUM)
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        for waiting in self.waiting.values() {
            assert!(!waiting.packets.is_empty(), "peers wait with something");
            assert!(waiting.packets.len() <= PACKETS_MAX, "packets that wait");
            let bytes = waiting.packets.iter().map(|(_, packet)| packet.len());
            assert_eq!(waiting.bytes, bytes.sum::<usize>(), "bytes that wait");
            assert!(waiting.bytes <= BYTES_MAX, "bytes that wait");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_beyond_a_turn_is_charged_to_the_next_turns() {
        let (hostile, honest) = (PeerId(1), PeerId(2));
        let mut turns = Turns::default();
        turns.begin(Instant::ZERO);
        assert!(turns.admits(hostile));
        turns.on_cost(hostile, 10 * QUANTUM);
        for turn in 1..=10 {
            assert!(!turns.admits(hostile), "{turn}");
            turns.begin(Instant::ZERO);
            assert!(turns.admits(honest), "{turn}");
        }
        assert!(turns.admits(hostile));
    }

    #[test]
    fn time_between_turns_repays_the_excess() {
        let mut turns = Turns::default();
        turns.begin(Instant::ZERO);
        turns.on_cost(PeerId(1), 10 * QUANTUM);
        turns.begin(Instant::ZERO + 9 * SPACING);
        assert!(!turns.admits(PeerId(1)));
        turns.begin(Instant::ZERO + 10 * SPACING);
        assert!(turns.admits(PeerId(1)));
    }
}
