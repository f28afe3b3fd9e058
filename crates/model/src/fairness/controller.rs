//! What an ingress may send of one tenant over one path: the interface of all controllers.
//!
//! A controller gets what became of the tenant's packets and answers with a window in wire bytes (all
//! headers, copies and retransmissions included) and, where it paces, a rate. It knows nothing of
//! other tenants or ingresses.

mod interface;

pub use self::interface::{
    Controller, Feedback, FoundUnit, Line, RoundTrip, SendAllowance, Weight,
};
use super::{aimd::Provider, i2vfc::I2vfc, keiro::Keiro};
use keiro_units::{Bandwidth, ByteCount, Instant};

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
    use std::time::Duration;

    use super::*;

    /// Whatever the feedback, what may be sent stays a number above zero.
    #[test]
    fn controllers_tolerate_impossible_feedback() {
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
