//! Delays of what is not reported one by one: IP packets, and bytes of streams.
//!
//! An acknowledgement shows when the peer received the largest packet that it acknowledges. What was in that
//! packet, or was complete with it, and when it came to us is known here. Only some is measured: one IP packet
//! of each packet that is the largest of an acknowledgement, and one write of a stream at a time.

use std::{collections::VecDeque, time::Duration};

use crate::id::AppId;

/// Samples that wait for the driver. Ours: more than it gets between two turns; further ones are left out.
const WAITING_MAX: usize = 1024;

/// Samples that wait for the driver.
#[derive(Debug, Default)]
pub(crate) struct DelaySamples {
    waiting: VecDeque<(AppId, Duration)>,
}

impl DelaySamples {
    pub(crate) fn push(&mut self, app: AppId, delay: Duration) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back((app, delay));
        }
    }

    pub(crate) fn poll(&mut self) -> Option<(AppId, Duration)> {
        self.waiting.pop_front()
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        assert!(
            self.waiting.len() <= WAITING_MAX,
            "samples of delays are bounded"
        );
    }
}
