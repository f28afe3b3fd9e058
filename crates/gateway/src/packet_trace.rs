//! Which peers' packets are recorded for `keiro monitor --qlog`, and for how long.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant as Stopwatch},
};

use keiro_control::protocol::QLOG_IDLE_SECONDS;
use keiro_core::PeerId;

/// Peers whose packets are recorded, with the time of the last request for them.
#[derive(Debug, Default)]
pub(crate) struct PacketTraces(BTreeMap<PeerId, Stopwatch>);

/// A recording that was not asked for so long ends: its client is gone.
const IDLE_MAX: Duration = Duration::from_secs(QLOG_IDLE_SECONDS);

impl PacketTraces {
    pub(crate) fn on_request(&mut self, peer: PeerId, now: Stopwatch) {
        self.0.insert(peer, now);
    }

    /// Peers whose recording ends now.
    pub(crate) fn take_idle(&mut self, now: Stopwatch) -> Vec<PeerId> {
        let is_idle = |_: &PeerId, asked: &mut Stopwatch| now.duration_since(*asked) >= IDLE_MAX;
        self.0
            .extract_if(.., is_idle)
            .map(|(peer, _)| peer)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_ends_when_it_is_not_asked_for() {
        let start = Stopwatch::now();
        let mut traces = PacketTraces::default();
        traces.on_request(PeerId(1), start);
        traces.on_request(PeerId(2), start + Duration::from_secs(3));
        assert_eq!(traces.take_idle(start + Duration::from_secs(4)), []);
        assert_eq!(traces.take_idle(start + IDLE_MAX), [PeerId(1)]);
        assert_eq!(traces.take_idle(start + IDLE_MAX), []);
    }
}
