//! IP packets on their way into and out of a tunnel: validation, flows, prefixes, classification,
//! the changes that a router makes, ICMP errors, and segmentation and coalescing of the kernel's
//! large packets.
//!
//! Pure functions and small tables: no device, no clock, no thread. Devices, addresses and routes
//! are `keiro-linux`'s; queues and rates are the caller's.
#![forbid(unsafe_code)]

pub mod checksum;
pub mod classify;
pub mod ecn;
pub mod flow;
pub mod fragment;
pub mod hop;
pub mod icmp;
pub mod mss;
pub mod offload;
mod packet;
pub mod prefix;

pub use packet::{Fragment, Header, Malformed, Ports, Version, protocol};
