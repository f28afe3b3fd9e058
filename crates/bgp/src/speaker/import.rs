//! What neighbours announce: import, and which routes are kept while a neighbour restarts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use keiro_units::Instant;

use super::{
    CEASE_MAX_PREFIXES, ConnectionId, Event, IDLE_HOLD_TIME, NextHop, STALE_TIME, Speaker,
    adj_rib_in::AdjRibIn, peer_attributes,
};
use crate::{
    address::{Destination, Family, RouteDistinguisher},
    attributes::Attributes,
    nlri::Nlri,
    policy,
    rib::{NeighbourId, Path, Source},
    session::Down,
    wire::Update,
};

/// Attributes as modified by a policy.
type Variants = BTreeMap<policy::AttributeChanges, Arc<Attributes>>;

impl Speaker {
    /// Handles an UPDATE; returns false if that ended the session.
    pub(super) fn handle_update(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        update: Update,
    ) -> bool {
        let ConnectionId {
            neighbour: id,
            direction,
        } = connection;
        if self.neighbour_mut(id).up != Some(direction) {
            return false;
        }
        self.neighbour_mut(id).updates += 1;
        self.neighbour_mut(id).discarded_attributes += update.discarded_attributes;
        if let Some(malformed) = update.malformed {
            self.on_malformed_update(id, malformed);
        }
        for nlri in update.withdrawn {
            self.withdraw(id, &nlri);
        }
        for (attributes, list) in update.announced {
            let families: Vec<Family> = list
                .first()
                .map(|n| n.destination.family())
                .into_iter()
                .collect();
            self.announce(id, attributes, &list);
            for family in families {
                if self.enforce_routes_max(now, connection, family) {
                    return false;
                }
            }
        }
        if let Some(family) = update.end_of_rib {
            self.on_end_of_rib(id, family);
        }
        true
    }

    fn on_end_of_rib(&mut self, id: NeighbourId, family: Family) {
        let neighbour = self.neighbour_mut(id);
        let first = neighbour.announced.insert(family);
        // During a refresh the end of the refresh decides.
        if first && !neighbour.refreshing.contains(&family) {
            self.sweep_stale(id, family);
        }
        self.events.push_back(Event::EndOfRib(id, family));
    }

    /// The neighbour announces all routes of a family again: those that it leaves out are removed at
    /// the end (RFC 7313 §4).
    pub(super) fn on_refresh_begins(&mut self, now: Instant, id: NeighbourId, family: Family) {
        let neighbour = self.neighbour_mut(id);
        // RFC 7313 §4: ignored until End-of-RIB, so that routes of a neighbour that restarts stay.
        if neighbour.supports_graceful_restart() && !neighbour.announced.contains(&family) {
            return;
        }
        neighbour.refreshing.insert(family);
        neighbour.adj_rib_in.remove_family(family);
        let until = now + STALE_TIME;
        let stale = &mut neighbour.stale_until;
        *stale = Some(stale.map_or(until, |old| old.max(until)));
        self.rib.make_stale(Source::Neighbour(id), &[family]);
    }

    /// An end without a begin is ignored (RFC 7313 §4).
    pub(super) fn on_refresh_ends(&mut self, id: NeighbourId, family: Family) {
        if self.neighbour_mut(id).refreshing.remove(&family) {
            self.sweep_stale(id, family);
        }
    }

    fn on_malformed_update(&mut self, id: NeighbourId, malformed: String) {
        self.neighbour_mut(id).malformed_updates += 1;
        // Bounded, so that a neighbour that sends only malformed UPDATEs does not fill memory.
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(Event::MalformedUpdate(id, malformed));
        }
    }

    fn withdraw(&mut self, id: NeighbourId, nlri: &Nlri) {
        let source = Source::Neighbour(id);
        let destination = nlri.destination;
        self.neighbour_mut(id).adj_rib_in.remove(nlri);
        let changed = self.rib.remove(
            destination,
            source,
            nlri.path_id,
            &peer_attributes(&self.neighbours),
        );
        self.on_route_changed(source, destination, changed);
    }

    fn announce(&mut self, id: NeighbourId, mut attributes: Attributes, list: &[Nlri]) {
        let neighbour = &self.neighbours[usize::from(id.0)];
        if neighbour.external {
            // SIDs of another AS are not used (RFC 9252 §8).
            attributes.service = None;
            let first = attributes.as_path.neighbour();
            if first != Some(neighbour.config.asn) {
                let asn = neighbour.config.asn;
                self.on_malformed_update(id, format!("the AS path does not begin with AS {asn}"));
                return list.iter().for_each(|nlri| self.withdraw(id, nlri));
            }
            // RFC 4271 §6.3.
            let next_hop = attributes.next_hop;
            if neighbour.local() == Some(next_hop) {
                self.on_malformed_update(
                    id,
                    format!("the next hop {next_hop} is the local address"),
                );
                return list.iter().for_each(|nlri| self.withdraw(id, nlri));
            }
        }
        if self.is_loop(&attributes) {
            return list.iter().for_each(|nlri| self.withdraw(id, nlri));
        }
        let taken = self.interner.intern(attributes);
        let mut variants = Variants::new();
        for nlri in list {
            self.apply_import(id, nlri, &taken, &mut variants);
        }
    }

    /// Applies the import policy to a received route.
    fn apply_import(
        &mut self,
        id: NeighbourId,
        nlri: &Nlri,
        received: &Arc<Attributes>,
        variants: &mut Variants,
    ) {
        let destination = nlri.destination;
        let neighbour = &self.neighbours[usize::from(id.0)];
        // The Adj-RIB-In is kept for eBGP neighbours only: policies on iBGP neighbours do not
        // change.
        let kept = neighbour.external;
        let import = &neighbour.config.import;
        let permitted = import.evaluate(&destination, received, &self.vrps);
        let watched = || self.is_watched(&destination).then(Default::default);
        let Some(changes) = permitted.or_else(watched) else {
            self.withdraw(id, nlri);
            if kept {
                self.neighbour_mut(id)
                    .adj_rib_in
                    .insert_denied(nlri, received);
            }
            return;
        };
        let attributes = if changes.is_none() {
            Arc::clone(received)
        } else {
            let interner = &mut self.interner;
            let variant = variants
                .entry(changes.clone())
                .or_insert_with(|| policy::changed(received, &changes, |new| interner.intern(new)));
            Arc::clone(variant)
        };
        let adj_rib_in = &mut self.neighbour_mut(id).adj_rib_in;
        match kept && !changes.is_none() {
            true => adj_rib_in.insert_modified(nlri, received),
            false => adj_rib_in.remove(nlri),
        }
        let source = Source::Neighbour(id);
        let path = Path {
            source,
            path_id: nlri.path_id,
            label: nlri.label,
            stale: false,
            reachable: true,
            attributes,
        };
        let changed = self
            .rib
            .insert(destination, path, &peer_attributes(&self.neighbours));
        self.on_route_changed(source, destination, changed);
    }

    /// The routes of a neighbour that the import policy denied, to destinations after one, in their order.
    /// Those of neighbours in this AS are not kept.
    ///
    /// # Panics
    /// There is no such neighbour.
    pub fn denied(
        &self,
        id: NeighbourId,
        after: Option<Destination>,
    ) -> impl Iterator<Item = (Destination, Path)> + '_ {
        let adj_rib_in = &self.neighbours[usize::from(id.0)].adj_rib_in;
        adj_rib_in.denied_after(after).map(move |(nlri, received)| {
            let path = Path {
                source: Source::Neighbour(id),
                path_id: nlri.path_id,
                label: nlri.label,
                stale: false,
                reachable: true,
                attributes: Arc::clone(received),
            };
            (nlri.destination, path)
        })
    }

    /// Keeps VPN routes with these distinguishers whatever the import policy is. They are those of VPN
    /// routes that are made here: another router must not have them, and which one does can be looked up.
    /// Routes received before are not asked for again.
    pub fn watch_distinguishers(&mut self, distinguishers: BTreeSet<RouteDistinguisher>) {
        self.watched = distinguishers;
    }

    fn is_watched(&self, destination: &Destination) -> bool {
        let rd = destination.distinguisher();
        rd.is_some_and(|rd| self.watched.contains(&rd))
    }

    /// Applies the import policy to all routes of a neighbour again, as received.
    pub(super) fn reapply_import(&mut self, id: NeighbourId) {
        let source = Source::Neighbour(id);
        let adj_rib_in = &self.neighbours[usize::from(id.0)].adj_rib_in;
        let mut all: Vec<(Nlri, Arc<Attributes>)> = adj_rib_in.iter().collect();
        for (&destination, paths) in self.rib.iter() {
            let own = paths.iter().filter(|path| path.source == source);
            for path in own.filter(|path| !adj_rib_in.is_modified(destination, path.path_id)) {
                let import = &self.neighbours[usize::from(id.0)].config.import;
                let judged = || import.evaluate(&destination, &path.attributes, &self.vrps);
                // A stale route may be removed by the new policy, but is not refreshed by it.
                if path.stale && judged().is_some() {
                    continue;
                }
                let nlri = Nlri {
                    destination,
                    path_id: path.path_id,
                    label: path.label,
                };
                all.push((nlri, Arc::clone(&path.attributes)));
            }
        }
        for (nlri, received) in &all {
            self.apply_import(id, nlri, received, &mut Variants::new());
        }
    }

    /// Whether the route has passed this speaker before (RFC 4271 §9.1.2, RFC 4456 §8).
    fn is_loop(&self, attributes: &Attributes) -> bool {
        let own = self.config.router_id;
        attributes.as_path.contains(self.config.asn)
            || attributes.originator == Some(own)
            || attributes.clusters.contains(&own)
    }

    /// Ends the session of a neighbour that exceeds `routes_max`; returns whether it did.
    pub(super) fn enforce_routes_max(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        family: Family,
    ) -> bool {
        let id = connection.neighbour;
        // Denied routes are stored too, so they count towards the bound.
        let denied = self.neighbour_mut(id).adj_rib_in.denied_len(family);
        let count = self.rib.count(Source::Neighbour(id), family) + denied;
        let Some(most) = self.neighbour_mut(id).config.routes_max else {
            return false;
        };
        if count <= most {
            let is_near = count.saturating_mul(100) > most.saturating_mul(NEAR_PERCENT);
            if is_near && self.neighbour_mut(id).near_max.insert(family) {
                self.events.push_back(Event::NearMaxPrefix(id, family));
            }
            return false;
        }
        self.neighbour_mut(id).idle_hold_until = Some(now + IDLE_HOLD_TIME);
        self.events.push_back(Event::MaxPrefixExceeded(id, family));
        self.with_session(now, connection, |session, out| {
            session.cease(
                CEASE_MAX_PREFIXES,
                "the neighbour announced more routes than `routes_max`",
                out,
            );
        });
        true
    }

    /// Called when the session goes down: keeps routes for a graceful restart and drops the others.
    pub(super) fn retain_or_drop(&mut self, now: Instant, id: NeighbourId, down: &Down) {
        // The neighbour announces them again with the next session.
        self.neighbour_mut(id).adj_rib_in = AdjRibIn::default();
        self.neighbour_mut(id).near_max.clear();
        let negotiated = self.neighbour_mut(id).negotiated.clone();
        let kept: &[Family] = match (down.graceful, negotiated.restart_time) {
            (true, Some(_)) => &negotiated.restart_families,
            _ => &[],
        };
        let source = Source::Neighbour(id);
        let kept_too = |family: &Family| kept.contains(family);
        // Routes that are still stale from an earlier restart are not kept again (RFC 4724 §4.2).
        self.sweep(id, |family, stale| stale || !kept_too(&family));
        if !kept.is_empty() {
            self.rib.make_stale(source, kept);
            let time = negotiated.restart_time.unwrap_or_default();
            self.neighbour_mut(id).stale_until = Some(now + time);
        }
    }

    /// Called when the session is up again. Routes whose forwarding state the neighbour has lost are removed
    /// now, the others stay until End-of-RIB.
    pub(super) fn on_restarted(&mut self, now: Instant, id: NeighbourId) {
        if self.neighbour_mut(id).stale_until.is_none() {
            return;
        }
        let preserved = self.neighbour_mut(id).negotiated.preserved.clone();
        self.sweep(id, |family, stale| stale && !preserved.contains(&family));
        self.neighbour_mut(id).stale_until = (!preserved.is_empty()).then(|| now + STALE_TIME);
    }

    pub(super) fn drop_stale(&mut self, id: NeighbourId) {
        let neighbour = self.neighbour_mut(id);
        neighbour.stale_until = None;
        neighbour.refreshing = BTreeSet::new();
        self.sweep(id, |_, stale| stale);
    }

    fn sweep_stale(&mut self, id: NeighbourId, swept: Family) {
        if self.neighbour_mut(id).stale_until.is_some() {
            self.sweep(id, |family, stale| stale && family == swept);
        }
    }

    /// Re-evaluates the routes whose next hops became reachable or unreachable.
    pub(super) fn set_reachable(&mut self, next_hops: &[NextHop], reachable: bool) {
        let mut other = Vec::new();
        for next_hop in next_hops {
            let source = Source::Neighbour(next_hop.0);
            let peers = peer_attributes(&self.neighbours);
            let on_change = |destination, changed| other.push((source, destination, changed));
            self.rib
                .set_reachable(*next_hop, reachable, &peers, on_change);
        }
        for (source, destination, changed) in other {
            self.on_route_changed(source, destination, changed);
        }
    }

    fn sweep(&mut self, id: NeighbourId, goes: impl Fn(Family, bool) -> bool) {
        let source = Source::Neighbour(id);
        let mut removed = Vec::new();
        self.rib.sweep(
            source,
            |destination, path| goes(destination.family(), path.stale),
            &peer_attributes(&self.neighbours),
            |destination, changed| removed.push((destination, changed)),
        );
        for (destination, changed) in removed {
            self.on_route_changed(source, destination, changed);
        }
    }
}

/// The share of `routes_max` beyond which there is a warning, in percent. Ours; FRR's default is 75.
const NEAR_PERCENT: usize = 80;
/// Errors beyond this number of pending events are counted but not reported. Ours.
pub(super) const EVENTS_MAX: usize = 1024;
