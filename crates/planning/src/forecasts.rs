//! Forecasts for sets of applications on a path, each computed once per problem, and what they say
//! about latency targets.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    time::Duration,
};

use keiro_planner::{
    delay::{AppSpec, Prediction},
    plan::{ModelScore, competing_rates},
    queueing::{Resolution, Statistic},
};
use keiro_units::Bandwidth;

use crate::{
    expected_delay::{ExpectedDelay, FORECAST_ERROR},
    forecast::{DelayForecast, ForecastState, forecasts_of, resolution},
    input::MeasuredDelay,
    peer_problem::{EQUATION, PeerProblem},
};

/// How finely forecasts are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForecastResolution {
    /// As forecasts are shown.
    Fine,
    /// In about a tenth of the time.
    Medium,
    /// Coarsely, for many plans.
    Coarse,
}

/// Forecasts of one problem; each set of applications on a path is computed once.
pub(crate) struct Forecasts<'a> {
    problem: &'a PeerProblem,
    forecast_state: &'a ForecastState,
    known: BTreeMap<(Resolution, usize, Vec<usize>), KnownSet>,
}

/// What is known of a set of applications on a path.
struct KnownSet {
    forecasts: Vec<DelayForecast>,
    /// As [`Forecasts::scores`], for the targets as they are.
    scores: Option<Rc<[(ModelScore, bool)]>>,
}

/// Applications that share a path, as they are scored.
struct OnPath<'a> {
    problem: &'a PeerProblem,
    path: usize,
    members: &'a [usize],
    /// What the others of `members` send beside each.
    others: Vec<Bandwidth>,
    /// No application joined the path: what was measured there holds or improves.
    no_new_member: bool,
    /// Those whose traffic is not known yet.
    little_known: Vec<usize>,
    /// By what latency targets are scaled.
    tighter: f64,
}

/// Latency targets that an assignment leaves unmet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Violations {
    pub(crate) unmet: BTreeSet<usize>,
    /// Applications whose target is missed at the 99th percentile only.
    pub(crate) unmet_at_p99: BTreeSet<usize>,
    /// Those of `unmet_at_p99` whose 99th percentile is not known.
    pub(crate) unknown_p99: BTreeSet<usize>,
    pub(crate) all: ModelScore,
}

/// The 99th percentile of an application with a latency target, on a path.
pub(crate) struct P99Check {
    /// Forecast and limit, in seconds.
    pub(crate) forecast: Option<(f64, f64)>,
    /// Whether the measured one meets the target.
    pub(crate) is_met: Option<bool>,
    /// Whether it is on this path and no other application joins; `None`: it is on no path yet.
    pub(crate) stays: Option<bool>,
    /// An application on the path sends traffic that is not known yet.
    pub(crate) is_blind: bool,
}

const MEDIUM: Resolution = Resolution::new(128);

impl<'a> Forecasts<'a> {
    pub(crate) fn new(problem: &'a PeerProblem, forecast_state: &'a ForecastState) -> Self {
        Self {
            problem,
            forecast_state,
            known: BTreeMap::new(),
        }
    }

    /// The same for a problem that differs in what applications may take only. What is known goes along until it is
    /// [taken back](Self::take_back).
    pub(crate) fn lend<'b>(&mut self, problem: &'b PeerProblem) -> Forecasts<'b>
    where
        'a: 'b,
    {
        Forecasts {
            problem,
            forecast_state: self.forecast_state,
            known: std::mem::take(&mut self.known),
        }
    }

    pub(crate) fn take_back(&mut self, lent: Forecasts<'_>) {
        self.known = lent.known;
    }

    /// The forecasts, as they are shown, for exactly `members` (ascending) on `path`.
    pub(crate) fn shown(&mut self, path: usize, members: &[usize]) -> &[DelayForecast] {
        let resolution = self.finest(members.len());
        &self.of(path, members, resolution).forecasts
    }

    fn of(&mut self, path: usize, members: &[usize], resolution: Resolution) -> &mut KnownSet {
        let (problem, forecast_state) = (self.problem, self.forecast_state);
        let key = (resolution, path, members.to_vec());
        self.known.entry(key).or_insert_with(|| {
            let senders: Vec<_> = members.iter().map(|app| problem.senders[*app]).collect();
            let line = problem.line(path);
            let forecasts = match senders.is_empty() {
                true => Vec::new(),
                false => forecasts_of(
                    problem.scheduler,
                    &line,
                    &senders,
                    forecast_state,
                    resolution,
                ),
            };
            KnownSet {
                forecasts,
                scores: None,
            }
        })
    }

    /// The score of each of `members` on `path`, with latency targets scaled by `tighter`; and whether it is unmet at
    /// the 99th percentile only because that is not known.
    fn scores(
        &mut self,
        path: usize,
        members: &[usize],
        resolution: Resolution,
        tighter: f64,
    ) -> Rc<[(ModelScore, bool)]> {
        let problem = self.problem;
        let known = self.of(path, members, resolution);
        let is_kept = tighter == 1.0;
        if let Some(scores) = known.scores.as_ref().filter(|_| is_kept) {
            return Rc::clone(scores);
        }
        let on_path = OnPath::new(problem, path, members, tighter);
        let scores: Rc<[_]> = known
            .forecasts
            .iter()
            .enumerate()
            .map(|(position, forecast)| on_path.score(position, forecast))
            .collect();
        if is_kept {
            known.scores = Some(Rc::clone(&scores));
        }
        scores
    }

    /// The sum of [`Self::scores`].
    pub(crate) fn score(
        &mut self,
        path: usize,
        members: &[usize],
        resolution: Resolution,
        tighter: f64,
    ) -> ModelScore {
        let all = self.scores(path, members, resolution, tighter);
        all.iter()
            .map(|(score, _)| *score)
            .fold(ModelScore::default(), ModelScore::saturating_add)
    }

    /// The mean delays in seconds of `members` on `path` as they count for their targets: a target
    /// that counts as missed has a delay beyond it, and infinite means overloaded.
    pub(crate) fn delays(
        &mut self,
        path: usize,
        members: &[usize],
        forecast_resolution: ForecastResolution,
    ) -> Vec<f64> {
        let resolution = self.resolution(members.len(), forecast_resolution);
        let all = self.scores(path, members, resolution, 1.0);
        let delay = |(app, (score, _)): (&usize, &(ModelScore, bool))| {
            let limit = self.problem.limit_seconds(*app);
            match *score {
                ModelScore {
                    overloaded: 1.., ..
                } => f64::INFINITY,
                ModelScore { unmet: 1.., .. } => limit + score.lateness.as_secs_f64(),
                _ => score.delay.as_secs_f64().min(limit),
            }
        };
        members.iter().zip(all.iter()).map(delay).collect()
    }

    /// The resolution that is shown.
    fn finest(&self, members: usize) -> Resolution {
        match self.problem.is_one_of_many() {
            true => Resolution::COARSE,
            false => resolution(members),
        }
    }

    fn resolution(&self, members: usize, forecast_resolution: ForecastResolution) -> Resolution {
        match forecast_resolution {
            ForecastResolution::Fine => self.finest(members),
            ForecastResolution::Medium => MEDIUM.min(self.finest(members)),
            ForecastResolution::Coarse => Resolution::COARSE,
        }
    }

    /// The violations of `assignment`, by forecasts of this resolution.
    pub(crate) fn violations(
        &mut self,
        assignment: &[usize],
        forecast_resolution: ForecastResolution,
    ) -> Violations {
        let mut violations = Violations::default();
        let by_path = members_by_path(assignment, self.problem.paths.len());
        for (path, members) in by_path.into_iter().enumerate() {
            let resolution = self.resolution(members.len(), forecast_resolution);
            let all = self.scores(path, &members, resolution, 1.0);
            for (app, &(score, is_p99_unknown)) in members.into_iter().zip(all.iter()) {
                if score.unmet > 0 {
                    violations.unmet.insert(app);
                }
                if score.unmet_at_p99 > 0 {
                    violations.unmet_at_p99.insert(app);
                }
                if is_p99_unknown {
                    violations.unknown_p99.insert(app);
                }
                violations.all = violations.all.saturating_add(score);
            }
        }
        violations
    }
}

impl<'a> OnPath<'a> {
    fn new(problem: &'a PeerProblem, path: usize, members: &'a [usize], tighter: f64) -> Self {
        let little_known = members.iter().copied();
        Self {
            problem,
            path,
            members,
            others: competing_rates(&problem.app_specs, members),
            no_new_member: members.iter().all(|app| problem.at[*app] == Some(path)),
            little_known: little_known
                .filter(|app| problem.little_known.contains(app))
                .collect(),
            tighter,
        }
    }

    fn is_new(&self, app: usize) -> bool {
        self.problem.at[app] != Some(self.path)
    }

    /// The score of one of the members, and whether it is unmet at the 99th percentile only because that is not known.
    fn score(&self, position: usize, forecast: &DelayForecast) -> (ModelScore, bool) {
        let problem = self.problem;
        let app = self.members[position];
        let spec = &problem.app_specs[app];
        let latency_target = spec.latency_target;
        let latency_target = latency_target.map(|target| target.mul_f64(self.tighter));
        let spec = AppSpec {
            latency_target,
            ..*spec
        };
        let path_spec = &problem.path_specs[self.path];
        let prediction = EQUATION.predict(path_spec, &spec, self.others[position]);
        let of =
            |measured| ExpectedDelay::of(&prediction, Some(forecast), measured, problem.tolerance);
        let measured = problem.measured.get(&problem.apps[app]);
        let measured = measured.filter(|_| self.no_new_member);
        let extrapolated = match forecast.mean() {
            Some(_) => None,
            None => problem.extrapolated(app, self.path, &prediction),
        };
        // A forecast does not overrule a measurement: an application that is measured to meet
        // its target is not moved, and one that is measured to miss it is not considered met.
        // Without a forecast the measurement is extrapolated.
        let seen = measured.map(|measured| of(Some(*measured)));
        let expected = seen
            .filter(|seen| seen.met == Some(true) || extrapolated.is_some())
            .unwrap_or_else(|| of(extrapolated));
        let limit = latency_target.map(|target| problem.tolerance.loosen(target).as_secs_f64());
        let tail = P99Check {
            forecast: forecast
                .seconds(Statistic::P99)
                .or(extrapolated.map(|delay| delay.p99.as_secs_f64()))
                .zip(limit),
            is_met: seen.and_then(|seen| seen.met_at_p99),
            stays: problem.at[app].map(|_| self.no_new_member),
            is_blind: self.is_blind(app),
        };
        let is_unmet = expected.met == Some(false) || expected.overloaded;
        let mean = expected.predicted.unwrap_or(prediction.delay);
        let is_unmet_at_p99 = !is_unmet && latency_target.is_some() && tail.is_unmet();
        let score = ModelScore {
            unmet: usize::from(is_unmet),
            overloaded: usize::from(expected.overloaded),
            unmet_at_p99: usize::from(is_unmet_at_p99),
            lateness: expected.lateness,
            delay: mean.finite().unwrap_or_default(),
        };
        (score, is_unmet_at_p99 && tail.forecast.is_none())
    }

    /// Another application sends traffic that is not known yet.
    fn is_blind(&self, app: usize) -> bool {
        self.little_known.iter().any(|&other| {
            // Applications that were on the path during the measurement are part of it.
            let counts = self.no_new_member || self.is_new(app) || self.is_new(other);
            other != app && counts
        })
    }
}

impl P99Check {
    /// Whether it counts as unmet: a reason to leave the path, or not to move to it.
    pub(crate) fn is_unmet(&self) -> bool {
        let part = self.forecast.map(|(seconds, limit)| seconds / limit);
        let is_sure =
            !self.is_blind && part.is_some_and(|part| part * (1.0 + FORECAST_ERROR) <= 1.0);
        match (self.stays, self.is_met) {
            (Some(true), Some(is_met)) => !is_met && !is_sure,
            (Some(true), None) => part.is_some_and(|part| part > 1.0 + FORECAST_ERROR),
            (Some(false), _) => !is_sure,
            (None, _) => part.is_none_or(|part| part > 1.0),
        }
    }
}

impl PeerProblem {
    /// The delay that an application without a forecast would get on `path`, extrapolated from the
    /// measured one: the queueing part is scaled by the paths' rates, and the result is not below
    /// eq. 3. Another path than its own counts a fifth more, so that it moves only for a clear
    /// gain.
    pub(crate) fn extrapolated(
        &self,
        app: usize,
        path: usize,
        prediction: &Prediction,
    ) -> Option<MeasuredDelay> {
        let at = self.at[app]?;
        let measured = *self.measured.get(&self.apps[app])?;
        if at == path {
            return Some(measured);
        }
        let [here, there] = [at, path].map(|path| self.path_specs[path]);
        let slower = here.bandwidth.ratio_of(there.bandwidth)?;
        let least = prediction.delay.finite()?;
        let elsewhere = |delay: Duration| {
            let beyond = delay.saturating_sub(here.delay).mul_f64(slower);
            (there.delay + beyond)
                .max(least)
                .mul_f64(1.0 + FORECAST_ERROR)
        };
        Some(MeasuredDelay {
            mean: elsewhere(measured.mean),
            p99: elsewhere(measured.p99),
        })
    }

    /// The longest mean that meets the target of an application, in seconds; infinite without one.
    pub(crate) fn limit_seconds(&self, app: usize) -> f64 {
        let target = self.app_specs[app].latency_target;
        target.map_or(f64::INFINITY, |target| {
            self.tolerance.loosen(target).as_secs_f64()
        })
    }

    /// Whether forecasts refine the plan.
    pub(crate) fn is_refined(&self) -> bool {
        self.searches()
    }
}

/// The applications on each path, ascending.
pub(crate) fn members_by_path(assignment: &[usize], paths: usize) -> Vec<Vec<usize>> {
    let mut members = vec![Vec::new(); paths];
    for (app, path) in assignment.iter().enumerate() {
        members[*path].push(app);
    }
    members
}

/// The applications on `path`, ascending.
pub(crate) fn members(assignment: &[usize], path: usize) -> Vec<usize> {
    let on_path = |app: &usize| assignment[*app] == path;
    (0..assignment.len()).filter(on_path).collect()
}
