//! A BGP speaker without I/O.
//!
//! A [`Speaker`] takes what arrived, the time, and orders; it gives out bytes to send, wishes for
//! connections, events and changes of routes. It touches no socket, no clock and no thread, so that
//! the daemons, the tests and a replay of recorded inputs drive the same code.
//!
//! - [`address`], [`attributes`], [`nlri`], [`srv6`]: what routes consist of, and their octets;
//! - `wire`: messages, over a codec library; what a bad UPDATE means (RFC 7606);
//! - [`session`]: one connection: state machine, timers, framing;
//! - [`rib`]: all routes in one table, the best first; [`policy`]: which pass; [`rpki`]: who may
//!   announce them;
//! - [`speaker`]: neighbours, what they announce and what they are told; [`record`]: replay.
//!
//! Connections, retries of system calls, and what a route means for the kernel are the caller's.
#![forbid(unsafe_code)]

pub mod address;
pub mod attributes;
pub mod nlri;
pub mod policy;
pub mod record;
pub mod rib;
pub mod rpki;
pub mod session;
pub mod speaker;
pub mod srv6;
mod wire;
