//! Applications that come and go in the simulator: two gateways that are given new paths.

use std::time::Duration;

use anyhow::{Context, anyhow};
use keiro_core::SchedulerKind;
use keiro_model::arrivals;
use keiro_planner::{
    delay::{AppSpec, Equation3, PathSpec, Tolerance},
    plan::{self, Budget, Problem},
};
use keiro_sim::{GatewayPair, Scenario, ScenarioEvent, Side};
use keiro_units::Instant;

use super::{Churn, ChurnOutcome, ChurnRequest, ChurnRunner, Message, Placed, Policy};
use crate::{
    setup::{Assignment, Scheduler},
    simulator::Simulator,
};

enum Event {
    Change,
    Send { application: usize, bytes: usize },
}

impl ChurnRunner for Simulator {
    fn run(&mut self, request: &ChurnRequest<'_>) -> anyhow::Result<ChurnOutcome> {
        let churn = request.churn;
        let policy = &churn.policies[request.policy];
        let mut scenario = scenario(churn, policy);
        scenario.patience = request.drain;
        let failed = |failure| anyhow!("the simulation failed: {failure}");
        let mut pair = GatewayPair::new(&scenario, request.seed);
        pair.set_up().map_err(failed)?;
        pair.begin();
        let begun = pair.now();
        let mut places: Vec<Option<usize>> = vec![None; churn.applications.len()];
        let mut placed = Vec::new();
        for (at, event) in events(request)? {
            let now = begun + at;
            pair.run_for(now.saturating_duration_since(pair.now()));
            match event {
                Event::Send { application, bytes } => pair.send(Side::A, application, bytes),
                Event::Change => {
                    let chosen = choose(churn, policy, at).context("no paths can be chosen")?;
                    for (app, path) in chosen {
                        if places[app].replace(path) == Some(path) {
                            continue;
                        }
                        let others = (0..churn.paths.len()).filter(|other| *other != path);
                        let paths = std::iter::once(path).chain(others).collect();
                        pair.apply(&ScenarioEvent::Assign {
                            side: Side::A,
                            app,
                            paths,
                        });
                        let at_s = at.as_secs_f64();
                        placed.push(Placed {
                            at_s,
                            application: app,
                            path,
                        });
                    }
                }
            }
        }
        pair.run_for((begun + request.duration).saturating_duration_since(pair.now()));
        pair.finish().map_err(failed)?;
        let messages = pair.report().messages.into_iter().map(|message| Message {
            application: message.app,
            made_s: message.made.saturating_duration_since(begun).as_secs_f64(),
            delay_ms: message.delay().map(|delay| delay.as_secs_f64() * 1e3),
        });
        let mut messages: Vec<Message> = messages.collect();
        messages.sort_by(|a, b| a.made_s.total_cmp(&b.made_s));
        Ok(ChurnOutcome { messages, placed })
    }
}

fn scenario(churn: &Churn, policy: &Policy) -> Scenario {
    let paths = churn.paths.iter();
    let paths = paths.map(|path| keiro_sim::PathSpec::new(path.bandwidth.0, path.delay.0));
    let mut scenario = Scenario::new(paths.collect());
    let scheduler = match policy.scheduler {
        Scheduler::Deadline => SchedulerKind::Deadline,
        Scheduler::Fifo => SchedulerKind::Fifo,
    };
    scenario.a.scheduler = scheduler;
    scenario.b.scheduler = scheduler;
    for application in &churn.applications {
        scenario.add_message_app(Some(application.latency_target.0), &[0]);
    }
    scenario
}

/// Changes and messages in order of time, changes first.
fn events(request: &ChurnRequest<'_>) -> anyhow::Result<Vec<(Duration, Event)>> {
    let churn = request.churn;
    let changes = churn.changes(request.duration).into_iter();
    let mut all: Vec<(Duration, Event)> = changes.map(|at| (at, Event::Change)).collect();
    for (number, application) in (0..).zip(&churn.applications) {
        let bytes = usize::try_from(application.length.0.get())?;
        let made = arrivals::schedule(
            request.seed,
            number,
            application.interval.0,
            request.duration,
        );
        let made = made
            .into_iter()
            .map(|at| at.saturating_duration_since(Instant::ZERO));
        let application_number = number as usize;
        all.extend(made.filter(|at| application.is_active(*at)).map(|at| {
            let application = application_number;
            (at, Event::Send { application, bytes })
        }));
    }
    // Stable: changes were first.
    all.sort_by_key(|(at, _)| *at);
    Ok(all)
}

/// The paths of those applications that the policy considers at this time.
fn choose(churn: &Churn, policy: &Policy, at: Duration) -> Option<Vec<(usize, usize)>> {
    if !policy.replanned && !at.is_zero() {
        return Some(Vec::new());
    }
    let all = 0..churn.applications.len();
    let is_there = |app: &usize| !policy.replanned || churn.applications[*app].is_active(at);
    let there: Vec<usize> = all.filter(is_there).collect();
    if there.is_empty() {
        return Some(Vec::new());
    }
    let place = |name: &String| churn.paths.iter().position(|path| path.name == *name);
    let chosen = match &policy.assignment {
        Assignment::OnePath(name) => vec![place(name)?; there.len()],
        Assignment::Given(names) => there
            .iter()
            .map(|&app| place(names.get(app)?))
            .collect::<Option<_>>()?,
        Assignment::Paper { .. } | Assignment::Planned => {
            let paths: Vec<PathSpec> = churn
                .paths
                .iter()
                .map(|path| PathSpec {
                    bandwidth: path.bandwidth.0,
                    delay: path.delay.0,
                })
                .collect();
            let app = |&app: &usize| AppSpec {
                length: churn.applications[app].length.0,
                interval: churn.applications[app].interval.0,
                latency_target: Some(churn.applications[app].latency_target.0),
            };
            let apps: Vec<AppSpec> = there.iter().map(app).collect();
            let equation = Equation3::default();
            let problem = Problem::new(&paths, &apps, &equation).ok()?;
            match &policy.assignment {
                Assignment::Paper { tolerance } => {
                    let tolerance = Tolerance::from_ratio(tolerance.0.get())?;
                    plan::greedy(&problem.with_tolerance(tolerance)).assignment
                }
                _ => plan::frugal(&problem, Budget::default()).assignment,
            }
        }
    };
    Some(there.into_iter().zip(chosen).collect())
}
