//! The egress suite: neighbours, egress peers with their segments and routes, and the comparison of multipath with
//! single path per client prefix.

use keiro_control::rounded;
use maud::{Markup, html};

use super::{
    Page, PageAddress, fault,
    part::{bad, facts, good, heads, number},
};
use crate::{
    site::Site,
    source::egress::{ComparedPrefix, EgressPeer, EgressStatus, Evidence, Neighbour},
    text::{self, known, rate},
};

/// Rows of each table. Ours.
const ROWS_MAX: usize = 500;

pub(super) async fn page(site: &Site) -> Page {
    let page = Page::new(PageAddress::Egress.title());
    let mut daemons = Vec::new();
    for daemon in &site.egress {
        daemons.push((daemon.socket.display().to_string(), daemon.status().await));
    }
    page.live(
        "egress",
        html! {
            @if daemons.is_empty() {
                p { "No daemon of the egress suite is named. Start " code { "keiro-web" } " with " code { "--egress FILE" } " and its control socket." }
            }
            @for (index, (socket, answer)) in daemons.iter().enumerate() {
                section aria-labelledby={ "daemon-" (index) } {
                    @match answer {
                        Ok(status) => {
                            h2 id={ "daemon-" (index) } { (text::name(&status.role)) " at " (text::name(socket)) }
                            (daemon(status, index))
                        },
                        Err(error) => {
                            h2 id={ "daemon-" (index) } { (text::name(socket)) }
                            (fault(error))
                        },
                    }
                }
            }
        },
    )
}

fn daemon(status: &EgressStatus, index: usize) -> Markup {
    let kernel = match &status.kernel {
        Some(kernel) => html! {
            (kernel.main_routes) " best paths, " (kernel.nexthops) " next hops, " (kernel.segments) " segments"
            @if let Some(error) = &kernel.error { ": " (bad("cannot be read")) ": " (text::sentence(error)) }
        },
        None => html! { "not used" },
    };
    html! {
        (facts(&[
            ("Autonomous system", html! { (status.asn) ", router " (text::name(&status.router_id)) }),
            ("In the kernel", kernel),
        ]))
        @if let Some(why) = &status.config_rejected {
            p class="note bad" { "The last reload was refused: " (text::sentence(why)) }
        }
        (neighbours(&status.neighbours, index))
        (peers(&status.peers, index))
        @if let Some(comparison) = &status.comparison { (compared(&comparison.shown, index)) }
    }
}

/// A table that may be wider than the page.
fn table(label: &str, columns: &[&str], rows: &[Markup]) -> Markup {
    html! {
        div class="wide" role="region" tabindex="0" aria-label=(label) { table {
            caption { (label) }
            (heads(columns))
            tbody { @for row in rows.iter().take(ROWS_MAX) { (row) } }
        } }
        @if rows.len() > ROWS_MAX { p { (rows.len() - ROWS_MAX) " more; `keiro show egress` lists all." } }
    }
}

fn neighbours(neighbours: &[Neighbour], daemon: usize) -> Markup {
    let row = |neighbour: &Neighbour| {
        let state = match neighbour.state.as_str() {
            "established" => good("established"),
            other => bad(&other.replace('_', " ")),
        };
        let up = known(neighbour.up_seconds, |up| text::seconds(up as f64));
        html! { tr {
            th scope="row" { (text::name(&neighbour.name)) }
            td { (state) }
            td { (text::name(&neighbour.address)) }
            (number(&neighbour.asn.to_string()))
            (number(&up))
            (number(&neighbour.routes.values().fold(0u64, |sum, routes| sum.saturating_add(*routes)).to_string()))
            td class="text" { (text::sentence(neighbour.last_error.as_deref().unwrap_or_default())) }
        } }
    };
    let rows: Vec<Markup> = neighbours.iter().map(row).collect();
    let columns = [
        "Neighbour",
        "State",
        "Address",
        "AS>",
        "Up for>",
        "Routes>",
        "Last error",
    ];
    table(
        &format!("Neighbours of daemon {}", daemon + 1),
        &columns,
        &rows,
    )
}

fn peers(peers: &[EgressPeer], daemon: usize) -> Markup {
    let row = |peer: &EgressPeer| {
        let kernel = match &peer.kernel {
            Some(kernel) if kernel.entered => {
                html! { (good("entered")) ", " (kernel.routes) " routes" }
            }
            Some(_) => bad("missing"),
            None => html! { (text::NONE) },
        };
        html! { tr {
            th scope="row" { (text::name(&peer.name)) }
            td { (text::name(peer.sid.as_deref().unwrap_or(text::NONE))) }
            td { (text::name(peer.address.as_deref().unwrap_or(text::NONE))) }
            (number(&peer.routes.to_string()))
            td { (kernel) }
            (number(&known(peer.subflows, |subflows| subflows.to_string())))
        } }
    };
    let rows: Vec<Markup> = peers.iter().map(row).collect();
    let columns = [
        "Egress peer",
        "Segment",
        "Address",
        "Routes>",
        "In the kernel",
        "Subflows>",
    ];
    table(
        &format!("Egress peers of daemon {}", daemon + 1),
        &columns,
        &rows,
    )
}

fn compared(prefixes: &[ComparedPrefix], daemon: usize) -> Markup {
    let row = |compared: &ComparedPrefix| {
        let evidence = &compared.evidence;
        html! { tr {
            th scope="row" { (text::name(&compared.prefix)) }
            td { (text::name(&compared.mode.replace('_', " "))) }
            (number(&known(evidence.single_bits_per_second, |goodput| rate(goodput as f64))))
            (number(&evidence.single_connections.to_string()))
            (number(&known(evidence.multipath_bits_per_second, |goodput| rate(goodput as f64))))
            (number(&evidence.multipath_connections.to_string()))
            (number(&interval(evidence)))
        } }
    };
    let rows: Vec<Markup> = prefixes.iter().map(row).collect();
    let columns = [
        "Client prefix",
        "Connections use",
        "Single path>",
        "Connections>",
        "Multipath>",
        "Connections>",
        "Multipath loses>",
    ];
    table(
        &format!(
            "Multipath against single path at daemon {}, with the confidence interval",
            daemon + 1
        ),
        &columns,
        &rows,
    )
}

/// How much goodput multipath loses; negative: it gains.
fn interval(evidence: &Evidence) -> String {
    let percent = |permille: i64| match permille < 0 {
        true => format!(
            "−{}",
            rounded::percent(permille.unsigned_abs() as f64 / 1000.0)
        ),
        false => rounded::percent(permille as f64 / 1000.0),
    };
    match (evidence.loss_low_permille, evidence.loss_high_permille) {
        (Some(low), Some(high)) => format!("{} to {}", percent(low), percent(high)),
        _ => "too few connections".to_owned(),
    }
}
