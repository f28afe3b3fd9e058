//! Copies of aggregates, and the parity that takes their place, that wait to leave.
//!
//! Over which path each leaves, and when, is decided by `path_manager`.

use std::collections::VecDeque;

use keiro_units::Instant;

use crate::{
    id::PathId,
    session::{recovery::ChargedTenant, sent_frames::SentFrames},
    wire::{DATA_HEADER_LEN, TAG_LEN},
};

/// Copies that wait on one path at most; at the bound further ones are dropped and counted. Ours: 10
/// ms of a hundred aggregates a millisecond, spaced widely, and 1.5 MB of full packets.
const COPIES_MAX: usize = 1024;

/// An aggregate that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentAggregate {
    pub(crate) number: u64,
    /// IP bytes of one of its copies.
    pub(crate) ip_bytes: u64,
}

/// What a copy carries.
#[derive(Debug)]
pub(crate) struct CopyContent {
    /// The clear text of its packet, not sealed yet.
    pub(crate) clear: Vec<u8>,
    pub(crate) frames: SentFrames,
    pub(crate) owner: ChargedTenant,
}

/// A copy that is still to leave.
#[derive(Debug)]
pub(crate) struct PendingCopy {
    due: Instant,
    of: PathId,
    content: CopyContent,
}

impl CopyContent {
    /// UDP payload of its packet.
    pub(crate) fn packet_bytes(&self) -> usize {
        self.clear.len() + DATA_HEADER_LEN + TAG_LEN
    }
}

impl PendingCopy {
    /// A copy of what left over the path `of`.
    pub(crate) fn new(due: Instant, of: PathId, content: CopyContent) -> Self {
        Self { due, of, content }
    }

    /// The path whose aggregate it is of.
    pub(crate) fn of(&self) -> PathId {
        self.of
    }

    /// UDP payload of its packet.
    pub(crate) fn packet_bytes(&self) -> usize {
        self.content.packet_bytes()
    }

    pub(crate) fn into_content(self) -> CopyContent {
        self.content
    }
}

/// Copies that wait to leave over one path, by the time at which they are due.
#[derive(Debug, Default)]
pub(crate) struct CopyQueue {
    copies: VecDeque<PendingCopy>,
}

impl CopyQueue {
    pub(crate) fn is_full(&self) -> bool {
        self.copies.len() >= COPIES_MAX
    }

    pub(crate) fn push(&mut self, copy: PendingCopy) {
        debug_assert!(!self.is_full(), "copies wait within their bound");
        let at = self.copies.partition_point(|other| other.due <= copy.due);
        self.copies.insert(at, copy);
    }

    /// When the first one is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.copies.front().map(|copy| copy.due)
    }

    /// The one that is due.
    pub(crate) fn next(&self, now: Instant) -> Option<&PendingCopy> {
        self.copies.front().filter(|copy| copy.due <= now)
    }

    pub(crate) fn pop(&mut self) -> Option<PendingCopy> {
        self.copies.pop_front()
    }

    pub(crate) fn take_all(&mut self) -> Vec<PendingCopy> {
        std::mem::take(&mut self.copies).into()
    }

    pub(crate) fn clear(&mut self) {
        self.copies.clear();
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        assert!(self.copies.len() <= COPIES_MAX, "copies that wait");
        assert!(
            self.copies.iter().is_sorted_by_key(|copy| copy.due),
            "copies wait in the order in which they are due"
        );
    }
}

/// Copies of what left over one path.
#[derive(Debug)]
pub(crate) struct CopyBatch {
    /// The path over which it left.
    pub(crate) of: PathId,
    /// Gaps after which the first follows, where there is time between copies.
    pub(crate) first_gap: u32,
    pub(crate) copies: Vec<CopyContent>,
}
