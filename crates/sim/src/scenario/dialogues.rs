//! Traffic of streams: clients at one gateway that talk to servers at the other.

use std::time::Duration;

use super::{Arrivals, Side};

/// Clients of one application. Each runs its dialogues one after the other: opens a stream, sends
/// requests and waits for each response, and ends the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Dialogues {
    /// Where the clients are; the servers are on the other side.
    pub from: Side,
    /// Which application, by index; of class `stream`.
    pub app: usize,
    /// How many clients there are; dialogues go to them in turn.
    pub clients: u32,
    /// When dialogues are made. A client that is still busy begins later.
    pub made: Arrivals,
    /// Offset from the beginning of the measured phase.
    pub start: Duration,
    /// Requests in a dialogue, each after the response to the one before.
    pub rounds: u32,
    /// Length of a request, at least 1.
    pub request_bytes: u64,
    /// Length of a response, at least 1.
    pub response_bytes: u64,
    /// A client keeps its stream for all of its dialogues.
    pub keeps_stream: bool,
    /// How a stream ends.
    pub end: StreamEnd,
    /// How clients read.
    pub client_reads: Reading,
    /// How servers read.
    pub server_reads: Reading,
}

/// How a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The client ends its direction when it has the last response.
    AfterResponse,
    /// The client ends its direction behind the last request.
    AfterRequest,
    /// The client resets it so long after its opening, and not before.
    ClientResets(Duration),
    /// The server resets it so long after its opening, and not before.
    ServerResets(Duration),
    /// Not at all: it is left open.
    Never,
}

/// How one end of a stream reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// All that is there, at once.
    AtOnce,
    /// So many bytes a second.
    Slowly(u64),
    /// Nothing for so long after the opening, then at once.
    After(Duration),
    /// So many bytes at once, and then none any more.
    UpTo(u64),
}

impl Dialogues {
    /// One client at `a` that reads at once, as its server does, and closes when it has all.
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

    /// Whether its streams come to an end if nothing goes wrong.
    pub const fn ends(&self) -> bool {
        match self.end {
            StreamEnd::ClientResets(_) | StreamEnd::ServerResets(_) => true,
            StreamEnd::Never => false,
            StreamEnd::AfterResponse | StreamEnd::AfterRequest => self.all_is_read(),
        }
    }

    /// Whether its dialogues complete if nothing goes wrong.
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
