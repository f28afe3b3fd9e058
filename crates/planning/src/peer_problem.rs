//! The planning problem of the applications to one peer, or of those to several together.

use std::collections::{BTreeMap, BTreeSet};

use keiro_control::{
    config::{App, AppIndex, Class, PathIndex, PathTerms, PeerIndex, Planner, Scheduler},
    protocol::AssignedBy,
};
use keiro_model::path_terms::Price;
use keiro_planner::{
    delay::{AppSpec, DelayTerms, Equation3, OverloadPolicy, PathSpec, Prediction, Tolerance},
    plan::{self, Problem, WireLoadProblem},
    queueing::{LossRecoveryDelay, OtherGateway, SharedLine, WireFormat},
    steer::{
        CostRule, PathChoice, PathSample, cheapest_paths, eligible_paths, path_queue, path_spec,
        probation_paths, tolerable_paths,
    },
};
use keiro_units::Bandwidth;

use crate::{
    config::{PlannedPath, PlannerConfig},
    forecast::{Line, Sender, packets_of, wire_format},
    input::{ExcessLoss, MeasuredDelay, PlannerInput, traffic_of, workload_of},
    line_use::{rate_of_messages, rate_on_wire},
    uplinks::Neighbours,
};

/// Which applications a problem has, and what the gateway sends beside them.
pub(crate) struct Scope<'a> {
    /// `None`: all. Then a path counts as what it is to the peer that it serves worst.
    pub(crate) peer: Option<PeerIndex>,
    pub(crate) apps: &'a [AppIndex],
    pub(crate) neighbours: &'a BTreeMap<PathIndex, Neighbours>,
    /// How many problems the whole is.
    pub(crate) peers: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct PeerProblem {
    /// Position in the configuration, per path of the problem.
    pub(crate) paths: Vec<PathIndex>,
    /// What other gateways leave of them by eq. 3: without the mean rate of their messages.
    pub(crate) path_specs: Vec<PathSpec>,
    /// The same with what others use.
    pub(crate) whole_specs: Vec<PathSpec>,
    /// Position in the configuration, per application of the problem.
    pub(crate) apps: Vec<AppIndex>,
    /// Messages as the applications know them.
    pub(crate) app_specs: Vec<AppSpec>,
    /// Paths and messages in wire sizes, which is what is planned with.
    pub(crate) wire: WireLoadProblem,
    pub(crate) senders: Vec<Sender>,
    /// Paths without the cost of losses, and their repair.
    queues: Vec<(PathSpec, LossRecoveryDelay)>,
    /// Other gateways on them; `None`: there are none.
    lines: Vec<Option<SharedLine>>,
    /// What these send on average, by path: their messages, and the same on the wire.
    others: Vec<[Bandwidth; 2]>,
    /// Per application: messages per second whose outcome the peer reports.
    outcomes: Vec<f64>,
    /// The same by the path over which the outcomes return.
    outcomes_over: Vec<f64>,
    /// The present path of each; `None`: none.
    pub(crate) at: Vec<Option<usize>>,
    /// Measured delays on the present paths.
    pub(crate) measured: BTreeMap<AppIndex, MeasuredDelay>,
    /// Applications that send traffic which is not known yet; almost no load is assumed.
    pub(crate) little_known: BTreeSet<usize>,
    /// Per application and path: the path leads to its peer.
    pub(crate) reachable: Vec<Vec<bool>>,
    /// Per application and path: it may take the path.
    pub(crate) allowed: Vec<Vec<bool>>,
    /// Per application and path: it may take the path if its target is met on no other.
    pub(crate) spare: Vec<Vec<bool>>,
    /// Per application and path: the planner may put it there, whatever that costs.
    pub(crate) affordable: Vec<Vec<bool>>,
    /// Per application and path: on which terms.
    pub(crate) terms: Vec<Vec<PathTerms>>,
    /// Applications that are left out as the budgets of all their paths are used up.
    pub(crate) denied: BTreeSet<AppIndex>,
    /// As [`PlannerInput::overdue`].
    pub(crate) overdue: BTreeSet<usize>,
    /// Per application and path: what the path loses of it, where that is more than it tolerates.
    pub(crate) excess_losses: Vec<Vec<Option<ExcessLoss>>>,
    pub(crate) by: Vec<AssignedBy>,
    pub(crate) tolerance: Tolerance,
    pub(crate) planner: Planner,
    pub(crate) scheduler: Scheduler,
    /// How many such problems the whole is: work is bounded for all of them together.
    peers: u64,
}

/// The paths that one application may take, a flag for each path of the problem.
struct Choice {
    allowed: Vec<bool>,
    /// If its target is met on none of these.
    spare: Vec<bool>,
    /// Where the planner may put it, whatever that costs.
    affordable: Vec<bool>,
    by: AssignedBy,
}

/// Of more problems, each takes no less than this part of all work. Ours: a millisecond or less.
const PARTS_MAX: u64 = 64;
/// With more peers, forecasts are coarse. Ours: a hub's plan is to take some ten milliseconds.
const FINE_PEERS_MAX: u64 = 4;
/// The planner's own bound on rates, 2^48 bit/s.
const RATE_MAX: u64 = (1 << 48) - 1;

impl PeerProblem {
    /// The present problem of the applications in `scope`. Those that no path reaches are left out.
    pub(crate) fn new(config: &PlannerConfig, input: &PlannerInput, scope: &Scope<'_>) -> Self {
        let packets = longest_message(config, input, scope.apps);
        let mut problem = Self::without_paths(config, scope);
        for index in (0..config.paths.len()).map(PathIndex) {
            problem.add_path(index, config, input, scope, packets);
        }
        problem.path_specs = left_of(
            &problem.whole_specs,
            problem.others.iter().map(|[messages, _]| *messages),
        );
        for app in scope.apps {
            problem.add_app(*app, config, input);
        }
        problem.outcomes_over = problem.sums_of_outcomes();
        problem.wire = problem.on_wire();
        problem
    }

    fn without_paths(config: &PlannerConfig, scope: &Scope<'_>) -> Self {
        Self {
            lines: Vec::new(),
            path_specs: Vec::new(),
            whole_specs: Vec::new(),
            others: Vec::new(),
            paths: Vec::new(),
            apps: Vec::new(),
            app_specs: Vec::new(),
            wire: WireLoadProblem::new(&[], &[], &[]),
            senders: Vec::new(),
            queues: Vec::new(),
            outcomes: Vec::new(),
            outcomes_over: Vec::new(),
            at: Vec::new(),
            measured: BTreeMap::new(),
            little_known: BTreeSet::new(),
            reachable: Vec::new(),
            allowed: Vec::new(),
            spare: Vec::new(),
            affordable: Vec::new(),
            terms: Vec::new(),
            denied: BTreeSet::new(),
            overdue: BTreeSet::new(),
            excess_losses: Vec::new(),
            by: Vec::new(),
            tolerance: config.tolerance(),
            planner: config.planner,
            scheduler: config.scheduler,
            peers: scope.peers.max(1) as u64,
        }
    }

    /// Adds a path if it is up to a peer in `scope`. `packets`: those of the longest message.
    fn add_path(
        &mut self,
        index: PathIndex,
        config: &PlannerConfig,
        input: &PlannerInput,
        scope: &Scope<'_>,
        packets: u64,
    ) {
        let path = &config[index];
        let peers = match scope.peer {
            Some(peer) => peer..=peer,
            None => PeerIndex(0)..=PeerIndex(usize::MAX),
        };
        let up = (index, *peers.start())..=(index, *peers.end());
        let up: Vec<_> = input.up.range(up).collect();
        if up.is_empty() {
            return;
        }
        let of_line = |((_, peer), sample): &(&(PathIndex, PeerIndex), &Option<PathSample>)| {
            let sample = sample.as_ref()?;
            let usable = sample.bandwidth;
            let bandwidth = input
                .shared
                .line_rate(index, *peer, usable, path.rate_bound());
            Some(PathSample {
                bandwidth,
                ..*sample
            })
        };
        let samples: Vec<PathSample> = up.iter().filter_map(of_line).collect();
        let repairs = samples.iter().map(|sample| path_queue(sample).1);
        let queue = worst(path, samples.iter().map(|sample| path_queue(sample).0));
        let repair = repairs.fold(LossRecoveryDelay::NONE, |worst, repair| LossRecoveryDelay {
            loss: match repair.loss > worst.loss {
                true => repair.loss,
                false => worst.loss,
            },
            round: worst.round.max(repair.round),
        });
        let uses = input.shared.of(index);
        let mut others = [rate_of_messages(uses), rate_on_wire(uses)];
        let mut line = input.shared.line(index, queue.bandwidth);
        if let Some(neighbours) = scope.neighbours.get(&index) {
            let taken = neighbours.take_of(queue.bandwidth);
            others = others.map(|others| others.saturating_add(taken));
            line = Some(beside(line, neighbours, queue.bandwidth));
        }
        self.paths.push(index);
        self.whole_specs
            .push(worst(path, samples.iter().map(|s| path_spec(s, packets))));
        self.queues.push((queue, repair));
        self.others.push(others);
        self.lines.push(line);
    }

    /// Paths and applications as they are on the wire.
    fn on_wire(&self) -> WireLoadProblem {
        let format = |(path, spec): (usize, &PathSpec)| {
            wire_format(spec.bandwidth, self.outcomes_over(path))
        };
        let formats: Vec<WireFormat> = self.whole_specs.iter().enumerate().map(format).collect();
        let on_wire = self.others.iter().map(|[_, on_wire]| *on_wire);
        let path_specs = left_of(&self.whole_specs, on_wire);
        WireLoadProblem::new(&path_specs, &self.app_specs, &formats)
    }

    fn add_app(&mut self, index: AppIndex, config: &PlannerConfig, input: &PlannerInput) {
        let app = &config[index];
        let reaches = |path: &PathIndex| input.up.contains_key(&(*path, app.peer));
        let reachable: Vec<bool> = self.paths.iter().map(reaches).collect();
        if !reachable.contains(&true) {
            return;
        }
        let terms = |path: &PathIndex| input.terms(config[*path].terms(), *path, app.peer);
        let terms: Vec<PathTerms> = self.paths.iter().map(terms).collect();
        let serving = serving(app, &reachable, &terms);
        if !serving.contains(&true) {
            self.denied.insert(index);
            return;
        }
        let Some(Choice {
            allowed,
            spare,
            affordable,
            by,
        }) = self.choice(index, app, input, &serving, &terms)
        else {
            return;
        };
        let now = input.now.get(&index).copied();
        self.spare.push(spare);
        self.affordable.push(affordable);
        self.terms.push(terms);
        let excess_loss = |path: &PathIndex| input.excess_loss(index, *path);
        self.excess_losses
            .push(self.paths.iter().map(excess_loss).collect());
        let seen = input.workloads.get(&index).copied();
        if input.overdue.contains(&index) {
            self.overdue.insert(self.apps.len());
        }
        if input.is_little_known(index, app) {
            self.little_known.insert(self.apps.len());
        }
        if let Some(measured) = input.measured.get(&index) {
            self.measured.insert(index, *measured);
        }
        self.apps.push(index);
        self.reachable.push(reachable);
        let traffic = traffic_of(app, seen);
        let interval = traffic.app.interval.as_secs_f64();
        let is_reported = app.class == Class::Message && interval > 0.0;
        self.outcomes
            .push(if is_reported { 1.0 / interval } else { 0.0 });
        self.app_specs.push(traffic.app);
        self.senders.push(Sender {
            traffic,
            traffic_window: input.traffic_window(index, app),
            is_repaired: app.class != Class::Datagram,
        });
        self.at
            .push(now.and_then(|now| self.paths.iter().position(|path| *path == now)));
        self.allowed.push(allowed);
        self.by.push(by);
    }

    /// Which of the paths that are `serving` an application may take. `None`: none yet.
    fn choice(
        &self,
        index: AppIndex,
        app: &App,
        input: &PlannerInput,
        serving: &[bool],
        terms: &[PathTerms],
    ) -> Option<Choice> {
        let wanted = match input.operator.get(&index) {
            Some(path) => Some((*path, AssignedBy::Operator)),
            None => app.path.map(|path| (path, AssignedBy::Pin)),
        };
        let site = input.site.get(&index);
        let wanted = wanted.or(site.map(|path| (*path, AssignedBy::Planner)));
        let number = |path: PathIndex| self.paths.iter().position(|other| *other == path);
        let serves = |path: PathIndex| number(path).is_some_and(|number| serving[number]);
        let price =
            |path: PathIndex| number(path).map_or(Price::default(), |path| terms[path].price());
        let now = input.now.get(&index).copied();
        let leads_there = self.paths.iter().copied().filter(|path| serves(*path));
        let hold_downs = leads_there.map(|path| (path, input.hold_down(path, app.peer)));
        let eligible = eligible_paths(hold_downs.clone(), now);
        if eligible.is_empty() && wanted.is_none() {
            return None;
        }
        // Without a planner, the first of the cheapest paths that are up.
        let first = eligible.iter().copied();
        let first = first.min_by_key(|path| (price(*path), *path));
        let choice = PathChoice {
            allowed: eligible,
            fallback: probation_paths(hold_downs),
        };
        let tolerable = self.tolerable(choice, index, app, input);
        let affordable = tolerable.allowed.clone();
        let cost_rule = CostRule {
            has_target: app.latency_target.is_some(),
            at: now,
        };
        let PathChoice { allowed, fallback } = cheapest_paths(tolerable, cost_rule, price);
        let least = allowed.iter().map(|path| price(*path)).min();
        let is_costly = |path| least.is_some_and(|least| price(path) > least);
        let row = |paths: &BTreeSet<PathIndex>| -> Vec<bool> {
            self.paths.iter().map(|path| paths.contains(path)).collect()
        };
        let may = row(&allowed);
        let (allowed, by) = match wanted {
            // The site's plan does not know what is lost here, and one of an older gateway not what paths cost.
            Some((path, AssignedBy::Planner))
                if input.excess_loss(index, path).is_some()
                    || is_costly(path) && !input.priced_by_site.contains(&index) =>
            {
                (may, AssignedBy::Planner)
            }
            Some((path, by)) if serves(path) && !input.is_damped(path, index, app.peer) => {
                (self.only(path), by)
            }
            Some((_, by)) => match by {
                // The site plans again as soon as it knows.
                AssignedBy::Planner => (may, by),
                _ => (may, AssignedBy::Fallback),
            },
            None => match (self.planner, first) {
                (Planner::Off, Some(first)) => (self.only(first), AssignedBy::Fallback),
                _ => (may, AssignedBy::Planner),
            },
        };
        let is_free = wanted.is_none() && by == AssignedBy::Planner;
        let none = BTreeSet::new();
        Some(Choice {
            allowed,
            spare: row(if is_free { &fallback } else { &none }),
            affordable: row(if is_free { &affordable } else { &none }),
            by,
        })
    }

    /// What is left of `choice` by what paths lose of the application.
    fn tolerable(
        &self,
        choice: PathChoice<PathIndex>,
        index: AppIndex,
        app: &App,
        input: &PlannerInput,
    ) -> PathChoice<PathIndex> {
        let excess = |path| Some(input.excess_loss(index, path)?.ratio());
        let lateness = |path: PathIndex| {
            let number = self.paths.iter().position(|other| *other == path);
            let delay = number.map(|number| self.queues[number].0.delay);
            let target = app
                .latency_target
                .map(|target| self.tolerance.loosen(target));
            delay.zip(target).map_or(0.0, |(delay, target)| {
                delay.as_secs_f64() / target.as_secs_f64().max(f64::MIN_POSITIVE)
            })
        };
        tolerable_paths(choice, excess, lateness)
    }

    fn only(&self, path: PathIndex) -> Vec<bool> {
        self.paths.iter().map(|p| *p == path).collect()
    }

    /// What the delays of all applications that are on a path are made of there, by eq. 3.
    pub(crate) fn current_delay_terms(&self) -> BTreeMap<AppIndex, (PathIndex, DelayTerms)> {
        let predictions = self.evaluate(&self.current_assignment()).predictions;
        let terms = |((app, at), prediction): ((&AppIndex, &Option<usize>), Prediction)| {
            Some((*app, (self.paths[(*at)?], prediction.terms)))
        };
        let there = self.apps.iter().zip(&self.at).zip(predictions);
        there.filter_map(terms).collect()
    }

    /// A path for forecasts.
    pub(crate) fn line(&self, path: usize) -> Line<'_> {
        let (spec, repair) = self.queues[path];
        Line {
            index: self.paths[path],
            path: spec,
            repair,
            outcomes: self.outcomes_over(path),
            shared: self.lines[path].as_ref(),
        }
    }

    /// The same as far as other gateways leave it on average.
    pub(crate) fn left_of_line(&self, path: usize) -> PathSpec {
        let (spec, _) = self.queues[path];
        let [_, on_wire] = self.others[path];
        less(&spec, on_wire)
    }

    /// What a path has to carry in all so that `left` is left for this gateway's messages as they are
    /// on the wire.
    pub(crate) fn whole_rate(&self, path: usize, left: Bandwidth) -> Bandwidth {
        let [_, on_wire] = self.others[path];
        self.wire.bandwidth(path, left).saturating_add(on_wire)
    }

    /// The mean rate of other gateways' messages on a path, without headers.
    pub(crate) fn others_on(&self, path: usize) -> Bandwidth {
        let [messages, _] = self.others[path];
        messages
    }

    /// With the whole line in the terms: other gateways' messages are part of Q, not taken off W.
    /// Delays are the same.
    pub(crate) fn with_others(&self, path: usize, prediction: Prediction) -> Prediction {
        let terms = DelayTerms {
            bandwidth: self.whole_specs[path].bandwidth,
            others: prediction.terms.others.saturating_add(self.others_on(path)),
            ..prediction.terms
        };
        Prediction {
            terms,
            ..prediction
        }
    }

    /// Eq. 3's prediction for `app` on every path that is up, all else unchanged. Empty if the
    /// application is not part of the problem.
    pub(crate) fn predictions(&self, app: AppIndex) -> Vec<(PathIndex, Prediction)> {
        let Some((_, alternatives, _)) = self.alternatives(app) else {
            return Vec::new();
        };
        let prediction = |a: &plan::Alternative| (self.paths[a.path], a.prediction);
        alternatives.iter().map(prediction).collect()
    }

    /// The application's number in the problem, its alternatives, and the assignment of now.
    pub(crate) fn alternatives(
        &self,
        app: AppIndex,
    ) -> Option<(usize, Vec<plan::Alternative>, Vec<usize>)> {
        let number = self.apps.iter().position(|index| *index == app)?;
        let assignment = self.current_assignment();
        let problem = Problem::new(&self.path_specs, &self.app_specs, &EQUATION).ok()?;
        let problem = problem.with_tolerance(self.tolerance);
        let mut alternatives = plan::alternatives(&problem, &assignment, number);
        for alternative in &mut alternatives {
            alternative.prediction = self.with_others(alternative.path, alternative.prediction);
        }
        Some((number, alternatives, assignment))
    }

    /// The assignment that `places` are; an application without a place, or whose path is down, is on the first.
    pub(crate) fn assignment_of(&self, places: &BTreeMap<AppIndex, PathIndex>) -> Vec<usize> {
        let number = |app: &AppIndex| {
            let place = places.get(app)?;
            self.paths.iter().position(|path| path == place)
        };
        self.apps
            .iter()
            .map(|app| number(app).unwrap_or(0))
            .collect()
    }

    /// Applications and paths as the configuration numbers them.
    pub(crate) fn places<'a>(
        &'a self,
        assignment: &'a [usize],
    ) -> impl Iterator<Item = (AppIndex, PathIndex)> + 'a {
        let places = self.apps.iter().zip(assignment);
        places.map(|(app, path)| (*app, self.paths[*path]))
    }

    /// The work that this problem may take where all together may take `whole`.
    pub(crate) fn part_of(&self, whole: u64) -> u64 {
        (whole / self.peers).max(whole / PARTS_MAX)
    }

    /// Forecasts are not finer for one of many problems.
    pub(crate) fn is_one_of_many(&self) -> bool {
        self.peers > FINE_PEERS_MAX
    }

    /// The present assignment; an application on no path counts as on the first.
    pub(crate) fn current_assignment(&self) -> Vec<usize> {
        self.at.iter().map(|at| at.unwrap_or(0)).collect()
    }

    /// Whether the planner is one that looks for the best.
    pub(crate) fn searches(&self) -> bool {
        matches!(self.planner, Planner::Exact | Planner::Frugal)
    }

    /// By the paper's eq. 3, which knows no headers.
    pub(crate) fn evaluate(&self, assignment: &[usize]) -> plan::Plan {
        let mut plan = self.evaluated(&self.path_specs, &self.app_specs, assignment);
        for (prediction, path) in plan.predictions.iter_mut().zip(assignment) {
            *prediction = self.with_others(*path, *prediction);
        }
        plan
    }

    /// By eq. 3 as the planner goes by it.
    pub(crate) fn evaluate_on_wire(&self, assignment: &[usize]) -> plan::Plan {
        self.evaluated(&self.wire.paths, &self.wire.apps, assignment)
    }

    fn evaluated(&self, paths: &[PathSpec], apps: &[AppSpec], assignment: &[usize]) -> plan::Plan {
        match Problem::new(paths, apps, &EQUATION) {
            Ok(problem) => problem.with_tolerance(self.tolerance).evaluate(assignment),
            Err(plan::NoPaths) => unreachable!("an application is in a problem only with a path"),
        }
    }

    /// Message outcomes per second that return over `path`.
    pub(crate) fn outcomes_over(&self, path: usize) -> f64 {
        self.outcomes_over[path]
    }

    /// Each peer reports outcomes over its path of least delay.
    fn sums_of_outcomes(&self) -> Vec<f64> {
        let quickest = |reachable: &Vec<bool>| {
            let paths = (0..self.paths.len()).filter(|path| reachable[*path]);
            paths.min_by_key(|path| self.path_specs[*path].delay)
        };
        let mut sums = vec![0.0; self.paths.len()];
        for (outcomes, reachable) in self.outcomes.iter().zip(&self.reachable) {
            if let Some(path) = quickest(reachable) {
                sums[path] += outcomes;
            }
        }
        sums
    }
}

/// Which of the paths to its peer an application may use: one whose budget is used up is the last resort of what is
/// essential.
fn serving(app: &App, reachable: &[bool], terms: &[PathTerms]) -> Vec<bool> {
    let paths = || reachable.iter().zip(terms);
    let has_open = paths().any(|(reaches, terms)| *reaches && !terms.is_spent);
    let takes_spent = app.is_essential() && !has_open;
    paths()
        .map(|(reaches, terms)| *reaches && (!terms.is_spent || takes_spent))
        .collect()
}

pub(crate) const EQUATION: Equation3 = Equation3 {
    saturation: OverloadPolicy::Refused,
};

/// A path's line, which other gateways may use, with what this gateway sends to other peers over the uplink.
fn beside(line: Option<SharedLine>, neighbours: &Neighbours, own_rate: Bandwidth) -> SharedLine {
    let mut line = line.unwrap_or(SharedLine {
        rate: neighbours.rate.max(own_rate),
        own_rate,
        others: Vec::new(),
    });
    line.others.push(OtherGateway {
        rate: neighbours.rate.min(line.rate),
        offered: neighbours.offered,
    });
    line
}

/// Paths without what others send.
fn left_of(paths: &[PathSpec], others: impl Iterator<Item = Bandwidth>) -> Vec<PathSpec> {
    let paths = paths.iter().zip(others);
    paths.map(|(path, others)| less(path, others)).collect()
}

/// At least 1 bit/s is left, which every application overloads.
fn less(path: &PathSpec, others: Bandwidth) -> PathSpec {
    if others.is_zero() {
        return *path;
    }
    let left = path.bandwidth.saturating_sub(others);
    PathSpec {
        bandwidth: left.max(Bandwidth::from_bits_per_second(1)),
        ..*path
    }
}

/// A path to several peers: the least bandwidth and the longest delay of them; as configured where
/// nothing is measured.
fn worst(path: &PlannedPath, specs: impl Iterator<Item = PathSpec> + Clone) -> PathSpec {
    let bandwidth = specs.clone().map(|spec| spec.bandwidth).min();
    let bandwidth = bandwidth.map_or(path.rate_assumed(), |measured| {
        measured.min(path.rate_bound())
    });
    let delay = specs.map(|spec| spec.delay).max();
    PathSpec {
        bandwidth: bandwidth.min(Bandwidth::from_bits_per_second(RATE_MAX)),
        delay: delay.or(path.delay).unwrap_or_default(),
    }
}

/// Packets of the longest message of an application with a latency target, which a lossy path
/// serves worst.
fn longest_message(config: &PlannerConfig, input: &PlannerInput, apps: &[AppIndex]) -> u64 {
    let with_target = apps.iter();
    with_target
        .filter(|app| config[**app].latency_target.is_some())
        .map(|app| {
            let seen = input.workloads.get(app).copied();
            packets_of(workload_of(&config[*app], seen).0.length)
        })
        .max()
        .unwrap_or(1)
}
