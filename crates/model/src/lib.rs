//! Quantities and the papers' mathematics: pure functions, no I/O, no clock, no randomness.
//!
//! - [`Bandwidth`], [`ByteCount`], [`Probability`], [`Instant`]: quantities with their units.
//! - [`aggregation`]: many small packets in few, and the laws that adapt how, `[aggregation §3]`.
//! - [`arrivals`]: when an application makes its messages, from a seed.
//! - [`capacity`]: the rate of a bottleneck from trains of packets.
//! - [`bottleneck`]: the same over time, for one path.
//! - [`clock`]: another host's clock seen from ours.
//! - [`delay`]: what an application's message takes on a path, `[path-selection eq. 1–3]`.
//! - [`erasure`]: parity of few packets, and packets from parity.
//! - [`fairness`]: shares of tenants, how fair they are, and the laws of their windows, `[fairness]`.
//! - [`fit`]: transfer time against size, fitted to measurements, `[latency-bandwidth eq. 1, 2]`.
//! - [`queueing`]: the same for the gateway's two schedulers, with the wire's overhead.
//! - [`plan`]: which application on which path.
//! - [`steer`]: keeps a plan in force while everything changes.
//! - [`workload`]: what an application sends, measured.
//! - [`welch`]: whether the means of two samples differ.
//! - [`paper`]: the path-selection paper's worked example and what it prints.
#![forbid(unsafe_code)]

pub mod aggregation;
pub mod arrivals;
pub mod bottleneck;
pub mod capacity;
pub mod clock;
pub mod delay;
pub mod erasure;
pub mod fairness;
pub mod fit;
pub mod paper;
pub mod plan;
mod quantity;
pub mod queueing;
pub mod steer;
mod time;
pub mod welch;
pub mod workload;

pub use quantity::{Bandwidth, ByteCount, Probability};
pub use time::Instant;
