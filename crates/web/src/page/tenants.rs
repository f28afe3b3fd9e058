//! Tenants: their share against their weight, windows, and drops by cause.

use std::collections::BTreeMap;

use keiro_control::{
    protocol::{DeviceState, TenantPathSnapshot, TenantSnapshot},
    rounded,
};
use maud::{Markup, html};

use super::{
    Page, PageAddress,
    part::{self, heads, number, path_link},
};
use crate::{
    source::Data,
    text::{self, known, word},
};

/// Rows of each table. Ours.
const ROWS_MAX: usize = 200;

pub(super) fn page(data: &Data, base: &str) -> Page {
    let page = Page::new(PageAddress::Tenants.title());
    match &data.tenants {
        None => page.live(
            "tenants",
            html! { p { "The gateway is asked for its tenants; reload this page." } },
        ),
        Some(tenants) if tenants.is_empty() => {
            page.live("tenants", html! { p { "No tenants are configured." } })
        }
        Some(tenants) => page
            .live("tenants", table(tenants))
            .live("windows", windows(tenants, base)),
    }
}

fn table(tenants: &[TenantSnapshot]) -> Markup {
    let sent: f64 = tenants.iter().map(acked_rate).sum();
    html! {
        div class="wide" role="region" tabindex="0" aria-label="Tenants" { table {
            caption { "Tenants. The share by weight is what a tenant gets where all want more than there is; in use is what was acknowledged in the last second, of all tenants" }
            (heads(&["Tenant", "Device", "Controller", "Weight>", "Share by weight>", "In use>", "Of all>", "Waiting>", "Dropped", "To its device>", "From its device>"]))
            tbody { @for tenant in tenants.iter().take(ROWS_MAX) { (row(tenant, sent)) } }
        } }
        @if tenants.len() > ROWS_MAX { p { (tenants.len() - ROWS_MAX) " more; `keiro show tenant` lists all." } }
    }
}

fn row(tenant: &TenantSnapshot, sent_by_all: f64) -> Markup {
    let rate = acked_rate(tenant);
    let of_all = (sent_by_all > 0.0).then(|| rounded::percent(rate / sent_by_all));
    let waiting: u64 = tenant
        .peers
        .iter()
        .map(|peer| peer.stats.queued_bytes)
        .sum();
    let device = match tenant.device_state {
        DeviceState::Up => part::good("up"),
        state => part::bad(&word(&state)),
    };
    html! {
        tr {
            th scope="row" { (text::name(&tenant.name)) }
            td { (text::name(&tenant.device)) " " (device) @if let Some(why) = &tenant.device_problem { ": " (text::sentence(why)) } }
            td { (text::name(&tenant.controller)) }
            (number(&format!("{:.2}", tenant.stats.weight)))
            (number(&rounded::percent(tenant.stats.share.get())))
            (number(&text::rate(rate)))
            (number(&known(of_all, |share| share)))
            (number(&rounded::bytes(waiting)))
            td class="text" { (drops(tenant)) }
            (number(&rounded::bytes(tenant.stats.egress_bytes)))
            (number(&rounded::bytes(tenant.stats.ingress_bytes)))
        }
    }
}

/// Packets dropped at the device and in the queues of all peers, by cause.
fn drops(tenant: &TenantSnapshot) -> Markup {
    let mut causes: BTreeMap<&str, u64> = BTreeMap::new();
    let of_peers = tenant.peers.iter().flat_map(|peer| &peer.dropped_packets);
    for (cause, count) in tenant.dropped_packets.iter().chain(of_peers) {
        let sum = causes.entry(cause).or_default();
        *sum = sum.saturating_add(*count);
    }
    causes.retain(|_, count| *count > 0);
    html! {
        @if causes.is_empty() { "none" }
        @for (index, (cause, count)) in causes.iter().enumerate() { @if index > 0 { ", " } (text::name(&cause.replace('_', " "))) " " (count) }
    }
}

fn acked_rate(tenant: &TenantSnapshot) -> f64 {
    let paths = tenant.peers.iter().flat_map(|peer| &peer.paths);
    paths
        .map(|path| path.stats.acked_rate.as_bits_per_second() as f64)
        .sum()
}

fn windows(tenants: &[TenantSnapshot], base: &str) -> Markup {
    let rows = tenants.iter().flat_map(|tenant| {
        let peers = tenant.peers.iter();
        peers.flat_map(move |peer| {
            peer.paths
                .iter()
                .map(move |path| (tenant, &peer.peer, path))
        })
    });
    let rows: Vec<(&TenantSnapshot, &String, &TenantPathSnapshot)> = rows.take(ROWS_MAX).collect();
    html! {
        section aria-labelledby="windows-head" {
            h2 id="windows-head" { "Windows" }
            @if rows.is_empty() { p { "Nothing was sent yet." } } @else {
                div class="wide" role="region" tabindex="0" aria-label="Windows of tenants on each path" { table {
                    caption { "Windows of tenants on each path" }
                    (heads(&["Tenant", "Peer", "Path", "Window>", "In flight>", "Rate>", "Round trip>", "Loss>", "Marked CE>"]))
                    tbody { @for (tenant, peer, path) in rows { tr {
                        th scope="row" { (text::name(&tenant.name)) }
                        td { (text::name(peer)) }
                        td { (path_link(base, &path.path)) }
                        (number(&known(path.stats.window_bytes, rounded::bytes)))
                        (number(&rounded::bytes(path.stats.in_flight_bytes)))
                        (number(&rounded::rate(path.stats.acked_rate)))
                        (number(&known(path.stats.srtt, rounded::duration)))
                        (number(&known(path.stats.loss, |loss| rounded::percent(loss.get()))))
                        (number(&path.stats.acked_ce_packets.to_string()))
                    } } }
                } }
            }
        }
    }
}
