//! What the running gateway says. A gateway that has just started is watched until its peers can be judged, and
//! counters are read twice where their rise says that something lasts.

use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    net::SocketAddr,
    os::unix::net::UnixStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use keiro_control::protocol::{
    PathSnapshot, PathState, PeerSnapshot, PeerState, Request, Response, StatusSnapshot,
    StoreState, TenantSnapshot, client::Client,
};
use keiro_doctor::facts::{Gateway, Peer, PeerPath, Report, Session, Spent};
use keiro_linux::unix::PeerCredentials;

use super::super::socket::Socket;

/// How long the gateway may take to answer. Ours, as of other queries.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// What is not up is judged by the gateway after five seconds and some packets.
const JUDGED_AFTER: Duration = Duration::from_secs(7);
/// How long a gateway that has just started is watched.
const WATCHED_MAX: Duration = Duration::from_secs(10);
/// A peer reports tenants that it refuses once a second.
const COUNTED_FOR: Duration = Duration::from_millis(1500);
/// Handshakes are tried again within five seconds.
const STALE_WATCHED_MAX: Duration = Duration::from_secs(7);
const PAUSE: Duration = Duration::from_millis(250);
/// CAP_NET_ADMIN, in `include/uapi/linux/capability.h`.
const NET_ADMIN_BIT: u32 = 12;

/// The gateway's answers, the first and the last.
pub(super) struct Running {
    first: Answers,
    last: Answers,
    has_net_admin: Option<bool>,
}

/// The gateway at one moment.
#[derive(Clone)]
struct Answers {
    status: StatusSnapshot,
    paths: Vec<PathSnapshot>,
    peers: Vec<PeerSnapshot>,
    tenants: Vec<TenantSnapshot>,
}

/// Asks the gateway at `socket`; `None`: none runs.
///
/// # Errors
/// One runs and cannot be asked: why, and what to try.
pub(super) fn ask(socket: &Path) -> Result<Option<Running>, String> {
    let named = Socket::Control(socket);
    let stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(one_line(&named.unreachable(error))),
    };
    let has_net_admin = PeerCredentials::of(&stream)
        .ok()
        .and_then(|of| net_admin(of.pid));
    let timeout = Some(ANSWER_TIMEOUT);
    let set = stream
        .set_read_timeout(timeout)
        .and_then(|()| stream.set_write_timeout(timeout));
    set.map_err(|error| format!("the gateway at {named}: {error}"))?;
    let mut client = Client::new(stream);
    let begun = Instant::now();
    let failed = |why| format!("the gateway at {named} could not be asked: {why}");
    let mut first = Answers::ask(&mut client).map_err(failed)?;
    while !first.is_settled() && begun.elapsed() < WATCHED_MAX {
        thread::sleep(PAUSE);
        first = Answers::ask(&mut client).map_err(failed)?;
    }
    let mut last = first.clone();
    let watched = Instant::now();
    while first.may_go_on(&last, watched.elapsed()) {
        thread::sleep(PAUSE);
        last = Answers::ask(&mut client).map_err(failed)?;
    }
    Ok(Some(Running {
        first,
        last,
        has_net_admin,
    }))
}

fn one_line(failure: &crate::failure::Failure) -> String {
    let text = failure.message("").to_string();
    let lines = text.lines().map(str::trim);
    lines
        .collect::<Vec<_>>()
        .join("; ")
        .trim_start_matches([':', ' '])
        .to_owned()
}

/// Whether the first thread of a process has CAP_NET_ADMIN; `None`: it is not seen from here.
fn net_admin(pid: i32) -> Option<bool> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    let set = u64::from_str_radix(line.trim(), 16).ok()?;
    Some(set >> NET_ADMIN_BIT & 1 == 1)
}

impl Answers {
    fn ask(client: &mut Client<UnixStream>) -> Result<Self, String> {
        let mut answer = |request: Request| {
            let answered = client.request(&request);
            answered.map_err(|error| error.to_string())
        };
        let (status, paths, peers, tenants) = (
            answer(Request::Status {})?,
            answer(Request::ShowPath { name: None })?,
            answer(Request::ShowPeer { name: None })?,
            answer(Request::ShowTenant { name: None })?,
        );
        match (status, paths, peers, tenants) {
            (
                Response::Status(status),
                Response::Paths { paths },
                Response::Peers { peers },
                Response::Tenants { tenants },
            ) => Ok(Self {
                status: *status,
                paths,
                peers,
                tenants,
            }),
            _ => Err(
                "it answers something else than was asked; is it of another version?".to_owned(),
            ),
        }
    }

    /// Whether everything is up, or has been down for long enough to be judged.
    fn is_settled(&self) -> bool {
        let is_judged = |seconds: f64| seconds >= JUDGED_AFTER.as_secs_f64();
        let mut peers = self.peers.iter();
        let mut paths = self.paths.iter();
        peers.all(|peer| peer.state == PeerState::Up || is_judged(peer.state_seconds))
            && paths.all(|path| {
                path.state == PathState::Up || path.abandoned || is_judged(path.state_seconds)
            })
    }

    /// Whether a counter that has risen before may rise again.
    fn may_go_on(&self, last: &Self, watched: Duration) -> bool {
        let mut refused = self.tenants.iter().flat_map(|tenant| &tenant.peers);
        let mut unknown = self.peers.iter();
        let counts = refused.any(|peer| count(&peer.dropped_packets, UNKNOWN_AT_PEER) > 0)
            || unknown.any(|peer| count(&peer.dropped_packets, UNKNOWN_TENANT) > 0);
        let stale = self.peers.iter().filter(|peer| peer.state != PeerState::Up);
        let mut waiting = stale.filter(|peer| count(&peer.dropped_packets, STALE) > 0);
        let rises = |peer: &PeerSnapshot| last.since(self, &peer.name, STALE) == 0;
        counts && watched < COUNTED_FOR || watched < STALE_WATCHED_MAX && waiting.any(rises)
    }

    /// How much a counter of dropped packets of a peer is above that of before.
    fn since(&self, before: &Self, peer: &str, reason: &str) -> u64 {
        let of = |answers: &Self| {
            let mut peers = answers.peers.iter();
            let peer = peers.find(|of| of.name == peer);
            peer.map_or(0, |peer| count(&peer.dropped_packets, reason))
        };
        of(self).saturating_sub(of(before))
    }
}

const UNKNOWN_AT_PEER: &str = "unknown_at_peer";
const UNKNOWN_TENANT: &str = "unknown_tenant";
const STALE: &str = "stale_handshake";

fn count(counters: &BTreeMap<String, u64>, reason: &str) -> u64 {
    counters.get(reason).copied().unwrap_or(0)
}

impl Running {
    pub(super) fn gateway(&self) -> Gateway {
        let status = &self.last.status;
        let store = status.store.as_ref();
        let lost = store.filter(|store| store.state == StoreState::Lost);
        let reports = status.recent_events.iter().map(|recent| Report {
            kind: recent.event.kind.clone(),
            count: recent.count,
            age: seconds(recent.age_seconds),
        });
        Gateway {
            name: status.name.clone(),
            public_key: status.public_key.clone(),
            has_net_admin: self.has_net_admin,
            rejected: status.config_rejected.clone(),
            needs_restart: status.needs_restart.clone(),
            store_lost: lost.map(|store| {
                let why = store.reason.as_deref().unwrap_or("no answer");
                format!("{}: {why}", store.description)
            }),
            reports: reports.collect(),
        }
    }

    /// Adds what the gateway says of peers that it knows.
    pub(super) fn add_sessions(&self, peers: &mut [Peer]) {
        for peer in peers {
            let mut known = self.last.peers.iter();
            let known = known.find(|known| known.name == peer.name);
            peer.session = known.map(|known| self.session(known));
        }
    }

    fn session(&self, peer: &PeerSnapshot) -> Session {
        let paths = self.last.paths.iter().filter(|path| path.peer == peer.name);
        let path = |path: &PathSnapshot| PeerPath {
            path: path.name.clone(),
            is_up: path.state == PathState::Up,
            is_abandoned: path.abandoned,
            since: seconds(path.state_seconds),
            remote: path.remote.clone(),
            fault: path.trouble,
            diagnosis: path.diagnosis.clone().unwrap_or_default(),
            mtu_bytes: path.stats.mtu_bytes,
            spent: spent(path),
        };
        let since = |reason| self.last.since(&self.first, &peer.name, reason);
        Session {
            is_up: peer.state == PeerState::Up,
            since: seconds(peer.state_seconds),
            stale_handshakes: since(STALE),
            unknown_tenant_packets: since(UNKNOWN_TENANT),
            paths: paths.map(path).collect(),
        }
    }

    /// From where the paths leave, by their names.
    pub(super) fn locals(&self) -> BTreeMap<String, SocketAddr> {
        let local = |path: &PathSnapshot| Some((path.name.clone(), path.local.parse().ok()?));
        self.last.paths.iter().filter_map(local).collect()
    }

    /// Where the paths lead: the name of the path, the peer and its address.
    pub(super) fn remotes(&self) -> Vec<(String, String, SocketAddr)> {
        let remote = |path: &PathSnapshot| {
            let address = path.remote.as_ref()?.parse().ok()?;
            Some((path.name.clone(), path.peer.clone(), address))
        };
        let paths = self.last.paths.iter().filter(|path| !path.abandoned);
        paths.filter_map(remote).collect()
    }

    /// What it says of a tenant, and how many of its packets each peer has refused meanwhile.
    pub(super) fn tenant(&self, name: &str) -> Option<(&TenantSnapshot, BTreeMap<&str, u64>)> {
        let last = self.last.tenants.iter().find(|of| of.name == name)?;
        let first = self.first.tenants.iter().find(|of| of.name == name);
        let refused = |peer: &str| {
            let mut before = first.into_iter().flat_map(|of| &of.peers);
            let before = before.find(|of| of.peer == peer);
            before.map_or(0, |of| count(&of.dropped_packets, UNKNOWN_AT_PEER))
        };
        let since = last.peers.iter().map(|peer| {
            let now = count(&peer.dropped_packets, UNKNOWN_AT_PEER);
            (peer.peer.as_str(), now.saturating_sub(refused(&peer.peer)))
        });
        Some((last, since.collect()))
    }
}

fn spent(path: &PathSnapshot) -> Option<Spent> {
    path.path_terms.filter(|terms| terms.budget_spent)?;
    let own = path.budget.as_ref().filter(|budget| budget.left_bytes == 0);
    Some(match own {
        Some(budget) => Spent::Here {
            ends: budget.ends.clone(),
        },
        None => Spent::AtPeer,
    })
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
