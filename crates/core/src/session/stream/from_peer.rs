//! The peer's side of streams: what arrives of them, and what became of what was sent.

use std::net::SocketAddr;

use keiro_units::Instant;

use super::{
    ArrivedBytes, StreamContext, Streams,
    deferred_reset::{DeferredReset, Waits},
    inbound::StreamViolation,
    receive_halves::ReceivedBytes,
    resets::StreamReset,
};
use crate::{
    config::DeliveryClass,
    event::{ResetReason, StreamSignal},
    id::{AppId, StreamId},
    session::{send_queues::OutStream, stream_buffer::StreamRange},
};

impl Streams {
    /// The stream with this number on the wire; `None`: it is beyond what can have been opened.
    pub(crate) fn of_wire(&self, wire: u64) -> Option<StreamId> {
        self.numbers.of_wire(wire)
    }

    /// The peer opens a stream.
    pub(crate) fn on_open(
        &mut self,
        now: Instant,
        cx: &mut StreamContext<'_>,
        id: StreamId,
        app: AppId,
        target: Option<SocketAddr>,
    ) {
        if id.is_ours() {
            self.violations.malformed += 1;
            return;
        }
        let is_open = self.receiving.app_of(id).is_some();
        if is_open || !self.receiving.contains(id) && !self.admit(now, cx, id) {
            return;
        }
        let Some(entry) = cx.apps.arriving(app, DeliveryClass::Stream) else {
            self.reset(cx, id, ResetReason::UnknownApplication);
            return;
        };
        entry.on_received(0);
        let out = OutStream::new(app, entry.latency_target(), None);
        let path = entry.active();
        self.receiving.set_app(id, app);
        cx.scheduler.insert_stream(now, id, out, path);
        self.signal(app, id, StreamSignal::Opened { target });
        self.signal_readable(now, id);
    }

    /// Bytes of a stream arrived.
    pub(crate) fn on_data(
        &mut self,
        now: Instant,
        cx: &mut StreamContext<'_>,
        id: StreamId,
        arrived: ArrivedBytes<'_>,
    ) {
        let is_new = !self.receiving.contains(id);
        if is_new && (id.is_ours() || !self.admit(now, cx, id)) {
            // The stream has ended here.
            return;
        }
        if self.deferred_resets.waits(id).is_some() {
            // It is not read any more.
            return;
        }
        self.receiving.set_arrived_on(id, arrived.path);
        match self.receiving.on_data(id, arrived, cx.spare_memory) {
            None => {}
            Some(Ok(ReceivedBytes { app, new })) => {
                if let Some(app) = app {
                    cx.apps.on_stream_received(app, new);
                }
                self.signal_readable(now, id);
            }
            Some(Err(StreamViolation::OverCredit)) => {
                self.violations.over_credit += 1;
                self.abort(cx, id, ResetReason::Protocol);
            }
            Some(Err(StreamViolation::End | StreamViolation::Gaps)) => {
                self.violations.malformed += 1;
                self.abort(cx, id, ResetReason::Protocol);
            }
            Some(Err(StreamViolation::Memory)) => self.abort(cx, id, ResetReason::TooMany),
        }
    }

    /// The peer takes more of a stream.
    pub(crate) fn on_credit(
        &mut self,
        now: Instant,
        cx: &mut StreamContext<'_>,
        id: StreamId,
        granted: u64,
    ) {
        let Some(stream) = cx.scheduler.stream(id) else {
            return;
        };
        let path = cx.apps.active_path(stream.app);
        cx.scheduler.on_stream_credit(now, id, granted, path);
        self.signal_writable(cx.scheduler, id);
    }

    /// The peer gives credit of a stream back.
    pub(crate) fn on_return(&mut self, cx: &mut StreamContext<'_>, id: StreamId, returned: u64) {
        if self.deferred_resets.waits(id).is_some() {
            return;
        }
        if self.receiving.on_return(id, returned).is_err() {
            self.violations.over_credit += 1;
            self.abort(cx, id, ResetReason::Protocol);
        }
    }

    /// The peer ends both directions. The driver gets the signal once it has read what came before.
    pub(crate) fn on_reset(
        &mut self,
        now: Instant,
        cx: &mut StreamContext<'_>,
        id: StreamId,
        reason: ResetReason,
    ) {
        if self.deferred_resets.waits(id) == Some(Waits::Driver) {
            return;
        }
        if !id.is_ours() {
            // The frame that opens it may still be in flight: it must not open it any more.
            self.numbers.on_used_by_peer(id);
        }
        let app = self.app_to_notify(id);
        if let (Some(app), ResetReason::UnknownApplication) = (app, reason) {
            cx.apps.on_unknown_to_peer(app, DeliveryClass::Stream);
        }
        if app.is_none() || !self.receiving.has_readable(id) {
            self.forget(cx, id);
            if let Some(app) = app {
                self.signal(app, id, StreamSignal::Reset(reason));
            }
            return;
        }
        let reset = DeferredReset {
            waits: Waits::Driver,
            reason,
        };
        self.deferred_resets
            .begin(now, id, reset, cx.paths.rtt_max());
        self.receiving.stop_credit(id);
        self.drop_send_half(cx, id);
    }

    /// Bytes of a stream arrived at the peer. The application, and since when bytes were under way that were
    /// measured, if all of these have arrived.
    pub(crate) fn on_acked(
        &mut self,
        now: Instant,
        cx: &mut StreamContext<'_>,
        id: StreamId,
        range: StreamRange,
    ) -> Option<(AppId, Instant)> {
        if cx.scheduler.on_stream_acked(id, range) {
            self.signal_memory_freed(cx.scheduler);
        }
        let measured = cx.scheduler.take_stream_measured(id);
        self.signal_writable(cx.scheduler, id);
        self.on_moved(now, cx, id);
        self.forget_if_done(cx, id);
        measured
    }

    /// The peer knows a stream that we have opened.
    pub(crate) fn on_open_acked(&mut self, now: Instant, cx: &mut StreamContext<'_>, id: StreamId) {
        self.numbers.on_confirmed(id);
        cx.scheduler.on_stream_open_acked(id);
        self.on_moved(now, cx, id);
        self.forget_if_done(cx, id);
    }

    /// The credit of a stream that was sent is lost.
    pub(crate) fn on_credit_lost(&mut self, id: StreamId) {
        if self.deferred_resets.waits(id).is_none() {
            self.receiving.on_credit_lost(id);
        }
    }

    /// Streams that the peer began since the last call.
    pub(crate) fn take_begun_by_peer(&mut self) -> u64 {
        std::mem::take(&mut self.begun_by_peer)
    }

    /// A reset that was sent has arrived.
    pub(crate) fn on_reset_acked(&mut self) {
        self.resets.on_resolved();
    }

    /// A reset that was sent is lost.
    pub(crate) fn on_reset_lost(&mut self, stream: StreamId, reason: ResetReason) {
        self.resets.on_resolved();
        self.push_reset(StreamReset { stream, reason });
    }

    /// Ends every stream: the peer knows none of them any more.
    pub(crate) fn on_peer_forgot(&mut self, cx: &mut StreamContext<'_>, reason: ResetReason) {
        for id in self.receiving.ids() {
            let app = self.app_to_notify(id);
            self.forget(cx, id);
            if let Some(app) = app {
                self.signal(app, id, StreamSignal::Reset(reason));
            }
        }
        self.resets.clear();
    }

    /// The peer has restarted: numbers begin again in both directions, under other ids here.
    pub(crate) fn on_peer_restarted(&mut self, cx: &mut StreamContext<'_>) {
        self.on_peer_forgot(cx, ResetReason::Gateway);
        self.numbers.restart();
    }
}
