//! What carries a variant's messages: the laboratory's real processes, or the simulator.

use std::time::Duration;

use keiro_model::arrivals;
use keiro_units::Instant;

use crate::{
    parameters::StudyRunner,
    record::{EmulatorReport, MessageRecord},
    row::Source,
    setup::{Extent, Setup},
    tenants::SharingRunner,
    transactions::TransactionRunner,
    trials::TrialRunner,
};

/// Carries the messages of one run.
pub trait Runner {
    /// Where its values are from.
    fn source(&self) -> Source;

    /// Whether it can run this variant.
    fn can_run(&self, setup: &Setup, variant: usize) -> bool;

    /// Runs one variant once: makes every message of the schedule at its time, waits until all
    /// have arrived or the drain time is over, and returns what became of each.
    ///
    /// Calls `progress` several times a second where it runs in real time. Leaves nothing behind,
    /// whether it succeeds or not.
    ///
    /// # Errors
    /// What kept the run from being carried out, and what to try. A late emulator or an
    /// undelivered message is no error.
    fn run(
        &mut self,
        request: &Request<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<Outcome>;

    /// What carries out transactions here; `None` where nothing does.
    fn transactions(&mut self) -> Option<&mut dyn TransactionRunner> {
        None
    }

    /// What carries out trials here; `None` where nothing does.
    fn trials(&mut self) -> Option<&mut dyn TrialRunner> {
        None
    }

    /// What carries out studies of aggregates' parameters here; `None` where nothing does.
    fn study(&mut self) -> Option<&mut dyn StudyRunner> {
        None
    }

    /// What has tenants share bottlenecks here; `None` where nothing does.
    fn sharing(&mut self) -> Option<&mut dyn SharingRunner> {
        None
    }
}

/// One run to carry out.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// What is measured.
    pub setup: &'a Setup,
    /// Index of the variant.
    pub variant: usize,
    /// The round, from 0.
    pub round: u32,
    /// How much is measured.
    pub extent: &'a Extent,
    /// The messages, the same for every variant and source of a round.
    pub schedule: &'a Schedule,
}

/// Every application's messages of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The seed that the messages follow from.
    pub seed: u64,
    /// By application, when its messages are made, since the beginning of the run; rising.
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

/// How a run stands.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The time of the schedule that has passed, at most its duration.
    pub elapsed: Duration,
    /// What has arrived so far, by application.
    pub applications: Vec<Arrived>,
}

/// One application's messages so far in a run, warm-up included.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Arrived {
    /// Messages made.
    pub made: u64,
    /// Messages that arrived.
    pub received: u64,
    /// Messages that arrived within their latency target.
    pub met: u64,
    /// The mean delay of those that arrived, in ms; 0 as long as there is none.
    pub mean_ms: f64,
    /// The last delay, in ms.
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

/// What a run gave.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// One record for every message of the schedule.
    pub records: Vec<MessageRecord>,
    /// How the emulator kept its time; `None` in the simulator.
    pub emulator: Option<EmulatorReport>,
}
