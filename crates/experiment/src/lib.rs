//! Experiments: plans, statistics, figures and verdicts.
#![forbid(unsafe_code)]

pub mod stats;
