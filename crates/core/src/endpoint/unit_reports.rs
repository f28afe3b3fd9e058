//! What a weight of 1 gets of what arrives here, as it is reported to the peers whose tenants are limited.

use std::collections::{BTreeMap, BTreeSet};

use keiro_model::fairness::common_unit::CommonUnit;
use keiro_units::Instant;

use crate::{id::PeerId, session::Session};

/// Reports of this gateway.
#[derive(Debug, Default)]
pub(super) struct UnitReports {
    /// Peers that have limited tenants.
    limited: BTreeSet<PeerId>,
    unit: CommonUnit,
}

impl UnitReports {
    /// A packet of a peer that has limited tenants has arrived: if it is time, a report is made.
    pub(super) fn on_limited(
        &mut self,
        now: Instant,
        peer: PeerId,
        peers: &mut BTreeMap<PeerId, Session>,
    ) {
        self.limited.insert(peer);
        if !self.unit.is_due(now) {
            return;
        }
        let mut largest = Vec::with_capacity(self.limited.len());
        self.limited.retain(|peer| {
            let Some(session) = peers.get_mut(peer) else {
                return false;
            };
            largest.extend(session.largest_limited_rate(now));
            session.has_limited_tenants()
        });
        let Some(unit) = self.unit.report(now, largest.into_iter()) else {
            return;
        };
        for peer in &self.limited {
            if let Some(session) = peers.get_mut(peer) {
                session.report_unit(unit);
            }
        }
    }

    pub(super) fn forget(&mut self, peer: PeerId) {
        self.limited.remove(&peer);
    }
}
