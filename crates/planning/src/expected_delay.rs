//! The expected delay of an application on a path, and whether it meets the latency target.
//!
//! As in [path-selection §3.3], targets are compared with means: the measured mean where nothing
//! changes for the application, else the forecast's for the scheduler in use. Where there is no
//! forecast (too few messages, say), eq. 3 alone decides, and [`ExpectedDelay::judged_by`] says so.
//!

use std::time::Duration;

use keiro_control::protocol::JudgedBy;
use keiro_planner::{
    delay::{Delay, Margin, Prediction, Tolerance},
    queueing::Statistic,
};

use crate::{forecast::DelayForecast, input::MeasuredDelay};

/// Relative error of forecast 99th percentiles.
pub const FORECAST_ERROR: f64 = 0.2;

/// The expected delay of one application on one path, beside its latency target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpectedDelay {
    /// The forecast's mean; `None`: there is no forecast.
    pub predicted: Option<Delay>,
    /// The measured mean, where it decides.
    pub measured: Option<Duration>,
    /// Which mean the latency target is compared with.
    pub judged_by: JudgedBy,
    /// That mean is at most the latency target, loosened by the tolerance; `None`: no latency target.
    pub met: Option<bool>,
    /// The same of the 99th percentile, measured or forecast; `None` as well without either.
    pub met_at_p99: Option<bool>,
    /// The forecast's mean against the target without tolerance; `None`: no forecast.
    pub margin: Option<Margin>,
    /// By how much the mean exceeds the target with its tolerance; zero if it does not, or without
    /// a finite mean.
    pub lateness: Duration,
    /// The path is overloaded for it, by the forecast or, without one, by eq. 3.
    pub overloaded: bool,
}

impl ExpectedDelay {
    /// From eq. 3 and, where available, a forecast and a measurement.
    pub fn of(
        prediction: &Prediction,
        forecast: Option<&DelayForecast>,
        measured: Option<MeasuredDelay>,
        tolerance: Tolerance,
    ) -> Self {
        let latency_target = prediction.latency_target;
        let predicted = forecast.and_then(DelayForecast::mean);
        let forecast_p99 = predicted.map(|mean| match forecast.map(|forecast| forecast.delay) {
            Some(Ok(forecast)) => Delay::Finite(forecast.get(Statistic::P99)),
            _ => mean,
        });
        let measured_p99 = measured.map(|measured| Delay::Finite(measured.p99));
        let p99 = measured_p99.or(forecast_p99);
        let modelled = predicted.unwrap_or(prediction.delay);
        let (mean, judged_by) = match (measured, predicted) {
            (Some(measured), _) => (Delay::Finite(measured.mean), JudgedBy::Measurement),
            (None, Some(mean)) => (mean, JudgedBy::Forecast),
            (None, None) => (prediction.delay, JudgedBy::Equation3),
        };
        let late = mean.finite().zip(latency_target);
        Self {
            predicted,
            measured: measured.map(|measured| measured.mean),
            judged_by,
            met: latency_target.map(|_| mean.meets(latency_target, tolerance)),
            met_at_p99: latency_target
                .and(p99)
                .map(|p99| p99.meets(latency_target, tolerance)),
            margin: predicted.map(|mean| Margin::of(mean, latency_target)),
            lateness: late.map_or(Duration::ZERO, |(mean, latency_target)| {
                mean.saturating_sub(tolerance.loosen(latency_target))
            }),
            overloaded: modelled == Delay::Overloaded,
        }
    }

    /// The latency target minus the predicted mean, in seconds; `None` without a latency target, a forecast or a
    /// finite mean.
    pub fn margin_seconds(&self) -> Option<f64> {
        match self.margin? {
            Margin::Spare(spare) => Some(spare.as_secs_f64()),
            Margin::Late(late) => Some(-late.as_secs_f64()),
            Margin::NoTarget | Margin::Overloaded => None,
        }
    }

    /// The predicted mean, in seconds; `None` without a forecast or a finite mean.
    pub fn predicted_seconds(&self) -> Option<f64> {
        let mean = self.predicted?.finite()?;
        Some(mean.as_secs_f64())
    }
}
