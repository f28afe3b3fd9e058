//! What one peer may make us keep of what it sends: one budget for messages, streams and the rest.
//!
//! Messages and streams have what they were promised, used or not: a promise may be used at any time.
//! Either grows into what the other leaves free. The rest (parity, fragments, numbers) has bounds beside
//! that; it counts by use, and comes on top where promises have taken everything.

use crate::wire::{CREDIT_PER_MESSAGE, MESSAGE_LEN_MAX};

/// The least budget: two of the longest messages.
const BUDGET_MIN: u64 = 32 << 20;
/// Credit for messages that a peer begins with. Ours: for one of the longest, and for half of one beside it.
const MESSAGES_INITIAL: u64 = 24 << 20;
/// Room that credit for messages does not grow into, and makes again when less is left. Wide windows of
/// streams leave as much to small ones: some thirty of them. Ours.
pub(super) const FOR_SMALL_WINDOWS: u64 = 8 << 20;
/// Room that windows of streams do not grow into: first bytes of more than a hundred streams whose
/// readers have stopped. Ours.
pub(super) const FOR_FIRST_BYTES: u64 = 2 << 20;
/// What is kept beside messages and streams at most: parity 1 MiB, fragments 2 MiB, pieces and numbers of
/// messages and streams 6.4 MiB, resets 0.5 MiB.
const OTHERS_MAX: u64 = 10 << 20;
/// Memory of an entry of a map of ranges, with what is free in its nodes.
pub(super) const RANGE_BYTES: u64 = 40;

/// The budget of one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveMemory {
    budget: u64,
    messages_initial: u64,
}

/// What is taken of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryUse {
    /// Messages that are kept, and credit for more.
    pub(crate) messages: u64,
    /// Windows of streams, and what is kept of those that have only their first one.
    pub(crate) streams: u64,
    pub(crate) others: u64,
}

impl MemoryUse {
    pub(crate) fn total(&self) -> u64 {
        self.messages + self.streams + self.others
    }
}

impl ReceiveMemory {
    /// `bytes_max`: as the driver has configured it.
    pub(crate) fn new(bytes_max: u64) -> Self {
        // The longest message must always fit: otherwise it would never be sent.
        let longest = MESSAGE_LEN_MAX as u64 + CREDIT_PER_MESSAGE;
        Self {
            budget: bytes_max.max(BUDGET_MIN),
            messages_initial: bytes_max.max(longest).min(MESSAGES_INITIAL),
        }
    }

    /// Credit for messages that the peer begins with.
    pub(crate) fn messages_initial(&self) -> u64 {
        self.messages_initial
    }

    /// What may be kept or promised beyond what is.
    pub(crate) fn spare(&self, used: MemoryUse) -> u64 {
        self.budget.saturating_sub(used.total())
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self, used: MemoryUse) {
        assert!(
            used.messages + used.streams <= self.budget,
            "messages and streams of a peer keep to its budget: {used:?}"
        );
        assert!(used.others <= OTHERS_MAX, "what has other bounds: {used:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_may_always_send_the_longest_message() {
        for (configured, initial) in [(0, (16 << 20) + 8 + 256), (20 << 20, 20 << 20)] {
            let memory = ReceiveMemory::new(configured);
            assert_eq!(memory.messages_initial(), initial);
            assert_eq!(memory.spare(MemoryUse::default()), BUDGET_MIN);
        }
        let large = ReceiveMemory::new(1 << 30);
        assert_eq!(large.messages_initial(), MESSAGES_INITIAL);
    }
}
