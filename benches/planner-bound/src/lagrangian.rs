//! How good the best assignment can be at most: a bound by prices.
//!
//! Every application is given a price λ, paid to the path that serves it, and every path then chooses
//! for itself which applications to serve, regardless of the others. What all applications pay, less what the
//! paths gain at best, is never more than the least cost: in any assignment each application is
//! served once, and no path gains more than at best (Lagrangian relaxation). Prices are raised for
//! applications that no path serves and lowered for those served twice (subgradient steps). What a
//! path can gain at best is left to [`path_bound`](super::path_bound).
//!
//! The parts of the score are bounded one after the other, each under the condition, priced as
//! well, that the parts before it are as good as found. A part whose bound does not reach what was
//! found ends it: about the parts after it nothing can be said.

use std::time::Duration;

use keiro_planner::{
    delay::OverloadPolicy,
    plan::{Order, Score},
};

use crate::{
    Meter,
    instance::Instance,
    path_bound::{DualPrices, Exclusions, PathBound, PathBounder, Precision, ScoreParts},
};

/// The score of the plan that is compared with the bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    unmet: usize,
    overloaded: usize,
    /// If it comes before the delay, else nothing.
    lateness: Duration,
    delay: Duration,
}

impl Found {
    pub(crate) fn new(score: &Score, order: Order) -> Self {
        Self {
            unmet: score.unmet,
            overloaded: score.overloaded,
            lateness: match order {
                Order::LatenessFirst => score.lateness,
                Order::DelayFirst => Duration::ZERO,
            },
            delay: score.delay,
        }
    }

    fn parts(&self) -> ScoreParts {
        ScoreParts {
            unmet: self.unmet as f64,
            overloaded: self.overloaded as f64,
            lateness: self.lateness.as_nanos() as f64,
            delay: self.delay.as_nanos() as f64,
        }
    }
}

/// The most work of a round.
fn units(instance: &Instance, precision: Precision) -> u64 {
    let answers = instance.apps.len() * instance.paths.len();
    (answers * (precision.kept + 2 * precision.halvings)) as u64
}

/// A bound on the score of every assignment; `assignment` has the score `found`.
pub(crate) fn bound(
    instance: &Instance,
    assignment: &[usize],
    found: Found,
    meter: &mut Meter,
) -> Score {
    let mut ascent = Ascent::new(instance, assignment, found);
    let mut bound = Score {
        unmet: ascent.bounder.never_met(),
        ..Score::default()
    };
    if bound.unmet < found.unmet {
        bound.unmet = bound.unmet.max(count(ascent.maximize(Goal::Unmet, meter)));
    }
    if bound.unmet < found.unmet {
        return bound;
    }
    if found.overloaded > 0 {
        bound.overloaded = count(ascent.maximize(Goal::Overloaded, meter));
    }
    if bound.overloaded < found.overloaded {
        return bound;
    }
    if found.lateness > Duration::ZERO {
        bound.lateness = nanos(ascent.maximize(Goal::Lateness, meter));
    }
    if bound.lateness < found.lateness {
        return bound;
    }
    bound.delay = nanos(ascent.maximize(Goal::Delay, meter));
    bound
}

/// The least whole number that a bound leaves, floating-point error aside.
fn count(bound: f64) -> usize {
    (bound - 1e-6).ceil().max(0.0) as usize
}

/// The whole nanoseconds that a bound leaves, floating-point error aside.
fn nanos(bound: f64) -> Duration {
    Duration::from_nanos((bound * (1.0 - 1e-9)).floor().max(0.0) as u64)
}

/// The part of the score that is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Goal {
    Unmet,
    Overloaded,
    Lateness,
    Delay,
}

struct Ascent<'a> {
    bounder: PathBounder<'a>,
    instance: &'a Instance,
    assignment: &'a [usize],
    found: Found,
    /// Whether all applications together are more than all paths carry.
    must_overload: bool,
}

/// What all paths answer to prices.
struct DualPoint {
    value: f64,
    subgradient: Subgradient,
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

impl<'a> Ascent<'a> {
    fn new(instance: &'a Instance, assignment: &'a [usize], found: Found) -> Self {
        let rate: f64 = instance.apps.iter().map(|app| app.rate).sum();
        let bandwidth: f64 = instance.paths.iter().map(|path| path.bandwidth).sum();
        Self {
            bounder: PathBounder::new(instance),
            instance,
            assignment,
            found,
            must_overload: instance.saturation == OverloadPolicy::Refused && rate >= bandwidth,
        }
    }

    /// A bound on one part of the score, where those before it are as good as found.
    fn maximize(&mut self, goal: Goal, meter: &mut Meter) -> f64 {
        let (mut prices, mut here) = self.start(goal, meter);
        let mut best = (here.value, prices.clone());
        let mut course: Option<Subgradient> = None;
        let found = self.found.parts();
        let target = part(&found, goal);
        let rounds_left = meter.left() / units(self.instance, COARSE).max(1);
        let decay = LAST_STRIDE.powf(1.0 / rounds_left.max(1) as f64);
        let mut stride = 1.0;
        loop {
            let is_closed = match goal {
                // A whole number: the bound need not reach it, but pass the one before.
                Goal::Unmet | Goal::Overloaded => count(best.0) as f64 >= target,
                Goal::Lateness | Goal::Delay => best.0 >= target,
            };
            let is_level = here.subgradient.apps.iter().all(|&slope| slope == 0.0);
            if is_closed || is_level || units(self.instance, FINE) >= meter.left() {
                break;
            }
            let next = here.subgradient.deflected(course.as_ref());
            prices.advance(&next, stride * (target - here.value), &found);
            course = Some(next);
            stride *= decay;
            here = self.round(&prices, goal, COARSE, meter);
            if here.value > best.0 {
                best = (here.value, prices.clone());
            }
        }
        let finely = self.round(&best.1, goal, FINE, meter);
        best.0.max(finely.value).max(0.0).min(target)
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

    fn exclusions(&self, goal: Goal) -> Exclusions {
        Exclusions {
            all_met: goal > Goal::Unmet && self.found.unmet == self.bounder.never_met(),
            no_overload: goal > Goal::Overloaded && self.found.overloaded == 0,
        }
    }

    /// What each application costs now, and makes others cost.
    fn prices_now(&self, goal: Goal) -> DualPrices {
        let apps = &self.instance.apps;
        let mut prices = DualPrices::of(goal, apps.len());
        if goal == Goal::Unmet {
            // If as many are met as found, and those are the smallest, the largest of them sets
            // the price of bandwidth.
            let mut rates: Vec<f64> = apps.iter().map(|app| app.rate).collect();
            rates.sort_unstable_by(f64::total_cmp);
            let met = apps.len() - self.found.unmet;
            let largest = rates[met.saturating_sub(1)].max(1.0);
            for (app, price) in apps.iter().zip(&mut prices.apps) {
                *price = (app.rate / largest).min(1.0);
            }
            return prices;
        }
        for path in 0..self.instance.paths.len() {
            let on_path = |&app: &usize| self.assignment[app] == path;
            let members: Vec<usize> = (0..apps.len()).filter(on_path).collect();
            let load: f64 = members.iter().map(|&member| apps[member].rate).sum();
            let crowding: f64 = members
                .iter()
                .filter(|&&member| match goal {
                    Goal::Delay => true,
                    Goal::Lateness => self.bounder.parts(path, member, load).lateness > 0.0,
                    Goal::Unmet | Goal::Overloaded => false,
                })
                .map(|&member| self.bounder.steepness(path, member, load))
                .sum();
            for &member in &members {
                let own = part(&self.bounder.parts(path, member, load), goal);
                prices.apps[member] = own + crowding * apps[member].rate;
            }
        }
        prices
    }

    /// The least that each application costs alone on a path.
    fn prices_alone(&self, goal: Goal) -> DualPrices {
        let apps = &self.instance.apps;
        let mut prices = DualPrices::of(goal, apps.len());
        for (app, price) in prices.apps.iter_mut().enumerate() {
            let alone = |path| part(&self.bounder.parts(path, app, apps[app].rate), goal);
            *price = (0..self.instance.paths.len())
                .map(alone)
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
        let found = self.found.parts();
        let exclusions = self.exclusions(goal);
        let mut used = ScoreParts::default();
        let mut round = DualPoint {
            value: prices.apps.iter().sum(),
            subgradient: Subgradient {
                apps: vec![1.0; prices.apps.len()],
                parts: ScoreParts::default(),
            },
        };
        let mut offers: Vec<PathBound> = (0..self.instance.paths.len())
            .map(|path| (self.bounder).choose(path, prices, exclusions, precision, meter))
            .collect();
        if goal == Goal::Unmet && self.must_overload {
            round.value += overload_gain(&mut offers, prices);
        }
        for offer in offers {
            round.value += offer.cost;
            used.add(&offer.used, 1.0);
            for (slope, served) in round.subgradient.apps.iter_mut().zip(&offer.served) {
                *slope -= served;
            }
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
