//! Tenants whose packets come though nobody knows them here, and what the peer says of ours that it
//! does not know: who sends would see nothing of it otherwise.

use std::{collections::BTreeMap, time::Duration};

use keiro_model::Instant;

use crate::{id::TenantId, wire::Frame};

/// Tenants of the peer that are not configured here.
#[derive(Debug, Default)]
pub(super) struct UnknownHere {
    tenants: BTreeMap<TenantId, Met>,
}

#[derive(Debug)]
struct Met {
    /// Its packets that were dropped, in all.
    packets: u64,
    last: Instant,
    /// How many the peer was told of, and when.
    told: Option<(u64, Instant)>,
}

/// Tenants of ours that the peer says it does not know.
#[derive(Debug, Default)]
pub(super) struct UnknownThere {
    /// What it said last, and when.
    tenants: BTreeMap<TenantId, (u64, Instant)>,
}

/// Tenants that are told apart; packets of more are counted all the same. Ours: a peer may name any.
const TENANTS_MAX: usize = 64;
/// How often the peer is told of one. Ours: people read it.
const TELL_INTERVAL: Duration = Duration::from_secs(1);
/// After as much silence it is news again. Ours.
const NEWS_AGAIN_AFTER: Duration = Duration::from_secs(60);

impl UnknownHere {
    /// Counts a packet; `true`: that is news.
    pub(super) fn on_packet(&mut self, now: Instant, tenant: TenantId) -> bool {
        if self.tenants.len() >= TENANTS_MAX && !self.tenants.contains_key(&tenant) {
            let Some(silent) = self.longest_silent(now) else {
                return false;
            };
            self.tenants.remove(&silent);
        }
        let met = self.tenants.entry(tenant).or_insert(Met {
            packets: 0,
            last: now,
            told: None,
        });
        let silent = now.saturating_duration_since(met.last);
        let is_news = met.packets == 0 || silent >= NEWS_AGAIN_AFTER;
        met.packets += 1;
        met.last = now;
        is_news
    }

    /// Who may be forgotten for another.
    fn longest_silent(&self, now: Instant) -> Option<TenantId> {
        let (tenant, met) = self.tenants.iter().min_by_key(|(_, met)| met.last)?;
        let silent = now.saturating_duration_since(met.last) >= NEWS_AGAIN_AFTER;
        silent.then_some(*tenant)
    }

    /// It is configured here now.
    pub(super) fn forget(&mut self, tenant: TenantId) {
        self.tenants.remove(&tenant);
    }

    /// Writes what the peer is to be told, as far as there is room up to `end`.
    pub(super) fn write(&mut self, now: Instant, end: usize, out: &mut Vec<u8>) {
        for (tenant, met) in &mut self.tenants {
            if out.len() + Frame::UNKNOWN_TENANT_LEN_MAX > end {
                return;
            }
            let is_due = met.told.is_none_or(|(packets, at)| {
                packets < met.packets && now.saturating_duration_since(at) >= TELL_INTERVAL
            });
            if is_due {
                met.told = Some((met.packets, now));
                Frame::UnknownTenant {
                    tenant: tenant.0,
                    packets: met.packets,
                }
                .encode(out);
            }
        }
    }
}

impl UnknownThere {
    /// The peer has dropped so many packets of a tenant of ours since it began; how many more than it
    /// said before, and whether that is news.
    pub(super) fn on_told(&mut self, now: Instant, tenant: TenantId, packets: u64) -> (u64, bool) {
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

    #[test]
    fn a_peer_that_names_many_tenants_takes_no_memory() {
        let mut here = UnknownHere::default();
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
        let mut here = UnknownHere::default();
        let tell = |here: &mut UnknownHere, millis: u64| {
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
    fn what_the_peer_dropped_is_counted_over_its_restarts() {
        let mut there = UnknownThere::default();
        let mut told = |packets| there.on_told(Instant::ZERO, TenantId(7), packets);
        assert_eq!(told(3), (3, true));
        assert_eq!(told(10), (7, false));
        assert_eq!(told(10), (0, false));
        assert_eq!(told(2), (2, false));
    }
}
