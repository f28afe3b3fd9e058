//! Whether an application meets its latency target, and when changes of that are reported.
//!
//! The source is the measured delay on the present path if there are enough messages, else the
//! forecast, else eq. 3. The 99th percentile is compared with the target; eq. 3 has only a mean. A
//! less reliable source overrules an earlier verdict only beyond its own error, because measurements
//! restart after small changes.

use std::time::Duration;

use keiro_control::protocol::JudgedBy;
use keiro_core::Instant;
use keiro_planner::{delay::Delay, queueing::Statistic};
use keiro_planning::{AppAssignment, FORECAST_ERROR, MeasuredDelay};

/// A verdict and its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TargetVerdict {
    pub(crate) met: bool,
    pub(crate) by: JudgedBy,
}

/// Delays of an application relative to its target with tolerance: above one is too long, infinite
/// is overload. `None`: no value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TargetRatios {
    /// The measured 99th percentile.
    pub(crate) measured: Option<f64>,
    /// The forecast's 99th percentile.
    pub(crate) forecast: Option<f64>,
    /// The mean by eq. 3.
    pub(crate) equation: Option<f64>,
}

/// The verdict on one application over time.
#[derive(Clone, Debug, Default)]
pub(crate) struct TargetState {
    /// The verdict, its path, and its time.
    now: Option<(TargetVerdict, String, Instant)>,
    /// The state that was reported last.
    reported: Option<bool>,
    /// Since when the target is met although a miss was reported.
    met_since: Option<Instant>,
}

/// A change to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transition {
    Missed,
    MetAgain,
}

/// Relative error of eq. 3: the worst means of the experiment `prediction/error`.
const EQUATION_ERROR: f64 = 1.0;
/// How long verdicts of a better source are kept. Ours: as long as measured delays are shown.
const VERDICT_KEPT: Duration = Duration::from_secs(600);
/// A target must be met this long before that is reported. Ours: an operator reads it, and a plan
/// may need some seconds to follow a change.
const MET_FOR: Duration = Duration::from_secs(30);

impl TargetState {
    pub(crate) fn verdict(&self) -> Option<TargetVerdict> {
        self.now.as_ref().map(|(verdict, _, _)| *verdict)
    }

    /// Updates the verdict for an application on `path`.
    pub(crate) fn update(&mut self, now: Instant, path: Option<&str>, ratios: &TargetRatios) {
        let before = self.now.take();
        let Some(path) = path else {
            return;
        };
        let known = before.filter(|(_, on, found)| {
            on == path && now.saturating_duration_since(*found) <= VERDICT_KEPT
        });
        let found = ratios.verdict(known.as_ref().map(|(verdict, _, _)| *verdict));
        self.now = match found {
            Some(verdict) => Some((verdict, path.to_owned(), now)),
            None => known,
        };
    }

    /// The change to report: a missed target at once, one that is met again after [`MET_FOR`].
    pub(crate) fn transition(&mut self, now: Instant) -> Option<Transition> {
        let met = self.verdict()?.met;
        if !met || self.reported != Some(false) {
            self.met_since = None;
            let is_news = !met && self.reported != Some(false);
            self.reported = Some(met);
            return is_news.then_some(Transition::Missed);
        }
        let since = *self.met_since.get_or_insert(now);
        if now.saturating_duration_since(since) < MET_FOR {
            return None;
        }
        self.met_since = None;
        self.reported = Some(true);
        Some(Transition::MetAgain)
    }
}

impl TargetRatios {
    /// Delays relative to the latency target with tolerance, which is `limit` seconds.
    pub(crate) fn of(
        planned: &AppAssignment,
        measured: Option<&MeasuredDelay>,
        limit: f64,
    ) -> Self {
        let part = |seconds: f64| seconds / limit.max(f64::MIN_POSITIVE);
        let forecast = planned
            .forecast
            .and_then(|forecast| match forecast.mean()? {
                Delay::Overloaded => Some(f64::INFINITY),
                Delay::Finite(_) => forecast.seconds(Statistic::P99),
            });
        let equation = planned.prediction.map(|prediction| prediction.delay);
        Self {
            measured: measured.map(|measured| part(measured.p99.as_secs_f64())),
            forecast: forecast.map(part),
            equation: equation.map(|delay| {
                let mean = delay.finite();
                part(mean.map_or(f64::INFINITY, |mean| mean.as_secs_f64()))
            }),
        }
    }

    /// Of an application whose delays are never measured, such as IP packets and streams. Predictions take each
    /// packet or write for a message, and traffic that fills its path for an overload, so a miss is known only
    /// where the path's delay without any queue, `least`, is too long.
    pub(crate) fn of_unmeasured(self, least: f64) -> Self {
        let predicted = self.forecast.or(self.equation);
        let is_known = predicted.is_none_or(|part| part <= 1.0) || least > 1.0;
        match self.measured.is_some() || is_known {
            true => self,
            false => Self {
                measured: None,
                forecast: None,
                equation: None,
            },
        }
    }

    /// `None`: keep the verdict `before`, or there is none.
    fn verdict(&self, before: Option<TargetVerdict>) -> Option<TargetVerdict> {
        if let Some(part) = self.measured {
            let (met, by) = (part <= 1.0, JudgedBy::Measurement);
            return Some(TargetVerdict { met, by });
        }
        let (part, by, error) = match (self.forecast, self.equation) {
            (Some(part), _) => (part, JudgedBy::Forecast, FORECAST_ERROR),
            (None, Some(part)) => (part, JudgedBy::Equation3, EQUATION_ERROR),
            (None, None) => return None,
        };
        let is_sure = part > 1.0 + error || part * (1.0 + error) < 1.0;
        let found = TargetVerdict {
            met: part <= 1.0,
            by,
        };
        match before {
            Some(before) if confidence(before.by) > confidence(by) && !is_sure => None,
            _ => Some(found),
        }
    }
}

/// Reliability of a source.
fn confidence(by: JudgedBy) -> u8 {
    match by {
        JudgedBy::Measurement => 2,
        JudgedBy::Forecast => 1,
        JudgedBy::Equation3 | JudgedBy::Unknown => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmeasured_application_misses_its_target_only_if_the_idle_path_is_too_long() {
        let overloaded = TargetRatios {
            forecast: Some(f64::INFINITY),
            equation: Some(0.5),
            ..NOTHING
        };
        let mut state = TargetState::default();
        let now = Instant::ZERO;
        state.update(now, Some("wan0"), &overloaded.of_unmeasured(0.4));
        assert_eq!(state.verdict(), None);
        assert_eq!(state.transition(now), None, "no miss is reported");
        let met = TargetRatios {
            forecast: Some(0.9),
            ..NOTHING
        };
        assert_eq!(met.of_unmeasured(0.4), met);
        assert_eq!(overloaded.of_unmeasured(1.1), overloaded);
        let measured = TargetRatios {
            measured: Some(2.0),
            ..overloaded
        };
        assert_eq!(measured.of_unmeasured(0.4), measured);
    }

    const NOTHING: TargetRatios = TargetRatios {
        measured: None,
        forecast: None,
        equation: None,
    };

    fn measured(part: f64) -> TargetRatios {
        TargetRatios {
            measured: Some(part),
            ..forecast(0.5)
        }
    }

    fn forecast(part: f64) -> TargetRatios {
        TargetRatios {
            forecast: Some(part),
            ..equation(0.1)
        }
    }

    fn equation(part: f64) -> TargetRatios {
        TargetRatios {
            equation: Some(part),
            ..NOTHING
        }
    }

    /// An application on the path `p`, judged every second.
    #[derive(Default)]
    struct Monitored {
        state: TargetState,
        seconds: u64,
        reported: Vec<(u64, Transition)>,
    }

    impl Monitored {
        fn sees(&mut self, ratios: &TargetRatios, seconds: u64) -> (bool, JudgedBy) {
            self.sees_on("p", ratios, seconds)
        }

        fn sees_on(&mut self, path: &str, ratios: &TargetRatios, seconds: u64) -> (bool, JudgedBy) {
            for _ in 0..seconds {
                self.seconds += 1;
                let now = Instant::ZERO + Duration::from_secs(self.seconds);
                self.state.update(now, Some(path), ratios);
                let transition = self.state.transition(now);
                self.reported
                    .extend(transition.map(|transition| (self.seconds, transition)));
            }
            let verdict = self.state.verdict().unwrap();
            (verdict.met, verdict.by)
        }
    }

    #[test]
    fn measurement_overrules_the_forecast_and_the_forecast_equation_3() {
        let mut judged = Monitored::default();
        assert_eq!(judged.sees(&equation(1.2), 1), (false, JudgedBy::Equation3));
        assert_eq!(judged.sees(&forecast(0.9), 1), (true, JudgedBy::Forecast));
        assert_eq!(
            judged.sees(&measured(1.01), 1),
            (false, JudgedBy::Measurement)
        );
    }

    #[test]
    fn restarted_measurement_does_not_change_the_verdict_within_the_next_sources_error() {
        let mut judged = Monitored::default();
        judged.sees(&measured(1.1), 60);
        for _ in 0..20 {
            // Another level: nothing is measured yet.
            for kept in [forecast(0.95), forecast(0.84), equation(0.6), NOTHING] {
                assert_eq!(judged.sees(&kept, 5), (false, JudgedBy::Measurement));
            }
            judged.sees(&measured(1.05), 10);
        }
        assert_eq!(judged.reported, [(1, Transition::Missed)]);
        // What is beyond its error counts at once.
        assert_eq!(judged.sees(&forecast(0.8), 1), (true, JudgedBy::Forecast));
    }

    #[test]
    fn a_much_worse_path_or_another_path_changes_the_verdict_at_once() {
        let mut judged = Monitored::default();
        judged.sees(&measured(0.6), 60);
        assert_eq!(judged.sees(&forecast(1.3), 1), (false, JudgedBy::Forecast));
        judged.sees(&measured(0.6), 60);
        assert_eq!(judged.sees(&equation(2.5), 1), (false, JudgedBy::Equation3));
        let mut judged = Monitored::default();
        judged.sees(&measured(0.9), 60);
        let elsewhere = judged.sees_on("q", &forecast(1.05), 1);
        assert_eq!(elsewhere, (false, JudgedBy::Forecast));
    }

    #[test]
    fn verdict_on_a_target_expires() {
        let mut judged = Monitored::default();
        judged.sees(&measured(0.9), 60);
        assert_eq!(
            judged.sees(&equation(1.5), 600),
            (true, JudgedBy::Measurement)
        );
        assert_eq!(judged.sees(&equation(1.5), 1), (false, JudgedBy::Equation3));
    }

    #[test]
    fn alternating_verdicts_are_reported_once() {
        let mut judged = Monitored::default();
        judged.sees(&measured(0.9), 60);
        for _ in 0..50 {
            judged.sees(&measured(1.01), 10);
            judged.sees(&measured(0.99), 10);
        }
        assert_eq!(judged.reported, [(61, Transition::Missed)]);
        judged.sees(&measured(0.99), 60);
        assert_eq!(judged.reported[1..], [(1081, Transition::MetAgain)]);
    }

    #[test]
    fn without_a_path_nothing_is_reported_and_the_last_report_is_kept() {
        let mut judged = Monitored::default();
        judged.sees(&measured(1.5), 1);
        let now = Instant::ZERO + Duration::from_secs(2);
        judged.state.update(now, None, &NOTHING);
        assert_eq!(judged.state.verdict(), None);
        assert_eq!(judged.state.transition(now), None);
        judged.sees(&measured(1.5), 60);
        assert_eq!(judged.reported, [(1, Transition::Missed)]);
    }
}
