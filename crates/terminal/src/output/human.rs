//! Quantities for people. Exact values are in `--json`.

use std::time::Duration;

pub use keiro_control::rounded::{budget, bytes, duration, figure, percent, rate, shares};

/// What stands where there is no value.
pub const NONE: &str = "-";

/// A duration in milliseconds, so that a column of delays can be compared: `18.6 ms`.
pub fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1e3)
}
