//! Takes applications back from backups and costly paths where cheaper ones meet their targets too.
//!
//! The planner and its refinement meet as many latency targets as they can. What they spend on it is decided by what
//! each application may take ([`problem`](crate::peer_problem)): the cheapest paths, and others for a target that these miss.
//! Here, applications go back to cheaper paths by estimates ([`reduce_cost`]), and where there are few by forecasts of
//! single moves, as far as the forecast of the whole confirms that no further target is missed.
//!
//! Each of these steps is a small one, and many of them may end at a plan that misses more than the one that knows no
//! prices. So at last both are compared by forecast, and the latter is made cheaper instead where it misses less.

use keiro_control::config::PathTerms;
use keiro_model::path_terms::Price;
use keiro_planner::{
    plan::{Prices, TargetSearch, may_return, reduce_cost},
    steer::PlanMode,
};

use crate::{
    forecasts::{ForecastResolution, Forecasts, members},
    peer_problem::PeerProblem,
    refine::REVIEWED_APPS_MAX,
};

/// Work of one pass, in members of paths whose delays are estimated. Ours: some milliseconds.
const WORK: u64 = 400_000;
/// Passes; each is corrected by the forecast for what the one before it found.
const PASSES: usize = 3;
/// Single moves that are checked by forecast, in all. As those of [`improve`](crate::improve).
const MOVES_MAX: usize = 64;
/// Estimates are off by less than this part: a target that is missed by more is not worth a forecast.
const ESTIMATE_ERROR: f64 = 0.25;

/// What a plan may not have more of for being cheaper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Misses {
    /// Latency targets that are missed.
    targets: usize,
    /// Overloaded applications, those without a target included.
    overloaded: usize,
}

/// What an application may take, and what it pays there.
struct EconomyTerms {
    prices: Vec<Vec<Price>>,
    has_target: Vec<bool>,
    /// Where each is now and needs room to spare to leave.
    at: Vec<Option<usize>>,
}

impl PeerProblem {
    /// Some application may choose among paths that cost differently.
    pub(crate) fn has_prices(&self) -> bool {
        let differ = |app: usize| {
            let of_app = self.affordable[app].iter().zip(&self.terms[app]);
            let mut prices = of_app
                .filter(|(may, _)| **may)
                .map(|(_, terms)| terms.price());
            let first = prices.next();
            prices.any(|price| Some(price) != first)
        };
        (0..self.apps.len()).any(differ)
    }

    /// `planned`, with applications on cheaper paths where no further target is missed; or another plan that misses
    /// fewer, if `planned` misses some that can be met.
    pub(crate) fn cost_reduced(
        &self,
        planned: Vec<usize>,
        plan_mode: PlanMode,
        forecasts: &mut Forecasts<'_>,
        resolution: ForecastResolution,
    ) -> Vec<usize> {
        if !self.is_refined() || !self.has_prices() {
            return planned;
        }
        let terms = self.economy_terms(plan_mode);
        let kept = self.cheaper(planned, &terms, forecasts, resolution);
        if !self.has_relief(&kept, &terms, forecasts, resolution) {
            return kept;
        }
        let regardless = self.regardless_of_price(plan_mode, forecasts, resolution);
        let [now, then] =
            [&kept, &regardless].map(|plan| self.misses(plan, &terms, forecasts, resolution));
        match then < now {
            true => self.cheaper(regardless, &terms, forecasts, resolution),
            false => kept,
        }
    }

    fn economy_terms(&self, plan_mode: PlanMode) -> EconomyTerms {
        let of_app = |terms: &Vec<PathTerms>| terms.iter().map(|terms| terms.price()).collect();
        let specs = self.app_specs.iter();
        let stays = |(app, at): (usize, &Option<usize>)| {
            at.filter(|_| plan_mode == PlanMode::Revise && !self.overdue.contains(&app))
        };
        EconomyTerms {
            prices: self.terms.iter().map(of_app).collect(),
            has_target: specs.map(|spec| spec.latency_target.is_some()).collect(),
            at: self.at.iter().enumerate().map(stays).collect(),
        }
    }

    fn misses(
        &self,
        assignment: &[usize],
        terms: &EconomyTerms,
        forecasts: &mut Forecasts<'_>,
        resolution: ForecastResolution,
    ) -> Misses {
        let violations = forecasts.violations(assignment, resolution);
        let unmet = violations.unmet.iter();
        Misses {
            targets: unmet.filter(|app| terms.has_target[**app]).count(),
            overloaded: violations.all.overloaded,
        }
    }

    /// Whether some target that `kept` misses may be met on a path that the application may take, if it is alone there.
    fn has_relief(
        &self,
        kept: &[usize],
        terms: &EconomyTerms,
        forecasts: &mut Forecasts<'_>,
        resolution: ForecastResolution,
    ) -> bool {
        let missed = forecasts.violations(kept, resolution).unmet;
        let mut missed = missed
            .iter()
            .filter(|app| terms.has_target[**app])
            .peekable();
        if missed.peek().is_none() {
            return false;
        }
        let mut search = self.target_search(&self.allowed);
        missed.any(|app| {
            let mut paths = (0..self.paths.len()).filter(|path| self.affordable[*app][*path]);
            paths.any(|path| may_be_met(&mut search, path, *app))
        })
    }

    /// The plan where applications with a target may take any path at any price. Others never pay more.
    fn regardless_of_price(
        &self,
        plan_mode: PlanMode,
        forecasts: &mut Forecasts<'_>,
        resolution: ForecastResolution,
    ) -> Vec<usize> {
        let mut free = self.clone();
        for app in 0..self.apps.len() {
            for (path, terms) in free.terms[app].iter_mut().enumerate() {
                *terms = PathTerms::FREE;
                let has_target = self.app_specs[app].latency_target.is_some();
                free.allowed[app][path] |= has_target && self.affordable[app][path];
                free.spare[app][path] &= !free.allowed[app][path];
            }
        }
        let mut of_free = forecasts.lend(&free);
        let found = free
            .assignment(plan_mode, &mut of_free, resolution)
            .assignment;
        forecasts.take_back(of_free);
        found
    }

    /// `planned`, with applications on cheaper paths where no further target is missed.
    fn cheaper(
        &self,
        planned: Vec<usize>,
        terms: &EconomyTerms,
        forecasts: &mut Forecasts<'_>,
        resolution: ForecastResolution,
    ) -> Vec<usize> {
        let mut on_paths = planned.iter().enumerate();
        let some_pay_more = on_paths.any(|(app, path)| {
            terms.has_target[app] && !self.cheaper_paths(app, *path, terms).is_empty()
        });
        if !some_pay_more {
            return planned;
        }
        let prices = Prices {
            prices: &terms.prices,
            may: &self.affordable,
            has_target: &terms.has_target,
            at: &terms.at,
        };
        let mut search = self.target_search(&self.allowed);
        self.calibrate(&mut search, &planned, forecasts, resolution);
        let before = self.misses(&planned, terms, forecasts, resolution);
        let mut kept = planned;
        for _ in 0..PASSES {
            let found = reduce_cost(&kept, prices, self.part_of(WORK), |path, members| {
                search.target_ratios(path, members)
            });
            if found == kept {
                break;
            }
            let after = self.misses(&found, terms, forecasts, resolution);
            if after.is_no_worse_than(before) {
                kept = found;
                break;
            }
            self.calibrate(&mut search, &found, forecasts, resolution);
        }
        match self.apps.len() <= REVIEWED_APPS_MAX {
            true => self.settled(kept, terms, &mut search, forecasts, resolution),
            false => kept,
        }
    }

    /// `kept` after moves of single applications to cheaper paths by which, by forecast, no further target is missed.
    fn settled(
        &self,
        kept: Vec<usize>,
        terms: &EconomyTerms,
        search: &mut TargetSearch,
        forecasts: &mut Forecasts<'_>,
        resolution: ForecastResolution,
    ) -> Vec<usize> {
        let search_resolution = self.search_resolution(resolution);
        let mut found = kept.clone();
        let mut before = self.misses(&found, terms, forecasts, search_resolution);
        let (mut looked_at, mut moves) = (0, true);
        while std::mem::take(&mut moves) {
            for app in (0..self.apps.len()).filter(|app| terms.has_target[*app]) {
                for to in self.cheaper_paths(app, found[app], terms) {
                    let is_missed = forecasts
                        .violations(&found, search_resolution)
                        .unmet
                        .contains(&app);
                    if looked_at >= MOVES_MAX || !is_missed && !may_be_met(search, to, app) {
                        continue;
                    }
                    looked_at += 1;
                    let mut with = found.clone();
                    with[app] = to;
                    let after = self.misses(&with, terms, forecasts, search_resolution);
                    let stays = terms.at[app] == Some(found[app]);
                    if after.is_no_worse_than(before)
                        && (!stays
                            || self.may_return([&found, &with], app, forecasts, search_resolution))
                    {
                        (found, before, moves) = (with, after, true);
                        break;
                    }
                }
            }
        }
        let [now, then] =
            [&kept, &found].map(|plan| self.misses(plan, terms, forecasts, resolution));
        match then.is_no_worse_than(now) {
            true => found,
            false => kept,
        }
    }

    /// The paths that the planner may give to an application and that cost it less than `path`, the cheapest first.
    fn cheaper_paths(&self, app: usize, path: usize, terms: &EconomyTerms) -> Vec<usize> {
        let prices = &terms.prices[app];
        let is_cheaper = |to: &usize| self.affordable[app][*to] && prices[*to] < prices[path];
        let mut paths: Vec<usize> = (0..self.paths.len()).filter(is_cheaper).collect();
        paths.sort_by_key(|to| prices[*to]);
        paths
    }

    /// Whether an application returns from where the first of two assignments has it to where the second does.
    fn may_return(
        &self,
        assignments: [&Vec<usize>; 2],
        app: usize,
        forecasts: &mut Forecasts<'_>,
        resolution: ForecastResolution,
    ) -> bool {
        let [before, after] = assignments.map(|assignment| {
            let path = assignment[app];
            let on_path = members(assignment, path);
            let delays = forecasts.delays(path, &on_path, resolution);
            let position = on_path.binary_search(&app);
            position.map_or(f64::INFINITY, |position| delays[position]) / self.limit_seconds(app)
        });
        may_return(before, after)
    }
}

impl Misses {
    fn is_no_worse_than(self, other: Self) -> bool {
        self.targets <= other.targets && self.overloaded <= other.overloaded
    }
}

/// Whether the target of an application may be met on a path where it is alone.
fn may_be_met(search: &mut TargetSearch, path: usize, app: usize) -> bool {
    let ratio = search.target_ratios(path, &[app]);
    ratio
        .first()
        .is_some_and(|ratio| *ratio <= 1.0 + ESTIMATE_ERROR)
}
