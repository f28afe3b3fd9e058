//! What a path gains at best, when every application pays a price for being served.
//!
//! The path picks a set S of applications; with s as its load, the sum of their rates, each costs
//! cₐ(s), rising and convex in s, and pays λₐ. The least of Σ (cₐ(s) − λₐ) over all sets is bounded
//! from below by cutting the loads into intervals. In one, with m inside it,
//!
//! - cₐ(s) is at least its tangent at m, Aₐ + Bₐ·(s − m), for convexity;
//! - since s is the sum of the rates, μ·(Σ rₐ − s) may be added for any μ;
//! - so the sum is at least Σ min(0, Aₐ − λₐ + Bₐ·(s − m) + μ·rₐ) − μ·s, which is concave in s and
//!   therefore least at one of the interval's ends.
//!
//! For μ the price of room at m is taken: what the last application gains per bit/s that just fits
//! there, the last as a fraction. The interval that promises most is halved until it is narrow.

use keiro_planner::delay::OverloadPolicy;

use crate::{Meter, instance::Instance};

/// What an application contributes to each part of the score, or what each part costs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScoreParts {
    pub(super) unmet: f64,
    pub(super) overloaded: f64,
    /// In nanoseconds.
    pub(super) lateness: f64,
    /// In nanoseconds.
    pub(super) delay: f64,
}

/// What each application pays, and what each part of the score costs.
#[derive(Clone, Debug)]
pub(super) struct DualPrices {
    pub(super) apps: Vec<f64>,
    pub(super) parts: ScoreParts,
}

/// What is forbidden rather than priced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exclusions {
    /// Applications that can be met must be.
    pub(super) all_met: bool,
    /// No path may be overloaded.
    pub(super) no_overload: bool,
}

/// An instance, and room to work in.
pub(super) struct PathBounder<'a> {
    instance: &'a Instance,
    options: Vec<Choice>,
    items: Vec<KnapsackItem>,
    /// By path: where its loads were cut when it was last asked.
    cuts: Vec<Vec<f64>>,
}

/// What a path gains at best.
#[derive(Clone, Debug)]
pub(super) struct PathBound {
    /// A bound on what it costs, prices deducted: never positive.
    pub(super) cost: f64,
    /// By application: which part of it is served then.
    pub(super) served: Vec<f64>,
    /// What those served contribute to the score.
    pub(super) used: ScoreParts,
}

/// An application that a path may serve.
#[derive(Clone, Copy, Debug)]
struct Choice {
    app: usize,
    rate: f64,
    /// What serving it costs, its price deducted, where tangents touch.
    cost: f64,
    /// How that grows with the load.
    growth: f64,
    /// The cost per bit/s.
    ratio: f64,
}

/// The same, where only the cost per bit/s and the rate matter.
#[derive(Clone, Copy, Debug)]
struct KnapsackItem {
    ratio: f64,
    rate: f64,
}

/// The loads of a path from one bound to another, in bit/s.
#[derive(Clone, Copy, Debug)]
struct Interval {
    low: f64,
    high: f64,
}

/// How finely a path's loads are cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Precision {
    /// Intervals halved when a path is asked.
    pub(super) halvings: usize,
    /// Intervals kept from one time to the next.
    pub(super) kept: usize,
}

/// An interval is narrow enough where the bandwidth left over varies by this factor.
const NARROW: f64 = 1.02;

/// Of an interval, tangents touch at most this far from its lower end: what is left over there, as
/// a multiple of what is left over where they touch. Found by trial.
const TOUCHING: f64 = 1.1;

/// The part of its bandwidth that a path is taken to have left in any case, when intervals are
/// halved.
const LEFT_MIN: f64 = 1e-4;

impl<'a> PathBounder<'a> {
    pub(super) fn new(instance: &'a Instance) -> Self {
        Self {
            instance,
            options: Vec::new(),
            items: Vec::new(),
            cuts: vec![Vec::new(); instance.paths.len()],
        }
    }

    /// The applications that are unmet even alone on any path.
    pub(super) fn never_met(&self) -> usize {
        let apps = self.instance.apps.iter();
        apps.filter(|app| app.never_met).count()
    }

    /// What `app` adds to the score on `path` with the whole load `load`.
    pub(super) fn parts(&self, path: usize, app: usize, load: f64) -> ScoreParts {
        let Some(delay) = self.instance.delay(path, app, load) else {
            return ScoreParts {
                unmet: 1.0,
                overloaded: 1.0,
                ..ScoreParts::default()
            };
        };
        let lateness = (delay - self.instance.apps[app].latency_target).max(0.0);
        ScoreParts {
            unmet: f64::from(u8::from(lateness > 0.0)),
            overloaded: 0.0,
            lateness,
            delay,
        }
    }

    /// How an application's delay on a path grows with the load: nanoseconds per bit/s.
    pub(super) fn steepness(&self, path: usize, app: usize, load: f64) -> f64 {
        let app = &self.instance.apps[app];
        let left = self.instance.paths[path].bandwidth - (load - app.rate);
        if left > 0.0 {
            app.length / (left * left)
        } else {
            0.0
        }
    }

    /// A bound on what `path` can gain.
    pub(super) fn choose(
        &mut self,
        path: usize,
        prices: &DualPrices,
        exclusions: Exclusions,
        precision: Precision,
        meter: &mut Meter,
    ) -> PathBound {
        let bandwidth = self.instance.paths[path].bandwidth;
        let beyond: &[f64] = match (self.instance.saturation, exclusions.no_overload) {
            (OverloadPolicy::Refused, true) => &[bandwidth],
            (OverloadPolicy::Refused, false) => &[bandwidth, f64::INFINITY],
            // An application that is most of the load itself is not overloaded here.
            (OverloadPolicy::AsPrinted, _) => &[bandwidth, 2.0 * bandwidth, f64::INFINITY],
        };
        // Prices change little from one round to the next: the last round's cuts are a good start.
        let mut cuts = std::mem::take(&mut self.cuts[path]);
        let halvings = match cuts.len() {
            0 => precision.halvings.max(precision.kept),
            _ => precision.halvings,
        };
        let ends: Vec<f64> = [0.0].iter().chain(&cuts).chain(beyond).copied().collect();
        let mut intervals: Vec<(f64, Interval)> = Vec::with_capacity(ends.len() + halvings);
        for ends in ends.windows(2) {
            let interval = Interval {
                low: ends[0],
                high: ends[1],
            };
            intervals.push((
                self.least(path, &interval, prices, exclusions, meter),
                interval,
            ));
        }
        for _ in 0..halvings {
            let best = most_promising(&intervals);
            let (least, interval) = intervals[best];
            let Some(halves) = interval.halves(bandwidth).filter(|_| least < 0.0) else {
                break;
            };
            // What bounds the whole bounds its parts.
            let [lower, upper] = halves.map(|half| {
                let bound = self.least(path, &half, prices, exclusions, meter);
                (bound.max(least), half)
            });
            intervals[best] = lower;
            intervals.insert(best + 1, upper);
        }
        let (least, interval) = intervals[most_promising(&intervals)];
        while intervals.len() > precision.kept {
            // The two neighbours that promise least, of those below the bandwidth, become one.
            let pairs = intervals.windows(2).enumerate();
            let dullest = pairs
                .filter(|(_, pair)| pair[1].1.low < bandwidth)
                .map(|(index, pair)| (pair[0].0.min(pair[1].0), index))
                .reduce(|dullest, next| if next.0 > dullest.0 { next } else { dullest });
            let Some((_, index)) = dullest else {
                break;
            };
            intervals[index].1.high = intervals[index + 1].1.high;
            intervals.remove(index + 1);
        }
        cuts.clear();
        cuts.extend(
            intervals
                .iter()
                .map(|(_, interval)| interval.high)
                .filter(|&high| high < bandwidth),
        );
        self.cuts[path] = cuts;
        let mut offer = PathBound {
            cost: least.min(0.0),
            served: vec![0.0; self.instance.apps.len()],
            used: ScoreParts::default(),
        };
        if least < 0.0 {
            self.serve(path, &interval, prices, exclusions, &mut offer);
        }
        offer
    }

    /// A bound on what serving one application costs with a load in `interval`.
    fn least(
        &mut self,
        path: usize,
        interval: &Interval,
        prices: &DualPrices,
        exclusions: Exclusions,
        meter: &mut Meter,
    ) -> f64 {
        meter.spend(self.instance.apps.len() as u64);
        self.prepare(path, interval, prices, exclusions);
        let bandwidth = self.instance.paths[path].bandwidth;
        if interval.low >= bandwidth {
            return self.options.iter().map(|option| option.cost.min(0.0)).sum();
        }
        let touching = interval.touching(bandwidth);
        let room_price = self.room_price(touching);
        // The lesser of the bounds at both ends.
        let [below, above] = [interval.low - touching, interval.high - touching];
        let (mut low, mut high) = (-room_price * interval.low, -room_price * interval.high);
        for option in &self.options {
            let cost = option.cost + room_price * option.rate;
            low += (cost + option.growth * below).min(0.0);
            high += (cost + option.growth * above).min(0.0);
        }
        low.min(high)
    }

    /// What room is worth per bit/s, if those of `options` that cost least per bit/s fill it.
    fn room_price(&mut self, room: f64) -> f64 {
        let gain = |option: &&Choice| option.cost < 0.0;
        let gaining: f64 = self
            .options
            .iter()
            .filter(gain)
            .map(|option| option.rate)
            .sum();
        // Either not all that gain fit, or all do and the others fill the rest.
        let (gains, room) = if gaining < room {
            (false, room - gaining)
        } else {
            (true, room)
        };
        let options = self.options.iter();
        let items = options.filter(|option| (option.cost < 0.0) == gains);
        self.items.clear();
        self.items.extend(items.map(|option| KnapsackItem {
            ratio: option.ratio,
            rate: option.rate,
        }));
        room_price(&mut self.items, room)
    }

    /// Leaves in `options` the applications that `path` may serve with a load in `interval`, and for how much.
    fn prepare(
        &mut self,
        path: usize,
        interval: &Interval,
        prices: &DualPrices,
        exclusions: Exclusions,
    ) {
        if interval.low < self.instance.paths[path].bandwidth {
            self.prepare_finite(path, interval, prices, exclusions);
            return;
        }
        let mut options = std::mem::take(&mut self.options);
        options.clear();
        let beyond = (0..self.instance.apps.len()).filter_map(|index| {
            let parts = self.parts_beyond(path, index, interval, prices, exclusions)?;
            let cost = parts.times(&prices.parts) - prices.apps[index];
            let app = &self.instance.apps[index];
            (app.rate <= interval.high).then_some(Choice {
                app: index,
                rate: app.rate,
                cost,
                growth: 0.0,
                ratio: cost * app.per_rate,
            })
        });
        options.extend(beyond);
        self.options = options;
    }

    /// With a load below the bandwidth: what [`finite_parts`](Self::finite_parts) says, in the
    /// fewest operations, for this is where the time goes.
    fn prepare_finite(
        &mut self,
        path: usize,
        interval: &Interval,
        prices: &DualPrices,
        exclusions: Exclusions,
    ) {
        let instance = self.instance;
        let path = &instance.paths[path];
        let touching = interval.touching(path.bandwidth);
        let parts = &prices.parts;
        self.options.clear();
        let apps = instance.apps.iter().zip(&path.limits).zip(&prices.apps);
        for (index, ((app, &limit), price)) in apps.enumerate() {
            let unmet = limit < interval.low.max(app.rate);
            if app.rate > interval.high || (unmet && exclusions.all_met && !app.never_met) {
                continue;
            }
            // The application itself is part of the load, whatever the rest is.
            let others = (touching - app.rate).max(0.0);
            let per_left = 1.0 / (path.bandwidth - others);
            let transfer = app.length * per_left;
            let delay = path.delay + transfer;
            let lateness = (delay - app.latency_target - 1.0).max(0.0);
            let mut cost = parts.delay * delay + parts.lateness * lateness - price;
            if unmet {
                cost += parts.unmet;
            }
            let late = if lateness > 0.0 { parts.lateness } else { 0.0 };
            let growth = if others > 0.0 {
                transfer * per_left * (parts.delay + late)
            } else {
                0.0
            };
            self.options.push(Choice {
                app: index,
                rate: app.rate,
                cost,
                growth,
                ratio: cost * app.per_rate,
            });
        }
    }

    /// What an application contributes with a load in `interval`, tangents touching at
    /// `touching`.
    fn finite_parts(
        &self,
        path: usize,
        index: usize,
        interval: &Interval,
        touching: f64,
        exclusions: Exclusions,
    ) -> Option<ScoreParts> {
        let (path, app) = (&self.instance.paths[path], &self.instance.apps[index]);
        let unmet = path.limits[index] < interval.low.max(app.rate);
        if unmet && exclusions.all_met && !app.never_met {
            return None;
        }
        let delay = path.delay + app.length / (path.bandwidth - (touching - app.rate).max(0.0));
        Some(ScoreParts {
            unmet: f64::from(u8::from(unmet)),
            overloaded: 0.0,
            // Predicted delays are whole nanoseconds, rounded up: what is late by less than one
            // here may be met there.
            lateness: (delay - app.latency_target - 1.0).max(0.0),
            delay,
        })
    }

    /// What an application contributes with a load at or above the bandwidth: it is overloaded,
    /// or, where eq. 3 is taken as printed, finite if it is most of the load itself.
    fn parts_beyond(
        &self,
        path: usize,
        index: usize,
        interval: &Interval,
        prices: &DualPrices,
        exclusions: Exclusions,
    ) -> Option<ScoreParts> {
        let (path, app) = (&self.instance.paths[path], &self.instance.apps[index]);
        let others = (interval.low - app.rate).max(0.0);
        let finite = (self.instance.saturation == OverloadPolicy::AsPrinted
            && others < path.bandwidth)
            .then(|| {
                let unmet = path.limits[index] < interval.low.max(app.rate);
                let delay = path.delay + app.length / (path.bandwidth - others);
                ScoreParts {
                    unmet: f64::from(u8::from(unmet)),
                    overloaded: 0.0,
                    lateness: (delay - app.latency_target - 1.0).max(0.0),
                    delay,
                }
            });
        let overloaded = ScoreParts {
            unmet: 1.0,
            overloaded: 1.0,
            ..ScoreParts::default()
        };
        [finite, Some(overloaded)]
            .into_iter()
            .flatten()
            .filter(|parts| parts.overloaded == 0.0 || !exclusions.no_overload)
            .filter(|parts| parts.unmet == 0.0 || !exclusions.all_met || app.never_met)
            .reduce(|best, next| {
                if next.times(&prices.parts) < best.times(&prices.parts) {
                    next
                } else {
                    best
                }
            })
    }

    /// Serves, cheapest first, what fills the path up to where tangents touch.
    fn serve(
        &mut self,
        path: usize,
        interval: &Interval,
        prices: &DualPrices,
        exclusions: Exclusions,
        offer: &mut PathBound,
    ) {
        let bandwidth = self.instance.paths[path].bandwidth;
        self.prepare(path, interval, prices, exclusions);
        if interval.low >= bandwidth {
            for option in self.options.iter().filter(|option| option.cost < 0.0) {
                offer.served[option.app] += 1.0;
                if let Some(parts) =
                    self.parts_beyond(path, option.app, interval, prices, exclusions)
                {
                    offer.used.add(&parts, 1.0);
                }
            }
            return;
        }
        let touching = interval.touching(bandwidth);
        self.options
            .sort_unstable_by(|a, b| a.ratio.total_cmp(&b.ratio).then(a.app.cmp(&b.app)));
        let mut room = touching;
        for option in &self.options {
            let part = if option.rate <= room {
                1.0
            } else {
                room / option.rate
            };
            room -= option.rate * part;
            offer.served[option.app] += part;
            if let Some(parts) = self.finite_parts(path, option.app, interval, touching, exclusions)
            {
                offer.used.add(&parts, part);
            }
            if part < 1.0 {
                break;
            }
        }
    }
}

/// What the last one gains per bit/s that fits into `room`, as a fraction at least, if those come
/// first that cost least per bit/s; negative if it costs. Nothing if there are too few.
fn room_price(items: &mut [KnapsackItem], room: f64) -> f64 {
    let mut candidates = items;
    let mut left = room;
    while let Some(pivot) = candidates
        .get(candidates.len() / 2)
        .map(|filler| filler.ratio)
    {
        // Those that cost less than the pivot, those that cost as much, those that cost more.
        let (mut less, mut more, mut index) = (0, candidates.len(), 0);
        let (mut rate_less, mut rate_equal) = (0.0, 0.0);
        while index < more {
            let filler = candidates[index];
            if filler.ratio < pivot {
                rate_less += filler.rate;
                candidates.swap(less, index);
                less += 1;
                index += 1;
            } else if filler.ratio > pivot {
                more -= 1;
                candidates.swap(index, more);
            } else {
                rate_equal += filler.rate;
                index += 1;
            }
        }
        if rate_less > left {
            candidates = &mut candidates[..less];
        } else if rate_less + rate_equal >= left {
            return -pivot;
        } else {
            left -= rate_less + rate_equal;
            candidates = &mut candidates[more..];
        }
    }
    0.0
}

fn most_promising(intervals: &[(f64, Interval)]) -> usize {
    (0..intervals.len())
        .reduce(|best, next| {
            if intervals[next].0 < intervals[best].0 {
                next
            } else {
                best
            }
        })
        .expect("there is an interval")
}

impl Interval {
    /// Halfway by the factor between what is left over at its ends.
    fn middle(&self, bandwidth: f64) -> f64 {
        let [low, high] = self.left(bandwidth);
        bandwidth - (low * high).sqrt()
    }

    /// Where tangents are taken: in the middle, but of a wide interval near its lower end, since
    /// far from where it touches a tangent says nothing.
    fn touching(&self, bandwidth: f64) -> f64 {
        let [low, high] = self.left(bandwidth);
        bandwidth - (low * high).sqrt().max(low / TOUCHING)
    }

    fn left(&self, bandwidth: f64) -> [f64; 2] {
        [self.low, self.high].map(|end| (bandwidth - end).max(bandwidth * LEFT_MIN))
    }

    /// `None` if it is narrow enough, or beyond the bandwidth.
    fn halves(&self, bandwidth: f64) -> Option<[Self; 2]> {
        let [low, high] = self.left(bandwidth);
        if self.low >= bandwidth || low <= high * NARROW {
            return None;
        }
        let middle = self.middle(bandwidth);
        Some([
            Self {
                high: middle,
                ..*self
            },
            Self {
                low: middle,
                ..*self
            },
        ])
    }
}

impl ScoreParts {
    fn times(&self, prices: &Self) -> f64 {
        self.unmet * prices.unmet
            + self.overloaded * prices.overloaded
            + self.lateness * prices.lateness
            + self.delay * prices.delay
    }

    pub(super) fn add(&mut self, rhs: &Self, times: f64) {
        self.unmet += rhs.unmet * times;
        self.overloaded += rhs.overloaded * times;
        self.lateness += rhs.lateness * times;
        self.delay += rhs.delay * times;
    }
}
