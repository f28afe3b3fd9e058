//! Simulated annealing: moves and exchanges, and worse ones too as long as it is warm.
//!
//! An unmet latency target has a price here, so that the way to a better assignment may lead through one in
//! which more are unmet: narrow latency targets fill paths to the brim, and from one such assignment to the
//! next there is often no other way. Kept is the best that was met, unmet latency targets counted first.
//!
//! All in floating point, unrounded; chance is a fixed sequence.

use super::{
    Meter,
    assignment::Assignment,
    loads::{Loads, rounded},
    random::Random,
};
use crate::delay::OverloadPolicy;

/// Improves `state` until the meter is spent; not where an application is overloaded, or late and that
/// comes before the delay, or where too little work is left.
pub(super) fn anneal(state: &mut Assignment<'_>, meter: &mut Meter) {
    let loads = state.loads();
    // As printed, eq. 3 lets an overloaded path serve: rare, and not for this.
    if loads.saturation() != OverloadPolicy::Refused || loads.paths() < 2 || loads.apps() < 2 {
        return;
    }
    let work = meter.limit().saturating_sub(meter.work());
    let cycle_work = CYCLE_WORK * (loads.apps() * loads.paths()) as u64;
    if state.total().overloaded > 0 || state.total().lateness > 0 || work < cycle_work / SHORTEST {
        return;
    }
    let mut draws = Random::new();
    let mut walk = Walk::new(loads, &state.assignment());
    let mut best = walk.here();
    let delay_mean = best.delay / loads.apps() as f64;
    let mut price = PRICE * delay_mean;
    let cycles = (work / cycle_work).max(1);
    for cycle in 0..cycles {
        walk.put_all(loads, &best.place);
        let begin = meter.limit() - work / cycles * (cycles - cycle);
        let mut heat = HEAT * delay_mean;
        for step in 1..=STEPS {
            let end = begin + work / cycles * step / STEPS;
            while meter.work() < end {
                if walk.step(&mut draws, heat, price, meter) && walk.is_better_than(&best) {
                    best = walk.here();
                }
            }
            heat *= COOLING;
        }
        if walk.unmet() > best.unmet {
            price *= 2.0;
        } else {
            price /= 1.2;
        }
    }
    let found = Assignment::of(loads, &best.place, meter);
    if found.total().is_clearly_below(&state.total()) {
        *state = found;
    }
}

// By trial, like all here.
/// The price of an unmet latency target at first, in mean delays.
const PRICE: f64 = 6.0;
/// What a worse step may cost at first, on average, in mean delays.
const HEAT: f64 = 0.5;
/// A cycle cools in so many steps, each by this factor.
const STEPS: u64 = 64;
const COOLING: f64 = 0.96;
/// The work of a cycle, per application and path.
const CYCLE_WORK: u64 = 1_000;
/// With less than this part of it, it would freeze where it is.
const SHORTEST: u64 = 16;

/// An assignment; the delay in nanoseconds.
struct Best {
    place: Vec<usize>,
    unmet: usize,
    delay: f64,
}

struct Walk {
    apps: Vec<App>,
    paths: Vec<Path>,
    /// By application: its path, and where in the path's lists it is.
    place: Vec<usize>,
    index: Vec<usize>,
}

#[derive(Clone, Copy)]
struct App {
    /// In bit/s.
    rate: f64,
    /// In 10^-9 bit.
    length: f64,
}

struct Path {
    /// In bit/s.
    bandwidth: f64,
    /// In nanoseconds.
    delay: f64,
    /// By application: the load from which on it is unmet.
    bears: Vec<f64>,
    members: Vec<usize>,
    /// Of the members, in their order.
    member_rates: Vec<f64>,
    member_lengths: Vec<f64>,
    member_bears: Vec<f64>,
    load: f64,
    cost: Cost,
    /// What a further bit/s would cost its members together, in nanoseconds.
    crowding: f64,
}

#[derive(Clone, Copy, Default)]
struct Cost {
    unmet: usize,
    /// In nanoseconds.
    delay: f64,
}

/// Who leaves a path and who comes, and its load then.
#[derive(Clone, Copy)]
struct Change {
    path: usize,
    load: f64,
    out: Option<usize>,
    into: Option<usize>,
}

/// Delays are rounded to nanoseconds in the end.
const NOTHING_NANOS: f64 = 0.5;

impl Walk {
    fn new(loads: &Loads, assignment: &[usize]) -> Self {
        let apps = (0..loads.apps()).map(|app| App {
            rate: loads.rate(app) as f64,
            length: loads.app(app).length_rounded(),
        });
        let mut walk = Self {
            apps: apps.collect(),
            paths: (0..loads.paths())
                .map(|path| Path::new(loads, path))
                .collect(),
            place: assignment.to_vec(),
            index: vec![0; assignment.len()],
        };
        walk.put_all(loads, assignment);
        walk
    }

    fn put_all(&mut self, loads: &Loads, assignment: &[usize]) {
        for (path, target) in self.paths.iter_mut().enumerate() {
            *target = Path::new(loads, path);
        }
        for (app, &path) in assignment.iter().enumerate() {
            self.put(app, path);
        }
        for path in &mut self.paths {
            path.renew();
        }
    }

    fn put(&mut self, app: usize, path: usize) {
        let App { rate, length } = self.apps[app];
        let target = &mut self.paths[path];
        self.place[app] = path;
        self.index[app] = target.members.len();
        target.members.push(app);
        target.member_rates.push(rate);
        target.member_lengths.push(length);
        target.member_bears.push(target.bears[app]);
        // Whole numbers below 2^53: exact.
        target.load += rate;
    }

    fn take(&mut self, app: usize) {
        let index = self.index[app];
        let source = &mut self.paths[self.place[app]];
        source.members.swap_remove(index);
        source.member_rates.swap_remove(index);
        source.member_lengths.swap_remove(index);
        source.member_bears.swap_remove(index);
        source.load -= self.apps[app].rate;
        if let Some(&moved) = source.members.get(index) {
            self.index[moved] = index;
        }
    }

    fn here(&self) -> Best {
        Best {
            place: self.place.clone(),
            unmet: self.unmet(),
            delay: self.delay(),
        }
    }

    fn unmet(&self) -> usize {
        self.paths.iter().map(|path| path.cost.unmet).sum()
    }

    fn delay(&self) -> f64 {
        self.paths.iter().map(|path| path.cost.delay).sum()
    }

    fn is_better_than(&self, best: &Best) -> bool {
        let unmet = self.unmet();
        unmet < best.unmet || (unmet == best.unmet && self.delay() < best.delay - NOTHING_NANOS)
    }

    /// Tries a move or an exchange; whether it was made.
    fn step(&mut self, draws: &mut Random, heat: f64, price: f64, meter: &mut Meter) -> bool {
        meter.spend(2);
        let app = draws.below(self.place.len());
        let here = self.place[app];
        let (there, other) = if draws.below(2) == 0 {
            let other = draws.below(self.place.len());
            (self.place[other], Some(other))
        } else {
            let further = 1 + draws.below(self.paths.len() - 1);
            ((here + further) % self.paths.len(), None)
        };
        if here == there {
            return false;
        }
        let rate = self.apps[app].rate - other.map_or(0.0, |other| self.apps[other].rate);
        let change_here = Change {
            path: here,
            load: self.paths[here].load - rate,
            out: Some(app),
            into: other,
        };
        let change_there = Change {
            path: there,
            load: self.paths[there].load + rate,
            out: other,
            into: Some(app),
        };
        let allowed = heat * draws.exponential();
        if !self.is_allowed(change_here, change_there, allowed, price, meter) {
            return false;
        }
        self.take(app);
        if let Some(other) = other {
            self.take(other);
            self.put(other, here);
        }
        self.put(app, there);
        self.paths[here].renew();
        self.paths[there].renew();
        true
    }

    /// Whether two paths cost at most `allowed` more after a change, in nanoseconds.
    fn is_allowed(
        &self,
        one: Change,
        other: Change,
        allowed: f64,
        price: f64,
        meter: &mut Meter,
    ) -> bool {
        let paths = [&self.paths[one.path], &self.paths[other.path]];
        if one.load >= paths[0].bandwidth || other.load >= paths[1].bandwidth {
            return false;
        }
        let unmet = (self.unmet_with(one) + self.unmet_with(other)) as f64;
        let unmet_before = (paths[0].cost.unmet + paths[1].cost.unmet) as f64;
        let allowed = allowed - price * (unmet - unmet_before);
        if self.least_change(one) + self.least_change(other) > allowed {
            return false;
        }
        meter.spend(4 + (paths[0].members.len() + paths[1].members.len()) as u64);
        let delay = self.delay_with(one) + self.delay_with(other);
        delay - (paths[0].cost.delay + paths[1].cost.delay) <= allowed
    }

    fn unmet_with(&self, change: Change) -> usize {
        let path = &self.paths[change.path];
        let own =
            |app: Option<usize>| usize::from(app.is_some_and(|app| path.bears[app] <= change.load));
        path.unmet_at(change.load) + own(change.into) - own(change.out)
    }

    fn delay_with(&self, change: Change) -> f64 {
        let path = &self.paths[change.path];
        let own =
            |app: Option<usize>| app.map_or(0.0, |app| path.delay_of(&self.apps[app], change.load));
        path.delay_at(change.load) + own(change.into) - own(change.out)
    }

    /// The least by which a path's delays can change, by the tangent at its load.
    fn least_change(&self, change: Change) -> f64 {
        let path = &self.paths[change.path];
        let mut crowding = path.crowding;
        let mut delay = 0.0;
        if let Some(app) = change.out {
            let app = &self.apps[app];
            let left = path.bandwidth - path.load + app.rate;
            let transfer = app.length / left;
            delay -= path.delay + transfer;
            crowding -= transfer / left;
        }
        if let Some(app) = change.into {
            delay += path.delay_of(&self.apps[app], change.load);
        }
        delay + crowding * (change.load - path.load)
    }
}

impl Path {
    fn new(loads: &Loads, path: usize) -> Self {
        let bears = (0..loads.apps()).map(|app| {
            let limit = loads.limit(path, app);
            limit.map_or(0.0, |limit| (limit + 1) as f64)
        });
        Self {
            bandwidth: loads.path(path).bandwidth as f64,
            delay: rounded(loads.path(path).delay_nanos),
            bears: bears.collect(),
            members: Vec::new(),
            member_rates: Vec::new(),
            member_lengths: Vec::new(),
            member_bears: Vec::new(),
            load: 0.0,
            cost: Cost::default(),
            crowding: 0.0,
        }
    }

    /// Computes what is kept about it anew.
    fn renew(&mut self) {
        self.cost = Cost {
            unmet: self.unmet_at(self.load),
            delay: self.delay_at(self.load),
        };
        let left = self.bandwidth - self.load;
        let members = self.member_lengths.iter().zip(&self.member_rates);
        let steepness = members.map(|(length, rate)| length / ((left + rate) * (left + rate)));
        self.crowding = steepness.sum();
    }

    /// How many members are unmet with the whole load `load`.
    fn unmet_at(&self, load: f64) -> usize {
        let unmet = self.member_bears.iter();
        unmet.map(|&bears| usize::from(bears <= load)).sum()
    }

    /// The members' delays with the whole load `load`, summed.
    fn delay_at(&self, load: f64) -> f64 {
        let left = self.bandwidth - load;
        let members = self.member_lengths.iter().zip(&self.member_rates);
        let transfers: f64 = members.map(|(length, rate)| length / (left + rate)).sum();
        self.delay * self.members.len() as f64 + transfers
    }

    fn delay_of(&self, app: &App, load: f64) -> f64 {
        self.delay + app.length / (self.bandwidth - load + app.rate)
    }
}
