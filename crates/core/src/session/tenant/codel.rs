//! CoDel (RFC 8289): a standing queue gives signals, a short or short-lived one does not.

use std::time::Duration;

use keiro_units::Instant;

/// Acceptable standing queueing delay (RFC 8289 §4.4).
const TARGET: Duration = Duration::from_millis(5);
/// A queue that stands as long is a standing one (RFC 8289 §4.3).
const INTERVAL: Duration = Duration::from_millis(100);

/// The decision on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodelDecision {
    Pass,
    /// It is dropped, or marked and leaves.
    Signal,
}

/// State of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Codel {
    /// When waiting above the target becomes a standing queue; `None`: below it.
    above_until: Option<Instant>,
    /// When the next signal is due.
    next: Instant,
    /// Signals of this episode.
    count: u32,
    /// Signals of the last episode when it began.
    before: u32,
    signalling: bool,
}

impl Codel {
    /// The queue has run empty.
    pub(super) fn on_empty(&mut self) {
        self.above_until = None;
        self.signalling = false;
    }

    /// Decides on a packet that waited for `sojourn`; `last`: none waits behind it.
    pub(super) fn on_dequeue(
        &mut self,
        now: Instant,
        sojourn: Duration,
        last: bool,
    ) -> CodelDecision {
        // One packet is not a queue: that of a slow flow takes longer than the target.
        if sojourn < TARGET || last {
            self.on_empty();
            return CodelDecision::Pass;
        }
        let stands = *self.above_until.get_or_insert(now + INTERVAL) <= now;
        if !stands {
            self.signalling = false;
            return CodelDecision::Pass;
        }
        if self.signalling {
            if now < self.next {
                return CodelDecision::Pass;
            }
            self.count = self.count.saturating_add(1);
            self.next += spacing(self.count);
            return CodelDecision::Signal;
        }
        self.signalling = true;
        // An episode soon after another goes on at its pace (RFC 8289 §5.4).
        let recent = now.saturating_duration_since(self.next) < INTERVAL * 16;
        let gained = self.count.saturating_sub(self.before);
        self.count = if recent && gained > 1 { gained } else { 1 };
        self.before = self.count;
        self.next = now + spacing(self.count);
        CodelDecision::Signal
    }
}

/// INTERVAL/√count (RFC 8289 §5.3), the root to 1/1024.
fn spacing(count: u32) -> Duration {
    let root = (u64::from(count.max(1)) << 20).isqrt();
    Duration::from_nanos(INTERVAL.as_nanos() as u64 * 1024 / root)
}
