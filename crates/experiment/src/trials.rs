//! Trials: capacity, robustness and estimates of gateways. A trial is one question with a few *cases*, and
//! every run of a case gives the same few named values.
//!
//! | trial | question |
//! |---|---|
//! | [`Bulk`] | how fast a long stream is over a line that loses packets, and whether it is whole |
//! | [`Clients`] | how many connections a gateway holds, and what they cost each other |
//! | [`Spacing`] | how well the bandwidth of a line is known from thin traffic |
//! | [`Shares`] | how tenants of several TCP flows share a bottleneck |
//! | [`Scale`] | what a gateway costs with many tenants, and with much traffic |
//! | [`Flows`] | what a flow gets over two transits, as TCP and as MPTCP with EPE addresses |
//! | [`Isps`] | goodput of clients of several providers over two transits, by TCP and MPTCP |
//! | [`Routes`] | how soon a content server has a change of an egress peer's routes |
//!
//! A [`TrialRunner`] carries out the cases.

mod drawn;
mod isps;
mod measure;
mod plan;
mod report;

use std::{collections::BTreeMap, time::Duration};

use keiro_control::units::Text;
use keiro_units::{Bandwidth, ByteCount};
use serde::Deserialize;

use crate::{
    record::EmulatorReport,
    runner::Progress,
    setup::{self, Extent, Headers, Setup, Variant},
    transactions::Target,
};
pub use isps::{Isp, IspTransport, Isps, Line};
pub(crate) use measure::{Measured, measure};
pub(crate) use plan::{TABLES, TrialsFile};
pub(crate) use report::{drawings, notes, rows, runs_csv, runs_reports};

#[derive(Clone, Debug)]
pub struct Trials {
    /// The laboratory's topology, a path below `experiments/` without `.toml`.
    pub topology: String,
    pub trial: Trial,
    /// Targets of rows.
    pub targets: Vec<Target>,
    /// The paper's values, by row.
    pub paper: BTreeMap<String, f64>,
}

#[derive(Clone, Debug)]
pub enum Trial {
    Bulk(Bulk),
    Clients(Clients),
    Spacing(Spacing),
    Shares(Shares),
    Scale(Scale),
    Flows(Flows),
    Isps(Isps),
    Routes(Routes),
}

/// A value with another for quick runs.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount<T> {
    pub run: T,
    /// With `--quick`.
    pub quick: T,
}

/// A file through a stream, after measuring the line's capacity with random datagrams.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bulk {
    /// Path rate of the gateways in IP packets; the line carries as much.
    pub rate: Text<Bandwidth>,
    /// Round trips of the line; a case for each, in each direction.
    pub round_trips: Vec<Text<Duration>>,
    /// Size of the file.
    pub file: Amount<Text<ByteCount>>,
    /// Duration of measuring the capacity, with UDP datagrams of full size.
    pub probe: Text<Duration>,
}

/// Direction of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// Connections of many clients through a pair of gateways.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clients {
    /// Path rate of the gateways, in IP packets.
    pub rate: Text<Bandwidth>,
    /// Clients that send one request at the start and one at the end.
    pub idle: Amount<usize>,
    /// Clients that send requests all the time.
    pub active: Amount<usize>,
    /// Requests per second of all active clients together.
    pub per_second: Amount<u32>,
    /// Size of a request, and of a response.
    pub message: Text<ByteCount>,
}

/// Estimates of the bandwidth of lines with little traffic.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spacing {
    pub bandwidths: Vec<Text<Bandwidth>>,
    /// Path rate of the gateways, relative to the line's bandwidth.
    pub rate_factor: f64,
    /// The loads; a case for each, at each bandwidth.
    pub loads: Vec<ThinLoad>,
    /// How many clients there are.
    pub clients: usize,
}

/// Load that uses a small part of the line.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThinLoad {
    /// The first part of the names of its cases.
    pub name: String,
    /// Transactions of one round trip, per second.
    pub per_second: u32,
    /// Size of a request, and of a response.
    pub message: Text<ByteCount>,
}

/// Tenants with TCP flows over one bottleneck, each with its own gateway.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shares {
    /// Number of flows of each tenant; each tenant has one site.
    pub flows: Vec<usize>,
    /// Interval of the tenants' starts.
    pub apart: Text<Duration>,
    /// From the last start until shares count.
    pub settling: Text<Duration>,
    /// Path rate of the gateways, in IP packets.
    pub rate: Text<Bandwidth>,
    /// Expected rate of a tenant: the unit of controller `keiro`.
    pub unit: Text<Bandwidth>,
    /// Reference round trip of controller `i2vfc`, for its a and b: about that of the sites.
    pub round_trip: Text<Duration>,
    /// How the bottleneck is shared; a case for each, with each congestion control.
    pub ways: Vec<Sharing>,
    /// The flows' congestion controls, by their names in the kernel.
    pub congestion: Vec<String>,
}

/// Many tenants between two gateways.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// Path rate of the gateways, in IP packets.
    pub rate: Text<Bandwidth>,
    /// Length of the offered IP packets.
    pub packet: Text<ByteCount>,
    /// Each point is one case.
    pub points: Vec<ScalePoint>,
}

/// A number of tenants, and their offered rate.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalePoint {
    pub tenants: usize,
    /// Rate of IP packets of all of them together.
    pub offered: Text<Bandwidth>,
}

impl ScalePoint {
    /// The name of its case.
    pub fn name(&self) -> String {
        format!("{} tenants {}", self.tenants, self.offered)
    }
}

/// A client's provider that announces and withdraws a prefix at one of two transits.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Routes {
    /// Number of announcements, and of withdrawals.
    pub changes: Amount<u32>,
    /// Time from the convergence of a change to the next one.
    pub apart: Text<Duration>,
    /// Reflectors between border routers and server; each a case.
    pub reflectors: Vec<Reflector>,
    /// Load of an MPTCP connection to a client during the changes.
    pub flow: Text<Bandwidth>,
    /// Bytes that its sender writes at once.
    pub write: Text<ByteCount>,
}

/// A flow from a content server to a client behind two links of two transits.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flows {
    pub patterns: Vec<Pattern>,
    /// The transports; a case for each, with each load and each pattern.
    pub transports: Vec<Transport>,
    /// Payload rate of [`Load::Cbr`], and its duration.
    pub cbr: Text<Bandwidth>,
    pub time: Amount<Text<Duration>>,
    /// Bytes of [`Load::Bulk`].
    pub bulk: Amount<Text<ByteCount>>,
}

/// The rates of link a and link b.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pattern {
    /// Of link a.
    pub a: Text<Bandwidth>,
    /// Of link b.
    pub b: Text<Bandwidth>,
    /// Rates after a change; `None` if they stay.
    pub then: Option<Then>,
}

/// Change of the rates during the flow.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Then {
    /// Of link a.
    pub a: Text<Bandwidth>,
    /// Of link b.
    pub b: Text<Bandwidth>,
    /// Time of the change with [`Load::Cbr`].
    pub cbr_at: Text<Duration>,
    /// Time of the change with [`Load::Bulk`].
    pub bulk_at: Text<Duration>,
}

/// Load of the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// A constant rate for a fixed time.
    Cbr,
    /// A file, as fast as possible.
    Bulk,
}

/// Transport of the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP over BGP's best path.
    Tcp,
    /// MPTCP over the best path and all EPE addresses that reach the client.
    Mptcp,
}

impl Flows {
    /// Transport, load and pattern of every case, in order.
    pub fn cases(&self) -> impl Iterator<Item = (Transport, Load, &Pattern)> {
        let of_pattern = move |pattern| {
            [Load::Cbr, Load::Bulk].into_iter().flat_map(move |load| {
                let transports = self.transports.iter();
                transports.map(move |transport| (*transport, load, pattern))
            })
        };
        self.patterns.iter().flat_map(of_pattern)
    }
}

fn rates_in_mbit(a: Text<Bandwidth>, b: Text<Bandwidth>) -> String {
    let [a, b] = [a, b].map(|rate| rate.0.as_bits_per_second() as f64 / 1e6);
    format!("{a}/{b}")
}

impl Pattern {
    /// The last part of the names of its cases: the rates in Mbit/s.
    pub fn name(&self) -> String {
        let first = rates_in_mbit(self.a, self.b);
        match &self.then {
            None => first,
            Some(then) => format!("{first} to {}", rates_in_mbit(then.a, then.b)),
        }
    }
}

impl Load {
    /// Its part of the names of cases.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cbr => "cbr",
            Self::Bulk => "bulk",
        }
    }
}

impl Then {
    pub fn at(&self, load: Load) -> Duration {
        match load {
            Load::Cbr => self.cbr_at.0,
            Load::Bulk => self.bulk_at.0,
        }
    }
}

/// Route reflector between border routers and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reflector {
    /// FRR as route reflector.
    Frr,
    /// gobgpd as route reflector.
    Gobgp,
    /// None: border routers and server have sessions with each other.
    None,
}

impl Reflector {
    /// The name of its case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Frr => "frr",
            Self::Gobgp => "gobgp",
            Self::None => "direct",
        }
    }
}

/// How tenants share a bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    None,
    /// Each tenant behaves like one flow of TCP Reno, regardless of its weight.
    Aimd,
    I2vfc,
    Keiro,
    /// HTB classes at the bottleneck, and no control at the edges.
    Htb,
}

impl Sharing {
    /// The first part of the names of its cases.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Aimd => "aimd",
            Self::I2vfc => "i2vfc",
            Self::Keiro => "keiro",
            Self::Htb => "htb",
        }
    }
}

impl Shares {
    /// Sharing and congestion control of every case, in order.
    pub fn cases(&self) -> impl Iterator<Item = (Sharing, &str)> {
        let of_sharing = |sharing: &Sharing| {
            let sharing = *sharing;
            self.congestion
                .iter()
                .map(move |name| (sharing, name.as_str()))
        };
        self.ways.iter().flat_map(of_sharing)
    }

    /// From the first start until shares count.
    pub fn counts_from(&self) -> Duration {
        let last = self.flows.len().saturating_sub(1);
        self.apart.0 * u32::try_from(last).unwrap_or(u32::MAX) + self.settling.0
    }
}

impl Bulk {
    /// Direction and round trip of every case, in order.
    pub fn cases(&self) -> impl Iterator<Item = (Direction, Duration)> {
        let both = |round_trip: &Text<Duration>| {
            [Direction::Up, Direction::Down].map(|direction| (direction, round_trip.0))
        };
        self.round_trips.iter().flat_map(both)
    }
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

impl Spacing {
    /// Load and bandwidth of every case, in order.
    pub fn cases(&self) -> impl Iterator<Item = (&ThinLoad, Bandwidth)> {
        let of_load = |load| self.bandwidths.iter().map(move |rate| (load, rate.0));
        self.loads.iter().flat_map(of_load)
    }
}

/// A value that every run of a case gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantity {
    /// The first part of the names of its rows.
    pub name: &'static str,
    pub unit: &'static str,
    /// Which of several runs are reported.
    pub over: Over,
}

/// The reported statistic over several runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The median, with an interval.
    Median,
    Greatest,
}

const fn median(name: &'static str, unit: &'static str) -> Quantity {
    let over = Over::Median;
    Quantity { name, unit, over }
}

const fn greatest(name: &'static str, unit: &'static str) -> Quantity {
    let over = Over::Greatest;
    Quantity { name, unit, over }
}

const OF_BULK: &[Quantity] = &[
    median("goodput", "Mbit/s"),
    median("carries", "Mbit/s"),
    median("share", "%"),
    greatest("damaged", "files"),
];

const OF_CLIENTS: &[Quantity] = &[
    median("mean", "ms"),
    median("p99", "ms"),
    median("max", "ms"),
    greatest("broken", "connections"),
    greatest("unanswered", "requests"),
    greatest("memory a", "MB"),
    greatest("memory b", "MB"),
];

const OF_SPACING: &[Quantity] = &[
    median("estimate out", "Mbit/s"),
    median("estimate back", "Mbit/s"),
    median("error out", "%"),
    median("error back", "%"),
    greatest("worst error", "%"),
    median("from copies", "%"),
];

const OF_SHARES: &[Quantity] = &[
    median("fairness", "%"),
    median("worst", "%"),
    median("settled", "s"),
    median("inside", "%"),
    median("goodput", "Mbit/s"),
    median("queue", "ms"),
];

const OF_SCALE: &[Quantity] = &[
    median("cpu ingress", "%"),
    median("cpu egress", "%"),
    greatest("memory ingress", "MB"),
    greatest("memory egress", "MB"),
    median("carried", "%"),
];

const OF_ROUTES: &[Quantity] = &[
    median("epe add median", "ms"),
    median("epe withdraw median", "ms"),
    median("bgp add median", "ms"),
    median("bgp withdraw median", "ms"),
    median("border to server", "ms"),
    median("own share", "ms"),
    greatest("own share max", "ms"),
    median("flow moved", "ms"),
    greatest("flow moved max", "ms"),
    median("flow stalled", "ms"),
    greatest("flow stalled max", "ms"),
];

const OF_FLOWS: &[Quantity] = &[
    median("goodput", "Mbit/s"),
    median("worst second", "%"),
    median("longest gap", "ms"),
];

/// Of flows whose links change.
const OF_CHANGED_FLOWS: &[Quantity] = &[
    median("goodput", "Mbit/s"),
    median("worst second", "%"),
    median("longest gap", "ms"),
    median("before", "Mbit/s"),
    median("after", "Mbit/s"),
];

impl Trial {
    /// The values of every run of a case, in the order of the rows.
    pub fn quantities(&self) -> &'static [Quantity] {
        match self {
            Self::Bulk(_) => OF_BULK,
            Self::Clients(_) => OF_CLIENTS,
            Self::Spacing(_) => OF_SPACING,
            Self::Shares(_) => OF_SHARES,
            Self::Scale(_) => OF_SCALE,
            Self::Flows(flows) => match flows.patterns.iter().any(|p| p.then.is_some()) {
                true => OF_CHANGED_FLOWS,
                false => OF_FLOWS,
            },
            Self::Isps(_) => isps::QUANTITIES,
            Self::Routes(_) => OF_ROUTES,
        }
    }

    /// The names of its cases, in the order in which they take turns. Each is the last part of the names of
    /// its rows.
    pub fn cases(&self) -> Vec<String> {
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        match self {
            Self::Bulk(bulk) => bulk
                .cases()
                .map(|(direction, round_trip)| format!("{} {}", direction.name(), Text(round_trip)))
                .collect(),
            Self::Clients(_) => named(&["alone", "idle", "stalled"]),
            Self::Spacing(spacing) => spacing
                .cases()
                .map(|(load, rate)| format!("{} {}", load.name, Text(rate)))
                .collect(),
            Self::Shares(shares) => shares
                .cases()
                .map(|(sharing, congestion)| format!("{} {congestion}", sharing.name()))
                .collect(),
            Self::Scale(scale) => scale.points.iter().map(ScalePoint::name).collect(),
            Self::Flows(flows) => {
                let name = |(transport, load, pattern): (Transport, Load, &Pattern)| {
                    let transport = match transport {
                        Transport::Tcp => "tcp",
                        Transport::Mptcp => "mptcp",
                    };
                    format!("{transport} {} {}", load.name(), pattern.name())
                };
                flows.cases().map(name).collect()
            }
            Self::Isps(isps) => isps.isp.iter().map(|isp| isp.name.clone()).collect(),
            Self::Routes(routes) => {
                let all = routes.reflectors.iter();
                all.map(|reflector| reflector.name().to_owned()).collect()
            }
        }
    }

    /// Whether a late emulator makes a run void: if delays of packets are measured, but not if bytes or
    /// hundreds of milliseconds are.
    pub fn needs_punctuality(&self) -> bool {
        !matches!(
            self,
            Self::Bulk(_) | Self::Scale(_) | Self::Flows(_) | Self::Isps(_) | Self::Routes(_)
        )
    }
}

pub(crate) fn row_name(quantity: &Quantity, case: &str) -> String {
    format!("{} {case}", quantity.name)
}

/// Carries out runs of trials.
pub trait TrialRunner {
    /// Why a case cannot be measured here, and what to try; `None` if it can.
    fn missing(&self, _trials: &Trials, _case: usize) -> Option<String> {
        None
    }

    /// Carries out one run. Calls `progress` now and then. Leaves nothing behind, also on failure.
    ///
    /// # Errors
    /// Why the run could not be carried out, and what to try. A late emulator, a broken connection or a
    /// damaged file is not an error.
    fn run(
        &mut self,
        request: &TrialRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TrialOutcome>;
}

/// One run to carry out.
#[derive(Clone, Copy, Debug)]
pub struct TrialRequest<'a> {
    pub trials: &'a Trials,
    /// Index of the case in [`Trial::cases`].
    pub case: usize,
    /// Seed of the data and of losses.
    pub seed: u64,
    pub quick: bool,
    /// Extent of the measurement.
    pub extent: &'a Extent,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialOutcome {
    /// In the order of [`Trial::quantities`]; `None` if there is no value.
    pub values: Vec<Option<f64>>,
    /// Durations in ms, for a figure; empty if nothing is timed.
    pub durations_ms: Vec<f64>,
    /// Quantities over time, for a figure.
    pub traces: Vec<Trace>,
    /// Values whose distribution a figure shows.
    pub samples: Vec<Samples>,
    /// Remarks on this run, such as the origin of an estimate.
    pub remarks: Vec<String>,
    /// Why the run is void, other than a late emulator: the traffic of an event was not there before it.
    pub void: Option<String>,
    /// Lateness of the emulator.
    pub emulator: EmulatorReport,
}

/// A quantity over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    pub name: String,
    /// Steps: each value holds from its instant, in s since the beginning, to the next.
    pub steps: Vec<(f64, f64)>,
}

/// Values of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    /// The distribution with which they are compared.
    pub group: String,
    pub name: String,
    /// In the order of measurement.
    pub values: Vec<f64>,
}

impl<T: Copy> Amount<T> {
    /// The required value.
    pub fn of(&self, quick: bool) -> T {
        if quick { self.quick } else { self.run }
    }
}

/// Cases of trials as variants, for status and manifest.
fn as_setup(id: &str, title: &str, trials: &Trials, run: Extent, quick: Extent) -> Setup {
    let variant = |(number, name): (usize, String)| Variant {
        id: number.to_string(),
        name,
        transport: setup::Transport::Gateway,
        assignment: None,
        scheduler: None,
        simulated: false,
        headers: Headers {
            payload: Text(ByteCount::new(1)),
            overhead: Text(ByteCount::ZERO),
        },
    };
    let cases = trials.trial.cases();
    Setup {
        id: id.to_owned(),
        title: title.to_owned(),
        topology: trials.topology.clone(),
        paths: Vec::new(),
        applications: Vec::new(),
        variants: cases.into_iter().enumerate().map(variant).collect(),
        run,
        quick,
    }
}
