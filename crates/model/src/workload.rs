//! What an application sends, measured: how long its messages are, how far apart, and how much
//! both vary.

use std::time::Duration;

use crate::Instant;

/// So many messages are remembered, the newest the best. Ours: a mean of exponential intervals is
/// then known within some 9 %, and a change is seen after about as many messages.
const MEMORY: u64 = 128;
/// A time between two messages of more than so many means is a pause, and no interval: exponential
/// intervals are that long once in 5 × 10^8.
const PAUSE: f64 = 20.0;
/// Intervals after which their mean is good enough to tell a pause.
const PAUSE_AFTER: u64 = 16;
/// So many pauses in a row are the new way of sending.
const PAUSES_MAX: u32 = 4;

/// What an application sends, as measured over its last hundred or so messages or datagrams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Intervals that this rests on, since the measurement began (again).
    pub count: u64,
    /// Mean length in bytes.
    pub length_bytes: f64,
    /// Standard deviation of the length over its mean.
    pub length_variation: f64,
    /// Mean time between two of them, pauses left out.
    pub interval: Duration,
    /// Standard deviation of that time over its mean; 1 for a Poisson process.
    pub interval_variation: f64,
    /// When the newest was made.
    pub last_made: Instant,
}

/// Follows one application.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkloadMeter {
    length: Moments,
    /// In seconds.
    interval: Moments,
    /// In a row.
    pauses: u32,
    last: Option<Instant>,
}

/// Mean and variance, older samples weighing less and less (West 1979, exponentially weighted).
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    count: u64,
    mean: f64,
    variance: f64,
}

impl WorkloadMeter {
    /// A message or datagram of `len` bytes was made.
    pub fn on_made(&mut self, made: Instant, len: usize) {
        self.length.add(len as f64);
        if let Some(last) = self.last {
            let interval = made.saturating_duration_since(last).as_secs_f64();
            self.on_interval(interval);
        }
        self.last = Some(self.last.map_or(made, |last| last.max(made)));
    }

    fn on_interval(&mut self, seconds: f64) {
        if self.interval.count < PAUSE_AFTER {
            // What looked like an interval was a pause before the sending began.
            if seconds * PAUSE < self.interval.mean {
                self.interval = Moments::default();
            }
        } else if seconds > self.interval.mean * PAUSE {
            self.pauses += 1;
            if self.pauses < PAUSES_MAX {
                return;
            }
            self.interval = Moments::default();
        }
        self.pauses = 0;
        self.interval.add(seconds);
    }

    /// `None` before the second message.
    pub fn seen(&self) -> Option<Workload> {
        if self.interval.count == 0 {
            return None;
        }
        Some(Workload {
            count: self.interval.count,
            length_bytes: self.length.mean,
            length_variation: self.length.variation(),
            interval: Duration::from_secs_f64(self.interval.mean),
            interval_variation: self.interval.variation(),
            last_made: self.last?,
        })
    }
}

impl Moments {
    fn add(&mut self, value: f64) {
        self.count += 1;
        let weight = 1.0 / self.count.min(MEMORY) as f64;
        let difference = value - self.mean;
        self.mean += weight * difference;
        self.variance = (1.0 - weight) * (self.variance + weight * difference * difference);
    }

    /// Standard deviation over mean; 0 where the mean is.
    fn variation(&self) -> f64 {
        if self.mean > 0.0 {
            self.variance.sqrt() / self.mean
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn lengths_and_intervals_are_measured_with_their_spread() {
        let mut meter = WorkloadMeter::default();
        meter.on_made(at(0), 500);
        assert_eq!(meter.seen(), None, "one message has no interval");
        for number in 1..=MEMORY {
            meter.on_made(at(number * 100), if number % 2 == 0 { 500 } else { 1500 });
        }
        let seen = meter.seen().unwrap();
        assert_eq!(seen.count, MEMORY);
        assert_eq!(seen.last_made, at(MEMORY * 100));
        assert!((seen.length_bytes / 1000.0 - 1.0).abs() < 0.02, "{seen:?}");
        assert!((seen.length_variation / 0.5 - 1.0).abs() < 0.02, "{seen:?}");
        assert!((seen.interval.as_secs_f64() / 0.1 - 1.0).abs() < 1e-6);
        assert!(seen.interval_variation < 1e-6, "{seen:?}");
    }

    #[test]
    fn a_change_is_followed() {
        let mut meter = WorkloadMeter::default();
        for number in 0..1000 {
            meter.on_made(at(number * 100), 1000);
        }
        for number in 0..4 * MEMORY {
            meter.on_made(at(100_000 + number * 10), 50);
        }
        let seen = meter.seen().unwrap();
        assert!((seen.length_bytes / 50.0 - 1.0).abs() < 0.4, "{seen:?}");
        assert!(
            (seen.interval.as_secs_f64() / 0.01 - 1.0).abs() < 0.2,
            "{seen:?}"
        );
    }

    #[test]
    fn a_pause_is_no_interval_but_a_slower_pace_is() {
        let mut meter = WorkloadMeter::default();
        let mut now = 0;
        for _ in 0..100 {
            now += 10;
            meter.on_made(at(now), 100);
        }
        now += 3_600_000;
        for _ in 0..10 {
            meter.on_made(at(now), 100);
            now += 10;
        }
        let seen = meter.seen().unwrap();
        assert!(
            (seen.interval.as_secs_f64() / 0.01 - 1.0).abs() < 0.01,
            "{seen:?}"
        );
        for _ in 0..10 {
            now += 1000;
            meter.on_made(at(now), 100);
        }
        let seen = meter.seen().unwrap();
        assert!((seen.interval.as_secs_f64() - 1.0).abs() < 0.01, "{seen:?}");
    }

    #[test]
    fn a_message_long_before_the_others_spoils_nothing() {
        let mut meter = WorkloadMeter::default();
        meter.on_made(at(0), 3000);
        for number in 0..100 {
            meter.on_made(at(12_000 + number * 10), 3000);
        }
        let seen = meter.seen().unwrap();
        assert_eq!(seen.count, 99);
        assert!(
            (seen.interval.as_secs_f64() / 0.01 - 1.0).abs() < 0.01,
            "{seen:?}"
        );
    }

    #[test]
    fn clocks_that_jump_and_empty_datagrams_do_no_harm() {
        let mut meter = WorkloadMeter::default();
        for (ms, len) in [(100, 0), (50, 0), (100, 0)] {
            meter.on_made(at(ms), len);
        }
        let seen = meter.seen().unwrap();
        assert_eq!(
            (seen.interval, seen.length_variation),
            (Duration::ZERO, 0.0)
        );
        assert_eq!(seen.last_made, at(100));
    }
}
