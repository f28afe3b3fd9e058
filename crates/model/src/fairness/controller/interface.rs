//! What a controller takes and answers.

use std::{fmt, time::Duration};

use keiro_units::{Bandwidth, ByteCount, Instant};

/// A tenant's weight: its share is to those of others as the weights are.
///
/// Kept in thousandths, so that a scheduler can count with integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight(u32);

/// A round trip of one packet.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    /// What it took, without what the receiver held its acknowledgement back.
    pub sample: Duration,
    /// Its packet had three quarters of the largest length or more. Short ones are sooner through a
    /// slow line, and no measure of what long ones wait.
    pub is_long: bool,
    /// Smallest one of the path, by any tenant's long packets; `None`: not known.
    pub min: Option<Duration>,
}

/// What is known of a tenant's packets on one path since the last feedback.
#[derive(Clone, Copy, Debug)]
pub struct Feedback {
    /// The time of this feedback.
    pub now: Instant,
    /// Wire bytes acknowledged.
    pub acked: ByteCount,
    /// Packets acknowledged.
    pub acked_packets: u64,
    /// Packets declared lost.
    pub lost_packets: u64,
    /// Packets that arrived with a congestion mark.
    pub marked_packets: u64,
    /// A round trip of one of them; `None`: no new one is known.
    pub round_trip: Option<RoundTrip>,
    /// Wire bytes neither acknowledged nor lost.
    pub in_flight: ByteCount,
    /// The tenant had more to send than its window or its rate let go. Without that nothing is
    /// learnt from the absence of loss.
    pub limited: bool,
    /// Largest packet of the path, wire bytes.
    pub packet: ByteCount,
}

/// What is known of the line beyond a tenant's own packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// What the path's narrowest link carries, by trains of packets or by its configuration; `None`: not known.
    pub capacity: Option<Bandwidth>,
    /// Largest rate per weight of tenants that are limited, by the gateway at which all of them arrive, recent;
    /// `None`: there is no such report.
    pub reported_unit: Option<Bandwidth>,
}

/// What may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendAllowance {
    /// Wire bytes that may be neither acknowledged nor lost.
    pub window: ByteCount,
    /// Wire bytes per second that may leave, as bit/s; `None`: the window alone decides.
    pub rate: Option<Bandwidth>,
}

/// Decides what a tenant may send over a path.
pub trait Controller: fmt::Debug + Send {
    /// What may be sent now.
    fn allowance(&self) -> SendAllowance;

    /// Takes what became of packets.
    fn on_feedback(&mut self, feedback: &Feedback);

    /// The weight has changed.
    fn set_weight(&mut self, weight: Weight);

    /// What its answer follows from now, by name; the unit is in the name. For people, not for controllers.
    fn terms(&self) -> Vec<(&'static str, f64)>;

    /// Sends again after it had nothing on the way for a second or more.
    fn on_resume(&mut self, _now: Instant) {}

    /// Takes what is known of the line, before the first packet and whenever it may have changed.
    fn on_line(&mut self, _line: Line) {}

    /// The unit that it found, and whether the configured one contradicts it; `None`: it has none.
    fn found_unit(&self) -> Option<FoundUnit> {
        None
    }
}

/// A unit that a controller found, beside the configured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundUnit {
    /// What a weight of 1 gets, as gateways have found it.
    pub found: Bandwidth,
    /// The configured unit is more than twice or less than half of it.
    pub contradicts_configured: bool,
}

impl Weight {
    /// 1: what a tenant has if nothing else is said.
    pub const ONE: Self = Self(1000);

    /// `None` for what rounds to 0 thousandths or less, is above 1,000,000, or is no number.
    pub fn new(weight: f64) -> Option<Self> {
        let thousandths = (weight * 1000.0).round();
        (1.0..=1e9)
            .contains(&thousandths)
            .then_some(Self(thousandths as u32))
    }

    pub fn get(self) -> f64 {
        f64::from(self.0) / 1000.0
    }

    /// In thousandths, 1 or more.
    pub const fn thousandths(self) -> u32 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::ONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_zero_or_below_are_refused() {
        for weight in [0.0, -1.0, 0.0004, 1e7, f64::NAN, f64::INFINITY] {
            assert_eq!(Weight::new(weight), None, "{weight}");
        }
        assert_eq!(Weight::new(2.5).map(Weight::thousandths), Some(2500));
        assert_eq!(Weight::new(1.0), Some(Weight::ONE));
    }
}
