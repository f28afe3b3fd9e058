//! Snapshots of a session for the driver.

use keiro_stats::PeerStats;

use super::{Session, aggregation::receiver::AggregateReceiver, path::Path};
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
        let mut drops = self.drops;
        self.streams.add_violations(&mut drops);
        let epoch = self.keys.current();
        SessionSnapshot {
            peer: self.id,
            up: self.is_up(),
            settling: self.path_selection.is_waiting(),
            key_since: epoch.map(|epoch| epoch.since),
            features: epoch.map(|epoch| epoch.features),
            duplicate_key: self.incarnations.duplicate(),
            drops,
            stats: self.stats(),
            paths: self.path_snapshots(),
            apps: self.app_snapshots(),
        }
    }

    fn app_snapshots(&self) -> Vec<AppSnapshot> {
        let mut apps = self.apps.snapshots();
        for app in &mut apps {
            app.spread_bytes = self.scheduler.queues().spread_bytes(app.id);
        }
        apps
    }

    fn stats(&self) -> PeerStats {
        let queues = self.scheduler.queues();
        PeerStats {
            handshakes_completed: self.keys.agreed_total,
            paths_up: self.paths.iter().filter(|path| path.is_up()).count() as u64,
            open_streams: self.streams.len() as u64,
            queued_stream_bytes: queues.stream_bytes(),
            unread_stream_bytes: self.streams.kept_bytes(),
            waiting_messages: queues.messages() as u64,
            queued_message_bytes: queues.message_bytes(),
            reassembly_bytes: self.receiver.kept_bytes(),
            receive_memory_bytes: self.memory_use().total(),
            ..PeerStats::default()
        }
    }

    pub(crate) fn path_snapshots(&self) -> Vec<PathSnapshot> {
        let paths = self.paths.iter();
        paths.map(|path| self.path_snapshot(path)).collect()
    }

    fn path_snapshot(&self, path: &Path) -> PathSnapshot {
        let aggregates = self.receiver.aggregates_at(path.socket());
        let others = aggregates.map(AggregateReceiver::counters);
        path.snapshot(self.scheduler.waiting_bytes(path.id()), others)
    }
}
