//! Equation 3 as the planners compute with it: integers, indexed, and turned round.
//!
//! On a path with the whole load s, application a of rate r has the delay T + L/(W − s + r): it
//! depends on the others only by s. So its latency target holds exactly while s stays at or below a limit
//! that is known in advance.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

use crate::{
    delay::OverloadPolicy,
    plan::{DelayModel, Order, Problem, Score},
};
use keiro_units::Bandwidth;

/// Paths at or above this rate (281 Tbit/s), or more than [`APPS_MAX`] applications, are left to
/// the general planner, so that no sum of rates here can overflow.
const RATE_MAX: u64 = 1 << 48;
const APPS_MAX: usize = 1 << 14;

/// A problem under eq. 3.
#[derive(Clone, Debug)]
pub(in crate::plan) struct Loads {
    paths: Vec<Path>,
    apps: Vec<App>,
    /// Row per application, column per path: the largest whole load with which it is met.
    limits: Vec<Option<u64>>,
    saturation: OverloadPolicy,
    order: Order,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Path {
    /// In bit/s.
    pub(super) bandwidth: u64,
    pub(super) delay_nanos: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct App {
    /// In bit/s.
    pub(super) rate: u64,
    /// L in 10^-9 bit: over bit/s it is nanoseconds.
    pub(super) length: u128,
    /// The loosened latency target; `None` without one.
    pub(super) latency_target_nanos: Option<u128>,
}

impl App {
    fn lateness(&self, delay_nanos: u128) -> u128 {
        self.latency_target_nanos.map_or(0, |latency_target| {
            delay_nanos.saturating_sub(latency_target)
        })
    }

    /// The length where rounding does not matter.
    pub(super) fn length_rounded(&self) -> f64 {
        rounded(self.length)
    }
}

/// In floating point. Most values fit 64 bits, which convert much faster.
pub(super) fn rounded(value: u128) -> f64 {
    match u64::try_from(value) {
        Ok(value) => value as f64,
        Err(_) => value as f64,
    }
}

/// [`Score`] in plain integers that no sum here can overflow, the order of its fields being that of
/// importance for either [`Order`]: lateness is counted before the delay or after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::plan) struct Cost {
    pub(super) unmet: u32,
    pub(super) overloaded: u32,
    /// Lateness, if it comes before the delay, else nothing.
    pub(super) lateness: u128,
    pub(super) delay: u128,
    /// Lateness, if it comes after the delay, else nothing.
    pub(super) lateness_last: u128,
}

/// Lateness that differs by less is the same for the search: a delay is predicted to the nanosecond,
/// and without this a nanosecond of one application would outweigh any delay of all.
pub(super) const LATE_NOTHING_NANOS: u128 = 1_000;

impl Cost {
    /// Less, differences of lateness that mean nothing aside.
    pub(super) fn is_clearly_below(&self, other: &Self) -> bool {
        let counts = (self.unmet, self.overloaded);
        let others = (other.unmet, other.overloaded);
        if counts == others && self.lateness.abs_diff(other.lateness) < LATE_NOTHING_NANOS {
            (self.delay, self.lateness_last) < (other.delay, other.lateness_last)
        } else {
            self < other
        }
    }
}

impl Loads {
    /// `None` if the model is not eq. 3, or the problem too large for the integers used here.
    pub(in crate::plan) fn new<M: DelayModel>(problem: &Problem<'_, M>) -> Option<Self> {
        let equation = problem.model.closed_form()?;
        let fits = |bandwidth: Bandwidth| bandwidth.as_bits_per_second() < RATE_MAX;
        if problem.apps.len() > APPS_MAX || !problem.paths.iter().all(|path| fits(path.bandwidth)) {
            return None;
        }
        let paths = problem.paths.iter().map(|path| Path {
            bandwidth: path.bandwidth.as_bits_per_second(),
            delay_nanos: path.delay.as_nanos(),
        });
        let apps = problem.apps.iter().map(|app| App {
            // Anything from RATE_MAX on overloads every path alike.
            rate: app.rate().as_bits_per_second().min(RATE_MAX),
            length: u128::from(app.length.get()) * 8_000_000_000,
            latency_target_nanos: app
                .latency_target
                .map(|latency_target| problem.tolerance.loosen(latency_target).as_nanos()),
        });
        let mut loads = Self {
            paths: paths.collect(),
            apps: apps.collect(),
            limits: Vec::new(),
            saturation: equation.saturation,
            order: problem.order,
        };
        loads.limits = problem
            .apps
            .iter()
            .flat_map(|app| problem.paths.iter().map(move |path| (app, path)))
            .map(|(app, path)| {
                let limit = match app.latency_target {
                    Some(latency_target) => problem.tolerance.loosen(latency_target),
                    None => Duration::MAX,
                };
                let others = equation.others_max(path, app, limit)?;
                Some(others.as_bits_per_second() + app.rate().as_bits_per_second().min(RATE_MAX))
            })
            .collect();
        Some(loads)
    }

    /// The number of paths.
    pub(in crate::plan) fn paths(&self) -> usize {
        self.paths.len()
    }

    /// The number of applications.
    pub(super) fn apps(&self) -> usize {
        self.apps.len()
    }

    pub(super) fn path(&self, path: usize) -> &Path {
        &self.paths[path]
    }

    pub(super) fn app(&self, app: usize) -> &App {
        &self.apps[app]
    }

    pub(super) fn order(&self) -> Order {
        self.order
    }

    pub(super) fn saturation(&self) -> OverloadPolicy {
        self.saturation
    }

    /// In bit/s.
    pub(in crate::plan) fn rate(&self, app: usize) -> u64 {
        self.apps[app].rate
    }

    /// The largest load of `path`, `app` included, with which `app` is met there; `None` if it
    /// never is.
    pub(in crate::plan) fn limit(&self, path: usize, app: usize) -> Option<u64> {
        self.limits[app * self.paths.len() + path]
    }

    /// The delay of `app` on `path` with the whole load `load`, in nanoseconds; `None` if
    /// overloaded.
    pub(super) fn delay(&self, path: usize, app: usize, load: u64) -> Option<u128> {
        let (path, app) = (&self.paths[path], &self.apps[app]);
        let others = load - app.rate;
        let saturated = match self.saturation {
            OverloadPolicy::AsPrinted => others >= path.bandwidth,
            OverloadPolicy::Refused => load >= path.bandwidth,
        };
        if saturated {
            return None;
        }
        let available = path.bandwidth - others;
        let transfer = match u64::try_from(app.length) {
            Ok(length) => length.div_ceil(available),
            Err(_) => u64::try_from(app.length.div_ceil(available.into())).unwrap_or(u64::MAX),
        };
        let delay = path.delay_nanos.saturating_add(transfer.into());
        Some(delay.min(Duration::MAX.as_nanos()))
    }

    /// How late `app` is on `path` with the whole load `load`, in nanoseconds; `None` if
    /// overloaded.
    pub(in crate::plan) fn lateness(&self, path: usize, app: usize, load: u64) -> Option<u128> {
        let delay = self.delay(path, app, load)?;
        Some(self.apps[app].lateness(delay))
    }

    /// What `app` adds to the score on `path` with the whole load `load`.
    pub(super) fn cost(&self, path: usize, app: usize, load: u64) -> Cost {
        match self.delay(path, app, load) {
            None => Cost {
                unmet: 1,
                overloaded: 1,
                ..Cost::default()
            },
            Some(delay) => {
                let late = self.apps[app].lateness(delay);
                let (lateness, lateness_last) = match self.order {
                    Order::LatenessFirst => (late, 0),
                    Order::DelayFirst => (0, late),
                };
                Cost {
                    unmet: u32::from(late > 0),
                    overloaded: 0,
                    lateness,
                    delay,
                    lateness_last,
                }
            }
        }
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, rhs: Self) -> Self {
        Self {
            unmet: self.unmet + rhs.unmet,
            overloaded: self.overloaded + rhs.overloaded,
            lateness: self.lateness + rhs.lateness,
            delay: self.delay + rhs.delay,
            lateness_last: self.lateness_last + rhs.lateness_last,
        }
    }
}

impl Sub for Cost {
    type Output = Self;

    /// Takes a part out of a sum.
    fn sub(self, rhs: Self) -> Self {
        Self {
            unmet: self.unmet - rhs.unmet,
            overloaded: self.overloaded - rhs.overloaded,
            lateness: self.lateness - rhs.lateness,
            delay: self.delay - rhs.delay,
            lateness_last: self.lateness_last - rhs.lateness_last,
        }
    }
}

impl From<Cost> for Score {
    fn from(cost: Cost) -> Self {
        Self {
            unmet: cost.unmet as usize,
            overloaded: cost.overloaded as usize,
            lateness: duration_of(cost.lateness + cost.lateness_last),
            delay: duration_of(cost.delay),
        }
    }
}

fn duration_of(nanos: u128) -> Duration {
    match u64::try_from(nanos / 1_000_000_000) {
        Ok(seconds) => Duration::new(seconds, (nanos % 1_000_000_000) as u32),
        Err(_) => Duration::MAX,
    }
}
