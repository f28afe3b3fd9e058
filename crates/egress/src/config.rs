//! Configuration files of `keiro asbr` and `keiro egress`.
//!
//! TOML with units; unknown keys are refused. All problems come in one report, each with its place and
//! what to try. [`Neighbour::speaker_config`] makes neighbours of the speaker from the values.

mod bfd;
mod communities;
mod comparison;
mod file;
mod peer;
mod read;
mod roas;
mod rules;
mod steering;
#[cfg(test)]
mod tests;
mod values;

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
    path::Path,
    sync::Arc,
    time::Duration,
};

use ipnet::{IpNet, Ipv6Net};
use keiro_bgp::{
    address::{Family, RouteDistinguisher, RouteTarget},
    policy::{GracefulShutdown, Policy},
    rpki::Vrps,
    speaker::NeighbourConfig,
};
pub use keiro_config::ConfigError;
use keiro_config::FileLimits;
use keiro_linux::{bgp_socket::Md5Key, rule::InterfaceName};
use serde::Deserialize;

pub use self::steering::{Steered, TABLES_MAX};
use crate::comparison::Settings;

#[derive(Clone, Debug)]
pub struct AsbrConfig {
    /// Settings that both roles have.
    pub speaker: SpeakerConfig,
    /// The prefix of the egress peers' segments.
    pub locator: Ipv6Net,
    /// The provider's own prefixes, announced to peers whose `export` permits them.
    pub announce: Vec<IpNet>,
    pub announce_locator: bool,
    /// Numbers of nexthop objects that this daemon may use; no other program uses them.
    pub nexthop_ids: RangeInclusive<u32>,
    /// Priority of the rules that drop packets from peers to the locator; no other rule has it.
    pub rule_priority: u32,
    pub peers: Vec<EgressPeer>,
    /// Neighbours in the same AS, usually route reflectors.
    pub reflectors: Vec<Neighbour>,
}

/// The Endpoint Manager of a content server.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// Settings that both roles have.
    pub speaker: SpeakerConfig,
    /// The interface that has the EPE addresses and the routes of segments; `None`: the one by which
    /// the first reflector is reached.
    pub interface: Option<String>,
    /// Numbers of nexthop objects that this daemon may use; no other program uses them.
    pub nexthop_ids: RangeInclusive<u32>,
    /// Priority of the rules from EPE addresses to tables; no other rule has it.
    pub rule_priority: u32,
    /// What announces EPE addresses to MPTCP connections.
    pub mptcp: Mptcp,
    /// Ports at EPE addresses where no server listens. This daemon listens there for MPTCP joins.
    pub helper_ports: BTreeSet<u16>,
    /// Keeps what is known of client prefixes over a restart; `None`: not kept.
    pub evidence_file: Option<std::path::PathBuf>,
    /// Between probes through each segment; `None`: none are sent.
    pub probe_interval: Option<Duration>,
    /// Route reflectors, or border routers themselves.
    pub reflectors: Vec<Neighbour>,
    /// The egress peers that this server uses.
    pub peers: Vec<EndpointPeer>,
    /// Kinds of traffic that prefer some of them; only with [`Mptcp::Precise`].
    pub classes: Vec<Class>,
    /// Multipath against single path; only with [`Mptcp::Precise`].
    pub comparison: Settings,
    /// The egress peer of new connections, by client prefix; `None`: off.
    pub steering: Option<Steered>,
}

/// A kind of traffic: connections to some ports of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name, for messages.
    pub name: String,
    pub ports: BTreeSet<u16>,
    /// The egress peers that it prefers, as indices of [`EndpointConfig::peers`]; all other paths are
    /// backups.
    pub prefer: BTreeSet<usize>,
}

/// What announces EPE addresses to MPTCP connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mptcp {
    #[default]
    Off,
    /// The kernel announces all of them to every connection, as in the paper.
    Kernel,
    /// This daemon announces to a connection those whose table has a route to its client.
    Precise,
}

/// Settings that both roles have.
#[derive(Clone, Debug)]
pub struct SpeakerConfig {
    /// This speaker's AS number.
    pub asn: u32,
    /// This speaker's BGP identifier.
    pub router_id: Ipv4Addr,
    /// Addresses where the speaker accepts connections.
    pub listen: Vec<SocketAddr>,
    /// The control socket; `None`: off.
    pub control_socket: Option<std::path::PathBuf>,
    /// Route origin authorizations from `rpki_file`, read with the configuration; `None`: no file.
    pub vrps: Option<Arc<Vrps>>,
}

#[derive(Clone, Debug)]
pub struct Neighbour {
    /// Its name, for messages.
    pub name: String,
    pub address: IpAddr,
    /// The TCP port that it listens at.
    pub port: u16,
    pub asn: u32,
    /// Address families whose routes are exchanged.
    pub families: Vec<Family>,
    /// Which of its routes are accepted.
    pub import: Policy,
    /// Which routes are announced to it.
    pub export: Policy,
    /// Wait for it to connect, and do not connect to it.
    pub passive: bool,
    /// Hold time (RFC 4271 §4.2); zero: none.
    pub hold_time: Duration,
    /// Whether several paths per prefix are accepted (RFC 7911).
    pub add_path: bool,
    /// How long its routes stay while it restarts (RFC 4724); `None`: they are removed at once.
    pub graceful_restart: Option<Duration>,
    /// Messages of up to 65,535 octets are offered (RFC 8654).
    pub extended_messages: bool,
    /// More routes of a family end the session; `None`: no limit.
    pub routes_max: Option<usize>,
    /// The configuration does not say it.
    pub routes_max_is_default: bool,
    /// Key of TCP-MD5 (RFC 2385).
    pub md5: Option<Md5Key>,
    /// It must be one hop away (RFC 5082).
    pub one_hop: bool,
    /// Local address of the connection; `None`: the kernel's choice.
    pub local: Option<IpAddr>,
    /// The next hop in announcements to it; `None`: the connection's local address.
    pub next_hop: Option<IpAddr>,
    /// Its routes are the last choice, here and for the neighbour (RFC 8326).
    pub drain: bool,
    /// Intervals of BFD over one hop (RFC 5881); `None`: no BFD.
    pub bfd: Option<keiro_bfd::Config>,
}

/// An egress peer of a border router.
#[derive(Clone, Debug)]
pub struct EgressPeer {
    pub neighbour: Neighbour,
    /// The SRv6 segment of this peer.
    pub sid: Ipv6Addr,
    /// The segment of IPv4 packets; `None`: they take the best path.
    pub ipv4_sid: Option<Ipv6Addr>,
    pub behaviour: Behaviour,
    /// Distinguishes its routes within the AS.
    pub rd: RouteDistinguisher,
    /// By which servers recognise its routes.
    pub rt: RouteTarget,
    pub table: u32,
    /// Whether the file gives the table; otherwise it follows from the peer's place in the file.
    pub table_said: bool,
    /// The interface that leads to it; `None`: the one by which the kernel reaches it.
    pub interface: Option<String>,
}

/// The behaviour of an egress peer's segment (RFC 8986 §4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Behaviour {
    /// Into a table that has the routes of this peer and no others.
    #[default]
    #[serde(rename = "end.dt6")]
    Table,
    /// To the peer, whatever it announces. Only the server looks at its routes.
    #[serde(rename = "end.dx6")]
    Neighbour,
}

/// An egress peer as configured on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointPeer {
    /// Its name, for messages.
    pub name: String,
    /// The target of its routes.
    pub rt: RouteTarget,
    pub table: u32,
    /// Whether the file gives the table; otherwise it follows from the peer's place in the file.
    pub table_said: bool,
    /// This server's EPE address: its connections leave by this peer.
    pub address: Ipv6Addr,
    /// The same for IPv4; `None`: it has none.
    pub ipv4_address: Option<Ipv4Addr>,
    /// A VRF device of its table; `None`: there is none.
    pub vrf: Option<InterfaceName>,
}

/// A server's addresses whose connections leave by one egress peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpeAddresses {
    pub ipv6: Ipv6Addr,
    /// `None`: IPv4 connections are not announced an address of this peer.
    pub ipv4: Option<Ipv4Addr>,
}

impl EpeAddresses {
    pub fn all(self) -> impl Iterator<Item = IpAddr> {
        let ipv4 = self.ipv4.map(IpAddr::from);
        [IpAddr::from(self.ipv6)].into_iter().chain(ipv4)
    }

    /// The one of a client's family; an IPv4-mapped address is one of IPv4.
    pub fn of_family(self, client: IpAddr) -> Option<IpAddr> {
        match client.to_canonical() {
            IpAddr::V4(_) => self.ipv4.map(IpAddr::from),
            IpAddr::V6(_) => Some(self.ipv6.into()),
        }
    }

    pub fn contains(self, address: IpAddr) -> bool {
        self.of_family(address) == Some(address.to_canonical())
    }
}

impl EndpointPeer {
    pub fn addresses(&self) -> EpeAddresses {
        EpeAddresses {
            ipv6: self.address,
            ipv4: self.ipv4_address,
        }
    }
}

/// Which daemon a configuration is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `keiro asbr`.
    Asbr,
    /// `keiro egress`.
    Endpoint,
}

impl Kind {
    /// Recognised by the first table, so that a file with errors is recognised too; `None`: neither.
    pub fn of(text: &str) -> Option<Self> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut lines = text.lines().map(str::trim);
        let first = lines.find(|line| line.starts_with('['))?;
        let (name, _) = first.strip_prefix('[')?.split_once(']')?;
        match name.trim() {
            "asbr" => Some(Self::Asbr),
            "egress" => Some(Self::Endpoint),
            _ => None,
        }
    }
}

impl AsbrConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or everything that is wrong with its contents.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = FILE_LIMITS.read(path)?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads a text; `file` is what messages call it.
    ///
    /// # Errors
    /// Everything that is wrong with the text.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        read::asbr(text, file)
    }
}

impl EndpointConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or everything that is wrong with its contents.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = FILE_LIMITS.read(path)?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads a text; `file` is what messages call it.
    ///
    /// # Errors
    /// Everything that is wrong with the text.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        read::endpoint(text, file)
    }
}

impl Neighbour {
    /// Whether IPv4 routes are exchanged with it.
    pub fn has_ipv4(&self) -> bool {
        self.families.contains(&Family::Ipv4)
    }

    /// The neighbour's configuration for the speaker.
    pub fn speaker_config(&self) -> NeighbourConfig {
        let seconds = |time: Duration| u16::try_from(time.as_secs()).unwrap_or(u16::MAX);
        let drained = |policy: &Policy| Policy {
            graceful_shutdown: match self.drain {
                true => GracefulShutdown::All,
                false => policy.graceful_shutdown,
            },
            ..policy.clone()
        };
        NeighbourConfig {
            address: self.address,
            asn: self.asn,
            families: self.families.clone(),
            import: drained(&self.import),
            export: drained(&self.export),
            passive: self.passive,
            hold_time: seconds(self.hold_time),
            add_path: self.add_path,
            // Twelve bits on the wire (RFC 4724 §3).
            graceful_restart: self.graceful_restart.map(|time| seconds(time).min(4095)),
            restarted: false,
            extended_messages: self.extended_messages,
            routes_max: self.routes_max,
            next_hop: self.next_hop,
            next_hop_self: true,
            track_routes: false,
        }
    }
}

const FILE_LIMITS: FileLimits = FileLimits {
    bytes_max: 1 << 20,
    missing_hint: "name the file with --config; packaging/examples has one of each kind",
    too_long_hint: "is this the right file?",
};
