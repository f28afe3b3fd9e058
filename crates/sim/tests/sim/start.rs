//! Connecting two gateways: both initiate, one initiates, one is late, one never answers.

use std::time::Duration;

use keiro_core::{Event, TimingConfig};
use keiro_link::Loss;
use keiro_sim::{
    Arrivals, GatewayPair, Length, PathSpec, Report, Scenario, ScenarioEvent, SetUp, Side, Start,
    Traffic,
};
use keiro_units::{Bandwidth, Instant, Probability};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Ten messages in each direction, made before the handshake.
fn scenario(delay: Duration) -> Scenario {
    let path = PathSpec::new(Bandwidth::from_mbit_per_second(20), delay);
    let mut scenario = Scenario::new(vec![path; 2]);
    scenario.set_up = SetUp::Skip;
    let app = scenario.add_message_app(Some(100 * MS), &[0, 1]);
    for from in Side::BOTH {
        scenario.traffic.push(Traffic {
            from,
            app,
            made: Arrivals::Every {
                interval: 10 * MS,
                count: 10,
            },
            length: Length::Uniform(1, 5000),
            start: Duration::ZERO,
        });
    }
    scenario
}

#[test]
fn two_that_both_initiate_agree() {
    for delay in [Duration::ZERO, MS, 40 * MS, 300 * MS] {
        for seed in 0..3 {
            let report = GatewayPair::new(&scenario(delay), seed).run();
            report.assert_complete();
            let last = report.messages.iter().filter_map(|m| m.delivered_at).max();
            // Handshake, validation, delivery: three round trips, and one retransmission at worst.
            let limit = 6 * delay + SECOND;
            assert!(
                last.unwrap().as_nanos() <= limit.as_nanos() as u64,
                "{delay:?}: {last:?}\n{report}"
            );
        }
    }
}

#[test]
fn one_that_initiates_a_little_later_agrees() {
    for late_ms in [1, 5, 19, 20, 21, 39, 40, 41, 60] {
        let mut scenario = scenario(20 * MS);
        scenario.b.start = Start::After(late_ms * MS);
        GatewayPair::new(&scenario, 1).run().assert_complete();
    }
}

#[test]
fn two_that_both_initiate_over_lossy_paths_agree() {
    for seed in 0..10 {
        let mut scenario = scenario(20 * MS);
        for path in &mut scenario.paths {
            *path = path.with(|link| {
                link.loss = Loss::Bernoulli(Probability::new(0.3).unwrap());
            });
        }
        GatewayPair::new(&scenario, seed).run().assert_complete();
    }
}

#[test]
fn peer_without_addresses_is_called_and_learns_them() {
    for (a_knows, b_knows) in [(true, false), (false, true)] {
        let mut scenario = scenario(20 * MS);
        scenario.a.knows_peer = a_knows;
        scenario.b.knows_peer = b_knows;
        GatewayPair::new(&scenario, 1).run().assert_complete();
    }
}

/// Every combination of dead directions of `count` paths with a path that carries packets both ways. Bit
/// `2 * path` is the direction from A, the next one that to A.
fn usable_cuts(count: usize) -> impl Iterator<Item = u32> {
    let is_usable = move |dead: &u32| (0..count).any(|path| dead >> (2 * path) & 3 == 0);
    (0..1_u32 << (2 * count)).filter(is_usable)
}

#[test]
fn one_way_outages_of_some_paths_do_not_delay_a_handshake() {
    let (mut runs, mut slowest) = (0, Instant::ZERO);
    for delays_ms in [
        &[3, 40][..],
        &[40, 3],
        &[20, 20],
        &[3, 20, 40],
        &[40, 20, 3],
    ] {
        for dead in usable_cuts(delays_ms.len()) {
            for knows in [[true, true], [true, false], [false, true]] {
                let path = |(number, delay): (usize, &u32)| {
                    let rate = Bandwidth::from_mbit_per_second(20);
                    let mut path = PathSpec::new(rate, *delay * MS);
                    path.link.forward.down = dead >> (2 * number) & 1 == 1;
                    path.link.backward.down = dead >> (2 * number) & 2 == 2;
                    path
                };
                let paths = delays_ms.iter().enumerate().map(path).collect();
                let mut scenario = Scenario::new(paths);
                scenario.set_up = SetUp::Skip;
                scenario.add_message_app(None, &(0..delays_ms.len()).collect::<Vec<_>>());
                [scenario.a.knows_peer, scenario.b.knows_peer] = knows;
                let report = GatewayPair::new(&scenario, 1).run_for_measured(2 * SECOND);
                let what = format!("{delays_ms:?} ms, dead {dead:#b}, knows {knows:?}\n{report}");
                for side in &report.sides {
                    let up = side.first(|event| matches!(event, Event::PeerUp { .. }));
                    let up = up.unwrap_or_else(|| panic!("not up: {what}"));
                    // Three and a half round trips of the longest path, the last for its base size where the
                    // address was not known: less than the wait for another attempt.
                    assert!(up <= Instant::ZERO + 300 * MS, "up at {up}: {what}");
                    slowest = slowest.max(up);
                }
                runs += 1;
            }
        }
    }
    println!("{runs} combinations, the slowest was up at {slowest}");
}

#[test]
fn peer_that_comes_late_is_met() {
    let mut scenario = scenario(20 * MS);
    scenario.b.start = Start::After(20 * SECOND);
    scenario.b.knows_peer = false;
    let report = GatewayPair::new(&scenario, 1).run();
    report.assert_complete();
    let met = report.sides[0]
        .first(|event| matches!(event, Event::PeerUp { .. }))
        .unwrap();
    let longest_wait = TimingConfig::default().handshake_retry_max;
    let limit = 20 * SECOND + longest_wait + SECOND;
    assert!(met.as_nanos() <= limit.as_nanos() as u64, "met at {met}");
}

#[test]
fn peer_that_never_answers_is_called_ever_more_rarely_and_reported() {
    let mut scenario = scenario(20 * MS);
    scenario.b.start = Start::Never;
    scenario.traffic.retain(|traffic| traffic.from == Side::A);
    let minute = Duration::from_secs(60);
    let report = GatewayPair::new(&scenario, 1).run_for_measured(minute);
    report.assert_safe();
    let unanswered: Vec<_> = report.sides[0]
        .events
        .iter()
        .filter_map(|(at, event)| match event {
            Event::HandshakeUnanswered { attempts, .. } => Some((*at, *attempts)),
            _ => None,
        })
        .collect();
    let attempts: Vec<_> = unanswered.iter().map(|(_, attempts)| *attempts).collect();
    assert!(attempts.len() >= 10, "{attempts:?}\n{report}");
    assert!(attempts.is_sorted() && attempts[0] == 1, "{attempts:?}");
    let waits: Vec<_> = unanswered.windows(2).map(|w| w[1].0 - w[0].0).collect();
    let retry = TimingConfig::default();
    for wait in &waits {
        // Up to a third is added or subtracted so that two gateways do not stay synchronised.
        assert!(
            *wait <= retry.handshake_retry_max.mul_f64(1.34),
            "{waits:?}"
        );
        assert!(*wait >= retry.handshake_retry.mul_f64(0.66), "{waits:?}");
    }
    // Few packets in vain: both paths are tried each time.
    let sent: u64 = report
        .links
        .iter()
        .map(|link| link[0].arrived_packets)
        .sum();
    assert!(
        sent <= 4 * (attempts.len() as u64 + 1),
        "{sent} packets\n{report}"
    );
    assert!(
        report.messages.iter().all(|m| m.outcome.is_none()),
        "{report}"
    );
}

/// Like [`scenario`], with paths of 3 and 40 ms of which the application prefers the far one.
fn prefers_far(dead: &[usize]) -> Scenario {
    let path = |delay: u32| PathSpec::new(Bandwidth::from_mbit_per_second(20), delay * MS);
    let paths = [path(3), path(40)].into_iter().enumerate();
    let cut =
        |(number, path): (usize, PathSpec)| path.with(|link| link.down = dead.contains(&number));
    let mut scenario = Scenario::new(paths.map(cut).collect());
    scenario.set_up = SetUp::Skip;
    let app = scenario.add_message_app(Some(100 * MS), &[1, 0]);
    for from in Side::BOTH {
        scenario.traffic.push(Traffic {
            from,
            app,
            made: Arrivals::Every {
                interval: 10 * MS,
                count: 300,
            },
            length: Length::Fixed(1000),
            start: Duration::ZERO,
        });
    }
    scenario
}

/// The paths to which applications of either side moved, in order.
fn places(report: &Report) -> [Vec<Option<u8>>; 2] {
    [0, 1].map(|side| {
        let place = |(_, event): &(_, Event)| match event {
            Event::AppMoved { to, .. } => Some(to.map(|path| path.0)),
            _ => None,
        };
        report.sides[side].events.iter().filter_map(place).collect()
    })
}

#[test]
fn applications_do_not_start_on_a_path_because_it_answers_first() {
    for seed in 0..3 {
        for knows in [[true, true], [true, false], [false, true]] {
            let mut scenario = prefers_far(&[]);
            [scenario.a.knows_peer, scenario.b.knows_peer] = knows;
            let report = GatewayPair::new(&scenario, seed).run();
            report.assert_complete();
            assert_eq!(
                places(&report),
                [[Some(1)], [Some(1)]],
                "seed {seed}\n{report}"
            );
        }
    }
}

#[test]
fn applications_keep_their_paths_over_a_restart_of_the_peer() {
    for seed in 0..3 {
        for orderly in [true, false] {
            let mut scenario = prefers_far(&[]);
            scenario.add_event(
                SECOND,
                ScenarioEvent::Restart {
                    side: Side::A,
                    orderly,
                    away: 100 * MS,
                },
            );
            let report = GatewayPair::new(&scenario, seed).run();
            let [restarted, other] = places(&report);
            assert_eq!(restarted, [Some(1), Some(1)], "seed {seed}\n{report}");
            assert_eq!(other, [Some(1), None, Some(1)], "seed {seed}\n{report}");
        }
    }
}

#[test]
fn a_preferred_path_that_is_down_at_the_start_is_not_waited_for_longer_than_two_challenges() {
    for seed in 0..3 {
        for knows in [[true, true], [true, false]] {
            let mut scenario = prefers_far(&[1]);
            [scenario.a.knows_peer, scenario.b.knows_peer] = knows;
            let report = GatewayPair::new(&scenario, seed).run();
            report.assert_complete();
            assert_eq!(
                places(&report),
                [[Some(0)], [Some(0)]],
                "seed {seed}\n{report}"
            );
            // Two challenges, 353 ms apart; the handshake, and a delay, before and after.
            let limit = Instant::ZERO + 706 * MS + 50 * MS;
            let first = report.messages.iter().filter_map(|m| m.delivered_at).min();
            assert!(first.unwrap() <= limit, "seed {seed}: {first:?}\n{report}");
        }
    }
}

#[test]
fn no_message_waits_for_its_path_beyond_half_a_lifetime() {
    for (lifetime, wait) in [(None, 706 * MS), (Some(500 * MS), 250 * MS)] {
        let mut scenario = prefers_far(&[1]);
        scenario.apps[0].lifetime = lifetime;
        let report = GatewayPair::new(&scenario, 1).run();
        report.assert_complete();
        let first = report.messages.iter().filter_map(|m| m.delivered_at).min();
        let limits = Instant::ZERO + wait..Instant::ZERO + wait + 50 * MS;
        assert!(limits.contains(&first.unwrap()), "{first:?}\n{report}");
    }
}
