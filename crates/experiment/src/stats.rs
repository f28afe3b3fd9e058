//! Statistics of delay samples: means, percentiles, intervals, distributions.
//!
//! Pure functions on plain numbers; the caller defines the unit (milliseconds throughout this crate).
//! Intervals are two-sided 95 % intervals. Delays on a shared queue are correlated from message to message,
//! so intervals come from *batches*: the samples of one run, or of one part of a run. The caller decides what
//! a batch is and how many there are, and publishes it.

use keiro_model::quantiles;
use statrs::distribution::{Beta, Binomial, ContinuousCDF, DiscreteCDF};

/// Confidence level of the intervals.
pub const CONFIDENCE: f64 = 0.95;

/// A value with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The point estimate, from all samples.
    pub value: f64,
    /// `None` if there are too few samples or batches.
    pub interval: Option<Interval>,
    /// The number of samples.
    pub samples: usize,
    /// The number of batches that the interval rests on.
    pub batches: usize,
}

/// A closed interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

impl Interval {
    pub(crate) fn around(centre: f64, half_width: f64) -> Self {
        Self {
            low: centre - half_width,
            high: centre + half_width,
        }
    }

    pub(crate) fn hull(self, other: Self) -> Self {
        Self {
            low: self.low.min(other.low),
            high: self.high.max(other.high),
        }
    }

    fn clamped(self, low: f64, high: f64) -> Self {
        Self {
            low: self.low.clamp(low, high),
            high: self.high.clamp(low, high),
        }
    }
}

/// The arithmetic mean; `None` without samples.
pub fn mean(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
}

/// The sample variance (divisor n − 1); `None` for fewer than two samples.
pub fn variance(samples: &[f64]) -> Option<f64> {
    let centre = mean(samples)?;
    let squares: f64 = samples.iter().map(|x| (x - centre).powi(2)).sum();
    (samples.len() >= 2).then(|| squares / (samples.len() - 1) as f64)
}

/// The samples in ascending order.
pub fn sorted(samples: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = samples.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The exact `quantile` (0 < quantile ≤ 1) of ascending samples by nearest rank: the smallest sample such
/// that at least this share of the samples does not exceed it.
///
/// `None` without samples. Never interpolates, so the result is the delay of a real message.
pub fn percentile(sorted: &[f64], quantile: f64) -> Option<f64> {
    sorted
        .get(quantiles::nearest_rank(sorted.len(), quantile)?)
        .copied()
}

/// The median; the mean of the two middle values if their number is even. `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    quantiles::median(&mut values.to_vec())
}

/// The mean over all samples; its interval by Student's t over the batches.
///
/// Batches may differ in size: the mean is Σ sums / Σ sizes, and its variance that of the ratio estimator,
/// k/(k − 1) · Σ (nᵢ/n)² (mᵢ − m)². For equal sizes that is the textbook interval of batch means. Empty
/// batches are ignored. `None` without samples.
pub fn mean_of_batches<B: AsRef<[f64]>>(batches: &[B]) -> Option<Estimate> {
    let batches = filled(batches);
    let samples: usize = batches.iter().map(|b| b.len()).sum();
    let sum: f64 = batches.iter().flat_map(|b| b.iter()).sum();
    if samples == 0 {
        return None;
    }
    let value = sum / samples as f64;
    let weighted_squares: f64 = batches
        .iter()
        .filter_map(|b| Some((b.len() as f64 / samples as f64, mean(b)?)))
        .map(|(weight, m)| (weight * (m - value)).powi(2))
        .sum();
    let k = batches.len();
    Some(Estimate {
        value,
        interval: half_width(k, |count| weighted_squares * count / (count - 1.0))
            .map(|half| Interval::around(value, half)),
        samples,
        batches: k,
    })
}

/// The exact `quantile` over all samples; its interval is the hull of two intervals.
///
/// One is by order statistics, which assumes independent samples. The other is by sectioning, which does not:
/// Student's t over the batches' own quantiles around the overall one. If either has too few samples, the
/// other is used. `None` without samples.
pub fn percentile_of_batches<B: AsRef<[f64]>>(batches: &[B], quantile: f64) -> Option<Estimate> {
    let batches = filled(batches);
    let all = sorted(batches.iter().flat_map(|b| b.iter().copied()));
    let value = percentile(&all, quantile)?;
    let squares: f64 = batches
        .iter()
        .filter_map(|b| percentile(&sorted(b.iter().copied()), quantile))
        .map(|q| (q - value).powi(2))
        .sum();
    let by_sections = half_width(batches.len(), |count| squares / (count * (count - 1.0)))
        .map(|half| Interval::around(value, half));
    let by_order = order_statistics_interval(&all, quantile);
    let interval = match (by_sections, by_order) {
        (Some(a), Some(b)) => Some(a.hull(b)),
        (a, b) => a.or(b),
    };
    Some(Estimate {
        value,
        interval,
        samples: all.len(),
        batches: batches.len(),
    })
}

/// Interval around the value of all batches together, by Student's t over the batches' own values; `None` for
/// fewer than two batches.
pub fn sections(value: f64, by_batch: &[f64]) -> Option<Interval> {
    let squares: f64 = by_batch.iter().map(|own| (own - value).powi(2)).sum();
    half_width(by_batch.len(), |count| squares / (count * (count - 1.0)))
        .map(|half| Interval::around(value, half))
}

/// Share (0..=1) of true samples. Its interval is the hull of Clopper and Pearson's and that of the batches'
/// shares. `None` without samples.
pub fn proportion_of_batches<B: AsRef<[bool]>>(batches: &[B]) -> Option<Estimate> {
    let shares: Vec<Vec<f64>> = batches
        .iter()
        .map(|b| b.as_ref().iter().map(|&yes| f64::from(yes)).collect())
        .collect();
    let by_batches = mean_of_batches(&shares)?;
    let hits: usize = batches
        .iter()
        .map(|b| b.as_ref().iter().filter(|&&yes| yes).count())
        .sum();
    let exact = clopper_pearson(hits, by_batches.samples);
    let interval = match by_batches.interval {
        Some(interval) => exact.map_or(interval, |e| e.hull(interval)),
        None => {
            return Some(Estimate {
                interval: exact,
                ..by_batches
            });
        }
    };
    Some(Estimate {
        interval: Some(interval.clamped(0.0, 1.0)),
        ..by_batches
    })
}

/// The relative change (after/before − 1) of two means measured in the same batches; its interval
/// by Student's t over the batches' own changes around the overall one.
///
/// Pairs the batches in order, as common random numbers allow. Leaves out a batch that is empty on either
/// side. `None` if nothing is left or the mean before is zero.
pub fn change_of_paired_batches<B: AsRef<[f64]>>(before: &[B], after: &[B]) -> Option<Estimate> {
    let pairs: Vec<(&[f64], &[f64])> = before
        .iter()
        .zip(after)
        .map(|(b, a)| (b.as_ref(), a.as_ref()))
        .filter(|(b, a)| !b.is_empty() && !a.is_empty())
        .collect();
    let overall_before = mean_of_batches(&pairs.iter().map(|p| p.0).collect::<Vec<_>>())?;
    let overall_after = mean_of_batches(&pairs.iter().map(|p| p.1).collect::<Vec<_>>())?;
    if overall_before.value == 0.0 {
        return None;
    }
    let value = overall_after.value / overall_before.value - 1.0;
    let squares: f64 = pairs
        .iter()
        .filter_map(|(b, a)| Some(mean(a)? / mean(b)? - 1.0 - value))
        .map(|deviation| deviation * deviation)
        .sum();
    Some(Estimate {
        value,
        interval: half_width(pairs.len(), |count| squares / (count * (count - 1.0)))
            .map(|half| Interval::around(value, half)),
        samples: overall_after.samples,
        batches: pairs.len(),
    })
}

/// The empirical distribution function, as steps (value, share of samples ≤ value), thinned to at
/// most `points_max` steps. The first and the last sample always stay.
pub fn ecdf(sorted: &[f64], points_max: usize) -> Vec<(f64, f64)> {
    let n = sorted.len();
    let stride = n.div_ceil(points_max.max(2)).max(1);
    let mut steps: Vec<(f64, f64)> = sorted
        .iter()
        .enumerate()
        .step_by(stride)
        .map(|(i, &x)| (x, (i + 1) as f64 / n as f64))
        .collect();
    if let Some(&last) = sorted.last()
        && !(n - 1).is_multiple_of(stride)
    {
        steps.push((last, 1.0));
    }
    steps
}

/// Counts of samples in bins of equal width from zero, as in [path-selection figs. 7, 8].
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The width of a bin, in the unit of the samples.
    pub bin_width: f64,
    /// `counts[i]` samples lie in [i·width, (i + 1)·width).
    pub counts: Vec<u64>,
    /// Samples at or beyond the last bin.
    pub beyond: u64,
}

impl Histogram {
    /// Sorts `samples` into at most `bins_max` bins of `bin_width`. Negative samples go to the first bin.
    pub fn of(samples: impl IntoIterator<Item = f64>, bin_width: f64, bins_max: usize) -> Self {
        let mut histogram = Self {
            bin_width,
            counts: Vec::new(),
            beyond: 0,
        };
        for sample in samples {
            // A float cast saturates: negative values and NaN become bin 0.
            let bin = (sample / bin_width).floor() as usize;
            if bin >= bins_max {
                histogram.beyond += 1;
                continue;
            }
            if histogram.counts.len() <= bin {
                histogram.counts.resize(bin + 1, 0);
            }
            histogram.counts[bin] += 1;
        }
        histogram
    }

    /// The number of samples.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum::<u64>() + self.beyond
    }

    /// The share (0..=1) of all samples in bin `bin`; zero without samples.
    pub fn frequency(&self, bin: usize) -> f64 {
        let count = self.counts.get(bin).copied().unwrap_or(0);
        count as f64 / self.total().max(1) as f64
    }
}

fn filled<B: AsRef<[f64]>>(batches: &[B]) -> Vec<&[f64]> {
    batches
        .iter()
        .map(AsRef::as_ref)
        .filter(|b| !b.is_empty())
        .collect()
}

/// Half the width of the t interval over `batches`; `None` for fewer than two.
fn half_width(batches: usize, variance_of_value: impl Fn(f64) -> f64) -> Option<f64> {
    let t = student_t(batches.checked_sub(1)?)?;
    Some(t * variance_of_value(batches as f64).sqrt())
}

/// The two-sided 95 % quantile of Student's t; `None` without a degree of freedom.
fn student_t(degrees: usize) -> Option<f64> {
    (degrees > 0).then(|| quantiles::student_t(0.5 + CONFIDENCE / 2.0, degrees as f64))
}

/// The ranks l < u with P(x₍l₎ ≤ quantile ≤ x₍u₎) ≥ 95 %, from the binomial distribution.
fn order_statistics_interval(sorted: &[f64], quantile: f64) -> Option<Interval> {
    let n = sorted.len();
    let below = Binomial::new(quantile, n as u64).ok()?;
    let tail = (1.0 - CONFIDENCE) / 2.0;
    // Ranks from 1. x₍l₎ lies above the quantile with P(B < l), x₍u₎ below it with P(B ≥ u).
    let low = below.inverse_cdf(tail).max(1);
    let high = below.inverse_cdf(1.0 - tail) + 1;
    let covered = below.cdf(high - 1) - below.cdf(low - 1);
    let at = |rank: u64| {
        sorted
            .get(usize::try_from(rank).ok()?.checked_sub(1)?)
            .copied()
    };
    (covered >= CONFIDENCE).then_some(())?;
    Some(Interval {
        low: at(low)?,
        high: at(high)?,
    })
}

fn clopper_pearson(hits: usize, samples: usize) -> Option<Interval> {
    let tail = (1.0 - CONFIDENCE) / 2.0;
    let (k, n) = (hits as f64, samples as f64);
    let misses = n - k;
    let low = match hits {
        0 => 0.0,
        _ => Beta::new(k, misses + 1.0).ok()?.inverse_cdf(tail),
    };
    let high = match samples - hits {
        0 => 1.0,
        _ => Beta::new(k + 1.0, misses).ok()?.inverse_cdf(1.0 - tail),
    };
    Some(Interval { low, high })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn close(actual: f64, expected: f64, tolerance: f64) {
        assert!(
            (actual - expected).abs() <= tolerance,
            "{actual} is not within {tolerance} of {expected}"
        );
    }

    #[test]
    fn student_t_agrees_with_the_printed_table() {
        for (degrees, expected) in [
            (1, 12.706),
            (4, 2.776),
            (9, 2.262),
            (11, 2.201),
            (29, 2.045),
        ] {
            close(student_t(degrees).unwrap(), expected, 5e-4);
        }
        assert_eq!(student_t(0), None);
    }

    #[test]
    fn equal_batches_give_the_textbook_interval_of_their_means() {
        // Five batch means 10, 12, 11, 13, 14: mean 12, s = 1.5811, half width 2.776 · s / √5.
        let batches: Vec<Vec<f64>> = [10.0, 12.0, 11.0, 13.0, 14.0]
            .iter()
            .map(|m| vec![m - 1.0, *m, m + 1.0])
            .collect();
        let estimate = mean_of_batches(&batches).unwrap();
        let interval = estimate.interval.unwrap();
        close(estimate.value, 12.0, 1e-12);
        close(interval.high - 12.0, 2.776 * 1.581_14 / 5f64.sqrt(), 1e-3);
        close(12.0 - interval.low, interval.high - 12.0, 1e-12);
        assert_eq!((estimate.samples, estimate.batches), (15, 5));
    }

    #[test]
    fn unequal_batches_give_the_mean_of_all_samples() {
        let estimate = mean_of_batches(&[vec![1.0], vec![4.0, 4.0, 4.0], vec![]]).unwrap();
        close(estimate.value, 13.0 / 4.0, 1e-12);
        assert_eq!((estimate.samples, estimate.batches), (4, 2));
    }

    #[test]
    fn one_batch_has_a_mean_but_no_interval() {
        let estimate = mean_of_batches(&[vec![1.0, 3.0]]).unwrap();
        assert_eq!((estimate.value, estimate.interval), (2.0, None));
        assert_eq!(mean_of_batches::<Vec<f64>>(&[]), None);
    }

    #[test]
    fn percentiles_are_exact_samples_by_nearest_rank() {
        let samples: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&samples, 0.5), Some(50.0));
        assert_eq!(percentile(&samples, 0.99), Some(99.0));
        assert_eq!(percentile(&samples, 0.07), Some(7.0));
        assert_eq!(percentile(&samples, 1.0), Some(100.0));
        assert_eq!(percentile(&[15.0, 20.0, 35.0, 40.0, 50.0], 0.3), Some(20.0));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn medians_of_even_counts_lie_between() {
        assert_eq!(median(&[3.0, 1.0]), Some(2.0));
        assert_eq!(median(&[5.0, 1.0, 3.0]), Some(3.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn order_statistics_agree_with_the_published_ranks_of_the_median() {
        // Distribution-free 95 % intervals of the median (Conover, table A3): n = 10: ranks 2 and 9,
        // n = 20: 6 and 15, n = 100: 40 and 61.
        for (n, low, high) in [(10, 2.0, 9.0), (20, 6.0, 15.0), (100, 40.0, 61.0)] {
            let samples: Vec<f64> = (1..=n).map(f64::from).collect();
            let interval = order_statistics_interval(&samples, 0.5).unwrap();
            assert_eq!((interval.low, interval.high), (low, high), "n = {n}");
        }
    }

    #[test]
    fn a_percentile_without_enough_samples_above_it_has_no_order_interval() {
        let samples: Vec<f64> = (1..=50).map(f64::from).collect();
        assert_eq!(order_statistics_interval(&samples, 0.99), None);
    }

    #[test]
    fn percentile_interval_is_at_least_as_wide_as_by_order_statistics() {
        let batches: Vec<Vec<f64>> = (0..10)
            .map(|b| (0..100).map(|i| f64::from(i * 10 + b)).collect())
            .collect();
        let estimate = percentile_of_batches(&batches, 0.9).unwrap();
        let by_order =
            order_statistics_interval(&sorted(batches.iter().flatten().copied()), 0.9).unwrap();
        let interval = estimate.interval.unwrap();
        assert!(interval.low <= by_order.low && by_order.high <= interval.high);
        assert_eq!(estimate.value, 899.0);
    }

    #[test]
    fn clopper_pearson_agrees_with_known_values() {
        let interval = clopper_pearson(8, 10).unwrap();
        close(interval.low, 0.4439, 1e-4);
        close(interval.high, 0.9748, 1e-4);
        // All of n: 0.025^(1/n).
        close(clopper_pearson(100, 100).unwrap().low, 0.9638, 1e-4);
        assert_eq!(clopper_pearson(100, 100).unwrap().high, 1.0);
    }

    #[test]
    fn a_share_of_one_still_has_a_lower_bound() {
        let estimate = proportion_of_batches(&vec![vec![true; 50]; 2]).unwrap();
        assert_eq!(estimate.value, 1.0);
        close(estimate.interval.unwrap().low, 0.9638, 1e-4);
    }

    #[test]
    fn paired_change_cancels_what_the_batches_share() {
        let before = [vec![10.0, 10.0], vec![20.0, 20.0], vec![40.0, 40.0]];
        let after = [vec![5.0, 5.0], vec![10.0, 10.0], vec![20.0, 20.0]];
        let change = change_of_paired_batches(&before, &after).unwrap();
        close(change.value, -0.5, 1e-12);
        close(change.interval.unwrap().low, -0.5, 1e-12);
        assert_eq!(change.batches, 3);
    }

    #[test]
    fn ecdf_keeps_first_and_last_when_thinned() {
        let samples: Vec<f64> = (1..=1000).map(f64::from).collect();
        let steps = ecdf(&samples, 100);
        assert!(steps.len() <= 101);
        assert_eq!(steps.first(), Some(&(1.0, 0.001)));
        assert_eq!(steps.last(), Some(&(1000.0, 1.0)));
        assert_eq!(ecdf(&[2.0, 3.0], 10), vec![(2.0, 0.5), (3.0, 1.0)]);
        assert!(ecdf(&[], 10).is_empty());
    }

    #[test]
    fn histogram_counts_every_sample_once() {
        let histogram = Histogram::of([0.0, 4.999, 5.0, 12.0, 1000.0, -1.0], 5.0, 4);
        assert_eq!(histogram.counts, vec![3, 1, 1]);
        assert_eq!((histogram.beyond, histogram.total()), (1, 6));
        close(histogram.frequency(0), 0.5, 1e-12);
        assert_eq!(histogram.frequency(3), 0.0);
    }

    #[test]
    fn variance_divides_by_one_less() {
        close(
            variance(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap(),
            32.0 / 7.0,
            1e-12,
        );
        assert_eq!(variance(&[1.0]), None);
    }
}
