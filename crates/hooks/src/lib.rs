//! Commands and webhooks for a gateway's events.
//!
//! A process of its own reads the events from the control socket, so that the daemon, which is sandboxed and must never
//! wait, runs no programs. [`config`] says what is wanted for which events, [`occurrence`] what a command or webhook
//! gets, [`limit`] how often, [`deliver`] hands one over, and [`dispatch`] follows the gateway. A hook that is slow or
//! stuck has a queue and a thread of its own: others are not held up, and what finds no room is counted and reported.
#![forbid(unsafe_code)]

pub mod config;
pub mod deliver;
pub mod dispatch;
pub mod limit;
pub mod occurrence;
