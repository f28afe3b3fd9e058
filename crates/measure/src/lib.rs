//! Measured series as files, reports of fits, and figures.
//!
//! - [`net`]: measurements between two hosts, over TCP and UDP.
//! - [`series`]: transfer times as CSV and JSON.
//! - [`report`]: a fit and a comparison as data with units in the names.
//! - [`figure`]: time, residuals and throughput against size, `[latency-bandwidth figs. 2–4]`.
//!
//! The mathematics is in `keiro_model::fit`; the command formats tables for the terminal.
#![forbid(unsafe_code)]

pub mod figure;
pub mod net;
pub mod report;
pub mod series;
