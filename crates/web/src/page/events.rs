//! Events with filters, and links that lead to the same events later.

use std::time::{Duration, SystemTime};

use keiro_control::{event_text::Severity, protocol::Timestamp};
use maud::{Markup, html};

use super::{
    Page, PageAddress,
    address::Filter,
    part::{self, app_link, link, path_link},
};
use crate::{
    source::{
        Source,
        events::{EventLine, Events},
    },
    text,
};

/// Events of one page. Ours.
const SHOWN_MAX: usize = 200;
/// Before and after an event that its link shows. Ours.
const AROUND: Duration = Duration::from_secs(300);

pub(super) fn page(source: &Source, base: &str, filter: &Filter) -> Page {
    let log = source.events();
    let form = html! {
        form method="get" action={ (base) "/events" } class="filter" {
            p { label for="search" { "Contains" } input id="search" name="search" value=(text::visible(&filter.search, 256)) placeholder="path_down, osaka, …"; }
            p { label for="from" { "From (UTC)" } input id="from" name="from" value=(text::visible(&filter.from, 256)) placeholder="2026-01-31T12:00:00Z"; }
            p { label for="to" { "To (UTC)" } input id="to" name="to" value=(text::visible(&filter.to, 256)) placeholder="2026-01-31T13:00:00Z"; }
            p { button { "Show" } }
        }
    };
    Page::new(PageAddress::Events(Filter::default()).title())
        .fixed(form)
        .live("events", listed(&log, base, filter))
}

fn listed(log: &Events, base: &str, filter: &Filter) -> Markup {
    let limit = |text: &str| match text {
        "" => Ok(None),
        text => text
            .parse::<Timestamp>()
            .map(|time| Some(time.0))
            .map_err(|_| text.to_owned()),
    };
    let (from, to) = match (limit(&filter.from), limit(&filter.to)) {
        (Ok(from), Ok(to)) => (from, to),
        (Err(wrong), _) | (_, Err(wrong)) => {
            return html! { p class="note bad" { "`" (text::name(&wrong)) "` is no time. Next: write it as 2026-01-31T12:00:00Z." } };
        }
    };
    let search = filter.search.to_lowercase();
    let is_wanted = |seen: &&EventLine| {
        from.is_none_or(|from| seen.time >= from)
            && to.is_none_or(|to| seen.time <= to)
            && (seen.kind.contains(&search) || seen.sentence.to_lowercase().contains(&search))
    };
    let found: Vec<&EventLine> = log.newest().filter(is_wanted).collect();
    let more = found.len().saturating_sub(SHOWN_MAX);
    html! {
        (coverage(log, from.unwrap_or(SystemTime::UNIX_EPOCH)))
        p { (text::count(found.len(), "event")) @if more > 0 { "; the newest " (SHOWN_MAX) " are shown, a narrower time shows the others" } "." }
        (list(base, found.into_iter().take(SHOWN_MAX)))
    }
}

/// From when on events are known.
pub(super) fn coverage(log: &Events, wanted_since: SystemTime) -> Markup {
    html! {
        @match log.followed_since {
            Some(since) if since > wanted_since => p class="note" { "Events are known since " (part::time(since)) ", when these pages began to follow them." },
            Some(_) => {},
            None => p class="note bad" { "Events are not followed: the gateway does not answer." },
        }
        @if log.forgotten > 0 { p class="note warn" { (log.forgotten) " older events made room for newer ones." } }
    }
}

/// A sentence each.
pub(super) fn list<'a>(base: &str, events: impl Iterator<Item = &'a EventLine>) -> Markup {
    html! { ol class="events" { @for event in events { (line(base, event)) } } }
}

fn line(base: &str, event: &EventLine) -> Markup {
    let around =
        |at: Option<SystemTime>| at.map(|at| Timestamp(at).to_string()).unwrap_or_default();
    let filter = Filter {
        search: String::new(),
        from: around(event.time.checked_sub(AROUND)),
        to: around(event.time.checked_add(AROUND)),
    };
    let class = match event.severity {
        Severity::Warning => "bad",
        Severity::Recovery => "good",
        Severity::Info | Severity::Debug => "neutral",
    };
    html! {
        li class=(class) {
            span class="when" { (link(base, &PageAddress::Events(filter), &part::time(event.time))) }
            span class="what" { (text::sentence(&event.sentence))
                @if event.count > 1 { " (" (event.count) " times)" }
                @if let Some(app) = &event.subject.app { " " (app_link(base, app)) }
                @else if let Some(path) = &event.subject.path { " " (path_link(base, path)) } }
        }
    }
}
