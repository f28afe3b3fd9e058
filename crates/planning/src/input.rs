//! What the planner knows besides the configuration.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_control::config::{App, AppIndex, PathIndex, PathTerms, PeerIndex};
use keiro_planner::{
    delay::AppSpec,
    queueing::{Spread, Traffic, TrafficWindow, WindowHalf},
    steer::{PathHoldDown, PathSample},
};
use keiro_units::{ByteCount, Probability};

use crate::line_use::SharedLines;

/// Measurements and assignments that a plan is made from. Keys are positions in the configuration
/// that is planned.
#[derive(Clone, Debug, Default)]
pub struct PlannerInput {
    /// Paths to peers that are up, with their measured levels; `None`: nothing measured yet.
    pub up: BTreeMap<(PathIndex, PeerIndex), Option<PathSample>>,
    /// Those of `up` that are on hold-down or only expected to come up. Applications move to them
    /// only if they must.
    pub hold_downs: BTreeMap<(PathIndex, PeerIndex), PathHoldDown>,
    /// Paths to peers, up or down, that flap. Applications that are to be on one of them wait elsewhere until
    /// it has stayed up.
    pub flapping: BTreeSet<(PathIndex, PeerIndex)>,
    /// Of paths to peers, beside what the configuration says of them: the terms of the other end, and whose budget is
    /// used up.
    pub terms: BTreeMap<(PathIndex, PeerIndex), PathTerms>,
    /// What paths lose of applications, where that is more than these tolerate.
    pub excess_losses: BTreeMap<(AppIndex, PathIndex), ExcessLoss>,
    /// Applications that an operator has put on a path.
    pub operator: BTreeMap<AppIndex, PathIndex>,
    /// The present path of each application, or the one it was on last.
    pub now: BTreeMap<AppIndex, PathIndex>,
    /// Applications that are on no path: what they send waits.
    pub waiting: BTreeSet<AppIndex>,
    /// The path that the site's plan gives them, if there is a site.
    pub site: BTreeMap<AppIndex, PathIndex>,
    /// Those of `site` that its plan has placed with regard to what paths cost.
    pub priced_by_site: BTreeSet<AppIndex>,
    /// Measured traffic, where enough was measured.
    pub workloads: BTreeMap<AppIndex, MeasuredWorkload>,
    /// Applications that are sending now.
    pub sending: BTreeSet<AppIndex>,
    /// Longer observations that forecasts rest on.
    pub traffic_windows: BTreeMap<AppIndex, TrafficWindow>,
    /// Measured delays, where enough messages were measured on the present path.
    pub measured: BTreeMap<AppIndex, MeasuredDelay>,
    /// Applications that have been on a path that costs more than they may need for so long that they return as soon as
    /// a cheaper one meets their target.
    pub overdue: BTreeSet<AppIndex>,
    /// No application has sent anything yet, so moves disturb none.
    pub unused: bool,
    /// What other gateways of the site send over the paths.
    pub shared: SharedLines,
}

/// The part of an application's traffic that a path loses without repair, and the part that it tolerates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExcessLoss {
    pub loss: Probability,
    pub tolerance: Probability,
}

/// The measured delay of an application on its present path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredDelay {
    pub mean: Duration,
    pub p99: Duration,
}

/// Measured traffic of an application.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MeasuredWorkload {
    /// It sends this workload.
    Sending(Workload),
    /// It sent this before the restart, and too little since.
    BeforeRestart(Workload),
    /// It has stopped sending.
    Stopped,
}

/// The source of a workload that is planned with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadSource {
    /// The configuration gives all of it.
    Configured,
    /// What the configuration leaves open is measured.
    Measured,
    /// What the configuration leaves open was measured before the restart.
    BeforeRestart,
    /// The application has stopped; almost no load is assumed.
    Stopped,
    /// Too few messages; almost no load is assumed.
    Assumed,
}

/// What an application sends, as the planner sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Mean length.
    pub length: ByteCount,
    /// Mean interval.
    pub interval: Duration,
    /// How much lengths vary.
    pub length_spread: Spread,
    /// How much intervals vary.
    pub interval_spread: Spread,
}

/// Assumed for an application whose traffic is unknown or that has stopped. Ours: almost no load,
/// so that it does not displace others.
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

/// Whether a measured workload differs from the planned one beyond noise.
pub fn is_other_workload(planned: Workload, measured: Workload) -> bool {
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

/// The workload that `app` is planned with (configured, else measured, else almost none) and its
/// source.
pub fn workload_of(app: &App, seen: Option<MeasuredWorkload>) -> (Workload, WorkloadSource) {
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
pub fn traffic_of(app: &App, seen: Option<MeasuredWorkload>) -> Traffic {
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

/// Whether the configuration describes the traffic completely.
fn is_described(app: &App) -> bool {
    app.length.is_some() && app.interval.is_some()
}

impl ExcessLoss {
    /// The loss in tolerances, more than one.
    pub(crate) fn ratio(&self) -> f64 {
        self.loss.get() / self.tolerance.get().max(f64::MIN_POSITIVE)
    }
}

impl PlannerInput {
    /// Whether these inputs differ from `now` enough for a new plan. What was planned with stays in
    /// the inputs until it is wrong, so any difference counts.
    pub fn are_outdated(&self, now: &Self) -> bool {
        self.up != now.up
            || self.hold_downs != now.hold_downs
            || self.flapping != now.flapping
            || self.terms != now.terms
            || self.overdue != now.overdue
            || self.excess_losses != now.excess_losses
            || self.site != now.site
            || self.priced_by_site != now.priced_by_site
            || self.workloads != now.workloads
            || self.shared.uses != now.shared.uses
    }

    /// How many paths to peers are up.
    pub fn paths_up(&self) -> usize {
        let awaited = |hold_down: &&PathHoldDown| **hold_down == PathHoldDown::Validating;
        self.up.len() - self.hold_downs.values().filter(awaited).count()
    }

    /// The hold-down state of a path that is up.
    pub fn hold_down(&self, path: PathIndex, peer: PeerIndex) -> PathHoldDown {
        let hold_down = self.hold_downs.get(&(path, peer)).copied();
        hold_down.unwrap_or(PathHoldDown::Released)
    }

    /// Whether an application that is to be on `path` waits elsewhere, because the path flaps. One that is on
    /// it stays.
    pub fn is_damped(&self, path: PathIndex, app: AppIndex, peer: PeerIndex) -> bool {
        self.flapping.contains(&(path, peer)) && self.now.get(&app) != Some(&path)
    }

    /// On which terms a path to a peer is used, both ends and its budget considered.
    /// `configured`: its terms at this end.
    pub fn terms(&self, configured: PathTerms, path: PathIndex, peer: PeerIndex) -> PathTerms {
        let more = self.terms.get(&(path, peer)).copied();
        configured.with(more.unwrap_or(PathTerms::FREE))
    }

    /// What `path` loses of an application, where that is more than it tolerates.
    pub fn excess_loss(&self, app: AppIndex, path: PathIndex) -> Option<ExcessLoss> {
        self.excess_losses.get(&(app, path)).copied()
    }

    /// It sends, but its traffic is not known yet.
    pub fn is_little_known(&self, index: AppIndex, app: &App) -> bool {
        let seen = self.workloads.get(&index).copied();
        self.sending.contains(&index) && workload_of(app, seen).1 == WorkloadSource::Assumed
    }

    /// What an application's forecast rests on; `None`: on the configuration.
    pub fn traffic_window(&self, index: AppIndex, app: &App) -> Option<TrafficWindow> {
        let nothing = WindowHalf {
            messages: 0,
            length_mean: 0.0,
            length_spread: Spread::NONE,
        };
        (!is_described(app)).then(|| {
            let seen = self.traffic_windows.get(&index).copied();
            seen.unwrap_or(TrafficWindow {
                halves: [nothing; 2],
                interval_spread: Spread::EXPONENTIAL,
                together: 0.0,
            })
        })
    }

    /// The same without measured delays, so that only forecasts are compared with forecasts.
    pub fn unmeasured(&self) -> Self {
        Self {
            measured: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// The same without the site's plan.
    pub fn alone(&self) -> Self {
        Self {
            site: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// The same without one path.
    pub fn without(&self, path: PathIndex) -> Self {
        let mut input = self.clone();
        input.up.retain(|(other, _), _| *other != path);
        input.hold_downs.retain(|(other, _), _| *other != path);
        input.now.retain(|_, at| *at != path);
        input.excess_losses.retain(|(_, lossy), _| *lossy != path);
        input
    }
}
