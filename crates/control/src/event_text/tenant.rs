//! Events of tenants: their identifiers, prefixes and devices.

use keiro_units::Bandwidth;

use crate::protocol::{AddressField, EventKind, Side};

pub(super) fn tenant_sentence(kind: &EventKind) -> Option<String> {
    Some(match kind {
        EventKind::TenantUnknown { peer, id } => format!(
            "peer {peer} sends packets of tenant id {id}, which no tenant here has with this peer: they are dropped; compare `id` at both gateways"
        ),
        EventKind::TenantRefused { tenant, id, peer } => format!(
            "peer {peer} drops the packets of tenant {tenant}: it has no tenant with id {id} towards this gateway; compare `id` at both gateways"
        ),
        EventKind::UnitContradicted {
            tenant,
            peer,
            path,
            configured_bits_per_second: configured,
            found_bits_per_second: found,
        } => {
            let [configured, found] =
                [configured, found].map(|bits| Bandwidth::from_bits_per_second(*bits));
            format!(
                "fairness.unit is {configured}, but on path {path} to {peer} tenants get {found} for a weight of 1 (seen with tenant {tenant}): leave it out, or write what is found"
            )
        }
        EventKind::PrefixMismatch { .. } => return prefix_mismatch(kind),
        EventKind::PrefixWithheld {
            tenant,
            prefix,
            owner,
            reason,
        } => format!(
            "tenant {tenant}: {prefix} of {owner} is not routed, since {reason}; hosts there are not reached through the tunnel until that changes"
        ),
        EventKind::PrefixRouted {
            tenant,
            prefix,
            owner,
        } => format!("tenant {tenant}: {prefix} of {owner} is routed, the conflict has ended"),
        EventKind::DeviceLost {
            tenant,
            device,
            reason,
        } => format!("tenant {tenant}: device {device} is lost and will be opened again: {reason}"),
        EventKind::DeviceRestored {
            tenant,
            device,
            lost_seconds,
        } => format!("tenant {tenant}: device {device} is restored after {lost_seconds:.1} s"),
        EventKind::DeviceDown {
            tenant,
            device,
            reason,
        } => format!("tenant {tenant}: device {device} is down: {reason}"),
        EventKind::DeviceUp {
            tenant,
            device,
            down_seconds,
        } => format!("tenant {tenant}: device {device} is up after {down_seconds:.1} s"),
        _ => return None,
    })
}

fn prefix_mismatch(kind: &EventKind) -> Option<String> {
    let EventKind::PrefixMismatch {
        tenant,
        peer,
        field,
        address,
        dropped_packets,
        from,
    } = kind
    else {
        return None;
    };
    let what = match (peer, field) {
        // What a peer reports is its claim: nothing here proves it.
        (Some(peer), AddressField::Source) if *from == Side::Us => format!(
            "peer {peer} reports that it drops packets from {address}, which is in none of the networks that it \
             has for this gateway; add the network to `prefixes` of the tenant's peer there, or correct the host"
        ),
        (Some(peer), _) if *from == Side::Us => format!(
            "peer {peer} reports that it drops packets to {address}, which is in none of its own networks; take \
             the network out of `prefixes` of [tenant.{tenant}.peer.{peer}], or add it to the tenant there"
        ),
        (Some(peer), AddressField::Source) => format!(
            "peer {peer} sends packets from {address}, which is in none of its networks here; add the \
             network to `prefixes` of [tenant.{tenant}.peer.{peer}], or correct the sender"
        ),
        (Some(peer), _) => format!(
            "peer {peer} sends packets to {address}, which is in none of the tenant's own networks here; \
             add the network to `prefixes` of [tenant.{tenant}], or take it out at {peer}"
        ),
        (None, AddressField::Source) => format!(
            "packets from {address} come from its device, and none of its own networks has that address; \
             add the network to `prefixes` of [tenant.{tenant}], or correct the host"
        ),
        (None, _) => format!(
            "packets to {address} come from its device, and no peer has that address; add the network to \
             `prefixes` of the peer, or take the route away"
        ),
    };
    let count = match peer {
        Some(_) if *from == Side::Us => format!("by its count {dropped_packets} packets"),
        _ => format!("{dropped_packets} packets dropped"),
    };
    Some(format!(
        "prefix_mismatch: tenant {tenant}: {what} ({count})"
    ))
}
