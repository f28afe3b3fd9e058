//! Branch and bound: everything is searched, so what it finds is the best there is.
//!
//! Two walks. The first finds the least cost, heavy applications first. The second goes through
//! the applications in their own order and stops at the first assignment of that cost, which is
//! the one that ties are decided for.
//!
//! Bounds. An application not yet placed costs at least what it would cost now on the best path,
//! since loads only grow. While every latency target can still be met, more holds: delays are convex in
//! the load, so the cost of placing several is at least the sum of what each would add alone, what
//! it adds to those already there included.
//!
//! Symmetry. Of equal paths that are still empty only the first is tried, and equal applications
//! take paths of rising index: the lexicographically first of several equivalent assignments obeys
//! both.

use super::{
    BudgetSpent, Meter,
    assignment::Assignment,
    loads::{Cost, Loads},
};

/// The least cost, and an assignment that has it. Fails if the meter ran out; `best` may have
/// improved nevertheless.
pub(super) fn least(loads: &Loads, best: &mut Best, meter: &mut Meter) -> Result<(), BudgetSpent> {
    let mut order: Vec<usize> = (0..loads.apps()).collect();
    order.sort_by_key(|&app| (std::cmp::Reverse(*loads.app(app)), app));
    Walk::new(loads, order, Goal::Less, best).descend(0, meter)
}

/// Makes `best` the lexicographically first assignment of its cost, which must be the least.
/// Fails if the meter ran out.
pub(super) fn first(loads: &Loads, best: &mut Best, meter: &mut Meter) -> Result<(), BudgetSpent> {
    let order = (0..loads.apps()).collect();
    Walk::new(loads, order, Goal::First, best).descend(0, meter)
}

#[derive(Clone, Debug)]
pub(super) struct Best {
    pub(super) cost: Cost,
    pub(super) assignment: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    /// Anything of less cost than the best known.
    Less,
    /// The first of the best cost.
    First,
    /// It was found.
    Done,
}

struct Walk<'a> {
    loads: &'a Loads,
    state: Assignment<'a>,
    order: Vec<usize>,
    /// By position in the order: the application before it that is equal to it.
    twins: Vec<Option<usize>>,
    goal: Goal,
    best: &'a mut Best,
}

impl<'a> Walk<'a> {
    fn new(loads: &'a Loads, order: Vec<usize>, goal: Goal, best: &'a mut Best) -> Self {
        let twins = order.iter().enumerate().map(|(position, &app)| {
            let mut before = order[..position].iter().rev();
            before
                .find(|&&other| loads.app(other) == loads.app(app))
                .copied()
        });
        Self {
            loads,
            state: Assignment::empty(loads),
            twins: twins.collect(),
            order,
            goal,
            best,
        }
    }

    /// Places the application at `position` and all after it. Fails if the meter ran out.
    fn descend(&mut self, position: usize, meter: &mut Meter) -> Result<(), BudgetSpent> {
        let total = self.state.total();
        let Some(&app) = self.order.get(position) else {
            if !self.is_pruned(total) {
                self.best.cost = total;
                self.best.assignment = self.state.assignment();
                if self.goal == Goal::First {
                    self.goal = Goal::Done;
                }
            }
            return Ok(());
        };
        if !self.may_improve(position, total, meter) {
            return Ok(());
        }
        let twin = self.twins[position].and_then(|twin| self.state.place(twin));
        for path in twin.unwrap_or(0)..self.loads.paths() {
            if meter.is_spent() {
                return Err(BudgetSpent);
            }
            if self.has_equal_empty_before(path) {
                continue;
            }
            let before = self.state.cost(path);
            let cost = self.state.cost_after(path, None, Some(app), meter);
            if self.is_pruned(total - before + cost) {
                continue;
            }
            self.state.put_at(app, path, cost);
            self.descend(position + 1, meter)?;
            self.state.take_at(app, before);
            if self.goal == Goal::Done {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether nothing that costs at least `bound` is wanted.
    fn is_pruned(&self, bound: Cost) -> bool {
        match self.goal {
            Goal::Less => bound >= self.best.cost,
            Goal::First => bound > self.best.cost,
            Goal::Done => true,
        }
    }

    fn has_equal_empty_before(&self, path: usize) -> bool {
        let is_empty = |path: usize| self.state.members(path).is_empty();
        is_empty(path)
            && (0..path)
                .any(|other| is_empty(other) && self.loads.path(other) == self.loads.path(path))
    }

    /// Whether placing everything from `position` on can still give what is wanted.
    fn may_improve(&self, position: usize, placed: Cost, meter: &mut Meter) -> bool {
        let mut bound = placed;
        for &app in &self.order[position..] {
            let Some(least) = self.least_addition(app, meter) else {
                return false;
            };
            bound = bound + least;
            let loosened = Cost {
                delay: bound.delay.saturating_sub(self.rounding()),
                ..bound
            };
            if self.is_pruned(loosened) {
                return false;
            }
        }
        true
    }

    /// The least that placing `app` adds; `None` if nothing that is wanted comes of it.
    fn least_addition(&self, app: usize, meter: &mut Meter) -> Option<Cost> {
        let paths = 0..self.loads.paths();
        if self.best.cost.unmet > 0 {
            meter.spend(self.loads.paths() as u64);
            return paths
                .map(|path| {
                    let load = self.state.load(path) + self.loads.rate(app);
                    self.loads.cost(path, app, load)
                })
                .min();
        }
        paths
            .filter_map(|path| {
                let with = self.state.cost_after(path, None, Some(app), meter);
                (with.unmet == 0).then(|| with - self.state.cost(path))
            })
            .min()
    }

    /// In nanoseconds: every predicted delay is rounded up, so what one application adds to
    /// another's can be off by one from what convexity says.
    fn rounding(&self) -> u128 {
        match self.best.cost.unmet {
            0 => (self.loads.apps() as u128).pow(2),
            _ => 0,
        }
    }
}
