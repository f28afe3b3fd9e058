//! MTU discovery finds the largest packet that a path carries, and a path that carries less than configured
//! loses no message.

use std::time::Duration;

use keiro_core::{Event, PathDownReason, PathState};
use keiro_link::Loss;
use keiro_sim::{
    Arrivals, Change, GatewayPair, Length, PathDirection, PathSpec, Report, Scenario,
    ScenarioEvent, SetUp, Side, Traffic,
};
use keiro_units::{Bandwidth, Probability};

const MS: Duration = Duration::from_millis(1);

fn run(mtus: [u16; 2], mtu_max: u16, seed: u64) -> Report {
    let paths = mtus.map(|mtu| {
        let mut path = PathSpec::new(Bandwidth::from_mbit_per_second(20), 10 * MS);
        path.link.mtu = mtu;
        path.mtu_max = mtu_max;
        path
    });
    let mut scenario = Scenario::new(paths.to_vec());
    for path in [0, 1] {
        let messages = scenario.add_message_app(None, &[path]);
        let datagrams = scenario.add_datagram_app(None, &[path]);
        for app in [messages, datagrams] {
            scenario.traffic.push(Traffic {
                from: Side::A,
                app,
                made: Arrivals::Every {
                    interval: 50 * MS,
                    count: 100,
                },
                length: Length::Uniform(8, 5000),
                start: Duration::ZERO,
            });
        }
    }
    let report = GatewayPair::new(&scenario, seed).run();
    report.assert_complete();
    report
}

#[test]
fn mtu_is_found_per_path() {
    for (seed, mtus) in [(1, [1500, 1400]), (2, [1420, 1280]), (3, [1499, 1301])] {
        let report = run(mtus, 1500, seed);
        let session = report.sides[0].session.as_ref().unwrap();
        for (path, mtu) in session.paths.iter().zip(mtus.map(u64::from)) {
            assert!(
                path.stats.mtu_bytes <= mtu,
                "{} above {mtu}\n{report}",
                path.stats.mtu_bytes
            );
            assert!(
                path.stats.mtu_bytes + 32 >= mtu,
                "{} far below {mtu}\n{report}",
                path.stats.mtu_bytes
            );
        }
        let changes = report.sides[0].count(|e| matches!(e, Event::MtuChanged { .. }));
        assert!(changes > 0, "{report}");
        // Discovery loses few packets: two gateways, two paths, a few sizes each.
        assert!(report.counts.too_long < 4 * 25, "{report}");
    }
}

#[test]
fn jumbo_frames_are_used_where_they_pass() {
    let report = run([9000, 1500], 9000, 4);
    let session = report.sides[0].session.as_ref().unwrap();
    assert!(session.paths[0].stats.mtu_bytes >= 8900, "{report}");
    assert!(session.paths[1].stats.mtu_bytes <= 1500, "{report}");
}

#[test]
fn search_survives_heavy_loss_of_large_packets() {
    for seed in 0..10 {
        let mut path = PathSpec::new(Bandwidth::from_mbit_per_second(20), 10 * MS).with(|link| {
            link.loss = Loss::Bernoulli(Probability::new(0.4).unwrap());
        });
        path.link.mtu = 1400;
        let mut scenario = Scenario::new(vec![path]);
        let app = scenario.add_message_app(None, &[0]);
        let made = Arrivals::Every {
            interval: 20 * MS,
            count: 100,
        };
        scenario.add_traffic(app, made, Length::Uniform(10_000, 40_000));
        GatewayPair::new(&scenario, seed).run().assert_complete();
    }
}

/// A lost MTU probe concerns the path's MTU, not its loss.
#[test]
fn lost_mtu_probes_are_not_counted_as_loss() {
    let report = run([1400, 1300], 1500, 5);
    assert!(report.counts.too_long > 0, "{report}");
    for side in &report.sides {
        for path in &side.session.as_ref().unwrap().paths {
            let stats = &path.stats;
            assert_eq!(stats.lost_packets, stats.spurious_lost_packets, "{report}");
        }
    }
}

/// What underlays carry, from the least of IPv4 over tunnels in tunnels to jumbo frames.
const UNDERLAYS: [u16; 8] = [576, 1124, 1200, 1280, 1400, 1492, 1500, 9000];
const SECOND: Duration = Duration::from_secs(1);

/// A path of 1500 bytes at both gateways, or of 9000.
fn path(mtu_max: u16) -> PathSpec {
    let mut path = PathSpec::new(Bandwidth::from_mbit_per_second(20), 10 * MS);
    path.link.mtu = mtu_max;
    path.mtu_max = mtu_max;
    path
}

fn mtu(bytes: u16, direction: PathDirection) -> ScenarioEvent {
    ScenarioEvent::Path {
        path: 0,
        direction,
        change: Change::Mtu(bytes),
    }
}

/// Messages of all sizes, 20 a second in both directions, and datagrams of 1,200 bytes.
fn traffic(scenario: &mut Scenario, seconds: u32) {
    let app = scenario.add_message_app(None, &[0]);
    let datagrams = scenario.add_datagram_app(None, &[0]);
    for from in Side::BOTH {
        for (app, length) in [
            (app, Length::Uniform(8, 5000)),
            (datagrams, Length::Fixed(1200)),
        ] {
            scenario.traffic.push(Traffic {
                from,
                app,
                made: Arrivals::Every {
                    interval: 50 * MS,
                    count: seconds * 20,
                },
                length,
                start: Duration::ZERO,
            });
        }
    }
}

fn mtu_at(report: &Report, side: Side) -> u16 {
    let session = report.sides[side.index()].session.as_ref().unwrap();
    session.paths[0].stats.mtu_bytes as u16
}

/// The MTU found is what passes, as closely as it is searched.
fn assert_found(report: &Report, side: Side, carries: u16) {
    let found = mtu_at(report, side);
    let precision = if carries > 1500 { 64 } else { 16 };
    assert!(
        found <= carries && found + precision >= carries,
        "{side:?}: {found} of {carries}\n{report}"
    );
}

#[test]
fn a_path_is_used_with_what_it_carries_whatever_that_is() {
    for carries in UNDERLAYS {
        let mtu_max = carries.max(1500);
        for direction in [PathDirection::Both, PathDirection::Forward] {
            let mut scenario = Scenario::new(vec![path(mtu_max)]);
            scenario.set_up = SetUp::Skip;
            traffic(&mut scenario, 10);
            scenario.add_event(Duration::ZERO, mtu(carries, direction));
            let report = GatewayPair::new(&scenario, 1).run();
            report.assert_complete();
            assert_found(&report, Side::A, carries);
            let back = match direction {
                PathDirection::Both => carries,
                _ => mtu_max,
            };
            assert_found(&report, Side::B, back);
            for side in &report.sides {
                let ups = side.count(|event| matches!(event, Event::PathUp { .. }));
                let downs = side.count(|event| matches!(event, Event::PathDown { .. }));
                assert_eq!((ups, downs), (1, 0), "{carries}, {direction:?}\n{report}");
            }
            let slowest = report.messages.iter().filter_map(|made| made.delay()).max();
            assert!(
                slowest < Some(2 * SECOND),
                "{carries}: {slowest:?}\n{report}"
            );
        }
    }
}

#[test]
fn a_path_that_carries_no_576_bytes_is_not_used_and_says_why() {
    let mut paths = vec![path(1500), path(1500)];
    paths[0].link.mtu = 575;
    let mut scenario = Scenario::new(paths);
    scenario.set_up = SetUp::PathsUp(1);
    traffic(&mut scenario, 90);
    let report = GatewayPair::new(&scenario, 1).run();
    report.assert_complete();
    for side in &report.sides {
        let path = &side.session.as_ref().unwrap().paths[0];
        assert!(path.state != PathState::Up && path.is_too_small, "{report}");
        let too_small = |event: &Event| {
            let reason = PathDownReason::TooSmall { bytes: 576 };
            matches!(event, Event::PathDown { reason: seen, .. } if *seen == reason)
        };
        assert_eq!(side.count(too_small), 1, "news once\n{report}");
        // Its sizes are tried again once a minute.
        let sent = path.stats.sent_bytes;
        assert!(sent < 60_000, "{sent}\n{report}");
    }
}

#[test]
fn an_mtu_that_falls_in_use_is_noticed_within_seconds_and_one_that_rises_is_found() {
    for carries in UNDERLAYS {
        for direction in [PathDirection::Both, PathDirection::Forward] {
            let mtu_max = if carries == 9000 { 9000 } else { 1500 };
            let before = if carries == 9000 { 1500 } else { mtu_max };
            let mut scenario = Scenario::new(vec![path(mtu_max)]);
            scenario.paths[0].link.mtu = before;
            traffic(&mut scenario, 20);
            scenario.add_event(5 * SECOND, mtu(carries, direction));
            let mut pair = GatewayPair::new(&scenario, 2);
            pair.set_up().expect("the path comes up");
            pair.begin();
            pair.run_for(12 * SECOND);
            let report = pair.report();
            assert_found(&report, Side::A, carries.min(before));
            pair.finish().expect("everything arrives");
            let report = pair.report();
            report.assert_complete();
            let late = |limit| {
                let delays = report.messages.iter().filter_map(|made| made.delay());
                delays.filter(|took| *took > limit).count()
            };
            // Until it is noticed and the size is found, some wait.
            assert_eq!(late(3 * SECOND), 0, "{carries}, {direction:?}\n{report}");
            pair.apply(&mtu(mtu_max, PathDirection::Both));
            pair.run_for(Duration::from_secs(610));
            assert_found(&pair.report(), Side::A, mtu_max);
        }
    }
}
