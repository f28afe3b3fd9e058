//! Losses: those of the line itself, and those that come of sending faster.

/// Packets that the line's own loss is remembered of. Ours: 5 % within a tenth of that.
const MEMORY_PACKETS: f64 = 1000.0;
/// Standard deviations beyond the line's own loss that are no chance. Ours: once in thirty thousand rounds.
const DEVIATIONS: f64 = 4.0;
/// Packets beyond it. Ours: one lost packet in a short round is often chance.
const PACKETS: f64 = 2.0;
/// The share of what was sent beyond it. BBRLossThresh of BBRv3 (draft-ietf-ccwg-bbr).
const SHARE: f64 = 0.02;

/// No line is taken to lose more at any rate. Ours: above it applications are of no use.
pub(super) const LINE_MAX: f64 = 0.25;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossMeter {
    /// Packets of the round.
    acked: f64,
    lost: f64,
    /// The line's own loss, and of how many packets it is known.
    line: f64,
    known_of: f64,
}

impl LossMeter {
    pub(super) fn on_packets(&mut self, acked: u64, lost: u64, spurious: u64) {
        self.acked += acked as f64;
        self.lost = (self.lost + lost as f64 - spurious as f64).max(0.0);
    }

    /// The share that the line loses at any rate.
    pub(super) fn line(&self) -> f64 {
        self.line
    }

    /// The share that was lost in this round.
    pub(super) fn share(&self) -> f64 {
        let sent = self.acked + self.lost;
        if sent > 0.0 { self.lost / sent } else { 0.0 }
    }

    /// More is lost in this round than the line loses.
    pub(super) fn is_excessive(&self) -> bool {
        let sent = self.acked + self.lost;
        let expected = self.line * sent;
        let chance = DEVIATIONS * (expected + 1.0).sqrt() + PACKETS;
        self.lost > expected + chance && self.lost > expected + SHARE * sent
    }

    /// The round is over. `at_ease`: nothing was sent faster than before, so that what was lost is the
    /// line's own loss.
    pub(super) fn end_round(&mut self, at_ease: bool) {
        let sent = self.acked + self.lost;
        let share = self.share().min(LINE_MAX);
        // Less than known is the line's own loss at any rate.
        if sent > 0.0 && (at_ease || share < self.line) {
            self.known_of = (self.known_of + sent).min(MEMORY_PACKETS);
            let weight = (sent / self.known_of).min(1.0);
            self.line += (share - self.line) * weight;
        }
        self.acked = 0.0;
        self.lost = 0.0;
    }
}
