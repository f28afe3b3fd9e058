//! A hub with many branches, each with the applications of the built-in classes.

use super::*;

/// What a branch's classes send, as measured: bytes, milliseconds, and their target.
const CLASSES: [(&str, u64, f64, Option<u64>); 6] = [
    ("voice", 200, 10.0, Some(100)),
    ("games", 120, 30.0, Some(60)),
    ("interactive", 160, 50.0, Some(100)),
    ("web", 900, 12.0, Some(200)),
    ("bulk", 1300, 9.0, None),
    ("backup", 1300, 40.0, None),
];

/// A hub with `branches` and `paths` uplinks of 500 Mbit/s; what the classes of a branch send, on random paths.
pub(super) fn hub(branches: usize, paths: usize) -> (PlannerConfig, PlannerInput) {
    let config =
        testing::with_apps("[[app]]\nname = \"x\"\nclass = \"datagram\"\npeer = \"osaka\"\n");
    let mut config = PlannerConfig::of(&config);
    let (path, app) = (config.paths[0].clone(), config.apps[0].clone());
    let name = |text: String| Name::new(&text).unwrap();
    config.peers = (0..branches)
        .map(|peer| name(format!("site{peer}")))
        .collect();
    let path = |number: usize| PlannedPath {
        name: name(format!("wan{number}")),
        rate: Some(Bandwidth::from_mbit_per_second(500)),
        delay: None,
        ..path.clone()
    };
    config.paths = (0..paths).map(path).collect();
    let classes = (0..branches).flat_map(|peer| CLASSES.map(|class| (peer, class)));
    let of_class = |(peer, (class, _, _, target)): (usize, (&str, u64, f64, Option<u64>))| {
        keiro_control::config::App {
            name: name(format!("{class}.site{peer}")),
            peer: PeerIndex(peer),
            latency_target: target.map(Duration::from_millis),
            ..app.clone()
        }
    };
    config.apps = classes.clone().map(of_class).collect();
    let legs = (0..paths).flat_map(|path| (0..branches).map(move |peer| (path, peer)));
    let sample = |(path, peer): (usize, usize)| {
        // Each branch has a line of its own.
        let far = Duration::from_millis(4 + 7 * path as u64 + 3 * (peer as u64 * 7 % 11));
        let rate = Bandwidth::from_mbit_per_second(20 + 10 * ((peer + path) as u64 % 9));
        let sample = PathSample {
            bandwidth: rate,
            delay: far,
            loss: Probability::ZERO,
        };
        ((PathIndex(path), PeerIndex(peer)), Some(sample))
    };
    let workload = |(number, (_, (_, bytes, millis, _)))| {
        let more = 1.0 + (number % 7) as f64 / 5.0;
        let seen = Workload {
            length: ByteCount::new(bytes),
            interval: Duration::from_secs_f64(millis * 1e-3 / more),
            length_spread: Spread::new(0.3).unwrap(),
            interval_spread: Spread::EXPONENTIAL,
        };
        (AppIndex(number), MeasuredWorkload::Sending(seen))
    };
    let half = WindowHalf {
        messages: 5000,
        length_mean: 500.0,
        length_spread: Spread::new(0.3).unwrap(),
    };
    let window = TrafficWindow {
        halves: [half; 2],
        interval_spread: Spread::EXPONENTIAL,
        together: 0.0,
    };
    let apps = 0..config.apps.len();
    let input = PlannerInput {
        up: legs.map(sample).collect(),
        workloads: classes.enumerate().map(workload).collect(),
        traffic_windows: apps.clone().map(|app| (AppIndex(app), window)).collect(),
        sending: apps.clone().map(AppIndex).collect(),
        now: apps
            .map(|app| (AppIndex(app), PathIndex(app % paths)))
            .collect(),
        ..PlannerInput::default()
    };
    (config, input)
}

#[test]
#[ignore = "prints how long plans take"]
fn time_of_a_hubs_plans() {
    for (branches, paths) in [(50, 2), (50, 4), (200, 2), (200, 4)] {
        let (config, mut input) = hub(branches, paths);
        let forecast_state = ForecastState::default();
        for mode in [PlanMode::FromScratch, PlanMode::Revise, PlanMode::Revise] {
            let changed = input.up.get_mut(&(PathIndex(0), PeerIndex(3)));
            if let (PlanMode::Revise, Some(Some(sample))) = (mode, changed) {
                sample.delay += Duration::from_millis(20);
            }
            let problem = PlanningProblem::new(&config, &input);
            let (plan, took) = timed(|| problem.answer(mode, &forecast_state));
            let (_, shown) = timed(|| problem.present_plan(&forecast_state));
            println!(
                "{branches} branches, {paths} paths, {} applications, {mode:?}: {took:.1?}, present {shown:.1?}, {} \
                 unmet, {} move",
                config.apps.len(),
                plan.unmet(),
                plan.changes(&input.now),
            );
            input.now = plan.paths();
        }
    }
}

fn overloaded(plan: &Plan) -> usize {
    let expected = plan.apps.iter().filter_map(|app| app.expected);
    expected.filter(|expected| expected.overloaded).count()
}

/// What is planned on each uplink, as a part of its rate.
fn loads(config: &PlannerConfig, input: &PlannerInput, plan: &Plan) -> Vec<f64> {
    let mut loads = vec![0.0; config.paths.len()];
    for (app, path) in plan.paths() {
        let traffic = traffic_of(&config[app], input.workloads.get(&app).copied());
        let rate = config[path].rate_bound().as_bits_per_second() as f64;
        loads[path.0] += traffic.app.rate().as_bits_per_second() as f64 / rate;
    }
    loads
}

#[test]
fn a_hub_counts_each_branch_by_its_own_lines() {
    let (config, input) = hub(12, 2);
    for mode in [PlanMode::FromScratch, PlanMode::Revise] {
        let plan = PlanningProblem::new(&config, &input).answer(mode, &ForecastState::default());
        assert_eq!(plan.unmet(), 0, "{mode:?}");
        // The delay of the way to this branch, not that to the farthest.
        for (number, app) in plan.apps.iter().enumerate() {
            let peer = config.apps[number].peer;
            let path = app.path.unwrap();
            let level = input.up[&(path, peer)].unwrap();
            assert_eq!(app.prediction.unwrap().terms.propagation, level.delay);
        }
    }
}

#[test]
fn what_a_hub_sends_to_others_counts_where_an_uplink_may_fill() {
    let (mut config, mut input) = hub(12, 2);
    for path in &mut config.paths {
        path.rate = Some(Bandwidth::from_mbit_per_second(30));
    }
    // All on one uplink, which that overloads.
    input.now = (0..config.apps.len())
        .map(|app| (AppIndex(app), PathIndex(0)))
        .collect();
    let problem = PlanningProblem::new(&config, &input);
    let forecast_state = ForecastState::default();
    assert_eq!(
        overloaded(&problem.present_plan(&forecast_state)),
        config.apps.len()
    );
    for mode in [PlanMode::FromScratch, PlanMode::Revise] {
        let plan = problem.answer(mode, &forecast_state);
        let loads = loads(&config, &input, &plan);
        assert!(loads.iter().all(|load| *load < 0.95), "{mode:?}: {loads:?}");
        assert_eq!(overloaded(&plan), 0, "{mode:?}: {loads:?}");
    }
}

/// The far end of a control socket.
fn received(config: &PlannerConfig, input: &PlannerInput, state: &ForecastState) -> ReceivedInput {
    let snapshot = planner_input_snapshot(config, input, state, false);
    ReceivedInput::try_from(&snapshot).unwrap()
}

#[test]
fn another_process_plans_as_the_gateway_does() {
    let (config, input) = hub(6, 3);
    let state = ForecastState::default();
    let received = received(&config, &input, &state);
    assert_eq!(received.config.paths, config.paths);
    for texts in [
        &[][..],
        &["lose wan0", "add 3 voice.site2"],
        &[
            "set wan1 rate=5Mbit delay=90ms loss=2%",
            "latency-target web.site1 10ms",
        ],
    ] {
        let changes: Vec<WhatIf> = texts
            .iter()
            .map(|text| WhatIf::parse(text).unwrap())
            .collect();
        for plan_mode in [PlanMode::FromScratch, PlanMode::Revise] {
            let after = |config, input, forecast_state| {
                let situation = Situation {
                    config,
                    input,
                    forecast_state,
                    plan_mode,
                    now: &paths_in_use(config, input),
                };
                situation.plan_after(&changes).unwrap()
            };
            let here = after(&config, &input, &state);
            let there = after(&received.config, &received.input, &received.forecast_state);
            assert_eq!(here, there, "{texts:?}");
        }
    }
}

#[test]
fn a_senseless_planner_input_is_refused_by_the_name_of_its_field() {
    let (config, input) = hub(2, 2);
    let good = planner_input_snapshot(&config, &input, &ForecastState::default(), false);
    type Change = fn(&mut keiro_control::protocol::PlannerInputSnapshot);
    let changes: [(Change, InvalidInput); 8] = [
        (|it| it.version = 2, InvalidInput::Version(2)),
        (|it| it.apps[3].peer = 2, InvalidInput::Value("peer")),
        (
            |it| it.apps[0].name = "a b".into(),
            InvalidInput::Value("name"),
        ),
        (
            |it| it.apps[0].interval_seconds = Some(0.0),
            InvalidInput::Value("interval_seconds"),
        ),
        (
            |it| it.paths_up[1].path = usize::MAX,
            InvalidInput::Value("path"),
        ),
        (
            |it| it.paths[1].uplink = Some(1),
            InvalidInput::Value("uplink"),
        ),
        (
            |it| it.paths[0].residual = Some([f64::NAN; 7]),
            InvalidInput::Value("residual"),
        ),
        (
            |it| it.paths = vec![it.paths[0].clone(); 65],
            InvalidInput::TooMany("paths"),
        ),
    ];
    for (change, why) in changes {
        let mut bad = good.clone();
        change(&mut bad);
        assert_eq!(ReceivedInput::try_from(&bad).unwrap_err(), why);
    }
}
