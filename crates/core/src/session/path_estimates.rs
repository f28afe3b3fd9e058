//! What a path is like: everything that is measured on its packets and their acknowledgements.
//!
//! The life of an estimate. A path that comes back after an outage is the same line more often than
//! not, and what happens during the outage says nothing about it:
//!
//! | estimate | at an outage | when the path is back |
//! |---|---|---|
//! | capacity, and with it the pacing rate | kept | kept until new trains agree on another |
//! | rate of cross traffic | kept | kept until enough is seen of it, for 15 s at most |
//! | loss | kept | restarted: packets of the outage do not count, acknowledged or not |
//! | base RTT and transit, jitter, delay variation | kept | restarted |
//! | smoothed RTT | kept (challenges are timed by it) | restarted |
//! | own packets at the bottleneck | kept | none |
//! | MTU, spacing of aggregates | kept | restarted |
//!
//! Where the path leads to another address, all of them are restarted.

use std::time::Duration;

use keiro_model::{
    capacity::cross::{Arrival, CrossMeter},
    fairness::controller::RoundTrip,
};
use keiro_units::{Bandwidth, Instant};

use super::{
    estimates::{
        Jitter, OutcomeTotals, Recent, RecentLoss, SelfQueueModel, SelfQueueing, WindowedMinDelay,
    },
    recovery::LargestAcked,
    rtt::{DelayVariation, RttEstimator},
};

/// The estimates of one path.
#[derive(Debug)]
pub(crate) struct PathEstimates {
    rtt: RttEstimator,
    delay_variation: DelayVariation,
    /// Of round trips, without the time that our own packets take at the bottleneck.
    base_rtt: WindowedMinDelay,
    /// Of the forward one-way delay, with the offset of the two clocks in it.
    base_transit: WindowedMinDelay,
    self_queue: SelfQueueModel,
    /// The capacity that self-queueing is computed with.
    capacity_assumed: Bandwidth,
    /// Packets sent before say nothing: another capacity was assumed then.
    capacity_assumed_since: Instant,
    cross: CrossMeter,
    jitter: Jitter,
    recent: Recent,
    /// When the counters were last read.
    updated_at: Instant,
    /// Smallest round trip of packets of almost full length: short ones take less time on a slow
    /// line, which would look like a queue of the long ones.
    min_rtt_of_long: Option<Duration>,
}

/// When and how the largest newly acknowledged packet arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivalSample {
    pub(crate) largest: LargestAcked,
    /// Without the acknowledgement delay.
    pub(crate) round_trip: Duration,
    /// By the peer's clock.
    pub(crate) received_us: u64,
    pub(crate) capacity: Option<Bandwidth>,
}

impl PathEstimates {
    pub(crate) fn new(rate: Bandwidth) -> Self {
        Self {
            rtt: RttEstimator::default(),
            delay_variation: DelayVariation::default(),
            base_rtt: WindowedMinDelay::default(),
            base_transit: WindowedMinDelay::default(),
            self_queue: SelfQueueModel::default(),
            capacity_assumed: rate,
            capacity_assumed_since: Instant::ZERO,
            cross: CrossMeter::default(),
            jitter: Jitter::default(),
            recent: Recent::default(),
            updated_at: Instant::ZERO,
            min_rtt_of_long: None,
        }
    }

    pub(crate) fn rtt(&self) -> &RttEstimator {
        &self.rtt
    }

    pub(crate) fn delay_variation(&self) -> &DelayVariation {
        &self.delay_variation
    }

    pub(crate) fn base_rtt(&self) -> Option<Duration> {
        let us = self.base_rtt.us()?;
        Some(Duration::from_micros(u64::try_from(us).unwrap_or(0)))
    }

    pub(crate) fn jitter(&self) -> Option<Duration> {
        self.jitter.get()
    }

    pub(crate) fn loss(&self) -> Option<RecentLoss> {
        self.recent.loss()
    }

    pub(crate) fn sent_rate(&self) -> Bandwidth {
        self.recent.sent_rate()
    }

    pub(crate) fn updated_at(&self) -> Instant {
        self.updated_at
    }

    /// Rate of other senders at a bottleneck of `capacity`.
    pub(crate) fn cross_rate(&self, capacity: Bandwidth) -> Option<Bandwidth> {
        let own = self.sent_rate();
        self.cross.rate(self.updated_at, capacity, own)
    }

    /// The path goes down: see the module's table.
    pub(crate) fn on_outage(&mut self, now: Instant, capacity: Option<Bandwidth>) {
        let own = self.recent.sent_rate();
        self.cross.on_outage(now, capacity, own);
    }

    /// The path is back: see the module's table.
    pub(crate) fn on_return(&mut self, now: Instant, totals: OutcomeTotals) {
        self.recent.on_return(now, totals);
        self.cross.on_return(now);
        self.rtt.reset();
        self.delay_variation = DelayVariation::default();
        self.min_rtt_of_long = None;
        self.base_rtt = WindowedMinDelay::default();
        self.base_transit = WindowedMinDelay::default();
        self.jitter = Jitter::default();
        self.self_queue.on_return(now);
    }

    /// The path leads to another address: what is kept over an outage does not hold either.
    pub(crate) fn on_moved(&mut self) {
        self.cross = CrossMeter::default();
    }

    /// A challenge was answered after `rtt`.
    pub(crate) fn on_validated(&mut self, now: Instant, rtt: Duration) {
        self.rtt.on_validated(rtt);
        let rtt_us = i64::try_from(rtt.as_micros()).unwrap_or(i64::MAX);
        self.base_rtt.on_sample(now, rtt_us);
    }

    /// A packet of `ip_bytes` leaves for a bottleneck of `capacity`.
    pub(crate) fn on_sent(
        &mut self,
        now: Instant,
        ip_bytes: u64,
        capacity: Bandwidth,
    ) -> SelfQueueing {
        let assumed = self.capacity_assumed.as_bits_per_second();
        if capacity.as_bits_per_second() > assumed / 10 * 11 {
            // Self-queueing was overestimated, and with it the base underestimated.
            self.base_rtt = WindowedMinDelay::default();
            self.base_transit = WindowedMinDelay::default();
            self.capacity_assumed_since = now;
        }
        self.capacity_assumed = capacity;
        self.self_queue.on_sent(now, ip_bytes, capacity)
    }

    /// An acknowledgement has newly acknowledged its largest packet, and came back over this path or
    /// another.
    pub(crate) fn on_rtt_sample(&mut self, sample: RttSample) {
        match sample.is_same_path {
            true => self.rtt.on_sample(sample.rtt, sample.ack_delay),
            false => self.rtt.on_other_return_path(sample.rtt, sample.ack_delay),
        }
    }

    /// A packet that left at `sent_at` arrived at `received_us` by the peer's clock.
    pub(crate) fn on_one_way_delay(&mut self, now: Instant, sent_at: Instant, received_us: u64) {
        self.delay_variation.on_sample(now, sent_at, received_us);
    }

    /// The peer has reported when a packet arrived; what it waited in queues of others. `None`: the
    /// sample says nothing.
    pub(crate) fn on_arrival(&mut self, now: Instant, sample: ArrivalSample) -> Option<Duration> {
        let LargestAcked {
            sent_at,
            self_queueing,
            ..
        } = sample.largest;
        if sent_at < self.capacity_assumed_since {
            return None;
        }
        let others_us = self_queueing.without_self_queueing(sample.round_trip)?;
        let trip_wait = self.base_rtt.on_sample(now, others_us);
        let sent_us = i64::try_from(sent_at.as_nanos() / 1000).unwrap_or(i64::MAX);
        let arrived_us = i64::try_from(sample.received_us).unwrap_or(i64::MAX);
        let duration_us = i64::from(self_queueing.duration_us);
        let transit_us = arrived_us
            .saturating_sub(sent_us)
            .saturating_sub(duration_us);
        self.jitter.on_sample(transit_us);
        // The forward delay has no reverse queueing in it, the round trip no clock drift.
        let wait = self.base_transit.on_sample(now, transit_us).min(trip_wait);
        if let Some(capacity) = sample.capacity {
            let arrival = Arrival {
                sent_at,
                received_us: sample.received_us,
                bits_sent: self_queueing.bits_sent,
                burst: self_queueing.burst,
                wait: self_queueing.is_first.then_some(wait),
            };
            self.cross.on_arrival(now, arrival, capacity);
        }
        Some(wait)
    }

    /// A packet was acknowledged after `sample`, without the acknowledgement delay.
    pub(crate) fn on_round_trip(&mut self, sample: Duration, is_long: bool) -> RoundTrip {
        if is_long {
            let known = self.min_rtt_of_long.unwrap_or(sample);
            self.min_rtt_of_long = Some(known.min(sample));
        }
        RoundTrip {
            sample,
            is_long,
            min: self.min_rtt_of_long,
        }
    }

    /// Reads the counters of losses and bytes.
    pub(crate) fn on_totals(&mut self, now: Instant, totals: OutcomeTotals) {
        self.recent.on_totals(now, totals);
        self.updated_at = now;
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        self.rtt.check_invariants();
        self.delay_variation.check_invariants();
        self.recent.check_invariants();
    }
}

/// A round trip and the acknowledgement delay that the peer claims.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RttSample {
    pub(crate) rtt: Duration,
    pub(crate) ack_delay: Duration,
    /// The acknowledgement came back over the path of the packet. Another one may be far shorter or
    /// longer.
    pub(crate) is_same_path: bool,
}
