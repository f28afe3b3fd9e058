//! Copies of aggregates and parity: over which path each leaves, when, and whether there is room.

use keiro_units::Instant;

use super::PathManager;
use crate::{
    config::CopySpread,
    id::PathId,
    session::{
        aggregation::copies::{CopyBatch, PendingCopy},
        path::Path,
    },
    uplink::Uplinks,
};

impl PathManager {
    /// Queues the parity of the group of aggregates that is complete on a path.
    pub(crate) fn queue_parity(
        &mut self,
        now: Instant,
        of: PathId,
        spread: CopySpread,
        uplinks: &mut Uplinks,
    ) {
        let Some(path) = self.get_mut(of) else {
            return;
        };
        if let Some(copies) = path.poll_parity(now) {
            let batch = CopyBatch {
                of,
                first_gap: 0,
                copies,
            };
            self.push_copies(now, spread, batch, uplinks);
        }
    }

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
            let copy = PendingCopy::new(due, of, content);
            let refused = match to.next() {
                Some(to) => self.push_copy(now, to, copy, uplinks),
                None => Some(copy),
            };
            if let Some(copy) = refused {
                self.on_copy_dropped(&copy);
            }
        }
    }

    /// The paths behind this one that cost no more, then this one.
    fn paths_of_copies(&self, id: PathId, spread: CopySpread) -> Vec<PathId> {
        match spread {
            CopySpread::Paths => {
                // A copy costs as much as what it is a copy of.
                let price = self.get(id).map(|path| path.terms().price());
                let serves = |path: &&Path| {
                    let terms = path.terms();
                    let is_cheap = !terms.is_spent && Some(terms.price()) <= price;
                    path.is_up() && (path.id() == id || is_cheap)
                };
                let up = self.iter().filter(serves).map(Path::id);
                let mut up: Vec<PathId> = up.collect();
                let later = up.partition_point(|other| *other <= id);
                up.rotate_left(later);
                up
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
        let interval = self.get(copy.of()).map(|of| of.aggregator().interval());
        let Some((path, interval)) = self.get_mut(to).zip(interval) else {
            return Some(copy);
        };
        // Another path may have a smaller MTU.
        let is_too_long = copy.packet_bytes() > path.udp_payload_max();
        if is_too_long || path.copies().is_full() || path.is_sent_table_full() {
            return Some(copy);
        }
        // On its own path the aggregate itself has asked the pacer, and the next one pays for its
        // copies.
        if to != copy.of() {
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
        if let Some(path) = self.get_mut(copy.of()) {
            let ip_bytes = copy.packet_bytes() as u64 + u64::from(path.ip_overhead());
            path.aggregator_mut().on_copy_dropped(ip_bytes);
        }
    }
}
