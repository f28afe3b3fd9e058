//! Whether the mean of one sample is another than that of a second one, by Welch's t test: the samples
//! may differ in size and in variance.
//!
//! B. L. Welch, "The generalization of 'Student's' problem when several different population variances are
//! involved", Biometrika 34 (1947). Degrees of freedom are Welch's and Satterthwaite's. When to look, and
//! at what confidence, is the caller's.

use crate::quantiles::student_t;

/// Number, mean and variance of values as they come (Welford's recurrences).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    count: u64,
    mean: f64,
    /// Sum of squared deviations from the mean.
    squares: f64,
}

impl Moments {
    /// Counts a value, which is finite.
    pub fn add(&mut self, value: f64) {
        debug_assert!(value.is_finite(), "{value}");
        self.count += 1;
        let from_old = value - self.mean;
        self.mean += from_old / self.count as f64;
        self.squares += from_old * (value - self.mean);
    }

    /// Counts all values of `other`, too.
    ///
    /// T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
    /// variances", 1979, eq. 1.5.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        let count = self.count + other.count;
        let apart = other.mean - self.mean;
        let share = other.count as f64 / count as f64;
        self.squares += other.squares + apart * apart * self.count as f64 * share;
        self.mean += apart * share;
        self.count = count;
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean; `None`: there is none.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then_some(self.mean)
    }

    /// The sum of their squared deviations from the mean.
    pub fn squares(&self) -> f64 {
        self.squares
    }

    /// As they were when [`count`](Self::count), [`mean`](Self::mean) and [`squares`](Self::squares) were saved;
    /// `None`: no values have these, or none that a measurement can have.
    pub fn from_parts(count: u64, mean: f64, squares: f64) -> Option<Self> {
        let none = count == 0 && (mean, squares) != (0.0, 0.0);
        let one = count == 1 && squares > 0.0;
        // Nothing that is reckoned of these overflows.
        let possible = count <= u64::from(u32::MAX)
            && mean.abs() < MEAN_MAX
            && (0.0..SQUARES_MAX).contains(&squares);
        (possible && !none && !one).then_some(Self {
            count,
            mean,
            squares,
        })
    }

    /// Their variance, estimated without bias; `None`: it takes two.
    pub fn variance(&self) -> Option<f64> {
        (self.count > 1).then(|| self.squares / (self.count - 1) as f64)
    }
}

/// A difference of two means, and how sure it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// The first mean minus the second.
    pub estimate: f64,
    /// Standard deviation of the estimate.
    pub standard_error: f64,
    /// Degrees of freedom, at least one.
    pub degrees: f64,
}

impl Difference {
    /// Of `first` minus `second`; `None`: one of them has fewer than two values.
    pub fn of(first: &Moments, second: &Moments) -> Option<Self> {
        let part = |of: &Moments| Some(of.variance()? / of.count as f64);
        let (a, b) = (part(first)?, part(second)?);
        let own = |part: f64, of: &Moments| part * part / (of.count - 1) as f64;
        let spread = own(a, first) + own(b, second);
        let degrees = match spread > 0.0 {
            true => (a + b) * (a + b) / spread,
            false => (first.count + second.count - 2) as f64,
        };
        Some(Self {
            estimate: first.mean - second.mean,
            standard_error: (a + b).sqrt(),
            degrees: degrees.max(1.0),
        })
    }

    /// How far the true difference is from the estimate to one side at most, with a `confidence`
    /// between one half and one.
    pub fn reach(&self, confidence: f64) -> f64 {
        self.standard_error * student_t(confidence, self.degrees)
    }
}

/// What is taken for moments lies below these: logarithms do by far. Ours.
const MEAN_MAX: f64 = 100.0;
const SQUARES_MAX: f64 = 1e12;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[f64]) -> Moments {
        let mut moments = Moments::default();
        values.iter().for_each(|value| moments.add(*value));
        moments
    }

    #[test]
    fn welch_agrees_with_a_worked_example() {
        // By hand: means 21 and 23, variances 2.5 and 9, of five values and of three.
        let first = of(&[19.0, 20.0, 21.0, 22.0, 23.0]);
        let second = of(&[20.0, 23.0, 26.0]);
        let found = Difference::of(&first, &second).unwrap();
        assert!((found.estimate + 2.0).abs() < 1e-9, "{found:?}");
        assert!((found.standard_error - 3.5_f64.sqrt()).abs() < 1e-9);
        // 3.5² / (0.5²/4 + 3²/2)
        assert!((found.degrees - 12.25 / 4.5625).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn merged_moments_are_those_of_all_values() {
        let mut merged = of(&[1.0, 5.0, 9.0]);
        merged.merge(&of(&[]));
        merged.merge(&of(&[2.0, 4.0]));
        let all = of(&[1.0, 5.0, 9.0, 2.0, 4.0]);
        assert_eq!((merged.count(), merged.mean()), (5, all.mean()));
        assert!(
            (merged.squares() - all.squares()).abs() < 1e-9,
            "{merged:?} {all:?}"
        );
        let mut from_none = of(&[]);
        from_none.merge(&all);
        assert_eq!(from_none, all);
    }

    #[test]
    fn too_few_values_say_nothing_and_equal_ones_everything() {
        assert_eq!(Difference::of(&of(&[1.0]), &of(&[1.0, 2.0])), None);
        let found = Difference::of(&of(&[2.0, 2.0]), &of(&[1.0; 3])).unwrap();
        assert_eq!((found.estimate, found.reach(0.999)), (1.0, 0.0));
        assert_eq!(found.degrees, 3.0);
    }

    #[test]
    fn parts_that_no_values_have_or_that_overflow_are_none() {
        let most = u64::from(u32::MAX);
        for (count, mean, squares) in [
            (0, 1.0, 0.0),
            (1, 1.0, 1.0),
            (2, 1.0, -1.0),
            (u64::MAX, 1.0, 1.0),
            (most + 1, 1.0, 1.0),
            (2, f64::NAN, 1.0),
            (2, f64::INFINITY, 1.0),
            (2, -1e308, 1.0),
            (2, 1.0, f64::NAN),
            (2, 1.0, f64::INFINITY),
            (2, 1.0, 1e300),
        ] {
            let of = Moments::from_parts(count, mean, squares);
            assert_eq!(of, None, "{count} {mean} {squares}");
        }
        let mut greatest = Moments::from_parts(most, -99.9, 9e11).unwrap();
        greatest.add(99.9);
        let other = Moments::from_parts(most, 99.9, 9e11).unwrap();
        let found = Difference::of(&greatest, &other).unwrap();
        assert!(found.reach(0.9995).is_finite() && found.degrees <= 2.0 * most as f64);
        assert_eq!(Moments::from_parts(0, 0.0, 0.0), Some(Moments::default()));
    }

    proptest! {
        #[test]
        fn moments_are_those_of_all_values_at_once(values in prop::collection::vec(-30.0..30.0, 2..200)) {
            let moments = of(&values);
            let count = values.len() as f64;
            let mean = values.iter().sum::<f64>() / count;
            let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
            prop_assert!((moments.mean().unwrap() - mean).abs() < 1e-9);
            prop_assert!((moments.variance().unwrap() - variance).abs() < 1e-9 * variance.max(1.0));
        }

        #[test]
        fn degrees_lie_between_those_of_the_smaller_sample_and_of_both(
            a in prop::collection::vec(-30.0..30.0, 2..50),
            b in prop::collection::vec(-30.0..30.0, 2..50),
        ) {
            let found = Difference::of(&of(&a), &of(&b)).unwrap();
            let least = a.len().min(b.len()) as f64 - 1.0;
            let most = (a.len() + b.len()) as f64 - 2.0;
            prop_assert!(found.degrees >= least * (1.0 - 1e-9) && found.degrees <= most * (1.0 + 1e-9));
        }
    }
}
