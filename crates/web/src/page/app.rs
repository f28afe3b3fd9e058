//! One application: its target and what it gets, why it is on its path, its history, when it moved.

use std::time::{Duration, SystemTime};

use keiro_control::{
    protocol::{
        AppHistory, AppHistoryRow, AppSnapshot, Candidate, DelayTerms, Event, EventKind,
        Explanation, HistoryKind, MoveThreshold, Response,
    },
    rounded,
};
use maud::{Markup, html};

use super::{
    Page,
    address::{PageAddress, Span, Supposed},
    app_table, events, fault,
    part::{self, facts, heads, judged, link, number, path_link, unix},
};
use crate::{
    drawing::{Band, Chart, Line, Mark, Unit},
    source::{Answer, Data, Source, unexpected},
    text::{self, known, millis, seconds, word},
};

/// Events of the application that are listed. Ours.
const EVENTS_MAX: usize = 20;
const FORECASTS_MAX: usize = 120;

pub(super) async fn page(source: &Source, data: &Data, base: &str, name: &str, span: Span) -> Page {
    let page = Page::new(name);
    let Some(app) = data.apps.iter().find(|app| app.name == name) else {
        return page.fixed(html! {
            p { "The gateway has no application of this name. " (link(base, &PageAddress::Apps(super::address::List::default()), &html! { "All applications" })) }
        });
    };
    let explained = source.explain(name).await;
    let history = source
        .history(HistoryKind::App, name, span.duration())
        .await;
    page.live("app", overview(app, base))
        .live("why", why(&explained, base))
        .fixed(what_if_links(app, base))
        .live("history", measured(source, app, base, span, &history))
        .live("moves", moves(source, &explained, app, base))
        .live("counters", counters(app))
}

fn overview(app: &AppSnapshot, base: &str) -> Markup {
    let target = app.stats.latency_target;
    let loss = match (&app.excess_loss, app.loss_tolerance_ratio) {
        (Some(excess), _) => html! {
            (part::bad(&format!("its path loses {}", rounded::percent(excess.loss_ratio))))
            ", it tolerates " (rounded::percent(excess.tolerance_ratio))
        },
        (None, Some(tolerates)) => {
            html! { "within what it tolerates, " (rounded::percent(tolerates)) }
        }
        (None, None) => html! { "is repaired, and counts as the time of the repair" },
    };
    let lost = app
        .stats
        .expired_messages
        .saturating_add(app.stats.refused_messages);
    let forecast = match &app.no_forecast {
        Some(why) => html! { "none: " (text::sentence(why)) },
        None => html! {
            "mean " (known(app.stats.predicted_delay, rounded::duration)) ", median " (known(app.predicted.p50_seconds, seconds))
            ", p95 " (known(app.predicted.p95_seconds, seconds)) ", p99 " (known(app.predicted.p99_seconds, seconds))
        },
    };
    let measured = match &app.delay {
        Some(delay) => html! {
            "mean " (seconds(delay.mean_seconds)) ", median " (seconds(delay.p50_seconds)) ", p99 " (seconds(delay.p99_seconds))
            ", " (delay.count) " messages counted"
        },
        None => html! { "nothing yet" },
    };
    html! {
        (facts(&[
            ("Path", html! {
                (app_table::path(base, app))
                @match &app.no_path {
                    Some(why) => { ": " (text::sentence(why)) }
                    None if app.spread.is_some() => { "; each part of its data takes the path by which it arrives first" }
                    None => { ", chosen by " (word(&app.assigned_by)) }
                }
            }),
            ("Latency target", html! { @if target.is_some() { (known(target, rounded::duration)) ": " (app_table::verdict(app)) } @else { "none" } }),
            ("Margin of the forecast", html! { (known(app.margin_seconds, millis)) }),
            ("Forecast", forecast),
            ("Measured", measured),
            ("Loss on its path", loss),
            ("Loss after repair", html! { (lost) " of " (app.stats.sent_messages) " messages expired or were refused" }),
            ("To peer", text::name(&app.peer)),
            ("Class", html! { (word(&app.class)) }),
            ("Workload of the forecast", html! { (known(app.length_bytes, |bytes| rounded::bytes(bytes as u64))) " every " (known(app.interval_seconds, seconds)) }),
        ]))
    }
}

/// The same sentences and numbers as `keiro explain`.
fn why(answer: &Answer, base: &str) -> Markup {
    html! {
        section aria-labelledby="why-head" {
            h2 id="why-head" { "Why it is there" }
            @match answer.as_deref() {
                Ok(Response::Explanation(explanation)) => (explanation_part(explanation, base)),
                Ok(other) => (fault(&unexpected(other))),
                Err(error) => (fault(error)),
            }
        }
    }
}

fn explanation_part(explanation: &Explanation, base: &str) -> Markup {
    html! {
        p class="story" { (text::sentence(&explanation.text)) }
        div class="wide" role="region" tabindex="0" aria-label="Paths that it could take" { table {
            caption { "Paths that it could take. Equation 3 is T + L / (W − Q): T delay of the path and what its losses cost, L message length, W rate of the path, Q what others send on it" }
            (heads(&["Path", "Mean meets the target", "State", "Forecast mean>", "Forecast p99>", "Margin>", "Equation 3>", "T>", "L>", "W>", "Q>", "Verdict"]))
            tbody { @for candidate in &explanation.candidates { (candidate_row(candidate, base)) } }
        } }
        @let thresholds: Vec<Markup> = explanation.would_move.iter().filter_map(threshold).collect();
        @if !thresholds.is_empty() {
            h3 { "What would move it" }
            ul { @for line in &thresholds { li { (line) } } }
        }
    }
}

fn candidate_row(candidate: &Candidate, base: &str) -> Markup {
    let term = |show: fn(&DelayTerms) -> String| number(&known(candidate.terms.as_ref(), show));
    let met = match candidate.target_met {
        Some(true) => part::good("met"),
        Some(false) => part::bad("missed"),
        None => html! { (text::NONE) },
    };
    html! {
        tr class=[candidate.chosen.then_some("chosen")] {
            th scope="row" { (path_link(base, &candidate.path)) @if candidate.chosen { " (in use)" } }
            td { (met) (judged(candidate.judged_by)) }
            td { (word(&candidate.state)) }
            (term(|terms| known(terms.predicted_delay_seconds, seconds)))
            (term(|terms| known(terms.predicted.p99_seconds, seconds)))
            (number(&known(candidate.margin_seconds, seconds)))
            (term(|terms| terms.paper_delay_seconds.map_or_else(|| "overloaded".to_owned(), seconds)))
            (term(|terms| seconds(terms.propagation_seconds)))
            (term(|terms| rounded::bytes(terms.length_bytes as u64)))
            (term(|terms| text::rate(terms.rate_bits_per_second)))
            (term(|terms| text::rate(terms.other_load_bits_per_second)))
            td class="text" { (text::sentence(&candidate.verdict)) }
        }
    }
}

fn threshold(threshold: &MoveThreshold) -> Option<Markup> {
    Some(match threshold {
        MoveThreshold::PathDelay {
            path,
            now_seconds,
            at_seconds,
            to,
        } => {
            html! { "a delay of " (text::name(path)) " of " (seconds(*at_seconds)) " (now " (seconds(*now_seconds)) ") moves it to " (text::name(to)) }
        }
        MoveThreshold::PathRate {
            path,
            now_bits_per_second,
            at_bits_per_second,
            to,
        } => html! {
            "a rate of " (text::name(path)) " of " (text::rate(*at_bits_per_second as f64)) " (now " (text::rate(*now_bits_per_second as f64))
            ") moves it to " (text::name(to))
        },
        MoveThreshold::LatencyTarget {
            now_seconds,
            at_seconds,
            to,
        } => {
            html! { "a latency target of " (seconds(*at_seconds)) " (now " (seconds(*now_seconds)) ") moves it to " (text::name(to)) }
        }
        MoveThreshold::Unknown => return None,
    })
}

fn what_if_links(app: &AppSnapshot, base: &str) -> Markup {
    let lose = app.path.as_ref().map(|path| Supposed {
        lose: path.clone(),
        ..Supposed::default()
    });
    let add = Supposed {
        add: app.name.clone(),
        count: "5".into(),
        ..Supposed::default()
    };
    html! {
        p { "What if: "
            @if let Some(lose) = lose { (link(base, &PageAddress::WhatIf(lose), &html! { "its path is lost" })) " · " }
            (link(base, &PageAddress::WhatIf(add), &html! { "there are five more like it" }))
        }
    }
}

fn measured(source: &Source, app: &AppSnapshot, base: &str, span: Span, answer: &Answer) -> Markup {
    let name = &app.name;
    html! {
        section aria-labelledby="history-head" {
            h2 id="history-head" { "Forecast against measured" }
            (part::spans(base, span, |span| PageAddress::App { name: name.clone(), span }))
            @match answer.as_deref() {
                Ok(Response::AppHistory(history)) => (charts(source, app, span, history)),
                Ok(other) => (fault(&unexpected(other))),
                Err(error) => (fault(error)),
            }
        }
    }
}

fn charts(source: &Source, app: &AppSnapshot, span: Span, history: &AppHistory) -> Markup {
    let now = SystemTime::now();
    let to = unix(now);
    let from = to - span.duration().as_secs_f64();
    let line = |value: fn(&AppHistoryRow) -> Option<f64>| -> Vec<(f64, f64)> {
        let rows = history.rows.iter();
        rows.filter_map(|row| Some((unix(row.at.0), value(row)?)))
            .collect()
    };
    let band = history.rows.iter().filter_map(|row| {
        Some((
            unix(row.at.0),
            row.delay_p50_seconds?,
            row.delay_p99_seconds?,
        ))
    });
    let target = app
        .stats
        .latency_target
        .map(|target| ("latency target", target.as_secs_f64()));
    let forecasts = source.record().of_app(&app.name, FORECASTS_MAX);
    let mut delay = Chart {
        title: "Delay",
        unit: Unit::Seconds,
        from,
        to,
        row_seconds: history.row_seconds as f64,
        bands: vec![Band {
            label: "between median and 99th percentile",
            points: band.collect(),
        }],
        lines: vec![
            Line {
                label: "median",
                points: line(|row| row.delay_p50_seconds),
            },
            Line {
                label: "95th percentile",
                points: line(|row| row.delay_p95_seconds),
            },
            Line {
                label: "99th percentile",
                points: line(|row| row.delay_p99_seconds),
            },
        ],
        level: target,
        marks: marks(source, app, now, span.duration()),
    };
    if span == Span::Hour {
        delay.lines.push(Line {
            label: "forecast of the 99th percentile",
            points: forecasts,
        });
    }
    let forecast = match app.predicted.p99_seconds {
        Some(p99) => format!(
            "The forecast of the 99th percentile is {} now",
            seconds(p99)
        ),
        None => "There is no forecast now".to_owned(),
    };
    html! {
        (delay.draw())
        p class="note" { (forecast) ". Earlier forecasts of the last hour are those that these pages have seen; the gateway's history keeps measured delays alone."
            @if span != Span::Hour { " A percentile of an hour is the greatest of its minutes." } }
    }
}

/// Moves and missed targets of the application.
fn marks(source: &Source, app: &AppSnapshot, now: SystemTime, past: Duration) -> Vec<Mark> {
    let log = source.events();
    let of_app = log
        .newest()
        .filter(|seen| seen.subject.app.as_deref() == Some(&app.name));
    let recent = of_app.filter(|seen| now.duration_since(seen.time).is_ok_and(|age| age <= past));
    let mut marks: Vec<Mark> = recent
        .map(|seen| Mark {
            at: unix(seen.time),
            label: seen.sentence.clone(),
        })
        .collect();
    marks.reverse();
    marks
}

fn moves(source: &Source, answer: &Answer, app: &AppSnapshot, base: &str) -> Markup {
    let log = source.events();
    let of_app = || {
        log.newest()
            .filter(|seen| seen.subject.app.as_deref() == Some(&app.name))
    };
    let last = match answer.as_deref() {
        Ok(Response::Explanation(explanation)) => explanation.last_move.as_ref(),
        _ => None,
    };
    html! {
        section aria-labelledby="moves-head" {
            h2 id="moves-head" { "When it moved, and why" }
            @match last { Some(event) => p { "Last move: " (move_text(event)) "." }, None => p { "It has not moved since the gateway started." } }
            (events::coverage(&log, SystemTime::UNIX_EPOCH))
            @if of_app().next().is_some() { (events::list(base, of_app().take(EVENTS_MAX))) }
        }
    }
}

fn move_text(event: &Event) -> Markup {
    let sentence = match &event.kind {
        EventKind::Unknown => "the gateway reports a move that these pages do not know".to_owned(),
        kind => keiro_control::event_text::sentence(kind),
    };
    html! { (part::time(event.time.0)) ": " (text::sentence(&sentence)) }
}

/// Every counter and gauge, under the names of `keiro show app`.
fn counters(app: &AppSnapshot) -> Markup {
    html! {
        details { summary { "All counters" }
            (super::figures::table("Counters of the application", &app.stats.0)) }
    }
}
