//! How many first packets of split connections may wait: of all, of each tenant and of each client.

use std::{collections::BTreeMap, net::IpAddr};

use keiro_core::TenantId;

use super::super::super::quota::{Quota, QuotaGuard, QuotaOwner};

/// What tenants share, what the clients of each share, and the descriptors that all need.
#[derive(Debug)]
pub(super) struct Places {
    descriptors: Quota,
    tenants: Quota<TenantId>,
    /// Of tenants that have listeners.
    clients: BTreeMap<TenantId, Quota<IpAddr>>,
}

/// Taken from the first packet on until the kernel has no handshake of it: its client was accepted, or gave up.
#[derive(Debug)]
pub(super) struct Place {
    _of_tenant: QuotaGuard<TenantId>,
    _of_client: QuotaGuard<IpAddr>,
}

/// Packets that wait. Ours: thousands of connections each second where the server is near.
pub(super) const HELD_MAX: usize = 4096;

impl Places {
    pub(super) fn new(descriptors: Quota) -> Self {
        Self {
            descriptors,
            tenants: Quota::new(HELD_MAX),
            clients: BTreeMap::new(),
        }
    }

    /// A tenant has listeners with room for `handshakes` each; half of it is left to whatever else finds them.
    pub(super) fn add_tenant(&mut self, tenant: TenantId, handshakes: usize) {
        self.clients.insert(tenant, Quota::new(handshakes / 2));
    }

    pub(super) fn remove_tenant(&mut self, tenant: TenantId) {
        self.clients.remove(&tenant);
    }

    /// A place, and the descriptor that its client will need; `None`: others have as many as there are, or this client.
    pub(super) fn take(&self, tenant: TenantId, client: IpAddr) -> Option<(Place, QuotaGuard)> {
        let place = Place {
            _of_client: self.clients.get(&tenant)?.take(client)?,
            _of_tenant: self.tenants.take(tenant)?,
        };
        let descriptor = self.descriptors.take(QuotaOwner::SplitClients(tenant))?;
        Some((place, descriptor))
    }

    /// How many are taken.
    pub(super) fn taken(&self) -> usize {
        self.tenants.taken()
    }
}
