//! The emulator's report on its links and on itself.

use std::{fmt, time::Duration};

use hdrhistogram::Histogram;
use keiro_link::{Counters, Queue};

/// A run is void if the lateness at the 99th percentile exceeds this; ours: four times the bound of the
/// emulator's delay error.
pub const LATENESS_P99_MAX: Duration = Duration::from_micros(200);

/// See [`EmulatorHandle::report`](super::EmulatorHandle::report).
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Lateness of released frames of all links, since measuring began.
    pub lateness: Lateness,
    /// How long ago measuring began.
    pub measured: Duration,
    /// CPU time of the emulator's thread since its start.
    pub cpu_time: Duration,
    pub running: Duration,
    /// Whether the thread got real-time scheduling.
    pub real_time: bool,
    /// Whether memory is locked.
    pub memory_locked: bool,
    /// Whether idle CPUs poll instead of halting, so that a thread woken by a frame runs at once.
    pub cpus_awake: bool,
    /// One per link, in order of configuration.
    pub links: Vec<LinkReport>,
}

/// Actual minus due release of frames, measured after the system call that sends them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    pub count: u64,
    pub mean: Duration,
    pub p50: Duration,
    pub p99: Duration,
    pub max: Duration,
}

/// Counters of one link since the start.
#[derive(Clone, Debug, Default)]
pub struct LinkReport {
    pub name: String,
    /// From interface a to interface b.
    pub a_to_b: DirectionReport,
    /// From interface b to interface a.
    pub b_to_a: DirectionReport,
}

/// Counters of one direction of a link since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionReport {
    /// The link's own counters: packets, bytes, drops by reason.
    pub link: Counters,
    /// Content of the transmitter's queue.
    pub queue: Queue,
    /// Frames lost before they were read because the emulator was too slow; not emulated loss.
    pub ring_drops: u64,
    /// Frames longer than the interface's MTU, which were left out: the sender's segmentation offload is on.
    pub oversized: u64,
    /// Forwarded frames whose checksum the sender's offload had not filled in; the receiver drops them.
    pub checksum_missing: u64,
    /// Frames lost because all links together exceeded the emulator's capacity.
    pub no_room: u64,
    /// Frames that the outgoing interface refused, for example because it was down.
    pub send_failures: u64,
}

impl Report {
    /// Whether measurements of this time are void: the emulator's lateness exceeded [`LATENESS_P99_MAX`].
    pub fn void(&self) -> bool {
        self.lateness.p99 > LATENESS_P99_MAX
    }

    pub fn link(&self, name: &str) -> Option<&LinkReport> {
        self.links.iter().find(|link| link.name == name)
    }

    /// Frames lost by the emulator itself, over all links: ring, capacity and interfaces.
    pub fn frames_lost(&self) -> u64 {
        let both = self
            .links
            .iter()
            .flat_map(|link| [&link.a_to_b, &link.b_to_a]);
        both.map(|d| d.ring_drops + d.oversized + d.no_room + d.send_failures)
            .sum()
    }
}

impl Lateness {
    /// Reads a histogram of nanoseconds.
    pub(super) fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| Duration::from_nanos(histogram.value_at_quantile(quantile));
        Self {
            count: histogram.len(),
            mean: Duration::from_nanos(histogram.mean() as u64),
            p50: at(0.5),
            p99: at(0.99),
            max: Duration::from_nanos(histogram.max()),
        }
    }
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |duration: Duration| duration.as_nanos() as f64 / 1000.0;
        write!(
            f,
            "{} frames released late by {:.1} µs on average, p50 {:.1} µs, p99 {:.1} µs, max {:.1} µs",
            self.count,
            micros(self.mean),
            micros(self.p50),
            micros(self.p99),
            micros(self.max)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_p99(micros: u64) -> Report {
        let lateness = Lateness {
            p99: Duration::from_micros(micros),
            ..Lateness::default()
        };
        Report {
            lateness,
            ..Report::default()
        }
    }

    #[test]
    fn report_is_void_beyond_the_limit_only() {
        assert!(!Report::default().void());
        assert!(!with_p99(200).void());
        assert!(with_p99(201).void());
    }
}
