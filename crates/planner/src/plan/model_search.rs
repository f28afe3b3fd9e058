//! Searches for a plan that leaves fewer latency targets unmet by another model than eq. 3.
//!
//! The planners are fast because eq. 3 depends only on a path's load. A model with queues and deadlines depends on
//! which applications share the path, and takes milliseconds for each set of them. It is therefore evaluated for few
//! sets, each once. A local search comes first: one application that shares a path with an unmet one moves, or two
//! change places. If targets are still unmet, a branch-and-bound search places the applications one after the other.
//! It is complete for few applications, and ends with the work limit for many.
//!
//! A plan is replaced only if fewer targets are unmet, or fewer at the 99th percentile while no application gets worse
//! on average. Which of many assignments has the least delay is left to the planners.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use super::members_of;

/// A model's score of the applications on a path, or of a whole plan. Less is better, and the first field is the most
/// important.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelScore {
    /// Applications whose latency target is not met on average, and those on an overloaded path.
    pub unmet: usize,
    /// Of these, the applications on an overloaded path: infinitely late.
    pub overloaded: usize,
    /// The lateness of the unmet applications on average, summed; saturates.
    pub lateness: Duration,
    /// Further applications, whose latency target is not met at their 99th percentile.
    pub unmet_at_p99: usize,
    /// The mean delays of all applications that have one, summed; saturates.
    pub delay: Duration,
}

impl ModelScore {
    /// Field by field.
    #[must_use]
    pub fn saturating_add(self, rhs: Self) -> Self {
        Self {
            unmet: self.unmet + rhs.unmet,
            overloaded: self.overloaded + rhs.overloaded,
            lateness: self.lateness.saturating_add(rhs.lateness),
            unmet_at_p99: self.unmet_at_p99 + rhs.unmet_at_p99,
            delay: self.delay.saturating_add(rhs.delay),
        }
    }

    /// Whether a plan with this score replaces one with the score `other`: fewer are unmet, or equally many and fewer
    /// overloaded, or fewer at their 99th percentile without more lateness.
    pub fn beats(&self, other: &Self) -> bool {
        let counts = |score: &Self| (score.unmet, score.overloaded);
        counts(self) < counts(other)
            || counts(self) == counts(other)
                && self.unmet_at_p99 < other.unmet_at_p99
                && self.lateness <= other.lateness
    }

    fn counts(&self) -> (usize, usize, usize) {
        (self.unmet, self.overloaded, self.unmet_at_p99)
    }

    /// All targets are met, on average and at the 99th percentile.
    pub fn all_met(&self) -> bool {
        self.unmet == 0 && self.unmet_at_p99 == 0
    }

    fn violations(&self) -> Violations {
        Violations {
            unmet: self.unmet,
            either: self.unmet + self.unmet_at_p99,
        }
    }
}

/// Unmet applications. Of two plans with equally many, the one with fewer unmet at the 99th percentile is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Violations {
    unmet: usize,
    either: usize,
}

impl Violations {
    fn and(self, rhs: Self) -> Self {
        Self {
            unmet: self.unmet + rhs.unmet,
            either: self.either + rhs.either,
        }
    }
}

/// Evaluates assignments by a model: a function of a path and of ascending indices of applications, which scores these
/// when exactly they share the path.
///
/// Deterministic if the model is: work is counted, never timed.
pub struct ModelSearch<'a, F> {
    /// Row per application, column per path.
    allowed: &'a [Vec<bool>],
    paths: usize,
    model: F,
    known: BTreeMap<(usize, Vec<usize>), ModelScore>,
    /// Sum of the squared sizes of the sets that were evaluated.
    work: u64,
    work_max: u64,
}

/// A better plan that the search has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImprovedPlan {
    /// The path of every application.
    pub assignment: Vec<usize>,
    /// By the model.
    pub score: ModelScore,
}

/// The state of the search that places one application after the other.
struct Search {
    /// The applications that fit on few paths come first.
    order: Vec<usize>,
    /// By position in the order: the violations of this and later applications that no path avoids.
    unavoidable: Vec<Violations>,
    members: Vec<Vec<usize>>,
    scores: Vec<ModelScore>,
    best: ImprovedPlan,
}

impl<'a, F: FnMut(usize, &[usize]) -> ModelScore> ModelSearch<'a, F> {
    /// For applications that may take the paths that `allowed` says, a row for each. To ask about a
    /// set is as much work as the square of those in it, and no more than about `work_max` is done
    /// in a search.
    ///
    /// The model must be monotone: a further application on a path makes no other met.
    pub fn new(allowed: &'a [Vec<bool>], work_max: u64, model: F) -> Self {
        Self {
            allowed,
            paths: allowed.first().map_or(0, Vec::len),
            model,
            known: BTreeMap::new(),
            work: 0,
            work_max,
        }
    }

    /// What the model says of an assignment, whatever work that is.
    pub fn score(&mut self, assignment: &[usize]) -> ModelScore {
        let scores = self.scores(assignment);
        sum(&scores)
    }

    /// An assignment that [beats](ModelScore::beats) the first of `starts`; `None` if none was found. Who
    /// need not be elsewhere for that is where `preferred` says.
    ///
    /// The search starts from each of `starts`, until only applications that would be unmet alone are left.
    pub fn improve(&mut self, starts: &[&[usize]], preferred: &[usize]) -> Option<ImprovedPlan> {
        let first = starts.first()?;
        let asked = self.score(first);
        let unavoidable = self.unavoidable();
        let least = unavoidable
            .iter()
            .copied()
            .fold(Violations::default(), Violations::and);
        let mut best = ImprovedPlan {
            assignment: first.to_vec(),
            score: asked,
        };
        for start in starts {
            if best.score.violations() <= least {
                break;
            }
            let found = self.descend(start);
            if found.score.beats(&best.score) {
                best = found;
            }
        }
        if best.score.violations() > least {
            best = self.search(best, &unavoidable);
        }
        best.score.beats(&asked).then(|| {
            self.restore_preferred(&mut best, preferred, &asked);
            best
        })
    }

    /// The work done so far.
    pub fn work(&self) -> u64 {
        self.work
    }

    fn score_of(&mut self, path: usize, members: &[usize]) -> ModelScore {
        if members.is_empty() {
            return ModelScore::default();
        }
        let key = (path, members.to_vec());
        if let Some(score) = self.known.get(&key) {
            return *score;
        }
        self.work = self.work.saturating_add((members.len() as u64).pow(2));
        let score = (self.model)(path, members);
        self.known.insert(key, score);
        score
    }

    /// `None`: that would be too much work.
    fn ask(&mut self, path: usize, members: &[usize]) -> Option<ModelScore> {
        let is_spent = self.work >= self.work_max;
        if is_spent && !self.known.contains_key(&(path, members.to_vec())) {
            return None;
        }
        Some(self.score_of(path, members))
    }

    fn scores(&mut self, assignment: &[usize]) -> Vec<ModelScore> {
        (0..self.paths)
            .map(|path| self.score_of(path, &members_of(assignment, path)))
            .collect()
    }

    /// The violations that each application is in wherever it is, even alone.
    fn unavoidable(&mut self) -> Vec<Violations> {
        let least = |model_search: &mut Self, app: usize| {
            let may: Vec<usize> = (0..model_search.paths)
                .filter(|path| model_search.allowed[app][*path])
                .collect();
            let alone = may
                .into_iter()
                .map(|path| model_search.score_of(path, &[app]).violations());
            // Without a path it is unmet.
            let none = Violations {
                unmet: 1,
                either: 1,
            };
            alone.min().unwrap_or(none)
        };
        (0..self.allowed.len())
            .map(|app| least(self, app))
            .collect()
    }

    /// Steps downhill, the steepest first, while violations are left; of those that were looked at, once
    /// the work is spent.
    fn descend(&mut self, start: &[usize]) -> ImprovedPlan {
        let mut assignment = start.to_vec();
        let mut scores = self.scores(start);
        loop {
            let step = self.best_move(&assignment, &scores);
            let step = step.or_else(|| self.best_exchange(&assignment, &scores));
            let Some(step) = step else {
                return ImprovedPlan {
                    assignment,
                    score: sum(&scores),
                };
            };
            for (app, path) in step.moves {
                assignment[app] = path;
            }
            for (path, score) in step.scores {
                scores[path] = score;
            }
        }
    }

    fn best_move(&mut self, assignment: &[usize], scores: &[ModelScore]) -> Option<Step> {
        let mut best = None;
        for (app, &from) in assignment.iter().enumerate() {
            if scores[from].all_met() {
                continue;
            }
            for to in (0..self.paths).filter(|to| *to != from) {
                let is_spent = self.allowed[app][to]
                    && self
                        .try_step(vec![(app, to)], assignment, scores, &mut best)
                        .is_none();
                if is_spent {
                    return best;
                }
            }
        }
        best
    }

    fn best_exchange(&mut self, assignment: &[usize], scores: &[ModelScore]) -> Option<Step> {
        let mut best = None;
        for (one, &here) in assignment.iter().enumerate() {
            if scores[here].all_met() {
                continue;
            }
            for (other, &there) in assignment.iter().enumerate() {
                // Where both are in violations, each pair once.
                let again = !scores[there].all_met() && other < one;
                if here == there || again || !self.allowed[one][there] || !self.allowed[other][here]
                {
                    continue;
                }
                let moves = vec![(one, there), (other, here)];
                if self
                    .try_step(moves, assignment, scores, &mut best)
                    .is_none()
                {
                    return best;
                }
            }
        }
        best
    }

    /// Keeps the step in `best` if it is better than that, and than none. `None` if the work is
    /// spent.
    fn try_step(
        &mut self,
        moves: Vec<(usize, usize)>,
        assignment: &[usize],
        scores: &[ModelScore],
        best: &mut Option<Step>,
    ) -> Option<()> {
        let mut after = assignment.to_vec();
        for (app, to) in &moves {
            after[*app] = *to;
        }
        let mut touched: Vec<usize> = moves
            .iter()
            .flat_map(|(app, to)| [assignment[*app], *to])
            .collect();
        touched.sort_unstable();
        touched.dedup();
        let mut changed = scores.to_vec();
        for path in &touched {
            changed[*path] = self.ask(*path, &members_of(&after, *path))?;
        }
        let score = sum(&changed);
        let least = best.as_ref().map_or_else(|| sum(scores), |best| best.score);
        if score < least {
            *best = Some(Step {
                moves,
                scores: touched
                    .into_iter()
                    .map(|path| (path, changed[path]))
                    .collect(),
                score,
            });
        }
        Some(())
    }

    /// Goes through what can be less violations than `best`, as far as the work allows.
    fn search(&mut self, best: ImprovedPlan, unavoidable: &[Violations]) -> ImprovedPlan {
        let mut fits: Vec<(usize, Reverse<Duration>, usize)> = Vec::new();
        for app in 0..self.allowed.len() {
            let alone: Vec<ModelScore> = (0..self.paths)
                .filter(|path| self.allowed[app][*path])
                .map(|path| self.score_of(path, &[app]))
                .collect();
            let paths = alone.iter().filter(|score| score.unmet == 0).count();
            let quickest = alone.iter().map(|score| score.delay).min();
            fits.push((paths, Reverse(quickest.unwrap_or_default()), app));
        }
        fits.sort_unstable();
        let order: Vec<usize> = fits.into_iter().map(|(_, _, app)| app).collect();
        let mut unavoidable_from = vec![Violations::default(); order.len() + 1];
        for (position, app) in order.iter().enumerate().rev() {
            unavoidable_from[position] = unavoidable_from[position + 1].and(unavoidable[*app]);
        }
        let mut search = Search {
            order,
            unavoidable: unavoidable_from,
            members: vec![Vec::new(); self.paths],
            scores: vec![ModelScore::default(); self.paths],
            best,
        };
        // Whether it was complete makes no difference to what is done with it.
        let _ = self.place(&mut search, 0);
        search.best
    }

    /// Places the application at `position` of the order, and all after it. `None` if the work is
    /// spent.
    fn place(&mut self, search: &mut Search, position: usize) -> Option<()> {
        let placed = sum(&search.scores);
        if placed.violations().and(search.unavoidable[position]) >= search.best.score.violations() {
            return Some(());
        }
        let Some(&app) = search.order.get(position) else {
            if placed.beats(&search.best.score) {
                search.best = ImprovedPlan {
                    assignment: search.assignment(self.allowed.len()),
                    score: placed,
                };
            }
            return Some(());
        };
        let mut choices = Vec::new();
        for path in (0..self.paths).filter(|path| self.allowed[app][*path]) {
            let mut members = search.members[path].clone();
            members.insert(members.partition_point(|other| *other < app), app);
            let score = self.ask(path, &members)?;
            let more = (
                score.unmet.saturating_sub(search.scores[path].unmet),
                score.lateness.saturating_sub(search.scores[path].lateness),
                score
                    .unmet_at_p99
                    .saturating_sub(search.scores[path].unmet_at_p99),
                score.delay.saturating_sub(search.scores[path].delay),
            );
            choices.push((more, path, members, score));
        }
        choices.sort_unstable();
        for (_, path, members, score) in choices {
            let members = std::mem::replace(&mut search.members[path], members);
            let before = std::mem::replace(&mut search.scores[path], score);
            let done = self.place(search, position + 1);
            search.members[path] = members;
            search.scores[path] = before;
            done?;
        }
        Some(())
    }

    /// Takes back what is not needed to beat what was asked about, until nothing can be.
    fn restore_preferred(
        &mut self,
        plan: &mut ImprovedPlan,
        preferred: &[usize],
        asked: &ModelScore,
    ) {
        let mut changed = true;
        while changed {
            changed = false;
            for (app, &path) in preferred.iter().enumerate() {
                if plan.assignment[app] == path || !self.allowed[app][path] {
                    continue;
                }
                let mut back = plan.assignment.clone();
                back[app] = path;
                let whole: Option<Vec<ModelScore>> = (0..self.paths)
                    .map(|path| self.ask(path, &members_of(&back, path)))
                    .collect();
                let Some(score) = whole.map(|scores| sum(&scores)) else {
                    return;
                };
                if score.counts() <= plan.score.counts() && score.beats(asked) {
                    *plan = ImprovedPlan {
                        assignment: back,
                        score,
                    };
                    changed = true;
                }
            }
        }
    }
}

/// Who goes where, the paths that this touches with their scores after it, and all in all.
struct Step {
    moves: Vec<(usize, usize)>,
    scores: Vec<(usize, ModelScore)>,
    score: ModelScore,
}

impl Search {
    fn assignment(&self, apps: usize) -> Vec<usize> {
        let mut assignment = vec![0; apps];
        for (path, members) in self.members.iter().enumerate() {
            for app in members {
                assignment[*app] = path;
            }
        }
        assignment
    }
}

fn sum(scores: &[ModelScore]) -> ModelScore {
    scores.iter().fold(ModelScore::default(), |sum, score| {
        sum.saturating_add(*score)
    })
}
