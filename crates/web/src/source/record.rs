//! The forecasts of the last hour, which the gateway's history does not keep.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, SystemTime},
};

use keiro_control::protocol::AppSnapshot;

/// Forecasts of the 99th percentile, by application.
#[derive(Debug, Default)]
pub(crate) struct Record {
    of_apps: BTreeMap<String, VecDeque<Sample>>,
    sampled: Option<SystemTime>,
}

/// Seconds since 1970 and the forecast in seconds.
type Sample = (f64, f32);

/// Between two samples, at least. Ours: a poll while no page is open is rarer.
const INTERVAL: Duration = Duration::from_secs(10);
/// What is asked at least so often, when no page is open.
pub(crate) const ROW_SECONDS: f64 = 30.0;
const KEPT_FOR: Duration = Duration::from_secs(3600);
/// Applications of which samples are kept. Ours: 6 MB in all.
const APPS_MAX: usize = 1024;

impl Record {
    /// A poll of applications.
    pub(super) fn on_poll(&mut self, now: SystemTime, apps: &[AppSnapshot]) {
        let age = self
            .sampled
            .map(|last| now.duration_since(last).unwrap_or(INTERVAL));
        if age.is_some_and(|age| age < INTERVAL) {
            return;
        }
        self.sampled = Some(now);
        let at = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        let oldest = at - KEPT_FOR.as_secs_f64();
        for app in apps {
            let Some(forecast) = app.predicted.p99_seconds else {
                continue;
            };
            if !self.of_apps.contains_key(&app.name) && self.of_apps.len() >= APPS_MAX {
                continue;
            }
            let samples = self.of_apps.entry(app.name.clone()).or_default();
            samples.push_back((at, forecast as f32));
        }
        self.of_apps.retain(|_, samples| {
            samples.retain(|(at, _)| *at >= oldest);
            !samples.is_empty()
        });
    }

    /// Forecasts of an application, at most about `most` of them, by time.
    pub(crate) fn of_app(&self, name: &str, most: usize) -> Vec<(f64, f64)> {
        let Some(samples) = self.of_apps.get(name) else {
            return Vec::new();
        };
        let step = samples.len().div_ceil(most.max(1)).max(1);
        // Counted from the newest, which is always shown.
        let picked = samples.iter().rev().step_by(step);
        let mut picked: Vec<(f64, f64)> = picked
            .map(|(at, forecast)| (*at, f64::from(*forecast)))
            .collect();
        picked.reverse();
        picked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app(name: &str, p99: f64) -> AppSnapshot {
        let document = serde_json::json!({
            "name": name, "class": "message", "peer": "osaka", "assigned_by": "planner", "predicted_p99_seconds": p99
        });
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn an_hour_of_forecasts_is_kept_within_bounds() {
        let mut record = Record::default();
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(100_000);
        for second in 0..7200 {
            record.on_poll(start + Duration::from_secs(second), &[app("A3", 0.02)]);
        }
        assert_eq!(record.of_app("A3", 1000).len(), 361);
        let few = record.of_app("A3", 30);
        assert!((25..=31).contains(&few.len()), "{}", few.len());
        assert_eq!(few.last().unwrap().0, 107_190.0);
        let many: Vec<AppSnapshot> = (0..2 * APPS_MAX)
            .map(|number| app(&format!("B{number}"), 0.1))
            .collect();
        record.on_poll(start + Duration::from_secs(8000), &many);
        assert_eq!(record.of_apps.len(), APPS_MAX);
        assert!(record.of_app("C", 10).is_empty());
    }
}
