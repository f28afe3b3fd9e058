//! Datagrams as the driver hands them in and takes them.

use std::net::SocketAddr;

use keiro_units::Instant;

use crate::id::{AppId, FlowId, SocketId};

/// Where a datagram came from and how.
#[derive(Clone, Copy, Debug)]
pub struct DatagramMeta {
    /// The socket on which it arrived.
    pub socket: SocketId,
    /// Its source address, which for a packet of a path may be new.
    pub remote: SocketAddr,
    /// The two ECN bits of its IP header.
    pub ecn: u8,
    /// When the kernel (or the simulated wire) had it; not later than `now`.
    pub received_at: Instant,
}

/// A datagram of an application that is to be sent.
#[derive(Clone, Copy, Debug)]
pub struct NewDatagram<'a> {
    /// Of class [`DeliveryClass::Datagram`](crate::DeliveryClass).
    pub app: AppId,
    /// Datagrams of one client, and what answers them.
    pub flow: FlowId,
    /// It answers a datagram of the flow that came from the peer.
    pub reply: bool,
    /// Its deadline and its lifetime run from here.
    pub made: Instant,
    /// Up to 65,507 bytes.
    pub data: &'a [u8],
}

impl<'a> NewDatagram<'a> {
    /// One that answers none.
    pub fn new(app: AppId, flow: FlowId, made: Instant, data: &'a [u8]) -> Self {
        Self {
            app,
            flow,
            reply: false,
            made,
            data,
        }
    }
}

/// A batch of datagrams for one destination: `len` bytes of the buffer, cut every
/// `segment_size` bytes; only the last may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The socket to send on.
    pub socket: SocketId,
    /// The address that all datagrams of the batch go to.
    pub remote: SocketAddr,
    /// Bytes of the buffer that were filled.
    pub len: usize,
    /// UDP payload of each datagram but the last.
    pub segment_size: usize,
    /// The two ECN bits for the IP header.
    pub ecn: u8,
    /// When the first datagram was due by the pacer: a driver's lateness is `now` minus this.
    pub due: Instant,
}

/// Memory for one batch; reused by the driver.
#[derive(Debug)]
pub struct TransmitBuf {
    pub(crate) bytes: Vec<u8>,
    pub(crate) segments_max: usize,
    /// Of packets that have left.
    pub(crate) spare: Vec<Vec<u8>>,
}

impl TransmitBuf {
    /// Room for up to `segments_max` datagrams of a batch (1 without GSO, at most 64).
    pub fn new(segments_max: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(1 << 16),
            segments_max: segments_max.clamp(1, 64),
            spare: Vec::new(),
        }
    }

    /// What the last `poll_transmit` wrote.
    pub fn filled(&self) -> &[u8] {
        &self.bytes
    }
}

/// Headers of IPv4 and UDP.
pub(crate) const IPV4_OVERHEAD: u16 = 28;
/// Headers of IPv6 and UDP.
pub(crate) const IPV6_OVERHEAD: u16 = 48;

/// Bytes of IP and UDP headers in front of a packet to `remote`.
pub(crate) fn ip_overhead(remote: SocketAddr) -> u16 {
    match remote {
        SocketAddr::V6(remote) if remote.ip().to_ipv4_mapped().is_none() => IPV6_OVERHEAD,
        _ => IPV4_OVERHEAD,
    }
}
