//! Loss probing by PINGs: after a loss little traffic says little about a path, so more packets ask for answers.
//!
//! A test whether a path loses too much (`keiro_model::loss_test`) takes some hundred packets. Traffic of 50 packets
//! a second takes many seconds for these. The PINGs between its packets are paid from what the share for probes has
//! saved beyond the reserve of packet trains.

use std::time::Duration;

use keiro_units::Instant;

/// Losses of a path, and the PINGs that these ask for.
#[derive(Debug, Default)]
pub(super) struct LossProbing {
    /// Packets lost so far.
    lost: u64,
    /// Until when the newest loss asks for PINGs.
    until: Option<Instant>,
}

/// How long a loss asks for PINGs. Ours: where one packet of twenty is lost, the next loss is seen before the end.
const SUSPICION: Duration = Duration::from_secs(1);
/// Longest time without a packet meanwhile. Ours: with 200 packets a second it takes two seconds to show that a path
/// loses 5 % and not 1 %.
const INTERVAL: Duration = Duration::from_millis(5);

impl LossProbing {
    /// `lost` packets have been lost so far.
    pub(super) fn on_totals(&mut self, now: Instant, lost: u64) {
        if lost > self.lost {
            self.until = Some(now + SUSPICION);
        }
        self.lost = lost;
    }

    /// When a PING is due where the last packet that asks for an answer left at `last`, and one is paid for at
    /// `paid`; `None`: nothing is suspected.
    pub(super) fn ping_at(&self, last: Instant, paid: Instant) -> Option<Instant> {
        let at = (last + INTERVAL).max(paid);
        self.until.filter(|until| at <= *until).map(|_| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_requests_pings_for_a_second() {
        let start = Instant::from_nanos(3_600_000_000_000);
        let mut loss_probing = LossProbing::default();
        assert_eq!(loss_probing.ping_at(start, start), None);
        loss_probing.on_totals(start, 1);
        let mut last = start;
        let mut count = 0;
        while let Some(at) = loss_probing.ping_at(last, start) {
            assert_eq!(at, last + INTERVAL);
            (last, count) = (at, count + 1);
            loss_probing.on_totals(at, 1);
        }
        assert_eq!(count, 200);
        loss_probing.on_totals(last, 2);
        let later = last + SUSPICION / 2;
        assert_eq!(loss_probing.ping_at(last, later), Some(later), "paid later");
        assert_eq!(loss_probing.ping_at(last, last + SUSPICION * 2), None);
    }
}
