//! Choosing a path for every application.
//!
//! [`greedy()`] is the paper's algorithm, `[path-selection fig. 4]`, as it is meant; [`exact()`] finds
//! the best assignment of few applications, and a good one of many. Both take any
//! [`DelayModel`] and are fast for eq. 3. [`alternatives()`] answers what another path would do for
//! one application.
//!
//! What is best, in this order ([`Score`]):
//!
//! 1. fewest applications with an unmet latency target;
//! 2. least total lateness;
//! 3. least summed delay;
//! 4. the lowest path index, for the first application in which two assignments differ.
//!
//! [`Order`] can exchange the second and the third; where every latency target is met, that is the same.
//!
//! Counted is *how many* latency targets are unmet, not by how much: a latency target is a yes-or-no matter
//! (`[path-selection eq. 4]`), and lateness comes second. An overloaded path has no finite delay,
//! so its applications are unmet even without a latency target, and infinitely late: of two assignments
//! with equally many unmet, the one with fewer applications on overloaded paths is less late.
//!
//! These store nothing between calls. [`Incumbent`] is for a plan in force: it answers a change with
//! few moves.
//!
//! What is planned with should be what is on the wire ([`WireLoadProblem`]). A model that knows more than eq. 3
//! does not plan, but says what it thinks of a plan, and mends it ([`ModelSearch`]).

mod alternatives;
mod closed_form;
mod cost_reduction;
mod exact;
mod frugal;
mod generic_search;
mod greedy;
pub mod incumbent;
mod model_search;
mod target_search;
mod wire_load_problem;

use std::{cmp::Ordering, time::Duration};

pub use alternatives::{Alternative, alternatives, next_best};
pub use cost_reduction::{Prices, ROOM_TO_RETURN, may_return, reduce_cost};
pub use exact::{Budget, ExactPlan, exact};
pub use frugal::frugal;
pub use greedy::greedy;
pub use incumbent::Incumbent;
pub use model_search::{ImprovedPlan, ModelScore, ModelSearch};
pub use target_search::{Candidate, MoveCost, TargetSearch};
pub use wire_load_problem::WireLoadProblem;

use crate::delay::{AppSpec, Delay, DelayTerms, Equation3, PathSpec, Prediction, Tolerance};
use keiro_units::Bandwidth;

/// What is to be planned. Paths and applications are known by their index.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a, M> {
    paths: &'a [PathSpec],
    apps: &'a [AppSpec],
    model: &'a M,
    tolerance: Tolerance,
    order: Order,
}

/// There are applications, but no path to put them on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPaths;

/// Predicts the delays of applications that share a path.
pub trait DelayModel {
    /// Pushes to `delays` the delay of each of `members`, in their order, when exactly they share
    /// `path`.
    ///
    /// `members` are distinct ascending indices into `apps`; `delays` is empty. The answer must
    /// depend on nothing else, and must be monotone: a further member never shortens another's
    /// delay. What [`exact()`] says of its answer holds as far as that does.
    fn delays(&self, path: &PathSpec, apps: &[AppSpec], members: &[usize], delays: &mut Vec<Delay>);

    /// The work of one such answer for so many members, in units of [`Budget`].
    fn work(&self, members: usize) -> u64 {
        members as u64
    }

    /// Equation 3 says so here, and the planners use what is known about it.
    ///
    /// `None`, the default, for every other model.
    fn closed_form(&self) -> Option<Equation3> {
        None
    }
}

/// What comes first where two assignments leave as many unmet, and as many of these overloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// Least lateness, then least delay: unmet applications get the best that is left.
    #[default]
    LatenessFirst,
    /// Least delay, of the unmet as well, then least lateness. A latency target is met or not: to be a
    /// little less late without being met is had by filling the other paths to the brim of
    /// the others' latency targets, and can cost all of them half as much delay again.
    DelayFirst,
}

/// How good an assignment is; less is better. The order of the fields is the order of importance,
/// as [`Order::LatenessFirst`] has it; [`Score::compare`] takes either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Score {
    /// Applications whose latency target, loosened by the tolerance, is not met, and those on an
    /// overloaded path.
    pub unmet: usize,
    /// Of these, the applications on an overloaded path: infinitely late.
    pub overloaded: usize,
    /// What the others are late beyond the loosened latency target, summed; saturates.
    pub lateness: Duration,
    /// The delays of all applications that have one, summed; saturates.
    pub delay: Duration,
}

/// An assignment and what is predicted for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The path of every application.
    pub assignment: Vec<usize>,
    /// What is predicted for every application.
    pub predictions: Vec<Prediction>,
    /// The applications that are unmet, ascending; empty if the plan is feasible.
    pub unmet: Vec<usize>,
    /// How good it is.
    pub score: Score,
}

impl<'a, M: DelayModel> Problem<'a, M> {
    /// A problem with strict latency targets.
    ///
    /// # Errors
    ///
    /// [`NoPaths`] if there are applications but no paths.
    pub fn new(paths: &'a [PathSpec], apps: &'a [AppSpec], model: &'a M) -> Result<Self, NoPaths> {
        if paths.is_empty() && !apps.is_empty() {
            return Err(NoPaths);
        }
        Ok(Self {
            paths,
            apps,
            model,
            tolerance: Tolerance::STRICT,
            order: Order::default(),
        })
    }

    /// The same problem, with every latency target loosened.
    #[must_use]
    pub fn with_tolerance(mut self, tolerance: Tolerance) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// The same problem, the best assignment being the best in this order.
    #[must_use]
    pub fn with_order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    pub fn paths(&self) -> &'a [PathSpec] {
        self.paths
    }

    pub fn apps(&self) -> &'a [AppSpec] {
        self.apps
    }

    pub fn tolerance(&self) -> Tolerance {
        self.tolerance
    }

    /// The order in which assignments are compared.
    pub fn order(&self) -> Order {
        self.order
    }

    /// What is predicted for an assignment: one path index per application.
    ///
    /// # Panics
    ///
    /// If `assignment` is not one valid path index per application.
    pub fn evaluate(&self, assignment: &[usize]) -> Plan {
        assert_eq!(
            assignment.len(),
            self.apps.len(),
            "an assignment names one path per application"
        );
        let mut predictions: Vec<Option<Prediction>> = vec![None; self.apps.len()];
        for path in 0..self.paths.len() {
            let members = members_of(assignment, path);
            for (&app, prediction) in members.iter().zip(self.predict(path, &members)) {
                predictions[app] = Some(prediction);
            }
        }
        let predictions: Vec<Prediction> = predictions
            .into_iter()
            .map(|prediction| prediction.expect("an assignment names existing paths"))
            .collect();
        let mut score = Score::default();
        let mut unmet = Vec::new();
        for (app, prediction) in predictions.iter().enumerate() {
            let own = self.score_of(app, prediction.delay);
            score = score.saturating_add(own);
            if own.unmet > 0 {
                unmet.push(app);
            }
        }
        Plan {
            assignment: assignment.to_vec(),
            predictions,
            unmet,
            score,
        }
    }

    /// What is predicted for `members` when exactly they share `path`, in their order.
    fn predict(&self, path: usize, members: &[usize]) -> Vec<Prediction> {
        let others = competing_rates(self.apps, members);
        let delays = self.delays(path, members);
        let spec = &self.paths[path];
        members
            .iter()
            .zip(delays)
            .zip(others)
            .map(|((&app, delay), others)| Prediction {
                terms: DelayTerms {
                    propagation: spec.delay,
                    length: self.apps[app].length,
                    bandwidth: spec.bandwidth,
                    others,
                    own: self.apps[app].rate(),
                },
                delay,
                latency_target: self.apps[app].latency_target,
            })
            .collect()
    }

    fn delays(&self, path: usize, members: &[usize]) -> Vec<Delay> {
        let mut delays = Vec::with_capacity(members.len());
        self.model
            .delays(&self.paths[path], self.apps, members, &mut delays);
        assert_eq!(
            delays.len(),
            members.len(),
            "a delay model answers once per member"
        );
        delays
    }

    /// The score of one application that has `delay`.
    fn score_of(&self, app: usize, delay: Delay) -> Score {
        let Delay::Finite(delay) = delay else {
            return Score {
                unmet: 1,
                overloaded: 1,
                ..Score::default()
            };
        };
        let lateness = match self.apps[app].latency_target {
            Some(latency_target) => delay.saturating_sub(self.tolerance.loosen(latency_target)),
            None => Duration::ZERO,
        };
        Score {
            unmet: usize::from(lateness > Duration::ZERO),
            overloaded: 0,
            lateness,
            delay,
        }
    }

    /// The score of `members` when exactly they share `path`.
    fn score_of_path(&self, path: usize, members: &[usize]) -> Score {
        let delays = self.delays(path, members);
        members
            .iter()
            .zip(delays)
            .fold(Score::default(), |score, (&app, delay)| {
                score.saturating_add(self.score_of(app, delay))
            })
    }
}

impl Plan {
    /// Whether every latency target, loosened by the problem's tolerance, is met.
    pub fn is_feasible(&self) -> bool {
        self.unmet.is_empty()
    }
}

impl Score {
    /// Which of two is better in `order`: the lesser.
    #[must_use]
    pub fn compare(&self, other: &Self, order: Order) -> Ordering {
        let counts = (self.unmet, self.overloaded).cmp(&(other.unmet, other.overloaded));
        let lateness = self.lateness.cmp(&other.lateness);
        let delay = self.delay.cmp(&other.delay);
        counts.then(match order {
            Order::LatenessFirst => lateness.then(delay),
            Order::DelayFirst => delay.then(lateness),
        })
    }

    /// Field by field.
    #[must_use]
    pub fn saturating_add(self, rhs: Self) -> Self {
        Self {
            unmet: self.unmet + rhs.unmet,
            overloaded: self.overloaded + rhs.overloaded,
            lateness: self.lateness.saturating_add(rhs.lateness),
            delay: self.delay.saturating_add(rhs.delay),
        }
    }
}

impl DelayModel for Equation3 {
    fn delays(
        &self,
        path: &PathSpec,
        apps: &[AppSpec],
        members: &[usize],
        delays: &mut Vec<Delay>,
    ) {
        for (&app, others) in members.iter().zip(competing_rates(apps, members)) {
            delays.push(self.predict(path, &apps[app], others).delay);
        }
    }

    fn closed_form(&self) -> Option<Equation3> {
        Some(*self)
    }
}

impl std::fmt::Display for NoPaths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad("there is no path to put the applications on; configure at least one")
    }
}

impl std::error::Error for NoPaths {}

fn members_of(assignment: &[usize], path: usize) -> Vec<usize> {
    (0..assignment.len())
        .filter(|&app| assignment[app] == path)
        .collect()
}

/// What the others of `members` send beside each of them: eq. 2.
pub fn competing_rates(apps: &[AppSpec], members: &[usize]) -> Vec<Bandwidth> {
    let rates: Vec<u64> = members
        .iter()
        .map(|&app| apps[app].rate().as_bits_per_second())
        .collect();
    let whole: u128 = rates.iter().copied().map(u128::from).sum();
    rates
        .iter()
        .map(|&rate| u64::try_from(whole - u128::from(rate)).unwrap_or(u64::MAX))
        .map(Bandwidth::from_bits_per_second)
        .collect()
}
