//! Delay forecasts and path selection: pure functions, no I/O, no clock, no randomness.
//!
//! - [`delay`]: the delay of an application's message on a path, `[path-selection eq. 1–3]`.
//! - [`queueing`]: the same for the gateway's two schedulers, with the overhead of the wire.
//! - [`plan`]: which application uses which path.
//! - [`steer`]: keeps a plan in force while paths and applications change.
//! - [`paper`]: the worked example of the path-selection paper, with its printed results.
#![forbid(unsafe_code)]

pub mod delay;
pub mod paper;
pub mod plan;
pub mod queueing;
pub mod steer;
