//! The experiment of `[path-selection §5]` in virtual time: five applications, two paths.
//!
//! Gives every message's record; statistics, the paper's values and verdicts are left to the
//! experiment.

use std::time::Duration;

use keiro_core::SchedulerKind;
use keiro_planner::paper;

use crate::{
    pair::GatewayPair,
    report::{MessageRecord, Report},
    scenario::{Arrivals, Length, PathSpec, Processing, Scenario},
};

/// Who decides where messages go and which goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Everything on path 2, in order of making: the conventional way `[path-selection §5]`.
    Conventional,
    /// The paper's assignment (`[path-selection table 4]`), in order of making.
    PaperAssignment,
    /// Path index by application, as a planner gave it, and earliest deadline first.
    Planned([usize; 5]),
}

/// Runs one variant and gives the record of every message that was made in `duration`, each
/// application's number being its index in [`paper::APPS`].
///
/// The same seed gives the same arrivals to every variant. The run goes on until all messages are
/// delivered and acknowledged, with machines that take no time.
///
/// # Panics
///
/// With the seed if a message is lost or the run does not end: on these faultless paths that is a
/// bug.
pub fn run(variant: Variant, seed: u64, duration: Duration) -> Vec<MessageRecord> {
    report(variant, seed, duration, Processing::default()).messages
}

/// As [`run`], with machines that take time, and with everything else that there is to know.
///
/// # Panics
///
/// As [`run`].
pub fn report(variant: Variant, seed: u64, duration: Duration, processing: Processing) -> Report {
    let mut scenario = scenario(variant, duration);
    scenario.a.processing = processing;
    scenario.b.processing = processing;
    let report = GatewayPair::new(&scenario, seed).run();
    report.assert_complete();
    report
}

/// The topology and traffic of `[path-selection tables 2, 3]`.
///
/// Lengths do not vary: the paper calls them means and does not say how they vary.
pub fn scenario(variant: Variant, duration: Duration) -> Scenario {
    let paths = paper::PATHS.map(|path| PathSpec::new(path.bandwidth, path.delay));
    let mut scenario = Scenario::new(paths.to_vec());
    let (assignment, scheduler) = match variant {
        Variant::Conventional => (paper::CONVENTIONAL, SchedulerKind::Fifo),
        Variant::PaperAssignment => (paper::ASSIGNMENT, SchedulerKind::Fifo),
        Variant::Planned(assignment) => (assignment, SchedulerKind::Deadline),
    };
    scenario.a.scheduler = scheduler;
    scenario.b.scheduler = scheduler;
    for (spec, path) in paper::APPS.iter().zip(assignment) {
        let app = scenario.add_message_app(spec.latency_target, &[path]);
        let made = Arrivals::Exponential {
            mean: spec.interval,
            duration,
        };
        scenario.add_traffic(app, made, Length::Fixed(spec.length.get() as usize));
    }
    scenario
}
