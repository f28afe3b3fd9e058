//! Simulated annealing: from a fair assignment to a good one.
//!
//! Applications are moved and exchanged at random; what makes things worse is accepted too, ever
//! less of it. The parts of the score are weighted instead of compared one after the other, so
//! that the way may lead over unmet demands; the descent that follows compares them exactly. The
//! numbers are drawn from a fixed seed, and drawn so that every machine gets the same.

use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use super::{Meter, improve, state::State};
use crate::delay::Saturation;

/// Ours, by trial: what the parts of the score weigh, and the first and the last temperature, all
/// in multiples of the mean delay at the start.
const UNMET: f64 = 3.0;
const OVERLOADED: f64 = 0.3;
const LATENESS_TIMES: f64 = 10.0;
const HOT: f64 = 0.3;
const COLD: f64 = 0.003;

/// Proposals between two looks at the meter and the temperature.
const BATCH: u32 = 256;

/// Anneals until the meter is spent; `best` becomes what was found, if that is better.
pub(super) fn anneal(best: &mut State<'_>, meter: &mut Meter) {
    let loads = best.loads();
    if loads.paths() < 2 || loads.apps() < 2 || meter.is_spent() {
        return;
    }
    let mut walk = Walk::new(best);
    let begin = meter.work();
    let end = meter.limit();
    let whole = (end - begin).max(1) as f64;
    let cooling = COLD / HOT;
    while !meter.is_spent() {
        let passed = (meter.work() - begin) as f64 / whole;
        // Evenly between the logarithms would need one; this is as steep at the start, and ends
        // in the same place.
        let temperature = walk.unit * HOT * cooled(cooling, passed);
        meter.spend(walk.batch(temperature));
    }
    let assignment = walk.assignment();
    let mut found = State::of(loads, &assignment, meter);
    improve::descend(&mut found, meter.until(end + end / 16));
    meter.until(end);
    if found.total() < best.total() {
        *best = found;
    }
}

/// From 1 to `end` as `passed` goes from 0 to 1, by equal factors; in sixteenths, between which it
/// is linear, since only those are the same on every machine.
fn cooled(end: f64, passed: f64) -> f64 {
    let factor = end.sqrt().sqrt().sqrt().sqrt();
    let place = (passed * 16.0).clamp(0.0, 15.999);
    let whole = place as i32;
    let low = factor.powi(whole);
    low * (1.0 + (factor - 1.0) * (place - f64::from(whole)))
}

struct Walk {
    apps: Vec<App>,
    paths: Vec<Path>,
    places: Vec<usize>,
    as_printed: bool,
    random: ChaCha12Rng,
    /// The mean delay at the start, in nanoseconds.
    unit: f64,
}

#[derive(Clone, Copy)]
struct App {
    /// In bit/s.
    rate: f64,
    /// In 10^-9 bit.
    length: f64,
    /// In nanoseconds; infinite without a demand.
    demand: f64,
}

struct Path {
    /// In bit/s.
    bandwidth: f64,
    /// In nanoseconds.
    delay: f64,
    /// By application: the largest load with which it is met; negative if none is.
    limits: Vec<f64>,
    load: f64,
    cost: f64,
    members: Vec<u32>,
}

impl Walk {
    fn new(state: &State<'_>) -> Self {
        let loads = state.loads();
        let apps = (0..loads.apps()).map(|app| {
            let spec = loads.app(app);
            App {
                rate: spec.rate as f64,
                length: spec.length_rounded(),
                demand: spec
                    .demand_nanos
                    .map_or(f64::INFINITY, |nanos| nanos as f64),
            }
        });
        let paths = (0..loads.paths()).map(|path| Path {
            bandwidth: loads.path(path).bandwidth as f64,
            delay: loads.path(path).delay_nanos as f64,
            limits: (0..loads.apps())
                .map(|app| loads.limit(path, app).map_or(-1.0, |limit| limit as f64))
                .collect(),
            load: 0.0,
            cost: 0.0,
            members: Vec::new(),
        });
        let mut walk = Self {
            apps: apps.collect(),
            paths: paths.collect(),
            places: state.assignment(),
            as_printed: loads.saturation() == Saturation::AsPrinted,
            random: ChaCha12Rng::seed_from_u64(0),
            unit: (state.total().delay as f64 / loads.apps() as f64).max(1.0),
        };
        for (app, &place) in walk.places.iter().enumerate() {
            walk.paths[place].members.push(app as u32);
            walk.paths[place].load += walk.apps[app].rate;
        }
        for path in 0..walk.paths.len() {
            walk.paths[path].cost = walk.cost(path, None, None);
        }
        walk
    }

    fn assignment(&self) -> Vec<usize> {
        self.places.clone()
    }

    /// Proposes [`BATCH`] changes; the work that was.
    fn batch(&mut self, temperature: f64) -> u64 {
        let mut looked = 0;
        for _ in 0..BATCH {
            let drawn = self.random.next_u64();
            let one = below(drawn as u16, self.apps.len());
            let from = self.places[one];
            let chance = exponential((drawn >> 32) as u32) * temperature;
            if drawn & (1 << 16) == 0 {
                let other_path = below(((drawn >> 17) as u16) << 1, self.paths.len() - 1);
                let to = other_path + usize::from(other_path >= from);
                looked += self.paths[from].members.len() + self.paths[to].members.len();
                self.propose(one, from, None, to, chance);
            } else {
                let other = below(((drawn >> 17) as u16) << 1, self.apps.len());
                let to = self.places[other];
                if to != from {
                    looked += self.paths[from].members.len() + self.paths[to].members.len();
                    self.propose(one, from, Some(other), to, chance);
                }
            }
        }
        looked as u64 / 3 + u64::from(BATCH)
    }

    /// Moves `one` from `from` to `to`, and `other` back, unless that costs more than `chance`.
    fn propose(&mut self, one: usize, from: usize, other: Option<usize>, to: usize, chance: f64) {
        let before = self.paths[from].cost + self.paths[to].cost;
        let here = self.cost(from, Some(one), other);
        if here >= before + chance {
            return;
        }
        let there = self.cost(to, other, Some(one));
        if here + there >= before + chance {
            return;
        }
        self.shift(one, to);
        if let Some(other) = other {
            self.shift(other, from);
        }
        self.paths[from].cost = here;
        self.paths[to].cost = there;
    }

    fn shift(&mut self, app: usize, to: usize) {
        let rate = self.apps[app].rate;
        let from = &mut self.paths[self.places[app]];
        let position = from
            .members
            .iter()
            .position(|&member| member as usize == app);
        from.members
            .swap_remove(position.expect("a placed application is a member of its path"));
        from.load -= rate;
        let to_path = &mut self.paths[to];
        to_path.members.push(app as u32);
        to_path.load += rate;
        self.places[app] = to;
    }

    /// What `path` costs without `out` and with `into`.
    fn cost(&self, path: usize, out: Option<usize>, into: Option<usize>) -> f64 {
        let path = &self.paths[path];
        let rate = |app: Option<usize>| app.map_or(0.0, |app| self.apps[app].rate);
        let load = path.load - rate(out) + rate(into);
        let left = path.bandwidth - load;
        let unmet = UNMET * self.unit;
        if left <= 0.0 && !self.as_printed {
            let count =
                path.members.len() + usize::from(into.is_some()) - usize::from(out.is_some());
            return count as f64 * (unmet + OVERLOADED * self.unit);
        }
        let out = out.map_or(u32::MAX, |app| app as u32);
        let own = |index: usize| {
            let app = &self.apps[index];
            let available = left + app.rate;
            if available <= 0.0 {
                return unmet + OVERLOADED * self.unit;
            }
            let delay = path.delay + app.length / available;
            if load <= path.limits[index] {
                delay
            } else {
                delay + unmet + LATENESS_TIMES * (delay - app.demand).max(0.0)
            }
        };
        let mut cost = into.map_or(0.0, own);
        for &member in &path.members {
            if member != out {
                cost += own(member as usize);
            }
        }
        cost
    }
}

/// One of `count`, nearly all equally likely.
fn below(drawn: u16, count: usize) -> usize {
    (usize::from(drawn) * count) >> 16
}

/// Exponentially distributed with mean one, nearly: the logarithm is linear between powers of two.
fn exponential(drawn: u32) -> f64 {
    let zeros = drawn.leading_zeros();
    let rest = f64::from((drawn << zeros) & 0x7fff_ffff) / f64::from(1_u32 << 31);
    (f64::from(zeros) + 1.0 - rest) * std::f64::consts::LN_2
}
