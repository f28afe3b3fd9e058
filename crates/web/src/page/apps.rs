//! All applications.

use keiro_control::protocol::AppSnapshot;
use maud::{Markup, html};

use super::{Page, PageAddress, address::List, app_table, part::link};
use crate::{
    source::{Data, Source},
    text,
};

/// Rows of one page. Ours: what a browser draws every second with ease.
const SHOWN_MAX: usize = 100;

pub(super) fn page(source: &Source, data: &Data, base: &str, list: &List) -> Page {
    let form = html! {
        form method="get" action={ (base) "/apps" } class="filter" role="search" {
            p { label for="search" { "Name of application, peer or path contains" } input id="search" name="search" value=(text::visible(&list.search, 256)); }
            p { button { "Show" } }
        }
    };
    Page::new(PageAddress::Apps(List::default()).title())
        .fixed(form)
        .live("apps", listed(source, data, base, list))
}

fn listed(source: &Source, data: &Data, base: &str, list: &List) -> Markup {
    let is_wanted = |app: &&AppSnapshot| {
        let path = app.path.as_deref().unwrap_or_default();
        [app.name.as_str(), &app.peer, path]
            .iter()
            .any(|name| name.contains(&list.search))
    };
    let mut apps: Vec<&AppSnapshot> = data.apps.iter().filter(is_wanted).collect();
    apps.sort_by(|a, b| app_table::by_urgency(a, b));
    let all = apps.len();
    let before = list.skipped.saturating_mul(SHOWN_MAX).min(all);
    let shown: Vec<&AppSnapshot> = apps.into_iter().skip(before).take(SHOWN_MAX).collect();
    let other = |skipped: usize| {
        PageAddress::Apps(List {
            skipped,
            search: list.search.clone(),
        })
    };
    html! {
        @if all == 0 {
            p { @if data.apps.is_empty() { "No applications are configured." } @else { "No application has such a name. " (link(base, &PageAddress::Apps(List::default()), &html! { "All applications" })) } }
        } @else {
            p { (text::count(all, "application")) @if all > shown.len() { ", " (before + 1) " to " (before + shown.len()) " are shown" }
                "; missed targets first, then the smallest margin." }
            (app_table::table(source, base, &shown, "Applications"))
            nav class="pager" aria-label="Parts of the table" {
                @if list.skipped > 0 { (link(base, &other(list.skipped - 1), &html! { "Previous " (SHOWN_MAX) })) " " }
                @if before + shown.len() < all { (link(base, &other(list.skipped + 1), &html! { "Next " (SHOWN_MAX) })) }
            }
        }
    }
}
