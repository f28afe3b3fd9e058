//! What is simulated, as plain values: topology, traffic and timed events.
//!
//! A scenario with a seed determines a run. Scenarios can be printed, generated and shrunk; running
//! them is left to [`GatewayPair`](crate::GatewayPair).

mod dialogues;

use std::{fmt, time::Duration};

use keiro_core::{
    AggregationConfig, Cipher, DeliveryClass, RefusalReason, SchedulerKind, TimingConfig,
};
use keiro_link::{LinkConfig, Loss, Reorder};
use keiro_units::{Bandwidth, ByteCount, Probability};

pub use self::dialogues::{Dialogues, Reading, StreamEnd};
use crate::{cross::Cross, middlebox::Attack, network::LinkSpec};

/// Datagrams that a gateway's sockets hold unless said otherwise; ours: about 4 MiB of receive
/// buffers as the daemon asks for.
const INBOX_MAX: usize = 4096;

/// Two gateways, the paths between them, what they send and what happens to them.
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
    /// What is sent in the measured phase.
    pub traffic: Vec<Traffic>,
    /// What clients and servers say over streams in the measured phase.
    pub dialogues: Vec<Dialogues>,
    /// What happens in the measured phase, in any order.
    pub events: Vec<TimedEvent>,
    /// When the measured phase begins.
    pub set_up: SetUp,
    /// Addresses of IPv6 instead of IPv4.
    pub ipv6: bool,
    /// Virtual time that set-up may take, and that may pass between the last event or message and
    /// the end of the run, before the run counts as stalled.
    pub patience: Duration,
}

/// One of the two gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// [`Scenario::a`].
    A,
    /// [`Scenario::b`].
    B,
}

/// How a gateway is configured and how its driver behaves.
#[derive(Clone, Debug)]
pub struct GatewaySpec {
    /// Order in which waiting data leaves.
    pub scheduler: SchedulerKind,
    /// The packet cipher that it prefers.
    pub cipher: Cipher,
    /// The protocol's timers.
    pub timing: TimingConfig,
    /// See [`keiro_core::EndpointConfig`].
    pub handshakes_per_second_max: u32,
    /// See [`keiro_core::EndpointConfig`].
    pub probe_share: Probability,
    /// See [`keiro_core::PeerConfig`].
    pub reassembly_bytes_max: ByteCount,
    /// See [`keiro_core::PeerConfig`].
    pub send_queue_bytes_max: ByteCount,
    /// How thin traffic is gathered; off by default.
    pub aggregation: AggregationConfig,
    /// Whether it knows the other's addresses and so may begin.
    pub knows_peer: bool,
    /// When it first runs.
    pub start: Start,
    /// What it does with messages that arrive.
    pub receiver: Receiver,
    /// How long its machine takes.
    pub processing: Processing,
    /// Datagrams that its sockets hold before the machine looks at them; what comes beyond is
    /// dropped and counted.
    pub inbox_max: usize,
    /// Datagrams per batch, 1 to 64.
    pub segments_max: usize,
    /// Records a qlog trace in [`Log::qlog`](crate::gateway::Log::qlog).
    pub qlog: bool,
}

/// When a gateway first runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// From time zero.
    AtOnce,
    /// After this time.
    After(Duration),
    /// Not at all: it never answers.
    Never,
}

/// What becomes of messages that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// Each is taken at once.
    Takes,
    /// Each is taken after this time.
    TakesAfter(Duration),
    /// Each is refused.
    Refuses(RefusalReason),
    /// None is ever finished.
    Holds,
}

/// How long a gateway's machine takes. All zero: no time at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processing {
    /// Per datagram received, one after the other.
    pub receive: Duration,
    /// Per datagram sent, one after the other.
    pub transmit: Duration,
    /// Timers fire up to this much late, drawn uniformly.
    pub timer_late_max: Duration,
}

/// What others send to a gateway's machine, faster than it takes it, through the device by which its
/// paths' packets come as well.
///
/// The device's ring is emptied after a burst. From when it is full until the burst is over it has
/// no room for anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bursts {
    /// Datagrams in a burst.
    pub datagrams: u32,
    /// From one datagram of a burst to the next.
    pub gap: Duration,
    /// From the beginning of a burst to that of the next on average; half as much to one and a half times
    /// as much.
    pub every: Duration,
    /// Datagrams that the ring holds.
    pub ring: u32,
}

/// A path between the gateways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathSpec {
    /// What it is.
    pub link: LinkSpec,
    /// The rate that both gateways are configured with, IP bytes.
    pub rate: Bandwidth,
    /// Largest IP packet that the gateways try, bytes.
    pub mtu_max: u16,
    /// Who stands in the middle.
    pub attack: Option<Attack>,
    /// What others send over it; not where there is an attacker.
    pub cross: Option<Cross>,
}

/// An application that both gateways know.
#[derive(Clone, Debug, PartialEq)]
pub struct AppSpec {
    /// Its name, unique in the scenario.
    pub name: String,
    /// How its data is carried.
    pub class: DeliveryClass,
    /// Target delay.
    pub latency_target: Option<Duration>,
    /// Age at which its messages are given up.
    pub lifetime: Option<Duration>,
    /// Paths in order of preference, by index.
    pub paths: Vec<usize>,
}

/// Messages or datagrams of one application; for streams there are [`Dialogues`].
#[derive(Clone, Debug, PartialEq)]
pub struct Traffic {
    /// Which gateway sends.
    pub from: Side,
    /// Which application, by index.
    pub app: usize,
    /// When they are made.
    pub made: Arrivals,
    /// How long they are.
    pub length: Length,
    /// Offset from the beginning of the measured phase.
    pub start: Duration,
}

/// When messages are made, from the beginning of their traffic on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// At exponential intervals, see [`keiro_model::arrivals`].
    Exponential {
        /// The mean interval.
        mean: Duration,
        /// For how long.
        duration: Duration,
    },
    /// At equal intervals, the first at once.
    Every {
        /// The interval.
        interval: Duration,
        /// How many.
        count: u32,
    },
}

/// How long messages are, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// All the same.
    Fixed(usize),
    /// Uniform between two lengths, both included.
    Uniform(usize, usize),
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedEvent {
    /// Offset from the beginning of the measured phase.
    pub at: Duration,
    /// What.
    pub what: ScenarioEvent,
}

/// What may happen.
#[derive(Clone, Debug, PartialEq)]
pub enum ScenarioEvent {
    /// A path changes.
    Path {
        /// Which, by index.
        path: usize,
        /// Which way.
        way: PathDirection,
        /// How.
        change: Change,
    },
    /// A gateway's address on a path changes, as behind a translator that forgot it.
    Readdress {
        /// Whose.
        side: Side,
        /// On which path, by index.
        path: usize,
    },
    /// A gateway stops and starts again; keys and unfinished messages are forgotten.
    Restart {
        /// Which.
        side: Side,
        /// It says good-bye first.
        orderly: bool,
        /// How long it is away.
        away: Duration,
    },
    /// A gateway's machine takes another time for each datagram received, and its sockets hold as
    /// many from now on.
    Receive {
        /// Whose.
        side: Side,
        /// Per datagram, one after the other.
        each: Duration,
        /// As [`GatewaySpec::inbox_max`].
        inbox_max: usize,
    },
    /// Others' bursts begin at a gateway's device; `None`: they end.
    Bursts {
        /// Whose.
        side: Side,
        /// What they send.
        bursts: Option<Bursts>,
    },
    /// Others send another mean over a path; only where there is a [`PathSpec::cross`].
    Cross {
        /// Which, by index.
        path: usize,
        /// See [`Cross::rate`].
        rate: Bandwidth,
    },
    /// A gateway's plan gives an application other paths.
    Assign {
        /// At which gateway.
        side: Side,
        /// Which application, by index.
        app: usize,
        /// Paths in order of preference, by index.
        paths: Vec<usize>,
    },
    /// All faults end: every path is up and does nothing but delay, attackers give up.
    Heal,
}

/// Direction of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathDirection {
    /// From `a` to `b`.
    Forward,
    /// From `b` to `a`.
    Backward,
    /// Both.
    Both,
}

/// How a path changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// It is cut.
    Down,
    /// It carries again.
    Up,
    /// Another propagation delay.
    Delay(Duration),
    /// Another rate.
    Rate(Option<Bandwidth>),
    /// Other losses.
    Loss(Loss),
    /// No longer cut, lossy, reordering, duplicating, corrupting or jittering.
    Heal,
    /// Everything at once.
    Replace(LinkConfig),
}

/// When set-up is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetUp {
    /// At time zero: the measured phase contains the handshake.
    Skip,
    /// When both gateways have at least this many paths up.
    PathsUp(usize),
}

impl Scenario {
    /// Two gateways with defaults that know each other's addresses, joined by `paths`, with
    /// neither applications nor traffic. Set-up lasts until all paths are up.
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

    /// Adds an application of class `message` and gives its index.
    pub fn add_message_app(&mut self, latency_target: Option<Duration>, paths: &[usize]) -> usize {
        self.add_app(DeliveryClass::Message, latency_target, paths)
    }

    /// Adds an application of class `datagram` and gives its index.
    pub fn add_datagram_app(&mut self, latency_target: Option<Duration>, paths: &[usize]) -> usize {
        self.add_app(DeliveryClass::Datagram, latency_target, paths)
    }

    /// Adds an application of class `stream` and gives its index.
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

    /// The gateway on one side.
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
        });
        self.apps.len() - 1
    }
}

impl fmt::Display for Scenario {
    /// Everything, a line for each part.
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
    /// A faultless path of this rate and one-way delay whose buffer holds 1000 packets each way.
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

    /// A path over such a link in both directions, of which the gateways know `rate`.
    pub const fn over(link: LinkConfig, rate: Bandwidth) -> Self {
        Self {
            link: LinkSpec::symmetric(link),
            rate,
            mtu_max: 1500,
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
    /// What becomes of a link.
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
    /// Both.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// The other one.
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
