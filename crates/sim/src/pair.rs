//! Two gateways joined by paths: runs a [`Scenario`] with a seed and reports.
//!
//! A run has two phases: set-up (handshake, path validation) and the measured phase, in which traffic is
//! generated and events happen. It ends when all traffic has come to an end. A run that stalls, or exceeds
//! the scenario's patience, fails with its seed and scenario.

use std::{
    collections::{BTreeSet, VecDeque},
    fmt,
    net::SocketAddr,
    time::Duration,
};

use keiro_core::{
    AppConfig, AppId, Endpoint, EndpointConfig, PathConfig, PathId, PathTerms, PeerConfig,
    PrivateKey, SocketId, TenantId, TransmitBuf,
};
use keiro_model::arrivals;
use keiro_units::{Bandwidth, Instant};

use crate::{
    cross::{Cross, CrossTraffic},
    gateway::{Gateway, ScheduledItem, address},
    middlebox::{Attack, Middlebox},
    network::{Direction, LinkId, LinkSpec, Network, NodeId, Stop},
    node::{Goal, Interface, Node, Outbox},
    packet::Packet,
    pcap::Capture,
    report::Report,
    scenario::{
        AppSpec, Arrivals, Change, Length, PathDirection, Scenario, ScenarioEvent, SetUp, Side,
        TimedEvent, Traffic,
    },
    seed,
};

/// Period of sampling the fill of the core's queues.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);
/// Virtual time after the end in which late duplicates may still do harm.
const LINGER: Duration = Duration::from_secs(1);
/// An arbitrary date in 2023: gateways order their handshakes by it.
const UNIX_TIME_AT_ZERO: Duration = Duration::from_secs(1_700_000_000);
pub(crate) const PORT: u16 = 51820;
/// Handshakes of a gateway that is not a peer, for attackers to replay.
const FOREIGN_DATAGRAMS_MAX: usize = 8;

/// Two gateways and the paths between them.
#[derive(Debug)]
pub struct GatewayPair {
    scenario: Scenario,
    seed: u64,
    network: Network<PairNode>,
    gateways: [NodeId; 2],
    paths: Vec<PathNodes>,
    /// Events of the measured phase that are still to happen.
    events: VecDeque<(Instant, ScenarioEvent)>,
    measured_from: Option<Instant>,
    /// Number of address changes so far: each gives a new address.
    readdressed: u16,
    /// Gateways, by their side, that have no address on a path.
    unbound: BTreeSet<(usize, usize)>,
    sample_interval: Duration,
    next_sample: Instant,
}

/// A run that did not come to its end.
#[derive(Debug)]
pub struct Failure {
    /// The condition that was not reached.
    pub what: String,
    /// When the run was given up.
    pub at: Instant,
    /// The seed of the run.
    pub seed: u64,
    /// The scenario of the run.
    pub scenario: Box<Scenario>,
    /// The report until then.
    pub report: Box<Report>,
}

/// A node in the network of a pair.
#[derive(Debug)]
pub(crate) enum PairNode {
    Gateway(Box<Gateway>),
    Middlebox(Box<Middlebox>),
    Cross(Box<CrossTraffic>),
}

/// Nodes and links of a path.
#[derive(Debug)]
struct PathNodes {
    link: LinkId,
    middlebox: Option<NodeId>,
    cross: Option<NodeId>,
}

impl GatewayPair {
    /// The pair at time zero. The same scenario and seed give the same run.
    pub fn new(scenario: &Scenario, seed: u64) -> Self {
        let mut network = Network::new(seed::derive(seed, "network", 0));
        let gateways = Side::BOTH.map(|side| {
            let remote = |path| host_address(scenario, side.other(), path);
            let gateway = gateway(scenario, seed, side, remote);
            network.add_node(PairNode::Gateway(Box::new(gateway)))
        });
        let mut pair = Self {
            scenario: scenario.clone(),
            seed,
            network,
            gateways,
            paths: Vec::new(),
            events: VecDeque::new(),
            measured_from: None,
            readdressed: 0,
            unbound: BTreeSet::new(),
            sample_interval: SAMPLE_INTERVAL,
            next_sample: Instant::ZERO,
        };
        for path in 0..scenario.paths.len() {
            pair.lay_path(path);
        }
        pair
    }

    /// Samples the queues less often than every 10 ms, for runs of days.
    pub fn sample_every(&mut self, interval: Duration) {
        self.sample_interval = interval;
    }

    /// Runs both phases.
    ///
    /// # Panics
    ///
    /// With seed and scenario if the run stalls or does not end.
    pub fn run(self) -> Report {
        match self.try_run() {
            Ok(report) => report,
            Err(failure) => panic!("{failure}"),
        }
    }

    /// Like [`run`](Self::run), with the failure as a value.
    pub fn try_run(mut self) -> Result<Report, Box<Failure>> {
        self.set_up()?;
        self.begin();
        self.finish()?;
        Ok(self.report())
    }

    /// Like [`run`](Self::run), but ends `duration` after the beginning of the measured phase, with any
    /// unfinished traffic: for faults that never end.
    ///
    /// # Panics
    ///
    /// With seed and scenario on a livelock.
    pub fn run_for_measured(mut self, duration: Duration) -> Report {
        if let Err(failure) = self.set_up() {
            panic!("{failure}");
        }
        self.begin();
        self.run_for(duration);
        self.report()
    }

    /// Runs the set-up phase to its end.
    pub fn set_up(&mut self) -> Result<(), Box<Failure>> {
        let SetUp::PathsUp(wanted) = self.scenario.set_up else {
            return Ok(());
        };
        let limit = self.network.now() + self.scenario.patience;
        let mut goal = |_: Instant, nodes: &[PairNode]| {
            nodes.iter().all(|node| match node {
                PairNode::Gateway(gateway) => gateway.paths_up() >= wanted,
                PairNode::Middlebox(_) | PairNode::Cross(_) => true,
            })
        };
        match self.advance(limit, &mut goal) {
            Stop::Goal => Ok(()),
            stop => Err(self.failure(format!("set-up: {wanted} paths are not up ({stop:?})"))),
        }
    }

    /// Begins the measured phase now: schedules the traffic and the events.
    pub fn begin(&mut self) {
        let from = self.now();
        self.measured_from = Some(from);
        for (index, traffic) in self.scenario.traffic.iter().enumerate() {
            let planned = plan(traffic, self.seed, index, from);
            let gateway = self.gateways[traffic.from.index()];
            self.network.drive(gateway, |node, _, _| {
                node.expect_gateway_mut().schedule_all(planned);
            });
        }
        for (index, dialogues) in self.scenario.dialogues.iter().enumerate() {
            let times = offsets(
                dialogues.made,
                seed::derive(self.seed, "dialogues", index as u64),
                dialogues.app,
            );
            let times = times
                .into_iter()
                .map(|offset| from + dialogues.start + offset);
            let times = times.collect();
            let gateway = self.gateways[dialogues.from.index()];
            self.network.drive(gateway, |node, _, _| {
                node.expect_gateway_mut().plan_dialogues(dialogues, times);
            });
        }
        let mut events: Vec<_> = self.scenario.events.clone();
        events.sort_by_key(|event| event.at);
        self.events = events
            .into_iter()
            .map(|TimedEvent { at, what }| (from + at, what))
            .collect();
    }

    /// Runs until all traffic has come to an end.
    pub fn finish(&mut self) -> Result<(), Box<Failure>> {
        let last = self.last_planned();
        let limit = last + self.scenario.patience;
        if self.advance(last, &mut crate::node::Never) == Stop::Livelock {
            return Err(self.failure("time stands still".to_owned()));
        }
        let mut finished = |_: Instant, nodes: &[PairNode]| nodes.iter().all(PairNode::is_finished);
        match self.advance(limit, &mut finished) {
            Stop::Goal => {}
            stop => return Err(self.failure(format!("not everything ended ({stop:?})"))),
        }
        self.run_for(LINGER);
        Ok(())
    }

    /// Runs for this time.
    ///
    /// # Panics
    ///
    /// With seed and scenario on a livelock.
    pub fn run_for(&mut self, duration: Duration) {
        let until = self.now() + duration;
        if self.advance(until, &mut crate::node::Never) == Stop::Livelock {
            let failure = self.failure("time stands still".to_owned());
            panic!("{failure}");
        }
    }

    /// Runs until `holds` for the gateway on one side, for at most `limit`; returns whether it did.
    pub fn run_until(
        &mut self,
        side: Side,
        limit: Duration,
        holds: impl Fn(&Gateway) -> bool,
    ) -> bool {
        let until = self.now() + limit;
        let index = side.index();
        let mut goal = |_: Instant, nodes: &[PairNode]| holds(nodes[index].expect_gateway());
        self.advance(until, &mut goal) == Stop::Goal
    }

    /// Applies an event now.
    pub fn apply(&mut self, what: &ScenarioEvent) {
        match what {
            ScenarioEvent::Path {
                path,
                direction,
                change,
            } => self.change_path(*path, *direction, *change),
            ScenarioEvent::Readdress { side, path } => self.readdress(*side, *path),
            ScenarioEvent::Rebind { side, path } => self.rebind(*side, *path),
            ScenarioEvent::Unbind { side, path } => self.unbind(*side, *path),
            ScenarioEvent::Restart {
                side,
                orderly,
                away,
            } => self.drive(*side, |gateway, now, out| {
                gateway.restart(now, *orderly, *away, out);
            }),
            ScenarioEvent::Assign { side, app, paths } => self.drive(*side, |gateway, now, out| {
                gateway.assign(now, *app, paths, out);
            }),
            ScenarioEvent::Receive {
                side,
                each,
                inbox_max,
            } => self.drive(*side, |gateway, _, _| {
                gateway.set_receive(*each, *inbox_max);
            }),
            ScenarioEvent::Bursts { side, bursts } => self.drive(*side, |gateway, now, _| {
                gateway.set_bursts(now, *bursts);
            }),
            ScenarioEvent::Cross { path, rate } => self.change_cross(*path, *rate),
            ScenarioEvent::Heal => self.heal(),
        }
    }

    /// Lets a gateway's application make a message or datagram now.
    pub fn send(&mut self, from: Side, app: usize, bytes: usize) {
        self.drive(from, |gateway, now, _| gateway.plan(now, app, bytes));
    }

    /// Applies a closure to the endpoint on one side, if it runs.
    pub fn act(&mut self, side: Side, act: impl FnOnce(&mut Endpoint, keiro_core::PeerId)) {
        self.drive(side, |gateway, now, out| gateway.act(now, out, act));
    }

    pub fn gateway(&self, side: Side) -> &Gateway {
        self.network
            .node(self.gateways[side.index()])
            .expect_gateway()
    }

    /// The present virtual time.
    pub fn now(&self) -> Instant {
        self.network.now()
    }

    /// Captures packets of a gateway's interface on a path, from now on.
    pub fn capture(&mut self, side: Side, path: usize) {
        self.network.capture(self.gateways[side.index()], path);
    }

    /// The capture so far; `None` if there is none.
    pub fn captured(&self, side: Side, path: usize) -> Option<&Capture> {
        self.network.captured(self.gateways[side.index()], path)
    }

    /// The report of the run so far.
    pub fn report(&mut self) -> Report {
        self.sample();
        let gateways = Side::BOTH.map(|side| self.gateway(side));
        let mut report = Report::new(&self.scenario, self.seed, gateways);
        report.measured_from = self.measured_from.unwrap_or(Instant::ZERO);
        report.ended = self.now();
        report.counts = self.network.counts();
        report.trace_hash = self.network.trace_hash();
        for path in &self.paths {
            let counters =
                Direction::BOTH.map(|direction| *self.network.link_counters(path.link, direction));
            report.links.push(counters);
            let middlebox = path.middlebox.map(|id| self.network.node(id));
            report.injected.push(match middlebox {
                Some(PairNode::Middlebox(middlebox)) => middlebox.injected(),
                _ => crate::middlebox::Injected::default(),
            });
        }
        report
    }

    /// Makes a path: one link, or two with an attacker between.
    fn lay_path(&mut self, path: usize) {
        let spec = self.scenario.paths[path];
        let ends = Side::BOTH.map(|side| {
            let address = host_address(&self.scenario, side, path);
            let gateway = self.gateways[side.index()];
            let interface = self
                .network
                .add_interface(gateway, Interface::Host(address));
            (gateway, interface)
        });
        if let (None, Some(cross)) = (spec.attack, spec.cross) {
            return self.lay_shared_path(path, ends, cross);
        }
        let Some(attack) = spec.attack else {
            let link = self.network.connect(ends[0], ends[1], spec.link);
            return self.paths.push(PathNodes {
                link,
                middlebox: None,
                cross: None,
            });
        };
        let middlebox = Middlebox::new(
            attack,
            seed::derive(self.seed, "middlebox", path as u64),
            address(self.scenario.ipv6, path, 66, PORT),
            foreign_datagrams(&self.scenario, self.seed),
        );
        let id = self
            .network
            .add_node(PairNode::Middlebox(Box::new(middlebox)));
        let inner = [0, 1].map(|_| self.network.add_interface(id, Interface::Transparent));
        let link = self.network.connect(ends[0], (id, inner[0]), spec.link);
        let patch = LinkSpec {
            mtu: u16::MAX,
            ..LinkSpec::symmetric(keiro_link::LinkConfig::default())
        };
        self.network.connect((id, inner[1]), ends[1], patch);
        self.paths.push(PathNodes {
            link,
            middlebox: Some(id),
            cross: None,
        });
    }

    /// Makes a path with cross traffic.
    fn lay_shared_path(&mut self, path: usize, ends: [(NodeId, usize); 2], cross: Cross) {
        let seed = seed::derive(self.seed, "cross", path as u64);
        let others = [77, 78].map(|host| address(self.scenario.ipv6, path, host, PORT));
        let node = CrossTraffic::new(cross, seed, others[0], others[1]);
        let id = self.network.add_node(PairNode::Cross(Box::new(node)));
        let inner = [0, 1].map(|_| self.network.add_interface(id, Interface::Transparent));
        let feed = LinkSpec {
            mtu: u16::MAX,
            ..LinkSpec::symmetric(keiro_link::LinkConfig {
                rate: Some(cross.feed),
                ..keiro_link::LinkConfig::default()
            })
        };
        self.network.connect(ends[0], (id, inner[0]), feed);
        let spec = self.scenario.paths[path];
        let link = self.network.connect((id, inner[1]), ends[1], spec.link);
        self.paths.push(PathNodes {
            link,
            middlebox: None,
            cross: Some(id),
        });
    }

    /// Runs the network, with events and samples in between.
    fn advance(&mut self, until: Instant, goal: &mut impl Goal<PairNode>) -> Stop {
        loop {
            while let Some((_, what)) = self
                .events
                .pop_front_if(|(at, _)| *at <= self.network.now())
            {
                self.apply(&what);
            }
            let event = self.events.front().map_or(Instant::MAX, |(at, _)| *at);
            let step = until.min(event).min(self.next_sample);
            let stop = self.network.run(step, goal);
            if self.now() >= self.next_sample {
                self.sample();
                self.next_sample = self.now() + self.sample_interval;
            }
            match stop {
                Stop::Goal | Stop::Livelock => return stop,
                Stop::Time | Stop::Idle if step < until => {}
                Stop::Time | Stop::Idle => return stop,
            }
        }
    }

    fn sample(&mut self) {
        for side in Side::BOTH {
            self.drive(side, |gateway, _, _| gateway.sample());
        }
    }

    fn drive<R>(
        &mut self,
        side: Side,
        act: impl FnOnce(&mut Gateway, Instant, &mut Outbox<'_>) -> R,
    ) -> R {
        self.network
            .drive(self.gateways[side.index()], |node, now, out| {
                act(node.expect_gateway_mut(), now, out)
            })
    }

    fn change_path(&mut self, path: usize, direction: PathDirection, change: Change) {
        let link = self.paths[path].link;
        let directions: &[Direction] = match direction {
            PathDirection::Forward => &[Direction::Forward],
            PathDirection::Backward => &[Direction::Backward],
            PathDirection::Both => &Direction::BOTH,
        };
        for &direction in directions {
            if let Change::Mtu(mtu) = change {
                self.network.set_mtu(link, direction, mtu);
            }
            let config = self.network.link_config(link, direction);
            self.network
                .set_link(link, direction, change.applied_to(config));
        }
    }

    fn change_cross(&mut self, path: usize, rate: Bandwidth) {
        let others = self.paths[path].cross;
        let others = others.expect("others' traffic changes only where there is some");
        self.network.drive(others, |node, now, _| {
            if let PairNode::Cross(cross) = node {
                cross.set_rate(now, rate);
            }
        });
    }

    fn readdress(&mut self, side: Side, path: usize) {
        // Another host and another port; host 66 is the attacker.
        self.readdressed = self.readdressed.wrapping_add(1);
        let host = 100 + (self.readdressed % 100) as u8;
        let port = PORT.wrapping_add(self.readdressed);
        let address = address(self.scenario.ipv6, path, host, port);
        self.network
            .set_interface(self.gateways[side.index()], path, Interface::Host(address));
    }

    fn rebind(&mut self, side: Side, path: usize) {
        self.readdress(side, path);
        self.unbound.remove(&(side.index(), path));
        let now = self.now();
        self.act(side, |endpoint, _| {
            endpoint.on_socket_bound(now, SocketId(path as u16));
        });
    }

    fn unbind(&mut self, side: Side, path: usize) {
        // Nothing arrives at the address of before.
        self.readdress(side, path);
        self.unbound.insert((side.index(), path));
        let now = self.now();
        self.act(side, |endpoint, _| {
            endpoint.on_socket_unbound(now, SocketId(path as u16));
        });
    }

    fn heal(&mut self) {
        for side in Side::BOTH {
            for path in 0..self.paths.len() {
                if self.unbound.contains(&(side.index(), path)) {
                    self.rebind(side, path);
                }
            }
        }
        for path in 0..self.paths.len() {
            self.change_path(path, PathDirection::Both, Change::Heal);
            if let Some(middlebox) = self.paths[path].middlebox {
                self.network.drive(middlebox, |node, _, _| {
                    if let PairNode::Middlebox(middlebox) = node {
                        middlebox.set_attack(Attack::default());
                    }
                });
            }
        }
    }

    /// The last instant at which traffic or an event is scheduled.
    fn last_planned(&self) -> Instant {
        let from = self.measured_from.unwrap_or(Instant::ZERO);
        let traffic = self.scenario.traffic.iter();
        let traffic = traffic.map(|traffic| from + traffic.start + traffic.made.duration());
        let events = self.scenario.events.iter().map(|event| from + event.at);
        let dialogues = self.scenario.dialogues.iter();
        let dialogues = dialogues.map(|some| from + some.start + some.made.duration());
        traffic
            .chain(dialogues)
            .chain(events)
            .fold(self.now(), Instant::max)
    }

    fn failure(&mut self, what: String) -> Box<Failure> {
        Box::new(Failure {
            what,
            at: self.now(),
            seed: self.seed,
            scenario: Box::new(self.scenario.clone()),
            report: Box::new(self.report()),
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            at,
            seed,
            scenario,
            report,
        } = self;
        writeln!(f, "at {at} with seed {seed}: {what}")?;
        writeln!(f, "{report}")?;
        write!(f, "{scenario}")
    }
}

impl std::error::Error for Failure {}

impl PairNode {
    fn expect_gateway(&self) -> &Gateway {
        match self {
            Self::Gateway(gateway) => gateway,
            Self::Middlebox(_) | Self::Cross(_) => panic!("the first two nodes are gateways"),
        }
    }

    fn expect_gateway_mut(&mut self) -> &mut Gateway {
        match self {
            Self::Gateway(gateway) => gateway,
            Self::Middlebox(_) | Self::Cross(_) => panic!("the first two nodes are gateways"),
        }
    }

    fn is_finished(&self) -> bool {
        match self {
            Self::Gateway(gateway) => gateway.is_finished(),
            Self::Middlebox(_) | Self::Cross(_) => true,
        }
    }
}

impl Node for PairNode {
    fn handle_packet(
        &mut self,
        now: Instant,
        interface: usize,
        packet: &mut Packet,
        out: &mut Outbox<'_>,
    ) {
        match self {
            Self::Gateway(gateway) => gateway.handle_packet(now, interface, packet, out),
            Self::Middlebox(middlebox) => middlebox.handle_packet(now, interface, packet, out),
            Self::Cross(cross) => cross.handle_packet(now, interface, packet, out),
        }
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Outbox<'_>) {
        match self {
            Self::Gateway(gateway) => gateway.handle_timeout(now, out),
            Self::Middlebox(middlebox) => middlebox.handle_timeout(now, out),
            Self::Cross(cross) => cross.handle_timeout(now, out),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Gateway(gateway) => gateway.poll_timeout(),
            Self::Middlebox(middlebox) => middlebox.poll_timeout(),
            Self::Cross(cross) => cross.poll_timeout(),
        }
    }
}

impl Arrivals {
    /// From the beginning to the time after which no more may be made.
    pub(crate) const fn duration(self) -> Duration {
        match self {
            Self::Exponential { duration, .. } => duration,
            Self::Every { interval, count } => interval.saturating_mul(count),
        }
    }
}

/// The messages of one kind of traffic. Times depend on the seed and the application only, so that variants
/// of a scenario have the same ones.
pub(crate) fn plan(
    traffic: &Traffic,
    seed: u64,
    index: usize,
    from: Instant,
) -> Vec<ScheduledItem> {
    let offsets = offsets(traffic.made, seed, traffic.app);
    let lengths = seed::derive(seed, "lengths", index as u64);
    let planned = (0_u64..).zip(offsets).map(|(i, offset)| ScheduledItem {
        made: from + traffic.start + offset,
        app: traffic.app,
        bytes: match traffic.length {
            Length::Fixed(bytes) => bytes,
            Length::Uniform(min, max) => {
                let span = (max.max(min) - min) as u64 + 1;
                min + (seed::derive(lengths, "length", i) % span) as usize
            }
        },
    });
    planned.collect()
}

/// The times of items, from the beginning of their traffic on.
fn offsets(made: Arrivals, seed: u64, app: usize) -> Vec<Duration> {
    match made {
        Arrivals::Exponential { mean, duration } => {
            let times = arrivals::schedule(seed, app as u32, mean, duration);
            times.into_iter().map(|at| at - Instant::ZERO).collect()
        }
        Arrivals::Every { interval, count } => {
            (0..count).map(|i| interval.saturating_mul(i)).collect()
        }
    }
}

/// A gateway of the scenario, whose peer has the address `remote` on each path.
pub(crate) fn gateway(
    scenario: &Scenario,
    seed: u64,
    side: Side,
    remote: impl Fn(usize) -> SocketAddr,
) -> Gateway {
    let spec = scenario.gateway(side).clone();
    let mut config = EndpointConfig::new(private_key(seed, side));
    config.unix_time_at_zero = UNIX_TIME_AT_ZERO;
    config.scheduler = spec.scheduler;
    config.cipher = spec.cipher;
    config.timing = spec.timing;
    config.handshakes_per_second_max = spec.handshakes_per_second_max;
    config.probe_share = spec.probe_share;
    config.aggregation = spec.aggregation.clone();

    let mut peer = PeerConfig::new(private_key(seed, side.other()).public_key());
    peer.reassembly_bytes_max = spec.reassembly_bytes_max;
    peer.send_queue_bytes_max = spec.send_queue_bytes_max;
    peer.paths = (0_u8..)
        .zip(&scenario.paths)
        .map(|(index, path)| {
            let remote = remote(usize::from(index));
            PathConfig {
                probe_limit: path.probe_limit.filter(|_| side == Side::A),
                terms: match side {
                    Side::A => path.terms,
                    Side::B => PathTerms::FREE,
                },
                ..path_config(
                    index,
                    (!path.is_rate_found).then_some(path.rate),
                    path.mtu_max,
                    spec.knows_peer.then_some(remote),
                )
            }
        })
        .collect();
    peer.apps = scenario.apps.iter().map(app_config).collect();
    let seed = seed::derive(seed, "gateway", side.index() as u64);
    Gateway::new(spec, config, peer, seed)
}

fn path_config(
    index: u8,
    rate: Option<Bandwidth>,
    mtu_max: u16,
    remote: Option<SocketAddr>,
) -> PathConfig {
    PathConfig {
        id: PathId(index),
        socket: SocketId(index.into()),
        remote,
        rate,
        mtu_max,
        probe_limit: None,
        terms: PathTerms::FREE,
    }
}

fn app_config(spec: &AppSpec) -> AppConfig {
    AppConfig {
        id: AppId::of_name(&spec.name),
        class: spec.class,
        latency_target: spec.latency_target,
        lifetime: spec.lifetime,
        paths: spec.paths.iter().map(|path| PathId(*path as u8)).collect(),
        tenant: TenantId::ZERO,
        is_spread: spec.is_spread,
    }
}

fn private_key(seed: u64, side: Side) -> PrivateKey {
    PrivateKey::from_bytes(seed::derive_key(seed, "static key", side.index() as u64))
}

fn host_address(scenario: &Scenario, side: Side, path: usize) -> SocketAddr {
    address(scenario.ipv6, path, side.index() as u8 + 1, PORT)
}

/// Packets of a gateway with an unknown key to both sides.
fn foreign_datagrams(scenario: &Scenario, seed: u64) -> Vec<Vec<u8>> {
    let mut datagrams = Vec::new();
    for side in Side::BOTH {
        let key = seed::derive_key(seed, "foreign key", side.index() as u64);
        let mut config = EndpointConfig::new(PrivateKey::from_bytes(key));
        config.unix_time_at_zero = UNIX_TIME_AT_ZERO;
        let mut stranger = Endpoint::new(Instant::ZERO, config, key);
        let mut peer = PeerConfig::new(private_key(seed, side).public_key());
        let (rate, remote) = (
            Bandwidth::from_mbit_per_second(1),
            host_address(scenario, side, 0),
        );
        peer.paths
            .push(path_config(0, Some(rate), 1500, Some(remote)));
        stranger.add_peer(Instant::ZERO, peer);
        let mut buffer = TransmitBuf::new(1);
        let mut now = Instant::ZERO;
        for _ in 0..FOREIGN_DATAGRAMS_MAX {
            while let Some(transmit) = stranger.poll_transmit(now, &mut buffer) {
                datagrams.push(buffer.filled()[..transmit.len].to_vec());
                if datagrams.len() >= FOREIGN_DATAGRAMS_MAX {
                    break;
                }
            }
            now = stranger.poll_timeout().unwrap_or(now).max(now);
            stranger.handle_timeout(now);
        }
    }
    datagrams
}
