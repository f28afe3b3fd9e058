//! Received routes that the import policy denied or modified, as the neighbour sent them (RFC 4271
//! §3.2). They allow a new policy to be applied without asking for a route refresh (RFC 9324 §4).
//!
//! Routes that were accepted unmodified are only in the RIB.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use crate::{
    address::{Destination, Family},
    attributes::Attributes,
    nlri::Nlri,
    srv6::Label,
};

/// The Adj-RIB-In of one eBGP neighbour, without the routes that were accepted unmodified.
#[derive(Debug, Default)]
pub(super) struct AdjRibIn {
    denied: BTreeMap<Family, Routes>,
    modified: Routes,
}

/// By destination and path identifier.
type Routes = BTreeMap<(Destination, u32), (Arc<Attributes>, Label)>;

impl AdjRibIn {
    pub(super) fn insert_denied(&mut self, nlri: &Nlri, received: &Arc<Attributes>) {
        let (key, route) = entry(nlri, received);
        self.modified.remove(&key);
        let of_family = self.denied.entry(key.0.family()).or_default();
        of_family.insert(key, route);
    }

    pub(super) fn insert_modified(&mut self, nlri: &Nlri, received: &Arc<Attributes>) {
        self.remove(nlri);
        let (key, route) = entry(nlri, received);
        self.modified.insert(key, route);
    }

    /// Removes a route that was withdrawn, or accepted unmodified.
    pub(super) fn remove(&mut self, nlri: &Nlri) {
        let key = (nlri.destination, nlri.path_id);
        self.modified.remove(&key);
        if let Some(of_family) = self.denied.get_mut(&key.0.family()) {
            of_family.remove(&key);
        }
    }

    /// Called when the neighbour starts to announce a family again.
    pub(super) fn remove_family(&mut self, family: Family) {
        self.denied.remove(&family);
        self.modified.retain(|key, _| key.0.family() != family);
    }

    /// The number of denied routes of a family.
    pub(super) fn denied_len(&self, family: Family) -> usize {
        self.denied.get(&family).map_or(0, BTreeMap::len)
    }

    /// The denied routes to destinations after one, in their order.
    pub(super) fn denied_after(
        &self,
        after: Option<Destination>,
    ) -> impl Iterator<Item = (Nlri, &Arc<Attributes>)> {
        let families = self.denied.iter();
        let families = families
            .filter(move |(family, _)| after.is_none_or(|after| after.family() <= **family));
        let routes = families.flat_map(move |(_, routes)| {
            let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded((after, u32::MAX)));
            routes.range((from, Bound::Unbounded))
        });
        routes.map(|(key, (received, label))| {
            let nlri = Nlri {
                destination: key.0,
                path_id: key.1,
                label: *label,
            };
            (nlri, received)
        })
    }

    /// Whether the policy modified an accepted route.
    pub(super) fn is_modified(&self, destination: Destination, path_id: u32) -> bool {
        self.modified.contains_key(&(destination, path_id))
    }

    /// All denied and modified routes, as received.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Nlri, Arc<Attributes>)> {
        let denied = self.denied.values().flatten();
        denied
            .chain(&self.modified)
            .map(|(key, (received, label))| {
                let nlri = Nlri {
                    destination: key.0,
                    path_id: key.1,
                    label: *label,
                };
                (nlri, Arc::clone(received))
            })
    }
}

fn entry(
    nlri: &Nlri,
    received: &Arc<Attributes>,
) -> ((Destination, u32), (Arc<Attributes>, Label)) {
    let key = (nlri.destination, nlri.path_id);
    (key, (Arc::clone(received), nlri.label))
}
