//! Sending halves of streams on their way through the scheduler.

use keiro_units::Instant;

use super::SendScheduler;
use crate::{
    id::{AppId, PathId, StreamId},
    session::{send_queues::OutStream, stream_buffer::StreamRange},
};

impl SendScheduler {
    pub(crate) fn stream(&self, id: StreamId) -> Option<&OutStream> {
        self.queues.stream(id)
    }

    /// Adds a stream whose application takes `path`.
    pub(crate) fn insert_stream(
        &mut self,
        now: Instant,
        id: StreamId,
        stream: OutStream,
        path: Option<PathId>,
    ) {
        self.queues.insert_stream(now, id, stream, path);
    }

    /// Takes what there is room for; how much. `None`: there is no such stream.
    pub(crate) fn write_stream(
        &mut self,
        now: Instant,
        id: StreamId,
        bytes: &[u8],
        path: Option<PathId>,
    ) -> Option<usize> {
        self.queues.write_stream(now, id, bytes, path)
    }

    /// Bytes that [`write_stream`](Self::write_stream) would take.
    pub(crate) fn stream_room(&mut self, id: StreamId) -> Option<usize> {
        self.queues.stream_room(id)
    }

    /// Nothing more will be written.
    pub(crate) fn finish_stream(&mut self, now: Instant, id: StreamId, path: Option<PathId>) {
        self.queues.finish_stream(now, id, path);
    }

    /// Forgets a stream; its application.
    pub(crate) fn remove_stream(&mut self, id: StreamId) -> Option<AppId> {
        self.queues.remove_stream(id)
    }

    /// Bytes of a stream arrived; whether there is memory again for others.
    pub(crate) fn on_stream_acked(&mut self, id: StreamId, range: StreamRange) -> bool {
        self.queues.on_stream_acked(id, range)
    }

    /// Bytes of a stream were lost.
    pub(crate) fn on_stream_lost(
        &mut self,
        now: Instant,
        id: StreamId,
        range: StreamRange,
        path: Option<PathId>,
    ) {
        self.queues.on_stream_lost(now, id, range, path);
    }

    /// The peer knows the stream.
    pub(crate) fn on_stream_open_acked(&mut self, id: StreamId) {
        self.queues.on_stream_open_acked(id);
    }

    /// The frame that opens a stream was lost.
    pub(crate) fn on_stream_open_lost(&mut self, now: Instant, id: StreamId, path: Option<PathId>) {
        self.queues.on_stream_open_lost(now, id, path);
    }

    /// The peer takes bytes up to `granted`.
    pub(crate) fn on_stream_credit(
        &mut self,
        now: Instant,
        id: StreamId,
        granted: u64,
        path: Option<PathId>,
    ) {
        self.queues.on_stream_credit(now, id, granted, path);
    }

    /// Gives back the credit of streams that do not use it, if it is time to look.
    pub(crate) fn return_stream_credit(&mut self, now: Instant) {
        self.queues.return_credit(now);
    }

    /// The next stream whose peer has not heard what was given back, and how much that is in all.
    pub(crate) fn take_stream_return(&mut self) -> Option<(StreamId, u64)> {
        self.queues.take_return()
    }

    /// The peer has not heard what was given back.
    pub(crate) fn on_stream_return_lost(&mut self, id: StreamId) {
        self.queues.on_return_lost(id);
    }

    /// The application of a stream, and since when bytes of it were under way that were measured and have
    /// arrived.
    pub(crate) fn take_stream_measured(&mut self, id: StreamId) -> Option<(AppId, Instant)> {
        self.queues.take_stream_measured(id)
    }

    /// The application of a stream whose driver was refused bytes and may write again.
    pub(crate) fn take_writable_stream(&mut self, id: StreamId) -> Option<AppId> {
        self.queues.take_writable(id)
    }

    /// Streams that may try again because there is memory.
    pub(crate) fn take_streams_waiting_for_memory(&mut self) -> Vec<StreamId> {
        self.queues.take_waiting_for_memory()
    }
}
