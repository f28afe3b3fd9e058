//! Two connections with one neighbour: which one is accepted and kept (RFC 4271 §6.8).

use std::net::Ipv4Addr;

use keiro_units::Instant;

use super::{Action, ConnectionId, Direction, Speaker};
use crate::{rib::NeighbourId, session::State};

impl Speaker {
    /// Accepts or refuses a connection that the neighbour made.
    pub(super) fn on_incoming_connection(&mut self, now: Instant, id: NeighbourId) {
        let neighbour = self.neighbour_mut(id);
        let held = neighbour.idle_hold_until.is_some_and(|until| until > now);
        let verdict = match neighbour.up {
            _ if !neighbour.enabled || held => Action::Refuse(id),
            // The collision is resolved when the neighbour's OPEN arrives.
            Some(Direction::Outgoing)
                if neighbour.has_just_come_up(now) || neighbour.supports_graceful_restart() =>
            {
                Action::Accept(id)
            }
            // A restarted neighbour connects again before its old connection times out (RFC 4724
            // §4.2).
            Some(Direction::Incoming)
                if neighbour.supports_graceful_restart() && !neighbour.has_just_come_up(now) =>
            {
                self.drop_connection(now, ConnectionId::new(id, Direction::Incoming));
                Action::Accept(id)
            }
            Some(_) => Action::Refuse(id),
            None => Action::Accept(id),
        };
        if verdict == Action::Accept(id) {
            let incoming = &self.neighbour_mut(id).sessions[Direction::Incoming as usize];
            if incoming.state() != State::Idle {
                self.drop_connection(now, ConnectionId::new(id, Direction::Incoming));
            }
        }
        self.actions.push_back(verdict);
        if verdict == Action::Accept(id) {
            // The connection exists already, so the session must not ask for one.
            let connection = &mut self.neighbour_mut(id).sessions[Direction::Incoming as usize];
            connection.start(now, &mut Vec::new());
        }
    }

    /// Resolves a connection collision; returns whether `connection` is kept.
    ///
    /// The other connection counts even before its OPEN: both belong to the same configured
    /// neighbour, and otherwise each side might establish the connection that the other one closes.
    pub(super) fn resolve_collision(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        router_id: Ipv4Addr,
    ) -> bool {
        let ConnectionId {
            neighbour: id,
            direction,
        } = connection;
        let preferred = self.preferred(id, router_id);
        let neighbour = self.neighbour_mut(id);
        let kept = match neighbour.sessions[direction.other() as usize].state() {
            // RFC 4271 §6.8 keeps an established session; but both may have come up at the same
            // time, or the neighbour may have restarted (RFC 4724 §4.2).
            State::Established if neighbour.has_just_come_up(now) => preferred,
            State::Established if neighbour.supports_graceful_restart() => {
                self.drop_connection(now, ConnectionId::new(id, direction.other()));
                return true;
            }
            State::Established => direction.other(),
            State::OpenSent | State::OpenConfirm => preferred,
            State::Idle | State::Connecting => return true,
        };
        self.cease_collision(now, ConnectionId::new(id, kept.other()));
        kept == direction
    }

    /// The connection opened by the side with the greater identifier (RFC 4271 §6.8, RFC 6286
    /// §2.3).
    pub(super) fn preferred(&self, id: NeighbourId, router_id: Ipv4Addr) -> Direction {
        let own = (self.config.router_id, self.config.asn);
        let asn = self.neighbours[usize::from(id.0)].config.asn;
        match own > (router_id, asn) {
            true => Direction::Outgoing,
            false => Direction::Incoming,
        }
    }

    /// Ends the connection of a collision that is not kept.
    pub(super) fn cease_collision(&mut self, now: Instant, connection: ConnectionId) {
        self.with_session(now, connection, |session, out| {
            session.cease(
                CEASE_COLLISION,
                "connection collision: the other connection was kept",
                out,
            );
        });
    }
}

/// Cease subcode: connection collision resolution (RFC 4486).
const CEASE_COLLISION: u8 = 7;
