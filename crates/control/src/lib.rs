//! What the daemon, the command line and the lab agree on: configuration, control protocol,
//! message socket framing and metric names.
//!
//! Pure data with parsing, validation and framing: no sockets of its own, no threads, and no clock but for the lock
//! of [`network::RegistryEdit`].
//! The blocking clients in [`protocol::client`] and [`message_socket::client`] work on any
//! `Read + Write` that the caller brings. Acting on a configuration is the gateway's, showing
//! snapshots the command's.
#![forbid(unsafe_code)]

pub mod config;
pub mod enrolment;
pub mod event_text;
pub mod invitation;
pub mod key;
pub mod message_socket;
pub mod metrics;
pub mod network;
pub mod network_channel;
pub mod protocol;
pub mod rounded;

pub use keiro_config::units;

pub use config::{Config, ConfigError};
pub use key::{PresharedKey, PrivateKey, PublicKey};
