//! What a run of minutes tells of the long run, with a reference queue that follows it.
//!
//! The reference is served the run's own messages, and runs on alone. What the two differ by is
//! known much better than either (a control variate with common random numbers):
//!
//! long run = run + (reference in the long run − reference over the run's own messages).
//!
//! So for the mean. For a percentile it holds of the *share* of messages up to a delay, not of the
//! delay: on a cliff, where one message in a thousand makes tens of milliseconds, a run and its
//! reference lie on different slopes unless they are the same, and their percentiles differ by
//! more or less than in the long run. Shares only add up. The percentile is the delay up to which
//! the share is wanted.
//!
//! The interval has both parts: that of the difference, over the run's batches, and that of the
//! long run, over as many batches of the reference.

use super::{
    reference::{Histogram, LongRun},
    relative_width,
};
use crate::stats::{self, Estimate, Interval};

/// The percentiles that are told.
const SHARES: [f64; 3] = [0.50, 0.95, 0.99];

/// One application's delays of a run, and the reference's over the same messages; in ms.
#[derive(Debug)]
pub(super) struct Followed {
    own: Delays,
    followed: Delays,
}

/// By batch, each rising, and of all together.
#[derive(Debug)]
struct Delays {
    batches: Vec<Vec<f64>>,
    all: Vec<f64>,
    /// The reference's long run is known by bins, and what is taken from it must be, too.
    histogram: Histogram,
}

impl Delays {
    fn new(batches: &[Vec<f64>]) -> Self {
        let filled = batches.iter().filter(|batch| !batch.is_empty());
        let batches: Vec<Vec<f64>> = filled.map(|b| stats::sorted(b.iter().copied())).collect();
        let all = stats::sorted(batches.iter().flatten().copied());
        let mut histogram = Histogram::new();
        for ms in &all {
            histogram.add((ms * 1e6).round() as u64);
        }
        Self {
            batches,
            all,
            histogram,
        }
    }

    fn means(&self) -> Vec<f64> {
        let own = self.batches.iter();
        own.filter_map(|batch| stats::mean(batch)).collect()
    }

    fn quantiles(&self, share: f64) -> Vec<f64> {
        let own = self.batches.iter();
        own.filter_map(|batch| stats::percentile(batch, share))
            .collect()
    }
}

/// The share of `rising` up to `ms`.
fn share_up_to(rising: &[f64], ms: f64) -> f64 {
    rising.partition_point(|delay| *delay <= ms) as f64 / rising.len().max(1) as f64
}

fn differences(own: &[f64], followed: &[f64]) -> Vec<f64> {
    own.iter().zip(followed).map(|(a, b)| a - b).collect()
}

fn half_width(interval: Option<Interval>) -> Option<f64> {
    interval.map(|interval| (interval.high - interval.low) / 2.0)
}

impl Followed {
    /// By batch, the run's delays and the reference's of the same messages.
    pub(super) fn new(own: &[Vec<f64>], followed: &[Vec<f64>]) -> Self {
        Self {
            own: Delays::new(own),
            followed: Delays::new(followed),
        }
    }

    /// Mean, median, 95th and 99th percentile in the long run; `None` without messages.
    pub(super) fn told(&self, long: &LongRun) -> Option<[Estimate; 4]> {
        let [p50, p95, p99] = SHARES.map(|share| self.quantile(share, Some(long)));
        Some([self.mean(long)?, p50?, p95?, p99?])
    }

    /// Whether the reference follows so closely that the 99th percentile is not off by more than
    /// this part of it.
    pub(super) fn is_known_within(&self, width: f64) -> bool {
        self.quantile(0.99, None)
            .is_some_and(|p99| relative_width(&p99) < width)
    }

    fn mean(&self, long: &LongRun) -> Option<Estimate> {
        let long = long.mean();
        let difference = stats::mean(&self.own.all)? - stats::mean(&self.followed.all)?;
        let by_batch = differences(&self.own.means(), &self.followed.means());
        let value = long.value + difference;
        let interval = half_width(stats::sections(difference, &by_batch))
            .zip(half_width(long.interval))
            .map(|(a, b)| Interval::around(value, a.hypot(b)));
        Some(self.estimate(value, interval))
    }

    /// The delay up to which the share of messages is `wanted`; without a long run that of the run
    /// itself, its interval that of the difference alone.
    fn quantile(&self, wanted: f64, long: Option<&LongRun>) -> Option<Estimate> {
        let value = self.delay_at(wanted, long)?;
        let difference =
            |own: &[f64], followed: &[f64]| share_up_to(own, value) - share_up_to(followed, value);
        let by_batch: Vec<f64> = self
            .own
            .batches
            .iter()
            .zip(&self.followed.batches)
            .map(|(own, followed)| difference(own, followed))
            .collect();
        let all = difference(&self.own.all, &self.followed.all);
        let of_long = match long {
            Some(long) => half_width(long.share_up_to(value).interval),
            None => Some(0.0),
        };
        let interval = half_width(stats::sections(all, &by_batch))
            .zip(of_long)
            .and_then(|(a, b)| {
                let half = a.hypot(b);
                let by_shares = Interval {
                    low: self.delay_at(wanted - half, long)?,
                    high: self.delay_at(wanted + half, long)?,
                };
                // Where no message lies between the two, shares do not differ, but delays may.
                Some(by_shares.hull(self.by_delays(value, wanted)?))
            });
        Some(self.estimate(value, interval))
    }

    /// The interval around `value` by what the percentiles themselves differ by.
    fn by_delays(&self, value: f64, share: f64) -> Option<Interval> {
        let difference = stats::percentile(&self.own.all, share)?
            - stats::percentile(&self.followed.all, share)?;
        let by_batch = differences(&self.own.quantiles(share), &self.followed.quantiles(share));
        let half = half_width(stats::sections(difference, &by_batch))?;
        Some(Interval::around(value, half))
    }

    /// Up to where the share of messages is `wanted`; `None` without messages.
    fn delay_at(&self, wanted: f64, long: Option<&LongRun>) -> Option<f64> {
        let share = |ms: f64| {
            let own = share_up_to(&self.own.all, ms);
            long.map_or(own, |long| {
                let followed = self.followed.histogram.share_up_to(ms * 1e6);
                own + (long.share_of_all_up_to(ms) - followed)
            })
        };
        let longest = long.map_or(0.0, LongRun::longest);
        let (mut low, mut high) = (0.0, self.own.all.last()?.max(longest));
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if share(middle) < wanted {
                low = middle;
            } else {
                high = middle;
            }
        }
        Some(high)
    }

    fn estimate(&self, value: f64, interval: Option<Interval>) -> Estimate {
        Estimate {
            value,
            interval,
            samples: self.own.all.len(),
            batches: self.own.batches.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        accuracy::reference::{Arrivals, Class, Message, Queue},
        setup::Scheduler,
    };

    /// Long messages with time, and few short ones without: one in a hundred of these waits for
    /// long ones whose time is up, which is where their 99th percentile lies.
    fn cliff(work: u64) -> Queue {
        let class = |interval, work, demand| Class {
            interval,
            work,
            demand,
        };
        Queue {
            scheduler: Scheduler::Deadline,
            delay: 10_000_000,
            ahead: 1_000_000,
            piece: 300_000,
            classes: vec![
                class(95e6, work * 52 / 100, 500_000_000),
                class(14e6, work * 33 / 1000, 33_000_000),
            ],
        }
    }

    /// Delays of the second class in ms, by batch, of so many messages of both each.
    fn batches(queue: &Queue, seeds: std::ops::Range<u64>, messages: usize) -> Vec<Vec<f64>> {
        seeds
            .map(|seed| {
                let mut delays = Vec::new();
                let drawn = Arrivals::new(&queue.classes, seed).take(messages);
                queue.serve(drawn, |message: &Message, delay| {
                    if message.class == 1 {
                        delays.push(delay as f64 / 1e6);
                    }
                });
                delays
            })
            .collect()
    }

    #[test]
    fn on_a_cliff_the_long_run_is_told_within_its_interval() {
        // The run's messages are longer by 1 %, which its reference knows nothing of.
        let (run, reference) = (cliff(101_000_000), cliff(100_000_000));
        let long = |queue: &Queue, seed| queue.long_run(seed, 0.12).swap_remove(1).unwrap();
        let truth = long(&run, 1).quantile(0.99).value;
        let by_reference = long(&reference, 2);
        assert!(truth > 1.2 * by_reference.quantile(0.99).value, "{truth}");
        let mut within = 0;
        for trial in 0..5 {
            let seeds = 100 + trial * 40..140 + trial * 40;
            let own = batches(&run, seeds.clone(), 4000);
            let followed = Followed::new(&own, &batches(&reference, seeds.clone(), 4000));
            let p99 = followed.told(&by_reference).unwrap()[3];
            assert!(
                (p99.value / truth - 1.0).abs() < 0.2,
                "{truth}, {seeds:?}: {p99:?}"
            );
            let interval = p99.interval.unwrap();
            within += u32::from(interval.low < truth && truth < interval.high);
        }
        assert!(
            within >= 8,
            "{within} of 10 intervals have the true {truth}"
        );
    }

    #[test]
    fn what_follows_exactly_leaves_the_long_run_alone() {
        let queue = cliff(100_000_000);
        let long = queue.long_run(3, 0.2).swap_remove(1).unwrap();
        let own = batches(&queue, 0..10, 4000);
        let followed = Followed::new(&own, &own);
        let told = followed.told(&long).unwrap();
        assert!((told[0].value / long.mean().value - 1.0).abs() < 1e-9);
        for (told, share) in told[1..].iter().zip(SHARES) {
            let expected = long.quantile(share).value;
            // The run is known exactly, the reference by bins 1/64 of an octave wide.
            let off = told.value / expected - 1.0;
            assert!(off.abs() < 0.02, "{share}: {} for {expected}", told.value);
        }
        assert!(followed.is_known_within(0.001));
    }

    #[test]
    fn nothing_is_told_without_messages() {
        let long = cliff(100_000_000).long_run(3, 1.0).swap_remove(1).unwrap();
        let nothing = Followed::new(&[Vec::new()], &[Vec::new()]);
        assert_eq!(nothing.told(&long), None);
        assert!(!nothing.is_known_within(0.1));
    }
}
