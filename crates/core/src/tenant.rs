//! Tenants as a driver configures and sees them.
//!
//! A tenant is whose traffic it is. IP packets name theirs, and so do applications for their
//! messages, streams and datagrams; everything else belongs to tenant 0, which has no window unless
//! one is configured.

use std::net::IpAddr;

use keiro_model::fairness::controller::{ControllerConfig, Weight};
pub use keiro_stats::PacketDrops;
use keiro_stats::{TenantPathStats, TenantPeerStats};
use keiro_units::ByteCount;
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
    /// The flow's transport takes packets that overtake each other for losses, as TCP and SCTP do. Over several paths
    /// they are delivered in order.
    pub needs_order: bool,
    /// The packet, IP header first. It is carried as it is. [`Endpoint::spare_buffer`] has buffers.
    ///
    /// [`Endpoint::spare_buffer`]: crate::Endpoint::spare_buffer
    pub data: Vec<u8>,
}

/// One of the two addresses of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketAddress {
    /// Where it comes from.
    Source(IpAddr),
    /// Where it goes.
    Destination(IpAddr),
}

/// IP packets of a tenant that were dropped by the gateway that they arrived at, because the address is in none
/// of the prefixes where it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixMismatch {
    /// The tenant, as both gateways call it.
    pub tenant: TenantId,
    /// The address of the latest of them.
    pub address: PacketAddress,
    /// How many since the last report.
    pub packets: u64,
}

/// Why a tenant is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TenantError {
    /// No peer has this id: it was removed, or never added.
    #[error("unknown peer")]
    UnknownPeer,
    /// The endpoint's `tenants_max` are configured towards this peer.
    #[error("there are {max} tenants towards this peer already; raise the limit or remove one")]
    TooMany {
        /// The configured number of tenants.
        max: usize,
    },
}

/// Why an IP packet is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketError {
    /// No peer has this id: it was removed, or never added.
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
    /// Longer than a datagram of its path has room for, and not carried in parts: to be answered with Packet
    /// Too Big.
    #[error("a packet of {len} bytes; the path has room for {room}")]
    TooLong {
        /// What was given, bytes.
        len: usize,
        /// Longest that fits into one datagram, bytes.
        room: usize,
    },
}

/// One tenant in numbers.
#[allow(missing_docs, reason = "some fields say it with their names")]
#[derive(Clone, Debug)]
pub struct TenantSnapshot {
    pub id: TenantId,
    pub weight: Weight,
    /// The name of its controller.
    pub controller: &'static str,
    /// Its counters and gauges.
    pub stats: TenantPeerStats,
    /// What was not sent or not delivered.
    pub drops: PacketDrops,
    /// Where it has sent something, by path.
    pub paths: Vec<TenantPathSnapshot>,
}

/// One tenant on one path, towards the peer.
#[allow(missing_docs, reason = "some fields say it with their names")]
#[derive(Clone, Debug, PartialEq)]
pub struct TenantPathSnapshot {
    pub path: PathId,
    /// Its counters and gauges.
    pub stats: TenantPathStats,
    /// Flows with something that waits.
    pub flows: usize,
    /// What the controller's answer follows from, by name; the unit is in the name.
    pub terms: Vec<(&'static str, f64)>,
}
