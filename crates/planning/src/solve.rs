//! Solves the problem of one peer, and describes the result or the present assignment by forecasts.

use std::{collections::BTreeSet, time::Duration};

use keiro_control::config::{AppIndex, PathIndex, PathTerms, Planner};
use keiro_planner::{
    delay::{Delay, Prediction},
    steer::PlanMode,
};
use keiro_units::Bandwidth;

use crate::{
    arrange::Placement,
    expected_delay::ExpectedDelay,
    forecast::{DelayForecast, ForecastState},
    forecasts::{ForecastResolution, Forecasts, members, members_by_path},
    input::{ExcessLoss, MeasuredDelay},
    peer_problem::{EQUATION, PeerProblem},
    plan::AppAssignment,
    refine::SearchResult,
};

/// A path for one application, with all else unchanged.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub path: PathIndex,
    pub prediction: Prediction,
    pub forecast: Option<DelayForecast>,
    pub expected: ExpectedDelay,
    /// Without a forecast: the measured delay, extrapolated to this path.
    pub extrapolated: Option<MeasuredDelay>,
    /// What the path loses of the application, where that is more than it tolerates.
    pub excess_loss: Option<ExcessLoss>,
    /// On which terms it is used.
    pub terms: PathTerms,
    /// Applications that would miss their latency target by the move, by eq. 3.
    pub newly_unmet: Vec<AppIndex>,
    /// The most that other applications may send there while the target holds by eq. 3; `None`: no
    /// target, or never.
    pub others_max: Option<Bandwidth>,
}

/// Up to so many applications the searching planners plan from scratch: within their budget they
/// still gain at that size.
const SEARCHED_APPS_MAX: usize = 300;

impl PeerProblem {
    /// Every path that is up for `app`, with forecasts.
    pub(crate) fn candidates(
        &self,
        app: AppIndex,
        forecast_state: &ForecastState,
    ) -> Vec<Candidate> {
        let Some((number, alternatives, assignment)) = self.alternatives(app) else {
            return Vec::new();
        };
        let spec = &self.app_specs[number];
        let mut forecasts = Forecasts::new(self, forecast_state);
        alternatives
            .into_iter()
            .filter(|alternative| self.reachable[number][alternative.path])
            .map(|alternative| {
                let mut moved = assignment.clone();
                moved[number] = alternative.path;
                let limit = spec
                    .latency_target
                    .map(|latency_target| self.tolerance.loosen(latency_target));
                let path = &self.path_specs[alternative.path];
                let prediction = alternative.prediction;
                let on_path = members(&moved, alternative.path);
                let shown = forecasts.shown(alternative.path, &on_path).iter();
                let mut shown = shown.zip(&on_path);
                let forecast =
                    shown.find_map(|(forecast, app)| (*app == number).then_some(*forecast));
                let measured = self.measured.get(&app).copied();
                let measured = measured.filter(|_| self.at[number] == Some(alternative.path));
                let has_forecast = forecast.is_some_and(|forecast| forecast.mean().is_some());
                let extrapolated = self.extrapolated(number, alternative.path, &prediction);
                Candidate {
                    path: self.paths[alternative.path],
                    forecast,
                    extrapolated: extrapolated.filter(|_| !has_forecast && self.is_refined()),
                    expected: ExpectedDelay::of(
                        &prediction,
                        forecast.as_ref(),
                        measured,
                        self.tolerance,
                    ),
                    excess_loss: self.excess_losses[number][alternative.path],
                    terms: self.terms[number][alternative.path],
                    newly_unmet: alternative
                        .newly_unmet
                        .iter()
                        .map(|n| self.apps[*n])
                        .collect(),
                    others_max: limit
                        .and_then(|limit| EQUATION.others_max(path, spec, limit))
                        .map(|max| max.saturating_add(self.others_on(alternative.path))),
                    prediction,
                }
            })
            .collect()
    }

    /// The assignment of a plan.
    pub(crate) fn assignment(
        &self,
        plan_mode: PlanMode,
        forecasts: &mut Forecasts<'_>,
        resolution: ForecastResolution,
    ) -> SearchResult {
        // Those searches know no costs, and go by delays alone.
        let searched = self.apps.len() <= SEARCHED_APPS_MAX && !self.has_prices();
        let now = || Placement::new(self, &self.at);
        let (mut assignment, optimal) = match plan_mode {
            _ if !self.searches() => self.solve(),
            PlanMode::FromScratch if searched => self.solve(),
            PlanMode::FromScratch => (self.arranged(&now(), plan_mode, &self.wire.apps), false),
            PlanMode::Revise => {
                let planner_specs = self.planner_specs(forecasts, resolution);
                (self.arranged(&now(), plan_mode, &planner_specs), false)
            }
        };
        // A planner that finds no feasible assignment may use a path that is not allowed.
        for (app, path) in assignment.iter_mut().enumerate() {
            let allowed = &self.allowed[app];
            if !allowed[*path] && !self.spare[app][*path] {
                *path = allowed.iter().position(|may| *may).unwrap_or(*path);
            }
        }
        if self.planner == Planner::Frugal {
            assignment = self.with_lower_delays(&assignment, plan_mode);
        }
        let refined = self.refined(assignment.clone(), plan_mode, forecasts, resolution);
        let cost_reduced = self.cost_reduced(refined.assignment, plan_mode, forecasts, resolution);
        SearchResult {
            optimal: optimal && cost_reduced == assignment,
            assignment: cost_reduced,
            ..refined
        }
    }

    /// Writes what `assignment` is into `apps`, one for each of the configuration's. Returns the sums of a plan.
    pub(crate) fn describe(
        &self,
        assignment: &[usize],
        forecasts: &mut Forecasts<'_>,
        apps: &mut [AppAssignment],
    ) -> (Duration, Option<Duration>) {
        let predictions = self.evaluate(assignment).predictions;
        let forecasts_of = self.forecasts_of(assignment, forecasts);
        let unchanged = self.unchanged(assignment);
        for index in &self.denied {
            apps[index.0].terms.is_spent = true;
        }
        let (mut lateness, mut delay_sum) = (Duration::ZERO, Some(Duration::ZERO));
        for (number, index) in self.apps.iter().enumerate() {
            let (prediction, forecast) = (predictions[number], forecasts_of[number]);
            let measured = self.measured.get(index).copied();
            let measured = measured.filter(|_| unchanged.contains(&assignment[number]));
            let expected =
                ExpectedDelay::of(&prediction, forecast.as_ref(), measured, self.tolerance);
            let mean = expected.predicted.and_then(Delay::finite);
            lateness = lateness.saturating_add(expected.lateness);
            delay_sum = delay_sum
                .zip(mean)
                .map(|(sum, mean)| sum.saturating_add(mean));
            apps[index.0] = AppAssignment {
                path: Some(self.paths[assignment[number]]),
                by: self.by[number],
                prediction: Some(prediction),
                forecast,
                expected: Some(expected),
                met: expected.met,
                excess_loss: self.excess_losses[number][assignment[number]],
                terms: self.terms[number][assignment[number]],
            };
        }
        (lateness, delay_sum)
    }

    fn forecasts_of(
        &self,
        assignment: &[usize],
        forecasts: &mut Forecasts<'_>,
    ) -> Vec<Option<DelayForecast>> {
        let mut all = vec![None; assignment.len()];
        let by_path = members_by_path(assignment, self.paths.len());
        for (path, members) in by_path.into_iter().enumerate() {
            for (app, forecast) in members.iter().zip(forecasts.shown(path, &members)) {
                all[*app] = Some(*forecast);
            }
        }
        all
    }

    /// The paths whose applications `assignment` leaves unchanged: measurements there hold.
    fn unchanged(&self, assignment: &[usize]) -> BTreeSet<usize> {
        let mut unchanged: BTreeSet<usize> = (0..self.paths.len()).collect();
        for (at, path) in self.at.iter().zip(assignment) {
            if *at != Some(*path) {
                unchanged.retain(|other| other != path && Some(*other) != *at);
            }
        }
        unchanged
    }
}
