//! What the gateway's schedulers make of a path: delays with queues, headers and deadlines.
//!
//! Equation 3 lets a message find the bandwidth that others leave on average. A gateway that paces
//! a path at W sends one message at full rate while the others wait, so eq. 3 can be far off in
//! both directions; this module computes what such a queue does.
//!
//! Assumed throughout:
//! - each application sends messages of one fixed length with exponential intervals (Poisson), all
//!   independent of each other;
//! - the path sends at exactly W whenever anything waits, counts wire bytes, and loses nothing;
//! - nothing else uses the path: no other tenant, no retransmissions, no acknowledgements but those
//!   that ride in its packets ([`WireFormat::acknowledging`]). Small constant traffic can be taken
//!   off W beforehand.
//!
//! The two schedulers:
//! - [`Scheduler::Fifo`]: whole messages in order of arrival, an M/G/1 queue. The mean is
//!   Pollaczek and Khinchine's, exact; percentiles come from the workload's distribution.
//! - [`Scheduler::Deadline`]: the packet whose message has the earliest deadline (arrival +
//!   latency target) goes first, messages without a latency target last, equal latency targets in order of arrival.
//!   See below.
//!
//! # Earliest deadline first, exactly
//!
//! Take a message with the deadline d, and only the work whose deadline is not later than d. That
//! work is served as if the rest did not exist, so its amount V evolves by itself: it is fed by
//! application k until the time d − Dₖ, where Dₖ is k's latency target, and by nothing of k after that.
//! Long before d all applications feed it, and V is the workload of the plain M/G/1 queue; then
//! the applications fall away one by one, the most patient first. At its arrival the message finds
//! some V, adds its own work, and is done when all of it is: until then the more impatient
//! applications still feed V, each for as long as its deadlines come before d. Nothing here is an
//! approximation: a Poisson stream is Poisson on every interval. The distributions are computed
//! on a lattice of time ([`Resolution`]).
//!
//! Approximated is only what was handed to the path and is not interrupted: [`Gateway::ahead`], and
//! at least a packet. A message that finds less urgent work being sent waits for what is left of
//! that, and a message is overtaken until its last packet is handed over.
//!
//! # How good it is
//!
//! Held against a simulation packet by packet, with the finest [`Resolution`] and loads of 0.1 to
//! 0.92: means within 1 % for the paper's applications (both schedulers, five subsets) and within
//! 3 % for 30 drawn mixtures, 99th percentiles within 1 % and 5 %, once the simulation itself is
//! that sure. With [`Resolution::COARSE`]
//! 99 % of means are within 2 % of those of a fine lattice. Equation 3 gives 99.1, 17.9, 17.9, 3.9 and 3.9 ms for the paper's five applications
//! on path 2; the simulation gives 136, 60, 60, 52 and 52 ms first in, first out, and 168, 12.8,
//! 11.0, 3.4 and 3.3 ms by deadline (packets of 1200 + 80 bytes): no one formula of the mean rates
//! alone can be right for both.
//!
//! # When it is not valid
//!
//! At a load of one or more there is no stationary delay: [`Outcome::Overloaded`], no number.
//! Loads that change faster than the queue settles (some multiples of the mean delay divided by one
//! minus the load) are outside the assumptions, and so are losses, whose repair [`LossRecoveryDelay`] adds to
//! what the queue makes of a message; [`TrafficWindow::check`] says from
//! what was measured when there is no number to give. Other gateways that share the line are
//! [`SharedLine`]'s. Lengths and intervals that vary are
//! [`Gateway::forecast_traffic`]'s, and what is left between forecast and measurement is
//! [`Residual`]'s. `docs/prediction.md` has the errors.

mod class;
mod deadline;
mod estimate;
mod lattice;
mod loss_recovery_delay;
mod poisson;
mod residual;
mod response;
mod sampled;
mod shared;
mod traffic;
mod validity;
mod wait;

pub use estimate::{Flow, PathEstimate};
pub use loss_recovery_delay::LossRecoveryDelay;
pub use residual::{Corrected, DelayWindow, Residual};
pub use sampled::{Sampling, TracedMessage};
pub use shared::{JointQueue, Offered, OtherGateway, SharedLine};
pub use traffic::{Spread, Traffic};
pub use validity::{MESSAGES_MIN, NoForecast, NonStationary, TrafficWindow, WindowHalf};

use std::time::Duration;

use crate::{
    delay::{AppSpec, Delay, Margin, PathSpec},
    plan::DelayModel,
};
use keiro_units::{Bandwidth, ByteCount};

/// How a message becomes packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WireFormat {
    payload_per_packet: ByteCount,
    overhead_per_packet: ByteCount,
}

/// In which order a path's waiting packets leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheduler {
    /// Whole messages in order of arrival: the paper's way, and a baseline.
    Fifo,
    /// The packet with the earliest deadline, arrival + latency target; no latency target, last.
    Deadline,
}

/// Which number of a delay's distribution is the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Statistic {
    #[default]
    Mean,
    P50,
    P95,
    P99,
}

/// How finely distributions are computed: the number of steps that the workload's range is cut
/// into. Work grows with its square.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resolution(usize);

/// A gateway's way of sending, as a delay model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gateway {
    /// The order in which waiting packets leave.
    pub scheduler: Scheduler,
    /// How messages become packets.
    pub wire: WireFormat,
    /// Wire bytes that are handed to the path at once and cannot be overtaken. Less than one
    /// packet counts as one packet.
    pub committed: ByteCount,
    /// The path is handed work until it has this much to send; what it was handed cannot be
    /// overtaken. Zero for a sender that hands over each packet when the one before has left.
    pub ahead: Duration,
    /// What [`DelayModel::delays`] answers; [`Gateway::forecast`] gives all of them.
    pub statistic: Statistic,
    /// How finely to compute.
    pub resolution: Resolution,
}

/// What is predicted for one application.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// What it was computed from.
    pub terms: ForecastTerms,
    /// F: the delay wanted.
    pub latency_target: Option<Duration>,
    pub outcome: Outcome,
}

/// The terms that a [`Forecast`] was computed from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForecastTerms {
    /// T: propagation delay, one way.
    pub propagation: Duration,
    /// W: the rate that the path is paced at, wire bytes.
    pub bandwidth: Bandwidth,
    /// L: the message's length.
    pub length: ByteCount,
    /// The same with the overhead of its packets.
    pub wire_length: ByteCount,
    /// The time that the path takes to send it: wire length / W, rounded up.
    pub transmission: Duration,
    /// The application's own mean load, as a part of W; infinite if it cannot be said.
    pub own_load: f64,
    /// The mean load of all on the path, as a part of W; infinite if it cannot be said.
    pub load: f64,
}

/// The delay that a forecast comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The queue is stable.
    Stable(DelayDistribution),
    /// More arrives than can be sent before it: the delay grows without end and has no mean.
    Overloaded,
}

/// From the moment that a message is made until its last byte is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayDistribution {
    pub mean: Duration,
    pub p50: Duration,
    pub p95: Duration,
    pub p99: Duration,
}

impl Gateway {
    /// A gateway that predicts means and can overtake between any two packets.
    pub const fn new(scheduler: Scheduler, wire: WireFormat) -> Self {
        Self {
            scheduler,
            wire,
            committed: ByteCount::ZERO,
            ahead: Duration::ZERO,
            statistic: Statistic::Mean,
            resolution: Resolution::FINE,
        }
    }

    /// What is predicted for each of `members` (indices into `apps`) when exactly they share
    /// `path`, in their order.
    pub fn forecast(&self, path: &PathSpec, apps: &[AppSpec], members: &[usize]) -> Vec<Forecast> {
        response::forecast(self, path, apps, members)
    }

    /// As [`forecast`](Self::forecast), for traffic whose lengths and intervals vary as measured.
    ///
    /// Lengths: from the law of their mean and spread, with Pollaczek and Khinchine's formula and
    /// the lattice as exact as for fixed ones. Intervals: all waiting is multiplied by Allen and
    /// Cunneen's factor, an approximation.
    pub fn forecast_traffic(
        &self,
        path: &PathSpec,
        traffic: &[Traffic],
        members: &[usize],
    ) -> Vec<Forecast> {
        response::forecast_traffic(self, path, traffic, members)
    }

    /// As [`forecast_traffic`](Self::forecast_traffic), by drawing messages: approximate only as
    /// far as too few are drawn, see [`Sampling`]. For checks, and where intervals are so regular
    /// or so bursty that a factor does not do.
    pub fn forecast_drawn(
        &self,
        path: &PathSpec,
        traffic: &[Traffic],
        members: &[usize],
        sampling: Sampling,
    ) -> Vec<Forecast> {
        sampled::forecast(self, path, traffic, members, sampling)
    }

    /// The delay of every message of a trace over `path`, in the order of `messages`, which must
    /// rise in time; `latency_targets` are those of the applications that `messages` names by index.
    ///
    /// `None` for what a path without bandwidth never delivers.
    pub fn replay(
        &self,
        path: &PathSpec,
        latency_targets: &[Option<Duration>],
        messages: &[TracedMessage],
    ) -> Vec<Option<Duration>> {
        sampled::replay(self, path, latency_targets, messages)
    }
}

impl DelayModel for Gateway {
    fn delays(
        &self,
        path: &PathSpec,
        apps: &[AppSpec],
        members: &[usize],
        delays: &mut Vec<Delay>,
    ) {
        if self.statistic == Statistic::Mean {
            delays.extend(response::means(self, path, apps, members));
        } else {
            let forecasts = self.forecast(path, apps, members);
            delays.extend(
                forecasts
                    .iter()
                    .map(|forecast| forecast.delay(self.statistic)),
            );
        }
    }

    /// A few operations per member for the mean of [`Scheduler::Fifo`]; otherwise the lattice is
    /// gone through about once per member.
    fn work(&self, members: usize) -> u64 {
        let points = self.resolution.steps() as u64;
        members as u64
            * match (self.scheduler, self.statistic) {
                (Scheduler::Fifo, Statistic::Mean) => 1,
                (Scheduler::Fifo, _) => points,
                (Scheduler::Deadline, _) => points * points / 8,
            }
    }
}

impl WireFormat {
    /// Packets of at most `payload_per_packet` bytes of message, each with
    /// `overhead_per_packet` bytes of headers, trailers and whatever else counts against the
    /// path's rate. `None` if no payload fits a packet.
    pub const fn new(
        payload_per_packet: ByteCount,
        overhead_per_packet: ByteCount,
    ) -> Option<Self> {
        if payload_per_packet.is_zero() {
            return None;
        }
        Some(Self {
            payload_per_packet,
            overhead_per_packet,
        })
    }

    /// The payload of a full packet.
    pub const fn payload_per_packet(&self) -> ByteCount {
        self.payload_per_packet
    }

    /// What every packet costs beside its payload.
    pub const fn overhead_per_packet(&self) -> ByteCount {
        self.overhead_per_packet
    }

    /// As it is on a path of `bandwidth` whose packets also acknowledge: what is acknowledged
    /// arrives `per_second` times a second, and one acknowledgement, of `each` bytes, is for all
    /// that arrived since the one before.
    ///
    /// Acknowledgements ride in the packets of messages; those that leave by themselves do so while
    /// nothing else waits, and delay no message. A packet carries one if something arrived since the
    /// packet before left. Where packets wait that is one full packet's transmission time, and
    /// where many applications' messages are heard of, arrivals are as good as Poisson. What a
    /// packet carries on average is counted as overhead, to the byte.
    #[must_use]
    pub fn acknowledging(&self, per_second: f64, each: ByteCount, bandwidth: Bandwidth) -> Self {
        let spacing = bandwidth.transmission_time_ceil(self.full_packet());
        let carrying = -(-per_second.max(0.0) * spacing.as_secs_f64()).exp_m1();
        let mean = (each.get() as f64 * carrying).round() as u64;
        Self {
            overhead_per_packet: self
                .overhead_per_packet
                .saturating_add(ByteCount::new(mean)),
            ..*self
        }
    }

    /// The packets that a message of `length` takes; an empty message takes one.
    pub const fn packets(&self, length: ByteCount) -> u64 {
        let packets = length.get().div_ceil(self.payload_per_packet.get());
        if packets == 0 { 1 } else { packets }
    }

    /// The bytes that a message of `length` takes on the wire; saturates.
    pub const fn wire_length(&self, length: ByteCount) -> ByteCount {
        length.saturating_add(
            self.overhead_per_packet
                .saturating_mul(self.packets(length)),
        )
    }

    /// The wire bytes of a full packet; saturates.
    pub const fn full_packet(&self) -> ByteCount {
        self.payload_per_packet
            .saturating_add(self.overhead_per_packet)
    }
}

impl Resolution {
    /// For one forecast: about a millisecond of work per application, means within 1 %.
    pub const FINE: Self = Self(256);
    /// For planning, which asks often: a tenth of that, means within some per cent.
    pub const COARSE: Self = Self(64);

    /// `steps` steps, at least 64 and at most 65,536.
    pub const fn new(steps: usize) -> Self {
        match steps {
            0..64 => Self(64),
            64..=65_536 => Self(steps),
            _ => Self(65_536),
        }
    }

    /// The number of steps.
    pub const fn steps(self) -> usize {
        self.0
    }
}

impl Forecast {
    /// One number of the distribution.
    pub fn delay(&self, statistic: Statistic) -> Delay {
        match self.outcome {
            Outcome::Overloaded => Delay::Overloaded,
            Outcome::Stable(distribution) => Delay::Finite(distribution.get(statistic)),
        }
    }

    /// How one number of the distribution stands to the latency target, strictly.
    pub fn margin(&self, statistic: Statistic) -> Margin {
        Margin::of(self.delay(statistic), self.latency_target)
    }

    /// The mean time spent waiting for others: the mean delay less T and the message's own
    /// transmission. `None` if overloaded.
    pub fn mean_waiting(&self) -> Option<Duration> {
        let mean = self.delay(Statistic::Mean).finite()?;
        Some(
            mean.saturating_sub(
                self.terms
                    .propagation
                    .saturating_add(self.terms.transmission),
            ),
        )
    }
}

impl DelayDistribution {
    /// One number of it.
    #[must_use]
    pub const fn get(&self, statistic: Statistic) -> Duration {
        match statistic {
            Statistic::Mean => self.mean,
            Statistic::P50 => self.p50,
            Statistic::P95 => self.p95,
            Statistic::P99 => self.p99,
        }
    }
}
