//! Plans held against the forecast, and repaired where it says that a latency target is unmet.
//!
//! The planner goes by eq. 3 on what is on the wire, which knows loads, but neither queues nor
//! deadlines; whether a latency target is met is told by the forecast. So the forecast is asked about the
//! planner's answer. Where it leaves somebody unmet, [`keiro_planner::plan::Review`] looks for an
//! assignment that leaves fewer, by coarse forecasts; what it finds is taken if it is better by the
//! forecast that is shown.
//!
//! A demand that is met on average but not at the 99th percentile comes after all that are not met on
//! average. Forecasts of 99th percentiles may be a fifth off, and few messages tell little of them: for
//! one of these nobody moves but from where measurement and forecast find it missed to where the
//! forecast finds it met by more than its error.
//!
//! The paper's own algorithm (`planner = "greedy"`) is left as it is.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_control::config::Scheduler;
use keiro_planner::{
    delay::{AppSpec, Prediction, competing_rate},
    plan::{Review, ReviewScore},
    queueing::{Resolution, Spread, Statistic},
    steer::PlanMode,
};

use crate::target_monitor::FORECAST_ERROR;

use super::{
    ExpectedDelay, MeasuredDelay,
    forecast::{DelayForecast, ForecastState, Sender, forecasts_of, resolution},
    problem::{Assigned, EQUATION, PlanningProblem},
};

/// How closely a plan is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForecastResolution {
    /// By the forecast that is shown.
    Fine,
    /// By a forecast that takes a tenth of the time of that.
    Medium,
    /// By coarse forecasts: many plans are to be made.
    Coarse,
}

/// What the queueing model says, each problem asked once.
pub(super) struct Forecasts<'a> {
    problem: &'a PlanningProblem,
    forecast_state: &'a ForecastState,
    known: BTreeMap<(Resolution, usize, Vec<usize>), Vec<DelayForecast>>,
}

/// More applications than this are not refined: what one forecast costs grows with the square of
/// those on the path.
const REFINED_APPS_MAX: usize = 64;
/// How much is asked in one search, for each set the square of those in it. Ours: a tenth of a second
/// or two.
const WORK_MAX_DEADLINE: u64 = 15_000;
const WORK_MAX_FIFO: u64 = 300_000;
/// By deadline, applications whose messages vary in length are so much more work.
const VARYING_WORK: u64 = 16;
/// Up to so many applications whatever a search finds is looked at closely.
const FINE_APPS_MAX: usize = 8;
const MEDIUM: Resolution = Resolution::new(512);
/// The search asks coarsely, and may be some per cent off: demands are held so much tighter where it
/// was too content, or wider where it was not, and a closer look decides.
const TIGHTER: f64 = 0.95;
const WIDER: f64 = 1.05;
/// Searches at most.
const TRIES: usize = 3;

impl<'a> Forecasts<'a> {
    pub(super) fn new(problem: &'a PlanningProblem, forecast_state: &'a ForecastState) -> Self {
        Self {
            problem,
            forecast_state,
            known: BTreeMap::new(),
        }
    }

    /// For `members` (ascending) when exactly they share `path`, as they are shown.
    pub(super) fn shown(&mut self, path: usize, members: &[usize]) -> &[DelayForecast] {
        self.of(path, members, resolution(members.len()))
    }

    fn of(&mut self, path: usize, members: &[usize], resolution: Resolution) -> &[DelayForecast] {
        let (problem, forecast_state) = (self.problem, self.forecast_state);
        if members.is_empty() {
            return &[];
        }
        let key = (resolution, path, members.to_vec());
        self.known.entry(key).or_insert_with(|| {
            let senders: Vec<_> = members.iter().map(|app| problem.senders[*app]).collect();
            let line = problem.line(path);
            forecasts_of(
                problem.scheduler,
                &line,
                &senders,
                forecast_state,
                resolution,
            )
        })
    }

    /// What is to be thought of `members` on `path`, each, demands being `tighter` than they are; and
    /// whether that is unmet at the 99th percentile for no other reason than that it has no number.
    fn opinions(
        &mut self,
        (path, members): (usize, &[usize]),
        resolution: Resolution,
        tighter: f64,
    ) -> Vec<(ReviewScore, bool)> {
        let problem = self.problem;
        // Nobody has come: what was measured there is at least as good as it was.
        let came = |app: &usize| problem.at[*app] != Some(path);
        let nobody_came = !members.iter().any(came);
        let forecasts_of = self.of(path, members, resolution);
        let opinion = |(app, forecast): (&usize, &DelayForecast)| {
            let spec = &problem.app_specs[*app];
            let latency_target = spec
                .latency_target
                .map(|latency_target| latency_target.mul_f64(tighter));
            let others = competing_rate(&problem.app_specs, members, *app);
            let spec = AppSpec {
                latency_target,
                ..*spec
            };
            let prediction = EQUATION.predict(&problem.path_specs[path], &spec, others);
            let of = |measured| {
                ExpectedDelay::of(&prediction, Some(forecast), measured, problem.tolerance)
            };
            let index = problem.apps[*app];
            let measured = problem.measured.get(&index).filter(|_| nobody_came);
            let extrapolated = match forecast.mean() {
                Some(_) => None,
                None => problem.extrapolated(*app, path, &prediction),
            };
            // Who is seen to get what it demands is not moved by a forecast that says otherwise. Nor
            // does a forecast help whom it finds met where that is not so. Who has none gets elsewhere
            // what it gets here.
            let seen = measured.map(|measured| of(Some(*measured)));
            let expected = seen
                .filter(|seen| seen.met == Some(true) || extrapolated.is_some())
                .unwrap_or_else(|| of(extrapolated));
            let limit = latency_target
                .map(|latency_target| problem.tolerance.loosen(latency_target).as_secs_f64());
            let tail = P99Check {
                forecast: forecast
                    .seconds(Statistic::P99)
                    .or(extrapolated.map(|delay| delay.p99.as_secs_f64()))
                    .zip(limit),
                is_met: seen.and_then(|seen| seen.met_at_p99),
                stays: problem.at[*app].map(|_| nobody_came),
                is_blind: members.iter().any(|other| {
                    // Whom those that are there have beside them already they are measured with.
                    let counts = nobody_came || came(app) || came(other);
                    other != app && counts && problem.little_known.contains(other)
                }),
            };
            let is_unmet = expected.met == Some(false) || expected.overloaded;
            let mean = expected.predicted.unwrap_or(prediction.delay);
            let is_unmet_at_p99 = !is_unmet && latency_target.is_some() && tail.is_unmet();
            let opinion = ReviewScore {
                unmet: usize::from(is_unmet),
                overloaded: usize::from(expected.overloaded),
                unmet_at_p99: usize::from(is_unmet_at_p99),
                lateness: expected.lateness,
                delay: mean.finite().unwrap_or_default(),
            };
            (opinion, is_unmet_at_p99 && tail.forecast.is_none())
        };
        members.iter().zip(forecasts_of).map(opinion).collect()
    }

    fn opinion(
        &mut self,
        on_path: (usize, &[usize]),
        resolution: Resolution,
        tighter: f64,
    ) -> ReviewScore {
        let all = self.opinions(on_path, resolution, tighter);
        all.into_iter()
            .map(|(opinion, _)| opinion)
            .fold(ReviewScore::default(), ReviewScore::saturating_add)
    }

    /// Whom `look` finds unmet where `assignment` has them, and how many of them overloaded.
    pub(super) fn violations(
        &mut self,
        assignment: &[usize],
        look: ForecastResolution,
    ) -> Violations {
        let mut violations = Violations::default();
        for path in 0..self.problem.paths.len() {
            let members = members(assignment, path);
            let resolution = match look {
                ForecastResolution::Fine => resolution(members.len()),
                ForecastResolution::Medium => MEDIUM.min(resolution(members.len())),
                ForecastResolution::Coarse => searched(assignment.len()),
            };
            let all = self.opinions((path, &members), resolution, 1.0);
            for (app, (opinion, is_doubt)) in members.into_iter().zip(all) {
                if opinion.unmet > 0 {
                    violations.unmet.insert(app);
                }
                if is_doubt {
                    violations.doubts.insert(app);
                }
                violations.all = violations.all.saturating_add(opinion);
            }
        }
        violations
    }
}

/// What an opinion finds wrong with a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Violations {
    pub(super) unmet: BTreeSet<usize>,
    /// Of whom nothing is known by which the 99th percentile could be told, and who count for that.
    pub(super) doubts: BTreeSet<usize>,
    pub(super) all: ReviewScore,
}

/// What is known of an application's 99th percentile on a path, for one that demands something.
struct P99Check {
    /// What is forecast and what is allowed, in seconds.
    forecast: Option<(f64, f64)>,
    /// It is measured to be met there.
    is_met: Option<bool>,
    /// It is there and nobody comes; `None`: it is nowhere yet.
    stays: Option<bool>,
    /// Somebody is on the path of whom the forecast does not know what he sends.
    is_blind: bool,
}

impl P99Check {
    /// Whether that is a reason to be elsewhere, or not to go there.
    fn is_unmet(&self) -> bool {
        let part = self.forecast.map(|(seconds, limit)| seconds / limit);
        let is_sure =
            !self.is_blind && part.is_some_and(|part| part * (1.0 + FORECAST_ERROR) <= 1.0);
        match (self.stays, self.is_met) {
            (Some(true), Some(is_met)) => !is_met && !is_sure,
            (Some(true), None) => part.is_some_and(|part| part > 1.0 + FORECAST_ERROR),
            (Some(false), _) => !is_sure,
            (None, _) => part.is_none_or(|part| part > 1.0),
        }
    }
}

impl PlanningProblem {
    /// What an application of which nothing can be forecast would get on `path` by what was measured
    /// where it is: that path's delay, and what it takes beyond the delay where it is, as much
    /// quicker as the path is; but no less than eq. 3 says. Elsewhere a fifth more, so that it moves
    /// for what is surely better.
    pub(super) fn extrapolated(
        &self,
        app: usize,
        path: usize,
        prediction: &Prediction,
    ) -> Option<MeasuredDelay> {
        let at = self.at[app]?;
        let measured = *self.measured.get(&self.apps[app])?;
        if at == path {
            return Some(measured);
        }
        let [here, there] = [at, path].map(|path| self.path_specs[path]);
        let slower = here.bandwidth.ratio_of(there.bandwidth)?;
        let least = prediction.delay.finite()?;
        let elsewhere = |delay: Duration| {
            let beyond = delay.saturating_sub(here.delay).mul_f64(slower);
            (there.delay + beyond)
                .max(least)
                .mul_f64(1.0 + FORECAST_ERROR)
        };
        Some(MeasuredDelay {
            mean: elsewhere(measured.mean),
            p99: elsewhere(measured.p99),
        })
    }

    /// Whether the forecast has a say in the plan.
    pub(super) fn is_refined(&self) -> bool {
        self.searches() && self.apps.len() <= REFINED_APPS_MAX
    }

    /// What the planner is told of the applications, as they are on the wire. Whose demand the
    /// forecast finds met where the application is demands of eq. 3 no more than that says there:
    /// else it would move for nothing, and be moved back.
    pub(super) fn planner_specs(
        &self,
        forecasts: &mut Forecasts<'_>,
        look: ForecastResolution,
    ) -> Vec<AppSpec> {
        let mut specs = self.wire.apps.clone();
        let (true, Some(in_force)) = (self.is_refined(), self.in_force()) else {
            return specs;
        };
        let by_equation = self.evaluate_on_wire(&in_force);
        if by_equation.unmet.is_empty() {
            return specs;
        }
        let violations = forecasts.violations(&in_force, look);
        for app in by_equation.unmet {
            let delay = by_equation.predictions[app].delay.finite();
            if let (Some(delay), false) = (delay, violations.unmet.contains(&app)) {
                specs[app].latency_target = specs[app]
                    .latency_target
                    .map(|latency_target| latency_target.max(delay));
            }
        }
        specs
    }

    /// The planner's answer, or what is better by the forecast: fewer unmet, or as many and fewer
    /// of them overloaded, or fewer at their 99th percentile and nobody later.
    pub(super) fn refined(
        &self,
        planned: Vec<usize>,
        plan_mode: PlanMode,
        forecasts: &mut Forecasts<'_>,
        look: ForecastResolution,
    ) -> Assigned {
        let assigned = |assignment, defers_moves| Assigned {
            assignment,
            optimal: true,
            defers_moves,
        };
        if !self.is_refined() {
            return assigned(planned, false);
        }
        let shown = forecasts.violations(&planned, look).all;
        if shown.all_met() {
            return assigned(planned, false);
        }
        let is_cheap = self.scheduler == Scheduler::Fifo || self.apps.len() <= FINE_APPS_MAX;
        let meanwhile = match look {
            ForecastResolution::Fine if !is_cheap => ForecastResolution::Medium,
            look => look,
        };
        let found = self.repaired(&planned, plan_mode, forecasts, meanwhile);
        // What was found by less than what is shown has to hold by that too.
        let holds = found == planned
            || meanwhile == look
            || forecasts.violations(&found, look).all.beats(&shown);
        match (holds && found != planned, plan_mode) {
            (true, PlanMode::Revise) => {
                let (found, defers_moves) =
                    self.with_improvements(found, forecasts, [meanwhile, look]);
                assigned(found, defers_moves)
            }
            (true, PlanMode::FromScratch) => assigned(found, false),
            (false, _) => assigned(planned, false),
        }
    }

    /// What is better than `planned`, which leaves somebody in violations, as `look` finds; itself if
    /// nothing is.
    fn repaired(
        &self,
        planned: &[usize],
        plan_mode: PlanMode,
        forecasts: &mut Forecasts<'_>,
        look: ForecastResolution,
    ) -> Vec<usize> {
        let violations = forecasts.violations(planned, look);
        let may = self.with_spares(planned, &violations.unmet);
        let mut least = violations.all;
        let in_force = self.in_force().filter(|_| plan_mode == PlanMode::Revise);
        let mut kept = planned.to_vec();
        if let Some(in_force) = &in_force {
            let opinion = forecasts.violations(in_force, look).all;
            if opinion.beats(&least) {
                (least, kept) = (opinion, in_force.clone());
            }
        }
        // Nobody moves for whom it makes no difference.
        let home = in_force.clone().unwrap_or_else(|| planned.to_vec());
        let starts: Vec<&[usize]> = match &in_force {
            Some(in_force) if *in_force == kept => vec![in_force, planned],
            Some(in_force) => vec![planned, in_force],
            None => vec![planned],
        };
        // For a 99th percentile alone one is enough.
        let tries = if least.unmet > 0 { TRIES } else { 1 };
        let (mut latency_targets, mut tries) = (1.0, 0..tries);
        while !least.all_met() && tries.next().is_some() {
            let mut review = Review::new(&may, self.work_max(), |path, members| {
                forecasts.opinion((path, members), searched(self.apps.len()), latency_targets)
            });
            let Some(repaired) = review.improve(&starts, &home) else {
                latency_targets *= WIDER;
                continue;
            };
            let opinion = forecasts.violations(&repaired.assignment, look).all;
            latency_targets *= match opinion.unmet > repaired.score.unmet {
                true => TIGHTER,
                false => WIDER,
            };
            if opinion.beats(&least) {
                (least, kept) = (opinion, repaired.assignment);
            }
        }
        kept
    }

    /// Who may be where, with spare paths for those that are `unmet` where `planned` has them, or that
    /// are there.
    fn with_spares(&self, planned: &[usize], unmet: &BTreeSet<usize>) -> Vec<Vec<bool>> {
        let mut may = self.allowed.clone();
        for (app, may) in may.iter_mut().enumerate() {
            may[planned[app]] = true;
            if unmet.contains(&app) {
                may.iter_mut()
                    .zip(&self.spare[app])
                    .for_each(|(may, spare)| *may |= spare);
            }
        }
        may
    }

    /// Where everybody is, if everybody is where they may be.
    fn in_force(&self) -> Option<Vec<usize>> {
        let places = self.at.iter().zip(&self.allowed);
        places
            .map(|(at, allowed)| at.filter(|path| allowed[*path]))
            .collect()
    }

    fn work_max(&self) -> u64 {
        let varies = |sender: &Sender| sender.traffic.length_spread != Spread::NONE;
        match self.scheduler {
            Scheduler::Fifo => WORK_MAX_FIFO,
            Scheduler::Deadline if self.senders.iter().any(varies) => {
                WORK_MAX_DEADLINE / VARYING_WORK
            }
            Scheduler::Deadline => WORK_MAX_DEADLINE,
        }
    }
}

/// How coarsely a search asks, with so many applications; what it finds is looked at more closely.
const fn searched(apps: usize) -> Resolution {
    match apps {
        ..=8 => Resolution::COARSE,
        9..=24 => Resolution::new(128),
        _ => Resolution::new(64),
    }
}

/// Who is on `path`, ascending.
pub(super) fn members(assignment: &[usize], path: usize) -> Vec<usize> {
    let on_path = |app: &usize| assignment[*app] == path;
    (0..assignment.len()).filter(on_path).collect()
}

#[cfg(test)]
mod tests;
