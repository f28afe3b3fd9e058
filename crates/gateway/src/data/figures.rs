//! Counters of the data thread's listeners, forwards and sockets.

use std::net::SocketAddr;

use keiro_linux::tcp::Mode;
use keiro_stats::{TcpForwardStats, TcpListenerStats, UdpForwardStats, UdpListenerStats};

use super::{destination::TcpDestination, measure::DelayFigures};

/// An application's counters in the daemon; those of the protocol are in its session's snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct AppFigures {
    pub(crate) delay: DelayFigures,
    pub(crate) senders: u64,
    pub(crate) receivers: u64,
    /// Messages of local senders that were refused.
    pub(crate) refused_here: u64,
    /// IP packets of peers that the rules of their tenants give to it.
    pub(crate) received_packets: u64,
    pub(crate) received_packet_bytes: u64,
    pub(crate) listeners: Vec<ListenerFigures>,
    pub(crate) forward: Option<ForwardFigures>,
    pub(crate) tcp_listeners: Vec<TcpListenerFigures>,
    pub(crate) tcp_forward: Option<TcpForwardFigures>,
}

#[derive(Clone, Debug)]
pub(crate) struct ListenerFigures {
    pub(crate) address: SocketAddr,
    pub(crate) stats: UdpListenerStats,
}

#[derive(Clone, Debug)]
pub(crate) struct ForwardFigures {
    pub(crate) to: SocketAddr,
    pub(crate) stats: UdpForwardStats,
}

/// A TCP listener, in connections.
#[derive(Clone, Debug)]
pub(crate) struct TcpListenerFigures {
    pub(crate) address: SocketAddr,
    pub(crate) mode: Mode,
    pub(crate) stats: TcpListenerStats,
}

/// A TCP forward, in connections.
#[derive(Clone, Debug)]
pub(crate) struct TcpForwardFigures {
    pub(crate) destination: TcpDestination,
    pub(crate) stats: TcpForwardStats,
}
