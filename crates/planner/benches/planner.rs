//! The planners at 10 paths and 100 applications, a plan in force at 16 paths and 10,000, and the
//! forecasts they can be driven by.
//!
//! Run with `cargo bench -p keiro-planner`. Before the times it prints what the plans are worth: how
//! much better the exact plan is than the greedy one, and how far from the best it can be at most.
//! All instances are drawn with seeds, so the plans are the same on every machine.
//!
//! `cargo bench -p keiro-planner --bench planner -- cpu` prints instead what the exact plan and the plan
//! in force take of the processor, and of a fixed loop's time beside it: for machines that others
//! use too.

use std::time::Duration;

use divan::Bencher;
use keiro_planner::{
    delay::{AppSpec, Equation3, PathSpec},
    paper,
    plan::{
        self, Budget, Candidate, Incumbent, MoveCost, Optimality, Problem, TargetSearch,
        incumbent::{Allowed, AppId, PathId, Revision, Settings},
    },
    queueing::{Gateway, PathEstimate, Resolution, Scheduler, Traffic, WireFormat},
};
use keiro_units::{Bandwidth, ByteCount};
use nix::time::{ClockId, clock_gettime};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

const PATHS: usize = 10;
const APPS: usize = 100;
const SEEDS: u64 = 5;
const FEW_PATHS: usize = 4;
const FEW_APPS: usize = 30;

/// How much is asked of the paths.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A quarter of the bandwidth; latency targets of 5 to 40 times what an idle fast path takes.
    Easy,
    /// Half of the bandwidth, the same latency targets.
    Usual,
    /// Three quarters of the bandwidth; latency targets of 4 to 20 times what an idle fast path takes.
    Tight,
    /// As tight, and every twelfth latency target is one that no path meets.
    Infeasible,
    /// A fifth more than all paths carry.
    Overloaded,
}

const KINDS: [Kind; 5] = [
    Kind::Easy,
    Kind::Usual,
    Kind::Tight,
    Kind::Infeasible,
    Kind::Overloaded,
];

struct Instance {
    paths: Vec<PathSpec>,
    apps: Vec<AppSpec>,
}

impl Instance {
    /// Paths of 50 to 500 Mbit/s and 1 to 60 ms; messages of 1 kB to 1 MB and rates over a range
    /// of 30, evenly on a logarithmic scale.
    fn new(kind: Kind, seed: u64) -> Self {
        Self::sized(PATHS, APPS, kind, seed)
    }

    fn sized(paths: usize, apps: usize, kind: Kind, seed: u64) -> Self {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let mut uniform = |low: f64, high: f64| {
            let unit = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
            low + (high - low) * unit
        };
        let paths: Vec<PathSpec> = (0..paths)
            .map(|_| PathSpec {
                bandwidth: Bandwidth::from_mbit_per_second(uniform(50.0, 500.0) as u64),
                delay: Duration::from_millis(uniform(1.0, 60.0) as u64),
            })
            .collect();
        let load = match kind {
            Kind::Easy => 0.25,
            Kind::Usual => 0.5,
            Kind::Tight | Kind::Infeasible => 0.75,
            Kind::Overloaded => 1.2,
        };
        let drawn: Vec<(f64, f64)> = (0..apps)
            .map(|_| {
                let length = 10_f64.powf(uniform(3.0, 6.0));
                (length, 10_f64.powf(uniform(0.0, 1.5)))
            })
            .collect();
        let rates = paths.iter().map(|path| path.bandwidth);
        let capacity: f64 = rates.map(|rate| rate.as_bits_per_second() as f64).sum();
        let drawn_rate: f64 = drawn.iter().map(|(_, rate)| rate).sum();
        let apps = drawn.iter().enumerate().map(|(index, &(length, rate))| {
            let rate = rate / drawn_rate * capacity * load;
            let fast = length * 8.0 / 500e6 + 0.005;
            let slack = match kind {
                Kind::Easy | Kind::Usual => uniform(5.0, 40.0),
                Kind::Infeasible if index % 12 == 0 => 0.1,
                Kind::Tight | Kind::Infeasible | Kind::Overloaded => uniform(4.0, 20.0),
            };
            AppSpec {
                length: ByteCount::new(length as u64),
                interval: Duration::from_secs_f64(length * 8.0 / rate),
                latency_target: Some(Duration::from_secs_f64(fast * slack)),
            }
        });
        Self {
            apps: apps.collect(),
            paths,
        }
    }

    fn problem<'a>(&'a self, model: &'a Equation3) -> Problem<'a, Equation3> {
        Problem::new(&self.paths, &self.apps, model).expect("an instance has paths")
    }
}

/// The work that a gateway gives to the first search.
const SEARCH_WORK: u64 = 1_000_000;

/// The search by estimates of the forecast, from the plan by eq. 3.
fn searched(bencher: Bencher<'_, '_>, instance: &Instance, scheduler: Scheduler) {
    let wire = WireFormat::new(ByteCount::new(1428), ByteCount::new(72));
    let gateway = Gateway {
        ahead: Duration::from_millis(1),
        ..Gateway::new(scheduler, wire.expect("a packet has room"))
    };
    let mut incumbent = incumbent_of(instance);
    incumbent.revise();
    let places = incumbent.assignment();
    let start: Vec<usize> = places
        .map(|(_, path)| path.map_or(0, |path| path.0 as usize))
        .collect();
    let estimate = |path: &PathSpec| PathEstimate::new(&gateway, path);
    let paths: Vec<PathEstimate> = instance.paths.iter().map(estimate).collect();
    bencher.bench(|| {
        let candidate = |app: &AppSpec| Candidate {
            flows: paths
                .iter()
                .map(|path| path.flow(&Traffic::paper(*app)))
                .collect(),
            allowed: vec![true; paths.len()],
            limit: app
                .latency_target
                .map_or(f64::INFINITY, |t| t.as_secs_f64()),
        };
        let apps = instance.apps.iter().map(candidate).collect();
        let mut search = TargetSearch::new(paths.clone(), apps);
        search.improve(&start, &start, MoveCost::default(), SEARCH_WORK)
    });
}

#[divan::bench(args = KINDS, sample_count = 10)]
fn search_by_deadline(bencher: Bencher<'_, '_>, kind: Kind) {
    searched(bencher, &Instance::new(kind, 0), Scheduler::Deadline);
}

#[divan::bench(args = KINDS, sample_count = 10)]
fn search_by_fifo(bencher: Bencher<'_, '_>, kind: Kind) {
    searched(bencher, &Instance::new(kind, 0), Scheduler::Fifo);
}

#[divan::bench(args = [Kind::Usual, Kind::Tight], sample_count = 5)]
fn search_for_many(bencher: Bencher<'_, '_>, kind: Kind) {
    let instance = Instance::sized(MANY_PATHS, MANY_APPS, kind, 1);
    searched(bencher, &instance, Scheduler::Deadline);
}

fn main() {
    // A test run only wants to know that this builds.
    if std::env::args().any(|argument| argument == "--bench") {
        if std::env::args().any(|argument| argument == "cpu") {
            return processor_times();
        }
        worth();
        worth_of_revisions();
    }
    divan::main();
}

fn worth() {
    let model = Equation3::default();
    for kind in KINDS {
        for seed in 0..SEEDS {
            let instance = Instance::new(kind, seed);
            let problem = instance.problem(&model);
            let greedy = plan::greedy(&problem).score;
            let exact = plan::exact(&problem, Budget::default());
            let score = exact.plan.score;
            let proof = match (exact.optimality, exact.gap()) {
                (Optimality::Proven, _) | (_, None) => "best".to_owned(),
                (_, Some(gap)) => {
                    format!("{:?} within {:.1} %", gap.objective, gap.relative * 100.0)
                }
            };
            println!(
                "{kind:?} {seed}: unmet {} -> {}, late {:.0?} -> {:.0?}, delays {:.3?} -> {:.3?}; {proof}",
                greedy.unmet,
                score.unmet,
                greedy.lateness,
                score.lateness,
                greedy.delay,
                score.delay,
            );
        }
    }
}

#[divan::bench(args = KINDS)]
fn greedy(bencher: Bencher<'_, '_>, kind: Kind) {
    let instance = Instance::new(kind, 1);
    let model = Equation3::default();
    let problem = instance.problem(&model);
    bencher.bench(|| plan::greedy(&problem));
}

#[divan::bench(args = KINDS)]
fn exact(bencher: Bencher<'_, '_>, kind: Kind) {
    let instance = Instance::new(kind, 1);
    let model = Equation3::default();
    let problem = instance.problem(&model);
    bencher.bench(|| plan::exact(&problem, Budget::default()));
}

/// The paper's five applications on one path.
#[divan::bench(args = [Resolution::COARSE.steps(), Resolution::FINE.steps()])]
fn forecast_by_deadline(bencher: Bencher<'_, '_>, steps: usize) {
    let wire = WireFormat::new(ByteCount::new(1200), ByteCount::new(80));
    let gateway = Gateway {
        resolution: Resolution::new(steps),
        ..Gateway::new(Scheduler::Deadline, wire.expect("a packet has room"))
    };
    bencher.bench(|| gateway.forecast(&paper::PATHS[1], &paper::APPS, &[0, 1, 2, 3, 4]));
}

/// One thing happens to a plan in force.
#[derive(Clone, Copy, Debug)]
enum Event {
    AppComes,
    AppGoes,
    TargetNarrows,
    BandwidthHalves,
    DelayGrows,
    PathDies,
    PathReturns,
}

const EVENTS: [Event; 7] = [
    Event::AppComes,
    Event::AppGoes,
    Event::TargetNarrows,
    Event::BandwidthHalves,
    Event::DelayGrows,
    Event::PathDies,
    Event::PathReturns,
];

const MANY_PATHS: usize = 16;
const MANY_APPS: usize = 10_000;

fn incumbent_of(instance: &Instance) -> Incumbent {
    let mut incumbent = Incumbent::new(Settings::default());
    for (id, &spec) in (0..).zip(&instance.paths) {
        incumbent
            .set_path(PathId(id), spec)
            .expect("the paths are plannable");
    }
    for (id, &spec) in (0..).zip(&instance.apps) {
        incumbent
            .set_app(AppId(id), spec, Allowed::All)
            .expect("there is room");
    }
    incumbent
}

/// A plan in force at half of the load, settled.
fn settled(instance: &Instance) -> Incumbent {
    let mut incumbent = incumbent_of(instance);
    incumbent.plan_from_scratch(Budget::default());
    revise_on(&mut incumbent);
    incumbent
}

/// Until everything was looked at.
fn revise_on(incumbent: &mut Incumbent) {
    for _ in 0..100 {
        if incumbent.revise().complete {
            return;
        }
    }
}

/// The event up to, but not including, the revision.
fn happen(incumbent: &mut Incumbent, instance: &Instance, event: Event) {
    // The path in the middle of those sorted by bandwidth: neither the worst case nor the best.
    let mut by_bandwidth: Vec<usize> = (0..instance.paths.len()).collect();
    by_bandwidth.sort_by_key(|&path| instance.paths[path].bandwidth);
    let path = by_bandwidth[by_bandwidth.len() / 2];
    let (id, spec) = (PathId(path as u32), instance.paths[path]);
    let app = instance.apps[7];
    let happened = match event {
        Event::AppComes => incumbent.set_app(AppId(u32::MAX), app, Allowed::All),
        Event::AppGoes => {
            incumbent.remove_app(AppId(7));
            Ok(())
        }
        Event::TargetNarrows => {
            let latency_target = app.latency_target.map(|latency_target| latency_target / 3);
            incumbent.set_app(
                AppId(7),
                AppSpec {
                    latency_target,
                    ..app
                },
                Allowed::All,
            )
        }
        Event::BandwidthHalves => {
            let half = spec.bandwidth.as_bits_per_second() / 2;
            let bandwidth = Bandwidth::from_bits_per_second(half);
            incumbent.set_path(id, PathSpec { bandwidth, ..spec })
        }
        Event::DelayGrows => {
            let delay = spec.delay + Duration::from_millis(80);
            incumbent.set_path(id, PathSpec { delay, ..spec })
        }
        Event::PathDies => {
            incumbent.remove_path(id);
            Ok(())
        }
        Event::PathReturns => incumbent.set_path(id, spec),
    };
    happened.expect("the change is plannable");
}

/// What was in force before the event.
fn before(instance: &Instance, event: Event) -> Incumbent {
    let mut incumbent = settled(instance);
    if let Event::PathReturns = event {
        happen(&mut incumbent, instance, Event::PathDies);
        revise_on(&mut incumbent);
    }
    incumbent
}

fn worth_of_revisions() {
    for kind in [Kind::Usual, Kind::Tight] {
        let instance = Instance::sized(MANY_PATHS, MANY_APPS, kind, 1);
        for event in EVENTS {
            let mut incumbent = before(&instance, event);
            happen(&mut incumbent, &instance, event);
            let revision = incumbent.revise();
            let mut anew = incumbent.clone();
            let anew = anew.plan_from_scratch(Budget::default());
            println!(
                "{kind:?} {event:?}: {} moves, unmet {} -> {}, delays {:.3?}; from scratch {} moves, unmet {}, {:.3?}{}",
                revision.moves.len(),
                revision.before.unmet,
                revision.after.unmet,
                revision.after.delay,
                anew.moves.len(),
                anew.after.unmet,
                anew.after.delay,
                if revision.complete {
                    ""
                } else {
                    "; not complete"
                },
            );
        }
    }
}

/// Of this thread, in processor time.
fn timed<T>(run: impl FnOnce() -> T) -> (f64, T) {
    let now = || {
        let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("there is such a clock");
        time.tv_sec() as f64 * 1e3 + time.tv_nsec() as f64 / 1e6
    };
    let begin = now();
    let result = run();
    (now() - begin, result)
}

/// What anything takes depends on the machine and its other guests: a million steps of a
/// generator, each waiting for the one before.
fn reference() -> u64 {
    (0..1_000_000_u64).fold(1, |state: u64, step| {
        let state = (state ^ (state >> 29)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        state ^ step
    })
}

/// The fastest and the median of `samples` runs in ms, and the median of what each took of the
/// reference's time beside it.
fn processor_time<T>(
    name: &str,
    samples: usize,
    mut prepare: impl FnMut() -> T,
    run: impl Fn(&mut T) -> u64,
) {
    let (mut times, mut ratios, mut trace) = (Vec::new(), Vec::new(), 0);
    for _ in 0..samples {
        let mut asked = prepare();
        let (reference, _) = timed(|| std::hint::black_box(reference()));
        let (time, answer) = timed(|| run(&mut asked));
        times.push(time);
        ratios.push(time / reference);
        trace = answer;
    }
    times.sort_by(f64::total_cmp);
    ratios.sort_by(f64::total_cmp);
    let middle = samples / 2;
    println!(
        "{name:24} fastest {:7.3} ms, median {:7.3} ms, {:6.3} of the reference; plan {trace:016x}",
        times[0], times[middle], ratios[middle]
    );
}

/// A copy that, as a plan that has grown has, has room for one more: a copy alone has none, and
/// making it would be measured.
fn with_room(incumbent: &Incumbent, instance: &Instance) -> Incumbent {
    let mut copy = incumbent.clone();
    let id = AppId(u32::MAX - 1);
    let added = copy.set_app(id, instance.apps[0], Allowed::All);
    added.expect("there is room");
    copy.remove_app(id);
    copy
}

fn trace_of(revision: &Revision) -> u64 {
    let moves = revision.moves.iter();
    trace(moves.flat_map(|step| [step.app.0, step.to.0].map(u64::from)))
}

/// A hash that distinguishes plans (FNV-1a).
fn trace(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0xCBF2_9CE4_8422_2325, |trace: u64, number| {
        (trace ^ number).wrapping_mul(0x0100_0000_01B3)
    })
}

/// Those of which a further argument names a part, if there is one.
fn is_asked(name: &str) -> bool {
    let mut parts = std::env::args().skip_while(|argument| argument != "cpu");
    parts
        .nth(1)
        .is_none_or(|part| part.starts_with("--") || name.contains(&part))
}

fn processor_times() {
    let model = Equation3::default();
    for kind in KINDS {
        let name = format!("{kind:?} exact");
        if is_asked(&name) {
            let instance = Instance::new(kind, 1);
            let problem = instance.problem(&model);
            processor_time(
                &name,
                100,
                || problem,
                |problem| {
                    let assignment = plan::exact(problem, Budget::default()).plan.assignment;
                    trace(assignment.into_iter().map(|path| path as u64))
                },
            );
        }
    }
    for kind in [Kind::Usual, Kind::Tight] {
        let name = format!("{kind:?} few anew");
        if is_asked(&name) {
            let instance = Instance::sized(FEW_PATHS, FEW_APPS, kind, 1);
            processor_time(
                &name,
                20,
                || incumbent_of(&instance),
                |incumbent| trace_of(&incumbent.plan_from_scratch(Budget::THOROUGH)),
            );
        }
    }
    for kind in [Kind::Usual, Kind::Tight] {
        let instance = Instance::sized(MANY_PATHS, MANY_APPS, kind, 1);
        let name = format!("{kind:?} anew");
        if is_asked(&name) {
            processor_time(
                &name,
                20,
                || incumbent_of(&instance),
                |incumbent| trace_of(&incumbent.plan_from_scratch(Budget::default())),
            );
        }
        for event in EVENTS {
            let name = format!("{kind:?} {event:?}");
            if !is_asked(&name) {
                continue;
            }
            let before = before(&instance, event);
            processor_time(
                &name,
                100,
                || with_room(&before, &instance),
                |incumbent| {
                    happen(incumbent, &instance, event);
                    trace_of(&incumbent.revise())
                },
            );
        }
    }
}

/// 30 applications on 4 paths, where it is asked for as little delay as there can be.
#[divan::bench(args = [Kind::Usual, Kind::Tight], sample_count = 20)]
fn few_anew(bencher: Bencher<'_, '_>, kind: Kind) {
    let instance = Instance::sized(FEW_PATHS, FEW_APPS, kind, 1);
    bencher
        .with_inputs(|| incumbent_of(&instance))
        .bench_values(|mut incumbent| incumbent.plan_from_scratch(Budget::THOROUGH));
}

#[divan::bench(args = [Kind::Usual, Kind::Tight], sample_count = 20)]
fn many_anew(bencher: Bencher<'_, '_>, kind: Kind) {
    let instance = Instance::sized(MANY_PATHS, MANY_APPS, kind, 1);
    bencher
        .with_inputs(|| incumbent_of(&instance))
        .bench_values(|mut incumbent| incumbent.plan_from_scratch(Budget::default()));
}

/// The event and the revision.
#[divan::bench(args = EVENTS, consts = [false, true], sample_count = 30)]
fn many_revised<const TIGHT: bool>(bencher: Bencher<'_, '_>, event: Event) {
    let kind = if TIGHT { Kind::Tight } else { Kind::Usual };
    let instance = Instance::sized(MANY_PATHS, MANY_APPS, kind, 1);
    let before = before(&instance, event);
    bencher
        .with_inputs(|| with_room(&before, &instance))
        .bench_local_refs(|incumbent| {
            happen(incumbent, &instance, event);
            incumbent.revise()
        });
}
