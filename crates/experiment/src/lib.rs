//! Experiments: plans, statistics, figures and verdicts.
//!
//! A [`plan::Plan`] says which rows and figures an experiment has and what is asked of them; its
//! [`setup::Setup`] what is measured. A [`campaign::Campaign`] lets [`runner::Runner`]s measure it,
//! [`evaluate`]s the measurement and leaves a [`report::Report`] with its files. How the messages
//! travel is left to the runners. Some kinds of plan go other ways: random workloads against which
//! forecasts are held, [`transactions`], [`trials`], studies of aggregates' [`parameters`], and [`tenants`] that share
//! bottlenecks.
#![forbid(unsafe_code)]

mod accuracy;
pub mod campaign;
pub mod error;
pub mod evaluate;
pub mod figure;
pub mod laboratory;
pub mod manifest;
pub mod parameters;
pub mod plan;
pub mod predict;
pub mod record;
pub mod report;
pub mod row;
pub mod runner;
pub mod setup;
pub mod simulator;
pub mod stats;
pub mod subject;
pub mod tenants;
pub mod transactions;
pub mod trials;
pub mod workload;
