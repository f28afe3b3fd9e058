//! The planner's problem and its answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant as Stopwatch},
};

use keiro_control::{
    config::{self, App, AppIndex, Class, Config, PathIndex, PeerIndex, Planner, Scheduler},
    protocol::AssignedBy,
};
pub(crate) use keiro_planner::steer::PlanMode;
use keiro_planner::{
    delay::{AppSpec, Delay, Equation3, PathSpec, Prediction, Saturation, Terms, Tolerance},
    plan::{
        self, Budget, DelayModel, OnWire, Problem,
        incumbent::{Aim, Allowed, AppId, Hysteresis, PathId, Settings},
    },
    queueing::{Repair, Statistic, WireFormat},
    steer::{PathSample, SteeredApp, eligible_paths, plan_moves, probation_paths},
};
use keiro_units::Bandwidth;

use crate::target_monitor::TargetRatios;

use super::{
    ExpectedDelay, MeasuredDelay, PlannerInput,
    forecast::{DelayForecast, ForecastState, Line, Sender, packets_of, wire_format},
    input::{traffic_of, workload_of},
    refine::{ForecastResolution, Forecasts, members},
};

/// What was found.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// One for each of the configuration's applications.
    pub(crate) apps: Vec<AppAssignment>,
    pub(crate) optimal: bool,
    /// Moves by which others would gain wait until more is known.
    pub(crate) defers_moves: bool,
    /// Beyond the latency targets loosened by the tolerance, summed up.
    pub(crate) lateness: Duration,
    /// Of the forecasts' means; `None` if an application has none.
    pub(crate) delay_sum: Option<Duration>,
    /// How long planning took.
    pub(crate) took: Duration,
}

/// One application in a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AppAssignment {
    /// `None`: no path to its peer is up.
    pub(crate) path: Option<PathIndex>,
    pub(crate) by: AssignedBy,
    /// By eq. 3.
    pub(crate) prediction: Option<Prediction>,
    /// By the queueing model; `None` as well where that has no answer.
    pub(crate) forecast: Option<DelayForecast>,
    /// What that comes to; `None`: no path.
    pub(crate) expected: Option<ExpectedDelay>,
    /// The latency target is met, as [`ExpectedDelay::met`]; `None`: no latency target or no path.
    pub(crate) met: Option<bool>,
}

/// The planner's problem.
#[derive(Debug)]
pub(crate) struct PlanningProblem {
    /// The configuration's number of each path.
    pub(super) paths: Vec<PathIndex>,
    pub(super) path_specs: Vec<PathSpec>,
    /// The configuration's number of each application.
    pub(super) apps: Vec<AppIndex>,
    /// Messages as the applications know them.
    pub(super) app_specs: Vec<AppSpec>,
    /// Paths and messages as they are on the wire, which is what is planned with.
    pub(super) wire: OnWire,
    pub(super) senders: Vec<Sender>,
    /// Paths as forecasts need them: without what losses cost, and what repairs them.
    queues: Vec<(PathSpec, Repair)>,
    /// Per application: messages per second whose outcomes the peer tells.
    outcomes: Vec<f64>,
    /// Where each is; `None`: nowhere.
    pub(super) at: Vec<Option<usize>>,
    /// Delays that were measured with everybody where they are.
    pub(super) measured: BTreeMap<AppIndex, MeasuredDelay>,
    /// Those that send, nobody knows what: they are planned with as next to nothing.
    pub(super) little_known: BTreeSet<usize>,
    /// Per application and path: whether it leads to its peer.
    reachable: Vec<Vec<bool>>,
    /// Per application and path: whether it may be there.
    pub(super) allowed: Vec<Vec<bool>>,
    /// Per application and path: whether it may be there besides if its latency target is met nowhere else.
    pub(super) spare: Vec<Vec<bool>>,
    by: Vec<AssignedBy>,
    pub(super) tolerance: Tolerance,
    planner: Planner,
    pub(super) scheduler: Scheduler,
}

/// Where every application of a problem goes.
#[derive(Clone, Debug)]
pub(super) struct Assigned {
    pub(super) assignment: Vec<usize>,
    /// Proven best by eq. 3.
    pub(super) optimal: bool,
    /// As [`Plan::defers_moves`].
    pub(super) defers_moves: bool,
}

/// Where applications are taken to be, and where they may go.
pub(super) struct Placement {
    /// `None`: nowhere.
    pub(super) at: Vec<Option<usize>>,
    /// Row per application, column per path.
    pub(super) allowed: Vec<Vec<bool>>,
}

/// Another path for one application, everything else where it is.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) path: PathIndex,
    pub(crate) prediction: Prediction,
    pub(crate) forecast: Option<DelayForecast>,
    pub(crate) expected: ExpectedDelay,
    /// Without a forecast: what the plan takes it to get there by what was measured where it is.
    pub(crate) extrapolated: Option<MeasuredDelay>,
    /// Applications that would miss their latency target by the move, by eq. 3.
    pub(crate) newly_unmet: Vec<AppIndex>,
    /// The most that others may send there for the latency target to hold by eq. 3; `None`: no latency target, or
    /// never.
    pub(crate) others_max: Option<Bandwidth>,
}

/// Up to so many applications the planners that search are asked as well: within their usual
/// budget they have something to add to that size.
const SEARCHED_APPS_MAX: usize = 300;
/// The planner's own bound on rates, 2^48 bit/s.
const RATE_MAX: u64 = (1 << 48) - 1;

impl PlanningProblem {
    /// The problem as of now. Applications whose peer no path reaches are left out.
    pub(crate) fn new(config: &Config, input: &PlannerInput) -> Self {
        let packets = longest_message(config, input);
        let mut paths = Vec::new();
        let (mut path_specs, mut queues) = (Vec::new(), Vec::new());
        for (number, path) in config.paths.iter().enumerate() {
            let index = PathIndex(number);
            let of_path = |((p, _), _): &(&(PathIndex, PeerIndex), _)| *p == index;
            let up: Vec<_> = input.up.iter().filter(of_path).collect();
            if up.is_empty() {
                continue;
            }
            let samples = up.iter().filter_map(|(_, sample)| sample.as_ref());
            let samples: Vec<&PathSample> = samples.collect();
            paths.push(index);
            path_specs.push(worst(path, samples.iter().map(|s| s.spec(packets))));
            let repairs = samples.iter().map(|sample| sample.queue().1);
            queues.push((
                worst(path, samples.iter().map(|sample| sample.queue().0)),
                repairs.fold(Repair::NONE, |worst, repair| Repair {
                    loss: match repair.loss > worst.loss {
                        true => repair.loss,
                        false => worst.loss,
                    },
                    round: worst.round.max(repair.round),
                }),
            ));
        }
        let mut problem = Self {
            paths,
            path_specs,
            apps: Vec::new(),
            app_specs: Vec::new(),
            wire: OnWire::new(&[], &[], &[]),
            senders: Vec::new(),
            queues,
            outcomes: Vec::new(),
            at: Vec::new(),
            measured: input.measured.clone(),
            little_known: BTreeSet::new(),
            reachable: Vec::new(),
            allowed: Vec::new(),
            spare: Vec::new(),
            by: Vec::new(),
            tolerance: tolerance(config),
            planner: config.gateway.planner,
            scheduler: config.gateway.scheduler,
        };
        for (number, app) in config.apps.iter().enumerate() {
            problem.add_app(AppIndex(number), app, input);
        }
        problem.wire = problem.on_wire();
        problem
    }

    /// Paths and applications as they are on the wire.
    fn on_wire(&self) -> OnWire {
        let format = |(path, spec): (usize, &PathSpec)| {
            wire_format(spec.bandwidth, self.outcomes_over(path))
        };
        let formats: Vec<WireFormat> = self.path_specs.iter().enumerate().map(format).collect();
        OnWire::new(&self.path_specs, &self.app_specs, &formats)
    }

    fn add_app(&mut self, index: AppIndex, app: &App, input: &PlannerInput) {
        let reaches = |path: &PathIndex| input.up.contains_key(&(*path, app.peer));
        let reachable: Vec<bool> = self.paths.iter().map(reaches).collect();
        if !reachable.contains(&true) {
            return;
        }
        let wanted = match input.operator.get(&index) {
            Some(path) => Some((*path, AssignedBy::Operator)),
            None => app.path.map(|path| (path, AssignedBy::Pin)),
        };
        let site = input.site.get(&index);
        let wanted = wanted.or(site.map(|path| (*path, AssignedBy::Planner)));
        let now = input.now.get(&index).copied();
        let leads_there = self.paths.iter().copied().filter(reaches);
        let standings = leads_there.map(|path| (path, input.standing(path, app.peer)));
        let eligible = eligible_paths(standings.clone(), now);
        if eligible.is_empty() && wanted.is_none() {
            return;
        }
        let may: Vec<bool> = self
            .paths
            .iter()
            .map(|path| eligible.contains(path))
            .collect();
        let on_probation = probation_paths(standings);
        // Without a planner: the first path that is up.
        let first = eligible.first().copied();
        let (allowed, by) = match wanted {
            Some((path, by)) if reaches(&path) => (self.only(path), by),
            Some((_, by)) => match by {
                // The site plans anew as soon as it knows.
                AssignedBy::Planner => (may, by),
                _ => (may, AssignedBy::Fallback),
            },
            None => match (self.planner, first) {
                (Planner::Off, Some(first)) => (self.only(first), AssignedBy::Fallback),
                _ => (may, AssignedBy::Planner),
            },
        };
        let is_free = wanted.is_none() && by == AssignedBy::Planner;
        let spare = |path: &PathIndex| is_free && on_probation.contains(path);
        self.spare.push(self.paths.iter().map(spare).collect());
        let seen = input.workloads.get(&index).copied();
        if input.is_little_known(index, app) {
            self.little_known.insert(self.apps.len());
        }
        self.apps.push(index);
        self.reachable.push(reachable);
        let traffic = traffic_of(app, seen);
        let interval = traffic.app.interval.as_secs_f64();
        let is_told = app.class == Class::Message && interval > 0.0;
        self.outcomes
            .push(if is_told { 1.0 / interval } else { 0.0 });
        self.app_specs.push(traffic.app);
        self.senders.push(Sender {
            traffic,
            evidence: input.evidence(index, app),
            is_repaired: app.class != Class::Datagram,
        });
        self.at
            .push(now.and_then(|now| self.paths.iter().position(|path| *path == now)));
        self.allowed.push(allowed);
        self.by.push(by);
    }

    fn only(&self, path: PathIndex) -> Vec<bool> {
        self.paths.iter().map(|p| *p == path).collect()
    }

    /// Asks the planner.
    pub(crate) fn answer(
        &self,
        config: &Config,
        plan_mode: PlanMode,
        forecast_state: &ForecastState,
    ) -> Plan {
        let stopwatch = Stopwatch::now();
        let mut forecasts = Forecasts::new(self, forecast_state);
        let answer = self.assignment(plan_mode, &mut forecasts, ForecastResolution::Fine);
        let planned = self.told(config, &answer.assignment, &mut forecasts);
        Plan {
            optimal: answer.optimal,
            defers_moves: answer.defers_moves,
            took: stopwatch.elapsed(),
            ..planned
        }
    }

    /// What there is to say with everybody where they are: of whom nothing is planned.
    pub(crate) fn standing(&self, config: &Config, forecast_state: &ForecastState) -> Plan {
        let mut forecasts = Forecasts::new(self, forecast_state);
        let mut standing = self.told(config, &self.current_assignment(), &mut forecasts);
        for (number, index) in self.apps.iter().enumerate() {
            if self.at[number].is_none() {
                standing.apps[index.0] = NOWHERE;
            }
        }
        standing
    }

    /// What the delay of everybody who is somewhere is made of there, by eq. 3.
    pub(crate) fn current_terms(&self) -> BTreeMap<AppIndex, (PathIndex, Terms)> {
        let predictions = self.evaluate(&self.current_assignment()).predictions;
        let terms = |((app, at), prediction): ((&AppIndex, &Option<usize>), Prediction)| {
            Some((*app, (self.paths[(*at)?], prediction.terms)))
        };
        let there = self.apps.iter().zip(&self.at).zip(predictions);
        there.filter_map(terms).collect()
    }

    /// Everybody where `assignment` says.
    fn told(&self, config: &Config, assignment: &[usize], forecasts: &mut Forecasts<'_>) -> Plan {
        let predictions = self.evaluate(assignment).predictions;
        let forecasts_of = self.forecasts_of(assignment, forecasts);
        let unchanged = self.unchanged(assignment);
        let mut apps = vec![NOWHERE; config.apps.len()];
        let (mut lateness, mut delay_sum) = (Duration::ZERO, Some(Duration::ZERO));
        for (number, index) in self.apps.iter().enumerate() {
            let (prediction, forecast) = (predictions[number], forecasts_of[number]);
            let measured = self.measured.get(index).copied();
            let measured = measured.filter(|_| unchanged.contains(&assignment[number]));
            let expected =
                ExpectedDelay::of(&prediction, forecast.as_ref(), measured, self.tolerance);
            let mean = expected.predicted.and_then(Delay::finite);
            lateness = lateness.saturating_add(expected.lateness);
            delay_sum = delay_sum
                .zip(mean)
                .map(|(sum, mean)| sum.saturating_add(mean));
            apps[index.0] = AppAssignment {
                path: Some(self.paths[assignment[number]]),
                by: self.by[number],
                prediction: Some(prediction),
                forecast,
                expected: Some(expected),
                met: expected.met,
            };
        }
        Plan {
            apps,
            optimal: false,
            defers_moves: false,
            lateness,
            delay_sum,
            took: Duration::ZERO,
        }
    }

    /// The paths that `assignment` leaves to those who are there, and to nobody else: what was
    /// measured there holds.
    fn unchanged(&self, assignment: &[usize]) -> BTreeSet<usize> {
        let mut unchanged: BTreeSet<usize> = (0..self.paths.len()).collect();
        for (at, path) in self.at.iter().zip(assignment) {
            if *at != Some(*path) {
                unchanged.retain(|other| other != path && Some(*other) != *at);
            }
        }
        unchanged
    }

    /// `path`, for forecasts.
    pub(super) fn line(&self, path: usize) -> Line {
        let (spec, repair) = self.queues[path];
        Line {
            index: self.paths[path],
            path: spec,
            repair,
            outcomes: self.outcomes_over(path),
        }
    }

    /// Only the paths: where every application of the problem goes.
    pub(crate) fn places(
        &self,
        plan_mode: PlanMode,
        forecast_state: &ForecastState,
    ) -> BTreeMap<AppIndex, PathIndex> {
        let mut forecasts = Forecasts::new(self, forecast_state);
        let answer = self.assignment(plan_mode, &mut forecasts, ForecastResolution::Coarse);
        let places = self.apps.iter().zip(answer.assignment);
        places.map(|(app, path)| (*app, self.paths[path])).collect()
    }

    /// What eq. 3 predicts for `app` on every path that is up, with everything else where it is.
    /// Empty if the application is not part of the problem.
    pub(crate) fn predictions(&self, app: AppIndex) -> Vec<(PathIndex, Prediction)> {
        let Some((_, alternatives, _)) = self.alternatives(app) else {
            return Vec::new();
        };
        let prediction = |a: &plan::Alternative| (self.paths[a.path], a.prediction);
        alternatives.iter().map(prediction).collect()
    }

    /// As [`predictions`](Self::predictions), with everything that there is to say.
    pub(crate) fn candidates(
        &self,
        app: AppIndex,
        forecast_state: &ForecastState,
    ) -> Vec<Candidate> {
        let Some((number, alternatives, assignment)) = self.alternatives(app) else {
            return Vec::new();
        };
        let spec = &self.app_specs[number];
        let mut forecasts = Forecasts::new(self, forecast_state);
        alternatives
            .into_iter()
            .filter(|alternative| self.reachable[number][alternative.path])
            .map(|alternative| {
                let mut moved = assignment.clone();
                moved[number] = alternative.path;
                let limit = spec
                    .latency_target
                    .map(|latency_target| self.tolerance.loosen(latency_target));
                let path = &self.path_specs[alternative.path];
                let prediction = alternative.prediction;
                let on_path = members(&moved, alternative.path);
                let shown = forecasts.shown(alternative.path, &on_path).iter();
                let mut shown = shown.zip(&on_path);
                let forecast = shown.find_map(|(told, app)| (*app == number).then_some(*told));
                let measured = self.measured.get(&app).copied();
                let measured = measured.filter(|_| self.at[number] == Some(alternative.path));
                let has_forecast = forecast.is_some_and(|forecast| forecast.mean().is_some());
                let extrapolated = self.extrapolated(number, alternative.path, &prediction);
                Candidate {
                    path: self.paths[alternative.path],
                    forecast,
                    extrapolated: extrapolated.filter(|_| !has_forecast && self.is_refined()),
                    expected: ExpectedDelay::of(
                        &prediction,
                        forecast.as_ref(),
                        measured,
                        self.tolerance,
                    ),
                    newly_unmet: alternative
                        .newly_unmet
                        .iter()
                        .map(|n| self.apps[*n])
                        .collect(),
                    others_max: limit.and_then(|limit| EQUATION.others_max(path, spec, limit)),
                    prediction,
                }
            })
            .collect()
    }

    /// The application's number in the problem, its alternatives, and the assignment of now.
    fn alternatives(&self, app: AppIndex) -> Option<(usize, Vec<plan::Alternative>, Vec<usize>)> {
        let number = self.apps.iter().position(|index| *index == app)?;
        let assignment = self.current_assignment();
        let problem = Problem::new(&self.path_specs, &self.app_specs, &EQUATION).ok()?;
        let problem = problem.with_tolerance(self.tolerance);
        let alternatives = plan::alternatives(&problem, &assignment, number);
        Some((number, alternatives, assignment))
    }

    /// Where everybody is; who is nowhere counts as on the first path.
    pub(super) fn current_assignment(&self) -> Vec<usize> {
        self.at.iter().map(|at| at.unwrap_or(0)).collect()
    }

    /// Where every application of the problem goes.
    pub(super) fn assignment(
        &self,
        plan_mode: PlanMode,
        forecasts: &mut Forecasts<'_>,
        look: ForecastResolution,
    ) -> Assigned {
        let searched = self.apps.len() <= SEARCHED_APPS_MAX;
        let now = || Placement::new(self, &self.at);
        let (mut assignment, optimal) = match plan_mode {
            _ if !self.searches() => self.solve(),
            PlanMode::FromScratch if searched => self.solve(),
            PlanMode::FromScratch => (self.arranged(&now(), plan_mode, &self.wire.apps), false),
            PlanMode::Revise => {
                let planner_specs = self.planner_specs(forecasts, look);
                (self.arranged(&now(), plan_mode, &planner_specs), false)
            }
        };
        // A planner that finds no place at all may leave an application where it may not be.
        for (app, path) in assignment.iter_mut().enumerate() {
            let allowed = &self.allowed[app];
            if !allowed[*path] && !self.spare[app][*path] {
                *path = allowed.iter().position(|may| *may).unwrap_or(*path);
            }
        }
        let refined = self.refined(assignment.clone(), plan_mode, forecasts, look);
        Assigned {
            optimal: optimal && refined.assignment == assignment,
            ..refined
        }
    }

    /// Whether the planner is one that looks for the best.
    pub(super) fn searches(&self) -> bool {
        matches!(self.planner, Planner::Exact | Planner::Frugal)
    }

    /// By the planner for plans in force; `specs` are what it is told of the applications.
    pub(super) fn arranged(
        &self,
        placement: &Placement,
        plan_mode: PlanMode,
        specs: &[AppSpec],
    ) -> Vec<usize> {
        let paths = self.named_paths();
        let steered_apps = self.steered_apps(placement, specs);
        let budget = Budget::default();
        let at = |number: usize| placement.at[number].unwrap_or(0);
        match plan_moves(self.settings(), &paths, &steered_apps, plan_mode, budget) {
            Ok(arrangement) => {
                let places = arrangement.places();
                let place = |number: usize| match places.get(&app_id(number)) {
                    Some(path) => path.0 as usize,
                    None => at(number),
                };
                (0..self.apps.len()).map(place).collect()
            }
            Err(refused) => {
                // The configuration's own bounds are narrower.
                tracing::error!(?refused, "cannot plan; applications stay where they are");
                (0..self.apps.len()).map(at).collect()
            }
        }
    }

    pub(super) fn named_paths(&self) -> Vec<(PathId, PathSpec)> {
        let specs = self.wire.paths.iter().enumerate();
        specs
            .map(|(number, spec)| (path_id(number), *spec))
            .collect()
    }

    pub(super) fn settings(&self) -> Settings {
        Settings {
            tolerance: self.tolerance,
            aim: match self.planner {
                Planner::Frugal => Aim::Frugal,
                Planner::Exact | Planner::Greedy | Planner::Off => Aim::LeastDelay,
            },
            hysteresis: Hysteresis::default(),
        }
    }

    pub(super) fn steered_apps(&self, placement: &Placement, specs: &[AppSpec]) -> Vec<SteeredApp> {
        let of = |may: &[bool]| -> BTreeSet<PathId> {
            let may = may.iter().enumerate();
            may.filter(|(_, may)| **may)
                .map(|(path, _)| path_id(path))
                .collect()
        };
        let steered_app = |number: usize| {
            let only = of(&placement.allowed[number]);
            SteeredApp {
                id: app_id(number),
                spec: specs[number],
                allowed: match only.len() == self.paths.len() {
                    true => Allowed::All,
                    false => Allowed::Only(only),
                },
                fallback: of(&self.spare[number]),
                path: placement.at[number].map(path_id),
            }
        };
        (0..self.apps.len()).map(steered_app).collect()
    }

    /// By a planner from scratch.
    fn solve(&self) -> (Vec<usize>, bool) {
        let free = self
            .allowed
            .iter()
            .all(|allowed| allowed.iter().all(|may| *may));
        match free {
            true => self.solve_by(&EQUATION),
            false => self.solve_by(&Restricted { problem: self }),
        }
    }

    fn solve_by(&self, model: &impl DelayModel) -> (Vec<usize>, bool) {
        let Ok(problem) = Problem::new(&self.wire.paths, &self.wire.apps, model) else {
            // There are no applications without a path, so there are no applications.
            return (Vec::new(), true);
        };
        // In the order in which it is revised, or the first revision would move people.
        let order = self.settings().aim.order();
        let problem = problem.with_tolerance(self.tolerance).with_order(order);
        match self.planner {
            Planner::Frugal => (plan::frugal(&problem, Budget::default()).assignment, false),
            Planner::Greedy => (plan::greedy(&problem).assignment, false),
            Planner::Exact | Planner::Off => {
                let exact = plan::exact(&problem, Budget::default());
                let optimal = exact.gap().is_none();
                (exact.plan.assignment, optimal)
            }
        }
    }

    /// By the paper's eq. 3, which knows no headers.
    fn evaluate(&self, assignment: &[usize]) -> plan::Plan {
        self.evaluated(&self.path_specs, &self.app_specs, assignment)
    }

    /// By eq. 3 as the planner goes by it.
    pub(super) fn evaluate_on_wire(&self, assignment: &[usize]) -> plan::Plan {
        self.evaluated(&self.wire.paths, &self.wire.apps, assignment)
    }

    fn evaluated(&self, paths: &[PathSpec], apps: &[AppSpec], assignment: &[usize]) -> plan::Plan {
        match Problem::new(paths, apps, &EQUATION) {
            Ok(problem) => problem.with_tolerance(self.tolerance).evaluate(assignment),
            Err(plan::NoPaths) => unreachable!("an application is in a problem only with a path"),
        }
    }

    fn forecasts_of(
        &self,
        assignment: &[usize],
        forecasts: &mut Forecasts<'_>,
    ) -> Vec<Option<DelayForecast>> {
        let mut all = vec![None; assignment.len()];
        for path in 0..self.paths.len() {
            let members = members(assignment, path);
            for (app, forecast) in members.iter().zip(forecasts.shown(path, &members)) {
                all[*app] = Some(*forecast);
            }
        }
        all
    }

    /// Outcomes of messages per second that come back over `path`: each application's peer tells
    /// them over the quickest path.
    pub(super) fn outcomes_over(&self, path: usize) -> f64 {
        let quickest = |reachable: &Vec<bool>| {
            let paths = (0..self.paths.len()).filter(|path| reachable[*path]);
            paths.min_by_key(|path| self.path_specs[*path].delay)
        };
        let of_apps = self.outcomes.iter().zip(&self.reachable);
        of_apps
            .filter(|(_, reachable)| quickest(reachable) == Some(path))
            .map(|(outcomes, _)| outcomes)
            .sum()
    }
}

impl Placement {
    /// Everybody `at` a path, and free to go where the problem says.
    pub(super) fn new(problem: &PlanningProblem, at: &[Option<usize>]) -> Self {
        Self {
            at: at.to_vec(),
            allowed: problem.allowed.clone(),
        }
    }
}

impl Plan {
    /// Applications whose latency target is not met, or that are overloaded.
    pub(crate) fn unmet(&self) -> usize {
        self.apps.iter().filter(|app| app.is_unmet()).count()
    }

    /// Where it puts everybody.
    pub(crate) fn places(&self) -> BTreeMap<AppIndex, PathIndex> {
        let place = |(number, app): (usize, &AppAssignment)| Some((AppIndex(number), app.path?));
        self.apps.iter().enumerate().filter_map(place).collect()
    }

    /// How many applications it would move.
    pub(crate) fn changes(&self, now: &BTreeMap<AppIndex, PathIndex>) -> usize {
        let moves = |(number, app): &(usize, &AppAssignment)| {
            app.path.is_some() && app.path.as_ref() != now.get(&AppIndex(*number))
        };
        self.apps.iter().enumerate().filter(moves).count()
    }
}

impl AppAssignment {
    /// How it stands to its latency target, loosened by the tolerance to `limit` seconds.
    pub(crate) fn target_ratios(
        &self,
        measured: Option<&MeasuredDelay>,
        limit: f64,
    ) -> TargetRatios {
        let part = |seconds: f64| seconds / limit.max(f64::MIN_POSITIVE);
        let forecast = self.forecast.and_then(|forecast| match forecast.mean()? {
            Delay::Overloaded => Some(f64::INFINITY),
            Delay::Finite(_) => forecast.seconds(Statistic::P99),
        });
        let equation = self.prediction.map(|prediction| prediction.delay);
        TargetRatios {
            measured: measured.map(|measured| part(measured.p99.as_secs_f64())),
            forecast: forecast.map(part),
            equation: equation.map(|delay| {
                let mean = delay.finite();
                part(mean.map_or(f64::INFINITY, |mean| mean.as_secs_f64()))
            }),
        }
    }

    /// One number of the forecast, in seconds; `None` where it has none.
    pub(crate) fn forecast_seconds(&self, statistic: Statistic) -> Option<f64> {
        self.forecast?.seconds(statistic)
    }

    /// The mean by eq. 3, in seconds; `None` where that has none.
    pub(crate) fn equation_seconds(&self) -> Option<f64> {
        let mean = self.prediction?.delay.finite()?;
        Some(mean.as_secs_f64())
    }

    /// Its latency target is not met, or it is overloaded.
    pub(crate) fn is_unmet(&self) -> bool {
        self.met == Some(false) || self.expected.is_some_and(|expected| expected.overloaded)
    }

    /// Its latency target is not met at the 99th percentile, whether it is on average or not.
    pub(crate) fn is_unmet_at_p99(&self) -> bool {
        self.expected
            .is_some_and(|expected| expected.met_at_p99 == Some(false))
    }
}

/// Who has no path.
const NOWHERE: AppAssignment = AppAssignment {
    path: None,
    by: AssignedBy::Nobody,
    prediction: None,
    forecast: None,
    expected: None,
    met: None,
};

pub(super) const EQUATION: Equation3 = Equation3 {
    saturation: Saturation::Refused,
};

/// Equation 3, with no finite delay where an application may not be.
struct Restricted<'a> {
    problem: &'a PlanningProblem,
}

impl DelayModel for Restricted<'_> {
    fn delays(
        &self,
        path: &PathSpec,
        apps: &[AppSpec],
        members: &[usize],
        delays: &mut Vec<Delay>,
    ) {
        EQUATION.delays(path, apps, members, delays);
        // The planner passes a reference into the problem's own list; equal paths are told apart
        // by that.
        let specs = &self.problem.wire.paths;
        let same = specs.iter().position(|spec| std::ptr::eq(spec, path));
        let Some(number) = same.or_else(|| specs.iter().position(|spec| spec == path)) else {
            return;
        };
        for (app, delay) in members.iter().zip(delays.iter_mut()) {
            if !self.problem.allowed[*app][number] {
                *delay = Delay::Overloaded;
            }
        }
    }
}

/// A path to several peers: what the farthest and narrowest of them gets; as configured where nothing
/// is known of any.
fn worst(path: &config::Path, specs: impl Iterator<Item = PathSpec> + Clone) -> PathSpec {
    let bandwidth = specs.clone().map(|spec| spec.bandwidth).min();
    let bandwidth = bandwidth.map_or(path.rate, |measured| measured.min(path.rate));
    let delay = specs.map(|spec| spec.delay).max();
    PathSpec {
        bandwidth: bandwidth.min(Bandwidth::from_bits_per_second(RATE_MAX)),
        delay: delay.or(path.delay).unwrap_or_default(),
    }
}

/// Packets of the longest message of an application that demands something: the one that a lossy
/// path serves worst.
fn longest_message(config: &Config, input: &PlannerInput) -> u64 {
    let demanding = config.apps.iter().enumerate();
    demanding
        .filter(|(_, app)| app.latency_target.is_some())
        .map(|(number, app)| {
            let seen = input.workloads.get(&AppIndex(number)).copied();
            packets_of(workload_of(app, seen).0.length)
        })
        .max()
        .unwrap_or(1)
}

pub(super) fn app_id(number: usize) -> AppId {
    AppId(u32::try_from(number).unwrap_or(u32::MAX))
}

pub(super) fn path_id(number: usize) -> PathId {
    PathId(u32::try_from(number).unwrap_or(u32::MAX))
}

fn tolerance(config: &Config) -> Tolerance {
    Tolerance::from_ratio(config.gateway.tolerance.get()).unwrap_or(Tolerance::STRICT)
}
