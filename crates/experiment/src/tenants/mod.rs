//! Tenants that share bottlenecks: who gets what, second by second [fairness §3].
//!
//! Every setting is run under every control, with TCP hosts as they are today or as the RFCs have
//! them. How packets travel is the [`SharingRunner`]'s.

mod measure;
mod plan;
mod report;
mod simulated;

use std::time::Duration;

use keiro_control::units::Text;
use keiro_units::{Bandwidth, Probability};
use serde::Deserialize;

use crate::{row::Source, runner::Progress, setup::Extent, transactions::Target};
pub(crate) use measure::{Measured, measure, select};
pub(crate) use plan::SharingFile;
pub(crate) use report::{drawings, notes, rows, runs_reports, seconds_csv};

/// Settings and what controls them.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// Bottlenecks with their tenants.
    pub settings: Vec<Setting>,
    /// What controls them, in the order in which they take turns.
    pub controls: Vec<Control>,
    /// How the tenants' hosts behave.
    pub hosts: Vec<Hosts>,
    /// When flows begin that have no times of their own; each begins within a second from then.
    pub begin: Duration,
    /// What is drawn.
    pub figure: Shape,
    /// What is asked of rows.
    pub targets: Vec<Target>,
}

/// Bottlenecks in a row, and the tenants that cross them.
#[derive(Clone, Debug)]
pub struct Setting {
    /// A part of its rows' names where there are several.
    pub name: String,
    /// In order.
    pub bottlenecks: Vec<Bottleneck>,
    /// What a weight of 1 gets, about: controller `keiro`'s unit.
    pub unit: Text<Bandwidth>,
    /// In the order of their numbers, from 1.
    pub tenants: Vec<Tenant>,
}

/// A link between two routers.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bottleneck {
    /// Its rate, IP bytes, each way.
    pub rate: Text<Bandwidth>,
    /// Packets that wait before it at most.
    pub buffer_packets: u32,
    /// Unresponsive Poisson packets of 1500 bytes, as a part of its rate.
    pub background: Text<Probability>,
}

/// A tenant with an ingress and an egress of its own.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// What it is to get, as a multiple of what others get.
    pub weight: f64,
    /// TCP flows without end.
    pub flows: u32,
    /// An unresponsive UDP flow of this rate; `None`: none.
    pub udp: Option<Text<Bandwidth>>,
    /// Propagation delay, one way.
    pub delay: Text<Duration>,
    /// The first and the last bottleneck that it crosses, from 1; the first one without it.
    pub crosses: Option<[usize; 2]>,
    /// When it has something to send: from, to. Empty: from [`Sharing::begin`] on.
    pub active: Vec<[Text<Duration>; 2]>,
    /// Its weight from a time on.
    pub changes: Vec<Change>,
}

/// Another weight.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// From when on.
    pub at: Text<Duration>,
    /// The weight.
    pub weight: f64,
}

/// What controls tenants.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// The first part of its rows' names.
    pub name: String,
    /// What it is.
    pub controller: Controller,
    /// Whether it is left out of figures.
    #[serde(default)]
    pub hidden: bool,
}

/// What a control is.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Controller {
    /// Hosts and routers alone.
    None,
    /// Hosts and routers alone, with a class for every tenant at every router: what only the core
    /// of the network could do.
    Classes,
    /// Gateways without windows.
    Open,
    /// One window per tenant as TCP has it, a = 1 and b = 0.5, blind to weights and round trips.
    Aimd,
    /// The paper's.
    I2vfc {
        /// Linear increase, packets per round trip.
        a: f64,
        /// Multiplicative decrease of tenant 1.
        b: f64,
        /// A window's packets leave as they come, instead of spread over the round trip.
        #[serde(default)]
        bursts: bool,
    },
    /// Keiro's.
    Keiro {
        /// The unit as a multiple of [`Setting::unit`].
        #[serde(default = "one")]
        unit: f64,
    },
}

/// TCP hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// The last part of rows' names where there are several.
    pub name: String,
    /// How they behave.
    pub like: HostsLike,
    /// Their least retransmission timeout, if it is not [`HostsLike`]'s.
    pub least_timeout: Option<Duration>,
}

/// How TCP hosts behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostsLike {
    /// CUBIC; the least timeout is added to the round trip: 200 ms.
    Linux,
    /// NewReno; the least timeout is that of the whole: 1 s (RFC 6298).
    Rfc,
}

/// What is drawn of every setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// F over time, a line for every control [fairness figs. 2, 3, 7].
    Index,
    /// What every tenant gets per weight over time, a panel for every control [fairness fig. 10].
    Shares,
    /// Jain's index inside tenants over b, a line for every a [fairness figs. 4, 5].
    Inside,
}

/// A setting under a control with hosts, each by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// Of [`Sharing::settings`].
    pub setting: usize,
    /// Of [`Sharing::hosts`].
    pub hosts: usize,
    /// Of [`Sharing::controls`].
    pub control: usize,
}

/// Carries out runs.
pub trait SharingRunner {
    /// Where its values are from.
    fn source(&self) -> Source;

    /// Carries out one run.
    ///
    /// # Errors
    /// What kept the run from being carried out, and what to try.
    fn run(
        &mut self,
        request: &SharingRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<Shared>;
}

/// One run to carry out.
#[derive(Clone, Copy, Debug)]
pub struct SharingRequest<'a> {
    /// What is shared.
    pub sharing: &'a Sharing,
    /// The case.
    pub case: Case,
    /// Its length and what of it counts.
    pub extent: &'a Extent,
    /// Chooses when flows begin and when background packets come.
    pub seed: u64,
}

/// What a run gave. Seconds count from its beginning.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Payload of each tenant by second, Mbit/s.
    pub goodput: Vec<Vec<f64>>,
    /// F by second, over those that have something to send in it; `None`: no tenant has.
    pub index: Vec<Option<f64>>,
    /// Jain's index over a tenant's flows, mean over tenants: by counted second, and of the whole.
    pub inside: [f64; 2],
    /// Part of each bottleneck that is used in counted seconds, background included.
    pub used: Vec<f64>,
    /// Mean wait before each bottleneck, ms.
    pub queue_ms: Vec<f64>,
    /// Part of the packets that found each bottleneck's buffer full.
    pub dropped: Vec<f64>,
}

impl Sharing {
    /// All cases, in the order in which they take turns.
    pub fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for setting in 0..self.settings.len() {
            for hosts in 0..self.hosts.len() {
                cases.extend((0..self.controls.len()).map(|control| Case {
                    setting,
                    hosts,
                    control,
                }));
            }
        }
        cases
    }

    /// What a case is called: its control, and its setting and hosts where there are several.
    pub fn name(&self, case: Case) -> String {
        let mut name = self.controls[case.control].name.clone();
        let place = self.place(case);
        if !place.is_empty() {
            name.push(' ');
            name.push_str(&place);
        }
        name
    }

    /// The same without the control; empty where there is one place only.
    pub(crate) fn place(&self, case: Case) -> String {
        let setting = (self.settings.len() > 1).then(|| self.settings[case.setting].name.as_str());
        let hosts = (self.hosts.len() > 1).then(|| self.hosts[case.hosts].name.as_str());
        let words: Vec<&str> = setting.into_iter().chain(hosts).collect();
        words.join(" ")
    }

    /// The case without control in the same place.
    pub(crate) fn uncontrolled(&self, case: Case) -> Option<Case> {
        let control = self
            .controls
            .iter()
            .position(|c| c.controller == Controller::None)?;
        Some(Case { control, ..case })
    }

    /// When the last tenant of a setting has begun, or changed, or ended, before `end`.
    pub(crate) fn last_event(&self, setting: &Setting, end: Duration) -> Duration {
        let second = Duration::from_secs(1);
        let tenants = setting.tenants.iter();
        let of_tenant = |tenant: &Tenant| {
            let active = tenant.active.iter();
            let active = active.flat_map(|[from, to]| [from.0 + second, to.0]);
            let changes = tenant.changes.iter().map(|change| change.at.0);
            active.chain(changes).collect::<Vec<_>>()
        };
        let events = tenants.flat_map(of_tenant).chain([self.begin + second]);
        events.filter(|at| *at < end).max().unwrap_or_default()
    }
}

impl Tenant {
    /// When it has something to send: from, to.
    pub(crate) fn stretches(&self, begin: Duration) -> Vec<(Duration, Duration)> {
        if self.active.is_empty() {
            return vec![(begin, NEVER)];
        }
        self.active
            .iter()
            .map(|[from, to]| (from.0, to.0))
            .collect()
    }

    /// Its weight at a time.
    pub(crate) fn weight_at(&self, at: Duration) -> f64 {
        let last = self.changes.iter().rfind(|change| change.at.0 <= at);
        last.map_or(self.weight, |change| change.weight)
    }
}

impl HostsLike {
    /// As plans name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Rfc => "rfc",
        }
    }
}

const fn one() -> f64 {
    1.0
}

/// Longer than any run.
const NEVER: Duration = Duration::from_secs(86_400);
