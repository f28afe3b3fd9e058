//! A path's bandwidth halves, its delay grows, it loses packets, it dies, it returns. With the plan loop of
//! the gateway on side A, every latency target is soon met again with one move per application, and no
//! message is lost.

use std::time::Duration;

use keiro_core::Event;
use keiro_link::Loss;
use keiro_planner::steer::PlanMode;
use keiro_sim::{
    Arrivals, Change, GatewayPair, Length, PathDirection, PathSpec, Report, Scenario, ScenarioEvent,
};
use keiro_units::{Bandwidth, Instant, Probability};

use crate::plan_loop::{App, Loop, SAMPLE_INTERVAL};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Times of the change of the path and of its return.
const CHANGE: Duration = Duration::from_secs(5);
const RETURN: Duration = Duration::from_secs(15);
const END: Duration = Duration::from_secs(25);
/// Messages of this much time are judged together.
const WINDOW: Duration = SECOND;

/// (Mbit/s, ms).
const PATHS: [(u64, u32); 3] = [(100, 2), (100, 10), (50, 40)];
/// (bytes, interval in ms, latency target in ms).
const APPS: [(u64, u32, u32); 6] = [
    (100_000, 100, 60),
    (10_000, 20, 30),
    (10_000, 20, 30),
    (100_000, 50, 100),
    (20_000, 50, 150),
    (5_000, 10, 20),
];

fn scenario() -> Scenario {
    let path = |(mbit, delay): (u64, u32)| {
        PathSpec::new(Bandwidth::from_mbit_per_second(mbit), delay * MS)
    };
    let mut scenario = Scenario::new(PATHS.into_iter().map(path).collect());
    let share = Probability::new(0.005).unwrap();
    (scenario.a.probe_share, scenario.b.probe_share) = (share, share);
    for (bytes, interval, latency_target) in APPS {
        let app = scenario.add_message_app(Some(latency_target * MS), &[0, 1, 2]);
        let made = Arrivals::Exponential {
            mean: interval * MS,
            duration: END,
        };
        scenario.add_traffic(app, made, Length::Fixed(bytes as usize));
    }
    scenario
}

/// Runs with one change of a path and its return. Returns the report, and the times of both.
fn run(path: usize, there: Change, back: Change, seed: u64) -> (Report, [Instant; 2], usize) {
    let mut pair = GatewayPair::new(&scenario(), seed);
    if let Err(failure) = pair.set_up() {
        panic!("{failure}");
    }
    let apps = APPS.map(|(bytes, interval, latency_target)| App {
        bytes,
        interval: interval * MS,
        latency_target: Some(latency_target * MS),
        loss: None,
    });
    let mut plan_loop = Loop::new(&apps);
    // Before applications send, a plan from scratch disturbs none.
    plan_loop.turn(&mut pair, PlanMode::FromScratch);
    pair.begin();
    let from = pair.now();
    let mut changes = [(CHANGE, there), (RETURN, back)].into_iter().peekable();
    while pair.now() < from + END {
        if let Some((_, change)) = changes.next_if(|(at, _)| pair.now() >= from + *at) {
            let direction = PathDirection::Both;
            pair.apply(&ScenarioEvent::Path {
                path,
                direction,
                change,
            });
        }
        pair.run_for(SAMPLE_INTERVAL);
        plan_loop.turn(&mut pair, PlanMode::Revise);
    }
    if let Err(failure) = pair.finish() {
        panic!("{failure}");
    }
    let report = pair.report();
    (report, [from + CHANGE, from + RETURN], plan_loop.plans)
}

/// Faults after a change at `at`, as texts.
fn faults(report: &Report, at: Instant, settled: Duration, until: Instant) -> Vec<String> {
    let mut faults = Vec::new();
    for (app, (_, _, latency_target)) in APPS.into_iter().enumerate() {
        let moved = |(time, event): &&(Instant, Event)| {
            let moved = matches!(event, Event::AppMoved { app: id, .. } if usize::try_from(id.0) == Ok(app));
            moved && *time >= at && *time < until
        };
        let moves = report.sides[0].events.iter().filter(moved).count();
        if moves > 1 {
            faults.push(format!("application {app} moved {moves} times"));
        }
        let mut window = at + settled;
        while window + WINDOW <= until {
            let made = |m: &&keiro_sim::MessageRecord| m.made >= window && m.made < window + WINDOW;
            let delays: Vec<f64> = report
                .messages_of(app)
                .filter(made)
                .map(|message| message.delay().unwrap().as_secs_f64())
                .collect();
            assert!(!delays.is_empty(), "application {app} sent nothing");
            let mean = delays.iter().sum::<f64>() / delays.len() as f64;
            if mean > (latency_target * MS).as_secs_f64() {
                faults.push(format!(
                    "application {app}: {:.1} ms on average from {:?} after the change, demand {latency_target} ms",
                    mean * 1e3,
                    window - at
                ));
            }
            window += WINDOW;
        }
    }
    faults
}

fn check(
    name: &str,
    settled: Duration,
    there: impl Fn(usize) -> Change,
    back: impl Fn(usize) -> Change,
) {
    for path in 0..PATHS.len() {
        for seed in 0..2 {
            let (report, [change, back_at], plans) = run(path, there(path), back(path), seed);
            report.assert_complete();
            let after = faults(&report, change, settled, back_at);
            let returned = faults(&report, back_at, 2 * SECOND, back_at + (END - RETURN));
            println!("{name}, path {path}, seed {seed}: {plans} plans");
            assert!(
                after.is_empty() && returned.is_empty(),
                "{name}, path {path}, seed {seed}, {plans} plans:\nafter it {after:#?}\nafter its end {returned:#?}"
            );
        }
    }
}

#[test]
fn half_the_bandwidth() {
    let rate = |path: usize| Bandwidth::from_mbit_per_second(PATHS[path].0);
    let half = |path: usize| Bandwidth::from_mbit_per_second(PATHS[path].0 / 2);
    check(
        "half the bandwidth",
        2 * SECOND,
        |path| Change::Rate(Some(half(path))),
        |path| Change::Rate(Some(rate(path))),
    );
}

#[test]
fn eighty_milliseconds_more() {
    check(
        "80 ms more",
        2 * SECOND,
        |path| Change::Delay(PATHS[path].1 * MS + 80 * MS),
        |path| Change::Delay(PATHS[path].1 * MS),
    );
}

#[test]
fn five_per_cent_loss() {
    let loss = Loss::Bernoulli(Probability::new(0.05).unwrap());
    check(
        "5 % loss",
        2 * SECOND,
        |_| Change::Loss(loss),
        |_| Change::Heal,
    );
}

#[test]
fn outage_and_return() {
    check("death", SECOND, |_| Change::Down, |_| Change::Up);
}
