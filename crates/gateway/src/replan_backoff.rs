//! When to look for a better plan because latency targets turn out to be unmet.

use std::time::{Duration, Instant as Stopwatch};

use keiro_planning::{AppAssignment, Plan};

/// Intervals between searches for a better plan, which grow while nothing changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    planned_at: Option<Stopwatch>,
    /// Until the next search.
    interval: Duration,
}

/// Why to look for a better plan than the one in force: a latency target is unmet (on average or at
/// the 99th percentile), or moves were deferred until more is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplanReason {
    /// The plan in force was made in spite of it.
    Persistent,
    /// It has arisen since the plan in force was made.
    New,
}

/// First and longest interval. Ours: the first is long enough for a change to be
/// measured, and a target that cannot be met costs one search each time.
const BACKOFF_MIN: Duration = Duration::from_secs(10);
const BACKOFF_MAX: Duration = Duration::from_secs(320);

impl ReplanReason {
    /// Compares the plan in force with the present state. `None`: there is no reason.
    pub(crate) fn of(plan: &Plan, present: &Plan) -> Option<Self> {
        let mut pairs = plan.apps.iter().zip(&present.apps);
        let is_unmet = |app: &AppAssignment| app.is_unmet() || app.is_unmet_at_p99();
        let has_forecast = |app: &AppAssignment| {
            app.expected
                .is_some_and(|expected| expected.predicted.is_some())
        };
        let is_new = |(planned, now): (&AppAssignment, &AppAssignment)| {
            let is_new = now.is_unmet() && !planned.is_unmet()
                || now.is_unmet_at_p99() && !planned.is_unmet_at_p99()
                || plan.defers_moves && has_forecast(now) && !has_forecast(planned);
            planned.path == now.path && is_new
        };
        if pairs.any(is_new) {
            return Some(Self::New);
        }
        let persists = plan.defers_moves || present.apps.iter().any(is_unmet);
        persists.then_some(Self::Persistent)
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            planned_at: None,
            interval: BACKOFF_MIN,
        }
    }
}

impl Backoff {
    /// Whether to plan now; notes that it is done. A new reason, or none, shortens the interval to the first one.
    pub(crate) fn is_due(&mut self, now: Stopwatch, reason: Option<ReplanReason>) -> bool {
        if reason != Some(ReplanReason::Persistent) {
            self.interval = BACKOFF_MIN;
        }
        if reason.is_none() {
            return false;
        }
        let is_recent = |at: Stopwatch| now.saturating_duration_since(at) < self.interval;
        if self.planned_at.is_some_and(is_recent) {
            return false;
        }
        self.planned_at = Some(now);
        self.interval = (self.interval * 2).min(BACKOFF_MAX);
        true
    }
}

#[cfg(test)]
mod tests {
    use keiro_control::config::AppIndex;
    use keiro_planning::{
        PlanMode, PlannerConfig, PlannerInput, PlanningProblem,
        forecast::ForecastState,
        testing::{all_on_a_path_that_takes_long, bulk, traffic_window},
    };

    use super::*;

    #[test]
    fn the_interval_doubles_while_a_target_stays_unmet() {
        let (mut backoff, start) = (Backoff::default(), Stopwatch::now());
        let mut planned_at = |seconds: std::ops::Range<u64>, reason| -> Vec<u64> {
            let is_due = |second: &u64| {
                let now = start + Duration::from_secs(*second);
                backoff.is_due(now, reason)
            };
            seconds.filter(is_due).collect()
        };
        let persistent = planned_at(0..1500, Some(ReplanReason::Persistent));
        assert_eq!(persistent, [0, 20, 60, 140, 300, 620, 940, 1260]);
        // A new reason leads to a plan soon, but not all the time.
        let new = planned_at(1500..1530, Some(ReplanReason::New));
        assert_eq!(new, [1500, 1510, 1520]);
        assert_eq!(planned_at(1530..1540, None), [0; 0]);
        let persistent = planned_at(1540..1560, Some(ReplanReason::Persistent));
        assert_eq!(persistent, [1540]);
    }

    #[test]
    fn deferred_moves_are_planned_again_and_sooner_when_more_is_known() {
        let (config, mut input) = all_on_a_path_that_takes_long("exact", 65);
        let config = PlannerConfig::of(&config);
        let forecast_state = ForecastState::default();
        let answer = |input: &PlannerInput| {
            PlanningProblem::new(&config, input).answer(PlanMode::Revise, &forecast_state)
        };
        input.now = answer(&input).paths();
        let plan = answer(&input);
        assert!(plan.defers_moves);
        let reason = |plan: &Plan, input: &PlannerInput| {
            let present = PlanningProblem::new(&config, input).present_plan(&forecast_state);
            ReplanReason::of(plan, &present)
        };
        assert_eq!(reason(&plan, &input), Some(ReplanReason::Persistent));
        input.workloads.insert(AppIndex(2), bulk());
        assert_eq!(reason(&plan, &input), Some(ReplanReason::Persistent));
        input.traffic_windows.insert(AppIndex(2), traffic_window());
        assert_eq!(reason(&plan, &input), Some(ReplanReason::New));
        // The next plan knows that.
        let plan = answer(&input);
        assert_eq!(plan.changes(&input.now), 0);
        assert_eq!(reason(&plan, &input), None);
    }
}
