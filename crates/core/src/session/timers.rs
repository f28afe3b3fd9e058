//! What is due, and when.

use keiro_units::{Bandwidth, Instant};

use super::{Session, path::Path, recovery::SentFrame, send_queues::Coalescing};
use crate::{
    endpoint::Timeouts,
    event::MessageOutcome,
    id::{PathId, TenantId},
    snapshot::PathState,
    uplink::Uplinks,
};

impl Session {
    /// Does everything that is due, except sending and handshakes.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.expire_messages(now);
        self.check_startup_wait(now);
        self.queues.return_credit(now);
        self.end_streams(now);
        if self.streams_unreachable_at().is_some_and(|at| at <= now) {
            self.give_up_streams();
        }
        let ids: Vec<PathId> = self.paths.keys().copied().collect();
        for id in ids {
            self.handle_path_timeout(now, id);
        }
    }

    /// When `handle_timeout` or `poll_transmit` has something to do.
    pub(crate) fn poll_timeout(&self, uplinks: &Uplinks) -> Timeouts {
        let keyed = self.keys.current().is_some() && !self.closed;
        let paths = self
            .paths
            .values()
            .filter(|_| keyed)
            .map(|path| self.path_timeout(path, uplinks))
            .fold(Timeouts::default(), Timeouts::min);
        let acks = self
            .remote_paths
            .iter()
            .filter(|(number, _)| keyed && self.path_for_acks(**number).is_some())
            .flat_map(|(_, remote)| {
                let report = remote.trains.report_due();
                let feedback = remote.aggregates.feedback_due();
                let acks = remote.received.ack_due().into_iter();
                acks.chain(report).chain(feedback)
            });
        let rest = acks
            .chain(self.queues.next_expiry())
            .chain(self.queues.returns.due())
            .chain(self.startup_wait_due())
            .chain(self.streams_unreachable_at())
            .chain(self.streams.deferred_resets.due())
            .chain(self.handshake_at())
            .min();
        paths.min(Timeouts::of_rest(rest))
    }

    /// When a handshake should be begun.
    pub(crate) fn handshake_at(&self) -> Option<Instant> {
        match self.handshake.next_at {
            Some(at) => Some(at),
            None => self.keys.rekey_at(&self.timing),
        }
    }

    fn expire_messages(&mut self, now: Instant) {
        for (id, message) in self.queues.take_expired(now) {
            if let Some(wire_id) = message.wire_id {
                let total = message.body.len() as u32;
                self.control
                    .push_back(SentFrame::MessageDrop { id: wire_id, total });
            }
            self.push_done(now, id, &message, (MessageOutcome::Expired, None));
        }
    }

    fn handle_path_timeout(&mut self, now: Instant, id: PathId) {
        let timing = self.timing;
        let Some(path) = self.paths.get_mut(&id) else {
            return;
        };
        if !path.is_up() {
            return;
        }
        if let Some(reason) = path.check_silence(now) {
            self.take_path_down(now, id, reason);
            self.request_handshake_if_unreachable(now);
            return;
        }
        let lost = path.sent.detect_lost(now, &path.rtt);
        path.count(now);
        let patience = timing.ack_delay_max + path.serialization();
        let probe = path.sent.probe_deadline(&path.rtt, patience);
        let mut repeated = Vec::new();
        if probe.is_some_and(|at| at <= now) {
            repeated = path.sent.on_probe(now);
            path.probe_credit = 2;
            path.ping_wanted = true;
        }
        if path
            .keepalive_at(&timing, self.probe_share)
            .is_some_and(|at| at <= now)
        {
            path.ping_wanted = true;
        }
        let change = path.aggregator.on_timeout(now, path.pacer.rate());
        self.on_lost(now, id, lost);
        self.requeue(now, id, repeated);
        self.report_aggregation_change(id, change);
    }

    /// No path is left: the peer may have restarted and not know us.
    pub(super) fn request_handshake_if_unreachable(&mut self, now: Instant) {
        let alone = self.paths.values().all(|path| path.state != PathState::Up);
        if alone && self.handshake.next_at.is_none() {
            self.handshake.next_at = Some(now + self.timing.handshake_retry);
        }
    }

    /// Nothing answers under keys that are not new any more: the peer may have lost them before
    /// a path came up, and it may be unable to call.
    pub(super) fn request_handshake_if_keys_old(&mut self, now: Instant) {
        let patience = self.timing.handshake_retry_max;
        let old = |epoch: &super::Epoch| now - epoch.since >= patience;
        if self.keys.current().is_some_and(old) {
            self.request_handshake_if_unreachable(now);
        }
    }

    fn path_timeout(&self, path: &Path, uplinks: &Uplinks) -> Timeouts {
        let challenge = path.challenge_at;
        if !path.is_up() {
            return Timeouts::of_rest(challenge);
        }
        let room = path.probe_credit > 0 || !path.sent.is_full();
        let may = room && path.pacer.rate() > Bandwidth::ZERO;
        let free = path.pacer.next().max(uplinks.next(path.socket));
        let waits = self.waits_until(path).filter(|_| may);
        let pacer = waits.map(|at| at.max(free));
        let copy = path.copies.front().map(|copy| copy.due);
        let parity = path.aggregator.parity_due();
        let train = path.trains.due(self.probe_share).filter(|_| may);
        let patience = self.timing.ack_delay_max + path.serialization();
        let probe = path.sent.probe_deadline(&path.rtt, patience);
        let departures = [pacer, copy, parity, train.map(|due| due.max(free))];
        let rest = [
            challenge,
            path.aggregator.look_at(),
            probe,
            path.sent.loss_deadline(&path.rtt),
            path.silence_deadline(),
            path.keepalive_at(&self.timing, self.probe_share),
            path.mtu.due().map(|due| due.max(free)),
        ];
        Timeouts {
            departure: departures.into_iter().flatten().min(),
            rest: rest.into_iter().flatten().min(),
        }
    }

    fn control_waits(&self) -> bool {
        let of_streams = !self.streams.credit_wanted.is_empty()
            || !self.streams.resets.is_empty()
            || self.queues.returns.waits();
        self.credit_wanted || !self.control.is_empty() || of_streams
    }

    /// Something may leave over `path` as far as it itself is concerned.
    pub(super) fn wants_to_send(&self, path: &Path, now: Instant) -> bool {
        self.waits_until(path).is_some_and(|at| at <= now)
    }

    /// When something may leave over `path`, pacing aside; in the past: at once.
    fn waits_until(&self, path: &Path) -> Option<Instant> {
        let turn = self.tenants.next_at(path.id);
        let woken = self.queues.has_woken(path.id).then_some(Instant::ZERO);
        let gathers = self.tenants.gathers(path.id);
        let gathered = gathers.then(|| path.aggregator.next());
        [turn, woken, gathered, self.zero_waits_until(path)]
            .into_iter()
            .flatten()
            .min()
    }

    /// The same for what is tenant 0's.
    pub(super) fn zero_waits_until(&self, path: &Path) -> Option<Instant> {
        let urgent =
            path.ping_wanted || (self.control_waits() && self.control_path() == Some(path.id));
        if urgent {
            return Some(Instant::ZERO);
        }
        let free = self
            .tenants
            .zero_free_at(path.id, u64::from(path.mtu.current()))?;
        let has_ready = |coalescing| self.queues.has_ready(path.id, TenantId::ZERO, coalescing);
        if has_ready(Coalescing::No) {
            return Some(free);
        }
        let gathered = has_ready(Coalescing::Yes);
        gathered.then(|| path.aggregator.next().max(free))
    }
}
