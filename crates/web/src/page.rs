//! Pages: which there are, and what each shows of a snapshot.

mod about;
mod address;
mod app;
mod app_table;
mod apps;
mod config;
mod egress;
mod events;
mod figures;
pub(crate) mod layout;
mod network;
mod overview;
mod part;
mod path;
mod path_health;
mod paths;
mod tenants;
mod what_if;

use maud::{Markup, html};

pub(crate) use self::address::PageAddress;
use crate::{
    site::Site,
    source::{Fault, Needs, Source, View},
    text,
};

/// A page of one gateway.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) title: String,
    pub(crate) pieces: Vec<Piece>,
}

/// A piece of a page.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Forms and what else stays as it is while the page is followed.
    Fixed(Markup),
    /// What is sent again when it has changed.
    Live { id: &'static str, html: String },
}

impl Page {
    fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            pieces: Vec::new(),
        }
    }

    fn fixed(mut self, markup: Markup) -> Self {
        self.pieces.push(Piece::Fixed(markup));
        self
    }

    fn live(mut self, id: &'static str, markup: Markup) -> Self {
        self.pieces.push(Piece::Live {
            id,
            html: markup.into_string(),
        });
        self
    }

    pub(crate) fn live_parts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Live { id, html } => Some((*id, html.as_str())),
            Piece::Fixed(_) => None,
        })
    }

    pub(crate) fn live_part(&self, id: &str) -> Option<&str> {
        self.live_parts()
            .find(|(other, _)| *other == id)
            .map(|(_, html)| html)
    }
}

/// Makes the page at `place` from a poll, and from answers to questions where it needs them.
pub(crate) async fn render(site: &Site, source: &Source, view: &View, place: &PageAddress) -> Page {
    let base = format!("/{}", source.name);
    let mut page = match &view.data {
        Some(data) => match place {
            PageAddress::Overview => overview::page(source, data, &base),
            PageAddress::Apps(list) => apps::page(source, data, &base, list),
            PageAddress::App { name, span } => app::page(source, data, &base, name, *span).await,
            PageAddress::Paths => paths::page(data, &base),
            PageAddress::Path { name, span } => path::page(source, data, &base, name, *span).await,
            PageAddress::WhatIf(form) => what_if::page(source, data, &base, form).await,
            PageAddress::Tenants => tenants::page(data, &base),
            PageAddress::Egress => egress::page(site).await,
            PageAddress::Network => network::page(data, &base),
            PageAddress::Events(filter) => events::page(source, &base, filter),
            PageAddress::Config => config::page(data),
            PageAddress::About => about::page(site, source, view),
        },
        None if *place == PageAddress::Egress => egress::page(site).await,
        None if *place == PageAddress::About => about::page(site, source, view),
        None => Page::new(place.title()).fixed(html! {
            p { "Nothing is known of this gateway yet. This page shows it as soon as it answers." }
        }),
    };
    let state = layout::state(view).into_string();
    page.pieces.insert(
        0,
        Piece::Live {
            id: "state",
            html: state,
        },
    );
    page
}

/// A line for each gateway.
pub(crate) async fn gateways(site: &Site) -> Markup {
    let mut rows = Vec::new();
    for source in &site.sources {
        rows.push((source, source.fresh(Needs::Usual).await));
    }
    html! {
        div class="wide" { table {
            thead { tr {
                @for head in ["Gateway", "Name", "State", "Latency targets met", "Paths up", "Peers up"] { th scope="col" { (head) } }
            } }
            tbody { @for (source, view) in &rows { tr {
                th scope="row" { a href={ "/" (source.name) "/" } { (source.name) } }
                @if let Some(data) = &view.data {
                    @let status = &data.status;
                    td { (text::name(&status.name)) }
                    td { @match &view.fault { Some(fault) => (part::bad(&fault.what)), None => (part::good("running")) } }
                    td class="n" { (status.apps_target_met) " of " (status.apps_with_target) }
                    td class="n" { (status.paths_up) " of " (status.paths) }
                    td class="n" { (status.peers_up) " of " (status.peers) }
                } @else {
                    td { (text::NONE) }
                    td { @match &view.fault { Some(fault) => (part::bad(&fault.what)), None => "is asked" } }
                    @for _ in 0..3 { td class="n" { (text::NONE) } }
                }
            } } }
        } }
    }
}

/// Why an answer is missing, with the next step.
fn fault(fault: &Fault) -> Markup {
    html! {
        p class="note bad" { (text::sentence(&fault.what)) "." @if !fault.next.is_empty() { " Next: " (text::sentence(&fault.next)) "." } }
    }
}
