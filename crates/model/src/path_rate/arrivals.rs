//! What arrives: the delivery rate and the queue of the newest packets, by the receiver's stamps.

use std::collections::VecDeque;

use keiro_units::Instant;

/// Slots that a window is made of. Ours: the rate's interval is off by an eighth of the window at most.
const SLOTS: f64 = 8.0;
/// Slots kept at most, whatever the stamps are.
const SLOTS_MAX: usize = 64;

/// Packets that arrived one after the other.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// When the first and the last of them arrived, s of the receiver's clock.
    first: f64,
    last: f64,
    /// Bytes that had arrived with the last of them, since the beginning.
    delivered: f64,
    /// When the first of them was sent.
    sent_at: Instant,
    /// Shortest queueing time, s, and that of the last of them.
    queue_min: f64,
    queue: f64,
    /// Every one of them had been sent before the one before it arrived: the bottleneck was not idle between
    /// them, whatever pauses the application made.
    is_contiguous: bool,
}

/// A packet that arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) sent_at: Instant,
    /// By the receiver's clock, s.
    pub(super) at: f64,
    /// Queueing time, s.
    pub(super) queue: f64,
}

/// What a bottleneck has carried that was not idle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Busy {
    /// bytes/s.
    pub(super) rate: f64,
    /// By how much the queueing time has grown, s, and in which time, s.
    pub(super) growth: f64,
    pub(super) span: f64,
}

/// How much had arrived when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// By the receiver's clock, s.
    at: f64,
    /// When what arrived then was sent.
    sent_at: Instant,
    delivered: f64,
}

impl Mark {
    /// The delivery rate since an earlier mark, bytes/s.
    pub(super) fn rate_since(self, earlier: Self) -> Option<f64> {
        let took = self.at - earlier.at;
        (took > 0.0).then(|| (self.delivered - earlier.delivered) / took)
    }

    /// The same over the time in which that was sent, bytes/s: what a radio line, or a late processor, brings at
    /// once was not carried so fast.
    pub(super) fn sent_rate_since(self, earlier: Self) -> f64 {
        let took = self.sent_at.saturating_duration_since(earlier.sent_at);
        (self.delivered - earlier.delivered) / took.as_secs_f64()
    }
}

/// The newest arrivals of one path.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals {
    slots: VecDeque<Slot>,
    /// Bytes acknowledged since the beginning.
    delivered: f64,
}

impl Arrivals {
    /// Bytes were acknowledged.
    pub(super) fn on_acked(&mut self, bytes: f64) {
        self.delivered += bytes;
    }

    /// The newest acknowledged packet, after [`on_acked`](Self::on_acked). Arrivals older than
    /// `window`, s, are forgotten.
    pub(super) fn on_arrival(&mut self, packet: Arrived, window: f64) {
        let Arrived { sent_at, at, queue } = packet;
        let mut is_contiguous = false;
        if let Some(newest) = self.slots.back_mut() {
            if at < newest.last {
                return;
            }
            is_contiguous = queue >= at - newest.last;
            if at - newest.first < window / SLOTS {
                newest.last = at;
                newest.delivered = self.delivered;
                newest.queue_min = newest.queue_min.min(queue);
                newest.queue = queue;
                newest.is_contiguous &= is_contiguous;
                return;
            }
        }
        self.slots.push_back(Slot {
            first: at,
            last: at,
            delivered: self.delivered,
            sent_at,
            queue_min: queue,
            queue,
            is_contiguous,
        });
        let is_old = |slot: Option<&Slot>| slot.is_some_and(|slot| at - slot.last >= window);
        while self.slots.len() > SLOTS_MAX || is_old(self.slots.get(1)) {
            self.slots.pop_front();
        }
    }

    /// How long ago the last one before `at` arrived, s; `None`: there is none.
    pub(super) fn since_last(&self, at: f64) -> Option<f64> {
        Some(at - self.slots.back()?.last)
    }

    /// What has arrived so far, with a packet that was sent at `sent_at`.
    pub(super) fn mark(&self, sent_at: Instant) -> Mark {
        Mark {
            at: self.slots.back().map_or(0.0, |slot| slot.last),
            sent_at,
            delivered: self.delivered,
        }
    }

    /// What the bottleneck has carried without a pause, bytes/s: of the newest packets in a row that left
    /// after `since`, or before those in front of them had arrived, and queued for longer than `queue`, s; over
    /// `span` at least, s.
    pub(super) fn busy(&self, since: Instant, span: f64, queue: f64) -> Option<Busy> {
        let newest = self.slots.back()?;
        let is_busy =
            |slot: &&Slot| (slot.sent_at > since || slot.is_contiguous) && slot.queue_min > queue;
        let oldest = self.slots.iter().rev().take_while(is_busy).last()?;
        let took = newest.last - oldest.last;
        (took >= span && took > 0.0).then(|| Busy {
            rate: (newest.delivered - oldest.delivered) / took,
            growth: newest.queue - oldest.queue,
            span: took,
        })
    }

    /// Shortest queueing time, s, of what arrived in the last `span`, s.
    pub(super) fn standing(&self, span: f64) -> Option<f64> {
        let newest = self.slots.back()?;
        let recent = self.slots.iter().rev();
        let recent = recent.take_while(|slot| newest.last - slot.last <= span);
        recent.map(|slot| slot.queue_min).reduce(f64::min)
    }

    /// What has arrived says nothing about what will.
    pub(super) fn forget(&mut self) {
        self.slots.clear();
    }

    pub(super) fn check_invariants(&self) {
        assert!(self.slots.len() <= SLOTS_MAX + 1, "arrivals are bounded");
        let slots = || self.slots.iter().zip(self.slots.iter().skip(1));
        assert!(
            slots().all(|(one, next)| one.last <= next.first && one.delivered <= next.delivered),
            "arrivals are in order"
        );
    }
}
