//! How far a plan by [path-selection eq. 3] can be from the best one at most.
//!
//! [`bound()`] gives a score that no assignment goes below, by Lagrangian relaxation: [`lagrangian`] looks for
//! the prices, [`path_bound`] answers what a path can gain at these prices. The planner needs none of it to find
//! its plans; this is the evidence of how good they are.

mod instance;
mod lagrangian;
mod path_bound;

use std::time::Duration;

use keiro_planner::{
    delay::Equation3,
    plan::{Order, Plan, Problem, Score},
};

use instance::Instance;
use lagrangian::Found;

/// Work that is usually enough: more makes the bound hardly better.
pub const WORK: u64 = 1_100_000;

/// A part of the objective, in the order of importance if lateness comes before the delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Objective {
    /// [`Score::unmet`].
    Unmet,
    /// [`Score::overloaded`].
    Overloaded,
    /// [`Score::lateness`].
    Lateness,
    /// [`Score::delay`].
    Delay,
}

/// The distance between a score and the bound on the best one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// The first part of the objective in which the two differ. The parts before it are proven
    /// best; about those after it nothing is known.
    pub objective: Objective,
    /// How much more the score has there, relative to the bound; infinite if the bound is zero.
    pub relative: f64,
}

/// A score that no assignment of `problem` goes below, compared in its order: the first difference
/// decides.
///
/// `plan` is a good plan of the problem, which says what is to be bounded; the bound holds whatever
/// it is. Stops after about `work` predicted delays.
pub fn bound(problem: &Problem<'_, Equation3>, model: Equation3, plan: &Plan, work: u64) -> Score {
    let instance = Instance::new(problem, model);
    let found = Found::new(&plan.score, problem.order());
    let mut meter = Meter {
        work: 0,
        limit: work,
    };
    lagrangian::bound(&instance, &plan.assignment, found, &mut meter)
}

/// The distance between `score` and a bound on the best one; `None` if they are the same, so that
/// nothing can be better.
pub fn gap(score: &Score, bound: &Score, order: Order) -> Option<Gap> {
    let seconds = |time: Duration| time.as_secs_f64();
    let mut parts = [
        (Objective::Unmet, score.unmet as f64, bound.unmet as f64),
        (
            Objective::Overloaded,
            score.overloaded as f64,
            bound.overloaded as f64,
        ),
        (
            Objective::Lateness,
            seconds(score.lateness),
            seconds(bound.lateness),
        ),
        (Objective::Delay, seconds(score.delay), seconds(bound.delay)),
    ];
    if order == Order::DelayFirst {
        parts.swap(2, 3);
    }
    let mut parts = parts.into_iter();
    let (objective, score, bound) = parts.find(|(_, score, bound)| score != bound)?;
    Some(Gap {
        objective,
        relative: (score - bound) / bound,
    })
}

/// Counts work, one unit per predicted delay, against a limit.
#[derive(Clone, Copy, Debug)]
struct Meter {
    work: u64,
    limit: u64,
}

impl Meter {
    fn spend(&mut self, units: u64) {
        self.work += units;
    }

    fn left(&self) -> u64 {
        self.limit.saturating_sub(self.work)
    }
}

#[cfg(test)]
mod tests;
