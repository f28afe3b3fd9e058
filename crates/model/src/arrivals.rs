//! When an application makes its messages: exponential intervals from a seed.
//!
//! The schedule is computed beforehand and depends on nothing that is measured, so every variant
//! of a run, in the laboratory and in the simulator, sees the same arrivals (common random
//! numbers). Who sends the messages, and what they contain, is left to the caller.

use std::time::Duration;

use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use keiro_units::Instant;

/// The most messages that [`schedule`] returns; ours: 80 MB of instants, and 10 messages a second
/// for eleven days.
pub const MESSAGES_MAX: usize = 10_000_000;

/// The instants at which application `app` makes its messages, in rising order, before
/// `duration` has passed.
///
/// Offsets from [`Instant::ZERO`], the beginning of the run. `mean_interval` is the mean of the
/// exponential intervals [path-selection table 2]; the first message comes after one interval.
/// The same arguments always give the same schedule, and applications that differ only in `app`
/// are independent of each other. Ends after [`MESSAGES_MAX`] messages.
pub fn schedule(seed: u64, app: u32, mean_interval: Duration, duration: Duration) -> Vec<Instant> {
    let end = Instant::ZERO + duration;
    Arrivals::new(seed, app, mean_interval)
        .take_while(|&made| made < end)
        .take(MESSAGES_MAX)
        .collect()
}

/// The endless sequence of arrivals behind [`schedule`].
///
/// Ends only where [`Instant`] does.
#[derive(Clone, Debug)]
pub struct Arrivals {
    random: ChaCha12Rng,
    mean_nanos: f64,
    last: Instant,
}

impl Arrivals {
    /// The arrivals of application `app` under `seed`.
    pub fn new(seed: u64, app: u32, mean_interval: Duration) -> Self {
        let mut random = ChaCha12Rng::seed_from_u64(seed);
        // A stream of its own per application: adding one changes no other's schedule.
        random.set_stream(u64::from(app));
        Self {
            random,
            mean_nanos: mean_interval.as_nanos() as f64,
            last: Instant::ZERO,
        }
    }
}

impl Iterator for Arrivals {
    type Item = Instant;

    fn next(&mut self) -> Option<Instant> {
        // At least one nanosecond, so that instants rise and a mean of zero does not stand still.
        let interval = (exponential(&mut self.random) * self.mean_nanos).max(1.0);
        self.last += Duration::from_nanos(interval as u64);
        (self.last < Instant::MAX).then_some(self.last)
    }
}

/// A sample of the exponential distribution of mean 1, by inversion.
fn exponential(random: &mut ChaCha12Rng) -> f64 {
    // 53 random bits in (0, 1]: never zero, whose logarithm is infinite.
    let uniform = ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    -uniform.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEAN: Duration = Duration::from_millis(100);

    #[test]
    fn same_seed_gives_same_schedule() {
        let minute = Duration::from_secs(60);
        assert_eq!(schedule(7, 3, MEAN, minute), schedule(7, 3, MEAN, minute));
        assert_ne!(schedule(7, 3, MEAN, minute), schedule(8, 3, MEAN, minute));
        assert_ne!(schedule(7, 3, MEAN, minute), schedule(7, 4, MEAN, minute));
    }

    #[test]
    fn longer_run_begins_like_the_shorter_one() {
        let short = schedule(7, 1, MEAN, Duration::from_secs(10));
        let long = schedule(7, 1, MEAN, Duration::from_secs(20));
        assert_eq!(long[..short.len()], short[..]);
        assert!(short.iter().all(|t| t.as_nanos() < 10_000_000_000));
    }

    #[test]
    fn intervals_are_exponential_with_the_mean_asked_for() {
        for seed in 0..5 {
            let instants: Vec<_> = Arrivals::new(seed, 1, MEAN).take(100_000).collect();
            let mean_ms = instants.last().unwrap().as_nanos() as f64 / 1e6 / 100_000.0;
            // The standard error is 0.32 ms; 1.5 ms is beyond 4.7 of them.
            assert!(
                (mean_ms - 100.0).abs() < 1.5,
                "seed {seed}: mean {mean_ms} ms"
            );
            let above_mean = instants.windows(2).filter(|w| w[1] - w[0] > MEAN).count();
            let share = above_mean as f64 / 99_999.0;
            assert!(
                (share - (-1.0_f64).exp()).abs() < 0.008,
                "seed {seed}: {share} of the intervals exceed the mean, e^-1 should"
            );
        }
    }

    #[test]
    fn mean_of_zero_still_rises_and_is_bounded() {
        let instants = schedule(1, 1, Duration::ZERO, Duration::from_nanos(1000));
        assert_eq!(instants.len(), 999);
    }
}
