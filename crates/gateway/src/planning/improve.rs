//! What others gain when a plan is repaired.
//!
//! A repaired plan departs from the planner's for somebody's demand, and starts from what is in force,
//! so it lacks the moves by which others would only be quicker. Those that are at nobody's expense are
//! taken up again here: the planner is asked what it would do next, and the forecast about every move
//! of that.

use std::collections::BTreeSet;

use keiro_planner::{delay::AppSpec, steer::PlanMode};

use super::{
    arrange::Placement,
    forecasts::{ForecastResolution, Forecasts, Violations, members},
    problem::PlanningProblem,
};

/// How often the planner is asked what it would do next. Ours: every answer is taken whole, or leaves
/// it a move less to ask for; what is left then waits for the next plan.
const ROUNDS: usize = 8;
/// Moves that are looked at one by one, in all.
const MOVES_MAX: usize = 64;

impl PlanningProblem {
    /// `kept`, and of the moves that the planner makes from there those that are at nobody's expense;
    /// and whether there are others. The first of `looks` is for the search, what comes of it has to
    /// hold by the second as well.
    pub(super) fn with_improvements(
        &self,
        kept: Vec<usize>,
        forecasts: &mut Forecasts<'_>,
        looks: [ForecastResolution; 2],
    ) -> (Vec<usize>, bool) {
        let [meanwhile, look] = looks;
        let (improved, defers_moves) = self.improved(&kept, forecasts, meanwhile);
        let holds = meanwhile == look || improved == kept || {
            let before = forecasts.violations(&kept, look);
            self.is_pareto_improvement(&before, &kept, &improved, forecasts, look)
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
        look: ForecastResolution,
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
            let mut before = forecasts.violations(&kept, look);
            if self.is_pareto_improvement(&before, &kept, &wanted, forecasts, look) {
                kept = wanted;
                continue;
            }
            for app in moves {
                looked_at += 1;
                let mut with = kept.clone();
                with[app] = wanted[app];
                let is_taken = looked_at <= MOVES_MAX
                    && self.is_quicker(&kept, &with)
                    && self.is_pareto_improvement(&before, &kept, &with, forecasts, look);
                match is_taken {
                    true => {
                        before = forecasts.violations(&with, look);
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

    /// What the planner is told, so that it moves nobody from `kept` but for quickness: nobody demands
    /// more than eq. 3 says is had there.
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

    /// Whether nobody is worse off `with` its moves than by `kept`, of which the opinion is `before`.
    /// Who moves, and of whom nothing can be told, is no worse off for that.
    fn is_pareto_improvement(
        &self,
        before: &Violations,
        kept: &[usize],
        with: &[usize],
        forecasts: &mut Forecasts<'_>,
        look: ForecastResolution,
    ) -> bool {
        let disturbs = |app: &usize| {
            let latency_targets =
                |other: &usize| other != app && self.app_specs[*other].latency_target.is_some();
            self.little_known.contains(app) && members(with, with[*app]).iter().any(latency_targets)
        };
        if moved(kept, with).iter().any(disturbs) {
            return false;
        }
        let after = forecasts.violations(with, look);
        let doubts: BTreeSet<_> = after.doubts.difference(&before.doubts).collect();
        after.all.unmet <= before.all.unmet
            && after.all.overloaded <= before.all.overloaded
            && after.all.lateness <= before.all.lateness
            && after.all.unmet_at_p99 - doubts.len() <= before.all.unmet_at_p99
    }
}

/// Who is elsewhere.
fn moved(before: &[usize], after: &[usize]) -> Vec<usize> {
    let all = 0..before.len();
    all.filter(|app| before[*app] != after[*app]).collect()
}
