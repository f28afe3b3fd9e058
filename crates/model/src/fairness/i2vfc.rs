//! The paper's law: a window in packets, and nothing else `[fairness §2, §3.1]`.
//!
//! The window grows by a packets per round trip while it is used up, and is multiplied by 1 − b when
//! packets are lost, once per round trip at most. a and b follow the measured round trip and the
//! weight ([`Provider::tenant`]) at every feedback. The paper does not say how a window begins. Ours
//! begins with its weight and its round trip, and doubles per reference round trip until the first
//! loss: tenants that begin together are at their shares then, which additive increase would take
//! minutes to bring them to.

use std::time::Duration;

use super::{
    aimd::Provider,
    law::{Allowance, Feedback, Law, Weight},
};
use crate::{ByteCount, Instant};

/// The window at first of a tenant of weight 1 at the reference round trip: what a bottleneck's
/// buffer takes of many at once. Ours.
const WINDOW_FIRST: f64 = 4.0;
/// Less would carry nothing, so that nothing would be learnt any more.
const WINDOW_MIN: f64 = 2.0;
/// Bounds what an unused path would let the window grow to: 10 Gbit/s for 1.2 s.
const WINDOW_MAX: f64 = 1e6;

#[derive(Debug)]
pub(super) struct I2vfc {
    provider: Provider,
    weight: Weight,
    packet: ByteCount,
    /// Packets.
    window: f64,
    /// Nothing was lost yet.
    starting: bool,
    /// R: smoothed as RFC 9002 §5.3 does.
    round_trip: Option<Duration>,
    /// When the window was last made smaller.
    decreased_at: Option<Instant>,
}

impl I2vfc {
    pub(super) fn new(
        _now: Instant,
        provider: Provider,
        weight: Weight,
        packet: ByteCount,
    ) -> Self {
        Self {
            provider,
            weight,
            packet,
            window: WINDOW_FIRST,
            starting: true,
            round_trip: None,
            decreased_at: None,
        }
    }
}

impl I2vfc {
    /// `round_trip` in reference round trips.
    fn round_trips(&self, round_trip: Duration) -> f64 {
        round_trip.as_secs_f64() / self.provider.round_trip.as_secs_f64().max(1e-6)
    }
}

impl Law for I2vfc {
    fn allowance(&self) -> Allowance {
        let window = ByteCount::new((self.window * self.packet.get() as f64) as u64);
        Allowance { window, rate: None }
    }

    fn on_feedback(&mut self, feedback: &Feedback) {
        self.packet = feedback.packet;
        if let Some(sample) = feedback.round_trip {
            if self.round_trip.is_none() {
                let ratio = self.round_trips(sample);
                self.window = (WINDOW_FIRST * self.weight.get() * ratio).max(WINDOW_MIN);
            }
            let known = self.round_trip;
            self.round_trip = Some(known.map_or(sample, |known| (known * 7 + sample) / 8));
        }
        let Some(round_trip) = self.round_trip else {
            return;
        };
        let Some(aimd) = self.provider.tenant(self.weight, round_trip) else {
            return;
        };
        if feedback
            .lost_packets
            .saturating_add(feedback.marked_packets)
            > 0
        {
            let again = self
                .decreased_at
                .is_none_or(|at| at + round_trip <= feedback.now);
            if again {
                let keep = if self.starting {
                    0.5
                } else {
                    1.0 - aimd.decrease()
                };
                self.window = (self.window * keep).max(WINDOW_MIN);
                self.decreased_at = Some(feedback.now);
                self.starting = false;
            }
        } else if feedback.limited {
            // Acknowledged windows are round trips, also where small packets fill them.
            let packets = feedback.acked.get() as f64 / self.packet.get().max(1) as f64;
            let growth = if self.starting {
                packets * self.round_trips(round_trip)
            } else {
                packets / self.window * aimd.increase()
            };
            self.window = (self.window + growth).min(WINDOW_MAX);
        }
    }

    fn set_weight(&mut self, weight: Weight) {
        self.weight = weight;
    }
}
