//! Tenants that share bottlenecks: the rate of each, second by second [fairness §3].
//!
//! Every setting is run under every control, with TCP hosts as they are today or as the RFCs specify. A
//! [`SharingRunner`] carries the packets.

mod measure;
mod plan;
mod report;
mod simulated;

use std::{collections::BTreeMap, time::Duration};

use keiro_control::units::Text;
use keiro_units::{Bandwidth, Probability};
use serde::Deserialize;

use crate::{row::Source, runner::Progress, setup::Extent, transactions::Target};
pub(crate) use measure::{Measured, measure, select};
pub(crate) use plan::SharingFile;
pub(crate) use report::{drawings, notes, rows, runs_reports, seconds_csv};

/// Settings and the controls that are compared.
#[derive(Clone, Debug)]
pub struct Sharing {
    /// Bottlenecks with their tenants.
    pub settings: Vec<Setting>,
    /// The controls, in the order in which they take turns.
    pub controls: Vec<Control>,
    /// Behaviour of the tenants' hosts.
    pub hosts: Vec<Hosts>,
    /// Start of flows without times of their own; each begins within a second from then.
    pub begin: Duration,
    pub figure: Shape,
    /// The paper's values, by row, in the row's unit.
    pub paper: BTreeMap<String, f64>,
    /// Targets of rows.
    pub targets: Vec<Target>,
}

/// A chain of bottlenecks, and the tenants that cross them.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Part of the names of its rows if there are several settings.
    pub name: String,
    pub bottlenecks: Vec<Bottleneck>,
    /// Rate that a weight of 1 is expected to get: the unit of the controllers.
    pub unit: Text<Bandwidth>,
    /// Tenants in the order of their numbers, from 1.
    pub tenants: Vec<Tenant>,
}

/// A link between two routers.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bottleneck {
    /// Its rate including IP headers, in each direction.
    pub rate: Text<Bandwidth>,
    /// Maximum of packets in its queue.
    pub buffer_packets: u32,
    /// Unresponsive Poisson traffic of 1500-byte packets, as a fraction of its rate.
    pub background: Text<Probability>,
}

/// A tenant with its own ingress and egress.
#[derive(Clone, Debug)]
pub struct Tenant {
    pub weight: f64,
    /// Number of endless TCP flows.
    pub flows: u32,
    /// Rate of an unresponsive UDP flow; `None` for none.
    pub udp: Option<Text<Bandwidth>>,
    /// One-way propagation delay.
    pub delay: Text<Duration>,
    /// The first and the last bottleneck that it crosses, counted from 1; the first one by default.
    pub crosses: Option<[usize; 2]>,
    /// Times in which it has data to send: from, to. Empty: from [`Sharing::begin`] on.
    pub active: Vec<[Text<Duration>; 2]>,
    /// Changes of its weight.
    pub changes: Vec<Change>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// When the new weight takes effect.
    pub at: Text<Duration>,
    pub weight: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// The first part of the names of its rows.
    pub name: String,
    pub controller: Controller,
    /// Whether figures leave it out.
    #[serde(default)]
    pub hidden: bool,
}

/// What a control is.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Controller {
    /// Neither gateways nor tenant queues.
    None,
    /// No gateways, but a class per tenant at every router, which only the operator of the core network could
    /// configure.
    Classes,
    Open,
    /// One window per tenant as in TCP, a = 1 and b = 0.5, regardless of weights and round trips.
    Aimd,
    I2vfc {
        /// Additive increase, packets per round trip.
        a: f64,
        /// Multiplicative decrease of tenant 1.
        b: f64,
        /// Sends a window's packets in a burst, not paced over the round trip.
        #[serde(default)]
        bursts: bool,
        /// The unit as a multiple of [`Setting::unit`].
        #[serde(default = "one")]
        unit: f64,
    },
    Keiro {
        /// The unit as a multiple of [`Setting::unit`].
        #[serde(default = "one")]
        unit: f64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// The last part of the names of rows if there are several.
    pub name: String,
    pub like: HostsLike,
    /// Minimum retransmission timeout; `None` is that of [`HostsLike`].
    pub least_timeout: Option<Duration>,
}

/// Behaviour of TCP hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostsLike {
    /// CUBIC; the minimum of 200 ms applies to the variance term, as in Linux.
    Linux,
    /// NewReno; the minimum of 1 s applies to the timeout (RFC 6298).
    Rfc,
}

/// The figure of every setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// F over time, one line per control [fairness figs. 2, 3, 7].
    Index,
    /// Goodput per weight of every tenant over time, one panel per control [fairness fig. 10].
    Shares,
    /// Jain's index within tenants over b, one line per a [fairness figs. 4, 5].
    Inside,
}

/// Indices of a setting, a control and hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// Index into [`Sharing::settings`].
    pub setting: usize,
    /// Index into [`Sharing::hosts`].
    pub hosts: usize,
    /// Index into [`Sharing::controls`].
    pub control: usize,
}

pub trait SharingRunner {
    /// The source of its values.
    fn source(&self) -> Source;

    /// Carries out one run.
    ///
    /// # Errors
    /// Why the run could not be carried out, and what to try.
    fn run(
        &mut self,
        request: &SharingRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<Shared>;
}

/// One run to carry out.
#[derive(Clone, Copy, Debug)]
pub struct SharingRequest<'a> {
    pub sharing: &'a Sharing,
    pub case: Case,
    /// Its length and the counted part.
    pub extent: &'a Extent,
    /// Seed of the flows' starts and of background packets.
    pub seed: u64,
}

/// Result of a run. Seconds count from its beginning.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// Payload of each tenant per second, in Mbit/s.
    pub goodput: Vec<Vec<f64>>,
    /// F per second, over the tenants that have data to send; `None` if there are none.
    pub index: Vec<Option<f64>>,
    /// Jain's index over a tenant's flows, mean over tenants: per counted second, and over the whole time.
    pub inside: [f64; 2],
    /// Utilisation of each bottleneck in counted seconds, background included.
    pub used: Vec<f64>,
    /// Mean queueing delay of each bottleneck, in ms.
    pub queue_ms: Vec<f64>,
    /// Share of packets dropped by each bottleneck.
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

    /// Name of a case: its control, and its setting and hosts if there are several.
    pub fn name(&self, case: Case) -> String {
        let mut name = self.controls[case.control].name.clone();
        let place = self.place(case);
        if !place.is_empty() {
            name.push(' ');
            name.push_str(&place);
        }
        name
    }

    /// The name without the control; empty if there is one setting and one kind of hosts.
    pub(crate) fn place(&self, case: Case) -> String {
        let setting = (self.settings.len() > 1).then(|| self.settings[case.setting].name.as_str());
        let hosts = (self.hosts.len() > 1).then(|| self.hosts[case.hosts].name.as_str());
        let words: Vec<&str> = setting.into_iter().chain(hosts).collect();
        words.join(" ")
    }

    /// The case without control, with the same setting and hosts.
    pub(crate) fn uncontrolled(&self, case: Case) -> Option<Case> {
        let control = self
            .controls
            .iter()
            .position(|c| c.controller == Controller::None)?;
        Some(Case { control, ..case })
    }

    /// Last time before `end` at which a tenant of a setting starts, changes or ends.
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
    /// Times in which it has data to send: from, to.
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
    /// Names in plans.
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
