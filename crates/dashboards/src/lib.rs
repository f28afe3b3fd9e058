//! Grafana dashboards and Prometheus alerts in `packaging/`, made from the declarations of Keiro's metrics.
//!
//! [`catalogue`] lists every declared metric. [`board`] makes a dashboard of panels, whose units and descriptions are
//! the metrics' own, and [`dashboards`] has them all; [`alerts`] has the alerts, each with series for which it fires
//! and for which it does not. A query that names a metric or label that is not declared is refused ([`query`]), and
//! tests compare what is in `packaging/` with what is made here.
#![forbid(unsafe_code)]

pub mod alerts;
pub mod board;
pub mod catalogue;
pub mod dashboards;
pub mod query;
#[cfg(test)]
mod tests;
