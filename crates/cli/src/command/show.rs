//! `keiro status`, `keiro show` and the text of `keiro explain`: what the running gateway tells,
//! for people.

mod explanation;
mod history;
mod tenant;

pub(super) use explanation::explanation;

use std::time::Duration;

use keiro_control::{
    config::Class,
    protocol::{
        AggregationSnapshot, AppSnapshot, JudgedBy, ModelState, PathSnapshot, PathState,
        PeerSnapshot, PeerState, Request, Response, StatusSnapshot, StoreSnapshot, StoreState,
    },
};
use keiro_units::Bandwidth;
use serde::Serialize;

use super::query::{ask, show, unexpected};
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
                return history::show_history(args, &measured.one, past.0);
            }
            &measured.one
        }
        args::Show::Peer(one) | args::Show::Tenant(one) => one,
        args::Show::Egress(args) => return super::egress::show(args),
    };
    let (name, query) = (one.name.clone(), &one.query);
    let single = name.is_some();
    let request = match args {
        args::Show::Path(_) => Request::ShowPath { name },
        args::Show::App(_) => Request::ShowApp { name },
        args::Show::Peer(_) => Request::ShowPeer { name },
        // It has returned above.
        args::Show::Tenant(_) | args::Show::Egress(_) => Request::ShowTenant { name },
    };
    match ask(&query.socket, &request)? {
        Response::Paths { paths } => show(query, &paths, |paths| match single {
            true => paths.iter().map(|path| path_text(path, style)).collect(),
            false => path_table(paths, style),
        }),
        Response::Apps { apps } => show(query, &apps, |apps| match single {
            true => apps.iter().map(|app| app_text(app, style)).collect(),
            false => app_table(apps, style),
        }),
        Response::Peers { peers } => show(query, &peers, |peers| match single {
            true => peers.iter().map(|peer| peer_text(peer, style)).collect(),
            false => peer_table(peers, style),
        }),
        Response::Tenants { tenants } => show(query, &tenants, |tenants| match single {
            true => tenants.iter().map(|t| tenant::text(t, style)).collect(),
            false => tenant::table(tenants, style),
        }),
        other => Err(unexpected(&other)),
    }
}

fn status_text(status: &StatusSnapshot, style: Style) -> String {
    let part = |part: u64, whole: u64, word: &str| {
        let text = format!("{part} of {whole} {word}");
        mark(
            style,
            &text,
            if part == whole {
                Health::Good
            } else {
                Health::Bad
            },
        )
    };
    let mut facts = Facts::new(format!(
        "gateway {}: {} for {}, keiro {}",
        style.strong(&status.name),
        if status.draining {
            style.bad("stopping")
        } else {
            style.good("running")
        },
        seconds(status.uptime_seconds),
        status.version
    ));
    facts.add("paths", part(status.paths_up, status.paths, "up"));
    facts.add("peers", part(status.peers_up, status.peers, "up"));
    let measured = status.apps_target_measured;
    let planned = status.apps_with_target.saturating_sub(measured);
    let judged = match (measured, planned) {
        (0, 0) => String::new(),
        (_, 0) => " (judged by measurement)".to_owned(),
        (0, _) => " (judged by the plan, for want of measured delays)".to_owned(),
        _ => format!(" ({measured} judged by measurement, {planned} by the plan)"),
    };
    let met = part(status.apps_target_met, status.apps_with_target, "met");
    facts.add("latency_targets", format!("{met}{judged}"));
    facts.add("applications", status.apps.to_string());
    if status.tenants > 0 {
        let there = part(
            status.tenants_with_device,
            status.tenants,
            "have their device up",
        );
        facts.add("tenants", there);
    }
    let model = format!("model {}", word(&status.model));
    let health = match status.model {
        ModelState::NotValid => Health::Bad,
        ModelState::Valid => Health::Good,
        _ => Health::Neither,
    };
    let why = status
        .model_why
        .as_ref()
        .map(|why| format!(": {why}"))
        .unwrap_or_default();
    facts.add(
        "planner",
        format!(
            "{}, tolerance {}, {}{why}",
            word(&status.planner),
            human::percent(status.tolerance_ratio),
            mark(style, &model, health)
        ),
    );
    facts.add("scheduler", word(&status.scheduler));
    if let Some(store) = &status.store {
        facts.add("plan store", store_text(store, style));
    }
    facts.add(
        "message socket",
        format!(
            "{} senders, {} receivers",
            status.message_senders, status.message_receivers
        ),
    );
    facts.add(
        "configuration",
        format!("{}, read {}", status.config_file, status.config_loaded),
    );
    if let Some(why) = &status.config_rejected {
        facts.add(
            "",
            style.bad(&format!("the last reload was refused: {why}")),
        );
    }
    facts.add("history", history::standing_text(&status.history, style));
    facts.add("public key", status.public_key.clone());
    facts.text()
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

fn path_table(paths: &[PathSnapshot], style: Style) -> String {
    let mut table = Table::new(&[
        "path",
        "peer",
        "state",
        "rtt>",
        "jitter>",
        "loss>",
        "rate>",
        "capacity>",
        "available>",
        "sent>",
        "received>",
        "mtu>",
    ]);
    for path in paths {
        table.row([
            Cell::from(path.name.as_str()),
            Cell::from(path.peer.as_str()),
            cell(style, &word(&path.state), path_health(path.state)),
            Cell::from(known(path.srtt_seconds, seconds)),
            Cell::from(known(path.jitter_seconds, seconds)),
            Cell::from(known(path.loss_ratio, human::percent)),
            Cell::from(rate(path.rate_bits_per_second)),
            Cell::from(known(path.capacity, |c| rate(c.rate_bits_per_second))),
            Cell::from(known(path.available_bits_per_second, rate)),
            Cell::from(human::bytes(path.sent_bytes)),
            Cell::from(human::bytes(path.received_bytes)),
            Cell::from(path.mtu_bytes.to_string()),
        ]);
    }
    listed(&table, "no paths lead to a peer")
}

fn path_text(path: &PathSnapshot, style: Style) -> String {
    let mut facts = Facts::new(format!(
        "path {} to {}",
        style.strong(&path.name),
        path.peer
    ));
    facts.add(
        "state",
        format!(
            "{} for {}: {}",
            mark(style, &word(&path.state), path_health(path.state)),
            seconds(path.state_seconds),
            path.why
        ),
    );
    if let Some(left) = path.trusted_in_seconds {
        let left = seconds(left);
        facts.add(
            "trusted",
            format!("if it stays up for {left}; until then only for those who need it"),
        );
    }
    facts.add(
        "addresses",
        format!(
            "{} to {}",
            path.local,
            path.remote.as_deref().unwrap_or("not known yet")
        ),
    );
    facts.add("rate", rate(path.rate_bits_per_second));
    facts.add(
        "capacity",
        known(path.capacity, |measured| {
            format!(
                "{} ({} to {}), measured {} ago",
                rate(measured.rate_bits_per_second),
                rate(measured.low_bits_per_second),
                rate(measured.high_bits_per_second),
                seconds(measured.age_seconds)
            )
        }),
    );
    facts.add(
        "available",
        known(path.available_bits_per_second, |available| {
            let others = known(path.cross_traffic_bits_per_second, rate);
            format!("{}, others send {others}", rate(available))
        }),
    );
    facts.add(
        "delay",
        known(path.delay_seconds, |delay| {
            let configured = path.configured_delay_seconds;
            let origin = origin(path.delay_configured, configured, delay);
            format!("{} one way, {origin}", seconds(delay))
        }),
    );
    facts.add(
        "rtt",
        known(path.srtt_seconds, |srtt| {
            format!(
                "{}, without queues {}, varies by {}",
                seconds(srtt),
                known(path.base_rtt_seconds, seconds),
                known(path.rtt_var_seconds, seconds)
            )
        }),
    );
    facts.add("jitter", known(path.jitter_seconds, seconds));
    facts.add(
        "delay variation",
        known(path.one_way_delay_variation_seconds, |v| {
            format!("{} one way", seconds(v))
        }),
    );
    facts.add(
        "loss",
        format!(
            "{} recently, {} packets in all",
            known(path.loss_ratio, human::percent),
            path.lost_packets
        ),
    );
    facts.add("mtu", format!("{} bytes", path.mtu_bytes));
    facts.add(
        "sent",
        format!(
            "{}, {} packets",
            human::bytes(path.sent_bytes),
            path.sent_packets
        ),
    );
    facts.add(
        "received",
        format!(
            "{}, {} packets",
            human::bytes(path.received_bytes),
            path.received_packets
        ),
    );
    facts.add("sent again", human::bytes(path.retransmitted_bytes));
    match &path.aggregation {
        Some(aggregation) => add_aggregation(&mut facts, aggregation),
        None => facts.add("aggregates", "off".to_owned()),
    }
    facts.add("waiting", human::bytes(path.queue_bytes));
    facts.add("in flight", human::bytes(path.in_flight_bytes));
    facts.text()
}

/// Where the delay that is planned with comes from.
fn origin(is_configured: bool, configured: Option<f64>, delay: f64) -> String {
    match (is_configured, configured.map(seconds)) {
        (false, _) => "measured".to_owned(),
        (true, Some(configured)) if configured != seconds(delay) => {
            format!("{configured} configured and what was measured to have changed since")
        }
        (true, _) => "configured".to_owned(),
    }
}

/// In which aggregates thin packets leave, and what became of them.
fn add_aggregation(facts: &mut Facts, aggregation: &AggregationSnapshot) {
    let parameters = &aggregation.parameters;
    facts.add(
        "aggregates",
        match aggregation.paused {
            true => "paused, packets travel singly".to_owned(),
            false => format!(
                "{}, at most {} every {}, copies {}{}",
                aggregation.mode,
                human::bytes(parameters.size_bytes),
                seconds(parameters.interval_seconds),
                parameters.copies,
                aggregation.fec.map_or_else(String::new, |fec| format!(
                    " as parity, {} packets for {}",
                    fec.parity_packets, fec.group_aggregates
                ))
            ),
        },
    );
    // A gateway of an older version tells neither.
    if !aggregation.controller.is_empty() {
        let (controller, spread) = (&aggregation.controller, &aggregation.spread);
        facts.add("", format!("controller {controller}, spread {spread}"));
    }
    if let Some(why) = &aggregation.why {
        facts.add("", why.clone());
    }
    if let Some(change) = &aggregation.last_change {
        let ago = seconds(change.age_seconds);
        facts.add("", format!("last changed {ago} ago: {}", change.why));
    }
    facts.add(
        "",
        format!(
            "{} of {} lost; {} of {} copies, {} left out",
            aggregation.lost_aggregates,
            aggregation.sent_aggregates,
            aggregation.lost_copies,
            aggregation.sent_copies,
            aggregation.left_out_copies
        ),
    );
    facts.add(
        "",
        format!(
            "the peer dropped {} packets at its socket, its system {}",
            aggregation.overflow_packets, aggregation.system_overflow_packets
        ),
    );
    if let (Some(told), Some(source)) = (
        aggregation.bandwidth_bits_per_second,
        &aggregation.bandwidth_source,
    ) {
        facts.add("", format!("bandwidth {} by {source}", rate(told)));
    }
}

fn rate(bits_per_second: u64) -> String {
    human::rate(Bandwidth::from_bits_per_second(bits_per_second))
}

fn app_table(apps: &[AppSnapshot], style: Style) -> String {
    let mut table = Table::new(&[
        "application",
        "peer",
        "class",
        "path",
        "chosen by",
        "demand>",
        "predicted>",
        "mean>",
        "p99>",
        "met",
        "sent>",
        "delivered>",
        "received>",
        "waiting>",
    ]);
    for app in apps {
        table.row([
            Cell::from(app.name.as_str()),
            Cell::from(app.peer.as_str()),
            Cell::from(word(&app.class)),
            Cell::from(app.path.as_deref().unwrap_or(NONE)),
            Cell::from(word(&app.assigned_by)),
            Cell::from(known(app.latency_target_seconds, seconds)),
            Cell::from(known(app.predicted_delay_seconds, seconds)),
            Cell::from(known(app.delay, |d| seconds(d.mean_seconds))),
            Cell::from(known(app.delay, |d| seconds(d.p99_seconds))),
            met_by(style, app.target_met, app.judged_by),
            messages(app, app.messages_sent),
            messages(app, app.messages_delivered),
            messages(app, app.messages_received),
            messages(app, app.messages_waiting),
        ]);
    }
    listed(&table, "no applications are configured")
}

/// A number of messages; streams have none.
fn messages(app: &AppSnapshot, count: u64) -> Cell {
    match app.class {
        Class::Stream => Cell::from(NONE),
        _ => Cell::from(count.to_string()),
    }
}

fn app_text(app: &AppSnapshot, style: Style) -> String {
    let mut facts = Facts::new(format!(
        "application {} to {}, class {}",
        style.strong(&app.name),
        app.peer,
        word(&app.class)
    ));
    facts.add(
        "path",
        match (&app.path, &app.last_path) {
            (Some(path), _) => format!("{path}, chosen by {}", word(&app.assigned_by)),
            (None, Some(last)) => {
                format!("none is up, what is to be sent waits; last on {last}")
            }
            (None, None) => "none, what is to be sent waits".to_owned(),
        },
    );
    facts.add(
        "latency_target",
        known(app.latency_target_seconds, |d| {
            let state = match app.target_met {
                Some(true) => format!(", {}", style.good("met")),
                Some(false) => format!(", {}", style.bad("not met")),
                None => String::new(),
            };
            let why = match app.class {
                Class::Stream => "; what bytes of a stream wait is not measured",
                _ => "; too little is measured",
            };
            let (by, why) = match app.judged_by {
                Some(JudgedBy::Measurement) => (", by its measured 99th percentile", ""),
                Some(JudgedBy::Forecast) => (", by its predicted 99th percentile", why),
                Some(JudgedBy::Equation3) => (", by equation 3", why),
                Some(JudgedBy::Unknown) | None => ("", ""),
            };
            format!("{}{state}{by}{why}", seconds(d))
        }),
    );
    // Of streams there are connections, told below; their bytes make no messages.
    if app.class != Class::Stream {
        add_messages(&mut facts, app);
    }
    for listener in &app.listeners {
        facts.add(
            "listener",
            format!(
                "udp {}: {} datagrams ({}), {} refused",
                listener.udp,
                listener.received_packets,
                human::bytes(listener.received_bytes),
                listener.refused_packets
            ),
        );
    }
    if let Some(forward) = &app.forward {
        facts.add(
            "forward",
            format!(
                "udp {}: {} datagrams ({}), {} failed",
                forward.udp,
                forward.sent_packets,
                human::bytes(forward.sent_bytes),
                forward.failed_packets
            ),
        );
    }
    for listener in &app.tcp_listeners {
        let kind = if listener.transparent {
            "tproxy"
        } else {
            "tcp"
        };
        facts.add(
            "listener",
            format!(
                "{kind} {}: {} connections, {} open; {} refused, {} reset, {} failed",
                listener.tcp,
                listener.accepted_connections,
                listener.open_connections,
                listener.refused_connections,
                listener.reset_connections,
                listener.failed_connections
            ),
        );
    }
    if let Some(forward) = &app.tcp_forward {
        facts.add(
            "forward",
            format!(
                "tcp {}: {} connections, {} open; {} failed, {} forbidden, {} reset",
                forward.tcp,
                forward.accepted_connections,
                forward.open_connections,
                forward.failed_connections,
                forward.forbidden_connections,
                forward.reset_connections
            ),
        );
    }
    facts.text()
}

/// What is known of an application's messages or datagrams.
fn add_messages(facts: &mut Facts, app: &AppSnapshot) {
    facts.add("lifetime", known(app.lifetime_seconds, seconds));
    facts.add(
        "planned with",
        format!(
            "{} every {}",
            known(app.length_bytes, |bytes| human::bytes(bytes as u64)),
            known(app.interval_seconds, seconds)
        ),
    );
    facts.add(
        "sends",
        known(app.workload, |seen| {
            format!(
                "{} (spread {:.0} %) every {} (spread {:.0} %), last {} ago",
                human::bytes(seen.length_bytes as u64),
                seen.length_variation_ratio * 100.0,
                seconds(seen.interval_seconds),
                seen.interval_variation_ratio * 100.0,
                seconds(seen.idle_seconds)
            )
        }),
    );
    let predicted = match (app.predicted_delay_seconds, &app.no_forecast) {
        (Some(mean), _) => format!(
            "mean {}, p50 {}, p95 {}, p99 {}{}",
            seconds(mean),
            known(app.predicted.p50_seconds, seconds),
            known(app.predicted.p95_seconds, seconds),
            known(app.predicted.p99_seconds, seconds),
            app.margin_seconds.map_or_else(String::new, |margin| {
                format!("; margin of the mean {}", seconds(margin))
            })
        ),
        (None, Some(why)) => format!("{NONE}, {why}"),
        (None, None) => NONE.to_owned(),
    };
    facts.add("predicted", predicted);
    facts.add(
        "measured",
        known(app.delay, |d| {
            format!(
                "mean {}, p50 {}, p95 {}, p99 {}, p99.9 {}, {} to {}, {} messages",
                seconds(d.mean_seconds),
                seconds(d.p50_seconds),
                seconds(d.p95_seconds),
                seconds(d.p99_seconds),
                seconds(d.p999_seconds),
                seconds(d.min_seconds),
                seconds(d.max_seconds),
                d.count
            )
        }),
    );
    facts.add(
        "sent",
        format!(
            "{} ({}): {} delivered, {} expired, {} waiting ({}); {} refused",
            app.messages_sent,
            human::bytes(app.sent_bytes),
            app.messages_delivered,
            app.messages_expired,
            app.messages_waiting,
            human::bytes(app.queue_bytes),
            app.messages_refused
        ),
    );
    facts.add(
        "received",
        format!(
            "{} ({})",
            app.messages_received,
            human::bytes(app.received_bytes)
        ),
    );
    facts.add(
        "attached",
        format!("{} senders, {} receivers", app.senders, app.receivers),
    );
}

fn peer_table(peers: &[PeerSnapshot], style: Style) -> String {
    let mut table = Table::new(&[
        "peer",
        "state",
        "paths up>",
        "handshake>",
        "key changes>",
        "dropped>",
        "public key",
    ]);
    for peer in peers {
        table.row([
            Cell::from(peer.name.as_str()),
            cell(style, &word(&peer.state), peer_health(peer.state)),
            Cell::from(peer.paths_up.to_string()),
            Cell::from(known(peer.handshake_age_seconds, |age| {
                format!("{} ago", seconds(age))
            })),
            Cell::from(peer.key_changes.to_string()),
            Cell::from(peer.dropped_packets.values().sum::<u64>().to_string()),
            Cell::from(peer.public_key.as_str()),
        ]);
    }
    listed(&table, "no peers are configured")
}

fn peer_text(peer: &PeerSnapshot, style: Style) -> String {
    let mut facts = Facts::new(format!("peer {}", style.strong(&peer.name)));
    facts.add(
        "state",
        format!(
            "{} for {}: {}",
            mark(style, &word(&peer.state), peer_health(peer.state)),
            seconds(peer.state_seconds),
            peer.why
        ),
    );
    facts.add("public key", peer.public_key.clone());
    facts.add("paths up", peer.paths_up.to_string());
    facts.add(
        "handshake",
        known(peer.handshake_age_seconds, |age| {
            format!("{} ago", seconds(age))
        }),
    );
    facts.add("handshakes begun", peer.handshakes_started.to_string());
    facts.add("key changes", peer.key_changes.to_string());
    facts.add(
        "reassembly",
        format!(
            "{} of {}",
            human::bytes(peer.reassembly_bytes),
            human::bytes(peer.reassembly_bytes_max)
        ),
    );
    let dropped: Vec<String> = peer
        .dropped_packets
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(reason, count)| format!("{count} {}", reason.replace('_', " ")))
        .collect();
    facts.add(
        "dropped",
        if dropped.is_empty() {
            "nothing".to_owned()
        } else {
            dropped.join(", ")
        },
    );
    facts.text()
}

/// Lines of a name and a value, below a heading.
struct Facts {
    heading: String,
    facts: Vec<(&'static str, String)>,
}

impl Facts {
    fn new(heading: String) -> Self {
        Self {
            heading,
            facts: Vec::new(),
        }
    }

    fn add(&mut self, name: &'static str, value: String) {
        self.facts.push((name, value));
    }

    fn text(&self) -> String {
        let width = self
            .facts
            .iter()
            .map(|(name, _)| name.len())
            .max()
            .unwrap_or(0);
        let mut text = format!("{}\n", self.heading);
        for (name, value) in &self.facts {
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

fn path_health(state: PathState) -> Health {
    match state {
        PathState::Up => Health::Good,
        PathState::Down => Health::Bad,
        PathState::Validating | PathState::Unknown => Health::Neither,
    }
}

fn peer_health(state: PeerState) -> Health {
    match state {
        PeerState::Up => Health::Good,
        PeerState::Down => Health::Bad,
        PeerState::Handshaking | PeerState::Unknown => Health::Neither,
    }
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
    fn missed_margins_are_negative() {
        assert_eq!(seconds(-0.0015), "-1.5 ms");
        assert_eq!(word(&PathState::Up), "up");
    }

    #[test]
    fn a_delay_that_has_changed_is_not_called_configured() {
        let told = |configured, delay| origin(true, configured, delay);
        assert_eq!(told(Some(0.02), 0.02), "configured");
        // Less than is shown.
        assert_eq!(told(Some(0.02), 0.020_000_4), "configured");
        assert_eq!(
            told(Some(0.02), 0.085),
            "20 ms configured and what was measured to have changed since"
        );
        // An older gateway does not say.
        assert_eq!(told(None, 0.085), "configured");
        assert_eq!(origin(false, None, 0.085), "measured");
    }

    #[test]
    fn what_is_known_of_aggregates_is_shown() {
        let told = serde_json::json!({
            "mode": "eager", "size_bytes": 2048, "interval_seconds": 0.001, "copies": 2,
            "controller": "adaptive", "spread": "500us", "why": "nothing calls for a change",
            "sent_aggregates": 1000, "lost_aggregates": 3, "sent_copies": 2000, "lost_copies": 41,
            "overflow_packets": 5, "system_overflow_packets": 6,
            "bandwidth_bits_per_second": 50_000_000, "bandwidth_source": "copies",
        });
        let mut facts = Facts::new("path p".to_owned());
        add_aggregation(&mut facts, &serde_json::from_value(told).unwrap());
        let text = facts.text();
        for what in [
            "eager, at most 2.05 kB every 1 ms, copies 2",
            "controller adaptive, spread 500us",
            "nothing calls for a change",
            "3 of 1000 lost; 41 of 2000 copies",
            "the peer dropped 5 packets at its socket, its system 6",
            "bandwidth 50 Mbit/s by copies",
        ] {
            assert!(text.contains(what), "{what}: {text}");
        }
    }

    #[test]
    fn a_path_on_which_nothing_is_gathered_says_so() {
        let told = serde_json::json!({
            "name": "p", "peer": "b", "state": "up", "why": "", "state_seconds": 1.0,
            "local": "192.0.2.1:7600", "rate_bits_per_second": 1000, "delay_configured": false,
            "mtu_bytes": 1500, "sent_packets": 0, "sent_bytes": 0, "received_packets": 0,
            "received_bytes": 0, "lost_packets": 0, "retransmitted_bytes": 0, "queue_bytes": 0,
            "in_flight_bytes": 0,
        });
        let text = path_text(&serde_json::from_value(told).unwrap(), Style::of_stdout());
        let mut lines = text.lines().map(|line| line.split_whitespace().collect());
        assert!(
            lines.any(|line: Vec<_>| line == ["aggregates", "off"]),
            "{text}"
        );
    }

    #[test]
    fn an_application_without_a_path_is_on_none() {
        let told = |last: Option<&str>| {
            let app = serde_json::json!({
                "name": "A", "class": "datagram", "peer": "b", "assigned_by": "nobody",
                "last_path": last, "messages_sent": 0, "messages_delivered": 0,
                "messages_expired": 0, "messages_refused": 0, "messages_received": 0,
                "messages_waiting": 0, "queue_bytes": 0, "sent_bytes": 0, "received_bytes": 0,
                "senders": 0, "receivers": 0, "listeners": [],
            });
            app_text(&serde_json::from_value(app).unwrap(), Style::of_stdout())
        };
        let text = told(Some("p2"));
        assert!(
            text.contains("none is up, what is to be sent waits; last on p2\n"),
            "{text}"
        );
        let text = told(None);
        assert!(text.contains("none, what is to be sent waits\n"), "{text}");
        assert!(!text.contains("chosen by"), "{text}");
    }
}
