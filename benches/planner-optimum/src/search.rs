//! Branch and price: a lower bound on one part of the score, the parts before it bounded.
//!
//! At any prices, the sum of all prices and of what each path gains at best is at most the least
//! cost. Column generation looks for the best prices; where their bound is too low, an application
//! is put on each path in turn, and each of these is bounded for itself.

use std::{cmp::Ordering, collections::BinaryHeap};

use crate::{
    instance::{APPS, Instance, PATHS, Score},
    master::{self, Caps, Prices, Solved},
    polish,
    pricing::{Choice, Column, PathCosts, Weights},
};

/// What is to be bounded.
pub struct Question {
    pub weights: Weights,
    pub caps: Caps,
    /// What the best known plan has.
    pub found: f64,
    /// The search ends when the bound is this part of that.
    pub near: f64,
    /// The same, once `nodes` are divided.
    pub near_enough: f64,
    /// What an unserved application costs in the linear program.
    pub penalty: f64,
    /// Nodes that are divided with the first aim.
    pub nodes: usize,
    /// Nodes that are divided at most.
    pub nodes_max: usize,
}

/// What was proven, and what was met on the way.
pub struct Answer {
    pub bound: f64,
    /// Nodes that were divided.
    pub nodes: usize,
    /// The best assignment seen.
    pub best: (Score, Vec<usize>),
}

/// The applications that each path may take, a bit for each, and how much; who may be on one path only must be
/// there.
#[derive(Clone, Copy)]
struct May {
    met: [u32; PATHS],
    late: [u32; PATHS],
    /// The least and the largest level of every path.
    levels: [[usize; 2]; PATHS],
}

struct Node {
    bound: f64,
    may: May,
    prices: Prices,
}

/// Rounds of one linear program and one pricing each, per node.
const ROUNDS: usize = 80;
/// A path's levels are divided where those of its sets deviate by more than this.
const UNEQUAL: f64 = 3.0;
/// Above so many columns the worst are forgotten.
const COLUMNS_MAX: usize = 900;

pub struct Search<'a> {
    instance: &'a Instance,
    paths: Vec<PathCosts>,
    question: Question,
    columns: Vec<Column>,
    best: (Score, Vec<usize>),
}

impl<'a> Search<'a> {
    pub fn new(instance: &'a Instance, question: Question, start: &[usize]) -> Self {
        let caps = &question.caps;
        let is_none = |cap: Option<f64>| cap == Some(0.0);
        let overload = !is_none(caps.unmet) && !is_none(caps.overloaded);
        let paths = (0..PATHS)
            .map(|path| PathCosts::new(instance, path, overload))
            .collect();
        let mut search = Self {
            instance,
            paths,
            question,
            columns: Vec::new(),
            best: (instance.score(start), start.to_vec()),
        };
        search.know(start);
        search
    }

    /// Adds the sets of an assignment.
    fn know(&mut self, assignment: &[usize]) {
        for path in 0..PATHS {
            let set = (0..APPS).filter(|&app| assignment[app] == path);
            self.add(path, set.fold(0, |set, app| set | 1 << app));
        }
    }

    fn add(&mut self, path: usize, set: u32) {
        let is_known = |column: &Column| column.path == path && column.set == set;
        if set != 0 && !self.columns.iter().any(is_known) {
            self.columns.extend(self.paths[path].column(set));
        }
    }

    pub fn run(mut self) -> Answer {
        let prices = Prices {
            apps: [0.0; APPS],
            caps: [0.0; 2],
        };
        let mut heap = BinaryHeap::new();
        heap.push(Node {
            bound: f64::NEG_INFINITY,
            may: May::all(self.question.caps.unmet != Some(0.0)),
            prices,
        });
        let (mut nodes, mut bound) = (0, f64::INFINITY);
        while let Some(mut node) = heap.pop() {
            let question = &self.question;
            let is_enough = node.bound >= question.found * question.near_enough;
            if nodes >= question.nodes_max
                || (nodes >= question.nodes && is_enough)
                || node.bound >= self.target()
            {
                bound = bound.min(node.bound);
                break;
            }
            nodes += 1;
            let Some(by) = self.bound(&mut node) else {
                bound = bound.min(node.bound);
                continue;
            };
            for may in node.may.divided(by, self.question.caps.unmet) {
                let (value, _) = self.price(&node.prices, &may);
                let value = value.max(node.bound);
                if value >= self.target() {
                    bound = bound.min(value);
                } else {
                    heap.push(Node {
                        bound: value,
                        may,
                        prices: node.prices,
                    });
                }
            }
        }
        Answer {
            bound,
            nodes,
            best: self.best,
        }
    }

    /// Raises a node's bound; `None` if it reaches the target or nothing is open, else what to
    /// divide by.
    fn bound(&mut self, node: &mut Node) -> Option<By> {
        let target = self.target();
        let mut divide = None;
        let mut is_first = node.bound == f64::NEG_INFINITY;
        for round in 0..ROUNDS {
            let Some(solved) = self.solve(&node.may) else {
                break;
            };
            self.round_up(&solved, &node.may);
            divide = self.fractional(&solved, &node.may);
            // Prices between the best so far and the program's own swing less.
            let part = if is_first || round % 4 == 3 { 1.0 } else { 0.5 };
            let prices = solved.prices.between(&node.prices, part);
            let (value, sets) = self.price(&prices, &node.may);
            if value > node.bound || is_first {
                node.bound = value.max(node.bound);
                node.prices = prices;
                is_first = false;
            }
            if node.bound >= target {
                return None;
            }
            let open = solved.value - node.bound;
            let is_done = open <= 1e-6 * target.abs()
                || (solved.value < target && open < 0.1 * (target - solved.value));
            let before = self.columns.len();
            for (path, sets) in sets.into_iter().enumerate() {
                for set in sets {
                    self.add(path, set);
                }
            }
            if is_done || (self.columns.len() == before && part == 1.0) {
                break;
            }
        }
        divide.or_else(|| self.any_free(&node.may).map(By::Path))
    }

    fn target(&self) -> f64 {
        self.question.found * self.question.near
    }

    fn solve(&mut self, may: &May) -> Option<Solved> {
        let question = &self.question;
        let choices = self.choices(may);
        let fits = |column: &Column| {
            let path = column.path;
            let must = choices[path].must;
            let met = column.set & !column.late;
            let [low, high] = choices[path].levels;
            (low..=high).contains(&self.paths[path].weight(column.set))
                && met & !may.met[path] == 0
                && column.late & !may.late[path] == 0
                && must & !column.set == 0
        };
        let (fitting, rest): (Vec<Column>, Vec<Column>) =
            self.columns.iter().partition(|column| fits(column));
        let solved = master::solve(
            &fitting,
            &question.weights,
            &question.caps,
            question.penalty,
        );
        self.columns = fitting;
        let fitting = self.columns.len();
        self.columns.extend(rest);
        let solved = solved?;
        if fitting > COLUMNS_MAX {
            let mut by_cost: Vec<(f64, usize)> = (0..fitting)
                .map(|index| (self.reduced(&self.columns[index], &solved.prices), index))
                .collect();
            by_cost.sort_by(|a, b| a.0.total_cmp(&b.0));
            let keep: Vec<Column> = by_cost[..COLUMNS_MAX / 2]
                .iter()
                .map(|&(_, index)| self.columns[index])
                .collect();
            self.columns.splice(..fitting, keep);
            return master::solve(
                &self.columns[..COLUMNS_MAX / 2],
                &self.question.weights,
                &self.question.caps,
                self.question.penalty,
            );
        }
        // Those of other nodes that were not wanted for long.
        if self.columns.len() > 8 * COLUMNS_MAX {
            self.columns.truncate(4 * COLUMNS_MAX);
        }
        Some(solved)
    }

    fn reduced(&self, column: &Column, prices: &Prices) -> f64 {
        let weights = self.weights(prices);
        let apps: f64 = crate::pricing::bits(column.set)
            .map(|app| prices.apps[app])
            .sum();
        master::cost(column, &weights) - apps
    }

    /// What a part of the score costs with the prices of the caps on top.
    fn weights(&self, prices: &Prices) -> Weights {
        let own = self.question.weights;
        Weights {
            unmet: own.unmet + prices.caps[0],
            overloaded: own.overloaded + prices.caps[1],
            delay: own.delay,
        }
    }

    /// The bound at `prices`, and the best sets of every path.
    fn price(&self, prices: &Prices, may: &May) -> (f64, Vec<Vec<u32>>) {
        let weights = self.weights(prices);
        let choices = self.choices(may);
        let mut value: f64 = prices.apps.iter().sum();
        for (cap, price) in self.question.caps.list().into_iter().zip(prices.caps) {
            value -= cap.unwrap_or(0.0) * price;
        }
        let mut all = Vec::new();
        for (path, costs) in self.paths.iter().enumerate() {
            let (least, sets) = costs.best(&weights, &prices.apps, choices[path]);
            value += least;
            all.push(sets);
        }
        (value, all)
    }

    /// The applications that every path may take.
    fn choices(&self, may: &May) -> [Choice; PATHS] {
        let must = may.musts();
        std::array::from_fn(|path| Choice {
            met: may.met[path],
            late: may.late[path],
            must: must[path],
            levels: may.levels[path],
        })
    }

    /// How much of every application is on every path.
    fn shares(&self, solved: &Solved) -> [[f64; PATHS]; APPS] {
        let mut shares = [[0.0; PATHS]; APPS];
        for (column, &part) in self.columns.iter().zip(&solved.parts) {
            for app in crate::pricing::bits(column.set) {
                shares[app][column.path] += part;
            }
        }
        shares
    }

    /// Who is partly met, or else the application that is divided most, its weight counting; `None`
    /// if none is.
    fn fractional(&self, solved: &Solved, may: &May) -> Option<By> {
        let mut late = [0.0; APPS];
        for (column, &part) in self.columns.iter().zip(&solved.parts) {
            for app in crate::pricing::bits(column.late) {
                late[app] += part;
            }
        }
        let open = |app: usize| late[app].min(1.0 - late[app]);
        let most = (0..APPS)
            .filter(|&app| open(app) > 1e-3 && !may.is_decided(app))
            .max_by(|&a, &b| open(a).total_cmp(&open(b)));
        if let Some(app) = most {
            return Some(By::LatencyTarget(app));
        }
        if let Some(by) = self.spread(solved) {
            return Some(by);
        }
        let shares = self.shares(solved);
        let divided = |app: usize| {
            let most = shares[app].iter().copied().fold(0.0, f64::max);
            (1.0 - most) * self.instance.apps[app].weight as f64
        };
        (0..APPS)
            .filter(|&app| may.is_free(app) && divided(app) > 1e-4)
            .max_by(|&a, &b| divided(a).total_cmp(&divided(b)))
            .map(By::Path)
    }

    /// The path whose sets are the most unequal in level, and where to divide them; `None` if all
    /// are nearly equal.
    fn spread(&self, solved: &Solved) -> Option<By> {
        let mut most = (UNEQUAL, None);
        for path in 0..PATHS {
            let of_path = || {
                let columns = self.columns.iter().zip(&solved.parts);
                let own = columns.filter(|(column, part)| column.path == path && **part > 1e-4);
                own.map(|(column, part)| (self.paths[path].weight(column.set) as f64, part))
            };
            let all: f64 = of_path().map(|(_, part)| part).sum();
            let mean = of_path().map(|(level, part)| level * part).sum::<f64>() / all.max(1e-9);
            let square: f64 = of_path()
                .map(|(level, part)| (level - mean).powi(2) * part)
                .sum();
            let deviation = (square / all.max(1e-9)).sqrt();
            if deviation > most.0 {
                most = (deviation, Some(By::Level(path, mean.floor() as usize)));
            }
        }
        most.1
    }

    /// The heaviest application that may still be on several paths.
    fn any_free(&self, may: &May) -> Option<usize> {
        (0..APPS)
            .filter(|&app| may.is_free(app))
            .max_by_key(|&app| self.instance.apps[app].weight)
    }

    /// Everybody where most of it is, improved by moves and exchanges.
    fn round_up(&mut self, solved: &Solved, may: &May) {
        let shares = self.shares(solved);
        let most = |app: usize| {
            (0..PATHS)
                .filter(|&path| may.anyhow(path) >> app & 1 == 1)
                .max_by(|&a, &b| shares[app][a].total_cmp(&shares[app][b]))
                .unwrap_or(0)
        };
        let rounded: Vec<usize> = (0..APPS).map(most).collect();
        let (score, assignment) = polish::polished(self.instance, rounded);
        if score < self.best.0 {
            self.best = (score, assignment.clone());
            self.know(&assignment);
            if self.question.weights.delay > 0.0 {
                let delay = score.delay as f64 / 1e6;
                self.question.found = self.question.found.min(delay);
            }
        }
    }
}

/// What a node is divided by.
#[derive(Clone, Copy)]
enum By {
    /// An application is unmet on one of the paths, or met.
    LatencyTarget(usize),
    /// An application is on one of the paths.
    Path(usize),
    /// A path's load is up to this level, or above.
    Level(usize, usize),
}

impl May {
    fn all(unmet_allowed: bool) -> Self {
        let all = (1 << APPS) - 1;
        Self {
            met: [all; PATHS],
            late: [if unmet_allowed { all } else { 0 }; PATHS],
            levels: [[0, usize::MAX]; PATHS],
        }
    }

    fn anyhow(&self, path: usize) -> u32 {
        self.met[path] | self.late[path]
    }

    /// Who may be on several paths.
    fn is_free(&self, app: usize) -> bool {
        (0..PATHS)
            .map(|path| self.anyhow(path) >> app & 1)
            .sum::<u32>()
            > 1
    }

    /// Who is met everywhere, or nowhere.
    fn is_decided(&self, app: usize) -> bool {
        let may = |sets: &[u32; PATHS]| sets.iter().any(|set| set >> app & 1 == 1);
        !may(&self.met) || !may(&self.late)
    }

    /// Who may be on one path only.
    fn musts(&self) -> [u32; PATHS] {
        let (mut once, mut twice) = (0, 0);
        for path in 0..PATHS {
            twice |= once & self.anyhow(path);
            once |= self.anyhow(path);
        }
        std::array::from_fn(|path| self.anyhow(path) & !twice)
    }

    /// `app` on `path` only, met or not as it was allowed.
    fn only(mut self, app: usize, path: usize) -> Self {
        for other in (0..PATHS).filter(|&other| other != path) {
            self.met[other] &= !(1 << app);
            self.late[other] &= !(1 << app);
        }
        self
    }

    fn divided(&self, by: By, unmet_max: Option<f64>) -> Vec<Self> {
        match by {
            By::Level(path, level) => {
                let (mut below, mut above) = (*self, *self);
                below.levels[path][1] = level;
                above.levels[path][0] = level + 1;
                vec![below, above]
            }
            By::Path(app) => (0..PATHS)
                .filter(|&path| self.anyhow(path) >> app & 1 == 1)
                .map(|path| self.only(app, path))
                .collect(),
            By::LatencyTarget(app) => {
                let mut parts: Vec<Self> = (0..PATHS)
                    .filter(|&path| self.late[path] >> app & 1 == 1)
                    .map(|path| {
                        let mut part = self.only(app, path);
                        part.met[path] &= !(1 << app);
                        part.count(unmet_max);
                        part
                    })
                    .collect();
                let mut met = *self;
                for late in &mut met.late {
                    *late &= !(1 << app);
                }
                parts.push(met);
                parts
            }
        }
    }

    /// Once as many are unmet as may be, all others are met.
    fn count(&mut self, unmet_max: Option<f64>) {
        let met = self.met.iter().fold(0, |all, met| all | met);
        let unmet = f64::from(APPS as u32 - met.count_ones());
        if unmet_max.is_some_and(|max| unmet >= max) {
            for late in &mut self.late {
                *late &= !met;
            }
        }
    }
}

impl Prices {
    /// `part` of these, the rest of `other`.
    fn between(&self, other: &Self, part: f64) -> Self {
        let mix = |own: f64, other: f64| part * own + (1.0 - part) * other;
        Self {
            apps: std::array::from_fn(|app| mix(self.apps[app], other.apps[app])),
            caps: std::array::from_fn(|cap| mix(self.caps[cap], other.caps[cap])),
        }
    }
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Node {}

impl PartialOrd for Node {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Node {
    /// The lowest bound first out of the heap.
    fn cmp(&self, other: &Self) -> Ordering {
        other.bound.total_cmp(&self.bound)
    }
}
