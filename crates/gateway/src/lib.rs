//! The edge daemon: owns sockets, clock and threads, and drives the sans-IO core with them.
#![forbid(unsafe_code)]

mod access;
mod active;
mod connection;
mod control_server;
mod data;
mod explain;
mod metrics;
mod metrics_server;
mod planning;
mod state;

use std::path::PathBuf;


/// How a gateway runs, beyond what its configuration says.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// SCHED_FIFO priority of the data thread, 1..=99; `None`: the ordinary scheduler.
    pub realtime_priority: Option<u8>,
    /// How long before a deadline the data thread stops sleeping and spins; `None`: 30 µs.
    pub spin: Option<std::time::Duration>,
}

/// Runs the gateway that `config_path` describes until SIGTERM or SIGINT, then drains.
///
/// SIGHUP reloads. Signals of the calling thread are blocked for good, so call this from the main
/// thread before others are started.
///
/// # Errors
/// Everything that keeps the gateway from starting: what is wrong, where, and what to try.
pub fn run(config_path: PathBuf, options: Options) -> anyhow::Result<()> {
    anyhow::bail!("{}: {options:?}: not yet", config_path.display())
}
