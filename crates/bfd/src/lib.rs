//! Bidirectional Forwarding Detection (RFC 5880) over one hop (RFC 5881), without I/O.
//!
//! [`Sessions`] takes received datagrams with the TTL that they came with, and the time. It returns
//! packets to send, events, and its next deadline. It uses no socket, clock or thread. Randomness
//! comes from a seed.
//!
//! - [`packet`]: the control packet, and why one is discarded;
//! - [`session`]: one session: state machine, timers, Poll Sequences;
//! - [`sessions`]: all sessions, by neighbour and by discriminator, and the counters of discarded
//!   packets.
//!
//! Asynchronous mode only: no echo function, no Demand mode of our own, no authentication. A
//! neighbour in Demand mode is respected.
#![forbid(unsafe_code)]

pub mod packet;
pub mod session;
pub mod sessions;

pub use self::{
    packet::{ControlPacket, Diagnostic, Discard, State},
    session::{Change, Config, Failure, Status},
    sessions::{AddError, Datagram, Discards, Event, SESSIONS_MAX, SessionId, Sessions, Transmit},
};

/// The UDP port of control packets over one hop (RFC 5881 §4).
pub const PORT: u16 = 3784;
/// The source ports of control packets (RFC 5881 §4).
pub const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;
/// The TTL or hop limit of control packets (RFC 5881 §5).
pub const TTL: u8 = 255;
