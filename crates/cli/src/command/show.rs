//! `keiro status`, `keiro show` and the text of `keiro explain`: the answers of the running
//! gateway as text.

mod app;
mod classes;
mod client;
mod explanation;
mod history;
mod network;
mod path;
mod peer;
mod tenant;

pub(super) use explanation::explanation;

use std::time::Duration;

use keiro_control::protocol::{
    JudgedBy, ModelState, Request, Response, SharedLineSnapshot, StatusSnapshot, StoreSnapshot,
    StoreState,
};
use keiro_stats::StatSet;
use keiro_units::Bandwidth;
use serde::Serialize;

use super::{
    figures,
    query::{ask, show, unexpected},
};
use crate::{
    args,
    failure::Failure,
    output::{
        Style,
        human::{self, NONE},
        table::{Cell, Table},
    },
};

pub(super) fn status(query: &args::Query) -> Result<(), Failure> {
    match ask(&query.socket, &Request::Status {})? {
        Response::Status(status) => show(query, &*status, |status| {
            status_text(status, Style::of_stdout())
        }),
        other => Err(unexpected(&other)),
    }
}

pub(super) fn show_one(args: &args::Show) -> Result<(), Failure> {
    let style = Style::of_stdout();
    let one = match args {
        args::Show::Path(measured) | args::Show::App(measured) => {
            if let Some(past) = &measured.history {
                return history::show_history(args, measured, past.0);
            }
            &measured.one
        }
        args::Show::Peer(one) | args::Show::Tenant(one) | args::Show::Client(one) => one,
        args::Show::Classes(one) => return classes::show_classes(one),
        args::Show::Network(all) => return network::show_network(&all.query),
        args::Show::Egress(args) => return super::egress::show(args),
        args::Show::Route(args) => return super::egress::show_routes(args),
    };
    let (name, query) = (one.name.clone(), &one.query);
    let single = name.is_some();
    let request = match args {
        args::Show::Path(_) => Request::ShowPath { name },
        args::Show::App(_) => Request::ShowApp { name },
        args::Show::Peer(_) => Request::ShowPeer { name },
        args::Show::Client(_) => Request::ShowMessageClient { name },
        // The others have returned above.
        args::Show::Tenant(_)
        | args::Show::Classes(_)
        | args::Show::Network(_)
        | args::Show::Egress(_)
        | args::Show::Route(_) => Request::ShowTenant { name },
    };
    match ask(&query.socket, &request)? {
        Response::Paths { paths } => show(query, &paths, |paths| match single {
            true => paths.iter().map(|path| path::text(path, style)).collect(),
            false => path::table(paths, style),
        }),
        Response::Apps { apps } => show(query, &apps, |apps| match single {
            true => apps.iter().map(|app| app::text(app, style)).collect(),
            false => app::table(apps, style),
        }),
        Response::Peers { peers } => show(query, &peers, |peers| match single {
            true => peers.iter().map(|peer| peer::text(peer, style)).collect(),
            false => peer::table(peers, style),
        }),
        Response::Tenants { tenants } => show(query, &tenants, |tenants| match single {
            true => tenants.iter().map(|t| tenant::text(t, style)).collect(),
            false => tenant::table(tenants, style),
        }),
        Response::MessageClients(clients) => show(query, &clients, |clients| match single {
            true => clients
                .clients
                .iter()
                .map(|one| client::text(one, style))
                .collect(),
            false => client::table(clients, style),
        }),
        other => Err(unexpected(&other)),
    }
}

fn status_text(status: &StatusSnapshot, style: Style) -> String {
    let state = match status.draining {
        true => style.bad("stopping"),
        false => style.good("running"),
    };
    let mut fields = FieldList::new(format!(
        "gateway {}: {state} for {}, keiro {}",
        style.strong(&status.name),
        seconds(status.uptime_seconds),
        status.version
    ));
    fields.add("paths", share(style, status.paths_up, status.paths, "up"));
    for problem in &status.path_problems {
        fields.add("", problem.clone());
    }
    fields.add("peers", share(style, status.peers_up, status.peers, "up"));
    fields.add("latency targets", targets_text(status, style));
    fields.add("applications", status.apps.to_string());
    if status.tenants > 0 {
        let (with_device, all) = (status.tenants_with_device, status.tenants);
        fields.add(
            "tenants",
            share(style, with_device, all, "have their device up"),
        );
    }
    fields.add("planner", planner_text(status, style));
    fields.add("scheduler", word(&status.scheduler));
    if let Some(store) = &status.store {
        fields.add("plan store", store_text(store, style));
    }
    let (senders, receivers) = (status.message_senders, status.message_receivers);
    fields.add(
        "message socket",
        format!("{senders} senders, {receivers} receivers"),
    );
    fields.add("handshakes", figures::list(&status.handshakes.0));
    fields.add(
        "configuration",
        format!("{}, read {}", status.config_file, status.config_loaded),
    );
    for problem in &status.problems {
        fields.add("problem", style.bad(problem));
    }
    for line in &status.withheld_prefixes {
        fields.add("not routed", style.bad(line));
    }
    if let Some(why) = &status.config_rejected {
        let text = format!("the last reload was refused: {why}");
        fields.add("", style.bad(&text));
    }
    for line in &status.needs_restart {
        fields.add("", line.clone());
    }
    fields.add("history", history::state_text(&status.history, style));
    fields.add("public key", status.public_key.clone());
    fields.text()
}

/// What other gateways of the site send over a path, and how old that is.
fn shared_line_text(line: &SharedLineSnapshot) -> String {
    let parts: Vec<String> = line
        .gateways
        .iter()
        .map(|on_line| {
            let rate = Bandwidth::from_bits_per_second(on_line.load_bits_per_second as u64);
            let apps = match on_line.apps {
                1 => "1 application".to_owned(),
                apps => format!("{apps} applications"),
            };
            let (rate, gateway) = (human::rate(rate), &on_line.gateway);
            format!("{rate} by gateway {gateway} ({apps})")
        })
        .collect();
    let age = line.age_seconds.map(seconds);
    match (parts.is_empty(), age) {
        (false, None) => format!("{}, part of the forecast", parts.join(", ")),
        (false, Some(age)) => format!(
            "{}, part of the forecast, as known {age} ago, since when the plan store has not answered",
            parts.join(", ")
        ),
        (true, Some(age)) => {
            format!("not known, the plan store has not answered for {age}")
        }
        (true, None) => NONE.to_owned(),
    }
}

/// `2 of 3 up`: good if it is all of them.
fn share(style: Style, part: u64, whole: u64, word: &str) -> String {
    let health = match part == whole {
        true => Health::Good,
        false => Health::Bad,
    };
    mark(style, &format!("{part} of {whole} {word}"), health)
}

fn targets_text(status: &StatusSnapshot, style: Style) -> String {
    let (measured, equation) = (status.apps_target_measured, status.apps_target_by_equation3);
    let forecast = status
        .apps_with_target
        .saturating_sub(measured.saturating_add(equation));
    let sources = [
        (measured, "measurement"),
        (forecast, "forecast"),
        (equation, "equation 3"),
    ];
    let sources: Vec<_> = sources.iter().filter(|(count, _)| *count > 0).collect();
    let judged = match sources.as_slice() {
        [] => String::new(),
        [(_, source)] => format!(" (by {source})"),
        several => {
            let counted = several.iter().map(|(count, by)| format!("{count} by {by}"));
            format!(" ({})", counted.collect::<Vec<_>>().join(", "))
        }
    };
    let met = share(
        style,
        status.apps_target_met,
        status.apps_with_target,
        "met",
    );
    met + &judged
}

fn planner_text(status: &StatusSnapshot, style: Style) -> String {
    let health = match status.model {
        ModelState::NotValid => Health::Bad,
        ModelState::Valid => Health::Good,
        _ => Health::Neither,
    };
    let model = mark(style, &format!("model {}", word(&status.model)), health);
    let why = status.model_why.as_ref().map(|why| format!(": {why}"));
    format!(
        "{}, tolerance {}, {model}{}",
        word(&status.planner),
        human::percent(status.tolerance_ratio),
        why.unwrap_or_default()
    )
}

fn store_text(store: &StoreSnapshot, style: Style) -> String {
    let mut text = format!("{}, ", store.description);
    text.push_str(&match (store.state, &store.reason) {
        (StoreState::Lost, Some(reason)) => style.bad(&format!("lost: {reason}")),
        (StoreState::Connected, _) => style.good("connected"),
        (state, _) => word(&state),
    });
    if let Some(why) = &store.alone {
        text.push_str(&format!("; {}", style.bad(why)));
        return text;
    }
    match (store.plan_revision, &store.plan_made_by) {
        (Some(revision), Some(by)) => text.push_str(&format!("; plan {revision} by {by}")),
        (None, Some(by)) => text.push_str(&format!("; a plan by {by}, not stored yet")),
        _ => {}
    }
    if store.gateways.len() > 1 {
        text.push_str(&format!(" for {}", store.gateways.join(", ")));
    }
    text
}

/// Lines of a name and a value, below a heading.
struct FieldList {
    heading: String,
    fields: Vec<(String, String)>,
}

impl FieldList {
    fn new(heading: String) -> Self {
        Self {
            heading,
            fields: Vec::new(),
        }
    }

    fn add(&mut self, name: &str, value: String) {
        self.fields.push((name.to_owned(), value));
    }

    /// Every counter and gauge of a set, with `prefix` before its name.
    fn add_stats<S: StatSet>(&mut self, prefix: &str, stats: &S) {
        for (name, value) in figures::named(stats) {
            self.add(&format!("{prefix}{name}"), value);
        }
    }

    fn text(&self) -> String {
        let width = self
            .fields
            .iter()
            .map(|(name, _)| name.len())
            .max()
            .unwrap_or(0);
        let mut text = format!("{}\n", self.heading);
        for (name, value) in &self.fields {
            text.push_str(&format!("  {name:width$}  {value}\n"));
        }
        text
    }
}

/// What a word says about the state of things.
#[derive(Clone, Copy)]
enum Health {
    Good,
    Bad,
    Neither,
}

fn mark(style: Style, text: &str, health: Health) -> String {
    match health {
        Health::Good => style.good(text),
        Health::Bad => style.bad(text),
        Health::Neither => text.to_owned(),
    }
}

fn cell(style: Style, text: &str, health: Health) -> Cell {
    Cell::marked(text, mark(style, text, health))
}

pub(super) fn met(style: Style, met: Option<bool>) -> Cell {
    met_by(style, met, None)
}

/// As [`met_by`], where a prediction is expected to say so.
pub(super) fn planned_met(style: Style, met: Option<bool>, judged_by: Option<JudgedBy>) -> Cell {
    match (met, judged_by) {
        (Some(true), Some(JudgedBy::Measurement)) => cell(style, "yes, measured", Health::Good),
        (Some(false), Some(JudgedBy::Measurement)) => cell(style, "NO, measured", Health::Bad),
        _ => met_by(style, met, judged_by),
    }
}

/// As [`met`], with what says so where that is not what is expected to.
pub(super) fn met_by(style: Style, met: Option<bool>, judged_by: Option<JudgedBy>) -> Cell {
    let by = match judged_by {
        Some(JudgedBy::Equation3) => " by eq. 3",
        _ => "",
    };
    match met {
        Some(true) => cell(style, &format!("yes{by}"), Health::Good),
        Some(false) => cell(style, &format!("NO{by}"), Health::Bad),
        None => Cell::from(NONE),
    }
}

/// As [`met`], with what says so.
pub(super) fn met_and_source(style: Style, met: Option<bool>, judged_by: Option<JudgedBy>) -> Cell {
    match (met, judged_by) {
        (Some(true), Some(JudgedBy::Forecast)) => cell(style, "yes by forecast", Health::Good),
        (Some(false), Some(JudgedBy::Forecast)) => cell(style, "NO by forecast", Health::Bad),
        _ => planned_met(style, met, judged_by),
    }
}

/// A table, or what its emptiness means.
fn listed(table: &Table, empty: &str) -> String {
    match table.is_empty() {
        true => format!("{empty}\n"),
        false => table.to_string(),
    }
}

/// Seconds of the protocol, which may be negative (a margin that is missed).
pub(super) fn seconds(seconds: f64) -> String {
    let magnitude = Duration::try_from_secs_f64(seconds.abs()).unwrap_or(Duration::MAX);
    let sign = if seconds < 0.0 { "-" } else { "" };
    format!("{sign}{}", human::duration(magnitude))
}

pub(super) fn known<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), show)
}

/// A value of one of the protocol's enumerations as a word.
pub(super) fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word.replace('_', " "),
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_says_by_what_latency_targets_are_judged() {
        let text = |measured, equation| {
            let status = serde_json::json!({
                "name": "a", "version": "1", "public_key": "k", "started": "2026-01-01T00:00:00Z",
                "uptime_seconds": 1.0, "config_file": "f", "config_loaded": "2026-01-01T00:00:00Z",
                "draining": false, "scheduler": "deadline", "planner": "exact", "tolerance_ratio": 0.0,
                "model": "unverified", "paths_up": 1, "paths": 1, "peers_up": 1, "peers": 1,
                "apps": 3, "apps_with_target": 3, "apps_target_met": 3,
                "apps_target_measured": measured, "apps_target_by_equation3": equation,
                "message_senders": 0, "message_receivers": 0,
            });
            targets_text(&serde_json::from_value(status).unwrap(), Style::of_stdout())
        };
        assert_eq!(text(3, 0), "3 of 3 met (by measurement)");
        assert_eq!(text(0, 0), "3 of 3 met (by forecast)");
        assert_eq!(text(0, 3), "3 of 3 met (by equation 3)");
        assert_eq!(
            text(1, 1),
            "3 of 3 met (1 by measurement, 1 by forecast, 1 by equation 3)"
        );
    }

    #[test]
    fn missed_margins_are_negative() {
        assert_eq!(seconds(-0.0015), "-1.5 ms");
        assert_eq!(word(&StoreState::Connected), "connected");
    }
}
