//! Quantities and the papers' mathematics: pure functions, no I/O.
#![forbid(unsafe_code)]

pub mod arrivals;
mod quantity;
mod time;

pub use quantity::{Bandwidth, ByteCount, Probability};
pub use time::Instant;
