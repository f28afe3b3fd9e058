//! What is observed of a path, as the planner takes it from whatever carries the path.

use std::time::Duration;

use keiro_units::{Bandwidth, Probability};

use crate::loss_test::Outcomes;

/// What was measured of a path just now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathSample {
    /// What it carries, as far as it may be used.
    pub bandwidth: Bandwidth,
    /// The recent propagation delay, one way.
    pub delay: Duration,
    /// The part of the recent packets that was lost.
    pub loss: Probability,
}

/// A path at one moment; the gateway observes each ten times a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathObservation {
    /// How often it has gone down so far, so that a failure between two observations is not missed.
    pub outages: u64,
    /// What it is like; `None`: it is not up.
    pub sample: Option<PathSample>,
    /// The bandwidth is measured, not only configured.
    pub is_measured: bool,
    /// Packets so far.
    pub packets: Outcomes,
    /// Aggregates so far, after their copies and parity.
    pub aggregates: Outcomes,
}
