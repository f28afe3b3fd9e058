//! Transactions of many clients with one server, over several ways to reach it.
//!
//! [aggregation table 5] is such a comparison: how long a transaction takes through the gateways
//! and over plain TCP, without and with load on the server. A *case* is a way, with or without
//! load, and a number of round trips; cases take turns in rounds, every round with transactions at
//! other times. How a way reaches the server is the [`TransactionRunner`]'s.

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

/// What is measured.
#[derive(Clone, Debug)]
pub struct Transactions {
    /// The laboratory's topology, a path below `experiments/` without `.toml`.
    pub topology: String,
    /// All cases, in the order in which they take turns.
    pub cases: Vec<Case>,
    /// What the clients do.
    pub traffic: Traffic,
    /// What loads the server's gateway in cases with load.
    pub load: LoadPlan,
    /// How often a run is repeated at most because the machine stood still in it.
    pub pause_repeats: u32,
    /// The paper's values in ms, by row.
    pub paper: BTreeMap<String, f64>,
    /// What is asked of rows.
    pub targets: Vec<Target>,
}

/// What the clients do [aggregation table 4].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// Transactions a second, of all clients together.
    pub per_second: u32,
    /// Clients on each of the two client hosts.
    pub clients_per_host: usize,
    /// The bytes of a request, and of a response.
    pub message: Text<ByteCount>,
}

/// Datagrams that arrive faster than the host takes them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadPlan {
    /// Datagrams in a burst.
    pub burst: u32,
    /// From the beginning of a burst to that of the next on average; each time from half to one and a
    /// half of it.
    pub every: Text<Duration>,
    /// The bytes of a datagram.
    pub datagram: Text<ByteCount>,
}

/// A way from the clients to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Kernel TCP over the same links without loss: the floor of the whole set-up.
    TcpLossless,
    /// Kernel TCP from client to server, CUBIC at both ends.
    TcpCubic,
    /// Kernel TCP from client to server, BBR at both ends.
    TcpBbr,
    /// Keiro as it is unless configured otherwise.
    Keiro,
    /// Keiro without aggregates and copies: what is lost is repaired by retransmission alone.
    KeiroOff,
    /// Keiro with aggregates by the clock and no controller: the paper's control off.
    KeiroFixed,
    /// Keiro with aggregates by the clock and the paper's controller: its control on.
    KeiroFixedController,
    /// A relay in each gateway that does nothing but pass messages on in datagrams, over the same
    /// links without loss: what two gateways in user space cost at least.
    UdpLossless,
    /// A relay in each gateway, between them one KCP session per client.
    Kcp,
    /// A relay in each gateway, between them one QUIC connection with a stream per client.
    QuicShared,
    /// A relay in each gateway, between them one QUIC connection per client.
    QuicEach,
}

impl Way {
    /// All of them.
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

    /// The first part of its rows' names.
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

    /// Whether what is lost comes nevertheless.
    pub fn repairs(self) -> bool {
        self != Self::UdpLossless
    }

    /// It is a floor, and the links lose nothing.
    pub fn is_lossless(self) -> bool {
        matches!(self, Self::TcpLossless | Self::UdpLossless)
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What one run measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// How the clients reach the server.
    pub way: Way,
    /// Whether the server's gateway is loaded.
    pub load: bool,
    /// Round trips of a transaction.
    pub round_trips: u32,
}

impl Case {
    /// The name of the row of this case that reports `statistic`.
    pub fn row(&self, statistic: &str) -> String {
        let load = self.load_name();
        format!("{} {load} {statistic} {}rt", self.way, self.round_trips)
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
            self.way,
            self.load_name(),
            self.round_trips
        )
    }
}

/// A number that is reported of a case's transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Statistic {
    /// The least.
    Min,
    /// The mean.
    Mean,
    /// The 99th percentile.
    P99,
    /// The 99.9th percentile.
    P999,
    /// The greatest.
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
    /// Why this way cannot be measured here, and what to try; `None` if it can.
    fn missing(&self, way: Way) -> Option<String>;

    /// Carries out one run. Calls `progress` several times a second. Leaves nothing behind,
    /// whether it succeeds or not.
    ///
    /// # Errors
    /// What kept the run from being carried out, and what to try. A late emulator or a transaction
    /// that never ends is no error.
    fn run(
        &mut self,
        request: &TransactionRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TransactionOutcome>;
}

/// One run to carry out.
#[derive(Clone, Copy, Debug)]
pub struct TransactionRequest<'a> {
    /// What is measured.
    pub transactions: &'a Transactions,
    /// The case.
    pub case: Case,
    /// Chooses when transactions begin, and what is lost.
    pub seed: u64,
    /// How much is measured.
    pub extent: &'a Extent,
}

/// What a run gave.
#[derive(Clone, Debug, PartialEq)]
pub struct TransactionOutcome {
    /// How long each counted transaction took, in ms, from when it should have begun; infinite
    /// where it never ended.
    pub durations_ms: Vec<f64>,
    /// The slowest of them, slowest first.
    pub slowest: Vec<Slow>,
    /// Transactions that found no client free.
    pub waited: u64,
    /// How late transactions began with a client free, at the 99th percentile, in µs.
    pub late_p99_us: f64,
    /// The same at the worst, in µs.
    pub late_max_us: f64,
    /// Packets that the receive ring of the server's gateway had no room for.
    pub overflows: u64,
    /// The kernel's counters along the receive path, before and after.
    pub counters: Vec<Counter>,
    /// How the emulator kept its time.
    pub emulator: EmulatorReport,
    /// How long a processor stood still at most, in ms, by a thread that does nothing and comes before all others. Who
    /// runs there stands still too, whatever the way.
    pub stood_still_ms: f64,
}

/// A transaction that took long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slow {
    /// When it should have begun, in s since the run's beginning. Several at one time are a pause of
    /// the line or of the machine, one alone is its own.
    pub at_s: f64,
    /// How long it took from then, in ms; infinite if it never ended.
    pub took_ms: f64,
}

/// One of the kernel's counters over a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The host that was asked.
    pub host: String,
    /// What is counted.
    pub name: String,
    /// Before the run.
    pub before: u64,
    /// After it.
    pub after: u64,
}

impl TransactionOutcome {
    /// Whether the machine's pauses are in its maximum.
    pub fn stood_still(&self) -> bool {
        self.stood_still_ms > STOOD_STILL_MS
    }

    /// Whether it is the one to keep of two runs of the same: what counts is, and where both do, the one with the
    /// shorter pause.
    pub fn is_kept_over(&self, other: &Self, load: bool) -> bool {
        let order = |run: &Self| (run.void(load).is_some(), run.stood_still_ms);
        order(self) < order(other)
    }

    /// Why the run does not count; `None` if it does.
    pub fn void(&self, load: bool) -> Option<&'static str> {
        if self.emulator.is_void() {
            Some("the emulator was late")
        } else if self.late_p99_us > BEGUN_LATE_VOID_US {
            Some("transactions began late")
        } else if load && self.overflows == 0 {
            Some("the load overflowed nothing")
        } else {
            None
        }
    }
}

/// Pauses of a processor up to this are no reason to repeat a run, in ms. Ours: a third of what maxima are compared by.
const STOOD_STILL_MS: f64 = 2.0;

/// A run whose transactions began later than this at the 99th percentile, though a client was
/// free, does not count, in µs. Ours: a twelfth of the shortest transaction here.
pub const BEGUN_LATE_VOID_US: f64 = 500.0;

/// What status and manifest need to know of transactions: cases as variants.
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
