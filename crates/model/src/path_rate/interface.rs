//! What the controller takes and how it names what limits the rate.

use std::{fmt, time::Duration};

use keiro_units::{ByteCount, Instant};

/// What an acknowledgement says about the path.
#[derive(Clone, Copy, Debug)]
pub struct Feedback {
    pub now: Instant,
    /// IP bytes newly acknowledged.
    pub acked: ByteCount,
    /// Packets newly acknowledged.
    pub acked_packets: u64,
    /// Of these, packets that had been declared lost.
    pub spurious_packets: u64,
    /// Packets declared lost.
    pub lost_packets: u64,
    /// IP bytes that are neither acknowledged nor lost, after this.
    pub in_flight: ByteCount,
    /// The largest newly acknowledged packet; `None`: it is not news.
    pub arrival: Option<Arrival>,
}

/// A packet that arrived, and its acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub sent_at: Instant,
    /// IP bytes.
    pub bytes: ByteCount,
    /// By the receiver's clock, µs.
    pub received_us: u64,
    /// From its departure to its acknowledgement, with what held that back.
    pub round_trip: Duration,
}

/// What limits the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It doubles until a queue or a loss shows.
    Startup,
    /// It grows: no queue stands.
    Growing,
    /// It follows what arrives.
    Steady,
    /// What is in flight is to become less: a queue is let go.
    Draining,
    /// A foreign flow keeps the buffer full: the window is that of one CUBIC flow.
    Competing,
    /// More was lost than the line loses.
    LimitedByLoss,
    /// The application sends less.
    LimitedByApplication,
    /// The configured rate.
    LimitedByConfiguration,
}

impl State {
    /// As outputs call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::Growing => "growing",
            Self::Steady => "steady",
            Self::Draining => "draining",
            Self::Competing => "competing",
            Self::LimitedByLoss => "limited by loss",
            Self::LimitedByApplication => "limited by application",
            Self::LimitedByConfiguration => "limited by configuration",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
