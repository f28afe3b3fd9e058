//! Losses that say nothing of the path: strangers at the peer's socket have displaced the packets.
//!
//! The peer reports how many packets that are, not which. As many of the losses that loss detection finds are
//! excused: no controller hears of them, and the path's loss is without them.

use std::time::Duration;

use keiro_units::Instant;

use crate::session::recovery::AckedOrLostPacket;

/// A report excuses losses for this long, and twice as long at most. Ours: long against the time between two
/// reports, and against what a report and an acknowledgement may be apart.
const SPAN: Duration = Duration::from_secs(1);
/// Credit of a packet that the peer reports, and what a loss takes of it. Ours: chance has more packets lost than
/// the peer expects as often as fewer, and a controller feels the rest.
const CREDIT_PER_PACKET: u64 = 5;
const CREDIT_PER_LOSS: u64 = 4;

/// Losses of a path that a full socket buffer of the peer has caused, not the path.
#[derive(Debug, Default)]
pub(super) struct NonPathLosses {
    /// Packets that strangers have displaced in all, as the peer reports them.
    reported: u64,
    /// The path's acknowledged packets when the last report came.
    acked: u64,
    /// What the reports of this span and of the one before still excuse.
    credit: [u64; 2],
    span_since: Instant,
    non_path_losses: u64,
}

impl NonPathLosses {
    /// The peer reports `displaced` packets in all; `acked` were acknowledged by now. Of what it
    /// reports no more counts than was acknowledged since the last report: a peer that lies gains no more than by
    /// acknowledging what it has not received.
    pub(super) fn on_report(&mut self, now: Instant, displaced: u64, acked: u64) {
        let Some(news) = displaced
            .checked_sub(self.reported)
            .filter(|news| *news > 0)
        else {
            // It was overtaken.
            return;
        };
        let bounded = news.min(acked.saturating_sub(self.acked));
        (self.reported, self.acked) = (displaced, acked);
        self.begin_span(now);
        self.credit[0] += bounded * CREDIT_PER_PACKET;
    }

    /// Marks those of the losses that are excused.
    pub(super) fn mark(&mut self, now: Instant, lost: &mut [AckedOrLostPacket]) {
        for packet in lost.iter_mut().filter(|packet| !packet.is_of_its_size()) {
            packet.is_non_path_loss = self.take_credit(now);
        }
    }

    /// `lost` packets of padding were lost.
    pub(super) fn mark_padding(&mut self, now: Instant, lost: u64) {
        for _ in 0..lost {
            if !self.take_credit(now) {
                return;
            }
        }
    }

    fn take_credit(&mut self, now: Instant) -> bool {
        self.begin_span(now);
        let [new, old] = &mut self.credit;
        if *new + *old < CREDIT_PER_LOSS {
            return false;
        }
        let of_old = CREDIT_PER_LOSS.min(*old);
        *old -= of_old;
        *new -= CREDIT_PER_LOSS - of_old;
        self.non_path_losses += 1;
        true
    }

    fn begin_span(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.span_since);
        if age >= SPAN {
            let old = if age < SPAN * 2 { self.credit[0] } else { 0 };
            self.credit = [0, old];
            self.span_since = now;
        }
    }

    /// Losses that were excused, in all.
    pub(super) fn total(&self) -> u64 {
        self.non_path_losses
    }

    /// The peer has restarted: it counts anew.
    pub(super) fn on_peer_restarted(&mut self) {
        *self = Self {
            acked: self.acked,
            non_path_losses: self.non_path_losses,
            ..Self::default()
        };
    }

    /// `lost`: packets and padding lost in all.
    pub(super) fn check_invariants(&self, lost: u64) {
        assert!(self.non_path_losses <= lost, "only losses are excused");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_nanos(1_000_000_000_000);

    fn non_path_losses(losses: &mut NonPathLosses, now: Instant, lost: u64) -> u64 {
        let before = losses.total();
        losses.mark_padding(now, lost);
        losses.total() - before
    }

    #[test]
    fn drop_report_exempts_its_losses_and_a_quarter_more() {
        let mut losses = NonPathLosses::default();
        assert_eq!(non_path_losses(&mut losses, START, 5), 0, "no report");
        losses.on_report(START, 4, 100);
        assert_eq!(non_path_losses(&mut losses, START + SPAN, 3), 3);
        assert_eq!(non_path_losses(&mut losses, START + SPAN, 9), 2);
        losses.on_report(START + SPAN, 8, 200);
        assert_eq!(
            non_path_losses(&mut losses, START + SPAN * 3, 1),
            0,
            "too old"
        );
        losses.on_report(START + SPAN * 3, 7, 300);
        assert_eq!(
            non_path_losses(&mut losses, START + SPAN * 3, 1),
            0,
            "overtaken"
        );
    }

    #[test]
    fn lying_peer_exempts_no_more_losses_than_it_acknowledges() {
        let mut losses = NonPathLosses::default();
        losses.on_report(START, u64::MAX / 2, 40);
        assert_eq!(non_path_losses(&mut losses, START, 1000), 50);
        losses.on_report(START, u64::MAX, 40);
        assert_eq!(non_path_losses(&mut losses, START, 1000), 0);
        losses.on_peer_restarted();
        losses.on_report(START, 10, 44);
        assert_eq!(non_path_losses(&mut losses, START, 1000), 5);
        losses.check_invariants(55);
    }
}
