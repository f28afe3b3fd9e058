//! What a speaker and its driver exchange: configuration, inputs, actions, events and status.

use super::*;

/// The identity of the speaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpeakerConfig {
    pub asn: u32,
    pub router_id: Ipv4Addr,
}

/// The configuration of a neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighbourConfig {
    pub address: IpAddr,
    pub asn: u32,
    pub families: Vec<Family>,
    /// Which received routes are accepted, and how they are modified.
    pub import: Policy,
    /// Which routes are advertised; does not apply to VPN routes made by [`VpnExport`].
    pub export: Policy,
    /// Do not connect; wait for the neighbour to do so.
    pub passive: bool,
    /// Hold time in seconds: 0 (disabled) or at least 3.
    pub hold_time: u16,
    /// Accept several paths per destination (RFC 7911).
    pub add_path: bool,
    /// Restart time in seconds to advertise; the neighbour's routes are kept as well while it
    /// restarts (RFC 4724). `None`: no graceful restart.
    pub graceful_restart: Option<u16>,
    /// This speaker has just restarted and preserved its forwarding state.
    pub restarted: bool,
    /// Offer messages of up to 65,535 octets (RFC 8654).
    pub extended_messages: bool,
    /// The maximum number of routes per family, denied ones included; more end the session (RFC
    /// 4486). `None`: no limit.
    pub routes_max: Option<usize>,
    /// The next hop to advertise; `None`: the local address of the connection.
    pub next_hop: Option<IpAddr>,
    /// Advertise the local address as next hop to an iBGP neighbour.
    pub next_hop_self: bool,
    /// Report changes of every route of this neighbour in [`Changes::by_neighbour`], not only
    /// changes of best paths.
    pub track_routes: bool,
}

/// Makes VPN routes of a neighbour's routes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VpnExport {
    /// The neighbour whose routes are exported.
    pub from: NeighbourId,
    pub targets: Vec<RouteTarget>,
    /// The SRv6 service of IPv6 routes.
    pub service: Service,
    /// The transposed bits of its SID, or implicit null.
    pub label: Label,
    /// The SRv6 service of IPv4 routes, without transposed bits; `None`: they stay unicast routes.
    pub ipv4: Option<Service>,
}

impl VpnExport {
    /// The service of routes of a family, VPN or not; `None`: no VPN routes are made of them.
    pub(super) fn service_for(&self, family: Family) -> Option<Service> {
        match family {
            Family::Ipv4 | Family::Vpn4 => self.ipv4,
            Family::Ipv6 | Family::Vpn6 => Some(self.service),
        }
    }

    pub(super) fn label_for(&self, family: Family) -> Label {
        match family {
            Family::Ipv4 | Family::Vpn4 => Label::IMPLICIT_NULL,
            Family::Ipv6 | Family::Vpn6 => self.label,
        }
    }
}

/// Which side opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    Outgoing,
    Incoming,
}

/// One of the two connections that may exist with a neighbour at a time (RFC 4271 §6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId {
    pub neighbour: NeighbourId,
    pub direction: Direction,
}

/// An input of the speaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Enables sessions with a neighbour.
    Start(NeighbourId),
    /// Disables sessions with a neighbour.
    Stop(NeighbourId),
    /// The neighbour has connected; [`Action::Accept`] or [`Action::Refuse`] follows.
    IncomingConnection(NeighbourId),
    /// A connection is established; the address is the local one.
    Connected(ConnectionId, IpAddr),
    /// A connection attempt failed, or a connection was lost other than by [`Action::Close`].
    Disconnected(ConnectionId),
    Received(ConnectionId, Vec<u8>),
    /// The link to a directly connected neighbour is down: its session ends at once, and no routes
    /// are kept for a restart, since no packet reaches the neighbour. No attempt to connect follows
    /// until [`Input::LinkUp`].
    LinkDown(NeighbourId),
    /// The link to the neighbour is up again; that is also the initial assumption.
    LinkUp(NeighbourId),
    /// BFD has found that no packets pass between the neighbour and this router: its session ends at
    /// once, and no routes are kept for a restart (RFC 5882 §4.3). Attempts to connect go on.
    BfdDown(NeighbourId),
    /// Packets pass again.
    BfdUp(NeighbourId),
    /// The time of [`Speaker::poll_timeout`] has come.
    Timeout,
    Originate(IpNet),
    /// Withdraws an originated route.
    Retract(IpNet),
    /// Starts to make VPN routes; replaces those with the same distinguisher.
    Export(RouteDistinguisher, VpnExport),
    /// Stops making VPN routes with this distinguisher.
    Unexport(RouteDistinguisher),
    /// Asks the neighbour for all routes of a family (RFC 2918).
    Refresh(NeighbourId, Family),
    /// These next hops are unresolvable: the IPv4 and IPv6 routes that use them stay in the RIB,
    /// but the decision process ignores them (RFC 4271 §9.1.2.1). VPN routes depend on their SID
    /// instead. The state is kept as long as a route uses the next hop; [`Changes::unused`] reports
    /// when it is dropped.
    Unreachable(Vec<NextHop>),
    /// These next hops are resolvable again; that is also the initial assumption.
    Reachable(Vec<NextHop>),
}

/// What the driver must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Connect(NeighbourId),
    /// Accept the neighbour's connection as [`Direction::Incoming`].
    Accept(NeighbourId),
    /// Close the neighbour's connection.
    Refuse(NeighbourId),
    /// Send what [`Speaker::transmit`] still has for this connection, as far as that is possible
    /// without waiting, and close it.
    Close(ConnectionId),
}

/// What the driver may want to log or act upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session is established.
    Up(NeighbourId),
    /// A session went down.
    Down(NeighbourId, Down),
    /// The neighbour has announced all routes of a family.
    EndOfRib(NeighbourId, Family),
    /// An UPDATE was malformed; its routes are treated as withdrawn (RFC 7606).
    MalformedUpdate(NeighbourId, String),
    /// Routes that the neighbour should get cannot be advertised to it.
    NotAdvertised(NeighbourId, NotAdvertised),
    /// The neighbour has announced more than 80 % of `routes_max`; once in a session.
    NearMaxPrefix(NeighbourId, Family),
    /// The neighbour exceeded `routes_max`; its session was ended.
    MaxPrefixExceeded(NeighbourId, Family),
}

/// Routes that cannot be advertised, all for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAdvertised {
    /// The first of them.
    pub destination: Destination,
    pub routes: usize,
    pub reason: String,
}

/// What changed since the last call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Destinations whose best path changed.
    pub best: BTreeSet<Destination>,
    /// Destinations whose path from a neighbour with `track_routes` changed.
    pub by_neighbour: BTreeSet<(NeighbourId, Destination)>,
    /// Next hops set [`Input::Unreachable`] that no route uses (any more): the speaker has dropped
    /// their state.
    pub unused: BTreeSet<NextHop>,
}

/// The state of a neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The state of the session; with two connections, of the one that is further.
    pub state: State,
    /// Since when the session is up; `None`: it is down.
    pub up_since: Option<Instant>,
    /// What was negotiated when the session was last up.
    pub negotiated: Negotiated,
    /// Accepted routes by family.
    pub routes: BTreeMap<Family, usize>,
    /// Of these, stale ones: announced before the last session ended, and not again since.
    pub stale: usize,
    /// When stale routes are removed at the latest; `None`: none are kept.
    pub stale_until: Option<Instant>,
    /// The number of destinations advertised to the neighbour.
    pub advertised: usize,
    /// The number of destinations that should be advertised to the neighbour and cannot be.
    pub not_advertised: usize,
    /// Why the session was last down; `None`: it never was.
    pub last_error: Option<String>,
    /// Malformed UPDATEs whose routes were treated as withdrawn.
    pub malformed_updates: u64,
    /// Malformed attributes that were discarded, while their routes stayed (RFC 7606).
    pub discarded_attributes: u64,
    /// UPDATEs received.
    pub updates: u64,
    /// How often the session came up.
    pub times_up: u64,
    /// How often an established session ended.
    pub times_down: u64,
    /// When it last did; `None`: never.
    pub last_down: Option<Instant>,
}

impl ConnectionId {
    pub const fn new(neighbour: NeighbourId, direction: Direction) -> Self {
        Self {
            neighbour,
            direction,
        }
    }
}

impl Direction {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Outgoing => Self::Incoming,
            Self::Incoming => Self::Outgoing,
        }
    }
}
