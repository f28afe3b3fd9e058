//! Which path every application is on.

use std::time::Duration;

use keiro_units::Instant;

use super::{
    App, Session,
    path::{Path, VALIDATION_TIME},
};
use crate::{
    event::{Event, MoveReason},
    id::{AppId, PathId},
    snapshot::PathState,
};

/// The wait for paths that may still come up.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartupWait {
    since: Instant,
    /// For how long, when it was last looked at.
    lasted: Duration,
}

impl Session {
    pub(super) fn choose_paths(&mut self, reason: MoveReason) {
        let apps: Vec<AppId> = self.apps.keys().copied().collect();
        for app in apps {
            self.choose_path(app, reason);
        }
    }

    /// The first path comes up: the others are asked, and whoever prefers one of these waits for it,
    /// but not for ever.
    pub(super) fn begin_startup_wait(&mut self, now: Instant) {
        if !self.was_up {
            self.paths
                .values_mut()
                .for_each(|path| path.revalidate(now));
            self.settling = Some(StartupWait {
                since: now,
                lasted: Duration::ZERO,
            });
        }
    }

    /// Ends the wait for paths that may still come up, of those that have waited enough.
    pub(super) fn check_startup_wait(&mut self, now: Instant) {
        if self.startup_wait_due().is_none_or(|due| due > now) {
            return;
        }
        if let Some(settling) = &mut self.settling {
            settling.lasted = now.saturating_duration_since(settling.since);
            if settling.lasted >= VALIDATION_TIME {
                self.settling = None;
            }
            self.choose_paths(MoveReason::PathUp);
        }
    }

    /// For how long an application waits for the path that it prefers: a message has half of its
    /// lifetime left for the way.
    pub(super) fn patience(&self, app: &App) -> Duration {
        let first = app.config.paths.first().and_then(|id| self.paths.get(id));
        let answer = first.map_or(Duration::ZERO, Path::validation_time);
        app.config
            .lifetime
            .map_or(answer, |lifetime| answer.min(lifetime / 2))
    }

    /// When the next application has waited enough.
    pub(super) fn startup_wait_due(&self) -> Option<Instant> {
        let settling = self.settling?;
        let waiting = self.apps.values().filter(|app| app.active.is_none());
        let patience = waiting.map(|app| self.patience(app));
        let next = patience
            .filter(|patience| *patience > settling.lasted)
            .min();
        Some(settling.since + next.unwrap_or(VALIDATION_TIME))
    }

    /// Gives an application the first path of its preference that is up. While the first paths come
    /// up, one that is nowhere waits for the path that it prefers most: the order in which paths
    /// answer is no reason to begin on another and move.
    pub(super) fn choose_path(&mut self, app: AppId, reason: MoveReason) {
        let up = |id: &PathId| self.paths.get(id).is_some_and(Path::is_up);
        let Some(entry) = self.apps.get(&app) else {
            return;
        };
        let awaited = |id: &PathId| {
            let path = self.paths.get(id);
            path.is_some_and(|path| path.state == PathState::Validating)
        };
        let first = entry.config.paths.first();
        let waits = self
            .settling
            .is_some_and(|settling| settling.lasted < self.patience(entry));
        if waits && entry.active.is_none() && first.is_some_and(awaited) {
            return;
        }
        let named = entry.config.paths.iter().copied().find(|id| up(id));
        let others = || {
            self.paths
                .values()
                .filter(|path| path.is_up())
                .min_by_key(|path| (path.rtt.smoothed_or_initial(), path.id))
                .map(|path| path.id)
        };
        let to = named.or_else(others);
        let from = entry.active;
        if from == to {
            return;
        }
        self.queues.move_app(app, from, to);
        self.apps.get_mut(&app).expect("found above").active = to;
        self.events.push_back(Event::AppMoved {
            peer: self.id,
            app,
            from,
            to,
            reason,
        });
    }

    pub(super) fn on_path_state_changed(&mut self, now: Instant, reason: MoveReason) {
        let mut states = self.paths.values().map(|path| path.state);
        if !states.any(|state| state == PathState::Validating) {
            self.settling = None;
        }
        self.choose_paths(reason);
        self.check_up(now);
    }
}
