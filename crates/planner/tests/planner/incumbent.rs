//! A plan in force under changes: what a revision may do, and what it must.

use std::{collections::BTreeSet, time::Duration};

use keiro_planner::{
    delay::{AppSpec, Delay, Equation3, PathSpec, Tolerance},
    paper,
    plan::{
        self, Budget, Incumbent, Plan, Problem,
        incumbent::{
            Aim, Allowed, AppId, Hysteresis, InputError, MoveReason, Parameter, ParameterValue,
            PathId, Revision, Settings,
        },
    },
};
use keiro_units::{Bandwidth, ByteCount};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

struct Random(ChaCha12Rng);

impl Random {
    fn new(seed: u64) -> Self {
        Self(ChaCha12Rng::seed_from_u64(seed))
    }

    /// From `low` to `high`, both included.
    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.next_u64() % (high - low + 1)
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.between(0, choices.len() as u64 - 1) as usize]
    }

    fn path(&mut self) -> PathSpec {
        path(self.between(20, 200), self.between(1, 60))
    }

    fn app(&mut self) -> AppSpec {
        let length = self.pick(&[1_000, 3_000, 10_000, 30_000, 100_000, 300_000]);
        let kbit = self.between(100, 6_000);
        app(
            length,
            length * 8 / kbit,
            self.pick(&[Some(3), Some(10), Some(30), Some(70), Some(200), None]),
        )
    }
}

fn app(length: u64, interval_millis: u64, latency_target_millis: Option<u64>) -> AppSpec {
    AppSpec {
        length: ByteCount::new(length),
        interval: Duration::from_millis(interval_millis.max(1)),
        latency_target: latency_target_millis.map(Duration::from_millis),
    }
}

fn path(bandwidth_mbit: u64, delay_millis: u64) -> PathSpec {
    PathSpec {
        bandwidth: Bandwidth::from_mbit_per_second(bandwidth_mbit),
        delay: Duration::from_millis(delay_millis),
    }
}

/// What the planners without memory say about a plan in force; `None` while an application has no path.
fn evaluated(incumbent: &Incumbent, tolerance: Tolerance) -> Option<Plan> {
    let (ids, paths): (Vec<PathId>, Vec<PathSpec>) = incumbent.paths().unzip();
    let mut apps = Vec::new();
    let mut assignment = Vec::new();
    for (app, path) in incumbent.assignment() {
        apps.push(incumbent.app(app)?);
        let path = path?;
        assignment.push(ids.iter().position(|id| *id == path)?);
    }
    let model = Equation3::default();
    let problem = Problem::new(&paths, &apps, &model).ok()?;
    Some(problem.with_tolerance(tolerance).evaluate(&assignment))
}

fn greedy_unmet(incumbent: &Incumbent, tolerance: Tolerance) -> Option<usize> {
    let paths: Vec<PathSpec> = incumbent.paths().map(|(_, spec)| spec).collect();
    let apps: Vec<AppSpec> = incumbent
        .assignment()
        .filter_map(|(app, _)| incumbent.app(app))
        .collect();
    let model = Equation3::default();
    let problem = Problem::new(&paths, &apps, &model).ok()?;
    Some(plan::greedy(&problem.with_tolerance(tolerance)).score.unmet)
}

/// A plan in force that random things happen to.
struct World {
    random: Random,
    incumbent: Incumbent,
    settings: Settings,
    paths: BTreeSet<u32>,
    apps: BTreeSet<u32>,
    next: u32,
    restricted: bool,
}

impl World {
    fn new(seed: u64, restricted: bool) -> Self {
        let mut random = Random::new(seed);
        let settings = Settings {
            tolerance: Tolerance::from_ppm(random.pick(&[0, 20_000])),
            aim: random.pick(&[Aim::LeastDelay, Aim::LeastDelay, Aim::Frugal]),
            hysteresis: random.pick(&[
                Hysteresis::default(),
                Hysteresis::NONE,
                Hysteresis {
                    gain_min: 0.1,
                    move_cost: Duration::from_millis(5),
                },
            ]),
        };
        let mut world = Self {
            incumbent: Incumbent::new(settings),
            random,
            settings,
            paths: BTreeSet::new(),
            apps: BTreeSet::new(),
            next: 0,
            restricted,
        };
        for _ in 0..world.random.between(1, 5) {
            world.add_path();
        }
        for _ in 0..world.random.between(0, 40) {
            world.set_app(None);
        }
        world.incumbent.revise();
        world
    }

    fn add_path(&mut self) {
        self.next += 1;
        self.paths.insert(self.next);
        let spec = self.random.path();
        self.incumbent.set_path(PathId(self.next), spec).unwrap();
    }

    fn set_app(&mut self, app: Option<u32>) {
        let app = app.unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        self.apps.insert(app);
        let allowed = if self.restricted && self.random.between(0, 2) == 0 {
            let paths: Vec<u32> = self.paths.iter().copied().collect();
            let count = self.random.between(0, 2);
            let some = (0..count).filter(|_| !paths.is_empty());
            Allowed::Only(some.map(|_| PathId(self.random.pick(&paths))).collect())
        } else {
            Allowed::All
        };
        let spec = self.random.app();
        self.incumbent.set_app(AppId(app), spec, allowed).unwrap();
    }

    fn any(&mut self, of: &BTreeSet<u32>) -> Option<u32> {
        let all: Vec<u32> = of.iter().copied().collect();
        (!all.is_empty()).then(|| self.random.pick(&all))
    }

    /// Something comes, goes or changes.
    fn change(&mut self) {
        let (paths, apps) = (self.paths.clone(), self.apps.clone());
        match self.random.between(0, 9) {
            0..=2 => self.set_app(None),
            3 | 4 => {
                if let Some(app) = self.any(&apps) {
                    self.set_app(Some(app));
                }
            }
            5 | 6 => {
                if let Some(app) = self.any(&apps) {
                    assert!(self.incumbent.remove_app(AppId(app)));
                    self.apps.remove(&app);
                }
            }
            7 | 8 => {
                if let Some(path) = self.any(&paths) {
                    let spec = self.random.path();
                    self.incumbent.set_path(PathId(path), spec).unwrap();
                }
            }
            _ => {
                if paths.len() > 1 && self.random.between(0, 1) == 0 {
                    let path = self.any(&paths).unwrap();
                    assert!(self.incumbent.remove_path(PathId(path)));
                    self.paths.remove(&path);
                } else if paths.len() < 6 {
                    self.add_path();
                }
            }
        }
    }
}

/// Whether leaving out one move would have been worse by as much as the hysteresis asks.
fn assert_needed(world: &World, revision: &Revision, context: &str) {
    let tolerance = world.settings.tolerance;
    let Some(with) = evaluated(&world.incumbent, tolerance) else {
        return;
    };
    let Hysteresis {
        gain_min,
        move_cost,
    } = world.settings.hysteresis;
    for step in &revision.moves {
        let Some(from) = step.from else {
            assert_eq!(step.reason, MoveReason::Unplaced, "{context}");
            continue;
        };
        let mut without = world.incumbent.clone();
        without.place(step.app, from).unwrap();
        let Some(plan) = evaluated(&without, tolerance) else {
            continue;
        };
        let gain = step.gain.unwrap();
        let lost = plan.score.unmet as i64 - with.score.unmet as i64;
        assert_eq!(gain.met, lost, "{context}: {step:?}");
        let overloaded = plan.score.overloaded as i64 - with.score.overloaded as i64;
        assert_eq!(gain.not_overloaded, overloaded, "{context}: {step:?}");
        if (lost, overloaded) != (0, 0) {
            assert!((lost, overloaded) > (0, 0), "{context}: {step:?}");
            continue;
        }
        let nanos = |d: Duration| d.as_secs_f64();
        let lateness = nanos(plan.score.lateness) - nanos(with.score.lateness);
        let delay = nanos(plan.score.delay) - nanos(with.score.delay);
        let Delay::Finite(own) = without.prediction(step.app).unwrap().delay else {
            panic!("{context}: {step:?}");
        };
        let needed = gain_min * nanos(own) + nanos(move_cost);
        let has_target = without.app(step.app).unwrap().latency_target.is_some();
        let gained = match world.settings.aim {
            Aim::Frugal if has_target => lateness,
            Aim::LeastDelay | Aim::Frugal => delay,
        };
        assert!(
            gained >= needed - 2e-6,
            "{context}: {step:?} {gained} < {needed}"
        );
    }
}

#[test]
fn revisions_are_consistent_needed_and_final() {
    let (mut moves, mut unmet) = (0, 0);
    for seed in 0..300 {
        let mut world = World::new(seed, seed % 3 == 0);
        let mut twin = World::new(seed, seed % 3 == 0);
        for step in 0..20 {
            let context = format!("seed {seed}, step {step}");
            world.change();
            twin.change();
            let before = world.incumbent.clone();
            assert_eq!(
                before.clone().revise(),
                twin.incumbent.revise(),
                "{context}"
            );
            let revision = world.incumbent.revise();
            assert!(revision.complete, "{context}");
            assert_eq!(revision.before, before.clone().score(), "{context}");
            assert_eq!(revision.after, world.incumbent.score(), "{context}");
            if revision.moves.iter().all(|step| step.from.is_some()) {
                assert!(revision.after.unmet <= revision.before.unmet, "{context}");
            }

            let mut rebuilt = before.clone();
            for step in &revision.moves {
                assert_eq!(before.path_of(step.app), step.from, "{context}");
                assert_ne!(step.from, Some(step.to), "{context}");
                rebuilt.place(step.app, step.to).unwrap();
            }
            assert!(
                revision
                    .moves
                    .windows(2)
                    .all(|pair| pair[0].app < pair[1].app),
                "{context}: one move per application"
            );
            let now: Vec<_> = world.incumbent.assignment().collect();
            assert_eq!(rebuilt.assignment().collect::<Vec<_>>(), now, "{context}");
            if let Some(plan) = evaluated(&world.incumbent, world.settings.tolerance) {
                assert_eq!(plan.score, revision.after, "{context}");
                let ids: Vec<AppId> = now.iter().map(|(id, _)| *id).collect();
                let late: Vec<AppId> = plan.unmet.iter().map(|&app| ids[app]).collect();
                assert_eq!(late, revision.unmet, "{context}");
                for (app, prediction) in ids.iter().zip(&plan.predictions) {
                    assert_eq!(world.incumbent.prediction(*app).as_ref(), Some(prediction));
                }
            }
            assert_needed(&world, &revision, &context);
            moves += revision
                .moves
                .iter()
                .filter(|step| step.from.is_some())
                .count();
            unmet += revision.after.unmet;

            let again = world.incumbent.revise();
            assert_eq!(again.moves, [], "{context}: nothing has changed");
            assert_eq!(again.after, revision.after, "{context}");
        }
    }
    println!("{moves} moves, {unmet} unmet");
    assert!(moves > 1_000);
}

/// Few moves first: what they cost against a plan from scratch by the paper's algorithm.
#[test]
fn few_moves_leave_hardly_more_unmet_than_greedy_from_scratch() {
    let (mut revised, mut greedy, mut worse, mut all) = (0, 0, 0, 0);
    for seed in 1_000..1_200 {
        let mut world = World::new(seed, false);
        for _ in 0..20 {
            world.change();
            let revision = world.incumbent.revise();
            let Some(scratch) = greedy_unmet(&world.incumbent, world.settings.tolerance) else {
                continue;
            };
            all += 1;
            revised += revision.after.unmet;
            greedy += scratch;
            worse += usize::from(revision.after.unmet > scratch);
        }
    }
    println!("unmet {revised}, greedy {greedy}; more in {worse} of {all}");
    assert!(revised < greedy);
}

fn paper_incumbent(settings: Settings) -> Incumbent {
    let mut incumbent = Incumbent::new(settings);
    for (id, spec) in (0..).zip(paper::PATHS) {
        incumbent.set_path(PathId(id), spec).unwrap();
    }
    for (id, spec) in (0..).zip(paper::APPS) {
        incumbent.set_app(AppId(id), spec, Allowed::All).unwrap();
    }
    incumbent
}

#[test]
fn repeated_updates_change_nothing_and_unknown_ids_are_refused() {
    let mut incumbent = paper_incumbent(Settings::default());
    assert_eq!(incumbent.revise().moves.len(), 5);
    for (id, spec) in (0..).zip(paper::PATHS) {
        incumbent.set_path(PathId(id), spec).unwrap();
    }
    incumbent
        .set_app(AppId(0), paper::APPS[0], Allowed::All)
        .unwrap();
    assert_eq!(incumbent.revise().moves, []);
    assert_eq!(
        incumbent.place(AppId(9), PathId(0)),
        Err(InputError::UnknownApp)
    );
    assert_eq!(
        incumbent.place(AppId(0), PathId(9)),
        Err(InputError::UnknownPath)
    );
    assert_eq!(
        incumbent.set_path(PathId(7), path(300_000_000, 1)),
        Err(InputError::Bandwidth)
    );
    assert!(!incumbent.remove_app(AppId(9)) && !incumbent.remove_path(PathId(9)));
    assert_eq!(incumbent.revise().moves, []);
}

#[test]
fn without_paths_no_application_is_placed_and_all_are_when_one_comes() {
    let mut incumbent = Incumbent::new(Settings::default());
    incumbent
        .set_app(AppId(3), app(1_000, 100, Some(20)), Allowed::All)
        .unwrap();
    let revision = incumbent.revise();
    assert_eq!(
        (revision.moves.len(), revision.unmet.as_slice()),
        (0, &[AppId(3)][..])
    );
    assert_eq!((revision.after.unmet, revision.after.overloaded), (1, 1));
    incumbent.set_path(PathId(8), path(10, 2)).unwrap();
    let revision = incumbent.revise();
    assert_eq!(revision.moves[0].to, PathId(8));
    assert_eq!(
        (revision.after.unmet, incumbent.path_of(AppId(3))),
        (0, Some(PathId(8)))
    );
    assert!(incumbent.remove_path(PathId(8)));
    assert_eq!(incumbent.revise().after.unmet, 1);
}

#[test]
fn repair_moves_others_where_nothing_else_helps() {
    let mut incumbent = Incumbent::new(Settings::default());
    incumbent.set_path(PathId(0), path(100, 2)).unwrap();
    incumbent.set_path(PathId(1), path(100, 30)).unwrap();
    // Anywhere will do for the first, and it is on the quick path already.
    incumbent
        .set_app(AppId(0), app(500_000, 60, Some(600)), Allowed::All)
        .unwrap();
    incumbent.place(AppId(0), PathId(0)).unwrap();
    incumbent.revise();
    assert_eq!(incumbent.path_of(AppId(0)), Some(PathId(0)));
    incumbent
        .set_app(AppId(1), app(50_000, 50, Some(10)), Allowed::All)
        .unwrap();
    let revision = incumbent.revise();
    assert_eq!(revision.after.unmet, 0);
    assert_eq!(revision.moves.len(), 2);
    assert_eq!(revision.moves[0].reason, MoveReason::MakesRoom);
    assert_eq!(revision.moves[0].gain.unwrap().met, 1);
    assert_eq!(
        (revision.moves[0].to, revision.moves[1].to),
        (PathId(1), PathId(0))
    );
}

#[test]
fn a_repair_that_was_spent_goes_on_with_the_paths_it_had_not_come_to() {
    let mut incumbent = Incumbent::new(Settings::default());
    let mut id = 0;
    let mut put = |incumbent: &mut Incumbent, spec: AppSpec, path: u32| {
        let app = AppId(id);
        id += 1;
        incumbent.set_app(app, spec, Allowed::All).unwrap();
        incumbent.place(app, PathId(path)).unwrap();
        app
    };
    for (path_id, delay) in [(0, 10), (1, 10), (2, 10), (3, 40)] {
        incumbent
            .set_path(PathId(path_id), path(1_000, delay))
            .unwrap();
        for _ in 0..500 {
            put(&mut incumbent, app(12_500, 100, None), path_id);
        }
    }
    // These need two thirds of a path; to find that no move helps them takes long.
    for _ in 0..30 {
        put(&mut incumbent, app(1_000_000, 10_000, Some(22)), 0);
    }
    let easy = put(&mut incumbent, app(1_000, 1_000, Some(35)), 3);
    let first = incumbent.revise();
    assert!(!first.complete && first.unmet.contains(&easy), "{first:?}");
    let second = incumbent.revise();
    assert!(!second.unmet.contains(&easy), "{second:?}");
}

#[test]
fn noise_below_the_hysteresis_moves_no_app() {
    for seed in 0..50 {
        let mut random = Random::new(seed);
        let mut incumbent = Incumbent::new(Settings::default());
        let paths: Vec<PathSpec> = (0..4)
            .map(|_| path(random.between(80, 200), random.between(1, 60)))
            .collect();
        for (id, &spec) in (0..).zip(&paths) {
            incumbent.set_path(PathId(id), spec).unwrap();
        }
        for id in 0..20 {
            let mut spec = random.app();
            spec.latency_target = spec
                .latency_target
                .map(|latency_target| latency_target + Duration::from_millis(200));
            incumbent.set_app(AppId(id), spec, Allowed::All).unwrap();
        }
        incumbent.plan_from_scratch(Budget::default());
        assert_eq!(incumbent.revise().moves, [], "seed {seed}");
        for round in 0..50 {
            for (id, spec) in (0..).zip(&paths) {
                let noisy = PathSpec {
                    bandwidth: Bandwidth::from_bits_per_second(
                        spec.bandwidth.as_bits_per_second() / 1_000 * random.between(970, 1_030),
                    ),
                    delay: spec.delay + Duration::from_micros(random.between(0, 500)),
                };
                incumbent.set_path(PathId(id), noisy).unwrap();
            }
            assert_eq!(incumbent.revise().moves, [], "seed {seed}, round {round}");
        }
    }
}

#[test]
fn where_only_one_can_move_it_is_the_one_that_gains_most() {
    let mut incumbent = Incumbent::new(Settings::default());
    let [slow, quick] = [PathId(0), PathId(1)];
    incumbent.set_path(slow, path(100, 50)).unwrap();
    incumbent.set_path(quick, path(10, 1)).unwrap();
    // 1 Mbit/s that is met on the quick path beside at most 6 Mbit/s of others.
    let pinned = Allowed::Only([quick].into());
    let mut tight = app(10_000, 80, None);
    tight.latency_target = Some(Duration::from_micros(21_500));
    incumbent.set_app(AppId(0), tight, pinned).unwrap();
    // 4 Mbit/s each. Both would gain on the quick path, the short messages more.
    let [long, short] = [AppId(1), AppId(2)];
    for (id, spec) in [(long, app(10_000, 20, None)), (short, app(1_000, 2, None))] {
        incumbent.set_app(id, spec, Allowed::All).unwrap();
        incumbent.place(id, slow).unwrap();
    }
    let revision = incumbent.revise();
    assert_eq!(revision.unmet, []);
    let moves: Vec<(AppId, Option<PathId>, PathId)> = revision
        .moves
        .iter()
        .map(|step| (step.app, step.from, step.to))
        .collect();
    let expected = [(AppId(0), None, quick), (short, Some(slow), quick)];
    assert_eq!(moves, expected);
}

#[test]
fn a_frugal_plan_is_the_papers_and_moves_for_targets_only() {
    let mut incumbent = paper_incumbent(Settings {
        aim: Aim::Frugal,
        tolerance: Tolerance::from_ppm(20_000),
        ..Settings::default()
    });
    incumbent.plan_from_scratch(Budget::default());
    let places: Vec<_> = incumbent
        .assignment()
        .map(|(_, path)| path.unwrap().0)
        .collect();
    assert_eq!(places, paper::ASSIGNMENT.map(|path| path as u32));
    // Half a second of delay is nothing to those without a need.
    incumbent
        .set_app(AppId(3), app(10_000, 100, Some(10_000)), Allowed::All)
        .unwrap();
    let slow = PathSpec {
        delay: Duration::from_millis(300),
        ..paper::PATHS[0]
    };
    incumbent.set_path(PathId(0), slow).unwrap();
    assert_eq!(incumbent.revise().moves, []);
    let slower = PathSpec {
        delay: Duration::from_millis(600),
        ..paper::PATHS[0]
    };
    incumbent.set_path(PathId(0), slower).unwrap();
    let moved: Vec<AppId> = incumbent
        .revise()
        .moves
        .iter()
        .map(|step| step.app)
        .collect();
    assert_eq!(moved, [AppId(1)]);
}

#[test]
fn a_threshold_is_where_a_revision_moves_and_just_before_it_does_not() {
    let mut found = 0;
    for seed in 0..40 {
        let mut world = World::new(seed, false);
        world.incumbent.revise();
        let paths = world.paths.clone();
        let apps: Vec<u32> = world.apps.iter().copied().take(3).collect();
        for app in apps {
            let parameters = paths
                .iter()
                .flat_map(|&path| {
                    [
                        Parameter::PathDelay(PathId(path)),
                        Parameter::PathBandwidth(PathId(path)),
                    ]
                })
                .chain([Parameter::LatencyTarget]);
            for parameter in parameters {
                let Some(threshold) = world.incumbent.threshold(AppId(app), parameter) else {
                    continue;
                };
                found += 1;
                let moves = |value: ParameterValue| {
                    let mut copy = world.incumbent.clone();
                    match (parameter, value) {
                        (Parameter::PathDelay(id), ParameterValue::Time(delay)) => {
                            let (_, spec) = copy.paths().find(|path| path.0 == id).unwrap();
                            copy.set_path(id, PathSpec { delay, ..spec }).unwrap();
                        }
                        (Parameter::PathBandwidth(id), ParameterValue::Rate(bandwidth)) => {
                            let (_, spec) = copy.paths().find(|path| path.0 == id).unwrap();
                            copy.set_path(id, PathSpec { bandwidth, ..spec }).unwrap();
                        }
                        (Parameter::LatencyTarget, ParameterValue::Time(latency_target)) => {
                            let latency_target = Some(latency_target);
                            let spec = copy.app(AppId(app)).unwrap();
                            copy.set_app(
                                AppId(app),
                                AppSpec {
                                    latency_target,
                                    ..spec
                                },
                                Allowed::All,
                            )
                            .unwrap();
                        }
                        other => panic!("seed {seed}: {other:?}"),
                    }
                    let moves = copy.revise().moves;
                    moves
                        .iter()
                        .find(|step| step.app == AppId(app))
                        .map(|step| step.to)
                };
                let context = format!("seed {seed}, {app}, {threshold:?}");
                assert_eq!(moves(threshold.at), Some(threshold.to), "{context}");
                assert_ne!(threshold.now, threshold.at, "{context}");
                assert_eq!(moves(threshold.now), None, "{context}");
            }
        }
    }
    println!("{found} thresholds");
    assert!(found > 100);
}

#[test]
fn outlooks_predict_the_effect_of_a_move() {
    let mut incumbent = paper_incumbent(Settings::default());
    for (app, path) in (0..).zip(paper::ASSIGNMENT) {
        incumbent.place(AppId(app), PathId(path as u32)).unwrap();
    }
    let model = Equation3::default();
    let problem = Problem::new(&paper::PATHS, &paper::APPS, &model).unwrap();
    for app in 0..5 {
        let path_options = incumbent.path_options(AppId(app));
        let alternatives = plan::alternatives(&problem, &paper::ASSIGNMENT, app as usize);
        for (option, alternative) in path_options.iter().zip(&alternatives) {
            assert_eq!(option.path.0 as usize, alternative.path);
            assert_eq!(option.current, alternative.current);
            assert_eq!(option.prediction, alternative.prediction);
            let newly: Vec<usize> = option.newly_unmet.iter().map(|id| id.0 as usize).collect();
            assert_eq!(newly, alternative.newly_unmet);
        }
        let best = incumbent.next_best(AppId(app)).unwrap();
        let expected = plan::next_best(&problem, &paper::ASSIGNMENT, app as usize).unwrap();
        assert_eq!(best.path.0 as usize, expected.path);
    }
    assert!(incumbent.path_options(AppId(99)).is_empty());
}
