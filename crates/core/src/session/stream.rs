//! Streams: ordered bytes in both directions between a client at one gateway and a server at the
//! other.
//!
//! [`Streams`] is the component. A stream is one half that sends and one that receives
//! ([`inbound`]). Receiving halves are kept here ([`receive_halves`]). Sending halves are kept by
//! [`SendQueues`], because a stream takes its turns among messages and datagrams and its place among
//! them changes with every byte that is written, sent or acknowledged; they are created and removed
//! here. Either side ends its own direction; a reset ends both, at once or after what was written
//! before ([`deferred_reset`]). Every stream has a window of its own, so that a reader that stops
//! holds up its writer and no other stream.
//!
//! An operation gets the components that it uses in a [`StreamContext`]. What follows for the rest of
//! the session is polled with [`Streams::poll_event`].

mod deferred_reset;
mod from_peer;
pub(crate) mod inbound;
mod numbers;
mod receive_halves;
mod resets;

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use keiro_units::Instant;

use self::{
    deferred_reset::{DeferredReset, DeferredResets, Waits},
    numbers::{STREAMS_MAX, StreamNumbers},
    receive_halves::{Consumption, ReceiveHalves, StreamCredit},
    resets::{ResetQueue, StreamReset},
};
use super::{
    applications::Applications,
    path_manager::PathManager,
    receive_memory::SpareMemory,
    scheduler::SendScheduler,
    send_queues::{OutStream, SendQueues, WritableStream},
    sent_frames::{SentFrame, SentFrames},
};
use crate::{
    config::DeliveryClass,
    event::{ResetReason, SendError, StreamSignal},
    id::{AppId, PathId, StreamId},
    snapshot::DropCounters,
    wire::Frame,
};

/// Streams of a peer are reset when no path to it has been up for this time. Ours: longer than a line that is
/// switched over or a gateway that starts again takes, and no longer than a client asks a silent server
/// for a sign of life anyway (TCP keepalive of this gateway's own connections).
const UNREACHABLE_AFTER: Duration = Duration::from_secs(60);
/// Longest frame of credit, of returned credit, or of a reset.
const CONTROL_LEN_MAX: usize = 17;

/// All streams to and from one peer.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    receiving: ReceiveHalves,
    numbers: StreamNumbers,
    /// Resets that wait to be sent.
    resets: ResetQueue,
    /// Streams that were reset, and are there for what was written before.
    deferred_resets: DeferredResets,
    events: VecDeque<StreamEvent>,
    violations: StreamViolations,
    /// Streams that the peer began since they were last asked for; some were reset at once.
    begun_by_peer: u64,
}

/// What the peer did against the rules of streams, and resets that it did not get.
#[derive(Clone, Copy, Debug, Default)]
struct StreamViolations {
    malformed: u64,
    over_credit: u64,
}

/// The components that operations on streams use.
pub(crate) struct StreamContext<'a> {
    /// They keep the sending halves.
    pub(crate) scheduler: &'a mut SendScheduler,
    pub(crate) apps: &'a mut Applications,
    pub(crate) paths: &'a PathManager,
    /// What the peer may still make us keep.
    pub(crate) spare_memory: SpareMemory,
}

/// What follows from an operation for the rest of the session.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamEvent {
    /// The driver is to be notified.
    Signal {
        app: AppId,
        stream: StreamId,
        signal: StreamSignal,
    },
    /// A stream of an application that is no longer configured has ended.
    RemovedAppIdle(AppId),
}

/// Bytes of a stream that the driver may read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadableBytes<'a> {
    /// The bytes lie in two pieces.
    pub(crate) first: &'a [u8],
    pub(crate) second: &'a [u8],
    /// The peer's direction ends with them.
    pub(crate) ends: bool,
}

/// Bytes of a stream as they arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivedBytes<'a> {
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
    pub(crate) fin: bool,
    /// The path over which they came, by our number; `None`: we have none there.
    pub(crate) path: Option<PathId>,
}

impl StreamContext<'_> {
    /// From granting credit to the arrival of the bytes that it allows: the credit takes the path of
    /// the stream's application here, the bytes come over the path that the peer has chosen. Each way
    /// counts half of its path's round trip, because one-way delays are not measured.
    fn credit_round_trip(&self, id: StreamId, arrived_on: Option<PathId>) -> Duration {
        let app = self.scheduler.stream(id).map(|stream| stream.app);
        let ours = app.and_then(|app| self.apps.active_path(app));
        let ours = self.smoothed_rtt(ours);
        let theirs = self.smoothed_rtt(arrived_on);
        let (Some(ours), Some(theirs)) = (ours.or(theirs), theirs.or(ours)) else {
            return Duration::ZERO;
        };
        ours / 2 + theirs / 2
    }

    fn smoothed_rtt(&self, path: Option<PathId>) -> Option<Duration> {
        self.paths.get(path?)?.rtt().smoothed()
    }

    /// The peer has everything that was written on a stream.
    fn is_delivered(&self, id: StreamId) -> bool {
        let out = self.scheduler.stream(id);
        out.is_none_or(OutStream::is_delivered)
    }
}

// The driver's side.
impl Streams {
    /// Opens a stream of `app`; the peer connects it to `target`, or to its forward (`None`).
    pub(crate) fn open(
        &mut self,
        now: Instant,
        cx: &mut StreamContext<'_>,
        app: AppId,
        target: Option<SocketAddr>,
    ) -> Result<StreamId, SendError> {
        let entry = cx
            .apps
            .accepting(app, DeliveryClass::Stream)
            .ok_or(SendError::UnknownApplication)?;
        if self.receiving.opened_by_us() >= STREAMS_MAX {
            return Err(SendError::QueueFull);
        }
        let id = self.numbers.open().ok_or(SendError::QueueFull)?;
        entry.on_stream_opened();
        let out = OutStream::new(app, entry.latency_target(), Some(target));
        let path = entry.active();
        self.receiving.insert(now, id, Some(app));
        cx.scheduler.insert_stream(now, id, out, path);
        Ok(id)
    }

    /// Takes as many of `bytes` as there is room for. Less than all: a `Writable` signal follows.
    pub(crate) fn write(
        &mut self,
        now: Instant,
        cx: &mut StreamContext<'_>,
        id: StreamId,
        bytes: &[u8],
    ) -> Option<usize> {
        if self.deferred_resets.waits(id).is_some() {
            return None;
        }
        let app = cx.scheduler.stream(id)?.app;
        let path = cx.apps.active_path(app);
        let taken = cx.scheduler.write_stream(now, id, bytes, path)?;
        cx.apps.on_stream_written(now, app, taken);
        Some(taken)
    }

    /// What [`write`](Self::write) would take; after a zero a signal follows when there is room.
    pub(crate) fn room(&self, scheduler: &mut SendScheduler, id: StreamId) -> Option<usize> {
        match self.deferred_resets.waits(id) {
            None => scheduler.stream_room(id),
            Some(Waits::Peer) => None,
            // The driver gets the reset after it has read what came before.
            Some(Waits::Driver) => Some(0),
        }
    }

    /// Nothing more will be written.
    pub(crate) fn finish(&mut self, now: Instant, cx: &mut StreamContext<'_>, id: StreamId) {
        if self.deferred_resets.waits(id).is_some() {
            return;
        }
        if let Some(app) = cx.scheduler.stream(id).map(|stream| stream.app) {
            let path = cx.apps.active_path(app);
            cx.scheduler.finish_stream(now, id, path);
        }
    }

    /// Ends both directions at once; a reset is sent if the peer may know the stream.
    pub(crate) fn reset(
        &mut self,
        cx: &mut StreamContext<'_>,
        stream: StreamId,
        reason: ResetReason,
    ) {
        let out = cx.scheduler.stream(stream);
        let may_be_known = out.is_none_or(OutStream::open_has_left);
        if self.forget(cx, stream) && may_be_known {
            self.push_reset(StreamReset { stream, reason });
        }
    }

    /// Ends both directions after what was written; the reset carries the reason. For the driver the
    /// stream is gone at once.
    pub(crate) fn reset_behind(
        &mut self,
        now: Instant,
        cx: &mut StreamContext<'_>,
        id: StreamId,
        reason: ResetReason,
    ) {
        let out = cx.scheduler.stream(id);
        // Bytes that have arrived are read there only if it is known that there is a stream.
        if out.is_none_or(|out| out.is_delivered() || out.written() == 0) {
            self.reset(cx, id, reason);
            return;
        }
        if self.deferred_resets.waits(id).is_some() {
            return;
        }
        // What the peer still sends is discarded.
        self.receiving.discard(now, id);
        self.receiving.stop_credit(id);
        let reset = DeferredReset {
            waits: Waits::Peer,
            reason,
        };
        self.deferred_resets
            .begin(now, id, reset, cx.paths.rtt_max());
    }

    /// Bytes in order that were not consumed yet.
    pub(crate) fn readable(&self, id: StreamId) -> Option<ReadableBytes<'_>> {
        if self.deferred_resets.waits(id) == Some(Waits::Peer) {
            return None;
        }
        let half = self.receiving.get(id)?;
        let (first, second) = half.readable();
        Some(ReadableBytes {
            first,
            second,
            ends: half.ends_after(first.len() + second.len()),
        })
    }

    /// The driver has taken `count` bytes of what [`readable`](Self::readable) showed, and the end if
    /// that was shown.
    pub(crate) fn consume(
        &mut self,
        now: Instant,
        cx: &mut StreamContext<'_>,
        id: StreamId,
        count: usize,
    ) {
        if let Some(waits) = self.deferred_resets.waits(id) {
            if waits == Waits::Driver && count > 0 {
                self.receiving.consume_last(now, id, count);
                self.on_moved(now, cx, id);
            }
            return;
        }
        let rtt = cx.credit_round_trip(id, self.receiving.arrived_on(id));
        let at = Consumption { now, rtt };
        self.receiving.consume(at, id, count, cx.spare_memory);
        self.forget_if_done(cx, id);
    }
}

// Timers, outputs and figures.
impl Streams {
    /// What follows for the rest of the session.
    pub(crate) fn poll_event(&mut self) -> Option<StreamEvent> {
        self.events.pop_front()
    }

    /// When streams are reset because there is no path since `unreachable_since`; `None`: there is
    /// one, or no stream.
    pub(crate) fn unreachable_at(&self, unreachable_since: Option<Instant>) -> Option<Instant> {
        let since = unreachable_since.filter(|_| self.len() > 0)?;
        Some(since + UNREACHABLE_AFTER)
    }

    /// When the next deferred reset has waited for too long.
    pub(crate) fn deferred_reset_due(&self) -> Option<Instant> {
        self.deferred_resets.due()
    }

    /// Ends what has waited for too long: deferred resets, and all streams if no path has come up.
    pub(crate) fn on_timeout(
        &mut self,
        now: Instant,
        cx: &mut StreamContext<'_>,
        unreachable_since: Option<Instant>,
    ) {
        while let Some(id) = self.deferred_resets.next_due(now) {
            self.complete_reset(cx, id);
        }
        let unreachable_at = self.unreachable_at(unreachable_since);
        if unreachable_at.is_some_and(|at| at <= now) {
            // The peer may be there although no path is: it gets the resets when a path is up again.
            for id in self.receiving.ids() {
                self.abort(cx, id, ResetReason::Unreachable);
            }
        }
    }

    /// Appends credit to grant, credit that is returned, and resets, if there is room up to `end`.
    pub(crate) fn write_control(
        &mut self,
        scheduler: &mut SendScheduler,
        end: usize,
        out: &mut Vec<u8>,
        frames: &mut SentFrames,
    ) {
        while out.len() + CONTROL_LEN_MAX <= end {
            let Some(StreamCredit { stream, granted }) = self.receiving.poll_credit() else {
                break;
            };
            let id = stream.to_wire();
            Frame::StreamCredit { id, granted }.encode(out);
            frames.push(SentFrame::StreamCredit(stream));
        }
        while out.len() + CONTROL_LEN_MAX <= end {
            let Some((stream, returned)) = scheduler.take_stream_return() else {
                break;
            };
            let id = stream.to_wire();
            Frame::StreamReturn { id, returned }.encode(out);
            frames.push(SentFrame::StreamReturn(stream));
        }
        while out.len() + CONTROL_LEN_MAX <= end {
            let Some(StreamReset { stream, reason }) = self.resets.pop() else {
                break;
            };
            let id = stream.to_wire();
            Frame::StreamReset { id, reason }.encode(out);
            frames.push(SentFrame::StreamReset { stream, reason });
        }
    }

    /// The driver of a stream was refused bytes and may write again.
    pub(crate) fn on_writable(&mut self, writable: WritableStream) {
        let WritableStream { app, stream } = writable;
        if self.deferred_resets.waits(stream).is_none() {
            self.signal(app, stream, StreamSignal::Writable);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.receiving.len()
    }

    /// Bytes that were received and not taken by the driver.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.receiving.kept_bytes()
    }

    /// What all streams may make us keep.
    pub(crate) fn memory(&self) -> u64 {
        self.receiving.memory()
    }

    /// A stream has a narrower window than its share of the memory, and would have a wider one.
    pub(crate) fn are_short(&self) -> bool {
        self.receiving.are_short()
    }

    /// What is kept beside streams: numbers, and resets that wait.
    pub(crate) fn memory_beside(&self) -> u64 {
        self.numbers.memory() + self.resets.memory()
    }

    pub(crate) fn has_resets(&self) -> bool {
        !self.resets.is_empty()
    }

    /// Credit or resets are to be sent.
    pub(crate) fn has_control(&self) -> bool {
        self.receiving.has_credit_wanted() || self.resets.may_send()
    }

    /// Adds what the peer did against the rules of streams.
    pub(crate) fn add_violations(&self, drops: &mut DropCounters) {
        drops.malformed += self.violations.malformed;
        drops.over_credit += self.violations.over_credit;
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self, queues: &SendQueues) {
        self.receiving.check_invariants();
        self.numbers.check_invariants();
        self.resets.check_invariants();
        self.deferred_resets.check_invariants();
        assert!(
            self.receiving.opened_by_peer() <= STREAMS_MAX,
            "streams of the peer"
        );
        assert!(self.receiving.opened_by_us() <= STREAMS_MAX, "our streams");
        let mut sending = queues.stream_ids();
        assert!(
            sending.all(|id| self.receiving.contains(id)),
            "a stream that sends is open"
        );
        assert!(
            self.events.is_empty(),
            "events of streams are polled at once"
        );
    }
}

impl Streams {
    /// Makes room for a stream of the peer that is new; `false`: it is not, or there are too many.
    fn admit(&mut self, now: Instant, cx: &mut StreamContext<'_>, stream: StreamId) -> bool {
        if !self.numbers.on_used_by_peer(stream) {
            return false;
        }
        self.begun_by_peer += 1;
        let has_room = self.receiving.has_room(cx.spare_memory);
        if !has_room || self.receiving.opened_by_peer() >= STREAMS_MAX {
            let reason = ResetReason::TooMany;
            self.push_reset(StreamReset { stream, reason });
            return false;
        }
        let before = self.receiving.memory();
        self.receiving.insert(now, stream, None);
        cx.spare_memory.take(self.receiving.memory() - before);
        true
    }

    /// A stream ends on both sides, and here not by the driver's wish.
    fn abort(&mut self, cx: &mut StreamContext<'_>, id: StreamId, reason: ResetReason) {
        let app = self.app_to_notify(id);
        self.reset(cx, id, reason);
        if let Some(app) = app {
            self.signal(app, id, StreamSignal::Reset(reason));
        }
    }

    fn push_reset(&mut self, reset: StreamReset) {
        if !self.resets.push(reset) {
            self.violations.over_credit += 1;
        }
    }

    /// Bytes of a stream have moved, which may be the last before its reset.
    fn on_moved(&mut self, now: Instant, cx: &mut StreamContext<'_>, id: StreamId) {
        let is_over = match self.deferred_resets.waits(id) {
            None => return,
            Some(Waits::Peer) => cx.is_delivered(id),
            Some(Waits::Driver) => !self.receiving.has_readable(id),
        };
        if is_over {
            self.complete_reset(cx, id);
        } else {
            self.deferred_resets.on_moved(now, id, cx.paths.rtt_max());
        }
    }

    /// Sends or signals the reset that was deferred.
    fn complete_reset(&mut self, cx: &mut StreamContext<'_>, id: StreamId) {
        let Some(DeferredReset { waits, reason }) = self.deferred_resets.get(id) else {
            return;
        };
        match waits {
            Waits::Peer => self.reset(cx, id, reason),
            Waits::Driver => {
                let app = self.app_to_notify(id);
                self.forget(cx, id);
                if let Some(app) = app {
                    self.signal(app, id, StreamSignal::Reset(reason));
                }
            }
        }
    }

    /// The application of a stream whose driver is to be notified of its end.
    fn app_to_notify(&self, id: StreamId) -> Option<AppId> {
        let is_gone = self.deferred_resets.waits(id) == Some(Waits::Peer);
        self.receiving.app_of(id).filter(|_| !is_gone)
    }

    fn signal(&mut self, app: AppId, stream: StreamId, signal: StreamSignal) {
        self.events.push_back(StreamEvent::Signal {
            app,
            stream,
            signal,
        });
    }

    /// Signals to the driver that it may write again, if it was refused before.
    fn signal_writable(&mut self, scheduler: &mut SendScheduler, stream: StreamId) {
        if let Some(app) = scheduler.take_writable_stream(stream) {
            self.on_writable(WritableStream { app, stream });
        }
    }

    /// Signals to drivers that were refused because all streams together kept too much.
    fn signal_memory_freed(&mut self, scheduler: &mut SendScheduler) {
        for waiting in scheduler.take_streams_waiting_for_memory() {
            self.signal_writable(scheduler, waiting);
        }
    }

    fn signal_readable(&mut self, now: Instant, id: StreamId) {
        if let Some(app) = self.receiving.take_readable(now, id) {
            self.signal(app, id, StreamSignal::Readable);
        }
    }

    fn forget_if_done(&mut self, cx: &mut StreamContext<'_>, id: StreamId) {
        let out = cx.scheduler.stream(id);
        let half = self.receiving.get(id);
        if out.is_some_and(OutStream::is_done) && half.is_some_and(|half| half.is_done()) {
            self.forget(cx, id);
        }
    }

    /// Forgets a stream; `false`: there was none.
    fn forget(&mut self, cx: &mut StreamContext<'_>, id: StreamId) -> bool {
        let was_open = self.receiving.remove(id);
        if was_open {
            self.numbers.on_confirmed(id);
            self.deferred_resets.remove(id);
        }
        self.drop_send_half(cx, id);
        was_open
    }

    /// Forgets what was to be sent on a stream.
    fn drop_send_half(&mut self, cx: &mut StreamContext<'_>, id: StreamId) {
        let app = cx.scheduler.remove_stream(id);
        self.signal_memory_freed(cx.scheduler);
        if let Some(app) = app.filter(|app| cx.apps.is_removed(*app)) {
            self.events.push_back(StreamEvent::RemovedAppIdle(app));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_that_are_lost_wait_within_their_bound() {
        let mut streams = Streams::default();
        let reset = |number| StreamId::of_ours(0, number);
        let all = 2 * STREAMS_MAX as u64;
        for number in 0..all {
            streams.on_reset_lost(reset(number), ResetReason::TooMany);
        }
        // As many are lost on the way while the queue is full again.
        for number in all..2 * all {
            streams.on_reset_lost(reset(number), ResetReason::TooMany);
        }
        streams.resets.check_invariants();
        let mut drops = DropCounters::default();
        streams.add_violations(&mut drops);
        assert_eq!(drops.over_credit, all);
        let first = streams.resets.pop().expect("many wait");
        assert_eq!(first.stream, reset(0), "the oldest stays");
    }

    #[test]
    fn resets_that_a_peer_does_not_acknowledge_hold_up_others() {
        let mut streams = Streams::default();
        let reset = |number| StreamId::of_ours(0, number);
        for number in 0..2 * STREAMS_MAX as u64 {
            streams.on_reset_lost(reset(number), ResetReason::TooMany);
        }
        let sent = std::iter::from_fn(|| streams.resets.pop()).count();
        assert_eq!(sent, STREAMS_MAX);
        assert!(streams.has_resets() && !streams.has_control());
        streams.on_reset_acked();
        assert!(streams.has_control() && streams.resets.pop().is_some());
        assert!(streams.resets.pop().is_none());
        streams.on_reset_lost(reset(0), ResetReason::TooMany);
        assert!(streams.resets.pop().is_some());
        streams.resets.check_invariants();
    }
}
