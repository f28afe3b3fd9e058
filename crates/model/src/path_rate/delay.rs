//! Delays of one path: that of the route without a queue, and the control loop without the forward queue.

use keiro_units::Instant;

/// Half of the time that a smallest delay holds, s. Ours: clocks that drift by 50 ppm apart are off
/// by a millisecond then.
const BASE_TIME: f64 = 10.0;
/// Part of the difference by which a new sample changes the loop's time (RFC 9002 §5.3, of the smoothed round trip).
const LOOP_GAIN: f64 = 0.125;
/// Acknowledgements are never further apart, s: the largest max_ack_delay of the protocol, `docs/wire-format.md`.
const ACK_GAP_MAX: f64 = 0.05;

/// The smallest one-way delay of the last 10 to 20 s. The offset of the two clocks is in it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BaseDelay {
    since: Option<Instant>,
    current: Option<f64>,
    previous: Option<f64>,
}

impl BaseDelay {
    /// Takes a one-way delay, s, and returns its queueing time, s.
    pub(super) fn on_sample(&mut self, now: Instant, delay: f64) -> f64 {
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since).as_secs_f64() >= BASE_TIME {
            self.since = Some(now);
            self.previous = self.current.take();
        }
        let current = self.current.map_or(delay, |known| known.min(delay));
        self.current = Some(current);
        let base = self.previous.map_or(current, |known| known.min(current));
        delay - base
    }

    /// s; `None` before the first sample.
    pub(super) fn get(&self) -> Option<f64> {
        let both = [self.current, self.previous];
        both.into_iter().flatten().reduce(f64::min)
    }

    /// What is known holds on, as a queue stands that does not empty.
    pub(super) fn keep(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// The route has become longer: `queue`, s, of what looked like a queue belongs to it.
    pub(super) fn lengthen(&mut self, now: Instant, queue: f64) {
        let base = self.get();
        self.since = Some(now);
        self.previous = None;
        self.current = base.map(|base| base + queue);
    }
}

/// How long the control loop takes: from a packet's departure until its acknowledgement makes room for
/// another, without what it waited in the forward queue. What holds acknowledgements back is part of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoopTime {
    round_trip: Option<f64>,
    ack_gap: f64,
    last_ack_at: Option<Instant>,
}

impl LoopTime {
    /// A packet was acknowledged after `round_trip`, s, of which it queued for `queue`. `packet`: s
    /// between two packets, which are no pause of the acknowledgements.
    pub(super) fn on_sample(&mut self, now: Instant, round_trip: f64, queue: f64, packet: f64) {
        let sample = (round_trip - queue.max(0.0)).max(0.0);
        let known = self.round_trip.get_or_insert(sample);
        *known += (sample - *known) * LOOP_GAIN;
        if let Some(last) = self.last_ack_at.replace(now) {
            let gap = now.saturating_duration_since(last).as_secs_f64();
            // A pause of the sender is none of the receiver's.
            if gap <= ACK_GAP_MAX + packet {
                let gap = (gap - packet).max(0.0);
                self.ack_gap += (gap - self.ack_gap) * LOOP_GAIN;
            }
        }
    }

    /// In s; `None` before the first sample.
    pub(super) fn get(&self) -> Option<f64> {
        Some(self.round_trip? + self.ack_gap)
    }

    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}
