//! Tenants of the peer that are not configured here, and tenants of ours that the peer reports as
//! unknown. Without these reports the sender would not see why its packets are lost.

use std::{collections::BTreeMap, time::Duration};

use keiro_units::Instant;

use crate::{id::TenantId, wire::Frame};

/// Tenants that one side knows and the other does not.
#[derive(Debug, Default)]
pub(super) struct UnknownTenants {
    locally: UnknownLocally,
    at_peer: UnknownAtPeer,
}

/// Tenants of the peer that are not configured here.
#[derive(Debug, Default)]
struct UnknownLocally {
    tenants: BTreeMap<TenantId, UnknownTenant>,
    /// When the next report is due; `None`: never.
    due: Option<Instant>,
    /// Before this no tenant makes room for another.
    full_until: Option<Instant>,
}

#[derive(Debug)]
struct UnknownTenant {
    /// Its packets that were dropped.
    packets: u64,
    last: Instant,
    /// How many were last reported to the peer, and when.
    reported: Option<(u64, Instant)>,
}

/// Tenants of ours that the peer reports as unknown.
#[derive(Debug, Default)]
struct UnknownAtPeer {
    /// The last report, and when it came.
    tenants: BTreeMap<TenantId, (u64, Instant)>,
}

/// Tenants that are distinguished; packets of further ones are counted together. Ours: a peer may name any.
const TENANTS_MAX: usize = 64;
/// Time between two reports of one tenant. Ours: people read them.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Silence after which a tenant is reported to the driver again. Ours.
const NEWS_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// What a report of the peer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnknownAtPeerReport {
    /// Packets that it has dropped since its last report.
    pub(super) dropped: u64,
    /// The driver should hear of it.
    pub(super) is_news: bool,
}

impl UnknownTenants {
    /// A tenant is configured here now.
    pub(super) fn on_configured(&mut self, tenant: TenantId) {
        self.locally.forget(tenant);
    }

    /// A tenant is not configured here any more.
    pub(super) fn on_removed(&mut self, tenant: TenantId) {
        self.at_peer.forget(tenant);
    }

    /// A packet of a tenant that is not configured here arrived; `true` if the driver should hear of
    /// the tenant, for the first time or again after a long silence.
    pub(super) fn on_packet(&mut self, now: Instant, tenant: TenantId) -> bool {
        self.locally.on_packet(now, tenant)
    }

    /// The peer reports drops of a tenant of ours. `packets`: how many in all.
    pub(super) fn on_report(
        &mut self,
        now: Instant,
        tenant: TenantId,
        packets: u64,
    ) -> UnknownAtPeerReport {
        self.at_peer.on_report(now, tenant, packets)
    }

    /// Appends reports that are due, as far as there is room up to `end`.
    pub(super) fn write(&mut self, now: Instant, end: usize, out: &mut Vec<u8>) {
        self.locally.write(now, end, out);
    }
}

impl UnknownLocally {
    /// Counts a packet; `true` if the driver should hear of the tenant, for the first time or again after
    /// a long silence.
    fn on_packet(&mut self, now: Instant, tenant: TenantId) -> bool {
        if self.tenants.len() >= TENANTS_MAX && !self.tenants.contains_key(&tenant) {
            if self.full_until.is_some_and(|until| now < until) {
                return false;
            }
            let Some(silent) = self.longest_silent(now) else {
                return false;
            };
            self.tenants.remove(&silent);
        }
        let met = self.tenants.entry(tenant).or_insert(UnknownTenant {
            packets: 0,
            last: now,
            reported: None,
        });
        let silent = now.saturating_duration_since(met.last);
        let is_news = met.packets == 0 || silent >= NEWS_AGAIN_AFTER;
        met.packets += 1;
        met.last = now;
        self.due = earlier(self.due, met.due());
        is_news
    }

    /// The tenant that makes room for another.
    fn longest_silent(&mut self, now: Instant) -> Option<TenantId> {
        let (tenant, met) = self.tenants.iter().min_by_key(|(_, met)| met.last)?;
        let until = met.last + NEWS_AGAIN_AFTER;
        self.full_until = Some(until);
        (now >= until).then_some(*tenant)
    }

    /// It is configured here now.
    fn forget(&mut self, tenant: TenantId) {
        self.tenants.remove(&tenant);
    }

    /// Writes reports that are due, as far as there is room up to `end`. It is called for every packet,
    /// so all tenants are visited only where something is due.
    fn write(&mut self, now: Instant, end: usize, out: &mut Vec<u8>) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        let mut next = None;
        for (tenant, met) in &mut self.tenants {
            if met.due().is_some_and(|due| now >= due) {
                if out.len() + Frame::UNKNOWN_TENANT_LEN_MAX > end {
                    return;
                }
                met.reported = Some((met.packets, now));
                Frame::UnknownTenant {
                    tenant: tenant.0,
                    packets: met.packets,
                }
                .encode(out);
            }
            next = earlier(next, met.due());
        }
        self.due = next;
    }
}

impl UnknownTenant {
    /// When the next report is due; `None`: the peer knows everything.
    fn due(&self) -> Option<Instant> {
        match self.reported {
            None => Some(self.last),
            Some((packets, at)) => (packets < self.packets).then(|| at + REPORT_INTERVAL),
        }
    }
}

/// Of times where `None` is never.
fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

impl UnknownAtPeer {
    /// The peer reports drops of a tenant of ours. `packets`: how many in all.
    fn on_report(&mut self, now: Instant, tenant: TenantId, packets: u64) -> UnknownAtPeerReport {
        let before = self.tenants.insert(tenant, (packets, now));
        let is_news =
            before.is_none_or(|(_, at)| now.saturating_duration_since(at) >= NEWS_AGAIN_AFTER);
        // The peer begins at zero again when it restarts, or when it has known the tenant meanwhile.
        let before = before.map(|(before, _)| before).filter(|b| *b <= packets);
        UnknownAtPeerReport {
            dropped: packets - before.unwrap_or(0),
            is_news,
        }
    }

    /// It is not ours any more.
    fn forget(&mut self, tenant: TenantId) {
        self.tenants.remove(&tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Reader;

    #[test]
    fn peer_that_names_many_tenants_takes_bounded_memory() {
        let mut here = UnknownLocally::default();
        let news = (0..100_000).filter(|id| here.on_packet(Instant::ZERO, TenantId(*id)));
        assert_eq!(news.count(), TENANTS_MAX);
        assert_eq!(here.tenants.len(), TENANTS_MAX);
        let later = Instant::ZERO + NEWS_AGAIN_AFTER;
        assert!(
            here.on_packet(later, TenantId(200_000)),
            "others were silent"
        );
        assert_eq!(here.tenants.len(), TENANTS_MAX);
    }

    #[test]
    fn unknown_tenant_is_reported_once_a_second_and_only_if_there_is_more() {
        let mut here = UnknownLocally::default();
        let report = |here: &mut UnknownLocally, millis: u64| {
            let mut out = Vec::new();
            here.write(Instant::ZERO + Duration::from_millis(millis), 100, &mut out);
            out.len()
        };
        assert_eq!(report(&mut here, 0), 0);
        assert!(here.on_packet(Instant::ZERO, TenantId(7)));
        assert!(report(&mut here, 0) > 0);
        assert!(!here.on_packet(Instant::ZERO, TenantId(7)));
        assert_eq!(report(&mut here, 999), 0);
        assert!(report(&mut here, 1000) > 0);
        assert_eq!(report(&mut here, 5000), 0);
        let later = Instant::ZERO + NEWS_AGAIN_AFTER;
        assert!(here.on_packet(later, TenantId(7)));
    }

    #[test]
    fn tenants_are_not_visited_before_a_report_is_due() {
        let mut here = UnknownLocally::default();
        let at = |millis: u64| Instant::ZERO + Duration::from_millis(millis);
        let mut out = Vec::new();
        here.write(at(0), 100, &mut out);
        assert_eq!((out.len(), here.due), (0, None));
        here.on_packet(at(0), TenantId(7));
        assert_eq!(here.due, Some(at(0)));
        // There is no room, so it stays due.
        here.write(at(5), 0, &mut out);
        assert_eq!((out.len(), here.due), (0, Some(at(0))));
        here.write(at(10), 100, &mut out);
        assert_eq!(here.due, None);
        here.on_packet(at(20), TenantId(7));
        assert_eq!(here.due, Some(at(1010)));
        here.on_packet(at(30), TenantId(8));
        assert_eq!(here.due, Some(at(30)));
        here.write(at(30), 100, &mut out);
        assert_eq!(here.due, Some(at(1010)), "of the first");
        here.forget(TenantId(7));
        let before = out.len();
        here.write(at(1010), 100, &mut out);
        assert_eq!((out.len(), here.due), (before, None));
    }

    /// Every packet is reported within the interval, whatever the order and however little room there is.
    #[test]
    fn every_unknown_packet_is_reported_in_the_end() {
        let mut here = UnknownLocally::default();
        let mut reported = BTreeMap::new();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        let mut now = Instant::ZERO;
        let mut write = |here: &mut UnknownLocally, now, room: u64| {
            let mut out = Vec::new();
            here.write(now, room as usize, &mut out);
            let mut reader = Reader::new(&out);
            while let Some(frame) = Frame::decode(&mut reader).unwrap() {
                let Frame::UnknownTenant { tenant, packets } = frame else {
                    panic!("{frame:?}");
                };
                reported.insert(TenantId(tenant), packets);
            }
        };
        for _ in 0..10_000 {
            now += Duration::from_millis(next(40));
            here.on_packet(now, TenantId(next(TENANTS_MAX as u64) as u32));
            write(&mut here, now, next(60));
        }
        now += REPORT_INTERVAL;
        write(&mut here, now, 10_000);
        let all = here.tenants.iter().map(|(id, met)| (*id, met.packets));
        assert_eq!(reported, all.collect());
        assert_eq!(here.due, None);
    }

    #[test]
    fn packets_that_the_peer_dropped_are_counted_across_its_restarts() {
        let mut there = UnknownAtPeer::default();
        let mut reported = |packets| {
            let report = there.on_report(Instant::ZERO, TenantId(7), packets);
            (report.dropped, report.is_news)
        };
        assert_eq!(reported(3), (3, true));
        assert_eq!(reported(10), (7, false));
        assert_eq!(reported(10), (0, false));
        assert_eq!(reported(2), (2, false));
    }
}
