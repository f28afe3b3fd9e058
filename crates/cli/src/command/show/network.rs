//! `keiro show network`.

use std::time::Duration;

use keiro_control::protocol::{NetworkSnapshot, Request, Response, SiteRoute};

use super::{Health, ask, cell, listed, show, unexpected, word};
use crate::{
    args,
    failure::Failure,
    output::{
        Style,
        human::{self, NONE},
        table::{Cell, Table},
    },
};

pub(super) fn show_network(query: &args::Query) -> Result<(), Failure> {
    match ask(&query.socket, &Request::ShowNetwork {})? {
        Response::Network(network) => show(query, &network, |network| {
            table(network, Style::of_stdout())
        }),
        other => Err(unexpected(&other)),
    }
}

fn table(network: &NetworkSnapshot, style: Style) -> String {
    let mut table = Table::new(&["site", "route", "hub", "next attempt>", "prefixes", "why"]);
    for site in &network.sites {
        let health = match site.route {
            SiteRoute::Direct => Health::Good,
            SiteRoute::Unreachable => Health::Bad,
            SiteRoute::Relayed | SiteRoute::Unknown => Health::Neither,
        };
        let left = site.next_attempt_seconds.filter(|left| *left > 0.0);
        let left = left.and_then(|left| Duration::try_from_secs_f64(left.ceil()).ok());
        table.row([
            Cell::from(site.name.as_str()),
            cell(style, &word(&site.route), health),
            Cell::from(site.hub.as_deref().unwrap_or(NONE)),
            Cell::from(left.map_or(NONE.to_owned(), |left| {
                format!("in {}", human::duration(left))
            })),
            Cell::from(site.prefixes.join(", ")),
            Cell::from(site.why.as_str()),
        ]);
    }
    listed(&table, "the network has no other site")
}
