//! What is due on a path, and when: losses, probe timeouts, keepalives, and the end of a path that is silent.

use std::time::Duration;

use keiro_units::{Bandwidth, ByteCount, Instant, Probability};

use super::{PTO_PACKETS, Path, SERIALIZATION_MAX};
use crate::{
    config::TimingConfig,
    event::PathDownReason,
    session::{aggregation, recovery::AckedOrLostPacket},
    timeouts::Timeouts,
};

/// A path is given up after this much silence beyond two round trips.
///
/// The last packet before an outage was answered a round trip later at most, so that the outage is
/// noticed within 3 RTT + 100 ms even if packets are an RTT and 20 ms apart.
const SILENCE_BEYOND_RTT: Duration = Duration::from_millis(80);

/// What a path's timers bring.
#[derive(Debug)]
pub(crate) enum PathTimeout {
    /// It has gone silent.
    Down(PathDownReason),
    Up {
        lost: Vec<AckedOrLostPacket>,
        /// Content to be retransmitted by a probe timeout.
        retransmit: Vec<AckedOrLostPacket>,
        aggregation: Option<aggregation::Change>,
    },
}

impl Path {
    /// Does what is due; `None`: it is not up.
    pub(crate) fn on_timeout(
        &mut self,
        now: Instant,
        timing: &TimingConfig,
        probe_share: Probability,
    ) -> Option<PathTimeout> {
        if !self.is_up() {
            return None;
        }
        if let Some(reason) = self.check_silence(now) {
            return Some(PathTimeout::Down(reason));
        }
        if let Some(reason) = self.check_base_size(now) {
            return Some(PathTimeout::Down(reason));
        }
        let lost = self.detect_lost(now);
        self.update_totals(now);
        let in_flight = self.recovery.bytes_in_flight();
        self.rate.on_lost(now, &lost, in_flight);
        let mut retransmit = Vec::new();
        if self.pto_deadline(timing).is_some_and(|at| at <= now) {
            retransmit = self.recovery.on_pto(now);
            self.probe_credit = PTO_PACKETS;
            self.ping_wanted = true;
        }
        let keepalive_at = self.keepalive_at(timing, probe_share);
        if keepalive_at.is_some_and(|at| at <= now) {
            self.ping_wanted = true;
        }
        Some(PathTimeout::Up {
            lost,
            retransmit,
            aggregation: self.aggregator.on_timeout(now, self.carries()),
        })
    }

    /// When it has something to do. `data_at`: when data may leave, pacing aside; `uplink_free`:
    /// when the uplink lets something go.
    pub(crate) fn poll_timeout(
        &self,
        timing: &TimingConfig,
        probe_share: Probability,
        data_at: Option<Instant>,
        uplink_free: Instant,
    ) -> Timeouts {
        let challenge = self.validation.challenge_at();
        if !self.is_up() {
            return Timeouts::of_rest(challenge);
        }
        let free = self.pacer.next().max(uplink_free);
        let may_send = self.may_send_ack_eliciting() && self.pacer.rate() > Bandwidth::ZERO;
        let data = data_at.filter(|_| may_send).map(|at| at.max(free));
        let train = self.trains.due(self.probe_budget(probe_share));
        let train = train.filter(|_| may_send);
        let departures = [
            data,
            self.copies.due(),
            self.aggregator.parity_due(),
            train.map(|due| due.max(free)),
        ];
        let rest = [
            challenge,
            self.aggregator.resume_check_at(),
            self.pto_deadline(timing),
            self.recovery.loss_deadline(self.estimates.rtt()),
            self.silence_deadline(),
            self.keepalive_at(timing, probe_share),
            self.mtu.due().map(|due| due.max(free)),
            self.mtu.base_lost_at(),
        ];
        Timeouts {
            departure: departures.into_iter().flatten().min(),
            rest: rest.into_iter().flatten().min(),
        }
    }

    /// How long silence is accepted.
    fn silence_limit(&self) -> Duration {
        self.rtt().smoothed_or_initial() * 2 + SILENCE_BEYOND_RTT + self.serialization() * 2
    }

    /// The time that a full packet takes to leave. It matters on a slow line, where the round trip
    /// was measured with short packets.
    fn serialization(&self) -> Duration {
        let full = ByteCount::new(u64::from(self.mtu.max()));
        let time = self.pacer.rate().transmission_time_ceil(full);
        time.min(SERIALIZATION_MAX)
    }

    /// When the path is given up if nothing is received.
    fn silence_deadline(&self) -> Option<Instant> {
        if !self.is_up() {
            return None;
        }
        Some(self.recovery.unanswered_since()? + self.silence_limit())
    }

    /// Gives the path up if it has been silent for too long.
    fn check_silence(&mut self, now: Instant) -> Option<PathDownReason> {
        let deadline = self
            .silence_deadline()
            .filter(|deadline| *deadline <= now)?;
        let limit = self.silence_limit();
        self.estimates.on_outage(now, self.capacity());
        self.counters.outages += 1;
        self.validation.on_silent(now);
        Some(PathDownReason::Silent {
            silent: now.saturating_duration_since(deadline) + limit,
            limit,
        })
    }

    /// Gives the path up if packets of its base size do not arrive any more: challenges find out what does.
    fn check_base_size(&mut self, now: Instant) -> Option<PathDownReason> {
        self.mtu.base_lost_at()?;
        let bytes = self.mtu.current();
        self.mtu.reset();
        self.estimates.on_outage(now, self.capacity());
        self.counters.outages += 1;
        self.validation.on_silent(now);
        Some(PathDownReason::TooSmall { bytes })
    }

    fn pto_deadline(&self, timing: &TimingConfig) -> Option<Instant> {
        let ack_delay_max = timing.ack_delay_max + self.serialization();
        self.recovery.pto_deadline(self.rtt(), ack_delay_max)
    }
}
