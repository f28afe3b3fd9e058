//! Recorded lines: packets leave when the recorded line would have let them.
//!
//! A [`Trace`] is a list of instants at which 1500 bytes can leave, and begins again at its end, as
//! mahimahi has it. What does not leave at an instant because nothing waits is lost capacity.

use std::{fmt, sync::Arc, time::Duration};

use keiro_units::{Bandwidth, ByteCount, Instant};

/// Bytes that can leave at one instant.
pub const OPPORTUNITY_BYTES: u64 = 1500;
/// Instants of a trace at most. Ours: an hour of 300 Mbit/s takes 720 MB.
pub const OPPORTUNITIES_MAX: usize = 90_000_000;
const NANOS_PER_MILLISECOND: u64 = 1_000_000;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// When a recorded line could send. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Trace {
    /// Since its beginning, sorted, at most `period`.
    opportunities: Arc<[u64]>,
    /// After which it begins again, not zero.
    period: u64,
}

/// Why a text is no trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceError {
    /// The line of this number is not a number of milliseconds, or one before the previous.
    BadLine(usize),
    /// Nothing could ever leave.
    Empty,
    /// More than [`OPPORTUNITIES_MAX`].
    TooLong,
}

/// Without the instants, of which there may be millions.
impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("opportunities", &self.opportunities.len())
            .field("period", &self.period())
            .finish()
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadLine(line) => write!(
                f,
                "line {line}: expected a whole number of milliseconds, not below that of the line \
                 before"
            ),
            Self::Empty => f.write_str(
                "nothing can leave: a trace has one line at least, and lasts a millisecond",
            ),
            Self::TooLong => write!(f, "more than {OPPORTUNITIES_MAX} packets: cut the trace"),
        }
    }
}

impl std::error::Error for TraceError {}

impl Trace {
    /// The format of mahimahi: on each line the millisecond at which a packet of 1500 bytes can leave.
    pub fn from_mahimahi(text: &str) -> Result<Self, TraceError> {
        let mut opportunities = Vec::new();
        let mut last = 0;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            let parsed = line.parse::<u64>().ok();
            let nanos = parsed.and_then(|ms| ms.checked_mul(NANOS_PER_MILLISECOND));
            let nanos = nanos.filter(|nanos| *nanos >= last);
            last = nanos.ok_or(TraceError::BadLine(index + 1))?;
            if opportunities.len() >= OPPORTUNITIES_MAX {
                return Err(TraceError::TooLong);
            }
            opportunities.push(last);
        }
        Self::new(opportunities, last)
    }

    /// A rate for each second; zero is an outage.
    pub fn from_rates(rates: &[Bandwidth]) -> Result<Self, TraceError> {
        let mut opportunities = Vec::new();
        // Bits of the next packet that could be sent so far, times a second in ns.
        let mut sent: u128 = 0;
        let packet = u128::from(OPPORTUNITY_BYTES * 8) * u128::from(NANOS_PER_SECOND);
        for (second, rate) in (0_u64..).zip(rates) {
            let rate = u128::from(rate.as_bits_per_second());
            let begins = second * NANOS_PER_SECOND;
            if rate == 0 {
                continue;
            }
            let mut at: u128 = 0;
            loop {
                at += (packet - sent).div_ceil(rate);
                if at > u128::from(NANOS_PER_SECOND) {
                    break;
                }
                sent = 0;
                if opportunities.len() >= OPPORTUNITIES_MAX {
                    return Err(TraceError::TooLong);
                }
                opportunities.push(begins + at as u64);
            }
            let since = opportunities
                .last()
                .map_or(begins, |last| begins.max(*last));
            let left = begins + NANOS_PER_SECOND - since;
            sent = (sent + u128::from(left) * rate).min(packet - 1);
        }
        Self::new(opportunities, rates.len() as u64 * NANOS_PER_SECOND)
    }

    fn new(opportunities: Vec<u64>, period: u64) -> Result<Self, TraceError> {
        if opportunities.is_empty() || period == 0 {
            return Err(TraceError::Empty);
        }
        Ok(Self {
            opportunities: opportunities.into(),
            period,
        })
    }

    /// After which it begins again.
    pub const fn period(&self) -> Duration {
        Duration::from_nanos(self.period)
    }

    /// What it carries on the mean.
    pub fn mean(&self) -> Bandwidth {
        self.bytes_between(Instant::ZERO, Instant::from_nanos(self.period))
            .rate_over_floor(self.period())
    }

    /// What it can carry after `from` and until `to`.
    pub fn bytes_between(&self, from: Instant, to: Instant) -> ByteCount {
        let count = self.count_until(to).saturating_sub(self.count_until(from));
        ByteCount::new(count.saturating_mul(OPPORTUNITY_BYTES))
    }

    /// Opportunities until an instant, that instant included.
    fn count_until(&self, at: Instant) -> u64 {
        let (cycles, rest) = (at.as_nanos() / self.period, at.as_nanos() % self.period);
        let within = self.opportunities.partition_point(|time| *time <= rest);
        cycles.saturating_mul(self.opportunities.len() as u64) + within as u64
    }

    /// When opportunity `number`, counted from the beginning, is.
    fn at(&self, number: u64) -> Instant {
        let len = self.opportunities.len() as u64;
        let (cycle, place) = (number / len, (number % len) as usize);
        let begins = self.period.saturating_mul(cycle);
        Instant::from_nanos(begins.saturating_add(self.opportunities[place]))
    }
}

/// A transmitter that replays a [`Trace`]: where in the recording it is.
#[derive(Clone, Debug)]
pub(crate) struct Replay {
    trace: Trace,
    /// When the recording began.
    began: Instant,
    /// The opportunity that the newest packet ends in, or the first one.
    opportunity: u64,
    /// Bytes of it that later packets may have.
    left: u64,
}

impl Replay {
    pub(crate) fn new(trace: Trace, began: Instant) -> Self {
        Self {
            trace,
            began,
            opportunity: 0,
            left: OPPORTUNITY_BYTES,
        }
    }

    /// When a packet behind those before it has been sent.
    pub(crate) fn serve(&mut self, bytes: u64) -> Instant {
        let bytes = bytes.max(1);
        match bytes.checked_sub(self.left) {
            None | Some(0) => self.left -= bytes,
            Some(beyond) => {
                let more = beyond.div_ceil(OPPORTUNITY_BYTES);
                self.opportunity += more;
                self.left = more * OPPORTUNITY_BYTES - beyond;
            }
        }
        self.instant(self.opportunity)
    }

    /// When a packet that arrives at an idle transmitter has been sent. Opportunities until then, that instant
    /// included, are over.
    pub(crate) fn serve_idle(&mut self, now: Instant, bytes: u64) -> Instant {
        self.opportunity = self.first_after(now);
        self.left = OPPORTUNITY_BYTES;
        self.serve(bytes)
    }

    /// When a packet that arrived at `at` would have been sent, had nothing else been there.
    pub(crate) fn alone(&self, at: Instant, bytes: u64) -> Instant {
        self.instant(self.first_after(at) + bytes.max(1).div_ceil(OPPORTUNITY_BYTES) - 1)
    }

    fn first_after(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began);
        self.trace.count_until(Instant::ZERO + since)
    }

    fn instant(&self, opportunity: u64) -> Instant {
        let since = self.trace.at(opportunity);
        self.began + since.saturating_duration_since(Instant::ZERO)
    }
}
