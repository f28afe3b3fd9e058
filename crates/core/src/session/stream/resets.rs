//! Resets of streams that wait to be sent.

use std::collections::VecDeque;

use super::numbers::STREAMS_MAX;
use crate::{event::ResetReason, id::StreamId};

/// Resets that wait to be sent at most: as many as there may be streams of both sides.
const RESETS_MAX: usize = 2 * STREAMS_MAX;

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

    pub(super) fn pop(&mut self) -> Option<StreamReset> {
        let first = self.resets.pop_front();
        if self.resets.is_empty() {
            // What thousands took is given back.
            self.resets = VecDeque::new();
        }
        first
    }

    pub(super) fn clear(&mut self) {
        self.resets = VecDeque::new();
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
    }
}
