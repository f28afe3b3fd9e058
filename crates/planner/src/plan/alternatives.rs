//! What another path would do for one application, the rest of the assignment staying as it is.

use super::{DelayModel, Problem, Score};
use crate::delay::Prediction;

/// One application on one path, the others where an assignment has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternative {
    pub path: usize,
    /// Whether the assignment has the application there.
    pub current: bool,
    /// What the application itself would get, with its terms; its margin is
    /// [`Prediction::margin`].
    pub prediction: Prediction,
    /// The applications that would be unmet there though the assignment meets them, ascending;
    /// never the application itself.
    pub newly_unmet: Vec<usize>,
    /// The score of the whole assignment after the move.
    pub score: Score,
}

/// What every path, in order of index, would do for `app` with the rest of `assignment` as it is.
///
/// # Panics
///
/// If `assignment` is not one valid path index per application, or `app` not an application.
pub fn alternatives<M: DelayModel>(
    problem: &Problem<'_, M>,
    assignment: &[usize],
    app: usize,
) -> Vec<Alternative> {
    let current = problem.evaluate(assignment);
    (0..problem.paths().len())
        .map(|path| {
            let mut moved = assignment.to_vec();
            moved[app] = path;
            let plan = problem.evaluate(&moved);
            Alternative {
                path,
                current: assignment[app] == path,
                prediction: plan.predictions[app],
                newly_unmet: plan
                    .unmet
                    .into_iter()
                    .filter(|other| *other != app && !current.unmet.contains(other))
                    .collect(),
                score: plan.score,
            }
        })
        .collect()
}

/// The best other path for `app` with the rest of `assignment` as it is: the one with the least
/// score of the whole assignment in the problem's order, ties to the lowest index. `None` if there is only one path.
///
/// # Panics
///
/// As [`alternatives()`].
pub fn next_best<M: DelayModel>(
    problem: &Problem<'_, M>,
    assignment: &[usize],
    app: usize,
) -> Option<Alternative> {
    alternatives(problem, assignment, app)
        .into_iter()
        .filter(|alternative| !alternative.current)
        .min_by(|one, other| one.score.compare(&other.score, problem.order()))
}
