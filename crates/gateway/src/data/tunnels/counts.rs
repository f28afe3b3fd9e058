//! Counters of a tenant's packets at its device.

use keiro_stats::TenantStats;

/// Packet counters at the device; those of the core's queues are in [`keiro_core::TenantSnapshot`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    pub(crate) stats: TenantStats,
    /// To groups of one link: Linux sends some by itself on every device (RFC 4861, RFC 3810).
    pub(crate) multicast: u64,
    /// From or to addresses that hold on one link.
    pub(crate) link_local: u64,
    pub(crate) malformed: u64,
    pub(crate) not_routable: u64,
    pub(crate) spoofed: u64,
    pub(crate) no_route: u64,
    pub(crate) hop_limit: u64,
    pub(crate) too_big: u64,
    pub(crate) no_path: u64,
    pub(crate) peer_malformed: u64,
    pub(crate) peer_spoofed: u64,
    pub(crate) peer_foreign: u64,
    pub(crate) congested: u64,
    pub(crate) device: u64,
}

impl Counts {
    /// What was dropped, by cause, in a fixed order.
    pub(crate) fn drops(&self) -> [(&'static str, u64); 12] {
        [
            ("malformed", self.malformed),
            ("not_routable", self.not_routable),
            ("spoofed", self.spoofed),
            ("no_route", self.no_route),
            ("hop_limit", self.hop_limit),
            ("too_big", self.too_big),
            ("no_path", self.no_path),
            ("peer_malformed", self.peer_malformed),
            ("peer_spoofed", self.peer_spoofed),
            ("peer_foreign", self.peer_foreign),
            ("congested", self.congested),
            ("device", self.device),
        ]
    }

    /// What is of its link alone, and so was not forwarded: no fault of anybody.
    pub(crate) fn of_the_link(&self) -> [(&'static str, u64); 2] {
        [
            ("multicast", self.multicast),
            ("link_local", self.link_local),
        ]
    }
}
