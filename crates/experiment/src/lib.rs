//! Experiments: plans, statistics, figures and verdicts.
//!
//! A [`plan::Plan`] defines the rows and figures of an experiment and their targets, its [`setup::Setup`]
//! defines what is measured. A [`campaign::Campaign`] measures it with [`campaign::Runners`], [`evaluate`]s the
//! measurement and writes a [`report::Report`]. The runners carry the messages. Other kinds of plan have
//! pipelines of their own: forecasts compared over random workloads, [`transactions`], [`trials`], studies of
//! the [`parameters`] of aggregation, [`tenants`] that share bottlenecks, and [`recorded`] lines.
#![forbid(unsafe_code)]

mod accuracy;
pub mod campaign;
pub mod churn;
pub mod error;
pub mod evaluate;
pub mod figure;
pub mod laboratory;
pub mod manifest;
pub mod max_min;
pub mod parameters;
pub mod plan;
pub mod predict;
pub mod record;
pub mod recorded;
pub mod report;
pub mod row;
pub mod runner;
pub mod setup;
pub mod simulator;
pub mod stats;
pub mod subject;
pub mod tenants;
pub mod transactions;
pub mod transfers;
pub mod trials;
pub mod vary;
pub mod workload;
