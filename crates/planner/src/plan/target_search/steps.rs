//! Steps from one assignment to a neighbouring one: moves of one application, exchanges of two.

use super::{Arrangement, EstimatedScore, TargetSearch, sum};

/// Up to so many members of a path are tried for each step: the unmet first, then the heaviest.
const TRIED_MAX: usize = 24;

/// Applications and the paths that they go to.
type Moves = [(usize, usize)];

/// What several paths come to with one change, in order of the change.
pub(super) type PathScores = Vec<(usize, EstimatedScore)>;

impl TargetSearch {
    /// Takes steps while targets are unmet and a step makes things better.
    pub(super) fn descend(&mut self, arrangement: &mut Arrangement) {
        let mut improved = true;
        while improved && !self.is_spent() {
            improved = false;
            for path in 0..self.paths.len() {
                while arrangement.scores[path].unmet > 0 && !self.is_spent() {
                    let step = self.best_move(arrangement, path);
                    let step = match step {
                        Some(step) => Some(step),
                        None => self.first_exchange(arrangement, path),
                    };
                    let Some(step) = step else { break };
                    self.apply(arrangement, &step);
                    improved = true;
                }
            }
        }
    }

    /// The members that are tried first.
    pub(super) fn candidates_on(&mut self, arrangement: &Arrangement, path: usize) -> Vec<usize> {
        let members = &arrangement.members[path];
        if members.len() <= TRIED_MAX {
            return members.clone();
        }
        self.estimate(path, members);
        let mut ranked: Vec<(bool, f64, usize)> = members
            .iter()
            .zip(&self.delays)
            .map(|(&app, &delay)| {
                let is_met = delay * self.factors[app][path] <= self.apps[app].limit;
                (is_met, -self.apps[app].flows[path].load(), app)
            })
            .collect();
        ranked.sort_by(|one, other| {
            let load = one.1.total_cmp(&other.1);
            one.0.cmp(&other.0).then(load).then(one.2.cmp(&other.2))
        });
        // Half of the tries are for the heaviest, whatever they are.
        let unmet = ranked.iter().take_while(|app| !app.0).count();
        let from_unmet = unmet.min(TRIED_MAX / 2);
        let heaviest = ranked[unmet..].iter().take(TRIED_MAX - from_unmet);
        let tried = ranked[..from_unmet].iter().chain(heaviest);
        tried.map(|&(_, _, app)| app).collect()
    }

    /// The best move away from `path` that makes things better.
    fn best_move(&mut self, arrangement: &Arrangement, path: usize) -> Option<Vec<(usize, usize)>> {
        let mut best: Option<(EstimatedScore, (usize, usize))> = None;
        for app in self.candidates_on(arrangement, path) {
            let left = without(&arrangement.members[path], app);
            let left = self.score(path, &left);
            for to in self.suitable[app].clone() {
                if to == path || self.is_spent() {
                    continue;
                }
                let joined = with(&arrangement.members[to], app);
                let joined = self.score(to, &joined);
                let after = total(arrangement, &[(path, left), (to, joined)]);
                let least = best.map_or(arrangement.total, |(score, _)| score);
                if after.is_better(&least) {
                    best = Some((after, (app, to)));
                }
            }
        }
        best.map(|(_, step)| vec![step])
    }

    /// An exchange of a member of `path` that leaves fewer unmet; without one, that with the least
    /// lateness if it is less.
    fn first_exchange(
        &mut self,
        arrangement: &Arrangement,
        path: usize,
    ) -> Option<Vec<(usize, usize)>> {
        let mut best: Option<(EstimatedScore, Vec<(usize, usize)>)> = None;
        let here = self.candidates_on(arrangement, path);
        for to in 0..self.paths.len() {
            if to == path {
                continue;
            }
            let there = self.candidates_on(arrangement, to);
            for &app in &here {
                let left = without(&arrangement.members[path], app);
                for &other in &there {
                    let may = self.apps[app].allowed[to] && self.apps[other].allowed[path];
                    if !may || self.is_spent() {
                        continue;
                    }
                    let mine = self.score(path, &with(&left, other));
                    let others = arrangement.scores[to].unmet;
                    if mine.unmet > arrangement.scores[path].unmet + others {
                        continue;
                    }
                    let theirs = with(&without(&arrangement.members[to], other), app);
                    let theirs = self.score(to, &theirs);
                    let after = total(arrangement, &[(path, mine), (to, theirs)]);
                    let least = best.as_ref().map_or(arrangement.total, |(score, _)| *score);
                    if !after.is_better(&least) {
                        continue;
                    }
                    let step = vec![(app, to), (other, path)];
                    if after.unmet < arrangement.total.unmet {
                        return Some(step);
                    }
                    best = Some((after, step));
                }
            }
        }
        best.map(|(_, step)| step)
    }

    /// What all comes to after `moves`.
    pub(super) fn total_after(
        &mut self,
        arrangement: &Arrangement,
        moves: &Moves,
    ) -> EstimatedScore {
        let touched = self.touched(arrangement, moves);
        total(arrangement, &touched)
    }

    fn touched(&mut self, arrangement: &Arrangement, moves: &Moves) -> PathScores {
        let mut paths: Vec<usize> = Vec::with_capacity(2 * moves.len());
        for &(app, to) in moves {
            paths.extend([arrangement.place[app], to]);
        }
        paths.sort_unstable();
        paths.dedup();
        let mut touched = Vec::with_capacity(paths.len());
        for path in paths {
            let members = members_after(arrangement, moves, path);
            touched.push((path, self.score(path, &members)));
        }
        touched
    }

    /// Makes `moves`.
    pub(super) fn apply(&mut self, arrangement: &mut Arrangement, moves: &Moves) {
        let touched = self.touched(arrangement, moves);
        for (path, score) in touched {
            let members = members_after(arrangement, moves, path);
            arrangement.members[path] = members;
            arrangement.scores[path] = score;
        }
        for &(app, to) in moves {
            arrangement.place[app] = to;
        }
        arrangement.total = sum(&arrangement.scores);
    }
}

/// All in all, with the paths that change.
pub(super) fn total(
    arrangement: &Arrangement,
    touched: &[(usize, EstimatedScore)],
) -> EstimatedScore {
    let mut total = EstimatedScore::default();
    for (path, score) in arrangement.scores.iter().enumerate() {
        let changed = touched.iter().find(|(other, _)| *other == path);
        total = total.plus(changed.map_or(*score, |(_, score)| *score));
    }
    total
}

pub(super) fn members_after(arrangement: &Arrangement, moves: &Moves, path: usize) -> Vec<usize> {
    let mut members = arrangement.members[path].clone();
    for &(app, to) in moves {
        if arrangement.place[app] == path {
            members = without(&members, app);
        }
        if to == path {
            members = with(&members, app);
        }
    }
    members
}

/// Ascending `members` with `app`.
pub(super) fn with(members: &[usize], app: usize) -> Vec<usize> {
    let mut members = members.to_vec();
    members.insert(members.partition_point(|&other| other < app), app);
    members
}

pub(super) fn without(members: &[usize], app: usize) -> Vec<usize> {
    let others = members.iter().copied().filter(|&other| other != app);
    others.collect()
}
