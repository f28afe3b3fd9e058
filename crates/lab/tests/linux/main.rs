//! Kernel interfaces of `keiro-linux` and packets of `keiro-ip` in real network namespaces.
//!
//! Each test makes its own namespaces and deletes their names at once, so that nothing is left behind if the
//! test fails. Without root the tests report that they tested nothing.
//!
//! They are here because they use `keiro-lab`, which depends on `keiro-linux`.

mod device;
mod epe;
mod forwarder;
mod memory;
mod mptcp;
mod namespace;
mod network;
mod route;
mod tunnel;
