//! The interface to the forwarding plane.
//!
//! The daemons describe segments and routes with the types of this module. [`Memory`] implements
//! the trait for tests, [`crate::kernel`] for Linux.

mod route;

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv6Addr},
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, PoisonError},
};

use ipnet::IpNet;
use keiro_units::Instant;

pub use self::route::{ForwardingError, NextHop, PeerIndex, RouteChange, Table, Via};
use crate::{
    config::{EgressPeer, EndpointPeer, Neighbour},
    kernel::KernelView,
    multipath::ConnectionSettings,
    status::{
        Compared, ComparisonStatus, KernelRoute, KernelStatus, PeerInKernel, PrefixStatus, Steered,
        SteeredPrefix, SteeringStatus,
    },
};

/// The egress peers, and what else may change at run time.
#[derive(Clone, Copy, Debug)]
pub enum Configured<'a> {
    /// Of a border router.
    Asbr {
        peers: &'a BTreeMap<PeerIndex, EgressPeer>,
        /// The iBGP neighbours.
        reflectors: &'a [Neighbour],
    },
    /// Of a server.
    Endpoint {
        peers: &'a BTreeMap<PeerIndex, EndpointPeer>,
        /// Settings for new connections.
        others: ConnectionSettings<'a>,
    },
}

/// The forwarding plane.
///
/// Implementations retry transient failures (such as a temporary lack of kernel memory) before they
/// report them. Calls are synchronous: when [`remove_segment`] has returned, no packet is forwarded
/// by the segment any more.
///
/// [`remove_segment`]: Forwarding::remove_segment
pub trait Forwarding: Send {
    /// On a border router, creates the table of an egress peer, empty and closed, and the segment
    /// that leads to it. Has no effect if they exist.
    ///
    /// # Errors
    /// The segment could not be created.
    fn add_segment(&mut self, peer: PeerIndex, sid: Ipv6Addr) -> Result<(), ForwardingError>;

    /// Removes the segment, and then the table with all its routes.
    ///
    /// # Errors
    /// Some of it could not be removed.
    fn remove_segment(&mut self, peer: PeerIndex, sid: Ipv6Addr) -> Result<(), ForwardingError>;

    /// Whether packets of IPv4 for a segment are led to the peer's table, so that
    /// [`add_segment`](Self::add_segment) may succeed.
    fn can_lead_ipv4(&self, _sid: Ipv6Addr) -> bool {
        true
    }

    /// Whether an existing segment of IPv4 has to be removed: for some seconds its packets have not been led
    /// to the peer's table.
    fn has_lost_ipv4(&self, _sid: Ipv6Addr) -> bool {
        false
    }

    /// Changes routes; returns the changes that failed. A route whose next hop is unreachable is
    /// removed, and reported by [`poll_next_hop`](Self::poll_next_hop).
    fn change(&mut self, changes: &[RouteChange]) -> Vec<ForwardingError>;

    /// Removes all routes of a table at once.
    ///
    /// # Errors
    /// Some routes could not be removed.
    fn clear(&mut self, table: Table) -> Result<(), ForwardingError>;

    /// On a server, connections leave routes of an egress peer's table, which stay, or may use them again.
    /// Takes effect with [`follow`](Self::follow).
    fn set_draining(&mut self, _peer: PeerIndex, _routes: &[(IpNet, bool)]) {}

    /// Marks the end of a batch of changes: connections are moved to the new routes now.
    fn follow(&mut self) -> Vec<ForwardingError> {
        Vec::new()
    }

    /// Every neighbour has sent End-of-RIB: routes of an earlier run that were not announced again
    /// are removed.
    fn settled(&mut self) -> Vec<ForwardingError>;

    /// The next hop of [`change`](Self::change) that became unreachable, or reachable again.
    fn poll_next_hop(&mut self) -> Option<NextHop> {
        None
    }

    /// No route uses this unreachable next hop any more, so its state can be dropped.
    fn forget_next_hop(&mut self, _peer: Option<PeerIndex>, _address: IpAddr) {}

    /// Descriptors that become readable when other programs change the state, so that [`tend`] is
    /// due.
    ///
    /// [`tend`]: Forwarding::tend
    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// The number of MPTCP subflows from an egress peer's address; `None`: unknown.
    fn subflows(&self, _peer: PeerIndex) -> Option<usize> {
        None
    }

    /// Totals of the comparison of multipath with single path; `None`: it is off.
    fn comparison(&self) -> Option<ComparisonStatus> {
        None
    }

    /// The comparison for the prefix of these clients, or for prefixes that are part of `_asked`.
    fn compared(&self, _asked: IpNet) -> Vec<PrefixStatus> {
        Vec::new()
    }

    /// The next decision about a client prefix.
    fn poll_decision(&mut self) -> Option<Compared> {
        None
    }

    /// Totals of steering; `None`: it is off.
    fn steering(&self) -> Option<SteeringStatus> {
        None
    }

    /// The steering of the prefix of these clients, or of prefixes that are part of `_asked`.
    fn steered(&self, _asked: IpNet) -> Vec<SteeredPrefix> {
        Vec::new()
    }

    /// The next decision of steering.
    fn poll_steered(&mut self) -> Option<Steered> {
        None
    }

    /// Replaces the egress peers. Peers that are gone, or were replaced under the same index, have
    /// no segment and no routes any more.
    fn follow_configuration(&mut self, _configured: &Configured<'_>) -> Vec<ForwardingError> {
        Vec::new()
    }

    /// The daemon ends: removes what must not outlast it.
    fn end(&mut self) -> Vec<ForwardingError> {
        Vec::new()
    }

    /// Called after neighbours were informed that the daemon ends, for slow work such as disk
    /// writes.
    fn finish(&mut self) {}

    /// Whether the kernel is known to have what is desired.
    fn in_step(&self) -> bool {
        true
    }

    /// The number of routes of an earlier run that no neighbour has announced to this one.
    fn earlier_routes(&self) -> usize {
        0
    }

    /// Whether this host forwards IPv6 packets, or IPv4 packets; `None`: unknown.
    fn forwards(&self, _ipv4: bool) -> Option<bool> {
        None
    }

    /// Whether a route of this host leads to an address.
    fn leads_to(&mut self, _address: IpAddr) -> bool {
        true
    }

    /// Returns for each of these segments whether the probe of the last call was answered, and sends the
    /// next ones, each from the address of the egress peer. The peers' tables have routes to the segments by
    /// themselves.
    fn probe(&mut self, _segments: &BTreeMap<Ipv6Addr, PeerIndex>) -> Vec<(Ipv6Addr, bool)> {
        Vec::new()
    }

    /// What was put into the kernel, with that of each egress peer in the order of their indices; `None`:
    /// there is no kernel state.
    fn installed(&self) -> Option<(KernelStatus, Vec<Option<PeerInKernel>>)> {
        None
    }

    /// The routes for a prefix that were put into the kernel: of the main table, and of each egress peer's
    /// table in the order of their indices. `None`: there is no kernel state.
    fn installed_routes(&self, _asked: IpNet) -> Option<(KernelRoute, Vec<Option<KernelRoute>>)> {
        None
    }

    /// Reads the kernel's state for the control socket; `None`: there is no kernel state.
    fn view(&self) -> Option<KernelView> {
        None
    }

    /// When [`tend`] is due; `None`: only when a descriptor is readable.
    ///
    /// [`tend`]: Forwarding::tend
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Repairs what other programs changed, and retries what failed.
    fn tend(&mut self, _now: Instant) -> Vec<ForwardingError> {
        Vec::new()
    }
}

/// The contents of [`Memory`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    pub segments: BTreeMap<Ipv6Addr, PeerIndex>,
    pub routes: BTreeMap<(Table, IpNet), Via>,
    pub settled: bool,
    /// The number of route changes so far.
    pub changes: usize,
}

/// Forwarding in memory, for tests; clones share their contents.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Mutex<Contents>>);

impl Memory {
    pub fn contents(&self) -> Contents {
        self.with(|contents| contents.clone())
    }

    /// Runs `look` on the contents.
    pub fn with<T>(&self, look: impl FnOnce(&mut Contents) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Forwarding for Memory {
    fn add_segment(&mut self, peer: PeerIndex, sid: Ipv6Addr) -> Result<(), ForwardingError> {
        self.with(|contents| contents.segments.insert(sid, peer));
        Ok(())
    }

    fn remove_segment(&mut self, peer: PeerIndex, sid: Ipv6Addr) -> Result<(), ForwardingError> {
        self.with(|contents| contents.segments.remove(&sid));
        self.clear(Table::Peer(peer))
    }

    fn change(&mut self, changes: &[RouteChange]) -> Vec<ForwardingError> {
        self.with(|contents| {
            contents.changes += changes.len();
            for change in changes {
                let key = (change.table, change.destination);
                match change.via {
                    Some(via) => contents.routes.insert(key, via),
                    None => contents.routes.remove(&key),
                };
            }
        });
        Vec::new()
    }

    fn clear(&mut self, table: Table) -> Result<(), ForwardingError> {
        self.with(|contents| contents.routes.retain(|key, _| key.0 != table));
        Ok(())
    }

    fn settled(&mut self) -> Vec<ForwardingError> {
        self.with(|contents| contents.settled = true);
        Vec::new()
    }

    fn follow_configuration(&mut self, configured: &Configured<'_>) -> Vec<ForwardingError> {
        let is_there = |table: Table| match (table, configured) {
            (Table::Main, _) => true,
            (Table::Peer(peer), Configured::Asbr { peers, .. }) => peers.contains_key(&peer),
            (Table::Peer(peer), Configured::Endpoint { peers, .. }) => peers.contains_key(&peer),
        };
        self.with(|contents| contents.routes.retain(|key, _| is_there(key.0)));
        Vec::new()
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Router { address, .. } => write!(f, "via {address}"),
            Self::Segment(sid) => write!(f, "segment {sid}"),
            Self::Blackhole { .. } => f.write_str("blackhole"),
        }
    }
}
