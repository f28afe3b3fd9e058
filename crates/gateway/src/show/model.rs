//! Whether measured delays agree with predicted ones.

use keiro_control::{
    config::{Class, Planner},
    protocol::{AppSnapshot, ModelState},
};
use keiro_planner::queueing::NoForecast;
use keiro_planning::MeasuredWorkload;

use super::View;
use crate::workload::MEASURED_MIN;

/// Measured means may differ from predicted ones by this part, or by [`AGREEMENT_MIN`], and the
/// model still counts as valid. Ours: an application's lengths and intervals are rarely known better.
const AGREEMENT_RATIO: f64 = 0.25;
/// Differences below this say nothing about the model, seconds.
const AGREEMENT_MIN: f64 = 0.002;

impl View<'_> {
    /// Whether measured delays agree with predicted ones, and where they do not.
    pub(super) fn model(&self, apps: &[AppSnapshot]) -> (ModelState, Option<String>) {
        if self.gateway.config.gateway.planner == Planner::Off {
            return (ModelState::Off, Some("the planner is off".into()));
        }
        let mut compared = false;
        for app in apps {
            // Planned with next to nothing; its delays are of what it sent before.
            let index = self.gateway.config.app_named(&app.name);
            let seen = index.and_then(|index| self.input.workloads.get(&index));
            if seen == Some(&MeasuredWorkload::Stopped) {
                continue;
            }
            let forecast = index
                .and_then(|index| self.present.apps.get(index.0))
                .and_then(|app| app.forecast);
            if let Some(Err(why @ NoForecast::ModelOff { .. })) =
                forecast.map(|forecast| forecast.delay)
            {
                return (ModelState::NotValid, Some(format!("{}: {why}", app.name)));
            }
            let delay = app
                .delay
                .as_ref()
                .filter(|delay| delay.count >= MEASURED_MIN && app.class == Class::Message);
            let (Some(delay), Some(predicted)) = (delay, app.stats.predicted_delay) else {
                continue;
            };
            compared = true;
            let predicted = predicted.as_secs_f64();
            let difference = (delay.mean_seconds - predicted).abs();
            if difference > (AGREEMENT_RATIO * predicted).max(AGREEMENT_MIN) {
                let why = format!(
                    "{}: {:.1} ms on average where {:.1} ms were predicted",
                    app.name,
                    delay.mean_seconds * 1e3,
                    predicted * 1e3
                );
                return (ModelState::NotValid, Some(why));
            }
        }
        match compared {
            true => (ModelState::Valid, None),
            false => (ModelState::Unverified, Some(not_compared(apps))),
        }
    }
}

/// Why no application's delays were compared with its forecast.
fn not_compared(apps: &[AppSnapshot]) -> String {
    match !apps.is_empty() && apps.iter().all(|app| app.only_packets) {
        true => "forecasts are not compared with the delays of IP packets".to_owned(),
        false => format!("no application with {MEASURED_MIN} messages yet"),
    }
}
