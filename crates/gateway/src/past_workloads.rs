//! What applications sent before the restart: planned with until enough is measured anew.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant as Stopwatch},
};

use keiro_planner::queueing::Spread;
use keiro_planning::Workload;
use keiro_store::history::{AppSample, Latest, Row, SeriesKey};
use keiro_units::ByteCount;

use crate::{running_config::Renamed, workload::INTERVAL_MIN};

/// What applications sent before the restart, by name.
#[derive(Default)]
pub(crate) struct PastWorkloads(BTreeMap<String, PastWorkload>);

/// What an application sent before the restart.
#[derive(Clone, Debug)]
pub(crate) struct PastWorkload {
    /// The peer that it sent to.
    peer: String,
    workload: Workload,
    /// When it becomes too old.
    until: Stopwatch,
}

/// Older workloads are not used. Ours: most applications have a daily rhythm.
const PAST_WORKLOAD_MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// Larger values are damage.
const LENGTH_MAX: f64 = (1u64 << 40) as f64;
const INTERVAL_MAX: Duration = Duration::from_secs(24 * 3600);

impl PastWorkloads {
    /// The applications' workloads in `latest`, unless they are too old.
    pub(crate) fn of(latest: &Latest, now_unix_seconds: u64, now: Stopwatch) -> Self {
        let remembered = |(subject, row): &(SeriesKey, Row<AppSample>)| {
            // The clock was set back since rows of the future, so their age is unknown.
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
        // If an application had several peers, the newest counts.
        found.sort_by_key(|(_, at, _)| *at);
        Self(found.into_iter().map(|(name, _, r)| (name, r)).collect())
    }

    /// What an application sent to this peer before the restart; `None`: not known, or too long ago.
    pub(crate) fn workload(&self, app: &str, peer: &str) -> Option<Workload> {
        let remembered = self.0.get(app)?;
        let counts = remembered.peer == peer && Stopwatch::now() < remembered.until;
        counts.then_some(remembered.workload)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Follows peers and applications that have another name.
    pub(crate) fn rename(&mut self, renamed: &Renamed) {
        let known = std::mem::take(&mut self.0).into_iter();
        self.0 = known
            .map(|(app, mut of)| {
                of.peer = renamed.peer(&of.peer).to_owned();
                (renamed.app(&app).to_owned(), of)
            })
            .collect();
    }

    /// Forgets applications that are not among these.
    pub(crate) fn retain_apps(&mut self, apps: &[String]) {
        self.0.retain(|app, _| apps.contains(app));
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

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_040;
    const HOUR: u64 = 3600;

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
}
