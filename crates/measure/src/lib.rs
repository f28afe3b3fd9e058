//! What networks do: measured series as files, what a fit says about them, and figures.
//!
//! - [`net`]: measuring between two hosts, over TCP and UDP.
//! - [`series`]: transfer times as CSV and JSON.
//! - [`report`]: a fit and a comparison as data with units in the names.
//! - [`figure`]: time, residuals and throughput against size, `[latency-bandwidth figs. 2–4]`.
//!
//! The mathematics is `keiro_model::fit`'s; how a table looks on a terminal is the command's.
#![forbid(unsafe_code)]

pub mod figure;
pub mod net;
pub mod report;
pub mod series;
