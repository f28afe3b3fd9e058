//! The experiment of `[path-selection §5]` in virtual time: five applications, two paths.
//!
//! Returns the record of every message; the experiment has statistics, the paper's values and verdicts.

use std::time::Duration;

use keiro_core::SchedulerKind;
use keiro_planner::paper;

use crate::{
    pair::GatewayPair,
    report::{MessageRecord, Report},
    scenario::{Arrivals, Length, PathSpec, Processing, Scenario},
};

/// Assignment of messages to paths, and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Everything on path 2, first in first out: the conventional way `[path-selection §5]`.
    Conventional,
    /// The paper's assignment (`[path-selection table 4]`), first in first out.
    PaperAssignment,
    /// Path index by application, from a planner, and earliest deadline first.
    Planned([usize; 5]),
}

/// Runs one variant and returns the record of every message that was made in `duration`. An application's
/// number is its index in [`paper::APPS`].
///
/// All variants have the same arrivals for the same seed. The run goes on until all messages are delivered
/// and acknowledged, on machines without processing time.
///
/// # Panics
///
/// With the seed if a message is lost or the run does not end, which is a bug on these loss-free paths.
pub fn run(variant: Variant, seed: u64, duration: Duration) -> Vec<MessageRecord> {
    report(variant, seed, duration, Processing::default()).messages
}

/// Like [`run`], with processing times of machines, and returning the whole report.
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
