//! Another configuration of neighbours, and other payloads of the RPKI, while sessions are up.
//!
//! None of it is an [`Input`](super::Input): a replay is begun with a configuration and has that one.

use std::sync::Arc;

use keiro_units::Instant;

use super::{Neighbour, NeighbourConfig, Speaker};
use crate::{
    address::Family,
    rib::{NeighbourId, Source},
    rpki::Vrps,
    session::{Session, State},
};

impl Neighbour {
    /// It is not held any longer for the routes that it announced.
    fn release(&mut self, now: Instant) {
        let held = self.held_until.take().is_some_and(|until| until > now);
        if held && self.retry_at.is_some() {
            self.retry_at = Some(now);
        }
    }
}

impl Speaker {
    /// Another neighbour, or the same with other terms, takes the place of one that was stopped.
    ///
    /// # Panics
    /// There is no such neighbour, or it has sessions or routes.
    pub fn replace_neighbour(&mut self, id: NeighbourId, config: NeighbourConfig) {
        let idle = |session: &Session| session.state() == State::Idle;
        let source = Source::Neighbour(id);
        let routes = |family: &Family| self.rib.count(source, *family);
        let before = &self.neighbours[usize::from(id.0)];
        let gone = before.links.iter().all(idle) && !before.wanted;
        let none = before.config.families.iter().map(routes).sum::<usize>() == 0;
        assert!(gone && none, "a neighbour is replaced that was not stopped");
        self.neighbours[usize::from(id.0)] = Neighbour::new(&self.config, config);
    }

    /// What passes between a neighbour and us is another from now on, its bound and the next hop
    /// that it is told among it; the rest of `config` has to be as it was. Sessions stay, but for one
    /// with more routes than the neighbour may announce now; one that was ended for that may begin
    /// again. Of another AS's routes those count that it has announced; others are asked for again.
    ///
    /// # Panics
    /// There is no such neighbour.
    pub fn set_policies(&mut self, now: Instant, id: NeighbourId, config: NeighbourConfig) {
        let neighbour = self.at(id);
        let before = std::mem::replace(&mut neighbour.config, config);
        if neighbour.config.routes_max != before.routes_max {
            neighbour.release(now);
        }
        let (external, after) = (neighbour.external, &neighbour.config);
        let told = (&after.export, after.next_hop) != (&before.export, before.next_hop);
        let import = after.import != before.import;
        let families = neighbour.terms.families.clone();
        if import {
            self.reconsider(id);
        }
        let Some(direction) = self.at(id).up else {
            return;
        };
        let link = (id, direction);
        if families
            .iter()
            .any(|family| self.exceeds(now, link, *family))
        {
            return;
        }
        for family in families {
            if told {
                self.tell_all(id, family, false);
            }
            if import && !external {
                self.at(id).links[direction as usize].ask_refresh(family);
            }
        }
    }

    /// Who may announce what, from now on.
    pub fn set_vrps(&mut self, vrps: Arc<Vrps>) {
        if *vrps == *self.vrps {
            return;
        }
        self.vrps = vrps;
        for number in 0..self.neighbours.len() {
            if self.neighbours[number].config.import.asks_validity() {
                self.reconsider(NeighbourId(number as u16));
            }
        }
    }

    /// Who may announce what.
    pub fn vrps(&self) -> &Vrps {
        &self.vrps
    }
}
