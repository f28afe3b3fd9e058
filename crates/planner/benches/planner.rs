//! The planners at 10 paths and 100 applications, a plan in force at 16 paths and 10,000, and the
//! forecasts they can be driven by.
//!
//! Run with `cargo bench -p keiro-planner`. Before the times it prints what revisions are worth; what plans from
//! scratch are worth, `benches/planner-bound` says. All instances are drawn with seeds, so the plans are the same on
//! every machine.
//!
//! `cargo bench -p keiro-planner --bench planner -- cpu` prints instead what the exact plan and the plan
//! in force take of the processor, and of a fixed loop's time beside it: for machines that others
//! use too.

mod instance;

use std::time::Duration;

use divan::Bencher;
use keiro_planner::{
    delay::{AppSpec, Equation3, PathSpec},
    paper,
    plan::{
        self, Budget, Candidate, Incumbent, MoveCost, TargetSearch,
        incumbent::{Allowed, AppId, PathId, Revision, Settings},
    },
    queueing::{Gateway, PathEstimate, Resolution, Scheduler, Traffic, WireFormat},
};
use keiro_units::{Bandwidth, ByteCount};
use nix::time::{ClockId, clock_gettime};

use instance::{Instance, KINDS, Kind};

const FEW_PATHS: usize = 4;
const FEW_APPS: usize = 30;

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
        worth_of_revisions();
    }
    divan::main();
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
