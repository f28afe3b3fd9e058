//! Any scenario: in safety mode no invariant is ever violated under any faults; in liveness mode the faults
//! end and everything completes. Failing scenarios are shrunk and printed.

use std::{fmt, time::Duration};

use keiro_core::SchedulerKind;
use keiro_link::{Buffer, LinkConfig, Loss, Reorder};
use keiro_sim::{
    Arrivals, Attack, Change, Dialogues, GatewayPair, Length, PathDirection, PathSpec, Processing,
    Reading, Receiver, Scenario, ScenarioEvent, SetUp, Side, StreamEnd, TimedEvent, Traffic,
};
use keiro_units::{Bandwidth, Probability};
use proptest::prelude::*;

const FAULTS_END: Duration = Duration::from_secs(3);

/// `PROPTEST_CASES` requests more cases than the few of an ordinary run.
fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    asked.and_then(|cases| cases.parse().ok()).unwrap_or(24)
}

fn probability(max: f64) -> impl Strategy<Value = Probability> {
    // Often none at all, because single faults are easier to find.
    prop_oneof![
        2 => Just(Probability::ZERO),
        1 => (0.0..max).prop_map(|p| Probability::new(p).unwrap()),
    ]
}

fn millis(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_millis)
}

fn link() -> impl Strategy<Value = LinkConfig> {
    let faults = (
        probability(0.3),
        probability(0.2),
        probability(0.1),
        probability(0.3),
    );
    (millis(0..100), millis(0..10), any::<bool>(), faults).prop_map(
        |(delay, jitter, jitter_overtakes, (loss, duplicate, corrupt, reorder))| LinkConfig {
            delay,
            jitter,
            jitter_overtakes,
            loss: Loss::Bernoulli(loss),
            duplicate,
            corrupt,
            reorder: Reorder {
                probability: reorder,
                extra_delay: Duration::from_millis(15),
            },
            buffer: Buffer::Packets(200),
            ..LinkConfig::default()
        },
    )
}

fn attack() -> impl Strategy<Value = Option<Attack>> {
    let p = || probability(0.2);
    let kinds = (p(), p(), p(), p(), p(), p(), p());
    let attack = kinds.prop_map(
        |(garbage, truncated, altered, replayed, reflected, stolen, foreign)| Attack {
            garbage,
            truncated,
            altered,
            replayed,
            reflected,
            stolen,
            foreign,
        },
    );
    prop::option::weighted(0.25, attack)
}

fn path() -> impl Strategy<Value = PathSpec> {
    (link(), link(), 2..50_u64, 1300..1501_u16, attack()).prop_map(
        |(forward, backward, mbit, mtu, attack)| {
            let rate = Bandwidth::from_mbit_per_second(mbit);
            let mut path = PathSpec::over(forward, rate);
            path.link.backward = backward;
            path.link.mtu = mtu;
            path.attack = attack;
            // Mostly correct, sometimes slower than the gateways are configured.
            path.with(|link| link.rate = Some(Bandwidth::from_mbit_per_second(mbit.min(20))))
        },
    )
}

fn side() -> impl Strategy<Value = Side> {
    prop_oneof![Just(Side::A), Just(Side::B)]
}

fn happening(paths: usize) -> impl Strategy<Value = ScenarioEvent> {
    let direction = prop_oneof![
        Just(PathDirection::Forward),
        Just(PathDirection::Backward),
        Just(PathDirection::Both)
    ];
    let change = prop_oneof![
        3 => Just(Change::Down),
        2 => Just(Change::Up),
        1 => millis(0..150).prop_map(Change::Delay),
        1 => (1..20_u64).prop_map(|mbit| Change::Rate(Some(Bandwidth::from_mbit_per_second(mbit)))),
        1 => probability(0.5).prop_map(|p| Change::Loss(Loss::Bernoulli(p))),
    ];
    prop_oneof![
        4 => (0..paths, direction, change)
            .prop_map(|(path, direction, change)| ScenarioEvent::Path { path, direction, change }),
        // Only A changes its address: with any protocol, two that do so at once lose each other permanently.
        1 => (0..paths).prop_map(|path| ScenarioEvent::Readdress { side: Side::A, path }),
        1 => (0..paths).prop_map(|path| ScenarioEvent::Rebind { side: Side::A, path }),
        1 => (0..paths).prop_map(|path| ScenarioEvent::Unbind { side: Side::A, path }),
        1 => (side(), any::<bool>(), millis(0..500))
            .prop_map(|(side, orderly, away)| ScenarioEvent::Restart { side, orderly, away }),
        1 => (side(), 0..5_usize, prop::collection::vec(0..paths, 0..=paths))
            .prop_map(|(side, app, paths)| ScenarioEvent::Assign { side, app, paths }),
    ]
}

fn traffic() -> impl Strategy<Value = Traffic> {
    let length = prop_oneof![
        Just(Length::Uniform(1, 200)),
        Just(Length::Uniform(1, 5000)),
        Just(Length::Uniform(20_000, 100_000)),
    ];
    (side(), 0..3_usize, 10..200_u64, length).prop_map(|(from, app, mean, length)| {
        let length = match (app, length) {
            (2, _) => Length::Uniform(8, 1200),
            (_, length) => length,
        };
        Traffic {
            from,
            app,
            made: Arrivals::Exponential {
                mean: Duration::from_millis(mean),
                duration: FAULTS_END,
            },
            length,
            start: Duration::ZERO,
        }
    })
}

fn reading() -> impl Strategy<Value = Reading> {
    prop_oneof![
        4 => Just(Reading::AtOnce),
        1 => (100_000..1_000_000_u64).prop_map(Reading::Slowly),
        1 => millis(0..2000).prop_map(Reading::After),
        1 => (0..50_000_u64).prop_map(Reading::UpTo),
    ]
}

fn dialogues() -> impl Strategy<Value = Dialogues> {
    let end = prop_oneof![
        4 => Just(StreamEnd::AfterResponse),
        2 => Just(StreamEnd::AfterRequest),
        // One that resets what it has just opened opens it again at the same moment, for ever.
        1 => millis(1..500).prop_map(StreamEnd::ClientResets),
        1 => millis(0..500).prop_map(StreamEnd::ServerResets),
        1 => Just(StreamEnd::Never),
    ];
    let bytes = || prop_oneof![1..300_u64, 300..20_000_u64, Just(60_000_u64)];
    let which = (side(), 3..5_usize, 1..5_u32, any::<bool>());
    let what = (1..300_u32, 1..10_u32, 1..4_u32, bytes(), bytes());
    (which, what, end, reading(), reading()).prop_map(
        |((from, app, clients, keeps_stream), what, end, client_reads, server_reads)| {
            let (interval, count, rounds, request, response) = what;
            let interval = Duration::from_millis(interval.into());
            let made = Arrivals::Every { interval, count };
            Dialogues {
                from,
                clients,
                keeps_stream,
                end,
                client_reads,
                server_reads,
                ..Dialogues::new(app, made, rounds, request, response)
            }
        },
    )
}

/// Prints a scenario with one line per part.
#[derive(Clone)]
struct Readable(Scenario);

impl fmt::Debug for Readable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{}\n", self.0)
    }
}

/// Two message applications, one of datagrams and two of streams over one to three paths.
fn scenario() -> impl Strategy<Value = Readable> {
    let paths = prop::collection::vec(path(), 1..4);
    paths
        .prop_flat_map(|paths| {
            let count = paths.len();
            let event =
                (millis(0..3000), happening(count)).prop_map(|(at, what)| TimedEvent { at, what });
            (
                Just(paths),
                (
                    prop::collection::vec(traffic(), 1..4),
                    prop::collection::vec(dialogues(), 0..4),
                ),
                prop::collection::vec(event, 0..8),
                (any::<bool>(), any::<bool>(), 1..65_usize, 0..300_u64),
                prop::option::of(millis(200..1000)),
                (
                    any::<bool>(),
                    any::<bool>(),
                    prop::option::weighted(0.25, millis(20..500)),
                    prop::option::weighted(0.25, millis(0..300)),
                    any::<u8>(),
                ),
            )
        })
        .prop_map(
            |(paths, traffic, events, switches, rekey_after, directions)| {
                let (skip_set_up, b_knows, segments_max, late_us) = switches;
                let (ipv6, fifo, lifetime, receiver_takes, spread) = directions;
                let mut scenario = Scenario::new(paths);
                scenario.ipv6 = ipv6;
                if skip_set_up {
                    scenario.set_up = SetUp::Skip;
                }
                scenario.b.knows_peer = b_knows;
                for gateway in [&mut scenario.a, &mut scenario.b] {
                    gateway.segments_max = segments_max;
                    gateway.processing = Processing {
                        timer_late_max: Duration::from_micros(late_us),
                        ..Processing::default()
                    };
                    if fifo {
                        gateway.scheduler = SchedulerKind::Fifo;
                    }
                    if let Some(wait) = receiver_takes {
                        gateway.receiver = Receiver::TakesAfter(wait);
                    }
                    if let Some(rekey_after) = rekey_after {
                        gateway.timing.rekey_after = rekey_after;
                    }
                }
                scenario.add_message_app(Some(Duration::from_millis(50)), &[0]);
                let second = scenario.add_message_app(None, &[]);
                scenario.apps[second].lifetime = lifetime;
                scenario.add_datagram_app(None, &[0]);
                scenario.add_stream_app(Some(Duration::from_millis(50)), &[0]);
                scenario.add_stream_app(None, &[]);
                for (index, app) in scenario.apps.iter_mut().enumerate() {
                    app.is_spread = spread & 1 << index != 0;
                }
                (scenario.traffic, scenario.dialogues) = traffic;
                scenario.events = events;
                Readable(scenario)
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        max_shrink_iters: 200,
        // Failing scenarios are printed completely, because a saved seed is invalid after any change of a
        // strategy.
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Faults never end: nothing needs to complete, but nothing may be wrong.
    #[test]
    fn nothing_wrong_whatever_happens(Readable(mut scenario) in scenario(), seed in any::<u64>()) {
        scenario.set_up = SetUp::Skip;
        let report = GatewayPair::new(&scenario, seed).run_for_measured(Duration::from_secs(4));
        prop_assert!(report.violations.is_empty(), "{}", report);
    }

    /// Faults end: everything completes.
    #[test]
    fn everything_completes_once_faults_end(Readable(mut scenario) in scenario(), seed in any::<u64>()) {
        scenario.add_event(FAULTS_END, ScenarioEvent::Heal);
        // Three kinds of messages and of dialogues may make 60 MB for 2 Mbit/s.
        scenario.patience = Duration::from_secs(400);
        match GatewayPair::new(&scenario, seed).try_run() {
            Ok(report) => {
                prop_assert!(report.violations.is_empty(), "{}", report);
                prop_assert!(report.incomplete().next().is_none(), "{}", report);
                prop_assert!(report.incomplete_streams().is_empty(), "{}", report);
            }
            Err(failure) => prop_assert!(false, "{}\n{}", failure.what, failure.report),
        }
    }

    /// The same scenario and seed give an identical run.
    #[test]
    fn same_seed_same_hash(Readable(mut scenario) in scenario(), seed in any::<u64>()) {
        scenario.set_up = SetUp::Skip;
        let run = |seed| {
            let report = GatewayPair::new(&scenario, seed).run_for_measured(Duration::from_secs(1));
            (report.trace_hash, report.messages, report.streams, report.counts)
        };
        let first = run(seed);
        prop_assert_eq!(&first, &run(seed));
        prop_assert_ne!(first.0, run(seed.wrapping_add(1)).0);
    }
}
