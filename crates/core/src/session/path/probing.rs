//! What measures a path: MTU probes, packet trains and PINGs.

use std::time::Duration;

use keiro_model::{path_terms::PathTerms, probing};
use keiro_units::{ByteCount, Instant, Probability};
use rand_chacha::ChaCha20Rng;
use rand_core::RngCore;

use super::Path;
use crate::{
    config::TimingConfig,
    session::train::{self, ProbeBudget, SentTrain, Trains},
    wire::Frame,
};

/// Time until the sizes of a path are tried again after none of them was answered. Ours: they are 7 kB.
const SIZES_AGAIN: Duration = Duration::from_secs(60);
/// The same where probes are limited. Ours: 0.3 MB a day.
const SIZES_AGAIN_LIMITED: Duration = Duration::from_secs(1800);

/// Slower keepalives come after at least these percents of their time.
const KEEPALIVE_SPREAD_MIN: u32 = 75;

/// A packet train that is to leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrainPlan {
    pub(crate) id: u64,
    pub(crate) packets: usize,
    /// When its first packet was due.
    pub(crate) due: Instant,
    is_thin: bool,
}

/// What a train that has left carried.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TrainContent {
    /// Packets at its beginning that carry data.
    pub(crate) packets_with_data: u32,
    /// Bytes that are no data.
    pub(crate) probe_bytes: usize,
}

impl Path {
    /// IP bytes of the MTU probe that is to be sent now, as the next packet.
    pub(crate) fn poll_mtu_probe(&mut self, now: Instant) -> Option<u16> {
        let size = self.mtu.wanted(now)?;
        let number = self.recovery.next_number();
        self.mtu.on_probe_sent(now, number, size);
        Some(size)
    }

    /// The train that is to leave now. `waiting_bytes`: data that it may carry; `batch_len_max`: UDP
    /// payload of one batch.
    pub(crate) fn poll_train(
        &mut self,
        now: Instant,
        probe_share: Probability,
        waiting_bytes: u64,
        batch_len_max: usize,
    ) -> Option<TrainPlan> {
        let budget = self.probe_budget(probe_share);
        let is_due = self.trains.due(budget).is_some_and(|due| due <= now);
        self.pacer.release();
        if !is_due && !self.trains.may_carry(now, probe_share) || !self.may_send_ack_eliciting() {
            return None;
        }
        let payload_max = self.udp_payload_max();
        let packet_bytes = usize::from(self.mtu.current());
        // A driver that cannot send them as one batch sends them one after the other at once.
        let is_thin = self.aggregator.is_used(now);
        let wanted = Trains::packets(self.pacer.rate(), packet_bytes as u64, is_thin)
            .min((batch_len_max / payload_max).max(train::PACKETS_MIN));
        let least = (wanted / 2).max(train::PACKETS_MIN);
        // The last one may begin in time and end late, as that of any batch.
        let mut allowed = self.pacer.burst_bytes(now) as usize / packet_bytes + 1;
        if self.pacer.is_rested(now) {
            // On a slow path a pair takes longer than any burst.
            allowed = allowed.max(least);
        }
        let mut packets = wanted.min(allowed);
        let full = waiting_bytes as usize / payload_max;
        if full >= least {
            packets = packets.min(full);
        } else if !is_due {
            return None;
        }
        if packets < least {
            if is_due {
                self.pacer.hold();
            }
            return None;
        }
        Some(TrainPlan {
            id: self.trains.next_id(),
            packets,
            due: self.pacer.due(now),
            is_thin,
        })
    }

    /// A train has left.
    pub(crate) fn on_train_sent(
        &mut self,
        now: Instant,
        plan: TrainPlan,
        content: TrainContent,
        probe_share: Probability,
        random: &mut ChaCha20Rng,
    ) {
        let sent = SentTrain {
            packets: plan.packets as u32,
            packet_bytes: u32::from(self.mtu.current()),
            probe_bytes: content.probe_bytes as u64,
            with_data: content.packets_with_data,
            is_thin: plan.is_thin,
        };
        let budget = self.probe_budget(probe_share);
        self.trains.on_sent(now, sent, budget, random.next_u32());
    }

    /// A PING has been written. `ip_bytes`: size of its packet.
    pub(crate) fn on_ping_written(
        &mut self,
        now: Instant,
        ip_bytes: u64,
        timing: &TimingConfig,
        probe_share: Probability,
    ) {
        let Some(interval) = self.ping_interval(probe_share) else {
            return;
        };
        // Where little is left for probes, keepalives are no part of that.
        let keepalive = self.keepalive(timing);
        let was_due = now >= self.last_eliciting_at + keepalive * KEEPALIVE_SPREAD_MIN / 100;
        let is_keepalive = interval >= keepalive && was_due;
        if !(is_keepalive && (self.is_limited() || self.is_idle())) {
            self.trains
                .on_ping(now, ip_bytes, self.probe_budget(probe_share));
        }
    }

    /// When a PING is due on an idle path, or where packets were lost: more often than the keepalive needs, if `probe_share` of
    /// the rate pays for it, because the answers measure the path.
    pub(super) fn keepalive_at(
        &self,
        timing: &TimingConfig,
        probe_share: Probability,
    ) -> Option<Instant> {
        let idle = self.is_up() && !self.recovery.has_outstanding() && !self.ping_wanted;
        // Spread, so that paths do not ping in step.
        let spread = self.recovery.next_number() * 37;
        let mut keepalive = self.keepalive(timing);
        if keepalive > timing.keepalive {
            let percent = KEEPALIVE_SPREAD_MIN + spread as u32 % (101 - KEEPALIVE_SPREAD_MIN);
            keepalive = keepalive * percent / 100;
        }
        let interval = self
            .ping_interval(probe_share)
            .map_or(keepalive, |interval| {
                interval * (75 + spread % 51) as u32 / 100
            });
        let keepalive_at = idle.then_some(self.last_eliciting_at + interval.min(keepalive));
        let suspicious = self.suspicion_ping_at(probe_share);
        keepalive_at.into_iter().chain(suspicious).min()
    }

    /// When a PING is due because packets were lost.
    fn suspicion_ping_at(&self, probe_share: Probability) -> Option<Instant> {
        if !self.is_up() || self.ping_wanted {
            return None;
        }
        let paid = self.trains.ping_paid_at(self.probe_budget(probe_share))?;
        self.loss_probing.ping_at(self.last_eliciting_at, paid)
    }

    /// Longest time without a packet that asks for an answer.
    fn keepalive(&self, timing: &TimingConfig) -> Duration {
        let slower = match (self.is_limited(), self.is_idle()) {
            // Each after twice as long as the last, so that a path in use is watched as any other.
            (true, _) => timing.keepalive_limited.min(self.idle_time()),
            (false, true) => timing.keepalive_idle,
            (false, false) => Duration::ZERO,
        };
        slower.max(timing.keepalive)
    }

    fn ping_interval(&self, probe_share: Probability) -> Option<Duration> {
        self.trains.ping_interval(self.probe_budget(probe_share))
    }

    pub(super) fn probe_budget(&self, share: Probability) -> ProbeBudget {
        ProbeBudget {
            rate: self.pacer.rate(),
            share,
            limit: self.probe_limit().map(probing::rate_of_limit),
            idle: self.idle_time(),
        }
    }

    /// Data was sent or has arrived.
    pub(crate) fn on_data(&mut self, now: Instant, probe_share: Probability) {
        let was_idle = self.is_idle();
        self.last_data_at = now;
        self.idle_meter.on_data(now, self.traffic_bytes());
        if was_idle {
            let budget = ProbeBudget {
                idle: Duration::ZERO,
                ..self.probe_budget(probe_share)
            };
            self.trains.on_budget_changed(now, budget);
        }
    }

    /// How long it had carried no data when something that asks for an answer was last sent.
    fn idle_time(&self) -> Duration {
        self.last_eliciting_at
            .saturating_duration_since(self.last_data_at)
    }

    /// It has carried no data for some minutes.
    fn is_idle(&self) -> bool {
        self.idle_time() >= probing::IDLE_AFTER
    }

    /// Probes and keepalives are limited at one end or both.
    pub(crate) fn is_limited(&self) -> bool {
        self.probe_limit().is_some()
    }

    /// Bytes a month of both ends, of probes and keepalives; `None`: no limit.
    pub(crate) fn probe_limit(&self) -> Option<ByteCount> {
        let spent = self.terms().is_spent.then_some(ByteCount::ZERO);
        let limits = [self.own_limit, self.peer_limit, spent];
        limits.into_iter().flatten().min()
    }

    /// The limit of this end, for the peer: once there was one, it has to know of every other one.
    fn announced_limit(&self) -> Option<Frame<'static>> {
        let limit = self.own_limit.map(ByteCount::get);
        self.announces_limit.then_some(Frame::ProbeLimit(limit))
    }

    /// What the peer has to know of this end's path, beside every ping and challenge; each of at most
    /// [`Self::ANNOUNCEMENT_LEN_MAX`] bytes.
    pub(crate) fn announcements(&self) -> impl Iterator<Item = Frame<'static>> + use<> {
        let all = [
            self.announced_limit(),
            self.local_and_peer_terms.announced(),
        ];
        all.into_iter().flatten()
    }

    /// The peer may take this path for one that it knew a limit or terms of: it has to know these, and that there are
    /// none as well.
    pub(crate) fn announce_always(&mut self) {
        self.announces_limit = true;
        self.local_and_peer_terms.announce_always();
    }

    /// Whether they are due beside data.
    pub(crate) fn is_announcement_due(&self, now: Instant) -> bool {
        self.announcement_timer.is_due(now) && self.announcements().next().is_some()
    }

    pub(crate) fn on_announced(&mut self, now: Instant) {
        self.announcement_timer.on_sent(now);
    }

    pub(crate) const ANNOUNCEMENT_LEN_MAX: usize =
        match Frame::PROBE_LIMIT_LEN_MAX > Frame::PATH_TERMS_LEN_MAX {
            true => Frame::PROBE_LIMIT_LEN_MAX,
            false => Frame::PATH_TERMS_LEN_MAX,
        };

    /// On which terms both ends use it.
    pub(crate) fn terms(&self) -> PathTerms {
        self.local_and_peer_terms.joined()
    }

    /// Those of the peer alone.
    pub(crate) fn peer_terms(&self) -> PathTerms {
        self.local_and_peer_terms.peer()
    }

    /// The peer's terms.
    pub(crate) fn on_peer_terms(&mut self, now: Instant, terms: PathTerms, share: Probability) {
        if self.local_and_peer_terms.set_peer(terms) {
            self.on_limit_changed(now, share);
        }
    }

    pub(super) fn set_own_terms(&mut self, now: Instant, terms: PathTerms, share: Probability) {
        if self.local_and_peer_terms.set_own(terms) {
            // The peer has to know.
            self.announcement_timer.on_change(now);
            self.ping_wanted |= self.is_up();
            self.on_limit_changed(now, share);
        }
    }

    /// The peer's limit.
    pub(crate) fn on_peer_limit(&mut self, now: Instant, limit: Option<u64>, share: Probability) {
        let limit = limit.map(ByteCount::new);
        if limit != self.peer_limit {
            self.peer_limit = limit;
            self.on_limit_changed(now, share);
        }
    }

    pub(super) fn set_own_limit(
        &mut self,
        now: Instant,
        limit: Option<ByteCount>,
        share: Probability,
    ) {
        if limit != self.own_limit {
            self.own_limit = limit;
            self.announces_limit = true;
            // The peer has to know.
            self.announcement_timer.on_change(now);
            self.ping_wanted |= self.is_up();
            self.on_limit_changed(now, share);
        }
    }

    fn on_limit_changed(&mut self, now: Instant, share: Probability) {
        self.mtu.set_limited(self.is_limited());
        let budget = self.probe_budget(share);
        self.trains.on_budget_changed(now, budget);
    }

    /// The peer has restarted: its next challenge has its limit and terms, if it has any.
    pub(super) fn forget_peer_limit(&mut self, now: Instant, share: Probability) {
        let had_terms = self.local_and_peer_terms.set_peer(PathTerms::FREE);
        if self.peer_limit.take().is_some() || had_terms {
            self.on_limit_changed(now, share);
        }
    }

    /// How long the sizes are not tried of which none was answered.
    pub(super) fn sizes_again(&self) -> Duration {
        match self.is_limited() {
            true => SIZES_AGAIN_LIMITED,
            false => SIZES_AGAIN,
        }
    }

    /// Time between the next challenges of a path that is down.
    pub(super) fn probe_down(&self, timing: &TimingConfig) -> Duration {
        match self.is_limited() {
            // A line that has been away for long costs no more than one that is idle.
            true => {
                let longer = timing.probe_down * (1 + self.validation.attempts() / 32);
                longer.min(timing.probe_down_limited).max(timing.probe_down)
            }
            false => timing.probe_down,
        }
    }

    /// Bytes of IP packets in both directions.
    pub(super) fn traffic_bytes(&self) -> u64 {
        self.counters.sent_bytes + self.counters.received_bytes
    }
}
