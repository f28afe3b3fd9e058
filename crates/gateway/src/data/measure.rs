//! What the data thread measures about itself and its traffic: delays per application, and how
//! late it sends.

use std::time::Duration;

use hdrhistogram::{Counter, Histogram};
use keiro_control::metrics::DELAY_BUCKETS_SECONDS;
use keiro_core::Instant;

/// Delays of one application's messages, or of its IP packets and streams.
#[derive(Debug)]
pub(crate) struct DelayMeter {
    /// Microseconds; of the present period and the one before.
    periods: [Histogram<u64>; 2],
    period_start: Instant,
    /// Of messages made since the last window was taken; narrow counters, for it is short.
    window: Histogram<u32>,
    window_start: Instant,
    /// Messages created earlier do not count.
    since: Instant,
    buckets: DelayBuckets,
}

/// Counters for a Prometheus histogram, from the start on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct DelayBuckets {
    /// Messages with at most the bucket's bound and more than the bound before; the last is
    /// everything longer.
    pub(crate) counts: [u64; DELAY_BUCKETS_SECONDS.len() + 1],
    /// All delays summed up.
    pub(crate) sum_seconds: f64,
}

/// Delays of one application's messages, in numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct DelayFigures {
    /// Of the last five to ten minutes; `None` if there were no messages.
    pub(crate) recent: Option<DelayQuantiles>,
    /// From the start on.
    pub(crate) buckets: DelayBuckets,
}

/// A distribution of delays.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct DelayQuantiles {
    pub(crate) count: u64,
    pub(crate) mean_seconds: f64,
    pub(crate) min_seconds: f64,
    pub(crate) p50_seconds: f64,
    pub(crate) p90_seconds: f64,
    pub(crate) p95_seconds: f64,
    pub(crate) p99_seconds: f64,
    pub(crate) p999_seconds: f64,
    pub(crate) max_seconds: f64,
}

/// How late batches leave after the pacer's time.
#[derive(Debug)]
pub(crate) struct LatenessMeter {
    nanos: Histogram<u64>,
}

/// How late batches leave, from the start on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LatenessFigures {
    pub(crate) count: u64,
    pub(crate) mean_seconds: f64,
    pub(crate) p50_seconds: f64,
    pub(crate) p99_seconds: f64,
    pub(crate) max_seconds: f64,
}

/// Longest delay that is resolved: an hour.
const DELAY_MAX_MICROS: u64 = 3_600_000_000;
/// Longest lateness that is resolved: 10 s.
const LATENESS_MAX_NANOS: u64 = 10_000_000_000;
/// Delays cover the present period and the one before: long enough for a 99th percentile of some
/// messages per second, short enough to see that a path has recovered.
const PERIOD: Duration = Duration::from_secs(300);

impl DelayMeter {
    pub(crate) fn new(now: Instant) -> Self {
        // Two digits: within 1 %, some kilobytes each.
        let empty = || bounded(DELAY_MAX_MICROS, 2);
        let window = bounded(DELAY_MAX_MICROS, 2);
        Self {
            periods: [empty(), empty()],
            period_start: now,
            window,
            window_start: now,
            since: Instant::ZERO,
            buckets: DelayBuckets::default(),
        }
    }

    /// A message took `delay`.
    pub(crate) fn record(&mut self, now: Instant, delay: Duration) {
        self.record_shown(now, delay);
        if now.saturating_duration_since(self.window_start) >= delay {
            self.window.saturating_record(micros(delay));
        }
    }

    /// An IP packet or bytes of a stream took `delay`. Forecasts are of messages: they do not learn from it.
    pub(crate) fn record_shown(&mut self, now: Instant, delay: Duration) {
        self.rotate_periods(now);
        if now.saturating_duration_since(self.since) >= delay {
            self.periods[0].saturating_record(micros(delay));
        }
        let seconds = delay.as_secs_f64();
        let bucket = DELAY_BUCKETS_SECONDS.partition_point(|bound| *bound < seconds);
        self.buckets.counts[bucket] += 1;
        self.buckets.sum_seconds += seconds;
    }

    pub(crate) fn figures(&mut self, now: Instant) -> DelayFigures {
        self.rotate_periods(now);
        let mut both = self.periods[0].clone();
        // Both have the same bounds.
        let _ = both.add(&self.periods[1]);
        DelayFigures {
            recent: quantiles(&both),
            buckets: self.buckets,
        }
    }

    /// Delays of messages created since the last call and finished: no message is in two windows.
    /// `None`: there are none. Delays that are long compared with the window are underrepresented.
    pub(crate) fn take_window(&mut self, now: Instant) -> Option<DelayQuantiles> {
        let taken = quantiles(&self.window);
        self.window.reset();
        self.window_start = now;
        taken
    }

    /// Forgets recent delays, and those of messages created before `now`; totals stay.
    pub(crate) fn forget(&mut self, now: Instant) {
        self.since = now;
        self.periods.iter_mut().for_each(Histogram::reset);
        self.window.reset();
        self.window_start = now;
    }

    fn rotate_periods(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.period_start);
        if age < PERIOD {
            return;
        }
        self.periods.swap(0, 1);
        self.periods[0].reset();
        if age >= 2 * PERIOD {
            self.periods[1].reset();
        }
        self.period_start = now;
    }
}

impl LatenessMeter {
    pub(crate) fn new() -> Self {
        Self {
            nanos: bounded(LATENESS_MAX_NANOS, 2),
        }
    }

    pub(crate) fn record(&mut self, late: Duration) {
        let nanos = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.saturating_record(nanos);
    }

    pub(crate) fn figures(&self) -> LatenessFigures {
        if self.nanos.is_empty() {
            return LatenessFigures::default();
        }
        let at = |nanos: u64| nanos as f64 * 1e-9;
        LatenessFigures {
            count: self.nanos.len(),
            mean_seconds: self.nanos.mean() * 1e-9,
            p50_seconds: at(self.nanos.value_at_quantile(0.5)),
            p99_seconds: at(self.nanos.value_at_quantile(0.99)),
            max_seconds: at(self.nanos.max()),
        }
    }
}

/// `None`: nothing was recorded.
fn quantiles<C: Counter>(micros: &Histogram<C>) -> Option<DelayQuantiles> {
    let at = |micros: u64| micros as f64 * 1e-6;
    let quantile = |q: f64| at(micros.value_at_quantile(q).min(micros.max()));
    (!micros.is_empty()).then(|| DelayQuantiles {
        count: micros.len(),
        mean_seconds: micros.mean() * 1e-6,
        min_seconds: at(micros.min()),
        p50_seconds: quantile(0.5),
        p90_seconds: quantile(0.9),
        p95_seconds: quantile(0.95),
        p99_seconds: quantile(0.99),
        p999_seconds: quantile(0.999),
        max_seconds: at(micros.max()),
    })
}

fn micros(delay: Duration) -> u64 {
    u64::try_from(delay.as_micros()).unwrap_or(u64::MAX)
}

fn bounded<C: Counter>(max: u64, digits: u8) -> Histogram<C> {
    Histogram::new_with_bounds(1, max, digits)
        .expect("the bounds and the number of digits are constants that fit each other")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn quantiles_and_buckets_count_every_message() {
        let mut meter = DelayMeter::new(at(0));
        assert_eq!(meter.figures(at(0)).recent, None);
        for millis in 1..=100 {
            meter.record(at(1), Duration::from_millis(millis));
        }
        let figures = meter.figures(at(1));
        let recent = figures.recent.unwrap();
        assert_eq!(recent.count, 100);
        for (value, wanted) in [
            (recent.mean_seconds, 0.0505),
            (recent.p50_seconds, 0.05),
            (recent.p99_seconds, 0.099),
            (recent.max_seconds, 0.1),
        ] {
            assert!((value / wanted - 1.0).abs() < 0.01, "{value} {wanted}");
        }
        // 1, 2, 3–5, 6–10 ms, …: bounds belong to their bucket.
        assert_eq!(figures.buckets.counts[..4], [1, 1, 3, 5]);
        assert_eq!(figures.buckets.counts.iter().sum::<u64>(), 100);
        assert!((figures.buckets.sum_seconds - 5.05).abs() < 1e-9);
    }

    #[test]
    fn old_delays_decay_and_totals_stay() {
        let mut meter = DelayMeter::new(at(0));
        meter.record(at(10), Duration::from_millis(7));
        assert_eq!(meter.figures(at(350)).recent.unwrap().count, 1);
        assert_eq!(meter.figures(at(700)).recent, None);
        assert_eq!(meter.figures(at(700)).buckets.counts.iter().sum::<u64>(), 1);
        meter.record(at(700), Duration::from_millis(7));
        meter.forget(at(701));
        assert_eq!(meter.figures(at(701)).recent, None);
        assert_eq!(meter.figures(at(701)).buckets.counts.iter().sum::<u64>(), 2);
        // Made before, through only now.
        meter.record(at(702), Duration::from_secs(2));
        assert_eq!(meter.figures(at(702)).recent, None);
        meter.record(at(703), Duration::from_secs(2));
        assert_eq!(meter.figures(at(703)).recent.unwrap().count, 1);
        assert_eq!(meter.figures(at(20_000)).recent, None);
    }

    #[test]
    fn no_message_is_in_two_windows_nor_one_from_before() {
        let mut meter = DelayMeter::new(at(0));
        let millis = Duration::from_millis;
        // The start: everything waited for the path to come up.
        for _ in 0..50 {
            meter.record(at(10), Duration::from_secs(9));
        }
        let start = meter.take_window(at(30)).unwrap();
        assert_eq!(start.count, 50);
        for _ in 0..40 {
            meter.record(at(40), millis(20));
        }
        // Made before the window began.
        meter.record(at(40), Duration::from_secs(11));
        let window = meter.take_window(at(60)).unwrap();
        assert_eq!(window.count, 40);
        assert!(
            (window.mean_seconds / 0.02 - 1.0).abs() < 0.01,
            "{window:?}"
        );
        assert_eq!(meter.take_window(at(90)), None);
        // What is shown goes on.
        assert_eq!(meter.figures(at(90)).recent.unwrap().count, 91);
        meter.record_shown(at(90), millis(20));
        assert_eq!(meter.take_window(at(90)), None);
        assert_eq!(meter.figures(at(90)).recent.unwrap().count, 92);
        meter.record(at(91), millis(20));
        meter.forget(at(92));
        assert_eq!(meter.take_window(at(93)), None);
    }

    #[test]
    fn lateness_is_shown_in_seconds() {
        let mut meter = LatenessMeter::new();
        assert_eq!(meter.figures(), LatenessFigures::default());
        meter.record(Duration::from_micros(50));
        let figures = meter.figures();
        assert_eq!(figures.count, 1);
        assert!((figures.p99_seconds / 50e-6 - 1.0).abs() < 0.01);
    }
}
