//! Local search: better assignments by moving and exchanging applications.
//!
//! Where every latency target on two paths is met, most changes between them are turned down before they
//! are computed: by the largest load that every application on a path bears, and by a bound on the gain. Delays are convex in
//! the load, so the others on a path lose at least, and gain at most, what the tangent at the
//! present load says.

use super::{
    Meter,
    assignment::Assignment,
    loads::{Cost, Loads, rounded},
};

/// Moves single applications and exchanges pairs as long as that makes the assignment better.
pub(super) fn descend(state: &mut Assignment<'_>, meter: &mut Meter) {
    let mut gauges = Gauges::new(state, meter);
    while !meter.is_spent() {
        if move_all(state, &mut gauges, meter) || exchange_all(state, &mut gauges, meter) {
            continue;
        }
        return;
    }
}

/// What a path costs before and after a change.
#[derive(Clone, Copy)]
struct Change {
    path: usize,
    before: Cost,
    after: Cost,
}

impl Change {
    /// The one that increases the cost less, the first of two equal ones; compared without going
    /// below zero.
    fn better(self, other: Self) -> Self {
        if other.after + self.before < self.after + other.before {
            other
        } else {
            self
        }
    }
}

/// Moves every application to the path where the whole costs least; whether any moved.
fn move_all(state: &mut Assignment<'_>, gauges: &mut Gauges, meter: &mut Meter) -> bool {
    let mut moved = false;
    for app in 0..state.loads().apps() {
        if meter.is_spent() {
            break;
        }
        let from = place(state, app);
        let mut source: Option<Change> = None;
        let mut best: Option<Change> = None;
        for path in (0..state.loads().paths()).filter(|&path| path != from) {
            if !gauges.may_move(state, app, path, meter) {
                continue;
            }
            source.get_or_insert_with(|| Change {
                path: from,
                before: state.cost(from),
                after: state.cost_after(from, Some(app), None, meter),
            });
            let target = Change {
                path,
                before: state.cost(path),
                after: state.cost_after(path, None, Some(app), meter),
            };
            best = Some(best.map_or(target, |best| best.better(target)));
        }
        if let (Some(source), Some(target)) = (source, best)
            && source.after + target.after < source.before + target.before
        {
            state.take_at(app, source.after);
            state.put_at(app, target.path, target.after);
            gauges.renew(state, [from, target.path], meter);
            moved = true;
        }
    }
    moved
}

/// Exchanges every two applications where that makes the assignment better; whether any were.
fn exchange_all(state: &mut Assignment<'_>, gauges: &mut Gauges, meter: &mut Meter) -> bool {
    let mut exchanged = false;
    for one in 0..state.loads().apps() {
        for other in 0..one {
            if meter.is_spent() {
                return exchanged;
            }
            let (here, there) = (place(state, one), place(state, other));
            if here == there || !gauges.may_exchange(state, one, other, meter) {
                continue;
            }
            let here_after = state.cost_after(here, Some(one), Some(other), meter);
            let before = state.cost(here) + state.cost(there);
            if here_after >= before {
                continue;
            }
            let there_after = state.cost_after(there, Some(other), Some(one), meter);
            if here_after + there_after < before {
                state.take_at(one, Cost::default());
                state.take_at(other, Cost::default());
                state.put_at(one, there, there_after);
                state.put_at(other, here, here_after);
                gauges.renew(state, [here, there], meter);
                exchanged = true;
            }
        }
    }
    exchanged
}

fn place(state: &Assignment<'_>, app: usize) -> usize {
    state.place(app).expect("every application is placed")
}

/// What is known of every path, to turn changes down without computing them.
struct Gauges {
    paths: Vec<Gauge>,
}

#[derive(Clone, Copy, Default)]
struct Gauge {
    /// What a further bit/s would cost those on the path together: ns per bit/s.
    crowding: f64,
    /// The two smallest of the largest loads with which each is met, and who has the smallest.
    limits: [u64; 2],
    strictest: Option<usize>,
}

impl Gauges {
    fn new(state: &Assignment<'_>, meter: &mut Meter) -> Self {
        let mut gauges = Self {
            paths: vec![Gauge::default(); state.loads().paths()],
        };
        for path in 0..state.loads().paths() {
            gauges.paths[path] = Gauge::new(state, path, meter);
        }
        gauges
    }

    fn renew(&mut self, state: &Assignment<'_>, changed: [usize; 2], meter: &mut Meter) {
        for path in changed {
            self.paths[path] = Gauge::new(state, path, meter);
        }
    }

    /// Whether moving `app` to `to` may make the assignment better.
    fn may_move(&self, state: &Assignment<'_>, app: usize, to: usize, meter: &mut Meter) -> bool {
        let from = place(state, app);
        if state.cost(from).unmet > 0 || state.cost(to).unmet > 0 {
            return true;
        }
        meter.spend(2);
        let loads = state.loads();
        let load = state.load(to) + loads.rate(app);
        if !self.paths[to].bears(load, None) || !is_met(loads, to, app, load) {
            return false;
        }
        let rate = loads.rate(app) as f64;
        let own = own_delay(loads, to, app, load) - own_delay(loads, from, app, state.load(from));
        let left = self.paths[from].crowding - steepness(loads, from, app, state.load(from));
        own + (self.paths[to].crowding - left) * rate < self.rounding(loads)
    }

    /// Whether exchanging `one` and `other` may make the assignment better.
    fn may_exchange(
        &self,
        state: &Assignment<'_>,
        one: usize,
        other: usize,
        meter: &mut Meter,
    ) -> bool {
        let (here, there) = (place(state, one), place(state, other));
        if state.cost(here).unmet > 0 || state.cost(there).unmet > 0 {
            return state.loads().app(one) != state.loads().app(other);
        }
        meter.spend(4);
        match (
            self.least_gain(state, one, other),
            self.least_gain(state, other, one),
        ) {
            (Some(here), Some(there)) => here + there < self.rounding(state.loads()),
            _ => false,
        }
    }

    /// The least that the path of `out` can cost more, in nanoseconds, when `into` takes its
    /// place. `None` if a latency target is not met then.
    fn least_gain(&self, state: &Assignment<'_>, out: usize, into: usize) -> Option<f64> {
        let loads = state.loads();
        let path = place(state, out);
        let before = state.load(path);
        let after = before - loads.rate(out) + loads.rate(into);
        if !self.paths[path].bears(after, Some(out)) || !is_met(loads, path, into, after) {
            return None;
        }
        let own = own_delay(loads, path, into, after) - own_delay(loads, path, out, before);
        let others = self.paths[path].crowding - steepness(loads, path, out, before);
        Some(own + others * (after as f64 - before as f64))
    }

    /// In nanoseconds: predicted delays are rounded up, one by one.
    fn rounding(&self, loads: &Loads) -> f64 {
        loads.apps() as f64
    }
}

impl Gauge {
    fn new(state: &Assignment<'_>, path: usize, meter: &mut Meter) -> Self {
        let loads = state.loads();
        let mut gauge = Self {
            limits: [u64::MAX; 2],
            ..Self::default()
        };
        meter.spend(state.members(path).len() as u64);
        for &member in state.members(path) {
            gauge.crowding += steepness(loads, path, member, state.load(path));
            let limit = loads.limit(path, member).unwrap_or(0);
            if limit < gauge.limits[0] {
                gauge.limits = [limit, gauge.limits[0]];
                gauge.strictest = Some(member);
            } else if limit < gauge.limits[1] {
                gauge.limits[1] = limit;
            }
        }
        gauge
    }

    /// Whether every application on the path but `out` is met with the whole load `load`.
    fn bears(&self, load: u64, out: Option<usize>) -> bool {
        let index = usize::from(out.is_some() && out == self.strictest);
        load <= self.limits[index]
    }
}

fn is_met(loads: &Loads, path: usize, app: usize, load: u64) -> bool {
    loads.limit(path, app).is_some_and(|limit| load <= limit)
}

/// In nanoseconds; only for a finite delay.
fn own_delay(loads: &Loads, path: usize, app: usize, load: u64) -> f64 {
    let left = loads.path(path).bandwidth - (load - loads.rate(app));
    propagation(loads, path) + loads.app(app).length_rounded() / left as f64
}

/// In nanoseconds.
fn propagation(loads: &Loads, path: usize) -> f64 {
    rounded(loads.path(path).delay_nanos)
}

/// How a delay grows with the load: nanoseconds per bit/s; only for a finite delay.
fn steepness(loads: &Loads, path: usize, app: usize, load: u64) -> f64 {
    let others = load - loads.rate(app);
    let left = loads.path(path).bandwidth.saturating_sub(others) as f64;
    if left > 0.0 {
        loads.app(app).length_rounded() / (left * left)
    } else {
        0.0
    }
}
