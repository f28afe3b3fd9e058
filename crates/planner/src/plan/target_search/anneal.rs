//! Simulated annealing: random moves and exchanges, of which worse ones are taken less and less.
//!
//! A step costs two estimates. Where a path's estimate is dear, because it has many applications,
//! that finds more than looking for the best of all steps.

use super::{
    Arrangement, Random, TargetSearch,
    steps::{Touched, with, without},
};

/// The heat at the beginning, in unmet targets; it falls to [`COLD`] with the square of the work
/// that is left. Ours: the first assignment is good, and more heat would spoil it.
const HOT: f64 = 0.3;
const COLD: f64 = 0.01;
/// One step in so many begins on any path, the others on one with unmet targets.
const ANYWHERE_ONE_IN: usize = 4;

impl TargetSearch {
    /// The best assignment that is met on a walk from `start` until `until` units of work are done
    /// or no more than `floor` are unmet.
    pub(super) fn anneal(&mut self, start: &Arrangement, floor: usize, until: u64) -> Arrangement {
        let mut random = Random::new();
        let (mut current, mut best) = (start.clone(), start.clone());
        let began = self.work;
        while self.work < until && best.total.unmet > floor {
            let done = (self.work - began) as f64 / (until - began) as f64;
            let heat = HOT * (1.0 - done) * (1.0 - done) + COLD;
            let Some(moves) = self.random_step(&current, &mut random) else {
                self.work += 1;
                continue;
            };
            let touched = self.touched(&current, &moves);
            let before: f64 = touched
                .iter()
                .map(|(path, _)| current.scores[*path].penalty)
                .sum();
            let after: f64 = touched.iter().map(|(_, score)| score.penalty).sum();
            if after - before > heat * random.exponential() {
                continue;
            }
            self.settle(&mut current, &moves, touched);
            if current.total.is_better(&best.total) {
                best.clone_from(&current);
            }
        }
        best
    }

    /// A move to another path, or an exchange with one that is there; `None` if it is not allowed.
    fn random_step(
        &self,
        arrangement: &Arrangement,
        random: &mut Random,
    ) -> Option<Vec<(usize, usize)>> {
        let late: Vec<usize> = (0..self.paths.len())
            .filter(|&path| arrangement.scores[path].unmet > 0)
            .collect();
        let from = match random.below(ANYWHERE_ONE_IN) {
            0 => random.below(self.paths.len()),
            _ => late[random.below(late.len())],
        };
        let to = random.below(self.paths.len());
        let members = &arrangement.members[from];
        if from == to || members.is_empty() {
            return None;
        }
        let app = members[random.below(members.len())];
        if !self.apps[app].allowed[to] {
            return None;
        }
        let others = &arrangement.members[to];
        if others.is_empty() || random.below(2) == 0 {
            return Some(vec![(app, to)]);
        }
        let other = others[random.below(others.len())];
        self.apps[other].allowed[from].then(|| vec![(app, to), (other, from)])
    }

    /// Makes `moves`, whose scores are known.
    fn settle(
        &mut self,
        arrangement: &mut Arrangement,
        moves: &[(usize, usize)],
        touched: Touched,
    ) {
        for &(app, to) in moves {
            let from = arrangement.place[app];
            arrangement.members[from] = without(&arrangement.members[from], app);
            arrangement.members[to] = with(&arrangement.members[to], app);
            arrangement.place[app] = to;
        }
        for (path, score) in touched {
            arrangement.scores[path] = score;
        }
        arrangement.total = super::sum(&arrangement.scores);
    }
}
