//! Planning under eq. 3, where a path's effect on an application is one number: its load.
//!
//! [`tree`] searches everything and proves its answer where the problem is small. Where it is not,
//! [`improve`] and [`shake`] look for a good answer, and [`dual`] bounds the best there can be.

mod choice;
mod dual;
mod improve;
mod loads;
mod shake;
mod state;
mod tree;

pub(super) use loads::Loads;

use super::{Plan, search::Outcome};
use state::State;
use tree::Best;

/// Parts of the budget, of 16, after which each stage ends.
const DESCENT_ENDS: u64 = 2;
const TREE_ENDS: u64 = 8;

/// The part of the budget, of 16, that the bound takes at most.
const BOUND_MOST: u64 = 13;

/// With more applications than this the tree is not tried: it would not end.
const TREE_APPS_MAX: usize = 24;

/// The best assignment within `budget`; `start` is a first one.
pub(super) fn run(loads: &Loads, start: &Plan, budget: u64) -> Outcome {
    let part = |parts| budget / 16 * parts;
    let mut meter = Meter::new();
    let mut state = State::of(loads, &start.assignment, &mut meter);
    improve::descend(&mut state, meter.until(part(DESCENT_ENDS)));

    if loads.apps() <= TREE_APPS_MAX {
        let mut best = Best {
            cost: state.total(),
            assignment: state.assignment(),
        };
        if tree::least(loads, &mut best, meter.until(part(TREE_ENDS))).is_ok() {
            // The cost is proven; what is left to find is who is first among equals.
            let complete = tree::first(loads, &mut best, meter.until(budget)).is_ok();
            return Outcome {
                assignment: best.assignment,
                bound: best.cost.into(),
                complete,
                work: meter.work(),
            };
        }
        state = State::of(loads, &best.assignment, &mut meter);
    }

    // Where asking all paths is cheap, prices settle long before the budget is spent.
    let bounding = dual::work(loads).min(part(BOUND_MOST));
    let searching = (part(16) - part(1)).saturating_sub(meter.work() + bounding);
    let first = meter.work() + searching * 3 / 5;
    shake::shake(&mut state, meter.until(first));
    if state.total().unmet > 0 {
        let guiding = (bounding / 2).min(searching / 5);
        dual::guide(&mut state, meter.until(first + guiding));
    }
    let bounded = meter.work() + bounding;
    let bound = dual::bound(&mut state, meter.until(bounded));
    shake::shake(&mut state, meter.until(budget));
    Outcome {
        assignment: state.assignment(),
        bound: bound.into(),
        complete: false,
        work: meter.work(),
    }
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
struct Spent;
