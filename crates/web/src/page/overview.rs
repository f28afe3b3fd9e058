//! The first page: what needs attention, the paths as a diagram, applications, events of the last hour.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use keiro_control::protocol::{HistoryState, ModelState, PathSnapshot, StatusSnapshot, StoreState};
use maud::{Markup, html};

use super::{
    Page, PageAddress,
    address::{Filter, List},
    app_table, events,
    part::{bad, facts, good, link, path_link, warn},
    path::role_and_cost,
    path_health::{Health, health, is_waiting},
};
use crate::{
    drawing::{traffic_line, traffic_width},
    source::{Data, Source},
    text::{self, known, seconds},
};

/// Rows of the parts of this page; their own pages have all. Ours: two screens in all.
const APPS_MAX: usize = 12;
const PATHS_MAX: usize = 24;
const EVENTS_MAX: usize = 20;
const NOTES_MAX: usize = 20;
const HOUR: Duration = Duration::from_secs(3600);

pub(super) fn page(source: &Source, data: &Data, base: &str) -> Page {
    Page::new(PageAddress::Overview.title())
        .live("summary", summary(data))
        .live("attention", attention(&data.status))
        .live("diagram", diagram(data, base))
        .live("apps", apps(source, data, base))
        .live("events", last_hour(source, base))
}

fn summary(data: &Data) -> Markup {
    let status = &data.status;
    let share = |part: u64, all: u64| {
        let shown = format!("{part} of {all}");
        if part == all {
            good(&shown)
        } else {
            bad(&shown)
        }
    };
    let targets = match status.apps_with_target {
        0 => html! { "no targets" },
        all => {
            html! { (share(status.apps_target_met, all)) " met, " (status.apps_target_measured) " as measured" }
        }
    };
    let model = match status.model {
        ModelState::Valid => good("measured delays agree with it"),
        ModelState::NotValid => bad("measured delays disagree with it"),
        ModelState::Unverified => warn("too little is measured to verify it"),
        ModelState::Off => html! { "off" },
        ModelState::Unknown => html! { "unknown" },
    };
    let mut shown = vec![
        ("Latency targets", targets),
        ("Paths up", paths_up(data)),
        ("Peers up", share(status.peers_up, status.peers)),
        ("Forecast", model),
        ("Planner", html! { (text::word(&status.planner)) }),
    ];
    if status.tenants > 0 {
        shown.insert(
            3,
            (
                "Tenants with device",
                share(status.tenants_with_device, status.tenants),
            ),
        );
    }
    facts(&shown)
}

/// Paths that wait for their peer are no fault: a site comes to its hub by the paths that it has.
fn paths_up(data: &Data) -> Markup {
    let (up, all) = (data.status.paths_up, data.status.paths);
    let shown = format!("{up} of {all}");
    let is_off = |path: &&PathSnapshot| health(path).0 == Health::Neither;
    let waiting = data.paths.iter().filter(is_off).count() as u64;
    html! {
        @if up.saturating_add(waiting) >= all { (good(&shown)) } @else { (bad(&shown)) }
        @if waiting > 0 { ", " (waiting) " wait for their peer or are not used" }
    }
}

/// What is wrong and known to be, a line each.
fn attention(status: &StatusSnapshot) -> Markup {
    let mut notes: Vec<String> = Vec::new();
    if let Some(why) = &status.config_rejected {
        notes.push(format!(
            "the last reload was refused, the configuration before it stays in force: {why}"
        ));
    }
    notes.extend(status.problems.iter().cloned());
    notes.extend(status.path_problems.iter().cloned());
    if let (ModelState::NotValid, Some(why)) = (status.model, &status.model_why) {
        notes.push(format!("the forecast is not valid: {why}"));
    }
    if let Some(store) = status
        .store
        .as_ref()
        .filter(|store| store.state == StoreState::Lost)
    {
        let reason = store.reason.as_deref().unwrap_or("it does not answer");
        notes.push(format!(
            "the plan store is lost, the last plan stays in force: {reason}"
        ));
    }
    if let (HistoryState::Failed, Some(why)) = (status.history.state, &status.history.why) {
        notes.push(format!("measurements are not kept: {why}"));
    }
    let restart = status.needs_restart.iter();
    notes.extend(restart.map(|what| format!("takes effect after a restart: {what}")));
    let more = notes.len().saturating_sub(NOTES_MAX);
    notes.truncate(NOTES_MAX);
    html! {
        @if !notes.is_empty() {
            section class="attention" aria-labelledby="attention-head" {
                h2 id="attention-head" { "Needs attention" }
                ul { @for note in &notes { li { (text::sentence(note)) } }
                    @if more > 0 { li { (more) " more; `keiro status` lists all" } } }
            }
        }
    }
}

/// The site, its paths and its peers.
fn diagram(data: &Data, base: &str) -> Markup {
    let mut paths: Vec<&PathSnapshot> = data.paths.iter().collect();
    // Those with a problem are among the shown ones.
    paths.sort_by_key(|path| health(path).0);
    let more = paths.len().saturating_sub(PATHS_MAX);
    paths.truncate(PATHS_MAX);
    let mut peers: BTreeMap<&str, Links> = BTreeMap::new();
    for path in paths {
        let links = peers.entry(&path.peer).or_default();
        match health(path).0 {
            Health::Neither => links.unused.push(path),
            _ => links.used.push(path),
        }
    }
    html! {
        section aria-labelledby="diagram-head" {
            h2 id="diagram-head" { "Paths" }
            @if data.paths.is_empty() { p { "No paths are configured or found." } }
            @else {
                div class="diagram" {
                    p class="site" { strong { (text::name(&data.status.name)) } }
                    ul class="peers" { @for (peer, links) in &peers { li {
                        ul class="links" {
                            @for path in &links.used { (path_row(path, base)) }
                            @if !links.unused.is_empty() { (unused_row(&links.unused, base)) }
                        }
                        p class="peer" { strong { (text::name(peer)) } }
                    } } }
                }
                @if more > 0 { p { (more) " more paths are up or not used; " (link(base, &PageAddress::Paths, &html! { "all paths" })) "." } }
            }
        }
    }
}

/// Paths to a peer.
#[derive(Default)]
struct Links<'a> {
    used: Vec<&'a PathSnapshot>,
    unused: Vec<&'a PathSnapshot>,
}

/// Paths that carry nothing because they need not, in one line.
fn unused_row(paths: &[&PathSnapshot], base: &str) -> Markup {
    html! {
        li { p class="of" { span class="why" {
            @if paths.iter().all(|path| is_waiting(path)) { "Wait for the peer: " } @else { "Not used: " }
            @for (number, path) in paths.iter().enumerate() { @if number > 0 { ", " } (path_link(base, &path.name)) }
        } } }
    }
}

fn path_row(path: &PathSnapshot, base: &str) -> Markup {
    let (health, word) = health(path);
    let carried = path.stats.sent_rate.as_bits_per_second() as f64;
    let room = path
        .capacity
        .as_ref()
        .map(|capacity| capacity.rate.as_bits_per_second() as f64);
    let use_text = match room {
        Some(room) => format!("{} of {}", text::rate(carried), text::rate(room)),
        None => text::rate(carried),
    };
    let class = health.class();
    html! {
        li {
            p class="of" { (path_link(base, &path.name)) " " span class=(class) { (word) }
                @if let Some(terms) = role_and_cost(path) { span class="why" { (terms) } }
                @if health != Health::Good { span class="why" { (text::sentence(&path.why)) } } }
            (traffic_line(class, traffic_width(carried)))
            p class="figures" {
                span { (use_text) } span { "one way " (known(path.delay_seconds, seconds)) }
                span { "loss " (known(path.stats.loss, |loss| keiro_control::rounded::percent(loss.get()))) }
            }
        }
    }
}

fn apps(source: &Source, data: &Data, base: &str) -> Markup {
    let mut apps: Vec<_> = data.apps.iter().collect();
    apps.sort_by(|a, b| app_table::by_urgency(a, b));
    let all = apps.len();
    apps.truncate(APPS_MAX);
    html! {
        section aria-labelledby="apps-head" {
            h2 id="apps-head" { "Applications" }
            @if all == 0 { p { "No applications are configured." } } @else {
                (app_table::table(source, base, &apps, "Applications, missed targets and small margins first"))
                @if all > apps.len() {
                    p { (link(base, &PageAddress::Apps(List::default()), &html! { "All " (all) " applications" })) }
                }
            }
        }
    }
}

fn last_hour(source: &Source, base: &str) -> Markup {
    let log = source.events();
    let since = SystemTime::now() - HOUR;
    let of_hour = || log.newest().filter(|seen| seen.time >= since);
    let (count, shown) = (of_hour().count(), of_hour().take(EVENTS_MAX));
    html! {
        section aria-labelledby="events-head" {
            h2 id="events-head" { "Events of the last hour" }
            (events::coverage(&log, since))
            @if count == 0 { p { "None." } } @else { (events::list(base, shown)) }
            @if count > EVENTS_MAX {
                p { (link(base, &PageAddress::Events(Filter::default()), &html! { "All " (count) " events" })) }
            }
        }
    }
}
