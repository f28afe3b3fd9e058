//! At what rate a path is sent on, and how much may be in flight.
//!
//! A path with a configured rate is paced at it, or at what trains have measured if that is less. A path
//! without one is left to `keiro_model::path_rate`.

use std::time::Duration;

use keiro_model::{
    bottleneck::ConfirmedCapacity,
    path_rate::{Arrival, Feedback, PathRate},
};
use keiro_units::{Bandwidth, ByteCount, Instant};

use super::ReceivedAck;
use crate::{
    session::recovery::{AckOutcome, AckedOrLostPacket, Lost},
    snapshot::RateSnapshot,
};

/// The owner of one path's rate.
#[derive(Debug)]
pub(super) struct RateControl {
    configured: Option<Bandwidth>,
    /// `None`: the rate is configured.
    controller: Option<PathRate>,
}

impl RateControl {
    /// `mtu`: largest IP packet.
    pub(super) fn new(configured: Option<Bandwidth>, mtu: u16) -> Self {
        let controller = || PathRate::new(Instant::ZERO, None, ByteCount::new(u64::from(mtu)));
        Self {
            configured,
            controller: configured.is_none().then(controller),
        }
    }

    pub(super) fn configured(&self) -> Option<Bandwidth> {
        self.configured
    }

    /// Another rate, or none any more. What was found without one begins again.
    pub(super) fn reconfigure(&mut self, now: Instant, configured: Option<Bandwidth>, mtu: u16) {
        self.configured = configured;
        if configured.is_some() {
            self.controller = None;
        } else if self.controller.is_none() {
            self.controller = Some(PathRate::new(now, None, ByteCount::new(u64::from(mtu))));
        }
    }

    /// The path leads to another address.
    pub(super) fn on_moved(&mut self, now: Instant, mtu: u16) {
        if let Some(controller) = &mut self.controller {
            *controller = PathRate::new(now, None, ByteCount::new(u64::from(mtu)));
        }
    }

    pub(super) fn on_validated(&mut self, round_trip: Duration) {
        if let Some(controller) = &mut self.controller {
            controller.on_round_trip(round_trip);
        }
    }

    pub(super) fn on_return(&mut self, now: Instant) {
        if let Some(controller) = &mut self.controller {
            controller.on_return(now);
        }
    }

    pub(super) fn on_mtu(&mut self, mtu: u16) {
        if let Some(controller) = &mut self.controller {
            controller.set_packet(ByteCount::new(u64::from(mtu)));
        }
    }

    pub(super) fn on_sent(&mut self, now: Instant) {
        if let Some(controller) = &mut self.controller {
            controller.on_sent(now);
        }
    }

    pub(super) fn on_blocked(&mut self, now: Instant) {
        if let Some(controller) = &mut self.controller {
            controller.on_blocked(now);
        }
    }

    pub(super) fn on_idle(&mut self, now: Instant) {
        if let Some(controller) = &mut self.controller {
            controller.on_idle(now);
        }
    }

    /// `lost`: packets that were declared lost with it. `in_flight`: IP bytes, after it.
    pub(super) fn on_ack(
        &mut self,
        ack: ReceivedAck<'_>,
        outcome: &AckOutcome,
        lost: &[AckedOrLostPacket],
        in_flight: u64,
    ) {
        let Some(controller) = &mut self.controller else {
            return;
        };
        let bytes = outcome.acked.iter().map(|acked| u64::from(acked.ip_bytes));
        let lost = Lost::of(lost);
        let spurious = outcome.acked.iter().filter(|acked| acked.was_lost);
        let arrival = outcome.largest.map(|largest| Arrival {
            sent_at: largest.sent_at,
            bytes: ByteCount::new(u64::from(largest.ip_bytes)),
            received_us: ack.frame.received_at_us,
            round_trip: ack.received_at.saturating_duration_since(largest.sent_at),
        });
        controller.on_feedback(&Feedback {
            now: ack.now,
            acked: ByteCount::new(bytes.sum::<u64>() + lost.excused_bytes),
            acked_packets: outcome.acked.len() as u64 + lost.non_path_losses,
            spurious_packets: spurious.count() as u64,
            lost_packets: lost.by_congestion,
            in_flight: ByteCount::new(in_flight),
            arrival,
        });
    }

    /// A timer has declared packets lost.
    pub(super) fn on_lost(&mut self, now: Instant, lost: &[AckedOrLostPacket], in_flight: u64) {
        if let (Some(controller), false) = (&mut self.controller, lost.is_empty()) {
            let lost = Lost::of(lost);
            controller.on_feedback(&Feedback {
                now,
                acked: ByteCount::new(lost.excused_bytes),
                acked_packets: lost.non_path_losses,
                spurious_packets: 0,
                lost_packets: lost.by_congestion,
                in_flight: ByteCount::new(in_flight),
                arrival: None,
            });
        }
    }

    pub(super) fn on_trains(&mut self, now: Instant, found: ConfirmedCapacity) {
        if let Some(controller) = &mut self.controller {
            controller.on_trains(now, found.capacity.rate);
        }
    }

    /// IP bytes that may be in flight beside `in_flight`.
    pub(super) fn has_room(&self, in_flight: u64) -> bool {
        let window = self.controller.as_ref().map(PathRate::window);
        window.is_none_or(|window| in_flight < window.get())
    }

    /// At which packets leave. A path that carries less than its configured rate is paced at its
    /// capacity: packets then wait here, in the order of their deadlines, and not in the network. A
    /// twentieth is within the random error of the estimate.
    pub(super) fn pacing_rate(&self, found: Option<ConfirmedCapacity>) -> Bandwidth {
        match (&self.controller, self.configured) {
            (Some(controller), _) => controller.pacing_rate(),
            (None, None) => Bandwidth::ZERO,
            (None, Some(rate)) => {
                let found = found.map(|found| found.capacity.low);
                let noticed = rate.as_bits_per_second() / 20 * 19;
                let narrower = found.filter(|found| found.as_bits_per_second() < noticed);
                narrower.unwrap_or(rate)
            }
        }
    }

    /// What the path carries, as far as is known.
    pub(super) fn rate(&self, found: Option<ConfirmedCapacity>) -> Bandwidth {
        match &self.controller {
            Some(controller) => controller.rate(),
            None => self.pacing_rate(found),
        }
    }

    /// `None`: the rate is configured.
    pub(super) fn snapshot(&self, now: Instant) -> Option<RateSnapshot> {
        let controller = self.controller.as_ref()?;
        Some(RateSnapshot {
            state: controller.state(now),
            rate: controller.rate(),
            is_least: controller.is_least(),
            window: controller.window(),
            queue: controller.queue(),
            target_queue: controller.target_queue(),
        })
    }

    pub(super) fn check_invariants(&self) {
        assert_ne!(
            self.configured.is_some(),
            self.controller.is_some(),
            "a path's rate has one owner"
        );
        if let Some(controller) = &self.controller {
            controller.check_invariants();
        }
    }
}
