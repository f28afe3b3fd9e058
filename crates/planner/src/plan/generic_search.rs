//! Branch and bound for any delay model.
//!
//! Applications are placed in their order, each on every path in order of index, so that of
//! several best assignments the first in lexicographic order is found. Delays only grow with
//! company, so what is placed so far, and for the rest the best they could get alone, bounds what
//! can still come. A path's score with the same members is asked of the model once.

use std::collections::BTreeMap;

use super::{DelayModel, Plan, Problem, Score};

/// What a search found.
pub(super) struct SearchOutcome {
    pub(super) assignment: Vec<usize>,
    /// Whether everything was searched: the assignment is the best, and the first of the best.
    pub(super) complete: bool,
    pub(super) work: u64,
}

pub(super) fn run<M: DelayModel>(
    problem: &Problem<'_, M>,
    start: &Plan,
    budget: u64,
) -> SearchOutcome {
    let mut search = Search::new(problem, start, budget);
    search.descend(0, Score::default());
    SearchOutcome {
        assignment: search.best_assignment,
        complete: !search.exhausted,
        work: search.work,
    }
}

/// Some megabytes; the whole of a problem with two paths and 14 applications.
const KNOWN_MAX: usize = 1 << 15;

struct Search<'a, 'p, M> {
    problem: &'a Problem<'p, M>,
    members: Vec<Vec<usize>>,
    /// The score of every path with its members.
    path_scores: Vec<Score>,
    /// What the model answered, at most [`KNOWN_MAX`] times; what comes later is asked again.
    known: BTreeMap<(usize, Vec<usize>), Score>,
    /// By application: the least that it and all after it can add.
    least_rest: Vec<Score>,
    assignment: Vec<usize>,
    best: Score,
    best_assignment: Vec<usize>,
    /// Whether the best was found here, in lexicographic order, and not given at the start.
    found: bool,
    work: u64,
    budget: u64,
    exhausted: bool,
}

impl<'a, 'p, M: DelayModel> Search<'a, 'p, M> {
    fn new(problem: &'a Problem<'p, M>, start: &Plan, budget: u64) -> Self {
        let apps = problem.apps.len();
        let paths = problem.paths.len();
        let mut least_rest = vec![Score::default(); apps + 1];
        for app in (0..apps).rev() {
            let alone = (0..paths).map(|path| problem.score_of_path(path, &[app]));
            let least = alone.min_by(|one, other| one.compare(other, problem.order));
            let least = least.unwrap_or_default();
            least_rest[app] = least_rest[app + 1].saturating_add(least);
        }
        Self {
            problem,
            members: vec![Vec::new(); paths],
            path_scores: vec![Score::default(); paths],
            known: BTreeMap::new(),
            least_rest,
            assignment: Vec::with_capacity(apps),
            best: start.score,
            best_assignment: start.assignment.clone(),
            found: false,
            work: (apps * paths) as u64 * problem.model.work(1),
            budget,
            exhausted: false,
        }
    }

    /// Places `app` and all after it; `placed` is the score of all before it.
    fn descend(&mut self, app: usize, placed: Score) {
        let bound = placed.saturating_add(self.least_rest[app]);
        let compared = bound.compare(&self.best, self.problem.order);
        if compared.is_gt() || (self.found && compared.is_eq()) {
            return;
        }
        if app == self.problem.apps.len() {
            self.best = bound;
            self.best_assignment.clone_from(&self.assignment);
            self.found = true;
            return;
        }
        for path in 0..self.problem.paths.len() {
            if self.work >= self.budget {
                self.exhausted = true;
                return;
            }
            self.members[path].push(app);
            self.assignment.push(path);
            let before = self.path_scores[path];
            self.path_scores[path] = self.score_of(path);
            let sum = self
                .path_scores
                .iter()
                .fold(Score::default(), |sum, &score| sum.saturating_add(score));
            self.descend(app + 1, sum);
            self.path_scores[path] = before;
            self.assignment.pop();
            self.members[path].pop();
        }
    }

    /// The score of `path` with its present members.
    fn score_of(&mut self, path: usize) -> Score {
        // A node costs something even where the model need not be asked.
        self.work += 1;
        let key = (path, self.members[path].clone());
        if let Some(&score) = self.known.get(&key) {
            return score;
        }
        self.work += self.problem.model.work(key.1.len());
        let score = self.problem.score_of_path(path, &key.1);
        if self.known.len() < KNOWN_MAX {
            self.known.insert(key, score);
        }
        score
    }
}
