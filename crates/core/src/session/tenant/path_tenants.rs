//! The tenants on one path: who is ready, and in which order.

use std::collections::{BTreeMap, BTreeSet};

use keiro_model::fairness::controller::{Line, Weight};
use keiro_units::Instant;

use super::{
    BacklogState, SchedulerGrant,
    start_tags::StartTags,
    tenant_path::{Readiness, TenantPath},
};
use crate::{id::TenantId, table::Table, tenant::TenantConfig};

/// Virtual time of a byte of a tenant of weight 1.
const VIRTUAL_TIME_PER_BYTE: u64 = 1000 * 1000;

/// The tenants on one path.
#[derive(Debug, Default)]
pub(super) struct PathTenants {
    pub(super) tenant_paths: Table<TenantId, Box<TenantPath>>,
    pub(super) ready: StartTags,
    pub(super) timed: BTreeSet<(Instant, TenantId)>,
    /// Start tag of the tenant that was served last.
    pub(super) virtual_time: u64,
    /// Tenants with nothing but items that wait until the path may send an aggregate.
    pub(super) coalescing: BTreeSet<TenantId>,
    /// Bytes in flight of tenants that were removed meanwhile.
    pub(super) removed: BTreeMap<TenantId, u64>,
    /// Memory of what waits.
    pub(super) cost: u64,
    /// When it was last looked for tenants of which the peer is to be informed that they are limited.
    pub(super) limited_at: Option<Instant>,
    /// What is known of the path's line.
    pub(super) line: Line,
}

impl PathTenants {
    /// Tenants whose rate lets them send are ready.
    pub(super) fn make_timed_ready(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.timed.first().filter(|(at, _)| *at <= now) {
            self.timed.remove(&(at, id));
            self.make_ready(id);
        }
    }

    /// A tenant is ready whatever holds it back.
    pub(super) fn make_ready_now(&mut self, id: TenantId) {
        let readiness = self.tenant_paths.get(id).map(|path| path.readiness());
        match readiness {
            None | Some(Readiness::Ready(_)) => return,
            Some(Readiness::Timed(at)) => drop(self.timed.remove(&(at, id))),
            Some(Readiness::Blocked) => {}
        }
        self.make_ready(id);
    }

    /// A tenant that is ready has nothing to send, or is held back.
    pub(super) fn leave_ready(&mut self, id: TenantId, to: Readiness) {
        let Some(tenant_path) = self.tenant_paths.get_mut(id) else {
            return;
        };
        if let Readiness::Ready(start_tag) = tenant_path.on_held_back(to) {
            self.ready.remove(start_tag, id);
        }
        if let Readiness::Timed(at) = to {
            self.timed.insert((at, id));
        }
    }

    /// A tenant on this path. `mtu`: largest IP packet of the path.
    pub(super) fn tenant_path(
        &mut self,
        now: Instant,
        id: TenantId,
        config: &TenantConfig,
        mtu: u16,
    ) -> &mut TenantPath {
        self.tenant_paths.get_or_insert_with(id, || {
            let in_flight = self.removed.remove(&id).unwrap_or(0);
            let mut tenant_path = TenantPath::new(now, config, u64::from(mtu), in_flight);
            tenant_path.on_line(self.line);
            Box::new(tenant_path)
        })
    }

    /// What a tenant has of items.
    pub(super) fn on_backlog(&mut self, id: TenantId, state: BacklogState) {
        let Some(tenant_path) = self.tenant_paths.get_mut(id) else {
            return;
        };
        tenant_path.set_has_backlog(state == BacklogState::Ready);
        match state {
            BacklogState::Coalescing => self.coalescing.insert(id),
            BacklogState::None | BacklogState::Ready => self.coalescing.remove(&id),
        };
    }

    /// A tenant that has nothing to send gets no turns; whether it has nothing.
    pub(super) fn leave_if_idle(&mut self, id: TenantId) -> bool {
        let is_idle = self.tenant_paths.get(id).is_some_and(|path| path.is_idle());
        if is_idle {
            self.leave_ready(id, Readiness::Blocked);
        }
        is_idle
    }

    /// A tenant has used its turn: the next comes by its new start tag, if it has more to send.
    pub(super) fn on_turn_over(&mut self, grant: SchedulerGrant) {
        let id = grant.tenant;
        if self.leave_if_idle(id) {
            return;
        }
        if let Some(tenant_path) = self.tenant_paths.get_mut(id) {
            let start_tag = tenant_path.on_ready(self.virtual_time);
            self.ready.change(id, grant.start_tag, start_tag);
        }
    }

    /// A tenant may have something to send.
    pub(super) fn wake(&mut self, id: TenantId) {
        let Some(tenant_path) = self.tenant_paths.get_mut(id) else {
            return;
        };
        match tenant_path.readiness() {
            Readiness::Blocked if !tenant_path.is_idle() => self.make_ready(id),
            // A faster rate does not have to wait for the slower one.
            Readiness::Timed(at) if tenant_path.next_at() < at => {
                self.timed.remove(&(at, id));
                self.make_ready(id);
            }
            _ => {}
        }
    }

    fn make_ready(&mut self, id: TenantId) {
        if let Some(tenant_path) = self.tenant_paths.get_mut(id) {
            let start_tag = tenant_path.on_ready(self.virtual_time);
            self.ready.insert(start_tag, id);
        }
    }

    pub(super) fn check_invariants(&self) {
        let costs = self.tenant_paths.values().map(|path| path.cost());
        assert_eq!(self.cost, costs.sum::<u64>(), "memory of a path");
        let listed: BTreeSet<(u64, TenantId)> = self.ready.iter().collect();
        let mut ready = 0;
        let mut timed = 0;
        for (id, tenant_path) in self.tenant_paths.iter() {
            match tenant_path.readiness() {
                Readiness::Blocked => {}
                Readiness::Ready(start_tag) => {
                    assert!(listed.contains(&(start_tag, id)), "who is ready is listed");
                    ready += 1;
                }
                Readiness::Timed(at) => {
                    assert!(self.timed.contains(&(at, id)), "who is timed is listed");
                    timed += 1;
                }
            }
            tenant_path.flows.check_invariants();
        }
        assert_eq!(
            self.ready.iter().count(),
            ready,
            "only who is ready is listed"
        );
        assert_eq!(self.timed.len(), timed, "only who is timed is listed");
    }

    pub(super) fn remove(&mut self, id: TenantId) {
        let Some(tenant_path) = self.tenant_paths.remove(id) else {
            return;
        };
        self.cost -= tenant_path.cost();
        self.coalescing.remove(&id);
        match tenant_path.readiness() {
            Readiness::Blocked => {}
            Readiness::Ready(start_tag) => self.ready.remove(start_tag, id),
            Readiness::Timed(at) => drop(self.timed.remove(&(at, id))),
        }
        if tenant_path.in_flight() > 0 {
            self.removed.insert(id, tenant_path.in_flight());
        }
    }

    pub(super) fn forget_removed(&mut self, id: TenantId, bytes: u64) {
        if let Some(left) = self.removed.get_mut(&id) {
            *left = left.saturating_sub(bytes);
            if *left == 0 {
                self.removed.remove(&id);
            }
        }
    }
}

/// The virtual time that `bytes` of a tenant take.
pub(super) fn virtual_time_of(bytes: u64, weight: Weight) -> u64 {
    bytes.saturating_mul(VIRTUAL_TIME_PER_BYTE) / u64::from(weight.thousandths())
}
