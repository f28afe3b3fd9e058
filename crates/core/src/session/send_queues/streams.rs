//! Streams in the send queues: when they get a turn, and how many bytes they may keep.
//!
//! Streams take turns of a packet. One that has no more than a turn's worth goes before those that
//! have more, so that a keystroke does not wait behind a hundred transfers; what was lost goes before
//! both. Those that have more all get a turn before any stream goes ahead of them with more than a turn's
//! worth in all: many who have little do not starve those who have much.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    ops::Bound,
};

use keiro_units::Instant;

use super::{
    FIFO_KEY, SendQueues,
    credit_return::CreditReturns,
    ready::{QueueKey, QueuePath, SendItem},
    sending_half::{OutStream, QueuedStream, StreamPart, TurnClass},
};
use crate::{
    config::SchedulerKind,
    id::{AppId, PathId, StreamId, TenantId},
    session::stream_buffer::StreamRange,
};

/// Bytes that all streams to a peer may keep beyond their initial windows; then each has its own
/// share only.
const STREAM_BYTES_MAX: u64 = 64 << 20;
/// Latency targets from the last turn of a stream with more than a turn's worth to its next: late enough to let
/// single packets of dozens of other streams pass, and early enough never to starve. Ours.
const BACKLOG_TARGETS: u32 = 8;
/// A turn's worth: what fits into one packet of most paths.
const TURN_BYTES: u64 = 1200;

/// The sending halves of all streams.
#[derive(Debug, Default)]
pub(super) struct OutStreams {
    pub(super) by_id: BTreeMap<StreamId, OutStream>,
    /// Number of streams by application; there are no zeros.
    per_app: BTreeMap<AppId, usize>,
    /// Bytes that are kept until they are acknowledged.
    pub(super) bytes: u64,
    /// Streams that were refused bytes because all together keep too many.
    without_memory: BTreeSet<StreamId>,
    /// The one of them that was woken last.
    memory_turn: Option<StreamId>,
    returns: CreditReturns,
    /// Streams that wait and have more than a turn's worth: the second part of their places.
    backlog: BTreeSet<(QueueKey, u64)>,
}

impl OutStreams {
    pub(super) fn get(&self, id: StreamId) -> Option<&OutStream> {
        self.by_id.get(&id)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = StreamId> {
        self.by_id.keys().copied()
    }

    pub(super) fn has_app(&self, app: AppId) -> bool {
        self.per_app.contains_key(&app)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        let kept = self.by_id.values().map(OutStream::len);
        assert_eq!(self.bytes, kept.sum::<u64>(), "stream bytes");
        assert_eq!(
            self.per_app.values().sum::<usize>(),
            self.by_id.len(),
            "streams of applications"
        );
        for queued in self.by_id.values().filter_map(|stream| stream.queued) {
            let in_backlog = (queued.queue_key, queued.schedule_key.1);
            assert_eq!(
                queued.turn_class == TurnClass::Bulk,
                self.backlog.contains(&in_backlog),
                "backlog of streams"
            );
        }
    }
}

impl SendQueues {
    /// Adds a stream whose application takes `path`.
    pub(crate) fn insert_stream(
        &mut self,
        now: Instant,
        id: StreamId,
        stream: OutStream,
        path: Option<PathId>,
    ) {
        *self.streams.per_app.entry(stream.app).or_default() += 1;
        self.streams.by_id.insert(id, stream);
        self.requeue(now, id, TurnClass::Interactive, path);
    }

    /// Takes what there is room for; how much. `None`: there is no such stream.
    pub(crate) fn write_stream(
        &mut self,
        now: Instant,
        id: StreamId,
        bytes: &[u8],
        path: Option<PathId>,
    ) -> Option<usize> {
        let spare = STREAM_BYTES_MAX.saturating_sub(self.streams.bytes);
        let stream = self.streams.by_id.get_mut(&id)?;
        if stream.is_finished() {
            return None;
        }
        let taken = stream.write(bytes, spare);
        self.streams.bytes += taken as u64;
        if taken > 0 {
            stream.on_written(now);
        }
        if stream.waits_for_memory() {
            self.streams.without_memory.insert(id);
        }
        self.wake_stream(now, id, path);
        Some(taken)
    }

    /// Bytes that `write_stream` would take.
    pub(crate) fn stream_room(&mut self, id: StreamId) -> Option<usize> {
        let spare = STREAM_BYTES_MAX.saturating_sub(self.streams.bytes);
        let stream = self.streams.by_id.get_mut(&id)?;
        if stream.is_finished() {
            return None;
        }
        let room = stream.offer(spare);
        if stream.waits_for_memory() {
            self.streams.without_memory.insert(id);
        }
        Some(room)
    }

    /// Nothing more will be written.
    pub(crate) fn finish_stream(&mut self, now: Instant, id: StreamId, path: Option<PathId>) {
        if self
            .streams
            .by_id
            .get_mut(&id)
            .is_some_and(|stream| stream.finish())
        {
            self.wake_stream(now, id, path);
        }
    }

    /// A part has left.
    pub(crate) fn on_stream_part_sent(
        &mut self,
        now: Instant,
        path: PathId,
        id: StreamId,
        part: StreamPart,
    ) {
        if let Some(app) = self.streams.get(id).map(|stream| stream.app) {
            self.on_app_bytes_sent(app, path, part.end - part.start);
        }
        if let Some(stream) = self.streams.by_id.get_mut(&id) {
            stream.on_part_sent(part);
            if !part.is_retransmit {
                stream.turn_bytes += part.end - part.start;
            }
            if stream.queued.map(|queued| queued.turn_class) == Some(TurnClass::Bulk) {
                if stream.turn_bytes < TURN_BYTES && !stream.has_retransmits() {
                    // Filling up a packet is no turn: the stream keeps its place.
                    return self.recount(id);
                }
                // It has waited for this turn: there is no other before all others have had one.
                stream.turn_mark = self.next;
                stream.turn_bytes = TURN_BYTES;
            }
            self.leave_queue(id);
            let turn_class = self.turn_class(id, Some(path));
            self.requeue(now, id, turn_class, Some(path));
        }
    }

    /// The frame that opens a stream was written, and its data did not fit.
    pub(crate) fn on_stream_opened(&mut self, now: Instant, path: PathId, id: StreamId) {
        self.requeue(now, id, TurnClass::Interactive, Some(path));
    }

    pub(crate) fn on_stream_open_lost(&mut self, now: Instant, id: StreamId, path: Option<PathId>) {
        if let Some(stream) = self.streams.by_id.get_mut(&id) {
            stream.on_open_lost();
            self.requeue(now, id, TurnClass::Retransmit, path);
        }
    }

    /// The peer knows the stream: a frame that opens it and waits to be retransmitted is not needed.
    pub(crate) fn on_stream_open_acked(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.by_id.get_mut(&id) {
            stream.on_open_acked();
            self.recount(id);
        }
    }

    /// Bytes of a stream were lost.
    pub(crate) fn on_stream_lost(
        &mut self,
        now: Instant,
        id: StreamId,
        range: StreamRange,
        path: Option<PathId>,
    ) {
        if let Some(stream) = self.streams.by_id.get_mut(&id) {
            stream.on_lost(range);
            let queued = stream.queued.map(|queued| queued.queue_key);
            let queue_key = queued.unwrap_or_else(|| self.queue_key_of_stream(id, path));
            self.requeue_at(now, id, TurnClass::Retransmit, queue_key);
        }
    }

    /// Bytes of a stream arrived; whether there is memory again for others.
    pub(crate) fn on_stream_acked(&mut self, id: StreamId, range: StreamRange) -> bool {
        let Some(stream) = self.streams.by_id.get_mut(&id) else {
            return false;
        };
        let freed = stream.on_acked(range);
        self.streams.bytes -= freed;
        self.recount(id);
        freed > 0 && !self.streams.without_memory.is_empty()
    }

    /// The application of a stream, and since when bytes of it were under way that were measured and have
    /// arrived.
    pub(crate) fn take_stream_measured(&mut self, id: StreamId) -> Option<(AppId, Instant)> {
        let stream = self.streams.by_id.get_mut(&id)?;
        Some((stream.app, stream.take_measured()?))
    }

    /// The peer takes bytes up to `granted`.
    pub(crate) fn on_stream_credit(
        &mut self,
        now: Instant,
        id: StreamId,
        granted: u64,
        path: Option<PathId>,
    ) {
        if let Some(stream) = self.streams.by_id.get_mut(&id) {
            stream.on_credit(granted);
            self.streams.returns.on_credit(now, id, stream);
            self.wake_stream(now, id, path);
        }
    }

    /// Gives back the credit of streams that do not use it, if it is time to look.
    pub(crate) fn return_credit(&mut self, now: Instant) {
        self.streams
            .returns
            .return_unused(now, &mut self.streams.by_id);
    }

    /// When unused credit is looked for.
    pub(crate) fn credit_return_due(&self) -> Option<Instant> {
        self.streams.returns.due()
    }

    /// Returned credit is to be sent to the peer.
    pub(crate) fn has_credit_returns(&self) -> bool {
        self.streams.returns.has_pending()
    }

    /// The next stream whose peer has not heard what was given back, and how much that is in all.
    pub(crate) fn take_return(&mut self) -> Option<(StreamId, u64)> {
        let id = self.streams.returns.take_next()?;
        Some((id, self.streams.by_id.get(&id)?.returned()))
    }

    /// The peer has not heard what was given back.
    pub(crate) fn on_return_lost(&mut self, id: StreamId) {
        if self.streams.by_id.contains_key(&id) {
            self.streams.returns.on_lost(id);
        }
    }

    /// The application of a stream whose driver was refused bytes and may write again.
    pub(crate) fn take_writable(&mut self, id: StreamId) -> Option<AppId> {
        let spare = STREAM_BYTES_MAX.saturating_sub(self.streams.bytes);
        let stream = self.streams.by_id.get_mut(&id)?;
        let writable = stream.take_writable(spare);
        // One that has enough to send as it is was passed over, and waits on.
        match stream.waits_for_memory() {
            true => self.streams.without_memory.insert(id),
            false => self.streams.without_memory.remove(&id),
        };
        writable.then_some(stream.app)
    }

    /// Streams that may try again because there is memory: as many as would take it all, the next in
    /// turn. A stream that is left out is woken by its own acknowledgements at the latest, since it has
    /// something on its way.
    pub(crate) fn take_waiting_for_memory(&mut self) -> Vec<StreamId> {
        let mut spare = STREAM_BYTES_MAX.saturating_sub(self.streams.bytes);
        let mut woken = Vec::new();
        while spare > 0
            && let Some(id) = self.next_without_memory()
        {
            self.streams.without_memory.remove(&id);
            self.streams.memory_turn = Some(id);
            let room = self
                .streams
                .by_id
                .get(&id)
                .map_or(0, |stream| stream.room(spare));
            spare = spare.saturating_sub(room);
            woken.push(id);
        }
        woken
    }

    /// The first behind the one that had the last turn, and then from the beginning.
    fn next_without_memory(&self) -> Option<StreamId> {
        let last = self
            .streams
            .memory_turn
            .map_or(Bound::Unbounded, Bound::Excluded);
        let mut behind = self.streams.without_memory.range((last, Bound::Unbounded));
        behind
            .next()
            .or(self.streams.without_memory.first())
            .copied()
    }

    /// Forgets a stream; its application.
    pub(crate) fn remove_stream(&mut self, id: StreamId) -> Option<AppId> {
        self.leave_queue(id);
        let stream = self.streams.by_id.remove(&id)?;
        if let Entry::Occupied(mut streams) = self.streams.per_app.entry(stream.app) {
            *streams.get_mut() -= 1;
            if *streams.get() == 0 {
                streams.remove();
            }
        }
        self.streams.bytes -= stream.len();
        self.streams.without_memory.remove(&id);
        self.streams.returns.remove(id);
        Some(stream.app)
    }

    pub(super) fn on_stream_moved(&mut self, id: StreamId, to: QueuePath) {
        let queue_key = (to, self.queue_key_of_stream(id, None).1);
        let stream = self.streams.by_id.get_mut(&id);
        if let Some(queued) = stream.and_then(|stream| stream.queued.as_mut()) {
            let number = queued.schedule_key.1;
            let from = std::mem::replace(&mut queued.queue_key, queue_key);
            if self.streams.backlog.remove(&(from, number)) {
                self.streams.backlog.insert((queue_key, number));
            }
        }
    }

    /// Something to send may have come.
    fn wake_stream(&mut self, now: Instant, id: StreamId, path: Option<PathId>) {
        let Some(stream) = self.streams.by_id.get(&id) else {
            return;
        };
        if stream.queued.is_some() {
            self.recount(id);
        } else {
            let turn_class = self.turn_class(id, path);
            self.requeue(now, id, turn_class, path);
        }
    }

    /// The class of the next turn of a stream that waits in no queue.
    fn turn_class(&mut self, id: StreamId, path: Option<PathId>) -> TurnClass {
        let queue_key = self.queue_key_of_stream(id, path);
        let Some(stream) = self.streams.by_id.get_mut(&id) else {
            return TurnClass::Bulk;
        };
        if stream.has_retransmits() {
            return TurnClass::Retransmit;
        }
        let oldest = self
            .streams
            .backlog
            .range((queue_key, 0)..=(queue_key, u64::MAX))
            .next();
        if oldest.is_none_or(|(_, number)| *number >= stream.turn_mark) {
            // All who waited then have had their turns.
            stream.turn_mark = self.next;
            stream.turn_bytes = 0;
        }
        if stream.turn_bytes + stream.sendable() <= TURN_BYTES {
            return TurnClass::Interactive;
        }
        stream.turn_bytes = 0;
        TurnClass::Bulk
    }

    /// The queued bytes of a stream have changed, its place has not.
    fn recount(&mut self, id: StreamId) {
        let Some(stream) = self.streams.by_id.get_mut(&id) else {
            return;
        };
        if !stream.is_ready() {
            self.leave_queue(id);
            return;
        }
        let bytes = stream.sendable();
        if let Some(queued) = &mut stream.queued {
            let before = std::mem::replace(&mut queued.bytes, bytes);
            let (queue_key, schedule_key) = (queued.queue_key, queued.schedule_key);
            self.ready.add_bytes(queue_key, bytes);
            self.ready.sub_bytes(queue_key, before);
            if before != bytes {
                // It may have grown too long to be coalesced, or short enough.
                self.ready.take(queue_key, schedule_key);
                self.insert(queue_key, schedule_key, SendItem::Stream(id));
            }
        }
    }

    /// Gives a stream a new place in the queue of `path`, if it has something to send.
    fn requeue(&mut self, now: Instant, id: StreamId, turn_class: TurnClass, path: Option<PathId>) {
        let queue_key = self.queue_key_of_stream(id, path);
        self.requeue_at(now, id, turn_class, queue_key);
    }

    fn requeue_at(
        &mut self,
        now: Instant,
        id: StreamId,
        turn_class: TurnClass,
        queue_key: QueueKey,
    ) {
        let queued = self.streams.by_id.get(&id).and_then(|stream| stream.queued);
        let is_same = queued
            .is_some_and(|queued| (queued.turn_class, queued.queue_key) == (turn_class, queue_key));
        if turn_class == TurnClass::Retransmit && is_same {
            self.recount(id);
            return;
        }
        self.leave_queue(id);
        let number = self.take_number();
        let Some(stream) = self.streams.by_id.get_mut(&id) else {
            return;
        };
        if !stream.is_ready() {
            return;
        }
        let key = key(self.scheduler, now, stream, turn_class);
        let queued = QueuedStream {
            queue_key,
            schedule_key: (key, number),
            turn_class,
            bytes: stream.sendable(),
        };
        stream.queued = Some(queued);
        if turn_class == TurnClass::Bulk {
            self.streams.backlog.insert((queue_key, number));
        }
        self.ready.add_bytes(queue_key, queued.bytes);
        self.insert(queue_key, queued.schedule_key, SendItem::Stream(id));
    }

    /// Where a stream that takes `path` waits.
    fn queue_key_of_stream(&self, id: StreamId, path: Option<PathId>) -> QueueKey {
        match self.streams.by_id.get(&id) {
            Some(stream) => self.queue_key(stream.app, path),
            None => (path.into(), TenantId::ZERO),
        }
    }

    fn leave_queue(&mut self, id: StreamId) {
        let Some(stream) = self.streams.by_id.get_mut(&id) else {
            return;
        };
        if let Some(queued) = stream.queued.take() {
            self.streams
                .backlog
                .remove(&(queued.queue_key, queued.schedule_key.1));
            self.ready.take(queued.queue_key, queued.schedule_key);
            self.ready.sub_bytes(queued.queue_key, queued.bytes);
        }
    }
}

/// The schedule key of a stream; a smaller one leaves earlier.
fn key(scheduler: SchedulerKind, now: Instant, stream: &OutStream, turn_class: TurnClass) -> u64 {
    let (latency_targets, rank) = match turn_class {
        TurnClass::Retransmit => (0, 0),
        TurnClass::Interactive => (1, 1),
        TurnClass::Bulk => (BACKLOG_TARGETS, 2),
    };
    match (scheduler, stream.latency_target) {
        (SchedulerKind::Deadline, Some(latency_target)) => {
            (now + latency_target * latency_targets).as_nanos()
        }
        (SchedulerKind::Deadline, None) => u64::MAX - 2 + rank,
        // In the order of turns; what was lost has had its turn.
        (SchedulerKind::Fifo, _) => FIFO_KEY.min(rank),
    }
}
