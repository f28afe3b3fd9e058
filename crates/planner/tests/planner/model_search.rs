//! Plans by eq. 3 against the best there is by the forecast, on drawn problems small enough to look
//! at every assignment.

use std::{collections::BTreeMap, time::Duration};

use keiro_planner::{
    delay::{AppSpec, Delay, Equation3, PathSpec, Tolerance},
    plan::{
        Budget, DelayModel, ModelScore, ModelSearch, Order, Problem, WireLoadProblem, exact, frugal,
    },
    queueing::{Gateway, Resolution, Scheduler, WireFormat},
};
use keiro_units::{Bandwidth, ByteCount};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

const SEED: u64 = 20;
const PROBLEMS: usize = 500;
/// So coarse that every assignment can be looked at; the same for plan and best.
const RESOLUTION: Resolution = Resolution::new(64);

struct Drawn {
    paths: Vec<PathSpec>,
    apps: Vec<AppSpec>,
    gateway: Gateway,
}

/// What one way of planning came to.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Problems in which more are unmet than need be.
    worse: usize,
    /// By how many, in all.
    unmet_more: usize,
}

fn wire() -> WireFormat {
    WireFormat::new(ByteCount::new(1428), ByteCount::new(72)).expect("a packet has room")
}

/// 2 to 4 paths, 3 to 8 applications, loads of 0.3 to 0.9 on the wire; latency targets are 1 to 4 times
/// what an idle path takes, one path of them for each application.
fn drawn(number: usize) -> Drawn {
    let mut random = ChaCha12Rng::seed_from_u64(SEED);
    random.set_stream(number as u64);
    let mut unit = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let paths: Vec<PathSpec> = (0..2 + (unit() * 3.0) as usize)
        .map(|_| PathSpec {
            bandwidth: Bandwidth::from_bits_per_second((10e6 * 20_f64.powf(unit())) as u64),
            delay: Duration::from_secs_f64(1e-3 * 100_f64.powf(unit())),
        })
        .collect();
    let rates: Vec<f64> = paths
        .iter()
        .map(|path| path.bandwidth.as_bits_per_second() as f64)
        .collect();
    let count = 3 + (unit() * 6.0) as usize;
    let load = 0.3 + 0.6 * unit();
    let weights: Vec<f64> = (0..count).map(|_| 10_f64.powf(unit())).collect();
    let whole: f64 = weights.iter().sum();
    let apps = weights
        .iter()
        .map(|weight| {
            let length = ByteCount::new((1000.0 * 1000_f64.powf(unit())) as u64);
            let bits = wire().wire_length(length).get() as f64 * 8.0;
            let rate = load * rates.iter().sum::<f64>() * weight / whole;
            let path = (unit() * paths.len() as f64) as usize;
            let idle = paths[path].delay.as_secs_f64() + bits / rates[path];
            AppSpec {
                length,
                interval: Duration::from_secs_f64(bits / rate),
                latency_target: Some(Duration::from_secs_f64(idle * 4_f64.powf(unit()))),
            }
        })
        .collect();
    let scheduler = match number % 2 {
        0 => Scheduler::Fifo,
        _ => Scheduler::Deadline,
    };
    Drawn {
        paths,
        apps,
        gateway: Gateway {
            ahead: Duration::from_millis(1),
            resolution: RESOLUTION,
            ..Gateway::new(scheduler, wire())
        },
    }
}

impl Drawn {
    fn score(&self, path: usize, members: &[usize]) -> ModelScore {
        let mut delays = Vec::new();
        self.gateway
            .delays(&self.paths[path], &self.apps, members, &mut delays);
        let of = |(app, delay): (&usize, &Delay)| {
            let latency_target = self.apps[*app].latency_target;
            let mean = delay.finite();
            ModelScore {
                unmet: usize::from(!delay.meets(latency_target, Tolerance::STRICT)),
                overloaded: usize::from(mean.is_none()),
                unmet_at_p99: 0,
                lateness: mean
                    .zip(latency_target)
                    .map_or(Duration::ZERO, |(mean, latency_target)| {
                        mean.saturating_sub(latency_target)
                    }),
                delay: mean.unwrap_or_default(),
            }
        };
        let scores = members.iter().zip(&delays).map(of);
        scores.fold(ModelScore::default(), ModelScore::saturating_add)
    }

    fn unmet(&self, assignment: &[usize]) -> usize {
        let on = |path: usize| (0..assignment.len()).filter(move |app| assignment[*app] == path);
        (0..self.paths.len())
            .map(|path| self.score(path, &on(path).collect::<Vec<_>>()).unmet)
            .sum()
    }

    /// The fewest unmet of all assignments.
    fn least_unmet(&self) -> usize {
        let sets = 1_usize << self.apps.len();
        let members = |set: usize| (0..self.apps.len()).filter(move |app| set >> app & 1 == 1);
        // Of every set of applications, the fewest unmet on the paths so far.
        let mut least: Vec<Option<usize>> = vec![None; sets];
        least[0] = Some(0);
        for path in 0..self.paths.len() {
            let unmet: Vec<usize> = (0..sets)
                .map(|set| self.score(path, &members(set).collect::<Vec<_>>()).unmet)
                .collect();
            least = (0..sets)
                .map(|set| {
                    let mut part = set;
                    let mut best = None;
                    loop {
                        let with = least[set & !part].map(|before| before + unmet[part]);
                        best = [best, with].into_iter().flatten().min();
                        if part == 0 {
                            return best;
                        }
                        part = (part - 1) & set;
                    }
                })
                .collect();
        }
        least[sets - 1].expect("every application can be placed")
    }

    fn planned(&self, paths: &[PathSpec], apps: &[AppSpec], is_frugal: bool) -> Vec<usize> {
        let equation = Equation3::default();
        let problem = Problem::new(paths, apps, &equation).expect("there are paths");
        match is_frugal {
            true => frugal(&problem, Budget::default()).assignment,
            false => {
                let problem = problem.with_order(Order::DelayFirst);
                exact(&problem, Budget::default()).plan.assignment
            }
        }
    }
}

/// What is wanted: as few unmet as need be in all but one in a hundred.
#[test]
fn a_reviewed_plan_leaves_hardly_ever_more_unmet_than_the_best_by_the_forecast() {
    let mut tallies: BTreeMap<(bool, &str), Tally> = BTreeMap::new();
    let mut work_most = 0;
    for number in 0..PROBLEMS {
        let drawn = drawn(number);
        let least = drawn.least_unmet();
        let formats = vec![wire(); drawn.paths.len()];
        let on_wire = WireLoadProblem::new(&drawn.paths, &drawn.apps, &formats);
        let may = vec![vec![true; drawn.paths.len()]; drawn.apps.len()];
        for is_frugal in [true, false] {
            let payload = drawn.planned(&drawn.paths, &drawn.apps, is_frugal);
            let wire = drawn.planned(&on_wire.paths, &on_wire.apps, is_frugal);
            let mut model_search =
                ModelSearch::new(&may, 15_000, |path, members| drawn.score(path, members));
            let mended = model_search.improve(&[&wire], &wire);
            work_most = work_most.max(model_search.work());
            let reviewed = mended.map_or(wire.clone(), |mended| mended.assignment);
            for (how, plan) in [("payload", payload), ("wire", wire), ("reviewed", reviewed)] {
                let more = drawn.unmet(&plan) - least;
                let tally = tallies.entry((is_frugal, how)).or_default();
                tally.worse += usize::from(more > 0);
                tally.unmet_more += more;
            }
        }
    }
    println!("of {PROBLEMS}, seed {SEED}: {tallies:#?}, most work {work_most}");
    for is_frugal in [true, false] {
        let worse = tallies[&(is_frugal, "reviewed")].worse;
        assert!(worse * 100 <= PROBLEMS, "seed {SEED}: {tallies:#?}");
    }
}

/// Two applications of 45 % each and one of 4 on two paths: which of them share a path decides.
fn three_on_two(set: &[usize]) -> ModelScore {
    let load: usize = set.iter().map(|app| [45, 45, 4][*app]).sum();
    let late = load > 50;
    ModelScore {
        unmet: if late { set.len() } else { 0 },
        lateness: Duration::from_millis(if late { load as u64 } else { 0 }),
        ..ModelScore::default()
    }
}

#[test]
fn application_that_need_not_move_stays() {
    let may = vec![vec![true; 2]; 3];
    let mut model_search = ModelSearch::new(&may, 1_000, |_, members| three_on_two(members));
    let mended = model_search
        .improve(&[&[0, 0, 0]], &[0, 0, 0])
        .expect("there is a better one");
    assert_eq!(mended.score.unmet, 0);
    let moved = mended.assignment.iter().filter(|path| **path == 1).count();
    assert_eq!(moved, 1, "{mended:?}");
    assert_eq!(model_search.improve(&[&[0, 1, 1]], &[0, 1, 1]), None);
}

/// As [`three_on_two`], but who is crowded is late in one message of a hundred only; on the second
/// path the smallest is late on average.
fn tails_on_two(path: usize, set: &[usize]) -> ModelScore {
    let crowded = three_on_two(set);
    ModelScore {
        unmet: usize::from(path == 1 && set.contains(&2)),
        unmet_at_p99: crowded.unmet,
        delay: crowded.lateness,
        ..ModelScore::default()
    }
}

#[test]
fn the_99th_percentile_decides_where_all_are_met_on_average() {
    let may = vec![vec![true; 2]; 3];
    let mut model_search = ModelSearch::new(&may, 1_000, tails_on_two);
    let mended = model_search
        .improve(&[&[0, 0, 0]], &[0, 0, 0])
        .expect("there is a better one");
    assert!(mended.score.all_met());
    let moved = mended.assignment.iter().filter(|path| **path == 1).count();
    assert!(moved == 1 && mended.assignment[2] == 0, "{mended:?}");
    assert_eq!(
        model_search.improve(&[&mended.assignment], &[0, 0, 0]),
        None
    );
}

#[test]
fn no_application_is_made_unmet_for_99th_percentiles() {
    // The smallest may not be on the first path, where all three are to be.
    let may = vec![vec![true, false], vec![true, false], vec![true, true]];
    let mut model_search = ModelSearch::new(&may, 1_000, tails_on_two);
    assert_eq!(model_search.improve(&[&[0, 0, 0]], &[0, 0, 0]), None);
    // One of 45 % disturbs no other.
    let few = vec![vec![true, false], vec![false, true], vec![true, true]];
    let mut model_search = ModelSearch::new(&few, 1_000, tails_on_two);
    let mended = model_search
        .improve(&[&[0, 1, 1]], &[0, 1, 1])
        .expect("better");
    assert_eq!(mended.assignment, [0, 1, 0]);
}

#[test]
fn no_app_goes_where_it_may_not() {
    let may = vec![vec![true, false], vec![true, false], vec![true, true]];
    let mut model_search = ModelSearch::new(&may, 1_000, |_, members| three_on_two(members));
    let mended = model_search
        .improve(&[&[0, 0, 0]], &[0, 0, 0])
        .expect("one is met elsewhere");
    assert_eq!(mended.assignment, [0, 0, 1]);
    assert_eq!(mended.score.unmet, 2);
}

#[test]
fn without_work_the_plan_stays() {
    let may = vec![vec![true; 2]; 3];
    let mut model_search = ModelSearch::new(&may, 0, |_, members| three_on_two(members));
    assert_eq!(model_search.improve(&[&[0, 0, 0]], &[0, 0, 0]), None);
    assert_eq!(model_search.score(&[0, 0, 0]).unmet, 3);
}

#[test]
fn what_was_found_before_the_work_was_spent_is_taken() {
    const APPS: usize = 40;
    let may = vec![vec![true; 2]; APPS];
    // The first of them is unmet on the first path, and all others are met anywhere.
    let opinion = |path: usize, members: &[usize]| ModelScore {
        unmet: usize::from(path == 0 && members.first() == Some(&0)),
        ..ModelScore::default()
    };
    let start = vec![0; APPS];
    // The plan itself, every application alone, and some sets of all.
    let work = 6 * (APPS * APPS) as u64;
    let mut model_search = ModelSearch::new(&may, work, opinion);
    let mended = model_search.improve(&[&start], &start).expect("one moves");
    let moved: Vec<usize> = (0..APPS)
        .filter(|app| mended.assignment[*app] == 1)
        .collect();
    assert_eq!(moved, [0]);
}

#[test]
fn a_search_that_finds_nothing_ends() {
    const APPS: usize = 40;
    const WORK: u64 = 20_000;
    let may = vec![vec![true; 4]; APPS];
    // An application that shares a path with more than about three others is unmet; four paths cannot take 40.
    let mut asked = 0;
    let mut model_search = ModelSearch::new(&may, WORK, |path, members| {
        asked += 1;
        let load: usize = members.iter().map(|app| 1 + (app * 7 + path) % 3).sum();
        ModelScore {
            unmet: if load > 8 { members.len() } else { 0 },
            lateness: Duration::from_millis(load as u64),
            ..ModelScore::default()
        }
    });
    let start: Vec<usize> = (0..APPS).map(|app| app % 4).collect();
    let mended = model_search.improve(&[&start], &start);
    // Beyond the work allowed: the plan itself, every application alone, and the last that was asked.
    let alone = (APPS * 4) as u64;
    let most = WORK + 2 * (APPS * APPS) as u64 + alone;
    assert!(model_search.work() <= most, "{}", model_search.work());
    assert!(asked > 100, "{asked}");
    // Whether anything better was found is the search's luck; it is never worse.
    assert!(mended.is_none_or(|mended| mended.score.unmet < APPS));
}

#[test]
fn fewer_missed_percentiles_do_not_justify_more_lateness() {
    let score = |unmet_at_p99, late| ModelScore {
        unmet: 1,
        lateness: Duration::from_millis(late),
        unmet_at_p99,
        ..ModelScore::default()
    };
    assert!(score(0, 5).beats(&score(1, 5)));
    assert!(!score(0, 6).beats(&score(1, 5)));
}

#[test]
fn applications_leave_their_preferred_path_only_if_needed() {
    // A path has room for two of three applications.
    let model = |_: usize, members: &[usize]| ModelScore {
        unmet: members.len().saturating_sub(2),
        ..ModelScore::default()
    };
    let allowed = vec![vec![true; 2]; 3];
    let mut model_search = ModelSearch::new(&allowed, 1_000, model);
    let found = model_search.improve(&[&[0, 0, 0]], &[0, 0, 1]).unwrap();
    assert_eq!(found.assignment, [0, 0, 1]);
}
