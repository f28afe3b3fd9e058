//! Counters of the data thread's listeners, forwards and sockets.

use std::net::SocketAddr;

use keiro_linux::tcp::Mode;

use super::{destination::TcpDestination, measure::DelayFigures};

/// An application's counters in the daemon; those of the protocol are in its session's snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct AppFigures {
    pub(crate) delay: DelayFigures,
    pub(crate) senders: u64,
    pub(crate) receivers: u64,
    /// Messages of local senders that were refused.
    pub(crate) refused_here: u64,
    pub(crate) listeners: Vec<ListenerFigures>,
    pub(crate) forward: Option<ForwardFigures>,
    pub(crate) tcp_listeners: Vec<TcpListenerFigures>,
    pub(crate) tcp_forward: Option<TcpForwardFigures>,
}

/// A UDP listener.
#[derive(Clone, Debug)]
pub(crate) struct ListenerFigures {
    pub(crate) address: SocketAddr,
    pub(crate) received_packets: u64,
    pub(crate) received_bytes: u64,
    pub(crate) refused_packets: u64,
}

/// A UDP forward.
#[derive(Clone, Debug)]
pub(crate) struct ForwardFigures {
    pub(crate) to: SocketAddr,
    pub(crate) sent_packets: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) failed_packets: u64,
}

/// A TCP listener, in connections.
#[derive(Clone, Debug)]
pub(crate) struct TcpListenerFigures {
    pub(crate) address: SocketAddr,
    pub(crate) mode: Mode,
    pub(crate) open: u64,
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    pub(crate) reset: u64,
    pub(crate) failed: u64,
}

/// A TCP forward, in connections.
#[derive(Clone, Debug)]
pub(crate) struct TcpForwardFigures {
    pub(crate) destination: TcpDestination,
    pub(crate) open: u64,
    pub(crate) connected: u64,
    pub(crate) failed: u64,
    pub(crate) forbidden: u64,
    pub(crate) reset: u64,
}

/// A WAN socket.
#[derive(Clone, Debug, Default)]
pub(crate) struct SocketFigures {
    /// Dropped because the own receive buffer was full: not the path's loss.
    pub(crate) receive_drops: u64,
    pub(crate) send_buffer_full: u64,
    pub(crate) send_too_large: u64,
    pub(crate) send_failed: u64,
}
