//! What is known about the world besides the configuration.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_control::config::{App, AppIndex, PathIndex, PeerIndex};
use keiro_planner::{
    delay::AppSpec,
    queueing::{Evidence, Half, Spread, Traffic},
    steer::{PathHoldDown, PathSample},
};
use keiro_units::ByteCount;

/// What the planner goes by.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlannerInput {
    /// Paths to peers that are up, with the levels of what is measured of them; `None`: nothing
    /// yet.
    pub(crate) up: BTreeMap<(PathIndex, PeerIndex), Option<PathSample>>,
    /// Of these, the ones to which nobody is sent who is well elsewhere, and those that are only
    /// waited for.
    pub(crate) doubtful: BTreeMap<(PathIndex, PeerIndex), PathHoldDown>,
    /// Applications that an operator has put on a path.
    pub(crate) operator: BTreeMap<AppIndex, PathIndex>,
    /// The path of each application now, or where it belongs.
    pub(crate) now: BTreeMap<AppIndex, PathIndex>,
    /// Where the site's plan puts them, if there is a site.
    pub(crate) site: BTreeMap<AppIndex, PathIndex>,
    /// What applications send, where enough was measured.
    pub(crate) workloads: BTreeMap<AppIndex, MeasuredWorkload>,
    /// Those that are sending.
    pub(crate) sending: BTreeSet<AppIndex>,
    /// What was seen of them over a longer time.
    pub(crate) evidence: BTreeMap<AppIndex, Evidence>,
    /// Delays of those of which enough was measured, as things are.
    pub(crate) measured: BTreeMap<AppIndex, MeasuredDelay>,
    /// No application has sent anything yet: moving disturbs nobody.
    pub(crate) unused: bool,
}

/// What an application got where it is, with everybody else where they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MeasuredDelay {
    pub(crate) mean: Duration,
    pub(crate) p99: Duration,
}

/// What is known about an application's traffic by measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MeasuredWorkload {
    /// It sends this.
    Sending(Workload),
    /// It sent this before the restart, and too little since to say.
    BeforeRestart(Workload),
    /// It has sent, and stopped.
    Stopped,
}

/// Where a workload is from that is planned with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkloadSource {
    /// All of it is the configuration's.
    Configured,
    /// What the configuration leaves open was measured.
    Measured,
    /// What the configuration leaves open was measured before the restart.
    BeforeRestart,
    /// The application has stopped: next to nothing is taken for what is open.
    Stopped,
    /// Next to nothing is taken for what is open, for want of messages.
    Assumed,
}

/// What an application sends, as the planner sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Workload {
    /// Mean length.
    pub(crate) length: ByteCount,
    /// Mean interval.
    pub(crate) interval: Duration,
    /// How much lengths vary.
    pub(crate) length_spread: Spread,
    /// How much intervals vary.
    pub(crate) interval_spread: Spread,
}

/// Planned with for an application of which nothing is known, or that has stopped. Ours: next to
/// nothing, so that it does not push others away.
const WORKLOAD_DEFAULT: Workload = Workload {
    length: ByteCount::new(1000),
    interval: Duration::from_secs(1),
    length_spread: Spread::NONE,
    interval_spread: Spread::EXPONENTIAL,
};

/// Smaller changes of a measured load do not lead to a new plan. Ours: the mean of the hundred or so
/// exponential intervals that are remembered wanders by some 9 %, so that this is 3 σ.
const LOAD_NOISE: f64 = 0.3;
/// Spreads of intervals that differ by less than this and half of the larger are one: chance alone
/// makes some hundred exponential intervals look a quarter off, and few bursts more.
const SPREADS_ALIKE: f64 = 1.0;
/// Spreads of intervals within so much of a Poisson process' count as one: by chance alone some
/// hundred of them are seen to lie as far off.
const SPREAD_NOISE: f64 = 0.5;

/// Whether a measured workload is another one than that which was planned with, beyond noise.
pub(crate) fn is_other_workload(planned: Workload, measured: Workload) -> bool {
    let differs = |a: f64, b: f64| (a - b).abs() > LOAD_NOISE * a.max(b);
    let length = |workload: Workload| workload.length.get() as f64;
    let rate = |workload: Workload| length(workload) / workload.interval.as_secs_f64().max(1e-9);
    let spreads = [planned, measured].map(|workload| workload.interval_spread.ratio());
    let [less, more] = match spreads {
        [a, b] if a > b => [b, a],
        spreads => spreads,
    };
    differs(length(planned), length(measured))
        || differs(rate(planned), rate(measured))
        || more - less > SPREADS_ALIKE + more / 2.0
}

/// What `app` is planned with: what the configuration says, else what was measured, else next to
/// nothing; and where it is from.
pub(crate) fn workload_of(app: &App, seen: Option<MeasuredWorkload>) -> (Workload, WorkloadSource) {
    let (base, origin) = match seen {
        Some(MeasuredWorkload::Sending(workload)) => (workload, WorkloadSource::Measured),
        Some(MeasuredWorkload::BeforeRestart(workload)) => {
            (workload, WorkloadSource::BeforeRestart)
        }
        Some(MeasuredWorkload::Stopped) => (WORKLOAD_DEFAULT, WorkloadSource::Stopped),
        None => (WORKLOAD_DEFAULT, WorkloadSource::Assumed),
    };
    let workload = Workload {
        length: app.length.unwrap_or(base.length),
        interval: app.interval.unwrap_or(base.interval),
        ..base
    };
    let origin = match is_described(app) {
        true => WorkloadSource::Configured,
        false => origin,
    };
    (workload, origin)
}

/// What `app` sends, for forecasts.
pub(crate) fn traffic_of(app: &App, seen: Option<MeasuredWorkload>) -> Traffic {
    let (workload, _) = workload_of(app, seen);
    let spec = AppSpec {
        length: workload.length,
        interval: workload.interval,
        latency_target: app.latency_target,
    };
    let poisson = (workload.interval_spread.ratio() - 1.0).abs() <= SPREAD_NOISE;
    Traffic {
        length_spread: workload.length_spread,
        interval_spread: match poisson {
            true => Spread::EXPONENTIAL,
            false => workload.interval_spread,
        },
        ..Traffic::paper(spec)
    }
}

/// The configuration says all that there is to know about the application's traffic.
pub(crate) fn is_described(app: &App) -> bool {
    app.length.is_some() && app.interval.is_some()
}

impl PlannerInput {
    /// Whether a plan made with these would be another one now. What was planned with stays in
    /// the input until it is wrong, so anything new counts.
    pub(crate) fn are_outdated(&self, now: &Self) -> bool {
        self.up != now.up
            || self.doubtful != now.doubtful
            || self.site != now.site
            || self.workloads != now.workloads
    }

    /// How many paths to peers are up.
    pub(crate) fn paths_up(&self) -> usize {
        let awaited = |standing: &&PathHoldDown| **standing == PathHoldDown::Validating;
        self.up.len() - self.doubtful.values().filter(awaited).count()
    }

    /// How it is with a path to a peer that is among those that are up.
    pub(crate) fn standing(&self, path: PathIndex, peer: PeerIndex) -> PathHoldDown {
        let doubtful = self.doubtful.get(&(path, peer)).copied();
        doubtful.unwrap_or(PathHoldDown::Released)
    }

    /// It sends, and what it is planned with is next to nothing, for want of messages.
    pub(crate) fn is_little_known(&self, index: AppIndex, app: &App) -> bool {
        let seen = self.workloads.get(&index).copied();
        self.sending.contains(&index) && workload_of(app, seen).1 == WorkloadSource::Assumed
    }

    /// What the forecast of an application rests on; `None`: on what the configuration says.
    pub(crate) fn evidence(&self, index: AppIndex, app: &App) -> Option<Evidence> {
        let nothing = Half {
            messages: 0,
            length_mean: 0.0,
            length_spread: Spread::NONE,
        };
        (!is_described(app)).then(|| {
            let seen = self.evidence.get(&index).copied();
            seen.unwrap_or(Evidence {
                halves: [nothing; 2],
                interval_spread: Spread::EXPONENTIAL,
                together: 0.0,
            })
        })
    }

    /// The same as if nothing had been measured of delays, so that only forecasts are compared with
    /// those for another world.
    pub(crate) fn unmeasured(&self) -> Self {
        Self {
            measured: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// The same for a gateway that plans alone, from where everybody is.
    pub(crate) fn alone(&self) -> Self {
        Self {
            site: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// The same without one path.
    pub(crate) fn without(&self, path: PathIndex) -> Self {
        let mut input = self.clone();
        input.up.retain(|(other, _), _| *other != path);
        input.doubtful.retain(|(other, _), _| *other != path);
        input.now.retain(|_, at| *at != path);
        input
    }
}
