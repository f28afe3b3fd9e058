//! Estimators, controllers and statistics: pure functions, no I/O, no clock, no randomness.
//!
//! - [`aggregation`]: packing many small packets into few, and the controllers that adapt it,
//!   `[aggregation §3]`.
//! - [`arrivals`]: the times at which an application sends messages, from a seed.
//! - [`capacity`]: the rate of a bottleneck from packet trains.
//! - [`bottleneck`]: the same over time, for one path.
//! - [`clock`]: offset and drift of another host's clock.
//! - [`erasure`]: parity of few packets, and packets from parity.
//! - [`fairness`]: shares of tenants, fairness indices, and the window controllers, `[fairness]`.
//! - [`fit`]: transfer time against size, fitted to measurements, `[latency-bandwidth eq. 1, 2]`.
//! - [`loss_test`]: whether a path loses more than a tolerance.
//! - [`observation`]: what is observed of a path.
//! - [`path_rate`]: what one path may be sent at, found without knowing the line.
//! - [`path_terms`]: role and cost of a path.
//! - [`quantiles`]: sample quantiles, and those of Student's t.
//! - [`workload`]: what an application sends, measured.
//! - [`welch`]: whether the means of two samples differ.
#![forbid(unsafe_code)]

pub mod aggregation;
pub mod arrivals;
pub mod bottleneck;
pub mod capacity;
pub mod clock;
pub mod erasure;
pub mod fairness;
pub mod fit;
pub mod loss_test;
pub mod observation;
pub mod path_rate;
pub mod path_terms;
pub mod probing;
pub mod quantiles;
pub mod welch;
pub mod workload;
