//! What one peer may make us keep of what it sends: one budget for messages, streams and the rest.
//!
//! Messages and streams have what they were promised, used or not: a promise may be used at any time.
//! Either grows into what the other leaves free. The rest (parity, fragments, numbers) has bounds beside
//! that; it counts by use, and comes on top where promises have taken everything.

use crate::wire::{CREDIT_PER_MESSAGE, MESSAGE_LEN_MAX};

/// The least budget: two of the longest messages.
const BUDGET_MIN: u64 = 32 << 20;
/// Credit for messages that a peer begins with, at most, and at most five eighths of the budget: for one of the
/// longest, and for half of one beside it. Ours.
const MESSAGES_INITIAL: u64 = 24 << 20;
/// Room that credit for messages does not grow into, and makes again when less is left, at most, and at most a
/// sixth of the budget. Wide windows of streams leave as much to small ones: some thirty of them. Ours.
const FOR_SMALL_WINDOWS: u64 = 8 << 20;
/// Room that windows of streams do not grow into, at most, and at most a 24th of the budget: first bytes of more
/// than a hundred streams whose readers have stopped. Ours.
const FOR_FIRST_BYTES: u64 = 2 << 20;
/// The widest window of one stream, at most, and at most a third of the budget. A sender keeps no more of all
/// its streams. Ours.
const STREAM_WINDOW_MAX: u64 = 64 << 20;
/// What is kept beside messages and streams at most: parity 1 MiB, fragments 1.9 MiB, packets in parts 0.2 MiB,
/// pieces and numbers of messages and streams 6.4 MiB, resets 0.5 MiB, packets that are held for order 4.5 MiB.
const OTHERS_MAX: u64 = 15 << 20;
/// Memory of an entry of a map of ranges, with what is free in its nodes.
pub(super) const RANGE_BYTES: u64 = 40;

/// The budget of one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveMemory {
    budget: u64,
    messages_initial: u64,
    reserves: Reserves,
}

/// Which parts of a budget are for some uses alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reserves {
    small_windows: u64,
    first_bytes: u64,
    stream_window_max: u64,
}

/// What a peer may make us keep beyond what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpareMemory {
    bytes: u64,
    reserves: Reserves,
    /// Streams would have wider windows if there were more.
    streams_are_short: bool,
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
        let budget = bytes_max.max(BUDGET_MIN);
        // The longest message must always fit: otherwise it would never be sent.
        let longest = MESSAGE_LEN_MAX as u64 + CREDIT_PER_MESSAGE;
        Self {
            budget,
            messages_initial: bytes_max
                .max(longest)
                .min(budget / 8 * 5)
                .min(MESSAGES_INITIAL),
            reserves: Reserves {
                small_windows: (budget / 6).min(FOR_SMALL_WINDOWS),
                first_bytes: (budget / 24).min(FOR_FIRST_BYTES),
                stream_window_max: (budget / 3).min(STREAM_WINDOW_MAX),
            },
        }
    }

    /// Credit for messages that the peer begins with.
    pub(crate) fn messages_initial(&self) -> u64 {
        self.messages_initial
    }

    /// What may be kept or promised beyond what is. `streams_are_short`: streams wait for more of it.
    pub(crate) fn spare(&self, used: MemoryUse, streams_are_short: bool) -> SpareMemory {
        SpareMemory {
            bytes: self.budget.saturating_sub(used.total()),
            reserves: self.reserves,
            streams_are_short,
        }
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

impl SpareMemory {
    /// For whatever was promised, and for the first bytes of streams.
    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }

    /// `bytes` of it are in use from now on.
    pub(crate) fn take(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// What small windows of streams may grow into.
    pub(crate) fn for_small_windows(self) -> u64 {
        self.bytes.saturating_sub(self.reserves.first_bytes)
    }

    /// What wide windows of streams may grow into.
    pub(crate) fn for_wide_windows(self) -> u64 {
        self.bytes.saturating_sub(self.reserves.small_windows)
    }

    /// What credit for messages may grow into; `None`: it has to make room, as far as it has grown.
    pub(crate) fn for_messages(self) -> Option<u64> {
        let room = self.bytes.checked_sub(self.reserves.small_windows)?;
        (!self.streams_are_short).then_some(room)
    }

    /// The widest window of one stream.
    pub(crate) fn stream_window_max(self) -> u64 {
        self.reserves.stream_window_max
    }

    /// Bytes that are left of the default budget.
    #[cfg(test)]
    pub(crate) fn of_default(bytes: u64) -> Self {
        let memory = ReceiveMemory::new(48 << 20);
        Self {
            bytes,
            ..memory.spare(MemoryUse::default(), false)
        }
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
            let spare = memory.spare(MemoryUse::default(), false);
            assert_eq!(spare.bytes(), configured.max(BUDGET_MIN));
        }
        let large = ReceiveMemory::new(1 << 30);
        assert_eq!(large.messages_initial(), MESSAGES_INITIAL);
    }

    /// What wide windows have beside messages that have not grown.
    fn for_wide_windows(budget: u64) -> u64 {
        let memory = ReceiveMemory::new(budget);
        let used = MemoryUse {
            messages: memory.messages_initial(),
            ..MemoryUse::default()
        };
        memory.spare(used, false).for_wide_windows()
    }

    #[test]
    fn wide_windows_follow_the_budget() {
        const MIB: u64 = 1 << 20;
        for (budget, least) in [(32, 6), (40, 9), (47, 15), (48, 16), (64, 32), (256, 224)] {
            let room = for_wide_windows(budget * MIB);
            assert!(room >= least * MIB, "{room} of {budget} MiB");
        }
        for budget in 32..256 {
            let more = for_wide_windows((budget + 1) * MIB) - for_wide_windows(budget * MIB);
            assert!(more <= MIB, "{more} from {budget} MiB to the next");
        }
        let widest = |budget| {
            let memory = ReceiveMemory::new(budget);
            let spare = memory.spare(MemoryUse::default(), false);
            spare.stream_window_max()
        };
        assert_eq!(widest(48 * MIB), 16 * MIB);
        assert_eq!(widest(1 << 40), STREAM_WINDOW_MAX);
    }
}
