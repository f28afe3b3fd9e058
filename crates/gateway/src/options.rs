//! How a gateway runs, beyond what its configuration says.

use std::time::Duration;

use keiro_model::aggregation::ControllerKind;

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
    /// Adapts aggregates instead of the controller that the configuration names; `None`: that one. For
    /// experiments with controllers that no configuration names.
    pub controller: Option<ControllerKind>,
    /// The version that the control socket reports.
    pub version: &'static str,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            realtime_priority: None,
            cpu: None,
            spin: None,
            history_interval: Duration::from_secs(60),
            controller: None,
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}
