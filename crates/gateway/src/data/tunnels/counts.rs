//! Counters of a tenant's packets at its device.

use keiro_stats::{DeviceDrops, LinkPackets, TenantStats};

/// Packet counters at the device; those of the core's queues are in [`keiro_core::TenantSnapshot`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    pub(crate) stats: TenantStats,
    pub(crate) drops: DeviceDrops,
    pub(crate) not_forwarded: LinkPackets,
}
