//! Links to directly connected neighbours that go down and come up, and what BFD finds on them.

use keiro_units::Instant;

use super::{ConnectionId, Direction, NeighbourId, Speaker};
use crate::session::State;

impl Speaker {
    pub(super) fn on_link_down(&mut self, now: Instant, id: NeighbourId) {
        let neighbour = self.neighbour_mut(id);
        neighbour.link_down = true;
        neighbour.retry_at = None;
        for direction in [Direction::Outgoing, Direction::Incoming] {
            self.with_session(now, ConnectionId::new(id, direction), |session, out| {
                session.abandon("the link to the neighbour is down", out);
            });
        }
        self.drop_stale(id);
    }

    pub(super) fn on_link_up(&mut self, now: Instant, id: NeighbourId) {
        let neighbour = self.neighbour_mut(id);
        if !std::mem::take(&mut neighbour.link_down) {
            return;
        }
        // The failures before were those of the link.
        self.neighbour_mut(id).failures = 0;
        self.retry_at_once(now, id);
    }

    pub(super) fn on_bfd_down(&mut self, now: Instant, id: NeighbourId) {
        for direction in [Direction::Outgoing, Direction::Incoming] {
            self.with_session(now, ConnectionId::new(id, direction), |session, out| {
                session.cease(CEASE_BFD_DOWN, "BFD is down", out);
            });
        }
        self.drop_stale(id);
    }

    /// Failures still count: a path that comes and goes must not make each delay the shortest.
    pub(super) fn on_bfd_up(&mut self, now: Instant, id: NeighbourId) {
        if !self.neighbour_mut(id).link_down {
            self.retry_at_once(now, id);
        }
    }

    fn retry_at_once(&mut self, now: Instant, id: NeighbourId) {
        let neighbour = self.neighbour_mut(id);
        let idle = neighbour
            .sessions
            .iter()
            .all(|session| session.state() == State::Idle);
        if neighbour.enabled && idle {
            let held = neighbour.idle_hold_until.unwrap_or(Instant::ZERO);
            neighbour.retry_at = Some(now.max(held));
            self.handle_timeout(now);
        }
    }
}

/// Cease subcode: BFD down (RFC 9384).
const CEASE_BFD_DOWN: u8 = 10;
