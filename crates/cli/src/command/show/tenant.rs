//! `keiro show tenant`.

use std::{collections::BTreeMap, time::Duration};

use keiro_control::protocol::{DeviceState, TenantPathSnapshot, TenantSnapshot};
use keiro_units::Bandwidth;

use super::{Facts, Health, cell, known, listed, word};
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
        "on the way>",
        "loss>",
        "round trip>",
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
                Cell::from(once(tenant.weight.to_string())),
                Cell::from(once(human::percent(tenant.share_ratio))),
                Cell::from(once(tenant.controller.clone())),
                Cell::from(
                    peer.map_or(human::NONE, |peer| peer.peer.as_str())
                        .to_owned(),
                ),
                on(|path| path.path.clone()),
                on(window),
                on(|path| human::bytes(path.in_flight_bytes)),
                on(|path| known(path.loss_ratio, human::percent)),
                on(|path| known(path.round_trip_seconds, millis)),
                on(|path| human::rate(Bandwidth::from_bits_per_second(path.acked_bits_per_second))),
                Cell::from(once(dropped(tenant).to_string())),
            ]);
        }
    }
    listed(&table, "no tenants are configured")
}

pub(super) fn text(tenant: &TenantSnapshot, style: Style) -> String {
    let mut facts = Facts::new(format!("tenant {}", style.strong(&tenant.name)));
    let why = tenant.device_problem.as_deref().unwrap_or_default();
    let there = match tenant.device_state {
        DeviceState::Up => String::new(),
        state => style.bad(&format!(", {}: {why}", word(&state))),
    };
    facts.add(
        "device",
        format!("{}, MTU {} B{there}", tenant.device, tenant.mtu_bytes),
    );
    facts.add(
        "weight",
        format!(
            "{}, {} of all tenants",
            tenant.weight,
            human::percent(tenant.share_ratio)
        ),
    );
    facts.add("controller", tenant.controller.clone());
    facts.add("number", tenant.id.to_string());
    if let Some(table) = tenant.table {
        facts.add("routing table", table.to_string());
    }
    facts.add("networks here", tenant.prefixes.join(", "));
    let passed = |packets: u64, bytes: u64| format!("{packets} packets, {}", human::bytes(bytes));
    facts.add(
        "entered",
        passed(tenant.entered_packets, tenant.entered_bytes),
    );
    facts.add("left", passed(tenant.left_packets, tenant.left_bytes));
    if tenant
        .not_forwarded_packets
        .values()
        .any(|count| *count > 0)
    {
        let of_the_link = causes(&tenant.not_forwarded_packets);
        facts.add("not forwarded", format!("{of_the_link}, of the link alone"));
    }
    facts.add("dropped", causes(&tenant.dropped_packets));
    let withheld = tenant.withheld_answer_packets;
    facts.add(
        "ICMP answers",
        format!("{}, {withheld} withheld", tenant.answer_packets),
    );
    for peer in &tenant.peers {
        facts.add(
            "peer",
            format!("{}: {}", style.strong(&peer.peer), peer.prefixes.join(", ")),
        );
        facts.add("  sent", passed(peer.accepted_packets, peer.accepted_bytes));
        facts.add(
            "  received",
            passed(peer.received_packets, peer.received_bytes),
        );
        facts.add(
            "  queue",
            format!(
                "{}, {} marked",
                human::bytes(peer.queued_bytes),
                peer.marked_packets
            ),
        );
        facts.add("  dropped", causes(&peer.dropped_packets));
        for path in &peer.paths {
            let allowed = path
                .rate_bits_per_second
                .map(Bandwidth::from_bits_per_second);
            let rate = Bandwidth::from_bits_per_second(path.acked_bits_per_second);
            facts.add(
                "  path",
                format!(
                    "{}: window {}, {} on the way, {} may leave, {} arrives, loss {}, round trip {}, \
                     {} wait",
                    path.path,
                    window(path),
                    human::bytes(path.in_flight_bytes),
                    known(allowed, human::rate),
                    human::rate(rate),
                    known(path.loss_ratio, human::percent),
                    known(path.round_trip_seconds, millis),
                    human::bytes(path.queued_bytes),
                ),
            );
        }
    }
    facts.text()
}

fn window(path: &TenantPathSnapshot) -> String {
    let packets = known(path.window_packets, |count| count.to_string());
    known(path.window_bytes, |bytes| {
        format!("{} ({packets} packets)", human::bytes(bytes))
    })
}

fn millis(seconds: f64) -> String {
    human::millis(Duration::try_from_secs_f64(seconds).unwrap_or_default())
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
