//! Keiro's law.

use std::time::Duration;

use super::law::{Allowance, Feedback, Law, Weight};
use crate::{Bandwidth, ByteCount, Instant};

#[derive(Debug)]
pub(super) struct Keiro {
    unit: f64,
    weight: f64,
    packet: f64,
    /// bit/s per weight
    y: f64,
    base: f64,
    q: f64,
    srtt: f64,
    last: Instant,
    loss: f64,
    slot: f64,
    slot_min: f64,
}

impl Keiro {
    pub(super) fn new(now: Instant, unit: Bandwidth, weight: Weight, packet: ByteCount) -> Self {
        let unit = unit.as_bits_per_second() as f64;
        Self {
            unit,
            weight: weight.get(),
            packet: packet.get() as f64,
            y: unit,
            base: f64::MAX,
            q: 0.0,
            srtt: 0.1,
            last: now,
            loss: 0.0,
            slot: 0.0,
            slot_min: f64::MAX,
        }
    }
}

const Q0: f64 = 0.002;
const ALPHA: f64 = 4.0;
const Q_LOW: f64 = 0.0005;
const BETA: f64 = 0.5;
const TAU: f64 = 0.1;
const SLOT: f64 = 0.03;
const KAPPA: f64 = 0.5;
const K: f64 = 5.0;
const LOSS: f64 = 0.005;
const TAU_LOSS: f64 = 1.0;

impl Keiro {
    fn target(&self) -> f64 {
        let q = self.q.max(1e-5);
        let mid = -(q.max(Q_LOW) / Q0).ln() / ALPHA;
        let low = -(q.min(Q_LOW) / Q_LOW).ln() / BETA;
        let high = -(q - 0.03).max(0.0) / 0.02;
        mid + low + high - self.loss / LOSS
    }
}

impl Law for Keiro {
    fn allowance(&self) -> Allowance {
        let rate = self.y * self.weight;
        let window = rate / 8.0 * (self.srtt * 1.25 + 0.01) + 4.0 * self.packet;
        Allowance {
            window: ByteCount::new(window as u64),
            rate: Some(Bandwidth::from_bits_per_second(rate as u64)),
        }
    }

    fn on_feedback(&mut self, feedback: &Feedback) {
        let dt = feedback
            .now
            .saturating_duration_since(self.last)
            .as_secs_f64()
            .min(0.2);
        self.last = feedback.now;
        self.packet = feedback.packet.get() as f64;
        let lost = feedback.lost_packets as f64;
        let n = lost + feedback.acked_packets as f64;
        if n > 0.0 {
            self.loss += (lost / n - self.loss) * (dt / TAU_LOSS).min(1.0);
        }
        let Some(sample) = feedback.round_trip.map(|r| r.as_secs_f64()) else {
            return;
        };
        self.base = self.base.min(sample);
        if let Some(min) = feedback.round_trip_min {
            self.base = self.base.min(min.as_secs_f64());
        }
        let q = sample - self.base;
        let before = self.q;
        self.slot_min = self.slot_min.min(q);
        self.slot += dt;
        if self.slot >= SLOT {
            self.q += (self.slot_min - self.q) * (self.slot / TAU).min(1.0);
            self.slot = 0.0;
            self.slot_min = f64::MAX;
        }
        self.srtt = self.base + self.q;
        let target = self.unit.ln() + self.target();
        let step = KAPPA * (target - self.y.ln()).clamp(-4.0, 2.0) * dt - K * (self.q - before);
        if feedback.limited || step < 0.0 {
            self.y *= step.clamp(-0.2, 0.2).exp();
        }
        self.y = self.y.clamp(1e4, 1e11);
        let _ = Duration::ZERO;
    }

    fn set_weight(&mut self, weight: Weight) {
        self.weight = weight.get();
    }
}
