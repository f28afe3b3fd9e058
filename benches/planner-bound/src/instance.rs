//! A problem under eq. 3 in floating point, indexed by path and application.
//!
//! On a path with the whole load s, application a of rate r has the delay T + L/(W − s + r): it
//! depends on the others only by s. So its latency target holds exactly while s stays at or below a limit
//! that is known in advance.

use std::time::Duration;

use keiro_planner::{
    delay::{Equation3, OverloadPolicy},
    plan::Problem,
};

/// Anything from this rate on (281 Tbit/s) overloads every path alike.
const RATE_MAX: u64 = 1 << 48;

pub(crate) struct Instance {
    pub(crate) paths: Vec<Path>,
    pub(crate) apps: Vec<App>,
    pub(crate) saturation: OverloadPolicy,
}

#[derive(Clone, Debug)]
pub(crate) struct Path {
    /// In bit/s.
    pub(crate) bandwidth: f64,
    /// In nanoseconds.
    pub(crate) delay: f64,
    /// By application: the largest load, in bit/s, with which it is met; negative if none is.
    pub(crate) limits: Vec<f64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct App {
    /// In bit/s.
    pub(crate) rate: f64,
    /// In 10^-9 bit: over bit/s it is nanoseconds.
    pub(crate) length: f64,
    /// In nanoseconds; infinite without a latency target.
    pub(crate) latency_target: f64,
    /// Whether it is unmet even alone on any path.
    pub(crate) never_met: bool,
    /// 1/rate; without a rate, large enough to come first or last.
    pub(crate) per_rate: f64,
}

impl Instance {
    pub(crate) fn new(problem: &Problem<'_, Equation3>, model: Equation3) -> Self {
        let rates: Vec<u64> = (problem.apps().iter())
            .map(|app| app.rate().as_bits_per_second().min(RATE_MAX))
            .collect();
        let targets: Vec<Option<Duration>> = (problem.apps().iter())
            .map(|app| {
                app.latency_target
                    .map(|target| problem.tolerance().loosen(target))
            })
            .collect();
        let limits: Vec<Vec<Option<u64>>> = (problem.paths().iter())
            .map(|path| {
                let limit = |app: usize| {
                    let target = targets[app].unwrap_or(Duration::MAX);
                    let others = model.others_max(path, &problem.apps()[app], target)?;
                    Some(others.as_bits_per_second() + rates[app])
                };
                (0..rates.len()).map(limit).collect()
            })
            .collect();
        let apps = problem.apps().iter().enumerate().map(|(app, spec)| App {
            rate: rates[app] as f64,
            length: spec.length.get() as f64 * 8e9,
            latency_target: targets[app].map_or(f64::INFINITY, |target| target.as_nanos() as f64),
            never_met: (limits.iter()).all(|path| path[app].is_none_or(|limit| limit < rates[app])),
            per_rate: match rates[app] {
                0 => 1e100,
                rate => 1.0 / rate as f64,
            },
        });
        let paths = problem
            .paths()
            .iter()
            .zip(&limits)
            .map(|(path, limits)| Path {
                bandwidth: path.bandwidth.as_bits_per_second() as f64,
                delay: path.delay.as_nanos() as f64,
                limits: (limits.iter())
                    .map(|limit| limit.map_or(-1.0, |limit| limit as f64))
                    .collect(),
            });
        Self {
            apps: apps.collect(),
            paths: paths.collect(),
            saturation: model.saturation,
        }
    }

    /// The delay of `app` on `path` with the whole load `load`, in nanoseconds; `None` if
    /// overloaded.
    pub(crate) fn delay(&self, path: usize, app: usize, load: f64) -> Option<f64> {
        let (path, app) = (&self.paths[path], &self.apps[app]);
        let others = load - app.rate;
        let is_overloaded = match self.saturation {
            OverloadPolicy::AsPrinted => others >= path.bandwidth,
            OverloadPolicy::Refused => load >= path.bandwidth,
        };
        (!is_overloaded).then(|| path.delay + app.length / (path.bandwidth - others))
    }
}
