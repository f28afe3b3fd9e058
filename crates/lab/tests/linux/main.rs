//! Kernel interfaces of `keiro-linux` and packets of `keiro-ip` in real network namespaces.
//!
//! Each test makes its own namespaces and deletes their names at once, so nothing is left behind if the
//! test fails. Without root the tests report that they tested nothing.
//!
//! They are here rather than in `keiro-linux` because they use `keiro-lab`, which depends on it.

mod device;
mod epe;
mod forwarder;
mod memory;
mod mptcp;
mod namespace;
mod network;
mod route;
mod tunnel;
