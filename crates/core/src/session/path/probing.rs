//! What measures a path: MTU probes, packet trains and PINGs.

use std::time::Duration;

use keiro_units::{Instant, Probability};
use rand_chacha::ChaCha20Rng;
use rand_core::RngCore;

use super::Path;
use crate::{
    config::TimingConfig,
    session::train::{self, ProbeBudget, SentTrain, Trains},
};

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
    /// Its first so many packets carry data.
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
        let is_due = self.trains.due(probe_share).is_some_and(|due| due <= now);
        self.pacer.release();
        if !is_due && !self.trains.may_carry(now, probe_share) || !self.may_send_eliciting() {
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

    /// A PING has been written into a packet of so many IP bytes.
    pub(crate) fn on_ping_written(
        &mut self,
        now: Instant,
        ip_bytes: u64,
        probe_share: Probability,
    ) {
        if self.ping_interval(probe_share).is_some() {
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
        let interval = match self.ping_interval(probe_share) {
            // Spread, so that paths do not ping in step.
            Some(interval) => {
                let percent = 75 + self.recovery.next_number() * 37 % 51;
                interval * percent as u32 / 100
            }
            None => timing.keepalive,
        };
        let keepalive_at = idle.then_some(self.last_eliciting_at + interval.min(timing.keepalive));
        let suspicious = self.suspicion_ping_at(probe_share);
        keepalive_at.into_iter().chain(suspicious).min()
    }

    /// When a PING is due because packets were lost.
    fn suspicion_ping_at(&self, probe_share: Probability) -> Option<Instant> {
        if !self.is_up() || self.ping_wanted {
            return None;
        }
        let paid = self.trains.ping_paid_at(self.probe_budget(probe_share))?;
        self.suspicion.ping_at(self.last_eliciting_at, paid)
    }

    fn ping_interval(&self, probe_share: Probability) -> Option<Duration> {
        self.trains.ping_interval(self.probe_budget(probe_share))
    }

    fn probe_budget(&self, share: Probability) -> ProbeBudget {
        ProbeBudget {
            rate: self.pacer.rate(),
            share,
        }
    }
}
