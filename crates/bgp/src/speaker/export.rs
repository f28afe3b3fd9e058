//! What is advertised to neighbours: the Adj-RIB-Out and the UPDATE messages for its changes.
//!
//! UPDATEs are written only when there is room to send them. A slow reader costs no more than a set
//! of pending destinations, and a destination that changes twice in the meantime is sent once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{
    ConnectionId, Direction, Event, Neighbour, NotAdvertised, Speaker, VpnExport,
    import::EVENTS_MAX, peer_attributes,
};
use crate::{
    address::{Destination, Family, RouteDistinguisher, RouteTarget},
    attributes::{Attributes, DEFAULT_LOCAL_PREF, NO_EXPORT, same},
    nlri::Nlri,
    policy::AttributeChanges,
    rib::{NeighbourId, Path, Source},
    srv6::Label,
    wire,
};

/// The routes advertised to a neighbour, and the destinations that still have to be sent.
#[derive(Debug, Default)]
pub(super) struct AdjRibOut {
    routes: BTreeMap<Destination, (Arc<Attributes>, Label)>,
    /// Destinations that should be in `routes` and cannot be advertised, with the reason.
    not_advertised: BTreeMap<Destination, Arc<str>>,
    pending: BTreeSet<Destination>,
    /// Families that the neighbour asked for again (route refresh): unchanged routes are sent too.
    resend: BTreeSet<Family>,
    end_of_rib: BTreeSet<Family>,
}

/// Routes of one family with the same attributes.
#[derive(Clone, Copy)]
struct Announcement<'a> {
    family: Family,
    attributes: &'a Attributes,
    list: &'a [Nlri],
}

/// A route to advertise, before its attributes are computed.
struct Exported<'a> {
    path: &'a Path,
    changes: AttributeChanges,
    vpn: Option<&'a VpnExport>,
}

/// Identifies computed attributes: source attributes, changes, VPN, whose families have services of their own.
type Key = (
    usize,
    AttributeChanges,
    Option<(RouteDistinguisher, Family)>,
);

impl AdjRibOut {
    pub(super) fn len(&self) -> usize {
        self.routes.len()
    }

    pub(super) fn not_advertised_len(&self) -> usize {
        self.not_advertised.len()
    }

    pub(super) fn not_advertised(&self, destination: &Destination) -> Option<&str> {
        self.not_advertised.get(destination).map(AsRef::as_ref)
    }

    /// Records why these destinations cannot be advertised, and returns those for which that is new.
    fn on_failure(&mut self, reason: &str, list: &[Nlri]) -> Vec<Destination> {
        let reason: Arc<str> = reason.into();
        let failed = list.iter().map(|nlri| nlri.destination);
        failed
            .filter(|destination| {
                self.routes.remove(destination);
                let before = self
                    .not_advertised
                    .insert(*destination, Arc::clone(&reason));
                before.is_none_or(|before| before != reason)
            })
            .collect()
    }

    fn on_announced(&mut self, list: &[Nlri]) {
        if self.not_advertised.is_empty() {
            return;
        }
        for nlri in list {
            self.not_advertised.remove(&nlri.destination);
        }
    }

    pub(super) fn enqueue(&mut self, destination: Destination) {
        self.pending.insert(destination);
    }

    /// Does not send a destination before it is queued again.
    pub(super) fn hold(&mut self, destination: &Destination) {
        self.pending.remove(destination);
    }

    /// What to send next, in order. VPN routes go first, so that a server has the tables of its egress
    /// peers before its best paths, and hears of a lost egress peer at once. They do not take the whole
    /// batch, so that VPN routes which change all the time do not hold up the others.
    fn next_batch(&mut self) -> Vec<Destination> {
        let mut batch = Vec::new();
        let [_, first_vpn4] = Destination::first_of_vpn(RouteDistinguisher(0));
        while batch.len() < VPN_BATCH
            && let Some(last) = self.pending.last().filter(|last| last.is_vpn())
        {
            // Half of them are of IPv4 where both families wait.
            let last = match batch.len() < VPN_BATCH / 2 {
                true => *last,
                false => {
                    let others = self.pending.range(..first_vpn4).next_back();
                    *others.filter(|other| other.is_vpn()).unwrap_or(last)
                }
            };
            self.pending.remove(&last);
            batch.push(last);
        }
        batch.reverse();
        while batch.len() < BATCH
            && let Some(destination) = self.pending.pop_first()
        {
            batch.push(destination);
        }
        batch
    }

    pub(super) fn enqueue_end_of_rib(&mut self, family: Family) {
        self.end_of_rib.insert(family);
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.end_of_rib.is_empty()
    }
}

impl Speaker {
    /// Whether there is something to send over a connection.
    ///
    /// # Panics
    /// There is no such neighbour.
    pub fn has_output(&self, connection: ConnectionId) -> bool {
        let neighbour = &self.neighbours[usize::from(connection.neighbour.0)];
        neighbour.sessions[connection.direction as usize].has_output()
            || neighbour.up == Some(connection.direction) && !neighbour.adj_rib_out.is_idle()
    }

    /// Appends what is to be sent over a connection, until `out` holds at least `enough` octets.
    ///
    /// # Panics
    /// There is no such neighbour.
    pub fn transmit(&mut self, connection: ConnectionId, out: &mut Vec<u8>, enough: usize) {
        let ConnectionId {
            neighbour: id,
            direction,
        } = connection;
        let neighbour = self.neighbour_mut(id);
        out.append(neighbour.sessions[direction as usize].send_buffer());
        if neighbour.up != Some(direction) {
            return;
        }
        while out.len() < enough && !self.neighbour_mut(id).adj_rib_out.pending.is_empty() {
            self.write_updates(id, direction, out);
        }
        let adj_rib_out = &mut self.neighbour_mut(id).adj_rib_out;
        if adj_rib_out.pending.is_empty() {
            adj_rib_out.resend.clear();
            for family in std::mem::take(&mut adj_rib_out.end_of_rib) {
                wire::end_of_rib(family, out);
            }
        }
    }

    /// Queues all routes of a family.
    pub(super) fn enqueue_all(&mut self, id: NeighbourId, family: Family, again: bool) {
        let neighbour = &mut self.neighbours[usize::from(id.0)];
        let adj_rib_out = &mut neighbour.adj_rib_out;
        if again {
            adj_rib_out.resend.insert(family);
        }
        let of_family = |d: &&Destination| d.family() == family;
        let known: Vec<Destination> = adj_rib_out
            .routes
            .keys()
            .filter(of_family)
            .copied()
            .collect();
        adj_rib_out.pending.extend(known);
        match family {
            Family::Ipv4 | Family::Ipv6 => {
                let all = self.rib.iter().map(|(destination, _)| *destination);
                adj_rib_out
                    .pending
                    .extend(all.filter(|d| d.family() == family));
            }
            Family::Vpn6 | Family::Vpn4 => {
                for (rd, export) in &self.exports {
                    let all = exported_prefixes(&self.rib, export, family);
                    let all = all.map(|net| Destination::vpn(*rd, net));
                    adj_rib_out.pending.extend(all);
                }
            }
        }
    }

    /// From now on, changed best paths are advertised only after [`on_applied`](Self::on_applied), so
    /// that no neighbour hears of a change that the forwarding plane does not have yet. VPN routes are
    /// not held: their driver applies them before it lets anything be sent.
    pub fn hold_best_paths(&mut self) {
        self.holds_best_paths = true;
    }

    /// The forwarding plane has the current best paths to these destinations.
    pub fn on_applied<'a>(&mut self, destinations: impl IntoIterator<Item = &'a Destination>) {
        for destination in destinations {
            for neighbour in &mut self.neighbours {
                neighbour.enqueue(*destination);
            }
        }
    }

    pub(super) fn export(&mut self, rd: RouteDistinguisher, export: VpnExport) {
        self.unexport(rd);
        let families = [Family::Vpn6, Family::Vpn4].into_iter();
        let all = families.flat_map(|family| exported_prefixes(&self.rib, &export, family));
        let all: Vec<IpNet> = all.collect();
        self.exports.insert(rd, export);
        for neighbour in &mut self.neighbours {
            for prefix in &all {
                neighbour.enqueue(Destination::vpn(rd, *prefix));
            }
        }
    }

    pub(super) fn unexport(&mut self, rd: RouteDistinguisher) {
        if self.exports.remove(&rd).is_none() {
            return;
        }
        for neighbour in &mut self.neighbours {
            for first in Destination::first_of_vpn(rd) {
                let of_vpn =
                    |d: &Destination| d.family() == first.family() && d.distinguisher() == Some(rd);
                let advertised = neighbour.adj_rib_out.routes.range(first..);
                let advertised: Vec<Destination> = advertised
                    .map(|(destination, _)| *destination)
                    .take_while(of_vpn)
                    .collect();
                neighbour.adj_rib_out.pending.extend(advertised);
            }
        }
    }

    /// Writes UPDATEs for a batch of pending destinations.
    fn write_updates(&mut self, id: NeighbourId, direction: Direction, out: &mut Vec<u8>) {
        let batch = self.neighbour_mut(id).adj_rib_out.next_batch();
        let mut made: BTreeMap<Key, Arc<Attributes>> = BTreeMap::new();
        let mut withdrawn: BTreeMap<Family, Vec<Nlri>> = BTreeMap::new();
        let mut announced: BTreeMap<(Family, usize), (Arc<Attributes>, Vec<Nlri>)> =
            BTreeMap::new();
        for destination in batch {
            let family = destination.family();
            let known = self
                .neighbour_mut(id)
                .adj_rib_out
                .routes
                .get(&destination)
                .cloned();
            let Some((attributes, label)) = self.attributes_for(id, &destination, &mut made) else {
                let adj_rib_out = &mut self.neighbour_mut(id).adj_rib_out;
                adj_rib_out.not_advertised.remove(&destination);
                if known.is_some() {
                    adj_rib_out.routes.remove(&destination);
                    let list = withdrawn.entry(family).or_default();
                    list.push(nlri(destination, Label::default()));
                }
                continue;
            };
            let adj_rib_out = &mut self.neighbour_mut(id).adj_rib_out;
            let again = adj_rib_out.resend.contains(&family);
            let knows = |(old, old_label): &(Arc<Attributes>, Label)| {
                same(old, &attributes) && *old_label == label
            };
            if !again && known.as_ref().is_some_and(knows) {
                continue;
            }
            adj_rib_out
                .routes
                .insert(destination, (Arc::clone(&attributes), label));
            let key = (family, Arc::as_ptr(&attributes) as usize);
            let group = announced
                .entry(key)
                .or_insert_with(|| (attributes, Vec::new()));
            group.1.push(nlri(destination, label));
        }
        // The same order inside a batch.
        for (family, list) in withdrawn.iter().rev() {
            wire::withdraw(*family, list, out);
        }
        for ((family, _), (attributes, list)) in announced.iter().rev() {
            let announcement = Announcement {
                family: *family,
                attributes,
                list,
            };
            self.write_announcement(id, direction, announcement, out);
        }
    }

    /// Announces routes with the same attributes; if that is not possible, withdraws earlier versions
    /// of them.
    fn write_announcement(
        &mut self,
        id: NeighbourId,
        direction: Direction,
        announcement: Announcement<'_>,
        out: &mut Vec<u8>,
    ) {
        let Announcement {
            family,
            attributes,
            list,
        } = announcement;
        let neighbour = &mut self.neighbours[usize::from(id.0)];
        let encoding = neighbour.sessions[direction as usize].encoding();
        let Err(reason) = wire::announce(attributes, family, list, encoding, out) else {
            neighbour.adj_rib_out.on_announced(list);
            return;
        };
        wire::withdraw(family, list, out);
        let reported = neighbour.adj_rib_out.on_failure(&reason, list);
        if let Some(&destination) = reported.first()
            && self.events.len() < EVENTS_MAX
        {
            let what = NotAdvertised {
                destination,
                routes: reported.len(),
                reason,
            };
            self.events.push_back(Event::NotAdvertised(id, what));
        }
    }

    /// The attributes and label to advertise; `None`: the route is not advertised to this
    /// neighbour.
    fn attributes_for(
        &mut self,
        id: NeighbourId,
        destination: &Destination,
        made: &mut BTreeMap<Key, Arc<Attributes>>,
    ) -> Option<(Arc<Attributes>, Label)> {
        let neighbour = &self.neighbours[usize::from(id.0)];
        let exported = self.exported(id, neighbour, destination)?;
        let label = exported
            .vpn
            .map_or(Label::default(), |vpn| vpn.label_for(destination.family()));
        let vpn = destination.distinguisher();
        let vpn = vpn.map(|rd| (rd, destination.family()));
        let pointer = Arc::as_ptr(&exported.path.attributes) as usize;
        let key = (pointer, exported.changes.clone(), vpn);
        if let Some(attributes) = made.get(&key) {
            return Some((Arc::clone(attributes), label));
        }
        let attributes = self.exported_attributes(neighbour, &exported, destination.family())?;
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
        if let Some(rd) = destination.distinguisher() {
            if neighbour.external {
                return None;
            }
            let export = self.exports.get(&rd)?;
            export.service_for(destination.family())?;
            let source = Source::Neighbour(export.from);
            let peers = peer_attributes(&self.neighbours);
            let path =
                self.rib
                    .best_from(&Destination::unicast(destination.prefix()), source, &peers)?;
            let changes = AttributeChanges::default();
            return may_leave(path, false).then_some(Exported {
                path,
                changes,
                vpn: Some(export),
            });
        }
        let path = self.rib.best(destination)?;
        if let Source::Neighbour(from) = path.source {
            let internal = !self.neighbours[usize::from(from.0)].external;
            // The speaker is no route reflector: iBGP routes are not advertised to iBGP neighbours
            // (RFC 4271 §9.2.1).
            if from == id || internal && !neighbour.external {
                return None;
            }
        }
        if !may_leave(path, neighbour.external) {
            return None;
        }
        let changes =
            neighbour
                .config
                .export
                .evaluate(destination, &path.attributes, &self.vrps)?;
        Some(Exported {
            path,
            changes,
            vpn: None,
        })
    }

    /// The attributes to advertise; `None`: there is no local address to use as next hop.
    fn exported_attributes(
        &self,
        neighbour: &Neighbour,
        exported: &Exported<'_>,
        family: Family,
    ) -> Option<Attributes> {
        let old = &*exported.path.attributes;
        let changes = &exported.changes;
        let own = neighbour.config.next_hop.or(neighbour.local());
        let own = own.filter(|address| family.afi() == Family::Ipv4.afi() || address.is_ipv6());
        let mut new = Attributes {
            link_local: None,
            // It is this router that drops.
            blackhole: false,
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
            changes.change_communities(&mut new);
            return Some(new);
        }
        let local = exported.path.source == Source::Local;
        if exported.vpn.is_some() || neighbour.config.next_hop_self || local {
            new.next_hop = own?;
        }
        if let Some(communities) = &changes.communities {
            communities.apply(&mut new);
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
            new.service = vpn.service_for(family);
        }
        Some(new)
    }
}

/// Whether the well-known communities of RFC 1997 permit advertising the path.
fn may_leave(path: &Path, external: bool) -> bool {
    let has = |community| path.attributes.communities.contains(&community);
    !(has(NO_ADVERTISE) || external && (has(NO_EXPORT) || has(NO_EXPORT_SUBCONFED)))
}

/// The prefixes received from a neighbour of which VPN routes of a family are made.
fn exported_prefixes(
    rib: &crate::rib::Rib,
    export: &VpnExport,
    family: Family,
) -> impl Iterator<Item = IpNet> {
    let first = match family {
        Family::Ipv4 | Family::Vpn4 => Destination::V4(Ipv4Net::default()),
        Family::Ipv6 | Family::Vpn6 => Destination::V6(Ipv6Net::default()),
    };
    let source = Source::Neighbour(export.from);
    let all = export.service_for(family).map(|_| rib.from(first));
    all.into_iter()
        .flatten()
        .take_while(move |(destination, _)| destination.family() == first.family())
        .filter(move |(_, paths)| paths.iter().any(|path| path.source == source))
        .map(|(destination, _)| destination.prefix())
}

fn nlri(destination: Destination, label: Label) -> Nlri {
    Nlri {
        destination,
        path_id: 0,
        label,
    }
}

/// Destinations handled together, enough to fill several messages. Ours.
const BATCH: usize = 1024;
/// VPN routes among them while others wait too. Ours.
const VPN_BATCH: usize = 768;
/// The bit of an extended community's type that keeps it within an AS (RFC 4360 §2).
const NON_TRANSITIVE: u64 = 0x40;
const NO_ADVERTISE: u32 = 0xffff_ff02;
const NO_EXPORT_SUBCONFED: u32 = 0xffff_ff03;
