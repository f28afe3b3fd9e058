//! What one gateway saw, in its own words; [`Report`](crate::Report) puts both sides together.

use keiro_core::{AppId, Event, MessageId, MessageOutcome, ResetReason, StreamId};
use keiro_units::{ByteCount, Instant};

/// Bytes after which a qlog trace takes no more events. Ours: as a capture of packets.
pub const QLOG_BYTES_MAX: usize = 64 << 20;

/// Everything that a gateway did and saw in the measured phase, and its events from the start.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Messages that its applications made, in order.
    pub messages: Vec<SentMessage>,
    /// Messages that the core delivered.
    pub deliveries: Vec<DeliveredMessage>,
    /// Datagrams that its applications made, in order.
    pub datagrams: Vec<SentDatagram>,
    /// Datagrams that the core delivered.
    pub arrivals: Vec<DeliveredDatagram>,
    /// Dialogues that its clients made, in order.
    pub dialogues: Vec<SentDialogue>,
    /// Streams that its clients opened or its servers were opened, in order.
    pub streams: Vec<StreamObservation>,
    /// Events of the core.
    pub events: Vec<(Instant, Event)>,
    /// What the core must never do, in words.
    pub faults: Vec<String>,
    /// Datagrams on the wire that its socket had no room for.
    pub overflowed: u64,
    /// Datagrams on the wire that its device had no room for because of others' bursts.
    pub ring_overflowed: u64,
    /// By path: the most that was sent ahead of the configured rate.
    pub bursts: Vec<ByteCount>,
    /// The most bytes of messages that were queued at a sample.
    pub queued_bytes_max: u64,
    /// The most bytes of incomplete or unfinished messages from the peer at a sample.
    pub reassembly_bytes_max: u64,
    /// The most bytes of streams that were queued or not acknowledged at a sample.
    pub streams_queued_bytes_max: u64,
    /// The most bytes of streams that had been received and not taken at a sample.
    pub streams_kept_bytes_max: u64,
    /// The most streams at a sample.
    pub streams_max: usize,
    /// Messages that the core refused to take because its queue was full; each was offered again.
    pub queue_full: u64,
    /// What happened on its paths, packet by packet, as qlog (JSON text sequences); empty unless
    /// [`GatewaySpec::qlog`](crate::GatewaySpec::qlog) is set. It ends at [`QLOG_BYTES_MAX`].
    pub qlog: Vec<u8>,
}

/// A message at its sender.
#[derive(Clone, Debug)]
pub struct SentMessage {
    /// Application, by index.
    pub app: usize,
    /// Length.
    pub bytes: usize,
    /// [`TraceHash::of`](crate::TraceHash::of) its body; zero before it was offered to the core.
    pub hash: u64,
    /// When it was made.
    pub made: Instant,
    /// When the core took it, which of the gateway's lives that was, and its number there; `None`:
    /// not yet.
    pub accepted: Option<(Instant, u32, MessageId)>,
    /// How it ended.
    pub done: Option<(Instant, MessageOutcome)>,
    /// The gateway was restarted before it ended.
    pub forgotten: bool,
}

/// A message at its receiver.
#[derive(Clone, Copy, Debug)]
pub struct DeliveredMessage {
    /// When.
    pub at: Instant,
    /// In which of the gateway's lives.
    pub life: u32,
    /// What the core said it belongs to.
    pub app: AppId,
    /// Its number on the wire.
    pub id: MessageId,
    /// Length.
    pub bytes: usize,
    /// Hash of its body.
    pub hash: u64,
}

/// A datagram at its sender.
#[derive(Clone, Copy, Debug)]
pub struct SentDatagram {
    /// Application, by index.
    pub app: usize,
    /// Length.
    pub bytes: usize,
    /// Hash of its content.
    pub hash: u64,
    /// When it was made and given to the core.
    pub made: Instant,
}

/// A datagram at its receiver.
#[derive(Clone, Copy, Debug)]
pub struct DeliveredDatagram {
    /// When.
    pub at: Instant,
    /// In which of the gateway's lives.
    pub life: u32,
    /// What the core said it belongs to.
    pub app: AppId,
    /// Which it says it is; `None`: too short to say.
    pub index: Option<u64>,
    /// Hash of its content.
    pub hash: u64,
}

/// A dialogue of a client.
#[derive(Clone, Copy, Debug)]
pub struct SentDialogue {
    /// Application, by index.
    pub app: usize,
    /// Which client of the gateway.
    pub client: usize,
    /// It completes if nothing goes wrong.
    pub completes: bool,
    /// When it was made.
    pub made: Instant,
    /// When its first request was begun; `None`: not yet.
    pub begun: Option<Instant>,
    /// When its last response had come whole; `None`: not yet.
    pub done: Option<Instant>,
    /// Its stream was reset, or its gateway restarted, before.
    pub failed: bool,
}

/// One end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamObservation {
    /// What the core calls it.
    pub id: StreamId,
    /// What the core says it belongs to.
    pub app: AppId,
    /// Application of the client's dialogues, by index; `None`: at its server.
    pub dialogues: Option<usize>,
    /// The client's end in the log of the other gateway, as the client said; `None`: at a client,
    /// or not heard yet.
    pub other: Option<usize>,
    /// In which of the gateway's lives.
    pub life: u32,
    /// It ends if nothing goes wrong, as far as is known.
    pub ends: bool,
    /// When the core knew it first.
    pub opened: Instant,
    /// Bytes that the core has taken.
    pub written: u64,
    /// Bytes that the core has given.
    pub read: u64,
    /// When it ended its own direction; `None`: not yet.
    pub finished: Option<Instant>,
    /// When it saw the end of the other direction; `None`: not yet.
    pub end_seen: Option<Instant>,
    /// When it reset the stream; `None`: it did not.
    pub reset_sent: Option<Instant>,
    /// When and why it was reset; `None`: it was not.
    pub reset_seen: Option<(Instant, ResetReason)>,
    /// The gateway was restarted before it ended.
    pub forgotten: bool,
}

impl StreamObservation {
    pub(super) const fn new(id: StreamId, app: AppId, life: u32, opened: Instant) -> Self {
        Self {
            id,
            app,
            dialogues: None,
            other: None,
            life,
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

    /// Both directions came to their ends.
    pub const fn is_closed(&self) -> bool {
        self.finished.is_some() && self.end_seen.is_some()
    }

    /// It ended, whichever way.
    pub const fn is_over(&self) -> bool {
        self.is_closed() || self.reset_sent.is_some() || self.reset_seen.is_some() || self.forgotten
    }
}
