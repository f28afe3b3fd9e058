//! IP packets entering and leaving a tunnel: validation, flows, prefixes, classification, a router's changes
//! to headers, ICMP errors, and segmentation and coalescing of the kernel's large packets.
//!
//! Pure functions and small tables without devices, clocks and threads. `keiro-linux` has devices, addresses
//! and routes; the callers have queues and rates.
#![forbid(unsafe_code)]

pub mod builtin_classes;
pub mod checksum;
pub mod ecn;
pub mod flow;
pub mod fragment;
pub mod icmp;
pub mod mss;
pub mod offload;
mod packet;
pub mod prefix;
pub mod rules;
pub mod ttl;
mod version;

pub use flow::FlowKey;
pub use packet::{Fragment, Header, Malformed, Ports, protocol};
pub use version::Version;
