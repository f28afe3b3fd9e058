//! The sans-IO protocol of Keiro's overlay.
//!
//! An [`Endpoint`] takes datagrams, messages and the time, and gives out datagrams, deliveries,
//! events and its next deadline. It touches no socket, no clock, no thread and no ambient
//! randomness: the daemon, the simulator and the tests drive the same code.
//!
//! One turn of a driver:
//!
//! 1. feed what arrived: [`Endpoint::handle_datagram`], [`Endpoint::send_message`], …
//! 2. [`Endpoint::handle_timeout`] if [`Endpoint::poll_timeout`] is due,
//! 3. drain [`Endpoint::poll_transmit`], [`Endpoint::poll_delivery`], [`Endpoint::poll_event`],
//! 4. wait until [`Endpoint::poll_timeout`] or input.
//!
//! What is on the wire is in `docs/wire-format.md`; which file holds which idea in
//! `ARCHITECTURE.md`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod config;
mod crypto;
mod datagram;
mod endpoint;
mod event;
mod handshake;
mod id;
mod pacer;
mod ranges;
mod session;
mod snapshot;
mod table;
mod tenant;
mod timeouts;
mod trace;
mod uplink;
#[cfg(test)]
mod vectors;
pub mod wire;

pub use config::{
    AggregationConfig, AggregationMode, AppConfig, Cipher, CopySpread, DeliveryClass,
    EndpointConfig, Parity, PathConfig, PeerConfig, Redundancy, SchedulerKind, TimingConfig,
};
pub use datagram::{DatagramMeta, NewDatagram, Transmit, TransmitBuf};
pub use endpoint::Endpoint;
pub use event::{
    DelaySample, Delivery, Event, KeyFault, MessageOutcome, MismatchSeenBy, MoveReason,
    PathDownReason, RefusalReason, ResetReason, SendError, StreamSignal, UnknownCause,
};
pub use handshake::{PresharedKey, PrivateKey, PublicKey};
pub use id::{AppId, FlowId, MessageId, PathId, PeerId, SocketId, StreamId, TenantId};
pub use keiro_model::path_terms::{CostPerGb, PathRole, PathTerms};
pub use keiro_stats::PathStats;
pub use keiro_units::Instant;
pub use snapshot::{
    AggregationSnapshot, AppSnapshot, DropCounters, DuplicateKey, EndpointSnapshot, PathSnapshot,
    PathState, RateSnapshot, SessionSnapshot, Unanswered,
};
pub use tenant::{
    IpPacket, PacketAddress, PacketDrops, PacketError, PrefixMismatch, TenantConfig, TenantError,
    TenantPathSnapshot, TenantSnapshot,
};
pub use timeouts::Timeouts;
pub use trace::{RecoveryMetrics, TRACE_EVENTS_MAX, TraceBatch, TraceEvent, TraceKind};
