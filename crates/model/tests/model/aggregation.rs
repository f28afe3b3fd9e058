//! The controllers of aggregation in closed loops: what they must never do, and where they come to rest.

use std::time::Duration;

use keiro_model::aggregation::{
    BURST_MAX, Cause, Controller, ControllerKind, Decision, DeliveryCounts, Limits, Observation,
    period,
    plant::{Conditions, Plant},
};
use keiro_units::{Bandwidth, Instant};

const RTT: Duration = Duration::from_millis(1);
const WIDE: Bandwidth = Bandwidth::from_mbit_per_second(100);
const SEEDS: [u64; 3] = [1, 2, 3];

fn mbit(mbit: u64) -> Bandwidth {
    Bandwidth::from_mbit_per_second(mbit)
}

/// A controller and the plant that it acts on.
struct Loop {
    controller: Box<dyn Controller>,
    plant: Plant,
    now: Instant,
    /// Of what was passed since the last [`Loop::forget`].
    passed: Passed,
}

#[derive(Clone, Debug, Default)]
struct Passed {
    seconds: f64,
    aggregates: DeliveryCounts,
    overflows: u64,
    wait_seconds: f64,
    interval_seconds: f64,
    sent_bits: f64,
    changes: Vec<Decision>,
}

impl Loop {
    fn new(kind: ControllerKind, conditions: Conditions, seed: u64) -> Self {
        Self {
            controller: kind
                .controller(Limits::default(), conditions.bandwidth)
                .unwrap(),
            plant: Plant::new(conditions, seed),
            now: Instant::ZERO,
            passed: Passed::default(),
        }
    }

    fn run(&mut self, seconds: u64) -> Passed {
        self.passed = Passed::default();
        let until = self.now + Duration::from_secs(seconds);
        while self.now < until {
            let parameters = self.controller.parameters();
            let length = period(parameters.interval(), RTT);
            let outcome = self.plant.pass(&parameters, length);
            self.now += length;
            let (passed, weight) = (&mut self.passed, length.as_secs_f64());
            passed.seconds += weight;
            passed.aggregates.add(outcome.seen.aggregates);
            passed.overflows += outcome.seen.socket_overflows;
            passed.wait_seconds += outcome.wait.as_secs_f64() * weight;
            passed.interval_seconds += parameters.interval().as_secs_f64() * weight;
            passed.sent_bits += outcome.seen.sent.as_bits_per_second() as f64 * weight;
            let decision = self.controller.on_period(self.now, &outcome.seen).unwrap();
            assert!(decision.parameters.rate() <= outcome.seen.bandwidth);
            if decision.is_change() {
                passed.changes.push(decision);
            }
        }
        self.passed.clone()
    }
}

impl Passed {
    fn wait_ms(&self) -> f64 {
        self.wait_seconds / self.seconds * 1e3
    }

    fn overflows_per_second(&self) -> f64 {
        self.overflows as f64 / self.seconds
    }

    fn sent_mbit(&self) -> f64 {
        self.sent_bits / self.seconds / 1e6
    }
}

fn us(interval: Duration) -> u128 {
    interval.as_micros()
}

#[test]
fn in_calm_every_controller_but_fixed_comes_to_the_shortest_interval_and_rests() {
    for kind in [ControllerKind::Table2, ControllerKind::Adaptive] {
        for seed in SEEDS {
            let mut held = Loop::new(kind, Conditions::default(), seed);
            held.run(10);
            let rest = held.run(60);
            assert_eq!(rest.changes, [], "{kind} {seed}");
            let parameters = held.controller.parameters();
            assert_eq!(us(parameters.interval()), 500, "{kind} {parameters}");
            assert!(rest.wait_ms() < 0.26, "{kind} {}", rest.wait_ms());
        }
    }
}

#[test]
fn an_overflowing_receiver_is_relieved_and_its_recovery_used() {
    let short = Conditions {
        receiver_per_second: Some(1200.0),
        ..Conditions::default()
    };
    for kind in [ControllerKind::Table2, ControllerKind::Adaptive] {
        for seed in SEEDS {
            let mut held = Loop::new(kind, Conditions::default(), seed);
            held.run(20);
            held.plant.conditions = short;
            held.run(10);
            let trouble = held.run(30);
            // Without control 800 per second are lost.
            assert!(trouble.overflows_per_second() < 60.0, "{kind} {trouble:?}");
            held.plant.conditions = Conditions::default();
            held.run(15);
            let after = held.controller.parameters();
            assert_eq!(us(after.interval()), 500, "{kind} {after}");
        }
    }
}

#[test]
fn a_receiver_at_its_limit_is_not_pushed_over_it_again_and_again() {
    let conditions = Conditions {
        receiver_per_second: Some(1200.0),
        ..Conditions::default()
    };
    for seed in SEEDS {
        let mut adaptive = Loop::new(ControllerKind::Adaptive, conditions, seed);
        let mut table2 = Loop::new(ControllerKind::Table2, conditions, seed);
        adaptive.run(30);
        table2.run(30);
        let (adaptive, table2) = (adaptive.run(100), table2.run(100));
        assert!(adaptive.changes.len() <= 22, "{:?}", adaptive.changes.len());
        assert!(table2.changes.len() > 10 * adaptive.changes.len());
        assert!(adaptive.overflows_per_second() < 5.0, "{adaptive:?}");
        // Capacity is kept, so nothing waits for long.
        assert!(adaptive.wait_ms() < 1.0, "{}", adaptive.wait_ms());
    }
}

#[test]
fn what_a_bad_line_loses_is_brought_below_the_target_where_copies_can() {
    for (loss, copies) in [(0.01, 2), (0.05, 3), (0.09, 3)] {
        for seed in SEEDS {
            let conditions = Conditions {
                line_loss: loss,
                ..Conditions::default()
            };
            let mut held = Loop::new(ControllerKind::Adaptive, Conditions::default(), seed);
            held.run(20);
            assert_eq!(held.controller.parameters().copies(), 1);
            held.plant.conditions = conditions;
            held.run(5);
            let bad = held.run(60);
            assert_eq!(
                held.controller.parameters().copies(),
                copies,
                "{loss} {seed}"
            );
            let target = Limits::default().thresholds().loss_target.get();
            assert!(bad.aggregates.loss() <= target, "{loss} {seed} {bad:?}");
            held.plant.conditions = Conditions::default();
            held.run(40);
            assert_eq!(held.controller.parameters().copies(), 1, "{loss} {seed}");
        }
    }
}

#[test]
fn copies_that_do_not_help_are_tried_less_and_less_often() {
    for seed in SEEDS {
        let conditions = Conditions {
            line_loss: 0.02,
            line_loss_together: 0.98,
            ..Conditions::default()
        };
        let mut held = Loop::new(ControllerKind::Adaptive, conditions, seed);
        let mut tries = || {
            let changes = held.run(90).changes;
            let tried = |one: &&Decision| one.before.copies() == 1 && one.parameters.copies() > 1;
            changes.iter().filter(tried).count()
        };
        let (soon, later) = (tries(), tries());
        assert!((3..=7).contains(&soon), "{seed} {soon}");
        assert!((1..=4).contains(&later), "{seed} {later}");
    }
}

#[test]
fn the_onset_of_loss_is_answered_within_a_second() {
    for seed in SEEDS {
        let mut held = Loop::new(ControllerKind::Adaptive, Conditions::default(), seed);
        held.run(20);
        held.plant.conditions.line_loss = 0.05;
        let first = held.run(1);
        assert!(
            held.controller.parameters().copies() >= 2,
            "{seed} {first:?}"
        );
        let cause = first.changes[0].cause;
        assert!(matches!(cause, Cause::LineLoss { .. }), "{seed} {cause}");
    }
}

#[test]
fn copies_go_when_they_are_what_congests() {
    // 5 % of the line call for three copies, 18 Mbit/s; there is room for two.
    for queue_is_seen in [true, false] {
        for seed in SEEDS {
            let conditions = Conditions {
                line_loss: 0.05,
                available: mbit(14),
                congestion_together: queue_is_seen,
                queue_is_seen,
                ..Conditions::default()
            };
            let mut held = Loop::new(ControllerKind::Adaptive, conditions, seed);
            held.run(60);
            let rest = held.run(60);
            let loss = rest.aggregates.loss();
            assert!(
                loss < 0.006,
                "{queue_is_seen} {seed} {loss} {:?}",
                rest.changes
            );
            assert!(rest.sent_mbit() < 13.0, "{} {rest:?}", rest.sent_mbit());
            assert!(rest.wait_ms() < 0.5, "{queue_is_seen} {}", rest.wait_ms());
        }
    }
}

#[test]
fn congestion_that_leaves_less_than_is_offered_holds_the_rate_and_lets_it_up_afterwards() {
    for seed in SEEDS {
        let mut held = Loop::new(ControllerKind::Adaptive, Conditions::default(), seed);
        held.run(20);
        held.plant.conditions.available = mbit(5);
        held.run(10);
        let trouble = held.run(40);
        assert!(trouble.aggregates.loss() < 0.01, "{seed} {trouble:?}");
        assert!(trouble.sent_mbit() < 5.0 && trouble.sent_mbit() > 4.2);
        held.plant.conditions = Conditions::default();
        held.run(20);
        let after = held.run(10);
        assert!(after.wait_ms() < 0.3, "{seed} {}", after.wait_ms());
        assert_eq!(after.aggregates.lost, 0);
    }
}

#[test]
fn without_control_and_by_table_2_congestion_costs_more() {
    let conditions = Conditions {
        available: mbit(8),
        ..Conditions::default()
    };
    for seed in SEEDS {
        let [fixed, table2, adaptive] = [
            ControllerKind::None,
            ControllerKind::Table2,
            ControllerKind::Adaptive,
        ]
        .map(|kind| {
            let mut held = Loop::new(kind, Conditions::default(), seed);
            held.run(20);
            held.plant.conditions = conditions;
            held.run(60).aggregates.loss()
        });
        assert!(fixed > 0.2, "{fixed}");
        assert!(table2 < fixed && table2 > 0.005, "{table2}");
        assert!(adaptive < 0.001, "{adaptive}");
    }
}

#[test]
fn where_some_copies_are_lost_together_n_rests() {
    for (line_loss, line_moments, copies) in [(0.01, 0.01, 2), (0.03, 0.0007, 3), (0.05, 0.01, 2)] {
        let conditions = Conditions {
            line_loss,
            line_moments,
            ..Conditions::default()
        };
        for seed in SEEDS {
            let mut held = Loop::new(ControllerKind::Adaptive, conditions, seed);
            held.run(20);
            let passed = held.run(100);
            // Doubts in the copies, which come and go, and are further apart each time.
            let doubts = passed
                .changes
                .iter()
                .filter(|change| matches!(change.cause, Cause::Doubt { .. }));
            let doubts = doubts.count();
            assert!(doubts <= 4, "{doubts}");
            let changes = passed.changes.len();
            assert!(changes <= 2 * doubts + 2, "{:?}", passed.changes);
            assert_eq!(held.controller.parameters().copies(), copies);
        }
    }
}

#[test]
fn copies_give_way_to_what_is_to_be_carried() {
    // Twice what is offered is more than the bandwidth.
    let conditions = Conditions {
        line_loss: 0.03,
        bandwidth: mbit(10),
        ..Conditions::default()
    };
    let mut held = Loop::new(ControllerKind::Adaptive, conditions, 1);
    let passed = held.run(20);
    assert_eq!(held.controller.parameters().copies(), 1);
    let crowded = |decision: &Decision| matches!(decision.cause, Cause::Crowded { .. });
    assert!(passed.changes.iter().any(crowded), "{:?}", passed.changes);
    let rest = held.run(20);
    assert!(rest.wait_ms() < 1.0, "{}", rest.wait_ms());
}

#[test]
fn overflows_by_others_are_answered_by_copies_not_by_waiting() {
    let conditions = Conditions {
        receiver_loss: 0.02,
        others_overflows_per_second: 2000.0,
        ..Conditions::default()
    };
    for seed in SEEDS {
        let mut held = Loop::new(ControllerKind::Adaptive, Conditions::default(), seed);
        held.run(20);
        held.plant.conditions = conditions;
        held.run(10);
        let trouble = held.run(60);
        assert!(trouble.wait_ms() < 0.3, "{seed} {}", trouble.wait_ms());
        assert!(trouble.aggregates.loss() < 0.001, "{seed} {trouble:?}");
        assert_eq!(held.controller.parameters().copies(), 2);
        // Now it is ours.
        held.plant.conditions = Conditions {
            receiver_per_second: Some(1200.0),
            ..Conditions::default()
        };
        held.run(60);
        let ours = held.run(30);
        assert!(ours.overflows_per_second() < 40.0, "{seed} {ours:?}");
    }
}

#[test]
fn what_bursts_taught_of_copies_is_not_held_against_them_on_a_bad_line() {
    let mut controller = ControllerKind::Adaptive
        .controller(Limits::default(), WIDE)
        .unwrap();
    let mut now = Instant::ZERO;
    // So many of a hundred aggregates lose a copy, or all their copies.
    let mut run = |seconds: u64, lossy_aggregates: u64, all_copies: bool| {
        for _ in 0..10 * seconds {
            now += Duration::from_millis(100);
            let copies = u64::from(controller.parameters().copies());
            let (copies_lost, aggregates_lost) = match all_copies || copies == 1 {
                true => (lossy_aggregates * copies, lossy_aggregates),
                false => (lossy_aggregates, 0),
            };
            let seen = Observation {
                aggregates: DeliveryCounts {
                    sent: 100,
                    lost: aggregates_lost,
                },
                copies: DeliveryCounts {
                    sent: 100 * copies,
                    lost: copies_lost,
                },
                ..lossy(None, None)
            };
            controller.on_period(now, &seen).unwrap();
        }
        controller.parameters().copies()
    };
    assert_eq!(run(5, 5, true), 1);
    assert_eq!(run(5, 0, true), 1);
    assert!(run(1, 5, false) > 1);
}

/// A period in which the receiver's system dropped so many packets, and so many copies were lost.
fn dropped(system: u64, lost: u64) -> Observation {
    Observation {
        system_overflows: system,
        copies: DeliveryCounts { sent: 200, lost },
        ..lossy(None, None)
    }
}

#[test]
fn a_system_that_drops_many_times_what_ours_can_be_is_not_sent_less() {
    let mut now = Instant::ZERO;
    for (system, lost, longer) in [
        (350, 2, false),
        (8, 2, true),
        (20, 20, true),
        // A tenth and more of ours: the others may be peers.
        (350, 40, true),
    ] {
        let mut controller = ControllerKind::Adaptive
            .controller(Limits::default(), WIDE)
            .unwrap();
        let before = controller.parameters().interval();
        for period in 0..20 {
            now += Duration::from_millis(50);
            // Every second period, as bursts do.
            let seen = match period % 2 {
                0 => dropped(system, lost),
                _ => dropped(0, 0),
            };
            let decision = controller.on_period(now, &seen).unwrap();
            let is_longer = decision.parameters.interval() > before;
            assert!(longer || !is_longer, "{system} {lost}: {}", decision.cause);
            if period == 0 {
                assert_eq!(is_longer, longer, "{system} {lost}: {}", decision.cause);
            }
        }
    }
}

#[test]
fn a_relief_that_does_not_help_is_taken_back_and_not_tried_again_at_once() {
    let mut controller = ControllerKind::Adaptive
        .controller(Limits::default(), WIDE)
        .unwrap();
    let before = controller.parameters().interval();
    let mut now = Instant::ZERO;
    // The receiver's system drops 200 packets a second, however few aggregates it is given.
    let mut decisions = Vec::new();
    for _ in 0..20 {
        now += Duration::from_millis(100);
        decisions.push(controller.on_period(now, &dropped(20, 20)).unwrap());
    }
    assert!(
        matches!(decisions[0].cause, Cause::Overflows { .. })
            && decisions[0].parameters.interval() > before,
        "{}",
        decisions[0]
    );
    let taken_back = decisions
        .iter()
        .position(|decision| matches!(decision.cause, Cause::OverflowsStay { .. }));
    // Two periods show whether it has helped.
    assert_eq!(taken_back, Some(2), "{}", decisions[2]);
    for decision in &decisions[2..] {
        assert!(decision.parameters.interval() <= before, "{decision}");
    }
}

#[test]
fn what_the_receivers_socket_drops_is_not_taken_for_loss_of_the_line() {
    let mut controller = ControllerKind::Adaptive
        .controller(Limits::default(), WIDE)
        .unwrap();
    let mut now = Instant::ZERO;
    // 20 drops a second, too few for relief, are all that is missed of the copies.
    for _ in 0..600 {
        now += Duration::from_millis(100);
        let copies = controller.parameters().copies();
        let seen = Observation {
            socket_overflows: 2,
            aggregates: DeliveryCounts {
                sent: 100,
                lost: if copies == 1 { 2 } else { 0 },
            },
            copies: DeliveryCounts {
                sent: 100 * u64::from(copies),
                lost: 2,
            },
            ..lossy(None, None)
        };
        controller.on_period(now, &seen).unwrap();
    }
    assert_eq!(controller.parameters().copies(), 1);
}

/// A period of a tenth of a second in which a fifth of two copies each was lost, each by itself.
fn lossy(spread: Option<f64>, queueing: Option<Duration>) -> Observation {
    Observation {
        period: Duration::from_millis(100),
        aggregates: DeliveryCounts { sent: 100, lost: 4 },
        copies: DeliveryCounts {
            sent: 200,
            lost: 40,
        },
        bandwidth: WIDE,
        sent: mbit(11),
        offered: Bandwidth::from_bits_per_second(5_500_000),
        queueing,
        spread,
        ..Observation::default()
    }
}

#[test]
fn the_same_loss_is_congestion_with_a_queue_and_the_lines_without() {
    let ms = Duration::from_millis;
    let cases = [
        (Some(2.0), None, true),
        (None, Some(ms(10)), true),
        (Some(1.0), Some(ms(10)), true),
        (Some(2.0), Some(ms(0)), true),
        (Some(1.0), Some(ms(1)), false),
        (None, None, false),
    ];
    for (spread, queueing, congested) in cases {
        let mut controller = ControllerKind::Adaptive
            .controller(Limits::default(), WIDE)
            .unwrap();
        let seen = lossy(spread, queueing);
        let decision = controller
            .on_period(Instant::ZERO + ms(100), &seen)
            .unwrap();
        let (copies, cause) = (decision.parameters.copies(), decision.cause);
        if congested {
            assert!(matches!(cause, Cause::Congestion { .. }), "{decision}");
            assert_eq!(copies, 1, "{decision}");
        } else {
            assert!(matches!(cause, Cause::LineLoss { .. }), "{decision}");
            assert_eq!(copies, 3, "{decision}");
        }
    }
}

#[test]
fn what_was_sent_before_an_answer_to_congestion_does_not_bring_the_next() {
    let queued = |copies_sent: u64, lost: u64| Observation {
        copies: DeliveryCounts {
            sent: copies_sent,
            lost,
        },
        ..lossy(None, Some(BURST_MAX * 100))
    };
    let mut controller = ControllerKind::Adaptive
        .controller(Limits::default(), WIDE)
        .unwrap();
    let ms = |ms: u64| Instant::ZERO + Duration::from_millis(ms);
    let first = controller.on_period(ms(100), &queued(200, 60)).unwrap();
    assert!(matches!(first.cause, Cause::Congestion { .. }), "{first:?}");
    assert_eq!(first.parameters.copies(), 1);
    // 200 ms of queue and a period of 100 ms.
    for at in [200, 300] {
        let next = controller.on_period(ms(at), &queued(100, 30)).unwrap();
        assert_eq!(next.before, next.parameters, "{at} ms: {}", next.cause);
    }
    let later = controller.on_period(ms(400), &queued(100, 30)).unwrap();
    assert!(later.parameters.rate() < mbit(10), "{later:?}");
}

#[test]
fn a_relieved_receiver_gets_as_much_in_fewer_aggregates() {
    let mut controller = ControllerKind::Adaptive
        .controller(Limits::default(), WIDE)
        .unwrap();
    let before = controller.parameters();
    let seen = Observation {
        period: Duration::from_millis(50),
        socket_overflows: 100,
        bandwidth: WIDE,
        ..Observation::default()
    };
    let decision = controller.on_period(Instant::ZERO, &seen).unwrap();
    let after = decision.parameters;
    assert!(matches!(decision.cause, Cause::Overflows { .. }));
    assert!(after.aggregates_per_second() < before.aggregates_per_second());
    // S is at its maximum, or as large as the longer interval allows.
    assert!(after.size() > before.size(), "{decision}");
    assert!(after.rate() <= WIDE);
}

#[test]
fn the_papers_default_is_too_much_for_a_narrow_path_and_the_reason_is_said() {
    for kind in ControllerKind::BUILT_IN {
        let narrow = Bandwidth::from_bits_per_second(1_000_000);
        let refused = kind.controller(Limits::default(), narrow).unwrap_err();
        assert_eq!(refused.needed().as_bits_per_second(), 1_024_000);
    }
}

#[test]
fn single_lost_copies_of_thin_traffic_remove_no_copies() {
    // Ten aggregates a second; of forty copies one is lost, no aggregate ever.
    for first_lost in 1..20 {
        let mut controller = ControllerKind::Adaptive
            .controller(Limits::default(), WIDE)
            .unwrap();
        for sent in 0..600 {
            let copies = u64::from(controller.parameters().copies());
            let is_lost = copies > 1 && sent % 20 == first_lost;
            let seen = Observation {
                period: Duration::from_millis(100),
                aggregates: DeliveryCounts { sent: 1, lost: 0 },
                copies: DeliveryCounts {
                    sent: copies,
                    lost: u64::from(is_lost),
                },
                bandwidth: WIDE,
                sent: Bandwidth::from_bits_per_second(10_000 * copies),
                offered: Bandwidth::from_bits_per_second(10_000),
                ..Observation::default()
            };
            let now = Instant::ZERO + Duration::from_millis(100) * (sent as u32 + 1);
            let decision = controller.on_period(now, &seen).unwrap();
            assert!(decision.parameters.copies() > 1, "{first_lost}: {decision}");
        }
    }
}
