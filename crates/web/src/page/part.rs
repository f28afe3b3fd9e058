//! What pages are made of: states in words and colour, facts, times, links.

use std::time::SystemTime;

use keiro_control::protocol::{JudgedBy, Timestamp};
use maud::{Markup, html};

use super::address::{PageAddress, Span};
use crate::text;

/// A state that is as wanted.
pub(super) fn good(word: &str) -> Markup {
    html! { span class="good" { (word) } }
}

/// One that is not.
pub(super) fn bad(word: &str) -> Markup {
    html! { span class="bad" { (word) } }
}

/// One that may become so.
pub(super) fn warn(word: &str) -> Markup {
    html! { span class="warn" { (word) } }
}

/// Names and values, side by side.
pub(super) fn facts(facts: &[(&str, Markup)]) -> Markup {
    html! {
        dl class="facts" { @for (name, value) in facts { div { dt { (name) } dd { (value) } } } }
    }
}

/// The head of a table; a name that ends with `>` is of numbers.
pub(super) fn heads(names: &[&str]) -> Markup {
    html! {
        thead { tr { @for name in names {
            @match name.strip_suffix('>') {
                Some(name) => th scope="col" class="n" { (name) },
                None => th scope="col" { (name) },
            }
        } } }
    }
}

/// A number in a table.
pub(super) fn number(text: &str) -> Markup {
    html! { td class="n" { (text) } }
}

pub(super) fn link(base: &str, place: &PageAddress, shown: &Markup) -> Markup {
    html! { a href={ (base) "/" (place.address()) } { (shown) } }
}

pub(super) fn app_link(base: &str, name: &str) -> Markup {
    let place = PageAddress::App {
        name: name.to_owned(),
        span: Span::Hour,
    };
    link(base, &place, &text::name(name))
}

pub(super) fn path_link(base: &str, name: &str) -> Markup {
    let place = PageAddress::Path {
        name: name.to_owned(),
        span: Span::Hour,
    };
    link(base, &place, &text::name(name))
}

/// A point of time as `2026-01-31 12:00:00` in UTC.
pub(super) fn time(at: SystemTime) -> Markup {
    let full = Timestamp(at).to_string();
    let shown = full.get(..19).unwrap_or_default().replacen('T', " ", 1);
    html! { time datetime=(full) { (shown) } }
}

/// What judges a latency target, in brackets.
pub(super) fn judged(by: Option<JudgedBy>) -> &'static str {
    match by {
        Some(JudgedBy::Measurement) => " (measured)",
        Some(JudgedBy::Forecast) => " (forecast)",
        Some(JudgedBy::Equation3) => " (equation 3)",
        Some(JudgedBy::Unknown) | None => "",
    }
}

/// Links to the other time spans of a page.
pub(super) fn spans(base: &str, now: Span, place: impl Fn(Span) -> PageAddress) -> Markup {
    html! {
        nav class="spans" aria-label="Time" { ul {
            @for span in Span::ALL {
                li { @if span == now { a aria-current="page" href={ (base) "/" (place(span).address()) } { "Last " (span.word()) } }
                    @else { a href={ (base) "/" (place(span).address()) } { "Last " (span.word()) } } }
            }
        } }
    }
}

/// Seconds since 1970.
pub(super) fn unix(at: SystemTime) -> f64 {
    at.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}
