//! Resets of streams that wait to be sent.

use std::collections::VecDeque;

use super::numbers::STREAMS_MAX;
use crate::{event::ResetReason, id::StreamId};

/// Resets that wait to be sent at most: as many as there may be streams of both sides.
const RESETS_MAX: usize = 2 * STREAMS_MAX;
/// Resets that are on their way and neither acknowledged nor lost at most; others wait. What is remembered of each is
/// memory that a peer takes which acknowledges nothing.
const IN_FLIGHT_MAX: usize = STREAMS_MAX;

/// A reset that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamReset {
    pub(crate) stream: StreamId,
    pub(crate) reason: ResetReason,
}

/// Resets that wait to be sent, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct ResetQueue {
    resets: VecDeque<StreamReset>,
    in_flight: usize,
}

impl ResetQueue {
    /// Queues a reset, new or lost; `false` if there is no room for it. A peer that opens streams
    /// faster than it takes their resets does not get all of them.
    pub(super) fn push(&mut self, reset: StreamReset) -> bool {
        let has_room = self.resets.len() < RESETS_MAX;
        if has_room {
            self.resets.push_back(reset);
        }
        has_room
    }

    /// The next that may be sent. It is on its way then, until it is acknowledged or lost.
    pub(super) fn pop(&mut self) -> Option<StreamReset> {
        if !self.may_send() {
            return None;
        }
        self.in_flight += 1;
        let first = self.resets.pop_front();
        if self.resets.is_empty() {
            // What thousands took is given back.
            self.resets = VecDeque::new();
        }
        first
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// One that was sent is acknowledged or lost. It may be one of before [`clear`](Self::clear).
    pub(super) fn on_resolved(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// One waits, and may be sent.
    pub(super) fn may_send(&self) -> bool {
        !self.resets.is_empty() && self.in_flight < IN_FLIGHT_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.resets.is_empty()
    }

    pub(super) fn memory(&self) -> u64 {
        (self.resets.capacity() * size_of::<StreamReset>()) as u64
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        assert!(self.resets.len() <= RESETS_MAX, "resets that wait");
        assert!(self.in_flight <= IN_FLIGHT_MAX, "resets on their way");
    }
}
