//! `keiro show app`.

use keiro_control::{
    config::Class,
    protocol::{AppSnapshot, DelaySummary, JudgedBy, SpreadPathSnapshot, WorkloadSnapshot},
};

use keiro_stats::{AppStats, StatSet, Value};

use super::{FieldList, known, listed, met_and_source, seconds, shared_line_text, word};
use crate::{
    command::figures,
    output::{
        Style,
        human::{self, NONE},
        table::{Cell, Table},
    },
};

pub(super) fn table(apps: &[AppSnapshot], style: Style) -> String {
    let mut table = Table::new(&[
        "application",
        "peer",
        "class",
        "path",
        "chosen by",
        "target>",
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
            Cell::from(known(app.stats.latency_target, human::duration)),
            Cell::from(known(app.stats.predicted_delay, human::duration)),
            Cell::from(known(app.delay, |d| seconds(d.mean_seconds))),
            Cell::from(known(app.delay, |d| seconds(d.p99_seconds))),
            met_and_source(style, app.stats.target_met, app.judged_by),
            Cell::from(figure(app, "sent_messages")),
            Cell::from(figure(app, "delivered_messages")),
            Cell::from(figure(app, "received_messages")),
            Cell::from(figure(app, "waiting_messages")),
        ]);
    }
    listed(&table, "no applications are configured")
}

/// A figure of an application as text; `-` where its kind of traffic is not counted.
fn figure(app: &AppSnapshot, name: &str) -> String {
    let mut values = app.stats.values();
    match values.find(|(stat, _)| stat.name == name) {
        Some((stat, Some(value))) if is_counted(app, name) || value != Value::Integer(0) => {
            human::figure(stat.unit, value)
        }
        _ => NONE.to_owned(),
    }
}

/// Streams have no messages. Datagrams and IP packets are not acknowledged one by one, and IP packets have no
/// lifetime.
fn is_counted(app: &AppSnapshot, name: &str) -> bool {
    match (app.class, name) {
        (Class::Stream, _) => !name.ends_with("_messages"),
        (
            Class::Datagram,
            "delivered_messages" | "late_messages" | "unknown_messages" | "waiting_messages",
        ) => false,
        (Class::Datagram, "expired_messages") => !app.only_packets,
        _ => true,
    }
}

pub(super) fn text(app: &AppSnapshot, style: Style) -> String {
    let mut fields = FieldList::new(format!(
        "application {} to {}, class {}",
        style.strong(&app.name),
        app.peer,
        word(&app.class)
    ));
    fields.add("path", path_text(app));
    fields.add(
        "latency target",
        known(app.stats.latency_target, |target| {
            format!("{}{}", human::duration(target), target_text(app, style))
        }),
    );
    fields.add(
        "loss",
        known(app.loss_tolerance_ratio, |tolerates| {
            loss_text(app, tolerates)
        }),
    );
    // Streams have connections, shown below, and no messages.
    match app.class {
        Class::Stream => add_bytes(&mut fields, app),
        Class::Message | Class::Datagram => add_messages(&mut fields, app),
    }
    add_connections(&mut fields, app);
    fields.text()
}

fn path_text(app: &AppSnapshot) -> String {
    if let (Some(spread), Some(_)) = (&app.spread, &app.path) {
        return spread_text(spread);
    }
    if let Some(path) = &app.path {
        return format!("{path}, chosen by {}", word(&app.assigned_by));
    }
    let why = app.no_path.as_ref();
    let why = why.map_or(String::new(), |why| format!(": {why}"));
    let last = app.last_path.as_ref();
    let last = last.map_or(String::new(), |last| format!(", last on {last}"));
    format!("none{why}; traffic waits{last}")
}

/// The paths by which an application has sent, and which part by which.
fn spread_text(spread: &[SpreadPathSnapshot]) -> String {
    let shares = human::shares(spread).into_iter();
    let parts: Vec<String> = shares
        .map(|(path, share)| format!("{} by {path}", human::percent(share)))
        .collect();
    match parts.is_empty() {
        true => "spread over all that are up".to_owned(),
        false => format!("spread over all that are up: {}", parts.join(", ")),
    }
}

/// What may be lost without repair, and what is lost on its path where that is more.
fn loss_text(app: &AppSnapshot, tolerates: f64) -> String {
    let tolerates = format!("tolerates {}", human::percent(tolerates));
    match &app.excess_loss {
        Some(excess) => format!(
            "{tolerates}, its path loses {}",
            human::percent(excess.loss_ratio)
        ),
        None => tolerates,
    }
}

/// Whether the latency target is met, and by which delay.
fn target_text(app: &AppSnapshot, style: Style) -> String {
    let state = match app.stats.target_met {
        Some(true) => format!(", {}", style.good("met")),
        Some(false) => format!(", {}", style.bad("not met")),
        None => String::new(),
    };
    let why = match app.class {
        Class::Stream => "; what is measured of streams does not decide it",
        _ if app.only_packets => "; what is measured of IP packets does not decide it",
        Class::Message | Class::Datagram => "; too few delays are measured",
    };
    match app.judged_by {
        Some(JudgedBy::Measurement) => format!("{state} by the measured 99th percentile"),
        Some(JudgedBy::Forecast) => format!("{state} by the predicted 99th percentile{why}"),
        Some(JudgedBy::Equation3) => format!("{state} by equation 3{why}"),
        Some(JudgedBy::Unknown) | None => state,
    }
}

/// Workload, delays and counters of an application's messages or datagrams.
fn add_messages(fields: &mut FieldList, app: &AppSnapshot) {
    fields.add("lifetime", known(app.lifetime_seconds, seconds));
    fields.add(
        "planned workload",
        format!(
            "{} every {}",
            known(app.length_bytes, |bytes| human::bytes(bytes as u64)),
            known(app.interval_seconds, seconds)
        ),
    );
    fields.add(
        "measured workload",
        known(app.workload.as_ref(), workload_text),
    );
    fields.add("forecast", forecast_text(app));
    if let Some(line) = &app.shared_line {
        fields.add("other gateways", shared_line_text(line));
    }
    fields.add("measured delay", measured_delay_text(app));
    // The latency target is above, the predicted delay in the forecast.
    let shown = ["latency target", "target met", "predicted delay"];
    for stat in AppStats::STATS {
        let name = stat.label();
        if !shown.contains(&name.as_str()) {
            fields.add(&name, figure(app, stat.name));
        }
    }
}

/// What an application's streams carry.
fn add_bytes(fields: &mut FieldList, app: &AppSnapshot) {
    let shown = ["sent_bytes", "received_bytes", "queued_bytes"];
    for stat in AppStats::STATS {
        if shown.contains(&stat.name) {
            fields.add(&stat.label(), figure(app, stat.name));
        }
    }
    fields.add("forecast", forecast_text(app));
    fields.add("measured delay", measured_delay_text(app));
}

fn workload_text(workload: &WorkloadSnapshot) -> String {
    format!(
        "{} (spread {:.0} %) every {} (spread {:.0} %), last {} ago",
        human::bytes(workload.length_bytes as u64),
        workload.length_variation_ratio * 100.0,
        seconds(workload.interval_seconds),
        workload.interval_variation_ratio * 100.0,
        seconds(workload.idle_seconds)
    )
}

fn forecast_text(app: &AppSnapshot) -> String {
    match (app.stats.predicted_delay, &app.no_forecast) {
        (Some(mean), _) => format!(
            "mean {}, p50 {}, p95 {}, p99 {}{}",
            human::duration(mean),
            known(app.predicted.p50_seconds, seconds),
            known(app.predicted.p95_seconds, seconds),
            known(app.predicted.p99_seconds, seconds),
            app.margin_seconds.map_or_else(String::new, |margin| {
                format!("; margin of the mean {}", seconds(margin))
            })
        ),
        (None, Some(why)) => format!("{NONE}, {why}"),
        (None, None) => NONE.to_owned(),
    }
}

/// Delays end at the peer gateway; of what they are is said with their number.
fn measured_delay_text(app: &AppSnapshot) -> String {
    let things = match app.class {
        Class::Message => "messages",
        Class::Datagram => "IP packets, sampled",
        Class::Stream => "writes to streams, sampled",
    };
    app.delay
        .as_ref()
        .map_or_else(|| NONE.to_owned(), |delay| delay_text(delay, things))
}

fn delay_text(delay: &DelaySummary, things: &str) -> String {
    format!(
        "mean {}, p50 {}, p95 {}, p99 {}, p99.9 {}, {} to {}, {} {things}",
        seconds(delay.mean_seconds),
        seconds(delay.p50_seconds),
        seconds(delay.p95_seconds),
        seconds(delay.p99_seconds),
        seconds(delay.p999_seconds),
        seconds(delay.min_seconds),
        seconds(delay.max_seconds),
        delay.count
    )
}

/// Listeners and forwards with their counters.
fn add_connections(fields: &mut FieldList, app: &AppSnapshot) {
    for listener in &app.listeners {
        let stats = figures::list(&listener.stats.0);
        fields.add("listener", format!("udp {}: {stats}", listener.udp));
    }
    if let Some(forward) = &app.forward {
        let stats = figures::list(&forward.stats.0);
        fields.add("forward", format!("udp {}: {stats}", forward.udp));
    }
    for listener in &app.tcp_listeners {
        let kind = match listener.transparent {
            true => "tproxy",
            false => "tcp",
        };
        let stats = figures::list(&listener.stats.0);
        fields.add("listener", format!("{kind} {}: {stats}", listener.tcp));
    }
    if let Some(forward) = &app.tcp_forward {
        let stats = figures::list(&forward.stats.0);
        fields.add("forward", format!("tcp {}: {stats}", forward.tcp));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(more: &serde_json::Value) -> AppSnapshot {
        let mut app = serde_json::json!({
            "name": "A", "class": "datagram", "peer": "b", "assigned_by": "unassigned",
        });
        let more = more.as_object().unwrap().clone();
        app.as_object_mut().unwrap().extend(more);
        serde_json::from_value(app).unwrap()
    }

    fn delay() -> serde_json::Value {
        serde_json::json!({
            "count": 500, "mean_seconds": 0.021, "min_seconds": 0.01, "p50_seconds": 0.02,
            "p90_seconds": 0.025, "p95_seconds": 0.03, "p99_seconds": 0.04,
            "p999_seconds": 0.041, "max_seconds": 0.042,
        })
    }

    #[test]
    fn delays_and_counts_of_ip_packets_are_shown_and_what_is_not_counted_is_not_shown_as_zero() {
        let app = snapshot(&serde_json::json!({
            "path": "wan0", "only_packets": true, "latency_target_seconds": 0.03,
            "target_met": true, "judged_by": "equation3", "sent_messages": 7,
            "no_forecast": "not stationary", "received_messages": 9, "delay": delay(),
        }));
        let shown = text(&app, Style::of_stdout());
        for part in [
            "met by equation 3; what is measured of IP packets does not decide it",
            "mean 21 ms, p50 20 ms, p95 30 ms, p99 40 ms, p99.9 41 ms, 10 ms to 42 ms, \
             500 IP packets, sampled",
            "-, not stationary",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let words: Vec<&str> = shown.split_whitespace().collect();
        let words = words.join(" ");
        for part in [
            "received messages 9",
            "expired messages -",
            "delivered messages -",
            "sent messages 7",
        ] {
            assert!(words.contains(part), "{part}: {shown}");
        }
        let row = table(&[app], Style::of_stdout());
        let row: Vec<&str> = row.lines().last().unwrap().split_whitespace().collect();
        let row = row.join(" ");
        assert!(row.ends_with("- 21 ms 40 ms yes by eq. 3 7 - 9 -"), "{row}");
    }

    #[test]
    fn other_gateways_in_the_forecast_are_named_with_their_part_and_its_age() {
        let gateways = serde_json::json!([
            {"gateway": "gw2", "apps": 1, "load_bits_per_second": 44.9e6},
            {"gateway": "gw3", "apps": 2, "load_bits_per_second": 5e6},
        ]);
        let of = |line: serde_json::Value| {
            let app = snapshot(&serde_json::json!({"path": "wan0", "shared_line": line}));
            text(&app, Style::of_stdout())
        };
        let known = "44.9 Mbit/s by gateway gw2 (1 application), 5 Mbit/s by gateway gw3 \
                     (2 applications), part of the forecast";
        let shown = of(serde_json::json!({"gateways": gateways}));
        assert!(shown.contains(&format!("{known}\n")), "{shown}");
        let shown = of(serde_json::json!({"gateways": gateways, "age_seconds": 12.0}));
        let age = ", as known 12 s ago, since when the plan store has not answered\n";
        assert!(shown.contains(&format!("{known}{age}")), "{shown}");
        let shown = of(serde_json::json!({"gateways": [], "age_seconds": 400.0}));
        let part = "not known, the plan store has not answered for";
        assert!(shown.contains(part), "{shown}");
        assert!(!text(&snapshot(&serde_json::json!({})), Style::of_stdout()).contains("gateways"));
    }

    #[test]
    fn bytes_and_delays_of_streams_are_shown() {
        let app = snapshot(&serde_json::json!({
            "class": "stream", "sent_bytes": 1234, "received_bytes": 5_000_000, "queued_bytes": 17,
            "delay": delay(),
        }));
        let shown = text(&app, Style::of_stdout());
        let words: Vec<&str> = shown.split_whitespace().collect();
        let words = words.join(" ");
        for part in [
            "sent 1234 B",
            "received 5 MB",
            "queued 17 B",
            "forecast -",
            "p99 40 ms",
            "500 writes to streams, sampled",
        ] {
            assert!(words.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains("messages"), "{shown}");
    }

    #[test]
    fn an_application_without_a_path_is_on_none() {
        let why = "no path to osaka is up";
        let last = snapshot(&serde_json::json!({"last_path": "p2", "no_path": why}));
        let shown = text(&last, Style::of_stdout());
        assert!(
            shown.contains("none: no path to osaka is up; traffic waits, last on p2\n"),
            "{shown}"
        );
        let shown = text(&snapshot(&serde_json::json!({})), Style::of_stdout());
        assert!(shown.contains("none; traffic waits\n"), "{shown}");
        assert!(!shown.contains("chosen by"), "{shown}");
    }

    #[test]
    fn every_figure_of_an_application_is_shown() {
        let app = snapshot(&serde_json::json!({
            "late_messages": 12, "queued_bytes": 3400,
            "listeners": [{"udp": "192.0.2.1:5000", "refused_packets": 7}],
        }));
        let shown = text(&app, Style::of_stdout());
        for stat in AppStats::STATS {
            let is_above = ["target_met", "predicted_delay_seconds"].contains(&stat.name);
            assert!(
                is_above || shown.contains(&stat.label()),
                "{}: {shown}",
                stat.name
            );
        }
        let words: Vec<&str> = shown.split_whitespace().collect();
        let words = words.join(" ");
        for part in ["late messages 12", "queued 3400 B", "refused packets 7"] {
            assert!(words.contains(part), "{part}: {shown}");
        }
    }
}
