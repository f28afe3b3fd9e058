//! Tenants that are limited: those of ours, of which the peer is informed, and those of the peer, of whose
//! rates reports are made.

use std::time::Duration;

use keiro_model::fairness::{
    common_unit::{REPORT_INTERVAL, REPORT_LIFETIME},
    controller::ControllerConfig,
};
use keiro_units::{Bandwidth, Instant};

use super::{Tenant, Tenants};
use crate::id::{PathId, TenantId};

/// A contradiction is reported to the driver once in as long. Ours: people read it.
const CONTRADICTED_AGAIN: Duration = Duration::from_secs(600);

/// A tenant whose configured unit contradicts what is found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnitMismatch {
    pub(crate) path: PathId,
    pub(crate) tenant: TenantId,
    pub(crate) configured: Bandwidth,
    pub(crate) found: Bandwidth,
}

/// Mismatches of the unit, of which the newest waits to be reported.
#[derive(Debug, Default)]
pub(super) struct UnitMismatches {
    waiting: Option<UnitMismatch>,
    reported_at: Option<Instant>,
}

impl Tenant {
    /// What is written for its controller.
    pub(super) fn configured_unit(&self) -> Option<Bandwidth> {
        match self.config.controller {
            ControllerConfig::Keiro { unit } => unit,
            ControllerConfig::Open | ControllerConfig::I2vfc(_) => None,
        }
    }
}

impl Tenants {
    /// `found`: what contradicts the configured unit of a tenant, if anything does.
    pub(super) fn on_contradiction(
        &mut self,
        now: Instant,
        path: PathId,
        id: TenantId,
        found: Option<Bandwidth>,
    ) {
        let rested = |at| now.saturating_duration_since(at) >= CONTRADICTED_AGAIN;
        if let Some(found) = found
            && self.unit_mismatches.reported_at.is_none_or(rested)
            && let Some(configured) = self.tenants.get(&id).and_then(Tenant::configured_unit)
        {
            self.unit_mismatches.reported_at = Some(now);
            self.unit_mismatches.waiting = Some(UnitMismatch {
                path,
                tenant: id,
                configured,
                found,
            });
        }
    }

    /// A contradiction that the driver is to be informed of.
    pub(crate) fn take_unit_mismatch(&mut self) -> Option<UnitMismatch> {
        self.unit_mismatches.waiting.take()
    }

    /// The peer says that a tenant of it is limited.
    pub(crate) fn on_limited(&mut self, now: Instant, id: TenantId) {
        let known = self.tenants.get_mut(&id);
        if let Some(tenant) = known.filter(|tenant| tenant.is_configured) {
            tenant.arriving.on_limited(now);
            self.limited.insert(id);
        }
    }

    pub(crate) fn has_limited(&self) -> bool {
        !self.limited.is_empty()
    }

    /// Largest rate per weight, bit/s, at which a limited tenant of the peer arrives; `None`: none is limited, or
    /// nothing is known yet.
    pub(crate) fn largest_limited_rate(&mut self, now: Instant) -> Option<f64> {
        let mut largest = None;
        let tenants = &mut self.tenants;
        self.limited.retain(|id| {
            let Some(tenant) = tenants.get_mut(id) else {
                return false;
            };
            let rate = tenant.arriving.poll(now, tenant.config.weight);
            largest = rate.into_iter().chain(largest).reduce(f64::max);
            tenant.arriving.is_limited(now)
        });
        largest
    }

    /// The peer reports a unit.
    pub(crate) fn on_unit_report(&mut self, now: Instant, unit: Bandwidth) {
        self.reported_unit = Some((unit, now)).filter(|_| !unit.is_zero());
    }

    /// The reported unit, while it is in force.
    pub(super) fn reported_unit(&self, now: Instant) -> Option<Bandwidth> {
        let (unit, at) = self.reported_unit?;
        (now.saturating_duration_since(at) < REPORT_LIFETIME).then_some(unit)
    }

    /// What the narrowest link of a path carries.
    pub(crate) fn on_capacity(&mut self, path: PathId, capacity: Option<Bandwidth>) {
        self.paths.get_or_default(path).line.capacity = capacity;
    }

    /// Tenants of a path of which the peer is to be informed that more waits than is let go, if it is time to look for
    /// them; at most `max`.
    pub(crate) fn poll_limited(&mut self, now: Instant, path: PathId, max: usize) -> Vec<TenantId> {
        let Some(path_tenants) = self.paths.get_mut(path) else {
            return Vec::new();
        };
        let rested = |at| now.saturating_duration_since(at) >= REPORT_INTERVAL;
        if max == 0 || !path_tenants.limited_at.is_none_or(rested) {
            return Vec::new();
        }
        path_tenants.limited_at = Some(now);
        let tenants = path_tenants.tenant_paths.iter_mut();
        let limited = tenants.filter(|(id, _)| *id != TenantId::ZERO);
        let limited = limited.filter_map(|(id, path)| path.take_limited(now).then_some(id));
        limited.take(max).collect()
    }

    /// More of a tenant waits than is let go, and the peer is to be informed.
    pub(crate) fn take_limited(&mut self, now: Instant, path: PathId, id: TenantId) -> bool {
        let path_tenants = self.paths.get_mut(path);
        let tenant_path = path_tenants.and_then(|paths| paths.tenant_paths.get_mut(id));
        tenant_path.is_some_and(|tenant_path| tenant_path.take_limited(now))
    }
}
