//! PINGs on suspicion: after a loss little traffic says little about a path, so more packets ask for answers.
//!
//! A test whether a path loses too much (`keiro_model::loss_test`) takes some hundred packets. Traffic of 50 packets
//! a second takes many seconds for these. The PINGs between its packets are paid from a part of the share for probes.

use std::time::Duration;

use keiro_units::Instant;

/// Losses of a path, and the PINGs that these ask for.
#[derive(Debug, Default)]
pub(super) struct LossSuspicion {
    /// Packets lost so far.
    lost: u64,
    /// Until when the newest loss asks for PINGs.
    until: Option<Instant>,
    /// Until when its part of the share has been spent.
    spent_until: Instant,
}

/// A loss asks for PINGs for so long. Ours: where one packet of twenty is lost, the next loss is seen before the end.
const SUSPICION: Duration = Duration::from_secs(1);
/// Longest time without a packet meanwhile. Ours: with 200 packets a second it takes two seconds to show that a path
/// loses 5 % and not 1 %.
const INTERVAL: Duration = Duration::from_millis(5);
/// A quarter of the share pays for them, as for those of an idle path.
const PART: u32 = 4;
/// PINGs that may be saved for, if the whole share pays for them within [`SAVED_MAX`].
const PINGS_SAVED: u32 = 300;
const SAVED_MAX: Duration = Duration::from_secs(30);

impl LossSuspicion {
    /// `lost` packets have been lost so far.
    pub(super) fn on_totals(&mut self, now: Instant, lost: u64) {
        if lost > self.lost {
            self.until = Some(now + SUSPICION);
        }
        self.lost = lost;
    }

    /// When a PING is due where the last packet that asks for an answer left at `last`, and the share pays for one in
    /// `pay`; `None`: nothing is suspected.
    pub(super) fn ping_at(&self, last: Instant, pay: Duration) -> Option<Instant> {
        let saved = (pay * PINGS_SAVED).min(SAVED_MAX) * PART;
        let at = (last + INTERVAL).max(self.spent_until - saved);
        self.until.filter(|until| at <= *until).map(|_| at)
    }

    /// A PING has left for which the share pays in `pay`.
    pub(super) fn on_ping(&mut self, now: Instant, pay: Duration) {
        if self.until.is_some_and(|until| now <= until) {
            self.spent_until = self.spent_until.max(now) + pay * PART;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const START: Instant = Instant::from_nanos(3_600_000_000_000);

    /// PINGs within `time` where every loss is followed by another after `between`, and each is paid in `pay`.
    fn pings(time: Duration, between: Duration, pay: Duration) -> usize {
        let mut suspicion = LossSuspicion::default();
        let (mut now, mut last, mut lost, mut count) = (START, START, 0, 0);
        while now < START + time {
            if now >= START + between * u32::try_from(lost).unwrap() {
                lost += 1;
                suspicion.on_totals(now, lost);
            }
            if suspicion.ping_at(last, pay).is_some_and(|at| at <= now) {
                suspicion.on_ping(now, pay);
                last = now;
                count += 1;
            }
            now += MS;
        }
        count
    }

    #[test]
    fn a_loss_asks_for_pings_for_a_second() {
        assert_eq!(pings(10_000 * MS, 3_600_000 * MS, MS), 200);
        assert!(LossSuspicion::default().ping_at(START, MS).is_none());
    }

    #[test]
    fn a_path_that_always_loses_gets_a_quarter_of_the_share() {
        // Of 500 kbit/s, 160 bytes take 2.56 ms.
        let pay = Duration::from_micros(2560);
        let most = 300 + 60_000 * 1000 / (2560 * 4);
        let found = pings(60_000 * MS, 100 * MS, pay);
        assert!((most - 10..=most + 1).contains(&found), "{found} of {most}");
    }

    #[test]
    fn a_narrow_path_saves_for_half_a_minute_at_most() {
        let found = pings(10_000 * MS, 100 * MS, 1000 * MS);
        assert!((30..=34).contains(&found), "{found}");
    }
}
