//! Backups, paths that cost something, and budgets that are used up.

use keiro_control::config::{CostPerGb, PathRole, PathTerms, Planner};
use keiro_planner::plan::ROOM_TO_RETURN;

use super::*;

const CABLE: PathIndex = PathIndex(0);
const MODEM: PathIndex = PathIndex(1);

/// Two paths, "quick" of 10 ms and "slow" of 30 ms, of which the second has these keys, and applications of 200 bytes
/// every 20 ms with these targets, in ms.
fn config(planner: &str, targets: &[Option<u64>]) -> PlannerConfig {
    let app = |(number, target): (usize, &Option<u64>)| {
        let target = target.map_or(String::new(), |ms| format!("latency_target = \"{ms}ms\"\n"));
        format!(
            "[[app]]\nname = \"A{number}\"\nclass = \"message\"\npeer = \"osaka\"\nlength = \"200B\"\ninterval = \"20ms\"\n{target}"
        )
    };
    let apps: String = targets.iter().enumerate().map(app).collect();
    let mut config = with_apps(&apps);
    config.planner = match planner {
        "exact" => Planner::Exact,
        _ => Planner::Frugal,
    };
    config
}

fn cost(units: f64) -> CostPerGb {
    CostPerGb::new(units).unwrap()
}

/// Both are up, and all applications are on one.
fn all_on(config: &PlannerConfig, path: PathIndex) -> PlannerInput {
    let now = (0..config.apps.len()).map(|app| (AppIndex(app), path));
    PlannerInput {
        now: now.collect(),
        ..both_up()
    }
}

fn planned(config: &PlannerConfig, input: &PlannerInput, mode: PlanMode) -> Vec<Option<usize>> {
    paths(&answer(config, input, mode))
}

fn answer(config: &PlannerConfig, input: &PlannerInput, mode: PlanMode) -> Plan {
    PlanningProblem::new(config, input).answer(mode, &ForecastState::default())
}

const MODES: [PlanMode; 2] = [PlanMode::FromScratch, PlanMode::Revise];
const PLANNERS: [&str; 2] = ["frugal", "exact"];

#[test]
fn a_backup_carries_what_no_primary_path_serves_in_time_and_nothing_else() {
    for planner in PLANNERS {
        for mode in MODES {
            // Only the second path, of 30 ms, is primary.
            let mut config = config(planner, &[Some(100), Some(20), None, Some(5)]);
            config.paths[CABLE.0].role = PathRole::Backup;
            let input = all_on(&config, MODEM);
            let found = planned(&config, &input, mode);
            // 5 ms are met on none.
            let expected = [1, 0, 1, 1].map(Some);
            assert_eq!(found, expected, "{planner}, {mode:?}");
            // While the primary path is down, everything is on the backup.
            let down = input.without(MODEM);
            assert_eq!(planned(&config, &down, mode), [Some(0); 4]);
        }
    }
}

#[test]
fn costlier_path_is_taken_for_a_target_and_not_for_speed() {
    for planner in PLANNERS {
        for mode in MODES {
            let mut config = config(planner, &[Some(100), Some(20), None]);
            config.paths[CABLE.0].cost = cost(3.5);
            config.paths[MODEM.0].cost = cost(1.0);
            let found = planned(&config, &all_on(&config, MODEM), mode);
            assert_eq!(found, [1, 0, 1].map(Some), "{planner}, {mode:?}");
            // What the peer pays counts, too.
            let mut input = all_on(&config, MODEM);
            let terms = PathTerms {
                cost: cost(5.0),
                ..PathTerms::FREE
            };
            input.terms.insert((MODEM, PeerIndex(0)), terms);
            assert_eq!(planned(&config, &input, mode)[2], Some(0));
        }
    }
}

#[test]
fn what_returns_from_a_backup_has_room_to_spare_or_has_waited() {
    let mut config = config("frugal", &[Some(60)]);
    config.paths[CABLE.0].role = PathRole::Backup;
    let at = |delay: f64| {
        let mut input = all_on(&config, CABLE);
        let sample = PathSample {
            bandwidth: Bandwidth::from_mbit_per_second(20),
            delay: Duration::from_secs_f64(delay),
            loss: Probability::ZERO,
        };
        input.up.insert((MODEM, PeerIndex(0)), Some(sample));
        input
    };
    let near = at(0.06 * ROOM_TO_RETURN + 0.002);
    assert_eq!(planned(&config, &near, PlanMode::Revise), [Some(0)]);
    let good = at(0.06 * ROOM_TO_RETURN - 0.002);
    assert_eq!(planned(&config, &good, PlanMode::Revise), [Some(1)]);
    let overdue = PlannerInput {
        overdue: [AppIndex(0)].into(),
        ..near.clone()
    };
    assert_eq!(planned(&config, &overdue, PlanMode::Revise), [Some(1)]);
    // Who is on the primary path does not leave it for that.
    let there = PlannerInput {
        now: [(AppIndex(0), MODEM)].into(),
        ..near
    };
    assert_eq!(planned(&config, &there, PlanMode::Revise), [Some(1)]);
}

/// One application with a target of 60 ms, with delays of the backup and of the primary path in ms.
fn one_beside_a_backup(delays: [u64; 2], at: PathIndex) -> (PlannerConfig, PlannerInput) {
    let mut config = config("frugal", &[Some(60)]);
    config.paths[CABLE.0].role = PathRole::Backup;
    let mut input = all_on(&config, at);
    for (path, delay) in [CABLE, MODEM].into_iter().zip(delays) {
        let sample = PathSample {
            bandwidth: Bandwidth::from_mbit_per_second(20),
            delay: Duration::from_millis(delay),
            loss: Probability::ZERO,
        };
        input.up.insert((path, PeerIndex(0)), Some(sample));
    }
    (config, input)
}

#[test]
fn a_backup_that_just_misses_is_not_left_for_a_primary_path_that_misses_by_more() {
    let (config, input) = one_beside_a_backup([58, 90], MODEM);
    assert_eq!(planned(&config, &input, PlanMode::Revise), [Some(0)]);
    let (config, mut input) = one_beside_a_backup([63, 90], CABLE);
    assert_eq!(planned(&config, &input, PlanMode::Revise), [Some(0)]);
    input.overdue = [AppIndex(0)].into();
    assert_eq!(planned(&config, &input, PlanMode::Revise), [Some(1)]);
    // It does not take a backup that misses, and leaves one that misses by far, or by more.
    for (delays, at) in [([63, 90], MODEM), ([80, 90], CABLE), ([64, 62], CABLE)] {
        let (config, input) = one_beside_a_backup(delays, at);
        let found = planned(&config, &input, PlanMode::Revise);
        assert_eq!(found, [Some(1)], "{delays:?}");
    }
}

#[test]
fn an_application_pays_for_its_target_only_beside_a_cheaper_path() {
    let mut config = config("frugal", &[Some(20), Some(100), None]);
    config.paths[CABLE.0].cost = cost(2.0);
    let input = all_on(&config, MODEM);
    let pays = |input: &PlannerInput| {
        let plan = answer(&config, input, PlanMode::Revise);
        [0, 1, 2].map(|app| plan.pays_for_target(&config, input, AppIndex(app)))
    };
    assert_eq!(pays(&input), [true, false, false]);
    assert_eq!(pays(&input.without(MODEM)), [false; 3], "there is no other");
    // One that the cheaper path is too narrow for finds no second one as cheap.
    let mut narrow = input;
    let sample = PathSample {
        bandwidth: Bandwidth::from_bits_per_second(60_000),
        delay: Duration::from_millis(30),
        loss: Probability::ZERO,
    };
    narrow.up.insert((MODEM, PeerIndex(0)), Some(sample));
    let plan = answer(&config, &narrow, PlanMode::Revise);
    assert_eq!(paths(&plan)[1], Some(0));
    assert!(pays(&narrow)[1]);
}

#[test]
fn an_application_pays_where_all_of_the_cheapest_paths_lose_too_much() {
    let (mut config, mut input) = one_beside_a_backup([20, 20], MODEM);
    let third = PathIndex(2);
    config.paths.push(PlannedPath {
        name: Name::new("third").unwrap(),
        ..config.paths[MODEM.0].clone()
    });
    input
        .up
        .insert((third, PeerIndex(0)), input.up[&(MODEM, PeerIndex(0))]);
    let mut plan = answer(&config, &input, PlanMode::Revise);
    plan.apps[0].path = Some(CABLE);
    plan.apps[0].terms = config[CABLE].terms();
    let excess = ExcessLoss {
        loss: Probability::new(0.1).unwrap(),
        tolerance: Probability::new(0.01).unwrap(),
    };
    for (path, pays) in [(MODEM, false), (third, true)] {
        assert!(!plan.pays_for_target(&config, &input, AppIndex(0)));
        input.excess_losses.insert((AppIndex(0), path), excess);
        assert_eq!(plan.pays_for_target(&config, &input, AppIndex(0)), pays);
    }
}

#[test]
fn a_used_up_budget_is_for_essential_applications_without_another_path() {
    // The first and the third are essential, since their targets are short.
    let mut config = config("frugal", &[Some(20), Some(200), Some(100), None]);
    config.apps[3].essential = Some(true);
    let spent = PathTerms {
        is_spent: true,
        ..PathTerms::FREE
    };
    let mut input = all_on(&config, CABLE);
    input.terms.insert((CABLE, PeerIndex(0)), spent);
    for mode in MODES {
        assert_eq!(
            planned(&config, &input, mode),
            [Some(1); 4],
            "not even for a target"
        );
        let alone = input.without(MODEM);
        let expected = [Some(0), None, Some(0), Some(0)];
        assert_eq!(planned(&config, &alone, mode), expected);
        let mut pinned = config.clone();
        pinned.apps[1].path = Some(CABLE);
        assert_eq!(planned(&pinned, &input, mode)[1], Some(1));
        assert_eq!(planned(&pinned, &alone, mode)[1], None);
    }
}

#[test]
fn without_a_planner_the_first_primary_path_is_taken() {
    let mut config = config("frugal", &[Some(20), None]);
    config.planner = Planner::Off;
    config.paths[CABLE.0].role = PathRole::Backup;
    let input = all_on(&config, CABLE);
    assert_eq!(planned(&config, &input, PlanMode::Revise), [Some(1); 2]);
}

/// A random problem: three paths and some applications, on random paths.
fn random(seed: u64) -> (PlannerConfig, PlannerInput) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = move |n: u64| {
        // xorshift64, G. Marsaglia 2003.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % n
    };
    let paths: String = (0..3)
        .map(|path| {
            let (rate, delay) = (1 + below(20), 2 + below(60));
            format!(
                "[[path]]\nname = \"p{path}\"\nlocal = \"192.0.2.{path}:4500\"\nrate = \"{rate}Mbit\"\ndelay = \"{delay}ms\"\n"
            )
        })
        .collect();
    let apps: String = (0..2 + below(8))
        .map(|app| {
            let (length, interval, target) = (100 + below(9900), 5 + below(95), 5 + below(120));
            let target = match below(4) {
                0 => String::new(),
                _ => format!("latency_target = \"{target}ms\"\n"),
            };
            format!(
                "[[app]]\nname = \"A{app}\"\nclass = \"message\"\npeer = \"b\"\nlength = \"{length}B\"\ninterval = \"{interval}ms\"\n{target}"
            )
        })
        .collect();
    let endpoints = (0..3).map(|path| format!("p{path} = \"198.51.100.{path}:4500\""));
    let endpoints: Vec<String> = endpoints.collect();
    let text = format!(
        "[gateway]\nname = \"a\"\n{paths}[[peer]]\nname = \"b\"\npublic_key = \"{}\"\nendpoints = {{ {} }}\n{apps}",
        keiro_control::PublicKey::from_bytes([9; 32]),
        endpoints.join(", ")
    );
    let config = Config::parse(&text, "random.toml").unwrap_or_else(|error| panic!("{error}"));
    let config = PlannerConfig::of(&config);
    let up = (0..3).map(|path| ((PathIndex(path), PeerIndex(0)), None));
    let now = (0..config.apps.len()).map(|app| (AppIndex(app), PathIndex(below(3) as usize)));
    let input = PlannerInput {
        up: up.collect(),
        now: now.collect(),
        ..PlannerInput::default()
    };
    (config, input)
}

/// A large problem: paths that three quarters of their rate would be enough for, and messages of 200 bytes every 20 ms.
fn large(paths: usize, apps: usize) -> (PlannerConfig, PlannerInput) {
    let (mut config, mut input) = random(1);
    let (path, app) = (config.paths[0].clone(), config.apps[0].clone());
    let each = Bandwidth::from_bits_per_second(110_000 * apps as u64 * 4 / 3 / paths as u64);
    let path = |number: usize| PlannedPath {
        rate: Some(each),
        delay: Some(Duration::from_millis(5 + 7 * (number as u64 % 8))),
        ..path.clone()
    };
    let app = |number: usize| keiro_control::config::App {
        length: Some(ByteCount::new(200)),
        interval: Some(Duration::from_millis(20)),
        latency_target: (!number.is_multiple_of(4))
            .then(|| Duration::from_millis(30 + number as u64 % 97)),
        ..app.clone()
    };
    config.paths = (0..paths).map(path).collect();
    config.apps = (0..apps).map(app).collect();
    input.up = (0..paths)
        .map(|path| ((PathIndex(path), PeerIndex(0)), None))
        .collect();
    input.now = (0..apps)
        .map(|app| (AppIndex(app), PathIndex(app % paths)))
        .collect();
    (config, input)
}

#[test]
#[ignore = "prints how long plans take; for an idle machine"]
fn time_of_plans_with_and_without_prices() {
    for (paths, apps, rounds) in [(10, 100, 5), (16, 10_000, 2)] {
        let (free, input) = large(paths, apps);
        let priced = with_terms(&free, 2 + 3 + 27);
        // Later revisions begin with the plan in force.
        let mut inputs = [input.clone(), input];
        for mode in MODES {
            let [mut without, mut with] = [Duration::MAX; 2];
            let mut unmet_of = [0, 0];
            for _ in 0..rounds {
                let (one, one_took) = timed(|| answer(&free, &inputs[0], mode));
                let (two, two_took) = timed(|| answer(&priced, &inputs[1], mode));
                (inputs[0].now, inputs[1].now) = (one.paths(), two.paths());
                (without, with) = (without.min(one_took), with.min(two_took));
                unmet_of = [unmet(&one, &free), unmet(&two, &priced)];
            }
            println!(
                "{apps} applications, {paths} paths, {mode:?}: {without:.1?} without prices, {with:.1?} with, ratio \
                 {:.2}; targets missed: {unmet_of:?}",
                with.as_secs_f64() / without.as_secs_f64()
            );
            assert!(unmet_of[1] <= unmet_of[0]);
        }
    }
}

fn with_terms(config: &PlannerConfig, seed: u64) -> PlannerConfig {
    let mut config = config.clone();
    for (number, path) in config.paths.iter_mut().enumerate() {
        let digit = (seed / 3_u64.pow(number as u32)) % 3;
        match digit {
            0 => {}
            1 => path.role = PathRole::Backup,
            _ => path.cost = cost(number as f64 + 1.0),
        }
    }
    config
}

/// Only those that have a target: others bear what they get.
fn unmet(plan: &Plan, config: &PlannerConfig) -> usize {
    let with_target = plan.apps.iter().zip(&config.apps);
    let with_target = with_target.filter(|(_, app)| app.latency_target.is_some());
    with_target.filter(|(app, _)| app.is_unmet()).count()
}

fn overloaded(plan: &Plan) -> usize {
    let expected = plan.apps.iter().filter_map(|app| app.expected);
    expected.filter(|expected| expected.overloaded).count()
}

#[test]
fn role_and_cost_miss_no_target_and_cost_no_more_than_targets_need() {
    for seed in 0..120 {
        let (mut free, input) = random(seed);
        // Applications without a target are bound to the cheapest paths and may crowd them.
        for app in &mut free.apps {
            app.latency_target.get_or_insert(Duration::from_secs(2));
        }
        let priced = with_terms(&free, seed);
        let [without, with] =
            [&free, &priced].map(|config| answer(config, &input, PlanMode::FromScratch));
        assert!(
            unmet(&with, &priced) <= unmet(&without, &free),
            "seed {seed}: targets are missed for the sake of cost"
        );
        let places = with.paths();
        let price = |path: PathIndex| priced[path].terms().price();
        for (app, path) in &places {
            let cheaper = (0..3).map(PathIndex);
            for cheaper in cheaper.filter(|other| price(*other) < price(*path)) {
                let mut moved = PlannerInput {
                    now: places.clone(),
                    ..input.clone()
                };
                moved.now.insert(*app, cheaper);
                let problem = PlanningProblem::new(&priced, &moved);
                let there = problem.present_plan(&ForecastState::default());
                assert!(
                    unmet(&there, &priced) > unmet(&with, &priced)
                        || overloaded(&there) > overloaded(&with),
                    "seed {seed}: {app:?} is on {path:?}, and {cheaper:?} serves it as well"
                );
            }
        }
    }
}

#[test]
fn plans_with_role_and_cost_converge() {
    for seed in 0..60 {
        let (free, mut input) = random(seed);
        let priced = with_terms(&free, seed);
        let mut rests = false;
        for _ in 0..5 {
            let places = answer(&priced, &input, PlanMode::Revise).paths();
            rests = std::mem::replace(&mut input.now, places.clone()) == places;
            if rests {
                break;
            }
        }
        assert!(rests, "seed {seed}");
    }
}

#[test]
fn a_primary_path_is_filled_alike_by_any_number_of_applications() {
    let on_primary = |apps: usize, mode| {
        let mut config = config("frugal", &vec![Some(100); apps]);
        config.paths[CABLE.0].role = PathRole::Backup;
        config.paths[CABLE.0].rate = None;
        let mut input = all_on(&config, CABLE);
        let sample = |mbit| PathSample {
            bandwidth: Bandwidth::from_mbit_per_second(mbit),
            delay: Duration::from_millis(30),
            loss: Probability::ZERO,
        };
        for (path, mbit) in [(CABLE, 1000), (MODEM, 1)] {
            let to_peer = (path, PeerIndex(0));
            input.up.insert(to_peer, Some(sample(mbit)));
        }
        let plan = answer(&config, &input, mode);
        assert_eq!(plan.unmet(), 0, "{apps}");
        let places = plan.paths();
        places.values().filter(|path| **path == MODEM).count()
    };
    for mode in MODES {
        let counts = [12, 20, 60, 310].map(|apps| on_primary(apps, mode));
        let [least, most] = [counts.iter().min(), counts.iter().max()].map(Option::unwrap);
        assert!(
            *least > 5 && most - least <= 1 + most / 10,
            "{mode:?}: {counts:?}"
        );
    }
}

#[test]
fn equal_costs_change_no_plan() {
    for seed in 0..60 {
        let (free, input) = random(seed);
        let mut same = free.clone();
        for path in &mut same.paths {
            (path.role, path.cost) = (PathRole::Backup, cost(2.0));
        }
        for mode in MODES {
            let [without, with] = [&free, &same].map(|config| planned(config, &input, mode));
            assert_eq!(without, with, "seed {seed}, {mode:?}");
        }
    }
}

#[test]
fn terms_may_be_supposed() {
    let config = config("frugal", &[Some(20), None]);
    let input = all_on(&config, CABLE);
    let supposed = |change: &str| {
        let change = WhatIf::parse(change).unwrap();
        let supposed = suppose(&config, &input, &[change]).unwrap_or_else(|error| {
            panic!("{}", error.message);
        });
        planned(&supposed.config, &supposed.input, PlanMode::Revise)
    };
    assert_eq!(supposed("set quick role=backup"), [0, 1].map(Some));
    assert_eq!(supposed("set quick cost=2"), [0, 1].map(Some));
    assert_eq!(supposed("set quick budget=spent"), [1, 1].map(Some));
    assert_eq!(supposed("set slow role=backup cost=1"), [0, 0].map(Some));
}
