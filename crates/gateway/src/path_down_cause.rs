//! What the packets on a path that is not up show of its fault.

use std::time::Duration;

use keiro_core::{Instant, Unanswered};

/// What the packets on a path that is not up show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathDownCause {
    /// Nothing comes.
    Silent,
    /// The peer's packets come and ours are not answered.
    OneWay,
}

/// A path is judged after this time without an answer. Ours: as long as a handshake may wait for its next
/// attempt.
const JUDGED_AFTER: Duration = Duration::from_secs(5);
/// Least packets without an answer: one or two get lost.
const PACKETS_MIN: u64 = 3;
/// The peer's packets come if one has come within this time. Ours: two attempts of a handshake, and one that got
/// lost.
const HEARD_WITHIN: Duration = Duration::from_secs(15);
impl PathDownCause {
    /// `None`: it is too soon to say.
    pub(crate) fn of(now: Instant, unanswered: &Unanswered) -> Option<Self> {
        let lasts = now.saturating_duration_since(unanswered.since);
        if lasts < JUDGED_AFTER || unanswered.sent_packets < PACKETS_MIN {
            return None;
        }
        let is_recent = |at: Instant| now.saturating_duration_since(at) < HEARD_WITHIN;
        let is_heard = unanswered.received_packets >= PACKETS_MIN
            && unanswered.heard_at.is_some_and(is_recent);
        Some(match is_heard {
            true => Self::OneWay,
            false => Self::Silent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unanswered(sent: u64, received: u64, heard_after: u64) -> Unanswered {
        Unanswered {
            since: Instant::ZERO,
            sent_packets: sent,
            received_packets: received,
            heard_at: (received > 0).then(|| at(heard_after)),
        }
    }

    fn at(second: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(second)
    }

    #[test]
    fn a_path_is_judged_after_a_while_by_what_has_come_lately() {
        let judged = |second, path: Unanswered| PathDownCause::of(at(second), &path);
        assert_eq!(judged(4, unanswered(9, 0, 0)), None);
        assert_eq!(judged(9, unanswered(2, 0, 0)), None);
        assert_eq!(judged(9, unanswered(9, 0, 0)), Some(PathDownCause::Silent));
        assert_eq!(judged(9, unanswered(9, 5, 8)), Some(PathDownCause::OneWay));
        // What was on the way when the path went down, and what came long ago.
        assert_eq!(judged(9, unanswered(9, 2, 1)), Some(PathDownCause::Silent));
        assert_eq!(
            judged(60, unanswered(99, 5, 8)),
            Some(PathDownCause::Silent)
        );
    }
}
