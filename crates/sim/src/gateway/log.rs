//! What one gateway saw, in its own words; [`Report`](crate::Report) puts both sides together.

use keiro_core::{AppId, Event, MessageId, MessageOutcome};
use keiro_model::{ByteCount, Instant};

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
    /// Events of the core.
    pub events: Vec<(Instant, Event)>,
    /// What the core must never do, in words.
    pub faults: Vec<String>,
    /// Datagrams on the wire that its socket had no room for.
    pub overflowed: u64,
    /// By path: the most that was sent ahead of the configured rate.
    pub bursts: Vec<ByteCount>,
    /// The most bytes of messages that were queued at a sample.
    pub queued_bytes_max: u64,
    /// The most bytes of incomplete or unfinished messages from the peer at a sample.
    pub reassembly_bytes_max: u64,
    /// Messages that the core refused to take because its queue was full; each was offered again.
    pub queue_full: u64,
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
