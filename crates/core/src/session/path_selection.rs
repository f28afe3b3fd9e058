//! Path selection: which path every application takes.

use std::time::Duration;

use keiro_units::Instant;

use super::{App, Session, path::Path, validation::VALIDATION_TIME};
use crate::{
    event::{Event, MoveReason},
    id::AppId,
    snapshot::PathState,
};

/// The wait for paths that may still come up.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartupWait {
    since: Instant,
    /// How long it had lasted when it was last checked.
    lasted: Duration,
}

impl Session {
    pub(super) fn choose_paths(&mut self, reason: MoveReason) {
        let apps: Vec<AppId> = self.apps.keys().copied().collect();
        for app in apps {
            self.choose_path(app, reason);
        }
    }

    /// The first path comes up: the others are challenged, and applications that prefer one of them
    /// wait for it for a limited time.
    pub(super) fn begin_startup_wait(&mut self, now: Instant) {
        if !self.was_up {
            self.paths.iter_mut().for_each(|path| path.revalidate(now));
            self.startup_wait = Some(StartupWait {
                since: now,
                lasted: Duration::ZERO,
            });
        }
    }

    /// Ends the wait for preferred paths, for applications that have waited long enough.
    pub(super) fn check_startup_wait(&mut self, now: Instant) {
        if self.startup_wait_due().is_none_or(|due| due > now) {
            return;
        }
        if let Some(wait) = &mut self.startup_wait {
            wait.lasted = now.saturating_duration_since(wait.since);
            if wait.lasted >= VALIDATION_TIME {
                self.startup_wait = None;
            }
            self.choose_paths(MoveReason::PathUp);
        }
    }

    /// How long an application waits for its preferred path: half of a message's lifetime is left for
    /// the transfer.
    fn startup_wait_max(&self, app: &App) -> Duration {
        let first = app.config.paths.first().and_then(|id| self.paths.get(*id));
        let answer = first.map_or(Duration::ZERO, Path::validation_time);
        app.config
            .lifetime
            .map_or(answer, |lifetime| answer.min(lifetime / 2))
    }

    /// When the next application has waited long enough.
    pub(super) fn startup_wait_due(&self) -> Option<Instant> {
        let wait = self.startup_wait?;
        let waiting = self.apps.values().filter(|app| app.active.is_none());
        let limits = waiting.map(|app| self.startup_wait_max(app));
        let next = limits.filter(|limit| *limit > wait.lasted).min();
        Some(wait.since + next.unwrap_or(VALIDATION_TIME))
    }

    /// Moves an application to its first preferred path that is up. While the first paths come up, an
    /// application without a path waits for the one that it prefers most: the order in which paths
    /// answer must not make it begin on another and move.
    pub(super) fn choose_path(&mut self, app: AppId, reason: MoveReason) {
        let Some(entry) = self.apps.get(&app) else {
            return;
        };
        let preferred = entry.config.paths.first();
        let is_awaited = preferred
            .and_then(|id| self.paths.get(*id))
            .is_some_and(|path| path.state() == PathState::Validating);
        let waits = self
            .startup_wait
            .is_some_and(|wait| wait.lasted < self.startup_wait_max(entry));
        if waits && entry.active.is_none() && is_awaited {
            return;
        }
        let mut named = entry.config.paths.iter().copied();
        let first_up = named.find(|id| self.paths.get(*id).is_some_and(Path::is_up));
        let to = first_up.or_else(|| self.paths.fastest());
        let from = entry.active;
        if from == to {
            return;
        }
        self.scheduler.queues_mut().move_app(app, from, to);
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
        if !self.paths.any_validating() {
            self.startup_wait = None;
        }
        self.choose_paths(reason);
        self.check_up(now);
    }
}
