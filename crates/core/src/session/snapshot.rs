//! Snapshots of a session for the driver.

use super::{Session, path::Path};
use crate::{
    event::Event,
    snapshot::{PathSnapshot, SessionSnapshot},
};

impl Session {
    /// The next event for the driver, recorded in the trace on the way.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.tracer.on_event(&event);
        Some(event)
    }

    pub(crate) fn snapshot(&self) -> SessionSnapshot {
        let mut drops = self.drops;
        self.streams.add_violations(&mut drops);
        let epoch = self.keys.current();
        SessionSnapshot {
            peer: self.id,
            up: self.is_up(),
            settling: self.path_selection.is_waiting(),
            key_since: epoch.map(|epoch| epoch.since),
            key_changes: self.keys.agreed_total,
            features: epoch.map(|epoch| epoch.features),
            drops,
            streams: self.streams.len(),
            streams_queued_bytes: self.scheduler.queues().stream_bytes(),
            streams_kept_bytes: self.streams.kept_bytes(),
            messages_queued: self.scheduler.queues().messages(),
            messages_queued_bytes: self.scheduler.queues().message_bytes(),
            reassembly_bytes: self.receiver.open_bytes(),
            paths: self.path_snapshots(),
            apps: self.apps.snapshots(),
        }
    }

    pub(crate) fn path_snapshots(&self) -> Vec<PathSnapshot> {
        let paths = self.paths.iter();
        paths.map(|path| self.path_snapshot(path)).collect()
    }

    fn path_snapshot(&self, path: &Path) -> PathSnapshot {
        let mut snapshot = path.snapshot(self.scheduler.waiting_bytes(path.id()));
        for aggregates in self.receiver.aggregates_at(path.socket()) {
            aggregates.add_to(&mut snapshot.stats);
        }
        snapshot
    }
}
