//! Planning from a configuration alone, without measurements.
//!
//! What the running gateway measures has to be in the file: every path's delay, every
//! application's length and interval. The models and the order of what is best are the gateway's.

use std::{path::Path, time::Instant};

use keiro_control::{
    Config,
    config::{App, PathIndex, Planner, Scheduler},
    protocol::{AssignedBy, DelayTerms, ModelState, PlanSnapshot, PlannedApp},
};
use keiro_model::{
    ByteCount,
    delay::{AppSpec, Delay, Equation3, PathSpec, Prediction, Saturation, Tolerance},
    plan::{self, Budget, DelayModel, Optimality, Problem},
    queueing::{self, Gateway, Resolution, Statistic, WireFormat},
};

use crate::failure::Failure;

/// IP packet bytes and what of a full packet is not message: IP, UDP, Keiro's header, segment
/// header and tag.
const PACKET_BYTES: u64 = 1500;
const OVERHEAD_BYTES: u64 = 110;

/// The plan that follows from the file.
///
/// # Errors
/// What is wrong with the file, or what must be in it to plan without measurements.
pub(super) fn plan(file: &Path) -> Result<PlanSnapshot, Failure> {
    let config = Config::load(file)?;
    let (paths, apps) = specs(&config)?;
    let started = Instant::now();
    let model = Pinned {
        model: Gateway {
            statistic: Statistic::P99,
            resolution: Resolution::COARSE,
            ..gateway(&config)
        },
        paths: &paths,
        pins: config.apps.iter().map(|app| app.path).collect(),
    };
    let problem = Problem::new(&paths, &apps, &model)
        .map_err(|e| Failure::new(e.to_string()))?
        .with_tolerance(Tolerance::from_ratio(config.gateway.tolerance.get()).unwrap_or_default());
    let (assignment, optimal) = match config.gateway.planner {
        Planner::Exact => {
            let exact = plan::exact(&problem, Budget::default());
            (
                exact.plan.assignment,
                exact.optimality == Optimality::Proven,
            )
        }
        Planner::Frugal => (plan::frugal(&problem, Budget::default()).assignment, false),
        Planner::Greedy => (plan::greedy(&problem).assignment, false),
        // Pinned paths only; the rest takes the first path.
        Planner::Off => (vec![0; apps.len()], false),
    };
    let assignment = pinned(&config, assignment);
    Ok(snapshot(
        &config,
        &paths,
        &apps,
        &assignment,
        optimal,
        started,
    ))
}

/// Paths and applications as the planner sees them.
fn specs(config: &Config) -> Result<(Vec<PathSpec>, Vec<AppSpec>), Failure> {
    let mut missing = Vec::new();
    let mut paths = Vec::new();
    for path in &config.paths {
        match path.delay {
            Some(delay) => paths.push(PathSpec {
                bandwidth: path.rate,
                delay,
            }),
            None => missing.push(format!("path `{}` has no `delay`", path.name)),
        }
    }
    let mut apps = Vec::new();
    for app in &config.apps {
        match (app.length, app.interval) {
            (Some(length), Some(interval)) => {
                apps.push(AppSpec {
                    length,
                    interval,
                    demand: app.demand,
                });
            }
            (None, Some(_)) => missing.push(format!("application `{}` has no `length`", app.name)),
            (Some(_), None) => {
                missing.push(format!("application `{}` has no `interval`", app.name));
            }
            (None, None) => {
                missing.push(format!(
                    "application `{}` has neither `length` nor `interval`",
                    app.name
                ));
            }
        }
    }
    if missing.is_empty() {
        return Ok((paths, apps));
    }
    let mut failure = Failure::new(format!(
        "{}: what the running gateway measures must be in the file to plan from it alone",
        config.file()
    ));
    for what in missing {
        failure = failure.because(what);
    }
    Err(failure.hint("add these, or ask the running gateway: `keiro plan` without --config"))
}

fn gateway(config: &Config) -> Gateway {
    let scheduler = match config.gateway.scheduler {
        Scheduler::Deadline => queueing::Scheduler::Deadline,
        Scheduler::Fifo => queueing::Scheduler::Fifo,
    };
    let wire = WireFormat::new(
        ByteCount::new(PACKET_BYTES - OVERHEAD_BYTES),
        ByteCount::new(OVERHEAD_BYTES),
    );
    Gateway::new(scheduler, wire.expect("a packet has room for a message"))
}

/// The assignment with every pin obeyed, also where its path is overloaded.
fn pinned(config: &Config, mut assignment: Vec<usize>) -> Vec<usize> {
    for (path, app) in assignment.iter_mut().zip(&config.apps) {
        *path = app.path.map_or(*path, |PathIndex(pin)| pin);
    }
    assignment
}

/// A model in which an application has no delay to speak of on any path but the one that it is
/// pinned to.
struct Pinned<'a> {
    model: Gateway,
    /// The planner's own list: a path is known by its place in it.
    paths: &'a [PathSpec],
    pins: Vec<Option<PathIndex>>,
}

impl DelayModel for Pinned<'_> {
    fn delays(
        &self,
        path: &PathSpec,
        apps: &[AppSpec],
        members: &[usize],
        delays: &mut Vec<Delay>,
    ) {
        self.model.delays(path, apps, members, delays);
        for (member, delay) in members.iter().zip(delays) {
            let elsewhere =
                |pin: &PathIndex| self.paths.get(pin.0).is_none_or(|p| !std::ptr::eq(p, path));
            if self.pins[*member].as_ref().is_some_and(elsewhere) {
                *delay = Delay::Overloaded;
            }
        }
    }
}

fn snapshot(
    config: &Config,
    paths: &[PathSpec],
    apps: &[AppSpec],
    assignment: &[usize],
    optimal: bool,
    started: Instant,
) -> PlanSnapshot {
    let equation = Equation3 {
        saturation: Saturation::AsPrinted,
    };
    let problem = Problem::new(paths, apps, &equation).expect("there are paths, else no plan");
    let printed = problem.evaluate(assignment).predictions;
    let tolerance = config.gateway.tolerance.get();
    let model = gateway(config);
    let mut planned = Vec::new();
    for (index, app) in config.apps.iter().enumerate() {
        let path = assignment[index];
        let members: Vec<usize> = (0..apps.len()).filter(|a| assignment[*a] == path).collect();
        let forecasts = model.forecast(&paths[path], apps, &members);
        let own = members.iter().position(|member| *member == index);
        let forecast = own.and_then(|own| forecasts.get(own));
        let delay = |statistic| forecast.and_then(|f| f.delay(statistic).finite());
        let seconds = |statistic| delay(statistic).map(|d: std::time::Duration| d.as_secs_f64());
        planned.push(planned_app(
            config,
            app,
            path,
            &printed[index],
            seconds(Statistic::Mean),
            seconds(Statistic::P99),
            tolerance,
        ));
    }
    let unmet = planned.iter().filter(|app| app.demand_met == Some(false));
    let late = |app: &PlannedApp| app.margin_seconds.map_or(0.0, |margin| (-margin).max(0.0));
    let means = planned
        .iter()
        .map(|app| app.terms.and_then(|t| t.predicted_delay_seconds));
    PlanSnapshot {
        planner: config.gateway.planner,
        tolerance_ratio: tolerance,
        feasible: unmet.clone().count() == 0,
        optimal,
        model: ModelState::Unverified,
        applied: false,
        // Nothing runs, so nothing moves.
        changes: 0,
        unmet: unmet.clone().count() as u64,
        lateness_seconds: unmet.map(late).sum(),
        delay_sum_seconds: means.sum(),
        planning_seconds: started.elapsed().as_secs_f64(),
        apps: planned,
    }
}

fn planned_app(
    config: &Config,
    app: &App,
    path: usize,
    printed: &Prediction,
    mean: Option<f64>,
    p99: Option<f64>,
    tolerance: f64,
) -> PlannedApp {
    let demand = app.demand.map(|d| d.as_secs_f64());
    let terms = printed.terms;
    PlannedApp {
        name: app.name.to_string(),
        peer: config[app.peer].name.to_string(),
        path: config.paths.get(path).map(|path| path.name.to_string()),
        path_now: None,
        assigned_by: match app.path {
            Some(_) => AssignedBy::Pin,
            None => AssignedBy::Planner,
        },
        terms: Some(DelayTerms {
            propagation_seconds: terms.propagation.as_secs_f64(),
            length_bytes: terms.length.get() as f64,
            rate_bits_per_second: terms.bandwidth.as_bits_per_second() as f64,
            other_load_bits_per_second: terms.others.as_bits_per_second() as f64,
            paper_delay_seconds: printed.delay.finite().map(|d| d.as_secs_f64()),
            predicted_delay_seconds: mean,
        }),
        demand_seconds: demand,
        margin_seconds: demand.zip(p99).map(|(demand, p99)| demand - p99),
        demand_met: demand.map(|demand| p99.is_some_and(|p99| p99 <= demand * (1.0 + tolerance))),
    }
}
