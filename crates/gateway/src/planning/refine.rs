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

use std::collections::BTreeSet;

use keiro_control::config::Scheduler;
use keiro_planner::{delay::AppSpec, plan::Review, queueing::Spread, steer::PlanMode};

use super::{
    forecast::Sender,
    forecasts::{ForecastResolution, Forecasts, search_resolution},
    problem::PlanningProblem,
};

/// Where every application of a problem goes.
#[derive(Clone, Debug)]
pub(super) struct SearchResult {
    pub(super) assignment: Vec<usize>,
    /// Proven best by eq. 3.
    pub(super) optimal: bool,
    /// As [`Plan::defers_moves`].
    pub(super) defers_moves: bool,
}

/// How much is asked in one search, for each set the square of those in it. Ours: a tenth of a second
/// or two.
const WORK_MAX_DEADLINE: u64 = 15_000;
const WORK_MAX_FIFO: u64 = 300_000;
/// By deadline, applications whose messages vary in length are so much more work.
const VARYING_WORK: u64 = 16;
/// Up to so many applications whatever a search finds is looked at closely.
const FINE_APPS_MAX: usize = 8;
/// The search asks coarsely, and may be some per cent off: demands are held so much tighter where it
/// was too content, or wider where it was not, and a closer look decides.
const TIGHTER: f64 = 0.95;
const WIDER: f64 = 1.05;
/// Searches at most.
const TRIES: usize = 3;

impl PlanningProblem {
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
    ) -> SearchResult {
        let assigned = |assignment, defers_moves| SearchResult {
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
                forecasts.opinion(
                    (path, members),
                    search_resolution(self.apps.len()),
                    latency_targets,
                )
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

#[cfg(test)]
mod tests;
