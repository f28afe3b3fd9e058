//! What a run of minutes says about the long run, with a reference queue that follows it.
//!
//! The reference is served the run's own messages, and runs on alone. What the two differ by is
//! known much better than either (a control variate with common random numbers):
//!
//! long run = run + (reference in the long run − reference over the run's own messages).
//!
//! So for the mean. A percentile is that of the reference's long run and what run and reference
//! differ by *at that delay*, not at that share of messages: on a cliff, where one message in a
//! thousand makes tens of milliseconds, a run's own 99th percentile may lie far off the long
//! run's, where the two differ by something else. Where a run has no cliff it is the same.
//!
//! The interval has both parts: that of the difference, over the run's batches, and that of the
//! long run, over as many batches of the reference.

use super::{reference::LongRun, relative_width};
use crate::stats::{self, Estimate, Interval};

/// The percentiles that are reported.
const SHARES: [f64; 3] = [0.50, 0.95, 0.99];

/// One application's delays of a run, and the reference's over the same messages; in ms.
#[derive(Debug)]
pub(super) struct Followed {
    own: Delays,
    followed: Delays,
}

/// By batch and of all together, rising.
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
        let mean = |own: &[f64], followed: &[f64]| Some(stats::mean(own)? - stats::mean(followed)?);
        let [p50, p95, p99] = SHARES.map(|share| {
            let reference = long.quantile(share);
            let apart = |own: &[f64], followed: &[f64]| apart_at(reference.value, own, followed);
            self.estimate(&reference, apart)
        });
        Some([self.estimate(&long.mean(), mean)?, p50?, p95?, p99?])
    }

    /// Whether the reference follows so closely that the 99th percentile is not off by more than
    /// this part of it.
    pub(super) fn is_known_within(&self, width: f64) -> bool {
        let known = || {
            // The long run is not known yet; it is taken for as it was over the run.
            let value = stats::percentile(&self.followed.all, 0.99)?;
            let reference = Estimate {
                value,
                interval: Some(Interval::around(value, 0.0)),
                samples: self.followed.all.len(),
                batches: self.followed.batches.len(),
            };
            let apart = |own: &[f64], followed: &[f64]| apart_at(value, own, followed);
            self.estimate(&reference, apart)
        };
        known().is_some_and(|p99| relative_width(&p99) < width)
    }

    /// The reference's, and by what the run is apart from it.
    fn estimate(
        &self,
        reference: &Estimate,
        apart: impl Fn(&[f64], &[f64]) -> Option<f64>,
    ) -> Option<Estimate> {
        let difference = apart(&self.own.all, &self.followed.all)?;
        let batches = self.own.batches.iter().zip(&self.followed.batches);
        let by_batch: Vec<f64> = batches
            .filter_map(|(own, followed)| apart(own, followed))
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

/// By how much more `own` has than `followed`, both rising, where `followed` is at most `delay`;
/// at its least if it is nowhere. `None` for none.
fn apart_at(delay: f64, own: &[f64], followed: &[f64]) -> Option<f64> {
    let rank = followed.partition_point(|followed| *followed <= delay);
    let rank = rank.saturating_sub(1);
    Some(own.get(rank)? - followed.get(rank)?)
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
    fn on_a_cliff_the_long_run_is_told_whatever_a_run_was_like() {
        // The run's messages are longer by 1 %, which its reference knows nothing of.
        let (run, reference) = (cliff(101_000_000), cliff(100_000_000));
        let long = |queue: &Queue| queue.run(1, 1 << 21).swap_remove(1).unwrap();
        let (truth, reference_long) = (long(&run).quantile(0.99).value, long(&reference));
        assert!(truth > 1.2 * reference_long.quantile(0.99).value, "{truth}");
        let (mut worst, mut worst_at_one_share) = (0.0_f64, 0.0_f64);
        for trial in 0..4 {
            let seeds = 100 + trial * 40..140 + trial * 40;
            let own = batches(&run, seeds.clone(), 4000);
            let followed = Followed::new(&own, &batches(&reference, seeds, 4000));
            let off = |p99: f64| (p99 / truth - 1.0).abs();
            let told = followed.told(&reference_long).unwrap()[3];
            worst = worst.max(off(told.value));
            let p99 = |delays: &Delays| stats::percentile(&delays.all, 0.99).unwrap();
            let apart = p99(&followed.own) - p99(&followed.followed);
            let at_one_share = reference_long.quantile(0.99).value + apart;
            worst_at_one_share = worst_at_one_share.max(off(at_one_share));
        }
        assert!(worst < 0.15, "{worst}");
        assert!(worst < worst_at_one_share, "{worst}, {worst_at_one_share}");
    }

    #[test]
    fn what_follows_exactly_leaves_the_long_run_alone() {
        let queue = cliff(100_000_000);
        let long = queue.run(3, 1 << 19).swap_remove(1).unwrap();
        let own = batches(&queue, 0..10, 4000);
        let followed = Followed::new(&own, &own);
        let told = followed.told(&long).unwrap();
        assert_eq!(told[0].value, long.mean().value);
        for (told, share) in told[1..].iter().zip(SHARES) {
            assert_eq!(told.value, long.quantile(share).value, "{share}");
        }
        assert!(followed.is_known_within(0.001));
    }

    #[test]
    fn nothing_is_told_without_messages() {
        let long = cliff(100_000_000).run(3, 10_000).swap_remove(1).unwrap();
        let nothing = Followed::new(&[Vec::new()], &[Vec::new()]);
        assert_eq!(nothing.told(&long), None);
        assert!(!nothing.is_known_within(0.1));
    }
}
