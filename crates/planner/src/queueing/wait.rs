//! The distribution of a wait, from probabilities on the lattice to the numbers that are asked for.

use std::time::Duration;

use super::DelayDistribution;

/// What a message waits beyond its own transmission.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// In seconds.
    pub(super) mean: f64,
    /// `None` if it was not requested.
    pub(super) quantiles: Option<Quantiles>,
}

/// In seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quantiles {
    p50: f64,
    p95: f64,
    p99: f64,
}

impl Quantiles {
    /// All moved by so many seconds.
    pub(super) fn later_by(self, seconds: f64) -> Self {
        Self {
            p50: self.p50 + seconds,
            p95: self.p95 + seconds,
            p99: self.p99 + seconds,
        }
    }
}

/// Less urgent sending that is not interrupted: a further wait, independent of the rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocking {
    /// The probability of meeting it.
    pub(super) probability: f64,
    /// Then anything from this …
    pub(super) least: f64,
    /// … to this is equally likely; seconds.
    pub(super) longest: f64,
}

/// Probabilities of waiting 0, 1, 2 … steps of `step` seconds.
///
/// Zero is exactly zero; every other point stands for the step around it.
#[derive(Clone, Debug)]
pub(super) struct Steps<'a> {
    pub(super) mass: &'a [f64],
    pub(super) step: f64,
}

impl Wait {
    /// What follows `floor`, the part of the delay that is the same for every message.
    ///
    /// `None` if the quantiles were not asked for.
    pub(super) fn after(&self, floor: Duration) -> Option<DelayDistribution> {
        let Quantiles { p50, p95, p99 } = self.quantiles?;
        Some(DelayDistribution {
            mean: later(floor, self.mean),
            p50: later(floor, p50),
            p95: later(floor, p95),
            p99: later(floor, p99),
        })
    }
}

/// `floor` and `seconds`, rounded up to nanoseconds.
pub(super) fn later(floor: Duration, seconds: f64) -> Duration {
    let nanos = (seconds * 1e9).ceil();
    if nanos < 0.0 {
        // A message that is shorter than the mean.
        return floor.saturating_sub(Duration::from_nanos(-nanos as u64));
    }
    floor.saturating_add(Duration::from_nanos(nanos as u64))
}

impl Blocking {
    pub(super) const NONE: Self = Self {
        probability: 0.0,
        least: 0.0,
        longest: 0.0,
    };

    /// In seconds.
    pub(super) fn mean(&self) -> f64 {
        self.probability * self.least.midpoint(self.longest)
    }
}

impl Steps<'_> {
    /// In seconds.
    pub(super) fn mean(&self) -> f64 {
        let steps = self.mass.iter().enumerate();
        let sum: f64 = steps.map(|(steps, p)| steps as f64 * p).sum();
        sum / self.mass.iter().sum::<f64>() * self.step
    }

    /// With a further wait for `blocking`, and with one of `longer`, each as likely, which may be
    /// negative; empty for nothing.
    pub(super) fn quantiles(&self, blocking: &Blocking, longer: &[f64]) -> Quantiles {
        let mut sums = Vec::with_capacity(self.mass.len());
        let mut sum = 0.0;
        for p in self.mass {
            sum += p;
            sums.push(sum);
        }
        let cumulative = |seconds: f64| {
            if seconds < 0.0 {
                return 0.0;
            }
            // Point k stands for k − 1/2 to k + 1/2.
            let position = seconds / self.step + 0.5;
            let point = position as usize;
            if point == 0 {
                return sums[0] / sum;
            }
            match sums.get(point) {
                None => 1.0,
                Some(after) => {
                    let before = sums[point - 1];
                    (before + (after - before) * (position - point as f64)) / sum
                }
            }
        };
        let blocked = |seconds: f64| {
            const PARTS: i32 = 16;
            let part = (blocking.longest - blocking.least) / f64::from(PARTS);
            let whole: f64 = (0..PARTS)
                .map(|index| part * (f64::from(index) + 0.5) + blocking.least)
                .map(|blocked| cumulative(seconds - blocked))
                .sum();
            whole / f64::from(PARTS)
        };
        let unvaried = |seconds: f64| {
            let free = cumulative(seconds);
            if blocking.probability > 0.0 {
                free + blocking.probability * (blocked(seconds) - free)
            } else {
                free
            }
        };
        let within = |seconds: f64| match longer.len() {
            0 => unvaried(seconds),
            count => {
                let whole: f64 = longer.iter().map(|l| unvaried(seconds - l)).sum();
                whole / count as f64
            }
        };
        let shortest = longer.iter().copied().reduce(f64::min).unwrap_or(0.0);
        let longest = longer.iter().copied().fold(0.0, f64::max);
        let end = self.mass.len() as f64 * self.step + blocking.longest + longest;
        let quantile = |probability: f64| {
            if within(shortest) >= probability {
                return shortest;
            }
            let (mut low, mut high) = (shortest, end);
            for _ in 0..48 {
                let middle = f64::midpoint(low, high);
                if within(middle) < probability {
                    low = middle;
                } else {
                    high = middle;
                }
            }
            high
        };
        Quantiles {
            p50: quantile(0.50),
            p95: quantile(0.95),
            p99: quantile(0.99),
        }
    }
}
