//! The distribution of a queue's workload on a lattice: one point per step, and one step of
//! sending is done in one step of time.

use super::poisson::{self, StepWork, Stream};

/// The workload's range on a lattice ends where more has this probability, roughly.
const BEYOND_RANGE: f64 = 1e-6;

/// Probabilities by workload, in steps. Trailing points with next to nothing are cut off; what
/// would lie beyond the last possible point is kept at it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Workload {
    mass: Vec<f64>,
    points_max: usize,
}

/// Steps of time and their number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lattice {
    /// In seconds.
    pub(super) step: f64,
    pub(super) points: usize,
}

impl Lattice {
    /// For the workload of `streams`; `None` at a load of one.
    pub(super) fn new(points: usize, streams: &[Stream]) -> Option<Self> {
        let longest = streams.iter().map(|s| s.service).fold(0.0, f64::max);
        let range = if longest > 0.0 {
            -BEYOND_RANGE.ln() / poisson::tail_rate(streams)? + longest
        } else {
            1.0
        };
        Some(Self {
            step: range / points as f64,
            points,
        })
    }

    /// The mean of what is beyond `seconds`, in s; less than none is beyond all of it.
    pub(super) fn mean_beyond(&self, found: &Workload, seconds: f64) -> f64 {
        let points = found.mass.iter().enumerate();
        let beyond = |(steps, p): (usize, &f64)| (steps as f64 * self.step - seconds).max(0.0) * p;
        points.map(beyond).sum()
    }

    pub(super) fn work(&self, streams: &[Stream]) -> StepWork {
        StepWork::of(streams, self.step, 1.0, self.points - 1)
    }

    pub(super) fn stationary(&self, streams: &[Stream]) -> Workload {
        Workload::stationary(&self.work(streams), self.points)
    }

    /// The workload that a message finds at a random time within a step: half a step's arrivals
    /// more than just before it. With it the mean is Pollaczek and Khinchine's.
    pub(super) fn found(&self, before: &Workload, feeding: &[Stream]) -> Workload {
        let mut found = before.clone();
        found.add(&StepWork::of(feeding, self.step, 0.5, self.points - 1));
        found
    }
}

/// What is less likely is not computed.
const NEGLIGIBLE: f64 = 1e-9;

/// Distributions closer than this are taken as the same. Ours: some thousandths of the least
/// probability that a 99th percentile depends on.
const SETTLED: f64 = 1e-6;

/// After this many times the workload's range, whatever happens on it is taken to have settled. A
/// bound on the work near a load of one; nothing else ever gets there.
pub(super) const SETTLED_AFTER: usize = 32;

impl Workload {
    /// The stationary workload of the queue that `work` feeds, just before a step; the mean of
    /// `work` must be below one.
    ///
    /// By level crossings: from at most j to more than j as often as back.
    pub(super) fn stationary(work: &StepWork, points_max: usize) -> Self {
        let mut mass = Vec::with_capacity(points_max);
        // Sums of `mass` up to each point, so that a range's probability is a difference.
        let mut sums: Vec<f64> = Vec::with_capacity(points_max);
        let mut next = ((1.0 - work.mean()) / work.none).max(0.0);
        let whole = loop {
            let last = mass.len();
            mass.push(next);
            sums.push(sums.last().copied().unwrap_or(0.0) + next);
            if mass.len() >= points_max || sums[last] >= 1.0 - NEGLIGIBLE {
                break sums[last];
            }
            let up: f64 = work
                .atoms
                .iter()
                .filter(|&&(size, _)| size >= 2)
                .map(|&(size, p)| {
                    let below = (last + 1)
                        .checked_sub(size)
                        .map_or(0.0, |index| sums[index]);
                    p * (sums[last] - below)
                })
                .sum();
            next = up / work.none;
        };
        for p in &mut mass {
            *p /= whole;
        }
        Self { mass, points_max }
    }

    /// The probability that there is none.
    pub(super) fn idle(&self) -> f64 {
        self.mass[0]
    }

    /// The probabilities, by workload in steps.
    pub(super) fn mass(&self) -> &[f64] {
        &self.mass
    }

    /// Adds what arrives, without time passing.
    pub(super) fn add(&mut self, work: &StepWork) {
        let added = self.with(work);
        self.mass = added;
        self.cut();
    }

    /// One step of time: what arrives is added, one step of work is done if there is any.
    pub(super) fn step(&mut self, work: &StepWork) {
        let mut next = self.with(work);
        if next.len() > 1 {
            let idle = next.remove(0);
            next[0] += idle;
        }
        self.mass = next;
        self.cut();
    }

    /// `steps` steps of time; what does not change any more, or had [`SETTLED_AFTER`] times its
    /// range to do so, is stationary.
    pub(super) fn run(&mut self, work: &StepWork, steps: usize) {
        // Comparing costs about as much as a step.
        const COMPARE_EVERY: usize = 32;
        if steps <= COMPARE_EVERY {
            for _ in 0..steps {
                self.step(work);
            }
            return;
        }
        let settled = Self::stationary(work, self.points_max);
        let enough = SETTLED_AFTER * self.points_max;
        for step in 0..steps.min(enough) {
            if step % COMPARE_EVERY == 0 && self.distance(&settled) < SETTLED {
                *self = settled;
                return;
            }
            self.step(work);
        }
        if steps > enough {
            *self = settled;
        }
    }

    /// The probability of so many steps or more.
    pub(super) fn beyond(&self, points: usize) -> f64 {
        self.mass.iter().skip(points).sum()
    }

    /// Halves the step. Each point's probability is spread over what it stood for, with its mean;
    /// no work remains none.
    pub(super) fn refine(&mut self) {
        let points = (2 * self.mass.len()).min(self.points_max);
        let mut fine = vec![0.0; points];
        for (steps, &p) in self.mass.iter().enumerate() {
            let spread: &[(usize, f64)] = match steps {
                0 => &[(1, 1.0)],
                _ => &[(0, 0.25), (1, 0.5), (2, 0.25)],
            };
            for &(offset, part) in spread {
                fine[(2 * steps + offset - 1).min(points - 1)] += p * part;
            }
        }
        self.mass = fine;
    }

    /// Doubles the step, with the same mean.
    pub(super) fn coarsen(&mut self) {
        let mut coarse = vec![0.0; self.mass.len() / 2 + 1];
        for (steps, &p) in self.mass.iter().enumerate() {
            coarse[steps / 2] += p / 2.0;
            coarse[steps.div_ceil(2)] += p / 2.0;
        }
        self.mass = coarse;
    }

    fn with(&self, work: &StepWork) -> Vec<f64> {
        let largest = work.atoms.last().map_or(0, |&(size, _)| size);
        let points = (self.mass.len() + largest).min(self.points_max);
        let mut sum: Vec<f64> = self.mass.iter().map(|p| p * work.none).collect();
        sum.resize(points, 0.0);
        for &(size, p) in &work.atoms {
            let near = points.saturating_sub(size).min(self.mass.len());
            let (near, far) = self.mass.split_at(near);
            for (to, from) in sum[points.min(size)..].iter_mut().zip(near) {
                *to += p * from;
            }
            if !far.is_empty() {
                sum[points - 1] += p * far.iter().sum::<f64>();
            }
        }
        sum
    }

    fn cut(&mut self) {
        let mut tail = 0.0;
        while self.mass.len() > 1 {
            tail += self.mass[self.mass.len() - 1];
            if tail > NEGLIGIBLE * 1e-3 {
                return;
            }
            self.mass.pop();
        }
    }

    fn distance(&self, other: &Self) -> f64 {
        let common = self.mass.len().min(other.mass.len());
        let near: f64 = self.mass[..common]
            .iter()
            .zip(&other.mass[..common])
            .map(|(a, b)| (a - b).abs())
            .sum();
        let far: f64 = self.mass[common..]
            .iter()
            .chain(&other.mass[common..])
            .sum();
        near + far
    }
}
