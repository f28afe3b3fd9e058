//! What the pages are about.

use std::{sync::Arc, time::SystemTime};

use tokio::sync::Semaphore;

use crate::source::{Source, egress::Egress};

/// Connections at once. Ours: fifty viewers with some tabs each.
pub(crate) const CONNECTIONS_MAX: usize = 256;
/// Viewers of live pages at once. Ours.
pub(crate) const VIEWERS_MAX: usize = 64;

/// The gateways and daemons that are shown, and how many look.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) sources: Vec<Source>,
    pub(crate) egress: Vec<Egress>,
    pub(crate) started: SystemTime,
    pub(crate) viewers: Arc<Semaphore>,
}

impl Site {
    /// Viewers of live pages now.
    pub(crate) fn viewers(&self) -> usize {
        VIEWERS_MAX - self.viewers.available_permits()
    }
}
