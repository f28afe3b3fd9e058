//! The paper's controller: a window in packets, and nothing else `[fairness §2, §3.1]`.
//!
//! The window grows by a packets per round trip while it is used up, and is multiplied by 1 − b for
//! every packet lost, until half (or b) is given up in a round trip. a and b follow the measured
//! round trip, the measured loss and the weight ([`Provider::tenant`]) at every feedback. The paper does not say how a window begins. Ours
//! begins as a rate per weight that grows by the clock, the same for all, until the first loss: the
//! window is what that rate has on the way, whatever the round trip has become by then. Tenants that
//! begin together are at their shares when the line is full, which additive increase would take
//! minutes to bring them to: with a = 0.5 and b = 0.01 a window of 90 packets at 300 ms approaches
//! its steady state by e in 55 s.

use std::time::Duration;

use super::{
    aimd::{Aimd, Provider},
    controller::{Controller, Feedback, RoundTrip, SendAllowance, Weight},
    loss_intervals::LossIntervals,
};
use keiro_units::{Bandwidth, ByteCount, Instant};

/// The window at first of a tenant of weight 1 at the reference round trip: what a bottleneck's
/// buffer takes of many at once. Ours.
const WINDOW_FIRST: f64 = 4.0;
/// Reference round trips in which the rate grows by e at first: tenants that learn of the same
/// full buffer at different times have grown little apart by then. Ours.
const START_SPAN: f64 = 4.0;
/// What a window gives up within a round trip at most, as a share, if b is not more: TCP's half. With
/// one b of a round trip's losses a window could not be held below a/b packets, 50 in the paper's
/// fig. 7. Ours.
const DECREASE_MAX: f64 = 0.5;
/// What the first loss leaves of the rate at which the lost packet was sent. Ours.
const START_KEEP: f64 = 0.9;
/// Where packets are spaced, the window leaves in this part less than a round trip, so that it still
/// decides.
const SPACING: f64 = 1.1;
/// A shorter one is taken for this long. No packet is there and back sooner.
const ROUND_TRIP_MIN: Duration = Duration::from_micros(1);
/// Less would carry nothing, so that nothing would be learnt any more.
const WINDOW_MIN: f64 = 2.0;
/// Bounds what an unused path would let the window grow to: 10 Gbit/s for 1.2 s.
const WINDOW_MAX: f64 = 1e6;

#[derive(Debug)]
pub(super) struct I2vfc {
    provider: Provider,
    weight: Weight,
    packet: ByteCount,
    /// In packets.
    window: f64,
    /// Packets per second of weight 1; `None`: something was lost.
    start: Option<f64>,
    /// Losses before are of packets that left in the start, and say nothing of p.
    settled_at: Instant,
    /// p, of packets after the start.
    losses: LossIntervals,
    /// R: smoothed as RFC 9002 §5.3 does.
    round_trip: Option<Duration>,
    /// Since when losses are of one round trip.
    decreased_at: Option<Instant>,
    /// The window may become no smaller within the round trip that began then.
    floor: f64,
    last_feedback_at: Instant,
}

impl I2vfc {
    pub(super) fn new(now: Instant, provider: Provider, weight: Weight, packet: ByteCount) -> Self {
        Self {
            provider,
            weight,
            packet,
            window: WINDOW_FIRST,
            start: Some(WINDOW_FIRST / provider.round_trip.as_secs_f64().max(1e-6)),
            settled_at: now,
            losses: LossIntervals::new(provider.reference_loss(packet)),
            round_trip: None,
            decreased_at: None,
            floor: WINDOW_MIN,
            last_feedback_at: now,
        }
    }
}

impl I2vfc {
    /// a and b now.
    fn aimd(&self, round_trip: Duration) -> Option<Aimd> {
        let loss = self.losses.share();
        self.provider
            .tenant(self.weight, round_trip, loss, self.packet)
    }

    /// Grows for `gap`, or ends with a loss.
    fn start(&mut self, rate: f64, gap: f64, round_trip: f64, lost: bool) {
        let span = START_SPAN * self.provider.round_trip.as_secs_f64().max(1e-6);
        let rate = if lost {
            rate * START_KEEP * (-round_trip / span).exp()
        } else {
            rate * (gap.min(round_trip) / span).exp()
        };
        let window = rate * self.weight.get() * round_trip;
        self.window = window.clamp(WINDOW_MIN, WINDOW_MAX);
        self.start = (!lost && self.window < WINDOW_MAX).then_some(rate);
    }

    /// A round trip of losses begins. What of the window is kept at least.
    fn begin_decrease(&mut self, now: Instant, decrease: f64) {
        self.decreased_at = Some(now);
        self.floor = self.window * (1.0 - decrease.max(DECREASE_MAX));
    }

    /// Every lost packet counts, as it does in p, until [`DECREASE_MAX`] is given up.
    fn decrease(&mut self, now: Instant, lost: u64, decrease: f64, round_trip: Duration) {
        let over = |at| at + round_trip <= now;
        if self.decreased_at.is_none_or(over) {
            self.begin_decrease(now, decrease);
        }
        let keep = (1.0 - decrease).powf(lost as f64);
        self.window = (self.window * keep).max(self.floor).max(WINDOW_MIN);
    }
}

impl Controller for I2vfc {
    fn allowance(&self) -> SendAllowance {
        let window = ByteCount::new((self.window * self.packet.get() as f64) as u64);
        let spacing = self.round_trip.filter(|_| self.provider.spaced);
        let rate = spacing.map(|round_trip| {
            let bits = window.get() as f64 * 8.0 * SPACING;
            Bandwidth::from_bits_per_second((bits / round_trip.as_secs_f64().max(1e-6)) as u64)
        });
        SendAllowance { window, rate }
    }

    fn on_feedback(&mut self, feedback: &Feedback) {
        let gap = feedback
            .now
            .saturating_duration_since(self.last_feedback_at);
        self.last_feedback_at = feedback.now;
        self.packet = feedback.packet;
        if let Some(RoundTrip { sample, .. }) = feedback.round_trip {
            let sample = sample.max(ROUND_TRIP_MIN);
            let known = self.round_trip;
            self.round_trip = Some(known.map_or(sample, |known| (known * 7 + sample) / 8));
        }
        let Some(round_trip) = self.round_trip else {
            return;
        };
        let bad = feedback
            .lost_packets
            .saturating_add(feedback.marked_packets);
        if self.start.is_none() && feedback.now >= self.settled_at {
            // Marked packets are acknowledged as well.
            let good = feedback
                .acked_packets
                .saturating_sub(feedback.marked_packets);
            self.losses.on_packets(good, bad);
        }
        let Some(aimd) = self.aimd(round_trip) else {
            return;
        };
        if let Some(rate) = self.start {
            if bad > 0 || feedback.limited {
                self.start(rate, gap.as_secs_f64(), round_trip.as_secs_f64(), bad > 0);
            }
            if bad > 0 {
                self.settled_at = feedback.now + round_trip;
                self.begin_decrease(feedback.now, aimd.decrease());
            }
        } else if bad > 0 {
            self.decrease(feedback.now, bad, aimd.decrease(), round_trip);
        } else if feedback.limited {
            // Acknowledged windows are round trips, also where small packets fill them.
            let packets = feedback.acked.get() as f64 / self.packet.get().max(1) as f64;
            let growth = packets / self.window * aimd.increase();
            self.window = (self.window + growth).min(WINDOW_MAX);
        }
    }

    fn set_weight(&mut self, weight: Weight) {
        // Additive increase would take minutes to follow.
        let ratio = weight.get() / self.weight.get();
        self.window = (self.window * ratio).clamp(WINDOW_MIN, WINDOW_MAX);
        self.weight = weight;
    }

    fn terms(&self) -> Vec<(&'static str, f64)> {
        let Some(round_trip) = self.round_trip else {
            return Vec::new();
        };
        let mut terms = vec![
            ("window_packets", self.window),
            ("round_trip_ms", round_trip.as_secs_f64() * 1e3),
            ("loss_share", self.losses.share()),
        ];
        if let Some(aimd) = self.aimd(round_trip) {
            terms.push(("a_packets", aimd.increase()));
            terms.push(("b_share", aimd.decrease()));
        }
        terms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A controller past its start, and the time of its last feedback.
    fn running() -> (I2vfc, Feedback) {
        let packet = ByteCount::new(1500);
        let mut controller = I2vfc::new(Instant::ZERO, Provider::default(), Weight::ONE, packet);
        let mut feedback = Feedback {
            now: Instant::ZERO,
            acked: ByteCount::new(15_000),
            acked_packets: 10,
            lost_packets: 0,
            marked_packets: 0,
            round_trip: Some(RoundTrip {
                sample: Duration::from_millis(100),
                is_long: true,
                min: None,
            }),
            in_flight: packet,
            limited: true,
            packet,
        };
        for _ in 0..20 {
            feedback.now += Duration::from_millis(100);
            controller.on_feedback(&feedback);
        }
        feedback.now += Duration::from_millis(100);
        feedback.lost_packets = 1;
        controller.on_feedback(&feedback);
        feedback.lost_packets = 0;
        assert_eq!(controller.start, None);
        (controller, feedback)
    }

    #[test]
    fn a_mark_shrinks_the_window_as_a_loss_does() {
        // A marked packet is acknowledged, a lost one is not.
        let windows = [(1, 0, 10), (0, 1, 11)].map(|(lost, marked, acked)| {
            let (mut controller, mut feedback) = running();
            let before = controller.window;
            feedback.now += Duration::from_millis(200);
            (feedback.lost_packets, feedback.marked_packets) = (lost, marked);
            feedback.acked_packets = acked;
            controller.on_feedback(&feedback);
            assert!(controller.window < before);
            controller.window
        });
        assert_eq!(windows[0], windows[1]);
    }

    #[test]
    fn a_round_trip_of_losses_costs_half_of_the_window_at_most() {
        let (mut controller, mut feedback) = running();
        let before = controller.window;
        feedback.now += Duration::from_millis(200);
        feedback.lost_packets = 1000;
        controller.on_feedback(&feedback);
        let half = (before / 2.0).max(WINDOW_MIN);
        assert!(
            (controller.window - half).abs() < 1e-9,
            "{before} {controller:?}"
        );
    }

    #[test]
    fn a_window_that_is_not_used_up_does_not_grow() {
        for limited in [true, false] {
            let (mut controller, mut feedback) = running();
            let before = controller.window;
            feedback.now += Duration::from_millis(100);
            feedback.limited = limited;
            controller.on_feedback(&feedback);
            assert_eq!(controller.window > before, limited);
        }
    }
}
