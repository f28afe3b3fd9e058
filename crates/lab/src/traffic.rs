//! Timed message traffic: sources that follow a schedule, and sinks that log.
//!
//! A message's delay runs from its scheduled time until its last byte has been received. A source that is
//! held up sends late, but the delay still counts from the scheduled time (no coordinated omission). Both
//! instants are on the machine's CLOCK_MONOTONIC, which namespaces share; the first is carried in the
//! message.
//!
//! Transports implement [`MessageSender`] and [`MessageReceiver`]: kernel TCP and MPTCP in [`stream`],
//! Keiro's message socket in [`gateway`].
//!
//! | file | contents |
//! |---|---|
//! | [`body`] | the content of a message |
//! | [`exchange`] | threads that send and receive |
//! | [`log`] | records, CSV, summaries |
//! | [`stream`] | kernel TCP and MPTCP |
//! | [`gateway`] | Keiro's message socket |
//! | [`baseline`] | transports without Keiro |
//! | [`transactions`] | many clients' requests and responses, and their server |
//! | [`load`] | overload of a host's receive path, and the counters that show it |

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

/// Maximum message that sources send and sinks accept [the `message` class's bound].
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// One application that sends messages [path-selection table 2].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppTraffic {
    /// Identifies its messages and seeds its schedule.
    pub number: u32,
    /// Its name for messages and tables.
    pub name: String,
    /// Length of each message, of which the first [`body::HEADER_BYTES`] are a header.
    pub length: ByteCount,
    /// Mean of the exponential intervals between messages.
    pub mean_interval: Duration,
}

/// The sending end of a transport.
pub trait MessageSender: Send {
    /// Sends one message. May block while the transport is full.
    ///
    /// # Errors
    /// The transport's; the source ends then.
    fn send(&mut self, body: Vec<u8>) -> io::Result<()>;

    /// Signals the end of messages.
    ///
    /// # Errors
    /// The transport's.
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The receiving end of a transport.
pub trait MessageReceiver: Send {
    /// Waits for the next message, at most about `timeout`.
    ///
    /// # Errors
    /// The transport's; the sink ends then.
    fn receive(&mut self, timeout: Duration) -> io::Result<Received>;
}

/// Result of a receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    Message(Vec<u8>),
    TimedOut,
    /// The other side has finished.
    Ended,
}

/// Why messages could not be exchanged.
#[derive(Debug, thiserror::Error)]
pub enum TrafficError {
    /// The plan is invalid.
    #[error("application `{app}`: {what}")]
    Plan { app: String, what: String },
    /// A source could not send.
    #[error("application `{app}`: cannot send: {source}")]
    Send { app: String, source: io::Error },
    /// A sink could not receive.
    #[error("a sink cannot receive: {0}")]
    Receive(io::Error),
    /// A connection could not be made.
    #[error("cannot connect to {to}: {source}")]
    Connect {
        to: std::net::SocketAddr,
        source: io::Error,
    },
    /// MPTCP does not use the intended paths.
    #[error(
        "MPTCP uses {got} instead of {wanted}; look at `ip mptcp endpoint` in both hosts and at \
         `sysctl net.mptcp.enabled`"
    )]
    Subflows {
        /// Local addresses of the established subflows.
        got: String,
        /// The intended ones.
        wanted: String,
    },
    /// The transactions are invalid.
    #[error("transactions: {what}")]
    Transactions { what: String },
    /// A client's connection broke, or received something unexpected.
    #[error("client {client}: {source}")]
    Client {
        /// The client's number, from 0.
        client: usize,
        source: io::Error,
    },
    /// A host's receive path cannot be prepared or watched.
    #[error("host `{host}`: {what}: {source}")]
    ReceivePath {
        host: String,
        what: String,
        source: io::Error,
    },
    /// The hosts have no addresses of one family on a link.
    #[error("link `{link}` has no addresses of one family at both ends")]
    NoAddresses { link: String },
    #[error(transparent)]
    Lab(#[from] LabError),
    /// The system refused a thread or a socket.
    #[error("cannot start: {0}")]
    System(io::Error),
}
