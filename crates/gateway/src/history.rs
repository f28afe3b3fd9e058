//! Records measurements of every minute in the history of `keiro-store`, on a thread of its own.
//! Faults of the disk are logged and shown, and otherwise change nothing.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant as Stopwatch, SystemTime, UNIX_EPOCH},
};

use keiro_control::{
    config::{self, Config},
    protocol::{ErrorCode, ErrorResponse, HistorySnapshot, HistoryState},
};
use keiro_core as core;
use keiro_store::{
    Recorder, RecorderCounts, RecorderUpdate,
    history::{AppSample, Batch, Bounds, Latest, PathSample, Resolution, SeriesKey},
};
use keiro_units::Probability;

use crate::{
    past_workloads::PastWorkloads,
    privileges::Privileges,
    running_config::{Rename, Renamed},
    trigger::Trigger,
};

/// The present minute's measurements, and the state of the file.
pub(crate) struct HistoryRecorder {
    /// `None`: the history is off, or its thread could not be started.
    recorder: Option<Recorder>,
    bounds: Bounds,
    /// How often the present minute is recorded.
    interval: Duration,
    recorded_at: Stopwatch,
    minute: Minute,
    /// A minute that the gateway recorded before the restart; its rows stay.
    recorded_before_restart: Option<u64>,
    health: HistoryHealth,
}

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

/// The state of the file.
#[derive(Debug, Default)]
struct HistoryHealth {
    /// The history is off.
    is_off: bool,
    /// Opening has succeeded or failed: recording makes sense.
    is_open: bool,
    failed: Option<String>,
    /// The disk does not keep up.
    is_behind: bool,
    quarantined: Option<String>,
    left_out: usize,
}

const MINUTE: u64 = 60;
const HOUR: u64 = 3600;

impl HistoryRecorder {
    /// Starts the thread, which opens the file and wakes the control thread through `trigger`,
    /// unless the history is off. A history that cannot be had is no reason not to start.
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
        let start = || privileges.start_without("history", || Recorder::start(file, bounds, wake));
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

    /// Recorded, failed and dropped minutes; `None`: there is no history.
    pub(crate) fn counts(&self) -> Option<RecorderCounts> {
        self.recorder.as_ref().map(Recorder::counts)
    }

    /// The next report of the history's thread; `None`: there is none now.
    pub(crate) fn poll(&self) -> Option<RecorderUpdate> {
        self.recorder.as_ref()?.poll()
    }

    /// Takes a report over. The first one after a start brings what applications sent before.
    pub(crate) fn on_update(&mut self, update: RecorderUpdate) -> Option<PastWorkloads> {
        match update {
            RecorderUpdate::Opened(latest) => {
                self.health.is_open = true;
                let now = unix_seconds();
                self.recorded_before_restart = newest(&latest).filter(|at| *at == minute_of(now));
                return Some(PastWorkloads::of(&latest, now, Stopwatch::now()));
            }
            RecorderUpdate::Quarantined(file) => self.health.on_quarantined(file.to_string()),
            RecorderUpdate::Failed { reason } => self.health.on_failed(&reason),
            RecorderUpdate::Recovered => self.health.on_recovered(),
            RecorderUpdate::SeriesLeftOut(count) => self.health.on_left_out(count),
        }
        None
    }

    /// Adds a sample of a path to the present minute.
    pub(crate) fn sample_path(&mut self, key: SeriesKey, path: &core::PathSnapshot) {
        self.minute.paths.entry(key).or_default().add(path);
    }

    /// What is kept and what is measured follow peers and applications that have another name.
    pub(crate) fn rename(&mut self, renamed: &Renamed) {
        let paths = std::mem::take(&mut self.minute.paths).into_iter();
        self.minute.paths = paths
            .map(|(mut key, of)| {
                key.peer = renamed.peer(&key.peer).to_owned();
                (key, of)
            })
            .collect();
        let sent = std::mem::take(&mut self.minute.sent).into_iter();
        self.minute.sent = sent
            .map(|(app, bytes)| (renamed.app(&app).to_owned(), bytes))
            .collect();
        let pairs = |renames: &[Rename]| -> Vec<[String; 2]> {
            let pairs = renames.iter();
            pairs
                .map(|Rename { before, now }| [before.clone(), now.clone()])
                .collect()
        };
        if let Some(recorder) = &self.recorder
            && !recorder.rename(pairs(&renamed.peers), pairs(&renamed.apps))
        {
            tracing::warn!(
                "the disk does not keep up: the history of what was renamed stays under the names before"
            );
        }
    }

    /// How many messages an application had sent when the present minute began.
    pub(crate) fn sent_before(&self, app: &str) -> u64 {
        self.minute.sent.get(app).copied().unwrap_or(0)
    }

    /// Whether the minute that is being sampled has passed.
    pub(crate) fn is_minute_over(&self) -> bool {
        minute_of(unix_seconds()) != self.minute.at_unix_seconds
    }

    /// Whether the present minute is to be recorded again before it is over.
    pub(crate) fn is_interval_over(&self) -> bool {
        self.recorded_at.elapsed() >= self.interval
    }

    /// Begins the present minute. `sent`: bytes that each application had sent when it began, by name.
    pub(crate) fn begin_minute(&mut self, sent: BTreeMap<String, u64>) {
        self.minute = Minute {
            at_unix_seconds: minute_of(unix_seconds()),
            paths: BTreeMap::new(),
            sent,
        };
    }

    /// Has the present minute stored, with these samples of applications.
    pub(crate) fn record(&mut self, apps: Vec<(SeriesKey, AppSample)>) {
        self.recorded_at = Stopwatch::now();
        let at = self.minute.at_unix_seconds;
        if !self.health.is_open || self.recorded_before_restart == Some(at) {
            return;
        }
        let batch = Batch {
            paths: self.minute.paths(),
            apps,
        };
        if let Some(recorder) = &self.recorder {
            let is_accepted = recorder.record(at, batch);
            self.health.on_recorded(is_accepted);
        }
    }

    /// The rows that a request for the last `past_seconds` wants.
    pub(crate) fn time_range(&self, past_seconds: u64) -> TimeRange {
        let minutes_for = self.bounds.minutes_for.as_secs();
        TimeRange::of(past_seconds, minutes_for, unix_seconds())
    }

    pub(crate) fn recorder(&self) -> Result<&Recorder, ErrorResponse> {
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
        self.available.add(path.stats.available.map(rate));
        if let Some(round_trip) = path.stats.base_rtt {
            let one_way = round_trip.as_secs_f64() / 2.0;
            self.base_delay = Some(self.base_delay.map_or(one_way, |least| least.min(one_way)));
        }
        self.jitter
            .add(path.stats.jitter.map(|jitter| jitter.as_secs_f64()));
        self.loss.add(path.stats.loss.map(Probability::get));
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
        // SQLite's messages may have several lines; a log entry has one.
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

    /// Notes whether a minute could be queued for the disk.
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

/// The part of the history that is requested.
pub(crate) struct TimeRange {
    pub(crate) resolution: Resolution,
    /// Seconds since 1970.
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl TimeRange {
    /// Rows of hours for requests beyond `minutes_for` seconds, since minutes are not kept longer.
    /// A row carries its beginning, so the row that the time reaches into is included.
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

    pub(crate) fn row_seconds(&self) -> u64 {
        seconds_of(self.resolution)
    }
}

/// The seconds that a row covers.
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

fn newest(latest: &Latest) -> Option<u64> {
    let paths = latest.paths.iter().map(|(_, row)| row.at_unix_seconds);
    let apps = latest.apps.iter().map(|(_, row)| row.at_unix_seconds);
    paths.chain(apps).max()
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

    #[test]
    fn a_day_is_shown_in_minutes_and_more_in_hours() {
        let span = |past_seconds: u64| TimeRange::of(past_seconds, 24 * HOUR, NOW);
        let day = span(24 * HOUR);
        assert_eq!((day.row_seconds(), day.from), (60, NOW - 24 * HOUR));
        assert_eq!(span(24 * HOUR + 1).row_seconds(), 3600);
        assert_eq!(span(u64::MAX).from, 0);
    }

    #[test]
    fn the_row_into_which_the_time_reaches_back_is_shown_too() {
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
        let snapshot = health.snapshot();
        assert_eq!(snapshot.state, HistoryState::Failed);
        assert_eq!(snapshot.why.unwrap(), "no space; the disk does not keep up");
        health.on_recovered();
        health.on_recorded(true);
        assert_eq!(health.snapshot().why, None);
        health.on_left_out(3);
        let snapshot = health.snapshot();
        assert_eq!(snapshot.state, HistoryState::Ok);
        assert!(snapshot.why.unwrap().contains("no room for 3"));
    }
}
