//! Iterated local search: a few applications are moved at random, or some of a path's members all
//! at once, and what follows is improved by moves and exchanges between the paths that changed; what
//! is not worse is kept.
//!
//! All in floating point, unrounded, on arrays by path: a path's cost takes a few nanoseconds per
//! member. The perturbations are drawn from a fixed sequence, so the same question gets the same answer.

use super::{
    Meter,
    assignment::Assignment,
    loads::{Loads, rounded},
    random::Random,
};
use crate::{delay::OverloadPolicy, plan::Order};

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// Fewer unmet; next comes by how much load the unmet are too many on their paths.
    Fewer,
    Best,
}

/// Improves `state` until the meter is spent, or no more targets can be met if that is the goal.
pub(super) fn run(state: &mut Assignment<'_>, goal: Goal, meter: &mut Meter) {
    let loads = state.loads();
    // As printed, eq. 3 lets an overloaded path serve: rare, and not for this.
    if loads.saturation() != OverloadPolicy::Refused || loads.paths() < 2 || loads.apps() < 2 {
        return;
    }
    let problem = Table::new(loads, goal);
    let least = match goal {
        Goal::Fewer => problem.never_met() as i32,
        Goal::Best => -1,
    };
    if state.total().unmet as i32 <= least {
        return;
    }
    let mut draws = Random::new();
    let mut current = Members::new(&problem, &state.assignment());
    let mut best = current.clone();
    let mut trial = current.clone();
    let mut stale = 0;
    while !meter.is_spent() && best.total().unmet > least {
        trial.clone_from(&current);
        trial.perturb(&mut draws, meter);
        trial.descend(meter);
        let total = trial.total();
        if total.is_below(&best.total()) {
            best.clone_from(&trial);
            stale = 0;
        } else {
            stale += 1;
        }
        if total.is_accepted_over(&current.total(), &best.total()) {
            std::mem::swap(&mut current, &mut trial);
        }
        if stale > STALE_MAX {
            current.clone_from(&best);
            stale = 0;
        }
    }
    let found = Assignment::of(loads, &best.assignment(loads.apps()), meter);
    if found.total().is_clearly_below(&state.total()) {
        *state = found;
    }
}

/// Applications moved at random at once, at least and at most.
const THROWN: [u64; 2] = [2, 5];

/// With more applications than this only a few are moved: it takes long to find places for more.
const DROPPING_APPS_MAX: usize = 64;

/// Some of a path's members are a quarter of them, or two, three, or all.
const QUARTERS: usize = 4;

/// How much worse than the best known what is gone on from may be, where only the delay differs.
const WORSE: f64 = 0.01;

/// Throws without a better result after which the best known is gone back to.
const STALE_MAX: u32 = 60;

/// What is counted of the unmet, before the delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shortfall {
    /// By how much load they are too many, as a part of the bandwidth.
    Excess,
    /// How late they are, in seconds.
    Lateness,
    /// Nothing: the delay comes first.
    None,
}

/// The problem as this search computes with it.
struct Table {
    shortfall: Shortfall,
    apps: Vec<App>,
    paths: Vec<Path>,
}

struct App {
    rate: u64,
    length: f64,
    /// In nanoseconds; infinite without one.
    latency_target: f64,
    /// Whether it is unmet even alone on any path.
    never_met: bool,
}

struct Path {
    bandwidth: u64,
    /// In nanoseconds.
    delay: f64,
    /// By application: the largest load with which it is met, plus one; zero if none is.
    load_limit: Vec<u64>,
}

/// Cost in the order of importance; times in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    unmet: i32,
    overloaded: i32,
    /// As [`Shortfall`] says, summed.
    shortfall: f64,
    delay: f64,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    app: usize,
    rate: u64,
    load_limit: u64,
    never_met: bool,
    rate_rounded: f64,
    length: f64,
    latency_target: f64,
    /// Its delay at the present load, and how that grows with it.
    delay: f64,
    steepness: f64,
}

#[derive(Debug, Default)]
struct PathMembers {
    /// By rising load that they bear.
    members: Vec<Member>,
    load: u64,
    cost: Tally,
    /// What a further bit/s would cost its members together, in nanoseconds.
    crowding: f64,
    changed: bool,
}

struct Members<'a> {
    table: &'a Table,
    paths: Vec<PathMembers>,
    place: Vec<usize>,
}

impl Table {
    fn new(loads: &Loads, goal: Goal) -> Self {
        let is_met = |app: usize, path: usize| {
            let limit = loads.limit(path, app);
            limit.is_some_and(|limit| limit >= loads.rate(app))
        };
        let apps = (0..loads.apps()).map(|app| App {
            rate: loads.rate(app),
            length: loads.app(app).length_rounded(),
            latency_target: loads
                .app(app)
                .latency_target_nanos
                .map_or(f64::INFINITY, rounded),
            never_met: !(0..loads.paths()).any(|path| is_met(app, path)),
        });
        let paths = (0..loads.paths()).map(|path| Path {
            bandwidth: loads.path(path).bandwidth,
            delay: rounded(loads.path(path).delay_nanos),
            load_limit: (0..loads.apps())
                .map(|app| loads.limit(path, app).map_or(0, |limit| limit + 1))
                .collect(),
        });
        Self {
            shortfall: match (goal, loads.order()) {
                (Goal::Fewer, _) => Shortfall::Excess,
                (Goal::Best, Order::LatenessFirst) => Shortfall::Lateness,
                (Goal::Best, Order::DelayFirst) => Shortfall::None,
            },
            apps: apps.collect(),
            paths: paths.collect(),
        }
    }

    fn never_met(&self) -> usize {
        self.apps.iter().filter(|app| app.never_met).count()
    }

    fn member(&self, path: usize, app: usize) -> Member {
        let entry = &self.apps[app];
        Member {
            app,
            rate: entry.rate,
            load_limit: self.paths[path].load_limit[app],
            never_met: entry.never_met,
            rate_rounded: entry.rate as f64,
            length: entry.length,
            latency_target: entry.latency_target,
            delay: 0.0,
            steepness: 0.0,
        }
    }
}

impl Tally {
    fn plus(self, other: Self) -> Self {
        Self {
            unmet: self.unmet + other.unmet,
            overloaded: self.overloaded + other.overloaded,
            shortfall: self.shortfall + other.shortfall,
            delay: self.delay + other.delay,
        }
    }

    /// Less by more than what rounding can make of nothing.
    fn is_below(&self, other: &Self) -> bool {
        let counts = (self.unmet, self.overloaded);
        let others = (other.unmet, other.overloaded);
        if counts != others {
            return counts < others;
        }
        let shortfall = self.shortfall - other.shortfall;
        if shortfall.abs() > NOTHING_SHORTFALL {
            return shortfall < 0.0;
        }
        self.delay < other.delay - NOTHING_NANOS
    }

    /// Whether to go on from here rather than from `current`.
    fn is_accepted_over(&self, current: &Self, best: &Self) -> bool {
        if !current.is_below(self) {
            return true;
        }
        let counts = (self.unmet, self.overloaded);
        counts == (best.unmet, best.overloaded)
            && self.shortfall <= best.shortfall + NOTHING_SHORTFALL
            && self.delay <= best.delay * (1.0 + WORSE)
    }
}

/// A microsecond of lateness, as in [`Cost::is_clearly_below`](super::loads::Cost::is_clearly_below),
/// or a millionth of a path's bandwidth.
const NOTHING_SHORTFALL: f64 = 1e-6;

/// Delays are rounded to nanoseconds in the end.
const NOTHING_NANOS: f64 = 0.5;

impl<'a> Members<'a> {
    fn new(table: &'a Table, assignment: &[usize]) -> Self {
        let mut state = Self {
            table,
            paths: table.paths.iter().map(|_| PathMembers::default()).collect(),
            place: assignment.to_vec(),
        };
        for (app, &path) in assignment.iter().enumerate() {
            let member = table.member(path, app);
            state.paths[path].members.push(member);
            state.paths[path].load += member.rate;
        }
        for path in 0..state.paths.len() {
            state.renew(path);
        }
        state
    }

    fn clone_from(&mut self, other: &Self) {
        self.place.clone_from(&other.place);
        for (path, other) in self.paths.iter_mut().zip(&other.paths) {
            path.clone_from(other);
        }
    }

    fn assignment(&self, apps: usize) -> Vec<usize> {
        self.place[..apps].to_vec()
    }

    fn total(&self) -> Tally {
        let costs = self.paths.iter().map(|path| path.cost);
        costs.fold(Tally::default(), Tally::plus)
    }

    /// Takes some applications and puts each on another path.
    fn perturb(&mut self, draws: &mut Random, meter: &mut Meter) {
        let kind = match self.place.len() {
            ..=DROPPING_APPS_MAX => draws.below(4),
            _ => 3,
        };
        match kind {
            0 => self.evict_strictest(draws),
            1 => self.evict_some(draws),
            _ => self.perturb_at_random(draws),
        }
        for path in 0..self.paths.len() {
            if self.paths[path].changed {
                self.renew(path);
                meter.spend(self.paths[path].members.len() as u64);
            }
        }
    }

    /// Any, to anywhere.
    fn perturb_at_random(&mut self, draws: &mut Random) {
        let span = (THROWN[1] - THROWN[0] + 1) as usize;
        let count = THROWN[0] as usize + draws.below(span);
        for _ in 0..count {
            let app = draws.below(self.place.len());
            let from = self.place[app];
            let to = (from + 1 + draws.below(self.paths.len() - 1)) % self.paths.len();
            self.shift(app, to);
        }
    }

    /// A path's members with the lowest limits, up to any of them: then it may take more.
    fn evict_strictest(&mut self, draws: &mut Random) {
        let path = draws.below(self.paths.len());
        let members = &self.paths[path].members;
        if members.is_empty() {
            return;
        }
        let count = 1 + draws.below(members.len());
        let leaving: Vec<usize> = members
            .iter()
            .take(count)
            .map(|member| member.app)
            .collect();
        for app in leaving {
            self.evict(app);
        }
    }

    /// Some of a path's members, or all.
    fn evict_some(&mut self, draws: &mut Random) {
        let path = draws.below(self.paths.len());
        let part = draws.below(QUARTERS);
        let members = self.paths[path].members.iter().map(|member| member.app);
        let leaving: Vec<usize> = members.filter(|_| draws.below(QUARTERS) <= part).collect();
        for app in leaving {
            self.evict(app);
        }
    }

    /// To the other path with most room below its limit there.
    fn evict(&mut self, app: usize) {
        let room = |path: usize| {
            let (spec, load) = (&self.table.paths[path], self.paths[path].load);
            (spec.load_limit[app] as f64 - load as f64) / spec.bandwidth as f64
        };
        let others = (0..self.paths.len()).filter(|&path| path != self.place[app]);
        if let Some(to) = others.max_by(|&one, &other| room(one).total_cmp(&room(other))) {
            self.shift(app, to);
        }
    }

    /// Moves without computing anything but the load.
    fn shift(&mut self, app: usize, to: usize) {
        let from = std::mem::replace(&mut self.place[app], to);
        let source = &mut self.paths[from];
        let index = source.members.iter().position(|member| member.app == app);
        let member = source
            .members
            .swap_remove(index.expect("a placed application is a member of its path"));
        source.load -= member.rate;
        source.changed = true;
        let member = self.table.member(to, app);
        let target = &mut self.paths[to];
        target.members.push(member);
        target.load += member.rate;
        target.changed = true;
    }

    /// Computes what is kept about a path anew.
    fn renew(&mut self, path: usize) {
        let members = &mut self.paths[path].members;
        members.sort_unstable_by_key(|member| (member.load_limit, member.app));
        let cost = self.cost(path, self.paths[path].load, None, None);
        let place = &mut self.paths[path];
        place.cost = cost;
        place.crowding = 0.0;
        let spec = &self.table.paths[path];
        let left = spec.bandwidth as f64 - place.load as f64;
        for member in &mut place.members {
            let own = left + member.rate_rounded;
            let transfer = member.length / own;
            member.delay = spec.delay + transfer;
            member.steepness = transfer / own;
            place.crowding += member.steepness;
        }
    }

    /// Moves and exchanges between two paths, one of which changed, as long as there are any.
    fn descend(&mut self, meter: &mut Meter) {
        while let Some(path) = (0..self.paths.len()).find(|&path| self.paths[path].changed) {
            self.paths[path].changed = false;
            for other in (0..self.paths.len()).filter(|&other| other != path) {
                while self.better_pair(path, other, meter) {
                    self.paths[other].changed = true;
                    if meter.is_spent() {
                        return;
                    }
                }
            }
        }
    }

    /// Makes the moves and exchanges between two paths that are worth it; whether there were any.
    fn better_pair(&mut self, one: usize, other: usize, meter: &mut Meter) -> bool {
        let mut better = false;
        for (from, to) in [(one, other), (other, one)] {
            let mut index = 0;
            while index < self.paths[from].members.len() {
                if self.try_exchange(from, Some(index), to, None, meter) {
                    better = true;
                } else {
                    index += 1;
                }
            }
        }
        let mut here = 0;
        while here < self.paths[one].members.len() {
            meter.spend(1 + self.paths[other].members.len() as u64 / 2);
            let mut there = 0;
            while there < self.paths[other].members.len() {
                better |= self.try_exchange(one, Some(here), other, Some(there), meter);
                there += 1;
            }
            here += 1;
        }
        better
    }

    /// Exchanges (or moves) if that is better.
    fn try_exchange(
        &mut self,
        here: usize,
        mine: Option<usize>,
        there: usize,
        theirs: Option<usize>,
        meter: &mut Meter,
    ) -> bool {
        let (one, other) = (&self.paths[here], &self.paths[there]);
        let mine = mine.map(|index| &one.members[index]);
        let theirs = theirs.map(|index| &other.members[index]);
        let rate = |member: Option<&Member>| member.map_or(0, |member| member.rate);
        let load_here = one.load - rate(mine) + rate(theirs);
        let load_there = other.load - rate(theirs) + rate(mine);
        let is_calm = one.cost.unmet == 0 && other.cost.unmet == 0;
        if is_calm
            && !(self.all_met(here, load_here, mine, theirs)
                && self.all_met(there, load_there, theirs, mine))
        {
            return false;
        }
        meter.spend(1);
        let before = one.cost.plus(other.cost);
        let unmet = match is_calm {
            true => 0,
            false => {
                self.unmet(here, load_here, mine, theirs)
                    + self.unmet(there, load_there, theirs, mine)
            }
        };
        if unmet > before.unmet {
            return false;
        }
        if unmet == before.unmet {
            let shortfall = match unmet {
                0 => 0.0,
                _ => {
                    meter.spend(1);
                    self.shortfall(here, load_here, mine, theirs)
                        + self.shortfall(there, load_there, theirs, mine)
                }
            };
            if shortfall > before.shortfall + NOTHING_SHORTFALL {
                return false;
            }
            if shortfall > before.shortfall - NOTHING_SHORTFALL && before.overloaded == 0 {
                let gain = self.least_change(here, load_here, mine, theirs)
                    + self.least_change(there, load_there, theirs, mine);
                if gain >= -NOTHING_NANOS {
                    return false;
                }
            }
        }
        meter.spend((one.members.len() + other.members.len()) as u64 / 2);
        let after_here = self.cost(here, load_here, mine, theirs);
        if !after_here.is_below(&before) {
            return false;
        }
        let after_there = self.cost(there, load_there, theirs, mine);
        if !after_here.plus(after_there).is_below(&before) {
            return false;
        }
        let moves = [(mine, there), (theirs, here)].map(|(member, to)| (member.map(|m| m.app), to));
        for (app, to) in moves {
            if let Some(app) = app {
                self.shift(app, to);
            }
        }
        self.renew(here);
        self.renew(there);
        true
    }

    /// Whether every application on a path without `out` and with `into` is met, `load` in all.
    fn all_met(&self, path: usize, load: u64, out: Option<&Member>, into: Option<&Member>) -> bool {
        let members = &self.paths[path].members;
        let out = out.map(|member| member.app);
        let first = members.iter().find(|member| Some(member.app) != out);
        first.is_none_or(|member| load < member.load_limit)
            && into.is_none_or(|member| load < self.table.paths[path].load_limit[member.app])
    }

    /// How many are unmet on a path without `out` and with `into`, `load` in all.
    fn unmet(&self, path: usize, load: u64, out: Option<&Member>, into: Option<&Member>) -> i32 {
        let members = &self.paths[path].members;
        let load_limit = &self.table.paths[path].load_limit;
        let is_unmet = |member: Option<&Member>| {
            i32::from(member.is_some_and(|own| load_limit[own.app] <= load))
        };
        // No application is met on an overloaded path.
        let unmet = members
            .iter()
            .take_while(|member| member.load_limit <= load);
        unmet.count() as i32 - is_unmet(out) + is_unmet(into)
    }

    /// What is counted of the unmet on a path without `out` and with `into`, `load` in all.
    fn shortfall(
        &self,
        path: usize,
        load: u64,
        out: Option<&Member>,
        into: Option<&Member>,
    ) -> f64 {
        let into = into.map(|member| self.table.member(path, member.app));
        let out = out.map(|member| member.app);
        let members = self.paths[path].members.iter();
        let unmet = members
            .take_while(|member| member.load_limit <= load)
            .chain(into.iter().filter(|member| member.load_limit <= load))
            .filter(|member| Some(member.app) != out);
        let spec = &self.table.paths[path];
        match self.table.shortfall {
            Shortfall::None => 0.0,
            Shortfall::Lateness if load >= spec.bandwidth => 0.0,
            Shortfall::Lateness => {
                let left = (spec.bandwidth - load) as f64;
                let late = |member: &Member| {
                    let delay = spec.delay + member.length / (left + member.rate_rounded);
                    (delay - member.latency_target).max(0.0) / 1e9
                };
                unmet.map(late).sum()
            }
            Shortfall::Excess => {
                let over = |member: &Member| (load - member.load_limit) as f64 + 1.0;
                let late = unmet.filter(|member| !member.never_met);
                late.map(over).sum::<f64>() / spec.bandwidth as f64
            }
        }
    }

    /// The least by which a path's delays can change, by the tangent at its load.
    fn least_change(
        &self,
        path: usize,
        load: u64,
        out: Option<&Member>,
        into: Option<&Member>,
    ) -> f64 {
        let place = &self.paths[path];
        let spec = &self.table.paths[path];
        if load >= spec.bandwidth {
            return f64::NEG_INFINITY;
        }
        let mut change = 0.0;
        let mut crowding = place.crowding;
        if let Some(out) = out {
            change -= out.delay;
            crowding -= out.steepness;
        }
        if let Some(into) = into {
            let left = (spec.bandwidth - load) as f64;
            change += spec.delay + into.length / (left + into.rate_rounded);
        }
        change + crowding * (load as f64 - place.load as f64)
    }

    /// What a path costs without `out` and with `into`, `load` in all.
    fn cost(&self, path: usize, load: u64, out: Option<&Member>, into: Option<&Member>) -> Tally {
        let spec = &self.table.paths[path];
        let mut tally = Tally {
            shortfall: self.shortfall(path, load, out, into),
            ..Tally::default()
        };
        let into = into.map(|member| self.table.member(path, member.app));
        let out = out.map(|member| member.app);
        let members = self.paths[path].members.iter().chain(&into);
        let members = members.filter(|member| Some(member.app) != out);
        if load >= spec.bandwidth {
            let count = members.count() as i32;
            (tally.unmet, tally.overloaded) = (count, count);
            return tally;
        }
        let left = (spec.bandwidth - load) as f64;
        for member in members {
            let delay = spec.delay + member.length / (left + member.rate_rounded);
            tally.delay += delay;
            if load >= member.load_limit {
                tally.unmet += 1;
            }
        }
        tally
    }
}

impl Clone for Members<'_> {
    fn clone(&self) -> Self {
        Self {
            table: self.table,
            paths: self.paths.clone(),
            place: self.place.clone(),
        }
    }
}

impl Clone for PathMembers {
    fn clone(&self) -> Self {
        let mut copy = Self::default();
        copy.clone_from(self);
        copy
    }

    /// Keeps the allocation.
    fn clone_from(&mut self, other: &Self) {
        self.members.clone_from(&other.members);
        self.load = other.load;
        self.cost = other.cost;
        self.crowding = other.crowding;
        self.changed = other.changed;
    }
}
