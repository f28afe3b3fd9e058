//! Simulated annealing: random moves and exchanges, of which worse ones are taken less and less.
//!
//! A step costs two estimates. Where a path's estimate is dear, because it has many applications,
//! that finds more than looking for the best of all steps.

use super::{
    Arrangement, Random, TargetSearch,
    steps::{PathScores, members_after, with, without},
};

/// The heat at the beginning of a walk, in unmet targets; it falls to [`COLD`] with the square of
/// the work that is left. Ours: the first assignment is good, and more heat would spoil it.
const HOT: f64 = 0.3;
const COLD: f64 = 0.01;
/// Walks at most, each of which begins with the best assignment so far.
const WALKS_MAX: u64 = 4;
/// Steps for each application without which a further walk is not worth beginning.
const STEPS_PER_APP: u64 = 40;
/// One step in so many begins on any path, the others on one with unmet targets.
const ANYWHERE_ONE_IN: usize = 4;
/// One step in so many goes to any path, the others to one where the application is met alone.
const UNSUITABLE_ONE_IN: usize = 6;
/// Applications that are looked at for an exchange.
const PARTNERS: usize = 4;

impl TargetSearch {
    /// The best assignment that is met on walks from `start`, until `work` units are done or no
    /// more than `floor` are unmet.
    pub(super) fn anneal(&mut self, start: Arrangement, floor: usize, work: u64) -> Arrangement {
        let mut random = Random::new();
        let mut best = start;
        let walks = self.walks(work);
        for _ in 0..walks {
            let (began, mut current) = (self.work, best.clone());
            let each = work / walks;
            while self.work - began < each && best.total.unmet > floor {
                let left = 1.0 - (self.work - began) as f64 / each as f64;
                let heat = HOT * left * left + COLD;
                self.work += 1;
                if self.step(&mut current, heat, &mut random)
                    && current.total.is_better(&best.total)
                {
                    best.clone_from(&current);
                }
            }
        }
        best
    }

    /// How many walks `work` is enough for.
    fn walks(&self, work: u64) -> u64 {
        let members = self.apps.len() / self.paths.len().max(1) + 1;
        let step = self.paths.iter().map(|path| 2 * path.work(members)).max();
        let walk = self.apps.len() as u64 * STEPS_PER_APP * step.unwrap_or(1);
        (work / walk.max(1)).clamp(1, WALKS_MAX)
    }

    /// Tries a step; whether it was taken.
    fn step(&mut self, current: &mut Arrangement, heat: f64, random: &mut Random) -> bool {
        let Some(moves) = self.random_step(current, random) else {
            return false;
        };
        let worse_max = heat * random.exponential();
        let from = current.place[moves[0].0];
        let to = moves[0].1;
        let before = [from, to].map(|path| current.scores[path].penalty);
        // At best the path that is left has no unmet target any more.
        let joined = self.score(to, &members_after(current, &moves, to));
        if joined.penalty - before[1] - before[0] > worse_max {
            return false;
        }
        let left = self.score(from, &members_after(current, &moves, from));
        if joined.penalty + left.penalty - before[0] - before[1] > worse_max {
            return false;
        }
        self.settle(current, &moves, vec![(from, left), (to, joined)]);
        true
    }

    /// A move to another path, or an exchange with one that is there; `None` if there is none for
    /// the application that was drawn.
    fn random_step(
        &self,
        arrangement: &Arrangement,
        random: &mut Random,
    ) -> Option<Vec<(usize, usize)>> {
        let late: Vec<usize> = (0..self.paths.len())
            .filter(|&path| arrangement.scores[path].unmet > 0)
            .collect();
        let from = match random.below(ANYWHERE_ONE_IN) {
            1.. if !late.is_empty() => late[random.below(late.len())],
            _ => random.below(self.paths.len()),
        };
        let members = &arrangement.members[from];
        if members.is_empty() {
            return None;
        }
        let app = members[random.below(members.len())];
        // Who is met nowhere else may have to make room all the same.
        let to = match random.below(UNSUITABLE_ONE_IN) {
            0 => random.below(self.paths.len()),
            _ => *self.suitable[app].get(random.below(self.suitable[app].len().max(1)))?,
        };
        if from == to || !self.apps[app].allowed[to] {
            return None;
        }
        let others = &arrangement.members[to];
        if !others.is_empty() && random.below(2) == 1 {
            for _ in 0..PARTNERS {
                let other = others[random.below(others.len())];
                if self.suitable[other].contains(&from) {
                    return Some(vec![(app, to), (other, from)]);
                }
            }
        }
        Some(vec![(app, to)])
    }

    /// Makes `moves`, whose scores are known.
    fn settle(
        &mut self,
        arrangement: &mut Arrangement,
        moves: &[(usize, usize)],
        touched: PathScores,
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
