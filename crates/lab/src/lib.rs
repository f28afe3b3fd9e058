//! Laboratories of network namespaces on one machine: topologies, emulated links, and traffic
//! whose every message is timed.
//!
//! - [`topology`] reads what a laboratory consists of;
//! - [`lab`] makes it, runs programs in its hosts, changes its links, and always removes it;
//! - [`emulator`] carries packets over links that have a rate, a delay or losses;
//! - [`traffic`] sends messages on schedule and logs the delay of each;
//! - [`frr`] starts routers of FRR in its hosts, [`gobgp`] a route reflector;
//! - [`host_noise`] distinguishes a slow emulator from a host that does not give it the processor.
//!
//! Everything needs root, and iproute2's `ip`. What runs in the hosts is the caller's: the real
//! `keiro` binary, kernel TCP, or anything else.
#![forbid(unsafe_code)]

pub mod emulator;
pub mod frr;
pub mod gobgp;
pub mod host_noise;
pub mod lab;
pub mod topology;
pub mod traffic;

pub use lab::{Host, Interrupts, Lab, LabError, Leftovers, Link, Process};
pub use topology::{Topology, TopologyError};
