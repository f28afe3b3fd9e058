//! TUN devices, routes, egress peers and the packets of `keiro-ip`, with Linux as the judge.
//!
//! Each test makes network namespaces of its own, whose names are removed at once, so that nothing
//! is left whatever becomes of the test. Without root they say aloud that nothing was tested.

mod device;
mod epe;
mod forwarder;
mod memory;
mod mptcp;
mod network;
mod place;
mod route;
mod tunnel;
