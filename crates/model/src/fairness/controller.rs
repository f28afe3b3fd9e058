//! What an ingress may send of one tenant over one path: the interface of all controllers.
//!
//! A controller gets what became of the tenant's packets and answers with a window in wire bytes (all
//! headers, copies and retransmissions included) and, where it paces, a rate. It knows nothing of
//! other tenants or ingresses.

use std::{fmt, time::Duration};

use super::{aimd::Provider, i2vfc::I2vfc, keiro::Keiro};
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
pub struct Allowance {
    /// Wire bytes that may be neither acknowledged nor lost.
    pub window: ByteCount,
    /// Wire bytes per second that may leave, as bit/s; `None`: the window alone decides.
    pub rate: Option<Bandwidth>,
}

/// Decides what a tenant may send over a path.
pub trait Controller: fmt::Debug + Send {
    /// What may be sent now.
    fn allowance(&self) -> Allowance;

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

/// Which controller, and what the provider sets for it, the same at every ingress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ControllerConfig {
    /// No window: all that the path takes.
    Open,
    /// The paper's: a window by additive increase and multiplicative decrease `[fairness §2]`.
    I2vfc(Provider),
    /// Keiro's: a rate that follows the bottleneck's queue.
    Keiro {
        /// What a weight of 1 is expected to get, roughly. Nothing is wrong if it gets another. `None`: it is
        /// found.
        unit: Option<Bandwidth>,
    },
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

impl ControllerConfig {
    /// The name by which configurations call it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::I2vfc(_) => "i2vfc",
            Self::Keiro { .. } => "keiro",
        }
    }

    /// The controller of one tenant on one path. `None`: it has no window.
    pub fn begin(
        &self,
        now: Instant,
        weight: Weight,
        packet: ByteCount,
    ) -> Option<Box<dyn Controller>> {
        match *self {
            Self::Open => None,
            Self::I2vfc(provider) => Some(Box::new(I2vfc::new(now, provider, weight, packet))),
            Self::Keiro { unit } => Some(Box::new(Keiro::new(now, unit, weight, packet))),
        }
    }
}

impl Default for ControllerConfig {
    /// Keiro's, which finds its unit.
    fn default() -> Self {
        Self::Keiro { unit: None }
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

    /// Whatever the feedback, what may be sent stays a number above zero.
    #[test]
    fn controllers_bear_feedback_that_cannot_be() {
        let unit = Bandwidth::from_bits_per_second(u64::MAX);
        for controller in [
            ControllerConfig::Keiro { unit: Some(unit) },
            ControllerConfig::Keiro {
                unit: Some(Bandwidth::ZERO),
            },
            ControllerConfig::Keiro { unit: None },
            ControllerConfig::I2vfc(Provider::default()),
        ] {
            let weight = Weight::new(1e6).expect("the largest");
            let mut begun = controller
                .begin(Instant::ZERO, weight, ByteCount::new(0))
                .expect("it has a window");
            for step in 0u64..2000 {
                let far = if step % 3 == 0 { u64::MAX } else { step };
                begun.on_feedback(&Feedback {
                    now: Instant::from_nanos(far.saturating_mul(step % 2)),
                    acked: ByteCount::new(far),
                    acked_packets: far,
                    lost_packets: if step % 5 == 0 { u64::MAX } else { 0 },
                    marked_packets: far,
                    round_trip: (step % 2 == 0).then(|| RoundTrip {
                        sample: Duration::from_nanos(far),
                        is_long: step % 3 == 0,
                        min: (step % 7 == 0).then_some(Duration::ZERO),
                    }),
                    in_flight: ByteCount::new(far),
                    limited: step % 4 != 0,
                    packet: ByteCount::new(far),
                });
                if step % 13 == 0 {
                    let line = |step: u64| {
                        step.is_multiple_of(2)
                            .then(|| Bandwidth::from_bits_per_second(far))
                    };
                    begun.on_line(Line {
                        capacity: line(step / 13),
                        reported_unit: line(step / 26),
                    });
                }
                if step % 11 == 0 {
                    begun.on_resume(Instant::from_nanos(far));
                }
                let _ = begun.allowance();
                assert!(begun.terms().iter().all(|(_, value)| !value.is_nan()));
            }
        }
    }
}
