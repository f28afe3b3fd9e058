//! Log of one gateway; [`Report`](crate::Report) joins both sides.

use keiro_core::{AppId, Event, MessageId, MessageOutcome, ResetReason, StreamId};
use keiro_units::{ByteCount, Instant};

/// Maximum length of a qlog trace. Ours: as of a packet capture.
pub const QLOG_BYTES_MAX: usize = 64 << 20;

/// Everything that a gateway did and received in the measured phase, and its events from the start.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Messages of its applications, in order.
    pub messages: Vec<SentMessage>,
    /// Messages that the core delivered.
    pub deliveries: Vec<DeliveredMessage>,
    /// Datagrams of its applications, in order.
    pub datagrams: Vec<SentDatagram>,
    /// Datagrams that the core delivered.
    pub arrivals: Vec<DeliveredDatagram>,
    /// Dialogues of its clients, in order.
    pub dialogues: Vec<SentDialogue>,
    /// Streams opened by its clients or towards its servers, in order.
    pub streams: Vec<StreamObservation>,
    /// Events of the core.
    pub events: Vec<(Instant, Event)>,
    /// Violations of invariants by the core.
    pub faults: Vec<String>,
    /// Received datagrams that its socket dropped.
    pub overflowed: u64,
    /// Received datagrams that its device dropped because of cross traffic.
    pub ring_overflowed: u64,
    /// By path: the largest excess over the configured rate.
    pub bursts: Vec<ByteCount>,
    /// Maximum of bytes of queued messages over all samples.
    pub queued_bytes_max: u64,
    /// Maximum of bytes of incomplete or unfinished messages from the peer over all samples.
    pub reassembly_bytes_max: u64,
    /// Maximum of stream bytes queued or not acknowledged over all samples.
    pub streams_queued_bytes_max: u64,
    /// Maximum of stream bytes received and not read over all samples.
    pub streams_kept_bytes_max: u64,
    /// Maximum of streams over all samples.
    pub streams_max: usize,
    /// Messages that the core refused because its queue was full; each was offered again.
    pub queue_full: u64,
    /// Events of its paths, packet by packet, as qlog (JSON text sequences); empty unless
    /// [`GatewaySpec::qlog`](crate::GatewaySpec::qlog) is set. Limited to [`QLOG_BYTES_MAX`].
    pub qlog: Vec<u8>,
}

/// A message at its sender.
#[derive(Clone, Debug)]
pub struct SentMessage {
    /// Index of the application.
    pub app: usize,
    pub bytes: usize,
    /// [`TraceHash::of`](crate::TraceHash::of) its body; zero before it was offered to the core.
    pub hash: u64,
    /// When it was made.
    pub made: Instant,
    /// When the core accepted it, the incarnation of the gateway then, and its number; `None` if not accepted
    /// yet.
    pub accepted: Option<(Instant, u32, MessageId)>,
    pub done: Option<(Instant, MessageOutcome)>,
    /// The gateway was restarted before it ended.
    pub forgotten: bool,
}

/// A message at its receiver.
#[derive(Clone, Copy, Debug)]
pub struct DeliveredMessage {
    pub at: Instant,
    /// Incarnation of the gateway.
    pub incarnation: u32,
    /// Its application according to the core.
    pub app: AppId,
    /// Its message number on the wire.
    pub id: MessageId,
    pub bytes: usize,
    /// Hash of its body.
    pub hash: u64,
}

/// A datagram at its sender.
#[derive(Clone, Copy, Debug)]
pub struct SentDatagram {
    /// Index of the application.
    pub app: usize,
    pub bytes: usize,
    /// Hash of its content.
    pub hash: u64,
    /// When it was made and given to the core.
    pub made: Instant,
}

/// A datagram at its receiver.
#[derive(Clone, Copy, Debug)]
pub struct DeliveredDatagram {
    pub at: Instant,
    /// Incarnation of the gateway.
    pub incarnation: u32,
    /// Its application according to the core.
    pub app: AppId,
    /// Its index, read from its content; `None` if it is too short to have one.
    pub index: Option<u64>,
    /// Hash of its content.
    pub hash: u64,
}

/// A dialogue of a client.
#[derive(Clone, Copy, Debug)]
pub struct SentDialogue {
    /// Index of the application.
    pub app: usize,
    /// Index of the client in the gateway.
    pub client: usize,
    /// It completes if there are no faults.
    pub completes: bool,
    /// When it was made.
    pub made: Instant,
    /// When its first request was begun; `None` if not yet.
    pub begun: Option<Instant>,
    /// When its last response was complete; `None` if not yet.
    pub done: Option<Instant>,
    /// Its stream was reset, or its gateway restarted, before completion.
    pub failed: bool,
}

/// One end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamObservation {
    /// Its identifier in the core.
    pub id: StreamId,
    /// Its application according to the core.
    pub app: AppId,
    /// Index of the application of the client's dialogues; `None` at its server.
    pub dialogues: Option<usize>,
    /// The client's end in the log of the other gateway, according to its header; `None` at a client, or if
    /// the header has not arrived yet.
    pub other: Option<usize>,
    /// Incarnation of the gateway.
    pub incarnation: u32,
    /// It ends if there are no faults, as far as is known.
    pub ends: bool,
    /// When the core first had it.
    pub opened: Instant,
    /// Bytes that the core has accepted.
    pub written: u64,
    /// Bytes that the core has delivered.
    pub read: u64,
    /// When it ended its own direction; `None` if not yet.
    pub finished: Option<Instant>,
    /// When it received the end of the other direction; `None` if not yet.
    pub end_seen: Option<Instant>,
    /// When it reset the stream; `None` if it did not.
    pub reset_sent: Option<Instant>,
    /// When and why it was reset; `None` if it was not.
    pub reset_seen: Option<(Instant, ResetReason)>,
    /// The gateway was restarted before it ended.
    pub forgotten: bool,
}

impl StreamObservation {
    pub(super) const fn new(id: StreamId, app: AppId, incarnation: u32, opened: Instant) -> Self {
        Self {
            id,
            app,
            dialogues: None,
            other: None,
            incarnation,
            ends: true,
            opened,
            written: 0,
            read: 0,
            finished: None,
            end_seen: None,
            reset_sent: None,
            reset_seen: None,
            forgotten: false,
        }
    }

    /// Both directions have ended.
    pub const fn is_closed(&self) -> bool {
        self.finished.is_some() && self.end_seen.is_some()
    }

    /// It has ended, by any cause.
    pub const fn is_over(&self) -> bool {
        self.is_closed() || self.reset_sent.is_some() || self.reset_seen.is_some() || self.forgotten
    }
}
