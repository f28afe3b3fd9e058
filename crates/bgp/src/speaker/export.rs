//! What neighbours are told: which routes, with what said of them, and what they know already.
//!
//! Nothing is written before there is room to send it: a neighbour owes nothing but a set of
//! destinations to a reader that is slow, and what changes twice meanwhile is told once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ipnet::Ipv6Net;

use super::{Direction, Link, Neighbour, Speaker, VpnExport, facts};
use crate::{
    address::{Destination, Family, RouteDistinguisher, RouteTarget},
    attributes::{Attributes, DEFAULT_LOCAL_PREF, same},
    nlri::Nlri,
    policy::Changes,
    rib::{NeighbourId, Path, Source},
    srv6::Label,
    wire,
};

/// What a neighbour has been told and what it is owed.
#[derive(Debug, Default)]
pub(super) struct Told {
    routes: BTreeMap<Destination, (Arc<Attributes>, Label)>,
    owed: BTreeSet<Destination>,
    /// Families that it has asked for once more: what it knows is told again.
    again: BTreeSet<Family>,
    end_of_rib: BTreeSet<Family>,
}

/// A route as a neighbour is to hear it, before its attributes are made.
struct Exported<'a> {
    path: &'a Path,
    changes: Changes,
    vpn: Option<&'a VpnExport>,
}

/// Tells made attributes apart: source, changes, VPN.
type Key = (usize, Changes, Option<RouteDistinguisher>);

impl Told {
    pub(super) fn len(&self) -> usize {
        self.routes.len()
    }

    pub(super) fn owe(&mut self, destination: Destination) {
        self.owed.insert(destination);
    }

    pub(super) fn owe_end_of_rib(&mut self, family: Family) {
        self.end_of_rib.insert(family);
    }

    fn is_owed_nothing(&self) -> bool {
        self.owed.is_empty() && self.end_of_rib.is_empty()
    }
}

impl Speaker {
    /// Whether there is something to send over a connection.
    ///
    /// # Panics
    /// There is no such neighbour.
    pub fn has_output(&self, link: Link) -> bool {
        let neighbour = &self.neighbours[usize::from(link.0.0)];
        neighbour.links[link.1 as usize].has_output()
            || neighbour.up == Some(link.1) && !neighbour.outgoing.is_owed_nothing()
    }

    /// Appends what is to be sent over a connection, until `out` holds `enough` octets or a message
    /// more.
    ///
    /// # Panics
    /// There is no such neighbour.
    pub fn transmit(&mut self, link: Link, out: &mut Vec<u8>, enough: usize) {
        let (id, direction) = link;
        let neighbour = self.at(id);
        out.append(neighbour.links[direction as usize].outbox());
        if neighbour.up != Some(direction) {
            return;
        }
        while out.len() < enough && !self.at(id).outgoing.owed.is_empty() {
            self.tell_some(id, direction, out);
        }
        let outgoing = &mut self.at(id).outgoing;
        if outgoing.owed.is_empty() {
            outgoing.again.clear();
            for family in std::mem::take(&mut outgoing.end_of_rib) {
                wire::end_of_rib(family, out);
            }
        }
    }

    /// Marks all routes of a family as to be told.
    pub(super) fn tell_all(&mut self, id: NeighbourId, family: Family, again: bool) {
        let neighbour = &mut self.neighbours[usize::from(id.0)];
        let outgoing = &mut neighbour.outgoing;
        if again {
            outgoing.again.insert(family);
        }
        let of_family = |d: &&Destination| d.family() == family;
        let known: Vec<Destination> = outgoing.routes.keys().filter(of_family).copied().collect();
        outgoing.owed.extend(known);
        match family {
            Family::Ipv4 | Family::Ipv6 => {
                let all = self.rib.iter().map(|(destination, _)| *destination);
                outgoing.owed.extend(all.filter(|d| d.family() == family));
            }
            Family::Vpn6 => {
                for (rd, export) in &self.exports {
                    let source = Source::Neighbour(export.from);
                    let all = of_neighbour(&self.rib, source);
                    outgoing
                        .owed
                        .extend(all.map(|net| Destination::Vpn6(*rd, net)));
                }
            }
        }
    }

    pub(super) fn export(&mut self, rd: RouteDistinguisher, export: VpnExport) {
        let source = Source::Neighbour(export.from);
        self.unexport(rd);
        self.exports.insert(rd, export);
        let all: Vec<Ipv6Net> = of_neighbour(&self.rib, source).collect();
        for neighbour in &mut self.neighbours {
            for prefix in &all {
                neighbour.tell(Destination::Vpn6(rd, *prefix));
            }
        }
    }

    pub(super) fn unexport(&mut self, rd: RouteDistinguisher) {
        if self.exports.remove(&rd).is_none() {
            return;
        }
        for neighbour in &mut self.neighbours {
            let first = Destination::Vpn6(rd, Ipv6Net::default());
            let told = neighbour.outgoing.routes.range(first..);
            let told: Vec<Destination> = told
                .map(|(destination, _)| *destination)
                .take_while(|d| matches!(d, Destination::Vpn6(of, _) if *of == rd))
                .collect();
            neighbour.outgoing.owed.extend(told);
        }
    }

    /// Writes the messages of some destinations.
    fn tell_some(&mut self, id: NeighbourId, direction: Direction, out: &mut Vec<u8>) {
        let outgoing = &mut self.at(id).outgoing;
        let mut batch = Vec::new();
        while batch.len() < BATCH
            && let Some(destination) = outgoing.owed.pop_first()
        {
            batch.push(destination);
        }
        let mut made: BTreeMap<Key, Arc<Attributes>> = BTreeMap::new();
        let mut withdrawn: BTreeMap<Family, Vec<Nlri>> = BTreeMap::new();
        let mut announced: BTreeMap<(Family, usize), (Arc<Attributes>, Vec<Nlri>)> =
            BTreeMap::new();
        for destination in batch {
            let family = destination.family();
            let known = self.at(id).outgoing.routes.get(&destination).cloned();
            let Some((attributes, label)) = self.made_for(id, &destination, &mut made) else {
                if known.is_some() {
                    self.at(id).outgoing.routes.remove(&destination);
                    let list = withdrawn.entry(family).or_default();
                    list.push(nlri(destination, Label::default()));
                }
                continue;
            };
            let outgoing = &mut self.at(id).outgoing;
            let again = outgoing.again.contains(&family);
            let knows = |(old, old_label): &(Arc<Attributes>, Label)| {
                same(old, &attributes) && *old_label == label
            };
            if !again && known.as_ref().is_some_and(knows) {
                continue;
            }
            outgoing
                .routes
                .insert(destination, (Arc::clone(&attributes), label));
            let key = (family, Arc::as_ptr(&attributes) as usize);
            let group = announced
                .entry(key)
                .or_insert_with(|| (attributes, Vec::new()));
            group.1.push(nlri(destination, label));
        }
        // VPN routes first: a server has its egress peers' tables no later than its best paths.
        for (family, list) in withdrawn.iter().rev() {
            wire::withdraw(*family, list, out);
        }
        let mut failed = Vec::new();
        let encoding = self.at(id).links[direction as usize].encoding();
        for ((family, _), (attributes, list)) in announced.iter().rev() {
            if wire::announce(attributes, *family, list, encoding, out).is_err() {
                failed.extend(list.iter().map(|nlri| (*family, nlri.destination)));
            }
        }
        // What cannot be said is not said, and an older route that could be does not stay either.
        for (family, destination) in failed {
            self.at(id).outgoing.routes.remove(&destination);
            wire::withdraw(family, &[nlri(destination, Label::default())], out);
        }
    }

    /// A route as the neighbour is to hear it; `None`: it is not to.
    fn made_for(
        &mut self,
        id: NeighbourId,
        destination: &Destination,
        made: &mut BTreeMap<Key, Arc<Attributes>>,
    ) -> Option<(Arc<Attributes>, Label)> {
        let neighbour = &self.neighbours[usize::from(id.0)];
        let exported = self.exported(id, neighbour, destination)?;
        let label = exported.vpn.map_or(Label::default(), |vpn| vpn.label);
        let rd = match destination {
            Destination::Vpn6(rd, _) => Some(*rd),
            _ => None,
        };
        let pointer = Arc::as_ptr(&exported.path.attributes) as usize;
        let key = (pointer, exported.changes, rd);
        if let Some(attributes) = made.get(&key) {
            return Some((Arc::clone(attributes), label));
        }
        let attributes = self.make(neighbour, &exported, destination.family())?;
        let attributes = self.interner.intern(attributes);
        made.insert(key, Arc::clone(&attributes));
        Some((attributes, label))
    }

    fn exported<'a>(
        &'a self,
        id: NeighbourId,
        neighbour: &Neighbour,
        destination: &Destination,
    ) -> Option<Exported<'a>> {
        if let Destination::Vpn6(rd, prefix) = destination {
            if neighbour.external {
                return None;
            }
            let export = self.exports.get(rd)?;
            let source = Source::Neighbour(export.from);
            let facts = facts(&self.neighbours);
            let path = self
                .rib
                .best_of(&Destination::V6(*prefix), source, &facts)?;
            let changes = Changes::default();
            return may_leave(path, false).then_some(Exported {
                path,
                changes,
                vpn: Some(export),
            });
        }
        let path = self.rib.best(destination)?;
        if let Source::Neighbour(from) = path.source {
            let internal = !self.neighbours[usize::from(from.0)].external;
            // No reflector: routes of this AS are not told within it (RFC 4271 §9.2.1).
            if from == id || internal && !neighbour.external {
                return None;
            }
        }
        if !may_leave(path, neighbour.external) {
            return None;
        }
        let changes = neighbour
            .config
            .export
            .judge(destination, &path.attributes, &self.vrps)?;
        Some(Exported {
            path,
            changes,
            vpn: None,
        })
    }

    /// The attributes that the neighbour hears; `None`: we have no address to give as next hop.
    fn make(
        &self,
        neighbour: &Neighbour,
        exported: &Exported<'_>,
        family: Family,
    ) -> Option<Attributes> {
        let old = &*exported.path.attributes;
        let changes = &exported.changes;
        let own = neighbour.config.next_hop.or(neighbour.local());
        let own = own.filter(|address| family == Family::Ipv4 || address.is_ipv6());
        let mut new = Attributes {
            link_local: None,
            ..old.clone()
        };
        if neighbour.external {
            let times = 1 + usize::from(changes.prepend);
            new.as_path = old.as_path.prepended(self.config.asn, times);
            new.next_hop = own?;
            new.med = changes.med;
            new.local_pref = None;
            new.originator = None;
            new.clusters = Box::default();
            new.service = None;
            new.extended = old
                .extended
                .iter()
                .copied()
                .filter(|community| community >> 56 & NON_TRANSITIVE == 0)
                .collect();
            return Some(new);
        }
        let local = exported.path.source == Source::Local;
        if exported.vpn.is_some() || neighbour.config.next_hop_self || local {
            new.next_hop = own?;
        }
        new.med = changes.med.or(old.med);
        new.local_pref = changes
            .local_pref
            .or(old.local_pref)
            .or(Some(DEFAULT_LOCAL_PREF));
        if let Some(vpn) = exported.vpn {
            let others = old.extended.iter().copied();
            let others = others.filter(|&c| RouteTarget::of_community(c).is_none());
            new.extended = others.chain(vpn.targets.iter().map(|t| t.0)).collect();
            new.service = Some(vpn.service);
        }
        Some(new)
    }
}

/// Well-known communities (RFC 1997) that keep a route where it is.
fn may_leave(path: &Path, external: bool) -> bool {
    let has = |community| path.attributes.communities.contains(&community);
    !(has(NO_ADVERTISE) || external && (has(NO_EXPORT) || has(NO_EXPORT_SUBCONFED)))
}

/// The IPv6 prefixes of a neighbour.
fn of_neighbour(rib: &crate::rib::Rib, source: Source) -> impl Iterator<Item = Ipv6Net> {
    rib.from(Destination::V6(Ipv6Net::default()))
        .map_while(|(destination, paths)| match destination {
            Destination::V6(net) => Some((*net, paths)),
            _ => None,
        })
        .filter(move |(_, paths)| paths.iter().any(|path| path.source == source))
        .map(|(net, _)| net)
}

fn nlri(destination: Destination, label: Label) -> Nlri {
    Nlri {
        destination,
        path_id: 0,
        label,
    }
}

/// Destinations looked at together: as many as fill some messages. Ours.
const BATCH: usize = 1024;
/// The bit of an extended community's type that keeps it within an AS (RFC 4360 §2).
const NON_TRANSITIVE: u64 = 0x40;
const NO_EXPORT: u32 = 0xffff_ff01;
const NO_ADVERTISE: u32 = 0xffff_ff02;
const NO_EXPORT_SUBCONFED: u32 = 0xffff_ff03;
