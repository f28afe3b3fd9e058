//! Traffic of streams: clients at one gateway and servers at the other.

use std::time::Duration;

use super::{Arrivals, Side};

/// Clients of one application. Each runs its dialogues one after the other: opens a stream, sends requests
/// and waits for each response, and ends the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Dialogues {
    /// Side of the clients; the servers are on the other side.
    pub from: Side,
    /// Index of the application, of class `stream`.
    pub app: usize,
    /// Number of clients; dialogues are assigned in turn.
    pub clients: u32,
    /// Times of dialogues. A client that is still busy begins later.
    pub made: Arrivals,
    /// Offset from the beginning of the measured phase.
    pub start: Duration,
    /// Requests per dialogue, each after the response to the previous one.
    pub rounds: u32,
    /// Length of a request, at least 1.
    pub request_bytes: u64,
    /// Length of a response, at least 1.
    pub response_bytes: u64,
    /// A client uses one stream for all of its dialogues.
    pub keeps_stream: bool,
    /// How a stream ends.
    pub end: StreamEnd,
    pub client_reads: Reading,
    pub server_reads: Reading,
}

/// How a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The client ends its direction after the last response.
    AfterResponse,
    /// The client ends its direction after the last request.
    AfterRequest,
    /// The client resets it this long after opening, and not before.
    ClientResets(Duration),
    /// The server resets it this long after opening, and not before.
    ServerResets(Duration),
    /// It is left open.
    Never,
}

/// How one end of a stream reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// All available data, at once.
    AtOnce,
    /// This many bytes per second.
    Slowly(u64),
    /// Nothing for this long after opening, then at once.
    After(Duration),
    /// This many bytes at once, and then nothing any more.
    UpTo(u64),
}

impl Dialogues {
    /// One client at `a` that reads at once, like its server, and closes when it has all.
    pub const fn new(app: usize, made: Arrivals, rounds: u32, request: u64, response: u64) -> Self {
        Self {
            from: Side::A,
            app,
            clients: 1,
            made,
            start: Duration::ZERO,
            rounds,
            request_bytes: request,
            response_bytes: response,
            keeps_stream: false,
            end: StreamEnd::AfterResponse,
            client_reads: Reading::AtOnce,
            server_reads: Reading::AtOnce,
        }
    }

    /// One dialogue at the beginning.
    pub const fn once(app: usize, rounds: u32, request: u64, response: u64) -> Self {
        let made = Arrivals::Every {
            interval: Duration::ZERO,
            count: 1,
        };
        Self::new(app, made, rounds, request, response)
    }

    /// Whether its streams come to an end if there are no faults.
    pub const fn ends(&self) -> bool {
        match self.end {
            StreamEnd::ClientResets(_) | StreamEnd::ServerResets(_) => true,
            StreamEnd::Never => false,
            StreamEnd::AfterResponse | StreamEnd::AfterRequest => self.all_is_read(),
        }
    }

    /// Whether its dialogues complete if there are no faults.
    pub const fn completes(&self) -> bool {
        let resets = matches!(
            self.end,
            StreamEnd::ClientResets(_) | StreamEnd::ServerResets(_)
        );
        self.all_is_read() && !resets
    }

    /// The client ends its direction itself.
    pub(crate) const fn closes(&self) -> bool {
        matches!(self.end, StreamEnd::AfterResponse | StreamEnd::AfterRequest)
    }

    const fn all_is_read(&self) -> bool {
        !matches!(self.client_reads, Reading::UpTo(_))
            && !matches!(self.server_reads, Reading::UpTo(_))
    }
}
