//! The search for an assignment that leaves fewer targets unmet, at any number of applications.
//!
//! [`TargetSearch`] uses estimates. Each of its answers is compared with the forecast, which corrects the estimates for
//! the next search.

use keiro_planner::{
    plan::{Candidate, MoveCost, TargetSearch},
    queueing::{PathEstimate, Resolution},
    steer::PlanMode,
};

use crate::{
    forecast::gateway,
    forecasts::{ForecastResolution, Forecasts, members_by_path},
    peer_problem::PeerProblem,
};

/// Work of the first search, and of those with corrected estimates, in units of
/// [`PathEstimate::work`]. Ours: some milliseconds.
const WORK: u64 = 1_000_000;
const WORK_AGAIN: u64 = 250_000;
/// Searches that coarse forecasts correct, and those that finer ones correct.
const ROUNDS: [usize; 2] = [5, 2];
/// Work of the forecasts that these take, which grows with the square of the applications on a
/// path. Ours: all rounds for 100 applications on each of ten paths.
const FORECASTS_WORK: usize = 500_000;
/// As the planner's hysteresis by eq. 3.
const MOVE_COST: MoveCost = MoveCost {
    part: 0.2,
    seconds: 1e-3,
};

impl PeerProblem {
    /// An assignment that leaves fewer unmet than `planned`, or equally many and fewer overloaded, by forecasts of the
    /// second resolution; `planned` if there is none. The first resolution is used in the search.
    pub(crate) fn improved_by_search(
        &self,
        planned: &[usize],
        plan_mode: PlanMode,
        forecasts: &mut Forecasts<'_>,
        [search_resolution, resolution]: [ForecastResolution; 2],
    ) -> Vec<usize> {
        let unmet = forecasts.violations(planned, resolution).unmet;
        let mut search = self.target_search(&self.with_spares(planned, &unmet));
        let in_force = self.in_force().filter(|_| plan_mode == PlanMode::Revise);
        let preferred = in_force.unwrap_or_else(|| planned.to_vec());
        let mut kept = planned.to_vec();
        let mut work = self.part_of(WORK);
        for (rounds, resolution) in ROUNDS
            .into_iter()
            .zip([ForecastResolution::Coarse, search_resolution])
        {
            let mut least = forecasts.violations(&kept, resolution).all;
            let preferred_score = forecasts.violations(&preferred, resolution).all;
            if preferred_score.beats(&least) {
                (least, kept) = (preferred_score, preferred.clone());
            }
            self.calibrate(&mut search, &kept, forecasts, resolution);
            for _ in 0..rounds.min(self.affordable_rounds(&kept)) {
                if least.unmet == 0 {
                    break;
                }
                let found = search.improve(&kept, &preferred, MOVE_COST, work);
                work = self.part_of(WORK_AGAIN);
                if found == kept {
                    break;
                }
                let score = forecasts.violations(&found, resolution).all;
                self.calibrate(&mut search, &found, forecasts, resolution);
                if score.beats(&least) {
                    (least, kept) = (score, found);
                }
            }
        }
        let shown = forecasts.violations(planned, resolution).all;
        match forecasts.violations(&kept, resolution).all.beats(&shown) {
            true => kept,
            false => planned.to_vec(),
        }
    }

    /// How many assignments like this one may be compared with the forecast; at least one.
    fn affordable_rounds(&self, assignment: &[usize]) -> usize {
        let by_path = members_by_path(assignment, self.paths.len());
        let each: usize = by_path.iter().map(|members| members.len().pow(2)).sum();
        let work = self.part_of(FORECASTS_WORK as u64) as usize;
        (work / each.max(1)).max(1)
    }

    /// `planned`, with applications without a target moved to paths of less delay where no target suffers.
    pub(crate) fn with_lower_delays(&self, planned: &[usize], plan_mode: PlanMode) -> Vec<usize> {
        let is_patient = |app: usize| self.app_specs[app].latency_target.is_none();
        if !(0..self.apps.len()).any(is_patient) {
            return planned.to_vec();
        }
        let cost = match plan_mode {
            PlanMode::Revise => MOVE_COST,
            PlanMode::FromScratch => MoveCost::default(),
        };
        let mut may = self.allowed.clone();
        if plan_mode == PlanMode::Revise {
            // What they will send is not known; so they disturb no application with a target.
            for app in &self.little_known {
                may[*app].fill(false);
            }
        }
        self.target_search(&may)
            .lower_delays(planned, cost, self.part_of(WORK))
    }

    pub(crate) fn target_search(&self, may: &[Vec<bool>]) -> TargetSearch {
        let estimate = |path: usize| {
            // The forecast corrects what this leaves out of a line that other gateways use.
            PathEstimate::new(
                &gateway(self.scheduler, &self.line(path), Resolution::COARSE),
                &self.left_of_line(path),
            )
        };
        let paths: Vec<PathEstimate> = (0..self.paths.len()).map(estimate).collect();
        let candidate = |app: usize| Candidate {
            flows: paths
                .iter()
                .map(|path| path.flow(&self.senders[app].traffic))
                .collect(),
            allowed: may[app].clone(),
            limit: self.limit_seconds(app),
        };
        let apps = (0..self.apps.len()).map(candidate).collect();
        TargetSearch::new(paths, apps)
    }

    pub(crate) fn calibrate(
        &self,
        search: &mut TargetSearch,
        assignment: &[usize],
        forecasts: &mut Forecasts<'_>,
        resolution: ForecastResolution,
    ) {
        let by_path = members_by_path(assignment, self.paths.len());
        for (path, members) in by_path.into_iter().enumerate() {
            let delays = forecasts.delays(path, &members, resolution);
            search.calibrate(path, &members, &delays);
        }
    }
}
