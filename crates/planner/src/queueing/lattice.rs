//! The distribution of a queue's workload on a lattice: one point per step, and one step of
//! sending is done in one step of time.

use super::poisson::StepWork;

/// Probabilities by workload, in steps. Trailing points with next to nothing are cut off; what
/// would lie beyond the last possible point is kept at it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Workload {
    mass: Vec<f64>,
    points_max: usize,
}

/// A tail lighter than this is cut off, and distributions closer than this are the same.
const NEGLIGIBLE: f64 = 1e-9;

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
            if step % COMPARE_EVERY == 0 && self.distance(&settled) < NEGLIGIBLE * 10.0 {
                *self = settled;
                return;
            }
            self.step(work);
        }
        if steps > enough {
            *self = settled;
        }
    }

    fn with(&self, work: &StepWork) -> Vec<f64> {
        let largest = work.atoms.last().map_or(0, |&(size, _)| size);
        let points = (self.mass.len() + largest).min(self.points_max);
        let mut sum: Vec<f64> = self.mass.iter().map(|p| p * work.none).collect();
        sum.resize(points, 0.0);
        for &(size, p) in &work.atoms {
            let (near, far) = self
                .mass
                .split_at(points.saturating_sub(size).min(self.mass.len()));
            if !near.is_empty() {
                for (to, from) in sum[size..].iter_mut().zip(near) {
                    *to += p * from;
                }
            }
            sum[points - 1] += p * far.iter().sum::<f64>();
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
