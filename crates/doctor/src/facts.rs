//! What is known about a gateway, its machine and its peers. Whatever could not be learnt is `None` or empty, and no
//! cause is found from it.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use keiro_control::{
    config::Withheld,
    protocol::{DeviceState, EventKind, PathFault},
};

use crate::firewall::Firewall;

/// Everything that is known.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub configuration: Configuration,
    /// `None`: none runs with this configuration.
    pub gateway: Option<Gateway>,
    /// A gateway runs, and this user may not ask it.
    pub may_not_ask: bool,
    pub machine: Machine,
    pub uplinks: Vec<Uplink>,
    pub peers: Vec<Peer>,
    pub tenants: Vec<Tenant>,
    pub firewall: Firewall,
}

/// The configuration's file.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    pub file: String,
    /// Why it cannot be used; `None`: it can.
    pub problem: Option<ConfigurationProblem>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigurationProblem {
    Missing,
    /// The first of its problems, and how many there are.
    Invalid {
        first: String,
        count: usize,
    },
}

/// What the running gateway says of itself.
#[derive(Clone, Debug, Default)]
pub struct Gateway {
    pub name: String,
    pub public_key: String,
    /// It has CAP_NET_ADMIN; `None`: not known.
    pub has_net_admin: Option<bool>,
    /// Why the last reload was refused.
    pub rejected: Option<String>,
    /// What only a restart brings.
    pub needs_restart: Vec<String>,
    /// Why the plan store does not answer; `None`: it does, or there is none.
    pub store_lost: Option<String>,
    /// The latest event of each kind and subject.
    pub reports: Vec<Report>,
}

/// What was reported lately.
#[derive(Clone, Debug)]
pub struct Report {
    pub kind: EventKind,
    pub count: u64,
    pub age: Duration,
}

#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// `/dev/net/tun`.
    pub tun: Tun,
    /// What is wrong with the private key's file, with what to do.
    pub key_problem: Option<String>,
    /// A file of the gateway's state that was written later than it is now, and by how much.
    pub clock_behind: Option<(String, Duration)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tun {
    #[default]
    Present,
    Missing,
    /// It is there, and the device cannot be used.
    Refused,
}

/// A path's end at this machine.
#[derive(Clone, Debug, Default)]
pub struct Uplink {
    /// The name of the path.
    pub path: String,
    /// The interface by which it leaves; `None`: none is known.
    pub interface: Option<String>,
    /// The address from which it leaves; `None`: it has none.
    pub local: Option<SocketAddr>,
    pub port: u16,
    /// What keeps it from use.
    pub problem: Option<UplinkProblem>,
    /// Networks on its link.
    pub networks: Vec<IpNet>,
    /// Its address is that of the interface, whatever it is.
    pub follows_interface: bool,
    /// Its largest packet.
    pub mtu: u32,
    pub has_default_route: bool,
    /// The kernel drops what comes in by it from hosts that it would reach by another interface.
    pub strict_reverse_path: bool,
    /// The kernel ignores router advertisements on it, from which its default route is.
    pub ignores_router_advertisements: bool,
    /// Addresses of peers, and how they are reached.
    pub remotes: Vec<Remote>,
}

/// What keeps an uplink from use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UplinkProblem {
    NoInterface,
    Down,
    NoCarrier,
    /// It has no address of this version.
    NoAddress(&'static str),
    /// Another interface receives what comes in by it.
    PortOf(String),
    /// No interface has the address that is configured; what the interface of the network has instead.
    AddressNotHere {
        address: IpAddr,
        instead: Option<(String, IpAddr)>,
    },
}

/// An address to which a path leads.
#[derive(Clone, Debug)]
pub struct Remote {
    pub peer: String,
    pub address: SocketAddr,
    /// It is on the uplink's own link.
    pub on_link: bool,
    /// How packets from the uplink's socket go there; `None`: not known.
    pub outgoing: Option<RouteLookup>,
    /// How the kernel itself would send packets of the path's address there, which a strict reverse path filter
    /// compares; `None`: not known.
    pub reverse: Option<RouteLookup>,
}

/// Where the kernel sends a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteLookup {
    /// By this interface.
    Interface(String),
    /// It is this machine's own.
    Local,
    /// There is no route, or one that refuses.
    Nowhere,
}

#[derive(Clone, Debug, Default)]
pub struct Peer {
    pub name: String,
    /// Empty: it has to connect to this gateway.
    pub endpoints: Vec<Endpoint>,
    /// What the gateway says; `None`: none runs.
    pub session: Option<Session>,
}

/// Where a peer is reached.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// As it is written.
    pub text: String,
    /// Its addresses, or why they are not known.
    pub addresses: Result<Vec<SocketAddr>, String>,
}

/// The session with a peer, as the gateway sees it.
#[derive(Clone, Debug, Default)]
pub struct Session {
    pub is_up: bool,
    /// How long it has been so.
    pub since: Duration,
    /// While the facts were gathered: handshakes that were ignored since they were not newer than earlier ones.
    pub stale_handshakes: u64,
    /// While the facts were gathered: packets of tenants that are not configured here.
    pub unknown_tenant_packets: u64,
    pub paths: Vec<PeerPath>,
}

#[derive(Clone, Debug, Default)]
pub struct PeerPath {
    pub path: String,
    pub is_up: bool,
    /// It has never answered, and another address of the peer does.
    pub is_abandoned: bool,
    pub since: Duration,
    pub remote: Option<String>,
    /// What the gateway sees in its packets.
    pub fault: Option<PathFault>,
    /// The same in its words.
    pub diagnosis: String,
    pub mtu_bytes: u64,
    /// The budget of the month is used up; `None`: it is not, or there is none.
    pub spent: Option<Spent>,
}

/// Whose budget of the month is used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spent {
    /// That of the uplink here, until this day.
    Here { ends: String },
    /// That of the peer's uplink.
    AtPeer,
}

#[derive(Clone, Debug, Default)]
pub struct Tenant {
    pub name: String,
    /// Its number on the wire.
    pub id: u64,
    pub device: String,
    /// What is wrong with the device; `None`: nothing, or no gateway runs.
    pub device_problem: Option<(DeviceState, String)>,
    pub has_table: bool,
    /// Networks behind this gateway.
    pub prefixes: Vec<IpNet>,
    /// Without those that are withheld.
    pub peers: Vec<TenantPeer>,
    /// Prefixes of the network that are not routed, since the machine needs addresses of them.
    pub withheld: Vec<Withheld>,
    /// Interfaces at which its hosts are.
    pub lans: Vec<Lan>,
    /// Forwarding of the device, in IPv4 and IPv6; `None`: not known.
    pub device_forwards: [Option<bool>; 2],
    /// `None`: it leads no other sites to the Internet.
    pub exit: Option<Exit>,
    /// The peer that its packets to the Internet are to leave by, which does not offer that.
    pub exit_not_offered_by: Option<String>,
    /// IP packets from the device and to it since the gateway's start.
    pub ingress_packets: u64,
    pub egress_packets: u64,
}

/// What leads other sites of a tenant to the Internet.
#[derive(Clone, Debug, Default)]
pub struct Exit {
    /// Interfaces with a default route in IPv4 and IPv6, and whether they forward; `None`: not known.
    pub uplinks: [Vec<(String, Option<bool>)>; 2],
    /// Why the rules that translate addresses are missing; `None`: they are not, or it is not known.
    pub rules_problem: Option<String>,
}

/// A tenant towards one peer.
#[derive(Clone, Debug, Default)]
pub struct TenantPeer {
    pub peer: String,
    pub prefixes: Vec<IpNet>,
    /// Packets that the peer has dropped because it does not know the tenant, while the facts were gathered.
    pub refused_packets: u64,
    /// How the kernel forwards packets of a tenant's host to each of its prefixes, where that is known.
    pub routes: Vec<(IpNet, RouteLookup)>,
    /// Policy rules of other programs that come before Keiro's.
    pub foreign_rules: Vec<String>,
}

/// An interface at which hosts of a tenant are.
#[derive(Clone, Debug, Default)]
pub struct Lan {
    pub interface: String,
    pub networks: Vec<IpNet>,
    /// In IPv4 and IPv6; `None`: not known.
    pub forwards: [Option<bool>; 2],
}

impl Facts {
    /// The peers that are not up, for long enough to say so.
    pub(crate) fn peers_down(&self) -> impl Iterator<Item = (&Peer, &Session)> {
        self.peers.iter().filter_map(|peer| {
            let session = peer.session.as_ref()?;
            (!session.is_up && session.since >= JUDGED_AFTER).then_some((peer, session))
        })
    }

    /// Whether every path to every peer over an uplink is up, so that nothing about it has a consequence.
    pub(crate) fn is_in_use(&self, path: &str) -> bool {
        let sessions = self.peers.iter().filter_map(|peer| peer.session.as_ref());
        let mut over = sessions
            .flat_map(|session| &session.paths)
            .filter(|of| of.path == path && !of.is_abandoned)
            .peekable();
        over.peek().is_some() && over.all(|of| of.is_up)
    }

    /// What was reported within `age`.
    pub(crate) fn reports(&self, age: Duration) -> impl Iterator<Item = &Report> {
        let reports = self.gateway.iter().flat_map(|gateway| &gateway.reports);
        reports.filter(move |report| report.age <= age)
    }

    pub(crate) fn peer(&self, name: &str) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.name == name)
    }
}

impl Tenant {
    /// Its networks in IPv4 (0) or IPv6 (1).
    pub(crate) fn uses(&self, version: usize) -> bool {
        let behind_peers = self.peers.iter().flat_map(|peer| &peer.prefixes);
        let mut all = self.prefixes.iter().chain(behind_peers);
        all.any(|prefix| usize::from(prefix.addr().is_ipv6()) == version)
    }
}

/// Names for the two members of `[Option<bool>; 2]`.
pub(crate) const VERSIONS: [&str; 2] = ["ipv4", "ipv6"];

/// A peer is judged after this time. Ours: as long as a handshake may wait for its next attempt.
pub(crate) const JUDGED_AFTER: Duration = Duration::from_secs(5);

/// What lasts is reported once a minute.
pub const REPORTED_EACH: Duration = Duration::from_secs(90);
