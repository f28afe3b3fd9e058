//! Changes of neighbours and VRPs while sessions are up.
//!
//! They are no [`Input`](super::Input): a replay starts with a configuration and keeps it.

use std::sync::Arc;

use keiro_units::Instant;

use super::{ConnectionId, Neighbour, NeighbourConfig, Speaker};
use crate::{
    address::Family,
    rib::{NeighbourId, Source},
    rpki::Vrps,
    session::{Session, State},
};

impl Neighbour {
    /// Ends the wait imposed after `routes_max` was exceeded.
    fn clear_idle_hold(&mut self, now: Instant) {
        let held = self.idle_hold_until.take().is_some_and(|until| until > now);
        if held && self.retry_at.is_some() {
            self.retry_at = Some(now);
        }
    }
}

impl Speaker {
    /// Replaces a stopped neighbour by another one, or by the same one with other session
    /// parameters.
    ///
    /// # Panics
    /// There is no such neighbour, or it has sessions or routes.
    pub fn replace_neighbour(&mut self, id: NeighbourId, config: NeighbourConfig) {
        let idle = |session: &Session| session.state() == State::Idle;
        let source = Source::Neighbour(id);
        let routes = |family: &Family| self.rib.count(source, *family);
        let before = &self.neighbours[usize::from(id.0)];
        let removed = before.sessions.iter().all(idle) && !before.enabled;
        let none = before.config.families.iter().map(routes).sum::<usize>() == 0;
        assert!(removed && none, "only a stopped neighbour can be replaced");
        self.neighbours[usize::from(id.0)] = Neighbour::new(&self.config, config);
    }

    /// Changes what may change without a new session: import and export policy, `routes_max`, and
    /// `next_hop`. The rest of `config` must be as before. A session ends only if the neighbour
    /// exceeds the new `routes_max`; one that was ended for that reason may start again. Routes of
    /// eBGP neighbours are re-evaluated from the Adj-RIB-In; iBGP neighbours are asked for a route
    /// refresh.
    ///
    /// # Panics
    /// There is no such neighbour.
    pub fn set_policies(&mut self, now: Instant, id: NeighbourId, config: NeighbourConfig) {
        let neighbour = self.neighbour_mut(id);
        let before = std::mem::replace(&mut neighbour.config, config);
        if neighbour.config.routes_max != before.routes_max {
            neighbour.clear_idle_hold(now);
            neighbour.near_max.clear();
        }
        let (external, after) = (neighbour.external, &neighbour.config);
        let export = (&after.export, after.next_hop) != (&before.export, before.next_hop);
        let import = after.import != before.import;
        let families = neighbour.negotiated.families.clone();
        if import {
            self.reapply_import(id);
        }
        let Some(direction) = self.neighbour_mut(id).up else {
            return;
        };
        let connection = ConnectionId::new(id, direction);
        if families
            .iter()
            .any(|family| self.enforce_routes_max(now, connection, *family))
        {
            return;
        }
        for family in families {
            if export {
                self.enqueue_all(id, family, false);
            }
            if import && !external {
                self.neighbour_mut(id).sessions[direction as usize].request_route_refresh(family);
            }
        }
    }

    /// Replaces the VRPs and re-evaluates the neighbours whose import policy uses them.
    pub fn set_vrps(&mut self, vrps: Arc<Vrps>) {
        if *vrps == *self.vrps {
            return;
        }
        self.vrps = vrps;
        for number in 0..self.neighbours.len() {
            if self.neighbours[number].config.import.uses_validity() {
                self.reapply_import(NeighbourId(number as u16));
            }
        }
    }

    pub fn vrps(&self) -> &Vrps {
        &self.vrps
    }
}
