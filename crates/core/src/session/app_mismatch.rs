//! Applications that the two gateways are not configured alike for, and how often that is reported.

use std::{collections::BTreeMap, time::Duration};

use keiro_units::Instant;

use crate::{config::DeliveryClass, event::MismatchSeenBy, id::AppId};

/// One mismatch is reported at most this often. Ours.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Mismatches that are reported within that time. A peer may name any application.
const REPORTS_MAX: usize = 16;

/// Data of an application that one gateway sends, and the other does not have in this class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AppMismatch {
    pub(crate) app: AppId,
    /// As it was sent.
    pub(crate) class: DeliveryClass,
    pub(crate) seen_by: MismatchSeenBy,
}

/// The mismatches with one peer.
#[derive(Debug, Default)]
pub(crate) struct AppMismatches {
    /// The newest one since [`take`](Self::take).
    noted: Option<AppMismatch>,
    reported_at: BTreeMap<AppMismatch, Instant>,
}

impl AppMismatches {
    pub(crate) fn note(&mut self, mismatch: AppMismatch) {
        self.noted = Some(mismatch);
    }

    /// A mismatch that is to be reported now.
    pub(crate) fn take(&mut self, now: Instant) -> Option<AppMismatch> {
        let mismatch = self.noted.take()?;
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < REPORT_INTERVAL;
        self.reported_at.retain(|_, at| is_recent(at));
        if self.reported_at.len() >= REPORTS_MAX || self.reported_at.contains_key(&mismatch) {
            return None;
        }
        self.reported_at.insert(mismatch, now);
        Some(mismatch)
    }

    pub(crate) fn check_invariants(&self) {
        assert!(self.reported_at.len() <= REPORTS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(app: u32) -> AppMismatch {
        AppMismatch {
            app: AppId(app),
            class: DeliveryClass::Message,
            seen_by: MismatchSeenBy::Us,
        }
    }

    #[test]
    fn one_mismatch_is_reported_once_a_minute() {
        let mut mismatches = AppMismatches::default();
        let mut reported = 0;
        for second in 0..120 {
            mismatches.note(of(1));
            let now = Instant::from_nanos(second * 1_000_000_000);
            reported += usize::from(mismatches.take(now).is_some());
        }
        assert_eq!(reported, 2);
        assert_eq!(mismatches.take(Instant::from_nanos(500_000_000_000)), None);
    }

    #[test]
    fn endless_new_application_ids_are_bounded_in_log_and_memory() {
        let mut mismatches = AppMismatches::default();
        let mut reported = 0;
        for app in 0..100_000 {
            mismatches.note(of(app));
            reported += usize::from(
                mismatches
                    .take(Instant::from_nanos(u64::from(app)))
                    .is_some(),
            );
            mismatches.check_invariants();
        }
        assert_eq!(reported, REPORTS_MAX);
    }
}
