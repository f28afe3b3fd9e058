//! `keiro show tenant`.

use std::collections::BTreeMap;

use keiro_control::protocol::{DeviceState, TenantPathSnapshot, TenantSnapshot};

use super::{FieldList, Health, cell, known, listed, word};
use crate::output::{
    Style, human,
    table::{Cell, Table},
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
        let paths = tenant.peers.iter().flat_map(|peer| {
            let none = peer.paths.is_empty().then_some(None);
            let paths = peer.paths.iter().map(Some).chain(none);
            paths.map(move |path| (Some(peer), path))
        });
        let mut rows: Vec<_> = paths.collect();
        if rows.is_empty() {
            rows.push((None, None));
        }
        for (number, (peer, path)) in rows.into_iter().enumerate() {
            let once = |text: String| if number == 0 { text } else { String::new() };
            let (device, health) = match tenant.device_state {
                DeviceState::Up => (tenant.device.clone(), Health::Neither),
                state => (format!("{}, {}", tenant.device, word(&state)), Health::Bad),
            };
            let on = |of: fn(&TenantPathSnapshot) -> String| {
                Cell::from(path.map_or_else(|| human::NONE.to_owned(), of))
            };
            table.row([
                Cell::from(once(tenant.name.clone())),
                cell(style, &once(device), health),
                Cell::from(once(tenant.stats.weight.to_string())),
                Cell::from(once(human::percent(tenant.stats.share.get()))),
                Cell::from(once(tenant.controller.clone())),
                Cell::from(
                    peer.map_or(human::NONE, |peer| peer.peer.as_str())
                        .to_owned(),
                ),
                on(|path| path.path.clone()),
                on(window),
                on(|path| human::bytes(path.stats.in_flight_bytes)),
                on(|path| known(path.stats.loss, |loss| human::percent(loss.get()))),
                on(|path| known(path.stats.srtt, human::millis)),
                on(|path| human::rate(path.stats.acked_rate)),
                Cell::from(once(dropped(tenant).to_string())),
            ]);
        }
    }
    listed(&table, "no tenants are configured")
}

pub(super) fn text(tenant: &TenantSnapshot, style: Style) -> String {
    let mut fields = FieldList::new(format!("tenant {}", style.strong(&tenant.name)));
    let why = tenant.device_problem.as_deref().unwrap_or_default();
    let there = match tenant.device_state {
        DeviceState::Up => String::new(),
        state => style.bad(&format!(", {}: {why}", word(&state))),
    };
    fields.add(
        "device",
        format!("{}, MTU {} B{there}", tenant.device, tenant.stats.mtu_bytes),
    );
    fields.add(
        "weight",
        format!(
            "{}, {} of all tenants",
            tenant.stats.weight,
            human::percent(tenant.stats.share.get())
        ),
    );
    fields.add("controller", tenant.controller.clone());
    fields.add("number", tenant.id.to_string());
    if let Some(table) = tenant.table {
        fields.add("routing table", table.to_string());
    }
    fields.add("networks here", tenant.prefixes.join(", "));
    let passed = |packets: u64, bytes: u64| format!("{packets} packets, {}", human::bytes(bytes));
    fields.add(
        "ingress",
        passed(tenant.stats.ingress_packets, tenant.stats.ingress_bytes),
    );
    fields.add(
        "egress",
        passed(tenant.stats.egress_packets, tenant.stats.egress_bytes),
    );
    if tenant
        .not_forwarded_packets
        .values()
        .any(|count| *count > 0)
    {
        let of_the_link = causes(&tenant.not_forwarded_packets);
        fields.add("not forwarded", format!("{of_the_link}, of the link alone"));
    }
    fields.add("dropped", causes(&tenant.dropped_packets));
    let suppressed = tenant.stats.suppressed_icmp_error_packets;
    fields.add(
        "ICMP errors",
        format!(
            "{}, {suppressed} suppressed by the rate limit",
            tenant.stats.icmp_error_packets
        ),
    );
    for peer in &tenant.peers {
        fields.add(
            "peer",
            format!("{}: {}", style.strong(&peer.peer), peer.prefixes.join(", ")),
        );
        fields.add(
            "  sent",
            passed(peer.stats.accepted_packets, peer.stats.accepted_bytes),
        );
        fields.add(
            "  received",
            passed(peer.stats.received_packets, peer.stats.received_bytes),
        );
        fields.add(
            "  queue",
            format!(
                "{}, {} marked",
                human::bytes(peer.stats.queued_bytes),
                peer.stats.marked_packets
            ),
        );
        fields.add("  dropped", causes(&peer.dropped_packets));
        for path in &peer.paths {
            fields.add(
                "  path",
                format!(
                    "{}: window {}, {} in flight, rate {}, {} acknowledged, loss {}, srtt {}, {} queued",
                    path.path,
                    window(path),
                    human::bytes(path.stats.in_flight_bytes),
                    known(path.stats.rate, human::rate),
                    human::rate(path.stats.acked_rate),
                    known(path.stats.loss, |loss| human::percent(loss.get())),
                    known(path.stats.srtt, human::millis),
                    human::bytes(path.stats.queued_bytes),
                ),
            );
        }
    }
    fields.text()
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
    // What a peer says of its own drops may be anything.
    all.fold(0, |sum, count| sum.saturating_add(*count))
}

fn causes(by_cause: &BTreeMap<String, u64>) -> String {
    let causes = by_cause.iter().filter(|(_, count)| **count > 0);
    let causes: Vec<String> = causes
        .map(|(cause, count)| format!("{count} {}", cause.replace('_', " ")))
        .collect();
    match causes.is_empty() {
        true => "nothing".to_owned(),
        false => causes.join(", "),
    }
}
