//! Samples paths and applications for the history, and answers requests for it.

use std::time::{Duration, Instant as Stopwatch, UNIX_EPOCH};

use keiro_control::{
    config::{Class, Config},
    protocol::{
        AppHistory, AppHistoryRow, ErrorCode, ErrorResponse, HistoryKind, PathHistory,
        PathHistoryRow, Response, Timestamp,
    },
};
use keiro_core::{self as core, PathState};
use keiro_store::{
    QueryError,
    history::{AppSample, PathSample, Row, SeriesKey},
};

use crate::{
    data::{command::Snapshot, measure::DelayQuantiles},
    error_response::not_found,
    gateway::Gateway,
    history::TimeRange,
    workload::{MEASURED_MIN, body_bytes},
};

/// How long a request may wait for the disk. Ours: the control thread does nothing else meanwhile;
/// moves and recovery are the data thread's.
const QUERY_TIME: Duration = Duration::from_millis(500);
/// Rows of one answer. Ours: a month of minutes, some 10 MB of JSON.
const ROWS_MAX: usize = 43_200;

impl Gateway {
    /// Takes over what the history's thread has reported.
    pub(crate) fn on_history(&mut self) {
        while let Some(update) = self.history.poll() {
            if let Some(past_workloads) = self.history.on_update(update) {
                self.planning.needs_replan |= !past_workloads.is_empty();
                self.planning.steering.set_past_workloads(past_workloads);
            }
        }
    }

    /// Adds the present second to the present minute, and records that when the minute or the
    /// interval is over.
    pub(crate) fn record_history(&mut self, snapshot: &Snapshot) {
        self.sample_paths(snapshot);
        let is_over = self.history.is_minute_over();
        if is_over || self.history.is_interval_over() {
            self.record_minute(snapshot);
        }
        if is_over {
            let sent = self.sent(snapshot).collect();
            self.history.begin_minute(sent);
        }
    }

    /// Records what there is of the present minute.
    pub(crate) fn record_minute(&mut self, snapshot: &Snapshot) {
        let apps = self.apps_of_minute(snapshot);
        self.history.record(apps);
    }

    /// Answers `history`.
    ///
    /// # Errors
    /// There is no such path or application, or the disk does not answer.
    pub(crate) fn history_of(
        &self,
        kind: HistoryKind,
        name: &str,
        past_seconds: u64,
    ) -> Result<Response, ErrorResponse> {
        let range = self.history.time_range(past_seconds);
        match kind {
            HistoryKind::Path => self.path_history(name, &range).map(Response::PathHistory),
            HistoryKind::App => self.app_history(name, &range).map(Response::AppHistory),
        }
    }

    fn path_history(&self, name: &str, range: &TimeRange) -> Result<PathHistory, ErrorResponse> {
        if self.config.path_named(name).is_none() {
            return Err(not_found("path", name));
        }
        let recorder = self.history.recorder()?;
        let deadline = Stopwatch::now() + QUERY_TIME;
        let mut rows = Vec::new();
        for peer in &self.config.peers {
            let key = SeriesKey {
                name: name.to_owned(),
                peer: peer.name.to_string(),
            };
            let left = deadline.saturating_duration_since(Stopwatch::now());
            let seconds = range.from..range.to;
            let found = recorder.path(key, range.resolution, seconds, left);
            let of_peer = found.map_err(|error| unavailable(&error))?;
            if rows.len() + of_peer.len() > ROWS_MAX {
                return Err(ErrorResponse::new(
                    ErrorCode::Unavailable,
                    format!("that is more than {ROWS_MAX} rows"),
                    "ask for a shorter time",
                ));
            }
            rows.extend(of_peer.iter().map(|row| path_row(peer.name.as_str(), row)));
        }
        Ok(PathHistory {
            name: name.to_owned(),
            row_seconds: range.row_seconds(),
            rows,
        })
    }

    fn app_history(&self, name: &str, range: &TimeRange) -> Result<AppHistory, ErrorResponse> {
        let index = self.config.app_named(name);
        let index = index.ok_or_else(|| self.no_application(name))?;
        let peer = self.config[self.config[index].peer].name.to_string();
        let key = SeriesKey {
            name: name.to_owned(),
            peer: peer.clone(),
        };
        let recorder = self.history.recorder()?;
        let found = recorder.app(key, range.resolution, range.from..range.to, QUERY_TIME);
        let rows = found.map_err(|error| unavailable(&error))?;
        Ok(AppHistory {
            name: name.to_owned(),
            peer,
            row_seconds: range.row_seconds(),
            rows: rows.iter().map(app_row).collect(),
        })
    }

    fn sample_paths(&mut self, snapshot: &Snapshot) {
        for session in snapshot.sessions.values() {
            let Some(peer) = self.running_config.peer_name(session.peer) else {
                continue;
            };
            for path in &session.paths {
                let name = self.running_config.path_ids().name(path.id);
                if let Some(name) = name.filter(|_| path.state == PathState::Up) {
                    let key = SeriesKey {
                        name: name.to_owned(),
                        peer: peer.to_owned(),
                    };
                    self.history.sample_path(key, path);
                }
            }
        }
    }

    /// What every application has sent so far, by name.
    fn sent<'a>(&'a self, snapshot: &'a Snapshot) -> impl Iterator<Item = (String, u64)> + 'a {
        live_apps(snapshot).filter_map(move |(peer, app)| {
            let name = self.running_config.app_name(peer, app.id)?;
            Some((name.to_owned(), app.stats.sent_messages))
        })
    }

    fn apps_of_minute(&self, snapshot: &Snapshot) -> Vec<(SeriesKey, AppSample)> {
        let of = |(peer, app): (core::PeerId, &core::AppSnapshot)| {
            let name = self.running_config.app_name(peer, app.id)?;
            let peer = self.running_config.peer_name(peer)?;
            let class = class_of(&self.config, name)?;
            let before = self.history.sent_before(name);
            let sent = app.stats.sent_messages;
            // An application that was removed and added again is counted from 0.
            let count = sent.checked_sub(before).unwrap_or(sent);
            let figures = snapshot.apps.get(&app.id);
            let delay = figures.and_then(|figures| figures.delay.recent.as_ref());
            let key = SeriesKey {
                name: name.to_owned(),
                peer: peer.to_owned(),
            };
            (count > 0).then(|| (key, app_sample(class, count, app, delay)))
        };
        live_apps(snapshot).filter_map(of).collect()
    }
}

fn live_apps(snapshot: &Snapshot) -> impl Iterator<Item = (core::PeerId, &core::AppSnapshot)> {
    snapshot
        .sessions
        .values()
        .flat_map(|session| session.apps.iter().map(|app| (session.peer, app)))
}

fn class_of(config: &Config, app: &str) -> Option<Class> {
    config.app_named(app).map(|index| config[index].class)
}

fn app_sample(
    class: Class,
    count: u64,
    app: &core::AppSnapshot,
    delay: Option<&DelayQuantiles>,
) -> AppSample {
    // What is not planned with is not remembered either.
    let seen = app.workload.filter(|seen| seen.count >= MEASURED_MIN);
    AppSample {
        count,
        length_mean_bytes: seen.map(|seen| body_bytes(class, &seen).max(0.0)),
        length_spread_bytes: seen.map(|seen| seen.length_variation * seen.length_bytes),
        interval_mean_seconds: seen.map(|seen| seen.interval.as_secs_f64()),
        interval_spread_seconds: seen
            .map(|seen| seen.interval_variation * seen.interval.as_secs_f64()),
        delay_mean_seconds: delay.map(|delay| delay.mean_seconds),
        delay_p50_seconds: delay.map(|delay| delay.p50_seconds),
        delay_p95_seconds: delay.map(|delay| delay.p95_seconds),
        delay_p99_seconds: delay.map(|delay| delay.p99_seconds),
    }
}

fn path_row(peer: &str, row: &Row<PathSample>) -> PathHistoryRow {
    PathHistoryRow {
        at: time_of(row.at_unix_seconds),
        peer: peer.to_owned(),
        capacity_bits_per_second: row.sample.capacity_bits_per_second,
        available_bits_per_second: row.sample.available_bits_per_second,
        base_delay_seconds: row.sample.base_delay_seconds,
        jitter_seconds: row.sample.jitter_seconds,
        loss_ratio: row.sample.loss_ratio,
    }
}

fn app_row(row: &Row<AppSample>) -> AppHistoryRow {
    AppHistoryRow {
        at: time_of(row.at_unix_seconds),
        count: row.sample.count,
        length_mean_bytes: row.sample.length_mean_bytes,
        length_spread_bytes: row.sample.length_spread_bytes,
        interval_mean_seconds: row.sample.interval_mean_seconds,
        interval_spread_seconds: row.sample.interval_spread_seconds,
        delay_mean_seconds: row.sample.delay_mean_seconds,
        delay_p50_seconds: row.sample.delay_p50_seconds,
        delay_p95_seconds: row.sample.delay_p95_seconds,
        delay_p99_seconds: row.sample.delay_p99_seconds,
    }
}

fn unavailable(error: &QueryError) -> ErrorResponse {
    let hint = "`keiro status` says how the history is";
    ErrorResponse::new(ErrorCode::Unavailable, error.to_string(), hint)
}

fn time_of(unix_seconds: u64) -> Timestamp {
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(unix_seconds));
    Timestamp(time.unwrap_or(UNIX_EPOCH))
}
