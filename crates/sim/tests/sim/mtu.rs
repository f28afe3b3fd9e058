//! MTU discovery finds the largest packet that a path carries, and a path that carries less than configured
//! loses no message.

use std::time::Duration;

use keiro_core::Event;
use keiro_link::Loss;
use keiro_sim::{Arrivals, GatewayPair, Length, PathSpec, Report, Scenario, Side, Traffic};
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
