//! The edge daemon: owns sockets, clock and threads, and drives the sans-IO core with them.
#![forbid(unsafe_code)]

mod access;
mod active;
mod control_server;
mod daemon;
mod data;
mod event_text;
mod explain;
mod history;
mod metrics;
mod offline;
mod planning;
mod reload;
mod replan;
mod requests;
mod send_history;
mod show;
mod site;
mod start;
mod status;
mod steering;
mod target_monitor;
mod tenant_view;
mod tenants;

use std::{path::Path, time::Duration};

use anyhow::Context;
use keiro_linux::{limit, signal::Signals};

use self::start::Privileges;

pub use daemon::{Gateway, Handle};
pub use offline::plan_of;
pub use site::store_problem;

/// How a gateway runs, beyond what its configuration says.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// SCHED_FIFO priority of the data thread, 1..=99; `None`: the ordinary scheduler.
    pub realtime_priority: Option<u8>,
    /// The processor that the data thread keeps to, counted from 0; `None`: any that the process may
    /// use.
    pub cpu: Option<usize>,
    /// How long before packets may leave the data thread stops sleeping and looks at its sockets over
    /// and over, for precise pacing; `None`: 30 µs.
    pub spin: Option<Duration>,
    /// How often what was measured is recorded on disk. Rows are of whole minutes in any case: less
    /// than a minute records the present one again and again, more has no effect.
    pub history_interval: Duration,
    /// What it says that it is.
    pub version: &'static str,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            realtime_priority: None,
            cpu: None,
            spin: None,
            history_interval: Duration::from_secs(60),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// Runs the gateway that `config_path` describes until SIGTERM or SIGINT, then drains.
///
/// SIGHUP reloads. Signals of the calling thread are blocked and its privileges given up for good,
/// so call this from the main thread before others are started.
///
/// # Errors
/// Everything that keeps the gateway from starting or from going on: what is wrong, where, and what
/// to try.
pub fn run(config_path: &Path, options: Options) -> anyhow::Result<()> {
    let signals = Signals::block().context("cannot take signals over")?;
    // One descriptor per flow of a forward: the default of 1024 is soon used up.
    limit::raise_open_files();
    let gateway = Gateway::start_with(config_path, &options, Privileges::Reduced)?;
    start::reduce_privileges()?;
    gateway.serve(Some(signals))
}
