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

/// Who has caused something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Peer(PeerId),
    /// Clients of this gateway's listeners, all together.
    LocalClients,
    /// Clients of a tenant's split TCP connections.
    SplitClients(TenantId),
}

/// A number of things that owners share.
#[derive(Clone, Debug)]
pub(crate) struct Shares<O = Owner>(Arc<Mutex<Counts<O>>>);

#[derive(Debug)]
struct Counts<O> {
    max: usize,
    all: usize,
    by_owner: BTreeMap<O, usize>,
}

/// One of them; it is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Share<O: Copy + Ord = Owner> {
    of: Shares<O>,
    owner: O,
}

impl<O: Copy + Ord> Shares<O> {
    pub(crate) fn new(max: usize) -> Self {
        Self(Arc::new(Mutex::new(Counts {
            max,
            all: 0,
            by_owner: BTreeMap::new(),
        })))
    }

    /// One more for `owner`; `None`: it has as many as are left.
    pub(crate) fn take(&self, owner: O) -> Option<Share<O>> {
        let mut counts = self.counts();
        let has = counts.by_owner.get(&owner).copied().unwrap_or(0);
        if has >= counts.max.saturating_sub(counts.all) {
            return None;
        }
        counts.all += 1;
        counts.by_owner.insert(owner, has + 1);
        Some(Share {
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

impl<O: Copy + Ord> Drop for Share<O> {
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

    fn fill(shares: &Shares, owner: Owner) -> Vec<Share> {
        std::iter::from_fn(|| shares.take(owner)).collect()
    }

    #[test]
    fn whoever_takes_all_it_can_leaves_some_for_those_that_come_later() {
        let shares = Shares::new(120);
        let first = fill(&shares, Owner::Peer(PeerId(1)));
        assert_eq!(first.len(), 60);
        let local = fill(&shares, Owner::LocalClients);
        assert_eq!(local.len(), 30);
        let second = fill(&shares, Owner::Peer(PeerId(2)));
        assert_eq!(second.len(), 15);
        assert_eq!(fill(&shares, Owner::Peer(PeerId(3))).len(), 8);
        drop((first, local));
        // What was given back is there for others.
        let more = fill(&shares, Owner::Peer(PeerId(2)));
        assert_eq!(second.len() + more.len(), 60);
        drop((second, more));
        let counts = shares.counts();
        assert!(counts.all == 0 && counts.by_owner.is_empty());
    }

    #[test]
    fn nothing_is_given_where_there_is_nothing() {
        assert!(Shares::new(0).take(Owner::LocalClients).is_none());
    }
}
