//! Prefixes of a network's other sites that this machine must not route into the tunnel, because it needs the addresses
//! itself: to reach its routers, its resolvers or its hub, or hosts on its own links.
//!
//! Pure: what the machine has is an argument. A prefix is withheld as long as the conflict lasts, and routed when it has
//! ended.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use ipnet::IpNet;

use super::{
    Config, HostName, Learned, Membership, Name, Peer, PeerEndpoint, PeerOrigin, PrefixOwner,
    Tenant,
};

/// What this machine needs to reach outside the tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalNetworks {
    /// Networks that its interfaces are connected to, without loopback and devices of tenants.
    pub networks: Vec<ConnectedNetwork>,
    /// Next hops of the uplinks' default routes, each with the interface.
    pub routers: Vec<(String, IpAddr)>,
    /// Servers that it asks for names, other machines only.
    pub resolvers: Vec<IpAddr>,
}

/// A network on a link of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectedNetwork {
    pub interface: String,
    pub prefix: IpNet,
    /// Paths leave by it.
    pub is_uplink: bool,
}

/// A learned prefix that is not routed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Withheld {
    pub tenant: Name,
    pub prefix: IpNet,
    pub owner: PrefixOwner,
    pub conflict: Conflict,
}

/// What of this machine is within a prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Conflict {
    /// The network of an uplink has all of its addresses.
    Uplink { interface: String, network: IpNet },
    /// It is the network of another interface.
    Interface { interface: String },
    /// It contains the next hop of an uplink.
    Router { interface: String, address: IpAddr },
    /// It contains a resolver.
    Resolver { address: IpAddr },
    /// It contains an address of the hub.
    Hub { address: IpAddr },
}

impl Config {
    /// Learned prefixes that must not be routed on this machine, in their order. `hosts` are addresses of the hub's
    /// host names.
    ///
    /// With a `table` of its own a tenant leads only packets of its own interfaces into the tunnel, and with written
    /// `routes` the administrator has decided: nothing is withheld then.
    pub fn withheld(
        &self,
        ground: &LocalNetworks,
        hosts: &BTreeMap<HostName, Vec<IpAddr>>,
    ) -> Vec<Withheld> {
        let hubs: Vec<&Peer> = self.hubs().collect();
        let needs = Needs {
            ground,
            hubs: hubs.iter().flat_map(|hub| reached_at(hub, hosts)).collect(),
            asks_for_hub: hubs.iter().any(|hub| has_host_name(hub)),
        };
        let follows = |tenant: &&Tenant| tenant.table.is_none() && tenant.routes_follow_peers;
        let mut all = Vec::new();
        for tenant in self.tenants.iter().filter(follows) {
            let withheld = tenant.learned.iter().filter_map(|learned| {
                Some(Withheld {
                    tenant: tenant.name.clone(),
                    prefix: learned.prefix,
                    owner: learned.owner.clone(),
                    conflict: needs.conflict(learned)?,
                })
            });
            all.extend(withheld);
        }
        all
    }

    /// Takes the routes of withheld prefixes away.
    pub(super) fn withhold(&mut self, withheld: &[Withheld]) {
        for tenant in &mut self.tenants {
            let of = withheld.iter().filter(|of| of.tenant == tenant.name);
            let prefixes: BTreeSet<IpNet> = of.map(|of| of.prefix).collect();
            tenant.routes.retain(|route| !prefixes.contains(route));
        }
    }

    /// The hubs of the network that this gateway reaches, which are other gateways.
    pub(crate) fn hubs(&self) -> impl Iterator<Item = &Peer> {
        let first = match self.network {
            Some(Membership::Branch { hub } | Membership::SecondHub { first: hub }) => Some(hub),
            Some(Membership::Hub(_)) | None => None,
        };
        let second = |peer: &&Peer| peer.origin == PeerOrigin::SecondHub;
        let first = first.map(|hub| &self[hub]);
        first.into_iter().chain(self.peers.iter().filter(second))
    }
}

/// Where a peer is reached by its endpoints; `hosts` are addresses of their names.
pub(crate) fn reached_at(peer: &Peer, hosts: &BTreeMap<HostName, Vec<IpAddr>>) -> Vec<IpAddr> {
    let written = peer.endpoint.iter().flat_map(|endpoint| match endpoint {
        PeerEndpoint::Address(address) => vec![address.ip()],
        PeerEndpoint::Name(name) => hosts.get(&name.host).cloned().unwrap_or_default(),
    });
    let of_paths = peer.endpoints.values().map(std::net::SocketAddr::ip);
    written.chain(of_paths).collect()
}

fn has_host_name(peer: &Peer) -> bool {
    let mut endpoints = peer.endpoint.iter();
    endpoints.any(|endpoint| matches!(endpoint, PeerEndpoint::Name(_)))
}

/// What the tunnel and the machine need.
struct Needs<'a> {
    ground: &'a LocalNetworks,
    hubs: Vec<IpAddr>,
    /// The hub is found by a resolver.
    asks_for_hub: bool,
}

impl Needs<'_> {
    fn conflict(&self, learned: &Learned) -> Option<Conflict> {
        let prefix = learned.prefix;
        // All that is nowhere else is not routed in the main table.
        if prefix.prefix_len() == 0 {
            return None;
        }
        if let Some(&address) = self.hubs.iter().find(|address| prefix.contains(*address)) {
            return Some(Conflict::Hub { address });
        }
        let of_network = |network: &ConnectedNetwork| match network.is_uplink {
            true if network.prefix.contains(&prefix) => Some(Conflict::Uplink {
                interface: network.interface.clone(),
                network: network.prefix,
            }),
            false if network.prefix == prefix => Some(Conflict::Interface {
                interface: network.interface.clone(),
            }),
            _ => None,
        };
        if let Some(conflict) = self.ground.networks.iter().find_map(of_network) {
            return Some(conflict);
        }
        let is_lost =
            |address: &IpAddr| prefix.contains(address) && !self.is_nearer(*address, prefix);
        let mut routers = self.ground.routers.iter();
        if let Some((interface, address)) = routers.find(|(_, address)| is_lost(address)) {
            return Some(Conflict::Router {
                interface: interface.clone(),
                address: *address,
            });
        }
        // A resolver behind the hub may be meant, unless it is needed to find the hub.
        if learned.owner == PrefixOwner::Hub && !self.asks_for_hub {
            return None;
        }
        let mut resolvers = self.ground.resolvers.iter();
        let address = *resolvers.find(|address| is_lost(address))?;
        Some(Conflict::Resolver { address })
    }

    /// The route to a connected network is more specific than one to `prefix`.
    fn is_nearer(&self, address: IpAddr, prefix: IpNet) -> bool {
        let mut networks = self.ground.networks.iter().map(|network| network.prefix);
        networks
            .any(|network| network.contains(&address) && network.prefix_len() > prefix.prefix_len())
    }
}

impl fmt::Display for PrefixOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub => f.write_str("the hub"),
            Self::Site(name) => write!(f, "site `{name}`"),
        }
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uplink { interface, network } => {
                write!(f, "uplink {interface} is connected to {network}")
            }
            Self::Interface { interface } => {
                write!(f, "interface {interface} is connected to the same network")
            }
            Self::Router { interface, address } => {
                write!(f, "{address}, the router of uplink {interface}, is in it")
            }
            Self::Resolver { address } => {
                write!(f, "{address}, a resolver of this machine, is in it")
            }
            Self::Hub { address } => {
                write!(f, "{address}, where the hub is reached, is in it")
            }
        }
    }
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tenant,
            prefix,
            owner,
            conflict,
        } = self;
        write!(
            f,
            "tenant {tenant}: {prefix} of {owner} is not routed, since {conflict}"
        )
    }
}
