//! FlowStats: what leaves an interface, per inner flow and SRv6 segment, without guessing
//! [egress §5.1.3].
//!
//! A small program in the kernel ([`Counter`]) counts every packet by the flow inside its
//! encapsulation and by its segment, with the socket's own figures beside. Here the counts are read
//! ([`record`]), turned into differences ([`Tracker`]), and shown: as lines of JSON ([`line`]), as
//! text for people ([`view`]), as metrics ([`metrics`]) or for a collector ([`ipfix`]). It runs alone; what the segments mean is
//! named in the configuration ([`Peers`]).
#![forbid(unsafe_code)]

mod counter;
pub mod ipfix;
pub mod line;
pub mod metrics;
mod peers;
pub mod record;
mod tracker;
pub mod view;

pub use counter::{Attached, Cost, Counter, CounterError, Program};
pub use peers::{Peer, PeerError, Peers};
pub use tracker::{Change, FURTHER, SEGMENTS_MAX, SegmentStats, Tracker};
