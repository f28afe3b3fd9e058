//! Forwarding by the kernel: implements [`crate::forwarding`] with [`keiro_linux::epe`].
//!
//! The configuration gives each peer a table, an address and a segment. This module turns them and
//! the routes into changes of one desired state, and resolves next hops to a gateway and an
//! interface. [`Forwarding::tend`] repairs what other programs changed and retries what failed. The
//! netlink messages are in `keiro_linux`.

mod cleanup;
mod evidence_file;
mod join_listeners;
mod kernel_view;
mod next_hop_tracker;
mod path_manager;
mod plan;
mod reconfigure;
mod routers;
mod segment_marks;
mod steering;
mod underlay_routes;
mod vrf;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    thread,
    time::Duration,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use keiro_linux::{
    clock,
    epe::{
        Change, EpeError, Numbers, Owner, PROTOCOL_ASBR, PROTOCOL_EGRESS, Reconciler, Report,
        RouteKey, RouteUpdate, State, Watch,
    },
    mptcp_pm::{self, PathManagerError},
    seg6::{Behaviour, Sid},
    segment_probe::SegmentProbe,
    sock_diag,
    unix::{LockError, NamespaceLock},
    vrf::VrfError,
};
use keiro_units::Instant;

use crate::{
    comparison::Comparison,
    config::{AsbrConfig, EndpointConfig, EndpointPeer, EpeAddresses, Mptcp},
    draining::Draining,
    forwarding::{
        Configured, Forwarding, ForwardingError, NextHop, PeerIndex, RouteChange, Table, Via,
    },
    status::{
        Compared, ComparisonStatus, KernelRoute, KernelStatus, PeerInKernel, PrefixStatus, Steered,
        SteeredPrefix, SteeringStatus,
    },
};
pub use cleanup::{Cleaned, Removed};
use evidence_file::EvidenceFile;
use join_listeners::JoinListeners;
pub use kernel_view::KernelView;
use next_hop_tracker::{NextHopTracker, Resolutions};
use path_manager::Paths;
use plan::{Guard, Marks, Peer, Plan, Server, moved};
use routers::Routers;
use segment_marks::SegmentMarks;
use underlay_routes::UnderlayRoutes;

/// Segments, tables and routes in the kernel of the calling thread's network namespace.
#[derive(Debug)]
pub struct Kernel {
    plan: Plan,
    reconciler: Reconciler,
    watch: Watch,
    numbers: Numbers,
    /// The interface that has a server's addresses and segments.
    interface: Option<u32>,
    /// Routes with a gateway, indexed by that gateway.
    routers: Routers,
    next_hops: NextHopTracker,
    underlay_routes: UnderlayRoutes,
    /// Routes of an earlier run that no neighbour has announced to this one yet.
    earlier: BTreeSet<RouteKey>,
    /// When to compare the kernel's state with the desired one next, and the interval after that.
    look: Option<Instant>,
    pause: Duration,
    looked: Instant,
    /// When to resolve all next hops again.
    ask: Instant,
    /// A server's connections; `None`: the daemon does not manage their paths.
    paths: Option<Paths>,
    /// Where the evidence on client prefixes is stored; `None`: nowhere.
    evidence: Option<EvidenceFile>,
    /// Accept joins where the server itself does not listen.
    join_listeners: Option<JoinListeners>,
    /// Probes through segments that were sent last; `None`: one could not be sent.
    probes: BTreeMap<Ipv6Addr, Option<SegmentProbe>>,
    /// Steers new connections; `None`: off.
    steering: Option<steering::Driver>,
    /// Marks packets for segments of IPv4; `None`: there are none.
    segment_marks: Option<SegmentMarks>,
    /// Client prefixes whose routes changed since connections were last updated.
    moved: BTreeSet<IpNet>,
    /// Routes of egress peers that connections leave.
    draining: Draining,
    _lock: NamespaceLock,
}

/// Why the kernel cannot be used for forwarding. `Display` says what to try.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("there is no interface `{0}`; `interface` in [egress] names it, `ip link` lists all")]
    NoInterface(String),
    /// Without a route to the first reflector the interface is unknown.
    #[error("no route leads to {0}; add one, or say `interface` in [egress]")]
    NoRoute(String),
    /// A second daemon of this role would interfere with the first.
    #[error("this network namespace has a `keiro {role}`: {source}; stop that one")]
    Running {
        /// `asbr` or `egress`.
        role: &'static str,
        source: LockError,
    },
    #[error(
        "cannot listen at {address} for joins: {source}; if the server itself listens there, or at all addresses, \
         it needs no `helper_ports`"
    )]
    JoinListener {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("{0}; mptcp = \"off\" does without")]
    Mptcp(#[from] PathManagerError),
    #[error("cannot mark connections by nftables: {0}; without [steering] none is needed")]
    Nft(io::Error),
    #[error("cannot remove the marks of segments from nftables: {0}")]
    SegmentMarks(io::Error),
    #[error("cannot set net.ipv4.tcp_fwmark_accept, which [steering] needs: {0}")]
    AcceptMarks(io::Error),
    #[error("cannot measure connections, which [steering] needs: {0}")]
    Ended(sock_diag::DiagError),
    /// The thread that writes evidence to disk, or runs nft.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error(transparent)]
    Vrf(#[from] VrfError),
    #[error(transparent)]
    Epe(#[from] EpeError),
}

impl Kernel {
    /// For a border router. The state left by an earlier run is removed: its sessions, which
    /// justified the routes, are gone.
    ///
    /// # Errors
    /// No netlink access.
    pub fn asbr(config: &AsbrConfig) -> Result<Self, KernelError> {
        let peers = config.peers.iter().map(Peer::of_asbr);
        let (mut kernel, _) = Self::open(Plan {
            owner: asbr_owner(config.rule_priority),
            nexthop_ids: config.nexthop_ids.clone(),
            peers: (0..).map(PeerIndex).zip(peers).collect(),
            server: None,
            guard: Some(Guard {
                locator: config.locator,
                priority: config.rule_priority,
                reflectors: config.reflectors.iter().map(|one| one.address).collect(),
            }),
        })?;
        kernel.segment_marks = Some(SegmentMarks::open(&kernel.plan)?);
        Ok(kernel)
    }

    /// For a content server. The state left by an earlier run is taken over, so that existing
    /// connections go on.
    ///
    /// # Errors
    /// The interface is unknown, or no netlink access.
    pub fn endpoint(config: &EndpointConfig) -> Result<Self, KernelError> {
        let peers = config.peers.iter().map(Peer::of_endpoint);
        let (mut kernel, before) = Self::open(Plan {
            owner: endpoint_owner(config.rule_priority),
            nexthop_ids: config.nexthop_ids.clone(),
            peers: (0..).map(PeerIndex).zip(peers).collect(),
            server: Some(Server {
                interface: config.interface.clone(),
                reflector: config.reflectors.first().map(|first| first.address),
                priority: config.rule_priority,
                mptcp: config.mptcp,
                steering: config.steering.as_ref().map(|steered| Marks {
                    first_mark: steered.first_mark,
                    first_table: steered.first_table,
                }),
            }),
            guard: None,
        })?;
        let by_peer: Vec<EpeAddresses> = config.peers.iter().map(EndpointPeer::addresses).collect();
        let all = by_peer.iter().flat_map(|own| own.all());
        let addresses: Vec<IpAddr> = all.collect();
        // Endpoints of an earlier run: an address that is gone must not be announced, nor any if
        // the kernel does not manage paths.
        let known = before.addresses.iter().map(|own| own.address);
        let known = known.chain(addresses.iter().copied());
        let kernels = config.mptcp == Mptcp::Kernel;
        let stale = known.filter(|own| !kernels || addresses.iter().all(|ours| own != ours));
        match path_manager::remove_endpoints(&stale.collect::<BTreeSet<_>>()) {
            // A kernel without MPTCP has no endpoints.
            Err(PathManagerError::Missing) if config.mptcp == Mptcp::Off => {}
            removed => _ = removed?,
        }
        if !config.helper_ports.is_empty() {
            let ports = config.helper_ports.iter().copied();
            kernel.join_listeners = Some(JoinListeners::open(&addresses, ports)?);
        }
        match config.mptcp {
            Mptcp::Off => {}
            Mptcp::Kernel => path_manager::set_endpoints(&addresses)?,
            Mptcp::Precise => {
                // The choice of connections need not be unpredictable.
                let seed = clock::monotonic_nanos();
                let mut comparison = Comparison::new(config.comparison, seed);
                if let Some(path) = config.evidence_file.clone() {
                    let file = EvidenceFile::open(path, now(), &mut comparison);
                    kernel.evidence = Some(file.map_err(KernelError::Thread)?);
                }
                let paths = Paths::open(by_peer, config.classes.clone(), comparison)?;
                kernel.paths = Some(paths);
            }
        }
        match &config.steering {
            Some(config) => {
                kernel.steering = Some(steering::Driver::open(config, &kernel.plan, now())?);
            }
            None => {
                // A kernel without nftables has nothing to remove.
                if let Err(error) = steering::remove_left() {
                    tracing::warn!(%error, "marks of an earlier run may be left in nftables");
                }
            }
        }
        Ok(kernel)
    }

    /// Also returns the state that an earlier run of a server left.
    fn open(plan: Plan) -> Result<(Self, State), KernelError> {
        // Taken first, since the state found might belong to a running daemon.
        let lock = lock(if plan.server.is_some() { EGRESS } else { ASBR })?;
        let mut reconciler = Reconciler::open(plan.owner.clone())?;
        let watch = Watch::open()?;
        let interface = match &plan.server {
            Some(server) => Some(server.interface(&mut reconciler)?),
            None => None,
        };
        let (mut before, mut wanted) = (State::default(), State::default());
        if plan.server.is_some() {
            // VRF devices come first: without them the server must not start.
            let vrfs = vrf::of(plan.peers.values());
            vrf::remove_others(&vrfs)?;
            vrf::make(&vrfs)?;
            before = reconciler.present()?;
            wanted = plan.kept(&before);
            plan.furnish(&mut wanted, interface);
        }
        wanted.drops = plan.drops(&mut reconciler, &wanted.drops);
        let routes = wanted.tables.iter().flat_map(|(&table, content)| {
            let keys = content.routes.keys();
            keys.map(move |&destination| RouteKey { table, destination })
        });
        let now = now();
        let mut kernel = Self {
            earlier: routes.collect(),
            numbers: Numbers::new(plan.nexthop_ids.clone(), &wanted),
            plan,
            reconciler,
            watch,
            interface,
            routers: Routers::default(),
            next_hops: NextHopTracker::default(),
            underlay_routes: UnderlayRoutes::default(),
            look: None,
            pause: PAUSE_MIN,
            looked: now,
            ask: now + ASK_AGAIN,
            paths: None,
            evidence: None,
            join_listeners: None,
            probes: BTreeMap::new(),
            steering: None,
            segment_marks: None,
            moved: BTreeSet::new(),
            draining: Draining::default(),
            _lock: lock,
        };
        let kept = kernel.earlier.len();
        let report = kernel.reconciler.replace(wanted)?;
        tracing::info!(routes_kept = kept, "kernel: {report}");
        for error in kernel.errors_of(&report) {
            tracing::error!(%error, "not in the kernel as wanted");
        }
        Ok((kernel, before))
    }

    /// Applies changes to the desired state.
    fn apply(&mut self, changes: &[Change]) -> Vec<ForwardingError> {
        if changes.is_empty() {
            return Vec::new();
        }
        match self.reconciler.apply(changes) {
            Ok(report) => self.errors_of(&report),
            Err(error) => {
                self.look_soon();
                vec![failed(format!("{} changes", changes.len()), &error)]
            }
        }
    }

    fn errors_of(&mut self, report: &Report) -> Vec<ForwardingError> {
        let failures = report.failures.iter();
        let failures = failures.map(|one| {
            let whose = self.plan.whose(&one.change);
            let whose = whose.map(|name| format!(" of {name}")).unwrap_or_default();
            failed(format!("cannot {}{whose}", one.change), &one.source)
        });
        let obstacles = report.obstacles.iter();
        let obstacles = obstacles.map(|one| failed("something is in the way".to_owned(), one));
        let errors: Vec<ForwardingError> = failures.chain(obstacles).collect();
        if !errors.is_empty() {
            self.look_soon();
        }
        errors
    }

    fn look_soon(&mut self) {
        let due = now() + self.pause;
        self.look = Some(self.look.map_or(due, |look| look.min(due)));
    }

    fn put(&mut self, wanted: &[RouteUpdate]) -> Vec<ForwardingError> {
        match self.numbers.changes(self.reconciler.wanted(), wanted) {
            Ok(changes) => self.apply(&changes),
            Err(exhausted) => vec![failed(format!("{} routes", wanted.len()), &exhausted)],
        }
    }

    /// The changes to the drop rules that keep egress peers from sending to segments; interface
    /// names may have changed.
    fn guard(&mut self) -> Vec<Change> {
        let before = self.reconciler.wanted().drops.clone();
        let after = self.plan.drops(&mut self.reconciler, &before);
        let new = after.difference(&before).copied().map(Change::SetDrop);
        let gone = before.difference(&after).copied().map(Change::RemoveDrop);
        new.chain(gone).collect()
    }

    /// An interface that was deleted and created again has another index.
    fn re_resolve_interfaces(&mut self) -> Vec<ForwardingError> {
        let mut changes = Vec::new();
        if let Some(server) = &self.plan.server {
            let Ok(interface) = server.interface(&mut self.reconciler) else {
                return Vec::new();
            };
            if self.interface.replace(interface) != Some(interface) {
                changes = moved(self.reconciler.wanted(), interface);
            }
        } else {
            let sids: Vec<Sid> = self.reconciler.wanted().sids.values().copied().collect();
            for sid in sids {
                let peers = self.plan.peers.values();
                let mut peers = peers.filter(|peer| match sid.behaviour() {
                    Behaviour::EndDx4 => peer.ipv4_sid == Some(sid.address()),
                    behaviour => peer.behaviour() == behaviour,
                });
                let interface = peers.next().map(|peer| peer.at(&mut self.reconciler));
                if let Some(Ok(interface)) = interface
                    && interface != sid.interface()
                {
                    let moved = Sid::new(sid.address(), sid.behaviour(), interface);
                    changes.extend(moved.ok().map(Change::SetSid));
                }
            }
        }
        let errors = self.apply(&changes);
        if !changes.is_empty() {
            let range = self.plan.nexthop_ids.clone();
            self.numbers = Numbers::new(range, self.reconciler.wanted());
        }
        errors
    }

    /// Updates connections after path-manager events or, with `concerns`, after changes of routes
    /// to these clients.
    fn follow_connections(
        &mut self,
        now: Instant,
        concerns: Option<&dyn Fn(IpAddr) -> bool>,
    ) -> Vec<ForwardingError> {
        let Some(paths) = &mut self.paths else {
            return Vec::new();
        };
        let (state, peers) = (self.reconciler.wanted(), &self.plan.peers);
        let draining = &self.draining;
        let reaches = |peer: PeerIndex, client| {
            let route = state.route(peers[&peer].table, client);
            route.is_some_and(|(to, _)| !draining.contains(peer, to))
        };
        match concerns {
            Some(concerns) => paths.on_routes(now, concerns, &reaches),
            None => paths.tend(now, &reaches),
        }
    }

    fn limit_moved(&mut self) {
        if self.moved.len() > PREFIXES_LOOKED_AT {
            self.moved = BTreeSet::from(ANYWHERE);
        }
    }

    fn steering_routes(&self) -> steering::Routes<'_> {
        steering::Routes {
            state: self.reconciler.wanted(),
            plan: &self.plan,
            draining: &self.draining,
        }
    }

    /// Lets steering do what is due.
    fn steer(&mut self, now: Instant) -> Vec<ForwardingError> {
        let Some(mut steering) = self.steering.take() else {
            return Vec::new();
        };
        let (routes, error) = steering.tend(now, self.steering_routes());
        let mut errors: Vec<ForwardingError> = error.into_iter().collect();
        if !routes.is_empty() {
            errors.extend(self.put(&routes));
        }
        steering.apply(now);
        self.steering = Some(steering);
        errors
    }

    /// Moves steered connections to changed routes of egress peers.
    fn follow_steered(&mut self, moved: &BTreeSet<IpNet>) -> Vec<ForwardingError> {
        let Some(mut steering) = self.steering.take() else {
            return Vec::new();
        };
        let concerns = |prefix: IpNet| {
            let mut moved = moved.iter();
            moved.any(|net| net.contains(&prefix) || prefix.contains(net))
        };
        let routes = steering.follow(now(), &concerns, self.steering_routes());
        self.steering = Some(steering);
        match routes.is_empty() {
            true => Vec::new(),
            false => self.put(&routes),
        }
    }

    fn table(&self, table: Table) -> u32 {
        match table {
            Table::Main => MAIN,
            Table::Peer(peer) => self.plan.peers[&peer].table,
        }
    }

    fn forget(&mut self, table: u32) {
        for via in self.routers.remove_table(table) {
            self.next_hops.release(&via);
        }
        self.earlier.retain(|key| key.table != table);
    }
}

impl Forwarding for Kernel {
    fn add_segment(&mut self, peer: PeerIndex, sid: Ipv6Addr) -> Result<(), ForwardingError> {
        let of = &self.plan.peers[&peer];
        let is_ipv4 = of.ipv4_sid == Some(sid);
        let (name, table) = (of.name.clone(), of.table);
        let behaviour = match is_ipv4 {
            true => Behaviour::EndDx4,
            false => of.behaviour(),
        };
        let what = || format!("no segment {sid} of `{name}`");
        // Its packets would take the best path, also to what the peer does not announce.
        let unmarked = self.segment_marks.as_ref().filter(|_| is_ipv4);
        if let Some(why) = unmarked.and_then(|marks| marks.failure(sid)) {
            let why = format!("nftables does not mark its packets: {why}");
            return Err(failed(what(), &why));
        }
        let interface = of.at(&mut self.reconciler);
        let interface = interface.map_err(|reason| failed(what(), &reason))?;
        let sid = Sid::new(sid, behaviour, interface);
        let sid = sid.map_err(|error| failed(what(), &error))?;
        let mut changes = self.guard();
        match behaviour {
            Behaviour::EndDt6 { .. } => changes.push(Change::CloseTable(table)),
            Behaviour::EndDx6 { .. } => {}
            Behaviour::EndDx4 => {
                changes.push(Change::CloseIpv4(table));
                changes.extend(self.plan.segment_rule(peer).map(Change::SetMark));
            }
        }
        changes.push(Change::SetSid(sid));
        let errors = self.apply(&changes);
        errors.into_iter().next().map_or(Ok(()), Err)
    }

    fn remove_segment(&mut self, peer: PeerIndex, sid: Ipv6Addr) -> Result<(), ForwardingError> {
        let of = &self.plan.peers[&peer];
        let table = of.table;
        let mut changes = vec![Change::RemoveSid(sid)];
        if of.ipv4_sid == Some(sid) {
            changes.extend(self.plan.segment_rule(peer).map(Change::RemoveMark));
            // Its routes and those of IPv6 go together.
            let errors = self.apply(&changes);
            return errors.into_iter().next().map_or(Ok(()), Err);
        }
        if of.direct.is_none() {
            changes.extend(self.numbers.clear(table));
            changes.push(Change::OpenTable(table));
            changes.push(Change::OpenIpv4(table));
        }
        self.forget(table);
        let errors = self.apply(&changes);
        errors.into_iter().next().map_or(Ok(()), Err)
    }

    fn can_lead_ipv4(&self, sid: Ipv6Addr) -> bool {
        let marks = self.segment_marks.as_ref();
        marks.is_none_or(|marks| marks.failure(sid).is_none())
    }

    fn has_lost_ipv4(&self, sid: Ipv6Addr) -> bool {
        let marks = self.segment_marks.as_ref();
        marks.is_some_and(|marks| marks.is_lost(now(), sid))
    }

    fn change(&mut self, changes: &[RouteChange]) -> Vec<ForwardingError> {
        let mut errors = Vec::new();
        let mut list = Vec::with_capacity(changes.len());
        let mut answers = Resolutions::new();
        for change in changes {
            let peer = match change.table {
                Table::Main => None,
                Table::Peer(peer) => Some(peer),
            };
            let of_peer = peer.map(|peer| &self.plan.peers[&peer]);
            let is_ipv4 = matches!(change.destination, IpNet::V4(_));
            if of_peer.is_some_and(|of| of.direct.is_some() || is_ipv4 && !of.has_ipv4_table()) {
                continue;
            }
            let key = RouteKey {
                table: self.table(change.table),
                destination: change.destination.trunc(),
            };
            let is_earlier = self.earlier.remove(&key);
            let unused = match change.via {
                Some(via @ Via::Router { .. }) => self.routers.insert(key, via),
                _ => self.routers.remove(&key),
            };
            if let Some(unused) = unused {
                self.next_hops.release(&unused);
                answers.remove(&unused);
            }
            let Some(via) = change.via else {
                list.push(RouteUpdate { key, nexthop: None });
                continue;
            };
            match self.wanted(key, via, &mut answers, &mut errors) {
                Some(wanted) => list.push(wanted),
                // The route of the earlier run stays while its next hop is unresolved.
                None if is_earlier => {}
                None => list.push(RouteUpdate { key, nexthop: None }),
            }
        }
        errors.extend(self.put(&list));
        let of_peers = changes.iter().filter(|change| change.table != Table::Main);
        self.moved.extend(of_peers.map(|change| change.destination));
        self.limit_moved();
        errors
    }

    fn clear(&mut self, table: Table) -> Result<(), ForwardingError> {
        let steered = match (table, &self.steering) {
            (Table::Peer(peer), Some(steering)) => steering.table(peer),
            _ => None,
        };
        let table = self.table(table);
        let mut changes = self.numbers.clear(table);
        if let Some(steered) = steered {
            changes.extend(self.numbers.clear(steered));
        }
        self.forget(table);
        let errors = self.apply(&changes);
        self.moved.extend(ANYWHERE);
        errors.into_iter().next().map_or(Ok(()), Err)
    }

    fn poll_next_hop(&mut self) -> Option<NextHop> {
        self.next_hops.poll()
    }

    fn forget_next_hop(&mut self, peer: Option<PeerIndex>, address: IpAddr) {
        let routers = &self.routers;
        self.next_hops
            .forget_unused(peer, address, |via| routers.uses(via));
    }

    fn set_draining(&mut self, peer: PeerIndex, routes: &[(IpNet, bool)]) {
        self.draining.set(peer, routes);
        self.moved.extend(routes.iter().map(|(to, _)| *to));
        self.limit_moved();
    }

    fn follow(&mut self) -> Vec<ForwardingError> {
        let moved = std::mem::take(&mut self.moved);
        if moved.is_empty() {
            return Vec::new();
        }
        let mut errors = self.follow_steered(&moved);
        let concerns = |client: IpAddr| moved.iter().any(|net| net.contains(&client));
        errors.extend(self.follow_connections(now(), Some(&concerns)));
        errors
    }

    fn settled(&mut self) -> Vec<ForwardingError> {
        let gone: Vec<RouteUpdate> = std::mem::take(&mut self.earlier)
            .into_iter()
            .map(|key| RouteUpdate { key, nexthop: None })
            .collect();
        if !gone.is_empty() {
            tracing::info!(
                routes = gone.len(),
                "routes of an earlier run are removed: no neighbour announces them"
            );
        }
        self.put(&gone)
    }

    fn subflows(&self, peer: PeerIndex) -> Option<usize> {
        Some(self.paths.as_ref()?.all.subflows(peer))
    }

    fn comparison(&self) -> Option<ComparisonStatus> {
        let comparison = self.paths.as_ref()?.all.comparison();
        comparison.is_on().then(|| comparison.summary(now()))
    }

    fn compared(&self, asked: IpNet) -> Vec<PrefixStatus> {
        let paths = self.paths.as_ref();
        paths.map_or(Vec::new(), |paths| {
            paths.all.comparison().explain(now(), asked)
        })
    }

    fn in_step(&self) -> bool {
        self.reconciler.in_step()
    }

    fn earlier_routes(&self) -> usize {
        self.earlier.len()
    }

    fn forwards(&self, ipv4: bool) -> Option<bool> {
        // Of the calling thread's namespace.
        let path = match ipv4 {
            true => "/proc/sys/net/ipv4/ip_forward",
            false => "/proc/sys/net/ipv6/conf/all/forwarding",
        };
        let value = fs::read_to_string(path).ok()?;
        Some(value.trim() != "0")
    }

    fn leads_to(&mut self, address: IpAddr) -> bool {
        // An unanswered question is no finding.
        !matches!(self.reconciler.resolve(address), Ok(None))
    }

    fn probe(&mut self, segments: &BTreeMap<Ipv6Addr, PeerIndex>) -> Vec<(Ipv6Addr, bool)> {
        let sent = std::mem::take(&mut self.probes);
        // One that could not be sent is not answered either.
        let answered =
            |probe: &Option<SegmentProbe>| probe.as_ref().is_some_and(|it| it.is_answered());
        let outcome = |sid: &Ipv6Addr| Some((*sid, answered(sent.get(sid)?)));
        let outcomes = segments.keys().filter_map(outcome).collect();
        for (sid, peer) in segments {
            let own = self.plan.peers.get(peer).and_then(|peer| peer.own);
            let probe = own.map(|own| SegmentProbe::send(own.ipv6, *sid));
            if let Some(Err(error)) = &probe {
                tracing::debug!(%sid, %error, "no probe");
            }
            self.probes.insert(*sid, probe.and_then(Result::ok));
        }
        outcomes
    }

    fn installed(&self) -> Option<(KernelStatus, Vec<Option<PeerInKernel>>)> {
        Some(kernel_view::installed(&self.plan, &self.reconciler))
    }

    fn installed_routes(&self, asked: IpNet) -> Option<(KernelRoute, Vec<Option<KernelRoute>>)> {
        let state = self.reconciler.wanted();
        Some(kernel_view::routes(&self.plan, state, asked))
    }

    fn poll_decision(&mut self) -> Option<Compared> {
        self.paths.as_mut()?.all.poll_decision()
    }

    fn steering(&self) -> Option<SteeringStatus> {
        Some(self.steering.as_ref()?.all.summary(now()))
    }

    fn steered(&self, asked: IpNet) -> Vec<SteeredPrefix> {
        let steering = self.steering.as_ref();
        steering.map_or(Vec::new(), |steering| steering.all.explain(now(), asked))
    }

    fn poll_steered(&mut self) -> Option<Steered> {
        self.steering.as_mut()?.all.poll_decision()
    }

    fn watched(&self) -> Vec<BorrowedFd<'_>> {
        let paths = self.paths.iter().map(|paths| paths.events.as_fd());
        let joins = self.join_listeners.iter().flat_map(JoinListeners::watched);
        paths.chain([self.watch.as_fd()]).chain(joins).collect()
    }

    fn follow_configuration(&mut self, configured: &Configured<'_>) -> Vec<ForwardingError> {
        self.adopt(configured)
    }

    fn end(&mut self) -> Vec<ForwardingError> {
        if self.plan.server.is_some() {
            // Otherwise no path manager would handle new connections.
            let before = self.paths.as_ref().map(|paths| paths.before.restore());
            let failed = |error| failed("MPTCP's path manager stays".to_owned(), &error);
            let errors = before.and_then(|restored| restored.err().map(failed));
            let steering = self.steering.as_mut();
            let steering = steering.and_then(steering::Driver::end);
            return errors.into_iter().chain(steering).collect();
        }
        let mut errors = match self.reconciler.cleanup() {
            Ok(report) => self.errors_of(&report),
            Err(error) => vec![failed("not everything is removed".to_owned(), &error)],
        };
        errors.extend(self.segment_marks.as_mut().and_then(SegmentMarks::end));
        errors
    }

    fn finish(&mut self) {
        if let (Some(file), Some(paths)) = (&mut self.evidence, &self.paths) {
            file.end(now(), paths.all.comparison());
        }
    }

    fn view(&self) -> Option<KernelView> {
        let plan = Box::new(self.plan.clone());
        Some(KernelView { plan })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let ask = (!self.next_hops.is_empty()).then_some(self.ask);
        let paths = self
            .paths
            .as_ref()
            .and_then(|paths| paths.all.poll_timeout());
        let evidence = self.evidence.as_ref().map(EvidenceFile::poll_timeout);
        let underlay = self.underlay_routes.poll_timeout();
        let steering = self.steering.as_ref().map(steering::Driver::poll_timeout);
        let marks = self.segment_marks.as_ref();
        let marks = marks.and_then(SegmentMarks::poll_timeout);
        [self.look, ask, underlay, paths, evidence, steering, marks]
            .into_iter()
            .flatten()
            .min()
    }

    fn tend(&mut self, now: Instant) -> Vec<ForwardingError> {
        let mut errors = self.follow_connections(now, None);
        errors.extend(self.steer(now));
        if let Some(marks) = &mut self.segment_marks {
            errors.extend(marks.tend(now));
        }
        if let (Some(file), Some(paths)) = (&mut self.evidence, &self.paths) {
            file.tend(now, paths.all.comparison());
        }
        if let Some(listeners) = &self.join_listeners {
            listeners.refuse();
        }
        match self.watch.changed(&self.reconciler) {
            Ok(true) => {
                let due = now.max(self.looked + PAUSE_MIN);
                self.look = Some(self.look.map_or(due, |look| look.min(due)));
                self.pause = PAUSE_MIN;
            }
            Ok(false) => {}
            Err(error) => {
                self.look_soon();
                errors.push(failed("cannot hear what others change".to_owned(), &error));
                return errors;
            }
        }
        let looks = self.look.is_some_and(|due| due <= now);
        let found = self.underlay_routes.tend(now);
        if looks || found || self.ask <= now {
            self.ask = now + ASK_AGAIN;
            errors.extend(self.re_resolve_next_hops());
        }
        if !looks {
            return errors;
        }
        errors.extend(self.re_resolve_interfaces());
        errors.extend(self.make_vrfs());
        let guard = self.guard();
        errors.extend(self.apply(&guard));
        self.look = None;
        self.looked = now;
        match self.reconciler.reconcile() {
            Ok(report) => {
                if report.carried_out > 0 {
                    tracing::warn!("the kernel was not as wanted: {report}");
                }
                errors.extend(self.errors_of(&report));
            }
            Err(error) => {
                self.look_soon();
                errors.push(failed("cannot look at the kernel's routes".into(), &error));
            }
        }
        self.pause = match self.reconciler.in_step() {
            true => PAUSE_MIN,
            false => (self.pause * 2).min(PAUSE_MAX),
        };
        errors
    }
}

/// Removes everything that `keiro asbr` has put into the kernel of the calling thread's namespace.
///
/// # Errors
/// The daemon is running, or no netlink access. Single failures are in the report.
pub fn cleanup_asbr() -> Result<Cleaned, KernelError> {
    let _lock = lock(ASBR)?;
    let mut cleaned = Cleaned::remove(Reconciler::open(asbr_owner(1))?)?;
    cleaned.removed.nftables = cleaned.count("nftables tables", segment_marks::remove_left());
    Ok(cleaned)
}

/// The same for `keiro egress`.
///
/// # Errors
/// As [`cleanup_asbr`].
pub fn cleanup_endpoint() -> Result<Cleaned, KernelError> {
    let _lock = lock(EGRESS)?;
    // Rules are recognized by their protocol, whatever their priority.
    let mut reconciler = Reconciler::open(endpoint_owner(1))?;
    let own = reconciler.present()?.addresses;
    let own: BTreeSet<IpAddr> = own.into_iter().map(|own| own.address).collect();
    let endpoints = match path_manager::remove_endpoints(&own) {
        // A kernel without MPTCP has no endpoints.
        Err(PathManagerError::Missing) => 0,
        removed => removed?,
    };
    let mut cleaned = Cleaned::remove(reconciler)?;
    cleaned.removed.mptcp_endpoints = endpoints;
    cleaned.removed.nftables = cleaned.count("nftables tables", steering::remove_left());
    cleaned.removed.vrf_devices = cleaned.count("VRF devices", vrf::remove_others(&[]));
    Ok(cleaned)
}

/// Whether new connections of this namespace wait for a user-space path manager, which an earlier
/// run may have requested.
pub fn waits_for_a_path_manager() -> bool {
    mptcp_pm::now_managed().is_ok_and(|now| now.is_user_space())
}

/// A forked child holds its parent's lock until it calls exec, so taking the lock is retried this
/// often at this interval.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Only one daemon of a role may use the kernel of a namespace.
fn lock(role: &'static str) -> Result<NamespaceLock, KernelError> {
    let take = || NamespaceLock::take(&format!("keiro/{role}"));
    let mut taken = take();
    for _ in 1..LOCK_TRIES {
        if !matches!(taken, Err(LockError::Held { .. })) {
            break;
        }
        thread::sleep(LOCK_PAUSE);
        taken = take();
    }
    taken.map_err(|source| KernelError::Running { role, source })
}

fn asbr_owner(priority: u32) -> Owner {
    Owner {
        protocol: PROTOCOL_ASBR,
        priorities: priority..=priority,
    }
}

fn endpoint_owner(priority: u32) -> Owner {
    Owner {
        protocol: PROTOCOL_EGRESS,
        priorities: priority..=priority,
    }
}

fn failed(what: String, reason: &dyn std::fmt::Display) -> ForwardingError {
    ForwardingError {
        what,
        reason: reason.to_string(),
    }
}

fn now() -> Instant {
    Instant::from_nanos(clock::monotonic_nanos())
}

const ASBR: &str = "asbr";
const EGRESS: &str = "egress";
/// `RT_TABLE_MAIN`.
const MAIN: u32 = 254;
/// The minimum interval between comparisons of the whole state, which may list hundreds of
/// thousands of routes. Ours.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The maximum interval while some of the state cannot be installed. Ours.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The interval between resolutions of all next hops. The kernel notifies of route changes, but not
/// of changed next-hop resolutions. Ours.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// All destinations.
const ANYWHERE: [IpNet; 2] = [
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0)),
    IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0)),
];
/// With more changed prefixes than this, all connections are updated instead of those to these
/// prefixes. Ours.
const PREFIXES_LOOKED_AT: usize = 64;
