//! Copies of aggregates, and the parity that takes their place: over which path each leaves, when,
//! and whether there is room for it.
//!
//! How many there are is decided by `aggregation`, and their content by `transmit` and `parity`.

use std::collections::VecDeque;

use keiro_units::Instant;

use super::{
    path::Path,
    path_manager::PathManager,
    recovery::{Owner, SentFrames},
};
use crate::{config::CopySpread, id::PathId, uplink::Uplinks};

/// Copies that wait on one path at most; at the bound further ones are dropped and counted. Ours: 10
/// ms of a hundred aggregates a millisecond, spaced widely, and 1.5 MB of full packets.
const COPIES_MAX: usize = 1024;

/// What a copy carries.
#[derive(Debug)]
pub(crate) struct CopyContent {
    /// Unsealed.
    pub(crate) clear: Vec<u8>,
    pub(crate) frames: SentFrames,
    pub(crate) owner: Owner,
}

/// A copy that is still to leave.
#[derive(Debug)]
pub(crate) struct PendingCopy {
    due: Instant,
    /// The path whose aggregate it is of.
    of: PathId,
    content: CopyContent,
}

impl PendingCopy {
    /// UDP payload of its packet.
    pub(crate) fn packet_bytes(&self) -> usize {
        Path::packet_bytes(self.content.clear.len())
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
    /// With time between copies, the first follows after so many gaps.
    pub(crate) first_gap: u32,
    pub(crate) copies: Vec<CopyContent>,
}

impl PathManager {
    /// Queues copies on the paths that take them, which take turns.
    pub(crate) fn push_copies(
        &mut self,
        now: Instant,
        spread: CopySpread,
        batch: CopyBatch,
        uplinks: &mut Uplinks,
    ) {
        let of = batch.of;
        let mut to = self.paths_of_copies(of, spread).into_iter().cycle();
        for (content, gaps) in batch.copies.into_iter().zip(batch.first_gap..) {
            let due = match spread {
                CopySpread::Spaced(gap) => now + gap * gaps,
                CopySpread::BackToBack | CopySpread::Paths => now,
            };
            let copy = PendingCopy { due, of, content };
            let refused = match to.next() {
                Some(to) => self.push_copy(now, to, copy, uplinks),
                None => Some(copy),
            };
            if let Some(copy) = refused {
                self.on_copy_dropped(&copy);
            }
        }
    }

    /// The paths behind this one, then this one.
    fn paths_of_copies(&self, id: PathId, spread: CopySpread) -> Vec<PathId> {
        match spread {
            CopySpread::Paths => {
                let up = || self.iter().filter(|path| path.is_up()).map(Path::id);
                let after = up().filter(|other| *other > id);
                after.chain(up().filter(|other| *other <= id)).collect()
            }
            CopySpread::BackToBack | CopySpread::Spaced(_) => vec![id],
        }
    }

    /// Queues a copy on the path `to`; it is returned if there is no room for it.
    fn push_copy(
        &mut self,
        now: Instant,
        to: PathId,
        copy: PendingCopy,
        uplinks: &mut Uplinks,
    ) -> Option<PendingCopy> {
        let interval = self.get(copy.of).map(|of| of.aggregator().interval());
        let Some((path, interval)) = self.get_mut(to).zip(interval) else {
            return Some(copy);
        };
        // Another path may have a smaller MTU.
        let is_too_long = copy.packet_bytes() > path.udp_payload_max();
        if is_too_long || path.copies().is_full() || path.is_window_full() {
            return Some(copy);
        }
        // On its own path the aggregate itself has asked the pacer, and the next one pays for its
        // copies.
        if to != copy.of {
            let socket = path.socket();
            let has_room = path.pacer().may_take_copy(now, interval)
                && uplinks.may_take_copy(socket, now, interval);
            if !has_room {
                return Some(copy);
            }
            let ip_bytes = copy.packet_bytes() as u64 + u64::from(path.ip_overhead());
            path.pacer_mut().on_copy_taken(now, ip_bytes);
            uplinks.on_copy_taken(socket, now, ip_bytes);
        }
        path.copies_mut().push(copy);
        None
    }

    /// Copies are dropped because the path that they wait for is not used any more.
    pub(crate) fn on_copies_dropped(&mut self, copies: &[PendingCopy]) {
        for copy in copies {
            self.on_copy_dropped(copy);
        }
    }

    /// The peer will not see it, which the aggregation controller must not take for loss.
    fn on_copy_dropped(&mut self, copy: &PendingCopy) {
        if let Some(path) = self.get_mut(copy.of) {
            let ip_bytes = copy.packet_bytes() as u64 + u64::from(path.ip_overhead());
            path.aggregator_mut().on_copy_dropped(ip_bytes);
        }
    }
}
