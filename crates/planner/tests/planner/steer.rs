//! Steering at the level of estimates: noise causes no move, a change moves what it must, once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_planner::{
    delay::{AppSpec, PathSpec},
    plan::{
        Budget,
        incumbent::{Allowed, AppId, PathId, Settings},
    },
    steer::{
        PathEstimateTracker, PathSample, PlanMode, SteeredApp, SteeringPlan, path_spec,
        placed_incumbent, plan_moves,
    },
};
use keiro_units::{Bandwidth, ByteCount, Probability};
use rand_chacha::{
    ChaCha12Rng,
    rand_core::{RngCore, SeedableRng},
};

/// Samples of a path in a second.
const PER_SECOND: u64 = 10;
/// Packets of the longest message.
const PACKETS: u64 = 70;

/// A site: its paths as they are, what is planned with, and who is where.
struct Site {
    truth: BTreeMap<PathId, PathSample>,
    levels: BTreeMap<PathId, PathEstimateTracker>,
    steered_apps: Vec<SteeredApp>,
    plans: u64,
    moves: BTreeMap<AppId, u64>,
    unmet: Vec<AppId>,
}

impl Site {
    fn new(paths: &[(u64, u64)], apps: &[(u64, u64, Option<u64>)]) -> Self {
        let truth = (0..).zip(paths).map(|(id, (mbit, delay_ms))| {
            let sample = PathSample {
                bandwidth: Bandwidth::from_bits_per_second(mbit * 1_000_000),
                delay: Duration::from_millis(*delay_ms),
                loss: Probability::ZERO,
            };
            (PathId(id), sample)
        });
        let steered_apps = (0..)
            .zip(apps)
            .map(|(id, (bytes, interval_ms, latency_target))| SteeredApp {
                id: AppId(id),
                spec: AppSpec {
                    length: ByteCount::new(*bytes),
                    interval: Duration::from_millis(*interval_ms),
                    latency_target: latency_target.map(Duration::from_millis),
                },
                allowed: Allowed::All,
                fallback: BTreeSet::new(),
                path: None,
            });
        let mut site = Self {
            truth: truth.collect(),
            levels: BTreeMap::new(),
            steered_apps: steered_apps.collect(),
            plans: 0,
            moves: BTreeMap::new(),
            unmet: Vec::new(),
        };
        site.sample(|truth| *truth);
        site.plan(PlanMode::FromScratch);
        assert_eq!(site.unmet, [], "the site can be served");
        site.moves.clear();
        site
    }

    /// Samples every path once; whether one is another than planned with.
    fn sample(&mut self, mut noisy: impl FnMut(&PathSample) -> PathSample) -> bool {
        let mut news = false;
        for (id, truth) in &self.truth {
            let levels = self.levels.entry(*id).or_default();
            news |= levels.on_sample(&noisy(truth));
        }
        news
    }

    fn plan(&mut self, plan_mode: PlanMode) {
        let spec = |(id, levels): (&PathId, &PathEstimateTracker)| {
            Some((*id, path_spec(&levels.get()?, PACKETS)))
        };
        let paths: Vec<(PathId, PathSpec)> = self.levels.iter().filter_map(spec).collect();
        let arrangement: SteeringPlan = plan_moves(
            Settings::default(),
            &paths,
            &self.steered_apps,
            plan_mode,
            Budget::default(),
        )
        .unwrap();
        let places = arrangement.assignment();
        for steered_app in &mut self.steered_apps {
            steered_app.path = places.get(&steered_app.id).copied();
        }
        for change in &arrangement.moves {
            *self.moves.entry(change.app).or_default() += 1;
        }
        self.plans += 1;
        self.unmet = arrangement.unmet;
    }

    /// Samples without noise for `seconds`, planning at news; when the last plan was made.
    fn run(&mut self, seconds: u64) -> Duration {
        let mut last = 0;
        for sample in 0..seconds * PER_SECOND {
            if self.sample(|truth| *truth) {
                self.plan(PlanMode::Revise);
                last = sample + 1;
            }
        }
        Duration::from_secs(1) * u32::try_from(last).unwrap() / PER_SECOND as u32
    }

    fn most_moves(&self) -> u64 {
        self.moves.values().copied().max().unwrap_or(0)
    }
}

/// Three WAN lines and a satellite, loaded by 60 %.
fn site() -> Site {
    let mut apps = Vec::new();
    for number in 0..24 {
        apps.push(match number % 4 {
            0 => (100_000, 100, Some(60)),
            1 => (10_000, 20, Some(25)),
            2 => (400_000, 400, Some(400)),
            _ => (20_000, 50, Some(120)),
        });
    }
    Site::new(&[(100, 2), (100, 15), (50, 8), (20, 250)], &apps)
}

#[test]
fn a_day_of_noise_moves_no_application() {
    const SEED: u64 = 0x5eed_0024;
    println!("seed {SEED:#x}");
    let mut random = ChaCha12Rng::seed_from_u64(SEED);
    let mut site = site();
    let samples = 24 * 3600 * PER_SECOND;
    let uniform =
        |random: &mut ChaCha12Rng| (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let normal = move |random: &mut ChaCha12Rng| {
        let radius = (-2.0 * (1.0 - uniform(random)).ln()).sqrt();
        radius * (std::f64::consts::TAU * uniform(random)).cos()
    };
    // Bursts of 1 % loss: on every path one a minute or so, five seconds long or so.
    let mut bursts = [false; 4];
    for _ in 0..samples {
        for burst in &mut bursts {
            let seconds = if *burst { 5.0 } else { 55.0 };
            if uniform(&mut random) < 1.0 / (seconds * PER_SECOND as f64) {
                *burst = !*burst;
            }
        }
        let mut number = 0;
        let news = site.sample(|truth| {
            let burst = bursts[number];
            number += 1;
            let rate = truth.bandwidth.as_bits_per_second() as f64;
            let rate = rate * (1.0 + 0.05 * normal(&mut random)).max(0.0);
            let delay = truth.delay.as_secs_f64() + 2e-3 * normal(&mut random);
            PathSample {
                bandwidth: Bandwidth::from_bits_per_second(rate as u64),
                delay: Duration::from_secs_f64(delay.max(0.0)),
                loss: Probability::new(if burst { 0.01 } else { 0.0 }).unwrap(),
            }
        });
        if news {
            site.plan(PlanMode::Revise);
        }
    }
    println!("{} plans in {samples} samples", site.plans);
    assert_eq!(site.moves, BTreeMap::new());
    assert_eq!(site.unmet, []);
}

#[test]
fn every_change_of_a_path_is_answered_in_half_a_second_by_one_move_each() {
    type Change = (&'static str, fn(&mut PathSample));
    let changes: [Change; 3] = [
        ("half the bandwidth", |path| {
            path.bandwidth =
                Bandwidth::from_bits_per_second(path.bandwidth.as_bits_per_second() / 2);
        }),
        ("80 ms longer", |path| {
            path.delay += Duration::from_millis(80);
        }),
        ("5 % loss", |path| {
            path.loss = Probability::new(0.05).unwrap();
        }),
    ];
    for path in (0..4).map(PathId) {
        for (name, change) in changes {
            let mut site = site();
            site.run(30);
            assert_eq!(site.moves, BTreeMap::new(), "{name} of {path:?}: before");
            let before = site.truth[&path];
            change(site.truth.get_mut(&path).unwrap());
            let took = site.run(30);
            assert!(
                took <= Duration::from_millis(500),
                "{name} of {path:?}: {took:?}"
            );
            assert_eq!(site.unmet, [], "{name} of {path:?}");
            assert!(
                site.most_moves() <= 1,
                "{name} of {path:?}: {:?}",
                site.moves
            );
            site.moves.clear();
            site.truth.insert(path, before);
            site.run(30);
            assert_eq!(site.unmet, [], "{name} of {path:?} is over");
            assert!(
                site.most_moves() <= 1,
                "{name} of {path:?} is over: {:?}",
                site.moves
            );
        }
    }
}

#[test]
fn outage_moves_every_application_once_as_the_plan_without_the_path_says() {
    for path in (0..4).map(PathId) {
        let mut site = site();
        let paths: Vec<(PathId, PathSpec)> = site
            .levels
            .iter()
            .map(|(id, levels)| (*id, path_spec(&levels.get().unwrap(), PACKETS)))
            .collect();
        let settled = plan_moves(
            Settings::default(),
            &paths,
            &site.steered_apps,
            PlanMode::Revise,
            Budget::default(),
        )
        .unwrap();
        let contingency = settled.moves_without(path, Budget::default());
        let was_there: Vec<AppId> = site
            .steered_apps
            .iter()
            .filter(|steered_app| steered_app.path == Some(path))
            .map(|steered_app| steered_app.id)
            .collect();
        for steered_app in &mut site.steered_apps {
            if let Some(to) = contingency.get(&steered_app.id) {
                steered_app.path = Some(*to);
                *site.moves.entry(steered_app.id).or_default() += 1;
            }
        }
        site.levels.remove(&path);
        site.truth.remove(&path);
        site.plan(PlanMode::Revise);
        assert!(site.most_moves() <= 1, "{path:?}: {:?}", site.moves);
        for app in was_there {
            assert_eq!(site.moves.get(&app), Some(&1));
        }
    }
}

#[test]
fn only_an_application_unmet_elsewhere_takes_a_fallback_path() {
    let path = |id: u32, delay_ms: u64| {
        let spec = PathSpec {
            bandwidth: Bandwidth::from_mbit_per_second(100),
            delay: Duration::from_millis(delay_ms),
        };
        (PathId(id), spec)
    };
    let (far, near) = (PathId(0), PathId(1));
    let paths = [path(0, 50), path(1, 5)];
    let steered_app = |id: u32, latency_target_ms: u64| SteeredApp {
        id: AppId(id),
        spec: AppSpec {
            length: ByteCount::new(1000),
            interval: Duration::from_millis(10),
            latency_target: Some(Duration::from_millis(latency_target_ms)),
        },
        allowed: Allowed::Only([far].into()),
        fallback: [near].into(),
        path: Some(far),
    };
    let steered_apps = [steered_app(0, 100), steered_app(1, 20)];
    for plan_mode in [PlanMode::Revise, PlanMode::FromScratch] {
        let (settings, budget) = (Settings::default(), Budget::default());
        let arrangement = plan_moves(settings, &paths, &steered_apps, plan_mode, budget).unwrap();
        let places = arrangement.assignment();
        assert_eq!(places, [(AppId(0), far), (AppId(1), near)].into());
        assert_eq!(arrangement.unmet, []);
        // Nor where that helps no application.
        let hopeless = [steered_app(0, 100), steered_app(1, 4)];
        let arrangement = plan_moves(settings, &paths, &hopeless, plan_mode, budget).unwrap();
        assert_eq!(arrangement.moves, []);
        assert_eq!(arrangement.unmet, [AppId(1)]);
    }
}

fn app_on(id: u32, bytes: u64, latency_target_ms: u64, path: u32) -> SteeredApp {
    SteeredApp {
        id: AppId(id),
        spec: AppSpec {
            length: ByteCount::new(bytes),
            interval: Duration::from_millis(10),
            latency_target: Some(Duration::from_millis(latency_target_ms)),
        },
        allowed: Allowed::All,
        fallback: BTreeSet::new(),
        path: Some(PathId(path)),
    }
}

/// Few moves leave an application unmet that a plan from scratch meets.
#[test]
fn plan_from_scratch_is_taken_where_it_leaves_fewer_unmet() {
    let path = |id: u32, mbit: u64, delay_ms: u64| {
        let spec = PathSpec {
            bandwidth: Bandwidth::from_mbit_per_second(mbit),
            delay: Duration::from_millis(delay_ms),
        };
        (PathId(id), spec)
    };
    let paths = [path(0, 30, 20), path(1, 10, 5), path(2, 10, 10)];
    let apps = [
        app_on(0, 4000, 10, 2),
        app_on(1, 9000, 20, 2),
        app_on(2, 8000, 50, 2),
    ];
    let (settings, budget) = (Settings::default(), Budget::default());
    let revision = placed_incumbent(settings, &paths, &apps).unwrap().revise();
    assert_eq!(revision.unmet, [AppId(0)], "it takes more than few moves");
    let plan = plan_moves(settings, &paths, &apps, PlanMode::Revise, budget).unwrap();
    assert_eq!(plan.unmet, []);
    assert_eq!(plan.moves.len(), 2);
    let places = plan.assignment();
    for change in &plan.moves {
        assert_eq!(places[&change.app], change.to);
    }
}

/// A target that no plan meets is no reason to move those that are served.
#[test]
fn plan_from_scratch_that_leaves_as_many_unmet_is_not_taken() {
    let path = |id: u32, delay_us: u64| {
        let spec = PathSpec {
            bandwidth: Bandwidth::from_mbit_per_second(100),
            delay: Duration::from_micros(delay_us),
        };
        (PathId(id), spec)
    };
    let paths = [path(0, 10_000), path(1, 9_900)];
    let apps = [app_on(0, 1000, 100, 0), app_on(1, 1000, 1, 1)];
    let (settings, budget) = (Settings::default(), Budget::default());
    let plan = |mode| plan_moves(settings, &paths, &apps, mode, budget).unwrap();
    let revised = plan(PlanMode::Revise);
    assert_eq!((revised.moves.len(), revised.unmet), (0, vec![AppId(1)]));
    // From scratch the hundred microseconds count.
    let anew = plan(PlanMode::FromScratch);
    assert_eq!((anew.moves.len(), anew.unmet), (1, vec![AppId(1)]));
}
