//! p, the share of packets lost, from the numbers of packets between losses, as TFRC measures it
//! (RFC 5348 §5).
//!
//! Every loss counts alike, however long it took to come, so the estimate is as exact on a line that
//! loses one packet in a million as on one that loses one in ten. The interval since the last loss
//! counts once it makes p smaller, so that p falls also where nothing is lost any more.

/// Intervals that count. RFC 5348 §5.4 takes eight of loss events; ours are of packets, which are lost
/// several at a time. Ours: an error of a quarter.
const INTERVALS: usize = 16;

#[derive(Debug)]
pub(super) struct LossIntervals {
    /// The latest ones in packets, in a ring.
    intervals: [f64; INTERVALS],
    oldest: usize,
    /// Packets since the last loss.
    open: f64,
}

impl LossIntervals {
    /// `prior`: what the share is taken for until losses are known; each of them replaces a sixteenth of it
    /// (RFC 5348 §6.3.1 begins with such an interval too).
    pub(super) fn new(prior: f64) -> Self {
        let packets = (1.0 / prior).clamp(1.0, f64::from(u32::MAX));
        Self {
            intervals: [if packets.is_nan() { 1.0 } else { packets }; INTERVALS],
            oldest: 0,
            open: 0.0,
        }
    }

    /// Takes what arrived, then what was lost.
    pub(super) fn on_packets(&mut self, arrived: u64, lost: u64) {
        self.open += arrived as f64;
        for _ in 0..lost.min(INTERVALS as u64) {
            self.intervals[self.oldest] = self.open + 1.0;
            self.oldest = (self.oldest + 1) % INTERVALS;
            self.open = 0.0;
        }
    }

    /// p, above 0 and at most 1.
    pub(super) fn share(&self) -> f64 {
        let closed: f64 = self.intervals.iter().sum();
        let with_open = closed - self.intervals[self.oldest] + self.open;
        INTERVALS as f64 / closed.max(with_open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_loss_yet_is_the_prior_and_sixteen_replace_it() {
        for (prior, share) in [(1e-6, 0.1), (0.5, 0.001), (0.01, 1.0)] {
            let mut losses = LossIntervals::new(prior);
            assert!((losses.share() / prior - 1.0).abs() < 1e-9);
            let arrived = (1.0_f64 / share).round() as u64 - 1;
            for _ in 0..16 {
                losses.on_packets(arrived, 1);
            }
            assert!((losses.share() / share - 1.0).abs() < 1e-9, "{losses:?}");
        }
    }

    #[test]
    fn share_falls_where_nothing_is_lost_any_more() {
        let mut losses = LossIntervals::new(0.1);
        let mut before = losses.share();
        for _ in 0..100 {
            losses.on_packets(50, 0);
            assert!(losses.share() <= before, "{losses:?}");
            before = losses.share();
        }
        assert!(before < 0.1 / 20.0, "{before}");
    }

    #[test]
    fn impossible_counts_are_tolerated() {
        for prior in [0.0, f64::NAN, f64::INFINITY, -1.0, 5.0] {
            let mut losses = LossIntervals::new(prior);
            for counts in [(0, 0), (u64::MAX, 0), (0, u64::MAX), (u64::MAX, u64::MAX)] {
                losses.on_packets(counts.0, counts.1);
                let share = losses.share();
                assert!(share > 0.0 && share <= 1.0, "{prior} {counts:?}: {share}");
            }
        }
    }
}
