//! What a weight of 1 gets, as the gateway reports it at which tenants of several peers arrive.
//!
//! A sender says which of its tenants are limited. The receiver counts what arrives of these, and reports the
//! largest rate per weight to all peers that have some (`keiro_model::fairness::common_unit`).

use keiro_units::{Bandwidth, Instant};

use super::Session;
use crate::{
    event::Event,
    id::{PathId, TenantId},
    wire::{Features, Frame},
};

impl Session {
    /// The peer reads reports of units, and sends them.
    fn shares_unit(&self) -> bool {
        let epoch = self.keys.current();
        epoch.is_some_and(|epoch| epoch.features.contains(Features::COMMON_UNIT))
    }

    /// The peer says that a tenant of it has more to send than its window and rate let go.
    pub(super) fn on_tenant_limited(&mut self, now: Instant, tenant: TenantId) {
        self.scheduler.on_tenant_limited(now, tenant);
    }

    /// Tenants of the peer are limited.
    pub(crate) fn has_limited_tenants(&self) -> bool {
        self.scheduler.tenants().has_limited()
    }

    /// Largest rate per weight, bit/s, at which a limited tenant of the peer arrives.
    pub(crate) fn largest_limited_rate(&mut self, now: Instant) -> Option<f64> {
        self.scheduler.largest_limited_rate(now)
    }

    /// The next packet is to report this unit.
    pub(crate) fn report_unit(&mut self, unit: Bandwidth) {
        self.unit_to_report = Some(unit).filter(|_| self.shares_unit());
    }

    /// The peer reports a unit.
    pub(super) fn on_unit_report(&mut self, now: Instant, unit: Bandwidth) {
        self.scheduler.on_unit_report(now, unit);
    }

    /// Reports to the driver that a configured unit contradicts what is found.
    pub(super) fn report_contradiction(&mut self) {
        if let Some(of) = self.scheduler.take_unit_mismatch() {
            self.events.push_back(Event::UnitContradicted {
                peer: self.id,
                path: of.path,
                tenant: of.tenant,
                configured: of.configured,
                found: of.found,
            });
        }
    }

    /// Appends a report that waits, if there is room up to `end`.
    pub(super) fn write_unit_report(&mut self, end: usize, out: &mut Vec<u8>) {
        if out.len() + Frame::TENANT_UNIT_LEN_MAX <= end
            && let Some(unit) = self.unit_to_report.take()
        {
            Frame::TenantUnit(unit.as_bits_per_second()).encode(out);
        }
    }

    /// Appends which tenants are limited, if that is news, as far as there is room up to `end`.
    pub(super) fn write_all_limited(
        &mut self,
        now: Instant,
        path: PathId,
        end: usize,
        out: &mut Vec<u8>,
    ) {
        if !self.shares_unit() {
            return;
        }
        let room = end.saturating_sub(out.len()) / Frame::TENANT_LIMITED_LEN_MAX;
        let limited = self.scheduler.poll_limited(now, path, room);
        for tenant in limited {
            Frame::TenantLimited(tenant.0).encode(out);
        }
    }

    /// Appends that a tenant is limited, if that is news and there is room up to `end`.
    pub(super) fn write_limited(
        &mut self,
        now: Instant,
        path: PathId,
        tenant: TenantId,
        end: usize,
        out: &mut Vec<u8>,
    ) {
        if out.len() + Frame::TENANT_LIMITED_LEN_MAX <= end
            && self.shares_unit()
            && self.scheduler.take_limited(now, path, tenant)
        {
            Frame::TenantLimited(tenant.0).encode(out);
        }
    }
}
