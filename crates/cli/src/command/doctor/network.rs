//! Uplinks and where the kernel sends packets.

use std::{
    collections::BTreeMap,
    fs, io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    path::Path,
    sync::mpsc,
    thread,
    time::Duration,
};

use ipnet::IpNet;
use keiro_control::config::{Config, Family, InterfaceLocal, Local, PathOrigin, PeerEndpoint};
use keiro_doctor::facts::{Endpoint, Peer, Remote, RouteLookup, Uplink, UplinkProblem};
use keiro_linux::{
    interface::Interface,
    route_lookup::{self, Query},
    uplink::{DefaultRoute, UplinkSocket, is_reverse_path_strict},
};

/// How long the resolver may take for one name.
const RESOLVE_MAX: Duration = Duration::from_secs(5);
/// Addresses of one peer and path that are looked at. Ours, as many as a name may have.
const REMOTES_MAX: usize = 8;

/// The machine's interfaces.
pub(super) struct Network {
    pub(super) interfaces: Vec<Interface>,
}

impl Network {
    pub(super) fn look() -> io::Result<Self> {
        let interfaces = keiro_linux::interface::list()?;
        Ok(Self { interfaces })
    }

    pub(super) fn named(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|of| of.name == name)
    }

    /// A way in the doctor's terms.
    pub(super) fn lookup(&self, query: &Query) -> Option<RouteLookup> {
        Some(match query.lookup().ok()? {
            route_lookup::RouteLookup::Local => RouteLookup::Local,
            route_lookup::RouteLookup::Nowhere => RouteLookup::Nowhere,
            route_lookup::RouteLookup::Interface { index, .. } => {
                let mut all = self.interfaces.iter();
                RouteLookup::Interface(all.find(|of| of.index == index)?.name.clone())
            }
        })
    }
}

/// A setting below `/proc/sys/net`, for instance `ipv4/conf/eth0/forwarding`; `None`: there is none.
pub(super) fn setting(name: &str) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/sys/net/{name}")).ok()?;
    text.trim().parse().ok()
}

/// The networks on the link of an interface.
pub(super) fn networks(interface: &Interface) -> Vec<IpNet> {
    let addresses = interface.addresses.iter();
    let of = addresses.filter(|address| address.peer.is_none() && !is_link_local(address.ip));
    let networks = of.filter_map(|address| IpNet::new(address.ip, address.prefix_len).ok());
    // Of one address there is no neighbour.
    let networks = networks.filter(|network| network.prefix_len() < network.max_prefix_len());
    networks.map(|network| network.trunc()).collect()
}

/// Asks the system's resolver for a name.
pub(super) fn resolve(endpoint: &PeerEndpoint) -> Endpoint {
    let text = endpoint.to_string();
    let addresses = match endpoint {
        PeerEndpoint::Address(address) => Ok(vec![*address]),
        PeerEndpoint::Name(name) => addresses_of(name.host.as_str(), name.port),
    };
    Endpoint { text, addresses }
}

fn addresses_of(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let (sender, receiver) = mpsc::channel();
    let host = host.to_owned();
    thread::spawn(move || {
        let found = (host.as_str(), port).to_socket_addrs();
        // The other end has gone if it took too long.
        let _ = sender.send(found.map(Vec::from_iter));
    });
    match receiver.recv_timeout(RESOLVE_MAX) {
        Ok(Ok(addresses)) if addresses.is_empty() => Err("it has no address".to_owned()),
        Ok(Ok(addresses)) => Ok(addresses),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", RESOLVE_MAX.as_secs())),
    }
}

/// The uplinks of a configuration with its paths. `locals` and `remotes` are what the running gateway says.
pub(super) fn uplinks(
    network: &Network,
    config: &Config,
    peers: &[Peer],
    locals: &BTreeMap<String, SocketAddr>,
    remotes: &[(String, String, SocketAddr)],
) -> Vec<Uplink> {
    let Ok(mut socket) = UplinkSocket::open() else {
        return Vec::new();
    };
    let paths = config.paths.iter();
    let paths = paths.filter(|path| !matches!(path.origin, PathOrigin::Further(_)));
    let one = |path: &keiro_control::config::Path| {
        let name = path.name.as_str();
        let leaves = remotes.iter().filter(|(of, ..)| of == name);
        let mut there: Vec<(String, SocketAddr)> = leaves
            .map(|(_, peer, address)| (peer.clone(), *address))
            .collect();
        if there.is_empty() {
            there = configured(config, path, peers);
        }
        let local = locals.get(name).copied();
        uplink(network, &mut socket, path, local, &there)
    };
    paths.map(one).collect()
}

/// The addresses of peers to which a path leads by the configuration.
fn configured(
    config: &Config,
    path: &keiro_control::config::Path,
    peers: &[Peer],
) -> Vec<(String, SocketAddr)> {
    let index = config.path_named(path.name.as_str());
    let family = path.local.family();
    let mut all = Vec::new();
    for (peer, known) in config.peers.iter().zip(peers) {
        let of_path = index.and_then(|index| peer.endpoints.get(&index).copied());
        let of_all = known.endpoints.iter();
        let of_all = of_all.filter_map(|endpoint| endpoint.addresses.as_ref().ok());
        let addresses: Vec<SocketAddr> = match of_path {
            Some(address) => vec![address],
            None if peer.endpoint.is_empty() => Vec::new(),
            None => of_all.flatten().copied().collect(),
        };
        let is_of = |address: &SocketAddr| family.is_none_or(|of| of == Family::of(address));
        let addresses = addresses.into_iter().filter(is_of).take(REMOTES_MAX);
        all.extend(addresses.map(|address| (peer.name.to_string(), address)));
    }
    all
}

fn uplink(
    network: &Network,
    socket: &mut UplinkSocket,
    path: &keiro_control::config::Path,
    local: Option<SocketAddr>,
    remotes: &[(String, SocketAddr)],
) -> Uplink {
    let interface = interface_of(network, &path.local);
    let (chosen, problem) = match choose(network, &path.local, interface) {
        Ok(chosen) => (Some(chosen), None),
        Err(problem) => (None, Some(problem)),
    };
    let port = match &path.local {
        Local::Address(address) => address.port(),
        Local::Interface(of) => of.port,
    };
    let named = path.local.interface().map(str::to_owned);
    let mut uplink = Uplink {
        path: path.name.to_string(),
        interface: interface.map(|of| of.name.clone()).or(named),
        local: local.or(chosen),
        port,
        problem,
        follows_interface: path.local.interface().is_some(),
        ..Uplink::default()
    };
    let Some(interface) = interface.filter(|_| uplink.problem.is_none()) else {
        return uplink;
    };
    uplink.mtu = interface.mtu;
    uplink.networks = networks(interface);
    let is_ipv6 = uplink.local.is_some_and(|local| local.is_ipv6());
    let route = socket.default_route(Some(interface.index), is_ipv6).ok();
    let route = route.flatten();
    uplink.has_default_route = route.is_some();
    uplink.strict_reverse_path = !is_ipv6 && is_reverse_path_strict(&interface.name);
    uplink.ignores_router_advertisements = is_ipv6 && ignores_advertisements(interface, route);
    // As the gateway binds its socket.
    let is_bound = !interface.loopback && (uplink.follows_interface || route.is_some());
    let leaving = Leaving {
        network,
        interface,
        local: uplink.local,
        is_bound,
    };
    uplink.remotes = remotes
        .iter()
        .map(|(peer, address)| leaving.to(peer, *address))
        .collect();
    uplink
}

/// The socket of an uplink.
struct Leaving<'a> {
    network: &'a Network,
    interface: &'a Interface,
    local: Option<SocketAddr>,
    is_bound: bool,
}

impl Leaving<'_> {
    fn to(&self, peer: &str, address: SocketAddr) -> Remote {
        let local = self
            .local
            .filter(|local| local.is_ipv4() == address.is_ipv4());
        let ports = local.map(|local| (local.port(), address.port()));
        let query = Query {
            source: local.map(|local| local.ip()),
            udp_ports: ports,
            ..Query::to(address.ip())
        };
        let bound = Query {
            outgoing: self.is_bound.then_some(self.interface.index),
            ..query
        };
        // In a VRF another table is looked up.
        let master = format!("/sys/class/net/{}/master", self.interface.name);
        let is_alone = !Path::new(&master).exists();
        let network = self.network;
        Remote {
            peer: peer.to_owned(),
            address,
            on_link: self.interface.reaches(address.ip()),
            outgoing: local.and_then(|_| network.lookup(&bound)),
            reverse: local
                .filter(|_| is_alone)
                .and_then(|_| network.lookup(&query)),
        }
    }
}

fn interface_of<'a>(network: &'a Network, local: &Local) -> Option<&'a Interface> {
    match local {
        Local::Address(address) => {
            let mut all = network.interfaces.iter();
            all.find(|of| of.has(address.ip()))
        }
        Local::Interface(of) => network.named(&of.interface),
    }
}

/// The address from which a path leaves; as the gateway chooses it.
fn choose(
    network: &Network,
    local: &Local,
    interface: Option<&Interface>,
) -> Result<SocketAddr, UplinkProblem> {
    match (local, interface) {
        (Local::Address(address), _) if is_any(address.ip()) => Ok(*address),
        (Local::Address(address), Some(interface)) => {
            usable(interface)?;
            Ok(*address)
        }
        (Local::Address(address), None) => Err(UplinkProblem::AddressNotHere {
            address: address.ip(),
            instead: instead(network, address.ip()),
        }),
        (Local::Interface(_), None) => Err(UplinkProblem::NoInterface),
        (Local::Interface(of), Some(interface)) => of_interface(of, interface),
    }
}

fn is_any(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.is_loopback()
}

fn of_interface(of: &InterfaceLocal, interface: &Interface) -> Result<SocketAddr, UplinkProblem> {
    usable(interface)?;
    if let Some(controller) = &interface.port_of {
        return Err(UplinkProblem::PortOf(controller.clone()));
    }
    let families = match of.family {
        Some(family) => vec![family],
        None => vec![Family::V4, Family::V6],
    };
    let found = families.into_iter().find_map(|family| {
        let addresses = interface.addresses.iter();
        let of_use = addresses.filter(|address| {
            let is_of_family = address.ip.is_ipv6() == (family == Family::V6);
            is_of_family && address.ready && !is_link_local(address.ip) && !is_any(address.ip)
        });
        of_use.min_by_key(|address| address.passing)
    });
    match found {
        Some(address) => Ok(SocketAddr::new(address.ip, of.port)),
        None => Err(UplinkProblem::NoAddress(
            of.family.map_or("", Family::as_str),
        )),
    }
}

fn usable(interface: &Interface) -> Result<(), UplinkProblem> {
    match (interface.up, interface.carrier) {
        (true, true) => Ok(()),
        (false, _) => Err(UplinkProblem::Down),
        (true, false) => Err(UplinkProblem::NoCarrier),
    }
}

/// An interface with another address of the same network, or else with the same version of IP and a default route.
fn instead(network: &Network, wanted: IpAddr) -> Option<(String, IpAddr)> {
    let of_network = network.interfaces.iter().find_map(|interface| {
        let mut addresses = interface.addresses.iter();
        let near = addresses.find(|address| {
            let prefix = IpNet::new(address.ip, address.prefix_len);
            prefix.is_ok_and(|prefix| prefix.contains(&wanted))
        })?;
        Some((interface.name.clone(), near.ip))
    });
    of_network.or_else(|| {
        let mut socket = UplinkSocket::open().ok()?;
        let route = socket.default_route(None, wanted.is_ipv6()).ok()??;
        let mut all = network.interfaces.iter();
        let interface = all.find(|of| Some(of.index) == route.interface)?;
        let mut addresses = interface.addresses.iter();
        let other =
            addresses.find(|of| of.ip.is_ipv6() == wanted.is_ipv6() && !is_link_local(of.ip))?;
        Some((interface.name.clone(), other.ip))
    })
}

/// Whether the kernel ignores router advertisements where its default route is from one, or is missing.
fn ignores_advertisements(interface: &Interface, route: Option<DefaultRoute>) -> bool {
    let of = |name: &str| setting(&format!("ipv6/conf/{}/{name}", interface.name));
    let is_needed = route.is_none_or(|route| route.is_advertised);
    is_needed && of("forwarding") == Some(1) && of("accept_ra") == Some(1)
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}
