//! Quantities with their units, and time: what every other crate measures in.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod quantity;
mod time;

pub use quantity::{Bandwidth, ByteCount, Probability};
pub use time::Instant;
