//! The egress suite's control plane: `keiro asbr` on the border router and `keiro egress`, the
//! Endpoint Manager, on the content server [egress §3, §4].
//!
//! - [`config`]: what the two files say;
//! - [`connections`]: sockets for the sans-IO speaker of `keiro-bgp`;
//! - [`asbr`], [`endpoint`]: what routes and sessions mean for segments and tables;
//! - [`forwarding`]: where they are put, behind a trait: memory, or the kernel;
//! - [`kernel`]: the kernel;
//! - [`multipath`]: which addresses MPTCP connections are told of; [`accounts`]: what those have carried;
//!   [`comparison`]: whether that is good for the clients of a prefix;
//! - [`status`]: what a daemon tells about itself, [`control`]: the socket at which it is asked, [`metrics`]: the
//!   same as numbers for those who watch many;
//! - [`daemon`]: the thread that turns all of it; `reload`: another configuration for it.
//!
//! Which subflow carries which data is left to the kernel's MPTCP, its measurement to
//! `keiro-flowstats`.
#![forbid(unsafe_code)]

pub mod accounts;
pub mod asbr;
pub mod comparison;
pub mod config;
pub mod connections;
pub mod control;
pub mod daemon;
pub mod endpoint;
pub mod forwarding;
pub mod kernel;
pub mod metrics;
pub mod multipath;
mod reload;
pub mod status;
