//! What a daemon tells about itself, and about one prefix. How it is asked is in
//! [`crate::control`].

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv6Net};
use keiro_bgp::{
    attributes::{DEFAULT_LOCAL_PREF, Origin},
    rib::{Path, Source},
    rpki::Validity,
    session::State,
    speaker::Speaker,
};
use serde::{Deserialize, Serialize};

/// A daemon as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// `asbr` or `egress`.
    pub role: String,
    /// Its AS.
    pub asn: u32,
    /// Its BGP identifier.
    pub router_id: Ipv4Addr,
    /// Destinations that it knows.
    pub destinations: usize,
    /// What the RPKI says, in payloads; `None`: nobody was asked.
    pub vrps: Option<usize>,
    /// Connections from addresses of no neighbour, since it started.
    pub strangers: u64,
    /// Changes of forwarding that were refused, since it started.
    pub refused: u64,
    /// Why the last configuration that it read was refused; `None`: it was not.
    pub config_rejected: Option<String>,
    /// Its neighbours, egress peers first.
    pub neighbours: Vec<NeighbourStatus>,
    /// Egress peers.
    pub peers: Vec<PeerStatus>,
    /// Multipath against single path, by client prefix; `None`: nothing is compared.
    pub comparison: Option<ComparisonStatus>,
    /// What the kernel has, as just read; `None`: nothing is put there (`--dry-run`).
    pub kernel: Option<KernelStatus>,
}

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Happening {
    /// Milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// A session is up.
    SessionUp {
        /// The neighbour's name.
        neighbour: String,
    },
    /// A session is down.
    SessionDown {
        /// The neighbour's name.
        neighbour: String,
        /// Why.
        reason: String,
        /// Its routes stay for now.
        routes_kept: bool,
    },
    /// A neighbour has announced all it has of a family.
    AllAnnounced {
        /// The neighbour's name.
        neighbour: String,
        /// The family.
        family: String,
        /// How many routes there are.
        routes: usize,
    },
    /// A neighbour has sent a bad UPDATE, or too many routes.
    Complaint {
        /// The neighbour's name.
        neighbour: String,
        /// What is wrong.
        reason: String,
    },
    /// An egress peer has more or fewer routes, or another segment, than before.
    Peer {
        /// Its name.
        peer: String,
        /// How many routes it had before.
        routes_before: usize,
        /// How many it has.
        routes: usize,
        /// Its segment, on a border router.
        sid: Option<Ipv6Addr>,
    },
    /// Another configuration is in force.
    Reloaded(Reloaded),
    /// Another configuration was refused, and everything stays as it was.
    ConfigRejected {
        /// Why.
        reason: String,
    },
    /// Something else holds for the connections of a client prefix.
    Compared(Compared),
    /// Forwarding was refused.
    Refused {
        /// What was to be done, and why it was not.
        reason: String,
    },
}

/// What another configuration has brought; neighbours by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Neighbours that were not there before.
    pub added: Vec<String>,
    /// Neighbours that are no longer there.
    pub removed: Vec<String>,
    /// Neighbours whose sessions were ended and begin anew, because what they agree upon is another.
    pub restarted: Vec<String>,
    /// Neighbours with which other routes may be exchanged; their sessions stay.
    pub changed: Vec<String>,
    /// A server's egress peers by their names: those that were not there before.
    pub peers_added: Vec<String>,
    /// Those that are no longer there.
    pub peers_removed: Vec<String>,
    /// Those with another route target, address, table or VRF device.
    pub peers_changed: Vec<String>,
    /// What else is another: `class`, `comparison`.
    pub sections: Vec<String>,
    /// What the kernel refused of it, with its words; it is tried again.
    pub refused: Vec<String>,
    /// What the RPKI says now, in payloads; `None`: nobody is asked.
    pub vrps: Option<usize>,
    /// What is in force only after a restart of the daemon.
    pub needs_restart: Vec<String>,
}

/// Whether connections of a client prefix are told of EPE addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// They are, but for those that are held out.
    Multipath,
    /// None of them.
    SinglePath,
    /// Half of them, to see whether multipath is better now.
    Trial,
}

/// Goodput of connections that stayed single-path, and of others. Goodputs are geometric means; a loss is by how
/// much multipath's is less, in thousandths of single-path's, negative where it is more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Connections that stayed single-path.
    pub single_connections: u64,
    /// Their goodput; `None`: there are none.
    pub single_bits_per_second: Option<u64>,
    /// Connections that were told of EPE addresses.
    pub multipath_connections: u64,
    /// Their goodput; `None`: there are none.
    pub multipath_bits_per_second: Option<u64>,
    /// What multipath loses, as estimated; `None`: of too few connections.
    pub loss_permille: Option<i64>,
    /// At least that, with the confidence of one look.
    pub loss_low_permille: Option<i64>,
    /// At most that, with the same confidence.
    pub loss_high_permille: Option<i64>,
}

/// A decision about a client prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    /// Whose clients.
    pub prefix: Ipv6Net,
    /// What holds from now on.
    pub standing: Standing,
    /// With the configured confidence; otherwise because it is time to try again, or evidence stays undecided.
    pub confident: bool,
    /// By what it was decided.
    pub evidence: Evidence,
}

/// How a client prefix stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixStatus {
    /// Whose clients.
    pub prefix: Ipv6Net,
    /// What holds.
    pub standing: Standing,
    /// After how long multipath is tried again; `None`: it is used, or being tried.
    pub again_seconds: Option<u64>,
    /// What is known since evidence began anew.
    pub evidence: Evidence,
    /// It is judged when there are so many connections of either kind; `None`: nothing is being compared.
    pub next_look: Option<u64>,
    /// By what was decided last; `None`: nothing ever was.
    pub decided: Option<Evidence>,
}

/// Multipath against single path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComparisonStatus {
    /// Client prefixes that are known.
    pub prefixes: usize,
    /// Those among them that are single-path.
    pub single_path: usize,
    /// Those that try multipath again.
    pub trial: usize,
    /// Prefixes that were forgotten because there were too many, since it started.
    pub forgotten: u64,
    /// Connections whose goodput counted, since it started.
    pub counted: u64,
    /// Decisions, since it started.
    pub decisions: u64,
    /// Some prefixes: those that are not multipath, and of the others those with most connections.
    pub shown: Vec<PrefixStatus>,
}

/// What the kernel has of a daemon's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelStatus {
    /// Best paths in the main table.
    pub main_routes: usize,
    /// Nexthop objects.
    pub nexthops: usize,
    /// Segments that are served.
    pub segments: usize,
    /// Interfaces whose packets to the locator are dropped, on a border router.
    pub guarded: Vec<String>,
    /// Why the kernel could not be read; `None`: it was.
    pub error: Option<String>,
}

/// What the kernel has of an egress peer's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInKernel {
    /// The number of its table; `None`: its segment leads to it without one.
    pub table: Option<u32>,
    /// What has no route there is unreachable.
    pub closed: bool,
    /// Routes in it.
    pub routes: usize,
    /// The segment or, on a server, the rule that leads to it.
    pub entered: bool,
    /// The EPE address, on a server.
    pub address: bool,
    /// The VRF device of its table, on a server; `None`: none is asked for.
    pub vrf: Option<bool>,
}

/// A neighbour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourStatus {
    /// Its name in the configuration.
    pub name: String,
    /// Where it is.
    pub address: IpAddr,
    /// Its AS.
    pub asn: u32,
    /// `idle`, `connecting`, `open_sent`, `open_confirm` or `established`.
    pub state: String,
    /// For how long the session has been up; `None`: it is not.
    pub up_seconds: Option<u64>,
    /// Routes taken from it, by family.
    pub routes: BTreeMap<String, usize>,
    /// Destinations that it was told.
    pub told: usize,
    /// How often the session came up.
    pub times_up: u64,
    /// Bad UPDATEs that cost routes.
    pub complaints: u64,
    /// Why the session was last down; `None`: it never was.
    pub last_error: Option<String>,
}

/// An egress peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// Its route target.
    pub rt: String,
    /// Its segment, where it is served; `None`: it is not, or elsewhere.
    pub sid: Option<Ipv6Addr>,
    /// The address whose connections leave by it, on a server.
    pub address: Option<Ipv6Addr>,
    /// Routes in its table, as wanted.
    pub routes: usize,
    /// MPTCP subflows by its address; `None`: Keiro does not look after them.
    pub subflows: Option<usize>,
    /// What the kernel has; `None`: nothing is put there, or it could not be read.
    pub kernel: Option<PeerInKernel>,
}

/// What a daemon knows of a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// What was asked for.
    pub asked: IpNet,
    /// The longest prefix of a best path that covers it; `None`: there is none.
    pub prefix: Option<IpNet>,
    /// The paths to it, the best one first.
    pub paths: Vec<PathStatus>,
    /// Where the main table leads in the kernel; `None`: nowhere by Keiro, or not read.
    pub kernel: Option<KernelRoute>,
    /// Egress peers.
    pub peers: Vec<PeerExplanation>,
    /// Multipath against single path for these clients: for their prefix, or for some of those that are part of
    /// what was asked for.
    pub compared: Vec<PrefixStatus>,
}

/// What an egress peer has to do with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerExplanation {
    /// Its name.
    pub name: String,
    /// The address whose connections leave by it, on a server.
    pub address: Option<Ipv6Addr>,
    /// The longest prefix in its table that covers what was asked for; `None`: its table leads there
    /// nowhere.
    pub prefix: Option<IpNet>,
    /// Where its table leads.
    pub via: Option<String>,
    /// The paths that this follows from.
    pub paths: Vec<PathStatus>,
    /// The same in the kernel.
    pub kernel: Option<KernelRoute>,
}

/// A route as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelRoute {
    /// The number of its table.
    pub table: u32,
    /// Where to; `None`: the table has no route that covers it.
    pub prefix: Option<IpNet>,
    /// By which nexthop object, in the words of `ip`.
    pub by: Option<String>,
    /// Whether the rest is unreachable.
    pub closed: bool,
}

/// A path to a destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStatus {
    /// The neighbour that announced it; `None`: this speaker.
    pub from: Option<String>,
    /// Tells VPN routes apart; `None`: it is none.
    pub distinguisher: Option<String>,
    /// Where packets go.
    pub next_hop: IpAddr,
    /// The segment of a VPN route.
    pub segment: Option<Ipv6Addr>,
    /// The ASes that it passed.
    pub as_path: Vec<u32>,
    /// What counts as LOCAL_PREF.
    pub local_pref: u32,
    /// MED.
    pub med: Option<u32>,
    /// `igp`, `egp` or `incomplete`.
    pub origin: String,
    /// What the RPKI says of it: `valid`, `invalid` or `not_found`; `None`: it was not asked, or the
    /// path begins here.
    pub rpki: Option<String>,
    /// Its neighbour restarts and has not announced it again.
    pub stale: bool,
    /// Packets can be sent to its next hop; otherwise it is not considered.
    pub reachable: bool,
    /// What the best path has that this one has not; `None`: it is the best one, or none is considered.
    pub loses_to: Option<String>,
}

impl PathStatus {
    /// Of a path; `best` is what it was chosen or left out against.
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

/// A state in the words of [`NeighbourStatus::state`].
pub(crate) fn word(state: State) -> &'static str {
    match state {
        State::Idle => "idle",
        State::Connecting => "connecting",
        State::OpenSent => "open_sent",
        State::OpenConfirm => "open_confirm",
        State::Established => "established",
    }
}
