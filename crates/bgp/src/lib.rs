//! A BGP speaker without I/O.
//!
//! A [`Speaker`] takes received bytes, the time, and commands. It returns bytes to send,
//! connections to open or close, events, and route changes. It uses no socket, clock or thread, so
//! the daemons, the tests and the replay of recorded inputs run the same code.
//!
//! - [`address`], [`attributes`], [`nlri`], [`srv6`]: the parts of a route and their encoding;
//! - `wire`: messages, on top of a codec library; handling of malformed UPDATEs (RFC 7606);
//! - [`session`]: one connection: state machine, timers, framing;
//! - [`rib`]: all routes in one table and the decision process; [`policy`]: import and export
//!   filters; [`rpki`]: route origin validation;
//! - [`speaker`]: neighbours, their Adj-RIB-In and Adj-RIB-Out; [`record`]: replay.
//!
//! The caller owns the sockets, retries system calls, and installs routes in the kernel.
#![forbid(unsafe_code)]

pub mod address;
pub mod attributes;
pub mod communities;
pub mod nlri;
pub mod policy;
pub mod record;
pub mod rib;
pub mod rpki;
pub mod session;
pub mod speaker;
pub mod srv6;
mod wire;
