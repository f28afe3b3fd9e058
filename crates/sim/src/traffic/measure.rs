//! Amounts over time, and the fairness of their distribution.

use std::time::Duration;

use keiro_units::Instant;

/// Maximum of bins; later amounts are added to the last one. Ours: a day of seconds.
pub const BINS_MAX: usize = 86_400;

/// Amounts over time, in bins of equal width from time zero on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bins {
    width_nanos: u64,
    amounts: Vec<u64>,
}

impl Bins {
    /// Bins of one second.
    pub const fn seconds() -> Self {
        Self::new(Duration::from_secs(1))
    }

    /// Bins of `width`; zero counts as a nanosecond.
    pub const fn new(width: Duration) -> Self {
        let nanos = width.as_nanos();
        Self {
            width_nanos: if nanos == 0 { 1 } else { nanos as u64 },
            amounts: Vec::new(),
        }
    }

    /// Adds an amount at an instant.
    pub fn add(&mut self, at: Instant, amount: u64) {
        let index = self.index(at).min(BINS_MAX - 1);
        if self.amounts.len() <= index {
            self.amounts.resize(index + 1, 0);
        }
        self.amounts[index] += amount;
    }

    /// Width of a bin.
    pub const fn width(&self) -> Duration {
        Duration::from_nanos(self.width_nanos)
    }

    /// The amounts by bin, up to the last non-zero one.
    pub fn amounts(&self) -> &[u64] {
        &self.amounts
    }

    /// The amount in bin `index`.
    pub fn at(&self, index: usize) -> u64 {
        self.amounts.get(index).copied().unwrap_or(0)
    }

    /// The amount in the bins that begin in `from..to`.
    pub fn sum(&self, from: Instant, to: Instant) -> u64 {
        let first = from.as_nanos().div_ceil(self.width_nanos) as usize;
        let last = to.as_nanos().div_ceil(self.width_nanos) as usize;
        let amounts = self.amounts.iter().take(last).skip(first);
        amounts.sum()
    }

    fn index(&self, at: Instant) -> usize {
        (at.as_nanos() / self.width_nanos) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_over_the_bins_that_begin_in_the_range() {
        let mut bins = Bins::seconds();
        for half_seconds in 0..10_u64 {
            let at = Instant::from_nanos(half_seconds * 500_000_000);
            bins.add(at, 1 << half_seconds);
        }
        let second = |n: u64| Instant::from_nanos(n * 1_000_000_000);
        assert_eq!(bins.amounts(), [3, 12, 48, 192, 768]);
        assert_eq!(bins.sum(second(1), second(3)), 60);
        assert_eq!(bins.sum(second(0), second(99)), 1023);
        assert_eq!(bins.sum(Instant::from_nanos(1), second(2)), 12);
        assert_eq!(bins.at(7), 0);
    }

    #[test]
    fn amounts_after_the_last_bin_are_kept() {
        let mut bins = Bins::new(Duration::from_nanos(1));
        bins.add(Instant::MAX, 5);
        assert_eq!(bins.amounts().len(), BINS_MAX);
        assert_eq!(bins.at(BINS_MAX - 1), 5);
    }
}
