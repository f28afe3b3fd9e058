//! Tenants whose packets come though nobody knows them here, and what the peer says of ours that it
//! does not know: who sends would see nothing of it otherwise.

use std::{collections::BTreeMap, time::Duration};

use keiro_units::Instant;

use crate::{id::TenantId, wire::Frame};

/// Tenants of the peer that are not configured here.
#[derive(Debug, Default)]
pub(super) struct UnknownLocally {
    tenants: BTreeMap<TenantId, UnknownTenant>,
    /// Before this there is nothing to tell; `None`: nothing at all.
    due: Option<Instant>,
    /// Before this none is forgotten for another.
    full_until: Option<Instant>,
}

#[derive(Debug)]
struct UnknownTenant {
    /// Its packets that were dropped, in all.
    packets: u64,
    last: Instant,
    /// How many the peer was told of, and when.
    told: Option<(u64, Instant)>,
}

/// Tenants of ours that the peer says it does not know.
#[derive(Debug, Default)]
pub(super) struct UnknownAtPeer {
    /// What it said last, and when.
    tenants: BTreeMap<TenantId, (u64, Instant)>,
}

/// Tenants that are told apart; packets of more are counted all the same. Ours: a peer may name any.
const TENANTS_MAX: usize = 64;
/// How often the peer is told of one. Ours: people read it.
const TELL_INTERVAL: Duration = Duration::from_secs(1);
/// After as much silence it is news again. Ours.
const NEWS_AGAIN_AFTER: Duration = Duration::from_secs(60);

impl UnknownLocally {
    /// Counts a packet; `true`: that is news.
    pub(super) fn on_packet(&mut self, now: Instant, tenant: TenantId) -> bool {
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
            told: None,
        });
        let silent = now.saturating_duration_since(met.last);
        let is_news = met.packets == 0 || silent >= NEWS_AGAIN_AFTER;
        met.packets += 1;
        met.last = now;
        self.due = earlier(self.due, met.due());
        is_news
    }

    /// Who may be forgotten for another.
    fn longest_silent(&mut self, now: Instant) -> Option<TenantId> {
        let (tenant, met) = self.tenants.iter().min_by_key(|(_, met)| met.last)?;
        let until = met.last + NEWS_AGAIN_AFTER;
        self.full_until = Some(until);
        (now >= until).then_some(*tenant)
    }

    /// It is configured here now.
    pub(super) fn forget(&mut self, tenant: TenantId) {
        self.tenants.remove(&tenant);
    }

    /// Writes what the peer is to be told, as far as there is room up to `end`. This is asked for every
    /// packet, so all are looked at only where something is due.
    pub(super) fn write(&mut self, now: Instant, end: usize, out: &mut Vec<u8>) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        let mut next = None;
        for (tenant, met) in &mut self.tenants {
            if met.due().is_some_and(|due| now >= due) {
                if out.len() + Frame::UNKNOWN_TENANT_LEN_MAX > end {
                    return;
                }
                met.told = Some((met.packets, now));
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
    /// When the peer is to be told again; `None`: it knows all.
    fn due(&self) -> Option<Instant> {
        match self.told {
            None => Some(self.last),
            Some((packets, at)) => (packets < self.packets).then(|| at + TELL_INTERVAL),
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
    /// The peer has dropped so many packets of a tenant of ours since it began; how many more than it
    /// said before, and whether that is news.
    pub(super) fn on_report(
        &mut self,
        now: Instant,
        tenant: TenantId,
        packets: u64,
    ) -> (u64, bool) {
        let before = self.tenants.insert(tenant, (packets, now));
        let is_news =
            before.is_none_or(|(_, at)| now.saturating_duration_since(at) >= NEWS_AGAIN_AFTER);
        // A smaller number is that of a peer that has begun anew, or knew the tenant meanwhile.
        let before = before.map(|(before, _)| before).filter(|b| *b <= packets);
        (packets - before.unwrap_or(0), is_news)
    }

    /// It is not ours any more.
    pub(super) fn forget(&mut self, tenant: TenantId) {
        self.tenants.remove(&tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Reader;

    #[test]
    fn a_peer_that_names_many_tenants_takes_no_memory() {
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
    fn a_tenant_is_told_of_once_a_second_and_only_where_there_is_more() {
        let mut here = UnknownLocally::default();
        let tell = |here: &mut UnknownLocally, millis: u64| {
            let mut out = Vec::new();
            here.write(Instant::ZERO + Duration::from_millis(millis), 100, &mut out);
            out.len()
        };
        assert_eq!(tell(&mut here, 0), 0);
        assert!(here.on_packet(Instant::ZERO, TenantId(7)));
        assert!(tell(&mut here, 0) > 0);
        assert!(!here.on_packet(Instant::ZERO, TenantId(7)));
        assert_eq!(tell(&mut here, 999), 0);
        assert!(tell(&mut here, 1000) > 0);
        assert_eq!(tell(&mut here, 5000), 0);
        let later = Instant::ZERO + NEWS_AGAIN_AFTER;
        assert!(here.on_packet(later, TenantId(7)));
    }

    #[test]
    fn nothing_is_looked_for_before_something_is_due() {
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

    /// All that came is told within the interval, whatever the order and however little room there is.
    #[test]
    fn everything_is_told_in_the_end() {
        let mut here = UnknownLocally::default();
        let mut told = BTreeMap::new();
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
                told.insert(TenantId(tenant), packets);
            }
        };
        for _ in 0..10_000 {
            now += Duration::from_millis(next(40));
            here.on_packet(now, TenantId(next(TENANTS_MAX as u64) as u32));
            write(&mut here, now, next(60));
        }
        now += TELL_INTERVAL;
        write(&mut here, now, 10_000);
        let all = here.tenants.iter().map(|(id, met)| (*id, met.packets));
        assert_eq!(told, all.collect());
        assert_eq!(here.due, None);
    }

    #[test]
    fn what_the_peer_dropped_is_counted_over_its_restarts() {
        let mut there = UnknownAtPeer::default();
        let mut told = |packets| there.on_report(Instant::ZERO, TenantId(7), packets);
        assert_eq!(told(3), (3, true));
        assert_eq!(told(10), (7, false));
        assert_eq!(told(10), (0, false));
        assert_eq!(told(2), (2, false));
    }
}
