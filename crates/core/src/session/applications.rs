//! The applications that use one peer: their configuration, the path that each takes, and their
//! counters.
//!
//! Which path an application takes is decided by [`path_selection`](super::path_selection).

use std::{collections::BTreeMap, time::Duration};

use keiro_model::workload::WorkloadMeter;
use keiro_stats::AppStats;
use keiro_units::Instant;

use super::{
    app_mismatch::{AppMismatch, AppMismatches},
    path::Path,
    path_manager::PathManager,
};
use crate::{
    config::{AppConfig, DeliveryClass},
    event::{MessageOutcome, MismatchSeenBy},
    id::{AppId, PathId, TenantId},
    snapshot::AppSnapshot,
};

/// An application as it is used with one peer.
pub(crate) struct App {
    config: AppConfig,
    /// No longer configured; kept until what it has sent has ended.
    removed: bool,
    active: Option<PathId>,
    /// Its counters; gauges stay at their defaults.
    stats: AppStats,
    workload: WorkloadMeter,
}

/// All applications of one peer.
#[derive(Default)]
pub(crate) struct Applications {
    apps: BTreeMap<AppId, App>,
    mismatches: AppMismatches,
}

/// How a message has ended, for the counters of its application.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageResult {
    pub(crate) outcome: MessageOutcome,
    /// Since it was made.
    pub(crate) after: Duration,
    /// From when it was made until the peer had it whole; `None`: not known.
    pub(crate) arrived_after: Option<Duration>,
}

impl App {
    fn new(config: AppConfig) -> Self {
        Self {
            config,
            removed: false,
            active: None,
            stats: AppStats::default(),
            workload: WorkloadMeter::default(),
        }
    }

    /// It is configured and of this class.
    fn accepts(&self, class: DeliveryClass) -> bool {
        !self.removed && self.config.class == class
    }

    /// The path that it takes; `None`: none is up, or it waits for its preferred path.
    pub(crate) fn active(&self) -> Option<PathId> {
        self.active
    }

    /// What it sends leaves by the path by which it arrives first.
    pub(crate) fn is_spread(&self) -> bool {
        self.config.is_spread
    }

    /// The paths that it prefers, the best first.
    pub(crate) fn preferred_paths(&self) -> &[PathId] {
        &self.config.paths
    }

    pub(crate) fn latency_target(&self) -> Option<Duration> {
        self.config.latency_target
    }

    pub(crate) fn lifetime(&self) -> Option<Duration> {
        self.config.lifetime
    }

    /// A message, datagram or packet of `bytes` was accepted for sending.
    pub(crate) fn on_accepted(&mut self, made: Instant, bytes: usize) {
        self.stats.sent_messages += 1;
        self.on_bytes_accepted(made, bytes);
    }

    /// A stream was opened.
    pub(crate) fn on_stream_opened(&mut self) {
        self.stats.sent_messages += 1;
    }

    /// Bytes of a stream were accepted for sending.
    pub(crate) fn on_bytes_accepted(&mut self, made: Instant, bytes: usize) {
        self.stats.sent_bytes += bytes as u64;
        self.workload.on_made(made, bytes);
    }

    /// A message, datagram or stream has arrived. `bytes`: its size.
    pub(crate) fn on_received(&mut self, bytes: usize) {
        self.stats.received_messages += 1;
        self.stats.received_bytes += bytes as u64;
    }

    /// Bytes of a stream have arrived.
    pub(crate) fn on_bytes_received(&mut self, bytes: u64) {
        self.stats.received_bytes += bytes;
    }

    /// A datagram was dropped here.
    pub(crate) fn on_dropped(&mut self) {
        self.stats.refused_messages += 1;
    }

    fn on_message_done(&mut self, result: MessageResult) {
        match result.outcome {
            MessageOutcome::Delivered => {
                let took = result.arrived_after.unwrap_or(result.after);
                let target = self.config.latency_target;
                self.stats.delivered_messages += 1;
                self.stats.late_messages += u64::from(target.is_some_and(|target| took > target));
            }
            MessageOutcome::Expired => self.stats.expired_messages += 1,
            MessageOutcome::Refused(_) => self.stats.refused_messages += 1,
            MessageOutcome::Unknown(_) => self.stats.unknown_messages += 1,
        }
    }

    fn snapshot(&self) -> AppSnapshot {
        let stats = self.stats;
        let ended = stats.delivered_messages
            + stats.expired_messages
            + stats.refused_messages
            + stats.unknown_messages;
        AppSnapshot {
            id: self.config.id,
            path: self.active,
            spread_bytes: Vec::new(),
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

impl Applications {
    /// Adds or changes an application; its counters go on.
    pub(crate) fn configure(&mut self, config: AppConfig) {
        match self.apps.get_mut(&config.id) {
            Some(app) => {
                app.config = config;
                app.removed = false;
            }
            None => {
                self.apps.insert(config.id, App::new(config));
            }
        }
    }

    /// It is no longer configured; [`forget`](Self::forget) follows when what it has sent has ended.
    pub(crate) fn on_removed(&mut self, id: AppId) {
        if let Some(app) = self.apps.get_mut(&id) {
            app.removed = true;
        }
    }

    pub(crate) fn is_removed(&self, id: AppId) -> bool {
        self.apps.get(&id).is_some_and(|app| app.removed)
    }

    pub(crate) fn forget(&mut self, id: AppId) {
        self.apps.remove(&id);
    }

    pub(crate) fn get(&self, id: AppId) -> Option<&App> {
        self.apps.get(&id)
    }

    /// An application that is configured and of this class.
    pub(crate) fn accepting(&mut self, id: AppId, class: DeliveryClass) -> Option<&mut App> {
        self.apps.get_mut(&id).filter(|app| app.accepts(class))
    }

    /// As [`accepting`](Self::accepting), for what the peer has sent: what is not accepted is a
    /// mismatch.
    pub(crate) fn arriving(&mut self, id: AppId, class: DeliveryClass) -> Option<&mut App> {
        let app = self.apps.get_mut(&id).filter(|app| app.accepts(class));
        if app.is_none() {
            self.mismatches.note(AppMismatch {
                app: id,
                class,
                seen_by: MismatchSeenBy::Us,
            });
        }
        app
    }

    /// The peer has no such application of this class.
    pub(crate) fn on_unknown_to_peer(&mut self, id: AppId, class: DeliveryClass) {
        self.mismatches.note(AppMismatch {
            app: id,
            class,
            seen_by: MismatchSeenBy::Peer,
        });
    }

    /// A mismatch that is to be reported now.
    pub(crate) fn take_mismatch(&mut self, now: Instant) -> Option<AppMismatch> {
        self.mismatches.take(now)
    }

    pub(crate) fn ids(&self) -> Vec<AppId> {
        self.apps.keys().copied().collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &App> {
        self.apps.values()
    }

    /// The path that an application takes.
    pub(crate) fn active_path(&self, id: AppId) -> Option<PathId> {
        self.apps.get(&id)?.active
    }

    /// An application takes another path from now on.
    pub(crate) fn on_path_selected(&mut self, id: AppId, path: Option<PathId>) {
        if let Some(app) = self.apps.get_mut(&id) {
            app.active = path;
        }
    }

    /// The tenant that an application is configured for.
    pub(crate) fn tenant_of(&self, id: AppId) -> Option<TenantId> {
        Some(self.apps.get(&id)?.config.tenant)
    }

    /// The applications that are configured for a tenant.
    pub(crate) fn of_tenant(&self, tenant: TenantId) -> Vec<AppId> {
        let apps = self.apps.iter();
        apps.filter(|(_, app)| app.config.tenant == tenant)
            .map(|(id, _)| *id)
            .collect()
    }

    /// The datagram of an application was dropped because the queue was full.
    pub(crate) fn on_datagram_dropped(&mut self, id: AppId) {
        if let Some(app) = self.apps.get_mut(&id) {
            app.on_dropped();
        }
    }

    /// The lifetime of a datagram of the application ended while it waited.
    pub(crate) fn on_datagram_expired(&mut self, id: AppId) {
        if let Some(app) = self.apps.get_mut(&id) {
            app.stats.expired_messages += 1;
        }
    }

    /// Bytes of a stream of an application were accepted for sending.
    pub(crate) fn on_stream_written(&mut self, now: Instant, id: AppId, bytes: usize) {
        if let Some(app) = self.apps.get_mut(&id).filter(|_| bytes > 0) {
            app.on_bytes_accepted(now, bytes);
        }
    }

    /// Bytes of a stream of an application have arrived.
    pub(crate) fn on_stream_received(&mut self, id: AppId, bytes: u64) {
        if let Some(app) = self.apps.get_mut(&id) {
            app.on_bytes_received(bytes);
        }
    }

    /// A message of an application has ended.
    pub(crate) fn on_message_done(&mut self, id: AppId, result: MessageResult) {
        if let Some(app) = self.apps.get_mut(&id) {
            app.on_message_done(result);
        }
    }

    /// The applications that are configured, in numbers.
    pub(crate) fn snapshots(&self) -> Vec<AppSnapshot> {
        let configured = self.apps.values().filter(|app| !app.removed);
        configured.map(App::snapshot).collect()
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self, paths: &PathManager) {
        self.mismatches.check_invariants();
        for (id, app) in &self.apps {
            assert_eq!(*id, app.config.id, "applications are kept by their id");
            let active = app.active.map(|path| paths.get(path));
            assert!(
                active.is_none_or(|path| path.is_some_and(Path::is_up)),
                "an application is on a path that is up"
            );
            let stats = &app.stats;
            assert!(
                stats.late_messages <= stats.delivered_messages,
                "late messages were delivered"
            );
        }
    }
}
