//! The addresses at which peers are known, to distinguish them from strangers before anything is decrypted.

use std::{net::IpAddr, time::Duration};

use keiro_units::Instant;

/// The addresses are collected again after this time, if they are asked for. Ours: collecting those of
/// ten thousand peers takes some milliseconds.
const COLLECT_EVERY: Duration = Duration::from_secs(1);

/// Addresses of all peers as of the last time that they were collected.
#[derive(Default)]
pub(super) struct PeerAddresses {
    sorted: Vec<IpAddr>,
    collected_at: Option<Instant>,
}

impl PeerAddresses {
    pub(super) fn is_stale(&self, now: Instant) -> bool {
        let collected_at = self.collected_at;
        collected_at.is_none_or(|at| now.saturating_duration_since(at) >= COLLECT_EVERY)
    }

    pub(super) fn collect(&mut self, now: Instant, addresses: impl Iterator<Item = IpAddr>) {
        self.sorted.clear();
        self.sorted.extend(addresses);
        self.sorted.sort_unstable();
        self.sorted.dedup();
        self.collected_at = Some(now);
    }

    /// A peer or its paths have changed: the addresses are collected again before they are used.
    pub(super) fn on_changed(&mut self) {
        self.collected_at = None;
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.sorted.binary_search(&address).is_ok()
    }
}
