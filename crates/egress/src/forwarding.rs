//! Where segments and routes are put.
//!
//! The daemons say what is to be forwarded in the words of this module; [`Memory`] keeps it for
//! tests, the kernel's implementation is behind the same trait.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv6Addr},
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, PoisonError},
};

use ipnet::IpNet;
use keiro_units::Instant;

use crate::{
    config::{EgressPeer, EndpointPeer, Neighbour},
    kernel::View,
    multipath::Others,
    status::{Compared, ComparisonStatus, PrefixStatus},
};

/// An egress peer, by its place in the configuration that a daemon began with; later ones have
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerIndex(pub usize);

/// A table of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// The main one: best paths.
    Main,
    /// An egress peer's own. What it has no route for is unreachable, never looked up elsewhere.
    Peer(PeerIndex),
}

/// Where packets of a route go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Via {
    /// To a router on a link.
    Router {
        /// Whose route it is; `None`: no egress peer's. An egress peer's interface may be known.
        peer: Option<PeerIndex>,
        /// Its address.
        address: IpAddr,
        /// Its address on the link, if it has said it; the better one to use.
        link_local: Option<Ipv6Addr>,
    },
    /// Into a segment (H.Encaps): another router's SID.
    Segment(Ipv6Addr),
}

/// One change of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteChange {
    /// In which table.
    pub table: Table,
    /// Where the route leads to.
    pub destination: IpNet,
    /// Where packets go from now on; `None`: the route is removed.
    pub via: Option<Via>,
}

/// What has become of a next hop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Of whose routes; `None`: no egress peer's.
    pub peer: Option<PeerIndex>,
    /// Where it is.
    pub address: IpAddr,
    /// Why no packets can be sent there; `None`: they can.
    pub lost: Option<String>,
}

/// Egress peers by their indices, and what else may change while a daemon runs.
#[derive(Clone, Copy, Debug)]
pub enum Configured<'a> {
    /// Of a border router.
    Asbr {
        /// Its peers.
        peers: &'a BTreeMap<PeerIndex, EgressPeer>,
        /// Neighbours of its AS.
        reflectors: &'a [Neighbour],
    },
    /// Of a server.
    Endpoint {
        /// Its peers.
        peers: &'a BTreeMap<PeerIndex, EndpointPeer>,
        /// What else concerns its connections.
        others: Others<'a>,
    },
}

/// What was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {reason}")]
pub struct ForwardingError {
    /// What was to be done.
    pub what: String,
    /// Why it was not, and what to try.
    pub reason: String,
}

/// The kernel, or something that takes its place.
///
/// Implementations try again what can be tried again (a kernel without memory for a moment) before
/// they report it. Every call waits until what it says is so: when [`remove_segment`] has returned,
/// no packet is forwarded by the segment any more.
///
/// [`remove_segment`]: Forwarding::remove_segment
pub trait Forwarding: Send {
    /// Makes an egress peer's table, closed and empty, and the segment that leads to it, on a border
    /// router. Does nothing where it is there already.
    ///
    /// # Errors
    /// It is not there.
    fn add_segment(&mut self, peer: PeerIndex, sid: Ipv6Addr) -> Result<(), ForwardingError>;

    /// Removes the segment, and then the table with all its routes.
    ///
    /// # Errors
    /// Something of it is still there.
    fn remove_segment(&mut self, peer: PeerIndex, sid: Ipv6Addr) -> Result<(), ForwardingError>;

    /// Changes routes. What cannot be done is told; the others are done. A route whose next hop cannot
    /// be reached is removed; [`poll_next_hop`](Self::poll_next_hop) tells.
    fn change(&mut self, changes: &[RouteChange]) -> Vec<ForwardingError>;

    /// Removes all routes of a table at once.
    ///
    /// # Errors
    /// Some are still there.
    fn clear(&mut self, table: Table) -> Result<(), ForwardingError>;

    /// A round of changes is whole: what uses routes, as connections do, follows them now.
    fn follow(&mut self) -> Vec<ForwardingError> {
        Vec::new()
    }

    /// Every neighbour has announced what it has: what is there from an earlier run and was not put
    /// again can go.
    fn settled(&mut self) -> Vec<ForwardingError>;

    /// A next hop of [`change`](Self::change) that packets cannot be sent to, or can again.
    fn poll_next_hop(&mut self) -> Option<NextHop> {
        None
    }

    /// No route that anybody announces has this next hop any more, which packets could not be sent to: whether
    /// they can again is not asked any longer.
    fn forget_next_hop(&mut self, _peer: Option<PeerIndex>, _address: IpAddr) {}

    /// What becomes readable when others have changed something, so that [`tend`] is due.
    ///
    /// [`tend`]: Forwarding::tend
    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// How many MPTCP subflows leave by an egress peer's address; `None`: that is not known.
    fn subflows(&self, _peer: PeerIndex) -> Option<usize> {
        None
    }

    /// Multipath against single path; `None`: nothing is compared.
    fn comparison(&self) -> Option<ComparisonStatus> {
        None
    }

    /// The same for the clients of a prefix: theirs, or some of those that are part of it.
    fn compared(&self, _asked: IpNet) -> Vec<PrefixStatus> {
        Vec::new()
    }

    /// What was decided about client prefixes since it was asked last.
    fn poll_decision(&mut self) -> Option<Compared> {
        None
    }

    /// Egress peers are others from now on. Those that are gone, or are another one under the same
    /// index, have no segment and no routes any more.
    fn follow_configuration(&mut self, _configured: &Configured<'_>) -> Vec<ForwardingError> {
        Vec::new()
    }

    /// The daemon ends: what is to be gone with it is removed.
    fn end(&mut self) -> Vec<ForwardingError> {
        Vec::new()
    }

    /// Neighbours have been told that it ends: time for what may take long, such as a disk.
    fn finish(&mut self) {}

    /// What reads the kernel for those who ask; `None`: there is nothing to read.
    fn view(&self) -> Option<View> {
        None
    }

    /// When [`tend`] is due anyway; `None`: not until something is heard.
    ///
    /// [`tend`]: Forwarding::tend
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Puts right what others have changed, and tries again what was refused.
    fn tend(&mut self, _now: Instant) -> Vec<ForwardingError> {
        Vec::new()
    }
}

/// What [`Memory`] holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Segments by their SIDs.
    pub segments: BTreeMap<Ipv6Addr, PeerIndex>,
    /// Routes by table and destination.
    pub routes: BTreeMap<(Table, IpNet), Via>,
    /// Whether [`Forwarding::settled`] was called.
    pub settled: bool,
    /// How many changes of routes there were.
    pub changes: usize,
}

/// Forwarding that only remembers; clones share what they hold.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Mutex<Contents>>);

impl Memory {
    /// What it holds now.
    pub fn contents(&self) -> Contents {
        self.with(|contents| contents.clone())
    }

    /// Looks at what it holds.
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
        }
    }
}
