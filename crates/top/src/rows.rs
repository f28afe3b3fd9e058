//! Rows of applications, paths, tenants and events from what the gateway has answered.

use std::{collections::VecDeque, time::Duration};

use keiro_control::protocol::{
    AppSnapshot, DeviceState, JudgedBy, PathSnapshot, PathState, SpreadPathSnapshot,
    TenantSnapshot, Timestamp,
};
use keiro_terminal::output::human;
use keiro_units::Bandwidth;

use crate::{
    columns,
    data::{Data, EventLine, Rate, Snapshot},
    table::{Cell, Row, Table, Tone},
    view::{Tab, View},
};

/// The rows of the tab that is shown, as filter and order have them.
pub(crate) fn shown(data: &Data, view: &View) -> Table {
    all(data, view.tab)
        .filtered(&view.filter)
        .sorted(view.order())
}

fn all(data: &Data, tab: Tab) -> Table {
    let (columns, rows) = match (tab, data.snapshot.as_deref()) {
        (Tab::Apps, snapshot) => (columns::APPS, snapshot.map(apps)),
        (Tab::Paths, snapshot) => (columns::PATHS, snapshot.map(paths)),
        (Tab::Tenants, snapshot) => (columns::TENANTS, snapshot.map(tenants)),
        (Tab::Events, _) => (columns::EVENTS, Some(events(&data.events))),
    };
    let rows = rows.unwrap_or_default();
    Table { columns, rows }
}

/// Seconds of the protocol, which may be negative.
pub(crate) fn seconds(seconds: f64) -> String {
    let magnitude = Duration::try_from_secs_f64(seconds.abs()).unwrap_or(Duration::MAX);
    let sign = if seconds < 0.0 { "-" } else { "" };
    format!("{sign}{}", human::duration(magnitude))
}

pub(crate) fn rate(bits_per_second: f64) -> String {
    human::rate(Bandwidth::from_bits_per_second(bits_per_second as u64))
}

fn apps(snapshot: &Snapshot) -> Vec<Row> {
    let row = |app| app_row(app, snapshot.rates.apps.get(app_name(app)));
    snapshot.apps.iter().map(row).collect()
}

fn app_name(app: &AppSnapshot) -> &str {
    &app.name
}

fn app_row(app: &AppSnapshot, rate: Option<&Rate>) -> Row {
    let stats = &app.stats;
    let delay = app.delay.as_ref();
    let path = match (&app.path, &app.spread) {
        (Some(_), Some(spread)) => Cell::text(&shares(spread)),
        (Some(path), None) => Cell::text(path),
        (None, _) => Cell::text("none").with_tone(Tone::Bad),
    };
    let waiting = stats.waiting_messages;
    Row {
        key: app.name.clone(),
        urgency: app_urgency(app),
        cells: vec![
            Cell::text(&app.name),
            met(app),
            path,
            time(stats.latency_target.map(|target| target.as_secs_f64())),
            time(delay.map(|delay| delay.p99_seconds)),
            time(stats.predicted_delay.map(|delay| delay.as_secs_f64())),
            margin(margin_of(app)),
            flow(rate.map(|rate| rate.sent)),
            flow(rate.map(|rate| rate.received)),
            Cell::number(waiting as f64, waiting.to_string()),
            time(delay.map(|delay| delay.p50_seconds)),
            Cell::text(&app.peer),
            Cell::text(&word(&app.class)),
            Cell::text(&word(&app.assigned_by)),
        ],
    }
}

/// `fibre 71 %, lte 29 %`: what a spread application has sent by each path.
pub(crate) fn shares(spread: &[SpreadPathSnapshot]) -> String {
    let shares = human::shares(spread).into_iter();
    let parts: Vec<String> = shares
        .map(|(path, share)| format!("{path} {}", human::percent(share)))
        .collect();
    match parts.is_empty() {
        true => "spread".to_owned(),
        false => parts.join(", "),
    }
}

/// Those that miss their target first, then those without a path or with too much loss, then those that meet it, the
/// least margin first, then those without a target.
fn app_urgency(app: &AppSnapshot) -> (u8, f64) {
    let margin = margin_of(app).unwrap_or(f64::INFINITY);
    match app.stats.target_met {
        Some(false) => (0, margin),
        _ if app.path.is_none() => (1, margin),
        _ if app.excess_loss.is_some() => (2, margin),
        Some(true) => (3, margin),
        None => (4, 0.0),
    }
}

fn met(app: &AppSnapshot) -> Cell {
    match (app.stats.target_met, app.excess_loss.is_some()) {
        (Some(false), _) => Cell::text("NO").with_tone(Tone::Bad),
        (_, true) => Cell::text("LOSS").with_tone(Tone::Bad),
        (Some(true), false) => Cell::text("yes").with_tone(Tone::Good),
        (None, false) => Cell::absent(),
    }
}

/// The latency target minus the delay by which it is judged.
fn margin_of(app: &AppSnapshot) -> Option<f64> {
    let target = app.stats.latency_target?.as_secs_f64();
    match (app.judged_by, &app.delay) {
        (Some(JudgedBy::Measurement), Some(delay)) => Some(target - delay.p99_seconds),
        _ => app.margin_seconds,
    }
}

fn margin(margin: Option<f64>) -> Cell {
    let tone = match margin {
        Some(margin) if margin < 0.0 => Tone::Bad,
        _ => Tone::Plain,
    };
    time(margin).with_tone(tone)
}

fn paths(snapshot: &Snapshot) -> Vec<Row> {
    let row = |path: &PathSnapshot| {
        let key = (path.name.clone(), path.peer.clone());
        path_row(path, snapshot.rates.paths.get(&key))
    };
    snapshot.paths.iter().map(row).collect()
}

/// How a path's row is found again.
pub(crate) fn path_key(path: &PathSnapshot) -> String {
    format!("{}\0{}", path.name, path.peer)
}

fn path_row(path: &PathSnapshot, rate: Option<&Rate>) -> Row {
    let stats = &path.stats;
    let is_up = path.state == PathState::Up;
    // The last values of a path that is down are not its state.
    let measured = |value: Option<f64>| value.filter(|_| is_up);
    let srtt = measured(stats.srtt.map(|rtt| rtt.as_secs_f64()));
    let why = path.diagnosis.as_ref().or(path.problem.as_ref());
    let tone = match (path.state, path.abandoned) {
        (PathState::Up, _) => Tone::Good,
        (PathState::Down, false) => Tone::Bad,
        _ => Tone::Plain,
    };
    let queued = stats.queued_bytes;
    Row {
        key: path_key(path),
        urgency: match tone {
            Tone::Bad => (0, 0.0),
            _ if why.is_some() => (1, 0.0),
            _ => (2, 0.0),
        },
        cells: vec![
            Cell::text(&path.name),
            Cell::text(&path.peer),
            Cell::text(&word(&path.state)).with_tone(tone),
            time(srtt),
            ratio(measured(stats.loss.map(|loss| loss.get()))),
            flow(rate.map(|rate| rate.sent)),
            flow(rate.map(|rate| rate.received)),
            bandwidth(path.capacity.filter(|_| is_up).map(|of| of.rate)),
            bandwidth(stats.available.filter(|_| is_up)),
            time(measured(stats.jitter.map(|jitter| jitter.as_secs_f64()))),
            Cell::number(queued as f64, human::bytes(queued)),
            Cell::number(stats.outages as f64, stats.outages.to_string()),
            Cell::number(stats.mtu_bytes as f64, stats.mtu_bytes.to_string()),
            Cell::text(why.unwrap_or(&path.why)),
        ],
    }
}

fn tenants(snapshot: &Snapshot) -> Vec<Row> {
    let row = |of: &TenantSnapshot| tenant_row(of, snapshot.rates.tenants.get(&of.name));
    snapshot.tenants.iter().map(row).collect()
}

fn tenant_row(tenant: &TenantSnapshot, rate: Option<&Rate>) -> Row {
    let (device, tone) = match tenant.device_state {
        DeviceState::Up => (tenant.device.clone(), Tone::Plain),
        state => (format!("{}, {}", tenant.device, word(&state)), Tone::Bad),
    };
    let dropped = dropped(tenant);
    let on_paths = || tenant.peers.iter().flat_map(|peer| &peer.paths);
    let queued: u64 = tenant
        .peers
        .iter()
        .map(|peer| peer.stats.queued_bytes)
        .sum();
    let in_flight: u64 = on_paths().map(|path| path.stats.in_flight_bytes).sum();
    let peers: Vec<&str> = tenant.peers.iter().map(|peer| peer.peer.as_str()).collect();
    let (weight, share) = (tenant.stats.weight, tenant.stats.share.get());
    Row {
        key: tenant.name.clone(),
        urgency: (u8::from(tone != Tone::Bad), 0.0),
        cells: vec![
            Cell::text(&tenant.name),
            Cell::text(&device).with_tone(tone),
            Cell::number(weight, weight.to_string()),
            ratio(Some(share)),
            flow(rate.map(|rate| rate.sent)),
            flow(rate.map(|rate| rate.received)),
            Cell::number(dropped as f64, dropped.to_string()),
            Cell::number(queued as f64, human::bytes(queued)),
            Cell::number(in_flight as f64, human::bytes(in_flight)),
            Cell::text(&peers.join(" ")),
        ],
    }
}

/// Before the queues, in them and after the peer's hands.
fn dropped(tenant: &TenantSnapshot) -> u64 {
    let of_peers = tenant.peers.iter().map(|peer| &peer.dropped_packets);
    let all = of_peers.chain([&tenant.dropped_packets]);
    all.flat_map(|by_cause| by_cause.values()).sum()
}

fn events(events: &VecDeque<EventLine>) -> Vec<Row> {
    let newest_first = |(age, event): (usize, &EventLine)| {
        let time = Timestamp(event.time);
        let tone = match event.is_warning {
            true => Tone::Bad,
            false => Tone::Plain,
        };
        Row {
            key: format!("{time} {}", event.text),
            urgency: (0, age as f64),
            cells: vec![
                Cell::text(&clock(time)),
                Cell::text(event.name).with_tone(tone),
                Cell::text(&event.text),
            ],
        }
    };
    events.iter().enumerate().map(newest_first).collect()
}

/// `14:03:12` of `2026-01-31T14:03:12.000000Z`.
pub(crate) fn clock(time: Timestamp) -> String {
    let text = time.to_string();
    text.get(11..19).unwrap_or(&text).to_owned()
}

fn time(seconds_of: Option<f64>) -> Cell {
    seconds_of.map_or_else(Cell::absent, |value| Cell::number(value, seconds(value)))
}

fn ratio(ratio: Option<f64>) -> Cell {
    ratio.map_or_else(Cell::absent, |value| {
        Cell::number(value, human::percent(value))
    })
}

fn flow(bits_per_second: Option<f64>) -> Cell {
    bits_per_second.map_or_else(Cell::absent, |value| Cell::number(value, rate(value)))
}

fn bandwidth(bandwidth: Option<Bandwidth>) -> Cell {
    bandwidth.map_or_else(Cell::absent, |value| {
        Cell::number(value.as_bits_per_second() as f64, human::rate(value))
    })
}

/// A value of one of the protocol's enumerations as a word.
pub(crate) fn word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word.replace('_', " "),
        _ => "unknown".to_owned(),
    }
}
