//! IP packets on their way into and out of a tunnel: whether they are well formed, which flow,
//! tenant's prefix and application they belong to, what a router changes in them or answers, and
//! how the kernel's large packets are cut and put together.
//!
//! Pure functions and small tables: no device, no clock, no thread. Devices, addresses and routes
//! are `keiro-linux`'s; queues, rates and what becomes of a refused packet are the caller's.
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
