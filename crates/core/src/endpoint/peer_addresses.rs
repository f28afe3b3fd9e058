//! The addresses at which peers are known, to distinguish them from strangers before anything is decrypted.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use keiro_units::Instant;

use crate::id::PeerId;

/// The addresses are collected again after this time, if they are asked for. Ours: collecting those of
/// ten thousand peers takes some milliseconds.
const COLLECT_EVERY: Duration = Duration::from_secs(1);

/// Addresses of all peers as of the last time that they were collected.
#[derive(Default)]
pub(super) struct PeerAddresses {
    /// Sorted.
    known: Vec<PeerAddress>,
    collected_at: Option<Instant>,
}

/// An address of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PeerAddress {
    ip: IpAddr,
    pub(super) port: u16,
    pub(super) peer: PeerId,
}

impl PeerAddress {
    pub(super) fn new(remote: SocketAddr, peer: PeerId) -> Self {
        Self {
            ip: remote.ip(),
            port: remote.port(),
            peer,
        }
    }
}

impl PeerAddresses {
    pub(super) fn is_stale(&self, now: Instant) -> bool {
        let collected_at = self.collected_at;
        collected_at.is_none_or(|at| now.saturating_duration_since(at) >= COLLECT_EVERY)
    }

    pub(super) fn collect(&mut self, now: Instant, addresses: impl Iterator<Item = PeerAddress>) {
        self.known.clear();
        self.known.extend(addresses);
        self.known.sort_unstable();
        self.known.dedup();
        self.collected_at = Some(now);
    }

    /// A peer or its paths have changed: the addresses are collected again before they are used.
    pub(super) fn on_changed(&mut self) {
        self.collected_at = None;
    }

    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        !self.at_ip(ip).is_empty()
    }

    /// The peers at an IP address.
    pub(super) fn at_ip(&self, ip: IpAddr) -> &[PeerAddress] {
        let from = self.known.partition_point(|known| known.ip < ip);
        let known = &self.known[from..];
        &known[..known.partition_point(|known| known.ip == ip)]
    }

    /// The peers at an IP address and port.
    pub(super) fn at(&self, remote: SocketAddr) -> &[PeerAddress] {
        let known = self.at_ip(remote.ip());
        let from = known.partition_point(|known| known.port < remote.port());
        let known = &known[from..];
        &known[..known.partition_point(|known| known.port == remote.port())]
    }
}
