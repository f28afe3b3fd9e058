//! Versions, and what these pages cost.

use keiro_control::protocol::PROTOCOL_VERSION;
use maud::html;

use super::{
    Page, PageAddress,
    part::{self, facts},
};
use crate::{
    site::{CONNECTIONS_MAX, Site, VIEWERS_MAX},
    source::{Source, View},
    text,
};

pub(super) fn page(site: &Site, source: &Source, view: &View) -> Page {
    let gateway = match &view.data {
        Some(data) => {
            html! { (text::name(&data.version.version)) ", control protocol " (data.version.protocol_version) }
        }
        None => html! { "unknown" },
    };
    Page::new(PageAddress::About.title()).live(
        "about",
        html! {
            (facts(&[
                ("Pages", html! { "keiro-web " (keiro_terminal::VERSION) ", control protocol " (PROTOCOL_VERSION) }),
                ("Gateway", gateway),
                ("Control socket", html! { code { (text::name(&source.socket())) } }),
                ("Pages serve since", part::time(site.started)),
                ("Gateway is asked", html! { "every " (text::seconds(view.interval.as_secs_f64())) " while a page is open, every 30 s otherwise" }),
                ("Live pages", html! { (site.viewers()) " of " (VIEWERS_MAX) }),
                ("Connections", html! { (CONNECTIONS_MAX) " at most" }),
            ]))
            p { "These pages only read. They change nothing of a gateway and need no other machine." }
            p { "For a report of a fault: " code { "keiro doctor" } ", " code { "keiro status --json" } " and " code { "journalctl -u keiro-gateway" } "." }
        },
    )
}
