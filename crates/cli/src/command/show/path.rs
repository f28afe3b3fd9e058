//! `keiro show path`.

use keiro_control::{
    config::CostPerGb,
    protocol::{AggregationSnapshot, PathRole, PathSnapshot, PathState},
};
use keiro_stats::{Kind, PathStats, Stat, StatSet};

use super::{FieldList, Health, cell, known, listed, mark, seconds, shared_line_text, word};
use crate::output::{
    Style, human,
    table::{Cell, Table},
};

/// Figures in the table of all paths; `keiro show path NAME` has every one.
const PATH_COLUMNS: [&str; 7] = [
    "srtt_seconds",
    "jitter_seconds",
    "loss_ratio",
    "pacing_rate_bits_per_second",
    "available_bits_per_second",
    "sent_bytes",
    "received_bytes",
];

pub(super) fn table(paths: &[PathSnapshot], style: Style) -> String {
    let figures = PATH_COLUMNS.map(stat_of::<PathStats>);
    let mut headers = vec!["path".to_owned(), "peer".to_owned(), "state".to_owned()];
    headers.extend(figures.map(|(_, stat)| format!("{}>", stat.label())));
    headers.extend(["capacity>".to_owned(), "mtu>".to_owned()]);
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    let mut table = Table::new(&headers);
    for path in paths {
        let mut row = vec![
            Cell::from(path.name.as_str()),
            Cell::from(path.peer.as_str()),
            cell(style, &word(&path.state), health(path.state)),
        ];
        let is_down = path.state == PathState::Down;
        row.extend(figures.map(|(index, stat)| {
            let value = path.stats.value(index);
            let value = value.filter(|_| !(is_down && is_of_use(stat)));
            Cell::from(known(value, |value| human::figure(stat.unit, value)))
        }));
        let capacity = path.capacity.filter(|_| !is_down);
        row.push(Cell::from(known(capacity, |c| human::rate(c.rate))));
        row.push(Cell::from(path.stats.mtu_bytes.to_string()));
        table.row(row);
    }
    listed(&table, "no paths lead to a peer")
}

/// A gauge that is measured or decided while the path is in use: when it is down, the value is the
/// last one.
fn is_of_use(stat: &Stat) -> bool {
    let of_any_time = [
        "configured_rate_bits_per_second",
        "mtu_bytes",
        "in_flight_bytes",
        "queued_bytes",
    ];
    stat.kind == Kind::Gauge && !of_any_time.contains(&stat.name)
}

/// Every figure of the path; one that is no longer measured says so.
fn add_figures(fields: &mut FieldList, path: &PathSnapshot) {
    let is_down = path.state == PathState::Down;
    for (stat, value) in path.stats.values() {
        let last = match value.is_some() && is_down && is_of_use(stat) {
            true => "last ",
            false => "",
        };
        let value = known(value, |value| human::figure(stat.unit, value));
        fields.add(&stat.label(), format!("{last}{value}"));
    }
}

/// Where a figure of this name is declared.
///
/// # Panics
/// If none has it: names are constants of this module.
fn stat_of<S: StatSet>(name: &str) -> (usize, &'static Stat) {
    let mut stats = S::STATS.iter().enumerate();
    stats
        .find(|(_, stat)| stat.name == name)
        .unwrap_or_else(|| panic!("no figure `{name}`"))
}

pub(super) fn text(path: &PathSnapshot, style: Style) -> String {
    let mut fields = FieldList::new(format!(
        "path {} to {}",
        style.strong(&path.name),
        path.peer
    ));
    fields.add(
        "state",
        format!(
            "{} for {}: {}",
            mark(style, &word(&path.state), health(path.state)),
            seconds(path.state_seconds),
            path.why
        ),
    );
    if let Some(diagnosis) = &path.diagnosis {
        fields.add("diagnosis", style.bad(diagnosis));
    }
    if let Some(left) = path.trusted_in_seconds {
        let left = seconds(left);
        fields.add(
            "hold-down",
            format!("for {left} if it stays up; until then only applications that need it use it"),
        );
    }
    fields.add(
        "addresses",
        format!(
            "{} to {}",
            path.local,
            path.remote.as_deref().unwrap_or("not known yet")
        ),
    );
    if let Some(interface) = &path.interface {
        fields.add("interface", interface.clone());
    }
    if let Some(problem) = &path.problem {
        fields.add("problem", problem.clone());
    }
    fields.add(
        "delay",
        known(path.delay_seconds, |delay| {
            let configured = path.configured_delay_seconds;
            let origin = origin(path.delay_configured, configured, delay);
            format!("{} one way, {origin}", seconds(delay))
        }),
    );
    fields.add(
        "capacity",
        known(path.capacity, |measured| {
            format!(
                "{} ({} to {}), measured {} ago",
                human::rate(measured.rate),
                human::rate(measured.low),
                human::rate(measured.high),
                human::duration(measured.age)
            )
        }),
    );
    if let Some(state) = &path.rate_state {
        let pace = human::rate(path.stats.pacing_rate);
        let found = match path.rate_assumed {
            true => format!("{pace} or more, since nothing has needed more yet"),
            false => format!("{pace}, found by the gateway: {state}"),
        };
        fields.add("rate", found);
    }
    add_terms(&mut fields, path, style);
    if let Some(line) = &path.shared_line {
        fields.add("other gateways", shared_line_text(line));
    }
    add_figures(&mut fields, path);
    if let Some(socket) = &path.socket {
        fields.add_stats("socket ", &socket.0);
    }
    match &path.aggregation {
        Some(aggregation) => add_aggregation(&mut fields, aggregation),
        None => fields.add("aggregates", "off".to_owned()),
    }
    fields.text()
}

/// Role and cost, and what is left of the budget of the month.
fn add_terms(fields: &mut FieldList, path: &PathSnapshot, style: Style) {
    if let Some(terms) = &path.path_terms {
        let role = match terms.role {
            PathRole::Backup => "backup: for what no primary path serves in time",
            PathRole::Primary | PathRole::Unknown => "primary",
        };
        fields.add("role", role.to_owned());
        if let Some(cost) = CostPerGb::new(terms.cost_per_gb).filter(|cost| *cost > CostPerGb::ZERO)
        {
            fields.add("cost", format!("{cost} per GB"));
        }
        if terms.budget_spent {
            let text = "used up: only keepalives, and essential applications without another path";
            fields.add("budget", style.bad(text));
        }
    }
    if let Some(budget) = &path.budget {
        fields.add("this month", human::budget(budget));
    }
}

/// Origin of the delay that the planner uses.
fn origin(is_configured: bool, configured: Option<f64>, delay: f64) -> String {
    match (is_configured, configured.map(seconds)) {
        (false, _) => "measured".to_owned(),
        (true, Some(configured)) if configured != seconds(delay) => {
            format!("{configured} configured, adjusted by the measured change since then")
        }
        (true, _) => "configured".to_owned(),
    }
}

/// How small packets are aggregated, and the outcome.
fn add_aggregation(fields: &mut FieldList, aggregation: &AggregationSnapshot) {
    let stats = &aggregation.stats;
    fields.add(
        "aggregates",
        match stats.paused {
            true => "paused, small packets are sent singly".to_owned(),
            false => format!(
                "{}, at most {} every {}, copies {}{}",
                aggregation.mode,
                human::bytes(stats.size_bytes),
                human::duration(stats.interval),
                stats.copies,
                aggregation.fec.map_or_else(String::new, |fec| format!(
                    " as parity, {} packets for {}",
                    fec.parity_packets, fec.group_aggregates
                ))
            ),
        },
    );
    // An older gateway reports neither.
    if !aggregation.controller.is_empty() {
        let (controller, spread) = (&aggregation.controller, &aggregation.spread);
        fields.add("", format!("controller {controller}, spread {spread}"));
    }
    if let Some(why) = &aggregation.why {
        fields.add("", why.clone());
    }
    if let Some(change) = &aggregation.last_change {
        let ago = seconds(change.age_seconds);
        fields.add("", format!("last changed {ago} ago: {}", change.why));
    }
    for (stat, value) in stats
        .values()
        .filter(|(stat, _)| stat.kind == Kind::Counter)
    {
        let value = known(value, |value| human::figure(stat.unit, value));
        fields.add(&stat.label(), value);
    }
    if let (Some(bandwidth), Some(source)) = (stats.bandwidth, &aggregation.bandwidth_source) {
        fields.add(
            "",
            format!("bandwidth {} by {source}", human::rate(bandwidth)),
        );
    }
}

pub(super) fn health(state: PathState) -> Health {
    match state {
        PathState::Up => Health::Good,
        PathState::Down => Health::Bad,
        PathState::Validating | PathState::Unknown => Health::Neither,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_that_has_changed_is_not_called_configured() {
        let origin_of = |configured, delay| origin(true, configured, delay);
        assert_eq!(origin_of(Some(0.02), 0.02), "configured");
        // Less than is shown.
        assert_eq!(origin_of(Some(0.02), 0.020_000_4), "configured");
        assert_eq!(
            origin_of(Some(0.02), 0.085),
            "20 ms configured, adjusted by the measured change since then"
        );
        // An older gateway does not say.
        assert_eq!(origin_of(None, 0.085), "configured");
        assert_eq!(origin(false, None, 0.085), "measured");
    }

    #[test]
    fn aggregation_is_shown_with_its_counters() {
        let snapshot = serde_json::json!({
            "mode": "eager", "size_bytes": 2048, "interval_seconds": 0.001, "copies": 2,
            "controller": "adaptive", "spread": "500us", "why": "nothing calls for a change",
            "sent_aggregates": 1000, "lost_aggregates": 3, "sent_copies": 2000, "lost_copies": 41,
            "peer_socket_dropped_packets": 5, "peer_system_dropped_packets": 6,
            "bandwidth_bits_per_second": 50_000_000, "bandwidth_source": "copies",
        });
        let mut fields = FieldList::new("path p".to_owned());
        add_aggregation(&mut fields, &serde_json::from_value(snapshot).unwrap());
        let text = fields.text();
        for what in [
            "eager, at most 2.05 kB every 1 ms, copies 2",
            "controller adaptive, spread 500us",
            "nothing calls for a change",
            "sent aggregates              1000\n",
            "lost aggregates              3\n",
            "lost copies                  41\n",
            "peer socket dropped packets  5\n",
            "peer system dropped packets  6\n",
            "bandwidth 50 Mbit/s by copies",
        ] {
            assert!(text.contains(what), "{what}: {text}");
        }
    }

    #[test]
    fn a_path_that_is_down_has_no_present_measurements() {
        let path = |state: &str| -> PathSnapshot {
            let path = serde_json::json!({
                "name": "p", "peer": "b", "state": state, "why": "", "state_seconds": 1.0,
                "local": "192.0.2.1:7600", "delay_configured": false, "mtu_bytes": 1428,
                "configured_rate_bits_per_second": 10_000_000, "srtt_seconds": 0.004,
                "pacing_rate_bits_per_second": 9_000_000, "sent_rate_bits_per_second": 8_000_000,
                "sent_bytes": 7,
                "capacity": {"rate_bits_per_second": 9_500_000, "low_bits_per_second": 9_400_000,
                             "high_bits_per_second": 9_600_000, "age_seconds": 1.0},
            });
            serde_json::from_value(path).unwrap()
        };
        let shown = |state: &str| {
            let path = path(state);
            let text = text(&path, Style::of_stdout());
            let text: Vec<&str> = text.split_whitespace().collect();
            (text.join(" "), table(&[path], Style::of_stdout()))
        };
        let (up, row) = shown("up");
        assert!(up.contains("srtt 4 ms") && !up.contains("last"), "{up}");
        assert!(row.contains("4 ms") && row.contains("9 Mbit/s"), "{row}");
        let (down, row) = shown("down");
        for part in [
            "srtt last 4 ms",
            "pacing rate last 9 Mbit/s",
            "sent rate last 8 Mbit/s",
            "configured rate 10 Mbit/s",
            "sent 7 B",
        ] {
            assert!(down.contains(part), "{part}: {down}");
        }
        assert!(!row.contains("4 ms") && !row.contains("bit/s"), "{row}");
        assert!(row.contains("7 B") && row.contains("1428"), "{row}");
    }

    #[test]
    fn aggregation_that_is_off_is_shown_as_off() {
        let snapshot = serde_json::json!({
            "name": "p", "peer": "b", "state": "up", "why": "", "state_seconds": 1.0,
            "local": "192.0.2.1:7600", "delay_configured": false,
        });
        let text = text(
            &serde_json::from_value(snapshot).unwrap(),
            Style::of_stdout(),
        );
        let mut lines = text.lines().map(|line| line.split_whitespace().collect());
        assert!(
            lines.any(|line: Vec<_>| line == ["aggregates", "off"]),
            "{text}"
        );
    }

    #[test]
    fn every_figure_of_a_path_is_shown() {
        let path = serde_json::json!({
            "name": "p", "peer": "b", "state": "up", "why": "", "state_seconds": 1.0,
            "local": "192.0.2.1:7600", "delay_configured": false,
            "pacing_rate_bits_per_second": 9_000_000, "configured_rate_bits_per_second": 10_000_000,
            "delay_variation_seconds": 0.003, "spurious_lost_packets": 11, "probe_bytes": 1200,
            "received_ce_packets": 13, "acked_ce_packets": 14, "mtu_bytes": 1428,
            "socket": { "too_large_batches": 15 },
        });
        let path: PathSnapshot = serde_json::from_value(path).unwrap();
        let text = text(&path, Style::of_stdout());
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        for line in [
            "pacing rate 9 Mbit/s",
            "configured rate 10 Mbit/s",
            "delay variation 3 ms",
            "spurious lost packets 11",
            "probe 1200 B",
            "received ce packets 13",
            "acked ce packets 14",
            "mtu 1428 B",
            "socket too large batches 15",
        ] {
            assert!(lines.iter().any(|l| l == line), "{line}: {text}");
        }
        for stat in PathStats::STATS {
            assert!(text.contains(&stat.label()), "{}: {text}", stat.name);
        }
        let table = table(&[path], Style::of_stdout());
        assert!(table.contains("9 Mbit/s"), "{table}");
    }
}
