//! Chooses the next size to transfer, and decides when enough is known. Time and randomness are arguments.

use std::time::Duration;

use keiro_model::capacity::median_interval;
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use super::error::NetError;

/// Maximum of different sizes in one measurement; ours.
pub const SIZES_MAX: usize = 200;

/// Minimum of repeats for a 95 % interval of the median: 2·0.5^6 = 3 %.
pub const REPEATS_MIN: usize = 6;

/// Log-spaced sizes including both ends, `per_decade` for each factor of ten.
///
/// # Errors
/// No size, or too many.
pub fn log_spaced(first: u64, last: u64, per_decade: u32) -> Result<Vec<u64>, NetError> {
    let wrong = |text: &str| Err(NetError::Sizes(text.to_owned()));
    if first == 0 {
        return wrong("the smallest size is 1 byte, as in --sizes 1kB-100MB");
    }
    if last < first {
        return wrong("the sizes must grow, as in --sizes 1kB-100MB");
    }
    let decades = (last as f64 / first as f64).log10();
    let steps = (decades * f64::from(per_decade)).round().max(1.0);
    if steps >= SIZES_MAX as f64 {
        return wrong("more than 200 sizes; take fewer for each decade, or a smaller range");
    }
    let steps = if first == last { 0 } else { steps as u32 };
    let mut sizes: Vec<u64> = (0..=steps)
        .map(|step| match step {
            0 => first,
            step if step == steps => last,
            step => {
                let exponent = decades * f64::from(step) / f64::from(steps);
                (first as f64 * 10f64.powf(exponent)).round() as u64
            }
        })
        .collect();
    sizes.dedup();
    Ok(sizes)
}

/// Measurements of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeSeries {
    /// The size in bytes of TCP payload.
    pub bytes: u64,
    /// The time of every transfer in seconds, in the order measured.
    pub seconds: Vec<f64>,
    /// Whether the median's interval is narrow enough.
    pub precise: bool,
}

/// Progress of a measurement.
#[derive(Clone, Debug)]
pub struct Schedule {
    series: Vec<SizeSeries>,
    /// Time spent per size, including pauses and connection setup.
    spent: Vec<Duration>,
    round: Vec<usize>,
    rng: ChaCha12Rng,
    budget: Duration,
    precision: f64,
    repeats_max: usize,
}

impl Schedule {
    /// Nothing is measured yet. `precision` is half the median's 95 % interval relative to the median.
    pub fn new(
        sizes: &[u64],
        budget: Duration,
        precision: f64,
        repeats_max: usize,
        seed: u64,
    ) -> Self {
        let series = |bytes: &u64| SizeSeries {
            bytes: *bytes,
            seconds: Vec::new(),
            precise: false,
        };
        Self {
            series: sizes.iter().map(series).collect(),
            spent: vec![Duration::ZERO; sizes.len()],
            round: Vec::new(),
            rng: ChaCha12Rng::seed_from_u64(seed),
            budget,
            precision,
            repeats_max: repeats_max.max(1),
        }
    }

    /// The sizes with their measurements.
    pub fn series(&self) -> &[SizeSeries] {
        &self.series
    }

    /// Index of the size to transfer next; `None` if all are known well enough, or the remaining budget is
    /// too short for the others. `expected` estimates the duration of a transfer of the given bytes.
    pub fn next(&mut self, elapsed: Duration, expected: impl Fn(u64) -> Duration) -> Option<usize> {
        let left = self.budget.saturating_sub(elapsed);
        if left.is_zero() {
            return None;
        }
        // Sizes left in this round; if there are none, a new round.
        for _ in 0..2 {
            while let Some(index) = self.round.pop() {
                let series = &self.series[index];
                if !self.is_done(series) && self.duration_of(index, &expected) <= left {
                    return Some(index);
                }
            }
            self.begin_round(left, &expected);
        }
        None
    }

    /// Records a transfer that took `time`, and `spent` including everything around it.
    pub fn on_transfer(&mut self, index: usize, time: Duration, spent: Duration) {
        self.spent[index] += spent;
        let precision = self.precision;
        let series = &mut self.series[index];
        series.seconds.push(time.as_secs_f64());
        series.precise = relative_half_width(&series.seconds).is_some_and(|w| w <= precision);
    }

    /// Estimated remaining time, at most the rest of the budget.
    pub fn left(&self, elapsed: Duration, expected: impl Fn(u64) -> Duration) -> Duration {
        let left = self.budget.saturating_sub(elapsed);
        let needed = (0..self.series.len())
            .filter(|index| !self.is_done(&self.series[*index]))
            .map(|index| (index, self.duration_of(index, &expected)))
            // A transfer that no longer fits is not started.
            .filter(|(_, duration)| *duration <= left)
            .map(|(index, duration)| {
                let repeats = self.repeats_left(&self.series[index]);
                duration.saturating_mul(u32::try_from(repeats).unwrap_or(u32::MAX))
            })
            .fold(Duration::ZERO, Duration::saturating_add);
        needed.min(left)
    }

    /// Estimated number of further transfers of a size, if its interval narrows with the square root of their
    /// number.
    fn repeats_left(&self, series: &SizeSeries) -> usize {
        let count = series.seconds.len();
        let least = REPEATS_MIN.saturating_sub(count).max(1);
        let Some(width) = relative_half_width(&series.seconds) else {
            return least;
        };
        // Without a required precision, up to the maximum.
        let needed = count as f64 * (width / self.precision.max(1e-9)).powi(2);
        let most = self.repeats_max.saturating_sub(count).max(least);
        // Saturates if infinite.
        (needed as usize).saturating_sub(count).clamp(least, most)
    }

    fn is_done(&self, series: &SizeSeries) -> bool {
        series.precise || series.seconds.len() >= self.repeats_max
    }

    /// Duration of the next transfer: that of the last ones, or the expected one.
    fn duration_of(&self, index: usize, expected: impl Fn(u64) -> Duration) -> Duration {
        match self.series[index].seconds.len() {
            0 => expected(self.series[index].bytes),
            count => self.spent[index] / count as u32,
        }
    }

    /// All unfinished sizes that fit into the time, in random order. A size that has used more than its share
    /// of the budget waits until the others are done.
    fn begin_round(&mut self, left: Duration, expected: impl Fn(u64) -> Duration) {
        let share = self.budget / self.series.len().max(1) as u32;
        let open: Vec<usize> = (0..self.series.len())
            .filter(|index| !self.is_done(&self.series[*index]))
            .filter(|index| self.duration_of(*index, &expected) <= left)
            .collect();
        let modest: Vec<usize> = open
            .iter()
            .copied()
            .filter(|index| self.spent[*index] <= share)
            .collect();
        self.round = if modest.is_empty() { open } else { modest };
        for last in (1..self.round.len()).rev() {
            // The modulus prefers small numbers by less than 2^-50.
            let other = (self.rng.next_u64() % (last as u64 + 1)) as usize;
            self.round.swap(last, other);
        }
    }
}

/// Half the width of the median's 95 % interval relative to the median; `None` for too few values.
pub fn relative_half_width(seconds: &[f64]) -> Option<f64> {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = median_interval(&sorted)?;
    (median.value > 0.0).then(|| (median.high - median.low) / 2.0 / median.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_secs(60);

    fn at_100_mbit(bytes: u64) -> Duration {
        Duration::from_nanos(bytes * 80) + Duration::from_millis(10)
    }

    /// Runs a schedule against a network. Returns the order of sizes, and the schedule at its end.
    fn run(
        sizes: &[u64],
        seed: u64,
        mut network: impl FnMut(u64) -> Duration,
    ) -> (Vec<u64>, Schedule, Duration) {
        let mut schedule = Schedule::new(sizes, BUDGET, 0.02, 30, seed);
        let (mut elapsed, mut order) = (Duration::ZERO, Vec::new());
        while let Some(index) = schedule.next(elapsed, at_100_mbit) {
            let bytes = sizes[index];
            let time = network(bytes);
            order.push(bytes);
            elapsed += time;
            schedule.on_transfer(index, time, time);
        }
        (order, schedule, elapsed)
    }

    #[test]
    fn sizes_are_log_spaced_with_both_ends() {
        let sizes = log_spaced(1_000, 100_000_000, 4).unwrap();
        assert_eq!(sizes.len(), 21);
        assert_eq!((sizes[0], sizes[20]), (1_000, 100_000_000));
        assert_eq!(sizes[4], 10_000);
        assert!(sizes.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(log_spaced(5, 5, 4).unwrap(), [5]);
        assert_eq!(log_spaced(1, 3, 9).unwrap(), [1, 2, 3]);
        for (first, last, per_decade) in [(0, 9, 1), (9, 8, 1), (1, 1_000_000, 1000)] {
            assert!(log_spaced(first, last, per_decade).is_err());
        }
    }

    #[test]
    fn a_steady_network_is_known_after_the_least_repeats() {
        let sizes = log_spaced(1_000, 10_000_000, 2).unwrap();
        let (order, schedule, _) = run(&sizes, 1, at_100_mbit);
        assert_eq!(order.len(), sizes.len() * REPEATS_MIN);
        assert!(schedule.series().iter().all(|series| series.precise));
        let left = schedule.left(Duration::ZERO, at_100_mbit);
        assert_eq!(left, Duration::ZERO);
    }

    #[test]
    fn the_seed_determines_the_order_which_is_not_sorted() {
        let sizes = log_spaced(1_000, 10_000_000, 2).unwrap();
        let first = |seed| run(&sizes, seed, at_100_mbit).0[..sizes.len()].to_vec();
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
        assert_ne!(first(1), sizes);
        let mut sorted = first(1);
        sorted.sort_unstable();
        assert_eq!(sorted, sizes);
    }

    #[test]
    fn noise_is_repeated_up_to_the_bound() {
        let mut odd = 0;
        let noisy = |_| {
            odd += 1;
            Duration::from_millis(if odd % 2 == 0 { 10 } else { 20 })
        };
        let (order, schedule, _) = run(&[1_000], 1, noisy);
        assert_eq!(order.len(), 30);
        assert!(!schedule.series()[0].precise);
    }

    #[test]
    fn the_remaining_time_is_estimated_from_the_noise() {
        let mut schedule = Schedule::new(&[1_000], BUDGET, 0.02, 30, 1);
        let expected = |_| Duration::from_secs(1);
        let left = |schedule: &Schedule, spent| schedule.left(Duration::from_secs(spent), expected);
        assert_eq!(left(&schedule, 0), Duration::from_secs(6));
        for turn in 0..6 {
            let time = Duration::from_millis(if turn % 2 == 0 { 10 } else { 20 });
            schedule.on_transfer(0, time, Duration::from_secs(1));
        }
        // ±33 % is not 2 %, so it repeats up to the maximum.
        assert_eq!(left(&schedule, 6), Duration::from_secs(24));
        assert_eq!(left(&schedule, 50), Duration::from_secs(10));
        for _ in 6..30 {
            let time = Duration::from_millis(10);
            schedule.on_transfer(0, time, Duration::from_secs(1));
        }
        assert_eq!(left(&schedule, 30), Duration::ZERO);
    }

    #[test]
    fn the_budget_ends_it_and_no_transfer_begins_that_cannot_end() {
        let sizes = log_spaced(1_000, 1_000_000_000, 1).unwrap();
        let (order, schedule, elapsed) = run(&sizes, 3, at_100_mbit);
        assert!(elapsed <= BUDGET, "{elapsed:?}");
        // 1 GB takes 80 s.
        assert!(!order.contains(&1_000_000_000));
        assert!(schedule.series()[6].seconds.is_empty());
        // 100 MB takes 8 s; each size has a seventh of 60 s.
        assert!(schedule.series()[5].seconds.len() >= 2);
        assert!(schedule.series()[..5].iter().all(|series| series.precise));
    }
}
