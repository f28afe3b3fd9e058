//! Planning under eq. 3, where a path's effect on an application is one number: its load.
//!
//! [`branch_and_bound`] searches everything and proves its answer where the problem is small. Where it is not,
//! [`load_splits`] says where to start, [`descent`], [`local_search`] and [`annealing`] look for a good answer, and
//! [`lagrangian_bound`] bounds the best there can be.

mod annealing;
mod assignment;
mod branch_and_bound;
mod descent;
mod lagrangian_bound;
mod load_splits;
mod loads;
mod local_search;
mod path_bound;
pub(super) mod random;

use loads::Cost;
pub(super) use loads::Loads;

use super::{Plan, generic_search::SearchOutcome};
use assignment::Assignment;
use branch_and_bound::Best;
use local_search::Goal;

/// Parts of the budget, of 16, after which each stage ends.
const DESCENT_ENDS: u64 = 2;
const TREE_ENDS: u64 = 8;

/// The part of the budget, of 16, that the bound takes at most.
const BOUND_MOST: u64 = 13;

/// Assignments that are improved one by one, with seven tenths of what searching may take, before the
/// best is improved further.
const STARTS: usize = 32;

/// With more applications than this the tree is not tried: it would not end.
const TREE_APPS_MAX: usize = 24;

/// Whether it is looked for how good an assignment can be at best, where that is not known from the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bounding {
    /// No: the work for it is saved.
    None,
    /// As far as the budget goes.
    UpToBudget,
}

/// The best assignment within `budget`; `start` is a first one.
pub(super) fn run(loads: &Loads, start: &Plan, budget: u64, wanted: Bounding) -> SearchOutcome {
    let part = |parts| budget / 16 * parts;
    let mut meter = Meter::new();
    let mut state = Assignment::of(loads, &start.assignment, &mut meter);
    descent::descend(&mut state, meter.until(part(DESCENT_ENDS)));

    if loads.apps() <= TREE_APPS_MAX {
        let mut best = Best {
            cost: state.total(),
            assignment: state.assignment(),
        };
        if branch_and_bound::least(loads, &mut best, meter.until(part(TREE_ENDS))).is_ok() {
            // The cost is proven; what is left to find is who is first among equals.
            let complete = branch_and_bound::first(loads, &mut best, meter.until(budget)).is_ok();
            return SearchOutcome {
                assignment: best.assignment,
                bound: best.cost.into(),
                complete,
                work: meter.work(),
            };
        }
        state = Assignment::of(loads, &best.assignment, &mut meter);
    }

    // Where asking all paths is cheap, prices settle long before the budget is spent.
    let bounding = lagrangian_bound::work(loads).min(part(BOUND_MOST));
    let searching = (part(16) - part(1)).saturating_sub(meter.work() + bounding);
    let fewer = meter.work() + searching / 10;
    local_search::run(&mut state, Goal::Fewer, meter.until(fewer));
    let spreading = meter.work() + searching / 8;
    let starts = load_splits::starting_points(loads, STARTS, meter.until(spreading));
    let each = searching * 7 / 10 / STARTS as u64;
    for start in starts {
        let other = improved(loads, &start, each, &mut meter);
        if other.total().is_clearly_below(&state.total()) {
            state = other;
        }
    }
    let left = part(15).saturating_sub(meter.work() + bounding);
    let shaken = meter.work() + left * 3 / 5;
    local_search::run(&mut state, Goal::Best, meter.until(shaken));
    let annealed = meter.work() + left * 2 / 5;
    annealing::anneal(&mut state, meter.until(annealed));
    let bounded = meter.work() + bounding;
    let (bound, ends) = match wanted {
        Bounding::None => (Cost::default(), budget.saturating_sub(bounding)),
        Bounding::UpToBudget => {
            let bound = lagrangian_bound::bound(&mut state, meter.until(bounded));
            (bound, budget)
        }
    };
    local_search::run(&mut state, Goal::Best, meter.until(ends));
    SearchOutcome {
        assignment: state.assignment(),
        bound: bound.into(),
        complete: false,
        work: meter.work(),
    }
}

/// What comes of an assignment with `work`.
fn improved<'a>(
    loads: &'a Loads,
    assignment: &[usize],
    work: u64,
    meter: &mut Meter,
) -> Assignment<'a> {
    let begin = meter.work();
    let mut state = Assignment::of(loads, assignment, meter);
    local_search::run(&mut state, Goal::Fewer, meter.until(begin + work * 3 / 10));
    annealing::anneal(&mut state, meter.until(begin + work * 9 / 10));
    local_search::run(&mut state, Goal::Best, meter.until(begin + work));
    state
}

/// Counts work, one unit per predicted delay, against a limit.
#[derive(Clone, Copy, Debug)]
struct Meter {
    work: u64,
    limit: u64,
}

impl Meter {
    fn new() -> Self {
        Self { work: 0, limit: 0 }
    }

    /// Goes on until `limit` units are done in all.
    fn until(&mut self, limit: u64) -> &mut Self {
        self.limit = limit;
        self
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn spend(&mut self, units: u64) {
        self.work += units;
    }

    fn is_spent(&self) -> bool {
        self.work >= self.limit
    }

    fn work(&self) -> u64 {
        self.work
    }
}

/// The meter's limit was reached.
#[derive(Clone, Copy, Debug)]
struct BudgetSpent;
