//! Tenants: their devices, and what the two gateways say of each other's.

use keiro_control::protocol::{AddressField, DeviceState, EventKind, Side};

use super::{Cause, machine};
use crate::{
    Subject,
    facts::{REPORTED_EACH, Tenant},
};

pub(super) static DEVICE_UNUSABLE: Cause = Cause {
    id: "device_unusable",
    what: "the device of a tenant is missing, renamed or set down",
    remedy: "`ip link set DEVICE up`, or what the finding says",
    check: |facts, found| {
        if found.has_cause(machine::NO_TUN.id) || found.has_cause(machine::NO_NET_ADMIN.id) {
            return Vec::new();
        }
        let of = |tenant: &Tenant| {
            let (state, why) = tenant.device_problem.as_ref()?;
            let device = &tenant.device;
            let remedy = match state {
                DeviceState::Down => format!("`ip link set {device} up`"),
                DeviceState::Renamed => {
                    format!("rename it back: `ip link set NAME name {device}`")
                }
                _ => {
                    "`journalctl -u keiro-gateway` says why; the gateway makes it as soon as it can"
                        .to_owned()
                }
            };
            Some(DEVICE_UNUSABLE.found(subject(tenant), format!("device {device}: {why}"), remedy))
        };
        facts.tenants.iter().filter_map(of).collect()
    },
};

pub(super) static TENANT_REFUSED: Cause = Cause {
    id: "tenant_refused",
    what: "a peer has no tenant with the id of one of this gateway's",
    remedy: "the same `id` at both gateways, and a [tenant.NAME.peer.PEER] for this one there",
    check: |facts, _| {
        let mut found = Vec::new();
        for tenant in &facts.tenants {
            for of in &tenant.peers {
                let is_reported = facts.reports(REPORTED_EACH).any(|report| {
                    matches!(&report.kind, EventKind::TenantRefused { tenant: name, peer, .. }
                        if *name == tenant.name && *peer == of.peer)
                });
                if !is_reported && of.refused_packets == 0 {
                    continue;
                }
                let (id, peer) = (tenant.id, &of.peer);
                found.push(TENANT_REFUSED.found(
                    subject(tenant),
                    format!("{peer} drops its packets: it has no tenant with id {id} towards this gateway"),
                    format!("at {peer} write `id = {id}` in the tenant and a [tenant.NAME.peer.…] for this gateway, then `keiro reload`"),
                ));
            }
        }
        found
    },
};

pub(super) static TENANT_UNKNOWN: Cause = Cause {
    id: "tenant_unknown",
    what: "a peer sends packets of a tenant that is not configured here",
    remedy: "the same `id` at both gateways",
    check: |facts, _| {
        let mut found = Vec::new();
        for report in facts.reports(std::time::Duration::MAX) {
            let EventKind::TenantUnknown { peer, id } = &report.kind else {
                continue;
            };
            let session = facts.peer(peer).and_then(|peer| peer.session.as_ref());
            let still = session.is_some_and(|session| session.unknown_tenant_packets > 0);
            if report.age > REPORTED_EACH && !still {
                continue;
            }
            found.push(TENANT_UNKNOWN.found(
                Subject::Peer(peer.clone()),
                format!("it sends packets of tenant id {id}, which no tenant here has with it: they are dropped"),
                format!("write `id = {id}` in the tenant here and a [tenant.NAME.peer.{peer}], then `keiro reload`"),
            ));
        }
        found
    },
};

pub(super) static PREFIX_MISMATCH: Cause = Cause {
    id: "prefix_mismatch",
    what: "packets of a tenant are dropped, since `prefixes` at the two ends differ or lack a network",
    remedy: "the network, in the `prefixes` that the finding names",
    check: |facts, _| {
        let mut found = Vec::new();
        for report in facts.reports(REPORTED_EACH) {
            let EventKind::PrefixMismatch {
                tenant,
                peer,
                from,
                field,
                address,
                ..
            } = &report.kind
            else {
                continue;
            };
            let (finding, remedy) = prefix_texts(tenant, peer.as_deref(), *from, *field, address);
            found.push(PREFIX_MISMATCH.found(Subject::Tenant(tenant.clone()), finding, remedy));
        }
        found
    },
};

fn prefix_texts(
    tenant: &str,
    peer: Option<&str>,
    from: Side,
    field: AddressField,
    address: &str,
) -> (String, String) {
    let is_source = field == AddressField::Source;
    match (peer, from, is_source) {
        (Some(peer), Side::Us, true) => (
            format!(
                "{peer} drops packets from {address}, which is in none of the networks that it has for this gateway"
            ),
            format!(
                "add the network of {address} to `prefixes` of [tenant.NAME.peer.…] for this gateway at {peer}, then `keiro reload` there"
            ),
        ),
        (Some(peer), Side::Us, false) => (
            format!("{peer} drops packets to {address}, which is in none of its own networks"),
            format!(
                "add the network of {address} to `prefixes` of the tenant at {peer}, or take it out of [tenant.{tenant}.peer.{peer}] here"
            ),
        ),
        (Some(peer), Side::Peer, true) => (
            format!(
                "packets of {peer} from {address} are dropped: it is in none of its networks here"
            ),
            format!(
                "add the network of {address} to `prefixes` of [tenant.{tenant}.peer.{peer}], then `keiro reload`"
            ),
        ),
        (Some(peer), Side::Peer, false) => (
            format!(
                "packets of {peer} to {address} are dropped: it is in none of the tenant's networks here"
            ),
            format!(
                "add the network of {address} to `prefixes` of [tenant.{tenant}], then `keiro reload`"
            ),
        ),
        (None, _, true) => (
            format!("packets from {address} are dropped: it is in none of the tenant's networks"),
            format!(
                "add the network of {address} to `prefixes` of [tenant.{tenant}], or correct the host's address"
            ),
        ),
        (None, _, false) => (
            format!("packets to {address} are dropped: no peer has it"),
            format!(
                "add the network of {address} to `prefixes` of [tenant.{tenant}.peer.PEER], or take the route away"
            ),
        ),
    }
}

fn subject(tenant: &Tenant) -> Subject {
    Subject::Tenant(tenant.name.clone())
}
