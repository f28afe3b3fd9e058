//! Receiving side of aggregates on one path of the peer: which are duplicates, how many arrived, and
//! how far apart copies were.

use std::time::Duration;

use keiro_stats::PathStats;
use keiro_units::Instant;

use super::recover::Groups;
use crate::{
    session::received_packets::ReplayWindow,
    wire::{CopySpacing, Feedback, ParityFrame},
};

/// Time between two reports, if something has arrived. Ours: several times in the shortest period of a
/// controller, and 20 kbit/s.
const FEEDBACK_EVERY: Duration = Duration::from_millis(20);

/// Aggregates that arrive on one path.
#[derive(Debug, Default)]
pub(crate) struct AggregateReceiver {
    seen: ReplayWindow,
    /// Of the path's counters, those of aggregates.
    counters: PathStats,
    groups: Groups,
    /// The newest group: it is not reported before it has ended.
    newest: Option<NewestGroup>,
    /// The copies that are arriving.
    arriving: Option<Arriving>,
    /// The longest ones since the last report.
    spaced: Option<Arriving>,
    due: Option<Instant>,
    reported_at: Option<Instant>,
}

/// What has arrived of a group.
#[derive(Clone, Copy, Debug)]
struct NewestGroup {
    first: u64,
    aggregates: u64,
    packets: u64,
}

#[derive(Clone, Copy, Debug)]
struct Arriving {
    number: u64,
    last: (u8, Instant),
    spacing: CopySpacing,
}

/// Whether an aggregate is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Novelty {
    /// Nothing of it has arrived before.
    New,
    /// Its content was read before.
    Known,
    /// Too many have come since to know.
    TooOld,
}

/// Packets that the kernel dropped because a receive buffer was full, in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReceiveOverflows {
    /// Of the socket itself.
    pub(crate) socket: u64,
    /// Of the rest of the system.
    pub(crate) system: u64,
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
    /// It came over the path that the aggregate belongs to.
    pub(crate) same_path: bool,
}

impl AggregateReceiver {
    /// A copy arrived; whether its content was read before.
    pub(crate) fn on_copy(&mut self, now: Instant, copy: Copy) -> Novelty {
        if self.newest.is_some_and(|newest| copy.number > newest.first) {
            // Groups have ended, this one is in none.
            self.newest = None;
        }
        self.on_packet(now, copy);
        self.novelty(copy.number)
    }

    /// An aggregate of a group arrived.
    pub(crate) fn on_protected(&mut self, now: Instant, copy: Copy, place: u8) -> Novelty {
        let first = copy.number.saturating_sub(u64::from(place));
        self.note_group(first);
        self.on_packet(now, copy);
        let novelty = self.novelty(copy.number);
        self.count_in_group(first, novelty == Novelty::New);
        novelty
    }

    /// Keeps the content of the aggregate at `place` of its group; the contents of others that this
    /// recovers.
    pub(crate) fn keep(&mut self, number: u64, place: u8, content: &[u8]) -> Vec<Vec<u8>> {
        let first = number.saturating_sub(u64::from(place));
        let found = self.groups.on_data(first, place, content);
        self.take_recovered(first, found)
    }

    /// See [`Groups::take_recovery_cost`].
    pub(crate) fn take_recovery_cost(&mut self) -> u64 {
        self.groups.take_recovery_cost()
    }

    /// Parity of a group arrived; the contents that it recovers.
    pub(crate) fn on_parity(
        &mut self,
        now: Instant,
        frame: &ParityFrame<'_>,
        copy: Copy,
    ) -> Vec<Vec<u8>> {
        self.note_group(frame.first);
        self.on_packet(now, copy);
        self.count_in_group(frame.first, false);
        let found = self.groups.on_parity(frame);
        self.take_recovered(frame.first, found)
    }

    fn on_packet(&mut self, now: Instant, copy: Copy) {
        self.counters.received_copies += 1;
        if copy.same_path {
            self.measure(copy);
        }
        let earliest = self.reported_at.map_or(now, |at| at + FEEDBACK_EVERY);
        self.due.get_or_insert(earliest.max(now));
    }

    /// Something of an aggregate comes: notes that it has.
    fn novelty(&mut self, number: u64) -> Novelty {
        if self.seen.is_too_old(number) {
            return Novelty::TooOld;
        }
        if self.seen.is_replay(number) {
            return Novelty::Known;
        }
        self.seen.note(number);
        self.counters.received_aggregates += 1;
        Novelty::New
    }

    fn note_group(&mut self, first: u64) {
        if self.newest.is_none_or(|newest| first > newest.first) {
            self.newest = Some(NewestGroup {
                first,
                aggregates: 0,
                packets: 0,
            });
        }
    }

    /// A packet of the group that begins with `first` was counted; whether it was a new aggregate.
    fn count_in_group(&mut self, first: u64, new: bool) {
        if let Some(newest) = self.newest.as_mut().filter(|newest| newest.first == first) {
            newest.packets += 1;
            newest.aggregates += u64::from(new);
        }
    }

    fn take_recovered(&mut self, first: u64, found: Vec<(u64, Vec<u8>)>) -> Vec<Vec<u8>> {
        let mut contents = Vec::new();
        for (number, content) in found {
            if self.novelty(number) == Novelty::New {
                self.counters.recovered_aggregates += 1;
                if let Some(newest) = self.newest.as_mut().filter(|newest| newest.first == first) {
                    newest.aggregates += 1;
                }
                contents.push(content);
            }
        }
        contents
    }

    /// When the next report is due.
    pub(crate) fn feedback_due(&self) -> Option<Instant> {
        self.due
    }

    /// The feedback that is sent to the peer. `overflows`: of the path's socket here.
    pub(crate) fn take_feedback(
        &mut self,
        now: Instant,
        path: u8,
        overflows: ReceiveOverflows,
    ) -> Option<Feedback> {
        self.due = None;
        // The newest group is reported once its parity has had time to arrive.
        let (highest, aggregates, packets) = match self.newest {
            Some(newest) => (
                newest.first.checked_sub(1)?,
                newest.aggregates,
                newest.packets,
            ),
            None => (self.seen.largest()?, 0, 0),
        };
        self.reported_at = Some(now);
        Some(Feedback {
            path,
            highest,
            aggregates: self.counters.received_aggregates - aggregates,
            copies: self.counters.received_copies - packets,
            socket_overflows: overflows.socket,
            system_overflows: overflows.system,
            spacing: self.spaced.take().map(|spaced| spaced.spacing),
        })
    }

    /// What is kept to recover aggregates.
    pub(crate) fn memory(&self) -> usize {
        self.groups.memory()
    }

    /// Makes room for other groups.
    pub(crate) fn forget_oldest_group(&mut self) {
        self.groups.forget_oldest();
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        let PathStats {
            received_aggregates: aggregates,
            received_copies: copies,
            recovered_aggregates: recovered,
            ..
        } = self.counters;
        assert!(
            recovered <= aggregates,
            "recovered aggregates are aggregates"
        );
        assert!(
            aggregates <= copies + recovered,
            "an aggregate has a copy or was recovered"
        );
        self.groups.check_invariants();
    }

    /// Of the path's counters, those that are counted here.
    pub(crate) fn counters(&self) -> &PathStats {
        &self.counters
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

    fn overflows(socket: u64, system: u64) -> ReceiveOverflows {
        ReceiveOverflows { socket, system }
    }

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
    fn aggregates_are_delivered_once_and_gaps_are_reported() {
        let mut receiver = AggregateReceiver::default();
        assert_eq!(receiver.on_copy(at(0), copy(0, 0, 0)), Novelty::New);
        assert_eq!(receiver.on_copy(at(0), copy(0, 1, 80)), Novelty::Known);
        assert_eq!(receiver.on_copy(at(0), copy(2, 1, 900)), Novelty::New);
        let feedback = receiver.take_feedback(at(900), 3, overflows(5, 6)).unwrap();
        assert_eq!((feedback.highest, feedback.aggregates), (2, 2));
        assert_eq!((feedback.copies, feedback.socket_overflows), (3, 5));
        let gaps: Vec<(u8, u64)> = feedback.spacing.unwrap().gaps().collect();
        assert_eq!(gaps, [(0, 0), (1, 80_000)]);
        let late = receiver.on_copy(at(1000), copy(1, 0, 1000));
        assert_eq!(late, Novelty::New, "late, not lost");
    }

    #[test]
    fn aggregates_behind_the_window_are_undecided() {
        let mut receiver = AggregateReceiver::default();
        for number in [1, 8193] {
            assert_eq!(receiver.on_copy(at(0), copy(number, 0, 0)), Novelty::New);
        }
        assert_eq!(receiver.on_copy(at(1), copy(1, 1, 1)), Novelty::TooOld);
        assert_eq!(receiver.on_copy(at(1), copy(2, 1, 1)), Novelty::New);
    }

    #[test]
    fn a_group_is_reported_when_the_next_one_has_begun() {
        let mut receiver = AggregateReceiver::default();
        let one = |number| Copy {
            count: 1,
            ..copy(number, 0, 0)
        };
        // The group 0-2 loses 1, which parity brings back.
        assert_eq!(receiver.on_protected(at(0), one(0), 0), Novelty::New);
        assert!(receiver.keep(0, 0, b"zero").is_empty());
        assert!(receiver.take_feedback(at(0), 0, overflows(0, 0)).is_none());
        assert_eq!(receiver.feedback_due(), None);
        assert_eq!(receiver.on_protected(at(0), one(2), 2), Novelty::New);
        assert!(receiver.keep(2, 2, b"two").is_empty());
        let contents = [&b"zero"[..], b"one", b"two"].map(super::super::parity_group::shard_of);
        let parity = keiro_model::erasure::encode(&contents, 1);
        let frame = ParityFrame {
            path: 0,
            first: 0,
            data: 3,
            count: 1,
            index: 0,
            shard: &parity[0],
        };
        assert_eq!(receiver.on_parity(at(1), &frame, one(0)), [b"one"]);
        assert_eq!(receiver.on_protected(at(2), one(1), 1), Novelty::Known);
        assert_eq!(receiver.on_protected(at(3), one(3), 0), Novelty::New);
        let feedback = receiver
            .take_feedback(at(30_000), 0, overflows(0, 0))
            .unwrap();
        assert_eq!(
            (feedback.highest, feedback.aggregates, feedback.copies),
            (2, 3, 4)
        );
        assert_eq!(receiver.counters().recovered_aggregates, 1);
        // One without a group ends them.
        assert_eq!(receiver.on_copy(at(40_000), one(4)), Novelty::New);
        let feedback = receiver
            .take_feedback(at(60_000), 0, overflows(0, 0))
            .unwrap();
        assert_eq!(
            (feedback.highest, feedback.aggregates, feedback.copies),
            (4, 5, 6)
        );
    }

    #[test]
    fn feedback_is_sent_at_once_and_then_at_intervals() {
        let mut receiver = AggregateReceiver::default();
        assert_eq!(receiver.feedback_due(), None);
        receiver.on_copy(at(0), copy(0, 0, 0));
        assert_eq!(receiver.feedback_due(), Some(at(0)));
        receiver.take_feedback(at(0), 0, overflows(0, 0));
        assert_eq!(receiver.feedback_due(), None);
        receiver.on_copy(at(100), copy(1, 0, 100));
        assert_eq!(receiver.feedback_due(), Some(at(20_000)));
    }
}
