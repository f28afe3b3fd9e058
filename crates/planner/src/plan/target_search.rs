//! Searches for the assignment with the fewest unmet latency targets, by estimates of the forecast.
//!
//! It begins with an assignment and improves it in two ways: simulated annealing by random steps,
//! then local search by the best steps. A step moves one application, or lets two change places,
//! and computes only the two paths that it touches. The best assignment seen is the answer.
//!
//! Estimates are off by some per cent. [`TargetSearch::calibrate`] corrects them by the forecast for an assignment, so
//! that a second search avoids assignments that the forecast has rejected.
//!
//! Work is counted in units of [`PathEstimate::work`], never in time: every gateway of a site
//! computes the same.

use super::closed_form::random::Random;
use crate::queueing::{Flow, PathEstimate};

mod anneal;
mod steps;

/// An application to be placed, as estimated on each path.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// By path.
    pub flows: Vec<Flow>,
    /// By path: whether it may take the path.
    pub allowed: Vec<bool>,
    /// The longest mean delay that meets its target, in s; infinite without a target.
    pub limit: f64,
}

/// The least gain of a move that meets no further target: a ratio of the delay, and seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MoveCost {
    pub part: f64,
    pub seconds: f64,
}

/// A search over assignments of applications to paths.
#[derive(Clone, Debug)]
pub struct TargetSearch {
    paths: Vec<PathEstimate>,
    apps: Vec<Candidate>,
    /// Forecast over estimate, by application and path.
    factors: Vec<Vec<f64>>,
    /// By application: the paths on which it would be met alone, or all that it may take if there
    /// are none.
    suitable: Vec<Vec<usize>>,
    work: u64,
    work_max: u64,
    flows: Vec<Flow>,
    delays: Vec<f64>,
}

/// The estimated score of the applications on a path, or of all. Less is better, and the first field is the most
/// important.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub(super) struct EstimatedScore {
    /// Beyond their targets, or on an overloaded path.
    pub(super) unmet: usize,
    pub(super) overloaded: usize,
    /// Beyond [`COMFORT`] of the targets, in s; and what overloads paths, in s per second.
    lateness: f64,
    /// The delays of applications without a target, in s.
    delay: f64,
    /// A smooth form of the count of unmet, for annealing.
    penalty: f64,
}

/// An assignment with its estimates.
#[derive(Clone, Debug)]
pub(super) struct Arrangement {
    place: Vec<usize>,
    members: Vec<Vec<usize>>,
    scores: Vec<EstimatedScore>,
    total: EstimatedScore,
}

/// Estimates are off by some per cent: among assignments with as few unmet, one that leaves so much
/// room is preferred.
const COMFORT: f64 = 0.95;
/// A correction beyond this excludes the path anyway.
const FACTOR_MAX: f64 = 1e6;

impl TargetSearch {
    /// A search for `apps` on `paths`. Every application has a flow for each path.
    ///
    /// # Panics
    ///
    /// If an application has not one flow and one permission for each path.
    pub fn new(paths: Vec<PathEstimate>, apps: Vec<Candidate>) -> Self {
        let fits =
            |app: &Candidate| app.flows.len() == paths.len() && app.allowed.len() == paths.len();
        assert!(apps.iter().all(fits), "one flow and permission per path");
        Self {
            factors: vec![vec![1.0; paths.len()]; apps.len()],
            suitable: vec![Vec::new(); apps.len()],
            paths,
            apps,
            work: 0,
            work_max: 0,
            flows: Vec::new(),
            delays: Vec::new(),
        }
    }

    /// Corrects the estimates for `members` of `path` so that they are `delays`, in s, when exactly
    /// these share it; infinite where overloaded.
    pub fn calibrate(&mut self, path: usize, members: &[usize], delays: &[f64]) {
        self.estimate(path, members);
        for ((&app, &delay), &estimate) in members.iter().zip(delays).zip(&self.delays) {
            // Without a finite estimate the forecast does not matter.
            if estimate.is_finite() && estimate > 0.0 {
                self.factors[app][path] = (delay / estimate).clamp(1.0 / FACTOR_MAX, FACTOR_MAX);
            }
        }
    }

    /// The estimated means in s for `assignment`, by application.
    pub fn estimates(&mut self, assignment: &[usize]) -> Vec<f64> {
        let mut estimates = vec![0.0; assignment.len()];
        for path in 0..self.paths.len() {
            let members = super::members_of(assignment, path);
            self.estimate(path, &members);
            for (&app, &delay) in members.iter().zip(&self.delays) {
                estimates[app] = delay * self.factors[app][path];
            }
        }
        estimates
    }

    /// An assignment with fewer unmet than `start`, or equally many and less lateness, or `start`, within about `work`
    /// units. Applications that gain nothing by moving take their `preferred` path; `cost` is the least gain of a move
    /// without a target.
    pub fn improve(
        &mut self,
        start: &[usize],
        preferred: &[usize],
        cost: MoveCost,
        work: u64,
    ) -> Vec<usize> {
        self.work = 0;
        self.work_max = work;
        let mut best = self.arrangement(start);
        let floor = self.find_suitable();
        let annealing = work.saturating_sub(self.work) / 100 * ANNEALING_PERCENT;
        best = self.anneal(best, floor, annealing);
        self.descend(&mut best);
        self.restore(&mut best, preferred, cost);
        best.place
    }

    /// `start`, with applications without a target moved to paths of less delay, where no target suffers and the gain is
    /// at least `cost`.
    pub fn lower_delays(&mut self, start: &[usize], cost: MoveCost, work: u64) -> Vec<usize> {
        self.work = 0;
        self.work_max = work;
        let mut arrangement = self.arrangement(start);
        let mut patient: Vec<usize> = (0..self.apps.len())
            .filter(|&app| self.apps[app].limit.is_infinite())
            .collect();
        patient.sort_by(|&one, &other| {
            let load = |app: usize| self.apps[app].flows[start[app]].load();
            load(other).total_cmp(&load(one)).then(one.cmp(&other))
        });
        // An application that moves can make room for one before it.
        for _ in 0..DELAY_ROUNDS {
            let before = arrangement.place.clone();
            for &app in &patient {
                self.lower_delay_of(&mut arrangement, app, cost);
            }
            if arrangement.place == before {
                break;
            }
        }
        arrangement.place
    }

    /// Moves `app`, which has no target, to the path with the best total, if the gain is enough.
    fn lower_delay_of(&mut self, arrangement: &mut Arrangement, app: usize, cost: MoveCost) {
        let from = arrangement.place[app];
        let own = self.delay_of(app, from, &arrangement.members[from]);
        let enough = (cost.part * own + cost.seconds).max(NOTHING);
        let left = self.score(from, &steps::without(&arrangement.members[from], app));
        let mut best: Option<(EstimatedScore, usize)> = None;
        for to in 0..self.paths.len() {
            if to == from || !self.apps[app].allowed[to] || self.is_spent() {
                continue;
            }
            let joined = self.score(to, &steps::with(&arrangement.members[to], app));
            let after = steps::total(arrangement, &[(from, left), (to, joined)]);
            let gained = arrangement.total.delay - after.delay;
            let is_worth = after.is_better(&arrangement.total)
                || after.is_no_worse(&arrangement.total) && gained > enough;
            if is_worth && best.is_none_or(|(least, _)| after < least) {
                best = Some((after, to));
            }
        }
        if let Some((_, to)) = best {
            self.apply(arrangement, &[(app, to)]);
        }
    }

    /// The estimated means of `members` on `path`, in parts of their targets; without a target 0, or infinite where the
    /// path is overloaded.
    pub fn target_ratios(&mut self, path: usize, members: &[usize]) -> Vec<f64> {
        self.estimate(path, members);
        let ratio = |(&app, &delay): (&usize, &f64)| {
            let (delay, limit) = (delay * self.factors[app][path], self.apps[app].limit);
            match limit.is_infinite() {
                true if delay.is_finite() => 0.0,
                true => f64::INFINITY,
                false => delay / limit,
            }
        };
        members.iter().zip(&self.delays).map(ratio).collect()
    }

    /// The work that the last call took, in units of [`PathEstimate::work`].
    pub fn work(&self) -> u64 {
        self.work
    }

    fn is_spent(&self) -> bool {
        self.work >= self.work_max
    }

    /// The delays of `members` on `path` by estimate alone, in [`Self::delays`].
    fn estimate(&mut self, path: usize, members: &[usize]) {
        self.flows.clear();
        let apps = &self.apps;
        self.flows
            .extend(members.iter().map(|&app| apps[app].flows[path]));
        self.work += self.paths[path].work(members.len());
        self.paths[path].delays(&self.flows, &mut self.delays);
    }

    fn delay_of(&mut self, app: usize, path: usize, members: &[usize]) -> f64 {
        self.estimate(path, members);
        let position = members.iter().position(|&member| member == app);
        position.map_or(f64::INFINITY, |position| {
            self.delays[position] * self.factors[app][path]
        })
    }

    fn score(&mut self, path: usize, members: &[usize]) -> EstimatedScore {
        if members.is_empty() {
            return EstimatedScore::default();
        }
        self.estimate(path, members);
        let mut score = EstimatedScore::default();
        for (&app, &delay) in members.iter().zip(&self.delays) {
            let (delay, limit) = (delay * self.factors[app][path], self.apps[app].limit);
            if delay.is_infinite() {
                score.unmet += 1;
                score.overloaded += 1;
                score.penalty += 1.5;
            } else if limit.is_infinite() {
                score.delay += delay;
            } else {
                if delay > limit {
                    score.unmet += 1;
                    score.penalty += 1.5 - 0.5 * limit / delay;
                }
                score.lateness += (delay - limit * COMFORT).max(0.0);
            }
        }
        if score.overloaded > 0 {
            // Of two overloaded paths, the one with the smaller relative load is better.
            let load: f64 = self.flows.iter().map(Flow::load).sum();
            score.lateness += (load - 1.0).max(0.0);
        }
        score
    }

    fn arrangement(&mut self, assignment: &[usize]) -> Arrangement {
        let members: Vec<Vec<usize>> = (0..self.paths.len())
            .map(|path| super::members_of(assignment, path))
            .collect();
        let scores: Vec<EstimatedScore> = members
            .iter()
            .enumerate()
            .map(|(path, members)| self.score(path, members))
            .collect();
        Arrangement {
            place: assignment.to_vec(),
            total: sum(&scores),
            members,
            scores,
        }
    }

    /// Finds the paths where each application would be met alone. Returns how many would be met on none.
    fn find_suitable(&mut self) -> usize {
        let mut count = 0;
        for app in 0..self.apps.len() {
            let may: Vec<usize> = (0..self.paths.len())
                .filter(|&path| self.apps[app].allowed[path])
                .collect();
            let mut suitable = may.clone();
            suitable.retain(|&path| self.score(path, &[app]).unmet == 0);
            if suitable.is_empty() {
                count += 1;
                suitable = may;
            }
            self.suitable[app] = suitable;
        }
        count
    }

    /// Takes back moves that are not needed.
    fn restore(&mut self, arrangement: &mut Arrangement, preferred: &[usize], cost: MoveCost) {
        for (app, &path) in preferred.iter().enumerate() {
            if arrangement.place[app] == path || !self.apps[app].allowed[path] {
                continue;
            }
            let after = self.total_after(arrangement, &[(app, path)]);
            if !after.is_no_worse(&arrangement.total) {
                continue;
            }
            if self.apps[app].limit.is_infinite() {
                let longer = after.delay - arrangement.total.delay;
                let there = steps::with(&arrangement.members[path], app);
                let own = self.delay_of(app, path, &there);
                if longer > cost.part * own + cost.seconds {
                    continue;
                }
            }
            self.apply(arrangement, &[(app, path)]);
        }
    }
}

/// Passes over the applications without a target.
const DELAY_ROUNDS: usize = 8;
/// The share of the work for annealing.
const ANNEALING_PERCENT: u64 = 75;
/// Differences below this many seconds do not count.
const NOTHING: f64 = 1e-6;

impl EstimatedScore {
    fn plus(self, rhs: Self) -> Self {
        Self {
            unmet: self.unmet + rhs.unmet,
            overloaded: self.overloaded + rhs.overloaded,
            lateness: self.lateness + rhs.lateness,
            delay: self.delay + rhs.delay,
            penalty: self.penalty + rhs.penalty,
        }
    }

    /// Fewer unmet, or fewer overloaded, or noticeably less late.
    fn is_better(&self, other: &Self) -> bool {
        let counts = |score: &Self| (score.unmet, score.overloaded);
        counts(self) < counts(other)
            || counts(self) == counts(other) && self.lateness < other.lateness - NOTHING
    }

    /// No more unmet or overloaded, and not noticeably later.
    fn is_no_worse(&self, other: &Self) -> bool {
        !other.is_better(self)
    }
}

fn sum(scores: &[EstimatedScore]) -> EstimatedScore {
    let none = EstimatedScore::default();
    scores.iter().fold(none, |sum, score| sum.plus(*score))
}
