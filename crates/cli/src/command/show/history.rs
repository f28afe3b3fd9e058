//! `keiro show path NAME --history`, `show app NAME --history`, and the history's line of `keiro
//! status`.

use std::time::Duration;

use keiro_control::protocol::{
    AppHistory, HistoryKind, HistorySnapshot, HistoryState, PathHistory, Request, Response,
    Timestamp,
};
use keiro_units::Bandwidth;
use serde::Serialize;
use serde_json::Value;

use super::{Health, known, listed, mark, seconds, word};
use crate::{
    args,
    command::query::{ask, show, unexpected},
    failure::Failure,
    output::{
        self, Style, human,
        table::{Cell, Table},
    },
};

/// Asks for the rows of the last `past`, and shows them.
///
/// # Errors
/// As other questions.
pub(super) fn show_history(
    args: &args::Show,
    measured: &args::ShowMeasured,
    past: Duration,
) -> Result<(), Failure> {
    let one = &measured.one;
    let kind = match args {
        args::Show::App(_) => HistoryKind::App,
        _ => HistoryKind::Path,
    };
    let request = Request::History {
        kind,
        // Clap asks for it where there is `--history`.
        name: one.name.clone().unwrap_or_default(),
        past_seconds: past.as_secs(),
    };
    match ask(&one.query.socket, &request)? {
        Response::PathHistory(history) if measured.csv => csv(&history.rows, &PATH_COLUMNS),
        Response::AppHistory(history) if measured.csv => csv(&history.rows, &APP_COLUMNS),
        Response::PathHistory(history) => show(&one.query, &history, path_table),
        Response::AppHistory(history) => show(&one.query, &history, app_table),
        other => Err(unexpected(&other)),
    }
}

/// The fields of a row, in the order of their columns.
const PATH_COLUMNS: [&str; 7] = [
    "at",
    "peer",
    "capacity_bits_per_second",
    "available_bits_per_second",
    "base_delay_seconds",
    "jitter_seconds",
    "loss_ratio",
];
const APP_COLUMNS: [&str; 10] = [
    "at",
    "count",
    "length_mean_bytes",
    "length_spread_bytes",
    "interval_mean_seconds",
    "interval_spread_seconds",
    "delay_mean_seconds",
    "delay_p50_seconds",
    "delay_p95_seconds",
    "delay_p99_seconds",
];

/// Prints rows as CSV (RFC 4180) with a header; what is not known is empty.
fn csv<R: Serialize>(rows: &[R], columns: &[&str]) -> Result<(), Failure> {
    let text = csv_text(rows, columns)?;
    output::allow_closed_reader(output::text(text))
}

fn csv_text<R: Serialize>(rows: &[R], columns: &[&str]) -> Result<String, Failure> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(columns)?;
    for row in rows {
        let row = serde_json::to_value(row)?;
        let cells = columns.iter().map(|column| match &row[column] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            number => number.to_string(),
        });
        writer.write_record(cells)?;
    }
    Ok(String::from_utf8_lossy(&writer.into_inner()?).into_owned())
}

/// The line of `keiro status`.
pub(super) fn state_text(history: &HistorySnapshot, style: Style) -> String {
    let health = match history.state {
        HistoryState::Ok => Health::Good,
        HistoryState::Failed => Health::Bad,
        HistoryState::Opening | HistoryState::Off | HistoryState::Unknown => Health::Neither,
    };
    let state = mark(style, &word(&history.state), health);
    match &history.why {
        Some(why) => format!("{state}: {why}"),
        None => state,
    }
}

fn path_table(history: &PathHistory) -> String {
    let mut table = Table::new(&[
        "at",
        "peer",
        "capacity>",
        "available>",
        "delay>",
        "jitter>",
        "loss>",
    ]);
    for row in &history.rows {
        table.row([
            Cell::from(at(row.at)),
            Cell::from(row.peer.as_str()),
            Cell::from(known(row.capacity_bits_per_second, rate)),
            Cell::from(known(row.available_bits_per_second, rate)),
            Cell::from(known(row.base_delay_seconds, seconds)),
            Cell::from(known(row.jitter_seconds, seconds)),
            Cell::from(known(row.loss_ratio, human::percent)),
        ]);
    }
    listed(&table, "nothing was recorded of the path in this time")
}

fn app_table(history: &AppHistory) -> String {
    let mut table = Table::new(&[
        "at",
        "sent>",
        "length>",
        "±>",
        "interval>",
        "±>",
        "mean delay>",
        "p50>",
        "p95>",
        "p99>",
    ]);
    let bytes = |bytes: f64| human::bytes(bytes.round() as u64);
    for row in &history.rows {
        table.row([
            Cell::from(at(row.at)),
            Cell::from(row.count.to_string()),
            Cell::from(known(row.length_mean_bytes, bytes)),
            Cell::from(known(row.length_spread_bytes, bytes)),
            Cell::from(known(row.interval_mean_seconds, seconds)),
            Cell::from(known(row.interval_spread_seconds, seconds)),
            Cell::from(known(row.delay_mean_seconds, seconds)),
            Cell::from(known(row.delay_p50_seconds, seconds)),
            Cell::from(known(row.delay_p95_seconds, seconds)),
            Cell::from(known(row.delay_p99_seconds, seconds)),
        ]);
    }
    listed(
        &table,
        "nothing was recorded of the application in this time",
    )
}

/// To the minute, in UTC: `2026-01-31 12:00Z`.
fn at(time: Timestamp) -> String {
    let text = time.to_string();
    let minute = text.get(..16).unwrap_or(&text);
    format!("{}Z", minute.replace('T', " "))
}

fn rate(bits_per_second: f64) -> String {
    human::rate(Bandwidth::from_bits_per_second(
        bits_per_second.round() as u64
    ))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use keiro_control::protocol::{AppHistoryRow, PathHistoryRow};

    use super::*;

    const AT: Timestamp = Timestamp(UNIX_EPOCH);

    #[test]
    fn a_row_shows_what_was_measured_and_leaves_open_what_was_not() {
        let mut history = PathHistory {
            name: "fibre".into(),
            row_seconds: 60,
            rows: vec![PathHistoryRow {
                at: AT,
                peer: "osaka".into(),
                capacity_bits_per_second: Some(99.8e6),
                available_bits_per_second: None,
                base_delay_seconds: Some(0.0042),
                jitter_seconds: None,
                loss_ratio: Some(0.01),
            }],
        };
        let text = path_table(&history);
        for part in ["1970-01-01 00:00Z", "osaka", "99.8 Mbit/s", "4.2 ms", "1 %"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        history.rows.clear();
        assert!(path_table(&history).starts_with("nothing was recorded"));
    }

    #[test]
    fn what_an_application_sent_is_shown_with_its_spread() {
        let history = AppHistory {
            name: "scada".into(),
            peer: "osaka".into(),
            row_seconds: 3600,
            rows: vec![AppHistoryRow {
                at: AT,
                count: 3600,
                length_mean_bytes: Some(1200.4),
                length_spread_bytes: Some(100.0),
                interval_mean_seconds: Some(1.0),
                interval_spread_seconds: Some(0.1),
                delay_mean_seconds: None,
                delay_p50_seconds: None,
                delay_p95_seconds: None,
                delay_p99_seconds: Some(0.02),
            }],
        };
        let text = app_table(&history);
        for part in ["3600", "1.2 kB", "100 B", "1 s", "100 ms", "20 ms"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn csv_has_every_field_of_a_row_and_nothing_where_it_is_not_known() {
        let path = PathHistoryRow {
            at: AT,
            peer: "a,b".into(),
            capacity_bits_per_second: Some(1.0),
            available_bits_per_second: Some(2.0),
            base_delay_seconds: Some(0.5),
            jitter_seconds: Some(0.25),
            loss_ratio: Some(0.0),
        };
        let fields = serde_json::to_value(&path).unwrap();
        let fields = fields.as_object().unwrap().keys().map(String::as_str);
        let columns: std::collections::BTreeSet<&str> = PATH_COLUMNS.into();
        assert_eq!(fields.collect::<std::collections::BTreeSet<_>>(), columns);
        let unknown = PathHistoryRow {
            jitter_seconds: None,
            ..path.clone()
        };
        let text = csv_text(&[path, unknown], &PATH_COLUMNS).unwrap();
        assert_eq!(
            text.lines().skip(1).collect::<Vec<_>>(),
            [
                "1970-01-01T00:00:00.000000Z,\"a,b\",1.0,2.0,0.5,0.25,0.0",
                "1970-01-01T00:00:00.000000Z,\"a,b\",1.0,2.0,0.5,,0.0"
            ]
        );
        let app = AppHistoryRow {
            at: AT,
            count: 1,
            length_mean_bytes: Some(1.0),
            length_spread_bytes: Some(1.0),
            interval_mean_seconds: Some(1.0),
            interval_spread_seconds: Some(1.0),
            delay_mean_seconds: Some(1.0),
            delay_p50_seconds: Some(1.0),
            delay_p95_seconds: Some(1.0),
            delay_p99_seconds: Some(1.0),
        };
        let fields = serde_json::to_value(&app).unwrap();
        assert_eq!(fields.as_object().unwrap().len(), APP_COLUMNS.len());
        assert!(APP_COLUMNS.iter().all(|column| !fields[column].is_null()));
    }

    #[test]
    fn a_history_that_fails_says_why() {
        let history = HistorySnapshot {
            state: HistoryState::Failed,
            why: Some("no space".into()),
        };
        assert_eq!(state_text(&history, Style::Plain), "failed: no space");
        let older = HistorySnapshot::default();
        assert_eq!(state_text(&older, Style::Plain), "unknown");
    }
}
