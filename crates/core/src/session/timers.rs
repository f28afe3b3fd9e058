//! Timers: what is due, and when.

use keiro_units::Instant;

use super::{
    MessageEnd, Session,
    path::{Path, PathTimeout},
    sent_frames::MessageControl,
    tenant::PathSendState,
};
use crate::{
    event::{MessageOutcome, MoveReason, PathDownReason},
    id::PathId,
    timeouts::Timeouts,
    uplink::Uplinks,
    wire::{DATA_HEADER_LEN, Frame, TAG_LEN},
};

impl Session {
    /// Does everything that is due, except sending and handshakes.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.end_epochs(now);
        self.expire_messages(now);
        self.expire_datagrams(now);
        let selection = &mut self.path_selection;
        if selection.on_timeout(now, &self.apps, &self.paths) {
            self.choose_paths(MoveReason::PathUp);
        }
        self.receiver.on_timeout(now);
        self.deliver_held_packets();
        self.scheduler.return_stream_credit(now);
        let unreachable_since = self.reachability.unreachable_since;
        let (streams, mut cx) = self.streams();
        streams.on_timeout(now, &mut cx, unreachable_since);
        self.on_stream_events();
        for id in self.paths.ids() {
            self.handle_path_timeout(now, id);
        }
    }

    /// When `handle_timeout` or `poll_transmit` has something to do.
    pub(crate) fn poll_timeout(&self, uplinks: &Uplinks) -> Timeouts {
        let keyed = self.keys.current().is_some() && !self.reachability.is_closed;
        let mut paths = Timeouts::default();
        for path in self.paths.iter().filter(|_| keyed) {
            paths = paths.min(self.path_timeout(path, uplinks));
        }
        let acks = self
            .receiver
            .remote_paths()
            .filter(|path| keyed && self.path_for_acks(*path).is_some())
            .filter_map(|path| self.receiver.due_of(path));
        let unreachable_since = self.reachability.unreachable_since;
        let rest = acks
            .chain(self.scheduler.queues().next_expiry())
            .chain(self.scheduler.queues().credit_return_due())
            .chain(self.receiver.credit_due())
            .chain(self.receiver.packet_parts_due())
            .chain(self.receiver.held_packets_due())
            .chain(self.path_selection.due(&self.apps, &self.paths))
            .chain(self.streams.unreachable_at(unreachable_since))
            .chain(self.streams.deferred_reset_due())
            .chain(self.handshake_at())
            .chain(self.keys.ends_at(&self.settings.timing))
            .min();
        paths.min(Timeouts::of_rest(rest))
    }

    /// When a handshake should be begun.
    pub(crate) fn handshake_at(&self) -> Option<Instant> {
        match self.handshake.next_at {
            Some(at) => Some(at),
            None => self.keys.rekey_at(&self.settings.timing),
        }
    }

    /// Keys that are too old, or were used too much, are erased. If there are no others, nothing is sent
    /// until a handshake gets through: what waits stays, what was in flight waits again.
    fn end_epochs(&mut self, now: Instant) {
        let ended = self.keys.on_timeout(now, &self.settings.timing);
        self.retired.extend(ended.gone);
        if !ended.is_current_gone {
            return;
        }
        let up = self.paths.iter().filter(|path| path.is_up());
        let ids: Vec<PathId> = up.map(Path::id).collect();
        for id in ids {
            if let Some(path) = self.paths.get_mut(id) {
                path.on_keys_expired(now);
            }
            self.take_path_down(now, id, PathDownReason::KeysExpired);
        }
        self.check_up(now);
        // If a handshake is under way, it goes on.
        if self.handshake.next_at.is_none() {
            self.handshake.next_at = Some(now);
        }
    }

    fn expire_messages(&mut self, now: Instant) {
        for (id, message) in self.scheduler.take_expired_messages(now) {
            if let Some(wire_id) = message.wire_id {
                let total = message.body.len() as u32;
                self.control
                    .push(MessageControl::Drop { id: wire_id, total });
            }
            let end = MessageEnd::here(MessageOutcome::Expired);
            self.on_message_ended(now, id, &message, end);
        }
    }

    /// Drops datagrams that are of no use any more, as after an outage.
    pub(super) fn expire_datagrams(&mut self, now: Instant) {
        for app in self.scheduler.expire_datagrams(now) {
            self.apps.on_datagram_expired(app);
        }
    }

    fn handle_path_timeout(&mut self, now: Instant, id: PathId) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        match path.on_timeout(now, &self.settings.timing, self.settings.probe_share) {
            None => {}
            Some(PathTimeout::Down(reason)) => {
                self.take_path_down(now, id, reason);
                self.request_handshake_if_unreachable(now);
            }
            Some(PathTimeout::Up {
                lost,
                retransmit,
                aggregation,
            }) => {
                self.on_losses_detected(now, id, lost);
                self.requeue(now, id, retransmit);
                self.report_aggregation_change(id, aggregation);
            }
        }
    }

    /// No path is up: the peer may have restarted and lost its keys.
    pub(super) fn request_handshake_if_unreachable(&mut self, now: Instant) {
        if !self.paths.any_up() && self.handshake.next_at.is_none() {
            self.handshake.next_at = Some(now + self.settings.timing.handshake_retry);
        }
    }

    /// Handshakes have left by other addresses at most, or waited for one.
    pub(super) fn request_handshake_from_new_address(&mut self, now: Instant) {
        if self.keys.current().is_some() {
            return self.request_handshake_if_unreachable(now);
        }
        // One that has just begun may be answered yet.
        let soon = match self.handshake.pending {
            None => now,
            Some(_) => now + self.settings.timing.handshake_retry,
        };
        let next_at = self.handshake.next_at;
        self.handshake.next_at = Some(next_at.map_or(soon, |at| at.min(soon)));
        self.handshake.attempts = 0;
    }

    /// Nothing has answered since the keys were agreed on, which was some time ago: the peer may have
    /// lost them before a path came up, and may be unable to begin a handshake.
    pub(super) fn request_handshake_if_keys_old(&mut self, now: Instant) {
        let old = self.settings.timing.handshake_retry_max;
        let keys = self.keys.current();
        if keys.is_some_and(|epoch| now - epoch.since >= old) {
            self.request_handshake_if_unreachable(now);
        }
    }

    fn path_timeout(&self, path: &Path, uplinks: &Uplinks) -> Timeouts {
        let data_at = match path.is_up() {
            true => self.scheduler.waits_until(self.sending_path(path)),
            false => None,
        };
        let uplink_free = uplinks.next(path.socket());
        path.poll_timeout(
            &self.settings.timing,
            self.settings.probe_share,
            data_at,
            uplink_free,
        )
    }

    /// The path over which packets of the peer's path `number` are acknowledged.
    pub(super) fn path_for_acks(&self, number: u8) -> Option<PathId> {
        self.paths.for_acks(number, self.receiver.socket_of(number))
    }

    /// Frames of the protocol itself are to be sent over the fastest path.
    pub(super) fn control_waits(&self) -> bool {
        let of_streams = self.streams.has_control() || self.scheduler.queues().has_credit_returns();
        self.receiver.is_credit_wanted() || !self.control.is_empty() || of_streams
    }

    /// Something may leave over `path`, pacing aside.
    pub(super) fn wants_to_send(&self, path: &Path, now: Instant) -> bool {
        let waits_until = self.scheduler.waits_until(self.sending_path(path));
        waits_until.is_some_and(|at| at <= now)
    }

    /// A path as the scheduler sees it.
    pub(super) fn sending_path(&self, path: &Path) -> PathSendState {
        let mtu = path.mtu();
        // The head of the frame is counted at its longest, so that the window is never exceeded.
        let head = Frame::packet_head_len(u32::MAX, usize::from(mtu));
        let sends_control = self.control_waits() && self.paths.fastest() == Some(path.id());
        PathSendState {
            id: path.id(),
            mtu,
            packet_overhead: (usize::from(path.ip_overhead()) + DATA_HEADER_LEN + TAG_LEN + head)
                as u64,
            coalescing_at: path.aggregator().next(),
            control_waits: path.is_ping_wanted() || sends_control,
        }
    }
}
