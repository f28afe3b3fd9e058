//! Quantiles, robust locations and draws: what the fit needs of statistics.

use rand_chacha::ChaCha12Rng;
use rand_core::RngCore;

pub(super) use crate::quantiles::median;
use crate::quantiles::student_t;

/// The quantile of the standard normal distribution that bounds 95 % on both sides.
pub(super) const Z_95: f64 = 1.959_963_985;

/// The two-sided 95 % quantile of Student's t with `degrees` of freedom, taken as one if there are
/// none.
pub(super) fn student_t_95(degrees: usize) -> f64 {
    student_t(0.975, degrees.max(1) as f64)
}

/// The value below which `share` of `values` lie (nearest rank); `None` without values. Reorders.
pub(super) fn quantile(values: &mut [f64], share: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    let rank = ((last as f64) * share).round() as usize;
    let (_, value, _) = values.select_nth_unstable_by(rank.min(last), f64::total_cmp);
    Some(*value)
}

/// The value at which half of the weight is reached, of (value, weight); zero without values.
/// Reorders.
pub(super) fn weighted_median(values: &mut [(f64, f64)]) -> f64 {
    values.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let half = values.iter().map(|v| v.1).sum::<f64>() / 2.0;
    let mut reached = 0.0;
    for &(value, weight) in values.iter() {
        reached += weight;
        if reached >= half {
            return value;
        }
    }
    values.last().map_or(0.0, |v| v.0)
}

/// Huber's location: the mean with everything further than 1.5 scales from it drawn in, the scale
/// being the median deviation. Half of the values may be arbitrary. Zero without values. Reorders.
pub(super) fn location(values: &mut [f64]) -> f64 {
    const CLIP: f64 = 1.5;
    const STEPS: usize = 12;
    let Some(middle) = median(values) else {
        return 0.0;
    };
    if values.len() == 2 {
        return middle;
    }
    let scale = deviation(values, middle);
    let reach = CLIP * scale;
    let mut at = middle;
    for _ in 0..STEPS {
        let drawn_in = values.iter().map(|v| v.clamp(at - reach, at + reach));
        let next = drawn_in.sum::<f64>() / values.len() as f64;
        let moved = (next - at).abs();
        at = next;
        if moved <= 1e-4 * scale {
            break;
        }
    }
    at
}

/// The median deviation from `middle`, scaled to the standard deviation of a normal distribution.
pub(super) fn deviation(values: &[f64], middle: f64) -> f64 {
    let mut deviations: Vec<f64> = values.iter().map(|v| (v - middle).abs()).collect();
    median(&mut deviations).unwrap_or(0.0) / MEDIAN_DEVIATION
}

/// The median of |z| of a standard normal z.
pub(super) const MEDIAN_DEVIATION: f64 = 0.674_489_75;

/// A draw from the standard normal distribution, by Box and Muller.
pub(super) fn normal(random: &mut ChaCha12Rng) -> f64 {
    let radius = (-2.0 * uniform(random).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform(random)).cos()
}

/// A draw from (0, 1], of 53 bits.
pub(super) fn uniform(random: &mut ChaCha12Rng) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_t_agrees_with_the_printed_table() {
        for (degrees, printed) in [
            (1, 12.706),
            (2, 4.303),
            (4, 2.776),
            (5, 2.571),
            (9, 2.262),
            (29, 2.045),
            (1_000_000, 1.960),
        ] {
            let t = student_t_95(degrees);
            assert!((t / printed - 1.0).abs() < 2e-3, "{degrees}: {t}");
        }
    }

    #[test]
    fn weighted_medians_are_in_the_middle() {
        assert_eq!(weighted_median(&mut [(5.0, 1.0), (1.0, 3.0)]), 1.0);
        assert_eq!(weighted_median(&mut []), 0.0);
    }

    #[test]
    fn outliers_do_not_move_the_location_far() {
        let mut values = vec![1.0, 1.1, 0.9, 1.05, 0.95, 1000.0, 1000.0];
        assert!((location(&mut values) - 1.0).abs() < 0.15);
        assert_eq!(location(&mut [2.0, 2.0, 2.0, 9.0]), 2.0);
        assert_eq!(location(&mut []), 0.0);
    }
}
