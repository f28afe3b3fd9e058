//! The numbers of streams: which of ours the peer knows, and which of the peer's were used.

use std::collections::BTreeSet;

use crate::{id::StreamId, ranges::RangeSet, session::receive_memory::RANGE_BYTES};

/// Streams that a peer may have open here, and we there.
pub(super) const STREAMS_MAX: usize = 16_384;
/// How far the peer's stream numbers may be ahead of the first one that it has not used: what
/// reordering can make of those that are open.
const NUMBERS_AHEAD_MAX: u64 = 4 * STREAMS_MAX as u64;

/// Numbers of streams in both directions. Each starts at zero when the peer restarts.
#[derive(Debug, Default)]
pub(super) struct StreamNumbers {
    /// How often the peer has restarted: streams before and after have ids of their own, because the
    /// driver may still hold old ones.
    life: u16,
    /// Number of our next stream in this life.
    next: u64,
    /// Numbers of our streams that the peer has not acknowledged.
    unconfirmed: BTreeSet<u64>,
    /// Numbers of the peer's streams that were used.
    used_by_peer: RangeSet,
}

impl StreamNumbers {
    /// The peer has restarted.
    pub(super) fn restart(&mut self) {
        *self = Self {
            life: self.life.wrapping_add(1),
            ..Self::default()
        };
    }

    /// The stream with this number on the wire; `None`: it is beyond what can have been opened.
    pub(super) fn of_wire(&self, wire: u64) -> Option<StreamId> {
        StreamId::from_wire(self.life, wire)
    }

    /// A number for a stream of ours; `None`: too far ahead of those that have not left yet, which it
    /// would use up at the peer.
    pub(super) fn open(&mut self) -> Option<StreamId> {
        let first = self.unconfirmed.first();
        if first.is_some_and(|first| self.next - first >= NUMBERS_AHEAD_MAX) {
            return None;
        }
        let id = StreamId::of_ours(self.life, self.next);
        self.unconfirmed.insert(self.next);
        self.next += 1;
        Some(id)
    }

    /// The peer knows a stream of ours, or it has ended.
    pub(super) fn on_confirmed(&mut self, id: StreamId) {
        if id.is_ours() {
            self.unconfirmed.remove(&id.number());
        }
    }

    /// The peer uses the number of a stream; `false` if it has before. One that is too far ahead uses
    /// up those far behind it: the frames that opened them must have been given up.
    pub(super) fn on_used_by_peer(&mut self, id: StreamId) -> bool {
        let number = id.number();
        let first_unused = match self.used_by_peer.first() {
            Some((0, end)) => end,
            _ => 0,
        };
        if number >= first_unused + NUMBERS_AHEAD_MAX {
            self.used_by_peer.insert(0, number + 1 - NUMBERS_AHEAD_MAX);
        }
        self.used_by_peer.insert(number, number + 1) > 0
    }

    /// What the peer makes us keep.
    pub(super) fn memory(&self) -> u64 {
        self.used_by_peer.len() as u64 * RANGE_BYTES
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        assert!(
            self.unconfirmed.iter().all(|number| *number < self.next),
            "only streams that were opened are unconfirmed"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_stream_numbers_do_not_block_later_streams() {
        let mut numbers = StreamNumbers::default();
        let mut note = |number| numbers.on_used_by_peer(StreamId::of_ours(0, number));
        assert!(note(0) && note(2) && !note(2));
        let far = 2 * NUMBERS_AHEAD_MAX;
        assert!(note(far) && !note(far));
        let oldest = far + 1 - NUMBERS_AHEAD_MAX;
        assert!(!note(1) && !note(oldest - 1));
        assert!(note(oldest) && note(far - 1));
    }
}
