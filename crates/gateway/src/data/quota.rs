//! What peers and local clients share: descriptors, and sockets of flows.
//!
//! Each may have one more while it has less than is left. So one of them alone gets half, two get a third each, and
//! however many take what they can, something is left for one that comes later (dynamic thresholds, Choudhury and
//! Hahne 1998).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use keiro_core::{PeerId, TenantId};

/// The cause of a flow or connection: a peer, or the local clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum QuotaOwner {
    Peer(PeerId),
    /// Clients of this gateway's listeners, all together.
    LocalClients,
    /// Clients of a tenant's split TCP connections.
    SplitClients(TenantId),
}

/// A quota that its owners share.
#[derive(Clone, Debug)]
pub(crate) struct Quota<O = QuotaOwner>(Arc<Mutex<Counts<O>>>);

#[derive(Debug)]
struct Counts<O> {
    max: usize,
    all: usize,
    by_owner: BTreeMap<O, usize>,
}

/// One unit of a [`Quota`], returned when this is dropped.
#[derive(Debug)]
pub(crate) struct QuotaGuard<O: Copy + Ord = QuotaOwner> {
    of: Quota<O>,
    owner: O,
}

impl<O: Copy + Ord> Quota<O> {
    pub(crate) fn new(max: usize) -> Self {
        Self(Arc::new(Mutex::new(Counts {
            max,
            all: 0,
            by_owner: BTreeMap::new(),
        })))
    }

    /// One more for `owner`; `None`: it has as many as are left.
    pub(crate) fn take(&self, owner: O) -> Option<QuotaGuard<O>> {
        let mut counts = self.counts();
        let has = counts.by_owner.get(&owner).copied().unwrap_or(0);
        if has >= counts.max.saturating_sub(counts.all) {
            return None;
        }
        counts.all += 1;
        counts.by_owner.insert(owner, has + 1);
        Some(QuotaGuard {
            of: Self(Arc::clone(&self.0)),
            owner,
        })
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.counts().all
    }

    fn counts(&self) -> MutexGuard<'_, Counts<O>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<O: Copy + Ord> Drop for QuotaGuard<O> {
    fn drop(&mut self) {
        let mut counts = self.of.counts();
        counts.all -= 1;
        if let Some(has) = counts.by_owner.get_mut(&self.owner) {
            *has -= 1;
            if *has == 0 {
                counts.by_owner.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(shares: &Quota, owner: QuotaOwner) -> Vec<QuotaGuard> {
        std::iter::from_fn(|| shares.take(owner)).collect()
    }

    #[test]
    fn greedy_users_leave_a_share_for_later_ones() {
        let shares = Quota::new(120);
        let first = fill(&shares, QuotaOwner::Peer(PeerId(1)));
        assert_eq!(first.len(), 60);
        let local = fill(&shares, QuotaOwner::LocalClients);
        assert_eq!(local.len(), 30);
        let second = fill(&shares, QuotaOwner::Peer(PeerId(2)));
        assert_eq!(second.len(), 15);
        assert_eq!(fill(&shares, QuotaOwner::Peer(PeerId(3))).len(), 8);
        drop((first, local));
        // What was given back is there for others.
        let more = fill(&shares, QuotaOwner::Peer(PeerId(2)));
        assert_eq!(second.len() + more.len(), 60);
        drop((second, more));
        let counts = shares.counts();
        assert!(counts.all == 0 && counts.by_owner.is_empty());
    }

    #[test]
    fn empty_total_grants_nothing() {
        assert!(Quota::new(0).take(QuotaOwner::LocalClients).is_none());
    }
}
