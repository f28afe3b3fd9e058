//! What a gateway plans.
//!
//! Applications to one peer share the paths to it and are planned together ([`PeerProblem`]). Applications to different
//! peers meet on uplinks only ([`uplinks`](crate::uplinks)), so that a hub plans each branch for itself, with what it
//! sends to the others as the rest of the load.

use std::{cell::OnceCell, collections::BTreeMap, time::Duration};

use keiro_control::config::{AppIndex, PathIndex, PeerIndex};
use keiro_planner::{
    delay::{DelayTerms, Prediction},
    steer::PlanMode,
};

use crate::{
    config::PlannerConfig,
    forecast::ForecastState,
    forecasts::{ForecastResolution, Forecasts},
    input::PlannerInput,
    move_trigger::MoveTrigger,
    peer_problem::{PeerProblem, Scope},
    plan::{AppAssignment, Plan, UNASSIGNED},
    solve::Candidate,
    uplinks::{UplinkLoads, Uplinks},
};

/// Up to so many applications to several peers are planned together as well where an uplink fills. Ours: among more,
/// one that makes room for another is rarely to another peer.
const TOGETHER_APPS_MAX: usize = 64;

/// Up to so many peers are planned once more where an uplink fills. Ours: each takes some tenths of a millisecond, and what
/// is sent to one of so many hardly changes the rest.
const AGAIN_PEERS_MAX: usize = 256;

/// See the module.
#[derive(Clone, Debug)]
pub struct PlanningProblem<'a> {
    config: &'a PlannerConfig,
    input: &'a PlannerInput,
    /// Of the peers that are reached.
    apps: BTreeMap<PeerIndex, Vec<AppIndex>>,
    uplinks: OnceCell<Uplinks>,
}

/// The plans for several peers, joined.
struct Joined {
    apps: Vec<AppAssignment>,
    lateness: Duration,
    delay_sum: Option<Duration>,
    optimal: bool,
    defers_moves: bool,
}

impl<'a> PlanningProblem<'a> {
    /// The present problem. Applications whose peer no path reaches are left out.
    pub fn new(config: &'a PlannerConfig, input: &'a PlannerInput) -> Self {
        let mut apps: BTreeMap<PeerIndex, Vec<AppIndex>> = BTreeMap::new();
        for (_, peer) in input.up.keys() {
            apps.entry(*peer).or_default();
        }
        for (number, app) in config.apps.iter().enumerate() {
            if let Some(of_peer) = apps.get_mut(&app.peer) {
                of_peer.push(AppIndex(number));
            }
        }
        apps.retain(|_, apps| !apps.is_empty());
        Self {
            config,
            input,
            apps,
            uplinks: OnceCell::new(),
        }
    }

    /// A plan. Its caller measures the time.
    pub fn answer(&self, plan_mode: PlanMode, forecast_state: &ForecastState) -> Plan {
        let resolution = ForecastResolution::Fine;
        let planned = self.planned(plan_mode, forecast_state, resolution);
        if self.uplinks().is_empty() {
            return planned.into_plan();
        }
        let places = planned.places();
        if self.apps.len() > AGAIN_PEERS_MAX {
            let described = self.described(&places, forecast_state);
            return Joined {
                optimal: false,
                defers_moves: planned.defers_moves,
                ..described
            }
            .into_plan();
        }
        // What was planned last has changed what was planned first for.
        let later = PlannerInput {
            now: places.clone(),
            measured: BTreeMap::new(),
            ..self.input.clone()
        };
        let again = self.with_input(&later);
        let again = again.planned(PlanMode::Revise, forecast_state, resolution);
        let mut best = self.described(&places, forecast_state);
        let mut others = vec![again.places()];
        if self.apps.values().map(Vec::len).sum::<usize>() <= TOGETHER_APPS_MAX {
            others.push(self.planned_together(plan_mode, forecast_state));
        }
        for other in others.iter().filter(|other| **other != places) {
            let other = self.described(other, forecast_state);
            // Less late is not worth moves: it changes with every measurement.
            if other.unmet() < best.unmet() {
                best = other;
            }
        }
        Joined {
            optimal: false,
            defers_moves: planned.defers_moves,
            ..best
        }
        .into_plan()
    }

    /// The present assignment, described as a plan.
    pub fn present_plan(&self, forecast_state: &ForecastState) -> Plan {
        let mut present = self.described(&self.input.now, forecast_state);
        for (peer, apps) in &self.apps {
            for app in apps {
                let at = self.input.now.get(app);
                let is_there = at.is_some_and(|at| self.input.up.contains_key(&(*at, *peer)));
                let shown = &mut present.apps[app.0];
                // One that is left out keeps the reason.
                if !is_there && shown.path.is_some() {
                    *shown = UNASSIGNED;
                }
            }
        }
        present.into_plan()
    }

    /// Only the assignment, by coarse forecasts.
    pub fn coarse_assignment(
        &self,
        plan_mode: PlanMode,
        forecast_state: &ForecastState,
    ) -> BTreeMap<AppIndex, PathIndex> {
        let planned = self.planned(plan_mode, forecast_state, ForecastResolution::Coarse);
        planned.places()
    }

    /// Every path that is up for `app`, with forecasts.
    pub fn candidates(&self, app: AppIndex, forecast_state: &ForecastState) -> Vec<Candidate> {
        let problem = self.beside_present(app);
        problem.map_or_else(Vec::new, |problem| problem.candidates(app, forecast_state))
    }

    /// The smallest single changes at which `app` would move: of its own path, of the best other
    /// path, of its latency target. A change of nothing if the next plan moves it as it is.
    pub fn thresholds(&self, app: AppIndex, forecast_state: &ForecastState) -> Vec<MoveTrigger> {
        let problem = self.beside_present(app);
        problem.map_or_else(Vec::new, |problem| problem.thresholds(app, forecast_state))
    }

    /// Eq. 3's prediction for `app` on every path that is up, all else unchanged. Empty if the
    /// application is not part of the problem.
    pub fn predictions(&self, app: AppIndex) -> Vec<(PathIndex, Prediction)> {
        let problem = self.beside_present(app);
        problem.map_or_else(Vec::new, |problem| problem.predictions(app))
    }

    /// What the delays of all applications that are on a path are made of there, by eq. 3.
    pub fn current_delay_terms(&self) -> BTreeMap<AppIndex, (PathIndex, DelayTerms)> {
        let loads = self.loads(&self.input.now);
        let mut terms = BTreeMap::new();
        for peer in self.apps.keys() {
            terms.extend(self.to_peer(*peer, &loads).current_delay_terms());
        }
        terms
    }

    fn with_input<'b>(&self, input: &'b PlannerInput) -> PlanningProblem<'b>
    where
        'a: 'b,
    {
        PlanningProblem {
            config: self.config,
            input,
            apps: self.apps.clone(),
            uplinks: self.uplinks.clone(),
        }
    }

    /// Computed when it is needed: of a gateway with one peer, never.
    fn uplinks(&self) -> &Uplinks {
        self.uplinks.get_or_init(|| match self.apps.len() {
            0 | 1 => Uplinks::default(),
            _ => Uplinks::that_may_fill(self.config, self.input),
        })
    }

    fn loads(&self, places: &BTreeMap<AppIndex, PathIndex>) -> UplinkLoads {
        match self.uplinks().is_empty() {
            true => UplinkLoads::default(),
            false => self.uplinks().loads(self.config, self.input, places),
        }
    }

    /// The problem of the applications to one peer, with what `loads` has of the others.
    fn to_peer(&self, peer: PeerIndex, loads: &UplinkLoads) -> PeerProblem {
        let neighbours = match self.uplinks().is_empty() {
            true => BTreeMap::new(),
            false => loads.beside(self.uplinks(), self.config, peer),
        };
        let scope = Scope {
            peer: Some(peer),
            apps: self.apps.get(&peer).map_or(&[], |apps| apps),
            neighbours: &neighbours,
            peers: self.apps.len(),
        };
        PeerProblem::new(self.config, self.input, &scope)
    }

    /// The problem of the peer of `app`, with the others where they are. `None`: its peer is not reached.
    fn beside_present(&self, app: AppIndex) -> Option<PeerProblem> {
        let peer = self.config.apps.get(app.0)?.peer;
        self.apps.contains_key(&peer).then(|| {
            let loads = self.loads(&self.input.now);
            self.to_peer(peer, &loads)
        })
    }

    /// One peer after the other, each with the plans for those before it.
    fn planned(
        &self,
        plan_mode: PlanMode,
        forecast_state: &ForecastState,
        resolution: ForecastResolution,
    ) -> Joined {
        let mut joined = Joined::new(self.config);
        let mut loads = self.loads(&self.input.now);
        for peer in self.apps.keys() {
            let problem = self.to_peer(*peer, &loads);
            let mut forecasts = Forecasts::new(&problem, forecast_state);
            let found = problem.assignment(plan_mode, &mut forecasts, resolution);
            joined.optimal &= found.optimal;
            joined.defers_moves |= found.defers_moves;
            match resolution {
                ForecastResolution::Fine => {
                    joined.describe(&problem, &found.assignment, &mut forecasts);
                }
                ForecastResolution::Medium | ForecastResolution::Coarse => {
                    joined.place(&problem, &found.assignment);
                }
            }
            if !self.uplinks().is_empty() {
                loads.remove(*peer);
                for (app, path) in problem.places(&found.assignment) {
                    loads.add(self.uplinks(), self.config, self.input, app, path);
                }
            }
        }
        joined
    }

    /// As if all paths of an uplink were one: an application may make room for one to another peer.
    fn planned_together(
        &self,
        plan_mode: PlanMode,
        forecast_state: &ForecastState,
    ) -> BTreeMap<AppIndex, PathIndex> {
        let apps: Vec<AppIndex> = self.apps.values().flatten().copied().collect();
        let scope = Scope {
            peer: None,
            apps: &apps,
            neighbours: &BTreeMap::new(),
            peers: 1,
        };
        let problem = PeerProblem::new(self.config, self.input, &scope);
        let mut forecasts = Forecasts::new(&problem, forecast_state);
        let found = problem.assignment(plan_mode, &mut forecasts, ForecastResolution::Coarse);
        problem.places(&found.assignment).collect()
    }

    /// The plan that puts applications at `places`.
    fn described(
        &self,
        places: &BTreeMap<AppIndex, PathIndex>,
        forecast_state: &ForecastState,
    ) -> Joined {
        let mut joined = Joined::new(self.config);
        let loads = self.loads(places);
        for peer in self.apps.keys() {
            let problem = self.to_peer(*peer, &loads);
            let mut forecasts = Forecasts::new(&problem, forecast_state);
            let assignment = problem.assignment_of(places);
            joined.describe(&problem, &assignment, &mut forecasts);
        }
        joined
    }
}

impl Joined {
    fn new(config: &PlannerConfig) -> Self {
        Self {
            apps: vec![UNASSIGNED; config.apps.len()],
            lateness: Duration::ZERO,
            delay_sum: Some(Duration::ZERO),
            optimal: true,
            defers_moves: false,
        }
    }

    fn describe(
        &mut self,
        problem: &PeerProblem,
        assignment: &[usize],
        forecasts: &mut Forecasts<'_>,
    ) {
        let (lateness, delay_sum) = problem.describe(assignment, forecasts, &mut self.apps);
        self.lateness = self.lateness.saturating_add(lateness);
        let sums = self.delay_sum.zip(delay_sum);
        self.delay_sum = sums.map(|(sum, more)| sum.saturating_add(more));
    }

    fn place(&mut self, problem: &PeerProblem, assignment: &[usize]) {
        for (app, path) in problem.places(assignment) {
            self.apps[app.0].path = Some(path);
        }
    }

    fn places(&self) -> BTreeMap<AppIndex, PathIndex> {
        let apps = self.apps.iter().enumerate();
        apps.filter_map(|(number, app)| Some((AppIndex(number), app.path?)))
            .collect()
    }

    /// Applications that miss their target, lose too much or are overloaded.
    fn unmet(&self) -> usize {
        self.apps.iter().filter(|app| app.is_unmet()).count()
    }

    fn into_plan(self) -> Plan {
        Plan {
            apps: self.apps,
            optimal: self.optimal,
            defers_moves: self.defers_moves,
            lateness: self.lateness,
            delay_sum: self.delay_sum,
            took: Duration::ZERO,
        }
    }
}
