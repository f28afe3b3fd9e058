//! Refines the planner's answer by forecasts where it leaves a latency target unmet.
//!
//! The planner uses eq. 3 on wire sizes, which knows loads but neither queues nor deadlines. Where
//! the forecast finds a target unmet in its answer, a [`search`](crate::search) by estimates looks
//! for an assignment that leaves fewer unmet, at any number of applications. What few applications
//! still miss, and what is missed at the 99th percentile only, [`keiro_planner::plan::ModelSearch`]
//! works on by coarse forecasts. A result is adopted if finer forecasts confirm it.
//!
//! A target that is met on average but not at the 99th percentile ranks after all that are missed
//! on average. Forecasts of 99th percentiles may be off by a fifth and few messages say little
//! about them. So for the percentile alone an application moves only from a path where measurement
//! and forecast find it missed to one where the forecast finds it met by more than its error.

use std::collections::BTreeSet;

use keiro_control::config::Scheduler;
use keiro_planner::{
    delay::AppSpec,
    plan::{ModelScore, ModelSearch},
    queueing::{Resolution, Spread},
    steer::PlanMode,
};

use crate::{
    forecast::Sender,
    forecasts::{ForecastResolution, Forecasts},
    peer_problem::PeerProblem,
};

/// The assignment that a search ended with.
#[derive(Clone, Debug)]
pub(crate) struct SearchResult {
    pub(crate) assignment: Vec<usize>,
    /// Proven best by eq. 3.
    pub(crate) optimal: bool,
    /// As [`Plan::defers_moves`].
    pub(crate) defers_moves: bool,
}

/// Work of one search; each set of applications costs the square of its size. Ours: a tenth of a
/// second or two.
const WORK_MAX_DEADLINE: u64 = 15_000;
const WORK_MAX_FIFO: u64 = 300_000;
/// With deadlines, applications of varying length cost so much more.
const VARYING_WORK: u64 = 16;
/// Up to so many applications every result of a search is checked finely.
const FINE_APPS_MAX: usize = 8;
/// Coarse forecasts may be off by some per cent. Targets are tightened where the search was too
/// optimistic and widened where it was too pessimistic; finer forecasts decide.
const TIGHTER: f64 = 0.95;
const WIDER: f64 = 1.05;
/// Up to so many applications, forecasts are asked about every set near the answer.
pub(crate) const REVIEWED_APPS_MAX: usize = 16;
/// Among more, so many move at most because of their 99th percentiles in one plan.
const MOVED_FOR_TAILS_MAX: usize = 8;
/// And so much less work is done for it.
const TAILS_WORK_PART: u64 = 8;
/// Maximum number of searches.
const TRIES: usize = 3;

impl PeerProblem {
    /// The applications' specifications for the planner, in wire sizes. Where the forecast finds a
    /// target met on the present path but eq. 3 does not, the target is relaxed to eq. 3's delay
    /// there: otherwise the application would move for nothing and be moved back.
    pub(crate) fn planner_specs(
        &self,
        forecasts: &mut Forecasts<'_>,
        resolution: ForecastResolution,
    ) -> Vec<AppSpec> {
        let mut specs = self.wire.apps.clone();
        let (true, Some(in_force)) = (self.is_refined(), self.in_force()) else {
            return specs;
        };
        let by_equation = self.evaluate_on_wire(&in_force);
        if by_equation.unmet.is_empty() {
            return specs;
        }
        let violations = forecasts.violations(&in_force, resolution);
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

    /// The planner's answer, or a better assignment by forecast: one that leaves fewer targets
    /// unmet, or equally many with fewer applications overloaded, or fewer unmet at their 99th
    /// percentile without more lateness.
    pub(crate) fn refined(
        &self,
        planned: Vec<usize>,
        plan_mode: PlanMode,
        forecasts: &mut Forecasts<'_>,
        resolution: ForecastResolution,
    ) -> SearchResult {
        let assigned = |assignment, defers_moves| SearchResult {
            assignment,
            optimal: true,
            defers_moves,
        };
        if !self.is_refined() {
            return assigned(planned, false);
        }
        let shown = forecasts.violations(&planned, resolution).all;
        if shown.all_met() {
            return assigned(planned, false);
        }
        let search_resolution = self.search_resolution(resolution);
        let mut found = planned.clone();
        if shown.unmet > 0 {
            found = self.improved_by_search(
                &planned,
                plan_mode,
                forecasts,
                [search_resolution, resolution],
            );
        }
        if self.is_reviewed(plan_mode, &forecasts.violations(&found, resolution).all) {
            let repaired = self.repaired(&found, plan_mode, forecasts, search_resolution);
            // What a medium resolution found must also hold at the resolution that is shown.
            let is_better = |forecasts: &mut Forecasts<'_>| {
                let before = forecasts.violations(&found, resolution).all;
                forecasts
                    .violations(&repaired, resolution)
                    .all
                    .beats(&before)
            };
            if repaired != found && is_better(forecasts) {
                found = repaired;
            }
        }
        match (found != planned, plan_mode) {
            (true, PlanMode::Revise) => {
                let (found, defers_moves) =
                    self.with_improvements(found, forecasts, [search_resolution, resolution]);
                assigned(found, defers_moves)
            }
            (true, PlanMode::FromScratch) => assigned(found, false),
            (false, _) => assigned(planned, false),
        }
    }

    /// The resolution of forecasts that are asked about many plans, before one is asked for at `resolution`.
    pub(crate) fn search_resolution(&self, resolution: ForecastResolution) -> ForecastResolution {
        let is_cheap = self.scheduler == Scheduler::Fifo || self.apps.len() <= FINE_APPS_MAX;
        match resolution {
            ForecastResolution::Fine if !is_cheap => ForecastResolution::Medium,
            other => other,
        }
    }

    /// Whether what is left unmet is worth asking for forecasts of many sets of applications: all of
    /// it where there are few applications, else what is missed at the 99th percentile only.
    fn is_reviewed(&self, plan_mode: PlanMode, left: &ModelScore) -> bool {
        let is_tail_only = left.unmet == 0 && plan_mode == PlanMode::Revise;
        !left.all_met() && (self.apps.len() <= REVIEWED_APPS_MAX || is_tail_only)
    }

    /// A better assignment than `planned`, which has violations, by forecasts of `resolution`; `planned` itself if there
    /// is none.
    fn repaired(
        &self,
        planned: &[usize],
        plan_mode: PlanMode,
        forecasts: &mut Forecasts<'_>,
        resolution: ForecastResolution,
    ) -> Vec<usize> {
        let violations = forecasts.violations(planned, resolution);
        let mut may = self.with_spares(planned, &violations.unmet);
        let is_large = self.apps.len() > REVIEWED_APPS_MAX;
        if is_large {
            // Only the applications in need move.
            let in_need: Vec<usize> = violations.unmet_at_p99.iter().copied().collect();
            for (app, may) in may.iter_mut().enumerate() {
                if !in_need
                    .iter()
                    .take(MOVED_FOR_TAILS_MAX)
                    .any(|other| *other == app)
                {
                    may.fill(false);
                    may[planned[app]] = true;
                }
            }
        }
        let work_max = match is_large {
            true => self.work_max() / TAILS_WORK_PART,
            false => self.work_max(),
        };
        let mut least = violations.all;
        let in_force = self.in_force();
        let in_force = in_force.filter(|_| plan_mode == PlanMode::Revise && !is_large);
        let mut kept = planned.to_vec();
        if let Some(in_force) = &in_force {
            let score = forecasts.violations(in_force, resolution).all;
            if score.beats(&least) {
                (least, kept) = (score, in_force.clone());
            }
        }
        // Applications that gain nothing stay.
        let preferred = in_force.clone().unwrap_or_else(|| planned.to_vec());
        let starts: Vec<&[usize]> = match &in_force {
            Some(in_force) if *in_force == kept => vec![in_force, planned],
            Some(in_force) => vec![planned, in_force],
            None => vec![planned],
        };
        // One search is enough for the 99th percentile.
        let tries = if least.unmet > 0 { TRIES } else { 1 };
        let (mut latency_targets, mut tries) = (1.0, 0..tries);
        while !least.all_met() && tries.next().is_some() {
            let mut model_search = ModelSearch::new(&may, work_max, |path, members| {
                forecasts.score(path, members, Resolution::COARSE, latency_targets)
            });
            let Some(repaired) = model_search.improve(&starts, &preferred) else {
                latency_targets *= WIDER;
                continue;
            };
            let score = forecasts.violations(&repaired.assignment, resolution).all;
            latency_targets *= match score.unmet > repaired.score.unmet {
                true => TIGHTER,
                false => WIDER,
            };
            if score.beats(&least) {
                (least, kept) = (score, repaired.assignment);
            }
        }
        kept
    }

    /// The allowed paths, with fallback paths added for the applications that are `unmet` or
    /// already on them. To make room for those that are `unmet`, others may take paths that cost more.
    pub(crate) fn with_spares(&self, planned: &[usize], unmet: &BTreeSet<usize>) -> Vec<Vec<bool>> {
        let mut may = self.allowed.clone();
        let has_target = |app: usize| self.app_specs[app].latency_target.is_some();
        // An overload without a target is no reason to pay.
        let may_pay = unmet.iter().any(|app| has_target(*app));
        for (app, may) in may.iter_mut().enumerate() {
            may[planned[app]] = true;
            if unmet.contains(&app) {
                may.iter_mut()
                    .zip(&self.spare[app])
                    .for_each(|(may, spare)| *may |= spare);
            } else if may_pay && has_target(app) {
                may.iter_mut()
                    .zip(&self.affordable[app])
                    .for_each(|(may, affordable)| *may |= affordable);
            }
        }
        may
    }

    /// The present assignment, if every application is where it may be.
    pub(crate) fn in_force(&self) -> Option<Vec<usize>> {
        let places = self.at.iter().zip(&self.allowed);
        places
            .map(|(at, allowed)| at.filter(|path| allowed[*path]))
            .collect()
    }

    fn work_max(&self) -> u64 {
        let varies = |sender: &Sender| sender.traffic.length_spread != Spread::NONE;
        let whole = match self.scheduler {
            Scheduler::Fifo => WORK_MAX_FIFO,
            Scheduler::Deadline if self.senders.iter().any(varies) => {
                WORK_MAX_DEADLINE / VARYING_WORK
            }
            Scheduler::Deadline => WORK_MAX_DEADLINE,
        };
        self.part_of(whole)
    }
}

#[cfg(test)]
mod tests;
