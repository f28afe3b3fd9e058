//! A gateway's configuration: TOML text in, a validated [`Config`] or every problem out.
//!
//! Reads the file, resolves names and checks values. It opens no sockets and does not look at this
//! machine's addresses; the running gateway checks those with [`Config::refuse_own_addresses`] and
//! [`Config::refuse_app_id_collisions`], which report in the same form. `docs/configuration.md` is the reference for users.

mod aggregation;
mod app_needs;
mod budget;
mod check;
mod diff;
mod draft;
mod embedded;
mod endpoint;
mod entries;
mod history;
mod idle;
mod local;
mod local_conflicts;
mod membership;
mod message_tls;
mod name;
mod network;
mod network_template;
mod read;
mod resolve;
mod store;
mod template;
mod tenant;
#[cfg(test)]
mod tests;
mod uplinks;
mod values;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    ops::Range,
    path::{Path as FilePath, PathBuf},
    time::Duration,
};

pub use keiro_config::{ConfigError, Location, Problem, Rewrite};
use keiro_config::{FileLimits, RenamedKey, Report};
use keiro_model::path_rate::RATE_ASSUMED;
pub use keiro_model::path_terms::{CostPerGb, PathRole, PathTerms};
use keiro_units::{Bandwidth, ByteCount, Probability};
use serde::{Deserialize, Serialize};

pub(crate) use self::local_conflicts::reached_at;
pub use self::{
    aggregation::{Aggregation, Fec, Mode as AggregationMode, Redundancy, Spread as CopySpread},
    app_needs::AppNeeds,
    budget::{Budget, Day},
    diff::{Changes, ConfigDiff},
    embedded::reached_by,
    endpoint::{HostName, HostPort, PEER_ENDPOINTS_MAX, PeerEndpoint},
    history::History,
    idle::IdleCost,
    local::{DEFAULT_PATH_PORT, Family, InterfaceLocal, Local},
    local_conflicts::{Conflict, ConnectedNetwork, LocalNetworks, Withheld},
    membership::{Hub, Membership},
    message_tls::{
        DEFAULT_CLIENT_BYTES_MAX, DEFAULT_CLIENT_CONNECTIONS_MAX, DEFAULT_CLIENT_MESSAGES_MAX,
        MESSAGE_TLS_CONNECTIONS_MAX, MessageClient, MessageTls, MessageTlsFile, MessageToken,
    },
    name::{Name, NameError},
    network::{Network, admits, names_alone},
    network_template::{NetworkTemplate, TenantTemplate},
    resolve::{Found, FoundInterface, further_name},
    store::{Endpoint, Etcd, Store},
    template::{Template, Uplink},
    tenant::{
        ClassApp, Classes, DEFAULT_PREFIXES, DEFAULT_TENANT_MTU, DEFAULT_TENANT_QUEUE,
        DEFAULT_TENANTS_MAX, Exit, ExitIpv6, Fairness, ForwardedProtocol, Internet, Learned,
        Mapping, MappingError, Member, PortForward, PrefixOwner, SPLIT_TABLE, SplitObstacle,
        TcpCarriage, Tenant, TenantController, TenantPeer, TenantRule, UPLINK_TABLES, WhenDown,
        WhenStopped,
    },
    uplinks::{AutoUplinks, Pattern},
};
pub(crate) use self::{
    app_needs::app_needs,
    endpoint::peer_endpoints,
    tenant::{is_forwarded, prefixes},
    values::{REASSEMBLY_MIN, name, public_key, value},
};
use crate::key::{PresharedKey, PublicKey};

/// Default of `readonly_group`, where the machine has this group: packaging/sysusers.d/keiro.conf makes it.
pub const READONLY_GROUP: &str = "keiro-view";
/// Default of `control_socket`.
pub const DEFAULT_CONTROL_SOCKET: &str = "/run/keiro/control.sock";
/// Default of `private_key_file`.
pub const DEFAULT_PRIVATE_KEY_FILE: &str = "/etc/keiro/private.key";
/// Default of `state_directory`.
pub const DEFAULT_STATE_DIRECTORY: &str = "/var/lib/keiro";
/// The configuration of the daemon and the tools if none is named.
pub const DEFAULT_CONFIG_FILE: &str = "/etc/keiro/gateway.toml";
/// Default of `reassembly_max`: three of the largest messages, so that a peer takes less than 64 MB with what
/// is kept beside.
pub const DEFAULT_REASSEMBLY_MAX: ByteCount = ByteCount::new(48 << 20);

/// Bytes of a file; a longer one is refused.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Paths, peers, endpoints, apps, listeners, forwards, tenants, their rules and the prefixes behind
/// peers together; more are refused.
pub const CONFIG_ENTRIES_MAX: usize = 10_000;
/// Paths; more are refused. Ours: one byte numbers them on the wire, and a number is not used
/// again while a session lives.
pub const PATHS_MAX: usize = 64;
/// Bytes of a name.
pub const NAME_BYTES_MAX: usize = 64;
/// Bytes of a message; longer ones are refused. The wire's bound.
pub const MESSAGE_BYTES_MAX: u64 = 16 << 20;
/// The least `rate` of a path. Ours: a full packet would take 12 s.
pub const PATH_RATE_MIN: Bandwidth = Bandwidth::from_bits_per_second(1_000);
/// The largest `rate` of a path: a mistaken unit is likelier. Ours, six times the fastest Ethernet.
pub const PATH_RATE_MAX: Bandwidth = Bandwidth::from_bits_per_second(10_000_000_000_000);
/// The smallest `mtu_max`: the smallest MTU that IPv6 allows (RFC 8200 §5), in IP packet bytes.
pub const MTU_MIN: u64 = 1280;
/// The largest `mtu_max`: an IPv4 packet's length field.
pub const MTU_MAX: u64 = 65_535;

const FILE_LIMITS: FileLimits = FileLimits {
    bytes_max: CONFIG_BYTES_MAX,
    missing_hint: "`keiro init` writes a commented one",
    too_long_hint: "is this the right file? if it is, share the load between several gateways",
};

/// Keys of 0.1.0 that have another name now. This release reads both.
const RENAMED_KEYS: &[RenamedKey] = &[
    RenamedKey {
        table: &[],
        old: "intake",
        new: "listener",
    },
    RenamedKey {
        table: &[],
        old: "outlet",
        new: "forward",
    },
    RenamedKey {
        table: &["app"],
        old: "demand",
        new: "latency_target",
    },
    RenamedKey {
        table: &["aggregation"],
        old: "law",
        new: "controller",
    },
    RenamedKey {
        table: &["tenant", "*"],
        old: "law",
        new: "controller",
    },
];

/// A validated configuration.
///
/// Every index in it is valid for its own lists, names are unique per kind, and addresses do not
/// collide. Made only by [`Config::load`] and [`Config::parse`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    pub gateway: Gateway,
    /// Where the plan is kept.
    pub store: Store,
    /// Which measurements are kept on disk.
    pub history: History,
    /// How small packets are aggregated.
    pub aggregation: Aggregation,
    /// Its uplinks: in file order, then those by `uplinks = "auto"`, then further ones over the same uplinks. See
    /// [`Config::resolved`].
    pub paths: Vec<Path>,
    /// Its peers, in file order; may be empty.
    pub peers: Vec<Peer>,
    /// Applications, in file order.
    pub apps: Vec<App>,
    /// Local addresses whose traffic enters, in file order.
    pub listeners: Vec<Listener>,
    /// Destinations of traffic from peers, in file order; at most one per application.
    pub forwards: Vec<Forward>,
    /// The message socket for other hosts; `None`: off.
    pub message_tls: Option<MessageTls>,
    /// Programs on other hosts, in file order; at least one if `message_tls` is there, else none.
    pub message_clients: Vec<MessageClient>,
    /// Settings for all tenants.
    pub fairness: Fairness,
    /// Tenants whose IP packets are carried, sorted by name.
    pub tenants: Vec<Tenant>,
    /// Its part in a network of sites; `None`: it has none.
    pub network: Option<Membership>,
    warnings: Vec<Problem>,
    origin: Origin,
}

/// The text that a configuration was read from, for checks that come later.
#[derive(Clone, Debug)]
struct Origin {
    file: String,
    text: String,
    /// Where each application's name is.
    apps: Vec<Range<usize>>,
    /// Where each forward's destination is.
    forwards: Vec<Range<usize>>,
    message_tls: message_tls::MessageTlsSpans,
    /// Where each client's token file is.
    message_clients: Vec<Range<usize>>,
}

/// `[gateway]`: who this gateway is and what it offers locally.
#[derive(Clone, Debug, PartialEq)]
pub struct Gateway {
    /// Its name, shown in status, logs and metrics.
    pub name: Name,
    /// Holds the private key; read with [`crate::key::load_private_key`].
    pub private_key_file: PathBuf,
    /// The control API's Unix socket.
    pub control_socket: PathBuf,
    /// Where the control API answers what only reads.
    pub readonly_socket: PathBuf,
    /// The group of `readonly_socket`; `None`: [`READONLY_GROUP`] where there is one, else that of the other sockets.
    pub readonly_group: Option<String>,
    /// The message socket; `None`: off.
    pub message_socket: Option<PathBuf>,
    /// The message socket over loopback TCP; `None`: off. Always a loopback address.
    pub message_tcp: Option<SocketAddr>,
    /// The address of `/metrics` for Prometheus; `None`: off. Loopback unless `metrics_public`.
    pub metrics: Option<SocketAddr>,
    /// `metrics` may be another address than loopback.
    pub metrics_public: bool,
    /// Directory of the state that outlives a restart.
    pub state_directory: PathBuf,
    /// Order of packets that wait for a path.
    pub scheduler: Scheduler,
    /// How paths are chosen.
    pub planner: Planner,
    /// How far a predicted delay may exceed the latency target and still meet it, relative to the
    /// target.
    pub tolerance: Probability,
    /// Part of each path's rate for packets that only measure its capacity; zero: none.
    pub probe_share: Probability,
    /// Group that owns the sockets (mode 0660); `None`: the group keiro runs as.
    pub socket_group: Option<String>,
    /// Interfaces with a default route are paths; `None`: only those of the file.
    pub auto_uplinks: Option<AutoUplinks>,
}

/// `[[path]]`: an uplink of this gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// Its name, unique among paths.
    pub name: Name,
    pub origin: PathOrigin,
    /// Where it leaves this gateway.
    pub local: Local,
    /// What this gateway may send on it: bit/s of whole IP packets, not zero. `None`: what it carries.
    pub rate: Option<Bandwidth>,
    /// One-way propagation delay for the planner; `None`: half the smallest measured RTT.
    pub delay: Option<Duration>,
    /// Upper bound of the MTU search, in IP packet bytes, 1280..=65535; `None`: the interface's.
    pub mtu_max: Option<ByteCount>,
    /// While it carries nothing, keepalives only.
    pub is_metered: bool,
    /// What it may carry in a month. `None`: any amount.
    pub budget: Option<Budget>,
    /// Whether it is for all traffic.
    pub role: PathRole,
    /// What its bytes cost.
    pub cost: CostPerGb,
}

/// Why there is a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathOrigin {
    /// It is in the file.
    Written,
    /// By `uplinks = "auto"`.
    Auto,
    /// A further one over the uplink of this path, to another address of a peer or to another uplink of it.
    Further(PathIndex),
}

impl Path {
    /// What it cannot exceed, as far as is configured.
    pub fn rate_bound(&self) -> Bandwidth {
        self.rate.unwrap_or(PATH_RATE_MAX)
    }

    /// On which terms this gateway uses it, while its budget lasts.
    pub fn terms(&self) -> PathTerms {
        PathTerms {
            role: self.role,
            cost: self.cost,
            is_spent: false,
        }
    }

    /// What it is taken to carry before anything is measured.
    pub fn rate_assumed(&self) -> Bandwidth {
        self.rate.unwrap_or(RATE_ASSUMED)
    }
}

/// `[[peer]]`: another gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Peer {
    /// Its name, unique among peers.
    pub name: Name,
    pub public_key: PublicKey,
    pub origin: PeerOrigin,
    /// Holds a key that both share; read with [`crate::key::load_preshared_key`]. `None`: none.
    pub preshared_key_file: Option<PathBuf>,
    /// That key itself, of peers of a network's registry. `None`: as the file says.
    pub preshared_key: Option<PresharedKey>,
    /// Its address per path. On a path that is not here the peer has to connect to this gateway.
    pub endpoints: BTreeMap<PathIndex, SocketAddr>,
    /// Its addresses on all paths that are not in `endpoints` in the file; may be empty.
    pub endpoint: Vec<PeerEndpoint>,
    /// Paths of [`PathOrigin::Further`] that lead to it. Paths of other origins always do.
    pub further_paths: BTreeSet<PathIndex>,
    /// Memory for messages of this peer that are not complete, bytes.
    pub reassembly_max: ByteCount,
}

/// Why there is a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerOrigin {
    /// It is in the file.
    Written,
    /// A site of the network whose registry is here.
    Site,
    /// The second hub of the network, by the registry.
    SecondHub,
    /// Another branch of the network, which the hub has introduced.
    Direct,
    /// The provisional key of an invitation. It has neither applications nor tenants.
    Invitation,
}

/// `[[app]]`: an application and its needs.
#[derive(Clone, Debug, PartialEq)]
pub struct App {
    /// Its name, unique among applications and the same at both gateways.
    pub name: Name,
    /// The name that its number on the wire follows from, where that is another one: its site was renamed.
    pub wire_name: Option<Name>,
    pub class: Class,
    /// The gateway at the other side.
    pub peer: PeerIndex,
    /// Target delay; `None`: any delay meets it.
    pub latency_target: Option<Duration>,
    /// Messages and datagrams older than this are dropped; `None`: never.
    pub lifetime: Option<Duration>,
    /// The part of its packets that may be lost without repair, where the configuration says so.
    pub loss: Option<Probability>,
    /// Mean length of a message, for prediction; `None`: measured.
    pub length: Option<ByteCount>,
    /// Mean interval between messages, for prediction; `None`: measured.
    pub interval: Option<Duration>,
    /// Whether it may use several paths at once.
    pub paths: PathUse,
    /// Whether it may take a path whose budget is used up, where the configuration says so.
    pub essential: Option<bool>,
    /// The path that it is pinned to; `None`: the planner chooses.
    pub path: Option<PathIndex>,
}

/// How many paths an application uses at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathUse {
    /// The one that the plan says, or the next that is up.
    #[default]
    One,
    /// All: each part of its data takes the path by which it arrives first.
    Spread,
}

impl PathUse {
    pub(crate) fn is_one(&self) -> bool {
        *self == Self::One
    }
}

/// `[[listener]]`: a local address whose traffic enters as the application's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    pub app: AppIndex,
    pub transport: Transport,
    /// Local address; never port 0.
    pub local: SocketAddr,
    /// Its tenant; `None`: none.
    pub member: Option<Member>,
}

/// How traffic arrives at a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// Datagrams, for [`Class::Datagram`] and [`Class::Message`].
    Udp,
    /// Connections to the listener's address, for [`Class::Stream`].
    Tcp,
    /// Connections to other addresses that a TPROXY rule redirects to the listener, for
    /// [`Class::Stream`]; the client's destination is kept.
    Tproxy,
}

/// `[[forward]]`: the destination of what the peer's listener of the application receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    pub app: AppIndex,
    pub to: Destination,
    /// The destination may be loopback, link-local, multicast or this gateway itself.
    pub allow_local: bool,
    /// Its tenant; `None`: none.
    pub member: Option<Member>,
}

/// The destination of a forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Datagrams to one address.
    Udp(SocketAddr),
    /// Connections to one server.
    Tcp(SocketAddr),
    /// Connections to their clients' destinations, if these are in one of the networks; not empty.
    Networks(Vec<Network>),
}

/// Order of packets that wait for a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Scheduler {
    /// Earliest deadline first.
    #[default]
    Deadline,
    /// First come, first served, as in the path-selection paper.
    Fifo,
}

/// How paths are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Planner {
    /// The slowest path that meets the latency target, so that fast ones stay free. Where that leaves a
    /// target unmet, as [`Exact`](Self::Exact).
    #[default]
    Frugal,
    /// The best assignment there is, by summed delay where every latency target is met.
    Exact,
    /// Pinned paths only. Other applications use the first path that is up.
    Off,
}

/// Delivery class of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Whole messages, retransmitted until acknowledged or past their lifetime.
    Message,
    /// Sent once, without order.
    Datagram,
    /// TCP connections: bytes in order, retransmitted until acknowledged.
    Stream,
}

/// Index into [`Config::paths`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathIndex(pub usize);

/// Index into [`Config::peers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerIndex(pub usize);

/// Index into [`Config::apps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppIndex(pub usize);

impl Config {
    /// Reads and validates the file at `path`.
    ///
    /// # Errors
    /// The file cannot be read or is larger than [`CONFIG_BYTES_MAX`], or everything that is
    /// wrong with its contents.
    pub fn load(path: &FilePath) -> Result<Self, ConfigError> {
        let text = FILE_LIMITS.read(path)?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Validates `text`; `file` is what messages call it.
    ///
    /// # Errors
    /// Everything that is wrong with the text.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        read::config(text, file)
    }

    /// The file's name as given to [`Config::load`] or [`Config::parse`].
    pub fn file(&self) -> &str {
        &self.origin.file
    }

    /// Keys that the file has under an old name, in its order, and after
    /// [`with_classes`](Self::with_classes) the built-in classes that are left out.
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// `text` with the keys of an earlier release under their new names. Every other byte stays.
    ///
    /// # Errors
    /// It is longer than [`CONFIG_BYTES_MAX`] or would be, is not valid TOML, or has a table with a key under both
    /// names.
    pub fn rename_old_keys(text: &str, file: &str) -> Result<Rewrite, ConfigError> {
        FILE_LIMITS.check(text, file)?;
        let rewrite = keiro_config::rewrite(text, file, RENAMED_KEYS)?;
        // A new name may be longer than the old one.
        if FILE_LIMITS.check(&rewrite.text, file).is_err() {
            let message =
                format!("would be longer than {CONFIG_BYTES_MAX} bytes with the new names");
            return Err(ConfigError::of_file(
                file,
                message,
                "shorten its comments, for example",
            ));
        }
        Ok(rewrite)
    }

    /// As [`Config::rename_old_keys`], with the text of the file at `path`, which is not written.
    ///
    /// # Errors
    /// As those, or the file cannot be read.
    pub fn with_renamed_keys(path: &FilePath) -> Result<Rewrite, ConfigError> {
        let text = FILE_LIMITS.read(path)?;
        Self::rename_old_keys(&text, &path.display().to_string())
    }

    /// The path of this name.
    pub fn path_named(&self, name: &str) -> Option<PathIndex> {
        self.paths
            .iter()
            .position(|p| p.name.as_str() == name)
            .map(PathIndex)
    }

    /// The peer of this name.
    pub fn peer_named(&self, name: &str) -> Option<PeerIndex> {
        self.peers
            .iter()
            .position(|p| p.name.as_str() == name)
            .map(PeerIndex)
    }

    /// The application of this name.
    pub fn app_named(&self, name: &str) -> Option<AppIndex> {
        self.apps
            .iter()
            .position(|a| a.name.as_str() == name)
            .map(AppIndex)
    }

    /// The tenant of this name.
    pub fn tenant_named(&self, name: &str) -> Option<&Tenant> {
        self.tenants.iter().find(|t| t.name.as_str() == name)
    }

    /// The forward of an application, if it has one.
    pub fn forward_of(&self, app: AppIndex) -> Option<&Forward> {
        self.forwards.iter().find(|o| o.app == app)
    }

    /// Refuses applications whose names have the same id on the wire, as `app_id` computes it.
    ///
    /// # Errors
    /// One problem per application whose id an earlier one has.
    pub fn refuse_app_id_collisions(
        &self,
        app_id: impl Fn(&str) -> u32,
    ) -> Result<(), ConfigError> {
        check::app_id_collisions(self, app_id)
    }

    /// Refuses forwards to this machine's own addresses that do not say `allow_local = true`.
    ///
    /// The file's own addresses are refused already by [`Config::parse`]; the gateway calls this
    /// with those of its interfaces at start and on reload, and asks the kernel for every new connection.
    ///
    /// # Errors
    /// One problem per forward.
    pub fn refuse_own_addresses(&self, own: &[IpAddr]) -> Result<(), ConfigError> {
        check::own_addresses(self, own)
    }

    /// What changes from `self` to `new`.
    pub fn diff(&self, new: &Self) -> ConfigDiff {
        diff::diff(self, new)
    }
}

impl App {
    /// The name that its number on the wire follows from, the same at both gateways.
    pub fn wire_name(&self) -> &Name {
        self.wire_name.as_ref().unwrap_or(&self.name)
    }

    /// An application of these needs, whose data goes to `peer`.
    pub(crate) fn with_needs(name: Name, peer: PeerIndex, needs: &AppNeeds) -> Self {
        Self {
            name,
            wire_name: None,
            class: needs.class,
            peer,
            latency_target: needs.latency_target,
            lifetime: needs.lifetime,
            loss: needs.loss,
            length: needs.length,
            interval: needs.interval,
            paths: needs.paths,
            essential: needs.essential,
            path: None,
        }
    }
}

impl App {
    /// Whether it may take a path whose budget is used up if there is no other: as configured, otherwise if people
    /// wait for it.
    pub fn is_essential(&self) -> bool {
        let waited_for = |target: Duration| target <= ESSENTIAL_TARGET_MAX;
        self.essential
            .unwrap_or_else(|| self.latency_target.is_some_and(waited_for))
    }
}

/// One-way delay up to which most interactive applications, speech among them, are not disturbed (ITU-T G.114).
const ESSENTIAL_TARGET_MAX: Duration = Duration::from_millis(150);

impl Origin {
    /// A new report on the same text.
    fn report(&self) -> Report<'_> {
        Report::new(&self.file, &self.text)
    }
}

impl std::ops::Index<PathIndex> for Config {
    type Output = Path;

    fn index(&self, index: PathIndex) -> &Path {
        &self.paths[index.0]
    }
}

impl std::ops::Index<PeerIndex> for Config {
    type Output = Peer;

    fn index(&self, index: PeerIndex) -> &Peer {
        &self.peers[index.0]
    }
}

impl std::ops::Index<AppIndex> for Config {
    type Output = App;

    fn index(&self, index: AppIndex) -> &App {
        &self.apps[index.0]
    }
}

impl Scheduler {
    /// Its value in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::Fifo => "fifo",
        }
    }
}

impl Planner {
    /// Its value in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Frugal => "frugal",
            Self::Exact => "exact",
            Self::Off => "off",
        }
    }
}

impl Class {
    /// Its value in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Datagram => "datagram",
            Self::Stream => "stream",
        }
    }
}

impl Transport {
    /// Its key in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tproxy => "tproxy",
        }
    }

    /// The other transport with TCP sockets: listeners of both cannot have one address.
    pub const fn rival(self) -> Option<Self> {
        match self {
            Self::Udp => None,
            Self::Tcp => Some(Self::Tproxy),
            Self::Tproxy => Some(Self::Tcp),
        }
    }

    /// Whether it carries connections.
    pub const fn is_tcp(self) -> bool {
        matches!(self, Self::Tcp | Self::Tproxy)
    }
}

impl Destination {
    /// Its key in the configuration.
    pub const fn key(&self) -> &'static str {
        match self {
            Self::Udp(_) => "udp",
            Self::Tcp(_) => "tcp",
            Self::Networks(_) => "tcp_networks",
        }
    }

    /// Its address; `None`: it has several.
    pub const fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Udp(address) | Self::Tcp(address) => Some(*address),
            Self::Networks(_) => None,
        }
    }
}
