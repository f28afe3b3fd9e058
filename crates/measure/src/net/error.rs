//! Errors of measurements between two hosts, split by who can fix them.

use std::{io, net::SocketAddr, time::Duration};

use keiro_control::{PublicKey, rounded::duration, units::Text};

/// Why a measurement failed. `Display` says what to try.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The other host's name has no address, or no name server answers.
    #[error(
        "{target}: the name cannot be resolved: {reason}; look for a typing error, ask `getent ahosts`, or write the address"
    )]
    Resolve { target: String, reason: io::Error },
    /// The target is neither an address nor a name with a port.
    #[error(
        "{target}: not an address and port: {reason}; write HOST:PORT, as in 192.0.2.1:7610 or [2001:db8::1]:7610"
    )]
    Target { target: String, reason: io::Error },
    /// No listener, or a firewall blocks the connection.
    #[error("{server}: cannot connect: {reason}; is `keiro measure --serve` running there, and TCP and UDP port {} open on the way?", server.port())]
    Connect {
        server: SocketAddr,
        reason: io::Error,
    },
    /// The listening address is not available.
    #[error(
        "{address}: cannot listen: {reason}; use another address or port, or stop the program that uses it"
    )]
    Listen {
        /// The listening address.
        address: SocketAddr,
        reason: io::Error,
    },
    /// The UDP port of the server or client is not available.
    #[error(transparent)]
    Udp(#[from] keiro_linux::udp::BindError),
    /// The server requires authentication.
    #[error(
        "{0}: the server demands authentication; give --key FILE and --peer PUBKEY instead of --open"
    )]
    KeyWanted(SocketAddr),
    /// The server does not authenticate itself.
    #[error(
        "{0}: the server runs with --open and does not authenticate itself; give --open here too, or start it with --key and --allow"
    )]
    IsOpen(SocketAddr),
    /// The server does not know our key.
    #[error("{server}: the server does not allow this key; add `--allow {own}` there")]
    NotAllowed { server: SocketAddr, own: PublicKey },
    /// The server's key is not the one given.
    #[error("{server}: the server's key is not {peer}; `keiro pubkey` there prints the right one")]
    WrongKey {
        server: SocketAddr,
        /// The expected key.
        peer: PublicKey,
    },
    /// An answer was forged or altered.
    #[error("{0}: the answer is not authentic: it was modified in transit, or --peer is wrong")]
    NotAuthentic(SocketAddr),
    /// The server has too many clients.
    #[error(
        "{0}: the server already has as many clients as it takes; try again later, or give it a larger --clients"
    )]
    Busy(SocketAddr),
    /// The server has another protocol version.
    #[error(
        "{0}: the server speaks another version of the protocol; run the same keiro on both hosts"
    )]
    Version(SocketAddr),
    /// The server refused.
    #[error("{server}: refused: {reason}")]
    Refused { server: SocketAddr, reason: String },
    /// The other host fell silent.
    #[error("{server} fell silent: no data for {:.1} s {during}", silence.as_secs_f64())]
    Vanished {
        server: SocketAddr,
        /// The operation that failed.
        during: &'static str,
        silence: Duration,
    },
    #[error("the connection to {server} was lost {during}: {reason}")]
    Lost {
        server: SocketAddr,
        /// The operation that failed.
        during: &'static str,
        reason: io::Error,
    },
    /// The server violates the protocol.
    #[error("{server}: does not speak this protocol: {what}")]
    Protocol {
        server: SocketAddr,
        what: &'static str,
    },
    /// The sizes are invalid.
    #[error("{0}")]
    Sizes(String),
    /// The probes are invalid.
    #[error("{0}")]
    Probes(String),
    /// The time for transfers was over before the first one.
    #[error(
        "no transfer fits into {}: a first look at the path took {}, and the shortest transfer takes {} with what is around it; give it longer, as in --time {}",
        duration(*budget), duration(*looked), duration(*shortest), Text(*enough)
    )]
    NoTime {
        /// The time allowed for all transfers.
        budget: Duration,
        /// Time spent on the first look at the path.
        looked: Duration,
        /// Duration of the shortest transfer, its pause included.
        shortest: Duration,
        /// A time in which every size can be measured a few times.
        enough: Duration,
    },
    /// A rare failure of the operating system.
    #[error("cannot {what}: {reason}")]
    System {
        what: &'static str,
        reason: io::Error,
    },
    /// The measurement was cancelled.
    #[error("interrupted")]
    Interrupted,
}
