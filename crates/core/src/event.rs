//! Events and deliveries of an endpoint, for its driver.

use std::{net::SocketAddr, time::Duration};

use keiro_model::aggregation::{Decision, Parameters, TooNarrow};
use keiro_units::Bandwidth;
use thiserror::Error;

use crate::{
    config::DeliveryClass,
    handshake::PublicKey,
    id::{AppId, FlowId, MessageId, PathId, PeerId, SocketId, StreamId, TenantId},
    tenant::PrefixMismatch,
    wire::Versions,
};

/// Data that came from a peer.
#[allow(missing_docs, reason = "some fields say it with their names")]
#[derive(Debug)]
pub enum Delivery<'a> {
    /// A whole message, delivered once at most.
    Message {
        peer: PeerId,
        /// The application that it belongs to.
        app: AppId,
        /// Our number for it, to be given back with `finish_message`. The sender's
        /// `send_message` returned another one.
        id: MessageId,
        body: Vec<u8>,
    },
    /// A datagram of an application.
    Datagram {
        peer: PeerId,
        /// The application that it belongs to.
        app: AppId,
        /// The client at the listener's side.
        flow: FlowId,
        /// `false`: from a listener towards a forward; `true`: the answer to it.
        reply: bool,
        data: &'a [u8],
    },
    /// An IP packet of a tenant.
    Packet {
        peer: PeerId,
        tenant: TenantId,
        /// The two ECN bits of the outer header, to be combined with the packet's own by RFC 6040
        /// §4.2. 3 also where the sending gateway's queue wants it marked.
        ecn: u8,
        /// The packet, IP header first, as it was given to the sending gateway.
        data: &'a [u8],
    },
    /// Something happened to a stream.
    Stream {
        /// The peer at its other end.
        peer: PeerId,
        /// The application that it belongs to.
        app: AppId,
        stream: StreamId,
        signal: StreamSignal,
    },
}

/// How long an IP packet, or bytes of a stream, took: from when they came to this endpoint until the peer's
/// received them, stream bytes with all before them.
///
/// Samples: not every packet or byte has one. The waiting here and the way are in it, not what the peer's driver
/// does with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields say it with their names")]
pub struct DelaySample {
    pub peer: PeerId,
    pub app: AppId,
    pub delay: Duration,
}

/// What happened to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamSignal {
    /// The peer opened it: it is to be connected, or reset.
    Opened {
        /// Where to, if its client chose; `None`: to the application's forward.
        target: Option<SocketAddr>,
    },
    /// `stream_data` has bytes, or the end, that it did not have before. Not signalled again before all
    /// of it is consumed.
    Readable,
    /// `write_stream`, which took less than it was given, takes more now.
    Writable,
    /// Both directions have ended, and the stream is gone. What had arrived in order before the peer reset it
    /// was read before, or has not moved for some seconds.
    Reset(ResetReason),
}

/// Which gateway does not take the data of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MismatchSeenBy {
    /// This one: the peer sends it.
    Us,
    /// The peer has refused what this one sent.
    Peer,
}

/// What is wrong with the key of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFault {
    /// It was made for the public key of another gateway than this one.
    NotOurs,
    /// It was made with this key, which no peer has.
    NotOfPeer(PublicKey),
    /// The peer's answer was not made with the preshared key that is configured here.
    Preshared,
}

/// Why a stream ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetReason {
    /// The client or the server reset its connection.
    Application,
    /// The server refused the connection.
    Refused,
    /// The server cannot be reached.
    Unreachable,
    /// There are too many streams.
    TooMany,
    /// The other gateway knows no such application, or not in this class.
    UnknownApplication,
    /// The other gateway does not connect to that destination.
    Forbidden,
    /// The gateway stops, has restarted, or does not know the other any more.
    Gateway,
    /// A gateway broke the rules of streams.
    Protocol,
    /// A reason that this version does not know.
    Other,
}

#[allow(missing_docs, reason = "some fields say it with their names")]
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Keys are agreed with a peer for the first time or after it restarted.
    PeerUp { peer: PeerId },
    /// No path to the peer is left, or it closed the session.
    PeerDown {
        peer: PeerId,
        /// It said so itself.
        closed_by_peer: bool,
    },
    /// A handshake was not answered; the next attempt follows by itself.
    HandshakeUnanswered {
        peer: PeerId,
        /// Handshakes that were begun in a row without an answer.
        attempts: u32,
        /// Where they were sent.
        remotes: Vec<SocketAddr>,
    },
    /// A handshake failed because the other side speaks other versions of the protocol. At most
    /// once a minute per peer, and once a minute for all senders that are no peer.
    ///
    /// This is not authenticated: it may be a forgery by a host that knows a public key.
    VersionMismatch {
        /// The peer that we began a handshake with, or the one at the sender's address; `None`: no
        /// peer, or more than one, is known to have this address.
        peer: Option<PeerId>,
        /// The other side's address.
        remote: SocketAddr,
        /// The versions that the other side speaks, as far as it says.
        theirs: Versions,
        /// The versions that this endpoint speaks.
        ours: Versions,
    },
    /// A handshake failed because of a key. At most once a minute per peer and kind of fault, and once a minute
    /// for all senders that are at no peer's address. Never of a peer that is up.
    ///
    /// Who sent it is not proven: the address may be forged.
    WrongKey {
        /// The peer at the sender's address that is not up, or the one that answers; `None`: no peer, or more
        /// than one, has this address.
        peer: Option<PeerId>,
        /// The sender's address.
        remote: SocketAddr,
        /// It is the address of a peer, or of several.
        at_peer_address: bool,
        /// What is wrong.
        fault: KeyFault,
    },
    /// A peer that is not up begins handshakes, which are refused as replays: its clock has gone back. At most once a
    /// minute and peer. A host on the path may replay an old handshake to cause it.
    ClockBehind {
        peer: PeerId,
        /// The sender's address.
        remote: SocketAddr,
        /// How far the handshake's time is behind this endpoint's clock.
        behind: Duration,
    },
    /// New keys are in use in both directions.
    KeyChanged { peer: PeerId },
    /// Two gateways that run use this peer's key. The older one is served. At most once a minute.
    DuplicateKey {
        peer: PeerId,
        /// The address of the one that is served.
        served: SocketAddr,
        /// The address of the other one.
        other: SocketAddr,
    },
    /// The peer serves another gateway that uses our key. At most once a minute.
    RefusedDuplicateKey { peer: PeerId },
    /// An application whose data one gateway sends is not configured at the other, or with another class.
    /// At most once a minute and application.
    AppMismatch {
        peer: PeerId,
        app: AppId,
        /// The class of what was sent.
        class: DeliveryClass,
        seen_by: MismatchSeenBy,
    },
    /// A path answered a challenge and may be used.
    PathUp {
        peer: PeerId,
        path: PathId,
        /// The peer's address on this path.
        remote: SocketAddr,
        /// Round trip of the challenge.
        rtt: Duration,
    },
    /// A path is not used any more until it answers again.
    PathDown {
        peer: PeerId,
        path: PathId,
        reason: PathDownReason,
    },
    /// The peer was seen at another address, which answered a challenge.
    PathMoved {
        peer: PeerId,
        path: PathId,
        /// The address that was in use; `None`: none was known.
        from: Option<SocketAddr>,
        /// The address that was validated and is in use now.
        to: SocketAddr,
    },
    /// A path has never answered, while another path of the same socket works. It is challenged rarely from now
    /// on, until that one goes down.
    PathAbandoned { peer: PeerId, path: PathId },
    /// The peer has more paths to a socket than this endpoint has from there, and those that there are serve
    /// other paths of the peer. Reported again after `set_paths`.
    PathsWanted {
        peer: PeerId,
        socket: SocketId,
        /// Paths of this socket that are needed.
        paths: usize,
    },
    /// The largest packet that the path carries was found or changed.
    MtuChanged {
        peer: PeerId,
        path: PathId,
        /// The largest IP packet of the path now, bytes.
        mtu: u16,
    },
    /// An application's traffic takes another path.
    AppMoved {
        peer: PeerId,
        app: AppId,
        /// `None`: it had no path.
        from: Option<PathId>,
        /// `None`: no path is up.
        to: Option<PathId>,
        reason: MoveReason,
    },
    /// The peer sends packets of a tenant that is not configured here. Reported once, and again after a
    /// minute without.
    TenantUnknown {
        peer: PeerId,
        /// Which tenant, as the peer calls it.
        tenant: TenantId,
    },
    /// The peer drops packets of a tenant, since it is not configured there. Reported as often as `TenantUnknown`.
    TenantRefused { peer: PeerId, tenant: TenantId },
    /// The peer drops packets of a tenant of ours, since an address is in none of the prefixes that are
    /// configured there. At most once a minute for each tenant and kind of address.
    PacketsRefused {
        peer: PeerId,
        /// What the peer has dropped.
        mismatch: PrefixMismatch,
    },
    /// The configured unit of a tenant's controller is more than twice, or less than half, of what is found on a
    /// path. At most once in ten minutes for each peer.
    UnitContradicted {
        peer: PeerId,
        path: PathId,
        tenant: TenantId,
        configured: Bandwidth,
        found: Bandwidth,
    },
    /// The controller of a path's aggregates changed their size, interval or number of copies.
    AggregationChanged {
        peer: PeerId,
        path: PathId,
        /// What from, what to, and why.
        decision: Decision,
    },
    /// Nothing is gathered by the clock on a path for now, since its bandwidth carries no combination
    /// of size, interval and copies: what is thin passes as it is.
    AggregationPaused {
        peer: PeerId,
        path: PathId,
        /// What there is, and what would be needed.
        too_narrow: TooNarrow,
    },
    /// The bandwidth carries a combination again, and thin traffic is gathered.
    AggregationResumed {
        peer: PeerId,
        path: PathId,
        /// The bandwidth that the path is now measured to have.
        bandwidth: Bandwidth,
        /// With what it begins.
        parameters: Parameters,
    },
    /// A message of ours has ended.
    MessageDone {
        peer: PeerId,
        app: AppId,
        id: MessageId,
        /// Its length in bytes, as it was accepted.
        len: usize,
        outcome: MessageOutcome,
        /// From its acceptance until now.
        after: Duration,
        /// From its acceptance until the peer had it whole, as the peer says; `None`: it does not, or
        /// its clock is not known yet.
        arrived_after: Option<Duration>,
    },
}

/// How a message ended at its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageOutcome {
    /// The peer's driver handed it over, and the peer said so.
    Delivered,
    /// Its lifetime ended before the peer said anything. It may have been delivered.
    Expired,
    /// It was not delivered and will not be: the peer said so, or not all of it has left.
    Refused(RefusalReason),
    /// It may have been delivered: all of it has left, and the peer will not say what became of it.
    Unknown(UnknownCause),
}

/// Why nothing more will be known of a message that has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownCause {
    /// The peer restarted, or closed the session: it does not know the message any more.
    PeerRestarted,
    /// The peer was removed here, or the endpoint was closed.
    PeerRemoved,
}

/// Why a message was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The peer was removed, or the endpoint closed, before all of it had left. No peer says this.
    NotSent,
    /// It knows no such application, or not in this class.
    UnknownApplication,
    /// No receiver is attached.
    NoReceiver,
    /// Its receiver is too slow and its queue full.
    ReceiverFull,
    /// A reason that this version does not know.
    Other,
}

/// Why a path went down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathDownReason {
    /// Nothing that was sent on it was acknowledged.
    Silent {
        /// How long nothing had been received.
        silent: Duration,
        /// 2 RTT + 80 ms, and twice the time that a full packet takes to leave: where that is short, an outage
        /// is noticed within 3 RTT + 100 ms.
        limit: Duration,
    },
    /// It does not answer challenges.
    ChallengeUnanswered,
    /// Short packets are answered, and none of `bytes` IP bytes.
    TooSmall {
        /// The size that does not pass: the least that a path needs, or the one that it was used with.
        bytes: u16,
    },
    /// The keys may not be used any longer, and no handshake has brought new ones.
    KeysExpired,
    /// The configuration no longer names it.
    Removed,
    /// Its socket has no local address; see [`Endpoint::on_socket_unbound`](crate::Endpoint::on_socket_unbound).
    NoLocalAddress,
}

/// Why an application moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveReason {
    /// The path it was on went down.
    PathDown,
    /// A path that it prefers came up.
    PathUp,
    /// The driver's plan says so.
    Assigned,
}

/// Why data was not accepted for sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// No peer has this id: it was removed, or never added.
    #[error("unknown peer")]
    UnknownPeer,
    /// The peer has no such application in this class.
    #[error("unknown application, or not of this class")]
    UnknownApplication,
    /// Longer than 16 MiB (message) or 64 KiB (datagram), or empty where that is not allowed.
    #[error("length {len} is outside {min}..={max}")]
    Length {
        /// What was given, bytes.
        len: usize,
        /// Shortest body of the class, bytes.
        min: usize,
        /// Longest body of the class, bytes.
        max: usize,
    },
    /// The queue towards this peer is full: try again after a `MessageDone` event.
    #[error("the queue towards this peer is full")]
    QueueFull,
}
