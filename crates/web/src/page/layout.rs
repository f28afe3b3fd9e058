//! What all pages have in common: head, navigation, the gateway's state, footer.

use std::time::Instant;

use axum::response::Html;
use maud::{DOCTYPE, Markup, html};

use super::{Page, PageAddress, Piece};
use crate::{
    http::asset_address,
    site::{Site, VIEWERS_MAX},
    source::{Source, View},
    text,
};

/// A page of a gateway.
pub(crate) fn page(site: &Site, source: &Source, place: &PageAddress, page: &Page) -> Html<String> {
    let base = format!("/{}", source.name);
    let mut pieces = page.pieces.iter();
    let state = pieces.next();
    document(
        &format!("{} · {}", text::visible(&page.title, 80), source.name),
        Some(&format!("{base}/live/{}", place.address())),
        &html! {
            header {
                a class="brand" href="/" { "Keiro" }
                span class="gateway" { (source.name) }
                nav aria-label="Pages" { ul { @for main in PageAddress::main().iter().filter(|main| **main != PageAddress::Egress || !site.egress.is_empty()) { li {
                    @let current = place.is_below(main).then_some("page");
                    a href={ (base) "/" (main.address()) } aria-current=[current] { (main.title()) }
                } } } }
            }
            section class="status" aria-label="State of the gateway" {
                @if let Some(state) = state { (piece(state)) }
                p id="connection" role="status" { "Without JavaScript this page does not update by itself: reload it for new data." }
            }
            main id="main" tabindex="-1" {
                h1 { (text::name(&page.title)) }
                @for other in pieces { (piece(other)) }
            }
            (footer(site))
        },
    )
}

/// The list of gateways.
pub(crate) fn index(list: &Markup) -> Html<String> {
    document(
        "Gateways",
        None,
        &html! {
            header { a class="brand" href="/" { "Keiro" } }
            main id="main" tabindex="-1" { h1 { "Gateways" } (list) }
        },
    )
}

/// An address that leads nowhere.
pub(crate) fn not_found(site: &Site, source: Option<&Source>) -> Html<String> {
    let source = source.or(site.sources.first());
    document(
        "No such page",
        None,
        &html! {
            header { a class="brand" href="/" { "Keiro" } }
            main id="main" tabindex="-1" {
                h1 { "No such page" }
                p { "This address leads to no page. " @if let Some(source) = source { a href={ "/" (source.name) "/" } { "The overview" } " leads to all." } }
            }
        },
    )
}

/// The form that asks for the token.
pub(crate) fn login(why: Option<&str>) -> Html<String> {
    document(
        "Log in",
        None,
        &html! {
            header { a class="brand" href="/" { "Keiro" } }
            main id="main" tabindex="-1" {
                h1 { "Log in" }
                @if let Some(why) = why { p class="note bad" role="alert" { (why) } }
                form method="post" action="/login" {
                    label for="token" { "Token" }
                    input id="token" name="token" type="password" autocomplete="current-password" required autofocus;
                    button { "Log in" }
                }
            }
        },
    )
}

fn document(title: &str, live: Option<&str>, body: &Markup) -> Html<String> {
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Keiro" }
                link rel="stylesheet" href=(asset_address("keiro.css"));
                link rel="icon" type="image/svg+xml" href=(asset_address("icon.svg"));
                script src=(asset_address("live.js")) defer {}
            }
            body data-live=[live] {
                a class="skip" href="#main" { "Skip to the content" }
                (body)
            }
        }
    };
    Html(document.into_string())
}

fn piece(piece: &Piece) -> Markup {
    match piece {
        Piece::Fixed(markup) => markup.clone(),
        Piece::Live { id, html } => {
            html! { div id=(id) class="part" { (maud::PreEscaped(html.as_str())) } }
        }
    }
}

/// Whether what is shown is true now, and what to do if it is not.
pub(super) fn state(view: &View) -> Markup {
    let age = view
        .data
        .as_ref()
        .map(|data| Instant::now().saturating_duration_since(data.since));
    let age_text = age.map(|age| text::seconds(age.as_secs_f64().floor()));
    let ours = keiro_control::protocol::PROTOCOL_VERSION;
    let theirs = view.data.as_ref().map(|data| data.version.protocol_version);
    html! {
        @match (&view.fault, &view.data) {
            (Some(fault), _) => div class="state bad" {
                p { strong { (text::sentence(&fault.what)) "." }
                    @if let Some(age) = &age_text { " What is shown is " (age) " old." } }
                @if !fault.next.is_empty() { p { "Next: " (text::sentence(&fault.next)) "." } }
            },
            (None, Some(data)) => div class="state" {
                p { (super::part::good(if data.status.draining { "stopping" } else { "running" })) " for "
                    (text::seconds(data.status.uptime_seconds)) " · gateway " (text::name(&data.status.name)) " · keiro "
                    (text::name(&data.status.version)) " · as of " (super::part::time(data.at)) " UTC" }
                @if data.status.draining { p class="bad" { "The gateway is stopping: it delivers what waits and accepts nothing new." } }
            },
            (None, None) => div class="state" { p { "The gateway is asked." } },
        }
        @if let Some(theirs) = theirs.filter(|theirs| *theirs != ours) {
            p class="state warn" { "The gateway speaks version " (theirs) " of the control protocol, these pages version " (ours)
                ": some values may be missing or wrong. Next: install both from one release." }
        }
    }
}

fn footer(site: &Site) -> Markup {
    html! {
        footer {
            p { "keiro-web " (keiro_terminal::VERSION) " · times are UTC · " (site.viewers()) " of " (VIEWERS_MAX) " live pages in use" }
        }
    }
}
