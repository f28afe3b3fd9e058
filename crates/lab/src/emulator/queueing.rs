//! How long packets of one direction of a link wait for those before them, and what leaves over time.

use std::time::Duration;

use hdrhistogram::Histogram;
use keiro_link::Departure;
use keiro_units::Instant;

/// Length of a bin.
pub const QUEUEING_BIN: Duration = Duration::from_millis(100);

/// Ours: an hour. Later packets count in the histogram only.
const BINS_MAX: usize = 36_000;

/// Longer waits are recorded as this.
const WAIT_MAX_US: u64 = 1_000_000_000;

/// What was measured of one direction. A wait is the time by which a packet left later than it would have
/// left an idle link: without delay and jitter, and without what a recorded line had no room for anyway.
#[derive(Clone, Debug)]
pub struct Queueing {
    /// When the measurement began.
    pub since: Instant,
    /// Waits of all packets that arrived at the other end, µs.
    pub waits_us: Histogram<u64>,
    /// By time of arrival at the other end, in steps of [`QUEUEING_BIN`].
    pub bins: Vec<QueueingBin>,
}

/// One step of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueingBin {
    pub packets: u64,
    /// Of whole IP packets.
    pub bytes: u64,
    /// Sum of the packets' waits.
    pub wait_us: u64,
    /// The longest wait.
    pub wait_max_us: u64,
}

impl Queueing {
    pub(super) fn new(since: Instant) -> Self {
        let waits_us = Histogram::new_with_bounds(1, WAIT_MAX_US, 3);
        Self {
            since,
            waits_us: waits_us.expect("bounds and digits are constants that fit"),
            bins: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, departure: &Departure, bytes: u64) {
        let wait_us = u64::try_from(departure.waited.as_micros()).unwrap_or(u64::MAX);
        let wait_us = wait_us.min(WAIT_MAX_US);
        self.waits_us.saturating_record(wait_us);
        let since = departure.at.saturating_duration_since(self.since);
        let place = (since.as_nanos() / QUEUEING_BIN.as_nanos()) as usize;
        if place >= BINS_MAX {
            return;
        }
        if place >= self.bins.len() {
            self.bins.resize(place + 1, QueueingBin::default());
        }
        let bin = &mut self.bins[place];
        bin.packets += 1;
        bin.bytes += bytes;
        bin.wait_us += wait_us;
        bin.wait_max_us = bin.wait_max_us.max(wait_us);
    }

    /// The wait in ms that a share of the packets do not exceed; `None` if none arrived.
    pub fn quantile_ms(&self, quantile: f64) -> Option<f64> {
        let found = self.waits_us.value_at_quantile(quantile);
        (!self.waits_us.is_empty()).then_some(found as f64 / 1e3)
    }

    /// Bytes of all bins until `time` after the beginning.
    pub fn bytes_until(&self, time: Duration) -> u64 {
        let bins = (time.as_nanos() / QUEUEING_BIN.as_nanos()) as usize;
        self.bins.iter().take(bins).map(|bin| bin.bytes).sum()
    }
}
