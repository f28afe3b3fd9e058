//! Packets of tenants that one side drops because of an address, as reported to the other side. Without
//! these reports the sender would not see why its packets are lost.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use keiro_units::Instant;

use crate::{
    id::TenantId,
    tenant::{PacketAddress, PrefixMismatch},
    wire::Frame,
};

/// Reports that wait at most; at the bound the oldest is dropped. The driver reports rarely.
const WAITING_MAX: usize = 16;
/// One mismatch is reported to the driver at most this often, however often the peer reports it. Ours.
const NEWS_INTERVAL: Duration = Duration::from_secs(60);

/// Reports in both directions.
#[derive(Debug, Default)]
pub(super) struct PrefixMismatches {
    /// To the peer.
    waiting: VecDeque<PrefixMismatch>,
    /// When the driver was last informed of a source (`true`) or a destination of a tenant of ours. Bounded by
    /// the tenants that are configured.
    heard: BTreeMap<(TenantId, bool), Instant>,
}

impl PrefixMismatches {
    /// Packets of the peer were dropped here.
    pub(super) fn push(&mut self, mismatch: PrefixMismatch) {
        if self.waiting.len() >= WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(mismatch);
    }

    /// Appends reports as far as there is room up to `end`.
    pub(super) fn write(&mut self, end: usize, out: &mut Vec<u8>) {
        while out.len() + Frame::PREFIX_MISMATCH_LEN_MAX <= end
            && let Some(mismatch) = self.waiting.pop_front()
        {
            Frame::PrefixMismatch(mismatch).encode(out);
        }
    }

    /// The peer reports that it has dropped packets of a tenant of ours; `true` if the driver is to be informed of
    /// it.
    pub(super) fn on_report(&mut self, now: Instant, mismatch: &PrefixMismatch) -> bool {
        let is_source = matches!(mismatch.address, PacketAddress::Source(_));
        let key = (mismatch.tenant, is_source);
        let heard_at = self.heard.get(&key);
        let is_news = heard_at.is_none_or(|at| now.saturating_duration_since(*at) >= NEWS_INTERVAL);
        if is_news {
            self.heard.insert(key, now);
        }
        is_news
    }

    /// A tenant is not ours any more.
    pub(super) fn on_removed(&mut self, tenant: TenantId) {
        self.heard.retain(|(heard, _), _| *heard != tenant);
        self.waiting.retain(|mismatch| mismatch.tenant != tenant);
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        assert!(self.waiting.len() <= WAITING_MAX, "reports of prefixes");
    }
}
