//! Iterated local search: a few applications are thrown elsewhere, and what follows is improved by
//! moves and exchanges between the paths that changed; what is not worse is kept.
//!
//! All in floating point, unrounded, on arrays by path: a path's cost takes a few nanoseconds per
//! member. The throws are drawn from a fixed sequence, so the same question gets the same answer.

use super::{
    Meter,
    loads::{LATE_NOTHING_NANOS, Loads, rounded},
    state::State,
};
use crate::delay::Saturation;

/// Improves `state` until the meter is spent.
pub(super) fn shake(state: &mut State<'_>, meter: &mut Meter) {
    let loads = state.loads();
    // As printed, eq. 3 lets an overloaded path serve: rare, and not for this.
    if loads.saturation() != Saturation::Refused || loads.paths() < 2 || loads.apps() < 2 {
        return;
    }
    let problem = Table::new(loads);
    let mut draws = Draws(0);
    let mut current = Places::new(&problem, &state.assignment());
    let mut best = current.clone();
    let mut trial = current.clone();
    let mut stale = 0;
    while !meter.is_spent() {
        trial.clone_from(&current);
        trial.throw(&mut draws, meter);
        trial.settle(meter);
        let total = trial.total();
        if total.is_below(&best.total()) {
            best.clone_from(&trial);
            stale = 0;
        } else {
            stale += 1;
        }
        if total.is_near(&current.total(), &best.total()) {
            std::mem::swap(&mut current, &mut trial);
        }
        if stale > STALE_MAX {
            current.clone_from(&best);
            stale = 0;
        }
    }
    let found = State::of(loads, &best.assignment(loads.apps()), meter);
    if found.total().is_clearly_below(&state.total()) {
        *state = found;
    }
}

/// Applications thrown at once, at least and at most.
const THROWN: [u64; 2] = [2, 5];

/// How much worse than the best known what is gone on from may be, where only the delay differs.
const WORSE: f64 = 0.01;

/// Throws without a better result after which the best known is gone back to.
const STALE_MAX: u32 = 60;

/// The problem as this search computes with it.
struct Table {
    apps: Vec<App>,
    paths: Vec<Path>,
}

struct App {
    rate: u64,
    length: f64,
    /// In nanoseconds; infinite without one.
    demand: f64,
}

struct Path {
    bandwidth: u64,
    /// In nanoseconds.
    delay: f64,
    /// By application: the largest load with which it is met, plus one; zero if none is.
    bears: Vec<u64>,
}

/// Cost in the order of importance; times in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    unmet: i32,
    overloaded: i32,
    lateness: f64,
    delay: f64,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    app: usize,
    rate: u64,
    bears: u64,
    rate_rounded: f64,
    length: f64,
    demand: f64,
    /// Its delay at the present load, and how that grows with it.
    delay: f64,
    steepness: f64,
}

#[derive(Debug, Default)]
struct Place {
    /// By rising load that they bear.
    members: Vec<Member>,
    load: u64,
    cost: Tally,
    /// What a further bit/s would cost its members together, in nanoseconds.
    crowding: f64,
    changed: bool,
}

struct Places<'a> {
    table: &'a Table,
    paths: Vec<Place>,
    place: Vec<usize>,
}

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let drawn = u128::from(z ^ (z >> 31));
        // The high part of the product is below `end`.
        ((drawn * end as u128) >> 64) as usize
    }
}

impl Table {
    fn new(loads: &Loads) -> Self {
        let apps = (0..loads.apps()).map(|app| {
            let app = loads.app(app);
            App {
                rate: app.rate,
                length: app.length_rounded(),
                demand: app.demand_nanos.map_or(f64::INFINITY, rounded),
            }
        });
        let paths = (0..loads.paths()).map(|path| Path {
            bandwidth: loads.path(path).bandwidth,
            delay: rounded(loads.path(path).delay_nanos),
            bears: (0..loads.apps())
                .map(|app| loads.limit(path, app).map_or(0, |limit| limit + 1))
                .collect(),
        });
        Self {
            apps: apps.collect(),
            paths: paths.collect(),
        }
    }

    fn member(&self, path: usize, app: usize) -> Member {
        let entry = &self.apps[app];
        Member {
            app,
            rate: entry.rate,
            bears: self.paths[path].bears[app],
            rate_rounded: entry.rate as f64,
            length: entry.length,
            demand: entry.demand,
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
            lateness: self.lateness + other.lateness,
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
        let late = self.lateness - other.lateness;
        if late.abs() > LATE_NOTHING_NANOS as f64 {
            return late < 0.0;
        }
        self.delay < other.delay - NOTHING_NANOS
    }

    /// Whether to go on from here rather than from `current`.
    fn is_near(&self, current: &Self, best: &Self) -> bool {
        if !current.is_below(self) {
            return true;
        }
        let counts = (self.unmet, self.overloaded);
        counts == (best.unmet, best.overloaded)
            && self.lateness <= best.lateness + LATE_NOTHING_NANOS as f64
            && self.delay <= best.delay * (1.0 + WORSE)
    }
}

/// Delays are rounded to nanoseconds in the end.
const NOTHING_NANOS: f64 = 0.5;

impl<'a> Places<'a> {
    fn new(table: &'a Table, assignment: &[usize]) -> Self {
        let mut places = Self {
            table,
            paths: table.paths.iter().map(|_| Place::default()).collect(),
            place: assignment.to_vec(),
        };
        for (app, &path) in assignment.iter().enumerate() {
            let member = table.member(path, app);
            places.paths[path].members.push(member);
            places.paths[path].load += member.rate;
        }
        for path in 0..places.paths.len() {
            places.renew(path);
        }
        places
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
    fn throw(&mut self, draws: &mut Draws, meter: &mut Meter) {
        let span = (THROWN[1] - THROWN[0] + 1) as usize;
        let count = THROWN[0] as usize + draws.below(span);
        for _ in 0..count {
            let app = draws.below(self.place.len());
            let from = self.place[app];
            let to = (from + 1 + draws.below(self.paths.len() - 1)) % self.paths.len();
            self.shift(app, to);
        }
        for path in 0..self.paths.len() {
            if self.paths[path].changed {
                self.renew(path);
                meter.spend(self.paths[path].members.len() as u64);
            }
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
        place
            .members
            .sort_unstable_by_key(|member| (member.bears, member.app));
    }

    /// Moves and exchanges between two paths, one of which changed, as long as there are any.
    fn settle(&mut self, meter: &mut Meter) {
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
            && !(self.bears(here, load_here, mine, theirs)
                && self.bears(there, load_there, theirs, mine))
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
            let lateness = match unmet {
                0 => 0.0,
                _ => {
                    meter.spend(1);
                    self.lateness(here, load_here, mine, theirs)
                        + self.lateness(there, load_there, theirs, mine)
                }
            };
            if lateness > before.lateness + LATE_NOTHING_NANOS as f64 {
                return false;
            }
            if lateness > before.lateness - LATE_NOTHING_NANOS as f64 && before.overloaded == 0 {
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

    /// Whether everybody on a path without `out` and with `into` is met, `load` in all.
    fn bears(&self, path: usize, load: u64, out: Option<&Member>, into: Option<&Member>) -> bool {
        let members = &self.paths[path].members;
        let out = out.map(|member| member.app);
        let first = members.iter().find(|member| Some(member.app) != out);
        first.is_none_or(|member| load < member.bears)
            && into.is_none_or(|member| load < self.table.paths[path].bears[member.app])
    }

    /// How many are unmet on a path without `out` and with `into`, `load` in all.
    fn unmet(&self, path: usize, load: u64, out: Option<&Member>, into: Option<&Member>) -> i32 {
        let members = &self.paths[path].members;
        let bears = &self.table.paths[path].bears;
        let is_unmet =
            |member: Option<&Member>| i32::from(member.is_some_and(|own| bears[own.app] <= load));
        // Nobody bears an overloaded path.
        let unmet = members.iter().take_while(|member| member.bears <= load);
        unmet.count() as i32 - is_unmet(out) + is_unmet(into)
    }

    /// The lateness on a path without `out` and with `into`, `load` in all; none if overloaded.
    fn lateness(&self, path: usize, load: u64, out: Option<&Member>, into: Option<&Member>) -> f64 {
        let spec = &self.table.paths[path];
        if load >= spec.bandwidth {
            return 0.0;
        }
        let left = (spec.bandwidth - load) as f64;
        let into = into.map(|member| self.table.member(path, member.app));
        let out = out.map(|member| member.app);
        let members = self.paths[path].members.iter();
        members
            .take_while(|member| member.bears <= load)
            .filter(|member| Some(member.app) != out)
            .chain(into.iter().filter(|member| member.bears <= load))
            .map(|member| {
                let delay = spec.delay + member.length / (left + member.rate_rounded);
                (delay - member.demand).max(0.0)
            })
            .sum()
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
        let into = into.map(|member| self.table.member(path, member.app));
        let out = out.map(|member| member.app);
        let members = &self.paths[path].members;
        if load >= spec.bandwidth {
            let count = members.len() + usize::from(into.is_some()) - usize::from(out.is_some());
            return Tally {
                unmet: count as i32,
                overloaded: count as i32,
                ..Tally::default()
            };
        }
        let left = (spec.bandwidth - load) as f64;
        let mut tally = Tally::default();
        for member in members.iter().chain(&into) {
            if Some(member.app) == out {
                continue;
            }
            let delay = spec.delay + member.length / (left + member.rate_rounded);
            tally.delay += delay;
            if load >= member.bears {
                tally.unmet += 1;
                tally.lateness += (delay - member.demand).max(0.0);
            }
        }
        tally
    }
}

impl Clone for Places<'_> {
    fn clone(&self) -> Self {
        Self {
            table: self.table,
            paths: self.paths.clone(),
            place: self.place.clone(),
        }
    }
}

impl Clone for Place {
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
