//! Laboratories of network namespaces on one machine: topologies, emulated links, and timed traffic.
//!
//! - [`topology`] reads the definition of a laboratory;
//! - [`lab`] makes it, runs programs in its hosts, changes its links, and removes it;
//! - [`emulator`] carries packets over links with a rate, a delay or losses;
//! - [`recording`] reads recorded lines, which links replay;
//! - [`traffic`] sends messages on schedule and logs the delay of each;
//! - [`frr`] starts routers of FRR in its hosts, [`gobgp`] a route reflector;
//! - [`host_noise`] distinguishes a slow emulator from a host that deprives it of the processor.
//!
//! Everything needs root, and iproute2's `ip`. The caller decides what runs in the hosts: the real `keiro`
//! binary, kernel TCP, or anything else.
#![forbid(unsafe_code)]

pub mod emulator;
pub mod frr;
pub mod gobgp;
pub mod host_noise;
pub mod lab;
pub mod recording;
pub mod topology;
pub mod traffic;

pub use lab::{Host, Interrupts, Lab, LabError, Leftovers, Link, Process};
pub use topology::{Topology, TopologyError};
