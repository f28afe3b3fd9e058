//! When to look for a better plan because latency targets turn out to be unmet.

use std::time::{Duration, Instant as Stopwatch};

use crate::planning::{AppAssignment, Plan};

/// Intervals between searches for a better plan, which grow while nothing changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    planned_at: Option<Stopwatch>,
    lasts: Duration,
}

/// Whether to look for a better plan than the one in force: a latency target is unmet (on average
/// or at the 99th percentile), or moves were deferred until more is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplanReason {
    Not,
    Still,
    Newly,
}

/// First and longest interval. Ours: long enough for a change to be measured; a target that cannot
/// be met costs one search each time.
const PATIENCE_MIN: Duration = Duration::from_secs(10);
const PATIENCE_MAX: Duration = Duration::from_secs(320);

impl ReplanReason {
    /// Compares the plan with the present state.
    pub(crate) fn of(plan: &Plan, present: &Plan) -> Self {
        let mut pairs = plan.apps.iter().zip(&present.apps);
        let is_unmet = |app: &AppAssignment| app.is_unmet() || app.is_unmet_at_p99();
        let has_forecast = |app: &AppAssignment| {
            app.expected
                .is_some_and(|expected| expected.predicted.is_some())
        };
        let is_news = |(planned, now): (&AppAssignment, &AppAssignment)| {
            let is_news = now.is_unmet() && !planned.is_unmet()
                || now.is_unmet_at_p99() && !planned.is_unmet_at_p99()
                || plan.defers_moves && has_forecast(now) && !has_forecast(planned);
            planned.path == now.path && is_news
        };
        match (pairs.any(is_news), plan.defers_moves) {
            (true, _) => Self::Newly,
            (false, true) => Self::Still,
            (false, false) if present.apps.iter().any(is_unmet) => Self::Still,
            (false, false) => Self::Not,
        }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            planned_at: None,
            lasts: PATIENCE_MIN,
        }
    }
}

impl Backoff {
    /// Whether to plan now.
    pub(crate) fn has_ended(&mut self, now: Stopwatch, disappointed: ReplanReason) -> bool {
        match disappointed {
            ReplanReason::Not => {
                self.lasts = PATIENCE_MIN;
                return false;
            }
            ReplanReason::Newly => self.lasts = PATIENCE_MIN,
            ReplanReason::Still => {}
        }
        let lasts = |at: Stopwatch| now.saturating_duration_since(at) < self.lasts;
        if self.planned_at.is_some_and(lasts) {
            return false;
        }
        self.planned_at = Some(now);
        self.lasts = (self.lasts * 2).min(PATIENCE_MAX);
        true
    }
}

#[cfg(test)]
mod tests {
    use keiro_control::config::AppIndex;

    use super::*;
    use crate::planning::{
        PlanMode, PlannerInput, PlanningProblem,
        forecast::ForecastState,
        tests::{all_on_a_path_that_takes_long, bulk, evidence},
    };

    #[test]
    fn a_target_that_stays_unmet_is_planned_for_seldomer_and_seldomer() {
        let (mut patience, start) = (Backoff::default(), Stopwatch::now());
        let mut planned_at = |seconds: std::ops::Range<u64>, disappointed| -> Vec<u64> {
            let is_due = |second: &u64| {
                let now = start + Duration::from_secs(*second);
                patience.has_ended(now, disappointed)
            };
            seconds.filter(is_due).collect()
        };
        let still = planned_at(0..1500, ReplanReason::Still);
        assert_eq!(still, [0, 20, 60, 140, 300, 620, 940, 1260]);
        // A new reason leads to a plan soon, but not all the time.
        let newly = planned_at(1500..1530, ReplanReason::Newly);
        assert_eq!(newly, [1500, 1510, 1520]);
        assert_eq!(planned_at(1530..1540, ReplanReason::Not), [0; 0]);
        assert_eq!(planned_at(1540..1560, ReplanReason::Still), [1540]);
    }

    #[test]
    fn what_is_held_back_is_looked_at_again_and_soon_when_more_is_known() {
        let (config, mut input) = all_on_a_path_that_takes_long("exact", 65);
        let forecast_state = ForecastState::default();
        let answer = |input: &PlannerInput| {
            PlanningProblem::new(&config, input).answer(&config, PlanMode::Revise, &forecast_state)
        };
        input.now = answer(&input).paths();
        let plan = answer(&input);
        assert!(plan.defers_moves);
        let disappointed = |plan: &Plan, input: &PlannerInput| {
            let present =
                PlanningProblem::new(&config, input).present_plan(&config, &forecast_state);
            ReplanReason::of(plan, &present)
        };
        assert_eq!(disappointed(&plan, &input), ReplanReason::Still);
        input.workloads.insert(AppIndex(2), bulk());
        assert_eq!(disappointed(&plan, &input), ReplanReason::Still);
        input.evidence.insert(AppIndex(2), evidence());
        assert_eq!(disappointed(&plan, &input), ReplanReason::Newly);
        // The next plan knows that.
        let plan = answer(&input);
        assert_eq!(plan.changes(&input.now), 0);
        assert_eq!(disappointed(&plan, &input), ReplanReason::Not);
    }
}
