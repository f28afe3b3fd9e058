//! The smallest changes at which an application would move.

use keiro_control::config::{AppIndex, PathIndex};
use keiro_planner::{
    plan::incumbent::{Parameter, ParameterValue, PathId},
    steer::{PlanMode, placed_incumbent},
};

use crate::{
    arrange::{Placement, app_id},
    forecast::ForecastState,
    forecasts::{ForecastResolution, Forecasts, members},
    peer_problem::PeerProblem,
};

/// A change at which an application would move.
#[derive(Clone, Copy, Debug)]
pub struct MoveTrigger {
    /// The path whose delay or rate changes; `None`: the application's latency target changes.
    pub path: Option<PathIndex>,
    pub now: ParameterValue,
    pub at: ParameterValue,
    pub to: PathIndex,
}

impl PeerProblem {
    /// The smallest single changes at which `app` would move: of its own path, of the best other
    /// path, of its latency target. A change of nothing if the next plan moves it as it is.
    pub(crate) fn thresholds(
        &self,
        app: AppIndex,
        forecast_state: &ForecastState,
    ) -> Vec<MoveTrigger> {
        if !self.searches() {
            return Vec::new();
        }
        let mut forecasts = Forecasts::new(self, forecast_state);
        let planner_specs = self.planner_specs(&mut forecasts, ForecastResolution::Coarse);
        let number = self.apps.iter().position(|index| *index == app);
        let steered_apps = self.steered_apps(&Placement::new(self, &self.at), &planner_specs);
        let incumbent = placed_incumbent(self.settings(), &self.named_paths(), &steered_apps);
        let (Some(number), Ok(incumbent)) = (number, incumbent) else {
            return Vec::new();
        };
        let latency_target = self.app_specs[number].latency_target;
        // As `keiro plan` and the gateway itself plan.
        let planned = self.assignment(PlanMode::Revise, &mut forecasts, ForecastResolution::Fine);
        let planned = planned.assignment;
        if self.at[number].is_some_and(|at| at != planned[number]) {
            let now = ParameterValue::Time(latency_target.unwrap_or_default());
            return vec![MoveTrigger {
                path: None,
                now,
                at: now,
                to: self.paths[planned[number]],
            }];
        }
        // Then the plan goes by its measured delay, whose change with a parameter is not known.
        if self.goes_by_measurement(number, &mut forecasts) {
            return Vec::new();
        }
        let own = incumbent.path_of(app_id(number));
        let other = incumbent.next_best(app_id(number)).map(|best| best.path);
        let of_path = |path: PathId| [Parameter::PathDelay(path), Parameter::PathBandwidth(path)];
        let parameters = own.into_iter().chain(other).flat_map(of_path);
        let threshold = |parameter: Parameter| {
            let found = incumbent.threshold(app_id(number), parameter)?;
            // The planner would move it, but refinement moves it back.
            if found.now == found.at {
                return None;
            }
            let path_of = |path: PathId| self.paths.get(path.0 as usize).copied();
            let setting = |setting: ParameterValue| match (parameter, setting) {
                (Parameter::PathBandwidth(path), ParameterValue::Rate(rate)) => {
                    ParameterValue::Rate(self.whole_rate(path.0 as usize, rate))
                }
                _ => setting,
            };
            let (mut now, at) = (setting(found.now), setting(found.at));
            if let (Parameter::LatencyTarget, Some(latency_target)) = (parameter, latency_target) {
                // The configured target, not the relaxed one that the planner got.
                now = ParameterValue::Time(latency_target);
                match at {
                    ParameterValue::Time(at) if at < latency_target => {}
                    _ => return None,
                }
            }
            Some(MoveTrigger {
                path: match parameter {
                    Parameter::PathDelay(path) | Parameter::PathBandwidth(path) => {
                        Some(path_of(path)?)
                    }
                    Parameter::LatencyTarget => None,
                },
                now,
                at,
                to: path_of(found.to)?,
            })
        };
        parameters
            .chain([Parameter::LatencyTarget])
            .filter_map(threshold)
            .collect()
    }
    /// Whether an application with a latency target has no forecast, so that its measured delay
    /// decides where it goes.
    fn goes_by_measurement(&self, app: usize, forecasts: &mut Forecasts<'_>) -> bool {
        let Some(path) = self.at[app].filter(|_| self.is_refined()) else {
            return false;
        };
        let on_path = members(&self.current_assignment(), path);
        let forecasts_of = forecasts.shown(path, &on_path).iter().zip(&on_path);
        let mut own = forecasts_of.filter(|(_, other)| **other == app);
        self.app_specs[app].latency_target.is_some()
            && self.measured.contains_key(&self.apps[app])
            && own.all(|(forecast, _)| forecast.mean().is_none())
    }
}
