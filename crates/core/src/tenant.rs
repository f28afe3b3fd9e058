//! Tenants as a driver configures and sees them.
//!
//! A tenant is whose traffic it is. IP packets name theirs, and so do applications for their
//! messages, streams and datagrams; everything else belongs to tenant 0, which has no window unless
//! one is configured.

use std::time::Duration;

use keiro_model::fairness::controller::{ControllerConfig, Weight};
use keiro_units::{Bandwidth, ByteCount};
use thiserror::Error;

use crate::id::{PathId, TenantId};

/// One tenant towards one peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TenantConfig {
    /// Which; both gateways call it the same.
    pub id: TenantId,
    /// What it gets in proportion to other tenants, here and at bottlenecks on the way.
    pub weight: Weight,
    /// What decides its window on every path.
    pub controller: ControllerConfig,
    /// Bytes of its IP packets that wait at most; then the longest flow loses its oldest.
    pub queue_bytes_max: ByteCount,
}

impl TenantConfig {
    /// Weight 1, the default controller, and 1 MiB: 170 ms of 50 Mbit/s.
    pub fn new(id: TenantId) -> Self {
        Self {
            id,
            weight: Weight::ONE,
            controller: ControllerConfig::default(),
            queue_bytes_max: ByteCount::new(1 << 20),
        }
    }
}

/// An IP packet that is to be sent.
#[derive(Clone, Debug)]
pub struct IpPacket {
    /// Equal for packets of one flow; flows of a tenant share it evenly.
    pub flow_hash: u32,
    /// The two ECN bits of its IP header: the outer header gets the same (RFC 6040 §4.1).
    pub ecn: u8,
    /// The packet, IP header first. It is carried as it is. [`Endpoint::spare_buffer`] has buffers.
    ///
    /// [`Endpoint::spare_buffer`]: crate::Endpoint::spare_buffer
    pub data: Vec<u8>,
}

/// Why a tenant is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TenantError {
    /// No such peer.
    #[error("unknown peer")]
    UnknownPeer,
    /// The endpoint's `tenants_max` are configured towards this peer.
    #[error("there are {max} tenants towards this peer already; raise the limit or remove one")]
    TooMany {
        /// The limit.
        max: usize,
    },
}

/// Why an IP packet is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketError {
    /// No such peer.
    #[error("unknown peer")]
    UnknownPeer,
    /// Not configured towards this peer, or tenant 0, which carries no IP packets.
    #[error("unknown tenant")]
    UnknownTenant,
    /// The peer has no such application of class `datagram`.
    #[error("unknown application, or not of class datagram")]
    UnknownApplication,
    /// No path is up: counted as a drop of the tenant.
    #[error("no path to the peer is up")]
    NoPath,
    /// Longer than a packet of its path has room for: to be answered with Packet Too Big.
    #[error("a packet of {len} bytes; the path has room for {room}")]
    TooLong {
        /// What was given, bytes.
        len: usize,
        /// Longest that fits, bytes.
        room: usize,
    },
}

/// IP packets of a tenant that were not sent, or not delivered, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketDrops {
    /// Its own queue was full: taken from its longest flow.
    pub queue_full: u64,
    /// The queues of all tenants together were full: taken from its longest flow.
    pub memory: u64,
    /// Waited too long (CoDel, RFC 8289).
    pub delayed: u64,
    /// Refused: longer than the path has room for, or the path's room became less.
    pub too_long: u64,
    /// No path was up.
    pub no_path: u64,
    /// Arrived from the peer while too much waited for the driver.
    pub arrived: u64,
    /// Arrived at the peer, which does not know the tenant, as it says at times.
    pub unknown_at_peer: u64,
}

impl PacketDrops {
    /// Every counter with its name, in a fixed order.
    pub fn by_cause(&self) -> [(&'static str, u64); 7] {
        [
            ("queue_full", self.queue_full),
            ("memory", self.memory),
            ("delayed", self.delayed),
            ("too_long", self.too_long),
            ("no_path", self.no_path),
            ("arrived", self.arrived),
            ("unknown_at_peer", self.unknown_at_peer),
        ]
    }
}

/// One tenant in numbers.
#[derive(Clone, Debug)]
pub struct TenantSnapshot {
    /// Which.
    pub id: TenantId,
    /// Its weight.
    pub weight: Weight,
    /// The name of its controller.
    pub controller: &'static str,
    /// Bytes of IP packets that wait.
    pub queued_bytes: u64,
    /// IP packets accepted.
    pub accepted: u64,
    /// Their bytes.
    pub accepted_bytes: u64,
    /// IP packets of the peer that arrived.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// What was not sent or not delivered.
    pub drops: PacketDrops,
    /// IP packets marked instead of dropped because they waited long.
    pub marked: u64,
    /// Where it has sent something, by path.
    pub paths: Vec<TenantPathSnapshot>,
}

/// One tenant on one path, towards the peer.
#[derive(Clone, Debug, PartialEq)]
pub struct TenantPathSnapshot {
    /// Which path.
    pub path: PathId,
    /// Wire bytes that may be on the way; `None`: no controller bounds them.
    pub window: Option<ByteCount>,
    /// The same in packets of the size that the tenant sends.
    pub window_packets: Option<u64>,
    /// What its controller lets leave, wire bytes; `None`: the window alone decides.
    pub rate: Option<Bandwidth>,
    /// Wire bytes sent and neither acknowledged nor lost.
    pub in_flight: u64,
    /// Wire packets that carried it.
    pub packets_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Of these packets, acknowledged.
    pub packets_acked: u64,
    /// Declared lost. Some may have been late.
    pub packets_lost: u64,
    /// Arrived with a congestion mark; where tenants are acknowledged together, by turns.
    pub packets_marked: u64,
    /// Smoothed round trip (RFC 9002 §5.3) of its packets; `None` before the first sample.
    pub round_trip: Option<Duration>,
    /// Wire bytes acknowledged per second, of the last second.
    pub acked_rate: Bandwidth,
    /// Bytes of IP packets that wait for this path.
    pub queued_bytes: u64,
    /// Flows with something that waits.
    pub flows: usize,
    /// What the controller's answer follows from, by name; the unit is in the name.
    pub terms: Vec<(&'static str, f64)>,
}
