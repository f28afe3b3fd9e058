//! The congestion window.
//!
//! NewReno counts in fractions, as RFC 5681 counts in bytes. CUBIC counts in whole segments, as Linux and
//! ns-3 do: a window of 8 becomes 5, not 5.6, and grows when as many segments were acknowledged as the next
//! one needs. For windows of a few segments the difference is a tenth.

use std::time::Duration;

use keiro_units::Instant;

use super::CongestionControl;

/// CUBIC's C, segments per s³ (RFC 9438 §4.1).
const CUBIC_C: f64 = 0.4;
/// CUBIC's multiplicative decrease (RFC 9438 §4.6).
const CUBIC_BETA: f64 = 0.7;
/// Additive increase that is as friendly as Reno's with that decrease (RFC 9438 §4.3).
const CUBIC_ALPHA: f64 = 3.0 * (1.0 - CUBIC_BETA) / (1.0 + CUBIC_BETA);
/// Maximum of acknowledged segments per segment of growth before the first loss and after a timeout, when
/// W_max is unknown (Linux; ns-3's `CntClamp`).
const PER_SEGMENT_WITHOUT_PLATEAU: f64 = 20.0;
/// Minimum of the same: half a window per round trip (RFC 9438 §4.2).
const PER_SEGMENT_LEAST: f64 = 2.0;
/// The same if the curve is not above the window, in windows (Linux, ns-3).
const WINDOWS_PER_SEGMENT_AT_PLATEAU: f64 = 100.0;
/// Maximum of segments by which one acknowledgement opens the window in slow start (RFC 3465 §2.2).
const SLOW_START_LIMIT: f64 = 2.0;

/// A congestion window with its slow start threshold, in segments.
#[derive(Clone, Debug)]
pub(super) struct Window {
    control: CongestionControl,
    size: f64,
    threshold: f64,
    cubic: Cubic,
}

/// CUBIC's state, in segments.
#[derive(Clone, Debug, Default)]
struct Cubic {
    /// W_max; 0 if unknown.
    largest: f64,
    epoch: Option<Epoch>,
    /// Segments acknowledged since the window grew last.
    credit: f64,
}

/// An epoch of congestion avoidance (RFC 9438 §4.2).
#[derive(Clone, Copy, Debug)]
struct Epoch {
    began: Instant,
    /// K (RFC 9438 §4.2), in seconds.
    to_plateau: f64,
    /// W_max of this epoch.
    plateau: f64,
    /// W_est (RFC 9438 §4.3), in segments.
    reno: f64,
    /// Segments acknowledged since W_est grew last.
    reno_credit: f64,
}

impl Window {
    pub(super) fn new(control: CongestionControl, initial: u32) -> Self {
        Self {
            control,
            size: f64::from(initial.max(1)),
            threshold: f64::INFINITY,
            cubic: Cubic::default(),
        }
    }

    /// In segments.
    pub(super) const fn size(&self) -> f64 {
        self.size
    }

    /// `acked` segments were acknowledged while the window was fully used.
    pub(super) fn on_ack(&mut self, now: Instant, acked: f64, round_trip: Duration) {
        if self.size < self.threshold {
            self.size += acked.min(SLOW_START_LIMIT);
            if self.control == CongestionControl::Cubic {
                self.size = self.size.floor();
            }
            return;
        }
        match self.control {
            CongestionControl::NewReno => self.size += acked / self.size,
            CongestionControl::Cubic => {
                self.size += self.cubic.growth(self.size, now, acked, round_trip);
            }
        }
    }

    /// A segment was lost or marked; `in_flight` segments were in flight.
    pub(super) fn reduce(&mut self, in_flight: f64) {
        self.threshold = self.reduced(in_flight);
        self.size = self.threshold;
    }

    /// The retransmission timer expired (RFC 5681 §3.1); `again` if for the same segment.
    pub(super) fn collapse(&mut self, in_flight: f64, again: bool) {
        if !again {
            self.threshold = self.reduced(in_flight);
        }
        // RFC 9438 §4.8: knowledge of the path is discarded.
        self.cubic = Cubic::default();
        self.size = 1.0;
    }

    /// Restart after an idle time (RFC 5681 §4.1).
    pub(super) fn restart(&mut self, initial: u32) {
        self.threshold = self.threshold.max(0.75 * self.size);
        self.size = self.size.min(f64::from(initial.max(1)));
        self.cubic.epoch = None;
    }

    fn reduced(&mut self, in_flight: f64) -> f64 {
        let size = in_flight.min(self.size);
        match self.control {
            CongestionControl::NewReno => (size / 2.0).max(2.0),
            CongestionControl::Cubic => {
                let size = size.ceil();
                self.cubic.reduce(size);
                (size * CUBIC_BETA).floor().max(2.0)
            }
        }
    }
}

impl Cubic {
    fn reduce(&mut self, size: f64) {
        // Fast convergence (RFC 9438 §4.7).
        self.largest = if size < self.largest {
            (size * (1.0 + CUBIC_BETA) / 2.0).floor()
        } else {
            size
        };
        self.epoch = None;
    }

    /// Number of whole segments by which a window grows.
    fn growth(&mut self, size: f64, now: Instant, acked: f64, round_trip: Duration) -> f64 {
        let largest = self.largest;
        let epoch = self.epoch.get_or_insert_with(|| {
            let plateau = largest.max(size);
            Epoch {
                began: now,
                to_plateau: ((plateau - size) / CUBIC_C).cbrt(),
                plateau,
                reno: size,
                reno_credit: 0.0,
            }
        });
        epoch.grow_reno(size, acked);
        let needed = epoch.acked_per_segment(size, now, round_trip, largest > 0.0);
        let mut growth = 0.0;
        // Credit that was saved while more was needed counts for one segment.
        if self.credit >= needed {
            self.credit = 0.0;
            growth = 1.0;
        }
        self.credit += acked;
        let whole = (self.credit / needed).floor();
        self.credit -= whole * needed;
        growth + whole
    }
}

impl Epoch {
    fn grow_reno(&mut self, size: f64, acked: f64) {
        self.reno_credit += acked;
        let needed = (size / CUBIC_ALPHA).floor();
        while self.reno_credit > needed {
            self.reno_credit -= needed;
            self.reno += 1.0;
        }
    }

    /// Number of acknowledged segments by which the window grows by one.
    fn acked_per_segment(
        &self,
        size: f64,
        now: Instant,
        round_trip: Duration,
        is_plateau_known: bool,
    ) -> f64 {
        let elapsed = (now - self.began + round_trip).as_secs_f64();
        let beyond = CUBIC_C * (elapsed - self.to_plateau).powi(3);
        let target = self.plateau + beyond.trunc();
        let mut needed = if target > size {
            (size / (target - size)).floor()
        } else {
            WINDOWS_PER_SEGMENT_AT_PLATEAU * size
        };
        if !is_plateau_known {
            needed = needed.min(PER_SEGMENT_WITHOUT_PLATEAU);
        }
        if self.reno > size {
            needed = needed.min((size / (self.reno - size)).floor());
        }
        needed.max(PER_SEGMENT_LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    fn after_loss(control: CongestionControl, size: u32) -> Window {
        let mut window = Window::new(control, size);
        window.reduce(f64::from(size));
        window
    }

    /// Acknowledges whole windows for some round trips.
    fn rounds(window: &mut Window, from: u32, to: u32) {
        for round in from..to {
            for _ in 0..window.size() as u32 {
                window.on_ack(Instant::ZERO + RTT * round, 1.0, RTT);
            }
        }
    }

    #[test]
    fn slow_start_doubles_and_reno_adds_one_a_round() {
        let mut window = Window::new(CongestionControl::NewReno, 10);
        rounds(&mut window, 0, 1);
        assert_eq!(window.size(), 20.0);
        window.reduce(20.0);
        assert_eq!(window.size(), 10.0);
        rounds(&mut window, 1, 11);
        assert!((window.size() - 19.5).abs() < 0.6, "{}", window.size());
    }

    #[test]
    fn cubic_comes_back_to_where_it_was_after_k_seconds() {
        // K = ∛(1000 × 0.3 / 0.4) = 9.086 s, 91 round trips.
        let mut window = after_loss(CongestionControl::Cubic, 1000);
        assert_eq!(window.size(), 700.0);
        rounds(&mut window, 0, 45);
        assert!(
            window.size() > 950.0 && window.size() < 1000.0,
            "{}",
            window.size()
        );
        rounds(&mut window, 45, 92);
        assert!((window.size() - 1000.0).abs() < 2.0, "{}", window.size());
        rounds(&mut window, 92, 140);
        assert!(window.size() > 1030.0, "{}", window.size());
    }

    #[test]
    fn cubic_of_a_small_window_grows_as_renos_average_would() {
        let mut window = after_loss(CongestionControl::Cubic, 10);
        rounds(&mut window, 0, 6);
        let expected = 7.0 + 6.0 * CUBIC_ALPHA;
        assert!((window.size() - expected).abs() < 0.5, "{}", window.size());
    }

    #[test]
    fn a_timeout_leaves_one_segment_and_the_threshold_of_the_first() {
        for control in [CongestionControl::NewReno, CongestionControl::Cubic] {
            let mut window = Window::new(control, 40);
            window.collapse(40.0, false);
            let threshold = window.threshold;
            window.collapse(1.0, true);
            assert_eq!((window.size(), window.threshold), (1.0, threshold));
            rounds(&mut window, 0, 4);
            assert_eq!(window.size(), 16.0);
        }
    }
}
