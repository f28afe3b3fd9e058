//! `keiro show path NAME --history`, `show app NAME --history`, and the history's line of `keiro
//! status`.

use std::time::Duration;

use keiro_control::protocol::{
    AppHistory, HistoryKind, HistorySnapshot, HistoryState, PathHistory, Request, Response,
    Timestamp,
};
use keiro_units::Bandwidth;

use super::{Health, known, listed, mark, seconds, word};
use crate::{
    args,
    command::query::{ask, show, unexpected},
    failure::Failure,
    output::{
        Style, human,
        table::{Cell, Table},
    },
};

/// Asks for the rows of the last `past`, and shows them.
///
/// # Errors
/// As other questions.
pub(super) fn show_history(
    args: &args::Show,
    one: &args::ShowOne,
    past: Duration,
) -> Result<(), Failure> {
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
        Response::PathHistory(history) => show(&one.query, &history, path_table),
        Response::AppHistory(history) => show(&one.query, &history, app_table),
        other => Err(unexpected(&other)),
    }
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
