//! Snapshots of a session for the driver.

use keiro_stats::{AppStats, PeerStats};

use super::{App, Session, path::Path};
use crate::{
    config::DeliveryClass,
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
        SessionSnapshot {
            peer: self.id,
            up: self.is_up(),
            settling: self.startup_wait.is_some(),
            key_since: self.keys.current().map(|epoch| epoch.since),
            features: self.keys.current().map(|epoch| epoch.features),
            drops: self.drops,
            stats: self.stats(),
            paths: self.path_snapshots(),
            apps: self
                .apps
                .values()
                .filter(|app| !app.removed)
                .map(App::snapshot)
                .collect(),
        }
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
            reassembly_bytes: self.receiver.open_bytes(),
            ..PeerStats::default()
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

impl App {
    fn snapshot(&self) -> AppSnapshot {
        let stats = self.stats;
        let ended = stats.delivered_messages + stats.expired_messages + stats.refused_messages;
        AppSnapshot {
            id: self.config.id,
            path: self.active,
            stats: AppStats {
                waiting_messages: match self.config.class {
                    DeliveryClass::Message => stats.sent_messages.saturating_sub(ended),
                    DeliveryClass::Datagram | DeliveryClass::Stream => 0,
                },
                ..stats
            },
            workload: self.workload.seen(),
        }
    }
}
