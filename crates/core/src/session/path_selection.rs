//! Path selection: which path every application takes.
//!
//! An application takes the first of its preferred paths that is up, or else the fastest one whose budget is not used up.
//! While the first paths come up,
//! an application without a path waits for the one that it prefers most: the order in which paths
//! answer must not make it begin on another and move.

use std::time::Duration;

use keiro_units::Instant;

use super::{
    applications::{App, Applications},
    path::Path,
    path_manager::PathManager,
    validation::VALIDATION_TIME,
};
use crate::{id::PathId, snapshot::PathState};

/// The choice of paths for the applications of one peer.
#[derive(Debug, Default)]
pub(crate) struct PathSelection {
    /// The first path has come up and others may follow. `None`: it is known which ones are up.
    startup_wait: Option<StartupWait>,
}

/// The wait for paths that may still come up.
#[derive(Clone, Copy, Debug)]
struct StartupWait {
    since: Instant,
    /// How long it had lasted when it was last checked.
    lasted: Duration,
}

impl PathSelection {
    /// Applications may still wait for their preferred paths.
    pub(crate) fn is_waiting(&self) -> bool {
        self.startup_wait.is_some()
    }

    /// The first path has come up: applications that prefer another wait for it for a limited time.
    pub(crate) fn begin_startup_wait(&mut self, now: Instant) {
        self.startup_wait = Some(StartupWait {
            since: now,
            lasted: Duration::ZERO,
        });
    }

    /// Every path is known to be up or not.
    pub(crate) fn on_all_validated(&mut self) {
        self.startup_wait = None;
    }

    /// Ends the wait for applications that have waited long enough; `true`: their paths are to be
    /// chosen.
    pub(crate) fn on_timeout(
        &mut self,
        now: Instant,
        apps: &Applications,
        paths: &PathManager,
    ) -> bool {
        if self.due(apps, paths).is_none_or(|due| due > now) {
            return false;
        }
        let Some(wait) = &mut self.startup_wait else {
            return false;
        };
        wait.lasted = now.saturating_duration_since(wait.since);
        if wait.lasted >= VALIDATION_TIME {
            self.startup_wait = None;
        }
        true
    }

    /// When the next application has waited long enough.
    pub(crate) fn due(&self, apps: &Applications, paths: &PathManager) -> Option<Instant> {
        let wait = self.startup_wait?;
        let waiting = apps.iter().filter(|app| app.active().is_none());
        let limits = waiting.map(|app| startup_wait_max(app, paths));
        let next = limits.filter(|limit| *limit > wait.lasted).min();
        Some(wait.since + next.unwrap_or(VALIDATION_TIME))
    }

    /// The path that an application should take; `None`: none is up, or it waits.
    pub(crate) fn select(&self, app: &App, paths: &PathManager) -> Option<PathId> {
        let preferred = app.preferred_paths();
        let is_awaited = preferred
            .first()
            .and_then(|id| paths.get(*id))
            .is_some_and(|path| path.state() == PathState::Validating);
        let waits = self
            .startup_wait
            .is_some_and(|wait| wait.lasted < startup_wait_max(app, paths));
        if waits && app.active().is_none() && is_awaited {
            return None;
        }
        let mut preferred = preferred.iter().copied();
        let first_up = preferred.find(|id| paths.get(*id).is_some_and(Path::is_up));
        let is_open = |id: &PathId| paths.get(*id).is_some_and(|path| !path.terms().is_spent);
        first_up.or_else(|| paths.fastest().filter(is_open))
    }
}

/// How long an application waits for its preferred path: half of a message's lifetime is left for
/// the transfer.
fn startup_wait_max(app: &App, paths: &PathManager) -> Duration {
    let first = app.preferred_paths().first();
    let first = first.and_then(|id| paths.get(*id));
    let answer = first.map_or(Duration::ZERO, Path::validation_time);
    app.lifetime()
        .map_or(answer, |lifetime| answer.min(lifetime / 2))
}
