//! How good the best assignment can be at most: a bound by prices.
//!
//! Every application is given a price λ, paid to the path that serves it, and every path then chooses
//! for itself which applications to serve, regardless of the others. What all applications pay, less what the
//! paths gain at best, is never more than the least cost: in any assignment each application is
//! served once, and no path gains more than at best (Lagrangian relaxation). Prices are raised for
//! applications that no path serves and lowered for those served twice (subgradient steps). What a
//! path can gain at best is left to [`choice`](super::choice).
//!
//! The parts of the score are bounded one after the other, each under the condition, priced as
//! well, that the parts before it are as good as found. A part whose bound does not reach what was
//! found ends it: about the parts after it nothing can be said.
//!
//! The paths' choices are also a hint where to put applications: every now and then they are made into an
//! assignment, which is improved and kept if it is better.

use super::{
    Meter,
    assignment::Assignment,
    descent,
    loads::{Cost, Loads},
    path_bound::{DualPrices, Exclusions, PathBound, PathBounder, Precision, ScoreParts},
};
use crate::delay::Saturation;

/// Work that suffices for most bounds.
pub(super) fn work(loads: &Loads) -> u64 {
    ROUNDS * units(loads, COARSE)
}

/// Rounds after which prices are near the best, usually.
const ROUNDS: u64 = 60;

/// The most work of a round.
fn units(loads: &Loads, precision: Precision) -> u64 {
    (loads.apps() * loads.paths() * (precision.kept + 2 * precision.halvings)) as u64
}

/// A bound on the cost of every assignment; may make `best` better.
pub(super) fn bound(best: &mut Assignment<'_>, meter: &mut Meter) -> Cost {
    let mut ascent = Ascent::new(best);
    let mut bound = Cost {
        unmet: ascent.chooser.never_met() as u32,
        ..Cost::default()
    };
    if bound.unmet < ascent.found().unmet {
        bound.unmet = bound.unmet.max(count(ascent.maximize(Goal::Unmet, meter)));
    }
    if bound.unmet < ascent.found().unmet {
        return bound;
    }
    if ascent.found().overloaded > 0 {
        bound.overloaded = count(ascent.maximize(Goal::Overloaded, meter));
    }
    if bound.overloaded < ascent.found().overloaded {
        return bound;
    }
    if ascent.found().lateness > 0 {
        bound.lateness = nanos(ascent.maximize(Goal::Lateness, meter));
    }
    if bound.lateness < ascent.found().lateness {
        return bound;
    }
    bound.delay = nanos(ascent.maximize(Goal::Delay, meter));
    bound
}

/// The least whole number that a bound leaves, floating-point error aside.
fn count(bound: f64) -> u32 {
    (bound - 1e-6).ceil().max(0.0) as u32
}

/// The whole nanoseconds that a bound leaves, floating-point error aside.
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

struct Ascent<'b, 'a> {
    chooser: PathBounder,
    /// Whether all applications together are more than all paths carry.
    must_overload: bool,
    best: &'b mut Assignment<'a>,
}

/// What all paths answer to prices.
struct DualPoint {
    value: f64,
    subgradient: Subgradient,
    /// By path and application: which part of it is served there.
    served: Vec<Vec<f64>>,
}

/// How a bound changes with the prices.
#[derive(Clone)]
struct Subgradient {
    apps: Vec<f64>,
    parts: ScoreParts,
}

impl Subgradient {
    /// The direction to go, with a part of the last one where the two disagree, so that the way
    /// does not zigzag (Camerini, Fratta and Maffioli 1975).
    fn deflected(&self, last: Option<&Self>) -> Self {
        const CORRECTION: f64 = 1.5;
        let mut deflected = self.clone();
        let Some(last) = last else {
            return deflected;
        };
        let agreement: f64 = self.apps.iter().zip(&last.apps).map(|(a, b)| a * b).sum();
        let length: f64 = last.apps.iter().map(|a| a * a).sum();
        if agreement < 0.0 && length > 0.0 {
            let part = -CORRECTION * agreement / length;
            for (slope, last) in deflected.apps.iter_mut().zip(&last.apps) {
                *slope += part * last;
            }
            deflected.parts.add(&last.parts, part);
        }
        deflected
    }
}

/// The first step goes as far as the bound would have to rise; the last, before the meter is spent,
/// this part of it. In between they shrink evenly.
const LAST_STRIDE: f64 = 0.03;

/// How finely paths are asked while prices are looked for, and once for the bound in the end.
const COARSE: Precision = Precision {
    halvings: 4,
    kept: 10,
};
const FINE: Precision = Precision {
    halvings: 40,
    kept: 40,
};

/// The first rounds after which the choices are made into an assignment; then every
/// [`ROUNDING_EVERY`].
const FIRST_ROUNDINGS: [u32; 2] = [1, 3];
const ROUNDING_EVERY: u32 = 6;

/// The weight of the last round's answers in what is usual.
const FRESH: f64 = 0.2;

/// An application goes where at least this part of it is served.
const SURE: f64 = 0.3;

/// The part of the whole budget that improving one such assignment may take.
const ROUNDING_SHARE: u64 = 24;

impl<'b, 'a> Ascent<'b, 'a> {
    fn new(best: &'b mut Assignment<'a>) -> Self {
        let loads = best.loads();
        let rate: u128 = (0..loads.apps())
            .map(|app| u128::from(loads.rate(app)))
            .sum();
        let bandwidth: u128 = (0..loads.paths())
            .map(|path| u128::from(loads.path(path).bandwidth))
            .sum();
        Self {
            chooser: PathBounder::new(loads),
            must_overload: loads.saturation() == Saturation::Refused && rate >= bandwidth,
            best,
        }
    }

    fn found(&self) -> Cost {
        self.best.total()
    }

    /// A bound on one part of the score, where those before it are as good as found.
    fn maximize(&mut self, goal: Goal, meter: &mut Meter) -> f64 {
        let (mut prices, mut here) = self.start(goal, meter);
        let mut best = (here.value, prices.clone());
        let mut course: Option<Subgradient> = None;
        let rounds_left =
            meter.limit().saturating_sub(meter.work()) / units(self.best.loads(), COARSE).max(1);
        let decay = LAST_STRIDE.powf(1.0 / rounds_left.max(1) as f64);
        let mut stride = 1.0;
        let mut usual = here.served.clone();
        for round in 1_u32.. {
            let target = part(&ScoreParts::from(self.found()), goal);
            let is_closed = match goal {
                // A whole number: the bound need not reach it, but pass the one before.
                Goal::Unmet | Goal::Overloaded => f64::from(count(best.0)) >= target,
                Goal::Lateness | Goal::Delay => best.0 >= target,
            };
            let is_level = here.subgradient.apps.iter().all(|&slope| slope == 0.0);
            if is_closed
                || is_level
                || meter.work() + units(self.best.loads(), FINE) >= meter.limit()
            {
                break;
            }
            let next = here.subgradient.deflected(course.as_ref());
            let found = ScoreParts::from(self.found());
            prices.advance(&next, stride * (target - here.value), &found);
            course = Some(next);
            stride *= decay;
            here = self.round(&prices, goal, COARSE, meter);
            if here.value > best.0 {
                best = (here.value, prices.clone());
            }
            // Single answers jump from one extreme to another; what is usual is near the truth.
            let fresh = here.served.iter().flatten();
            for (usual, fresh) in usual.iter_mut().flatten().zip(fresh) {
                *usual += (fresh - *usual) * FRESH;
            }
            if FIRST_ROUNDINGS.contains(&round) || round % ROUNDING_EVERY == 0 {
                self.round_off(&usual, meter);
            }
        }
        let finely = self.round(&best.1, goal, FINE, meter);
        let found = ScoreParts::from(self.found());
        best.0.max(finely.value).max(0.0).min(part(&found, goal))
    }

    /// The better of two first guesses: what every application costs now, or what it would cost
    /// alone. The latter is a bound by itself.
    fn start(&mut self, goal: Goal, meter: &mut Meter) -> (DualPrices, DualPoint) {
        let [now, alone] = [self.prices_now(goal), self.prices_alone(goal)].map(|prices| {
            let round = self.round(&prices, goal, COARSE, meter);
            (prices, round)
        });
        if now.1.value > alone.1.value {
            now
        } else {
            alone
        }
    }

    fn exclusions(&self, goal: Goal, found: &ScoreParts) -> Exclusions {
        Exclusions {
            all_met: goal > Goal::Unmet && found.unmet as usize == self.chooser.never_met(),
            no_overload: goal > Goal::Overloaded && found.overloaded == 0.0,
        }
    }

    /// What each application costs now, and makes others cost.
    fn prices_now(&self, goal: Goal) -> DualPrices {
        let loads = self.best.loads();
        let mut prices = DualPrices::of(goal, loads.apps());
        if goal == Goal::Unmet {
            // If as many are met as found, and those are the smallest, the largest of them sets
            // the price of bandwidth.
            let mut rates: Vec<u64> = (0..loads.apps()).map(|app| loads.rate(app)).collect();
            rates.sort_unstable();
            let met = loads.apps() - self.found().unmet as usize;
            let largest = rates[met.saturating_sub(1)].max(1) as f64;
            for (app, price) in prices.apps.iter_mut().enumerate() {
                *price = (loads.rate(app) as f64 / largest).min(1.0);
            }
            return prices;
        }
        for path in 0..loads.paths() {
            let members = self.best.members(path);
            let load = self.best.load(path);
            let own = |member: usize| ScoreParts::from(loads.cost(path, member, load));
            let crowding: f64 = members
                .iter()
                .filter(|&&member| match goal {
                    Goal::Delay => true,
                    Goal::Lateness => own(member).lateness > 0.0,
                    Goal::Unmet | Goal::Overloaded => false,
                })
                .map(|&member| self.chooser.steepness(path, member, load as f64))
                .sum();
            for &member in members {
                prices.apps[member] =
                    part(&own(member), goal) + crowding * loads.rate(member) as f64;
            }
        }
        prices
    }

    /// The least that each application costs alone on a path.
    fn prices_alone(&self, goal: Goal) -> DualPrices {
        let loads = self.best.loads();
        let mut prices = DualPrices::of(goal, loads.apps());
        for (app, price) in prices.apps.iter_mut().enumerate() {
            *price = (0..loads.paths())
                .map(|path| {
                    part(
                        &ScoreParts::from(loads.cost(path, app, loads.rate(app))),
                        goal,
                    )
                })
                .fold(f64::INFINITY, f64::min);
        }
        prices
    }

    /// Asks every path.
    fn round(
        &mut self,
        prices: &DualPrices,
        goal: Goal,
        precision: Precision,
        meter: &mut Meter,
    ) -> DualPoint {
        let found = ScoreParts::from(self.found());
        let exclusions = self.exclusions(goal, &found);
        let mut used = ScoreParts::default();
        let mut round = DualPoint {
            value: prices.apps.iter().sum(),
            subgradient: Subgradient {
                apps: vec![1.0; prices.apps.len()],
                parts: ScoreParts::default(),
            },
            served: Vec::with_capacity(self.best.loads().paths()),
        };
        let mut offers = Vec::with_capacity(self.best.loads().paths());
        for path in 0..self.best.loads().paths() {
            offers.push(
                self.chooser
                    .choose(path, prices, exclusions, precision, meter),
            );
        }
        if goal == Goal::Unmet && self.must_overload {
            round.value += overload_gain(&mut offers, prices);
        }
        for offer in offers {
            round.value += offer.cost;
            used.add(&offer.used, 1.0);
            for (slope, served) in round.subgradient.apps.iter_mut().zip(&offer.served) {
                *slope -= served;
            }
            round.served.push(offer.served);
        }
        // Conditions on the parts before the goal: each is priced by how far it is exceeded.
        let slope = &mut round.subgradient.parts;
        if goal > Goal::Unmet && !exclusions.all_met {
            round.value -= prices.parts.unmet * found.unmet;
            slope.unmet = used.unmet - found.unmet;
        }
        if goal > Goal::Overloaded && !exclusions.no_overload {
            round.value -= prices.parts.overloaded * found.overloaded;
            slope.overloaded = used.overloaded - found.overloaded;
        }
        if goal > Goal::Lateness && found.lateness > 0.0 {
            round.value -= prices.parts.lateness * found.lateness;
            slope.lateness = used.lateness - found.lateness;
        }
        round
    }

    /// Puts every application where it is served most, improves that, and keeps it if it is
    /// better.
    fn round_off(&mut self, served: &[Vec<f64>], meter: &mut Meter) {
        let loads = self.best.loads();
        let mut state = Assignment::empty(loads);
        let mut apps: Vec<(usize, usize, f64)> = (0..loads.apps())
            .map(|app| {
                let most = served
                    .iter()
                    .enumerate()
                    .map(|(path, served)| (path, served[app]))
                    .reduce(|most, next| if next.1 > most.1 { next } else { most });
                let (path, part) = most.expect("a problem with applications has paths");
                (app, path, part)
            })
            .collect();
        // The surest first; the others where they cost least then.
        apps.sort_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(&b.0)));
        for (app, path, part) in apps {
            if part > SURE {
                state.put(app, path, meter);
            } else {
                descent::put_where_cheapest(&mut state, app, meter);
            }
        }
        let end = meter.limit();
        let share = end / ROUNDING_SHARE;
        descent::descend(&mut state, meter.until(end.min(meter.work() + share)));
        meter.until(end);
        if state.total().is_clearly_below(&self.best.total()) {
            *self.best = state;
        }
    }
}

/// Where all applications together are more than all paths carry, one path at least is overloaded,
/// and every application on it unmet: the path that gains least otherwise becomes that one. What that adds
/// to the bound.
fn overload_gain(offers: &mut [PathBound], prices: &DualPrices) -> f64 {
    // On it every application gains that pays more than being unmet costs.
    let gain = |price: &f64| (prices.parts.unmet - price).min(0.0);
    let beyond: f64 = prices.apps.iter().map(gain).sum();
    let least = offers
        .iter_mut()
        .reduce(|least, next| if next.cost > least.cost { next } else { least });
    let Some(offer) = least else {
        return 0.0;
    };
    let added = (beyond - offer.cost).max(0.0);
    for (served, price) in offer.served.iter_mut().zip(&prices.apps) {
        *served = f64::from(u8::from(gain(price) < 0.0));
    }
    added
}

fn part(parts: &ScoreParts, goal: Goal) -> f64 {
    match goal {
        Goal::Unmet => parts.unmet,
        Goal::Overloaded => parts.overloaded,
        Goal::Lateness => parts.lateness,
        Goal::Delay => parts.delay,
    }
}

impl DualPrices {
    /// One for the goal, nothing for anything else.
    fn of(goal: Goal, apps: usize) -> Self {
        let mut parts = ScoreParts::default();
        match goal {
            Goal::Unmet => parts.unmet = 1.0,
            Goal::Overloaded => parts.overloaded = 1.0,
            Goal::Lateness => parts.lateness = 1.0,
            Goal::Delay => parts.delay = 1.0,
        }
        Self {
            apps: vec![0.0; apps],
            parts,
        }
    }

    /// A step uphill that would gain `gain` if the slope stayed the same.
    fn advance(&mut self, slope: &Subgradient, gain: f64, found: &ScoreParts) {
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
