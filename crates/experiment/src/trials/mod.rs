//! Trials: what a pair of gateways carries, or stands, or finds out. A trial is one question with a
//! few *cases*, and every run of a case gives the same few named values.
//!
//! | trial | asks |
//! |---|---|
//! | [`Bulk`] | how fast a long stream is over a line that loses packets, and whether it is whole |
//! | [`Clients`] | how many connections a gateway holds, and what they cost each other |
//! | [`Spacing`] | how well the bandwidth of a line is known from thin traffic |
//! | [`Shares`] | how tenants of several TCP flows share a bottleneck |
//! | [`Scale`] | what a gateway costs with many tenants, and with much traffic |
//! | [`Flows`] | what a flow gets over two transits, as TCP and as MPTCP with EPE addresses |
//! | [`Isps`] | what clients of several providers get over two transits, by one TCP connection, several, and MPTCP |
//! | [`Routes`] | how soon a content server has the change of an egress peer's routes |
//!
//! How a case is carried out is the [`TrialRunner`]'s.

mod drawn;
mod isps;
mod measure;
mod plan;
mod report;

use std::time::Duration;

use keiro_control::units::Text;
use keiro_units::{Bandwidth, ByteCount};
use serde::Deserialize;

use crate::{
    record::EmulatorReport,
    runner::Progress,
    setup::{self, Extent, Headers, Setup, Variant},
    transactions::Target,
};
pub use isps::{Isp, IspWay, Isps, Line};
pub(crate) use measure::{Measured, measure};
pub(crate) use plan::{TABLES, TrialsFile};
pub(crate) use report::{drawings, notes, rows, runs_csv, runs_reports};

/// What is measured.
#[derive(Clone, Debug)]
pub struct Trials {
    /// The laboratory's topology, a path below `experiments/` without `.toml`.
    pub topology: String,
    /// The question.
    pub trial: Trial,
    /// What is asked of rows.
    pub targets: Vec<Target>,
}

/// A question.
#[derive(Clone, Debug)]
pub enum Trial {
    /// See [`Bulk`].
    Bulk(Bulk),
    /// See [`Clients`].
    Clients(Clients),
    /// See [`Spacing`].
    Spacing(Spacing),
    /// See [`Shares`].
    Shares(Shares),
    /// See [`Scale`].
    Scale(Scale),
    /// See [`Flows`].
    Flows(Flows),
    /// See [`Isps`].
    Isps(Isps),
    /// See [`Routes`].
    Routes(Routes),
}

/// A value that a quick run has another of.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Amount<T> {
    /// In full.
    pub run: T,
    /// With `--quick`.
    pub quick: T,
}

/// A file goes through a stream, and random bytes as fast as the line takes them before it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bulk {
    /// What the gateways may send, IP packets; the line carries as much.
    pub rate: Text<Bandwidth>,
    /// The line's round trips; with each direction a case.
    pub round_trips: Vec<Text<Duration>>,
    /// The length of the file.
    pub file: Amount<Text<ByteCount>>,
    /// For how long it is measured what the line carries, with UDP datagrams of its full size.
    pub probe: Text<Duration>,
}

/// Which way a file goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// Connections of many clients through one pair of gateways.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clients {
    /// What the gateways may send, IP packets.
    pub rate: Text<Bandwidth>,
    /// Clients that say something once at first and once at the end.
    pub idle: Amount<usize>,
    /// Clients that ask and are answered all the time.
    pub active: Amount<usize>,
    /// Requests a second, of all active clients together.
    pub per_second: Amount<u32>,
    /// The bytes of a request, and of an answer.
    pub message: Text<ByteCount>,
}

/// Thin traffic over lines of several bandwidths.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spacing {
    /// The bandwidths.
    pub bandwidths: Vec<Text<Bandwidth>>,
    /// What the gateways may send, so many times the line's bandwidth.
    pub rate_factor: f64,
    /// What goes over them; with each bandwidth a case.
    pub loads: Vec<ThinLoad>,
    /// How many clients there are.
    pub clients: usize,
}

/// Thin traffic.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThinLoad {
    /// The first part of its cases' names.
    pub name: String,
    /// Transactions of one round trip a second.
    pub per_second: u32,
    /// The bytes of a request, and of an answer.
    pub message: Text<ByteCount>,
}

/// Tenants with TCP flows over one bottleneck, each with a gateway of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shares {
    /// How many flows each tenant has; one site each.
    pub flows: Vec<usize>,
    /// From one tenant's start to the next one's.
    pub apart: Text<Duration>,
    /// From the last start until shares count.
    pub settling: Text<Duration>,
    /// What the gateways may send, IP packets.
    pub rate: Text<Bandwidth>,
    /// What a tenant gets, about: controller `keiro`'s unit.
    pub unit: Text<Bandwidth>,
    /// Where a and b of controller `i2vfc` hold: about what the sites' round trips are.
    pub round_trip: Text<Duration>,
    /// What shares; with each congestion control a case.
    pub ways: Vec<Sharing>,
    /// The congestion controls of the flows, as the kernel names them.
    pub congestion: Vec<String>,
}

/// Many tenants between two gateways.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// What the gateways may send, IP packets.
    pub rate: Text<Bandwidth>,
    /// Length of the IP packets that are offered.
    pub packet: Text<ByteCount>,
    /// Each a case.
    pub points: Vec<ScalePoint>,
}

/// So many tenants, and what all together offer.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalePoint {
    /// How many.
    pub tenants: usize,
    /// IP packets of all of them together.
    pub offered: Text<Bandwidth>,
}

impl ScalePoint {
    /// The name of its case.
    pub fn name(&self) -> String {
        format!("{} tenants {}", self.tenants, self.offered)
    }
}

/// A clients' provider that begins and ends announcing a prefix to one of two transits.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Routes {
    /// How often it begins, and as often ends.
    pub changes: Amount<u32>,
    /// From when everybody has a change until the next one.
    pub apart: Text<Duration>,
    /// What is between border routers and server; each a case.
    pub reflectors: Vec<Reflector>,
    /// What an MPTCP connection to a client carries meanwhile.
    pub flow: Text<Bandwidth>,
}

/// A flow of a content server's to a client behind two links of two transits.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flows {
    /// The links' rates.
    pub patterns: Vec<Pattern>,
    /// As what it goes; each with each load and each pattern a case.
    pub transports: Vec<Transport>,
    /// The payload of [`Load::Cbr`], and for how long.
    pub cbr: Text<Bandwidth>,
    /// See `cbr`.
    pub time: Amount<Text<Duration>>,
    /// The bytes of [`Load::Bulk`].
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
    /// What they become; `None`: they stay.
    pub then: Option<Then>,
}

/// What the rates become under way.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Then {
    /// Of link a.
    pub a: Text<Bandwidth>,
    /// Of link b.
    pub b: Text<Bandwidth>,
    /// When, with [`Load::Cbr`].
    pub cbr_at: Text<Duration>,
    /// When, with [`Load::Bulk`].
    pub bulk_at: Text<Duration>,
}

/// What the flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// A constant rate for some time.
    Cbr,
    /// A file as fast as it goes.
    Bulk,
}

/// As what it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// By BGP's best path.
    Tcp,
    /// By the best path and all EPE addresses that lead to the client.
    Mptcp,
}

impl Flows {
    /// Every case's transport, load and pattern, in order.
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

impl Pattern {
    /// The last part of its cases' names: the rates in Mbit/s.
    pub fn name(&self) -> String {
        let of = |a: &Text<Bandwidth>, b: &Text<Bandwidth>| {
            let [a, b] = [a, b].map(|rate| rate.0.as_bits_per_second() as f64 / 1e6);
            format!("{a}/{b}")
        };
        let first = of(&self.a, &self.b);
        match &self.then {
            None => first,
            Some(then) => format!("{first} to {}", of(&then.a, &then.b)),
        }
    }
}

impl Load {
    /// The part of its cases' names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cbr => "cbr",
            Self::Bulk => "bulk",
        }
    }
}

impl Then {
    /// When.
    pub fn at(&self, load: Load) -> Duration {
        match load {
            Load::Cbr => self.cbr_at.0,
            Load::Bulk => self.bulk_at.0,
        }
    }
}

/// What is between border routers and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reflector {
    /// FRR as route reflector.
    Frr,
    /// gobgpd as route reflector.
    Gobgp,
    /// Nothing: sessions with each other.
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

/// What shares a bottleneck between tenants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// Nothing.
    None,
    /// Each tenant is one flow like TCP's Reno, whatever its weight.
    Aimd,
    /// The paper's controller.
    I2vfc,
    /// Keiro's controller.
    Keiro,
    /// Classes of HTB at the bottleneck, and nothing at the edges.
    Htb,
}

impl Sharing {
    /// The first part of its cases' names.
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
    /// The way and the congestion control of every case, in order.
    pub fn cases(&self) -> impl Iterator<Item = (Sharing, &str)> {
        let of_way = |way: &Sharing| {
            let way = *way;
            self.congestion.iter().map(move |name| (way, name.as_str()))
        };
        self.ways.iter().flat_map(of_way)
    }

    /// From the first start until shares count.
    pub fn counts_from(&self) -> Duration {
        let last = self.flows.len().saturating_sub(1);
        self.apart.0 * u32::try_from(last).unwrap_or(u32::MAX) + self.settling.0
    }
}

impl Bulk {
    /// The direction and the round trip of every case, in order.
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
    /// The load and the bandwidth of every case, in order.
    pub fn cases(&self) -> impl Iterator<Item = (&ThinLoad, Bandwidth)> {
        let of_load = |load| self.bandwidths.iter().map(move |rate| (load, rate.0));
        self.loads.iter().flat_map(of_load)
    }
}

/// A value that every run of a case gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantity {
    /// The first part of its rows' names.
    pub name: &'static str,
    /// Of its values.
    pub unit: &'static str,
    /// Which of several runs are reported.
    pub over: Over,
}

/// Which statistic of several runs' values is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The median, with an interval.
    Median,
    /// The greatest.
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

impl Trial {
    /// What every run of a case gives, in the order of the rows.
    pub fn quantities(&self) -> &'static [Quantity] {
        match self {
            Self::Bulk(_) => OF_BULK,
            Self::Clients(_) => OF_CLIENTS,
            Self::Spacing(_) => OF_SPACING,
            Self::Shares(_) => OF_SHARES,
            Self::Scale(_) => OF_SCALE,
            Self::Flows(_) => OF_FLOWS,
            Self::Isps(_) => isps::QUANTITIES,
            Self::Routes(_) => OF_ROUTES,
        }
    }

    /// The names of its cases, in the order in which they take turns; each the last part of its
    /// rows' names.
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
                .map(|(way, congestion)| format!("{} {congestion}", way.name()))
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

    /// Whether a run does not count if the emulator was late in it: where delays of packets are
    /// measured, not where bytes are counted or hundreds of milliseconds.
    pub fn needs_punctuality(&self) -> bool {
        !matches!(
            self,
            Self::Bulk(_) | Self::Scale(_) | Self::Flows(_) | Self::Isps(_) | Self::Routes(_)
        )
    }
}

/// The name of a row.
pub(crate) fn row_name(quantity: &Quantity, case: &str) -> String {
    format!("{} {case}", quantity.name)
}

/// Carries out runs of trials.
pub trait TrialRunner {
    /// Why a case cannot be measured here, and what to try; `None` if it can.
    fn missing(&self, _trials: &Trials, _case: usize) -> Option<String> {
        None
    }

    /// Carries out one run. Calls `progress` now and then. Leaves nothing behind, whether it
    /// succeeds or not.
    ///
    /// # Errors
    /// What kept the run from being carried out, and what to try. A late emulator, a broken
    /// connection or a damaged file is no error.
    fn run(
        &mut self,
        request: &TrialRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TrialOutcome>;
}

/// One run to carry out.
#[derive(Clone, Copy, Debug)]
pub struct TrialRequest<'a> {
    /// What is measured.
    pub trials: &'a Trials,
    /// The case, by its place among [`Trial::cases`].
    pub case: usize,
    /// Chooses what is sent, and what is lost.
    pub seed: u64,
    /// The shortened extent.
    pub quick: bool,
    /// How much is measured.
    pub extent: &'a Extent,
}

/// What a run gave.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialOutcome {
    /// In the order of [`Trial::quantities`]; `None` where there is no value.
    pub values: Vec<Option<f64>>,
    /// What took how long, in ms, for a figure; empty where nothing is timed.
    pub durations_ms: Vec<f64>,
    /// Quantities over the run's time, for a figure.
    pub traces: Vec<Trace>,
    /// Values of which a figure shows the distribution.
    pub samples: Vec<Samples>,
    /// What a reader must know of this run, as where an estimate is from.
    pub remarks: Vec<String>,
    /// How the emulator kept its time.
    pub emulator: EmulatorReport,
}

/// A quantity over a run's time.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// What it is.
    pub name: String,
    /// Values that hold from an instant, in s since the beginning, to the next one.
    pub steps: Vec<(f64, f64)>,
}

/// Values of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    /// With what they are compared.
    pub group: String,
    /// What they are.
    pub name: String,
    /// In the order in which they were measured.
    pub values: Vec<f64>,
}

impl<T: Copy> Amount<T> {
    /// The one that is asked for.
    pub fn of(&self, quick: bool) -> T {
        if quick { self.quick } else { self.run }
    }
}

/// What status and manifest need to know of trials: cases as variants.
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
