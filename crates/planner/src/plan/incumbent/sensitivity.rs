//! Why an application is where it is, and what would have to change to move it.

use std::time::Duration;

use super::{AppId, Gain, Incumbent, PathId, RevisionBuilder, table::Tally};
use crate::delay::Prediction;
use keiro_units::Bandwidth;

/// What one path would do for one application, all others staying where they are.
#[derive(Clone, Debug, PartialEq)]
pub struct PathOption {
    pub path: PathId,
    /// Whether the application is there.
    pub current: bool,
    /// What it would get, with its terms.
    pub prediction: Prediction,
    /// Whether that meets its latency target.
    pub met: bool,
    /// Who would be unmet there though met now, ascending; never the application itself.
    pub newly_unmet: Vec<AppId>,
    /// What everything together would gain by the move. `None` where it is, or if it is nowhere.
    pub gain: Option<Gain>,
    /// Whether the gain is worth the move.
    pub worth: bool,
}

/// What is changed to see when an application would move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Parameter {
    /// A path's propagation delay: longer if the application is there, else shorter.
    PathDelay(PathId),
    /// A path's bandwidth: less if the application is there, else more.
    PathBandwidth(PathId),
    /// The application's own latency target: narrower.
    LatencyTarget,
}

/// Where a [`Parameter`] stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterValue {
    /// A delay, or a latency target.
    Time(Duration),
    Rate(Bandwidth),
}

/// The least change of one thing at which a revision would move the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    pub parameter: Parameter,
    /// What it is now; for an application without a latency target, the delay predicted for it.
    pub now: ParameterValue,
    /// From here on it would move.
    pub at: ParameterValue,
    pub to: PathId,
}

/// A path's delay is tried up to this much above what it is.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// A path's bandwidth is tried up to this many times what it is.
const BANDWIDTH_TIMES_MAX: u64 = 1_000;
/// A change is tried in so many steps, each so much larger than the one before, then between
/// the last two.
const STEPS: u32 = 24;
const BISECTIONS: u32 = 12;

impl Incumbent {
    /// What every path that it may take would do for `app`, by path; empty if there is no such
    /// application.
    pub fn path_options(&self, app: AppId) -> Vec<PathOption> {
        let Some(&app) = self.app_index.get(&app) else {
            return Vec::new();
        };
        let mut scratch = self.table.clone();
        let builder = RevisionBuilder::new(&mut scratch, self.settings, 0);
        self.path_index
            .values()
            .filter(|&&path| self.table.may.at(app, path))
            .map(|&path| option(&builder, app, path))
            .collect()
    }

    /// The best other path for `app`, all others staying; `None` if there is none.
    pub fn next_best(&self, app: AppId) -> Option<PathOption> {
        let others = self
            .path_options(app)
            .into_iter()
            .filter(|other| !other.current);
        others.reduce(|best, next| {
            let [gain, least] = [&next, &best].map(|option| option.gain.unwrap_or_default());
            match gain.compare(&least, self.settings.aim).is_gt() {
                true => next,
                false => best,
            }
        })
    }

    /// The least change of one thing, all else staying, at which a revision would move `app`.
    /// `None` if it would not for any (a delay a minute longer or down to nothing, a bandwidth a
    /// thousand times as much or down to nothing, a latency target down to nothing), or if there is no
    /// such thing.
    ///
    /// Found by trying revisions on a copy: some forty of them, each change ten or so per cent
    /// larger than the last, so an even smaller change that would move it, but a larger one
    /// would not, can be missed.
    pub fn threshold(&self, app: AppId, parameter: Parameter) -> Option<Threshold> {
        let now = self.value(app, parameter)?;
        let end = self.end_of(app, parameter)?;
        let (mut still, mut moved) = (now, None);
        for step in 0..=STEPS {
            // The first steps are a thousandth of the whole way and less.
            let part = match step {
                0 => 0.0,
                _ => 1e-6_f64.powf(1.0 - f64::from(step) / f64::from(STEPS)),
            };
            let value = now.towards(end, part);
            if let Some(to) = self.target_with(app, parameter, value) {
                moved = Some((value, to));
                break;
            }
            still = value;
        }
        let (mut at, mut to) = moved?;
        for _ in 0..BISECTIONS {
            let middle = still.towards(at, 0.5);
            match self.target_with(app, parameter, middle) {
                Some(target) => (at, to) = (middle, target),
                None => still = middle,
            }
        }
        Some(Threshold {
            parameter,
            now,
            at,
            to,
        })
    }

    /// Where a revision would move `app` if a parameter had another value; `None` if it would not.
    fn target_with(
        &self,
        app: AppId,
        parameter: Parameter,
        value: ParameterValue,
    ) -> Option<PathId> {
        let mut copy = self.clone();
        copy.set_parameter(app, parameter, value)?;
        let moves = copy.revise().moves;
        let step = moves.iter().find(|step| step.app == app)?;
        Some(step.to)
    }

    /// The present value of a parameter.
    fn value(&self, app: AppId, parameter: Parameter) -> Option<ParameterValue> {
        match parameter {
            Parameter::PathDelay(path) => {
                let &path = self.path_index.get(&path)?;
                Some(ParameterValue::Time(self.table.paths[path].spec.delay))
            }
            Parameter::PathBandwidth(path) => {
                let &path = self.path_index.get(&path)?;
                Some(ParameterValue::Rate(self.table.paths[path].spec.bandwidth))
            }
            Parameter::LatencyTarget => {
                let latency_target = self.app(app)?.latency_target;
                let predicted = || self.prediction(app)?.delay.finite();
                latency_target.or_else(predicted).map(ParameterValue::Time)
            }
        }
    }

    /// The value up to which a parameter is changed at most.
    fn end_of(&self, app: AppId, parameter: Parameter) -> Option<ParameterValue> {
        let here = self.path_of(app)?;
        let now = self.value(app, parameter)?;
        Some(match (parameter, now) {
            (Parameter::PathDelay(path), ParameterValue::Time(now)) if path == here => {
                ParameterValue::Time(now.saturating_add(DELAY_MAX))
            }
            (Parameter::PathBandwidth(path), ParameterValue::Rate(now)) if path != here => {
                let most = Bandwidth::from_bits_per_second(super::RATE_MAX - 1);
                ParameterValue::Rate(
                    Bandwidth::from_bits_per_second(
                        now.as_bits_per_second().saturating_mul(BANDWIDTH_TIMES_MAX),
                    )
                    .min(most),
                )
            }
            (_, ParameterValue::Time(_)) => ParameterValue::Time(Duration::ZERO),
            (_, ParameterValue::Rate(_)) => ParameterValue::Rate(Bandwidth::ZERO),
        })
    }

    fn set_parameter(
        &mut self,
        app: AppId,
        parameter: Parameter,
        value: ParameterValue,
    ) -> Option<()> {
        let result = match (parameter, value) {
            (Parameter::PathDelay(id), ParameterValue::Time(delay)) => {
                let &path = self.path_index.get(&id)?;
                let spec = self.table.paths[path].spec;
                self.set_path(id, crate::delay::PathSpec { delay, ..spec })
            }
            (Parameter::PathBandwidth(id), ParameterValue::Rate(bandwidth)) => {
                let &path = self.path_index.get(&id)?;
                let spec = self.table.paths[path].spec;
                self.set_path(id, crate::delay::PathSpec { bandwidth, ..spec })
            }
            (Parameter::LatencyTarget, ParameterValue::Time(latency_target)) => {
                let &index = self.app_index.get(&app)?;
                let entry = &self.table.requirements[index];
                let (mut spec, allowed) = (entry.spec, entry.allowed.clone());
                spec.latency_target = Some(latency_target);
                self.set_app(app, spec, allowed)
            }
            (_, _) => return None,
        };
        result.ok()
    }
}

impl ParameterValue {
    /// So much of the way to `end`, which is of the same kind.
    fn towards(self, end: Self, part: f64) -> Self {
        let between = |now: f64, end: f64| now + (end - now) * part;
        match (self, end) {
            (Self::Time(now), Self::Time(end)) => {
                let nanos = between(now.as_nanos() as f64, end.as_nanos() as f64);
                Self::Time(Duration::from_nanos(nanos as u64))
            }
            (Self::Rate(now), Self::Rate(end)) => {
                let [now, end] = [now, end].map(|rate| rate.as_bits_per_second() as f64);
                Self::Rate(Bandwidth::from_bits_per_second(between(now, end) as u64))
            }
            (now, _) => now,
        }
    }
}

fn option(builder: &RevisionBuilder<'_>, app: usize, path: usize) -> PathOption {
    let table = &builder.table;
    let (entry, target) = (&table.apps[app], &table.paths[path]);
    let prediction = table.prediction(app, path);
    let current = entry.place == Some(path);
    let load = match current {
        true => target.load,
        false => target.load + entry.rate,
    };
    let mut newly_unmet: Vec<AppId> = target
        .unmet_between(target.load, load)
        .map(|other| table.apps[other].id)
        .collect();
    newly_unmet.sort_unstable();
    let from = entry.place.filter(|_| !current);
    // To gain by going there is to lose by not having gone.
    let gain = from.map(|from| {
        let change = table.change(from, Some(app), None);
        Tally::default()
            .minus(change)
            .minus(table.change(path, None, Some(app)))
    });
    let worth = from.zip(gain).is_some_and(|(from, gain)| {
        let delay = table.delay_at(app, from, table.paths[from].load);
        builder.is_enough(app, gain, delay)
    });
    PathOption {
        path: target.id,
        current,
        met: prediction.is_met(table.tolerance),
        prediction,
        newly_unmet,
        gain: gain.map(Gain::from),
        worth,
    }
}
