//! All paths.

use keiro_control::{protocol::PathSnapshot, rounded};
use maud::{Markup, html};

use super::{
    Page, PageAddress, app_table,
    part::{heads, number, path_link},
    path::role_and_cost,
    path_health::{health, health_word},
};
use crate::{
    source::Data,
    text::{self, known, millis, rate},
};

/// Rows of the table. Ours: as many as paths and peers of the largest site have; beyond, those that are well are left
/// out first.
const SHOWN_MAX: usize = 256;

pub(super) fn page(data: &Data, base: &str) -> Page {
    Page::new(PageAddress::Paths.title()).live("paths", table(data, base))
}

fn table(data: &Data, base: &str) -> Markup {
    let mut paths: Vec<&PathSnapshot> = data.paths.iter().collect();
    paths.sort_by_key(|path| health(path).0);
    let more = paths.len().saturating_sub(SHOWN_MAX);
    paths.truncate(SHOWN_MAX);
    html! {
        @if paths.is_empty() { p { "No paths are configured or found." } } @else {
            div class="wide" role="region" tabindex="0" aria-label="Paths" { table {
                caption { "Paths, those with a problem first, those that wait for their peer last" }
                (heads(&["Path", "State", "Peer", "One way>", "Loss>", "In use>", "Capacity>", "Others' traffic>", "Jitter>", "MTU>", "Applications>", "Role and cost", "Why"]))
                tbody { @for path in paths { (row(path, data, base)) } }
            } }
            @if more > 0 { p { (more) " more are up; `keiro show path` lists all." } }
        }
    }
}

fn row(path: &PathSnapshot, data: &Data, base: &str) -> Markup {
    let apps = data.apps.iter();
    let apps = apps
        .filter(|app| app.peer == path.peer && app_table::is_on(app, &path.name))
        .count();
    let why = path
        .problem
        .as_ref()
        .or(path.diagnosis.as_ref())
        .unwrap_or(&path.why);
    html! {
        tr {
            th scope="row" { (path_link(base, &path.name)) }
            td { (health_word(path)) }
            td { (text::name(&path.peer)) }
            (number(&known(path.delay_seconds, millis)))
            (number(&known(path.stats.loss, |loss| rounded::percent(loss.get()))))
            (number(&rounded::rate(path.stats.sent_rate)))
            (number(&known(path.capacity.as_ref(), |capacity| rounded::rate(capacity.rate))))
            (number(&known(path.stats.cross_traffic, |traffic| rate(traffic.as_bits_per_second() as f64))))
            (number(&known(path.stats.jitter, |jitter| millis(jitter.as_secs_f64()))))
            (number(&format!("{} B", path.stats.mtu_bytes)))
            (number(&apps.to_string()))
            td { @match role_and_cost(path) { Some(shown) => (shown), None => "primary" } }
            td class="text" { (text::sentence(why)) }
        }
    }
}
