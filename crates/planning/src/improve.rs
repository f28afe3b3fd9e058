//! Further moves after a plan was refined.
//!
//! A refined plan starts from the present assignment and changes it for the targets that were
//! unmet. It lacks the moves by which other applications would get faster. Here the planner is
//! asked for its next moves, and those that are Pareto improvements by forecast are added.

use std::collections::BTreeSet;

use keiro_planner::{delay::AppSpec, steer::PlanMode};

use crate::{
    arrange::Placement,
    forecasts::{ForecastResolution, Forecasts, Violations, members},
    peer_problem::PeerProblem,
};

/// Rounds with the planner. Ours: each round adopts the whole answer or excludes at least one move;
/// the rest waits for the next plan.
const ROUNDS: usize = 8;
/// Moves that are checked one by one, in all.
const MOVES_MAX: usize = 64;

impl PeerProblem {
    /// `kept` with those of the planner's moves that are Pareto improvements, and whether others
    /// were deferred. The first of `resolutions` is used in the search; the result must hold at the
    /// second as well.
    pub(crate) fn with_improvements(
        &self,
        kept: Vec<usize>,
        forecasts: &mut Forecasts<'_>,
        resolutions: [ForecastResolution; 2],
    ) -> (Vec<usize>, bool) {
        let [search_resolution, resolution] = resolutions;
        let (improved, defers_moves) = self.improved(&kept, forecasts, search_resolution);
        let holds = search_resolution == resolution || improved == kept || {
            let before = forecasts.violations(&kept, resolution);
            self.is_pareto_improvement(&before, &kept, &improved, forecasts, resolution)
        };
        match holds {
            true => (improved, defers_moves),
            false => (kept, true),
        }
    }

    fn improved(
        &self,
        kept: &[usize],
        forecasts: &mut Forecasts<'_>,
        resolution: ForecastResolution,
    ) -> (Vec<usize>, bool) {
        let mut kept = kept.to_vec();
        let mut allowed = self.allowed.clone();
        let (mut defers_moves, mut looked_at) = (false, 0);
        for _ in 0..ROUNDS {
            for (may, path) in allowed.iter_mut().zip(&kept) {
                may[*path] = true;
            }
            let placement = Placement {
                at: kept.iter().copied().map(Some).collect(),
                allowed: allowed.clone(),
            };
            let wanted = self.arranged(&placement, PlanMode::Revise, &self.relaxed_to(&kept));
            let moves = moved(&kept, &wanted);
            if moves.is_empty() {
                return (kept, defers_moves);
            }
            let mut before = forecasts.violations(&kept, resolution);
            if self.is_pareto_improvement(&before, &kept, &wanted, forecasts, resolution) {
                kept = wanted;
                continue;
            }
            for app in moves {
                looked_at += 1;
                let mut with = kept.clone();
                with[app] = wanted[app];
                let is_taken = looked_at <= MOVES_MAX
                    && self.is_quicker(&kept, &with)
                    && self.is_pareto_improvement(&before, &kept, &with, forecasts, resolution);
                match is_taken {
                    true => {
                        before = forecasts.violations(&with, resolution);
                        kept = with;
                    }
                    false => {
                        allowed[app][wanted[app]] = false;
                        defers_moves = true;
                    }
                }
            }
        }
        (kept, true)
    }

    /// Specifications with which the planner moves applications only to make them faster: no target
    /// is stricter than eq. 3's delay in `kept`.
    fn relaxed_to(&self, kept: &[usize]) -> Vec<AppSpec> {
        let mut specs = self.wire.apps.clone();
        let by_equation = self.evaluate_on_wire(kept);
        for app in by_equation.unmet {
            let delay = by_equation.predictions[app].delay.finite();
            specs[app].latency_target =
                delay.and_then(|delay| Some(specs[app].latency_target?.max(delay)));
        }
        specs
    }

    fn is_quicker(&self, kept: &[usize], with: &[usize]) -> bool {
        let [before, after] = [kept, with].map(|plan| self.evaluate_on_wire(plan).score);
        after.overloaded <= before.overloaded && after.delay < before.delay
    }

    /// Whether no application is worse off in `with` than in `kept`, whose violations are `before`.
    /// An application that moves and whose 99th percentile is unknown does not count as worse off
    /// for that.
    fn is_pareto_improvement(
        &self,
        before: &Violations,
        kept: &[usize],
        with: &[usize],
        forecasts: &mut Forecasts<'_>,
        resolution: ForecastResolution,
    ) -> bool {
        let disturbs = |app: &usize| {
            let latency_targets =
                |other: &usize| other != app && self.app_specs[*other].latency_target.is_some();
            self.little_known.contains(app) && members(with, with[*app]).iter().any(latency_targets)
        };
        if moved(kept, with).iter().any(disturbs) {
            return false;
        }
        let after = forecasts.violations(with, resolution);
        let unknown_p99: BTreeSet<_> = after.unknown_p99.difference(&before.unknown_p99).collect();
        after.all.unmet <= before.all.unmet
            && after.all.overloaded <= before.all.overloaded
            && after.all.lateness <= before.all.lateness
            && after.all.unmet_at_p99 - unknown_p99.len() <= before.all.unmet_at_p99
    }
}

/// The applications whose path differs.
fn moved(before: &[usize], after: &[usize]) -> Vec<usize> {
    let all = 0..before.len();
    all.filter(|app| before[*app] != after[*app]).collect()
}
