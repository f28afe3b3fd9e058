//! The egress suite's control plane: `keiro asbr` on the border router and `keiro egress`, the
//! Endpoint Manager, on the content server [egress §3, §4].
//!
//! - [`config`]: the two configuration files;
//! - [`connections`]: sockets for the sans-IO speaker of `keiro-bgp`;
//! - [`asbr`], [`endpoint`]: from routes and sessions to segments and tables;
//! - [`forwarding`]: the trait that installs them, and an implementation in memory; [`kernel`]: in
//!   the kernel;
//! - `links`: links of neighbours, which end their sessions; `bfd`: BFD with neighbours, in a thread;
//!   `liveness`: segments that answer;
//! - [`multipath`]: which addresses MPTCP announces to a client; [`accounts`]: bytes and busy time
//!   of connections; [`comparison`]: whether multipath is good for the clients of a prefix;
//! - [`alarms`]: what is wrong, as long as it is; [`census`]: what VPN routes have in common;
//!   `backlog`: best paths that wait for the main table;
//! - [`looking_glass`]: received routes in pages;
//! - [`steering`]: the egress peer of new connections, by client prefix;
//! - [`status`]: the status of a daemon; [`stats`]: its counters and gauges; [`control`]: the
//!   control socket; [`metrics`]: OpenMetrics;
//! - [`daemon`]: the event loop, and configuration changes at run time.
//!
//! The kernel's MPTCP scheduler distributes data over subflows; `keiro-flowstats` measures them.
#![forbid(unsafe_code)]

pub mod accounts;
pub mod alarms;
pub mod asbr;
mod backlog;
mod bfd;
pub mod census;
pub mod comparison;
pub mod config;
pub mod connections;
pub mod control;
pub mod daemon;
mod draining;
pub mod endpoint;
pub mod forwarding;
mod handle;
pub mod kernel;
mod links;
mod liveness;
pub mod looking_glass;
pub mod metrics;
pub mod multipath;
pub mod stats;
pub mod status;
pub mod steering;
