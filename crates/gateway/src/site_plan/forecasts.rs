//! The plan of a whole site, made by its leader: by eq. 3, then corrected by forecasts.
//!
//! A gateway alone plans by eq. 3 and corrects that by the forecasts of its scheduler. Here its leader does so for every
//! gateway of the site, one after the other, each with what the others send over the same lines where they are planned.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_control::config::{
    App, AppIndex, Class, CostPerGb, Name, PathIndex, PathOrigin, PathRole, PathTerms, PathUse,
    PeerIndex, Planner,
};
use keiro_planner::{
    queueing::{Spread, TrafficWindow, WindowHalf},
    steer::{PathSample, PlanMode},
};
use keiro_planning::{
    LossNeeds, MeasuredWorkload, Plan, PlannedPath, PlannerConfig, PlannerInput, PlanningProblem,
    Workload, forecast::ForecastState,
};
use keiro_store::{AppInputs, Inputs, PathInputs, SitePlan};

use super::{
    SitePlanner,
    leader::{Assignments, line_of, place, plan_by_equation, spec_of},
    others::others_of,
};

/// Sites of more applications are planned by eq. 3 alone. Ours: forecasts for so many take some tenths of a second, in
/// which the leader answers nothing else.
const FORECAST_APPS_MAX: usize = 500;
/// Messages that each half of an observation is taken to have: what is published rests on enough of them.
const MESSAGES_SEEN: u64 = 10_000;

/// A gateway of the site as it would plan for itself.
struct Member<'a> {
    inputs: &'a Inputs,
    config: PlannerConfig,
    input: PlannerInput,
    lines: BTreeSet<String>,
}

/// The plan for all, from what their gateways have published.
pub(super) fn plan_for_all(
    inputs: &[&Inputs],
    before: Option<&SitePlan>,
    planner: SitePlanner,
) -> Assignments {
    let planned = plan_by_equation(inputs, before, planner.settings());
    by_forecasts(inputs, before, planner, planned)
}

/// The plan in force, or `planned` by eq. 3, after every gateway has corrected its part by forecasts: the first of the
/// two that leaves the fewest targets unmet.
fn by_forecasts(
    inputs: &[&Inputs],
    before: Option<&SitePlan>,
    planner: SitePlanner,
    planned: Assignments,
) -> Assignments {
    let apps: usize = inputs.iter().map(|inputs| inputs.apps.len()).sum();
    if apps > FORECAST_APPS_MAX || !matches!(planner.planner, Planner::Exact | Planner::Frugal) {
        return planned;
    }
    let members: Vec<Member<'_>> = inputs
        .iter()
        .map(|inputs| Member::new(inputs, planner))
        .collect();
    let mut best: Option<(usize, Assignments)> = None;
    for start in in_force(&members, before).into_iter().chain([planned]) {
        let corrected = corrected(&members, start);
        let unmet = unmet(&members, &corrected);
        if best.as_ref().is_none_or(|(least, _)| unmet < *least) {
            best = Some((unmet, corrected));
        }
        if unmet == 0 {
            break;
        }
    }
    best.map(|(_, corrected)| corrected).unwrap_or_default()
}

/// Where all applications are. `None`: some have no path yet, or theirs is gone.
fn in_force(members: &[Member<'_>], before: Option<&SitePlan>) -> Option<Assignments> {
    let of_member = |member: &Member<'_>| {
        let place = |app: &App| {
            let all = &member.inputs.apps;
            let published = all.iter().find(|other| other.name == app.name.as_str())?;
            let leads_there = |name: &str| {
                let path = member.config.path_named(name);
                path.is_some_and(|path| member.input.up.contains_key(&(path, app.peer)))
            };
            let place = place(member.inputs, published, before, leads_there);
            let place = place.filter(|place| leads_there(place))?;
            Some((app.name.to_string(), place.to_owned()))
        };
        let places: Option<BTreeMap<String, String>> =
            member.config.apps.iter().map(place).collect();
        Some((member.inputs.gateway.clone(), places?))
    };
    members.iter().map(of_member).collect()
}

/// `start`, with the part of each gateway as that gateway would plan it beside the others.
fn corrected(members: &[Member<'_>], start: Assignments) -> Assignments {
    let mut assignments = start;
    for member in members {
        let plan = member.plan(members, &assignments, |problem| {
            problem.answer(PlanMode::Revise, &ForecastState::default())
        });
        let name = |(app, path): (AppIndex, PathIndex)| {
            let (app, path) = (&member.config[app], &member.config[path]);
            (app.name.to_string(), path.name.to_string())
        };
        let places = plan.paths().into_iter().map(name);
        let of_gateway = assignments.entry(member.inputs.gateway.clone());
        of_gateway.or_default().extend(places);
    }
    assignments
}

/// Targets that these assignments leave unmet.
fn unmet(members: &[Member<'_>], assignments: &Assignments) -> usize {
    let of_member = |member: &Member<'_>| {
        let plan = member.plan(members, assignments, |problem| {
            problem.present_plan(&ForecastState::default())
        });
        let without_path = plan.apps.iter().filter(|app| app.path.is_none()).count();
        plan.unmet() + without_path
    };
    members.iter().map(of_member).sum()
}

impl<'a> Member<'a> {
    /// Values that make no sense are left out.
    fn new(inputs: &'a Inputs, planner: SitePlanner) -> Self {
        let paths: Vec<(&PathInputs, PathSample)> = inputs
            .paths
            .iter()
            .filter_map(|path| Some((path, line_of(path)?)))
            .collect();
        let names = |names: BTreeSet<&str>| -> Vec<Name> {
            let names = names.into_iter();
            names.filter_map(|name| Name::in_use(name).ok()).collect()
        };
        let planned = |name: Name| PlannedPath {
            name,
            origin: PathOrigin::Written,
            rate: None,
            delay: None,
            role: PathRole::Primary,
            cost: CostPerGb::ZERO,
        };
        let lines = names(paths.iter().map(|(path, _)| path.name.as_str()).collect());
        let mut member = Self {
            inputs,
            lines: lines.iter().map(Name::to_string).collect(),
            config: PlannerConfig {
                planner: planner.planner,
                scheduler: planner.scheduler,
                tolerance: planner.tolerance,
                peers: names(paths.iter().map(|(path, _)| path.peer.as_str()).collect()),
                paths: lines.into_iter().map(planned).collect(),
                apps: Vec::new(),
                loss_needs: LossNeeds::default(),
            },
            input: PlannerInput::default(),
        };
        for (path, line) in paths {
            member.add_path(path, line);
        }
        for app in &inputs.apps {
            member.add_app(app);
        }
        member
    }

    fn peer(&self, name: &str) -> Option<PeerIndex> {
        let found = self
            .config
            .peers
            .iter()
            .position(|peer| peer.as_str() == name);
        found.map(PeerIndex)
    }

    fn add_path(&mut self, path: &PathInputs, line: PathSample) {
        let (Some(index), Some(peer)) = (self.config.path_named(&path.name), self.peer(&path.peer))
        else {
            return;
        };
        let key = (index, peer);
        self.input.up.insert(key, Some(line));
        let capacities = &mut self.input.shared.capacities;
        capacities.insert(key, line.bandwidth);
        let terms = PathTerms {
            role: match path.is_backup {
                true => PathRole::Backup,
                false => PathRole::Primary,
            },
            cost: CostPerGb::from_micros(path.cost_micros_per_gigabyte),
            is_spent: false,
        };
        if terms != PathTerms::FREE {
            self.input.terms.insert(key, terms);
        }
    }

    fn add_app(&mut self, app: &AppInputs) {
        let spec = spec_of(app).filter(|spec| spec.length.get() < LENGTH_END);
        let (Some(spec), Some(peer), Ok(name)) =
            (spec, self.peer(&app.peer), Name::in_use(&app.name))
        else {
            return;
        };
        let named = app.paths.iter();
        let mut named = named.filter_map(|path| self.config.path_named(path));
        let pinned = named.find(|path| self.input.up.contains_key(&(*path, peer)));
        if pinned.is_none() && !app.paths.is_empty() {
            return;
        }
        let spread =
            |ratio: Option<f64>, usual: Spread| ratio.and_then(Spread::new).unwrap_or(usual);
        let length_spread = spread(app.length_cv2, Spread::NONE);
        let interval_spread = spread(app.interval_cv2, Spread::EXPONENTIAL);
        let index = AppIndex(self.config.apps.len());
        self.config.apps.push(App {
            name,
            wire_name: None,
            class: Class::Message,
            peer,
            latency_target: spec.latency_target,
            lifetime: None,
            loss: None,
            length: None,
            interval: None,
            paths: PathUse::One,
            essential: None,
            path: pinned,
        });
        let workload = Workload {
            length: spec.length,
            interval: spec.interval.max(Duration::from_micros(1)),
            length_spread,
            interval_spread,
        };
        let half = WindowHalf {
            messages: MESSAGES_SEEN,
            length_mean: spec.length.get() as f64,
            length_spread,
        };
        let window = TrafficWindow {
            halves: [half; 2],
            interval_spread,
            together: 0.0,
        };
        let input = &mut self.input;
        input
            .workloads
            .insert(index, MeasuredWorkload::Sending(workload));
        input.traffic_windows.insert(index, window);
    }

    /// A plan of this gateway where `assignments` has the others and itself.
    fn plan(
        &self,
        members: &[Self],
        assignments: &Assignments,
        plan: impl FnOnce(&PlanningProblem<'_>) -> Plan,
    ) -> Plan {
        let own = &self.inputs.gateway;
        let others = members.iter().map(|member| member.inputs);
        let others = others.filter(|inputs| inputs.gateway != *own);
        let made_from = members.iter().map(|member| member.inputs);
        let planned = SitePlan {
            assignments: assignments.clone(),
            made_from: made_from
                .map(|inputs| (inputs.gateway.clone(), inputs.sequence))
                .collect(),
            ..SitePlan::default()
        };
        let others = others_of(others, Some(&planned), own, &self.lines);
        let mut input = self.input.clone();
        let uses = others.lines.into_iter();
        let uses = uses.filter_map(|(line, uses)| Some((self.config.path_named(&line)?, uses)));
        input.shared.uses = uses.collect();
        let places = assignments.get(own).into_iter().flatten();
        let places = places.filter_map(|(app, path)| {
            Some((self.config.app_named(app)?, self.config.path_named(path)?))
        });
        input.now = places.collect();
        plan(&PlanningProblem::new(&self.config, &input))
    }
}

/// Lengths are below, in bytes: the planner's bound.
const LENGTH_END: u64 = 1 << 48;

#[cfg(test)]
mod tests {
    use keiro_control::config::Scheduler;
    use keiro_units::Probability;

    use super::*;

    /// Of 100 Mbit/s.
    fn path(name: &str, delay_seconds: f64) -> PathInputs {
        PathInputs {
            name: name.into(),
            peer: "b".into(),
            bandwidth_bits_per_second: 1e8,
            delay_seconds,
            ..PathInputs::default()
        }
    }

    /// An application of 45 Mbit/s.
    fn gateway(name: &str) -> Inputs {
        let app = AppInputs {
            name: "x".into(),
            peer: "b".into(),
            length_bytes: 100_000.0,
            interval_seconds: 0.0178,
            latency_target_seconds: Some(0.035),
            ..AppInputs::default()
        };
        Inputs {
            gateway: name.into(),
            paths: vec![path("near", 0.001), path("far", 0.018)],
            apps: vec![app],
            ..Inputs::default()
        }
    }

    /// By eq. 3 both meet their targets on one line, where the queue takes longer than that by the forecast.
    #[test]
    fn a_site_is_planned_by_the_forecasts_of_all_gateways() {
        let [first, second] = ["g1", "g2"].map(gateway);
        let inputs = [&first, &second];
        for scheduler in [Scheduler::Deadline, Scheduler::Fifo] {
            let planner = SitePlanner {
                planner: Planner::Exact,
                scheduler,
                tolerance: Probability::ZERO,
            };
            let near: BTreeMap<String, String> = [("x".to_owned(), "near".to_owned())].into();
            let both_near = ["g1", "g2"].map(|name| (name.to_owned(), near.clone()));
            let plan = by_forecasts(&inputs, None, planner, both_near.into());
            assert_ne!(plan["g1"], plan["g2"], "{scheduler:?}");
            // Planned again, nothing moves.
            let before = SitePlan {
                assignments: plan.clone(),
                ..SitePlan::default()
            };
            assert_eq!(plan_for_all(&inputs, Some(&before), planner), plan);
        }
    }

    #[test]
    fn a_site_with_senseless_values_is_planned_without_them() {
        let mut bad = gateway("bad");
        bad.paths[0].delay_seconds = f64::NAN;
        bad.apps[0].length_bytes = 1e17;
        let mut strange = bad.apps[0].clone();
        strange.name = "<script>".into();
        strange.length_bytes = 1000.0;
        bad.apps.push(strange);
        let good = gateway("good");
        let planner = SitePlanner {
            planner: Planner::Frugal,
            scheduler: Scheduler::Deadline,
            tolerance: Probability::ZERO,
        };
        let plan = plan_for_all(&[&bad, &good], None, planner);
        assert!(plan["good"].contains_key("x"), "{plan:?}");
    }
}
