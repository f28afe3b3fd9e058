//! Outcomes of the aggregates and copies that left on one path.
//!
//! The peer reports how many arrived in all, up to which number. How many copies of these had left is in
//! the epochs of [`DeliveryAccounting`]. The difference is lost, late, or, with time between copies,
//! still in flight.

use std::{collections::VecDeque, time::Duration};

use keiro_model::aggregation::DeliveryCounts;
use keiro_units::Instant;

use crate::wire::Feedback;

/// Changes of the number of copies, and groups, whose aggregates may still be reported. Ours: the
/// groups of 400 ms with ten thousand per second.
const EPOCHS_MAX: usize = 4096;
/// Copies with time before them that may still be on their way; further ones count as reported. Ours: those of ten
/// thousand aggregates per second within 400 ms.
const SPACED_MAX: usize = 4096;
/// Copies in flight are counted no more often, however often the peer reports.
const COUNT_INTERVAL: Duration = Duration::from_millis(1);

/// What left on one path, and how much of it arrived.
#[derive(Debug, Default)]
pub(super) struct DeliveryAccounting {
    /// How many copies there were from a number on, and of all numbers before; the newest last.
    epochs: VecDeque<Epoch>,
    /// Copies that leave later than their aggregates and may not have been heard of, by what they are of.
    spaced: VecDeque<SpacedCopy>,
    counted_at: Option<Instant>,
    /// How many of them belong to what the peer has reported.
    awaited: u64,
    totals: AggregateTotals,
    /// Copies that were to leave and did not.
    copies_dropped: u64,
    /// Of those, the ones that `epochs` counts and that cannot arrive.
    never_sent: u64,
    /// Aggregates and copies that came although they were counted lost.
    late: [u64; 2],
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    from: u64,
    copies: u8,
    /// Copies of all aggregates before `from`, and the parity of their groups.
    before: u64,
}

#[derive(Clone, Copy, Debug)]
struct SpacedCopy {
    due: Instant,
    /// The aggregate that it is of, or the last one of its group.
    of: u64,
}

/// Totals since the beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AggregateTotals {
    pub(super) aggregates: DeliveryCounts,
    pub(super) copies: DeliveryCounts,
    pub(super) socket_overflows: u64,
    pub(super) system_overflows: u64,
}

impl DeliveryAccounting {
    /// With the same totals, for numbers of which none has been reported.
    pub(super) fn opened_anew(&self) -> Self {
        Self {
            totals: self.totals,
            copies_dropped: self.copies_dropped,
            // These copies still leave.
            spaced: self.spaced.clone(),
            ..Self::default()
        }
    }

    pub(super) fn totals(&self) -> AggregateTotals {
        self.totals
    }

    /// Copies that were to leave and did not, in all.
    pub(super) fn copies_dropped(&self) -> u64 {
        self.copies_dropped
    }

    /// An aggregate leaves in `copies` copies, the first included.
    pub(super) fn on_sent(&mut self, number: u64, copies: u8) {
        let before = match self.epochs.back() {
            Some(epoch) if epoch.copies == copies => return,
            Some(_) => self.copies_before(number),
            None => 0,
        };
        self.push(Epoch {
            from: number,
            copies,
            before,
        });
    }

    /// Parity packets leave for the aggregates below `next`.
    pub(super) fn on_parity(&mut self, next: u64, packets: u64) {
        self.push(Epoch {
            from: next,
            copies: 1,
            before: self.copies_before(next) + packets,
        });
    }

    /// A copy of the aggregate `of` leaves later than the aggregate.
    pub(super) fn on_spaced(&mut self, due: Instant, of: u64) {
        if self.spaced.len() >= SPACED_MAX {
            self.spaced.pop_front();
        }
        self.spaced.push_back(SpacedCopy { due, of });
    }

    /// A copy of what left, or its parity, does not.
    pub(super) fn on_copy_dropped(&mut self) {
        self.copies_dropped += 1;
        self.never_sent += 1;
    }

    /// The path leads elsewhere.
    pub(super) fn forget(&mut self) {
        self.never_sent = 0;
        self.spaced.clear();
        self.awaited = 0;
    }

    /// The peer reports something, which cannot cover what left within the last round trip.
    pub(super) fn forget_arrived(&mut self, now: Instant, rtt: Duration) {
        let again = self.counted_at.is_none_or(|at| now >= at + COUNT_INTERVAL);
        if again && !self.spaced.is_empty() {
            self.counted_at = Some(now);
            self.spaced.retain(|copy| copy.due + rtt > now);
        }
    }

    /// A copy of an aggregate below `number` may still come.
    pub(super) fn awaits_before(&self, number: u64) -> bool {
        self.spaced.front().is_some_and(|copy| copy.of < number)
    }

    /// Counts from the report `now` on.
    pub(super) fn begin(&mut self, now: &Feedback) {
        self.awaited = self.awaited_of(now);
    }

    /// Counts what has arrived between the reports `before` and `now`.
    pub(super) fn count(&mut self, before: &Feedback, now: &Feedback) {
        let reported = self.copies_before(now.highest + 1) - self.copies_before(before.highest + 1);
        let awaited = self.awaited_of(now);
        let sent = (reported + self.awaited).saturating_sub(awaited);
        self.awaited = awaited;
        // Those may be later ones than the report covers; then more has arrived, which makes up for them.
        let never_sent = self.never_sent.min(sent);
        self.never_sent -= never_sent;
        let [aggregates_late, copies_late] = &mut self.late;
        let aggregates = fates(
            now.highest - before.highest,
            now.aggregates - before.aggregates,
            aggregates_late,
        );
        let copies = fates(sent - never_sent, now.copies - before.copies, copies_late);
        self.totals.aggregates.add(aggregates);
        self.totals.copies.add(copies);
        let AggregateTotals {
            socket_overflows,
            system_overflows,
            ..
        } = &mut self.totals;
        let socket = now.socket_overflows - before.socket_overflows;
        let system = now.system_overflows - before.system_overflows;
        *socket_overflows = socket_overflows.saturating_add(socket);
        *system_overflows = system_overflows.saturating_add(system);
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        assert!(self.epochs.len() <= EPOCHS_MAX, "epochs of copies");
        assert!(self.spaced.len() <= SPACED_MAX, "copies with time between");
        let mut newest = self.epochs.iter().rev();
        if let (Some(last), Some(before)) = (newest.next(), newest.next()) {
            assert!(
                before.from <= last.from && before.before <= last.before,
                "epochs are in the order of numbers"
            );
        }
        for counts in [self.totals.aggregates, self.totals.copies] {
            assert!(counts.lost <= counts.sent, "only what left is lost");
        }
        assert!(
            self.never_sent <= self.copies_dropped,
            "a copy that was never sent was dropped"
        );
    }

    fn awaited_of(&self, feedback: &Feedback) -> u64 {
        self.spaced
            .partition_point(|copy| copy.of <= feedback.highest) as u64
    }

    fn push(&mut self, epoch: Epoch) {
        if self.epochs.len() >= EPOCHS_MAX {
            self.epochs.pop_front();
        }
        self.epochs.push_back(epoch);
    }

    /// Copies of all aggregates below `number`.
    fn copies_before(&self, number: u64) -> u64 {
        let later = self.epochs.partition_point(|epoch| epoch.from <= number);
        let epoch = later.checked_sub(1).and_then(|at| self.epochs.get(at));
        match (epoch, self.epochs.front()) {
            (Some(epoch), _) => epoch.before + (number - epoch.from) * u64::from(epoch.copies),
            // It is too long ago to know.
            (None, first) => first.map_or(0, |first| first.before),
        }
    }
}

impl AggregateTotals {
    /// What has been added since `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            aggregates: counts_since(self.aggregates, before.aggregates),
            copies: counts_since(self.copies, before.copies),
            socket_overflows: self.socket_overflows - before.socket_overflows,
            system_overflows: self.system_overflows - before.system_overflows,
        }
    }
}

fn counts_since(now: DeliveryCounts, before: DeliveryCounts) -> DeliveryCounts {
    DeliveryCounts {
        sent: now.sent - before.sent,
        lost: now.lost - before.lost,
    }
}

/// Losses among `sent` of which `came` arrived. More than were sent arrive if some are late and were
/// counted as lost: `late` of these make up for later losses.
fn fates(sent: u64, came: u64, late: &mut u64) -> DeliveryCounts {
    let missing = sent.saturating_sub(came);
    let made_up = missing.min(*late);
    // The peer may report any number.
    *late = (*late - made_up).saturating_add(came.saturating_sub(sent));
    DeliveryCounts {
        sent,
        lost: missing - made_up,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_aggregates_correct_losses_without_overflow() {
        let mut late = 0;
        assert_eq!(fates(10, 7, &mut late).lost, 3);
        assert_eq!(fates(10, 12, &mut late).lost, 0);
        assert_eq!(fates(10, 7, &mut late).lost, 1);
        for _ in 0..8 {
            fates(0, (1 << 62) - 1, &mut late);
        }
        assert_eq!(late, u64::MAX);
    }
}
