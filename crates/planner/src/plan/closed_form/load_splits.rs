//! Where to start from: how all the load could be split over the paths.
//!
//! Local search stays near the split that it starts from. With the load of every path given, an
//! application costs a known delay on each, and what is left is to fill the paths: a generalised
//! assignment problem, which prices of room, one per path, bound and nearly solve (Lagrangian
//! relaxation). That is so little work that many splits can be tried; those with the least bounds
//! are made into assignments.

use super::{
    Meter,
    loads::{Loads, rounded},
};
use crate::delay::OverloadPolicy;

/// At most `count` assignments, the most promising first, none like another; none at all where
/// there are too many paths, or too little work allowed, to try enough splits.
pub(super) fn starting_points(loads: &Loads, count: usize, meter: &mut Meter) -> Vec<Vec<usize>> {
    let paths = loads.paths();
    let round = round_work(loads);
    let tries = meter.limit().saturating_sub(meter.work()) / (round * ROUNDS).max(1);
    let refused = loads.saturation() == OverloadPolicy::Refused;
    if !refused || !(2..=PATHS_MAX).contains(&paths) || loads.apps() < 2 {
        return Vec::new();
    }
    let tries = tries.min(TRIES_MAX);
    // So many levels for every path but one.
    let levels = (1..=LEVELS_MAX)
        .take_while(|levels: &u64| levels.pow(paths as u32 - 1) <= tries)
        .last();
    match levels {
        Some(levels) if levels >= LEVELS_MIN => {
            let mut splits = LoadSplits::new(loads, levels as usize);
            splits.try_all(meter);
            splits.starts(count)
        }
        _ => Vec::new(),
    }
}

/// With more paths there would be too many splits.
const PATHS_MAX: usize = 6;

/// Splits tried at most, by the levels of every path but the widest, and how many these must be
/// and may be.
const TRIES_MAX: u64 = 1_000;
const LEVELS_MIN: u64 = 3;
const LEVELS_MAX: u64 = 64;

/// Rounds in which the prices of a split are found, starting from those of its neighbour.
const ROUNDS: u64 = 8;

/// Each round's step is this part of the one before.
const SHRINKING: f64 = 0.75;

/// What an unmet latency target costs, in mean delays.
const UNMET: f64 = 5.0;

/// The highest level, as a part of the bandwidth.
const FULL: f64 = 0.999;

/// Starts differ in where at least so many applications are.
const UNLIKE: usize = 8;

fn round_work(loads: &Loads) -> u64 {
    (loads.apps() * loads.paths()).div_ceil(8) as u64
}

struct LoadSplits<'a> {
    loads: &'a Loads,
    /// In bit/s.
    rates: Vec<f64>,
    rate_sum: f64,
    /// In nanoseconds.
    unmet_cost: f64,
    /// It takes what the others leave.
    widest: usize,
    /// The other paths, with their levels from the lowest.
    others: Vec<(usize, Vec<Level>)>,
    tried: Vec<LoadSplit>,
}

/// A load of a path, and what each application costs there then, in nanoseconds.
struct Level {
    load: f64,
    costs: Vec<f64>,
}

struct LoadSplit {
    /// In nanoseconds.
    bound: f64,
    /// By path: what room costs there, in nanoseconds per bit/s.
    prices: Vec<f64>,
    assignment: Vec<usize>,
}

impl<'a> LoadSplits<'a> {
    fn new(loads: &'a Loads, level_count: usize) -> Self {
        let paths = 0..loads.paths();
        let rates: Vec<f64> = (0..loads.apps())
            .map(|app| loads.rate(app) as f64)
            .collect();
        let widest = paths.clone().max_by_key(|&path| loads.path(path).bandwidth);
        let widest = widest.expect("there are paths");
        let mut splits = Self {
            loads,
            rate_sum: rates.iter().sum(),
            rates,
            unmet_cost: 0.0,
            widest,
            others: Vec::new(),
            tried: Vec::new(),
        };
        let half_full = |app: usize| {
            let costs = paths.clone().map(|path| {
                let load = loads.path(path).bandwidth as f64 / 2.0;
                splits.cost(path, app, load)
            });
            costs.fold(f64::INFINITY, f64::min)
        };
        let sum: f64 = (0..loads.apps()).map(half_full).sum();
        splits.unmet_cost = UNMET * sum / loads.apps() as f64;
        let levels = |path: usize| {
            let bandwidth = loads.path(path).bandwidth as f64;
            let levels = (0..level_count).map(|level| {
                // Denser towards the bandwidth, where delays rise.
                let part = 1.0 - level as f64 / level_count as f64;
                splits.level(path, bandwidth * FULL * (1.0 - part * part))
            });
            (path, levels.collect())
        };
        let others = paths.clone().filter(|&path| path != widest);
        splits.others = others.map(levels).collect();
        splits
    }

    fn level(&self, path: usize, load: f64) -> Level {
        let costs = (0..self.rates.len()).map(|app| self.cost(path, app, load));
        Level {
            load,
            costs: costs.collect(),
        }
    }

    /// What an application costs on a path with the whole load `load`.
    fn cost(&self, path: usize, app: usize, load: f64) -> f64 {
        let spec = self.loads.path(path);
        let rate = self.rates[app];
        let load = load.max(rate);
        let left = (spec.bandwidth as f64 - load).max((1.0 - FULL) * spec.bandwidth as f64);
        let transfer = self.loads.app(app).length_rounded() / (left + rate);
        let limit = self.loads.limit(path, app);
        let is_met = limit.is_some_and(|limit| load <= limit as f64);
        rounded(spec.delay_nanos) + transfer + if is_met { 0.0 } else { self.unmet_cost }
    }

    /// Goes through all splits, from each to a neighbour.
    fn try_all(&mut self, meter: &mut Meter) {
        let mut prices = vec![0.0; self.loads.paths()];
        let mut levels = vec![0; self.others.len()];
        while !meter.is_spent() {
            if let Some(split) = self.split(&levels, &prices, meter) {
                prices.clone_from(&split.prices);
                self.tried.push(split);
            }
            let mut turning = (0..levels.len()).rev();
            let Some(next) = turning.find(|&index| levels[index] + 1 < self.others[index].1.len())
            else {
                return;
            };
            levels[next] += 1;
            levels[next + 1..].fill(0);
        }
    }

    /// The split with these levels; `None` if the widest path cannot take the rest.
    fn split(&self, levels: &[usize], prices: &[f64], meter: &mut Meter) -> Option<LoadSplit> {
        let levels = self.others.iter().zip(levels);
        let mut chosen: Vec<(usize, &Level)> = levels
            .map(|((path, levels), &level)| (*path, &levels[level]))
            .collect();
        let rest = self.rate_sum - chosen.iter().map(|(_, level)| level.load).sum::<f64>();
        let bandwidth = self.loads.path(self.widest).bandwidth as f64;
        if !(0.0..bandwidth * FULL).contains(&rest) {
            return None;
        }
        let rest = self.level(self.widest, rest);
        chosen.push((self.widest, &rest));
        chosen.sort_unstable_by_key(|&(path, _)| path);
        let chosen: Vec<&Level> = chosen.into_iter().map(|(_, level)| level).collect();

        let mut prices = prices.to_vec();
        let mut best: Option<LoadSplit> = None;
        // That much more load than room, and a typical application would rather be unmet.
        let mut step = 0.3 * self.unmet_cost * self.rates.len() as f64 / self.rate_sum.max(1.0);
        for _ in 0..ROUNDS {
            meter.spend(round_work(self.loads));
            let (bound, used, assignment) = self.choose(&chosen, &prices);
            if best.as_ref().is_none_or(|best| bound > best.bound) {
                best = Some(LoadSplit {
                    bound,
                    prices: prices.clone(),
                    assignment,
                });
            }
            for ((price, used), level) in prices.iter_mut().zip(used).zip(&chosen) {
                let over = (used - level.load) / self.rate_sum.max(1.0);
                *price = (*price + step * over).max(0.0);
            }
            step *= SHRINKING;
        }
        best
    }

    /// Every application where it costs least at these prices of room: a bound, the load of every path, and
    /// where every application is.
    fn choose(&self, levels: &[&Level], prices: &[f64]) -> (f64, Vec<f64>, Vec<usize>) {
        let mut used = vec![0.0; levels.len()];
        let rooms = levels.iter().zip(prices);
        let mut bound = -rooms.map(|(level, price)| level.load * price).sum::<f64>();
        let assignment = self.rates.iter().enumerate().map(|(app, &rate)| {
            let (mut least, mut to) = (f64::INFINITY, 0);
            for (path, (level, price)) in levels.iter().zip(prices).enumerate() {
                let cost = level.costs[app] + price * rate;
                if cost < least {
                    (least, to) = (cost, path);
                }
            }
            bound += least;
            used[to] += rate;
            to
        });
        let assignment = assignment.collect();
        (bound, used, assignment)
    }

    fn starts(mut self, count: usize) -> Vec<Vec<usize>> {
        self.tried.sort_by(|a, b| a.bound.total_cmp(&b.bound));
        let mut starts: Vec<Vec<usize>> = Vec::with_capacity(count);
        let unlike = UNLIKE.min(self.rates.len() / 3).max(1);
        for LoadSplit { assignment, .. } in self.tried {
            let differs = |start: &Vec<usize>| {
                let places = start.iter().zip(&assignment);
                places.filter(|(one, other)| one != other).count() >= unlike
            };
            if starts.len() < count && starts.iter().all(differs) {
                starts.push(assignment);
            }
        }
        starts
    }
}
