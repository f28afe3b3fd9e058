//! Runners carry a variant's messages: in the laboratory with real processes, or in the simulator.

use std::time::Duration;

use keiro_model::arrivals;
use keiro_units::Instant;

use crate::{
    record::{EmulatorReport, MessageRecord},
    row::Source,
    setup::{Extent, Setup},
};

/// Carries the messages of one run.
pub trait MessageRunner {
    /// The source of its values.
    fn source(&self) -> Source;

    /// Whether it can run this variant.
    fn can_run(&self, setup: &Setup, variant: usize) -> bool;

    /// Runs one variant once: sends every message of the schedule at its time, waits until all have arrived
    /// or the drain time is over, and returns a record of each.
    ///
    /// Calls `progress` several times per second if it runs in real time. Leaves nothing behind, also on
    /// failure.
    ///
    /// # Errors
    /// Why the run could not be carried out, and what to try. A late emulator or an undelivered message is
    /// not an error.
    fn run(
        &mut self,
        request: &Request<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<Outcome>;
}

/// One run to carry out.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub setup: &'a Setup,
    /// Index of the variant.
    pub variant: usize,
    /// The round, from 0.
    pub round: u32,
    /// Extent of the measurement.
    pub extent: &'a Extent,
    /// The messages, the same for every variant and source of a round.
    pub schedule: &'a Schedule,
}

/// Every application's messages of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The seed from which the messages are drawn.
    pub seed: u64,
    /// Ascending times at which each application's messages are sent, since the beginning of the run.
    pub made: Vec<Vec<Instant>>,
}

impl Schedule {
    /// The schedule of a round.
    pub fn of(setup: &Setup, extent: &Extent, round: u32) -> Self {
        let seed = extent.seed_of(round);
        let made = (0..)
            .zip(&setup.applications)
            .map(|(index, a)| arrivals::schedule(seed, index, a.interval.0, extent.duration.0))
            .collect();
        Self { seed, made }
    }

    /// The number of messages.
    pub fn messages(&self) -> usize {
        self.made.iter().map(Vec::len).sum()
    }
}

/// Progress of a run.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Time of the schedule that has passed, at most its duration.
    pub elapsed: Duration,
    /// Arrivals so far, by application.
    pub applications: Vec<Arrived>,
}

/// One application's messages so far in a run, warm-up included.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Arrived {
    pub made: u64,
    pub received: u64,
    /// Messages that arrived within their latency target.
    pub met: u64,
    /// Mean delay of those that arrived, in ms; 0 before the first.
    pub mean_ms: f64,
    /// Delay of the last arrival, in ms.
    pub last_ms: f64,
}

impl Arrived {
    /// Counts a message that arrived after `delay_ms`.
    pub fn add(&mut self, delay_ms: f64, latency_target_ms: f64) {
        self.received += 1;
        self.met += u64::from(delay_ms <= latency_target_ms);
        self.mean_ms += (delay_ms - self.mean_ms) / self.received as f64;
        self.last_ms = delay_ms;
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// One record for every message of the schedule.
    pub records: Vec<MessageRecord>,
    /// Lateness of the emulator; `None` in the simulator.
    pub emulator: Option<EmulatorReport>,
}
