//! Addresses of the hub that no site's prefix may contain.

use std::{collections::BTreeSet, net::IpAddr};

use super::Registry;
use crate::config::{Config, Membership, PeerEndpoint};

/// Those of the second hub's endpoints, of its paths and of its endpoints in invitations, and of `machine` those of its uplinks: the rest are of
/// networks behind it, which it may hold as well.
pub(super) fn of_hub(registry: &Registry, config: &Config, uplinks: &[IpAddr]) -> BTreeSet<IpAddr> {
    let paths = config.paths.iter();
    let local = paths.filter_map(|path| path.local.address());
    let endpoints = match &config.network {
        Some(Membership::Hub(hub)) => &hub.endpoint[..],
        Some(Membership::Branch { .. } | Membership::SecondHub { .. }) | None => &[],
    };
    let second = registry.second_hub.iter();
    let second = second.flat_map(|(_, hub)| &hub.endpoint);
    let endpoints = endpoints
        .iter()
        .chain(second)
        .filter_map(|endpoint| match endpoint {
            PeerEndpoint::Address(address) => Some(*address),
            PeerEndpoint::Name(_) => None,
        });
    let all = local.chain(endpoints).map(|address| address.ip());
    all.chain(uplinks.iter().copied())
        .filter(|ip| !ip.is_unspecified())
        .collect()
}
