//! What idle paths cost, and that they work when they are needed.

use std::time::Duration;

use keiro_core::{PathState, SessionSnapshot};
use keiro_link::Loss;
use keiro_sim::{
    Change, GatewayPair, PathDirection, PathSpec, Scenario, ScenarioEvent, SetUp, Side,
};
use keiro_units::{Bandwidth, ByteCount, Probability};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// A path of a scenario: its limit at A in bytes a month, and whether its rate is configured.
type IdlePath = (Option<u64>, bool);

const ANY: IdlePath = (None, true);
const METERED: IdlePath = (Some(0), true);

/// One message application over paths of 50 Mbit/s.
fn idle(paths: &[IdlePath]) -> GatewayPair {
    let path = |(limit, is_configured): &IdlePath| {
        // Those that cost are the faster ones, so that whatever takes the fastest would take them.
        let delay = if limit.is_some() { 10 * MS } else { 20 * MS };
        let mut path = PathSpec::new(Bandwidth::from_mbit_per_second(50), delay);
        path.probe_limit = limit.map(ByteCount::new);
        path.is_rate_found = !is_configured;
        path
    };
    let mut scenario = Scenario::new(paths.iter().map(path).collect());
    let order: Vec<usize> = (0..paths.len()).collect();
    scenario.add_message_app(None, &order);
    scenario.set_up = SetUp::PathsUp(paths.len());
    for spec in [&mut scenario.a, &mut scenario.b] {
        spec.probe_share = Probability::new(0.005).expect("a share");
    }
    let mut pair = GatewayPair::new(&scenario, 1);
    pair.sample_every(SECOND);
    pair.set_up().expect("the paths come up");
    pair.begin();
    pair
}

fn session(pair: &GatewayPair, side: Side) -> SessionSnapshot {
    pair.gateway(side).session().expect("it runs")
}

/// Bytes in both directions of each path, as A counts them.
fn bytes(pair: &GatewayPair) -> Vec<u64> {
    let paths = session(pair, Side::A).paths;
    let stats = paths.iter().map(|path| path.stats);
    stats
        .map(|stats| stats.sent_bytes + stats.received_bytes)
        .collect()
}

fn change(path: usize, change: Change) -> ScenarioEvent {
    ScenarioEvent::Path {
        path,
        direction: PathDirection::Both,
        change,
    }
}

/// When path `path` is down at A and B; `None`: not within `limit`.
fn noticed(pair: &mut GatewayPair, path: usize, limit: Duration) -> Option<Duration> {
    let died = pair.now();
    for side in Side::BOTH {
        let is_down = |gateway: &keiro_sim::Gateway| {
            let session = gateway.session().expect("it runs");
            session.paths[path].state != PathState::Up
        };
        if !pair.run_until(side, limit, is_down) {
            return None;
        }
    }
    Some(pair.now().saturating_duration_since(died))
}

const GB: u64 = 1_000_000_000;

/// What passed since `before`, per path, as bytes a day.
fn per_day(pair: &GatewayPair, before: &[u64], time: Duration) -> Vec<u64> {
    let passed = bytes(pair)
        .into_iter()
        .zip(before)
        .map(|(after, before)| after - before);
    passed
        .map(|bytes| bytes * 86_400 / time.as_secs())
        .collect()
}

/// Both ends say what a month costs, and that all paths have been up all the time.
fn assert_months(pair: &GatewayPair, limits: &[Option<u64>]) {
    for side in Side::BOTH {
        let paths = session(pair, side).paths;
        let known = paths
            .iter()
            .map(|path| path.probe_limit.map(ByteCount::get));
        assert!(known.eq(limits.iter().copied()), "both know the limits");
        for path in &paths {
            let month = path.stats.idle_month_bytes.expect("it is idle");
            println!("{side:?}, {:?}: {month} bytes a month", path.id);
            assert!(path.state == PathState::Up && path.stats.outages == 0);
            let most = match path.probe_limit.map(ByteCount::get) {
                None => GB,
                Some(0) => 60_000_000,
                Some(limit) => limit,
            };
            assert!(month <= most, "{:?}: {month} bytes a month", path.id);
        }
    }
}

#[test]
fn a_day_without_data_costs_little_on_metered_paths_and_what_a_budget_allows() {
    // The budget of three paths over one uplink.
    let third = (Some(GB / 3), true);
    let mut pair = idle(&[METERED, (Some(0), false), third, third, third]);
    let before = bytes(&pair);
    pair.run_for(24 * HOUR);
    let day = per_day(&pair, &before, 24 * HOUR);
    println!("a day of two metered paths, and of three that share 1 GB a month: {day:?} bytes");
    assert!(day[..2].iter().all(|bytes| *bytes <= 10_000_000), "{day:?}");
    assert!(day[2..].iter().sum::<u64>() <= GB / 30, "{day:?}");
    let third = Some(GB / 3);
    assert_months(&pair, &[Some(0), Some(0), third, third, third]);
}

#[test]
fn other_paths_without_data_cost_less_after_some_minutes() {
    let mut pair = idle(&[ANY, (None, false)]);
    let before = bytes(&pair);
    pair.run_for(HOUR / 12);
    let in_use = per_day(&pair, &before, HOUR / 12);
    pair.run_for(HOUR / 4);
    let before = bytes(&pair);
    pair.run_for(2 * HOUR);
    let day = per_day(&pair, &before, 2 * HOUR);
    println!("a day as in the first five minutes: {in_use:?} bytes, and later: {day:?}");
    assert!(in_use[0] > 1_000_000_000, "{in_use:?}");
    assert!(day.iter().all(|bytes| *bytes <= GB / 30), "{day:?}");
    assert_months(&pair, &[None, None]);
}

#[test]
fn losses_of_idle_paths_cost_little() {
    let mut pair = idle(&[ANY, METERED, (Some(300_000_000), true)]);
    pair.run_for(HOUR);
    let loss = Loss::Bernoulli(Probability::new(0.02).expect("a share"));
    for path in 0..3 {
        pair.apply(&change(path, Change::Loss(loss)));
    }
    let before = bytes(&pair);
    pair.run_for(6 * HOUR);
    let after = bytes(&pair);
    let day: Vec<u64> = after
        .iter()
        .zip(&before)
        .map(|(a, b)| 4 * (a - b))
        .collect();
    println!("a day with 2 % of loss: {day:?} bytes");
    // A ping that is lost is sent again, and with its answer that is one in 25.
    for (bytes, most) in day.iter().zip([40_000_000, 10_000_000, 11_000_000]) {
        assert!(*bytes <= most, "{day:?} bytes a day");
    }
}

#[test]
fn a_metered_path_is_watched_as_closely_as_it_was_used() {
    for (quiet, limit) in [(0, 1300 * MS), (5, 5 * SECOND), (600, 26 * SECOND)] {
        let mut pair = idle(&[METERED]);
        pair.run_for(HOUR);
        pair.send(Side::A, 0, 1000);
        pair.run_for(SECOND / 5 + quiet * SECOND);
        pair.apply(&change(0, Change::Down));
        let after = noticed(&mut pair, 0, limit);
        println!("{quiet} s after data: {after:?}");
        assert!(after.is_some(), "{quiet} s after data: not in {limit:?}");
    }
}

#[test]
fn data_on_one_path_costs_nothing_on_metered_ones() {
    let mut pair = idle(&[ANY, METERED, METERED]);
    pair.run_for(HOUR);
    let before = bytes(&pair);
    for _ in 0..600 {
        pair.send(Side::A, 0, 50_000);
        pair.send(Side::B, 0, 50_000);
        pair.run_for(SECOND / 10);
    }
    let after = bytes(&pair);
    let minute: Vec<u64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
    println!("a minute of data: {minute:?} bytes");
    assert!(minute[0] > 60_000_000, "{minute:?}");
    assert!(minute[1..].iter().all(|bytes| *bytes < 3_000), "{minute:?}");
}

#[test]
fn the_outage_of_a_standby_path_is_noticed_in_time_and_its_return() {
    let mut pair = idle(&[ANY, METERED]);
    pair.run_for(HOUR);
    for (path, limit) in [(0, 3 * SECOND), (1, 26 * SECOND)] {
        pair.apply(&change(path, Change::Down));
        let after = noticed(&mut pair, path, limit);
        println!("path {path}: {after:?}");
        assert!(after.is_some(), "path {path} is dead for {limit:?}");
        pair.run_for(600 * SECOND);
        pair.apply(&change(path, Change::Up));
        pair.run_for(11 * SECOND);
        let state = session(&pair, Side::A).paths[path].state;
        assert_eq!(state, PathState::Up, "path {path}");
    }
}

#[test]
fn the_first_burst_after_hours_passes_on_either_path() {
    let unrated = [(None, false), (Some(0), false)];
    for (paths, dead) in [
        (&[ANY, METERED], None),
        (&[ANY, METERED], Some(0)),
        (&unrated, None),
        (&unrated, Some(0)),
    ] {
        let mut pair = idle(paths);
        pair.run_for(3 * HOUR);
        if let Some(path) = dead {
            pair.apply(&change(path, Change::Down));
        }
        for _ in 0..100 {
            pair.send(Side::A, 0, 10_000);
        }
        pair.run_for(2 * SECOND);
        let report = pair.report();
        report.assert_complete();
        assert_eq!(report.messages.len(), 100);
        let slowest = report.messages.iter().filter_map(|made| made.delay()).max();
        println!("dead: {dead:?}, the slowest of 100 took {slowest:?}");
        assert!(slowest <= Some(SECOND), "{slowest:?}\n{report}");
    }
}

#[test]
fn a_silent_outage_of_a_standby_path_is_noticed_when_it_is_needed() {
    let mut pair = idle(&[ANY, METERED, METERED]);
    pair.run_for(HOUR);
    pair.apply(&change(1, Change::Down));
    pair.apply(&change(0, Change::Down));
    pair.send(Side::A, 0, 1000);
    pair.run_for(SECOND);
    let report = pair.report();
    report.assert_complete();
    let took = report.messages[0].delay().expect("it was delivered");
    println!("past two dead paths in {took:?}");
    // Each is left after two round trips and 80 ms; the second had begun to be asked then.
    assert!(took <= 600 * MS, "{took:?}");
}
