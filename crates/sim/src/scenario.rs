//! Scenarios as plain values: topology, traffic and timed events.
//!
//! A scenario with a seed determines a run. Scenarios can be printed, generated and shrunk;
//! [`GatewayPair`](crate::GatewayPair) runs them.

mod dialogues;

use std::{fmt, time::Duration};

use keiro_core::{
    AggregationConfig, Cipher, DeliveryClass, PathTerms, RefusalReason, SchedulerKind, TimingConfig,
};
use keiro_link::{LinkConfig, Loss, Reorder};
use keiro_units::{Bandwidth, ByteCount, Probability};

pub use self::dialogues::{Dialogues, Reading, StreamEnd};
use crate::{cross::Cross, middlebox::Attack, network::LinkSpec};

/// Default capacity of a gateway's sockets in datagrams. Ours: about the 4 MiB of receive buffers that the
/// daemon requests.
const INBOX_MAX: usize = 4096;

/// Two gateways, the paths between them, their traffic and events.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The gateway on the left.
    pub a: GatewaySpec,
    /// The gateway on the right.
    pub b: GatewaySpec,
    /// The paths; path number i of both gateways. Forward is from `a` to `b`.
    pub paths: Vec<PathSpec>,
    /// The applications that both gateways know.
    pub apps: Vec<AppSpec>,
    /// Messages and datagrams of the measured phase.
    pub traffic: Vec<Traffic>,
    /// Dialogues over streams of the measured phase.
    pub dialogues: Vec<Dialogues>,
    /// Events of the measured phase, in any order.
    pub events: Vec<TimedEvent>,
    /// When the measured phase begins.
    pub set_up: SetUp,
    /// Use IPv6 addresses instead of IPv4.
    pub ipv6: bool,
    /// Maximum virtual time of set-up, and between the last event or message and the end of the run, after
    /// which the run counts as stalled.
    pub patience: Duration,
}

/// One of the two gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    A,
    B,
}

/// Configuration of a gateway and its driver.
#[derive(Clone, Debug)]
pub struct GatewaySpec {
    /// Order in which waiting data leaves.
    pub scheduler: SchedulerKind,
    /// Preferred packet cipher.
    pub cipher: Cipher,
    pub timing: TimingConfig,
    /// See [`keiro_core::EndpointConfig`].
    pub handshakes_per_second_max: u32,
    /// See [`keiro_core::EndpointConfig`].
    pub probe_share: Probability,
    /// See [`keiro_core::PeerConfig`].
    pub reassembly_bytes_max: ByteCount,
    /// See [`keiro_core::PeerConfig`].
    pub send_queue_bytes_max: ByteCount,
    /// Aggregation of small messages; off by default.
    pub aggregation: AggregationConfig,
    /// Whether it has the other's addresses, so that it may initiate.
    pub knows_peer: bool,
    /// When it starts.
    pub start: Start,
    /// Handling of received messages.
    pub receiver: Receiver,
    /// Processing times of its machine.
    pub processing: Processing,
    /// Capacity of its sockets in datagrams; further ones are dropped and counted.
    pub inbox_max: usize,
    /// Datagrams per batch, 1 to 64.
    pub segments_max: usize,
    /// Records a qlog trace in [`Log::qlog`](crate::gateway::Log::qlog).
    pub qlog: bool,
}

/// When a gateway starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    AtOnce,
    After(Duration),
    /// Never: it does not answer.
    Never,
}

/// Handling of received messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// Each is finished at once.
    Takes,
    /// Each is finished after this time.
    TakesAfter(Duration),
    Refuses(RefusalReason),
    /// None is ever finished.
    Holds,
}

/// Processing times of a gateway's machine; zero by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processing {
    /// Per datagram received, one after the other.
    pub receive: Duration,
    /// Per datagram sent, one after the other.
    pub transmit: Duration,
    /// Timers fire up to this much late, drawn uniformly.
    pub timer_late_max: Duration,
}

/// Bursts of cross traffic at a gateway's machine, faster than it can process, through the device of its
/// paths.
///
/// The device's ring is emptied after a burst. Once full, it drops packets until the burst is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bursts {
    /// Datagrams in a burst.
    pub datagrams: u32,
    /// Interval of datagrams in a burst.
    pub gap: Duration,
    /// Mean interval from start to start of bursts; each is drawn between 0.5 and 1.5 times this.
    pub every: Duration,
    /// Capacity of the ring in datagrams.
    pub ring: u32,
}

/// A path between the gateways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathSpec {
    pub link: LinkSpec,
    /// The rate configured at both gateways, in IP bytes.
    pub rate: Bandwidth,
    /// No rate is configured: the gateways find it.
    pub is_rate_found: bool,
    /// Largest IP packet that the gateways try, in bytes.
    pub mtu_max: u16,
    /// The limit of probes that is configured at `a`, both gateways' bytes a month.
    pub probe_limit: Option<ByteCount>,
    /// Role and cost that are configured at `a`.
    pub terms: PathTerms,
    /// The on-path attacker.
    pub attack: Option<Attack>,
    /// Cross traffic; not together with an attacker.
    pub cross: Option<Cross>,
}

/// An application that both gateways know.
#[derive(Clone, Debug, PartialEq)]
pub struct AppSpec {
    /// Its name, unique in the scenario.
    pub name: String,
    /// Class of its data.
    pub class: DeliveryClass,
    pub latency_target: Option<Duration>,
    /// Lifetime of its messages.
    pub lifetime: Option<Duration>,
    /// Paths in order of preference, by index.
    pub paths: Vec<usize>,
    /// Each part of its data takes the path by which it arrives first.
    pub is_spread: bool,
}

/// Messages or datagrams of one application; for streams there are [`Dialogues`].
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    pub from: Side,
    /// Index of the application.
    pub app: usize,
    /// When they are made.
    pub made: Arrivals,
    /// Their lengths.
    pub length: Length,
    /// Offset from the beginning of the measured phase.
    pub start: Duration,
}

/// Times of messages, from the beginning of their traffic on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// At exponential intervals, see [`keiro_model::arrivals`].
    Exponential { mean: Duration, duration: Duration },
    /// At equal intervals, the first at once.
    Every { interval: Duration, count: u32 },
}

/// Lengths of messages, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    Fixed(usize),
    /// Uniform between two lengths, both included.
    Uniform(usize, usize),
}

#[derive(Clone, Debug, PartialEq)]
pub struct TimedEvent {
    /// Offset from the beginning of the measured phase.
    pub at: Duration,
    pub what: ScenarioEvent,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ScenarioEvent {
    Path {
        /// Index into the scenario's paths.
        path: usize,
        direction: PathDirection,
        change: Change,
    },
    /// A gateway's address on a path changes, as behind a NAT that lost its state.
    Readdress {
        side: Side,
        /// Index of the path.
        path: usize,
    },
    /// A gateway's own address on a path changes, and it knows: as by a new lease of an interface.
    Rebind {
        side: Side,
        /// Index of the path.
        path: usize,
    },
    /// A gateway has no address on a path until the next [`Self::Rebind`], and knows.
    Unbind {
        side: Side,
        /// Index of the path.
        path: usize,
    },
    /// A gateway stops and starts again, losing keys and unfinished messages.
    Restart {
        side: Side,
        /// It notifies its peer first.
        orderly: bool,
        /// Time until it starts again.
        away: Duration,
    },
    /// Changes a gateway's processing time per received datagram, and the capacity of its sockets.
    Receive {
        side: Side,
        /// Per datagram, one after the other.
        each: Duration,
        /// As [`GatewaySpec::inbox_max`].
        inbox_max: usize,
    },
    /// Bursts of cross traffic begin at a gateway's device; `None` stops them.
    Bursts { side: Side, bursts: Option<Bursts> },
    /// Changes the rate of cross traffic on a path; only if there is a [`PathSpec::cross`].
    Cross {
        /// Index into the scenario's paths.
        path: usize,
        /// See [`Cross::rate`].
        rate: Bandwidth,
    },
    /// A gateway's plan changes the paths of an application.
    Assign {
        side: Side,
        /// Index of the application.
        app: usize,
        /// Paths in order of preference, by index.
        paths: Vec<usize>,
    },
    /// All faults end: every path is up and has only its delay, attackers stop.
    Heal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathDirection {
    /// From `a` to `b`.
    Forward,
    /// From `b` to `a`.
    Backward,
    Both,
}

/// Change of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    Down,
    Up,
    /// New one-way propagation delay.
    Delay(Duration),
    /// New rate; `None` is unlimited.
    Rate(Option<Bandwidth>),
    /// New loss model.
    Loss(Loss),
    /// Longer IP packets are dropped silently from now on, bytes.
    Mtu(u16),
    /// Removes cuts, loss, reordering, duplication, corruption and jitter.
    Heal,
    /// New configuration of the link.
    Replace(LinkConfig),
}

/// End of set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetUp {
    /// At time zero: the measured phase contains the handshake.
    Skip,
    /// When both gateways have at least this many paths up.
    PathsUp(usize),
}

impl Scenario {
    /// Two gateways with defaults that have each other's addresses, joined by `paths`, without applications
    /// and traffic. Set-up lasts until all paths are up.
    pub fn new(paths: Vec<PathSpec>) -> Self {
        Self {
            a: GatewaySpec::default(),
            b: GatewaySpec::default(),
            set_up: SetUp::PathsUp(paths.len()),
            paths,
            apps: Vec::new(),
            traffic: Vec::new(),
            dialogues: Vec::new(),
            events: Vec::new(),
            ipv6: false,
            patience: Duration::from_secs(60),
        }
    }

    /// Adds an application of class `message` and returns its index.
    pub fn add_message_app(&mut self, latency_target: Option<Duration>, paths: &[usize]) -> usize {
        self.add_app(DeliveryClass::Message, latency_target, paths)
    }

    /// Adds an application of class `datagram` and returns its index.
    pub fn add_datagram_app(&mut self, latency_target: Option<Duration>, paths: &[usize]) -> usize {
        self.add_app(DeliveryClass::Datagram, latency_target, paths)
    }

    /// Adds an application of class `stream` and returns its index.
    pub fn add_stream_app(&mut self, latency_target: Option<Duration>, paths: &[usize]) -> usize {
        self.add_app(DeliveryClass::Stream, latency_target, paths)
    }

    /// Adds traffic from `a` that begins with the measured phase.
    pub fn add_traffic(&mut self, app: usize, made: Arrivals, length: Length) {
        self.traffic.push(Traffic {
            from: Side::A,
            app,
            made,
            length,
            start: Duration::ZERO,
        });
    }

    /// Adds an event, at an offset from the beginning of the measured phase.
    pub fn add_event(&mut self, at: Duration, what: ScenarioEvent) {
        self.events.push(TimedEvent { at, what });
    }

    pub const fn gateway(&self, side: Side) -> &GatewaySpec {
        match side {
            Side::A => &self.a,
            Side::B => &self.b,
        }
    }

    fn add_app(
        &mut self,
        class: DeliveryClass,
        latency_target: Option<Duration>,
        paths: &[usize],
    ) -> usize {
        self.apps.push(AppSpec {
            name: format!("A{}", self.apps.len() + 1),
            class,
            latency_target,
            lifetime: None,
            paths: paths.to_vec(),
            is_spread: false,
        });
        self.apps.len() - 1
    }
}

impl fmt::Display for Scenario {
    /// The whole scenario, one line per part.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "set-up {:?}, ipv6 {}", self.set_up, self.ipv6)?;
        writeln!(f, "a: {:?}", self.a)?;
        writeln!(f, "b: {:?}", self.b)?;
        for (index, path) in self.paths.iter().enumerate() {
            writeln!(f, "path {index}: {path:?}")?;
        }
        for (index, app) in self.apps.iter().enumerate() {
            writeln!(f, "app {index}: {app:?}")?;
        }
        for traffic in &self.traffic {
            writeln!(f, "{traffic:?}")?;
        }
        for dialogues in &self.dialogues {
            writeln!(f, "{dialogues:?}")?;
        }
        for event in &self.events {
            writeln!(f, "{event:?}")?;
        }
        write!(f, "patience {:?}", self.patience)
    }
}

impl Default for GatewaySpec {
    fn default() -> Self {
        Self {
            scheduler: SchedulerKind::Deadline,
            cipher: Cipher::Aes256Gcm,
            timing: TimingConfig::default(),
            handshakes_per_second_max: 100,
            probe_share: Probability::ZERO,
            aggregation: AggregationConfig::default(),
            reassembly_bytes_max: ByteCount::new(64 << 20),
            send_queue_bytes_max: ByteCount::new(256 << 20),
            knows_peer: true,
            start: Start::AtOnce,
            receiver: Receiver::Takes,
            processing: Processing::default(),
            inbox_max: INBOX_MAX,
            segments_max: 1,
            qlog: false,
        }
    }
}

impl PathSpec {
    /// A loss-free link of this rate and one-way delay, with buffers of 1000 packets.
    pub fn new(rate: Bandwidth, delay: Duration) -> Self {
        Self::over(
            LinkConfig {
                rate: Some(rate),
                delay,
                buffer: keiro_link::Buffer::Packets(1000),
                ..LinkConfig::default()
            },
            rate,
        )
    }

    /// A path over such a link in both directions, with `rate` configured at the gateways.
    pub const fn over(link: LinkConfig, rate: Bandwidth) -> Self {
        Self {
            link: LinkSpec::symmetric(link),
            rate,
            is_rate_found: false,
            mtu_max: 1500,
            probe_limit: None,
            terms: PathTerms::FREE,
            attack: None,
            cross: None,
        }
    }

    /// The same with both directions of its link changed.
    #[must_use]
    pub fn with(mut self, change: impl Fn(&mut LinkConfig)) -> Self {
        change(&mut self.link.forward);
        change(&mut self.link.backward);
        self
    }
}

impl Change {
    /// Applies a change to a link.
    pub fn applied_to(self, link: LinkConfig) -> LinkConfig {
        match self {
            Self::Down => LinkConfig { down: true, ..link },
            Self::Up => LinkConfig {
                down: false,
                ..link
            },
            Self::Delay(delay) => LinkConfig { delay, ..link },
            Self::Rate(rate) => LinkConfig { rate, ..link },
            Self::Loss(loss) => LinkConfig { loss, ..link },
            // What is dropped because of its length never enters the link.
            Self::Mtu(_) => link,
            Self::Heal => LinkConfig {
                down: false,
                loss: Loss::None,
                jitter: Duration::ZERO,
                duplicate: Probability::ZERO,
                corrupt: Probability::ZERO,
                reorder: Reorder::default(),
                ..link
            },
            Self::Replace(other) => other,
        }
    }
}

impl Side {
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// 0 for `A`, 1 for `B`.
    pub const fn index(self) -> usize {
        self as usize
    }
}
