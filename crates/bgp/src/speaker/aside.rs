//! What policy has made something else of, or nothing, as it came: so that another policy can be
//! applied without asking neighbours for their routes again (RFC 9324 §4).
//!
//! What is taken as it came is in the table; only the rest is here.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    address::{Destination, Family},
    attributes::Attributes,
    nlri::Nlri,
    srv6::Label,
};

/// Routes of one neighbour of another AS.
#[derive(Debug, Default)]
pub(super) struct Aside {
    denied: BTreeMap<Family, Routes>,
    changed: Routes,
}

/// By destination and path identifier.
type Routes = BTreeMap<(Destination, u32), (Arc<Attributes>, Label)>;

impl Aside {
    pub(super) fn deny(&mut self, nlri: &Nlri, came: &Arc<Attributes>) {
        let (key, route) = entry(nlri, came);
        self.changed.remove(&key);
        let of_family = self.denied.entry(key.0.family()).or_default();
        of_family.insert(key, route);
    }

    pub(super) fn change(&mut self, nlri: &Nlri, came: &Arc<Attributes>) {
        self.forget(nlri);
        let (key, route) = entry(nlri, came);
        self.changed.insert(key, route);
    }

    /// It is withdrawn, or in the table as it came.
    pub(super) fn forget(&mut self, nlri: &Nlri) {
        let key = (nlri.destination, nlri.path_id);
        self.changed.remove(&key);
        if let Some(of_family) = self.denied.get_mut(&key.0.family()) {
            of_family.remove(&key);
        }
    }

    /// The neighbour announces all routes of a family once more.
    pub(super) fn forget_family(&mut self, family: Family) {
        self.denied.remove(&family);
        self.changed.retain(|key, _| key.0.family() != family);
    }

    /// How many routes of a family are not taken.
    pub(super) fn denied(&self, family: Family) -> usize {
        self.denied.get(&family).map_or(0, BTreeMap::len)
    }

    /// Whether a route that is taken came otherwise.
    pub(super) fn is_changed(&self, destination: Destination, path_id: u32) -> bool {
        self.changed.contains_key(&(destination, path_id))
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Nlri, Arc<Attributes>)> {
        let denied = self.denied.values().flatten();
        denied.chain(&self.changed).map(|(key, (came, label))| {
            let nlri = Nlri {
                destination: key.0,
                path_id: key.1,
                label: *label,
            };
            (nlri, Arc::clone(came))
        })
    }
}

fn entry(nlri: &Nlri, came: &Arc<Attributes>) -> ((Destination, u32), (Arc<Attributes>, Label)) {
    let key = (nlri.destination, nlri.path_id);
    (key, (Arc::clone(came), nlri.label))
}
