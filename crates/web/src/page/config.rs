//! The configuration in force, as far as the gateway reports it. Keys and tokens are not part of what it reports.

use keiro_control::{protocol::HistoryState, rounded};
use maud::{Markup, html};

use super::{
    Page, PageAddress,
    part::{self, bad, facts, good, heads, number},
};
use crate::{
    source::Data,
    text::{self, known, word},
};

/// Rows of each table. Ours.
const ROWS_MAX: usize = 1000;

pub(super) fn page(data: &Data) -> Page {
    Page::new(PageAddress::Config.title())
        .live("problems", problems(data))
        .live("gateway", gateway(data))
        .live("config-paths", paths(data))
        .live("config-apps", apps(data))
}

fn problems(data: &Data) -> Markup {
    let status = &data.status;
    html! {
        @if let Some(why) = &status.config_rejected {
            section class="attention" { h2 { "The last reload was refused" }
                p { "The configuration before it stays in force." }
                pre { (text::sentence_lines(why)) }
                p { "Next: correct these places, then " code { "keiro reload" } "." } }
        }
        @if !status.needs_restart.is_empty() {
            section class="attention" { h2 { "Takes effect after a restart" }
                ul { @for line in &status.needs_restart { li { (text::sentence(line)) } } } }
        }
    }
}

fn gateway(data: &Data) -> Markup {
    let status = &data.status;
    let history = match status.history.state {
        HistoryState::Ok => good("kept"),
        HistoryState::Failed => bad("failed"),
        other => html! { (word(&other)) },
    };
    html! {
        section aria-labelledby="gateway-head" {
            h2 id="gateway-head" { "Gateway" }
            (facts(&[
                ("File", html! { (text::name(&status.config_file)) ", read " (part::time(status.config_loaded.0)) }),
                ("Name", text::name(&status.name)),
                ("Public key", html! { code { (text::name(&status.public_key)) } }),
                ("Planner", html! { (word(&status.planner)) ", tolerance " (rounded::percent(status.tolerance_ratio)) }),
                ("Scheduler", html! { (word(&status.scheduler)) }),
                ("History", html! { (history) @if let Some(why) = &status.history.why { ": " (text::sentence(why)) } }),
            ]))
            p class="note" { "Keys, tokens and preshared keys are not sent to these pages. " code { "keiro config check" } " checks the file." }
        }
    }
}

fn paths(data: &Data) -> Markup {
    html! {
        section aria-labelledby="config-paths-head" {
            h2 id="config-paths-head" { "Paths" }
            div class="wide" role="region" tabindex="0" aria-label="Configured paths" { table {
                caption { "What is configured of paths; – where the gateway measures it" }
                (heads(&["Path", "Peer", "Interface", "Local", "Remote", "Rate>", "Delay>"]))
                tbody { @for path in data.paths.iter().take(ROWS_MAX) { tr {
                    th scope="row" { (text::name(&path.name)) }
                    td { (text::name(&path.peer)) }
                    td { (path.interface.as_deref().map_or(html! { (text::NONE) }, text::name)) }
                    td { (text::name(&path.local)) }
                    td { (path.remote.as_deref().map_or(html! { (text::NONE) }, text::name)) }
                    (number(&known(path.stats.configured_rate, rounded::rate)))
                    (number(&known(path.configured_delay_seconds, text::seconds)))
                } } }
            } }
        }
    }
}

fn apps(data: &Data) -> Markup {
    html! {
        section aria-labelledby="config-apps-head" {
            h2 id="config-apps-head" { "Applications" }
            div class="wide" role="region" tabindex="0" aria-label="Configured applications" { table {
                caption { "What is configured of applications" }
                (heads(&["Application", "Peer", "Class", "Latency target>", "Lifetime>", "Tolerated loss>", "Path chosen by"]))
                tbody { @for app in data.apps.iter().take(ROWS_MAX) { tr {
                    th scope="row" { (text::name(&app.name)) }
                    td { (text::name(&app.peer)) }
                    td { (word(&app.class)) }
                    (number(&known(app.stats.latency_target, rounded::duration)))
                    (number(&known(app.lifetime_seconds, text::seconds)))
                    (number(&known(app.loss_tolerance_ratio, rounded::percent)))
                    td { (word(&app.assigned_by)) }
                } } }
            } }
        }
    }
}
