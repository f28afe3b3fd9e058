//! Which site has heard which revision of the registry.
//!
//! Decides which site gets it next. Sending is the gateway's.

use std::collections::BTreeMap;

use keiro_core::PeerId;

/// Sites that the registry is under way to at once; the others wait for these. Ours: a registry of 1 MiB then takes
/// 16 MiB.
const UNDER_WAY_MAX: usize = 16;

/// Revision of the registry at each site that is up.
#[derive(Debug, Default)]
pub(crate) struct RegistrySync {
    sites: BTreeMap<PeerId, SyncState>,
    /// Something has happened since the last look, because of which one may be due.
    has_news: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SyncState {
    /// It has heard nothing since it is up, or what was sent was lost.
    Due,
    UnderWay(u64),
    Heard(u64),
}

impl RegistrySync {
    /// A peer is up, perhaps anew: a branch may have lost what it heard before.
    pub(crate) fn on_up(&mut self, peer: PeerId) {
        self.sites.insert(peer, SyncState::Due);
        self.has_news = true;
    }

    pub(crate) fn on_down(&mut self, peer: PeerId) {
        self.sites.remove(&peer);
    }

    /// What was sent to a peer has ended.
    pub(crate) fn on_done(&mut self, peer: PeerId, is_delivered: bool) {
        if let Some(push) = self.sites.get_mut(&peer)
            && let SyncState::UnderWay(revision) = *push
        {
            // What was lost is sent again after a while.
            (*push, self.has_news) = match is_delivered {
                true => (SyncState::Heard(revision), true),
                false => (SyncState::Due, self.has_news),
            };
        }
    }

    /// What was lost is due again, and so is another revision.
    pub(crate) fn on_timeout(&mut self) {
        self.has_news = true;
    }

    /// Whether [`poll`](Self::poll) may give a peer.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Forgets peers that are none any more.
    pub(crate) fn retain(&mut self, is_there: impl Fn(PeerId) -> bool) {
        self.sites.retain(|peer, _| is_there(*peer));
    }

    /// To which peer this revision is to be sent now, which is taken as sent; `None`: all have it, or it is under
    /// way to enough of them.
    pub(crate) fn poll(&mut self, revision: u64) -> Option<PeerId> {
        if self.under_way() >= UNDER_WAY_MAX {
            return None;
        }
        let is_due = |push: &SyncState| match push {
            SyncState::Due => true,
            // One after the other, so that a newer one does not overtake it.
            SyncState::UnderWay(_) => false,
            SyncState::Heard(heard) => *heard != revision,
        };
        let (peer, push) = self.sites.iter_mut().find(|(_, push)| is_due(push))?;
        *push = SyncState::UnderWay(revision);
        Some(*peer)
    }

    fn under_way(&self) -> usize {
        let is_under_way = |push: &&SyncState| matches!(push, SyncState::UnderWay(_));
        self.sites.values().filter(is_under_way).count()
    }

    #[cfg(test)]
    fn check_invariants(&self) {
        assert!(self.under_way() <= UNDER_WAY_MAX, "pushes under way");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polled(registry_sync: &mut RegistrySync, revision: u64) -> Vec<u32> {
        let mut peers = Vec::new();
        while let Some(peer) = registry_sync.poll(revision) {
            registry_sync.check_invariants();
            peers.push(peer.0);
        }
        peers
    }

    #[test]
    fn each_site_hears_each_revision_once_and_again_after_it_was_away() {
        let mut registry_sync = RegistrySync::default();
        for peer in [1, 2] {
            registry_sync.on_up(PeerId(peer));
        }
        assert!(registry_sync.take_news() && !registry_sync.take_news());
        assert_eq!(polled(&mut registry_sync, 1), [1, 2]);
        assert_eq!(
            polled(&mut registry_sync, 2),
            [] as [u32; 0],
            "the first is under way"
        );
        registry_sync.on_done(PeerId(1), true);
        assert_eq!(polled(&mut registry_sync, 1), [] as [u32; 0]);
        assert_eq!(polled(&mut registry_sync, 2), [1]);
        // What was lost is sent again, with what is right by then.
        assert!(registry_sync.take_news());
        registry_sync.on_done(PeerId(2), false);
        assert!(!registry_sync.take_news(), "not at once");
        registry_sync.on_timeout();
        assert!(registry_sync.take_news());
        assert_eq!(polled(&mut registry_sync, 2), [2]);
        for peer in [1, 2] {
            registry_sync.on_done(PeerId(peer), true);
            // Of something else that was sent to it.
            registry_sync.on_done(PeerId(peer), false);
        }
        assert_eq!(polled(&mut registry_sync, 2), [] as [u32; 0]);
        registry_sync.on_up(PeerId(2));
        assert_eq!(polled(&mut registry_sync, 2), [2]);
        registry_sync.on_down(PeerId(2));
        registry_sync.on_done(PeerId(2), false);
        assert_eq!(polled(&mut registry_sync, 3), [1]);
        registry_sync.retain(|peer| peer != PeerId(1));
        assert_eq!(polled(&mut registry_sync, 4), [] as [u32; 0]);
    }

    #[test]
    fn pushes_to_a_thousand_sites_take_turns() {
        let mut registry_sync = RegistrySync::default();
        for peer in 0..1000 {
            registry_sync.on_up(PeerId(peer));
        }
        let mut heard = 0;
        loop {
            let sent = polled(&mut registry_sync, 1);
            if sent.is_empty() {
                break;
            }
            assert!(sent.len() <= UNDER_WAY_MAX);
            heard += sent.len();
            for peer in sent {
                registry_sync.on_done(PeerId(peer), true);
            }
        }
        assert_eq!(heard, 1000);
    }
}
