//! Message traffic whose every message is timed: sources that follow a schedule, sinks that log.
//!
//! A message's delay runs from the moment at which the schedule makes it until its last byte has
//! been received. A source that is held up sends late, but the clock of its messages has run from
//! their scheduled time all the same (no coordinated omission). Both instants are on the machine's
//! CLOCK_MONOTONIC, which namespaces share; the first travels in the message.
//!
//! What carries the messages is behind [`MessageSender`] and [`MessageReceiver`]; kernel TCP and
//! MPTCP are in [`stream`], Keiro's message socket in [`gateway`].
//!
//! | file | does |
//! |---|---|
//! | [`body`] | what a message contains |
//! | [`exchange`] | threads that send and receive |
//! | [`log`] | records, CSV, summaries |
//! | [`stream`] | kernel TCP and MPTCP |
//! | [`gateway`] | Keiro's message socket |
//! | [`baseline`] | what a user would take without Keiro |
//! | [`transactions`] | many clients' requests and responses, and their server |
//! | [`load`] | what overflows a host's receive path, and the counters that show it |

pub mod baseline;
pub mod body;
mod exchange;
mod gateway;
pub mod load;
mod log;
mod stream;
pub mod transactions;

use std::{io, time::Duration};

use keiro_units::ByteCount;

use crate::lab::LabError;

pub use baseline::{Baseline, Transport, run_baseline};
pub use exchange::{Exchange, Plan, exchange};
pub use gateway::{GatewayReceiver, GatewaySender, MessageSocket, Outcomes, SocketError};
pub use log::{MessageRecord, Summary, read_csv, summarize, write_csv};
pub use stream::{Connections, Protocol, StreamReceiver, StreamSender, connect};

/// The largest message that sources make and sinks accept [the `message` class's bound].
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// One application that sends messages [path-selection table 2].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppTraffic {
    /// Identifies its messages and chooses its schedule.
    pub number: u32,
    /// What people call it.
    pub name: String,
    /// The length of each message, which begins with [`body::HEADER_BYTES`] of its own.
    pub length: ByteCount,
    /// The mean of the exponential intervals between messages.
    pub mean_interval: Duration,
}

/// Something that carries messages away.
pub trait MessageSender: Send {
    /// Hands over one message. It may wait while what carries it is full.
    ///
    /// # Errors
    /// The carrier's; the source ends then.
    fn send(&mut self, body: Vec<u8>) -> io::Result<()>;

    /// Says that no more will come.
    ///
    /// # Errors
    /// The carrier's.
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Something that brings messages.
pub trait MessageReceiver: Send {
    /// Waits for the next message, at most about `timeout`.
    ///
    /// # Errors
    /// The carrier's; the sink ends then.
    fn receive(&mut self, timeout: Duration) -> io::Result<Received>;
}

/// What a receiver has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A whole message.
    Message(Vec<u8>),
    /// Nothing in time.
    TimedOut,
    /// The other side has finished.
    Ended,
}

/// Why messages could not be exchanged.
#[derive(Debug, thiserror::Error)]
pub enum TrafficError {
    /// The plan cannot be carried out.
    #[error("application `{app}`: {what}")]
    Plan {
        /// The application's name.
        app: String,
        /// What is wrong.
        what: String,
    },
    /// A source could not send.
    #[error("application `{app}`: cannot send: {source}")]
    Send {
        /// The application's name.
        app: String,
        /// The carrier's error.
        source: io::Error,
    },
    /// A sink could not receive.
    #[error("a sink cannot receive: {0}")]
    Receive(io::Error),
    /// A connection could not be made.
    #[error("cannot connect to {to}: {source}")]
    Connect {
        /// The address.
        to: std::net::SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// MPTCP does not use the paths that it should.
    #[error(
        "MPTCP uses {got} instead of {wanted}; look at `ip mptcp endpoint` in both hosts and at \
         `sysctl net.mptcp.enabled`"
    )]
    Subflows {
        /// Local addresses of the established subflows.
        got: String,
        /// What there should be.
        wanted: String,
    },
    /// Transactions cannot be carried out as asked.
    #[error("transactions: {what}")]
    Transactions {
        /// What is wrong.
        what: String,
    },
    /// A client's connection broke, or brought what it should not.
    #[error("client {client}: {source}")]
    Client {
        /// The client's number, from 0.
        client: usize,
        /// The connection's error.
        source: io::Error,
    },
    /// A host's receive path cannot be prepared or watched.
    #[error("host `{host}`: {what}: {source}")]
    ReceivePath {
        /// The host.
        host: String,
        /// What was tried.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The hosts have no addresses of one family on a link.
    #[error("link `{link}` has no addresses of one family at both ends")]
    NoAddresses {
        /// The link.
        link: String,
    },
    /// The laboratory.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// The system refused a thread or a socket.
    #[error("cannot start: {0}")]
    System(io::Error),
}
