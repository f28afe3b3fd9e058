//! What follows for applications, queues and the peer's state where a path comes up, goes down or is removed.

use keiro_units::Instant;

use super::{Session, path::DroppedInFlight};
use crate::{
    event::{Event, MoveReason, PathDownReason},
    id::{AppId, PathId},
};

impl Session {
    pub(super) fn remove_path(&mut self, now: Instant, id: PathId) {
        let Some(dropped) = self.paths.remove(id) else {
            return;
        };
        self.paths.on_copies_dropped(&dropped.copies);
        self.events.push_back(Event::PathDown {
            peer: self.id,
            path: id,
            reason: PathDownReason::Removed,
        });
        self.choose_paths(MoveReason::PathDown);
        self.move_packets(now, id);
        self.on_losses_detected(now, id, dropped.lost);
        self.check_up(now);
    }

    /// IP packets that wait for a path that is gone move to the paths of their applications.
    pub(super) fn move_packets(&mut self, now: Instant, id: PathId) {
        let (apps, paths) = (&self.apps, &self.paths);
        self.scheduler.move_packets(now, id, |app| {
            let path = paths.get(apps.active_path(app)?)?;
            Some(path.id_and_mtu())
        });
    }

    /// Every application moves to the path that it should take.
    pub(super) fn choose_paths(&mut self, reason: MoveReason) {
        for app in self.apps.ids() {
            self.choose_path(app, reason);
        }
    }

    /// An application moves to the path that it should take, with what waits of it.
    pub(super) fn choose_path(&mut self, app: AppId, reason: MoveReason) {
        let Some(entry) = self.apps.get(app) else {
            return;
        };
        let to = self.path_selection.select(entry, &self.paths);
        let from = entry.active();
        if from == to {
            return;
        }
        self.scheduler.move_app(app, from, to);
        self.apps.on_path_selected(app, to);
        self.events.push_back(Event::AppMoved {
            peer: self.id,
            app,
            from,
            to,
            reason,
        });
    }

    /// The first path comes up: the others are challenged, and applications that prefer one of them
    /// wait for it.
    pub(super) fn begin_startup_wait(&mut self, now: Instant) {
        if !self.reachability.was_up {
            self.paths.iter_mut().for_each(|path| path.revalidate(now));
            self.path_selection.begin_startup_wait(now);
        }
    }

    pub(super) fn on_path_state_changed(&mut self, now: Instant, reason: MoveReason) {
        if !self.paths.any_validating() {
            self.path_selection.on_all_validated();
        }
        self.choose_paths(reason);
        self.check_up(now);
    }

    /// What waited or was in flight on a path is lost.
    pub(super) fn on_in_flight_dropped(
        &mut self,
        now: Instant,
        path: PathId,
        dropped: DroppedInFlight,
    ) {
        self.paths.on_copies_dropped(&dropped.copies);
        self.on_losses_detected(now, path, dropped.lost);
    }

    pub(super) fn take_path_down(&mut self, now: Instant, id: PathId, reason: PathDownReason) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let dropped = path.on_down();
        self.paths.on_copies_dropped(&dropped.copies);
        self.events.push_back(Event::PathDown {
            peer: self.id,
            path: id,
            reason,
        });
        self.paths.resume_siblings(now, id);
        // One that is silent by agreement may be needed now: a round trip shows whether it answers.
        for other in self.paths.iter_mut().filter(|path| path.is_up()) {
            other.request_ping();
        }
        self.on_path_state_changed(now, MoveReason::PathDown);
        self.move_packets(now, id);
        self.on_losses_detected(now, id, dropped.lost);
    }
}
