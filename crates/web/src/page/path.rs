//! One path to every peer: what it is, its history, what it costs to measure it, and which applications it carries.

use std::time::SystemTime;

use keiro_control::{
    config::CostPerGb,
    event_text::Severity,
    protocol::{AppSnapshot, HistoryKind, PathHistory, PathHistoryRow, PathSnapshot, Response},
    rounded,
};
use maud::{Markup, html};

use super::{
    Page,
    address::{PageAddress, Span, Supposed},
    app_table, events, fault, figures,
    part::{self, bad, facts, link, unix},
    path_health::{health_word, is_waiting},
};
use crate::{
    drawing::{Band, Chart, Line, Mark, Unit},
    source::{Answer, Data, Source, unexpected},
    text::{self, known, seconds, word},
};

/// Rows and events of this page. Ours.
const APPS_MAX: usize = 50;
const EVENTS_MAX: usize = 20;
const PEERS_MAX: usize = 20;
/// Peers whose charts are drawn. Ours.
const CHARTS_MAX: usize = 8;

pub(super) async fn page(source: &Source, data: &Data, base: &str, name: &str, span: Span) -> Page {
    let page = Page::new(name);
    let paths: Vec<&PathSnapshot> = data.paths.iter().filter(|path| path.name == name).collect();
    if paths.is_empty() {
        return page.fixed(html! {
            p { "The gateway has no path of this name. " (link(base, &PageAddress::Paths, &html! { "All paths" })) }
        });
    }
    let history = source
        .history(HistoryKind::Path, name, span.duration())
        .await;
    let (waiting, used): (Vec<&PathSnapshot>, Vec<_>) =
        paths.iter().copied().partition(|path| is_waiting(path));
    page.live(
        "path",
        html! { @for path in &used { (overview(path)) } (waiting_for(&waiting)) },
    )
    .fixed(what_if_links(name, base))
    .live("apps", apps(source, data, base, name))
    .live("history", measured(source, base, name, span, &history))
    .live("events", path_events(source, base, name))
    .live("counters", counters(&paths))
}

/// Peers that have not come by this path, in one line: nothing is measured to them.
fn waiting_for(paths: &[&PathSnapshot]) -> Markup {
    html! {
        @if !paths.is_empty() {
            p { "No packet has come by this path from "
                @for (number, path) in paths.iter().take(PEERS_MAX).enumerate() { @if number > 0 { ", " } (text::name(&path.peer)) }
                @if paths.len() > PEERS_MAX { " and " (paths.len() - PEERS_MAX) " more peers" }
                ", and no address is configured to which this gateway could send first." }
        }
    }
}

fn overview(path: &PathSnapshot) -> Markup {
    let capacity = match &path.capacity {
        Some(capacity) => html! {
            (rounded::rate(capacity.rate)) " (95 % between " (rounded::rate(capacity.low)) " and " (rounded::rate(capacity.high))
            "), confirmed " (rounded::duration(capacity.age)) " ago"
        },
        None => html! { "not measured yet" },
    };
    let delay = match path.delay_seconds {
        None => html! { "not measured yet" },
        Some(delay) => html! {
            (seconds(delay)) @if path.delay_configured { " (configured, corrected by what has changed)" } @else { " (measured)" }
            ", round trip " (known(path.stats.srtt, rounded::duration)) ", at least " (known(path.stats.min_rtt, rounded::duration))
        },
    };
    let sent = path.stats.sent_bytes.max(1) as f64;
    let cost = html! {
        (rounded::bytes(path.stats.probe_bytes)) ", " (rounded::percent(path.stats.probe_bytes as f64 / sent)) " of what was sent"
        @if let Some(idle) = path.stats.idle_month_bytes { "; " (rounded::bytes(idle)) " in 30 days without data" }
    };
    let carried = rounded::rate(path.stats.sent_rate);
    let in_use = match (path.stats.cross_traffic, path.stats.available) {
        (Some(others), Some(available)) => html! {
            (carried) " sent, others send " (rounded::rate(others)) ", " (rounded::rate(available)) " available"
        },
        _ => html! { (carried) " sent; what others send is not measured" },
    };
    let why = path
        .problem
        .as_ref()
        .or(path.diagnosis.as_ref())
        .unwrap_or(&path.why);
    let mut shown = vec![
        (
            "State",
            html! { (health_word(path)) " for " (seconds(path.state_seconds)) ": " (text::sentence(why)) },
        ),
        (
            "Addresses",
            html! { (text::name(&path.local)) " to " (path.remote.as_deref().map_or(html! { "an unknown address" }, text::name)) },
        ),
        ("Capacity", capacity),
        ("In use", in_use),
        ("One-way delay", delay),
        (
            "Jitter",
            html! { (known(path.stats.jitter, rounded::duration)) },
        ),
        (
            "Loss",
            html! { (known(path.stats.loss, |loss| rounded::percent(loss.get()))) },
        ),
        (
            "Own queue",
            html! { (rounded::bytes(path.stats.queued_bytes)) " wait here"
            @if let Some(queue) = path.stats.queue { ", " (rounded::duration(queue)) " on the way (limit " (known(path.stats.target_queue, rounded::duration)) ")" } },
        ),
        ("MTU", html! { (path.stats.mtu_bytes) " B" }),
        ("Cost of measuring", cost),
        (
            "Outages",
            html! { (path.stats.outages) " since the gateway started" },
        ),
    ];
    shown.extend(terms(path));
    if let Some(state) = &path.rate_state {
        shown.push(("Rate is limited by", text::name(state)));
    }
    if let Some(aggregation) = &path.aggregation {
        let stats = &aggregation.stats;
        shown.push((
            "Aggregation",
            html! { (text::name(&aggregation.mode)) ": " (rounded::bytes(stats.size_bytes)) " every " (rounded::duration(stats.interval)) ", " (stats.copies) " copies"
                @if let Some(why) = &aggregation.why { "; " (text::sentence(why)) } },
        ));
    }
    html! { section { h2 { "To " (text::name(&path.peer)) } (facts(&shown)) } }
}

/// Role and cost, where it has any, and what is used of the budget of the month.
fn terms(path: &PathSnapshot) -> Vec<(&'static str, Markup)> {
    let mut shown = Vec::new();
    if let Some(terms) = role_and_cost(path) {
        shown.push(("Role and cost", terms));
    }
    if let Some(budget) = &path.budget {
        shown.push(("Budget", html! { (rounded::budget(budget)) }));
    }
    shown
}

/// `None`: a primary path that costs nothing.
pub(super) fn role_and_cost(path: &PathSnapshot) -> Option<Markup> {
    let terms = path.path_terms.as_ref()?;
    let cost = CostPerGb::new(terms.cost_per_gb).filter(|cost| *cost > CostPerGb::ZERO);
    Some(html! {
        (word(&terms.role)) @if let Some(cost) = cost { ", " (cost.to_string()) " per GB" }
        @if terms.budget_spent { ": " (bad("the budget of the month is used up")) ", only keepalives and essential applications without another path" }
    })
}

fn what_if_links(name: &str, base: &str) -> Markup {
    let lose = Supposed {
        lose: name.to_owned(),
        ..Supposed::default()
    };
    html! { p { "What if: " (link(base, &PageAddress::WhatIf(lose), &html! { "this path is lost" })) } }
}

fn apps(source: &Source, data: &Data, base: &str, name: &str) -> Markup {
    let mut apps: Vec<&AppSnapshot> = data
        .apps
        .iter()
        .filter(|app| app_table::is_on(app, name))
        .collect();
    apps.sort_by(|a, b| app_table::by_urgency(a, b));
    let all = apps.len();
    apps.truncate(APPS_MAX);
    html! {
        section aria-labelledby="apps-head" {
            h2 id="apps-head" { "Applications on it" }
            @if all == 0 { p { "None." } } @else {
                (app_table::table(source, base, &apps, "Applications on this path"))
                @if all > apps.len() { p { (all - apps.len()) " more." } }
            }
        }
    }
}

fn measured(source: &Source, base: &str, name: &str, span: Span, answer: &Answer) -> Markup {
    html! {
        section aria-labelledby="history-head" {
            h2 id="history-head" { "History" }
            (part::spans(base, span, |span| PageAddress::Path { name: name.to_owned(), span }))
            @match answer.as_deref() {
                Ok(Response::PathHistory(history)) => (charts(source, span, history)),
                Ok(other) => (fault(&unexpected(other))),
                Err(error) => (fault(error)),
            }
        }
    }
}

fn charts(source: &Source, span: Span, history: &PathHistory) -> Markup {
    let mut peers: Vec<&str> = Vec::new();
    for row in &history.rows {
        if !peers.contains(&row.peer.as_str()) && peers.len() < CHARTS_MAX {
            peers.push(&row.peer);
        }
    }
    html! {
        @if peers.is_empty() { p { "Nothing was measured in this time." } }
        @for peer in &peers {
            @if peers.len() > 1 { h3 { "To " (text::name(peer)) } }
            div class="charts" { @for chart in charts_to(source, span, history, peer) { (chart.draw()) } }
        }
        p class="note" { "A row of the history is of " (seconds(history.row_seconds as f64)) ": the least delay without queues, and means of the others. "
            "The history keeps no percentiles of a path and no own queue." }
    }
}

fn charts_to<'a>(
    source: &Source,
    span: Span,
    history: &'a PathHistory,
    peer: &str,
) -> Vec<Chart<'a>> {
    let to = unix(SystemTime::now());
    let from = to - span.duration().as_secs_f64();
    let rows: Vec<&PathHistoryRow> = history.rows.iter().filter(|row| row.peer == peer).collect();
    let line = |label, value: fn(&PathHistoryRow) -> Option<f64>| Line {
        label,
        points: rows
            .iter()
            .filter_map(|row| Some((unix(row.at.0), value(row)?)))
            .collect(),
    };
    let chart = |title, unit, lines| Chart {
        title,
        unit,
        from,
        to,
        row_seconds: history.row_seconds as f64,
        bands: Vec::new(),
        lines,
        level: None,
        marks: brownouts(source, &history.name, peer, from),
    };
    let mut delay = chart(
        "One-way delay",
        Unit::Seconds,
        vec![line("least", |row| row.base_delay_seconds)],
    );
    let jittered = rows.iter().filter_map(|row| {
        let (delay, jitter) = (row.base_delay_seconds?, row.jitter_seconds?);
        Some((unix(row.at.0), delay, delay + jitter))
    });
    delay.bands.push(Band {
        label: "and the mean jitter above it",
        points: jittered.collect(),
    });
    vec![
        delay,
        chart(
            "Jitter",
            Unit::Seconds,
            vec![line("mean", |row| row.jitter_seconds)],
        ),
        chart(
            "Loss",
            Unit::Ratio,
            vec![line("mean", |row| row.loss_ratio)],
        ),
        chart(
            "Capacity and what is left of it",
            Unit::BitsPerSecond,
            vec![
                line("capacity", |row| row.capacity_bits_per_second),
                line("available", |row| row.available_bits_per_second),
            ],
        ),
    ]
}

/// When the path went down, or nothing was answered on it.
fn brownouts(source: &Source, name: &str, peer: &str, from: f64) -> Vec<Mark> {
    let log = source.events();
    let of_path = log.newest().filter(|seen| {
        let subject = &seen.subject;
        seen.severity == Severity::Warning
            && subject.path.as_deref() == Some(name)
            && subject.peer.as_deref() == Some(peer)
    });
    let mut marks: Vec<Mark> = of_path
        .filter(|seen| unix(seen.time) >= from)
        .map(|seen| Mark {
            at: unix(seen.time),
            label: seen.sentence.clone(),
        })
        .collect();
    marks.reverse();
    marks
}

fn path_events(source: &Source, base: &str, name: &str) -> Markup {
    let log = source.events();
    let of_path = log
        .newest()
        .filter(|seen| seen.subject.path.as_deref() == Some(name));
    let shown: Vec<_> = of_path.take(EVENTS_MAX).collect();
    html! {
        section aria-labelledby="events-head" {
            h2 id="events-head" { "Events" }
            (events::coverage(&log, SystemTime::UNIX_EPOCH))
            @if shown.is_empty() { p { "None." } } @else { (events::list(base, shown.into_iter())) }
        }
    }
}

fn counters(paths: &[&PathSnapshot]) -> Markup {
    html! {
        @for path in paths {
            details { summary { "All counters to " (text::name(&path.peer)) }
                (figures::table("Counters of the path", &path.stats.0))
                @if let Some(socket) = &path.socket { (figures::table("Counters of its socket", &socket.0)) }
                @if let Some(kind) = path.trouble { p { "Fault: " (word(&kind)) } }
            }
        }
    }
}
