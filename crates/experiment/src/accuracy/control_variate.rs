//! Estimates long-run delays from runs of minutes, with a reference queue as control variate.
//!
//! The reference serves the same messages as the run (common random numbers), and is also simulated alone for
//! a long time. The difference between run and reference is known much more precisely than either:
//!
//! long run = run + (reference in the long run − reference over the run's messages).
//!
//! This holds for the mean. For a percentile, take that of the reference's long run and add the difference
//! between run and reference *at that delay*, not at that quantile. On a cliff, where one message in a
//! thousand makes a difference of tens of milliseconds, a run's own 99th percentile may be far from that of
//! the long run, and the difference there is another one. Without a cliff both give the same.
//!
//! The interval combines that of the difference, over the run's batches, and that of the long run, over as
//! many batches of the reference.

use super::{reference::LongRun, relative_width};
use crate::stats::{self, Estimate, Interval};

/// The percentiles that are reported.
const SHARES: [f64; 3] = [0.50, 0.95, 0.99];

/// One application's delays in a run, and those of the reference for the same messages; in ms.
#[derive(Debug)]
pub(super) struct ControlVariate {
    own: Delays,
    reference: Delays,
}

/// Sorted delays, by batch and of all batches together.
#[derive(Debug)]
struct Delays {
    batches: Vec<Vec<f64>>,
    all: Vec<f64>,
}

impl Delays {
    fn new(batches: &[Vec<f64>]) -> Self {
        let filled = batches.iter().filter(|batch| !batch.is_empty());
        let batches: Vec<Vec<f64>> = filled.map(|b| stats::sorted(b.iter().copied())).collect();
        Self {
            all: stats::sorted(batches.iter().flatten().copied()),
            batches,
        }
    }
}

impl ControlVariate {
    /// Delays by batch, of the run and of the reference for the same messages.
    pub(super) fn new(own: &[Vec<f64>], reference: &[Vec<f64>]) -> Self {
        Self {
            own: Delays::new(own),
            reference: Delays::new(reference),
        }
    }

    /// Mean, median, 95th and 99th percentile in the long run; `None` without messages.
    pub(super) fn estimates(&self, long: &LongRun) -> Option<[Estimate; 4]> {
        let mean =
            |own: &[f64], reference: &[f64]| Some(stats::mean(own)? - stats::mean(reference)?);
        let [p50, p95, p99] = SHARES.map(|share| {
            let reference = long.quantile(share);
            self.estimate(&reference, |own, delays| {
                difference_at(reference.value, own, delays)
            })
        });
        Some([self.estimate(&long.mean(), mean)?, p50?, p95?, p99?])
    }

    /// Whether the 99th percentile is known within `width` of its value.
    pub(super) fn is_known_within(&self, width: f64) -> bool {
        let known = || {
            // The long run is not simulated yet, so the reference's value over the run stands for it.
            let value = stats::percentile(&self.reference.all, 0.99)?;
            let reference = Estimate {
                value,
                interval: Some(Interval::around(value, 0.0)),
                samples: self.reference.all.len(),
                batches: self.reference.batches.len(),
            };
            self.estimate(&reference, |own, delays| difference_at(value, own, delays))
        };
        known().is_some_and(|p99| relative_width(&p99) < width)
    }

    /// The reference's estimate plus the difference between run and reference.
    fn estimate(
        &self,
        reference: &Estimate,
        difference_of: impl Fn(&[f64], &[f64]) -> Option<f64>,
    ) -> Option<Estimate> {
        let difference = difference_of(&self.own.all, &self.reference.all)?;
        let batches = self.own.batches.iter().zip(&self.reference.batches);
        let by_batch: Vec<f64> = batches
            .filter_map(|(own, reference)| difference_of(own, reference))
            .collect();
        let half = |interval: Option<Interval>| interval.map(|i| (i.high - i.low) / 2.0);
        let value = reference.value + difference;
        let interval = half(stats::sections(difference, &by_batch))
            .zip(half(reference.interval))
            .map(|(a, b)| Interval::around(value, a.hypot(b)));
        Some(Estimate {
            value,
            interval,
            samples: self.own.all.len(),
            batches: self.own.batches.len(),
        })
    }
}

/// Difference between `own` and `reference`, both sorted, at the rank at which `reference` reaches `delay`.
/// Takes the smallest if all are greater. `None` if there are none.
fn difference_at(delay: f64, own: &[f64], reference: &[f64]) -> Option<f64> {
    let rank = reference.partition_point(|value| *value <= delay);
    let rank = rank.saturating_sub(1);
    Some(own.get(rank)? - reference.get(rank)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        accuracy::reference::{Arrivals, Class, Message, Queue},
        setup::Scheduler,
    };

    /// Long messages with a late deadline, and few short ones with an early one. One short message in a
    /// hundred waits for long ones whose deadline has come; that sets their 99th percentile.
    fn cliff(work: u64) -> Queue {
        let class = |interval, work, latency_target| Class {
            interval,
            work,
            latency_target,
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

    /// Delays of the second class in ms, by batch, after `messages` messages of both classes.
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
    fn the_long_run_estimate_holds_on_a_cliff() {
        // The run's messages are 1 % longer than those that the reference serves.
        let (run, reference) = (cliff(101_000_000), cliff(100_000_000));
        let long = |queue: &Queue| queue.run(1, 1 << 21).swap_remove(1).unwrap();
        let (truth, reference_long) = (long(&run).quantile(0.99).value, long(&reference));
        assert!(truth > 1.2 * reference_long.quantile(0.99).value, "{truth}");
        let (mut worst, mut worst_at_one_share) = (0.0_f64, 0.0_f64);
        for trial in 0..4 {
            let seeds = 100 + trial * 40..140 + trial * 40;
            let own = batches(&run, seeds.clone(), 4000);
            let variate = ControlVariate::new(&own, &batches(&reference, seeds, 4000));
            let off = |p99: f64| (p99 / truth - 1.0).abs();
            let estimates = variate.estimates(&reference_long).unwrap()[3];
            worst = worst.max(off(estimates.value));
            let p99 = |delays: &Delays| stats::percentile(&delays.all, 0.99).unwrap();
            let apart = p99(&variate.own) - p99(&variate.reference);
            let at_one_share = reference_long.quantile(0.99).value + apart;
            worst_at_one_share = worst_at_one_share.max(off(at_one_share));
        }
        assert!(worst < 0.15, "{worst}");
        assert!(worst < worst_at_one_share, "{worst}, {worst_at_one_share}");
    }

    #[test]
    fn a_run_equal_to_its_reference_gives_the_long_run() {
        let queue = cliff(100_000_000);
        let long = queue.run(3, 1 << 19).swap_remove(1).unwrap();
        let own = batches(&queue, 0..10, 4000);
        let variate = ControlVariate::new(&own, &own);
        let estimates = variate.estimates(&long).unwrap();
        assert_eq!(estimates[0].value, long.mean().value);
        for (estimates, share) in estimates[1..].iter().zip(SHARES) {
            assert_eq!(estimates.value, long.quantile(share).value, "{share}");
        }
        assert!(variate.is_known_within(0.001));
    }

    #[test]
    fn there_is_no_estimate_without_messages() {
        let long = cliff(100_000_000).run(3, 10_000).swap_remove(1).unwrap();
        let nothing = ControlVariate::new(&[Vec::new()], &[Vec::new()]);
        assert_eq!(nothing.estimates(&long), None);
        assert!(!nothing.is_known_within(0.1));
    }
}
