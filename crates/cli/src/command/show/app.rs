//! `keiro show app`.

use keiro_control::{
    config::Class,
    protocol::{AppSnapshot, JudgedBy},
};

use super::{FieldList, known, listed, met_by, seconds, word};
use crate::output::{
    Style,
    human::{self, NONE},
    table::{Cell, Table},
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
            met_by(style, app.stats.target_met, app.judged_by),
            messages(app, app.stats.sent_messages),
            messages(app, app.stats.delivered_messages),
            messages(app, app.stats.received_messages),
            messages(app, app.stats.waiting_messages),
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

pub(super) fn text(app: &AppSnapshot, style: Style) -> String {
    let mut fields = FieldList::new(format!(
        "application {} to {}, class {}",
        style.strong(&app.name),
        app.peer,
        word(&app.class)
    ));
    fields.add(
        "path",
        match (&app.path, &app.last_path) {
            (Some(path), _) => format!("{path}, chosen by {}", word(&app.assigned_by)),
            (None, Some(last)) => {
                format!("none is up, what is to be sent waits; last on {last}")
            }
            (None, None) => "none, what is to be sent waits".to_owned(),
        },
    );
    fields.add(
        "latency target",
        known(app.stats.latency_target, |d| {
            let state = match app.stats.target_met {
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
            format!("{}{state}{by}{why}", human::duration(d))
        }),
    );
    // Streams have connections, shown below, and no messages.
    if app.class != Class::Stream {
        add_messages(&mut fields, app);
    }
    for listener in &app.listeners {
        fields.add(
            "listener",
            format!(
                "udp {}: {} datagrams ({}), {} refused",
                listener.udp,
                listener.stats.received_packets,
                human::bytes(listener.stats.received_bytes),
                listener.stats.refused_packets
            ),
        );
    }
    if let Some(forward) = &app.forward {
        fields.add(
            "forward",
            format!(
                "udp {}: {} datagrams ({}), {} failed",
                forward.udp,
                forward.stats.sent_packets,
                human::bytes(forward.stats.sent_bytes),
                forward.stats.failed_packets
            ),
        );
    }
    for listener in &app.tcp_listeners {
        let kind = if listener.transparent {
            "tproxy"
        } else {
            "tcp"
        };
        fields.add(
            "listener",
            format!(
                "{kind} {}: {} connections, {} open; {} refused, {} reset, {} failed",
                listener.tcp,
                listener.stats.accepted_connections,
                listener.stats.open_connections,
                listener.stats.refused_connections,
                listener.stats.reset_connections,
                listener.stats.failed_connections
            ),
        );
    }
    if let Some(forward) = &app.tcp_forward {
        fields.add(
            "forward",
            format!(
                "tcp {}: {} connections, {} open; {} failed, {} forbidden, {} reset",
                forward.tcp,
                forward.stats.accepted_connections,
                forward.stats.open_connections,
                forward.stats.failed_connections,
                forward.stats.forbidden_connections,
                forward.stats.reset_connections
            ),
        );
    }
    fields.text()
}

/// What is known of an application's messages or datagrams.
fn add_messages(fields: &mut FieldList, app: &AppSnapshot) {
    fields.add("lifetime", known(app.lifetime_seconds, seconds));
    fields.add(
        "planned with",
        format!(
            "{} every {}",
            known(app.length_bytes, |bytes| human::bytes(bytes as u64)),
            known(app.interval_seconds, seconds)
        ),
    );
    fields.add(
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
    let predicted = match (app.stats.predicted_delay, &app.no_forecast) {
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
    };
    fields.add("predicted", predicted);
    fields.add(
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
    fields.add(
        "sent",
        format!(
            "{} ({}): {} delivered, {} expired, {} waiting ({}); {} refused",
            app.stats.sent_messages,
            human::bytes(app.stats.sent_bytes),
            app.stats.delivered_messages,
            app.stats.expired_messages,
            app.stats.waiting_messages,
            human::bytes(app.stats.queued_bytes),
            app.stats.refused_messages
        ),
    );
    fields.add(
        "received",
        format!(
            "{} ({})",
            app.stats.received_messages,
            human::bytes(app.stats.received_bytes)
        ),
    );
    fields.add(
        "attached",
        format!(
            "{} senders, {} receivers",
            app.stats.senders, app.stats.receivers
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_application_without_a_path_is_on_none() {
        let told = |last: Option<&str>| {
            let app = serde_json::json!({
                "name": "A", "class": "datagram", "peer": "b", "assigned_by": "unassigned",
                "last_path": last,
                "listeners": [],
            });
            text(&serde_json::from_value(app).unwrap(), Style::of_stdout())
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
