//! The paper's delay model: equations 1, 2 and 3 of `[path-selection §3.3]`.
//!
//! The delay of a message runs from the moment it is made until its last byte is received. The
//! model knows neither headers nor queues: a message finds the path's bandwidth less what the
//! others on it use on average. [`crate::queueing`] is the model for the gateway's own schedulers.
//!
//! Every answer carries its terms, so that it can be explained. All arithmetic is on integers
//! (bit/s and nanoseconds) and rounds against the application: rates and delays up.

use std::{fmt, time::Duration};

use keiro_units::{Bandwidth, ByteCount};

/// A path as the planner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathSpec {
    /// W: what the path carries, one way. Wire bytes; eq. 3 takes headers as nothing.
    pub bandwidth: Bandwidth,
    /// T: propagation delay, one way.
    pub delay: Duration,
}

/// An application as the planner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AppSpec {
    /// L: mean message length, without headers.
    pub length: ByteCount,
    /// E: mean time from the start of one message to the start of the next.
    pub interval: Duration,
    /// F: the delay wanted. `None`: any finite delay will do.
    pub latency_target: Option<Duration>,
}

/// A predicted delay.
///
/// Ordered: every finite delay is less than [`Overloaded`](Self::Overloaded).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Delay {
    /// The mean (or other stated statistic) of the delay.
    Finite(Duration),
    /// More arrives than the path can carry: the delay grows without end and has no mean.
    Overloaded,
}

/// The terms of eq. 3 for one application on one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DelayTerms {
    /// T: propagation delay, one way.
    pub propagation: Duration,
    /// L: mean message length.
    pub length: ByteCount,
    /// W: the path's bandwidth.
    pub bandwidth: Bandwidth,
    /// Q: what the others on the path use on average, `[path-selection eq. 2]`, in bit/s.
    pub others: Bandwidth,
    /// L/E: what the application itself uses on average; not part of eq. 3.
    pub own: Bandwidth,
}

/// A delay, its terms and the latency target that it is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prediction {
    /// What it was computed from.
    pub terms: DelayTerms,
    /// H: the predicted delay.
    pub delay: Delay,
    /// F: the delay wanted, without tolerance.
    pub latency_target: Option<Duration>,
}

/// How a predicted delay stands to its latency target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Margin {
    /// There is no latency target, and the delay is finite.
    NoTarget,
    /// Met: F − H, possibly zero.
    Spare(Duration),
    /// Not met: H − F, more than zero.
    Late(Duration),
    /// Not met by any finite time: the path is overloaded.
    Overloaded,
}

/// How far above its latency target a prediction may lie and still count as met: H ≤ F·(1 + t).
///
/// Parts per million, so that it is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tolerance(u32);

/// What eq. 3 answers where a path's whole mean load, the application's own included, reaches W.
///
/// Equation 3 leaves the application's own rate out of Q, so it gives a number for queues that
/// grow without end: an application of 200 Mbit/s alone on 100 Mbit/s, say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OverloadPolicy {
    /// As printed: a number as long as Q < W.
    AsPrinted,
    /// [`Delay::Overloaded`] as soon as the whole load reaches W. Ours; no queue is stable there.
    #[default]
    Refused,
}

/// Equation 3, H' = T + L/(W − Q), `[path-selection §3.3]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Equation3 {
    /// What to answer where the load reaches the bandwidth.
    pub saturation: OverloadPolicy,
}

/// Equation 1: the delay of an application alone on a path, H = T + L/W.
pub fn alone(path: &PathSpec, app: &AppSpec) -> Prediction {
    shared(path, app, Bandwidth::ZERO)
}

/// Equation 2: Q of `app`, the mean rate of all others in `members` (indices into `apps`).
///
/// The paper's sum runs over the first n applications, n being the number of paths; it must run
/// over all m. `app` may or may not be in `members`.
pub fn competing_rate(apps: &[AppSpec], members: &[usize], app: usize) -> Bandwidth {
    members
        .iter()
        .filter(|&&other| other != app)
        .map(|&other| apps[other].rate())
        .sum()
}

/// Equation 3 as printed: the delay of an application beside others that use `others`.
pub fn shared(path: &PathSpec, app: &AppSpec, others: Bandwidth) -> Prediction {
    Equation3 {
        saturation: OverloadPolicy::AsPrinted,
    }
    .predict(path, app, others)
}

impl AppSpec {
    /// L/E, rounded up to bit/s; [`Bandwidth::MAX`] for an interval of zero.
    pub fn rate(&self) -> Bandwidth {
        self.length.rate_over_ceil(self.interval)
    }
}

impl Equation3 {
    /// Predicts for `app` on `path` beside others that use `others` on average.
    pub fn predict(&self, path: &PathSpec, app: &AppSpec, others: Bandwidth) -> Prediction {
        let terms = DelayTerms {
            propagation: path.delay,
            length: app.length,
            bandwidth: path.bandwidth,
            others,
            own: app.rate(),
        };
        Prediction {
            delay: self.delay(&terms),
            terms,
            latency_target: app.latency_target,
        }
    }

    fn delay(&self, terms: &DelayTerms) -> Delay {
        let saturated = match self.saturation {
            OverloadPolicy::AsPrinted => terms.others >= terms.bandwidth,
            OverloadPolicy::Refused => terms.is_saturated(),
        };
        if saturated {
            return Delay::Overloaded;
        }
        let transfer = terms.available().transmission_time_ceil(terms.length);
        Delay::Finite(terms.propagation.saturating_add(transfer))
    }

    /// The largest Q with which H' of `app` on `path` is at most `limit`; `None` if none is.
    ///
    /// Exact: it is the inverse of [`predict`](Self::predict), rounding included.
    pub fn others_max(&self, path: &PathSpec, app: &AppSpec, limit: Duration) -> Option<Bandwidth> {
        let transfer = limit.checked_sub(path.delay)?;
        // H' ≤ limit ⟺ W − Q ≥ L/transfer, and W − Q ≥ 1 in any case.
        let needed = match app.length.rate_over_ceil(transfer) {
            // Nothing to send takes no time, and something in no time is impossible.
            Bandwidth::MAX => return None,
            needed => needed.max(Bandwidth::from_bits_per_second(1)),
        };
        let others_max = path.bandwidth.checked_sub(needed)?;
        match self.saturation {
            OverloadPolicy::AsPrinted => Some(others_max),
            OverloadPolicy::Refused => {
                let one = Bandwidth::from_bits_per_second(1);
                let stable = path.bandwidth.checked_sub(one)?.checked_sub(app.rate())?;
                Some(others_max.min(stable))
            }
        }
    }
}

impl DelayTerms {
    /// W − Q, at least zero.
    pub const fn available(&self) -> Bandwidth {
        self.bandwidth.saturating_sub(self.others)
    }

    /// (Q + L/E)/W: the path's whole mean load. `None` on a path without bandwidth.
    pub fn load(&self) -> Option<f64> {
        self.others
            .saturating_add(self.own)
            .ratio_of(self.bandwidth)
    }

    /// Whether the path's whole mean load reaches its bandwidth: no model gives a delay there,
    /// though eq. 3 as printed may.
    pub fn is_saturated(&self) -> bool {
        self.others.saturating_add(self.own) >= self.bandwidth
    }
}

impl Prediction {
    /// How the delay stands to the latency target, strictly.
    pub fn margin(&self) -> Margin {
        Margin::of(self.delay, self.latency_target)
    }

    /// Whether the latency target, loosened by `tolerance`, is met; without a latency target, whether the delay is
    /// finite.
    pub fn is_met(&self, tolerance: Tolerance) -> bool {
        self.delay.meets(self.latency_target, tolerance)
    }
}

impl Delay {
    /// The time, `None` if overloaded.
    pub const fn finite(self) -> Option<Duration> {
        match self {
            Self::Finite(delay) => Some(delay),
            Self::Overloaded => None,
        }
    }

    /// Whether it is at most `latency_target` loosened by `tolerance`; without a latency target, whether finite.
    pub fn meets(self, latency_target: Option<Duration>, tolerance: Tolerance) -> bool {
        match (self, latency_target) {
            (Self::Overloaded, _) => false,
            (Self::Finite(_), None) => true,
            (Self::Finite(delay), Some(latency_target)) => {
                delay <= tolerance.loosen(latency_target)
            }
        }
    }
}

impl Margin {
    /// How `delay` stands to `latency_target`, strictly.
    pub fn of(delay: Delay, latency_target: Option<Duration>) -> Self {
        match (delay, latency_target) {
            (Delay::Overloaded, _) => Self::Overloaded,
            (Delay::Finite(_), None) => Self::NoTarget,
            (Delay::Finite(delay), Some(latency_target)) => match latency_target.checked_sub(delay)
            {
                Some(spare) => Self::Spare(spare),
                None => Self::Late(delay - latency_target),
            },
        }
    }

    /// Whether the latency target is met, or there is none and the delay is finite.
    pub const fn is_met(self) -> bool {
        matches!(self, Self::NoTarget | Self::Spare(_))
    }
}

impl Tolerance {
    /// None: H ≤ F.
    pub const STRICT: Self = Self(0);

    /// `ppm` millionths of the latency target.
    pub const fn from_ppm(ppm: u32) -> Self {
        Self(ppm)
    }

    /// `ratio` of the latency target (0.02 for 2 %), rounded to millionths. `None` if negative, NaN or
    /// above 4294.
    pub fn from_ratio(ratio: f64) -> Option<Self> {
        let ppm = (ratio * 1e6).round();
        (0.0..=f64::from(u32::MAX))
            .contains(&ppm)
            .then_some(Self(ppm as u32))
    }

    /// F·(1 + t), rounded down to nanoseconds; saturates.
    pub fn loosen(self, latency_target: Duration) -> Duration {
        if self.0 == 0 {
            return latency_target;
        }
        let extra = latency_target.as_nanos().saturating_mul(u128::from(self.0)) / 1_000_000;
        latency_target.saturating_add(Duration::from_nanos(
            u64::try_from(extra).unwrap_or(u64::MAX),
        ))
    }
}

impl fmt::Display for Delay {
    /// As [`Duration`]'s debug form, or `overloaded`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finite(delay) => fmt::Debug::fmt(delay, f),
            Self::Overloaded => f.pad("overloaded"),
        }
    }
}

impl fmt::Display for Tolerance {
    /// In per cent, exact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 10_000, self.0 % 10_000);
        if rest == 0 {
            return write!(f, "{whole}%");
        }
        let fraction = format!("{rest:04}");
        write!(f, "{whole}.{}%", fraction.trim_end_matches('0'))
    }
}
