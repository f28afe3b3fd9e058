//! Links lose, duplicate, reorder, corrupt: every message arrives intact, exactly once.

use std::time::Duration;

use keiro_link::{GilbertElliott, LinkConfig, Loss, Reorder};
use keiro_sim::{Arrivals, GatewayPair, Length, PathSpec, Report, Scenario, Side, Traffic};
use keiro_units::{Bandwidth, Probability};

const MS: Duration = Duration::from_millis(1);

fn probability(value: f64) -> Probability {
    Probability::new(value).unwrap()
}

fn run_with(fault: impl Fn(&mut LinkConfig), seed: u64) -> Report {
    let mbit = Bandwidth::from_mbit_per_second;
    let paths = [
        PathSpec::new(mbit(20), 5 * MS),
        PathSpec::new(mbit(10), 30 * MS),
    ];
    let mut scenario = Scenario::new(paths.map(|path| path.with(&fault)).to_vec());
    let thin = scenario.add_message_app(Some(50 * MS), &[0, 1]);
    let bulk = scenario.add_message_app(Some(500 * MS), &[1, 0]);
    let datagrams = scenario.add_datagram_app(None, &[0]);
    for (from, app, mean, length) in [
        (Side::A, thin, 10 * MS, Length::Uniform(1, 5000)),
        (Side::A, bulk, 150 * MS, Length::Uniform(20_000, 80_000)),
        (Side::B, thin, 20 * MS, Length::Uniform(1, 3000)),
        (Side::A, datagrams, 5 * MS, Length::Uniform(8, 1200)),
    ] {
        scenario.traffic.push(Traffic {
            from,
            app,
            made: Arrivals::Exponential {
                mean,
                duration: Duration::from_secs(2),
            },
            length,
            start: Duration::ZERO,
        });
    }
    GatewayPair::new(&scenario, seed).run()
}

fn datagrams_lost(report: &Report) -> f64 {
    let lost = report.datagrams.iter().filter(|d| d.delivered_at.is_none());
    lost.count() as f64 / report.datagrams.len() as f64
}

#[test]
fn messages_survive_loss_up_to_30_percent() {
    for loss in [0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3] {
        for seed in 0..3 {
            let report = run_with(|link| link.loss = Loss::Bernoulli(probability(loss)), seed);
            report.assert_complete();
            // About 400 datagrams: five standard deviations.
            let lost = datagrams_lost(&report);
            let tolerance = 5.0 * (loss * (1.0 - loss) / 400.0).sqrt();
            assert!(lost <= loss + tolerance, "{lost} of {loss}\n{report}");
        }
    }
}

#[test]
fn messages_survive_loss_in_bursts() {
    for (loss, burst) in [(0.05, 10.0), (0.2, 30.0)] {
        let chain = GilbertElliott::from_mean_loss_and_burst(probability(loss), burst).unwrap();
        for seed in 0..3 {
            run_with(|link| link.loss = Loss::GilbertElliott(chain), seed).assert_complete();
        }
    }
}

#[test]
fn reordering_loses_nothing() {
    for (share, extra) in [(0.01, 5 * MS), (0.1, 20 * MS), (0.5, 3 * MS)] {
        for seed in 0..2 {
            let report = run_with(
                |link| {
                    link.reorder = Reorder {
                        probability: probability(share),
                        extra_delay: extra,
                    };
                },
                seed,
            );
            report.assert_complete();
            assert_eq!(datagrams_lost(&report), 0.0, "{report}");
        }
    }
}

#[test]
fn jitter_that_overtakes_loses_nothing() {
    for seed in 0..2 {
        let report = run_with(
            |link| {
                link.jitter = 20 * MS;
                link.jitter_overtakes = true;
            },
            seed,
        );
        report.assert_complete();
        assert_eq!(datagrams_lost(&report), 0.0, "{report}");
    }
}

#[test]
fn duplicates_are_delivered_once() {
    for share in [0.1, 1.0] {
        let report = run_with(|link| link.duplicate = probability(share), 1);
        report.assert_complete();
        assert_eq!(datagrams_lost(&report), 0.0, "{report}");
        assert!(report.drops(Side::B)["replayed"] > 0, "{report}");
        assert!(report.messages.iter().all(|m| m.deliveries == 1));
    }
}

#[test]
fn corrupted_packets_are_counted_and_repaired() {
    for share in [0.01, 0.1] {
        for seed in 0..2 {
            let report = run_with(|link| link.corrupt = probability(share), seed);
            report.assert_complete();
            assert!(report.drops(Side::B)["unauthentic"] > 0, "{report}");
        }
    }
}

#[test]
fn everything_at_once_is_survived() {
    for seed in 0..4 {
        let report = run_with(
            |link| {
                link.loss = Loss::Bernoulli(probability(0.1));
                link.duplicate = probability(0.1);
                link.corrupt = probability(0.05);
                link.jitter = 5 * MS;
                link.reorder = Reorder {
                    probability: probability(0.1),
                    extra_delay: 10 * MS,
                };
            },
            seed,
        );
        report.assert_complete();
    }
}

#[test]
fn loss_without_overload_costs_about_its_share_in_retransmissions() {
    let loss = 0.05;
    let report = run_with(|link| link.loss = Loss::Bernoulli(probability(loss)), 9);
    report.assert_complete();
    let session = report.sides[0].session.as_ref().unwrap();
    let (sent, again) = session.paths.iter().fold((0, 0), |(sent, again), path| {
        (
            sent + path.stats.sent_bytes,
            again + path.stats.retransmitted_bytes,
        )
    });
    let share = again as f64 / sent as f64;
    assert!(share < 3.0 * loss, "{share} sent again\n{report}");
}
