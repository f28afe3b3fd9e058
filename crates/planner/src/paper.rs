//! The worked example of `[path-selection §4.2, §5]`: its applications, its paths, and what it
//! prints.
//!
//! [`crate::delay`] computes what the paper prints. Index 0 is application A1, path index 0 is path 1.

use std::time::Duration;

use crate::delay::{AppSpec, PathSpec};
use keiro_units::{Bandwidth, ByteCount};

/// The applications' names, ours after the paper's numbers.
pub const APP_NAMES: [&str; 5] = ["A1", "A2", "A3", "A4", "A5"];

/// The five applications, `[path-selection table 2]`; 1 Mbyte is 10^6 bytes, which is what the
/// predictions of table 5 fit.
pub const APPS: [AppSpec; 5] = [
    app(1_000_000, 200, 1000),
    app(100_000, 100, 500),
    app(100_000, 100, 20),
    app(10_000, 100, 100),
    app(10_000, 100, 20),
];

/// The two paths, `[path-selection table 3]`.
pub const PATHS: [PathSpec; 2] = [path(100, 100), path(100, 2)];

/// The assignment that the paper's algorithm chose, `[path-selection table 4]`: A3 and A5 on
/// path 2. The table prints delays of 200, 115, 10, 100 and 2 ms; equation 3 gives 187.7, 113.5, 10.1,
/// 101.5 and 2.9 ms.
pub const ASSIGNMENT: [usize; 5] = [0, 0, 1, 0, 1];

/// Everything on path 2, the conventional way, `[path-selection table 5]`.
pub const CONVENTIONAL: [usize; 5] = [1; 5];

/// Mean delays predicted for [`CONVENTIONAL`], as printed in `[path-selection table 5]`.
pub const TABLE_5: [Duration; 5] = [millis(100), millis(18), millis(18), millis(4), millis(4)];

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn app(length_bytes: u64, interval_millis: u64, latency_target_millis: u64) -> AppSpec {
    AppSpec {
        length: ByteCount::new(length_bytes),
        interval: millis(interval_millis),
        latency_target: Some(millis(latency_target_millis)),
    }
}

const fn path(bandwidth_mbit: u64, delay_millis: u64) -> PathSpec {
    PathSpec {
        bandwidth: Bandwidth::from_mbit_per_second(bandwidth_mbit),
        delay: millis(delay_millis),
    }
}
