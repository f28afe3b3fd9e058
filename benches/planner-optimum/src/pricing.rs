//! What a path would best take at given prices, exactly.
//!
//! All rates are whole multiples of one number, up to rounding, so a path's load is one of a few
//! hundred *levels*. At a level every application's cost is known, rounding in its favour, and what
//! is left is a knapsack: taking less than the level allows only costs less at a lower level. A
//! level whose knapsack with the last application split is no better than the best so far needs no
//! looking at.

use crate::instance::{APPS, Instance};

/// Applications on one path, and what they cost there; times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Column {
    pub path: usize,
    /// A bit per application.
    pub set: u32,
    /// Those of it that are unmet.
    pub late: u32,
    pub unmet: f64,
    pub overloaded: f64,
    pub delay: f64,
}

/// What a unit of each part of the score costs.
#[derive(Clone, Copy, Debug)]
pub struct Weights {
    pub unmet: f64,
    pub overloaded: f64,
    pub delay: f64,
}

/// The applications that a path may take: a bit for each.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Where its latency target is met.
    pub met: u32,
    /// Where it is not.
    pub late: u32,
    /// Who has to be there either way.
    pub must: u32,
    /// The least and the largest level.
    pub levels: [usize; 2],
}

/// One path's costs by level (row) and application (column).
pub struct PathCosts {
    path: usize,
    delay: Vec<[f64; APPS]>,
    /// Indices of the applications whose targets are met.
    met: Vec<u32>,
    /// The level from which on the path may be overloaded.
    overloaded_from: usize,
    weights: Vec<usize>,
    overload_allowed: bool,
}

/// Sets looked at per path beyond the best: more columns a round, fewer rounds.
const MORE: usize = 3;

impl PathCosts {
    pub fn new(instance: &Instance, path: usize, overload_allowed: bool) -> Self {
        let apps = &instance.apps;
        let weights: Vec<usize> = apps.iter().map(|app| app.weight).collect();
        let all: usize = weights.iter().sum();
        let units = |app: &crate::instance::App| app.rate as f64 / app.weight as f64;
        let unit_min = apps.iter().map(units).fold(f64::INFINITY, f64::min) * (1.0 - 1e-12);
        let unit_max = apps.iter().map(units).fold(0.0, f64::max) * (1.0 + 1e-12);
        let bandwidth = instance.paths[path].bandwidth as f64;
        let mut costs = Self {
            path,
            delay: Vec::new(),
            met: Vec::new(),
            overloaded_from: (0..=all)
                .find(|&level| level as f64 * unit_max >= bandwidth)
                .unwrap_or(all + 1),
            weights,
            overload_allowed,
        };
        for level in 0..=all {
            let load = (level as f64 * unit_min).floor();
            if load >= bandwidth {
                break;
            }
            let mut met = 0;
            let mut delays = [0.0; APPS];
            for (index, app) in apps.iter().enumerate() {
                let transfer = app.length as f64 / (bandwidth - load + app.rate as f64);
                let delay = instance.paths[path].delay as f64 + transfer;
                delays[index] = delay / 1e6;
                let limit = instance.limit(path, index);
                met |= u32::from(limit.is_some_and(|limit| load <= limit as f64)) << index;
            }
            costs.delay.push(delays);
            costs.met.push(met);
        }
        costs
    }

    /// The level of a set.
    pub fn weight(&self, set: u32) -> usize {
        bits(set).map(|app| self.weights[app]).sum()
    }

    /// What exactly `set` costs; `None` if that is not allowed.
    pub fn column(&self, set: u32) -> Option<Column> {
        let level = self.weight(set);
        let (path, size) = (self.path, f64::from(set.count_ones()));
        let overloaded = Column {
            path,
            set,
            late: set,
            unmet: size,
            overloaded: size,
            delay: 0.0,
        };
        if level >= self.delay.len() {
            return self.overload_allowed.then_some(overloaded);
        }
        let unmet = set & !self.met[level];
        Some(Column {
            path,
            set,
            late: unmet,
            unmet: f64::from(unmet.count_ones()),
            overloaded: 0.0,
            delay: bits(set).map(|app| self.delay[level][app]).sum(),
        })
    }

    /// The least that any allowed set costs, less its prices, and some of the best sets, the best
    /// first. The empty set costs nothing. Infinite if no set is allowed.
    pub fn best(&self, weights: &Weights, prices: &[f64; APPS], choice: Choice) -> (f64, Vec<u32>) {
        let must_weight = self.weight(choice.must);
        let [low, high] = choice.levels;
        let end = self.delay.len().min(high.saturating_add(1));
        let mut levels: Vec<(f64, usize)> = (must_weight.max(low)..end)
            .filter_map(|level| {
                let reduced = self.reduced(level, weights, prices, choice)?;
                Some((self.split(level - must_weight, &reduced), level))
            })
            .collect();
        levels.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut found: Vec<(f64, u32)> = Vec::new();
        let may_be_empty = choice.must == 0 && low == 0;
        if may_be_empty {
            found.push((0.0, 0));
        }
        let mut least = if may_be_empty { 0.0 } else { f64::INFINITY };
        for (index, &(bound, level)) in levels.iter().enumerate() {
            if bound >= least && (index >= MORE || bound >= 0.0) {
                break;
            }
            let Some(reduced) = self.reduced(level, weights, prices, choice) else {
                continue;
            };
            let (value, set) = self.knapsack(level - must_weight, &reduced, low > 0);
            if value < f64::INFINITY {
                least = least.min(value);
                found.push((value, set | choice.must));
            }
        }
        if self.overload_allowed && high >= self.delay.len() {
            let (value, set) = self.best_overloaded(weights, prices, choice);
            if value < f64::INFINITY {
                least = least.min(value);
                found.push((value, set));
            }
        }
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        found.dedup_by_key(|(_, set)| *set);
        let sets = found.into_iter().map(|(_, set)| set).collect();
        (least, sets)
    }

    /// At a level: what those who must be there cost, and who else gains, with its (negative) cost,
    /// or may be needed to reach the least level; `None` if one of the former may not be there.
    fn reduced(
        &self,
        level: usize,
        weights: &Weights,
        prices: &[f64; APPS],
        choice: Choice,
    ) -> Option<(f64, Vec<(f64, usize)>)> {
        let met = self.met[level];
        let may = choice.met & met | choice.late & !met;
        if choice.must & !may != 0 {
            return None;
        }
        let cost = |app: usize| {
            let late = if met >> app & 1 == 1 {
                0.0
            } else {
                weights.unmet
            };
            weights.delay * self.delay[level][app] + late - prices[app]
        };
        let base = bits(choice.must).map(cost).sum();
        let others = bits(may & !choice.must)
            .map(|app| (cost(app), app))
            .filter(|(cost, _)| *cost < 0.0 || choice.levels[0] > 0)
            .collect();
        Some((base, others))
    }

    /// The knapsack with the last application split: never more than without.
    fn split(&self, room: usize, (base, others): &(f64, Vec<(f64, usize)>)) -> f64 {
        let mut others = others.clone();
        let by_unit = |(cost, app): &(f64, usize)| cost / self.weights[*app] as f64;
        others.sort_by(|a, b| by_unit(a).total_cmp(&by_unit(b)));
        let (mut value, mut room) = (*base, room as f64);
        for (cost, app) in others {
            if cost >= 0.0 {
                break;
            }
            let weight = self.weights[app] as f64;
            value += cost * (room / weight).min(1.0);
            room -= weight;
            if room <= 0.0 {
                break;
            }
        }
        // What rounding may have added.
        value - 1e-9
    }

    /// The least cost with all of `room` used, if `exactly`, or at most, and the applications that use it.
    fn knapsack(
        &self,
        room: usize,
        (base, others): &(f64, Vec<(f64, usize)>),
        exactly: bool,
    ) -> (f64, u32) {
        let unused = if exactly { f64::INFINITY } else { *base };
        let mut least = vec![(unused, 0_u32); room + 1];
        least[0].0 = *base;
        for &(cost, app) in others {
            let weight = self.weights[app];
            for used in (weight..=room).rev() {
                let (without, set) = least[used - weight];
                if without + cost < least[used].0 {
                    least[used] = (without + cost, set | 1 << app);
                }
            }
        }
        least[room]
    }

    /// The cheapest set that overloads the path.
    fn best_overloaded(
        &self,
        weights: &Weights,
        prices: &[f64; APPS],
        choice: Choice,
    ) -> (f64, u32) {
        if choice.must & !choice.late != 0 {
            return (f64::INFINITY, 0);
        }
        let needed = self
            .overloaded_from
            .saturating_sub(self.weight(choice.must));
        let each = weights.unmet + weights.overloaded;
        let base: f64 = bits(choice.must).map(|app| each - prices[app]).sum();
        // By room used, `needed` standing for all from there on.
        let mut least = vec![(f64::INFINITY, 0_u32); needed + 1];
        least[0] = (base, choice.must);
        for app in bits(choice.late & !choice.must) {
            let cost = each - prices[app];
            let before = least.clone();
            for (used, &(value, set)) in before.iter().enumerate() {
                let reached = (used + self.weights[app]).min(needed);
                if value + cost < least[reached].0 {
                    least[reached] = (value + cost, set | 1 << app);
                }
            }
        }
        least[needed]
    }
}

pub fn bits(set: u32) -> impl Iterator<Item = usize> {
    (0..APPS).filter(move |app| set >> app & 1 == 1)
}
