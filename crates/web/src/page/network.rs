//! The other gateways: peers of this one, and gateways that share its plan.

use keiro_control::{
    protocol::{PeerSnapshot, PeerState, StoreSnapshot, StoreState},
    rounded,
};
use maud::{Markup, html};

use super::{
    Page, PageAddress,
    part::{self, bad, facts, good, heads, number, warn},
};
use crate::{
    source::Data,
    text::{self, known, seconds, word},
};

/// Rows of the table. Ours: a network has 1,000 sites at most.
const ROWS_MAX: usize = 1000;

pub(super) fn page(data: &Data, _base: &str) -> Page {
    let page = Page::new(PageAddress::Network.title()).live("peers", peers(data));
    match &data.status.store {
        Some(store) if !store.gateways.is_empty() => page.live("site", site(store)),
        _ => page,
    }
}

fn peers(data: &Data) -> Markup {
    let mut peers: Vec<&PeerSnapshot> = data.peers.iter().collect();
    peers.sort_by(|a, b| {
        (a.state == PeerState::Up)
            .cmp(&(b.state == PeerState::Up))
            .then_with(|| a.name.cmp(&b.name))
    });
    html! {
        p { "The other gateways that this one knows, those that are not up first. On a hub these are the sites of its network; "
            code { "keiro sites" } " lists invitations too." }
        @if peers.is_empty() { p { "No peers are configured." } } @else {
            div class="wide" role="region" tabindex="0" aria-label="Gateways" { table {
                caption { "Gateways" }
                (heads(&["Gateway", "State", "For>", "Paths up>", "Last handshake>", "Applications missed>", "Dropped packets>", "Why"]))
                tbody { @for peer in peers.iter().take(ROWS_MAX) { (row(peer, data)) } }
            } }
            @if peers.len() > ROWS_MAX { p { (peers.len() - ROWS_MAX) " more." } }
        }
    }
}

fn row(peer: &PeerSnapshot, data: &Data) -> Markup {
    let apps = data.apps.iter().filter(|app| app.peer == peer.name);
    let missed = apps
        .filter(|app| app.stats.target_met == Some(false))
        .count();
    let dropped = peer
        .dropped_packets
        .values()
        .fold(0u64, |sum, count| sum.saturating_add(*count));
    let state = match peer.state {
        PeerState::Up => good("up"),
        PeerState::Handshaking | PeerState::Unknown => warn(&word(&peer.state)),
        PeerState::Down => bad("down"),
    };
    html! {
        tr {
            th scope="row" { (text::name(&peer.name)) }
            td { (state) }
            (number(&seconds(peer.state_seconds)))
            (number(&peer.stats.paths_up.to_string()))
            (number(&known(peer.stats.handshake_age, |age| format!("{} ago", rounded::duration(age)))))
            (number(&missed.to_string()))
            (number(&dropped.to_string()))
            td class="text" { (text::sentence(&peer.why)) }
        }
    }
}

fn site(store: &StoreSnapshot) -> Markup {
    let state = match store.state {
        StoreState::Connected => good("connected"),
        StoreState::Starting | StoreState::Unknown => warn(&word(&store.state)),
        StoreState::Lost => bad("lost"),
    };
    html! {
        section aria-labelledby="site-head" {
            h2 id="site-head" { "Gateways that share a plan" }
            (facts(&[
                ("Plan store", html! { (text::name(&store.description)) ": " (state) " since " (part::time(store.since.0))
                    @if let Some(reason) = &store.reason { ": " (text::sentence(reason)) } }),
                ("Gateways", html! { @for (index, gateway) in store.gateways.iter().enumerate() { @if index > 0 { ", " } (text::name(gateway)) } }),
                ("Plans are made by", html! { @match &store.leader { Some(leader) => (text::name(leader)), None => "none is known" } }),
                ("Plan in force", html! { (known(store.plan_revision, |number| format!("number {number}")))
                    @if let Some(by) = &store.plan_made_by { ", made by " (text::name(by)) }
                    @if let Some(made) = store.plan_made { " at " (part::time(made.0)) } }),
            ]))
            @if let Some(why) = &store.alone { p class="note warn" { "This gateway plans alone: " (text::sentence(why)) "." } }
        }
    }
}
