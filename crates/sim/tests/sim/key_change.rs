//! Keys change under load without loss.

use std::time::Duration;

use keiro_core::{Event, TimingConfig};
use keiro_link::{Loss, Reorder};
use keiro_sim::{Arrivals, GatewayPair, Length, PathSpec, Report, Scenario, Side, Traffic};
use keiro_units::{Bandwidth, Probability};

const MS: Duration = Duration::from_millis(1);

fn loaded(path: PathSpec, timing: TimingConfig) -> Scenario {
    let mut scenario = Scenario::new(vec![path, path]);
    scenario.a.timing = timing;
    scenario.b.timing = timing;
    let messages = scenario.add_message_app(Some(50 * MS), &[0, 1]);
    let datagrams = scenario.add_datagram_app(None, &[1]);
    for from in Side::BOTH {
        for (app, length) in [
            (messages, Length::Uniform(1, 8000)),
            (datagrams, Length::Uniform(8, 1200)),
        ] {
            scenario.traffic.push(Traffic {
                from,
                app,
                made: Arrivals::Exponential {
                    mean: 5 * MS,
                    duration: Duration::from_secs(4),
                },
                length,
                start: Duration::ZERO,
            });
        }
    }
    scenario
}

fn path() -> PathSpec {
    PathSpec::new(Bandwidth::from_mbit_per_second(50), 20 * MS)
}

fn every_300_ms() -> TimingConfig {
    TimingConfig {
        rekey_after: 300 * MS,
        ..TimingConfig::default()
    }
}

fn key_changes(report: &Report, side: Side) -> usize {
    report.sides[side.index()].count(|event| matches!(event, Event::KeyChanged { .. }))
}

fn assert_no_datagram_lost(report: &Report) {
    let lost = report.datagrams.iter().find(|d| d.delivered_at.is_none());
    assert!(lost.is_none(), "{lost:?}\n{report}");
}

#[test]
fn key_change_under_load_loses_nothing() {
    for seed in 0..3 {
        let report = GatewayPair::new(&loaded(path(), every_300_ms()), seed).run();
        report.assert_complete();
        assert_no_datagram_lost(&report);
        for side in Side::BOTH {
            assert!(key_changes(&report, side) >= 8, "{report}");
        }
    }
}

#[test]
fn key_change_by_packets_loses_nothing() {
    let timing = TimingConfig {
        rekey_after_packets: 300,
        ..TimingConfig::default()
    };
    let report = GatewayPair::new(&loaded(path(), timing), 1).run();
    report.assert_complete();
    assert_no_datagram_lost(&report);
    assert!(key_changes(&report, Side::A) >= 3, "{report}");
}

#[test]
fn key_change_survives_reordering() {
    let reordering = path().with(|link| {
        link.reorder = Reorder {
            probability: Probability::new(0.2).unwrap(),
            extra_delay: 60 * MS,
        };
    });
    for seed in 0..3 {
        let report = GatewayPair::new(&loaded(reordering, every_300_ms()), seed).run();
        report.assert_complete();
        assert_no_datagram_lost(&report);
        assert!(key_changes(&report, Side::A) >= 8, "{report}");
    }
}

#[test]
fn key_change_survives_loss() {
    for (seed, loss) in [(1, 0.05), (2, 0.2), (3, 0.3)] {
        let lossy =
            path().with(|link| link.loss = Loss::Bernoulli(Probability::new(loss).unwrap()));
        let report = GatewayPair::new(&loaded(lossy, every_300_ms()), seed).run();
        report.assert_complete();
        assert!(key_changes(&report, Side::A) >= 2, "{report}");
    }
}
