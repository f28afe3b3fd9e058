//! Keiro's law: a rate that follows from how long the bottleneck's queue is.
//!
//! All that share a bottleneck see the same queue. If every ingress sends, per weight, what one
//! curve says for the queue that it sees, shares are as the weights whatever the round trips are, and
//! nobody needs to know of anybody else. The curve is ln(rate / unit) =
//!
//! ```text
//!   ln(QUEUE_AT_UNIT / q) / FLATNESS    q: queueing time, smoothed
//! + GROWTH · (1 − q / QUEUE_LOW)        where q is below QUEUE_LOW: capacity is left
//! − loss / LOSS_PER_E                   where the buffer ends before the curve does
//! − (q − QUEUE_HIGH) / QUEUE_HIGH       where a buffer has no end
//! ```
//!
//! It is flat, so that a tenant that passes three queues gets little less than one that passes a
//! single one: q three times as long is 3^(−1/4) = 0.76 of the rate (at a bottleneck with the usual
//! 1/q it were a third, and with the 1/√p of a loss-driven window 0.58). It is flat also for errors:
//! who takes the queue for twice as long gets 16 % less. What it costs is that `unit`, the provider's,
//! has to be about what a weight of 1 gets: the queue goes with the fourth power of the ratio.
//!
//! The rate approaches the curve slowly, bounded upwards, and downwards the quicker the longer the
//! queue is; beside that, it answers each change of the queue at once by the share that a round trip
//! later undoes it. The first makes shares equal, the second keeps the queue from swinging.
//!
//! The smallest round trip is never forgotten: a way that becomes longer is taken for a queue until
//! the path is validated anew.

use std::time::Duration;

use super::law::{Allowance, Feedback, Law, Weight};
use crate::{Bandwidth, ByteCount, Instant};

/// Queueing time at which a weight of 1 gets `unit`, s: six full packets at 50 Mbit/s, an eighth of
/// the paper's buffer `[fairness §3.1]`. Ours, as all below, by the bench (`docs/fairness.md`).
const QUEUE_AT_UNIT: f64 = 0.0015;
/// ln(q) per ln(rate).
const FLATNESS: f64 = 4.0;
/// Below, the queue is on its way to being empty, s.
const QUEUE_LOW: f64 = 0.0005;
/// With no queue at all the rate goes to e^GROWTH times what the curve says at QUEUE_LOW.
const GROWTH: f64 = 2.5;
/// A queue that is beyond what fairness is worth, s.
const QUEUE_HIGH: f64 = 0.1;
/// Share of packets lost that takes the rate to 1/e.
const LOSS_PER_E: f64 = 0.01;
/// The approach to the curve, per second of the distance in ln(rate).
const APPROACH: f64 = 0.5;
/// Fastest rise, ln(rate) per s, below the unit and above it: a rise is noticed a round trip later.
const RISE_MAX_BELOW: f64 = 0.8;
const RISE_MAX: f64 = 0.3;
/// Fastest fall, the same: this much, and so much more per second of queueing time.
const FALL_MAX: f64 = 0.1;
const FALL_MAX_PER_QUEUE: f64 = 200.0;
/// The same per share of packets lost.
const FALL_MAX_PER_LOSS: f64 = 10.0;
/// The answer to a change of the queue, of the share that undoes it within a round trip; and at
/// most, ln(rate) per s of queueing time.
const DAMPING: f64 = 1.0;
const DAMPING_MAX: f64 = 15.0;
/// Time constants, s: of the queue for damping, of the queue and of loss for the curve.
const SMOOTHING_FAST: f64 = 0.02;
const SMOOTHING_SLOW: f64 = 0.5;
const SMOOTHING_LOSS: f64 = 1.0;
/// A tenant begins at e^START of its unit and rises by RISE_START, ln(rate) per s, until it is there
/// or sees a queue of START_QUEUE, s, or loss.
const START: f64 = -2.0;
const RISE_START: f64 = 3.0;
const START_QUEUE: f64 = 0.003;
/// ln(rate / unit) at most, either way.
const BOUND: f64 = 12.0;
/// One feedback changes ln(rate) by so much at most.
const STEP_MAX: f64 = 0.2;
/// The window: so many round trips of the rate, and so much of it for delays at the ends, s, and
/// packets. It is a bound for when nothing is heard; the rate decides.
const WINDOW_ROUND_TRIPS: f64 = 1.25;
const WINDOW_SLACK: f64 = 0.01;
const WINDOW_PACKETS: f64 = 4.0;

#[derive(Debug)]
pub(super) struct Keiro {
    /// bit/s.
    unit: f64,
    weight: f64,
    packet: f64,
    /// ln(rate / (unit · weight)).
    level: f64,
    starting: bool,
    /// Smallest round trip, s.
    base: Option<f64>,
    /// Queueing time, s.
    queue: f64,
    queue_slow: f64,
    /// Share of packets lost.
    loss: f64,
    told_at: Instant,
}

impl Keiro {
    pub(super) fn new(now: Instant, unit: Bandwidth, weight: Weight, packet: ByteCount) -> Self {
        Self {
            unit: unit.as_bits_per_second().max(1) as f64,
            weight: weight.get(),
            packet: packet.get() as f64,
            level: START,
            starting: true,
            base: None,
            queue: 0.0,
            queue_slow: 0.0,
            loss: 0.0,
            told_at: now,
        }
    }

    /// What the curve says, as ln(rate / (unit · weight)).
    fn curve(&self) -> f64 {
        let queue = self.queue_slow;
        let flat = (QUEUE_AT_UNIT / queue.max(QUEUE_LOW)).ln() / FLATNESS;
        let low = GROWTH * (1.0 - queue / QUEUE_LOW).max(0.0);
        let high = (queue / QUEUE_HIGH - 1.0).max(0.0);
        flat + low - high - self.loss / LOSS_PER_E
    }

    /// Change of the level per second.
    fn approach(&mut self) -> f64 {
        if self.starting {
            let queue = self.queue > START_QUEUE || self.loss > 0.0;
            self.starting = !queue && self.level < 0.0;
        }
        if self.starting {
            return RISE_START;
        }
        let fall = FALL_MAX + FALL_MAX_PER_QUEUE * self.queue_slow + FALL_MAX_PER_LOSS * self.loss;
        let rise = if self.level < 0.0 {
            RISE_MAX_BELOW
        } else {
            RISE_MAX
        };
        (APPROACH * (self.curve() - self.level)).clamp(-fall, rise)
    }

    fn round_trip(&self) -> f64 {
        // RFC 9002 §6.2.2 has 333 ms before the first sample; the rate bounds what that lets go.
        self.base.map_or(0.333, |base| base + self.queue)
    }
}

impl Law for Keiro {
    fn allowance(&self) -> Allowance {
        let rate = self.level.exp() * self.weight * self.unit;
        let span = self.round_trip() * WINDOW_ROUND_TRIPS + WINDOW_SLACK;
        let window = rate / 8.0 * span + WINDOW_PACKETS * self.packet;
        Allowance {
            window: ByteCount::new(window as u64),
            rate: Some(Bandwidth::from_bits_per_second(rate as u64)),
        }
    }

    fn on_feedback(&mut self, feedback: &Feedback) {
        let gap = feedback.now.saturating_duration_since(self.told_at);
        let gap = gap.as_secs_f64();
        self.told_at = feedback.now;
        self.packet = feedback.packet.get() as f64;
        let passed = |constant: f64| (gap / constant).min(1.0);
        // A mark says what a loss says, without the loss (RFC 3168 §5).
        let bad = feedback
            .lost_packets
            .saturating_add(feedback.marked_packets) as f64;
        let told = feedback.lost_packets.saturating_add(feedback.acked_packets) as f64;
        if told > 0.0 {
            let share = (bad / told).min(1.0);
            self.loss += (share - self.loss) * passed(SMOOTHING_LOSS);
        }
        let before = self.queue;
        if let Some(sample) = feedback.round_trip.map(|sample| sample.as_secs_f64()) {
            let known = feedback.round_trip_min.as_ref().map(Duration::as_secs_f64);
            let base = [self.base, known]
                .into_iter()
                .flatten()
                .fold(sample, f64::min);
            self.base = Some(base);
            let queue = sample - base;
            self.queue += (queue - self.queue) * passed(SMOOTHING_FAST);
            self.queue_slow += (queue - self.queue_slow) * passed(SMOOTHING_SLOW);
        }
        let damping = (DAMPING / (self.round_trip() + SMOOTHING_FAST)).min(DAMPING_MAX);
        let approach = self.approach() * gap.min(STEP_MAX);
        // Without being at its limit a tenant learns of queues, but not of what is free.
        let approach = if feedback.limited {
            approach
        } else {
            approach.min(0.0)
        };
        let step = approach - damping * (self.queue - before);
        self.level = (self.level + step.clamp(-STEP_MAX, STEP_MAX)).clamp(-BOUND, BOUND);
    }

    fn set_weight(&mut self, weight: Weight) {
        self.weight = weight.get();
    }

    fn on_resume(&mut self, now: Instant) {
        self.level = self.level.min(START);
        self.starting = true;
        (self.queue, self.queue_slow, self.loss) = (0.0, 0.0, 0.0);
        self.told_at = now;
    }
}
