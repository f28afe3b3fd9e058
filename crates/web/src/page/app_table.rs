//! Applications in a table, those that need attention first.

use std::cmp::Ordering;

use keiro_control::{
    protocol::{AppSnapshot, SpreadPathSnapshot},
    rounded,
};
use maud::{Markup, html};

use super::part::{app_link, bad, good, heads, judged, number, path_link};
use crate::{
    drawing::sparkline,
    source::{Source, record::ROW_SECONDS},
    text::{self, known, millis},
};

/// Points of a forecast's line in a table. Ours: it is as wide as a word.
const SAMPLES_MAX: usize = 30;
/// Paths of a spread application that are named. Ours: the largest shares, in the width of a column.
const SHARES_MAX: usize = 4;

/// What is to be done first: missed targets, then no path, then the smallest margin, then the name.
pub(super) fn by_urgency(a: &AppSnapshot, b: &AppSnapshot) -> Ordering {
    let rank = |app: &AppSnapshot| match (app.stats.target_met, &app.path) {
        (Some(false), _) => 0,
        (_, None) => 1,
        (_, Some(_)) if app.excess_loss.is_some() => 2,
        (_, Some(_)) => 3,
    };
    let margin = |app: &AppSnapshot| app.margin_seconds.unwrap_or(f64::INFINITY);
    let order = rank(a).cmp(&rank(b)).then(margin(a).total_cmp(&margin(b)));
    order.then_with(|| a.name.cmp(&b.name))
}

/// Whether the target is met, in words.
pub(super) fn verdict(app: &AppSnapshot) -> Markup {
    let by = judged(app.judged_by);
    match (app.stats.latency_target, app.stats.target_met) {
        (None, _) => html! { "no target" },
        (Some(_), Some(true)) => html! { (good("met")) (by) },
        (Some(_), Some(false)) => html! { (bad("missed")) (by) },
        (Some(_), None) => html! { "not known yet" },
    }
}

/// The path in use, or that there is none.
pub(super) fn path(base: &str, app: &AppSnapshot) -> Markup {
    match (&app.path, &app.spread) {
        (Some(_), Some(spread)) => shares(base, spread),
        (Some(path), None) => path_link(base, path),
        (None, _) => bad("none, traffic waits"),
    }
}

/// What a spread application has sent by each path.
fn shares(base: &str, spread: &[SpreadPathSnapshot]) -> Markup {
    let shares = rounded::shares(spread);
    html! {
        "spread" @for (number, (path, share)) in shares.iter().take(SHARES_MAX).enumerate() {
            @if number == 0 { ": " } @else { ", " } (path_link(base, path)) " " (rounded::percent(*share))
        }
        @if shares.len() > SHARES_MAX { " and " (shares.len() - SHARES_MAX) " more" }
    }
}

/// Whether an application uses a path, alone or beside others.
pub(super) fn is_on(app: &AppSnapshot, path: &str) -> bool {
    let mut spread = app.spread.iter().flatten();
    app.path.as_deref() == Some(path) || spread.any(|part| part.path == path && part.sent_bytes > 0)
}

/// One row for each application.
pub(super) fn table(source: &Source, base: &str, apps: &[&AppSnapshot], caption: &str) -> Markup {
    html! {
        div class="wide" role="region" tabindex="0" aria-label=(caption) { table {
            caption { (caption) }
            (heads(&["Application", "State", "Path", "Target>", "Measured p99>", "Forecast p99>", "Margin>", "Measured p50>", "Forecast mean>", "Peer", "Forecast p99, last hour"]))
            tbody { @for app in apps { (row(source, base, app)) } }
        } }
    }
}

fn row(source: &Source, base: &str, app: &AppSnapshot) -> Markup {
    let forecasts = source.record().of_app(&app.name, SAMPLES_MAX);
    let class = (app.stats.target_met == Some(false)).then_some("missed");
    html! {
        tr class=[class] {
            th scope="row" { (app_link(base, &app.name)) }
            td { (verdict(app)) }
            td { (path(base, app)) }
            (number(&known(app.stats.latency_target, |target| millis(target.as_secs_f64()))))
            (number(&known(app.delay, |delay| millis(delay.p99_seconds))))
            (number(&known(app.predicted.p99_seconds, millis)))
            (number(&known(app.margin_seconds, millis)))
            (number(&known(app.delay, |delay| millis(delay.p50_seconds))))
            (number(&known(app.stats.predicted_delay, |delay| millis(delay.as_secs_f64()))))
            td { (text::name(&app.peer)) }
            td { (sparkline("Forecast p99 over the last hour", &forecasts, ROW_SECONDS * 4.0)) }
        }
    }
}
