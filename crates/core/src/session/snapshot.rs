//! Snapshots of a session for the driver.

use super::{App, Session, path::Path};
use crate::{
    event::Event,
    snapshot::{AppSnapshot, PathSnapshot, SessionSnapshot},
};

impl Session {
    /// The next event for the driver, recorded in the trace on the way.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.tracer.on_event(&event);
        Some(event)
    }

    pub(crate) fn snapshot(&self) -> SessionSnapshot {
        let app = |app: &App| AppSnapshot {
            id: app.config.id,
            path: app.active,
            sent: app.sent,
            sent_bytes: app.sent_bytes,
            workload: app.workload.seen(),
            delivered: app.delivered,
            late: app.late,
            expired: app.expired,
            refused: app.refused,
            dropped: app.dropped,
            received: app.received,
            received_bytes: app.received_bytes,
        };
        SessionSnapshot {
            peer: self.id,
            up: self.is_up(),
            settling: self.startup_wait.is_some(),
            key_since: self.keys.current().map(|epoch| epoch.since),
            key_changes: self.keys.agreed_total,
            features: self.keys.current().map(|epoch| epoch.features),
            drops: self.drops,
            streams: self.streams.len(),
            streams_queued_bytes: self.scheduler.queues().stream_bytes(),
            streams_kept_bytes: self.streams.kept_bytes(),
            messages_queued: self.scheduler.queues().messages(),
            messages_queued_bytes: self.scheduler.queues().message_bytes(),
            reassembly_bytes: self.receiver.open_bytes(),
            paths: self.path_snapshots(),
            apps: self
                .apps
                .values()
                .filter(|app| !app.removed)
                .map(app)
                .collect(),
        }
    }

    pub(crate) fn path_snapshots(&self) -> Vec<PathSnapshot> {
        let snapshot = |path: &Path| {
            let mut snapshot = path.snapshot(self.scheduler.waiting_bytes(path.id()));
            for aggregates in self.receiver.aggregates_at(path.socket()) {
                aggregates.add_to(&mut snapshot.stats);
            }
            snapshot
        };
        self.paths.iter().map(snapshot).collect()
    }
}
