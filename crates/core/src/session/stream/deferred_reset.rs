//! Resets that wait for the bytes before them.
//!
//! TCP delivers the bytes before a reset before it reports the reset, and so does a stream that is reset
//! because its connection was. The side that resets sends the reset only when the peer has everything
//! that was written before; the side that receives it signals its driver only when that has read
//! everything. No frame is needed for this. Neither waits longer than [`QUIET_MAX`] and four round trips without a
//! byte moving, nor than [`WAIT_MAX`] in all, because a reader may have stopped for good.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_units::Instant;

use crate::{event::ResetReason, id::StreamId};

/// Longest time that a reset waits while no byte moves, beside four round trips. Ours: what is lost a few
/// times in a row is repeated within it.
const QUIET_MAX: Duration = Duration::from_secs(2);
/// Longest time that a reset waits in all. Ours: a window of 16 KiB at 5 kbit/s.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Streams whose resets wait, with their deadlines.
#[derive(Debug, Default)]
pub(super) struct DeferredResets {
    resets: BTreeMap<StreamId, WaitingReset>,
    deadlines: BTreeSet<(Instant, StreamId)>,
}

/// A reset that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeferredReset {
    pub(super) waits: Waits,
    pub(super) reason: ResetReason,
}

#[derive(Clone, Copy, Debug)]
struct WaitingReset {
    reset: DeferredReset,
    deadline: Instant,
    /// How far the deadline may be put off.
    latest: Instant,
}

/// Who does not know of a reset yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// The peer, which does not have all bytes; for our driver the stream is gone.
    Peer,
    /// Our driver, which has not read all bytes; for the peer the stream is gone.
    Driver,
}

impl DeferredResets {
    pub(super) fn get(&self, id: StreamId) -> Option<DeferredReset> {
        self.resets.get(&id).map(|waiting| waiting.reset)
    }

    pub(super) fn waits(&self, id: StreamId) -> Option<Waits> {
        self.get(id).map(|reset| reset.waits)
    }

    /// When the next one has waited for too long.
    pub(super) fn due(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The next stream whose reset has waited for too long.
    pub(super) fn next_due(&self, now: Instant) -> Option<StreamId> {
        let (at, id) = self.deadlines.first()?;
        (*at <= now).then_some(*id)
    }

    /// The reset of a stream begins to wait. `rtt`: the longest of the paths that are up.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        id: StreamId,
        reset: DeferredReset,
        rtt: Duration,
    ) {
        self.remove(id);
        let waiting = WaitingReset {
            reset,
            deadline: now,
            latest: now + WAIT_MAX,
        };
        self.resets.insert(id, waiting);
        self.on_moved(now, id, rtt);
    }

    /// Bytes of a stream have moved: its reset may wait on.
    pub(super) fn on_moved(&mut self, now: Instant, id: StreamId, rtt: Duration) {
        if let Some(waiting) = self.resets.get_mut(&id) {
            self.deadlines.remove(&(waiting.deadline, id));
            waiting.deadline = waiting.latest.min(now + QUIET_MAX + rtt * 4);
            self.deadlines.insert((waiting.deadline, id));
        }
    }

    pub(super) fn remove(&mut self, id: StreamId) {
        if let Some(waiting) = self.resets.remove(&id) {
            self.deadlines.remove(&(waiting.deadline, id));
        }
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        for (at, id) in &self.deadlines {
            let waiting = self.resets.get(id);
            let is_known = waiting.is_some_and(|waiting| waiting.deadline == *at);
            assert!(is_known, "a deadline is that of a deferred reset");
        }
        assert_eq!(
            self.resets.len(),
            self.deadlines.len(),
            "deferred resets end"
        );
    }
}
