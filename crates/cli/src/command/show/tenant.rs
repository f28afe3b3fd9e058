//! `keiro show tenant`.

use std::collections::BTreeMap;

use keiro_control::protocol::{DeviceState, InternetState, TenantPathSnapshot, TenantSnapshot};

use super::{FieldList, Health, cell, known, listed, word};
use crate::{
    command::figures,
    output::{
        Style, human,
        table::{Cell, Table},
    },
};

pub(super) fn table(tenants: &[TenantSnapshot], style: Style) -> String {
    let mut table = Table::new(&[
        "tenant",
        "device",
        "weight>",
        "share>",
        "controller",
        "peer",
        "path",
        "window>",
        "in flight>",
        "loss>",
        "srtt>",
        "rate>",
        "dropped>",
    ]);
    for tenant in tenants {
        for (number, path) in paths_of(tenant).into_iter().enumerate() {
            table.row(row(tenant, path, number == 0, style));
        }
    }
    listed(&table, "no tenants are configured")
}

/// A row of the table: a tenant on one path to one peer.
#[derive(Clone, Copy, Default)]
struct TenantPath<'a> {
    peer: Option<&'a str>,
    path: Option<&'a TenantPathSnapshot>,
}

/// At least one: a tenant without peers or paths has a row as well.
fn paths_of(tenant: &TenantSnapshot) -> Vec<TenantPath<'_>> {
    let mut rows = Vec::new();
    for of in &tenant.peers {
        let peer = Some(of.peer.as_str());
        if of.paths.is_empty() {
            rows.push(TenantPath { peer, path: None });
        }
        rows.extend(of.paths.iter().map(|path| TenantPath {
            peer,
            path: Some(path),
        }));
    }
    if rows.is_empty() {
        rows.push(TenantPath::default());
    }
    rows
}

/// The tenant's own columns are empty in all rows but its first.
fn row(tenant: &TenantSnapshot, on: TenantPath<'_>, is_first: bool, style: Style) -> Vec<Cell> {
    let once = |text: String| if is_first { text } else { String::new() };
    let (device, health) = match tenant.device_state {
        DeviceState::Up => (tenant.device.clone(), Health::Neither),
        state => (format!("{}, {}", tenant.device, word(&state)), Health::Bad),
    };
    let figure = |show: fn(&TenantPathSnapshot) -> String| {
        Cell::from(on.path.map_or_else(|| human::NONE.to_owned(), show))
    };
    vec![
        Cell::from(once(tenant.name.clone())),
        cell(style, &once(device), health),
        Cell::from(once(tenant.stats.weight.to_string())),
        Cell::from(once(human::percent(tenant.stats.share.get()))),
        Cell::from(once(tenant.controller.clone())),
        Cell::from(on.peer.unwrap_or(human::NONE)),
        figure(|path| path.path.clone()),
        figure(window),
        figure(|path| human::bytes(path.stats.in_flight_bytes)),
        figure(|path| known(path.stats.loss, |loss| human::percent(loss.get()))),
        figure(|path| known(path.stats.srtt, human::millis)),
        figure(|path| human::rate(path.stats.acked_rate)),
        Cell::from(once(dropped(tenant).to_string())),
    ]
}

pub(super) fn text(tenant: &TenantSnapshot, style: Style) -> String {
    let mut fields = FieldList::new(format!("tenant {}", style.strong(&tenant.name)));
    let why = tenant.device_problem.as_deref().unwrap_or_default();
    let problem = match tenant.device_state {
        DeviceState::Up => String::new(),
        state => style.bad(&format!(", {}: {why}", word(&state))),
    };
    fields.add("device", format!("{}{problem}", tenant.device));
    fields.add("controller", tenant.controller.clone());
    fields.add("number", tenant.id.to_string());
    if let Some(table) = tenant.table {
        fields.add("routing table", table.to_string());
    }
    fields.add("local networks", tenant.prefixes.join(", "));
    for of in &tenant.map {
        fields.add(
            "mapped",
            format!("{} is reached as {}", of.local, of.network),
        );
    }
    add_exits(&mut fields, tenant, style);
    add_split(&mut fields, tenant, style);
    fields.add_stats("", &tenant.stats.0);
    let not_forwarded = &tenant.not_forwarded_packets;
    if not_forwarded.values().any(|count| *count > 0) {
        let kinds = by_reason(not_forwarded);
        fields.add(
            "not forwarded",
            format!("{kinds}, which belong to the device's link alone"),
        );
    }
    fields.add("dropped", by_reason(&tenant.dropped_packets));
    for peer in &tenant.peers {
        let networks = peer.prefixes.join(", ");
        fields.add("peer", format!("{}: {networks}", style.strong(&peer.peer)));
        fields.add_stats("  ", &peer.stats.0);
        fields.add("  dropped", by_reason(&peer.dropped_packets));
        for path in &peer.paths {
            let stats = figures::list(&path.stats.0);
            fields.add("  path", format!("{}: {stats}", path.path));
        }
    }
    fields.text()
}

/// How TCP connections are carried, of a tenant whose connections are to be split.
fn add_split(fields: &mut FieldList, tenant: &TenantSnapshot, style: Style) {
    if let Some(problem) = &tenant.split_problem {
        fields.add("tcp", style.bad(&format!("as packets: {problem}")));
    } else if tenant.splits_tcp {
        let reasons = &tenant.not_split_connections;
        let as_packets = match reasons.values().any(|count| *count > 0) {
            true => format!("; as packets: {}", by_reason(reasons)),
            false => String::new(),
        };
        let open = tenant.stats.open_split_connections;
        fields.add("tcp", format!("split, {open} connections open{as_packets}"));
    }
}

/// The exit that the tenant is, and the one that it uses.
fn add_exits(fields: &mut FieldList, tenant: &TenantSnapshot, style: Style) {
    if let Some(exit) = &tenant.exit {
        let versions = match (exit.ipv4, exit.ipv6) {
            (true, true) => "to the Internet in IPv4 and IPv6",
            (true, false) => "to the Internet in IPv4; IPv6 packets are answered with no route",
            (false, true) => "to the Internet in IPv6; IPv4 packets are answered with no route",
            (false, false) => "of other sites, to nowhere",
        };
        let problem = match &exit.problem {
            Some(problem) => style.bad(&format!(": {problem}")),
            None => String::new(),
        };
        fields.add("exit", format!("{versions}{problem}"));
        for of in &exit.port_forwards {
            let text = format!("{}: {} {} to {}", of.name, of.protocol, of.port, of.to);
            fields.add("port forward", text);
        }
    }
    let Some(internet) = &tenant.internet else {
        return;
    };
    let (from, to) = (internet.from.join(", "), internet.to.join(", "));
    let problem = internet.problem.as_deref().unwrap_or_default();
    let state = match (internet.state, &internet.exit) {
        (InternetState::Exit, exit) => {
            format!(
                "by the exit of {}",
                style.strong(exit.as_ref().unwrap_or(&internet.via))
            )
        }
        (InternetState::Blocked, _) => style.bad(&format!("blocked: {problem}")),
        (InternetState::Local, _) => {
            style.bad(&format!("by this machine's own default route: {problem}"))
        }
    };
    fields.add("internet", format!("{state}; from {from}, to {to}"));
}

fn window(path: &TenantPathSnapshot) -> String {
    let packets = known(path.stats.window_packets, |count| count.to_string());
    known(path.stats.window_bytes, |bytes| {
        format!("{} ({packets} packets)", human::bytes(bytes))
    })
}

fn dropped(tenant: &TenantSnapshot) -> u64 {
    let queues = tenant
        .peers
        .iter()
        .flat_map(|peer| peer.dropped_packets.values());
    let all = tenant.dropped_packets.values().chain(queues);
    // A peer reports its own drops, so the sum may overflow.
    all.fold(0, |sum, count| sum.saturating_add(*count))
}

fn by_reason(counts: &BTreeMap<String, u64>) -> String {
    let counts = counts.iter().filter(|(_, count)| **count > 0);
    let counts: Vec<String> = counts
        .map(|(reason, count)| format!("{count} {}", reason.replace('_', " ")))
        .collect();
    match counts.is_empty() {
        true => "nothing".to_owned(),
        false => counts.join(", "),
    }
}
