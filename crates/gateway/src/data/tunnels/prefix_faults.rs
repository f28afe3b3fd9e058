//! Packets of a tenant with an address that is in none of the prefixes where it should be, and how often that
//! is reported.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use keiro_core::{Instant, PacketAddress, PeerId, TenantId};

/// One fault is reported at most this often. Ours: people read it.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Which address is in none of the prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PrefixFault {
    /// The source of a packet from the device: the tenant's own prefixes do not have it.
    LocalSource,
    /// The destination of a packet from the device: no peer has it.
    NoPeer,
    /// The source of a packet from this peer: the peer's prefixes do not have it.
    PeerSource(PeerId),
    /// The destination of a packet from this peer: the tenant's own prefixes do not have it.
    PeerDestination(PeerId),
}

/// Packets that were dropped for one fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrefixMismatch {
    pub(crate) fault: PrefixFault,
    /// The address of the latest of them.
    pub(crate) address: IpAddr,
    /// How many since the last report.
    pub(crate) packets: u64,
}

impl PrefixMismatch {
    /// The report for the peer that sent the packets; `None`: they came from the device.
    pub(super) fn of_peer(&self, tenant: TenantId) -> Option<(PeerId, keiro_core::PrefixMismatch)> {
        let (peer, address) = match self.fault {
            PrefixFault::LocalSource | PrefixFault::NoPeer => return None,
            PrefixFault::PeerSource(peer) => (peer, PacketAddress::Source(self.address)),
            PrefixFault::PeerDestination(peer) => (peer, PacketAddress::Destination(self.address)),
        };
        let of_peer = keiro_core::PrefixMismatch {
            tenant,
            address,
            packets: self.packets,
        };
        Some((peer, of_peer))
    }
}

/// The faults of one tenant; at most two for each peer, and two for its device.
#[derive(Debug, Default)]
pub(super) struct PrefixFaults {
    faults: BTreeMap<PrefixFault, DropRecord>,
    has_new: bool,
}

#[derive(Debug)]
struct DropRecord {
    address: IpAddr,
    /// Since the last report.
    packets: u64,
    reported_at: Option<Instant>,
}

impl PrefixFaults {
    /// A packet was dropped.
    pub(super) fn note(&mut self, fault: PrefixFault, address: IpAddr) {
        let seen = self.faults.entry(fault).or_insert(DropRecord {
            address,
            packets: 0,
            reported_at: None,
        });
        seen.address = address;
        seen.packets += 1;
        self.has_new = true;
    }

    /// Whether a packet was dropped since the last [`take`](Self::take).
    pub(super) fn has_new(&self) -> bool {
        self.has_new
    }

    /// Whether packets were dropped that were not reported.
    pub(super) fn has_unreported(&self) -> bool {
        self.faults.values().any(|seen| seen.packets > 0)
    }

    /// What is to be reported now.
    pub(super) fn take(&mut self, now: Instant) -> Vec<PrefixMismatch> {
        self.has_new = false;
        let is_due = |seen: &DropRecord| {
            seen.packets > 0
                && seen
                    .reported_at
                    .is_none_or(|at| now.saturating_duration_since(at) >= REPORT_INTERVAL)
        };
        let due = self.faults.iter_mut().filter(|(_, seen)| is_due(seen));
        let report = |(fault, seen): (&PrefixFault, &mut DropRecord)| {
            seen.reported_at = Some(now);
            PrefixMismatch {
                fault: *fault,
                address: seen.address,
                packets: std::mem::take(&mut seen.packets),
            }
        };
        due.map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerId = PeerId(1);

    #[test]
    fn a_fault_is_reported_at_once_and_then_once_a_minute_with_a_count() {
        let mut faults = PrefixFaults::default();
        let mut reported = Vec::new();
        for second in 0..130_u8 {
            let address = IpAddr::from([10, 9, 0, second]);
            for _ in 0..3 {
                faults.note(PrefixFault::PeerSource(PEER), address);
            }
            let now = Instant::ZERO + Duration::from_secs(second.into());
            reported.extend(faults.take(now).into_iter().map(|found| (second, found)));
        }
        let found: Vec<_> = reported
            .iter()
            .map(|(second, found)| (*second, found.address, found.packets))
            .collect();
        let address = |last: u8| IpAddr::from([10, 9, 0, last]);
        let expected = [
            (0, address(0), 3),
            (60, address(60), 180),
            (120, address(120), 180),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn one_fault_hides_no_other_and_their_number_is_bounded() {
        let mut faults = PrefixFaults::default();
        let all = [
            PrefixFault::LocalSource,
            PrefixFault::NoPeer,
            PrefixFault::PeerSource(PEER),
            PrefixFault::PeerDestination(PEER),
        ];
        for number in 0..10_000_u32 {
            for fault in all {
                faults.note(fault, IpAddr::from(number.to_be_bytes()));
            }
        }
        let found = faults.take(Instant::ZERO);
        let kinds: Vec<PrefixFault> = found.iter().map(|found| found.fault).collect();
        assert_eq!(kinds, all);
        assert_eq!(faults.faults.len(), all.len());
        assert_eq!(faults.take(Instant::ZERO), []);
    }

    #[test]
    fn what_follows_a_report_is_counted_though_nothing_comes_after_it() {
        let mut faults = PrefixFaults::default();
        let address = IpAddr::from([10, 9, 0, 1]);
        faults.note(PrefixFault::PeerSource(PEER), address);
        assert_eq!(faults.take(Instant::ZERO).len(), 1);
        assert!(!faults.has_unreported());
        for _ in 0..10_000 {
            faults.note(PrefixFault::PeerSource(PEER), address);
        }
        assert_eq!(faults.take(Instant::ZERO + REPORT_INTERVAL / 2), []);
        assert!(faults.has_unreported());
        let last = faults.take(Instant::ZERO + REPORT_INTERVAL);
        assert_eq!(last[0].packets, 10_000);
        assert!(!faults.has_unreported());
    }
}
