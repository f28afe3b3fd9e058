//! Streams under faults: every byte once and in order, every end and every reset on both sides.

use std::time::Duration;

use keiro_core::{AggregationConfig, AggregationMode, CopySpread, Parity, Redundancy};
use keiro_link::{LinkConfig, Loss, Reorder};
use keiro_model::aggregation::ControllerKind;
use keiro_sim::{
    Arrivals, Change, Dialogues, GatewayPair, Length, PathDirection, PathSpec, Reading, Report,
    Scenario, ScenarioEvent, Side, StreamEnd, Traffic,
};
use keiro_units::{Bandwidth, ByteCount, Probability};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn probability(p: f64) -> Probability {
    Probability::new(p).unwrap()
}

/// Two paths and all features of streams, in both directions, with messages and datagrams.
fn scenario() -> Scenario {
    let path = |delay| PathSpec::new(Bandwidth::from_mbit_per_second(20), delay);
    let mut scenario = Scenario::new(vec![path(10 * MS), path(30 * MS)]);
    let thin = scenario.add_stream_app(Some(50 * MS), &[0, 1]);
    let bulk = scenario.add_stream_app(None, &[0, 1]);
    let messages = scenario.add_message_app(Some(100 * MS), &[0, 1]);
    let datagrams = scenario.add_datagram_app(Some(50 * MS), &[0, 1]);
    let often = |mean| Arrivals::Exponential {
        mean,
        duration: 3 * SECOND,
    };
    for from in Side::BOTH {
        scenario.dialogues.extend([
            Dialogues {
                from,
                clients: 4,
                ..Dialogues::new(thin, often(40 * MS), 3, 60, 200)
            },
            Dialogues {
                from,
                clients: 3,
                keeps_stream: true,
                end: StreamEnd::AfterRequest,
                ..Dialogues::new(thin, often(50 * MS), 2, 1, 3000)
            },
            Dialogues {
                from,
                clients: 2,
                end: StreamEnd::AfterRequest,
                ..Dialogues::new(bulk, often(400 * MS), 1, 40_000, 90_000)
            },
            Dialogues {
                from,
                clients: 2,
                end: StreamEnd::ClientResets(70 * MS),
                ..Dialogues::new(bulk, often(400 * MS), 50, 1000, 100)
            },
            Dialogues {
                from,
                clients: 2,
                end: StreamEnd::ServerResets(60 * MS),
                ..Dialogues::new(bulk, often(400 * MS), 50, 100, 1000)
            },
            Dialogues {
                from,
                server_reads: Reading::After(SECOND),
                client_reads: Reading::Slowly(50_000),
                ..Dialogues::once(bulk, 1, 60_000, 60_000)
            },
        ]);
        for (app, length) in [(messages, 5000), (datagrams, 500)] {
            scenario.traffic.push(Traffic {
                from,
                app,
                made: often(50 * MS),
                length: Length::Uniform(8, length),
                start: Duration::ZERO,
            });
        }
    }
    scenario
}

fn with_link(mut scenario: Scenario, change: impl Fn(&mut LinkConfig)) -> Scenario {
    for path in &mut scenario.paths {
        *path = path.with(&change);
    }
    scenario
}

/// Without restarts, only streams that are reset on purpose fail.
fn assert_all_done(report: &Report) {
    report.assert_complete();
    let undone = report
        .dialogues
        .iter()
        .find(|dialogue| dialogue.completes && dialogue.done.is_none());
    assert!(undone.is_none(), "{undone:?}\n{report}");
}

#[test]
fn all_kinds_of_dialogues_complete_over_faultless_paths() {
    for seed in 0..3 {
        let report = GatewayPair::new(&scenario(), seed).run();
        assert!(report.streams.len() > 100, "{report}");
        assert_all_done(&report);
    }
}

#[test]
fn no_byte_is_lost_repeated_or_reordered_under_loss() {
    for (seed, loss) in [(1, 0.01), (2, 0.05), (3, 0.1), (4, 0.2), (5, 0.3), (6, 0.3)] {
        let scenario = with_link(scenario(), |link| {
            link.loss = Loss::Bernoulli(probability(loss));
        });
        assert_all_done(&GatewayPair::new(&scenario, seed).run());
    }
}

#[test]
fn no_byte_is_lost_repeated_or_reordered_by_a_bad_line() {
    for seed in 0..8 {
        let scenario = with_link(scenario(), |link| match seed % 4 {
            0 => {
                link.reorder = Reorder {
                    probability: probability(0.2),
                    extra_delay: 15 * MS,
                };
            }
            1 => link.duplicate = probability(0.3),
            2 => link.corrupt = probability(0.1),
            _ => {
                link.jitter = 20 * MS;
                link.jitter_overtakes = true;
                link.loss = Loss::Bernoulli(probability(0.1));
                link.duplicate = probability(0.1);
                link.corrupt = probability(0.02);
            }
        });
        assert_all_done(&GatewayPair::new(&scenario, seed).run());
    }
}

/// All modes of aggregation and copies.
fn gatherings() -> Vec<AggregationConfig> {
    let with = |mode, controller, spread, redundancy| AggregationConfig {
        mode,
        controller,
        spread,
        redundancy,
        ..AggregationConfig::default()
    };
    let parity = Redundancy::Parity(Parity::new(4, 2, None).unwrap());
    let (eager, fixed) = (AggregationMode::Eager, AggregationMode::Fixed);
    let spaced = CopySpread::Spaced(2 * MS);
    let (back, paths) = (CopySpread::BackToBack, CopySpread::Paths);
    vec![
        with(eager, ControllerKind::Adaptive, back, Redundancy::Copies),
        with(eager, ControllerKind::None, spaced, Redundancy::Copies),
        with(eager, ControllerKind::None, paths, Redundancy::Copies),
        with(eager, ControllerKind::None, back, parity),
        with(eager, ControllerKind::Adaptive, paths, parity),
        with(fixed, ControllerKind::None, back, Redundancy::Copies),
        with(fixed, ControllerKind::Table2, back, Redundancy::Copies),
        with(fixed, ControllerKind::Adaptive, spaced, parity),
    ]
}

#[test]
fn no_byte_is_lost_repeated_or_reordered_however_thin_traffic_is_gathered() {
    for (gathering, seed) in gatherings().iter().zip(10..) {
        let gathered = |mut scenario: Scenario| {
            scenario.a.aggregation = gathering.clone();
            scenario.b.aggregation = gathering.clone();
            scenario
        };
        for loss in [0.01, 0.05, 0.3] {
            let scenario = with_link(gathered(scenario()), |link| {
                link.loss = Loss::Bernoulli(probability(loss));
                link.duplicate = probability(0.05);
                link.jitter = 10 * MS;
                link.jitter_overtakes = loss > 0.01;
            });
            assert_all_done(&GatewayPair::new(&scenario, seed).run());
        }
        for loss in [0.0, 0.1] {
            let dying = with_link(with_outages(gathered(scenario())), |link| {
                link.loss = Loss::Bernoulli(probability(loss));
            });
            assert_all_done(&GatewayPair::new(&dying, seed).run());
        }
    }
}

/// Paths die and return; for two seconds there is none.
fn with_outages(mut scenario: Scenario) -> Scenario {
    let mut event = |at: Duration, path, change| {
        let direction = PathDirection::Both;
        scenario.add_event(
            at,
            ScenarioEvent::Path {
                path,
                direction,
                change,
            },
        );
    };
    event(500 * MS, 0, Change::Down);
    event(1500 * MS, 0, Change::Up);
    event(2000 * MS, 1, Change::Down);
    event(2200 * MS, 0, Change::Down);
    event(4200 * MS, 0, Change::Up);
    event(5000 * MS, 1, Change::Up);
    scenario
}

#[test]
fn streams_survive_the_outage_and_return_of_paths() {
    for seed in 0..4 {
        let scenario = with_outages(scenario());
        assert_all_done(&GatewayPair::new(&scenario, seed).run());
    }
}

#[test]
fn streams_follow_their_application_to_other_paths_and_their_peer_to_other_addresses() {
    for seed in 0..4 {
        let mut scenario = scenario();
        for (i, at) in (100..3000).step_by(150).enumerate() {
            let what = if i % 3 == 0 {
                ScenarioEvent::Readdress {
                    side: Side::A,
                    path: i % 2,
                }
            } else {
                ScenarioEvent::Assign {
                    side: if i % 2 == 0 { Side::A } else { Side::B },
                    app: i % 2,
                    paths: vec![i / 2 % 2],
                }
            };
            scenario.add_event(at * MS, what);
        }
        assert_all_done(&GatewayPair::new(&scenario, seed).run());
    }
}

#[test]
fn streams_do_not_notice_key_changes() {
    for seed in 0..2 {
        let mut scenario = with_link(scenario(), |link| {
            link.loss = Loss::Bernoulli(probability(0.05));
        });
        for gateway in [&mut scenario.a, &mut scenario.b] {
            gateway.timing.rekey_after = 200 * MS;
        }
        assert_all_done(&GatewayPair::new(&scenario, seed).run());
    }
}

fn restart(side: Side, orderly: bool, away: Duration) -> ScenarioEvent {
    ScenarioEvent::Restart {
        side,
        orderly,
        away,
    }
}

/// Earlier streams end by a reset on both sides; later ones work, and so does all other traffic.
fn assert_recovered(report: &Report, last_restart: Duration) {
    report.assert_complete();
    let later = report.measured_from + last_restart + 500 * MS;
    for dialogue in report.dialogues.iter().filter(|d| d.made > later) {
        assert!(
            dialogue.done.is_some() || !dialogue.completes,
            "{dialogue:?}\n{report}"
        );
    }
    assert!(report.dialogues.iter().any(|d| d.made > later), "{report}");
    assert!(report.dialogues.iter().any(|d| d.failed), "{report}");
}

#[test]
fn a_restart_resets_streams_on_both_sides_and_new_ones_work() {
    for seed in 0..2 {
        for side in Side::BOTH {
            for (orderly, away) in [(false, Duration::ZERO), (false, 300 * MS), (true, 300 * MS)] {
                let mut scenario = scenario();
                scenario.add_event(SECOND, restart(side, orderly, away));
                let report = GatewayPair::new(&scenario, seed).run();
                assert_recovered(&report, SECOND + away);
            }
        }
    }
}

#[test]
fn restarts_under_loss_are_survived() {
    for seed in 0..4 {
        let mut scenario = with_link(scenario(), |link| {
            link.loss = Loss::Bernoulli(probability(0.2));
        });
        scenario.b.knows_peer = seed % 2 == 0;
        for (i, side) in (1..5).zip(Side::BOTH.into_iter().cycle()) {
            let what = restart(side, i % 3 == 0, i * 40 * MS);
            scenario.add_event(i * 400 * MS, what);
        }
        let report = GatewayPair::new(&scenario, seed).run();
        report.assert_complete();
    }
}

/// One file from a client to a server; returns its duration.
fn file(bytes: u64, mbit: u64, rtt: Duration, loss: f64) -> Duration {
    let path = PathSpec::new(Bandwidth::from_mbit_per_second(mbit), rtt / 2);
    let loss = Loss::Bernoulli(probability(loss));
    let mut scenario = Scenario::new(vec![path.with(|link| link.loss = loss)]);
    let app = scenario.add_stream_app(None, &[0]);
    scenario.dialogues.push(Dialogues::once(app, 1, bytes, 1));
    let report = GatewayPair::new(&scenario, 1).run();
    assert_all_done(&report);
    report.dialogues[0].delay().unwrap()
}

#[test]
fn a_file_over_a_lossy_path_takes_nine_tenths_of_what_the_path_carries() {
    // It takes seven round trips until the window covers the longest path.
    for (rtt, bytes) in [(1, 64 << 20), (20, 64 << 20), (100, 192_u32 << 20)] {
        let took = file(bytes.into(), 100, rtt * MS, 0.01);
        // IP bytes at 100 Mbit/s with 1 % loss, without other overhead.
        let floor = Duration::from_secs_f64(f64::from(bytes) * 8.0 / 99e6);
        assert!(
            floor.as_secs_f64() >= took.as_secs_f64() * 0.9,
            "rtt {rtt} ms: {took:?}"
        );
    }
}

/// Dialogues of many clients in parallel with one client of another kind.
fn beside(other: Option<Dialogues>) -> Report {
    let path = PathSpec::new(Bandwidth::from_mbit_per_second(50), 5 * MS);
    let mut scenario = Scenario::new(vec![path]);
    let app = scenario.add_stream_app(Some(20 * MS), &[0]);
    scenario.add_stream_app(None, &[0]);
    let made = Arrivals::Exponential {
        mean: 10 * MS,
        duration: 3 * SECOND,
    };
    scenario.dialogues.push(Dialogues {
        clients: 32,
        keeps_stream: true,
        ..Dialogues::new(app, made, 6, 100, 1000)
    });
    scenario.dialogues.extend(other);
    let report = GatewayPair::new(&scenario, 1).run();
    report.assert_complete();
    report
}

/// The greatest increase of a dialogue's duration after the other client has stalled.
fn delayed_at_worst(other: Dialogues) -> Duration {
    let (without, with) = (beside(None), beside(Some(other)));
    let stalled = with.measured_from + 200 * MS;
    let (without, with) = (without.dialogues_of(0), with.dialogues_of(0));
    let later = without.zip(with).map(|(without, with)| {
        assert_eq!(without.made, with.made);
        let later = with
            .delay()
            .unwrap()
            .saturating_sub(without.delay().unwrap());
        if with.made > stalled {
            later
        } else {
            Duration::ZERO
        }
    });
    later.max().unwrap()
}

#[test]
fn one_stalled_client_delays_no_other_by_more_than_a_millisecond() {
    let download = Dialogues::once(1, 1, 100, 1 << 30);
    let upload = Dialogues::once(1, 1, 1 << 30, 100);
    for (dialogues, client_reads, server_reads) in [
        (&download, Reading::UpTo(0), Reading::AtOnce),
        (&download, Reading::UpTo(100_000), Reading::AtOnce),
        (&upload, Reading::AtOnce, Reading::UpTo(5000)),
        (&upload, Reading::AtOnce, Reading::UpTo(200_000)),
    ] {
        let later = delayed_at_worst(Dialogues {
            end: StreamEnd::Never,
            client_reads,
            server_reads,
            ..dialogues.clone()
        });
        assert!(later <= MS, "{client_reads:?} {server_reads:?}: {later:?}");
    }
}

#[test]
fn a_thousand_transfers_get_equal_shares() {
    let path = PathSpec::new(Bandwidth::from_mbit_per_second(100), 10 * MS);
    let loss = Loss::Bernoulli(probability(0.01));
    let mut scenario = Scenario::new(vec![path.with(|link| link.loss = loss)]);
    let app = scenario.add_stream_app(None, &[0]);
    let count = 1000;
    let made = Arrivals::Every {
        interval: Duration::ZERO,
        count,
    };
    scenario.dialogues.push(Dialogues {
        clients: count,
        ..Dialogues::new(app, made, 1, 1 << 30, 1)
    });
    let report = GatewayPair::new(&scenario, 1).run_for_measured(5 * SECOND);
    report.assert_safe();
    let streams = report.streams.iter();
    let shares: Vec<f64> = streams
        .map(|stream| stream.server.unwrap().read as f64)
        .collect();
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), share| {
        (sum + share, squares + share * share)
    });
    let jain = sum * sum / (squares * f64::from(count));
    assert!(jain > 0.98, "{jain}");
}

#[test]
fn many_who_have_little_do_not_starve_those_who_have_much() {
    for latency_target in [None, Some(20 * MS)] {
        let path = PathSpec::new(Bandwidth::from_mbit_per_second(50), 10 * MS);
        let mut scenario = Scenario::new(vec![path]);
        let bulk = scenario.add_stream_app(latency_target, &[0]);
        let thin = scenario.add_stream_app(latency_target, &[0]);
        for (app, clients, rounds, request) in [(bulk, 2, 1, 1 << 30), (thin, 500, 1 << 20, 1000)] {
            let made = Arrivals::Every {
                interval: Duration::ZERO,
                count: clients,
            };
            scenario.dialogues.push(Dialogues {
                clients,
                ..Dialogues::new(app, made, rounds, request, 10)
            });
        }
        let report = GatewayPair::new(&scenario, 1).run_for_measured(5 * SECOND);
        report.assert_safe();
        let bytes = |app: usize| {
            let streams = report
                .streams
                .iter()
                .filter(move |stream| stream.app == app);
            streams.map(|stream| stream.server.unwrap().read)
        };
        let (least, most) = (bytes(thin).min().unwrap(), bytes(thin).max().unwrap());
        assert!(
            most <= least * 5 / 4,
            "{latency_target:?}: {least} to {most} bytes"
        );
        let share = bytes(bulk).min().unwrap();
        assert!(
            share >= least,
            "{latency_target:?}: {share} against {least} bytes"
        );
    }
}

/// A path of the sweep: its rate, and how long it takes from A and to A.
#[derive(Clone, Copy, Debug)]
struct Uplink {
    mbit_per_second: u64,
    from_a: Duration,
    to_a: Duration,
}

/// Fibre, LTE, and two satellites of which one has a terrestrial line for what A sends.
const UPLINKS: [Uplink; 4] = [
    uplink(50, 6, 6),
    uplink(20, 26, 26),
    uplink(30, 150, 150),
    uplink(30, 20, 280),
];

const fn uplink(mbit_per_second: u64, from_a: u64, to_a: u64) -> Uplink {
    Uplink {
        mbit_per_second,
        from_a: Duration::from_millis(from_a),
        to_a: Duration::from_millis(to_a),
    }
}

/// Length of a bulk transfer.
const TRANSFER: u64 = 10_000_000;

/// How long a transfer to A takes whose bytes come over one path, while credit and acknowledgements
/// take another.
fn transfer_time(bytes: usize, credit: usize) -> Duration {
    let paths = UPLINKS.map(|uplink| {
        let rate = Bandwidth::from_mbit_per_second(uplink.mbit_per_second);
        let mut path = PathSpec::new(rate, uplink.from_a);
        path.link.backward.delay = uplink.to_a;
        path
    });
    let mut scenario = Scenario::new(paths.to_vec());
    let app = scenario.add_stream_app(None, &[credit]);
    let transfer = Dialogues::once(app, 1, 100, TRANSFER);
    scenario.dialogues.push(transfer);
    let paths = vec![bytes];
    let side = Side::B;
    scenario.add_event(Duration::ZERO, ScenarioEvent::Assign { side, app, paths });
    let report = GatewayPair::new(&scenario, 1).run();
    assert_all_done(&report);
    let dialogue = &report.dialogues[0];
    dialogue.done.expect("it is done") - dialogue.made
}

#[test]
fn a_transfer_has_the_rate_of_its_path_whichever_path_its_credit_takes() {
    for (bytes, way) in UPLINKS.iter().enumerate() {
        for (credit, back) in UPLINKS.iter().enumerate() {
            let at_rate = TRANSFER as f64 * 8.0 / (way.mbit_per_second as f64 * 1e6);
            // Headers take a twentieth. Windows begin with 16 KiB and grow fourfold a round trip.
            let round_trip = back.from_a + way.to_a;
            let most = Duration::from_secs_f64(1.06 * at_rate) + 6 * round_trip;
            let taken = transfer_time(bytes, credit);
            assert!(taken < most, "{bytes} {credit}: {taken:?} of {most:?}");
        }
    }
}

/// `count` MiB in bytes.
fn mebibytes(count: u64) -> ByteCount {
    ByteCount::new(count << 20)
}

#[test]
fn a_transfer_has_the_rate_of_a_long_path_with_every_memory() {
    // 3.75 MB are under way.
    let (mbit, rtt) = (50, 600 * MS);
    let took = [32, 48].map(|memory| {
        let rate = Bandwidth::from_mbit_per_second(mbit);
        let mut scenario = Scenario::new(vec![PathSpec::new(rate, rtt / 2)]);
        scenario.b.reassembly_bytes_max = mebibytes(memory);
        let app = scenario.add_stream_app(None, &[0]);
        scenario
            .dialogues
            .push(Dialogues::once(app, 1, 4 * TRANSFER, 1));
        let report = GatewayPair::new(&scenario, 1).run();
        assert_all_done(&report);
        report.dialogues[0].delay().unwrap()
    });
    let at_rate = Duration::from_secs(4 * TRANSFER * 8 / (mbit * 1_000_000));
    // Windows begin with 16 KiB.
    let most = at_rate.mul_f64(1.06) + 8 * rtt;
    assert!(took.iter().all(|took| *took < most), "{took:?} of {most:?}");
}

#[test]
fn transfers_over_long_paths_share_the_memory_whichever_began_first() {
    let rate = Bandwidth::from_mbit_per_second(100);
    let path = PathSpec::new(rate, 300 * MS);
    let mut scenario = Scenario::new(vec![path, path]);
    scenario.b.reassembly_bytes_max = mebibytes(48);
    // The first takes all of the memory there is.
    for (path, start) in [(0, Duration::ZERO), (1, 6 * SECOND)] {
        let app = scenario.add_stream_app(None, &[path]);
        scenario.dialogues.push(Dialogues {
            start,
            ..Dialogues::once(app, 1, 1 << 30, 1)
        });
    }
    let report = GatewayPair::new(&scenario, 1).run_for_measured(18 * SECOND);
    report.assert_safe();
    let read: Vec<f64> = report
        .streams
        .iter()
        .map(|stream| stream.server.unwrap().read as f64)
        .collect();
    // 8 MiB in a round trip are more than the path carries. A third of the time of the second; the rest is for
    // its beginning.
    let least = rate.as_bits_per_second() as f64 / 8.0 * 4.0;
    assert!(read.iter().all(|read| *read > least), "{read:?}");
}

#[test]
fn no_byte_is_lost_repeated_or_reordered_where_applications_are_spread() {
    for seed in 0..6 {
        let mut scenario = with_link(with_outages(scenario()), |link| {
            link.loss = Loss::Bernoulli(probability(0.02 * seed as f64));
            link.jitter = 10 * MS;
            link.jitter_overtakes = seed % 2 == 0;
        });
        scenario
            .apps
            .iter_mut()
            .for_each(|app| app.is_spread = true);
        assert_all_done(&GatewayPair::new(&scenario, seed).run());
    }
}
