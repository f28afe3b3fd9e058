//! Planning under eq. 3, where a path's effect on an application is one number: its load.
//!
//! [`branch_and_bound`] searches everything where the problem is small. Where it is not, [`load_splits`] says where
//! to start, and [`descent`], [`local_search`] and [`annealing`] look for a good answer. None of these can be left out:
//! without annealing, plans of 4 of the 200 instances in `tests/planner/planner_optimum.rs` are more than 1 % slower
//! than the best ones, without load splits 1.

mod annealing;
mod assignment;
mod branch_and_bound;
mod descent;
mod load_splits;
mod loads;
mod local_search;
pub(super) mod random;

pub(super) use loads::Loads;

use super::{Plan, generic_search::SearchOutcome};
use assignment::Assignment;
use branch_and_bound::Best;
use local_search::Goal;

/// Parts of the budget, of 16, after which each stage ends.
const DESCENT_ENDS: u64 = 2;
const TREE_ENDS: u64 = 8;

/// Assignments that are improved one by one, with seven tenths of what searching may take, before the
/// best is improved further.
const STARTS: usize = 32;

/// With more applications than this the tree is not tried: it would not end.
const TREE_APPS_MAX: usize = 24;

/// How much of a budget is spent where not everything can be searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// All of it.
    Whole,
    /// What is left of it after [`SPARED`], three sixteenths at least: for plans that are only where a forecast
    /// begins its own search.
    Spared,
}

/// Work that [`Effort::Spared`] leaves out, for each path of each application, and the part of the budget, of 16,
/// that it leaves out at most. Ours: with the default budget, 100 applications on 10 paths take some 3 ms.
const SPARED: u64 = 1_080;
const SPARED_MOST: u64 = 13;

/// The best assignment within `budget`; `start` is a first one.
pub(super) fn run(loads: &Loads, start: &Plan, budget: u64, effort: Effort) -> SearchOutcome {
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
                complete,
                work: meter.work(),
            };
        }
        state = Assignment::of(loads, &best.assignment, &mut meter);
    }

    let spared = match effort {
        Effort::Whole => 0,
        Effort::Spared => {
            let whole = SPARED * (loads.apps() * loads.paths()) as u64;
            whole.min(part(SPARED_MOST))
        }
    };
    let searching = (part(16) - part(1)).saturating_sub(meter.work() + spared);
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
    let left = part(15).saturating_sub(meter.work() + spared);
    let shaken = meter.work() + left * 3 / 5;
    local_search::run(&mut state, Goal::Best, meter.until(shaken));
    let annealed = meter.work() + left * 2 / 5;
    annealing::anneal(&mut state, meter.until(annealed));
    local_search::run(
        &mut state,
        Goal::Best,
        meter.until(budget.saturating_sub(spared)),
    );
    SearchOutcome {
        assignment: state.assignment(),
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
