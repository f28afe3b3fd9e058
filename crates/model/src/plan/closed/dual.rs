//! How good the best assignment can be at most: a bound by prices.
//!
//! Every application is given a price λ, paid to whoever serves it, and every path then chooses
//! for itself whom to serve, regardless of the others. What all applications pay, less what the
//! paths gain at best, is never more than the least cost: in any assignment each application is
//! served once, and no path gains more than at best (Lagrangian relaxation). Prices are raised for
//! applications that nobody serves and lowered for those served twice (subgradient steps).
//!
//! A path's best choice is bounded too. Its load is cut into intervals; in one, no delay is less
//! than at the interval's lower end, and no more fits than up to its upper end, the last
//! application as a fraction. The interval that promises most is halved until it is narrow.
//!
//! The parts of the score are bounded one after the other, each under the condition, priced as
//! well, that the parts before it are as good as found; a part whose bound does not reach what was
//! found ends it, for nothing can be said about the parts after it.

use super::{Meter, loads::Cost, state::State};
use crate::delay::Saturation;

/// A bound on the cost of every assignment, for the best one found.
pub(super) fn bound(found: &State<'_>, meter: &mut Meter) -> Cost {
    let total = found.total();
    let mut relaxed = Relaxed::new(found);
    let mut bound = Cost {
        unmet: relaxed.hopeless() as u32,
        ..Cost::default()
    };
    if bound.unmet < total.unmet {
        bound.unmet = bound.unmet.max(count(relaxed.bound(Goal::Unmet, meter)));
    }
    if bound.unmet < total.unmet {
        return bound;
    }
    if total.overloaded > 0 {
        bound.overloaded = count(relaxed.bound(Goal::Overloaded, meter));
    }
    if bound.overloaded < total.overloaded {
        return bound;
    }
    if total.lateness > 0 {
        bound.lateness = nanos(relaxed.bound(Goal::Lateness, meter));
    }
    if bound.lateness < total.lateness {
        return bound;
    }
    bound.delay = nanos(relaxed.bound(Goal::Delay, meter));
    bound
}

/// The least whole number that a bound leaves, floating-point error aside.
fn count(bound: f64) -> u32 {
    (bound - 1e-6).ceil().max(0.0) as u32
}

/// As [`count`], for nanoseconds.
fn nanos(bound: f64) -> u128 {
    (bound * (1.0 - 1e-9)).floor().max(0.0) as u128
}

/// The part of the score that is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Goal {
    Unmet,
    Overloaded,
    Lateness,
    Delay,
}

/// What one application contributes to each part of the score, or what each part costs.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    unmet: f64,
    overloaded: f64,
    /// In nanoseconds.
    lateness: f64,
    /// In nanoseconds.
    delay: f64,
}

impl Parts {
    fn times(&self, prices: &Self) -> f64 {
        self.unmet * prices.unmet
            + self.overloaded * prices.overloaded
            + self.lateness * prices.lateness
            + self.delay * prices.delay
    }

    fn add(&mut self, rhs: &Self, times: f64) {
        self.unmet += rhs.unmet * times;
        self.overloaded += rhs.overloaded * times;
        self.lateness += rhs.lateness * times;
        self.delay += rhs.delay * times;
    }

    fn get(&self, goal: Goal) -> f64 {
        match goal {
            Goal::Unmet => self.unmet,
            Goal::Overloaded => self.overloaded,
            Goal::Lateness => self.lateness,
            Goal::Delay => self.delay,
        }
    }
}

impl From<Cost> for Parts {
    fn from(cost: Cost) -> Self {
        Self {
            unmet: cost.unmet.into(),
            overloaded: cost.overloaded.into(),
            lateness: cost.lateness as f64,
            delay: cost.delay as f64,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct App {
    /// In bit/s.
    rate: f64,
    /// In 10^-9 bit.
    length: f64,
    /// In nanoseconds; infinite without a demand.
    demand: f64,
    /// Whether it is unmet even alone on any path.
    hopeless: bool,
}

#[derive(Clone, Copy, Debug)]
struct Path {
    /// In bit/s.
    bandwidth: f64,
    /// In nanoseconds.
    delay: f64,
}

/// The loads of a path between two bounds, in bit/s, and the least that a choice with such a load
/// costs, prices deducted.
#[derive(Clone, Copy, Debug)]
struct Interval {
    low: f64,
    high: f64,
    least: f64,
}

/// What is forbidden rather than priced.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// Whoever can be met must be.
    all_met: bool,
    /// No path may be overloaded.
    no_overload: bool,
}

/// The prices of a round: what each application pays, and what each part of the score costs.
#[derive(Clone, Debug)]
struct Prices {
    apps: Vec<f64>,
    parts: Parts,
}

/// Intervals looked at per path and round.
const INTERVALS: usize = 100;

/// An interval is narrow enough where the bandwidth left over varies by this factor.
const NARROW: f64 = 1.004;

struct Relaxed<'a> {
    found: &'a State<'a>,
    apps: Vec<App>,
    paths: Vec<Path>,
    saturation: Saturation,
    scratch: Vec<Candidate>,
}

/// An application that a path would gain by serving.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    app: usize,
    cost: f64,
    rate: f64,
}

impl<'a> Relaxed<'a> {
    fn new(found: &'a State<'a>) -> Self {
        let loads = found.loads();
        let apps = (0..loads.apps()).map(|app| {
            let spec = loads.app(app);
            App {
                rate: spec.rate as f64,
                length: spec.length as f64,
                demand: match spec.demand_nanos {
                    u64::MAX => f64::INFINITY,
                    nanos => nanos as f64,
                },
                hopeless: (0..loads.paths())
                    .all(|path| loads.limit(path, app).is_none_or(|limit| limit < spec.rate)),
            }
        });
        let paths = (0..loads.paths()).map(|path| Path {
            bandwidth: loads.path(path).bandwidth as f64,
            delay: loads.path(path).delay_nanos as f64,
        });
        Self {
            found,
            apps: apps.collect(),
            paths: paths.collect(),
            saturation: loads.saturation(),
            scratch: Vec::new(),
        }
    }

    fn hopeless(&self) -> usize {
        self.apps.iter().filter(|app| app.hopeless).count()
    }

    /// A bound on one part of the score, where those before it are as good as found.
    fn bound(&mut self, goal: Goal, meter: &mut Meter) -> f64 {
        let found = Parts::from(self.found.total());
        let target = found.get(goal);
        let rules = Rules {
            all_met: goal > Goal::Unmet && found.unmet as usize == self.hopeless(),
            no_overload: goal > Goal::Overloaded && found.overloaded == 0.0,
        };
        let mut prices = self.first_prices(goal);
        let mut best = (0.0, prices.clone());
        let mut stride = 1.0;
        let mut idle_rounds = 0;
        while !meter.is_spent() && best.0 < target {
            let (value, slope) = self.round(&prices, &found, rules, goal, meter);
            if value > best.0 + 1e-4 * target {
                idle_rounds = 0;
            } else {
                idle_rounds += 1;
            }
            if value > best.0 {
                best = (value, prices.clone());
            }
            if idle_rounds == 4 {
                idle_rounds = 0;
                stride /= 2.0;
                prices = best.1.clone();
                if stride < 1e-3 {
                    break;
                }
                continue;
            }
            prices.advance(&slope, stride * (target - value), &found);
        }
        best.0.min(target)
    }

    fn first_prices(&self, goal: Goal) -> Prices {
        let loads = self.found.loads();
        let mut parts = Parts::default();
        match goal {
            Goal::Unmet => parts.unmet = 1.0,
            Goal::Overloaded => parts.overloaded = 1.0,
            Goal::Lateness => parts.lateness = 1.0,
            Goal::Delay => parts.delay = 1.0,
        }
        let mut apps = vec![0.0; self.apps.len()];
        for (index, path) in self.paths.iter().enumerate() {
            let members = self.found.members(index);
            let load = self.found.load(index) as f64;
            // What a further bit/s would cost those already there.
            let crowding: f64 = members
                .iter()
                .map(|&member| {
                    let app = &self.apps[member];
                    let left = path.bandwidth - load + app.rate;
                    let steepness = app.length / (left * left);
                    let own = Parts::from(loads.cost(index, member, self.found.load(index)));
                    match goal {
                        _ if left <= 0.0 => 0.0,
                        Goal::Delay => steepness,
                        Goal::Lateness if own.lateness > 0.0 => steepness,
                        _ => 0.0,
                    }
                })
                .sum();
            for &member in members {
                let own = Parts::from(loads.cost(index, member, self.found.load(index)));
                apps[member] = own.get(goal) + crowding * self.apps[member].rate;
            }
        }
        if goal == Goal::Unmet {
            // The smallest that was left out sets the price of bandwidth.
            let left_out = (0..apps.len()).filter(|&app| apps[app] > 0.0);
            let smallest = left_out
                .map(|app| self.apps[app].rate)
                .fold(f64::INFINITY, f64::min);
            for (price, app) in apps.iter_mut().zip(&self.apps) {
                *price = if app.hopeless {
                    1.0
                } else {
                    (app.rate / smallest).min(1.0)
                };
            }
        }
        Prices { apps, parts }
    }

    /// The bound by `prices`, and how it changes with each of them.
    fn round(
        &mut self,
        prices: &Prices,
        found: &Parts,
        rules: Rules,
        goal: Goal,
        meter: &mut Meter,
    ) -> (f64, Slope) {
        let mut used = Parts::default();
        let mut served = vec![0.0; self.apps.len()];
        let mut value: f64 = prices.apps.iter().sum();
        for path in 0..self.paths.len() {
            let interval = self.best_interval(path, prices, rules, meter);
            if interval.least >= 0.0 {
                continue;
            }
            value += interval.least;
            self.choose(path, &interval, prices, rules);
            let mut room = interval.high;
            for candidate in &self.scratch {
                let part = if candidate.rate <= room {
                    1.0
                } else {
                    room / candidate.rate
                };
                room -= candidate.rate * part;
                served[candidate.app] += part;
                let (_, parts) = self
                    .cost(path, candidate.app, &interval, &prices.parts, rules)
                    .expect("a candidate may be served");
                used.add(&parts, part);
                if part < 1.0 {
                    break;
                }
            }
        }
        let mut slope = Slope {
            apps: served.iter().map(|served| 1.0 - served).collect(),
            parts: Parts::default(),
        };
        // Conditions on the parts before the goal: each is priced by how far it is exceeded.
        if goal > Goal::Unmet && !rules.all_met {
            value -= prices.parts.unmet * found.unmet;
            slope.parts.unmet = used.unmet - found.unmet;
        }
        if goal > Goal::Overloaded && !rules.no_overload {
            value -= prices.parts.overloaded * found.overloaded;
            slope.parts.overloaded = used.overloaded - found.overloaded;
        }
        if goal > Goal::Lateness && found.lateness > 0.0 {
            value -= prices.parts.lateness * found.lateness;
            slope.parts.lateness = used.lateness - found.lateness;
        }
        (value, slope)
    }

    /// The interval of `path`'s load that promises most, after halving.
    fn best_interval(
        &mut self,
        path: usize,
        prices: &Prices,
        rules: Rules,
        meter: &mut Meter,
    ) -> Interval {
        let bandwidth = self.paths[path].bandwidth;
        let mut bounds = vec![0.0, bandwidth];
        if !rules.no_overload {
            if self.saturation == Saturation::AsPrinted {
                bounds.push(2.0 * bandwidth);
            }
            bounds.push(f64::INFINITY);
        }
        let mut intervals: Vec<Interval> = Vec::with_capacity(INTERVALS);
        for ends in bounds.windows(2) {
            intervals.push(self.interval(path, ends[0], ends[1], prices, rules, meter));
        }
        loop {
            let (index, best) = intervals
                .iter()
                .copied()
                .enumerate()
                .reduce(|best, next| {
                    if next.1.least < best.1.least {
                        next
                    } else {
                        best
                    }
                })
                .expect("there is an interval");
            let Some(middle) = best.middle(bandwidth) else {
                return best;
            };
            if intervals.len() >= INTERVALS || best.least >= 0.0 {
                return best;
            }
            intervals[index] = self.interval(path, best.low, middle, prices, rules, meter);
            intervals.push(self.interval(path, middle, best.high, prices, rules, meter));
        }
    }

    fn interval(
        &mut self,
        path: usize,
        low: f64,
        high: f64,
        prices: &Prices,
        rules: Rules,
        meter: &mut Meter,
    ) -> Interval {
        meter.spend(self.apps.len() as u64);
        let mut interval = Interval {
            low,
            high,
            least: 0.0,
        };
        interval.least = self.choose(path, &interval, prices, rules);
        interval
    }

    /// Leaves in `scratch`, best first, whom `path` gains by serving with a load in `interval`,
    /// and answers what serving as many as fit costs, prices deducted.
    fn choose(&mut self, path: usize, interval: &Interval, prices: &Prices, rules: Rules) -> f64 {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let (mut sum, mut load) = (0.0, 0.0);
        for app in 0..self.apps.len() {
            let rate = self.apps[app].rate;
            if rate > interval.high {
                continue;
            }
            let Some((cost, _)) = self.cost(path, app, interval, &prices.parts, rules) else {
                continue;
            };
            let cost = cost - prices.apps[app];
            if cost < 0.0 {
                sum += cost;
                load += rate;
                scratch.push(Candidate { app, cost, rate });
            }
        }
        if load > interval.high {
            // Whoever needs no room divides to minus infinity and comes first.
            scratch.sort_unstable_by(|a, b| (a.cost / a.rate).total_cmp(&(b.cost / b.rate)));
            let mut room = interval.high;
            sum = 0.0;
            for candidate in &scratch {
                if candidate.rate > room {
                    sum += candidate.cost * (room / candidate.rate);
                    break;
                }
                room -= candidate.rate;
                sum += candidate.cost;
            }
        }
        self.scratch = scratch;
        sum
    }

    /// The least that serving `app` costs with a load in `interval`, and its parts. `None` if the
    /// rules forbid it.
    fn cost(
        &self,
        path: usize,
        app: usize,
        interval: &Interval,
        prices: &Parts,
        rules: Rules,
    ) -> Option<(f64, Parts)> {
        let (path, app) = (&self.paths[path], &self.apps[app]);
        let must_be_met = rules.all_met && !app.hopeless;
        // The application itself is part of the load.
        let others = (interval.low - app.rate).max(0.0);
        let load = others + app.rate;
        let can_be_finite = match self.saturation {
            Saturation::AsPrinted => others < path.bandwidth,
            Saturation::Refused => load < path.bandwidth,
        };
        let can_be_overloaded = match self.saturation {
            Saturation::AsPrinted => interval.high - app.rate >= path.bandwidth,
            Saturation::Refused => interval.high > path.bandwidth,
        } && !rules.no_overload
            && !must_be_met;
        let finite = can_be_finite.then(|| {
            let delay = path.delay + app.length / (path.bandwidth - others);
            // Predicted delays are whole nanoseconds, rounded up; what is late by less than one
            // here may be met there.
            let lateness = delay - app.demand;
            let lateness = if lateness < 1.0 { 0.0 } else { lateness };
            Parts {
                unmet: f64::from(u8::from(lateness > 0.0)),
                overloaded: 0.0,
                lateness,
                delay,
            }
        });
        let finite = finite.filter(|parts| !must_be_met || parts.unmet == 0.0);
        let overloaded = can_be_overloaded.then_some(Parts {
            unmet: 1.0,
            overloaded: 1.0,
            lateness: 0.0,
            delay: 0.0,
        });
        [finite, overloaded]
            .into_iter()
            .flatten()
            .map(|parts| (parts.times(prices), parts))
            .reduce(|best, next| if next.0 < best.0 { next } else { best })
    }
}

/// How a bound changes with the prices.
struct Slope {
    apps: Vec<f64>,
    parts: Parts,
}

impl Prices {
    /// A step uphill that would gain `gain` if the slope stayed the same.
    fn advance(&mut self, slope: &Slope, gain: f64, found: &Parts) {
        // Lateness is counted in units of what was found, so that it weighs like a count.
        let lateness_unit = found.lateness.max(1.0);
        let lateness = slope.parts.lateness / lateness_unit;
        let steepness: f64 = slope.apps.iter().map(|slope| slope * slope).sum::<f64>()
            + slope.parts.unmet.powi(2)
            + slope.parts.overloaded.powi(2)
            + lateness.powi(2);
        if steepness <= 0.0 {
            return;
        }
        let step = gain / steepness;
        for (price, slope) in self.apps.iter_mut().zip(&slope.apps) {
            *price += step * slope;
        }
        let raise = |price: &mut f64, slope: f64| *price = (*price + step * slope).max(0.0);
        raise(&mut self.parts.unmet, slope.parts.unmet);
        raise(&mut self.parts.overloaded, slope.parts.overloaded);
        raise(&mut self.parts.lateness, lateness / lateness_unit);
    }
}

impl Interval {
    /// Where to cut it on a path of `bandwidth`; `None` if it is narrow enough.
    fn middle(&self, bandwidth: f64) -> Option<f64> {
        if self.high.is_infinite() {
            return None;
        }
        if self.low >= bandwidth {
            let narrow = self.high - self.low < bandwidth / 64.0;
            return (!narrow).then(|| f64::midpoint(self.low, self.high));
        }
        // By equal factors of what is left over; a full path leaves a ten-thousandth.
        let left_low = bandwidth - self.low;
        let left_high = (bandwidth - self.high).max(bandwidth * 1e-4);
        (left_low > left_high * NARROW).then(|| bandwidth - (left_low * left_high).sqrt())
    }
}
