//! What a driver says about this endpoint, its peers, their paths and their applications.

use std::{net::SocketAddr, time::Duration};

use keiro_model::{
    aggregation::{ControllerKind, Limits},
    path_terms::PathTerms,
    probing,
};
use keiro_units::{Bandwidth, ByteCount, Probability};

use crate::{
    handshake::{PresharedKey, PrivateKey, PublicKey},
    id::{AppId, PathId, SocketId, TenantId},
};

/// Everything that holds for the whole endpoint.
#[derive(Clone, Debug)]
pub struct EndpointConfig {
    /// The static key of this gateway.
    pub private_key: PrivateKey,
    /// Unix time at `Instant::ZERO`: orders this gateway's handshakes across restarts.
    pub unix_time_at_zero: Duration,
    /// The time of a handshake of this gateway before it was started, or a later one: its next ones are later than that,
    /// also where its clock has gone back.
    pub handshake_time_floor: Duration,
    /// Order in which waiting data leaves.
    pub scheduler: SchedulerKind,
    /// The preferred packet cipher; a peer that asks for the other one gets that.
    pub cipher: Cipher,
    /// Timers that tests and the simulator may shorten.
    pub timing: TimingConfig,
    /// Initiations per second above which a cookie is asked of unverified senders.
    pub handshakes_per_second_max: u32,
    /// Of each path's rate, for trains of packets that measure its capacity; zero: none.
    pub probe_share: Probability,
    /// How thin traffic is gathered.
    pub aggregation: AggregationConfig,
    /// Tenants that may be configured towards one peer.
    pub tenants_max: usize,
    /// Memory of all IP packets together that wait for one peer; beyond that, a sender drops its own packets.
    pub tenant_bytes_max: ByteCount,
}

impl EndpointConfig {
    /// Defaults for everything but the key.
    pub fn new(private_key: PrivateKey) -> Self {
        Self {
            private_key,
            unix_time_at_zero: Duration::ZERO,
            handshake_time_floor: Duration::ZERO,
            scheduler: SchedulerKind::Deadline,
            cipher: Cipher::Aes256Gcm,
            timing: TimingConfig::default(),
            handshakes_per_second_max: 100,
            probe_share: Probability::ZERO,
            aggregation: AggregationConfig::default(),
            tenants_max: 4096,
            tenant_bytes_max: ByteCount::new(256 << 20),
        }
    }
}

/// How thin traffic is gathered into aggregates `[aggregation §2]`.
///
/// Thin are datagrams and what streams have to send, as long as it fits into one aggregate;
/// messages and transfers pass as they are.
#[derive(Clone, Debug, PartialEq)]
pub struct AggregationConfig {
    /// Whether and when aggregates leave.
    pub mode: AggregationMode,
    /// What S, I and N may be.
    pub limits: Limits,
    /// How they are adapted.
    pub controller: ControllerKind,
    /// Where and when the copies of one aggregate leave, or the parity of a group.
    pub spread: CopySpread,
    /// What is sent besides each aggregate.
    pub redundancy: Redundancy,
}

/// What is sent besides each aggregate, as much as N asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redundancy {
    /// The same again, N − 1 times `[aggregation §2.1]`.
    #[default]
    Copies,
    /// Parity of groups of aggregates: less of it, which takes longer to help.
    Parity(Parity),
}

/// Parity of groups of aggregates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parity {
    group: u8,
    packets: u8,
    wait: Option<Duration>,
}

impl Parity {
    /// Most aggregates of a group.
    pub const GROUP_MAX: u8 = 32;
    /// Longest wait for the next aggregate of a group. Ours: what comes later than that, a
    /// retransmission would have brought.
    pub const WAIT_MAX: Duration = Duration::from_millis(100);

    /// `packets` parity packets for each `group` aggregates where N is 2, as many more for each
    /// further one; after `wait` without another aggregate the group is left as it is. `wait`:
    /// `None`: one and a half I, so that the next aggregate of a clock is waited for.
    ///
    /// `None` if a group would have none or more than [`GROUP_MAX`](Self::GROUP_MAX), no parity or
    /// more of it than copies would take, or `wait` is zero or longer than
    /// [`WAIT_MAX`](Self::WAIT_MAX).
    pub fn new(group: u8, packets: u8, wait: Option<Duration>) -> Option<Self> {
        let groups = (1..=Self::GROUP_MAX).contains(&group) && (1..=group).contains(&packets);
        let waits = wait.is_none_or(|wait| !wait.is_zero() && wait <= Self::WAIT_MAX);
        (groups && waits).then_some(Self {
            group,
            packets,
            wait,
        })
    }

    /// Aggregates of a group, 1 to 32.
    pub const fn group(&self) -> u8 {
        self.group
    }

    /// Parity packets of a group where N is 2, 1 to as many as aggregates.
    pub const fn packets(&self) -> u8 {
        self.packets
    }

    /// How long the next aggregate of a group is waited for; `None`: one and a half I.
    pub const fn wait(&self) -> Option<Duration> {
        self.wait
    }
}

/// The rule by which aggregates leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AggregationMode {
    /// Nothing is gathered beyond what waits anyway, and nothing is sent twice.
    #[default]
    Off,
    /// At once, as long as no more than S bytes leave in any I; then when the next I allows.
    Eager,
    /// By the clock, every I: the paper's way.
    Fixed,
}

/// Where and when the copies of one aggregate leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopySpread {
    /// One behind the other `[aggregation §2.1]`: their spacing measures the bandwidth.
    #[default]
    BackToBack,
    /// With this time between them, so that a short burst of losses does not take all.
    Spaced(Duration),
    /// Each on another path as long as there are any, then one behind the other.
    Paths,
}

impl Default for AggregationConfig {
    /// Off; the paper's values of S, I and N, adapted by Keiro's controller.
    fn default() -> Self {
        Self {
            mode: AggregationMode::Off,
            limits: Limits::default(),
            controller: ControllerKind::Adaptive,
            spread: CopySpread::BackToBack,
            redundancy: Redundancy::Copies,
        }
    }
}

/// The order in which what waits for a path is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulerKind {
    /// Earliest deadline (acceptance + latency target) first; what has no latency target goes last, in order.
    Deadline,
    /// In order of acceptance, whole messages: the paper's way [path-selection §4.1].
    Fifo,
}

/// AEAD of data packets. Handshakes are always ChaCha20-Poly1305.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-256-GCM, for processors with AES instructions.
    Aes256Gcm,
    /// ChaCha20-Poly1305, for processors without AES instructions.
    ChaCha20Poly1305,
}

/// Timers of the protocol.
#[derive(Clone, Copy, Debug)]
pub struct TimingConfig {
    /// Age at which keys are changed. 120 s as WireGuard's REKEY_AFTER_TIME.
    pub rekey_after: Duration,
    /// Age at which keys are neither used nor kept any more. 180 s as WireGuard's REJECT_AFTER_TIME.
    pub reject_after: Duration,
    /// Packets sent with one key after which it is changed. It lowers the cipher's own limit.
    pub rekey_after_packets: u64,
    /// Packets sent with one key after which it is not used any more. It lowers the cipher's own limit.
    pub reject_after_packets: u64,
    /// Packets under one key that were not authentic, after which it is not used any more. It lowers
    /// the cipher's own limit.
    pub reject_after_forged: u64,
    /// First wait for a handshake response; doubles up to `handshake_retry_max`.
    pub handshake_retry: Duration,
    /// Longest wait between two handshake attempts.
    pub handshake_retry_max: Duration,
    /// A path that carries nothing is probed this often.
    pub keepalive: Duration,
    /// The same on a path that has carried no data for some minutes.
    pub keepalive_idle: Duration,
    /// The same on a path whose probes are limited, while it carries nothing.
    pub keepalive_limited: Duration,
    /// A path that is down is probed this often.
    pub probe_down: Duration,
    /// Longest time between the probes of one that is down and whose probes are limited.
    pub probe_down_limited: Duration,
    /// Longest time for which an acknowledgement is held back.
    pub ack_delay_max: Duration,
}

impl Default for TimingConfig {
    fn default() -> Self {
        Self {
            rekey_after: Duration::from_secs(120),
            reject_after: Duration::from_secs(180),
            rekey_after_packets: u64::MAX,
            reject_after_packets: u64::MAX,
            reject_after_forged: u64::MAX,
            handshake_retry: Duration::from_millis(500),
            handshake_retry_max: Duration::from_secs(5),
            keepalive: Duration::from_secs(1),
            keepalive_idle: probing::KEEPALIVE_IDLE,
            keepalive_limited: probing::KEEPALIVE_METERED,
            probe_down_limited: Duration::from_secs(10),
            probe_down: Duration::from_millis(500),
            // Below the shortest RTT that a WAN has, so that it never dominates a measurement.
            ack_delay_max: Duration::from_millis(1),
        }
    }
}

/// A gateway that this one talks to.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// The key that authenticates the peer in handshakes.
    pub public_key: PublicKey,
    /// Mixed into the handshake (Noise psk2); all zero where there is none.
    pub preshared_key: PresharedKey,
    /// The paths to it, at most 64, each with its own `id`. Several may share a socket.
    pub paths: Vec<PathConfig>,
    /// It comes to us, and we never begin a handshake, also where its address is known.
    pub answers_only: bool,
    /// The applications that may be exchanged with it.
    pub apps: Vec<AppConfig>,
    /// Bytes that it may make this gateway keep of what it sends: incomplete and undelivered messages with the
    /// credit for more, windows of streams, and what comes out of order. Less than 32 MiB is taken as that,
    /// and messages may have no more than this, but for a longest one: a peer must be able to send it.
    pub reassembly_bytes_max: ByteCount,
    /// Bytes of messages waiting or unacknowledged towards it; more are refused.
    pub send_queue_bytes_max: ByteCount,
}

impl PeerConfig {
    /// Defaults for everything but the key.
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            preshared_key: PresharedKey::default(),
            paths: Vec::new(),
            answers_only: false,
            apps: Vec::new(),
            reassembly_bytes_max: ByteCount::new(48 << 20),
            send_queue_bytes_max: ByteCount::new(256 << 20),
        }
    }
}

/// One path to a peer: a local socket and where it sends to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathConfig {
    /// Its number; unique per peer and stable for the session's life.
    pub id: PathId,
    /// The socket it uses. Paths that share one lead to different addresses of the peer, or to different uplinks
    /// of the peer that come to us.
    pub socket: SocketId,
    /// `None`: the peer must come to us, its address is learnt.
    pub remote: Option<SocketAddr>,
    /// What may be sent, counted in IP bytes (headers of IP and UDP included). `None`: what the path
    /// carries, which is found.
    pub rate: Option<Bandwidth>,
    /// Largest IP packet that is tried (RFC 8899 §4.4 MAX_PLPMTU plus headers), bytes.
    pub mtu_max: u16,
    /// What both ends together may send a month to keep the path alive and to measure it, whole IP packets; zero: it is
    /// metered, and carries keepalives only while it is idle. The peer learns of it. `None`: no limit beside
    /// `probe_share`.
    pub probe_limit: Option<ByteCount>,
    /// On which terms this end uses it. The peer learns of them.
    pub terms: PathTerms,
}

/// An application as both gateways know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppConfig {
    /// The same at both gateways, see [`AppId::of_name`].
    pub id: AppId,
    /// What its traffic wants.
    pub class: DeliveryClass,
    /// Target delay; orders what waits. `None`: served after everything that has one.
    pub latency_target: Option<Duration>,
    /// Messages and datagrams are given up when this old. `None`: never.
    pub lifetime: Option<Duration>,
    /// Paths in order of preference; the first that is up is used. Paths not named follow, but for those whose budget
    /// is used up at either end: only applications that name one take it.
    pub paths: Vec<PathId>,
    /// Each part of what it sends takes the path by which it arrives first, of all that are up and not limited, whatever
    /// `paths` prefers; each flow of its IP packets takes one.
    pub is_spread: bool,
    /// Whose messages, streams and datagrams these are; that of a tenant that is not configured is
    /// tenant 0's. IP packets name theirs.
    pub tenant: TenantId,
}

/// How an application's data is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeliveryClass {
    /// Loses what the path loses, in the order of arrival.
    Datagram,
    /// Whole messages, nothing lost within the lifetime.
    Message,
    /// Bytes in order, nothing lost: TCP connections.
    Stream,
}
