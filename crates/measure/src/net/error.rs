//! Why a measurement between two hosts failed, split by who has to act.

use std::{io, net::SocketAddr, time::Duration};

use keiro_control::{PublicKey, rounded::duration, units::Text};

/// Why a measurement failed. `Display` says what to try.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The other host's name has no address, or no name server answers.
    #[error(
        "{target}: the name cannot be resolved: {reason}; look for a typing error, ask `getent ahosts`, or write the address"
    )]
    Resolve {
        /// As given.
        target: String,
        /// The system's error.
        reason: io::Error,
    },
    /// What is given is neither an address nor a name with a port.
    #[error(
        "{target}: not an address and port: {reason}; write HOST:PORT, as in 192.0.2.1:7610 or [2001:db8::1]:7610"
    )]
    Target {
        /// As given.
        target: String,
        /// The system's error.
        reason: io::Error,
    },
    /// No listener, or a firewall blocks the connection.
    #[error("{server}: cannot connect: {reason}; is `keiro measure --serve` running there, and TCP and UDP port {} open on the way?", server.port())]
    Connect {
        /// The other host.
        server: SocketAddr,
        /// The system's error.
        reason: io::Error,
    },
    /// The address to serve on cannot be had.
    #[error("{address}: cannot listen: {reason}; use another address or port, or stop what has it")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// The system's error.
        reason: io::Error,
    },
    /// The UDP port to serve on or to probe from cannot be had.
    #[error(transparent)]
    Udp(#[from] keiro_linux::udp::BindError),
    /// The server wants to know who asks.
    #[error(
        "{0}: the server demands authentication; give --key FILE and --peer PUBKEY instead of --open"
    )]
    KeyWanted(SocketAddr),
    /// The server does not say who it is.
    #[error(
        "{0}: the server runs with --open and proves nothing; give --open here too, or start it with --key and --allow"
    )]
    IsOpen(SocketAddr),
    /// The server does not know us.
    #[error("{server}: the server does not allow this key; add `--allow {own}` there")]
    NotAllowed {
        /// The other host.
        server: SocketAddr,
        /// Our public key.
        own: PublicKey,
    },
    /// The server has another key than the one given.
    #[error("{server}: the server's key is not {peer}; `keiro pubkey` there prints the right one")]
    WrongKey {
        /// The other host.
        server: SocketAddr,
        /// The key it should have.
        peer: PublicKey,
    },
    /// An answer was forged or altered.
    #[error("{0}: the answer is not authentic; somebody on the way changes it, or --peer is wrong")]
    NotAuthentic(SocketAddr),
    /// The server has its hands full.
    #[error(
        "{0}: the server already has as many clients as it takes; try again later, or give it a larger --clients"
    )]
    Busy(SocketAddr),
    /// The server speaks another version.
    #[error(
        "{0}: the server speaks another version of the protocol; run the same keiro on both hosts"
    )]
    Version(SocketAddr),
    /// The server said no.
    #[error("{server}: refused: {reason}")]
    Refused {
        /// The other host.
        server: SocketAddr,
        /// Its words.
        reason: String,
    },
    /// Nothing more came.
    #[error("{server} has vanished: nothing for {:.1} s {during}", silence.as_secs_f64())]
    Vanished {
        /// The other host.
        server: SocketAddr,
        /// What was being done.
        during: &'static str,
        /// For how long.
        silence: Duration,
    },
    /// The connection broke.
    #[error("{server} has gone: {reason} {during}")]
    Lost {
        /// The other host.
        server: SocketAddr,
        /// What was being done.
        during: &'static str,
        /// The system's error.
        reason: io::Error,
    },
    /// The other side says what it must not say.
    #[error("{server}: does not speak this protocol: {what}")]
    Protocol {
        /// The other host.
        server: SocketAddr,
        /// What was wrong.
        what: &'static str,
    },
    /// Nothing can be measured with these sizes.
    #[error("{0}")]
    Sizes(String),
    /// Probes cannot be sent like this.
    #[error("{0}")]
    Probes(String),
    /// The time for transfers was over before the first one.
    #[error(
        "no transfer fits into {}: a first look at the path took {}, and the shortest transfer takes {} with what is around it; give it longer, as in --time {}",
        duration(*budget), duration(*looked), duration(*shortest), Text(*enough)
    )]
    NoTime {
        /// How long they may take.
        budget: Duration,
        /// Of that, what the first look at the path took.
        looked: Duration,
        /// What the shortest transfer takes, its pause included.
        shortest: Duration,
        /// A time in which every size is measured a few times.
        enough: Duration,
    },
    /// The system refuses something that it rarely refuses.
    #[error("cannot {what}: {reason}")]
    System {
        /// What was wanted.
        what: &'static str,
        /// The system's error.
        reason: io::Error,
    },
    /// The measurement was cancelled.
    #[error("interrupted")]
    Interrupted,
}
