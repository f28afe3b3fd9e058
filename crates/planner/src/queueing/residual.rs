//! What is left between forecast and measurement, learnt path by path.
//!
//! Measured delay = floor + offset + factor · (forecast − floor), the floor being propagation and
//! the message's own transmission: an offset for what the model leaves out of every message's way
//! (the driver's lateness, a propagation delay that is not quite what was said), a factor for what
//! it gets wrong about waiting. Both are learnt by Bayesian linear regression, each measurement
//! with the weight that its number of messages gives it, from the prior that the model is right;
//! older measurements are forgotten by a factor per measurement. Nothing is learnt where no number
//! was forecast.

use std::time::Duration;

use super::{
    DelayDistribution, Forecast, Outcome, Statistic,
    validity::{FACTOR_RANGE, NoForecast},
};

/// What was measured of one application in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayWindow {
    pub delay: DelayDistribution,
    /// The messages behind them.
    pub messages: u64,
}

/// The correction of one path's forecasts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residual {
    /// Σ w·xxᵀ of x = (1, waiting in s), each w the inverse of a variance: \[11, 12, 22\].
    information: [f64; 3],
    /// Σ w·x·y, y what was measured beyond the forecast, in s.
    weighted: [f64; 2],
    /// Σ w·y².
    square: f64,
    /// How many numbers that rests on, forgetting included.
    numbers: f64,
}

/// A corrected forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrected {
    pub delay: DelayDistribution,
    /// Standard deviation of the mean.
    pub mean_deviation: Duration,
    /// Standard deviation of the 99th percentile.
    pub p99_deviation: Duration,
}

/// Before anything is measured the offset is zero, give or take 1 ms: the lateness of a driver
/// that keeps its time. In s.
const OFFSET_PRIOR: f64 = 1e-3;

/// Before anything is measured the factor is one, give or take a tenth: the error of the forecasts
/// that `docs/prediction.md` reports.
const FACTOR_PRIOR: f64 = 0.1;

/// Offsets beyond are not believed, in s. Ours: a path whose base delay is off by more was
/// measured wrongly or has changed.
const OFFSET_MAX: f64 = 20e-3;

/// What stays of earlier measurements with each new one: half is forgotten after 34.
const KEPT: f64 = 0.98;

/// What stays when the path has changed. Ours: of the most that can be remembered, fifty windows,
/// one; a few new ones outweigh it.
const KEPT_IN_DOUBT: f64 = 0.02;

/// No measurement is believed more closely, in s: the clock's and the driver's noise.
const NOISE_MIN: f64 = 50e-6;

/// No measurement is believed more closely than this part of its waiting: what differs from
/// application to application does not average out.
const SCATTER: f64 = 0.03;

/// Fewer messages are not worth learning from; ours.
const MESSAGES_MIN: u64 = 20;

/// Delays of neighbouring messages are alike: this many count as one.
const MESSAGES_ALIKE: f64 = 10.0;

/// Beyond what [`Residual::sums`] can be. Each weight is at most 1e8 and the sum of what [`KEPT`] leaves of fifty windows
/// at most 2e10; that of waiting² at most 6e4, by [`SCATTER`]. No delay is longer than 1e5 s.
const SUMS_MAX: [f64; 7] = [1e11, 1e9, 1e6, 1e16, 1e14, 1e22, 51.0];

/// What rounding may have added to products of sums; far less than the priors add.
const ROUNDING: f64 = 1e-6;

/// How much more a number scatters than a mean of as many exponential waits: n·variance / mean².
const STATISTICS: [(Statistic, f64); 4] = [
    (Statistic::Mean, 1.0),
    (Statistic::P50, 1.0),
    (Statistic::P95, 19.0),
    (Statistic::P99, 99.0),
];

impl Residual {
    /// Nothing is known yet: forecasts stay as they are.
    pub const fn new() -> Self {
        Self {
            information: [0.0; 3],
            weighted: [0.0; 2],
            square: 0.0,
            numbers: 0.0,
        }
    }

    /// Everything that it keeps, for [`Residual::from_sums`].
    pub const fn sums(&self) -> [f64; 7] {
        let ([a, b, c], [u, v]) = (self.information, self.weighted);
        [a, b, c, u, v, self.square, self.numbers]
    }

    /// One that another process has learnt. `None`: sums that no measurements have.
    pub fn from_sums(sums: [f64; 7]) -> Option<Self> {
        let [a, b, c, u, v, square, numbers] = sums;
        let is_bounded = |(sum, max): (&f64, f64)| sum.abs() <= max;
        let is_sane = sums.iter().zip(SUMS_MAX).all(is_bounded)
            && [a, b, c, square, numbers].iter().all(|sum| *sum >= 0.0)
            // Cauchy-Schwarz, within rounding. Otherwise the covariance is not positive.
            && b * b <= a * c * (1.0 + ROUNDING) + ROUNDING;
        is_sane.then_some(Self {
            information: [a, b, c],
            weighted: [u, v],
            square,
            numbers,
        })
    }

    /// Learns from one application's delays in one window, and what was forecast for them.
    ///
    /// Ignores overloaded forecasts and fewer than twenty messages.
    pub fn observe(&mut self, forecast: &Forecast, measured: &DelayWindow) {
        let Outcome::Stable(predicted) = forecast.outcome else {
            return;
        };
        if measured.messages < MESSAGES_MIN {
            return;
        }
        self.keep(KEPT);
        let floor = floor_s(forecast);
        let waiting = |delay: Duration| (delay.as_secs_f64() - floor).max(0.0);
        let mean = waiting(predicted.mean);
        let independent = (measured.messages as f64 / MESSAGES_ALIKE).max(1.0);
        for (statistic, scatter) in STATISTICS {
            let x = waiting(predicted.get(statistic));
            let y = measured.delay.get(statistic).as_secs_f64()
                - predicted.get(statistic).as_secs_f64();
            let variance =
                mean * mean * scatter / independent + (SCATTER * x).powi(2) + NOISE_MIN * NOISE_MIN;
            // The four numbers of one window are hardly more than one.
            let weight = 1.0 / variance / STATISTICS.len() as f64;
            self.information[0] += weight;
            self.information[1] += weight * x;
            self.information[2] += weight * x * x;
            self.weighted[0] += weight * y;
            self.weighted[1] += weight * x * y;
            self.square += weight * y * y;
            self.numbers += 1.0 / STATISTICS.len() as f64;
        }
    }

    /// The forecast, corrected.
    ///
    /// # Errors
    /// [`NoForecast::Overloaded`] where nothing was forecast, [`NoForecast::ModelOff`] where what was
    /// measured asks for more than a correction.
    pub fn correct(&self, forecast: &Forecast) -> Result<Corrected, NoForecast> {
        let Outcome::Stable(predicted) = forecast.outcome else {
            let load = forecast.terms.load;
            return Err(NoForecast::Overloaded { load });
        };
        let (offset, factor) = (self.offset_s(), self.factor());
        if offset.abs() > OFFSET_MAX || !(FACTOR_RANGE[0]..=FACTOR_RANGE[1]).contains(&factor) {
            return Err(NoForecast::ModelOff {
                factor,
                offset_s: offset,
            });
        }
        let floor = floor_s(forecast);
        let delays = [predicted.mean, predicted.p50, predicted.p95, predicted.p99];
        let [mean, p50, p95, p99] = delays.map(|delay| {
            let predicted = delay.as_secs_f64();
            let waiting = (predicted - floor).max(0.0);
            // Nothing is quicker than without any waiting, shorter messages than the mean included.
            let least = predicted - waiting;
            seconds((predicted + offset + (factor - 1.0) * waiting).max(least))
        });
        let [mean_deviation, p99_deviation] = [predicted.mean, predicted.p99].map(|delay| {
            let waiting = (delay.as_secs_f64() - floor).max(0.0);
            seconds(self.deviation_s(waiting))
        });
        Ok(Corrected {
            delay: DelayDistribution {
                mean,
                p50,
                p95,
                p99,
            },
            mean_deviation,
            p99_deviation,
        })
    }

    /// The path is another one now. What was learnt of it is nearly all forgotten: it still
    /// corrects, until the next few measurements outweigh it.
    pub fn on_path_changed(&mut self) {
        self.keep(KEPT_IN_DOUBT);
    }

    /// What is added to every delay, in s.
    pub fn offset_s(&self) -> f64 {
        let ([a, b, c], [u, v]) = (self.covariance(), self.weighted);
        let _ = c;
        a * u + b * v
    }

    /// By what waiting is multiplied.
    pub fn factor(&self) -> f64 {
        let ([_, b, c], [u, v]) = (self.covariance(), self.weighted);
        1.0 + b * u + c * v
    }

    /// Windows that it rests on, less what is forgotten; at most some fifty.
    pub const fn windows(&self) -> f64 {
        self.numbers
    }

    /// Of the offset and the factor: \[var, covar, var\].
    fn covariance(&self) -> [f64; 3] {
        let a = self.information[0] + 1.0 / (OFFSET_PRIOR * OFFSET_PRIOR);
        let b = self.information[1];
        let c = self.information[2] + 1.0 / (FACTOR_PRIOR * FACTOR_PRIOR);
        // Positive: a sum of squares plus a positive diagonal.
        let determinant = a * c - b * b;
        [c / determinant, -b / determinant, a / determinant]
    }

    /// Standard deviation of a corrected delay with this much waiting, in s: what is not known of
    /// offset and factor, and what scatters around them.
    fn deviation_s(&self, waiting: f64) -> f64 {
        let [a, b, c] = self.covariance();
        let parameters = a + 2.0 * b * waiting + c * waiting * waiting;
        let scatter = (SCATTER * waiting).powi(2) + NOISE_MIN * NOISE_MIN;
        ((parameters + scatter) * self.misfit()).sqrt()
    }

    /// By how much measurements scatter more than they should, as a variance; at least one.
    fn misfit(&self) -> f64 {
        if self.numbers < 2.0 {
            return 1.0;
        }
        let (offset, slope) = (self.offset_s(), self.factor() - 1.0);
        let [a, b, c] = self.information;
        let explained = 2.0 * (offset * self.weighted[0] + slope * self.weighted[1])
            - (a * offset * offset + 2.0 * b * offset * slope + c * slope * slope);
        ((self.square - explained) / self.numbers).max(1.0)
    }

    fn keep(&mut self, part: f64) {
        let sums = self.information.iter_mut().chain(&mut self.weighted);
        for sum in sums.chain([&mut self.square, &mut self.numbers]) {
            *sum *= part;
        }
    }
}

impl Default for Residual {
    fn default() -> Self {
        Self::new()
    }
}

/// A number that no duration can be is longer than any.
fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX)
}

/// What every message takes: propagation and its own transmission, in s.
fn floor_s(forecast: &Forecast) -> f64 {
    let terms = &forecast.terms;
    let floor = terms.propagation.saturating_add(terms.transmission);
    floor.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queueing::ForecastTerms;
    use keiro_units::{Bandwidth, ByteCount};

    const MS: f64 = 1e-3;

    fn distribution(mean: f64) -> DelayDistribution {
        let floor = 10.0 * MS;
        let at = |times: f64| Duration::from_secs_f64(floor + (mean - floor) * times);
        DelayDistribution {
            mean: at(1.0),
            p50: at(0.7),
            p95: at(3.0),
            p99: at(4.6),
        }
    }

    /// Propagation 8 ms, transmission 2 ms.
    fn forecast(mean: f64) -> Forecast {
        Forecast {
            terms: ForecastTerms {
                propagation: Duration::from_millis(8),
                bandwidth: Bandwidth::from_mbit_per_second(4),
                length: ByteCount::new(1000),
                wire_length: ByteCount::new(1000),
                transmission: Duration::from_millis(2),
                own_load: 0.5,
                load: 0.5,
            },
            latency_target: None,
            outcome: Outcome::Stable(distribution(mean)),
        }
    }

    fn moved(delay: DelayDistribution, offset: f64, factor: f64) -> DelayDistribution {
        let floor = 10.0 * MS;
        let at = |d: Duration| {
            Duration::from_secs_f64(floor + offset + factor * (d.as_secs_f64() - floor))
        };
        DelayDistribution {
            mean: at(delay.mean),
            p50: at(delay.p50),
            p95: at(delay.p95),
            p99: at(delay.p99),
        }
    }

    /// A residual that saw such paths `windows` times, with waits of 5 to 45 ms.
    fn taught(offset: f64, factor: f64, windows: u32) -> Residual {
        let mut residual = Residual::new();
        for window in 0..windows {
            let forecast = forecast((15.0 + f64::from(window % 5) * 10.0) * MS);
            let Outcome::Stable(predicted) = forecast.outcome else {
                unreachable!("made stable");
            };
            let delay = moved(predicted, offset, factor);
            let messages = 2000;
            residual.observe(&forecast, &DelayWindow { delay, messages });
        }
        residual
    }

    fn mean_ms(corrected: &Corrected) -> f64 {
        corrected.delay.mean.as_secs_f64() / MS
    }

    #[test]
    fn without_measurements_the_forecast_stays_and_is_uncertain() {
        let corrected = Residual::new().correct(&forecast(30.0 * MS)).unwrap();
        assert_eq!(corrected.delay, distribution(30.0 * MS));
        // 1 ms of the offset and a tenth of 20 ms.
        assert!(corrected.mean_deviation >= Duration::from_millis(2));
    }

    #[test]
    fn offset_and_factor_are_learnt_and_become_certain() {
        let residual = taught(1.5 * MS, 1.12, 60);
        let corrected = residual.correct(&forecast(30.0 * MS)).unwrap();
        let expected = 10.0 + 1.5 + 1.12 * 20.0;
        assert!(
            (mean_ms(&corrected) - expected).abs() < 0.3,
            "{residual:?}: {corrected:?}"
        );
        assert!(corrected.mean_deviation < Duration::from_micros(800));
        let p99 = corrected.delay.p99.as_secs_f64() / MS;
        assert!((p99 - (11.5 + 1.12 * 92.0)).abs() < 1.5, "{corrected:?}");
    }

    #[test]
    fn what_was_learnt_is_read_again() {
        let mut residual = taught(-1.5 * MS, 0.8, 300);
        for _ in 0..300 {
            assert_eq!(Residual::from_sums(residual.sums()), Some(residual));
            residual.on_path_changed();
        }
        // The longest delays, the most certain weights and one waiting for all.
        let mut residual = Residual::new();
        let day = distribution(86_400.0);
        for (forecast, delay) in [(forecast(10.0 * MS), day), (forecast(86_400.0), day)] {
            for _ in 0..500 {
                let messages = u64::MAX;
                residual.observe(&forecast, &DelayWindow { delay, messages });
                assert_eq!(Residual::from_sums(residual.sums()), Some(residual));
            }
        }
    }

    #[test]
    fn sums_that_no_measurements_have_are_refused() {
        for sums in [
            [0.0, 2e4, 0.0, 0.0, 0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, 0.0, 0.0, 1e308, 2.0],
            [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1e3],
            [0.0, 0.0, 0.0, f64::NAN, 0.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, 0.0, f64::INFINITY, 0.0, 0.0],
            [-1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        ] {
            assert_eq!(Residual::from_sums(sums), None, "{sums:?}");
        }
    }

    #[test]
    fn a_deviation_longer_than_any_time_is_no_panic() {
        let residual = Residual::from_sums([0.0, 0.0, 0.0, 0.0, 0.0, 1e22, 2.0]).unwrap();
        let corrected = residual.correct(&forecast(1e18)).unwrap();
        assert_eq!(corrected.p99_deviation, Duration::MAX);
    }

    #[test]
    fn corrections_are_reset_when_the_path_changes() {
        let mut residual = taught(3.0 * MS, 1.0, 100);
        for _ in 0..200 {
            let forecast = forecast(30.0 * MS);
            let delay = distribution(30.0 * MS);
            let messages = 2000;
            residual.observe(&forecast, &DelayWindow { delay, messages });
        }
        let corrected = residual.correct(&forecast(30.0 * MS)).unwrap();
        assert!((mean_ms(&corrected) - 30.0).abs() < 0.3, "{corrected:?}");
        assert!(residual.windows() < 51.0);
    }

    #[test]
    fn what_was_learnt_of_another_path_is_outweighed_by_few_measurements() {
        let windows_to_learn = |mut residual: Residual| {
            let forecast = forecast(30.0 * MS);
            let (delay, messages) = (distribution(30.0 * MS), 2000);
            let right = |residual: &Residual| {
                let corrected = residual.correct(&forecast).unwrap();
                (mean_ms(&corrected) - 30.0).abs() < 0.6
            };
            (0..1000)
                .take_while(|_| {
                    let wrong = !right(&residual);
                    residual.observe(&forecast, &DelayWindow { delay, messages });
                    wrong
                })
                .count()
        };
        let learnt = taught(3.0 * MS, 1.2, 100);
        let mut changed = learnt;
        changed.on_path_changed();
        let before = changed.correct(&forecast(30.0 * MS)).unwrap();
        assert!(mean_ms(&before) > 33.0, "{before:?}");
        let (kept, changed) = (windows_to_learn(learnt), windows_to_learn(changed));
        assert!(changed * 5 < kept, "{changed} {kept}");
    }

    #[test]
    fn no_correction_is_below_the_delay_without_waiting() {
        // Some 8 ms less than is said: 2 more than the transmission takes.
        let residual = taught(-8.0 * MS, 1.0, 100);
        let idle = forecast(10.0 * MS);
        let corrected = residual.correct(&idle).unwrap();
        assert_eq!(corrected.delay.mean, Duration::from_millis(10));
        // Half of the messages are shorter than the mean.
        let mut varied = forecast(12.0 * MS);
        let Outcome::Stable(predicted) = &mut varied.outcome else {
            unreachable!("made stable");
        };
        predicted.p50 = Duration::from_millis(9);
        let corrected = Residual::new().correct(&varied).unwrap();
        assert_eq!(corrected.delay.p50, Duration::from_millis(9));
        let corrected = residual.correct(&varied).unwrap();
        assert_eq!(corrected.delay.p50, Duration::from_millis(9));
    }

    #[test]
    fn a_model_that_is_quite_wrong_gives_a_reason_instead_of_a_number() {
        for (offset, factor) in [(0.0, 4.0), (60.0 * MS, 1.0)] {
            let residual = taught(offset, factor, 100);
            let reason = residual.correct(&forecast(30.0 * MS)).unwrap_err();
            assert!(matches!(reason, NoForecast::ModelOff { .. }), "{reason}");
        }
    }

    #[test]
    fn overload_and_few_messages_are_not_learnt_from() {
        let mut residual = Residual::new();
        let stable = forecast(30.0 * MS);
        let overloaded = Forecast {
            outcome: Outcome::Overloaded,
            ..stable
        };
        let delay = distribution(90.0 * MS);
        let messages = 2000;
        residual.observe(&overloaded, &DelayWindow { delay, messages });
        residual.observe(
            &stable,
            &DelayWindow {
                delay,
                messages: 19,
            },
        );
        assert_eq!(residual, Residual::new());
        assert!(residual.correct(&overloaded).is_err());
    }

    #[test]
    fn few_messages_move_it_less_than_many() {
        let offset_after = |messages| {
            let mut residual = Residual::new();
            let forecast = forecast(30.0 * MS);
            let delay = moved(distribution(30.0 * MS), 2.0 * MS, 1.0);
            residual.observe(&forecast, &DelayWindow { delay, messages });
            let corrected = residual.correct(&forecast).unwrap();
            mean_ms(&corrected) - 30.0
        };
        let (few, many) = (offset_after(30), offset_after(30_000));
        assert!(few > 0.0 && few < many && many < 2.0, "{few} {many}");
    }
}
