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

use super::{InStream, Session};
use crate::{
    event::{ResetReason, StreamSignal},
    id::{AppId, StreamId},
};

/// Longest time that a reset waits while no byte moves, beside four round trips. Ours: what is lost a few
/// times in a row is repeated within it.
pub(crate) const QUIET_MAX: Duration = Duration::from_secs(2);
/// Longest time that a reset waits in all. Ours: a window of 16 KiB at 5 kbit/s.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(30);

/// Streams whose resets wait, with their deadlines.
#[derive(Debug, Default)]
pub(crate) struct DeferredResets {
    of: BTreeMap<StreamId, DeferredReset>,
    deadlines: BTreeSet<(Instant, StreamId)>,
}

#[derive(Clone, Copy, Debug)]
struct DeferredReset {
    /// Who does not know of the reset yet.
    waits: Waits,
    reason: ResetReason,
    deadline: Instant,
    /// The latest deadline.
    latest: Instant,
}

/// Who does not know of a reset yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// The peer, which does not have all bytes; for our driver the stream is gone.
    Peer,
    /// Our driver, which has not read all bytes; for the peer the stream is gone.
    Driver,
}

impl DeferredResets {
    pub(crate) fn waits(&self, id: StreamId) -> Option<Waits> {
        self.of.get(&id).map(|ending| ending.waits)
    }

    /// When the next one has waited for too long.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    pub(super) fn check_invariants(&self) {
        for (at, id) in &self.deadlines {
            let reset = self.of.get(id);
            let is_of = reset.is_some_and(|reset| reset.deadline == *at);
            assert!(is_of, "a deadline is that of a deferred reset");
        }
        assert_eq!(self.of.len(), self.deadlines.len(), "deferred resets end");
    }

    fn begin(&mut self, now: Instant, id: StreamId, (waits, reason): (Waits, ResetReason)) {
        self.remove(id);
        let ending = DeferredReset {
            waits,
            reason,
            deadline: now,
            latest: now + WAIT_MAX,
        };
        self.of.insert(id, ending);
    }

    /// Bytes have moved, or it has just begun.
    fn put_off(&mut self, now: Instant, id: StreamId, rtt: Duration) {
        if let Some(ending) = self.of.get_mut(&id) {
            self.deadlines.remove(&(ending.deadline, id));
            ending.deadline = ending.latest.min(now + QUIET_MAX + rtt * 4);
            self.deadlines.insert((ending.deadline, id));
        }
    }

    pub(super) fn remove(&mut self, id: StreamId) {
        if let Some(ending) = self.of.remove(&id) {
            self.deadlines.remove(&(ending.deadline, id));
        }
    }
}

impl Session {
    /// Ends both directions behind what was written; the reset carries the reason. For the driver the stream
    /// is gone at once.
    pub(crate) fn reset_stream_behind(&mut self, now: Instant, id: StreamId, reason: ResetReason) {
        let out = self.scheduler.queues().stream(id);
        // Bytes that have arrived are read there only if it is known that there is a stream.
        if out.is_none_or(|out| out.is_delivered() || out.written() == 0) {
            self.reset_stream(id, reason);
            return;
        }
        if self.streams.deferred_resets.waits(id).is_some() {
            return;
        }
        // What the peer still sends is discarded.
        self.streams.change(id, |inbound| {
            inbound.half = InStream::new(now);
        });
        self.streams.credit_wanted.remove(&id);
        self.streams
            .deferred_resets
            .begin(now, id, (Waits::Peer, reason));
        self.put_off_ending(now, id);
    }

    /// The peer has reset a stream; our driver gets the signal once it has read what came before.
    pub(super) fn end_stream_behind(
        &mut self,
        now: Instant,
        (id, app): (StreamId, AppId),
        reason: ResetReason,
    ) {
        if !self.streams.has_readable(id) {
            self.forget_stream(id);
            self.signal(app, id, StreamSignal::Reset(reason));
            return;
        }
        self.streams
            .deferred_resets
            .begin(now, id, (Waits::Driver, reason));
        self.put_off_ending(now, id);
        self.streams.credit_wanted.remove(&id);
        self.drop_send_half(id);
    }

    /// Bytes of a stream have moved, which may be the last before its end.
    pub(super) fn on_ending_moved(&mut self, now: Instant, id: StreamId) {
        let over = match self.streams.deferred_resets.waits(id) {
            None => return,
            Some(Waits::Peer) => {
                let out = self.scheduler.queues().stream(id);
                out.is_none_or(|out| out.is_delivered())
            }
            Some(Waits::Driver) => !self.streams.has_readable(id),
        };
        if over {
            self.end_stream(id);
        } else {
            self.put_off_ending(now, id);
        }
    }

    /// Ends what has waited for too long.
    pub(crate) fn end_streams(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.streams.deferred_resets.deadlines.first() {
            if at > now {
                break;
            }
            self.end_stream(id);
        }
    }

    /// Sends or signals the reset that was deferred.
    fn end_stream(&mut self, id: StreamId) {
        let Some(DeferredReset { waits, reason, .. }) =
            self.streams.deferred_resets.of.get(&id).copied()
        else {
            return;
        };
        match waits {
            Waits::Peer => self.reset_stream(id, reason),
            Waits::Driver => {
                let app = self.app_to_notify(id);
                self.forget_stream(id);
                if let Some(app) = app {
                    self.signal(app, id, StreamSignal::Reset(reason));
                }
            }
        }
    }

    fn put_off_ending(&mut self, now: Instant, id: StreamId) {
        let rtts = self.paths.iter().filter(|path| path.is_up());
        let rtt = rtts.filter_map(|path| path.rtt().smoothed()).max();
        let rtt = rtt.unwrap_or_default();
        self.streams.deferred_resets.put_off(now, id, rtt);
    }
}
