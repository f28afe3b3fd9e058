//! Counters of a tenant's packets at its device.

use std::collections::BTreeMap;

use keiro_core::AppId;
use keiro_stats::{DeviceDrops, LinkPackets, NotSplit, TenantStats};

/// Packet counters at the device; those of the core's queues are in [`keiro_core::TenantSnapshot`].
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    pub(crate) stats: TenantStats,
    pub(crate) drops: DeviceDrops,
    pub(crate) not_forwarded: LinkPackets,
    pub(crate) not_split: NotSplit,
    /// What peers have sent, by the application that the rules here give it to.
    pub(crate) received: BTreeMap<AppId, ReceivedPackets>,
}

/// IP packets from peers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ReceivedPackets {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl ReceivedPackets {
    pub(crate) fn add(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}
