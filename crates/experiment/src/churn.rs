//! Applications that come and go: what each policy of choosing paths makes of it [path-selection §3.4].
//!
//! In the simulator, with gateways that run the real protocol. At every beginning and end of an application the
//! policy may choose the paths of those that are there anew.

mod plan;
mod report;
mod simulated;

use std::{collections::BTreeMap, ops::Range, time::Duration};

use anyhow::Context;
use keiro_control::units::Text;
use keiro_units::ByteCount;
use serde::Deserialize;

use crate::{
    campaign::Status,
    plan::Plan,
    row::Source,
    runner::Progress,
    setup::{Assignment, Path, Scheduler, nearest},
    transactions::Target,
};
pub(crate) use plan::ChurnFile;
pub(crate) use report::{drawings, messages_csv, notes, rows, runs_reports};

/// Paths, applications with their times, and the compared policies.
#[derive(Clone, Debug)]
pub struct Churn {
    pub paths: Vec<Path>,
    pub applications: Vec<Application>,
    pub policies: Vec<Policy>,
    /// Targets of rows.
    pub targets: Vec<Target>,
}

/// An application and when it is there.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Application {
    pub name: String,
    /// Payload bytes of every message.
    pub length: Text<ByteCount>,
    /// Mean of the exponential intervals between two messages.
    pub interval: Text<Duration>,
    pub latency_target: Text<Duration>,
    /// Beginnings and ends; always there if empty.
    #[serde(default)]
    pub active: Vec<[Text<Duration>; 2]>,
}

/// How paths are chosen.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    pub name: String,
    pub assignment: Assignment,
    /// Whether paths are chosen anew when an application comes or goes, for those that are there. Otherwise they
    /// are chosen once, for all.
    pub replanned: bool,
    pub scheduler: Scheduler,
}

impl Application {
    /// Whether it sends at this time.
    pub fn is_active(&self, at: Duration) -> bool {
        let within = |[from, to]: &[Text<Duration>; 2]| (from.0..to.0).contains(&at);
        self.active.is_empty() || self.active.iter().any(within)
    }
}

impl Churn {
    /// When applications come or go before `end`, in order, with the beginning.
    pub fn changes(&self, end: Duration) -> Vec<Duration> {
        let ends = self
            .applications
            .iter()
            .flat_map(|a| a.active.iter().flatten());
        let mut all: Vec<Duration> = ends.map(|at| at.0).filter(|at| *at < end).collect();
        all.push(Duration::ZERO);
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Message {
    /// Index of the application.
    pub application: usize,
    /// In s since the beginning.
    pub made_s: f64,
    /// In ms; `None` if it never arrived.
    pub delay_ms: Option<f64>,
}

/// A path that an application has from an instant on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placed {
    pub at_s: f64,
    /// Index of the application.
    pub application: usize,
    /// Index of the path.
    pub path: usize,
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct ChurnOutcome {
    /// In order of making.
    pub messages: Vec<Message>,
    /// First places and moves, in order of time.
    pub placed: Vec<Placed>,
}

/// One run to carry out.
#[derive(Clone, Copy, Debug)]
pub struct ChurnRequest<'a> {
    pub churn: &'a Churn,
    /// Index of the policy.
    pub policy: usize,
    pub seed: u64,
    pub duration: Duration,
    /// Time to wait for messages in flight.
    pub drain: Duration,
}

/// Carries out runs.
pub trait ChurnRunner {
    /// # Errors
    /// Why the run could not be carried out, and what to try.
    fn run(&mut self, request: &ChurnRequest<'_>) -> anyhow::Result<ChurnOutcome>;
}

#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// Every policy's runs, in order of rounds.
    pub(crate) runs: BTreeMap<usize, Vec<ChurnOutcome>>,
    /// Counted seconds: from, to.
    pub(crate) counted: Range<f64>,
}

/// Measures the policies with these names, all if there are none; nothing without a runner.
///
/// # Errors
/// There is no policy of that name, or a run could not be carried out.
pub(crate) fn measure(
    runner: Option<&mut (dyn ChurnRunner + '_)>,
    plan: &Plan,
    churn: &Churn,
    names: &[String],
    quick: bool,
    watch: &mut dyn FnMut(&Status<'_>),
) -> anyhow::Result<Measured> {
    let known = || churn.policies.iter().map(|policy| policy.name.as_str());
    if let Some(wrong) = names
        .iter()
        .find(|name| known().all(|known| known != *name))
    {
        anyhow::bail!("there is no policy `{wrong}`{}", nearest(wrong, known()));
    }
    let extent = plan.setup.extent(quick);
    let mut measured = Measured {
        runs: BTreeMap::new(),
        counted: extent.warm_up.0.as_secs_f64()..extent.duration.0.as_secs_f64(),
    };
    let Some(runner) = runner else {
        return Ok(measured);
    };
    let is_selected =
        |policy: &usize| names.is_empty() || names.contains(&churn.policies[*policy].name);
    let policies: Vec<usize> = (0..churn.policies.len()).filter(is_selected).collect();
    let total = f64::from(extent.rounds) * policies.len() as f64;
    let mut done = 0.0;
    for round in 0..extent.rounds {
        for &policy in &policies {
            watch(&Status {
                fraction: done / total,
                source: Source::Sim,
                setup: &plan.setup,
                variant: policy,
                round,
                repeat: 0,
                run: &Progress::default(),
            });
            let request = ChurnRequest {
                churn,
                policy,
                seed: extent.seed_of(round),
                duration: extent.duration.0,
                drain: extent.drain.0,
            };
            let outcome = runner.run(&request);
            let outcome = outcome.with_context(|| churn.policies[policy].name.clone())?;
            measured.runs.entry(policy).or_default().push(outcome);
            done += 1.0;
        }
    }
    Ok(measured)
}
