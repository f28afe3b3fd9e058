//! A plan: which application takes which path, and what delay is expected there.

use std::{collections::BTreeMap, time::Duration};

use keiro_control::{
    config::{AppIndex, PathIndex, PathTerms},
    protocol::AssignedBy,
};
use keiro_planner::{delay::Prediction, queueing::Statistic};

use crate::{
    config::PlannerConfig,
    expected_delay::ExpectedDelay,
    forecast::DelayForecast,
    input::{ExcessLoss, PlannerInput},
};

#[derive(Clone, Debug)]
pub struct Plan {
    /// One for each of the configuration's applications.
    pub apps: Vec<AppAssignment>,
    pub optimal: bool,
    /// Moves that would make applications faster wait until more is known.
    pub defers_moves: bool,
    /// Sum of delays beyond the latency targets with tolerance.
    pub lateness: Duration,
    /// Sum of the forecasts' means; `None` if an application has none.
    pub delay_sum: Option<Duration>,
    /// How long planning took, as its caller measured it.
    pub took: Duration,
}

/// One application in a plan.
#[derive(Clone, Copy, Debug)]
pub struct AppAssignment {
    /// `None`: no path to its peer is up.
    pub path: Option<PathIndex>,
    pub by: AssignedBy,
    /// By eq. 3.
    pub prediction: Option<Prediction>,
    /// By the queueing model; `None`: no path.
    pub forecast: Option<DelayForecast>,
    /// The resulting expectation; `None`: no path.
    pub expected: Option<ExpectedDelay>,
    /// The latency target is met, as [`ExpectedDelay::met`]; `None`: no latency target or no path.
    pub met: Option<bool>,
    /// What the path loses of it, where that is more than it tolerates.
    pub excess_loss: Option<ExcessLoss>,
    /// On which terms its path is used.
    pub terms: PathTerms,
}

impl Plan {
    /// Applications whose latency target is not met, that are overloaded, or that lose more than they tolerate.
    pub fn unmet(&self) -> usize {
        self.apps.iter().filter(|app| app.is_unmet()).count()
    }

    /// The path of every application that has one.
    pub fn paths(&self) -> BTreeMap<AppIndex, PathIndex> {
        let place = |(number, app): (usize, &AppAssignment)| Some((AppIndex(number), app.path?));
        self.apps.iter().enumerate().filter_map(place).collect()
    }

    /// Whether an application is on a path that costs more than others that are up, for what spreading over the
    /// cheapest ones does not mend: these take longer than its target by their delays alone, there is only one to take
    /// what is too much for it, or all of them lose more than it tolerates.
    pub fn pays_for_target(
        &self,
        config: &PlannerConfig,
        input: &PlannerInput,
        index: AppIndex,
    ) -> bool {
        let app = &config[index];
        let Some(planned) = self.apps.get(index.0).filter(|app| app.path.is_some()) else {
            return false;
        };
        let to_peer = input.up.iter().filter(|((_, peer), _)| *peer == app.peer);
        let priced = to_peer.filter_map(|((path, peer), sample)| {
            let terms = input.terms(config[*path].terms(), *path, *peer);
            let delay = sample.map(|sample| sample.delay).or(config[*path].delay);
            let loses = input.excess_loss(index, *path).is_some();
            (!terms.is_spent).then(|| (terms.price(), delay.unwrap_or_default(), loses))
        });
        let priced: Vec<_> = priced.collect();
        // Of paths that cost the same, the one with the least delay.
        let Some(&(price, delay, _)) = priced.iter().min() else {
            return false;
        };
        let mut cheapest = priced.iter().filter(|(its, ..)| *its == price);
        price < planned.terms.price()
            && (app.latency_target.is_some_and(|target| delay > target)
                || cheapest.clone().count() < 2
                || cheapest.all(|(.., loses)| *loses))
    }

    /// How many applications it would move.
    pub fn changes(&self, now: &BTreeMap<AppIndex, PathIndex>) -> usize {
        let moves = |(number, app): &(usize, &AppAssignment)| {
            app.path.is_some() && app.path.as_ref() != now.get(&AppIndex(*number))
        };
        self.apps.iter().enumerate().filter(moves).count()
    }
}

impl AppAssignment {
    /// A statistic of the forecast in seconds; `None`: no forecast.
    pub fn forecast_seconds(&self, statistic: Statistic) -> Option<f64> {
        self.forecast?.seconds(statistic)
    }

    /// The delay of its path without any queue, in seconds; zero: not known.
    pub fn propagation_seconds(&self) -> f64 {
        let prediction = self.prediction.as_ref();
        prediction.map_or(0.0, |prediction| prediction.terms.propagation.as_secs_f64())
    }

    /// Eq. 3's mean in seconds; `None`: not finite.
    pub fn equation_seconds(&self) -> Option<f64> {
        let mean = self.prediction?.delay.finite()?;
        Some(mean.as_secs_f64())
    }

    /// Whether its latency target is missed on average, or its path is overloaded or loses more than it tolerates.
    pub fn is_unmet(&self) -> bool {
        self.met == Some(false)
            || self.excess_loss.is_some()
            || self.expected.is_some_and(|expected| expected.overloaded)
    }

    /// Whether its latency target is missed at the 99th percentile.
    pub fn is_unmet_at_p99(&self) -> bool {
        self.expected
            .is_some_and(|expected| expected.met_at_p99 == Some(false))
    }
}

/// An application without a path.
pub(crate) const UNASSIGNED: AppAssignment = AppAssignment {
    path: None,
    by: AssignedBy::Unassigned,
    prediction: None,
    forecast: None,
    expected: None,
    met: None,
    excess_loss: None,
    terms: PathTerms::FREE,
};
