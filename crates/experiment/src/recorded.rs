//! Bulk transfers over recorded lines: kernel CUBIC, kernel BBR and Keiro without a configured rate, each with
//! a thin application beside it, and the thin application alone.
//!
//! All transports of a run have a link of their own that replays the same recording from the same instant. The
//! recordings are read from a directory that the user names; none is part of this repository.

mod drawn;
mod measure;
mod plan;
mod report;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use keiro_control::units::Text;
use keiro_lab::emulator::QueueingBin;
use keiro_link::Trace;
use serde::Deserialize;

use crate::{record::EmulatorReport, row::Source, runner::Progress, transactions::Target};
pub(crate) use drawn::drawings;
pub(crate) use measure::{Measured, measure};
pub(crate) use plan::RecordedFile;
pub(crate) use report::{notes, rows, runs_reports, seconds_csv, thin_csv};

/// Recorded links, and where their recordings are.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The directory with the recordings; `None` if the user named none.
    pub directory: Option<PathBuf>,
    /// What may wait at each link: what it carries on the mean in this time.
    pub buffer: Text<Duration>,
    /// The thin application's datagrams, per second.
    pub thin_per_second: u32,
    pub links: Vec<Link>,
    /// Targets of rows.
    pub targets: Vec<Target>,
}

/// A recorded link.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The last part of the names of its rows.
    pub name: String,
    /// The recording, relative to the directory.
    pub file: String,
    /// Its column, if it is a table.
    pub column: Option<String>,
    /// Where the recording comes from.
    pub origin: String,
    /// Propagation delay, one way.
    pub delay: Text<Duration>,
    /// Each packet is delayed by up to this in addition, without reordering.
    #[serde(default = "no_time")]
    pub jitter: Text<Duration>,
}

fn no_time() -> Text<Duration> {
    Text(Duration::ZERO)
}

/// How the bulk data are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// One connection with the kernel's CUBIC.
    Cubic,
    /// One connection with the kernel's BBR.
    Bbr,
    /// One stream through a pair of gateways.
    Keiro,
    /// No bulk data: the thin application has the link for itself, without gateways.
    Alone,
}

impl Transport {
    pub const ALL: [Self; 4] = [Self::Cubic, Self::Bbr, Self::Keiro, Self::Alone];
    /// Those that send bulk data.
    pub const BULK: [Self; 3] = [Self::Cubic, Self::Bbr, Self::Keiro];

    /// Its part of the names of rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
            Self::Keiro => "keiro",
            Self::Alone => "alone",
        }
    }
}

/// One run to carry out.
#[derive(Clone, Copy, Debug)]
pub struct RecordedRequest<'a> {
    pub recorded: &'a Recorded,
    pub link: &'a Link,
    /// The link's recording.
    pub trace: &'a Trace,
    /// Those to measure.
    pub transports: &'a [Transport],
    pub seed: u64,
    /// From the beginning of the recording.
    pub duration: Duration,
    /// Time to wait for datagrams in flight.
    pub drain: Duration,
}

/// What a transport made of a recorded link.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    /// Payload of the bulk data that the receiver had in time.
    pub received_bytes: u64,
    /// IP packets that left the link, by time since the beginning, in steps of
    /// [`QUEUEING_BIN`](keiro_lab::emulator::QUEUEING_BIN).
    pub bins: Vec<QueueingBin>,
    /// Percentiles of what packets waited for others, ms; `None` if there were none.
    pub queue_p50_ms: Option<f64>,
    pub queue_p95_ms: Option<f64>,
    /// One-way delay of the thin application's datagrams in order of sending, ms; `None` for those that never
    /// arrived.
    pub thin_ms: Vec<Option<f64>>,
    /// Remarks, such as an end before the time.
    pub remarks: Vec<String>,
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct RecordedOutcome {
    pub carried: BTreeMap<Transport, Carried>,
    /// Lateness of the emulator; `None` in the simulator.
    pub emulator: Option<EmulatorReport>,
}

impl RecordedOutcome {
    fn is_void(&self) -> bool {
        self.emulator.is_some_and(|emulator| emulator.is_void())
    }
}

/// Carries out runs.
pub trait RecordedRunner {
    /// The source of its values.
    fn source(&self) -> Source;

    /// Why a transport cannot be measured here; `None` if it can.
    fn missing(&self, transport: Transport) -> Option<String>;

    /// Carries out one run. Leaves nothing behind, also on failure.
    ///
    /// # Errors
    /// Why the run could not be carried out, and what to try.
    fn run(
        &mut self,
        request: &RecordedRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<RecordedOutcome>;
}
