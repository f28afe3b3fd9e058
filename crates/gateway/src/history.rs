//! What was measured is kept over a restart: every minute goes into the history of `keiro-store`,
//! what applications sent before the restart is planned with until it is measured anew, and
//! `keiro show --history` is answered.
//!
//! The disk has a thread of its own; what goes wrong there is told and otherwise changes nothing.
//! Bounds, files and the making of hours are `keiro-store`'s.

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread,
    time::{Duration, Instant as Stopwatch, SystemTime, UNIX_EPOCH},
};

use keiro_control::{
    config::{self, Class, Config},
    protocol::{
        AppHistory, AppHistoryRow, ErrorCode, ErrorResponse, HistoryKind, HistorySnapshot,
        HistoryState, PathHistory, PathHistoryRow, Response, Timestamp,
    },
};
use keiro_core::{self as core, PathState};
use keiro_linux::privilege;
use keiro_planner::queueing::Spread;
use keiro_store::{
    QueryError, Recorder, RecorderCounts, RecorderUpdate,
    history::{AppSample, Batch, Bounds, Latest, PathSample, Resolution, Row, SeriesKey},
};
use keiro_units::{ByteCount, Probability};

use crate::{
    daemon::{Gateway, Trigger},
    data::{command::Snapshot, measure::DelayQuantiles},
    planning::Workload,
    replan::{INTERVAL_MIN, MEASURED_MIN, body_bytes},
    requests::not_found,
    start::Privileges,
};

/// The gateway's history: what is being measured in the present minute, and how the file is.
pub(crate) struct HistoryRecorder {
    /// `None`: none is wanted, or there is no thread for it.
    recorder: Option<Recorder>,
    bounds: Bounds,
    /// How often the present minute is recorded.
    interval: Duration,
    recorded_at: Stopwatch,
    minute: Minute,
    /// A minute of which the gateway before the restart has left rows: they stay.
    recorded_before_restart: Option<u64>,
    health: HistoryHealth,
}

/// What an application sent before the restart.
#[derive(Clone, Debug)]
pub(crate) struct PastWorkload {
    /// Where it sent it.
    peer: String,
    workload: Workload,
    /// From then on it is too old.
    until: Stopwatch,
}

/// What applications sent before the restart, by name.
#[derive(Default)]
pub(crate) struct PastWorkloads(BTreeMap<String, PastWorkload>);

/// What is measured in one minute.
#[derive(Default)]
struct Minute {
    /// Its beginning, in seconds since 1970.
    at_unix_seconds: u64,
    paths: BTreeMap<SeriesKey, PathMeans>,
    /// What applications had sent when it began, by name.
    sent: BTreeMap<String, u64>,
}

/// A path's samples of one minute.
#[derive(Clone, Copy, Debug, Default)]
struct PathMeans {
    capacity: Mean,
    available: Mean,
    base_delay: Option<f64>,
    jitter: Mean,
    loss: Mean,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    count: u32,
    sum: f64,
}

/// How the file is.
#[derive(Debug, Default)]
struct HistoryHealth {
    /// None is wanted.
    is_off: bool,
    /// It has been opened, or could not be: recording makes sense.
    is_open: bool,
    failed: Option<String>,
    /// The disk does not keep up.
    is_behind: bool,
    quarantined: Option<String>,
    left_out: usize,
}

const MINUTE: u64 = 60;
const HOUR: u64 = 3600;
/// What an application sent longer ago says nothing of what it sends. Ours: most have a daily
/// rhythm.
const PAST_WORKLOAD_MAX_AGE: Duration = Duration::from_secs(24 * HOUR);
/// A request may wait for the disk for this long. Ours: the control thread does nothing else
/// meanwhile; moves and recovery are the data thread's.
const QUERY_TIME: Duration = Duration::from_millis(500);
/// Rows of one answer. Ours: a month of minutes, some 10 MB of JSON.
const ROWS_MAX: usize = 43_200;
/// Remembered lengths and intervals beyond are damage.
const LENGTH_MAX: f64 = (1u64 << 40) as f64;
const INTERVAL_MAX: Duration = Duration::from_secs(24 * HOUR);

impl HistoryRecorder {
    /// Starts the thread, which opens the file and tells through `trigger`, unless none is wanted.
    /// No history is no reason not to start.
    pub(crate) fn start(
        config: &Config,
        interval: Duration,
        trigger: &Arc<Trigger>,
        privileges: Privileges,
    ) -> Self {
        let bounds = bounds(&config.history);
        let file = config.gateway.state_directory.join("history.db");
        let trigger = Arc::clone(trigger);
        let wake = Box::new(move || trigger.wake.wake());
        // A thread has the privileges of the one that starts it.
        let starter = || {
            if privileges == Privileges::Reduced
                && let Err(error) = privilege::reduce_thread(&[])
            {
                tracing::warn!(%error, "the history's thread keeps its privileges");
            }
            Recorder::start(file, bounds, wake)
        };
        let start = || {
            thread::scope(|scope| {
                let starter = thread::Builder::new().spawn_scoped(scope, starter)?;
                starter.join().unwrap_or_else(|_| {
                    Err(std::io::Error::other("the thread that starts it panicked"))
                })
            })
        };
        let mut health = HistoryHealth {
            is_off: !config.history.enabled,
            ..HistoryHealth::default()
        };
        let started = config.history.enabled.then(start).transpose();
        let recorder = started.unwrap_or_else(|error| {
            health.on_failed(&error.to_string());
            None
        });
        Self {
            recorder,
            bounds,
            interval,
            recorded_at: Stopwatch::now(),
            minute: Minute {
                at_unix_seconds: minute_of(unix_seconds()),
                ..Minute::default()
            },
            recorded_before_restart: None,
            health,
        }
    }

    /// For `status`.
    pub(crate) fn snapshot(&self) -> HistorySnapshot {
        self.health.snapshot()
    }

    /// What has become of the minutes; `None`: there is no history.
    pub(crate) fn counts(&self) -> Option<RecorderCounts> {
        self.recorder.as_ref().map(Recorder::counts)
    }
}

impl Gateway {
    /// Takes the history's news over.
    pub(crate) fn take_history_news(&mut self) {
        while let Some(update) = self.history.recorder.as_ref().and_then(Recorder::poll) {
            let health = &mut self.history.health;
            match update {
                RecorderUpdate::Opened(latest) => {
                    health.is_open = true;
                    let now = unix_seconds();
                    self.history.recorded_before_restart =
                        newest(&latest).filter(|at| *at == minute_of(now));
                    let past_workloads = PastWorkloads::of(&latest, now, Stopwatch::now());
                    self.replan |= !past_workloads.0.is_empty();
                    self.steering.past_workloads = past_workloads;
                }
                RecorderUpdate::Quarantined(kept) => health.on_quarantined(kept.to_string()),
                RecorderUpdate::Failed { reason } => health.on_failed(&reason),
                RecorderUpdate::Recovered => health.on_recovered(),
                RecorderUpdate::SeriesLeftOut(count) => health.on_left_out(count),
            }
        }
    }

    /// Takes the present second into the present minute, and has that recorded when it is over or
    /// the interval is.
    pub(crate) fn record_history(&mut self, snapshot: &Snapshot) {
        self.sample_paths(snapshot);
        let now = minute_of(unix_seconds());
        let is_over = now != self.history.minute.at_unix_seconds;
        if is_over || self.history.recorded_at.elapsed() >= self.history.interval {
            self.record_minute(snapshot);
        }
        if is_over {
            self.history.minute = Minute {
                at_unix_seconds: now,
                paths: BTreeMap::new(),
                sent: self.sent(snapshot).collect(),
            };
        }
    }

    /// Records what there is of the present minute.
    pub(crate) fn record_minute(&mut self, snapshot: &Snapshot) {
        self.history.recorded_at = Stopwatch::now();
        let history = &self.history;
        let at = history.minute.at_unix_seconds;
        if !history.health.is_open || history.recorded_before_restart == Some(at) {
            return;
        }
        let batch = Batch {
            paths: history.minute.paths(),
            apps: self.apps_of_minute(snapshot),
        };
        if let Some(recorder) = &self.history.recorder {
            let is_accepted = recorder.record(at, batch);
            self.history.health.on_recorded(is_accepted);
        }
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
        let minutes_for = self.history.bounds.minutes_for.as_secs();
        let span = TimeRange::of(past_seconds, minutes_for, unix_seconds());
        match kind {
            HistoryKind::Path => self.path_history(name, &span).map(Response::PathHistory),
            HistoryKind::App => self.app_history(name, &span).map(Response::AppHistory),
        }
    }

    fn path_history(&self, name: &str, span: &TimeRange) -> Result<PathHistory, ErrorResponse> {
        if self.config.path_named(name).is_none() {
            return Err(not_found("path", name));
        }
        let recorder = self.history.recorder()?;
        let deadline = Stopwatch::now() + QUERY_TIME;
        let mut rows = Vec::new();
        for peer in &self.config.peers {
            let subject = SeriesKey {
                name: name.to_owned(),
                peer: peer.name.to_string(),
            };
            let left = deadline.saturating_duration_since(Stopwatch::now());
            let range = span.from..span.to;
            let found = recorder.path(subject, span.resolution, range, left);
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
            row_seconds: span.row_seconds(),
            rows,
        })
    }

    fn app_history(&self, name: &str, span: &TimeRange) -> Result<AppHistory, ErrorResponse> {
        let index = self.config.app_named(name);
        let index = index.ok_or_else(|| not_found("application", name))?;
        let peer = self.config[self.config[index].peer].name.to_string();
        let subject = SeriesKey {
            name: name.to_owned(),
            peer: peer.clone(),
        };
        let recorder = self.history.recorder()?;
        let found = recorder.app(subject, span.resolution, span.from..span.to, QUERY_TIME);
        let rows = found.map_err(|error| unavailable(&error))?;
        Ok(AppHistory {
            name: name.to_owned(),
            peer,
            row_seconds: span.row_seconds(),
            rows: rows.iter().map(app_row).collect(),
        })
    }

    fn sample_paths(&mut self, snapshot: &Snapshot) {
        for session in snapshot.sessions.values() {
            let Some(peer) = self.active.peer_name(session.peer) else {
                continue;
            };
            for path in &session.paths {
                let name = self.active.path_name(session.peer, path.id);
                if let Some(name) = name.filter(|_| path.state == PathState::Up) {
                    let subject = SeriesKey {
                        name: name.to_owned(),
                        peer: peer.to_owned(),
                    };
                    let means = self.history.minute.paths.entry(subject).or_default();
                    means.add(path);
                }
            }
        }
    }

    /// What every application has sent so far, by name.
    fn sent<'a>(&'a self, snapshot: &'a Snapshot) -> impl Iterator<Item = (String, u64)> + 'a {
        live_apps(snapshot).filter_map(move |(peer, app)| {
            let name = self.active.app_name(peer, app.id)?;
            Some((name.to_owned(), app.sent))
        })
    }

    fn apps_of_minute(&self, snapshot: &Snapshot) -> Vec<(SeriesKey, AppSample)> {
        let of = |(peer, app): (core::PeerId, &core::AppSnapshot)| {
            let name = self.active.app_name(peer, app.id)?;
            let peer = self.active.peer_name(peer)?;
            let class = class_of(&self.config, name)?;
            let before = self.history.minute.sent.get(name).copied().unwrap_or(0);
            // An application that was recorded_before_restart out and put in again is counted anew.
            let count = app.sent.checked_sub(before).unwrap_or(app.sent);
            let figures = snapshot.apps.get(name);
            let delay = figures.and_then(|figures| figures.delay.recent.as_ref());
            let subject = SeriesKey {
                name: name.to_owned(),
                peer: peer.to_owned(),
            };
            (count > 0).then(|| (subject, app_sample(class, count, app, delay)))
        };
        live_apps(snapshot).filter_map(of).collect()
    }
}

impl HistoryRecorder {
    fn recorder(&self) -> Result<&Recorder, ErrorResponse> {
        self.recorder.as_ref().ok_or_else(|| {
            let (message, hint) = match self.health.is_off {
                true => (
                    "there is no history: [history] has enabled = false",
                    "remove that from the configuration, and restart the gateway",
                ),
                false => (
                    "there is no history, since its thread could not be started",
                    "`keiro status` says why",
                ),
            };
            ErrorResponse::new(ErrorCode::Unavailable, message, hint)
        })
    }
}

impl PastWorkloads {
    /// What `latest` says of applications, unless it is too old now.
    fn of(latest: &Latest, now_unix_seconds: u64, now: Stopwatch) -> Self {
        let remembered = |(subject, row): &(SeriesKey, Row<AppSample>)| {
            // Rows of the future are of a clock that was set back; how old they are, nobody knows.
            let age = now_unix_seconds.checked_sub(row.at_unix_seconds)?;
            let left = PAST_WORKLOAD_MAX_AGE.checked_sub(Duration::from_secs(age))?;
            let remembered = PastWorkload {
                peer: subject.peer.clone(),
                workload: workload_from(&row.sample)?,
                until: now + left,
            };
            Some((subject.name.clone(), row.at_unix_seconds, remembered))
        };
        let mut found: Vec<_> = latest.apps.iter().filter_map(remembered).collect();
        // Of an application that had another peer before, the newest.
        found.sort_by_key(|(_, at, _)| *at);
        Self(found.into_iter().map(|(name, _, r)| (name, r)).collect())
    }

    /// What an application sent to this peer before the restart; `None`: not known, or too long ago.
    pub(crate) fn workload(&self, app: &str, peer: &str) -> Option<Workload> {
        let remembered = self.0.get(app)?;
        let counts = remembered.peer == peer && Stopwatch::now() < remembered.until;
        counts.then_some(remembered.workload)
    }

    /// Forgets applications that are not among these.
    pub(crate) fn follow(&mut self, apps: &[String]) {
        self.0.retain(|app, _| apps.contains(app));
    }
}

impl Minute {
    fn paths(&self) -> Vec<(SeriesKey, PathSample)> {
        let sample = |(subject, means): (&SeriesKey, &PathMeans)| (subject.clone(), means.sample());
        self.paths.iter().map(sample).collect()
    }
}

impl PathMeans {
    fn add(&mut self, path: &core::PathSnapshot) {
        let rate = |rate: keiro_units::Bandwidth| rate.as_bits_per_second() as f64;
        self.capacity
            .add(path.capacity.map(|found| rate(found.capacity.rate)));
        self.available.add(path.available.map(rate));
        if let Some(round_trip) = path.base_rtt {
            let one_way = round_trip.as_secs_f64() / 2.0;
            self.base_delay = Some(self.base_delay.map_or(one_way, |least| least.min(one_way)));
        }
        self.jitter
            .add(path.jitter.map(|jitter| jitter.as_secs_f64()));
        self.loss.add(path.loss.map(Probability::get));
    }

    fn sample(&self) -> PathSample {
        PathSample {
            capacity_bits_per_second: self.capacity.get(),
            available_bits_per_second: self.available.get(),
            base_delay_seconds: self.base_delay,
            jitter_seconds: self.jitter.get(),
            loss_ratio: self.loss.get(),
        }
    }
}

impl Mean {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.count += 1;
            self.sum += value;
        }
    }

    fn get(self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

impl HistoryHealth {
    fn on_failed(&mut self, reason: &str) {
        // SQLite's reasons may have several lines; a log has one.
        let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
        tracing::warn!(reason, "what is measured is not kept; the gateway goes on");
        self.is_open = true;
        self.failed = Some(reason);
    }

    fn on_recovered(&mut self) {
        tracing::info!("what is measured is kept again");
        self.failed = None;
    }

    fn on_quarantined(&mut self, sentence: String) {
        tracing::warn!("{sentence}");
        self.quarantined = Some(sentence);
    }

    fn on_left_out(&mut self, count: usize) {
        match count {
            0 => tracing::info!("the history has room for all paths and applications again"),
            _ => tracing::warn!(
                count,
                "the history has no room for all paths and applications"
            ),
        }
        self.left_out = count;
    }

    /// A minute was handed over, or could not be.
    fn on_recorded(&mut self, is_accepted: bool) {
        if !is_accepted && !self.is_behind {
            tracing::warn!("the disk does not keep up: minutes are left out of the history");
        }
        self.is_behind = !is_accepted;
    }

    fn snapshot(&self) -> HistorySnapshot {
        let state = match (self.failed.is_some() || self.is_behind, self.is_open) {
            _ if self.is_off => HistoryState::Off,
            (true, _) => HistoryState::Failed,
            (false, true) => HistoryState::Ok,
            (false, false) => HistoryState::Opening,
        };
        let behind = self
            .is_behind
            .then(|| "the disk does not keep up".to_owned());
        let left_out = (self.left_out > 0).then(|| {
            let count = self.left_out;
            format!("there is no room for {count} of the paths and applications")
        });
        let parts = [&self.failed, &behind, &self.quarantined, &left_out];
        let parts: Vec<&str> = parts.into_iter().filter_map(Option::as_deref).collect();
        HistorySnapshot {
            state,
            why: (!parts.is_empty()).then(|| parts.join("; ")),
        }
    }
}

/// What of the history is asked for.
struct TimeRange {
    resolution: Resolution,
    from: u64,
    to: u64,
}

impl TimeRange {
    /// Beyond `minutes_for`, in seconds, rows are of hours: minutes are kept for as long. A row
    /// carries its beginning: that into which the time reaches back is wanted too.
    fn of(past_seconds: u64, minutes_for: u64, now: u64) -> Self {
        let resolution = match past_seconds <= minutes_for {
            true => Resolution::Minute,
            false => Resolution::Hour,
        };
        let from = now.saturating_sub(past_seconds);
        Self {
            resolution,
            from: from - from % seconds_of(resolution),
            to: now.saturating_add(MINUTE),
        }
    }

    fn row_seconds(&self) -> u64 {
        seconds_of(self.resolution)
    }
}

/// How much time a row is of.
fn seconds_of(resolution: Resolution) -> u64 {
    match resolution {
        Resolution::Minute => MINUTE,
        Resolution::Hour => HOUR,
    }
}

fn bounds(history: &config::History) -> Bounds {
    Bounds {
        minutes_for: history.minutes_for,
        hours_for: history.hours_for,
        bytes_max: history.size_max.get(),
        ..Bounds::default()
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

/// `None`: it was not measured, or cannot have been.
fn workload_from(sample: &AppSample) -> Option<Workload> {
    let length = sample.length_mean_bytes.filter(|l| *l <= LENGTH_MAX)?;
    let seconds = sample.interval_mean_seconds?;
    let interval = Duration::try_from_secs_f64(seconds).ok()?;
    let spread = |deviation: Option<f64>, mean: f64| {
        let variation = deviation.unwrap_or(0.0) / mean.max(f64::MIN_POSITIVE);
        Spread::new(variation * variation).unwrap_or_default()
    };
    (interval <= INTERVAL_MAX).then(|| Workload {
        length: ByteCount::new(length.max(1.0) as u64),
        interval: interval.max(INTERVAL_MIN),
        length_spread: spread(sample.length_spread_bytes, length),
        interval_spread: spread(sample.interval_spread_seconds, seconds),
    })
}

fn newest(latest: &Latest) -> Option<u64> {
    let paths = latest.paths.iter().map(|(_, row)| row.at_unix_seconds);
    let apps = latest.apps.iter().map(|(_, row)| row.at_unix_seconds);
    paths.chain(apps).max()
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

fn time_of(unix_seconds: u64) -> Timestamp {
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(unix_seconds));
    Timestamp(time.unwrap_or(UNIX_EPOCH))
}

fn unavailable(error: &QueryError) -> ErrorResponse {
    let hint = "`keiro status` says how the history is";
    ErrorResponse::new(ErrorCode::Unavailable, error.to_string(), hint)
}

/// Seconds since 1970; 0 with a clock before.
fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

fn minute_of(unix_seconds: u64) -> u64 {
    unix_seconds - unix_seconds % MINUTE
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_040;

    fn row(peer: &str, age_seconds: u64, sample: AppSample) -> (SeriesKey, Row<AppSample>) {
        let subject = SeriesKey {
            name: "M".into(),
            peer: peer.into(),
        };
        let at_unix_seconds = NOW - age_seconds;
        let row = Row {
            at_unix_seconds,
            sample,
        };
        (subject, row)
    }

    fn sample(length: f64) -> AppSample {
        AppSample {
            count: 600,
            length_mean_bytes: Some(length),
            length_spread_bytes: Some(length / 2.0),
            interval_mean_seconds: Some(0.1),
            interval_spread_seconds: Some(0.1),
            ..AppSample::default()
        }
    }

    fn past_workloads(apps: Vec<(SeriesKey, Row<AppSample>)>) -> PastWorkloads {
        let paths = Vec::new();
        PastWorkloads::of(&Latest { paths, apps }, NOW, Stopwatch::now())
    }

    #[test]
    fn what_was_sent_less_than_a_day_ago_is_remembered() {
        let found = past_workloads(vec![row("b", 3600, sample(1200.0))]).workload("M", "b");
        let workload = found.unwrap();
        assert_eq!(workload.length, ByteCount::new(1200));
        assert_eq!(workload.interval, Duration::from_millis(100));
        assert!((workload.length_spread.ratio() - 0.25).abs() < 1e-9);
        assert!((workload.interval_spread.ratio() - 1.0).abs() < 1e-9);
        let old = past_workloads(vec![row("b", 24 * HOUR, sample(1200.0))]);
        assert_eq!(old.workload("M", "b"), None);
    }

    #[test]
    fn only_the_newest_peer_of_an_application_is_remembered() {
        let both = past_workloads(vec![row("b", 60, sample(1.0)), row("c", 3600, sample(2.0))]);
        assert!(both.workload("M", "b").is_some());
        assert_eq!(both.workload("M", "c"), None);
    }

    #[test]
    fn damaged_rows_and_those_of_the_future_are_not_remembered() {
        let mut slow = sample(100.0);
        slow.interval_mean_seconds = Some(1e300);
        let mut unknown = sample(100.0);
        unknown.length_mean_bytes = None;
        for sample in [sample(1e300), slow, unknown] {
            assert_eq!(
                past_workloads(vec![row("b", 60, sample)]).workload("M", "b"),
                None
            );
        }
        let (subject, mut row) = row("b", 0, sample(100.0));
        row.at_unix_seconds = NOW + 60;
        assert_eq!(
            past_workloads(vec![(subject, row)]).workload("M", "b"),
            None
        );
        // As short and as fast as can be.
        let mut nothing = sample(0.0);
        nothing.interval_mean_seconds = Some(0.0);
        let workload = workload_from(&nothing).unwrap();
        assert_eq!(workload.length, ByteCount::new(1));
        assert_eq!(workload.interval, INTERVAL_MIN);
    }

    #[test]
    fn a_day_is_told_in_minutes_and_more_in_hours() {
        let span = |past_seconds: u64| TimeRange::of(past_seconds, 24 * HOUR, NOW);
        let day = span(24 * HOUR);
        assert_eq!((day.row_seconds(), day.from), (60, NOW - 24 * HOUR));
        assert_eq!(span(24 * HOUR + 1).row_seconds(), 3600);
        assert_eq!(span(u64::MAX).from, 0);
    }

    #[test]
    fn the_row_into_which_the_time_reaches_back_is_told_too() {
        // Rows are there when they are over: the last one began up to two of them ago.
        for (row, minutes_for) in [(MINUTE, 24 * HOUR), (HOUR, 0)] {
            let begin = NOW - NOW % row;
            for now in begin..begin + row {
                let span = TimeRange::of(row, minutes_for, now);
                assert_eq!((span.row_seconds(), span.from), (row, begin - row));
                assert!(span.to > begin, "the present one");
                let longer = TimeRange::of(90 * row + 1, 91 * minutes_for, now);
                assert!(longer.from.is_multiple_of(row));
                assert!((now - 90 * row - 1).abs_diff(longer.from) < row);
            }
        }
    }

    #[test]
    fn the_standing_says_what_is_wrong_and_that_it_works_again() {
        let mut health = HistoryHealth::default();
        assert_eq!(health.snapshot().state, HistoryState::Opening);
        health.on_failed("no\n  space");
        health.on_recorded(false);
        let told = health.snapshot();
        assert_eq!(told.state, HistoryState::Failed);
        assert_eq!(told.why.unwrap(), "no space; the disk does not keep up");
        health.on_recovered();
        health.on_recorded(true);
        assert_eq!(health.snapshot().why, None);
        health.on_left_out(3);
        let told = health.snapshot();
        assert_eq!(told.state, HistoryState::Ok);
        assert!(told.why.unwrap().contains("no room for 3"));
    }
}
