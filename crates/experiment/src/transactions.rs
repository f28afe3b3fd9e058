//! Transactions of many clients with one server, over several transports.
//!
//! [aggregation table 5] is such a comparison: the duration of transactions through gateways and over plain
//! TCP, without and with load on the server's gateway. A *case* is a transport, with or without load, and a
//! number of round trips. Cases take turns in rounds; every round has other transaction times. A
//! [`TransactionRunner`] carries the transactions.

mod measure;
mod plan;
mod report;
mod target;

use std::{collections::BTreeMap, fmt, time::Duration};

use keiro_control::units::Text;
use keiro_units::ByteCount;
use serde::Deserialize;

pub use target::Target;

use crate::{
    record::EmulatorReport,
    runner::Progress,
    setup::{Extent, Setup},
};
pub(crate) use measure::{Measured, measure, select};
pub(crate) use plan::TransactionsFile;
pub(crate) use report::{counters_csv, drawings, notes, rows, runs_csv, runs_reports, slowest_csv};

#[derive(Clone, Debug)]
pub struct Transactions {
    /// The laboratory's topology, a path below `experiments/` without `.toml`.
    pub topology: String,
    /// All cases, in the order in which they take turns.
    pub cases: Vec<Case>,
    /// Traffic of the clients.
    pub traffic: Traffic,
    /// Load on the server's gateway, in cases with load.
    pub load: LoadPlan,
    /// Maximum of repeats of a run because the machine paused in it.
    pub pause_repeats: u32,
    /// The paper's values in ms, by row.
    pub paper: BTreeMap<String, f64>,
    /// Targets of rows.
    pub targets: Vec<Target>,
}

/// Traffic of the clients [aggregation table 4].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// Transactions per second of all clients together.
    pub per_second: u32,
    /// Clients on each of the two client hosts.
    pub clients_per_host: usize,
    /// Size of a request, and of a response.
    pub message: Text<ByteCount>,
}

/// Bursts of datagrams that overflow the receiving host.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadPlan {
    /// Datagrams in a burst.
    pub burst: u32,
    /// Mean interval from start to start of bursts; each is drawn between 0.5 and 1.5 times this.
    pub every: Text<Duration>,
    /// Size of a datagram.
    pub datagram: Text<ByteCount>,
}

/// A transport from the clients to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransactionTransport {
    /// Kernel TCP over the same links without loss: the floor of the setup.
    TcpLossless,
    /// Kernel TCP from client to server, CUBIC at both ends.
    TcpCubic,
    /// Kernel TCP from client to server, BBR at both ends.
    TcpBbr,
    /// Keiro with default settings.
    Keiro,
    /// Keiro without aggregates and copies: losses are repaired by retransmission alone.
    KeiroOff,
    /// Keiro with fixed aggregation intervals and no controller: the paper's control off.
    KeiroFixed,
    /// Keiro with fixed aggregation intervals and the paper's controller: its control on.
    KeiroFixedController,
    /// A relay in each gateway that only passes messages on in datagrams, over the same links without loss:
    /// the minimum cost of two gateways in user space.
    UdpLossless,
    /// A relay in each gateway, with one KCP session per client between them.
    Kcp,
    /// A relay in each gateway, with one QUIC connection and a stream per client between them.
    QuicShared,
    /// A relay in each gateway, with one QUIC connection per client between them.
    QuicEach,
}

impl TransactionTransport {
    pub const ALL: [Self; 11] = [
        Self::TcpLossless,
        Self::UdpLossless,
        Self::TcpCubic,
        Self::TcpBbr,
        Self::Keiro,
        Self::KeiroOff,
        Self::KeiroFixed,
        Self::KeiroFixedController,
        Self::Kcp,
        Self::QuicShared,
        Self::QuicEach,
    ];

    /// The first part of the names of its rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::TcpLossless => "tcp-lossless",
            Self::UdpLossless => "udp-lossless",
            Self::TcpCubic => "tcp-cubic",
            Self::TcpBbr => "tcp-bbr",
            Self::Keiro => "keiro",
            Self::KeiroOff => "keiro-off",
            Self::KeiroFixed => "keiro-fixed",
            Self::KeiroFixedController => "keiro-fixed-controller",
            Self::Kcp => "kcp",
            Self::QuicShared => "quic-shared",
            Self::QuicEach => "quic-each",
        }
    }

    /// Whether it repairs losses.
    pub fn repairs(self) -> bool {
        self != Self::UdpLossless
    }

    /// It is a floor: its links lose nothing.
    pub fn is_lossless(self) -> bool {
        matches!(self, Self::TcpLossless | Self::UdpLossless)
    }
}

impl fmt::Display for TransactionTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What one run measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// Transport from the clients to the server.
    pub transport: TransactionTransport,
    /// Whether the server's gateway is under load.
    pub load: bool,
    /// Round trips per transaction.
    pub round_trips: u32,
}

impl Case {
    /// The name of the row of this case that reports `statistic`.
    pub fn row(&self, statistic: &str) -> String {
        let load = self.load_name();
        format!(
            "{} {load} {statistic} {}rt",
            self.transport, self.round_trips
        )
    }

    fn load_name(&self) -> &'static str {
        if self.load { "load" } else { "no load" }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} {}rt",
            self.transport,
            self.load_name(),
            self.round_trips
        )
    }
}

/// A reported statistic of a case's transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Statistic {
    Min,
    Mean,
    P99,
    P999,
    Max,
}

impl Statistic {
    /// All of them, in the order of the rows.
    pub const ALL: [Self; 5] = [Self::Min, Self::Mean, Self::P99, Self::P999, Self::Max];

    /// Its name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Min => "min",
            Self::Mean => "mean",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
            Self::Max => "max",
        }
    }
}

/// Carries out runs of transactions.
pub trait TransactionRunner {
    /// Why this transport cannot be measured here, and what to try; `None` if it can.
    fn missing(&self, transport: TransactionTransport) -> Option<String>;

    /// Carries out one run. Calls `progress` several times per second. Leaves nothing behind, also on
    /// failure.
    ///
    /// # Errors
    /// Why the run could not be carried out, and what to try. A late emulator or a transaction that never
    /// ends is not an error.
    fn run(
        &mut self,
        request: &TransactionRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TransactionOutcome>;
}

/// One run to carry out.
#[derive(Clone, Copy, Debug)]
pub struct TransactionRequest<'a> {
    pub transactions: &'a Transactions,
    pub case: Case,
    /// Seed of the transactions' times and of losses.
    pub seed: u64,
    /// Extent of the measurement.
    pub extent: &'a Extent,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct TransactionOutcome {
    /// Duration of each counted transaction in ms, from its scheduled start; infinite if it never ended.
    pub durations_ms: Vec<f64>,
    /// The slowest of them, slowest first.
    pub slowest: Vec<SlowTransaction>,
    /// Transactions that found no free client.
    pub waited: u64,
    /// Lateness of transactions that had a free client, at the 99th percentile, in µs.
    pub late_p99_us: f64,
    /// The greatest such lateness, in µs.
    pub late_max_us: f64,
    /// Packets dropped by the receive ring of the server's gateway.
    pub overflows: u64,
    /// The kernel's counters along the receive path, before and after.
    pub counters: Vec<Counter>,
    /// Lateness of the emulator.
    pub emulator: EmulatorReport,
    /// Longest pause of a processor in ms, measured by an idle thread with the highest priority. A pause
    /// delays everything on that processor, whatever the transport.
    pub pause_ms: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowTransaction {
    /// Scheduled start, in s since the run's beginning. Several at the same time show a pause of the line or
    /// of the machine; a single one is its own.
    pub at_s: f64,
    /// Duration from then, in ms; infinite if it never ended.
    pub took_ms: f64,
}

/// One of the kernel's counters before and after a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Name of the host.
    pub host: String,
    pub name: String,
    pub before: u64,
    pub after: u64,
}

impl TransactionOutcome {
    /// Whether the machine's pauses affect its maximum.
    pub fn has_pause(&self) -> bool {
        self.pause_ms > PAUSE_MS_MAX
    }

    /// Whether it is the better of two repeats: a valid run before a void one, then the one with the shorter
    /// pause.
    pub fn is_kept_over(&self, other: &Self, load: bool) -> bool {
        let order = |run: &Self| (run.void(load).is_some(), run.pause_ms);
        order(self) < order(other)
    }

    /// Why the run is void; `None` if it is valid.
    pub fn void(&self, load: bool) -> Option<&'static str> {
        if self.emulator.is_void() {
            Some("the emulator was late")
        } else if self.late_p99_us > START_LATENESS_VOID_US {
            Some("transactions began late")
        } else if load && self.overflows == 0 {
            Some("the load overflowed nothing")
        } else {
            None
        }
    }
}

/// Shorter pauses of a processor do not repeat a run, in ms. Ours: a third of the difference that targets on
/// maxima allow.
const PAUSE_MS_MAX: f64 = 2.0;

/// A run is void if transactions that had a free client began later than this at the 99th percentile, in µs.
/// Ours: a twelfth of the shortest transaction here.
pub const START_LATENESS_VOID_US: f64 = 500.0;

/// Cases of transactions as variants, for status and manifest.
fn as_setup(
    id: &str,
    title: &str,
    transactions: &Transactions,
    run: Extent,
    quick: Extent,
) -> Setup {
    use crate::setup::{Headers, Transport, Variant};
    let variant = |(number, case): (usize, &Case)| Variant {
        id: number.to_string(),
        name: case.to_string(),
        transport: Transport::Tcp,
        assignment: None,
        scheduler: None,
        simulated: false,
        headers: Headers {
            payload: transactions.traffic.message,
            overhead: Text(ByteCount::ZERO),
        },
    };
    Setup {
        id: id.to_owned(),
        title: title.to_owned(),
        topology: transactions.topology.clone(),
        paths: Vec::new(),
        applications: Vec::new(),
        variants: transactions.cases.iter().enumerate().map(variant).collect(),
        run,
        quick,
    }
}
