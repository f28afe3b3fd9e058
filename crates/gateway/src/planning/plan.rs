//! A plan: which application takes which path, and what delay is expected there.

use std::{collections::BTreeMap, time::Duration};

use keiro_control::{
    config::{AppIndex, Config, PathIndex, PathTerms},
    protocol::AssignedBy,
};
use keiro_planner::{
    delay::{Delay, Prediction},
    queueing::Statistic,
};

use super::{
    expected_delay::ExpectedDelay,
    forecast::DelayForecast,
    input::{ExcessLoss, MeasuredDelay, PlannerInput},
};
use crate::target_monitor::TargetRatios;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// One for each of the configuration's applications.
    pub(crate) apps: Vec<AppAssignment>,
    pub(crate) optimal: bool,
    /// Moves that would make applications faster wait until more is known.
    pub(crate) defers_moves: bool,
    /// Sum of delays beyond the latency targets with tolerance.
    pub(crate) lateness: Duration,
    /// Sum of the forecasts' means; `None` if an application has none.
    pub(crate) delay_sum: Option<Duration>,
    /// How long planning took.
    pub(crate) took: Duration,
}

/// One application in a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AppAssignment {
    /// `None`: no path to its peer is up.
    pub(crate) path: Option<PathIndex>,
    pub(crate) by: AssignedBy,
    /// By eq. 3.
    pub(crate) prediction: Option<Prediction>,
    /// By the queueing model; `None`: no path.
    pub(crate) forecast: Option<DelayForecast>,
    /// The resulting expectation; `None`: no path.
    pub(crate) expected: Option<ExpectedDelay>,
    /// The latency target is met, as [`ExpectedDelay::met`]; `None`: no latency target or no path.
    pub(crate) met: Option<bool>,
    /// What the path loses of it, where that is more than it tolerates.
    pub(crate) excess_loss: Option<ExcessLoss>,
    /// On which terms its path is used.
    pub(crate) terms: PathTerms,
}

impl Plan {
    /// Applications whose latency target is not met, that are overloaded, or that lose more than they tolerate.
    pub(crate) fn unmet(&self) -> usize {
        self.apps.iter().filter(|app| app.is_unmet()).count()
    }

    /// The path of every application that has one.
    pub(crate) fn paths(&self) -> BTreeMap<AppIndex, PathIndex> {
        let place = |(number, app): (usize, &AppAssignment)| Some((AppIndex(number), app.path?));
        self.apps.iter().enumerate().filter_map(place).collect()
    }

    /// Whether an application is on a path that costs more than another one that is up because the cheapest ones take
    /// longer than its target by their delays alone.
    pub(crate) fn pays_for_target(
        &self,
        config: &Config,
        input: &PlannerInput,
        index: AppIndex,
    ) -> bool {
        let app = &config[index];
        let planned = self.apps.get(index.0).filter(|app| app.path.is_some());
        let (Some(planned), Some(target)) = (planned, app.latency_target) else {
            return false;
        };
        let to_peer = input.up.iter().filter(|((_, peer), _)| *peer == app.peer);
        let priced = to_peer.filter_map(|((path, peer), sample)| {
            let terms = input.terms(config, *path, *peer);
            let delay = sample.map(|sample| sample.delay).or(config[*path].delay);
            (!terms.is_spent).then(|| (terms.price(), delay.unwrap_or_default()))
        });
        // Of paths that cost the same, the one with the least delay.
        let cheapest = priced.min();
        cheapest.is_some_and(|(price, delay)| price < planned.terms.price() && delay > target)
    }

    /// How many applications it would move.
    pub(crate) fn changes(&self, now: &BTreeMap<AppIndex, PathIndex>) -> usize {
        let moves = |(number, app): &(usize, &AppAssignment)| {
            app.path.is_some() && app.path.as_ref() != now.get(&AppIndex(*number))
        };
        self.apps.iter().enumerate().filter(moves).count()
    }
}

impl AppAssignment {
    /// Delays relative to the latency target with tolerance, which is `limit` seconds.
    pub(crate) fn target_ratios(
        &self,
        measured: Option<&MeasuredDelay>,
        limit: f64,
    ) -> TargetRatios {
        let part = |seconds: f64| seconds / limit.max(f64::MIN_POSITIVE);
        let forecast = self.forecast.and_then(|forecast| match forecast.mean()? {
            Delay::Overloaded => Some(f64::INFINITY),
            Delay::Finite(_) => forecast.seconds(Statistic::P99),
        });
        let equation = self.prediction.map(|prediction| prediction.delay);
        TargetRatios {
            measured: measured.map(|measured| part(measured.p99.as_secs_f64())),
            forecast: forecast.map(part),
            equation: equation.map(|delay| {
                let mean = delay.finite();
                part(mean.map_or(f64::INFINITY, |mean| mean.as_secs_f64()))
            }),
        }
    }

    /// A statistic of the forecast in seconds; `None`: no forecast.
    pub(crate) fn forecast_seconds(&self, statistic: Statistic) -> Option<f64> {
        self.forecast?.seconds(statistic)
    }

    /// The delay of its path without any queue, in seconds; zero: not known.
    pub(crate) fn propagation_seconds(&self) -> f64 {
        let prediction = self.prediction.as_ref();
        prediction.map_or(0.0, |prediction| prediction.terms.propagation.as_secs_f64())
    }

    /// Eq. 3's mean in seconds; `None`: not finite.
    pub(crate) fn equation_seconds(&self) -> Option<f64> {
        let mean = self.prediction?.delay.finite()?;
        Some(mean.as_secs_f64())
    }

    /// Whether its latency target is missed on average, or its path is overloaded or loses more than it tolerates.
    pub(crate) fn is_unmet(&self) -> bool {
        self.met == Some(false)
            || self.excess_loss.is_some()
            || self.expected.is_some_and(|expected| expected.overloaded)
    }

    /// Whether its latency target is missed at the 99th percentile.
    pub(crate) fn is_unmet_at_p99(&self) -> bool {
        self.expected
            .is_some_and(|expected| expected.met_at_p99 == Some(false))
    }
}

/// An application without a path.
pub(super) const UNASSIGNED: AppAssignment = AppAssignment {
    path: None,
    by: AssignedBy::Unassigned,
    prediction: None,
    forecast: None,
    expected: None,
    met: None,
    excess_loss: None,
    terms: PathTerms::FREE,
};
