//! Which application on which path: builds the planner's question from configuration and measured
//! facts, asks it, and turns the answer into preferences.
//!
//! All applications of this gateway are planned together, since they share its paths; each may only
//! take paths that lead to its peer and are up. Pins and operators' assignments are kept and count
//! as load. The planner's objective is [path-selection eq. 3] in `keiro_model::plan`; beside it
//! stands the queueing forecast for the scheduler in use, which knows headers and deadlines.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant as Stopwatch},
};

use keiro_control::{
    config::{App, AppIndex, Config, PathIndex, PeerIndex, Planner, Scheduler},
    protocol::AssignedBy,
};
use keiro_model::{
    Bandwidth, ByteCount,
    delay::{AppSpec, Delay, Equation3, PathSpec, Prediction, Tolerance},
    plan::{self, Budget, DelayModel, Problem},
    queueing::{self, Gateway, Resolution, Statistic, WireFormat},
};

/// What is known about the world besides the configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// Paths to peers that are up, with half of the smallest round trip, if measured.
    pub(crate) up: BTreeMap<(PathIndex, PeerIndex), Option<Duration>>,
    /// Applications that an operator has put on a path.
    pub(crate) operator: BTreeMap<AppIndex, PathIndex>,
    /// The path of each application now.
    pub(crate) now: BTreeMap<AppIndex, PathIndex>,
    /// What applications send, where enough was measured and the configuration does not say it.
    pub(crate) workloads: BTreeMap<AppIndex, Seen>,
}

/// What is known about an application's traffic by measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It sends this.
    Sends(Workload),
    /// It has sent, and stopped.
    Stopped,
}

/// Where a workload is from that is planned with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// All of it is the configuration's.
    Configured,
    /// What the configuration leaves open was measured.
    Measured,
    /// The application has stopped: next to nothing is taken for what is open.
    Stopped,
    /// Next to nothing is taken for what is open, for want of messages.
    Unknown,
}

/// What an application sends, as the planner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Workload {
    /// Mean length.
    pub(crate) length: ByteCount,
    /// Mean interval.
    pub(crate) interval: Duration,
}

/// What was found.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    /// One for each of the configuration's applications.
    pub(crate) apps: Vec<PlannedPath>,
    pub(crate) optimal: bool,
    /// Beyond the demands loosened by the tolerance, summed up.
    pub(crate) lateness: Duration,
    /// `None` if an application on an overloaded path has none.
    pub(crate) delay_sum: Option<Duration>,
    /// How long planning took.
    pub(crate) took: Duration,
}

/// One application in a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedPath {
    /// `None`: no path to its peer is up.
    pub(crate) path: Option<PathIndex>,
    pub(crate) by: AssignedBy,
    /// By eq. 3.
    pub(crate) prediction: Option<Prediction>,
    /// The mean by the queueing model; `None` as well where that has no answer.
    pub(crate) forecast: Option<Delay>,
    /// The demand loosened by the tolerance is met by eq. 3; `None`: no demand or no path.
    pub(crate) met: Option<bool>,
}

/// The planner's question.
#[derive(Debug)]
pub(crate) struct Question {
    /// The configuration's number of each path.
    paths: Vec<PathIndex>,
    path_specs: Vec<PathSpec>,
    /// The configuration's number of each application.
    apps: Vec<AppIndex>,
    app_specs: Vec<AppSpec>,
    /// Per application and path: whether it leads to its peer.
    reachable: Vec<Vec<bool>>,
    /// Per application and path: whether it may be there.
    allowed: Vec<Vec<bool>>,
    by: Vec<AssignedBy>,
    tolerance: Tolerance,
    planner: Planner,
    scheduler: Scheduler,
}

/// Another path for one application, everything else where it is.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) path: PathIndex,
    pub(crate) prediction: Prediction,
    pub(crate) forecast: Option<Delay>,
    pub(crate) met: Option<bool>,
    /// Applications that would miss their demand by the move.
    pub(crate) newly_unmet: Vec<AppIndex>,
    /// The most that others may send there for the demand to hold; `None`: no demand, or never.
    pub(crate) others_max: Option<Bandwidth>,
}

/// Planned with for an application of which nothing is known, or that has stopped. Ours: next to
/// nothing, so that it does not push others away.
const WORKLOAD_DEFAULT: Workload = Workload {
    length: ByteCount::new(1000),
    interval: Duration::from_secs(1),
};

/// Smaller changes of a measured load do not lead to a new plan. Ours: the mean of the hundred or so
/// exponential intervals that are remembered wanders by some 9 %, so that this is 3 σ.
const LOAD_NOISE: f64 = 0.3;

/// Smaller changes of a measured one-way delay do not lead to a new plan, nor do those below a tenth
/// of it. Ours.
const DELAY_NOISE: Duration = Duration::from_millis(1);

/// What every packet costs: IPv4 and UDP 28, our header and tag 26, the message frame about 18.
const OVERHEAD_PER_PACKET: u64 = 72;
/// IP bytes of a full packet.
const PACKET_BYTES: u64 = 1500;
/// More applications than this are forecast coarsely.
const FINE_APPS_MAX: usize = 16;

/// Whether a measured delay is another one than that which was planned with, beyond noise.
pub(crate) fn is_other_delay(planned: Duration, measured: Duration) -> bool {
    planned.abs_diff(measured) > DELAY_NOISE.max(planned / 10)
}

/// Whether a measured workload is another one than that which was planned with, beyond noise.
pub(crate) fn is_other_workload(planned: Workload, measured: Workload) -> bool {
    let differs = |a: f64, b: f64| (a - b).abs() > LOAD_NOISE * a.max(b);
    let length = |workload: Workload| workload.length.get() as f64;
    let rate = |workload: Workload| length(workload) / workload.interval.as_secs_f64().max(1e-9);
    differs(length(planned), length(measured)) || differs(rate(planned), rate(measured))
}

/// What `app` is planned with: what the configuration says, else what was measured, else next to
/// nothing; and where it is from.
pub(crate) fn workload_of(app: &App, seen: Option<Seen>) -> (Workload, Origin) {
    let (base, origin) = match seen {
        _ if is_described(app) => (WORKLOAD_DEFAULT, Origin::Configured),
        Some(Seen::Sends(workload)) => (workload, Origin::Measured),
        Some(Seen::Stopped) => (WORKLOAD_DEFAULT, Origin::Stopped),
        None => (WORKLOAD_DEFAULT, Origin::Unknown),
    };
    let workload = Workload {
        length: app.length.unwrap_or(base.length),
        interval: app.interval.unwrap_or(base.interval),
    };
    (workload, origin)
}

/// The configuration says all that there is to know about the application's traffic.
pub(crate) fn is_described(app: &App) -> bool {
    app.length.is_some() && app.interval.is_some()
}

impl Question {
    /// The question as of now. Applications whose peer no path reaches are left out.
    pub(crate) fn new(config: &Config, facts: &Facts) -> Self {
        let mut paths = Vec::new();
        let mut path_specs = Vec::new();
        for (number, path) in config.paths.iter().enumerate() {
            let index = PathIndex(number);
            let up = facts.up.iter().filter(|((p, _), _)| *p == index);
            let measured = up.clone().filter_map(|(_, delay)| *delay).min();
            if up.count() > 0 {
                paths.push(index);
                path_specs.push(PathSpec {
                    bandwidth: path.rate,
                    delay: path.delay.or(measured).unwrap_or_default(),
                });
            }
        }
        let mut question = Self {
            paths,
            path_specs,
            apps: Vec::new(),
            app_specs: Vec::new(),
            reachable: Vec::new(),
            allowed: Vec::new(),
            by: Vec::new(),
            tolerance: tolerance(config),
            planner: config.gateway.planner,
            scheduler: config.gateway.scheduler,
        };
        for (number, app) in config.apps.iter().enumerate() {
            question.add_app(AppIndex(number), app, facts);
        }
        question
    }

    fn add_app(&mut self, index: AppIndex, app: &App, facts: &Facts) {
        let reaches = |path: &PathIndex| facts.up.contains_key(&(*path, app.peer));
        let reachable: Vec<bool> = self.paths.iter().map(reaches).collect();
        if !reachable.contains(&true) {
            return;
        }
        let wanted = match facts.operator.get(&index) {
            Some(path) => Some((*path, AssignedBy::Operator)),
            None => app.path.map(|path| (path, AssignedBy::Pin)),
        };
        // Without a planner: the first path that is up.
        let first = self.paths.iter().copied().find(reaches);
        let (allowed, by) = match wanted {
            Some((path, by)) if reaches(&path) => (self.only(path), by),
            Some(_) => (reachable, AssignedBy::Fallback),
            None => match (self.planner, first) {
                (Planner::Off, Some(first)) => (self.only(first), AssignedBy::Fallback),
                _ => (reachable, AssignedBy::Planner),
            },
        };
        self.apps.push(index);
        self.reachable
            .push(self.paths.iter().map(reaches).collect());
        let (workload, _) = workload_of(app, facts.workloads.get(&index).copied());
        self.app_specs.push(AppSpec {
            length: workload.length,
            interval: workload.interval,
            demand: app.demand,
        });
        self.allowed.push(allowed);
        self.by.push(by);
    }

    fn only(&self, path: PathIndex) -> Vec<bool> {
        self.paths.iter().map(|p| *p == path).collect()
    }

    /// Asks the planner.
    pub(crate) fn answer(&self, config: &Config) -> Planned {
        let stopwatch = Stopwatch::now();
        let (assignment, optimal) = self.assignment();
        let evaluated = self.evaluate(&assignment);
        let forecasts = self.forecasts(&assignment);
        let nowhere = PlannedPath {
            path: None,
            by: AssignedBy::Nobody,
            prediction: None,
            forecast: None,
            met: None,
        };
        let mut apps = vec![nowhere; config.apps.len()];
        for (number, index) in self.apps.iter().enumerate() {
            let prediction = evaluated.predictions[number];
            apps[index.0] = PlannedPath {
                path: Some(self.paths[assignment[number]]),
                by: self.by[number],
                prediction: Some(prediction),
                forecast: forecasts[number],
                met: prediction.demand.map(|_| prediction.is_met(self.tolerance)),
            };
        }
        Planned {
            apps,
            optimal,
            lateness: evaluated.score.lateness,
            delay_sum: (evaluated.score.overloaded == 0).then_some(evaluated.score.delay),
            took: stopwatch.elapsed(),
        }
    }

    /// What eq. 3 predicts for `app` on every path that is up, with everything else where it is
    /// `now`. Empty if the application is not part of the question.
    pub(crate) fn predictions(
        &self,
        now: &BTreeMap<AppIndex, PathIndex>,
        app: AppIndex,
    ) -> Vec<(PathIndex, Prediction)> {
        let Some((_, alternatives, _)) = self.alternatives(now, app) else {
            return Vec::new();
        };
        let prediction = |a: &plan::Alternative| (self.paths[a.path], a.prediction);
        alternatives.iter().map(prediction).collect()
    }

    /// As [`predictions`](Self::predictions), with everything that there is to say.
    pub(crate) fn candidates(
        &self,
        now: &BTreeMap<AppIndex, PathIndex>,
        app: AppIndex,
    ) -> Vec<Candidate> {
        let Some((number, alternatives, assignment)) = self.alternatives(now, app) else {
            return Vec::new();
        };
        let spec = &self.app_specs[number];
        alternatives
            .into_iter()
            .filter(|alternative| self.reachable[number][alternative.path])
            .map(|alternative| {
                let mut moved = assignment.clone();
                moved[number] = alternative.path;
                let limit = spec.demand.map(|demand| self.tolerance.loosen(demand));
                let path = &self.path_specs[alternative.path];
                let prediction = alternative.prediction;
                Candidate {
                    path: self.paths[alternative.path],
                    forecast: self.forecasts_of(&moved, alternative.path).remove(&number),
                    met: prediction.demand.map(|_| prediction.is_met(self.tolerance)),
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

    /// The application's number in the question, its alternatives, and the assignment of now.
    fn alternatives(
        &self,
        now: &BTreeMap<AppIndex, PathIndex>,
        app: AppIndex,
    ) -> Option<(usize, Vec<plan::Alternative>, Vec<usize>)> {
        let number = self.apps.iter().position(|index| *index == app)?;
        let place = |index: &AppIndex| {
            let path = now.get(index);
            path.and_then(|path| self.paths.iter().position(|p| p == path))
                .unwrap_or(0)
        };
        let assignment: Vec<usize> = self.apps.iter().map(place).collect();
        let problem = Problem::new(&self.path_specs, &self.app_specs, &EQUATION).ok()?;
        let problem = problem.with_tolerance(self.tolerance);
        let alternatives = plan::alternatives(&problem, &assignment, number);
        Some((number, alternatives, assignment))
    }

    /// The path of every application of the question, and whether it is proven best.
    fn assignment(&self) -> (Vec<usize>, bool) {
        let free = self
            .allowed
            .iter()
            .all(|allowed| allowed.iter().all(|may| *may));
        let (mut assignment, optimal) = match free {
            true => self.solve(&EQUATION),
            false => self.solve(&Restricted { question: self }),
        };
        // A planner that finds no place at all may leave an application where it may not be.
        for (path, allowed) in assignment.iter_mut().zip(&self.allowed) {
            if !allowed[*path] {
                *path = allowed.iter().position(|may| *may).unwrap_or(*path);
            }
        }
        (assignment, optimal)
    }

    fn solve(&self, model: &impl DelayModel) -> (Vec<usize>, bool) {
        let Ok(problem) = Problem::new(&self.path_specs, &self.app_specs, model) else {
            // There are no applications without a path, so there are no applications.
            return (Vec::new(), true);
        };
        let problem = problem.with_tolerance(self.tolerance);
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

    fn evaluate(&self, assignment: &[usize]) -> plan::Plan {
        match Problem::new(&self.path_specs, &self.app_specs, &EQUATION) {
            Ok(problem) => problem.with_tolerance(self.tolerance).evaluate(assignment),
            Err(plan::NoPaths) => unreachable!("an application is in a question only with a path"),
        }
    }

    fn forecasts(&self, assignment: &[usize]) -> Vec<Option<Delay>> {
        let mut all = vec![None; assignment.len()];
        for path in 0..self.paths.len() {
            for (app, delay) in self.forecasts_of(assignment, path) {
                all[app] = Some(delay);
            }
        }
        all
    }

    /// Mean delays by the queueing model of the applications on one path.
    fn forecasts_of(&self, assignment: &[usize], path: usize) -> BTreeMap<usize, Delay> {
        let on_path = |app: &usize| assignment[*app] == path;
        let members: Vec<usize> = (0..assignment.len()).filter(on_path).collect();
        let payload = ByteCount::new(PACKET_BYTES - OVERHEAD_PER_PACKET);
        let Some(wire) = WireFormat::new(payload, ByteCount::new(OVERHEAD_PER_PACKET)) else {
            return BTreeMap::new();
        };
        let scheduler = match self.scheduler {
            Scheduler::Deadline => queueing::Scheduler::Deadline,
            Scheduler::Fifo => queueing::Scheduler::Fifo,
        };
        let gateway = Gateway {
            resolution: match members.len() <= FINE_APPS_MAX {
                true => Resolution::FINE,
                false => Resolution::COARSE,
            },
            ..Gateway::new(scheduler, wire)
        };
        let forecasts = gateway.forecast(&self.path_specs[path], &self.app_specs, &members);
        let delay = |forecast: &queueing::Forecast| forecast.delay(Statistic::Mean);
        members
            .into_iter()
            .zip(forecasts.iter().map(delay))
            .collect()
    }
}

impl Facts {
    /// Whether a plan made with these would be another one now: other paths are up, or a delay or
    /// a workload that is measured has changed by more than noise.
    pub(crate) fn are_outdated(&self, now: &Self) -> bool {
        let changed = |before: &Option<Duration>, now: &Option<Duration>| match (before, now) {
            (Some(before), Some(now)) => is_other_delay(*before, *now),
            (before, now) => before.is_some() != now.is_some(),
        };
        self.up.len() != now.up.len()
            || self
                .up
                .iter()
                .zip(&now.up)
                .any(|((path, before), (other, delay))| path != other || changed(before, delay))
            // What was planned with stays in the facts until it is another one.
            || self.workloads != now.workloads
    }
}

impl Planned {
    /// Applications whose demand is not met, or whose path is overloaded.
    pub(crate) fn unmet(&self) -> usize {
        let overloaded = |app: &PlannedPath| {
            app.prediction
                .is_some_and(|prediction| prediction.delay == Delay::Overloaded)
        };
        self.apps
            .iter()
            .filter(|app| app.met == Some(false) || overloaded(app))
            .count()
    }

    /// How many applications it would move.
    pub(crate) fn changes(&self, now: &BTreeMap<AppIndex, PathIndex>) -> usize {
        let moves = |(number, app): &(usize, &PlannedPath)| {
            app.path.is_some() && app.path.as_ref() != now.get(&AppIndex(*number))
        };
        self.apps.iter().enumerate().filter(moves).count()
    }
}

const EQUATION: Equation3 = Equation3 {
    saturation: keiro_model::delay::Saturation::Refused,
};

/// Equation 3, with no finite delay where an application may not be.
struct Restricted<'a> {
    question: &'a Question,
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
        // The planner passes a reference into the question's own list; equal paths are told apart
        // by that.
        let specs = &self.question.path_specs;
        let same = specs.iter().position(|spec| std::ptr::eq(spec, path));
        let Some(number) = same.or_else(|| specs.iter().position(|spec| spec == path)) else {
            return;
        };
        for (app, delay) in members.iter().zip(delays.iter_mut()) {
            if !self.question.allowed[*app][number] {
                *delay = Delay::Overloaded;
            }
        }
    }
}

fn tolerance(config: &Config) -> Tolerance {
    Tolerance::from_ratio(config.gateway.tolerance.get()).unwrap_or(Tolerance::STRICT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's five applications over its two paths.
    fn paper(gateway: &str, pin: &str) -> Config {
        let text = format!(
            r#"
[gateway]
name = "a"
{gateway}
[[path]]
name = "path1"
local = "192.0.2.1:4500"
rate = "100Mbit"
delay = "100ms"
[[path]]
name = "path2"
local = "198.51.100.1:4500"
rate = "100Mbit"
delay = "2ms"
[[peer]]
name = "b"
public_key = "{}"
endpoints = {{ path1 = "192.0.2.2:4500", path2 = "198.51.100.2:4500" }}
"#,
            keiro_control::PublicKey::from_bytes([9; 32])
        );
        let mut text = text;
        for (name, length, interval, demand) in [
            ("A1", "1MB", "200ms", "1s"),
            ("A2", "100kB", "100ms", "500ms"),
            ("A3", "100kB", "100ms", "20ms"),
            ("A4", "10kB", "100ms", "100ms"),
            ("A5", "10kB", "100ms", "20ms"),
        ] {
            let pin = if name == "A1" { pin } else { "" };
            text.push_str(&format!(
                "[[app]]\nname = \"{name}\"\nclass = \"message\"\npeer = \"b\"\nlength = \"{length}\"\n\
                 interval = \"{interval}\"\ndemand = \"{demand}\"\n{pin}\n"
            ));
        }
        Config::parse(&text, "test.toml").unwrap_or_else(|error| panic!("{error}"))
    }

    fn both_up() -> Facts {
        let up = (0..2)
            .map(|path| ((PathIndex(path), PeerIndex(0)), None))
            .collect();
        Facts {
            up,
            ..Facts::default()
        }
    }

    fn paths(planned: &Planned) -> Vec<Option<usize>> {
        planned
            .apps
            .iter()
            .map(|app| app.path.map(|path| path.0))
            .collect()
    }

    #[test]
    fn the_papers_algorithm_with_tolerance_gives_the_papers_assignment() {
        let config = paper("planner = \"greedy\"\ntolerance = \"2%\"", "");
        let planned = Question::new(&config, &both_up()).answer(&config);
        assert_eq!(paths(&planned), [0, 0, 1, 0, 1].map(Some));
        assert_eq!(planned.unmet(), 0);
    }

    #[test]
    fn the_exact_plan_meets_every_demand() {
        let config = paper("planner = \"exact\"", "");
        let planned = Question::new(&config, &both_up()).answer(&config);
        assert_eq!(planned.unmet(), 0);
        assert!(planned.optimal);
        assert!(planned.apps.iter().all(|app| app.by == AssignedBy::Planner));
        assert!(planned.apps.iter().all(|app| app.forecast.is_some()));
        let now = BTreeMap::from([(AppIndex(0), planned.apps[0].path.unwrap())]);
        assert_eq!(planned.changes(&now), 4);
    }

    #[test]
    fn a_pin_is_kept_and_counts_as_load() {
        let config = paper("", "path = \"path2\"");
        let planned = Question::new(&config, &both_up()).answer(&config);
        assert_eq!(planned.apps[0].path, Some(PathIndex(1)));
        assert_eq!(planned.apps[0].by, AssignedBy::Pin);
        let mut facts = both_up();
        facts.operator.insert(AppIndex(0), PathIndex(0));
        let planned = Question::new(&config, &facts).answer(&config);
        assert_eq!(planned.apps[0].path, Some(PathIndex(0)));
        assert_eq!(planned.apps[0].by, AssignedBy::Operator);
    }

    #[test]
    fn what_is_down_is_not_planned_with() {
        let config = paper("", "path = \"path2\"");
        let mut facts = both_up();
        facts.up.remove(&(PathIndex(1), PeerIndex(0)));
        let planned = Question::new(&config, &facts).answer(&config);
        assert_eq!(paths(&planned), [Some(0); 5]);
        assert_eq!(planned.apps[0].by, AssignedBy::Fallback);
        assert!(planned.unmet() >= 2);
        facts.up.clear();
        let planned = Question::new(&config, &facts).answer(&config);
        assert_eq!(paths(&planned), [None; 5]);
        assert!(planned.apps.iter().all(|app| app.by == AssignedBy::Nobody));
    }

    #[test]
    fn without_a_planner_the_first_path_is_taken() {
        let config = paper("planner = \"off\"", "path = \"path2\"");
        let planned = Question::new(&config, &both_up()).answer(&config);
        assert_eq!(paths(&planned), [1, 0, 0, 0, 0].map(Some));
        assert_eq!(planned.apps[1].by, AssignedBy::Fallback);
    }

    #[test]
    fn small_changes_of_delay_are_no_reason_to_plan_anew() {
        let facts = |first: Option<u64>, paths: usize| {
            let delay = |path| if path == 0 { first } else { Some(50_000) };
            let up = (0..paths).map(|path| {
                let key = (PathIndex(path), PeerIndex(0));
                (key, delay(path).map(Duration::from_micros))
            });
            Facts {
                up: up.collect(),
                ..Facts::default()
            }
        };
        let before = facts(Some(20_000), 2);
        assert!(!before.are_outdated(&facts(Some(21_900), 2)));
        assert!(before.are_outdated(&facts(Some(22_100), 2)));
        assert!(before.are_outdated(&facts(None, 2)));
        assert!(before.are_outdated(&facts(Some(20_000), 1)));
        assert!(!facts(Some(100), 2).are_outdated(&facts(Some(1_000), 2)));
    }

    #[test]
    fn candidates_say_what_every_path_would_do() {
        let config = paper("", "");
        let question = Question::new(&config, &both_up());
        let now = [0, 0, 1, 0, 1].into_iter().enumerate();
        let now: BTreeMap<_, _> = now
            .map(|(app, path)| (AppIndex(app), PathIndex(path)))
            .collect();
        let candidates = question.candidates(&now, AppIndex(2));
        assert_eq!(candidates.len(), 2);
        assert_eq!(candidates[0].met, Some(false));
        assert_eq!(candidates[0].others_max, None);
        assert_eq!(candidates[1].met, Some(true));
        // (20 − 2) ms for 100 kB leave 44.4 Mbit/s, so that others may send 55.5.
        let others_max = candidates[1].others_max.unwrap().as_bits_per_second();
        assert!(
            (55_000_000..56_000_000).contains(&others_max),
            "{others_max}"
        );
        assert!(candidates[1].forecast.unwrap().finite().unwrap() > Duration::from_millis(10));
    }
}
