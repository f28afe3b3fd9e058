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
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Blocking {
    /// The cases in which there is one.
    pub(super) cases: [BlockingCase; 2],
}

/// Anything between two times is equally likely.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlockingCase {
    pub(super) probability: f64,
    /// In seconds.
    pub(super) least: f64,
    /// In seconds.
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
    /// In seconds.
    pub(super) fn mean(&self) -> f64 {
        let mean = |case: &BlockingCase| case.probability * case.least.midpoint(case.longest);
        self.cases.iter().map(mean).sum()
    }

    fn longest(&self) -> f64 {
        self.cases
            .iter()
            .map(|case| case.longest)
            .fold(0.0, f64::max)
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
        let cumulative = Cumulative::new(self);
        let blocked = |seconds: f64, case: &BlockingCase| {
            let width = case.longest - case.least;
            match width > 0.0 {
                true => {
                    let area = |blocked: f64| cumulative.area(seconds - blocked);
                    (area(case.least) - area(case.longest)) / width
                }
                false => cumulative.within(seconds - case.least),
            }
        };
        let unvaried = |seconds: f64| {
            let free = cumulative.within(seconds);
            let cases = blocking.cases.iter();
            let met = cases.filter(|case| case.probability > 0.0);
            met.fold(free, |within, case| {
                within + case.probability * (blocked(seconds, case) - free)
            })
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
        let end = self.mass.len() as f64 * self.step + blocking.longest() + longest;
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

/// The probability of waiting at most so long. It rises evenly over the step around each point.
struct Cumulative {
    step: f64,
    /// Up to each point's end.
    sums: Vec<f64>,
    /// The area below it up to each point's end, in s.
    areas: Vec<f64>,
}

impl Cumulative {
    fn new(steps: &Steps<'_>) -> Self {
        let whole: f64 = steps.mass.iter().sum();
        let mut sums: Vec<f64> = Vec::with_capacity(steps.mass.len());
        let mut areas: Vec<f64> = Vec::with_capacity(steps.mass.len());
        let mut sum = 0.0;
        for p in steps.mass {
            let before = sum;
            sum += p / whole;
            let area = match areas.last() {
                None => sum / 2.0,
                Some(_) => f64::midpoint(before, sum),
            };
            areas.push(areas.last().copied().unwrap_or(0.0) + area * steps.step);
            sums.push(sum);
        }
        Self {
            step: steps.step,
            sums,
            areas,
        }
    }

    /// The point around which `seconds` lies, and how much of its step is below them.
    fn position(&self, seconds: f64) -> (usize, f64) {
        // Point k stands for k − 1/2 to k + 1/2.
        let position = seconds / self.step + 0.5;
        (position as usize, position.fract())
    }

    fn within(&self, seconds: f64) -> f64 {
        if seconds < 0.0 {
            return 0.0;
        }
        match self.position(seconds) {
            (0, _) => self.sums[0],
            (point, below) => match self.sums.get(point) {
                None => 1.0,
                Some(after) => {
                    let before = self.sums[point - 1];
                    before + (after - before) * below
                }
            },
        }
    }

    /// The integral of [`within`](Self::within) up to `seconds`, in s.
    fn area(&self, seconds: f64) -> f64 {
        if seconds <= 0.0 {
            return 0.0;
        }
        match self.position(seconds) {
            (0, _) => self.sums[0] * seconds,
            (point, below) => {
                let last = self.areas.len() - 1;
                let Some(after) = self.sums.get(point) else {
                    let end = (last as f64 + 0.5) * self.step;
                    return self.areas[last] + (seconds - end);
                };
                let before = self.sums[point - 1];
                let rise = (after - before) * below / 2.0;
                self.areas[point - 1] + (before + rise) * below * self.step
            }
        }
    }
}
