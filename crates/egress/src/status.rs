//! The status of a daemon, and what it knows about a prefix; see [`crate::control`] for the
//! requests.

mod steering;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use keiro_bgp::{
    attributes::{DEFAULT_LOCAL_PREF, Origin},
    rib::{Path, Source},
    rpki::Validity,
    session::State,
    speaker::Speaker,
};
use keiro_stats_export::Stats;
use serde::{Deserialize, Serialize};

pub use self::steering::{
    EgressMeasurement, Steered, SteeredPrefix, SteeringGain, SteeringMetric, SteeringMode,
    SteeringReason, SteeringStage, SteeringStatus,
};
use crate::alarms::{AlarmStatus, Cause};
use crate::stats::{ComparisonStats, EgressPeerStats, EgressStats, NeighbourStats};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    pub role: String,
    pub asn: u32,
    pub router_id: Ipv4Addr,
    /// The number of VRPs; `None`: no file is configured.
    pub vrps: Option<usize>,
    #[serde(flatten)]
    pub stats: Stats<EgressStats>,
    /// Discarded BFD packets by reason; `None`: no neighbour has BFD.
    pub bfd_discarded: Option<BTreeMap<String, u64>>,
    /// Why the last new configuration was rejected; `None`: it was not.
    pub config_rejected: Option<String>,
    /// What is wrong now.
    #[serde(default)]
    pub alarms: Vec<AlarmStatus>,
    /// By cause, how many more there are than `alarms` has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub further_alarms: BTreeMap<Cause, u64>,
    /// Egress peers come first.
    pub neighbours: Vec<NeighbourStatus>,
    pub peers: Vec<PeerStatus>,
    /// The comparison of multipath with single path; `None`: it is off.
    pub comparison: Option<ComparisonStatus>,
    /// Steering by client prefix; `None`: it is off.
    #[serde(default)]
    pub steering: Option<SteeringStatus>,
    /// The kernel's state, as far as the daemon knows, or just read; `None`: with `--dry-run`.
    pub kernel: Option<KernelStatus>,
}

/// An event with its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedEvent {
    pub unix_ms: u64,
    #[serde(flatten)]
    pub what: DaemonEvent,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum DaemonEvent {
    SessionUp {
        neighbour: String,
    },
    SessionDown {
        neighbour: String,
        reason: String,
        /// Its routes are kept for a graceful restart.
        routes_kept: bool,
    },
    /// End-of-RIB was received.
    AllAnnounced {
        neighbour: String,
        family: String,
        /// The number of routes received.
        routes: usize,
    },
    /// A malformed UPDATE, more routes than `routes_max`, or routes that cannot be advertised.
    Complaint {
        neighbour: String,
        reason: String,
    },
    /// The number of routes or the segment of an egress peer changed.
    Peer {
        peer: String,
        routes_before: usize,
        routes: usize,
        /// The segment, on a border router.
        sid: Option<Ipv6Addr>,
    },
    /// A new configuration is in force.
    Reloaded(Reloaded),
    /// A new configuration was rejected; nothing changed.
    ConfigRejected {
        reason: String,
    },
    /// A decision about a client prefix.
    Compared(Compared),
    /// A client prefix was steered to another egress, or would be.
    Steered(Steered),
    /// The BFD session with a neighbour came up.
    BfdUp {
        neighbour: String,
    },
    /// It failed, or the neighbour has disabled it.
    BfdDown {
        neighbour: String,
        reason: String,
    },
    /// An egress peer is drained by a command, or used again.
    Draining {
        peer: String,
        draining: bool,
    },
    /// Changes of forwarding failed, for a reason that is new.
    Refused {
        /// The first change, the number of others, and why they failed.
        reason: String,
    },
    /// Something has been wrong for a while.
    AlarmRaised {
        cause: Cause,
        subject: String,
        text: String,
    },
    /// It is not wrong any more.
    AlarmCleared {
        cause: Cause,
        subject: String,
        lasted_seconds: u64,
    },
}

/// How far the draining of an egress peer, or its end, has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainStatus {
    pub peer: String,
    pub draining: bool,
    /// The peer's session is established.
    pub up: bool,
    /// Its accepted routes.
    pub routes: usize,
    /// Neighbours to which not all changes have been sent.
    pub unsent: Vec<String>,
    /// Destinations whose best path is the peer's; while it is drained, these have no other. `None`: not
    /// all changes have been sent.
    pub best_paths: Option<usize>,
    /// Some of them.
    pub examples: Vec<IpNet>,
}

/// The effect of a new configuration. Neighbours are given by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    pub added: Vec<String>,
    pub removed: Vec<String>,
    /// Neighbours whose sessions restarted, because session parameters changed.
    pub restarted: Vec<String>,
    /// Neighbours with new policies; their sessions stay.
    pub changed: Vec<String>,
    /// Names of new egress peers of a server.
    pub peers_added: Vec<String>,
    /// Names of removed ones.
    pub peers_removed: Vec<String>,
    /// Those with another route target, address, table or VRF device.
    pub peers_changed: Vec<String>,
    /// Other changed sections: `class`, `comparison`.
    pub sections: Vec<String>,
    /// Changes that the kernel rejected, with its errors; they are retried.
    pub refused: Vec<String>,
    /// The number of VRPs; `None`: no file is configured.
    pub vrps: Option<usize>,
    /// Values that change only with a restart of the daemon.
    pub needs_restart: Vec<String>,
}

/// Whether EPE addresses are announced to clients of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrefixMode {
    /// Yes, except on held-out connections.
    Multipath,
    SinglePath,
    /// On half of the connections, to test whether multipath is better now.
    Trial,
}

/// Goodput of single-path connections and of others. Goodputs are geometric means. The loss is how
/// much lower multipath's is, in thousandths of single-path's; negative: it is higher.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoodputComparison {
    pub single_connections: u64,
    pub single_bits_per_second: Option<u64>,
    pub multipath_connections: u64,
    pub multipath_bits_per_second: Option<u64>,
    /// The estimated loss; `None`: too few connections.
    pub loss_permille: Option<i64>,
    /// Lower bound of the loss, with the confidence of one test.
    pub loss_low_permille: Option<i64>,
    /// Upper bound of the loss, with the same confidence.
    pub loss_high_permille: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    pub prefix: IpNet,
    pub mode: PrefixMode,
    /// The decision has the configured confidence; otherwise it was time to try again, or the
    /// evidence stays undecided.
    pub confident: bool,
    pub evidence: GoodputComparison,
}

/// The status of a client prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixStatus {
    pub prefix: IpNet,
    pub mode: PrefixMode,
    /// Time until multipath is tried again; `None`: it is used, or being tried.
    pub again_seconds: Option<u64>,
    /// The evidence since it last started anew.
    pub evidence: GoodputComparison,
    /// The next test is at this number of connections in both groups; `None`: nothing is being
    /// compared.
    pub next_look: Option<u64>,
    /// The evidence of the last decision; `None`: there was none.
    pub decided: Option<GoodputComparison>,
}

/// Totals of the comparison of multipath with single path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ComparisonStatus {
    #[serde(flatten)]
    pub stats: Stats<ComparisonStats>,
    /// Some prefixes: those that are not multipath, then those with most connections.
    pub shown: Vec<PrefixStatus>,
}

/// The kernel's state of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelStatus {
    /// Best paths in the main table.
    pub main_routes: usize,
    /// The number of nexthop objects.
    pub nexthops: usize,
    /// The number of local SIDs.
    pub segments: usize,
    /// Interfaces on which packets to the locator are dropped, on a border router.
    pub guarded: Vec<String>,
    /// The daemon knows of a difference from the desired state, which it is removing.
    #[serde(default)]
    pub differs: bool,
    /// Why the kernel could not be read; `None`: it was.
    pub error: Option<String>,
}

/// The kernel's state of an egress peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInKernel {
    /// The table; `None`: an End.DX6 segment has none.
    pub table: Option<u32>,
    /// Destinations without a route in the table are unreachable.
    pub closed: bool,
    pub routes: usize,
    /// The segment or, on a server, the rule that leads to the table exists.
    pub entered: bool,
    /// The EPE address exists, on a server.
    pub address: bool,
    /// Whether the VRF device exists, on a server; `None`: none is configured.
    pub vrf: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NeighbourStatus {
    pub name: String,
    pub address: IpAddr,
    pub asn: u32,
    /// `idle`, `connecting`, `open_sent`, `open_confirm` or `established`.
    pub state: String,
    /// For how long the session has been up; `None`: it is down.
    pub up_seconds: Option<u64>,
    /// Accepted routes, by family.
    pub routes: BTreeMap<String, usize>,
    /// Time until stale routes are removed at the latest; `None`: there are none.
    #[serde(default)]
    pub stale_seconds: Option<u64>,
    #[serde(flatten)]
    pub stats: Stats<NeighbourStats>,
    /// Why the session was last down; `None`: it never was.
    pub last_error: Option<String>,
    /// `None`: no BFD with it.
    pub bfd: Option<BfdStatus>,
}

/// A BFD session with a neighbour. States are `admin_down`, `down`, `init` or `up`; diagnostics have
/// the names of RFC 5880 §4.1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BfdStatus {
    pub state: String,
    pub remote_state: String,
    /// Why it was last down; `none`: it never was up.
    pub diagnostic: String,
    pub remote_diagnostic: String,
    /// The longest time between packets sent; `None`: the neighbour wants none.
    pub send_interval_us: Option<u64>,
    /// The session fails after this time without a packet; `None`: it is down.
    pub detection_time_us: Option<u64>,
    /// For how long it has been in its state.
    pub last_change_seconds: u64,
    /// Why the last packet could not be sent; `None`: it was.
    pub send_error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    pub name: String,
    pub rt: String,
    /// Its segment; on a server, the one of most routes. `None`: there is none.
    pub sid: Option<Ipv6Addr>,
    /// All segments in use; a server may have several border routers for a peer.
    #[serde(default)]
    pub segments: Vec<SegmentStatus>,
    /// The address whose connections leave by it, on a server.
    pub address: Option<Ipv6Addr>,
    /// The same for IPv4.
    #[serde(default)]
    pub ipv4_address: Option<Ipv4Addr>,
    #[serde(flatten)]
    pub stats: Stats<EgressPeerStats>,
    /// The kernel's state; `None`: with `--dry-run`, or it could not be read.
    pub kernel: Option<PeerInKernel>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentStatus {
    pub sid: Ipv6Addr,
    pub routes: usize,
    /// Whether probes through it are answered, on a server; `None`: none ever was.
    #[serde(default)]
    pub answers: Option<bool>,
}

impl PeerStatus {
    /// Sets what the kernel has.
    pub(crate) fn set_kernel(&mut self, kernel: Option<PeerInKernel>) {
        self.stats.0.kernel_routes = kernel.as_ref().map(|it| it.routes as u64);
        self.stats.0.closed = kernel.as_ref().map(|it| it.closed);
        self.kernel = kernel;
    }
}

/// What a daemon knows about a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    pub asked: IpNet,
    /// The longest prefix with a best path that covers it; `None`: there is none.
    pub prefix: Option<IpNet>,
    /// The paths to it, the best one first.
    pub paths: Vec<PathStatus>,
    /// The route in the kernel's main table; `None`: it was not read.
    pub kernel: Option<KernelRoute>,
    pub peers: Vec<PeerExplanation>,
    /// Neighbours to which `prefix` should be advertised and cannot be.
    pub not_advertised: Vec<NotAdvertised>,
    /// The comparison for these clients: for their prefix, or for prefixes that are part of
    /// `asked`.
    pub compared: Vec<PrefixStatus>,
    /// Steering of these clients, in the same way.
    #[serde(default)]
    pub steered: Vec<SteeredPrefix>,
}

/// A route that cannot be advertised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotAdvertised {
    pub neighbour: String,
    /// A VPN route has its distinguisher before the prefix.
    pub destination: String,
    pub reason: String,
}

/// What an egress peer has for a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerExplanation {
    pub name: String,
    /// The address whose connections leave by it, on a server.
    pub address: Option<Ipv6Addr>,
    #[serde(default)]
    pub ipv4_address: Option<Ipv4Addr>,
    /// The longest prefix in its table that covers `asked`; `None`: there is none.
    pub prefix: Option<IpNet>,
    /// The next hop of that route.
    pub via: Option<String>,
    /// The paths behind that route.
    pub paths: Vec<PathStatus>,
    /// Why the table does not have what may have been announced; `None`: nothing was.
    #[serde(default)]
    pub unused: Option<UnusedReason>,
    /// The same in the kernel.
    pub kernel: Option<KernelRoute>,
}

/// Why announced routes are not in the table of an egress peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum UnusedReason {
    /// The peer has no segment for IPv4, or no reflector exchanges IPv4 routes.
    Ipv4,
    /// Routes to this prefix were announced without a SID.
    NoSegment { prefix: IpNet },
    /// Probes through the segment of the route to this prefix are not answered any more.
    Silent { prefix: IpNet, sid: Ipv6Addr },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelRoute {
    pub table: u32,
    /// Its prefix; `None`: the table has no route that covers `asked`.
    pub prefix: Option<IpNet>,
    /// The nexthop object, in the syntax of `ip`.
    pub by: Option<String>,
    /// Whether destinations without a route are unreachable.
    pub closed: bool,
}

/// A path to a destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStatus {
    /// The neighbour that announced it; `None`: originated by this speaker.
    pub from: Option<String>,
    /// The route distinguisher of a VPN route; `None`: not a VPN route.
    pub distinguisher: Option<String>,
    pub next_hop: IpAddr,
    /// The SID of a VPN route.
    pub segment: Option<Ipv6Addr>,
    pub as_path: Vec<u32>,
    /// LOCAL_PREF, or its default.
    pub local_pref: u32,
    pub med: Option<u32>,
    /// `igp`, `egp` or `incomplete`.
    pub origin: String,
    /// The origin validation state: `valid`, `invalid` or `not_found`; `None`: no VRPs, or the path
    /// begins here.
    pub rpki: Option<String>,
    /// The neighbour is restarting and has not announced it again.
    pub stale: bool,
    /// The next hop is resolvable; otherwise the decision process ignores the path.
    pub reachable: bool,
    /// Why the best path is preferred to this one; `None`: it is the best one, or there is none.
    pub loses_to: Option<String>,
}

impl PathStatus {
    /// `best` is the path that it is compared with.
    pub(crate) fn of(
        speaker: &Speaker,
        names: &[&str],
        prefix: IpNet,
        best: &Path,
        path: &Path,
    ) -> Self {
        let of = &path.attributes;
        let from = match path.source {
            Source::Local => None,
            Source::Neighbour(id) => names.get(usize::from(id.0)).map(|name| (*name).to_owned()),
        };
        Self {
            from,
            distinguisher: None,
            next_hop: of.next_hop,
            segment: of.service.map(|service| service.sid(path.label)),
            as_path: of.as_path.asns().collect(),
            local_pref: of.local_pref.unwrap_or(DEFAULT_LOCAL_PREF),
            med: of.med,
            origin: match of.origin {
                Origin::Igp => "igp",
                Origin::Egp => "egp",
                Origin::Incomplete => "incomplete",
            }
            .to_owned(),
            rpki: (!speaker.vrps().is_empty() && of.as_path.length() > 0)
                .then(|| validity(speaker.vrps().validity(prefix, of.as_path.origin())).to_owned()),
            stale: path.stale,
            reachable: path.reachable,
            loses_to: (!std::ptr::eq(best, path))
                .then(|| speaker.deciding_step(best, path).to_string()),
        }
    }
}

/// The prefixes that cover a prefix, the longest first.
pub(crate) fn covering(prefix: IpNet) -> impl Iterator<Item = IpNet> {
    let lengths = (0..=prefix.prefix_len()).rev();
    lengths.filter_map(move |bits| Some(IpNet::new(prefix.addr(), bits).ok()?.trunc()))
}

fn validity(of: Validity) -> &'static str {
    match of {
        Validity::Valid => "valid",
        Validity::Invalid => "invalid",
        Validity::NotFound => "not_found",
    }
}

/// The text of a state, as in [`NeighbourStatus::state`].
pub(crate) fn word(state: State) -> &'static str {
    match state {
        State::Idle => "idle",
        State::Connecting => "connecting",
        State::OpenSent => "open_sent",
        State::OpenConfirm => "open_confirm",
        State::Established => "established",
    }
}
