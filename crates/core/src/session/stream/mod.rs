//! Streams: ordered bytes in both directions between a client at one gateway and a server at the
//! other.
//!
//! A stream is one half that sends ([`outbound`], kept in `SendQueues` with what else waits) and one
//! that receives ([`inbound`], kept here). Either side ends its own direction; a reset ends both, at once
//! or behind what was written before ([`ending`]).
//! Every stream has a window of its own, so that a reader that stops holds up its writer and no other
//! stream. What both halves need from packets is the same as for messages: ranges that are
//! acknowledged, lost and repaired.

pub(crate) mod credit_return;
pub(crate) mod deferred_reset;
pub(crate) mod inbound;
pub(crate) mod outbound;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use keiro_units::Instant;

use self::{
    deferred_reset::{DeferredResets, Waits},
    inbound::{InStream, StreamViolation},
    outbound::OutStream,
};
use super::{Session, send_queues::WritableStream};
use crate::{
    config::DeliveryClass,
    event::{ResetReason, SendError, StreamSignal},
    id::{AppId, PathId, StreamId},
    ranges::RangeSet,
};

/// Streams that a peer may have open here, and we there.
pub(crate) const STREAMS_MAX: usize = 16_384;
/// How far the peer's stream numbers may be ahead of the first one that it has not used: what
/// reordering can make of those that are open.
const NUMBERS_AHEAD_MAX: u64 = 4 * STREAMS_MAX as u64;
/// Resets that wait to be sent at most: as many as there may be streams of both sides.
const RESETS_MAX: usize = 2 * STREAMS_MAX;
/// Streams of a peer to which no path has been up for so long are reset. Ours: longer than a line that is
/// switched over or a gateway that starts again takes, and no longer than a client asks a silent server
/// for a sign of life anyway (TCP keepalive of this gateway's own connections).
pub(crate) const UNREACHABLE_AFTER: Duration = Duration::from_secs(60);
/// Bytes that all streams from one peer may be granted beyond their initial windows.
const EXTRA_WINDOWS_MAX: u64 = 64 << 20;
/// Gaps that all streams from one peer may have beyond those that every one may. Ours: some 10 MB.
const EXTRA_GAPS_MAX: u64 = 1 << 18;
/// A stream that holds anything may have memory for four times as much. Ours: a packet's worth, below
/// which nothing is gained.
const HELD_MIN: usize = 1200;

/// The receiving halves of all streams, and which numbers were used.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    open: BTreeMap<StreamId, Inbound>,
    /// Lives of the peer that have ended: streams of each have names of their own.
    life: u16,
    /// Number of our next stream in this life.
    next: u64,
    /// Numbers of the peer's streams that were seen.
    seen: RangeSet,
    theirs: usize,
    /// Streams whose credit is to be sent.
    credit_wanted: BTreeSet<StreamId>,
    extra_windows: u64,
    extra_gaps: u64,
    /// Resets that wait to be sent.
    resets: VecDeque<(StreamId, ResetReason)>,
    /// Numbers of our streams that the peer has not acknowledged.
    unconfirmed: BTreeSet<u64>,
    /// Streams that were reset, and are there for what was written before.
    deferred_resets: DeferredResets,
}

#[derive(Debug)]
struct Inbound {
    /// `None`: the frame that opens it has not come yet.
    app: Option<AppId>,
    half: InStream,
}

impl Session {
    /// Opens a stream of `app`; the peer connects it to `target`, or to its forward (`None`).
    pub(crate) fn open_stream(
        &mut self,
        now: Instant,
        app: AppId,
        target: Option<SocketAddr>,
    ) -> Result<StreamId, SendError> {
        let ours = self.streams.open.len() - self.streams.theirs;
        let entry = self
            .apps
            .get_mut(&app)
            .filter(|entry| entry.takes(DeliveryClass::Stream))
            .ok_or(SendError::UnknownApplication)?;
        // Numbers that are further ahead than that would use up those that have not left yet.
        let is_far_ahead = self
            .streams
            .unconfirmed
            .first()
            .is_some_and(|first| self.streams.next - first >= NUMBERS_AHEAD_MAX);
        if ours >= STREAMS_MAX || is_far_ahead {
            return Err(SendError::QueueFull);
        }
        entry.stats.sent_messages += 1;
        let id = StreamId::of_ours(self.streams.life, self.streams.next);
        self.streams.unconfirmed.insert(self.streams.next);
        self.streams.next += 1;
        let out = OutStream::new(app, entry.config.latency_target, Some(target));
        let path = entry.active;
        self.streams.insert(now, id, Some(app));
        let idle = self.is_coalescing_idle(path);
        self.scheduler
            .queues_mut()
            .insert_stream(now, id, out, path);
        self.on_coalescing_began(now, path, idle);
        Ok(id)
    }

    /// Takes as many of `bytes` as there is room for. Less than all: a `Writable` signal follows.
    pub(crate) fn write_stream(
        &mut self,
        now: Instant,
        id: StreamId,
        bytes: &[u8],
    ) -> Option<usize> {
        if self.streams.deferred_resets.waits(id).is_some() {
            return None;
        }
        let app = self.scheduler.queues().stream(id)?.app;
        let path = self.active_path(app);
        let idle = self.is_coalescing_idle(path);
        let taken = self
            .scheduler
            .queues_mut()
            .write_stream(now, id, bytes, path)?;
        self.on_coalescing_began(now, path, idle);
        if taken > 0
            && let Some(entry) = self.apps.get_mut(&app)
        {
            entry.stats.sent_bytes += taken as u64;
            entry.workload.on_made(now, taken);
        }
        Some(taken)
    }

    /// What `write_stream` would take; after a zero a signal follows when there is room.
    pub(crate) fn stream_room(&mut self, id: StreamId) -> Option<usize> {
        match self.streams.deferred_resets.waits(id) {
            None => self.scheduler.queues_mut().stream_room(id),
            Some(Waits::Peer) => None,
            // The driver gets the reset after it has read what came before.
            Some(Waits::Driver) => Some(0),
        }
    }

    /// Nothing more will be written.
    pub(crate) fn finish_stream(&mut self, now: Instant, id: StreamId) {
        if self.streams.deferred_resets.waits(id).is_some() {
            return;
        }
        if let Some(app) = self.scheduler.queues().stream(id).map(|stream| stream.app) {
            let path = self.active_path(app);
            let idle = self.is_coalescing_idle(path);
            self.scheduler.queues_mut().finish_stream(now, id, path);
            self.on_coalescing_began(now, path, idle);
        }
    }

    /// Ends both directions at once; a reset is sent if the peer may know the stream.
    pub(crate) fn reset_stream(&mut self, id: StreamId, reason: ResetReason) {
        let has_left = |stream: &OutStream| stream.open_has_left();
        let may_be_known = self.scheduler.queues().stream(id).is_none_or(has_left);
        if self.forget_stream(id) && may_be_known {
            self.push_reset(id, reason);
        }
    }

    /// Bytes in order that were not consumed yet, in two pieces, and whether they are the last.
    pub(crate) fn stream_data(&self, id: StreamId) -> Option<(&[u8], &[u8], bool)> {
        if self.streams.deferred_resets.waits(id) == Some(Waits::Peer) {
            return None;
        }
        let half = &self.streams.open.get(&id)?.half;
        let (first, second) = half.readable();
        let last = half.ends_after(first.len() + second.len());
        Some((first, second, last))
    }

    /// The driver has taken `count` bytes of what [`stream_data`](Self::stream_data) showed, and the
    /// end if that was shown.
    pub(crate) fn consume_stream(&mut self, now: Instant, id: StreamId, count: usize) {
        if let Some(waits) = self.streams.deferred_resets.waits(id) {
            if waits == Waits::Driver && count > 0 {
                let half = |inbound: &mut Inbound| inbound.half.consume(now, count);
                self.streams.change(id, half);
                self.on_ending_moved(now, id);
            }
            return;
        }
        let app = self.scheduler.queues().stream(id).map(|stream| stream.app);
        let path = app.and_then(|app| self.active_path(app));
        let rtt = path.and_then(|path| self.paths.get(path)?.rtt().smoothed());
        self.streams
            .consume(now, id, count, rtt.unwrap_or_default());
        self.forget_stream_if_done(id);
    }

    /// The peer opens a stream.
    pub(super) fn on_stream_open(
        &mut self,
        now: Instant,
        id: StreamId,
        app: AppId,
        target: Option<SocketAddr>,
    ) {
        if id.is_ours() {
            self.drops.malformed += 1;
            return;
        }
        match self.streams.open.get(&id) {
            Some(inbound) if inbound.app.is_some() => return,
            Some(_) => {}
            None => {
                if !self.admit_stream(now, id) {
                    return;
                }
            }
        }
        let entry = self
            .apps
            .get_mut(&app)
            .filter(|entry| entry.takes(DeliveryClass::Stream));
        let Some(entry) = entry else {
            self.reset_stream(id, ResetReason::UnknownApplication);
            return;
        };
        entry.stats.received_messages += 1;
        let (latency_target, path) = (entry.config.latency_target, entry.active);
        if let Some(inbound) = self.streams.open.get_mut(&id) {
            inbound.app = Some(app);
        }
        let out = OutStream::new(app, latency_target, None);
        self.scheduler
            .queues_mut()
            .insert_stream(now, id, out, path);
        self.signal(app, id, StreamSignal::Opened { target });
        self.signal_readable(now, id);
    }

    /// Bytes of a stream arrived.
    pub(super) fn on_stream_data(
        &mut self,
        now: Instant,
        id: StreamId,
        offset: u64,
        bytes: &[u8],
        fin: bool,
    ) {
        if !self.streams.open.contains_key(&id) && (id.is_ours() || !self.admit_stream(now, id)) {
            // The stream has ended here.
            return;
        }
        if self.streams.deferred_resets.waits(id).is_some() {
            // It is not read any more.
            return;
        }
        let Some(taken) = self.streams.on_data(id, offset, bytes, fin) else {
            return;
        };
        match taken {
            Ok((app, new)) => {
                let entry = app.and_then(|app| self.apps.get_mut(&app));
                if let Some(entry) = entry {
                    entry.stats.received_bytes += new;
                }
                self.signal_readable(now, id);
            }
            Err(StreamViolation::OverCredit) => {
                self.drops.over_credit += 1;
                self.break_stream(id, ResetReason::Protocol);
            }
            Err(StreamViolation::End | StreamViolation::Gaps) => {
                self.drops.malformed += 1;
                self.break_stream(id, ResetReason::Protocol);
            }
        }
    }

    /// The peer takes more of a stream.
    pub(super) fn on_stream_credit(&mut self, now: Instant, id: StreamId, granted: u64) {
        let Some(stream) = self.scheduler.queues().stream(id) else {
            return;
        };
        let app = stream.app;
        let path = self.active_path(app);
        self.scheduler
            .queues_mut()
            .on_stream_credit(now, id, granted, path);
        self.signal_writable(id);
    }

    /// The peer gives credit of a stream back.
    pub(super) fn on_stream_return(&mut self, now: Instant, id: StreamId, returned: u64) {
        if self.streams.deferred_resets.waits(id).is_some() {
            return;
        }
        if self.streams.on_return(now, id, returned).is_err() {
            self.drops.over_credit += 1;
            self.break_stream(id, ResetReason::Protocol);
        }
    }

    /// The peer ends both directions.
    pub(super) fn on_stream_reset(&mut self, now: Instant, id: StreamId, reason: ResetReason) {
        if self.streams.deferred_resets.waits(id) == Some(Waits::Driver) {
            return;
        }
        if !id.is_ours() {
            // The frame that opens it may still be in flight: it must not open it any more.
            self.streams.note(id);
        }
        match self.app_to_notify(id) {
            Some(app) => self.end_stream_behind(now, (id, app), reason),
            None => {
                self.forget_stream(id);
            }
        }
    }

    /// Bytes of a stream arrived at the peer.
    pub(super) fn on_stream_acked(
        &mut self,
        now: Instant,
        id: StreamId,
        (start, end, fin): (u64, u64, bool),
    ) {
        if self
            .scheduler
            .queues_mut()
            .on_stream_acked(id, start, end, fin)
        {
            for waiting in self.scheduler.queues_mut().take_waiting_for_memory() {
                self.signal_writable(waiting);
            }
        }
        self.signal_writable(id);
        self.on_ending_moved(now, id);
        self.forget_stream_if_done(id);
    }

    /// Ends every stream: the peer knows none of them any more.
    pub(super) fn reset_streams(&mut self, reason: ResetReason) {
        let open: Vec<StreamId> = self.streams.open.keys().copied().collect();
        for id in open {
            let app = self.app_to_notify(id);
            self.forget_stream(id);
            if let Some(app) = app {
                self.signal(app, id, StreamSignal::Reset(reason));
            }
        }
        self.streams.resets.clear();
    }

    /// When all streams are given up because there is no path; `None`: there is one, or no stream.
    pub(super) fn streams_unreachable_at(&self) -> Option<Instant> {
        let since = self.unreachable_since.filter(|_| self.streams.len() > 0)?;
        Some(since + UNREACHABLE_AFTER)
    }

    /// No path has come up for long enough. The peer may be there although no path is: it gets
    /// the resets when a path is up again.
    pub(super) fn give_up_streams(&mut self) {
        let ids: Vec<StreamId> = self.streams.open.keys().copied().collect();
        for id in ids {
            self.break_stream(id, ResetReason::Unreachable);
        }
    }

    /// The peer has restarted: numbers begin again in both directions, under other names here,
    /// because the driver may still hold old ones.
    pub(super) fn restart_streams(&mut self) {
        self.reset_streams(ResetReason::Gateway);
        self.streams = Streams {
            life: self.streams.life.wrapping_add(1),
            ..Streams::default()
        };
    }

    /// The stream with this number on the wire; `None`: so many cannot have been opened.
    pub(super) fn stream_of_wire(&self, wire: u64) -> Option<StreamId> {
        StreamId::from_wire(self.streams.life, wire)
    }

    /// The path that a stream's application takes.
    pub(super) fn path_of_stream(&self, id: StreamId) -> Option<PathId> {
        self.active_path(self.scheduler.queues().stream(id)?.app)
    }

    pub(super) fn on_stream_open_acked(&mut self, now: Instant, id: StreamId) {
        self.streams.unconfirmed.remove(&id.number());
        self.scheduler.queues_mut().on_stream_open_acked(id);
        self.on_ending_moved(now, id);
        self.forget_stream_if_done(id);
    }

    /// Signals to the driver that it may write again, if it was refused before.
    pub(super) fn signal_writable(&mut self, id: StreamId) {
        if let Some(app) = self.scheduler.queues_mut().take_writable(id) {
            self.signal_writable_stream(WritableStream { app, stream: id });
        }
    }

    pub(super) fn signal_writable_stream(&mut self, writable: WritableStream) {
        let WritableStream { app, stream } = writable;
        if self.streams.deferred_resets.waits(stream).is_none() {
            self.signal(app, stream, StreamSignal::Writable);
        }
    }

    fn signal_readable(&mut self, now: Instant, id: StreamId) {
        let Some(inbound) = self.streams.open.get_mut(&id) else {
            return;
        };
        let Some(app) = inbound.app else { return };
        if inbound.half.take_signal(now) {
            self.signal(app, id, StreamSignal::Readable);
        }
    }

    /// The application of a stream whose driver is to be notified of its end.
    fn app_to_notify(&self, id: StreamId) -> Option<AppId> {
        let gone = self.streams.deferred_resets.waits(id) == Some(Waits::Peer);
        let inbound = self.streams.open.get(&id).filter(|_| !gone);
        inbound.and_then(|inbound| inbound.app)
    }

    fn signal(&mut self, app: AppId, stream: StreamId, signal: StreamSignal) {
        self.receiver.signal_stream(app, stream, signal);
    }

    /// Makes room for a stream of the peer that is new; `false`: it is not, or there are too many.
    fn admit_stream(&mut self, now: Instant, id: StreamId) -> bool {
        if !self.streams.note(id) {
            return false;
        }
        if self.streams.theirs >= STREAMS_MAX {
            self.push_reset(id, ResetReason::TooMany);
            return false;
        }
        self.streams.insert(now, id, None);
        true
    }

    /// A stream ends on both sides, and here not by the driver's wish.
    fn break_stream(&mut self, id: StreamId, reason: ResetReason) {
        let app = self.app_to_notify(id);
        self.reset_stream(id, reason);
        if let Some(app) = app {
            self.signal(app, id, StreamSignal::Reset(reason));
        }
    }

    /// Queues a reset. A peer that opens streams faster than it takes their resets does not get all of
    /// them.
    fn push_reset(&mut self, stream: StreamId, reason: ResetReason) {
        if self.streams.resets.len() < RESETS_MAX {
            self.streams.resets.push_back((stream, reason));
        } else {
            self.drops.over_credit += 1;
        }
    }

    fn forget_stream_if_done(&mut self, id: StreamId) {
        let sent = self
            .scheduler
            .queues()
            .stream(id)
            .is_some_and(OutStream::is_done);
        let received = self.streams.open.get(&id);
        if sent && received.is_some_and(|inbound| inbound.half.is_done()) {
            self.forget_stream(id);
        }
    }

    /// Whether there was such a stream.
    fn forget_stream(&mut self, id: StreamId) -> bool {
        let found = self.streams.remove(id);
        self.drop_send_half(id);
        found
    }

    /// Forgets what was to be sent on a stream.
    fn drop_send_half(&mut self, id: StreamId) {
        let app = self.scheduler.queues_mut().remove_stream(id);
        for waiting in self.scheduler.queues_mut().take_waiting_for_memory() {
            self.signal_writable(waiting);
        }
        if let Some(app) = app {
            self.forget_if_done(app);
        }
    }
}

impl Streams {
    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        let halves = || self.open.values().map(|inbound| &inbound.half);
        let windows = halves().map(InStream::extra_window);
        assert_eq!(self.extra_windows, windows.sum::<u64>(), "extra windows");
        let gaps = halves().map(InStream::extra_gaps);
        assert_eq!(self.extra_gaps, gaps.sum::<u64>(), "extra gaps");
        let theirs = self.open.keys().filter(|id| !id.is_ours());
        assert_eq!(self.theirs, theirs.count(), "streams of the peer");
        assert!(self.theirs <= STREAMS_MAX, "streams of the peer");
        assert!(self.open.len() - self.theirs <= STREAMS_MAX, "our streams");
        assert!(
            self.credit_wanted
                .iter()
                .all(|id| self.open.contains_key(id)),
            "credit is sent of open streams"
        );
        assert!(
            self.unconfirmed.iter().all(|number| *number < self.next),
            "only streams that were opened are unconfirmed"
        );
        self.deferred_resets.check_invariants();
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// A stream whose credit is to be sent, and what the peer was granted of it in all.
    pub(crate) fn poll_credit(&mut self) -> Option<(StreamId, u64)> {
        let id = self.credit_wanted.pop_first()?;
        let granted = self.granted(id).expect("credit is sent of open streams");
        Some((id, granted))
    }

    fn granted(&self, id: StreamId) -> Option<u64> {
        self.open.get(&id).map(|inbound| inbound.half.granted())
    }

    /// The credit of a stream that was sent is lost.
    pub(crate) fn on_credit_lost(&mut self, id: StreamId) {
        let is_deferred = self.deferred_resets.waits(id).is_some();
        if !is_deferred && self.open.contains_key(&id) {
            self.credit_wanted.insert(id);
        }
    }

    pub(crate) fn has_resets(&self) -> bool {
        !self.resets.is_empty()
    }

    /// A reset that is to be sent.
    pub(crate) fn poll_reset(&mut self) -> Option<(StreamId, ResetReason)> {
        self.resets.pop_front()
    }

    /// A reset that was sent is lost.
    pub(crate) fn on_reset_lost(&mut self, id: StreamId, reason: ResetReason) {
        self.resets.push_back((id, reason));
    }

    /// Credit or resets are to be sent.
    pub(crate) fn has_control(&self) -> bool {
        !self.credit_wanted.is_empty() || !self.resets.is_empty()
    }

    /// When the next deferred reset has waited for too long.
    pub(crate) fn deferred_reset_due(&self) -> Option<Instant> {
        self.deferred_resets.due()
    }

    /// Bytes that were received and not taken by the driver.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.open.values().map(|inbound| inbound.half.len()).sum()
    }

    /// The driver has bytes to read of a stream.
    fn has_readable(&self, id: StreamId) -> bool {
        let inbound = self.open.get(&id);
        inbound.is_some_and(|inbound| !inbound.half.readable().0.is_empty())
    }

    fn insert(&mut self, now: Instant, id: StreamId, app: Option<AppId>) {
        self.theirs += usize::from(!id.is_ours());
        let half = InStream::new(now);
        self.open.insert(id, Inbound { app, half });
    }

    /// Takes bytes of a stream: its application, and how many more are kept. `None`: there is no such
    /// stream.
    fn on_data(
        &mut self,
        id: StreamId,
        offset: u64,
        bytes: &[u8],
        fin: bool,
    ) -> Option<Result<(Option<AppId>, u64), StreamViolation>> {
        let spare_gaps = EXTRA_GAPS_MAX.saturating_sub(self.extra_gaps);
        self.change(id, |inbound| {
            let before = inbound.half.len();
            inbound.half.on_data(offset, bytes, fin, spare_gaps)?;
            Ok((inbound.app, inbound.half.len() - before))
        })
    }

    /// The driver has taken `count` bytes, and the end if they are the last.
    fn consume(&mut self, now: Instant, id: StreamId, count: usize, rtt: Duration) {
        let spare = EXTRA_WINDOWS_MAX.saturating_sub(self.extra_windows);
        let grants = self.change(id, |inbound| {
            let half = &mut inbound.half;
            half.consume(now, count);
            if half.is_at_end() {
                half.take_end();
            }
            let grants = half.has_credit_to_grant();
            if grants {
                half.grant(now, rtt, spare);
            }
            grants
        });
        if grants == Some(true) {
            self.credit_wanted.insert(id);
        }
    }

    /// The peer has given back so much credit of a stream in all.
    fn on_return(
        &mut self,
        now: Instant,
        id: StreamId,
        returned: u64,
    ) -> Result<(), StreamViolation> {
        let grants = self.change(id, |inbound| {
            let half = &mut inbound.half;
            half.on_return(returned)?;
            // The peer may have used up what it kept, and all of it may have been consumed, when that
            // was not yet half of the window.
            let grants = half.has_credit_to_grant();
            if grants {
                half.grant(now, Duration::ZERO, 0);
            }
            Ok(grants)
        });
        if grants.transpose()? == Some(true) {
            self.credit_wanted.insert(id);
        }
        Ok(())
    }

    /// Changes the receiving half of a stream, if there is one; what its window and its gaps grow or
    /// shrink by is accounted for.
    fn change<T>(&mut self, id: StreamId, change: impl FnOnce(&mut Inbound) -> T) -> Option<T> {
        let inbound = self.open.get_mut(&id)?;
        let (window, gaps) = (inbound.half.extra_window(), inbound.half.extra_gaps());
        let result = change(inbound);
        self.extra_windows = self.extra_windows - window + inbound.half.extra_window();
        self.extra_gaps = self.extra_gaps - gaps + inbound.half.extra_gaps();
        Some(result)
    }

    fn remove(&mut self, id: StreamId) -> bool {
        let Some(inbound) = self.open.remove(&id) else {
            return false;
        };
        self.theirs -= usize::from(!id.is_ours());
        self.extra_windows -= inbound.half.extra_window();
        self.extra_gaps -= inbound.half.extra_gaps();
        if id.is_ours() {
            self.unconfirmed.remove(&id.number());
        }
        self.credit_wanted.remove(&id);
        self.deferred_resets.remove(id);
        true
    }

    /// Notes the number of a stream of the peer; `false` if it was seen before. One that is too far ahead
    /// uses up those far behind it: the frames that opened them must have been given up.
    fn note(&mut self, id: StreamId) -> bool {
        let number = id.number();
        let first_unseen = match self.seen.first() {
            Some((0, end)) => end,
            _ => 0,
        };
        if number >= first_unseen + NUMBERS_AHEAD_MAX {
            self.seen.insert(0, number + 1 - NUMBERS_AHEAD_MAX);
        }
        self.seen.insert(number, number + 1) > 0
    }
}

/// Gives memory back that is much more than what `data` holds, after bytes were taken out.
///
/// What this copies is less than what was taken out since it last did: half goes when a quarter is
/// held, and so there is as much room again as is held.
fn release(data: &mut VecDeque<u8>) {
    if data.is_empty() {
        // Thousands of idle streams keep no memory.
        *data = VecDeque::new();
        return;
    }
    let held = data.len().max(HELD_MIN);
    if data.capacity() > 4 * held {
        data.shrink_to(2 * held);
    }
}

#[cfg(test)]
mod tests;
