//! Steering by the kernel: marks of new connections, tables with the steered prefixes, and reports
//! of ended connections.
//!
//! A rule of nftables marks the SYN of a connection from an assigned prefix; with
//! `net.ipv4.tcp_fwmark_accept` the connection's socket has this mark to its end, whatever is
//! assigned later. A policy rule per egress peer leads packets with its mark to a table that has a
//! route for each assigned prefix that the peer announces, through the peer's segment. Without a
//! route there, a packet takes the best path: a withdrawal moves live connections at once, and none
//! is lost.
//!
//! Another thread runs nft, since the event loop must not wait for it. [`crate::steering`] decides.

mod script;
mod wanted;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::IpAddr,
    sync::mpsc::{self, Receiver, SyncSender, TryRecvError},
    thread::{self, JoinHandle},
    time::Duration,
};

use ipnet::IpNet;
use keiro_linux::{
    epe::{RouteKey, RouteUpdate, State},
    jhash,
    mptcp_pm::Ends,
    nexthop::Nexthop,
    nft::{self, NftWatch},
    privilege::{self, Capability},
    sock_diag::{self, DiagError, Ended as Report, EndedConnections},
};
use keiro_units::Instant;

use self::{
    script::{Changes, Script},
    wanted::Wanted,
};
use super::{
    KernelError, failed,
    plan::{Peer, Plan, of_peer},
};
use crate::{
    config::{Steered, TABLES_MAX},
    draining::Draining,
    forwarding::{ForwardingError, PeerIndex},
    steering::{Assignment, Egress, Ended, Steering, figures::Transfer, prefix_of, slots::SLOTS},
};

#[derive(Debug)]
pub(super) struct Driver {
    pub(super) all: Steering,
    config: Steered,
    ended: EndedConnections,
    wanted: Wanted,
    applier: Applier,
    /// Nftables does not have what it should have: everything is to be made anew.
    rebuild: bool,
    /// Prefixes that have left their peer, or are new, while nftables could not be changed: its
    /// marks are those of before, and without routes they have no effect.
    withheld: BTreeSet<IpNet>,
    /// Others may remove the table: firewalls replace all rules when they are reloaded.
    watch: NftWatch,
    look: bool,
    read_due: Instant,
    apply_due: Instant,
    pause: Duration,
    /// The setting found at the start.
    accepted_marks: String,
}

/// The routes of the egress peers.
#[derive(Clone, Copy)]
pub(super) struct Routes<'a> {
    pub(super) state: &'a State,
    pub(super) plan: &'a Plan,
    pub(super) draining: &'a Draining,
}

impl Routes<'_> {
    /// The next hop by which an egress peer reaches all of a prefix.
    fn to(&self, peer: PeerIndex, prefix: IpNet) -> Option<Nexthop> {
        of_peer(0, peer)?;
        let table = self.plan.peers.get(&peer)?.table;
        let (route, id) = self.state.covering_route(table, prefix)?;
        let nexthop = self.state.nexthops.get(&id).copied();
        nexthop.filter(|_| !self.draining.contains(peer, route))
    }
}

/// Runs nft in a thread.
#[derive(Debug)]
struct Applier {
    is_idle: bool,
    /// `None`: it is to end.
    orders: Option<SyncSender<Order>>,
    thread: Option<JoinHandle<()>>,
    outcomes: Receiver<io::Result<Outcome>>,
}

struct Order {
    /// `None`: look whether the table is there.
    script: Option<String>,
    prefixes: BTreeSet<IpNet>,
    ports: BTreeSet<u16>,
}

/// Live connections by client prefix.
type Cookies = BTreeMap<IpNet, Vec<u64>>;

enum Outcome {
    Applied(Cookies),
    Missing,
    Present,
}

impl Driver {
    /// For the calling thread's network namespace.
    ///
    /// # Errors
    /// There is no nft, or the kernel lacks something.
    pub(super) fn open(config: &Steered, plan: &Plan, now: Instant) -> Result<Self, KernelError> {
        let ended = EndedConnections::open()?;
        let seed = (now.as_nanos() as u32) ^ std::process::id();
        let all = Steering::new(config.settings, names(plan));
        let script = Script {
            seed,
            first_mark: config.first_mark,
            ports: config.ports.clone(),
            own: own(plan),
            changes: Changes::default(),
        };
        nft::run(&script.table(all.slots(), &BTreeMap::new())).map_err(KernelError::Nft)?;
        // After the own change, of which it would report.
        let watch = NftWatch::open().map_err(KernelError::Nft)?;
        let accepted_marks = fs::read_to_string(ACCEPT_MARKS).map_err(KernelError::AcceptMarks)?;
        fs::write(ACCEPT_MARKS, "1").map_err(KernelError::AcceptMarks)?;
        Ok(Self {
            all,
            config: config.clone(),
            ended,
            wanted: Wanted::new(script),
            applier: Applier::start().map_err(KernelError::Thread)?,
            rebuild: false,
            withheld: BTreeSet::new(),
            watch,
            look: false,
            read_due: now + READ_EVERY,
            apply_due: now,
            pause: PAUSE_MIN,
            accepted_marks,
        })
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        self.read_due
    }

    /// Takes what has ended and what is due. Returns the routes that must be in the kernel before
    /// [`apply`](Self::apply).
    pub(super) fn tend(
        &mut self,
        now: Instant,
        routes: Routes<'_>,
    ) -> (Vec<RouteUpdate>, Option<ForwardingError>) {
        if now < self.read_due {
            return (Vec::new(), None);
        }
        self.read_due = now + READ_EVERY;
        let mut error = self.read(now, routes);
        self.all.handle_timeout(now);
        // Connections whose reports wait ended before an assignment that is confirmed now.
        if self.read_due > now {
            error = error.or(self.take_outcome(now));
        }
        // An error may hide a change.
        self.look |= self.watch.changed().unwrap_or(true);
        let mut updates = self.restored(routes);
        if !self.rebuild && (!self.applier.is_idle || now < self.apply_due) {
            return (updates, error);
        }
        for _ in 0..ASSIGNED_AT_ONCE {
            let Some((prefix, assignment)) = self.all.poll_assignment() else {
                break;
            };
            if self.rebuild {
                let before = self.wanted.set(prefix, assignment.clone());
                if leaves(before.as_ref(), assignment.as_ref()) {
                    self.withheld.insert(prefix);
                }
            } else {
                self.wanted.note(prefix, assignment.clone());
            }
            updates.extend(self.updates(prefix, assignment.as_ref(), routes));
        }
        (updates, error)
    }

    /// The routes of prefixes that were withheld, once nftables is as it should be.
    fn restored(&mut self, routes: Routes<'_>) -> Vec<RouteUpdate> {
        if self.rebuild || !self.applier.is_idle {
            return Vec::new();
        }
        let restored = std::mem::take(&mut self.withheld).into_iter();
        let updates = restored.flat_map(|prefix| {
            let assignment = self.wanted.assigned.get(&prefix);
            self.updates(prefix, assignment, routes)
        });
        updates.collect()
    }

    /// Has nft make what has changed.
    pub(super) fn apply(&mut self, now: Instant) {
        if !self.applier.is_idle || self.rebuild && now < self.apply_due {
            return;
        }
        if self.rebuild {
            self.rebuild = false;
            let script = self.wanted.table(self.all.slots());
            self.order(now, Some(script));
        } else if let Some(script) = self.wanted.take_changes() {
            self.order(now, Some(script));
        } else if self.look && now >= self.apply_due {
            self.look = false;
            self.order(now, None);
        }
    }

    /// Follows changes of routes to the prefixes for which `concerns` is true.
    pub(super) fn follow(
        &mut self,
        now: Instant,
        concerns: &dyn Fn(IpNet) -> bool,
        routes: Routes<'_>,
    ) -> Vec<RouteUpdate> {
        let announces = |peer, prefix| routes.to(peer, prefix).is_some();
        self.all.on_routes(now, concerns, &announces);
        let all = self.wanted.assigned.iter();
        let concerned = all.filter(|(prefix, _)| concerns(**prefix));
        let updates = concerned
            .flat_map(|(prefix, assignment)| self.updates(*prefix, Some(assignment), routes));
        updates.collect()
    }

    /// Other egress peers: everything returns to the best path. Their tables are cleared by the
    /// caller.
    pub(super) fn restart(&mut self, now: Instant, plan: &Plan) {
        self.all.restart(now, names(plan));
        self.wanted.script.own = own(plan);
        self.wanted.assigned.clear();
        self.withheld.clear();
        self.rebuild = true;
        self.apply_due = now;
        // The answer to what was sent does not concern the new assignments.
    }

    /// New connections take the best path; live ones stay where they are.
    pub(super) fn end(&mut self) -> Option<ForwardingError> {
        // Its last script must not come after the removal.
        self.applier.stop();
        let removed = nft::run(&Script::removal());
        let restored = fs::write(ACCEPT_MARKS, self.accepted_marks.trim());
        let error = removed.and(restored).err()?;
        Some(failed("new connections stay steered".to_owned(), &error))
    }

    /// Of the tables of all egress peers with steered prefixes.
    pub(super) fn tables(&self) -> impl Iterator<Item = u32> + use<> {
        let first = self.config.first_table;
        first..first + TABLES_MAX
    }

    pub(super) fn table(&self, peer: PeerIndex) -> Option<u32> {
        of_peer(self.config.first_table, peer)
    }

    fn read(&mut self, now: Instant, routes: Routes<'_>) -> Option<ForwardingError> {
        let announces = |peer, prefix| routes.to(peer, prefix).is_some();
        let (all, script) = (&mut self.all, &self.wanted.script);
        let mut count = 0;
        let taken = self.ended.take(READ_AT_ONCE, |report| {
            count += 1;
            if let Some(ended) = ended(&report, script) {
                all.on_ended(now, &ended, &announces);
            }
        });
        if count >= READ_AT_ONCE {
            self.read_due = now;
        }
        match taken {
            Ok(true) => None,
            Ok(false) => {
                self.all.on_lost_reports();
                None
            }
            Err(error) => {
                self.read_due = now + PAUSE_MAX;
                Some(failed("connections are not measured".to_owned(), &error))
            }
        }
    }

    /// Takes what nft has done.
    fn take_outcome(&mut self, now: Instant) -> Option<ForwardingError> {
        let outcome = match self.applier.outcomes.try_recv() {
            Ok(outcome) => outcome,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                self.read_due = now + PAUSE_MAX;
                Err(io::Error::other("the thread that runs nft has ended"))
            }
        };
        self.applier.is_idle = true;
        self.apply_due = now + self.pause;
        match outcome {
            Ok(Outcome::Applied(mut live)) => {
                self.pause = PAUSE_MIN;
                for (prefix, version) in self.wanted.take_sent() {
                    let earlier = live.remove(&prefix).unwrap_or_default();
                    self.all.on_applied(prefix, version, &earlier);
                }
                None
            }
            Ok(Outcome::Present) => None,
            Ok(Outcome::Missing) => {
                tracing::warn!(
                    "another program has removed the table of nftables; it is made again"
                );
                self.rebuild = true;
                None
            }
            Err(error) => {
                self.rebuild = true;
                self.pause = (self.pause * 2).min(PAUSE_MAX);
                let what = "new connections are not steered as wanted".to_owned();
                Some(failed(what, &error))
            }
        }
    }

    fn order(&mut self, now: Instant, script: Option<String>) {
        let order = Order {
            script,
            prefixes: self.wanted.sent(),
            ports: self.config.ports.clone(),
        };
        let orders = self.applier.orders.as_ref();
        match orders.is_some_and(|orders| orders.try_send(order).is_ok()) {
            true => self.applier.is_idle = false,
            false => self.rebuild = true,
        }
        // Also where nothing but removals was sent.
        self.apply_due = now + self.pause;
    }

    /// The routes to a prefix by each egress peer; without an assignment, their removal.
    fn updates(
        &self,
        prefix: IpNet,
        assignment: Option<&Assignment>,
        routes: Routes<'_>,
    ) -> Vec<RouteUpdate> {
        let updates = routes.plan.peers.keys().filter_map(|peer| {
            let key = RouteKey {
                table: self.table(*peer)?,
                destination: prefix,
            };
            let led = assignment.filter(|_| !self.withheld.contains(&prefix));
            let nexthop = led.and_then(|_| routes.to(*peer, prefix));
            Some(RouteUpdate { key, nexthop })
        });
        updates.collect()
    }
}

impl Applier {
    fn start() -> io::Result<Self> {
        let (orders, to_do) = mpsc::sync_channel::<Order>(1);
        let (done, outcomes) = mpsc::sync_channel(1);
        let work = move || {
            // Nft needs CAP_NET_ADMIN, as the daemon's first thread.
            privilege::drop_in_thread(Capability::NetBindService);
            while let Ok(order) = to_do.recv() {
                let outcome = order.carry_out();
                if done.send(outcome).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new()
            .name("steering".to_owned())
            .spawn(work)?;
        Ok(Self {
            orders: Some(orders),
            thread: Some(thread),
            outcomes,
            is_idle: true,
        })
    }

    /// Waits for its last order. It takes no further one.
    fn stop(&mut self) {
        self.orders = None;
        // A thread that has panicked does nothing more.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Order {
    fn carry_out(&self) -> io::Result<Outcome> {
        let Some(script) = &self.script else {
            return Ok(match has_tables()? {
                true => Outcome::Present,
                false => Outcome::Missing,
            });
        };
        if !script.is_empty() {
            nft::run(script)?;
        }
        Ok(Outcome::Applied(self.live()))
    }

    /// The connections that may have begun before.
    fn live(&self) -> Cookies {
        let mut cookies = Cookies::new();
        let is_wanted = |ends: &Ends| {
            let prefix = prefix_of(ends.remote.ip());
            self.ports.contains(&ends.local.port())
                && prefix.is_some_and(|prefix| self.prefixes.contains(&prefix))
        };
        let live = match sock_diag::live(is_wanted, LIVE_MAX) {
            Ok(live) => live,
            Err(error) => {
                tracing::warn!(%error, "connections that began before a change count");
                return cookies;
            }
        };
        for one in live {
            if let Some(prefix) = prefix_of(one.ends.remote.ip()) {
                cookies.entry(prefix).or_default().push(one.cookie);
            }
        }
        cookies
    }
}

/// Whether a prefix must not have routes while the marks of its connections are those of before.
fn leaves(before: Option<&Assignment>, after: Option<&Assignment>) -> bool {
    match before.map(|before| before.egress) {
        None => true,
        Some(Egress::BestPath) => after.is_none(),
        Some(peer) => after.is_none_or(|after| after.egress != peer),
    }
}

/// What steering counts of a report; `None`: a connection that is not steered.
fn ended(report: &Report, script: &Script) -> Option<Ended> {
    let (local, remote) = (report.ends.local, report.ends.remote);
    if script.own.contains(&local.ip()) || !script.ports.contains(&local.port()) {
        return None;
    }
    Some(Ended {
        client: remote.ip(),
        cookie: report.cookie,
        slot: jhash::of_client(remote.ip(), remote.port(), script.seed, SLOTS),
        transfer: Transfer {
            rtt_min: report.rtt_min,
            data_segments: report.data_segments.into(),
            retransmitted_segments: report.retransmitted_segments.into(),
            bytes_acked: report.bytes_acked,
            busy: report.busy,
        },
    })
}

fn names(plan: &Plan) -> BTreeMap<PeerIndex, String> {
    let peers = plan.peers.iter().map(|(at, peer)| (*at, peer.name.clone()));
    peers.collect()
}

fn own(plan: &Plan) -> BTreeSet<IpAddr> {
    plan.peers.values().flat_map(Peer::own_addresses).collect()
}

/// Whether nftables has the tables of both families.
fn has_tables() -> io::Result<bool> {
    for family in nft::IP_FAMILIES {
        if !nft::has_table(family, script::TABLE)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes what an earlier run has left in nftables.
pub(super) fn remove_left() -> io::Result<usize> {
    match nft::table_names().map(|names| names.contains(script::TABLE)) {
        Ok(true) => nft::run(&Script::removal()).map(|()| 1),
        Ok(false) => Ok(0),
        // Without nft there was no steering.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

impl From<DiagError> for KernelError {
    fn from(error: DiagError) -> Self {
        Self::Ended(error)
    }
}

const ACCEPT_MARKS: &str = "/proc/sys/net/ipv4/tcp_fwmark_accept";
/// Ours: the socket's buffer of 4 MiB holds the reports of 15,000 connections a second.
const READ_EVERY: Duration = Duration::from_millis(200);
/// Reports read per turn. Ours: some milliseconds.
const READ_AT_ONCE: usize = 2_000;
/// Prefixes changed by one run of nft. Ours.
const ASSIGNED_AT_ONCE: usize = 500;
/// Between runs of nft, and while they fail. Ours.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Live connections looked at after a change; of more, some count that began before. Ours.
const LIVE_MAX: usize = 1 << 18;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_that_leaves_its_peer_has_no_routes_until_its_marks_are_changed() {
        let with = |egress| Assignment {
            prefix: "2001:db8:1::/48".parse().unwrap(),
            version: 1,
            egress,
            groups: BTreeMap::new(),
            announced: BTreeSet::new(),
        };
        let [best, a, b] = [
            Egress::BestPath,
            Egress::Peer(PeerIndex(0)),
            Egress::Peer(PeerIndex(1)),
        ]
        .map(with);
        for (before, after, expected) in [
            (Some(&a), Some(&best), true),
            (Some(&a), Some(&b), true),
            (Some(&a), None, true),
            (Some(&best), None, true),
            (None, Some(&best), true),
            (Some(&a), Some(&a), false),
            (Some(&best), Some(&a), false),
        ] {
            assert_eq!(leaves(before, after), expected, "{before:?} {after:?}");
        }
    }

    #[test]
    fn only_connections_that_the_rule_marks_are_counted() {
        let script = Script {
            seed: 1,
            first_mark: 0x100,
            ports: BTreeSet::from([443]),
            own: BTreeSet::from(["2001:db8::e".parse().unwrap()]),
            changes: Changes::default(),
        };
        let counts = |local: &str, remote: &str| {
            let report = Report {
                ends: Ends {
                    local: local.parse().unwrap(),
                    remote: remote.parse().unwrap(),
                },
                cookie: 1,
                rtt_min: Duration::ZERO,
                data_segments: 1,
                retransmitted_segments: 0,
                bytes_acked: 1,
                busy: Duration::ZERO,
            };
            ended(&report, &script).is_some()
        };
        let client = "[2001:db8:1::1]:5000";
        assert!(counts("[2001:db8::1]:443", client));
        assert!(!counts("[2001:db8::1]:80", client));
        assert!(!counts("[2001:db8::e]:443", client), "an EPE address");
        assert!(counts("192.0.2.1:443", "192.0.2.2:5000"));
    }
}
