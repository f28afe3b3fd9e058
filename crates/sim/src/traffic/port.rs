//! Measurements of one direction of a link: losses, queueing, utilisation.

use std::time::Duration;

use hdrhistogram::Histogram;
use keiro_link::{DropReason, LinkConfig};
use keiro_units::{Bandwidth, ByteCount, Instant};

use super::measure::Bins;

/// Maximum of the histogram of waiting times, in microseconds.
const WAIT_MAX: u64 = 100_000_000;

/// Measurements of a port over a period.
#[derive(Clone, Debug)]
pub struct PortReport {
    /// Length of the period.
    pub measured: Duration,
    /// Packets from nodes.
    pub arrived: u64,
    /// Packets that found its buffer full.
    pub dropped: u64,
    /// Packets lost on the wire, or because the link was down or overloaded.
    pub lost: u64,
    /// Packets marked instead of dropped.
    pub marked: u64,
    /// IP bytes that left at the other end.
    pub departed: ByteCount,
    /// `departed` relative to what its rate would have carried; `None` without a rate. Packet lengths only,
    /// without [`overhead_per_packet`](LinkConfig::overhead_per_packet).
    pub utilisation: Option<f64>,
    /// IP bytes that left at the other end, over time.
    pub departed_bins: Bins,
    /// Packets that found its buffer full, over time.
    pub dropped_bins: Bins,
    /// Waiting times of packets before their own transmission, µs; with the link's jitter, if it has one.
    pub waiting_us: Histogram<u64>,
}

/// Counters for a [`PortReport`].
#[derive(Debug)]
pub(super) struct Tally {
    began: Instant,
    report: PortReport,
}

impl Tally {
    pub(super) fn new() -> Self {
        let waiting_us = Histogram::new_with_max(WAIT_MAX, 2).expect("the bounds are valid");
        Self {
            began: Instant::ZERO,
            report: PortReport {
                measured: Duration::ZERO,
                arrived: 0,
                dropped: 0,
                lost: 0,
                marked: 0,
                departed: ByteCount::ZERO,
                utilisation: None,
                departed_bins: Bins::seconds(),
                dropped_bins: Bins::seconds(),
                waiting_us,
            },
        }
    }

    pub(super) fn begin(&mut self, now: Instant) {
        *self = Self {
            began: now,
            ..Self::new()
        };
    }

    pub(super) fn arrived(&mut self, now: Instant, dropped: Option<DropReason>) {
        self.report.arrived += 1;
        match dropped {
            None => {}
            Some(DropReason::Buffer) => {
                self.report.dropped += 1;
                self.report.dropped_bins.add(now, 1);
            }
            Some(DropReason::Down | DropReason::Loss | DropReason::Overload) => {
                self.report.lost += 1;
            }
        }
    }

    pub(super) const fn lost(&mut self) {
        self.report.lost += 1;
    }

    pub(super) const fn marked(&mut self) {
        self.report.marked += 1;
    }

    pub(super) fn departed(
        &mut self,
        entered: Instant,
        at: Instant,
        len: ByteCount,
        config: &LinkConfig,
    ) {
        self.report.departed = self.report.departed.saturating_add(len);
        self.report.departed_bins.add(at, len.get());
        if let Some(rate) = config.rate {
            let own = rate.transmission_time_ceil(config.counted(len));
            // At a rate of zero, what left before arrives still.
            let waited = (at - entered).saturating_sub(config.delay.saturating_add(own));
            self.report
                .waiting_us
                .saturating_record(waited.as_micros() as u64);
        }
    }

    pub(super) fn report(&self, now: Instant, rate: Option<Bandwidth>) -> PortReport {
        let measured = now - self.began;
        let utilisation = rate
            .map(|rate| rate.bytes_in_floor(measured).get())
            .filter(|&bytes| bytes > 0)
            .map(|bytes| self.report.departed.get() as f64 / bytes as f64);
        PortReport {
            measured,
            utilisation,
            ..self.report.clone()
        }
    }
}

impl PortReport {
    /// Fraction of arriving packets that found the buffer full; zero if none arrived.
    pub fn drop_rate(&self) -> f64 {
        self.dropped as f64 / self.arrived.max(1) as f64
    }

    /// The mean of [`waiting_us`](Self::waiting_us).
    pub fn waiting_mean(&self) -> Duration {
        Duration::from_secs_f64(self.waiting_us.mean() / 1e6)
    }
}
