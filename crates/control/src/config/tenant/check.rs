//! Rules that concern several values of tenants at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    ops::Range,
};

use ipnet::IpNet;
use keiro_config::Report;

use super::{Tenant, TenantSpans, check_members, exit, mapping};
use crate::config::{Class, draft::Draft};

/// What concerns several entries; `indices_hold` unless an entry is missing for being wrong.
pub(in crate::config) fn check(draft: &Draft, indices_hold: bool, report: &mut Report<'_>) {
    let mut unique = UniqueValues::default();
    for (tenant, spans) in &draft.tenants {
        unique.add(tenant, spans, report);
        routes(draft, tenant, spans, report);
        overlaps(tenant, spans, report);
        mapping::check(tenant, spans, report);
        exit::check(tenant, spans, draft.network.as_ref(), report);
        if indices_hold {
            applications(draft, tenant, spans, report);
        }
    }
    interfaces(draft, &unique.devices, report);
    paths(draft, &unique.devices, report);
    main_table(draft, report);
    exit::check_sources(draft, report);
    exit::check_ports(draft, report);
    if indices_hold {
        check_members::check(draft, report);
    }
}

/// What only one tenant can have.
#[derive(Default)]
struct UniqueValues<'a> {
    ids: BTreeMap<u32, &'a Range<usize>>,
    devices: BTreeMap<&'a str, &'a Range<usize>>,
    tables: BTreeMap<u32, &'a Range<usize>>,
    interfaces: BTreeMap<&'a str, &'a Range<usize>>,
}

impl<'a> UniqueValues<'a> {
    fn add(&mut self, tenant: &'a Tenant, spans: &'a TenantSpans, report: &mut Report<'_>) {
        let mut twice = |earlier: Option<&Range<usize>>, at: &Range<usize>, what: String| {
            if let Some(earlier) = earlier {
                let line = report.line(earlier);
                let message = format!("{what} is that of another tenant (line {line})");
                report.add(at, message, "give each its own");
            }
        };
        let earlier = self.ids.insert(tenant.id, &spans.id);
        twice(earlier, &spans.id, format!("id: {}", tenant.id));
        let earlier = self.devices.insert(&tenant.device, &spans.device);
        twice(
            earlier,
            &spans.device,
            format!("device: `{}`", tenant.device),
        );
        if let Some(table) = tenant.table {
            let earlier = self.tables.insert(table, &spans.table);
            twice(earlier, &spans.table, format!("table: {table}"));
        }
        for name in &tenant.interfaces {
            let earlier = self.interfaces.insert(name, &spans.interfaces);
            twice(earlier, &spans.interfaces, format!("interfaces: `{name}`"));
        }
    }
}

/// A tenant's interfaces are those of the machine, not the gateway's own devices: those of the tenant
/// are looked up in its table without being named.
fn interfaces(draft: &Draft, devices: &BTreeMap<&str, &Range<usize>>, report: &mut Report<'_>) {
    for (tenant, spans) in &draft.tenants {
        let is_device = |name: &&String| devices.contains_key(name.as_str());
        if let Some(name) = tenant.interfaces.iter().find(is_device) {
            let whose = match *name == tenant.device {
                true => "the tenant's own device",
                false => "another tenant's device",
            };
            let message = format!("interfaces: `{name}` is {whose}");
            let hint = "remove it; name interfaces that lead to the tenant's networks";
            report.add(&spans.interfaces, message, hint);
        }
    }
}

/// What a path sends must not enter a tenant's device: it would be led into the tunnel that it carries.
fn paths(draft: &Draft, devices: &BTreeMap<&str, &Range<usize>>, report: &mut Report<'_>) {
    for (path, spans) in &draft.paths {
        if let Some(name) = path.local.interface()
            && let Some(device) = devices.get(name)
        {
            let line = report.line(device);
            let message = format!(
                "interface: `{name}` is a tenant's device (line {line}), so the path would lead into itself"
            );
            let hint = "name an interface that leads to the peer, as in interface = \"eth0\"";
            report.add(&spans.local, message, hint);
        }
        let address = path.local.address().map(|address| address.ip());
        let has = |tenant: &Tenant| {
            let mut addresses = tenant.addresses.iter();
            addresses.any(|own| Some(own.addr()) == address)
        };
        let tenant = draft.tenants.iter().find(|(tenant, _)| has(tenant));
        if let (Some(address), Some((tenant, _))) = (address, tenant) {
            let message = format!(
                "local: {address} is the address of tenant `{}`'s device, so the path would lead into itself",
                tenant.name
            );
            let hint = "write an address of an interface that leads to the peer";
            report.add(&spans.local, message, hint);
        }
    }
}

/// A tenant without routes carries nothing, and in the main table a route must not lead the tunnel's
/// own packets into it.
fn routes(draft: &Draft, tenant: &Tenant, spans: &TenantSpans, report: &mut Report<'_>) {
    if tenant.routes.is_empty() && !tenant.peers.is_empty() {
        let message = format!(
            "routes: tenant `{}` has none, so nothing enters",
            tenant.name
        );
        report.add(
            &spans.routes,
            message,
            "remove routes for those to all prefixes of its peers",
        );
    }
    let remote = |route: &IpNet| {
        let peers = tenant.peers.iter().flat_map(|peer| &peer.prefixes);
        peers
            .clone()
            .any(|prefix| prefix.contains(route) || route.contains(prefix))
    };
    // The prefixes of a network's sites are not in the file.
    let is_complete = draft.network.is_none();
    if is_complete && let Some(route) = tenant.routes.iter().find(|route| !remote(route)) {
        let message = format!("routes: no peer of the tenant has addresses of {route}");
        let hint = "remove it, or add it to a peer's prefixes";
        report.add(&spans.routes, message, hint);
    }
    if tenant.table.is_some() {
        return;
    }
    let endpoints = draft
        .peers
        .iter()
        .flat_map(|(peer, _)| peer.endpoints.values());
    let mut endpoints = endpoints.map(std::net::SocketAddr::ip);
    let into_itself = |address: &IpAddr| tenant.routes.iter().any(|r| r.contains(address));
    if let Some(address) = endpoints.find(into_itself) {
        let message =
            format!("routes: {address} is a peer's endpoint and would be led into the tunnel");
        let hint = "give the tenant a routing table of its own, as in table = 101";
        report.add(&spans.routes, message, hint);
    }
}

/// Prefixes of one tenant have no address in common, but that a peer's may be around those of this
/// gateway, and that one may be all that is nowhere else: that of a gateway that leads to the Internet.
fn overlaps(tenant: &Tenant, spans: &TenantSpans, report: &mut Report<'_>) {
    let own = tenant
        .prefixes
        .iter()
        .map(|prefix| (*prefix, &spans.own, true));
    let peers = tenant.peers.iter().zip(&spans.peers);
    let theirs = peers.flat_map(|(peer, at)| peer.prefixes.iter().map(move |p| (*p, at, false)));
    let mut all: Vec<(IpNet, &Range<usize>, bool)> = own.chain(theirs).collect();
    // A prefix comes before those that it contains, and all in between are contained too.
    all.sort_by_key(|(prefix, at, _)| (*prefix, at.start));
    let mut around: Vec<(IpNet, &Range<usize>, bool)> = Vec::new();
    for (prefix, at, is_own) in all {
        while around
            .last()
            .is_some_and(|(outer, ..)| !outer.contains(&prefix))
        {
            around.pop();
        }
        let clash = around.iter().find(|(outer, _, outer_is_own)| {
            let is_shorter = outer.prefix_len() < prefix.prefix_len();
            let theirs_around_own = is_own && !outer_is_own;
            let default_around_theirs = !is_own && outer.prefix_len() == 0;
            !(is_shorter && (theirs_around_own || default_around_theirs))
        });
        if let Some((outer, earlier, _)) = clash {
            let line = report.line(earlier);
            let message = format!("prefixes: {prefix} overlaps {outer} (line {line})");
            let hint = "an address of a tenant is in one place only; write prefixes apart";
            report.add(at, message, hint);
        }
        around.push((prefix, at, is_own));
    }
}

/// Without tables of their own tenants share the main one, where an address is led to one of them.
fn main_table(draft: &Draft, report: &mut Report<'_>) {
    let sharing = draft.tenants.iter().enumerate();
    let sharing = sharing.filter(|(_, (tenant, _))| tenant.table.is_none());
    let mut all: Vec<(IpNet, usize)> = sharing
        .flat_map(|(index, (tenant, _))| tenant.routes.iter().map(move |route| (*route, index)))
        .collect();
    // A prefix comes before those that it contains, and all in between are contained too.
    all.sort();
    let mut around: Vec<(IpNet, usize)> = Vec::new();
    let mut reported = BTreeSet::new();
    for (route, index) in all {
        while around
            .last()
            .is_some_and(|(outer, _)| !outer.contains(&route))
        {
            around.pop();
        }
        let clash = around.iter().find(|(_, other)| *other != index);
        if let Some(&(outer, other)) = clash {
            let mut both = [(index, route), (other, outer)];
            both.sort();
            let [(earlier, before), (later, prefix)] = both;
            if reported.insert(later) {
                let (tenant, spans) = &draft.tenants[earlier];
                let line = report.line(&spans.routes);
                let message = format!(
                    "routes: {prefix} overlaps {before} of tenant `{}` (line {line}) in the main \
                     routing table",
                    tenant.name
                );
                let hint = "give the tenant a routing table of its own, as in table = 101";
                report.add(&draft.tenants[later].1.routes, message, hint);
            }
        }
        around.push((route, index));
    }
}

fn applications(draft: &Draft, tenant: &Tenant, spans: &TenantSpans, report: &mut Report<'_>) {
    for (at, app, wanted) in &spans.apps {
        let app = &draft.apps[app.0].0;
        if app.class != Class::Datagram {
            let message = format!("app: `{}` is of class `{}`", app.name, app.class.as_str());
            report.add(at, message, "name one of class \"datagram\"");
        }
        let has = tenant.peers.iter().any(|peer| peer.peer == app.peer);
        match wanted {
            Some(peer) if *peer != app.peer => {
                let wanted = &draft.peers[peer.0].0.name;
                let other = &draft.peers[app.peer.0].0.name;
                let message = format!("app: `{}` is of peer `{other}`, not `{wanted}`", app.name);
                report.add(at, message, "name an application of this peer");
            }
            None if !has => {
                let message = format!(
                    "app: the tenant has no prefixes behind the peer of `{}`",
                    app.name
                );
                report.add(
                    at,
                    message,
                    "name an application of one of the tenant's peers",
                );
            }
            _ => {}
        }
    }
}
