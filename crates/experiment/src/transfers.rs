//! Transfer times against sizes over networks of different latency and bandwidth [latency-bandwidth §3].
//!
//! Every transfer is a TCP connection of its own, from its first packet until the receiver has the last byte. A
//! [`TransferRunner`] carries it: in the laboratory what `keiro measure` does, over an emulated link, or in the
//! simulator. Lines are fitted below and above one size, as the paper's are.

mod measure;
mod plan;
mod report;
mod simulated;

use std::{collections::BTreeMap, time::Duration};

use keiro_control::units::Text;
use keiro_units::{Bandwidth, ByteCount};
use serde::Deserialize;

use crate::{record::EmulatorReport, row::Source, setup::Extent, transactions::Target};
pub(crate) use measure::{Measured, measure, select};
pub(crate) use plan::{NetworksFile, TransfersFile};
pub(crate) use report::{drawings, notes, rows, runs_reports, times_csv};

/// A table or figure of transfer times.
#[derive(Clone, Debug)]
pub struct Transfers {
    pub networks: Networks,
    /// The networks of this table or figure, as indices.
    pub shown: Vec<usize>,
    pub figure: Shape,
    /// Targets of rows.
    pub targets: Vec<Target>,
    /// The paper's values, by row.
    pub paper: BTreeMap<String, f64>,
}

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// Transfer time over size [latency-bandwidth figs. 2, 3].
    Time,
    /// Throughput over size [latency-bandwidth fig. 4].
    Throughput,
}

/// The measured networks and sizes.
#[derive(Clone, Debug)]
pub struct Networks {
    pub sizes: Vec<Text<ByteCount>>,
    /// One line is fitted to the sizes up to this one, and one to those above.
    pub split: Text<ByteCount>,
    pub networks: Vec<Network>,
    /// Extent of a full run in the laboratory; `None` is that of the simulator.
    pub lab: Option<Extent>,
}

/// A network between two hosts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// The last part of the names of its rows.
    pub name: String,
    /// Its rate including IP headers.
    pub rate: Text<Bandwidth>,
    /// One way.
    pub delay: Text<Duration>,
    /// Each packet is delayed by up to this in addition, without reordering.
    pub jitter: Text<Duration>,
    /// Bytes that wait for the line at most.
    pub buffer: Text<ByteCount>,
    /// The receiver's buffer, which bounds the window.
    pub receive_buffer: Text<ByteCount>,
    /// What happens when a buffer within the network has filled; `None` if none does.
    pub full: Option<Full>,
}

/// A buffer within the network that fills in the course of a transfer [latency-bandwidth §3].
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Full {
    /// Bytes of a transfer that fill it.
    pub after: Text<ByteCount>,
    /// Nothing leaves for this time.
    pub standstill: Text<Duration>,
    /// The rate from then on.
    pub rate: Text<Bandwidth>,
}

/// Carries transfers.
pub trait TransferRunner {
    /// The source of its values.
    fn source(&self) -> Source;

    /// Carries one transfer, for at most `limit`. Leaves nothing behind, also on failure.
    ///
    /// # Errors
    /// Why it could not be carried out, and what to try.
    fn transfer(
        &mut self,
        network: &Network,
        size: ByteCount,
        seed: u64,
        limit: Duration,
    ) -> anyhow::Result<TransferOutcome>;
}

/// Result of a transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferOutcome {
    /// Seconds from the connection's first packet until the receiver has the last byte; `None` if that took
    /// longer than the limit.
    pub seconds: Option<f64>,
    /// Lateness of the emulator; `None` in the simulator.
    pub emulator: Option<EmulatorReport>,
}

impl TransferOutcome {
    /// Whether the emulator was too late for the transfer to count.
    fn is_void(&self) -> bool {
        self.emulator.is_some_and(|emulator| emulator.is_void())
    }
}
