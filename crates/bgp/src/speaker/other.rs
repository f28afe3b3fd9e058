//! Another configuration of neighbours, and other payloads of the RPKI, while sessions are up.
//!
//! None of it is an [`Input`](super::Input): a replay is begun with a configuration and has that one.

use std::sync::Arc;

use super::{Neighbour, NeighbourConfig, Speaker};
use crate::{
    address::Family,
    rib::{NeighbourId, Source},
    rpki::Vrps,
    session::{Session, State},
};

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
    /// that it is told among it; the rest of `config` has to be as it was. Sessions stay. Of
    /// another AS's routes those count that it has announced; others are asked for again.
    ///
    /// # Panics
    /// There is no such neighbour.
    pub fn set_policies(&mut self, id: NeighbourId, config: NeighbourConfig) {
        let neighbour = self.at(id);
        let before = std::mem::replace(&mut neighbour.config, config);
        let (external, now) = (neighbour.external, &neighbour.config);
        let told = (&now.export, now.next_hop) != (&before.export, before.next_hop);
        let import = now.import != before.import;
        let families = neighbour.terms.families.clone();
        if import {
            self.reconsider(id);
        }
        let Some(direction) = self.at(id).up else {
            return;
        };
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
