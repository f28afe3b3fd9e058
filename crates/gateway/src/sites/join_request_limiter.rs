//! How often requests of gateways that join are judged.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use keiro_control::key::PublicKey;

/// Limits how often join requests are judged and problems logged.
#[derive(Debug, Default)]
pub(crate) struct JoinRequestLimiter {
    /// By provisional key, those of the last [`JUDGE_EVERY`].
    judged: BTreeMap<PublicKey, Instant>,
    /// When the last problem of the hub's own was logged.
    logged: Option<Instant>,
}

/// Least time between two requests of one provisional peer that are judged; others are ignored. Ours: `keiro join` asks
/// every two seconds until it is answered.
const JUDGE_EVERY: Duration = Duration::from_secs(1);
/// Least time between two log entries about problems of the hub's own. Ours.
const LOG_EVERY: Duration = Duration::from_secs(60);
impl JoinRequestLimiter {
    /// Whether a request is to be judged; notes that it is.
    pub(crate) fn may_decide(&mut self, provisional: &PublicKey, now: Instant) -> bool {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < JUDGE_EVERY;
        self.judged.retain(|_, at| is_recent(at));
        let may = !self.judged.contains_key(provisional);
        if may {
            self.judged.insert(*provisional, now);
        }
        may
    }

    /// Whether to log a problem; notes that it is logged.
    pub(crate) fn may_log(&mut self, now: Instant) -> bool {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < LOG_EVERY;
        let may = !self.logged.is_some_and(is_recent);
        if may {
            self.logged = Some(now);
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_of_a_key_is_judged_in_a_second_and_one_problem_logged_in_a_minute() {
        let mut requests = JoinRequestLimiter::default();
        let (begin, keys) = (
            Instant::now(),
            [1, 2].map(|n| PublicKey::from_bytes([n; 32])),
        );
        let mut judged = Vec::new();
        let mut logged = Vec::new();
        for tenths in 0..700 {
            let now = begin + Duration::from_millis(100 * tenths);
            if requests.may_decide(&keys[0], now) && tenths < 30 {
                judged.push(tenths);
            }
            if requests.may_log(now) {
                logged.push(tenths);
            }
        }
        assert_eq!(judged, [0, 10, 20]);
        assert_eq!(logged, [0, 600]);
        let now = begin + Duration::from_secs(69);
        assert!(!requests.may_decide(&keys[0], now) && requests.may_decide(&keys[1], now));
        assert!(requests.may_decide(&keys[0], now + JUDGE_EVERY));
        assert_eq!(requests.judged.len(), 1, "others are forgotten");
    }
}
