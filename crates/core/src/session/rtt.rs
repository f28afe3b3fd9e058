//! Round-trip time and one-way delay variation of one path.

use std::time::Duration;

use keiro_units::Instant;

/// Round trip assumed before the first sample (RFC 9002 §6.2.2).
const INITIAL_RTT: Duration = Duration::from_millis(333);
/// Timer granularity of RFC 9002 §6.1.2.
pub(crate) const GRANULARITY: Duration = Duration::from_millis(1);
/// How late a peer may wake up to acknowledge. Ours: its timers are finer than RFC 9002's; a path whose answers
/// vary more is known to.
const LATENESS: Duration = Duration::from_micros(250);

/// Smoothed round trip after RFC 9002 §5.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RttEstimator {
    latest: Duration,
    smoothed: Option<Duration>,
    variation: Duration,
    min: Option<Duration>,
    /// The validation of the path is all that has been measured.
    is_provisional: bool,
}

impl RttEstimator {
    /// The path was validated `sample` after the challenge was sent.
    ///
    /// The first packet over an idle link may wait for what later ones do not: for address resolution,
    /// for a route, for a radio that sleeps. As the first sample it stands until an acknowledgement
    /// comes sooner, instead of being forgotten over dozens of samples.
    pub(crate) fn on_validated(&mut self, sample: Duration) {
        let is_first = self.smoothed.is_none();
        self.on_sample(sample, Duration::ZERO);
        self.is_provisional = is_first;
    }

    /// Takes a sample; `ack_delay` is what the peer says it held the acknowledgement back.
    pub(crate) fn on_sample(&mut self, sample: Duration, ack_delay: Duration) {
        if self.is_provisional && self.smoothed.is_some_and(|first| sample < first) {
            self.smoothed = None;
        }
        self.is_provisional = false;
        let min = self.min.map_or(sample, |min| min.min(sample));
        self.min = Some(min);
        self.smooth(sample, min, ack_delay);
    }

    /// An acknowledgement came back over another path after `sample`. That a shorter path brings it
    /// sooner says nothing about this one. That it takes longer means that packets must not be
    /// declared lost, nor challenges unanswered, before such an acknowledgement can have come.
    pub(crate) fn on_other_return_path(&mut self, sample: Duration, ack_delay: Duration) {
        match (self.smoothed, self.min) {
            (Some(smoothed), Some(min)) if sample > smoothed + ack_delay => {
                self.smooth(sample, min, ack_delay);
            }
            _ => self.latest = sample,
        }
    }

    fn smooth(&mut self, sample: Duration, min: Duration, ack_delay: Duration) {
        self.latest = sample;
        let adjusted = if sample >= min + ack_delay {
            sample - ack_delay
        } else {
            sample
        };
        match self.smoothed {
            None => {
                self.smoothed = Some(adjusted);
                self.variation = adjusted / 2;
            }
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(adjusted)) / 4;
                self.smoothed = Some((smoothed * 7 + adjusted) / 8);
            }
        }
    }

    /// Forgets what was measured: the path leads elsewhere now.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    pub(crate) fn smoothed_or_initial(&self) -> Duration {
        self.smoothed.unwrap_or(INITIAL_RTT)
    }

    pub(crate) fn variation(&self) -> Duration {
        self.variation
    }

    pub(crate) fn min(&self) -> Option<Duration> {
        self.min
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        assert_eq!(
            self.min.is_some(),
            self.smoothed.is_some(),
            "the first sample is the smallest and the smoothed RTT"
        );
        assert!(
            self.min <= self.smoothed,
            "the smoothed RTT is no shorter than the smallest: {self:?}"
        );
        assert!(
            self.smoothed.is_some() || !self.is_provisional,
            "what is provisional is a sample"
        );
    }

    /// Age at which a packet before an acknowledged one is lost (RFC 9002 §6.1.2: 9/8 RTT).
    pub(crate) fn loss_delay(&self) -> Duration {
        let rtt = self.smoothed_or_initial().max(self.latest);
        (rtt * 9 / 8).max(GRANULARITY)
    }

    /// Time after which an unanswered tail is probed (RFC 9002 §6.2.1).
    ///
    /// The allowance for variation is bounded, because a path may be given up after 2 RTT + 80 ms of
    /// silence: a probe must have time to be answered before. A probe too many costs little.
    pub(crate) fn probe_timeout(&self, ack_delay_max: Duration) -> Duration {
        let rtt = self.smoothed_or_initial();
        let allowance_max = rtt / 4 + Duration::from_millis(10);
        // On a short path a millisecond would be the better part of the wait.
        let allowance_min = (rtt / 4).clamp(LATENESS, GRANULARITY);
        rtt + (self.variation * 4).clamp(allowance_min, allowance_max) + ack_delay_max
    }
}

/// The round trip without the acknowledgement delay `held`. `None`: nothing is left, which cannot be:
/// a clock jumped, or the peer lies.
pub(crate) fn without_ack_delay(sample: Duration, held: Duration) -> Option<Duration> {
    sample.checked_sub(held).filter(|time| !time.is_zero())
}

/// One-way delay variation: how much longer than the shortest a packet took.
///
/// Both clocks run free: only differences of (arrival by the peer's clock − departure by ours) are
/// used. The shortest is forgotten slowly, so that clock drift does not accumulate.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DelayVariation {
    window: Option<Window>,
    latest: Option<Duration>,
    smoothed: Option<Duration>,
}

/// Smallest offset of this and of the previous period, microseconds.
#[derive(Clone, Copy, Debug)]
struct Window {
    since: Instant,
    current: i64,
    previous: i64,
}

/// A period of the minimum: long against queues, short against drift of some 50 ppm (0.5 ms).
const WINDOW: Duration = Duration::from_secs(10);

impl DelayVariation {
    pub(crate) fn on_sample(&mut self, now: Instant, sent_at: Instant, received_at_us: u64) {
        let sent_us = i64::try_from(sent_at.as_nanos() / 1000).unwrap_or(i64::MAX);
        let offset = i64::try_from(received_at_us)
            .unwrap_or(i64::MAX)
            .saturating_sub(sent_us);
        let window = self.window.get_or_insert(Window {
            since: now,
            current: offset,
            previous: offset,
        });
        if now.saturating_duration_since(window.since) >= WINDOW {
            *window = Window {
                since: now,
                current: offset,
                previous: window.current,
            };
        }
        window.current = window.current.min(offset);
        let above = offset.saturating_sub(window.current.min(window.previous));
        let above = Duration::from_micros(u64::try_from(above).unwrap_or(0));
        self.latest = Some(above);
        self.smoothed = Some(
            self.smoothed
                .map_or(above, |smoothed| (smoothed * 7 + above) / 8),
        );
    }

    pub(crate) fn latest(&self) -> Option<Duration> {
        self.latest
    }

    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        let known = [self.latest.is_some(), self.smoothed.is_some()];
        assert_eq!(known, [self.window.is_some(); 2], "samples have a minimum");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn first_sample_sets_and_later_ones_smooth() {
        let mut rtt = RttEstimator::default();
        rtt.on_sample(100 * MS, Duration::ZERO);
        assert_eq!((rtt.smoothed(), rtt.variation()), (Some(100 * MS), 50 * MS));
        rtt.on_sample(180 * MS, Duration::ZERO);
        assert_eq!(rtt.smoothed(), Some(110 * MS));
        assert_eq!(rtt.min(), Some(100 * MS));
        // A claimed delay never pushes a sample below the minimum.
        rtt.on_sample(100 * MS, 90 * MS);
        assert_eq!(rtt.smoothed(), Some((110 * MS * 7 + 100 * MS) / 8));
    }

    #[test]
    fn a_validation_that_waited_is_forgotten_with_the_first_sooner_sample() {
        // Packets waited for address resolution for a second and a half.
        let mut rtt = RttEstimator::default();
        rtt.on_validated(1500 * MS);
        assert_eq!(rtt.smoothed(), Some(1500 * MS));
        rtt.on_sample(2 * MS, Duration::ZERO);
        assert_eq!((rtt.smoothed(), rtt.variation()), (Some(2 * MS), MS));
        // What follows is smoothed, and so is all where the validation did not wait.
        rtt.on_sample(10 * MS, Duration::ZERO);
        assert_eq!(rtt.smoothed(), Some(3 * MS));
        let mut rtt = RttEstimator::default();
        rtt.on_validated(2 * MS);
        rtt.on_sample(10 * MS, Duration::ZERO);
        assert_eq!(rtt.smoothed(), Some(3 * MS));
        // A path that is in use is challenged again, at the peer's new address.
        rtt.on_validated(3 * MS);
        rtt.on_sample(MS, Duration::ZERO);
        assert_eq!(rtt.smoothed(), Some((3 * MS * 7 + MS) / 8));
    }

    #[test]
    fn acknowledgement_over_another_path_never_shortens_the_round_trip() {
        let mut rtt = RttEstimator::default();
        rtt.on_other_return_path(50 * MS, Duration::ZERO);
        assert_eq!((rtt.smoothed(), rtt.min()), (None, None));
        rtt.on_sample(100 * MS, Duration::ZERO);
        let variation = rtt.variation();
        rtt.on_other_return_path(20 * MS, Duration::ZERO);
        assert_eq!(
            (rtt.smoothed(), rtt.variation()),
            (Some(100 * MS), variation)
        );
        rtt.on_other_return_path(900 * MS, Duration::ZERO);
        assert_eq!(
            (rtt.smoothed(), rtt.min()),
            (Some(200 * MS), Some(100 * MS))
        );
        assert_eq!(rtt.loss_delay(), 900 * MS * 9 / 8);
    }

    #[test]
    fn a_short_path_is_probed_soon_but_not_before_an_acknowledgement_may_have_come() {
        for (round_trip_us, allowance_us) in
            [(100, 250), (1_000, 250), (2_000, 500), (20_000, 1_000)]
        {
            let mut rtt = RttEstimator::default();
            let round_trip = Duration::from_micros(round_trip_us);
            for _ in 0..100 {
                rtt.on_sample(round_trip, Duration::ZERO);
            }
            let allowance = Duration::from_micros(allowance_us);
            assert_eq!(rtt.probe_timeout(MS), round_trip + MS + allowance);
        }
        // Acknowledgements are held for up to a millisecond, by a peer that wakes up late.
        let mut rtt = RttEstimator::default();
        let mut late = 0..;
        for held_us in [0, 300, 1_000].repeat(50) {
            let lateness = Duration::from_micros(late.next().map_or(0, |number| number * 37 % 250));
            let held = Duration::from_micros(held_us) + lateness;
            let sample = MS + held;
            let is_probed = rtt.smoothed().is_some() && sample >= rtt.probe_timeout(MS);
            assert!(!is_probed, "{sample:?}, {:?}", rtt.probe_timeout(MS));
            rtt.on_sample(sample, held);
        }
    }

    #[test]
    fn ack_delay_of_the_whole_round_trip_gives_no_sample() {
        assert_eq!(without_ack_delay(20 * MS, MS), Some(19 * MS));
        assert_eq!(without_ack_delay(20 * MS, 20 * MS), None);
        assert_eq!(without_ack_delay(20 * MS, 26 * MS), None);
    }

    #[test]
    fn delay_variation_ignores_the_offset_of_the_clocks() {
        let mut delay = DelayVariation::default();
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        for (sent_ms, received_us, expected_us) in [
            (1000, 10_000, 0),
            (1010, 20_500, 500),
            (1020, 29_000, 0),
            (1030, 40_000, 1000),
        ] {
            delay.on_sample(at(1000), at(sent_ms), received_us);
            assert_eq!(delay.latest(), Some(Duration::from_micros(expected_us)));
        }
    }
}
