//! Routes of egress peers, and what may happen to them.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;

/// An egress peer, as an index into the configuration that the daemon started with; peers added
/// later get new indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerIndex(pub usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// The main table: best paths.
    Main,
    /// The table of an egress peer. A destination without a route in it is unreachable; no other
    /// table is consulted.
    Peer(PeerIndex),
}

/// Where a route sends packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Via {
    /// To a next hop.
    Router {
        /// The egress peer whose route it is, since its interface may be configured; `None`: not a
        /// route of an egress peer.
        peer: Option<PeerIndex>,
        address: IpAddr,
        /// The link-local next hop, preferred if the neighbour sent one.
        link_local: Option<Ipv6Addr>,
    },
    /// Into an SRv6 segment (H.Encaps): the SID of another router.
    Segment(Ipv6Addr),
    /// Packets are dropped (RFC 7999).
    Blackhole {
        /// The destination is an IPv4 prefix.
        ipv4: bool,
    },
}

/// A route to install or remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteChange {
    pub table: Table,
    pub destination: IpNet,
    /// The new next hop; `None`: remove the route.
    pub via: Option<Via>,
}

/// A next hop whose reachability changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The egress peer whose routes use it; `None`: routes of other neighbours.
    pub peer: Option<PeerIndex>,
    pub address: IpAddr,
    /// Why it is unreachable; `None`: it is reachable again.
    pub lost: Option<String>,
}

/// A change that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {reason}")]
pub struct ForwardingError {
    pub what: String,
    /// Why it failed, and what to try.
    pub reason: String,
}
