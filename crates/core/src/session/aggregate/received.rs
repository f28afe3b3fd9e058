//! Aggregates that arrive on one path of the peer: which came before, what is missing, how far
//! apart the copies were.

use std::time::Duration;

use keiro_model::Instant;

use crate::{
    session::received::ReplayWindow,
    wire::{CopySpacing, Feedback},
};

/// How often the peer is told, if something came. Ours: several times in the shortest period of a
/// law, and 20 kbit/s.
const FEEDBACK_EVERY: Duration = Duration::from_millis(20);

/// What arrives on one path.
#[derive(Debug, Default)]
pub(crate) struct AggregateReceiver {
    seen: ReplayWindow,
    /// Aggregates of which at least one copy came.
    aggregates: u64,
    copies: u64,
    /// The copies that are arriving.
    arriving: Option<Arriving>,
    /// The longest ones since the peer was told.
    spaced: Option<Arriving>,
    due: Option<Instant>,
    told_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Arriving {
    number: u64,
    last: (u8, Instant),
    spacing: CopySpacing,
}

/// A packet of an aggregate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) number: u64,
    /// Its place among the copies.
    pub(crate) index: u8,
    /// How many there are.
    pub(crate) count: u8,
    pub(crate) ip_bytes: u16,
    pub(crate) received_at: Instant,
    /// It came over the path that the aggregate belongs to, where the others did.
    pub(crate) same_path: bool,
}

impl AggregateReceiver {
    /// A copy arrived; `false` if its content came before.
    pub(crate) fn on_copy(&mut self, now: Instant, copy: Copy) -> bool {
        self.copies += 1;
        if copy.same_path {
            self.measure(copy);
        }
        let earliest = self.told_at.map_or(now, |told| told + FEEDBACK_EVERY);
        self.due.get_or_insert(earliest.max(now));
        if self.seen.is_replay(copy.number) {
            return false;
        }
        self.seen.note(copy.number);
        self.aggregates += 1;
        true
    }

    /// When the peer is to be told.
    pub(crate) fn feedback_due(&self) -> Option<Instant> {
        self.due
    }

    /// What the peer is told; overflows are those of the receiver, (its socket's, its system's).
    pub(crate) fn take_feedback(
        &mut self,
        now: Instant,
        path: u8,
        (socket_overflows, system_overflows): (u64, u64),
    ) -> Option<Feedback> {
        let highest = self.seen.largest()?;
        self.due = None;
        self.told_at = Some(now);
        Some(Feedback {
            path,
            highest,
            aggregates: self.aggregates,
            copies: self.copies,
            socket_overflows,
            system_overflows,
            spacing: self.spaced.take().map(|spaced| spaced.spacing),
        })
    }

    fn measure(&mut self, copy: Copy) {
        if let Some(arriving) = &mut self.arriving
            && arriving.number == copy.number
        {
            let (index, at) = arriving.last;
            if copy.index <= index || copy.ip_bytes != arriving.spacing.ip_bytes {
                return;
            }
            let gap = copy.received_at.saturating_duration_since(at);
            arriving.spacing.push(copy.index, gap);
            arriving.last = (copy.index, copy.received_at);
            let longest = self.spaced.map_or(0, |spaced| spaced.spacing.ip_bytes);
            let same = self
                .spaced
                .is_some_and(|spaced| spaced.number == copy.number);
            if same || arriving.spacing.ip_bytes > longest {
                self.spaced = Some(*arriving);
            }
            return;
        }
        self.arriving = (copy.count > 1).then(|| Arriving {
            number: copy.number,
            last: (copy.index, copy.received_at),
            spacing: CopySpacing::new(copy.ip_bytes, copy.count, copy.index),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    fn copy(number: u64, index: u8, us: u64) -> Copy {
        Copy {
            number,
            index,
            count: 2,
            ip_bytes: 1000,
            received_at: at(us),
            same_path: true,
        }
    }

    #[test]
    fn content_is_taken_once_and_what_is_missing_shows() {
        let mut receiver = AggregateReceiver::default();
        assert!(receiver.on_copy(at(0), copy(0, 0, 0)));
        assert!(!receiver.on_copy(at(0), copy(0, 1, 80)));
        assert!(receiver.on_copy(at(0), copy(2, 1, 900)));
        let feedback = receiver.take_feedback(at(900), 3, (5, 6)).unwrap();
        assert_eq!((feedback.highest, feedback.aggregates), (2, 2));
        assert_eq!((feedback.copies, feedback.socket_overflows), (3, 5));
        let gaps: Vec<(u8, u64)> = feedback.spacing.unwrap().gaps().collect();
        assert_eq!(gaps, [(0, 0), (1, 80_000)]);
        assert!(
            receiver.on_copy(at(1000), copy(1, 0, 1000)),
            "late, not lost"
        );
    }

    #[test]
    fn the_peer_is_told_at_once_and_then_at_intervals() {
        let mut receiver = AggregateReceiver::default();
        assert_eq!(receiver.feedback_due(), None);
        receiver.on_copy(at(0), copy(0, 0, 0));
        assert_eq!(receiver.feedback_due(), Some(at(0)));
        receiver.take_feedback(at(0), 0, (0, 0));
        assert_eq!(receiver.feedback_due(), None);
        receiver.on_copy(at(100), copy(1, 0, 100));
        assert_eq!(receiver.feedback_due(), Some(at(20_000)));
    }
}
