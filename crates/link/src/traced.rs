//! A link whose rate was recorded: packets leave when the recorded line would have let them.
//!
//! A [`Trace`] is a list of instants at which 1500 bytes can leave, and begins again at its end, as
//! mahimahi has it. What does not leave at an instant because nothing waits is lost capacity.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use keiro_units::{Bandwidth, ByteCount, Instant};

use crate::{Arrival, Buffer, Departure, DropReason, Queue, Ticket};

/// Bytes that can leave at one instant.
pub const OPPORTUNITY_BYTES: u64 = 1500;
/// Instants of a trace at most. Ours: an hour of 300 Mbit/s takes 720 MB.
pub const OPPORTUNITIES_MAX: usize = 90_000_000;
const NANOS_PER_MILLISECOND: u64 = 1_000_000;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// When a recorded line could send. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
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

impl std::fmt::Display for TraceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

    /// When a packet that arrives at `at` at an idle line leaves.
    pub fn first_after(&self, at: Instant) -> Instant {
        self.at(self.count_until(at))
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

/// One direction of a link that replays a [`Trace`] from time zero: first in, first out.
#[derive(Clone, Debug)]
pub struct TracedLink {
    trace: Trace,
    delay: Duration,
    buffer: Buffer,
    next_ticket: u64,
    /// The first opportunity that is not over.
    next: u64,
    /// What waits, with the bytes that have not left.
    queue: VecDeque<(Ticket, u64)>,
    queue_bytes: u64,
    departures: VecDeque<(Instant, Ticket)>,
}

impl TracedLink {
    /// An idle link with this one-way delay behind its transmitter.
    pub fn new(trace: Trace, delay: Duration, buffer: Buffer) -> Self {
        Self {
            trace,
            delay,
            buffer,
            next_ticket: 0,
            next: 0,
            queue: VecDeque::new(),
            queue_bytes: 0,
            departures: VecDeque::new(),
        }
    }

    /// Handles the arrival of a packet of `len` bytes. `now` is not before any earlier one.
    pub fn arrive(&mut self, now: Instant, len: ByteCount) -> Arrival {
        self.advance(now);
        let has_room = match self.buffer {
            Buffer::Unlimited => true,
            Buffer::Packets(max) => self.queue.len() <= max as usize,
            Buffer::Bytes(max) => {
                self.queue.is_empty() || self.queue_bytes + len.get() <= max.get()
            }
        };
        if !has_room {
            return Arrival::Dropped(DropReason::Buffer);
        }
        if self.queue.len() + self.departures.len() >= crate::PACKETS_MAX {
            return Arrival::Dropped(DropReason::Overload);
        }
        let ticket = Ticket::new(self.next_ticket);
        self.next_ticket += 1;
        self.queue.push_back((ticket, len.get().max(1)));
        self.queue_bytes += len.get().max(1);
        Arrival::Accepted(ticket)
    }

    /// The next packet that is due at `now`; `None` if none is.
    pub fn poll_departure(&mut self, now: Instant) -> Option<Departure> {
        self.advance(now);
        let (at, ticket) = self.departures.pop_front_if(|(at, _)| *at <= now)?;
        Some(Departure {
            ticket,
            at,
            corruption: None,
            duplicated: false,
        })
    }

    /// When [`poll_departure`](Self::poll_departure) is to be called next; `None`: not without an arrival.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let leaves = self.departures.front().map(|(at, _)| *at);
        let sends = (!self.queue.is_empty()).then(|| self.trace.at(self.next));
        leaves.into_iter().chain(sends).min()
    }

    /// What waits at the time of the last call.
    pub fn queue(&self) -> Queue {
        Queue {
            packets: self.queue.len() as u64,
            bytes: self.queue_bytes,
        }
    }

    /// Serves what waits until `now`.
    fn advance(&mut self, now: Instant) {
        while !self.queue.is_empty() {
            let at = self.trace.at(self.next);
            if at > now {
                return;
            }
            self.next += 1;
            self.serve(at);
        }
        // What nothing waited for is over.
        self.next = self.next.max(self.trace.count_until(now));
    }

    fn serve(&mut self, at: Instant) {
        let mut left = OPPORTUNITY_BYTES;
        while let Some((ticket, bytes)) = self.queue.front_mut() {
            let sent = left.min(*bytes);
            *bytes -= sent;
            left -= sent;
            self.queue_bytes -= sent;
            if *bytes > 0 {
                return;
            }
            self.departures.push_back((at + self.delay, *ticket));
            self.queue.pop_front();
            if left == 0 {
                return;
            }
        }
    }
}
