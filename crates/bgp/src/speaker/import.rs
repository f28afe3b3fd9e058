//! What neighbours announce: which routes are taken, and which stay while a neighbour restarts.

use std::{collections::BTreeMap, sync::Arc};

use keiro_units::Instant;

use super::{
    Event, Link, NextHop, STALE_TIME, Speaker, TOO_MANY, TOO_MANY_HOLD, aside::Aside, facts,
};
use crate::{
    address::Family,
    attributes::Attributes,
    nlri::Nlri,
    policy,
    rib::{NeighbourId, Path, Source},
    session::Down,
    wire::Update,
};

/// Attributes as changed by a policy.
type Variants = BTreeMap<policy::Changes, Arc<Attributes>>;

impl Speaker {
    /// Takes an UPDATE; false if it ended the session.
    pub(super) fn take_update(&mut self, now: Instant, link: Link, update: Update) -> bool {
        let (id, direction) = link;
        if self.at(id).up != Some(direction) {
            return false;
        }
        if let Some(complaint) = update.complaint {
            self.complain(id, complaint);
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
                if self.exceeds(now, link, family) {
                    return false;
                }
            }
        }
        if let Some(family) = update.end_of_rib {
            self.sweep_stale(id, &[family]);
            self.events.push_back(Event::EndOfRib(id, family));
        }
        true
    }

    fn complain(&mut self, id: NeighbourId, complaint: String) {
        self.at(id).complaints += 1;
        // A neighbour that sends nothing else fills no memory.
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(Event::Complaint(id, complaint));
        }
    }

    fn withdraw(&mut self, id: NeighbourId, nlri: &Nlri) {
        let source = Source::Neighbour(id);
        let destination = nlri.destination;
        self.at(id).aside.forget(nlri);
        let changed = self
            .rib
            .remove(destination, source, nlri.path_id, &facts(&self.neighbours));
        self.note(source, destination, changed);
    }

    fn announce(&mut self, id: NeighbourId, mut attributes: Attributes, list: &[Nlri]) {
        let neighbour = &self.neighbours[usize::from(id.0)];
        if neighbour.external {
            // A SID of another AS is not ours to use (RFC 9252 §8).
            attributes.service = None;
            let first = attributes.as_path.neighbour();
            if first != Some(neighbour.config.asn) {
                let asn = neighbour.config.asn;
                self.complain(id, format!("the AS path does not begin with AS {asn}"));
                return list.iter().for_each(|nlri| self.withdraw(id, nlri));
            }
            // RFC 4271 §6.3.
            let next_hop = attributes.next_hop;
            if neighbour.local() == Some(next_hop) {
                self.complain(id, format!("the next hop {next_hop} is our own address"));
                return list.iter().for_each(|nlri| self.withdraw(id, nlri));
            }
        }
        if self.loops(&attributes) {
            return list.iter().for_each(|nlri| self.withdraw(id, nlri));
        }
        let taken = self.interner.intern(attributes);
        let mut variants = Variants::new();
        for nlri in list {
            self.place(id, nlri, &taken, &mut variants);
        }
    }

    /// Does with a route what the policy says.
    fn place(
        &mut self,
        id: NeighbourId,
        nlri: &Nlri,
        came: &Arc<Attributes>,
        variants: &mut Variants,
    ) {
        let destination = nlri.destination;
        let neighbour = &self.neighbours[usize::from(id.0)];
        // Of this AS everything passes, or is not wanted whatever anybody configures.
        let kept = neighbour.external;
        let import = &neighbour.config.import;
        let Some(changes) = import.judge(&destination, came, &self.vrps) else {
            self.withdraw(id, nlri);
            if kept {
                self.at(id).aside.deny(nlri, came);
            }
            return;
        };
        let attributes = if changes.is_none() {
            Arc::clone(came)
        } else {
            let interner = &mut self.interner;
            let variant = variants
                .entry(changes)
                .or_insert_with(|| policy::changed(came, &changes, |new| interner.intern(new)));
            Arc::clone(variant)
        };
        let aside = &mut self.at(id).aside;
        match kept && !changes.is_none() {
            true => aside.change(nlri, came),
            false => aside.forget(nlri),
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
        let changed = self.rib.insert(destination, path, &facts(&self.neighbours));
        self.note(source, destination, changed);
    }

    /// Judges a neighbour's routes once more, as they came.
    pub(super) fn reconsider(&mut self, id: NeighbourId) {
        let source = Source::Neighbour(id);
        let aside = &self.neighbours[usize::from(id.0)].aside;
        let mut all: Vec<(Nlri, Arc<Attributes>)> = aside.iter().collect();
        for (&destination, paths) in self.rib.iter() {
            let own = paths.iter().filter(|path| path.source == source);
            for path in own.filter(|path| !aside.is_changed(destination, path.path_id)) {
                let import = &self.neighbours[usize::from(id.0)].config.import;
                let judged = || import.judge(&destination, &path.attributes, &self.vrps);
                // One that is stale stays so: it may only go.
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
        for (nlri, came) in &all {
            self.place(id, nlri, came, &mut Variants::new());
        }
    }

    /// Whether a route has been here already (RFC 4271 §9.1.2, RFC 4456 §8).
    fn loops(&self, attributes: &Attributes) -> bool {
        let own = self.config.router_id;
        attributes.as_path.contains(self.config.asn)
            || attributes.originator == Some(own)
            || attributes.clusters.contains(&own)
    }

    /// Ends the session of a neighbour that announces too much; whether it did.
    pub(super) fn exceeds(&mut self, now: Instant, link: Link, family: Family) -> bool {
        let (id, _) = link;
        // What is denied is kept as well, and has to be bounded.
        let denied = self.at(id).aside.denied(family);
        let count = self.rib.count(Source::Neighbour(id), family) + denied;
        if self.at(id).config.routes_max.is_none_or(|max| count <= max) {
            return false;
        }
        self.at(id).held_until = Some(now + TOO_MANY_HOLD);
        self.events.push_back(Event::TooManyRoutes(id, family));
        self.drive(now, link, |session, out| {
            session.cease(TOO_MANY, "it announced more routes than it may", out);
        });
        true
    }

    /// The session is down: which routes stay?
    pub(super) fn retain_or_drop(&mut self, now: Instant, id: NeighbourId, down: &Down) {
        // It comes again with the session.
        self.at(id).aside = Aside::default();
        let terms = self.at(id).terms.clone();
        let kept: &[Family] = match (down.graceful, terms.restart_time) {
            (true, Some(_)) => &terms.restart_families,
            _ => &[],
        };
        let source = Source::Neighbour(id);
        let kept_too = |family: &Family| kept.contains(family);
        // Those that are stale from the last time do not stay another time (RFC 4724 §4.2).
        self.sweep(id, |family, stale| stale || !kept_too(&family));
        if !kept.is_empty() {
            self.rib.make_stale(source, kept);
            let time = terms.restart_time.unwrap_or_default();
            self.at(id).stale_until = Some(now + time);
        }
    }

    /// The session is up again: routes of which the neighbour has lost the forwarding go now, the
    /// others when it has announced everything.
    pub(super) fn after_restart(&mut self, now: Instant, id: NeighbourId) {
        if self.at(id).stale_until.is_none() {
            return;
        }
        let preserved = self.at(id).terms.preserved.clone();
        self.sweep(id, |family, stale| stale && !preserved.contains(&family));
        self.at(id).stale_until = (!preserved.is_empty()).then(|| now + STALE_TIME);
    }

    pub(super) fn drop_stale(&mut self, id: NeighbourId) {
        self.at(id).stale_until = None;
        self.sweep(id, |_, stale| stale);
    }

    pub(super) fn sweep_stale(&mut self, id: NeighbourId, families: &[Family]) {
        if self.at(id).stale_until.is_some() {
            self.sweep(id, |family, stale| stale && families.contains(&family));
        }
    }

    /// Considers routes by next hops that are lost, or there again.
    pub(super) fn resolve(&mut self, next_hops: &[NextHop], reachable: bool) {
        let mut other = Vec::new();
        for next_hop in next_hops {
            let source = Source::Neighbour(next_hop.0);
            let facts = facts(&self.neighbours);
            let tell = |destination, changed| other.push((source, destination, changed));
            self.rib.set_reachable(*next_hop, reachable, &facts, tell);
        }
        for (source, destination, changed) in other {
            self.note(source, destination, changed);
        }
    }

    fn sweep(&mut self, id: NeighbourId, goes: impl Fn(Family, bool) -> bool) {
        let source = Source::Neighbour(id);
        let mut gone = Vec::new();
        self.rib.sweep(
            source,
            |destination, path| goes(destination.family(), path.stale),
            &facts(&self.neighbours),
            |destination, changed| gone.push((destination, changed)),
        );
        for (destination, changed) in gone {
            self.note(source, destination, changed);
        }
    }
}

/// Complaints beyond are counted only. Ours.
const EVENTS_MAX: usize = 1024;
