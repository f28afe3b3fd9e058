//! Queues are bounded: a full queue refuses or drops, and empties again. Every run of every test checks the
//! configured limits at every sample.

use std::time::Duration;

use keiro_core::{MessageOutcome, RefusalReason};
use keiro_sim::{
    Arrivals, Change, GatewayPair, Length, PathDirection, PathSpec, Receiver, Scenario,
    ScenarioEvent, Side,
};
use keiro_units::{Bandwidth, ByteCount};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn scenario(count: u32, length: usize) -> Scenario {
    let path = PathSpec::new(Bandwidth::from_mbit_per_second(20), 5 * MS);
    let mut scenario = Scenario::new(vec![path]);
    let app = scenario.add_message_app(Some(100 * MS), &[0]);
    let made = Arrivals::Every {
        interval: MS,
        count,
    };
    scenario.add_traffic(app, made, Length::Fixed(length));
    scenario
}

#[test]
fn full_send_queue_refuses_and_takes_again_later() {
    let mut scenario = scenario(100, 50_000);
    scenario.a.send_queue_bytes_max = ByteCount::new(200_000);
    let report = GatewayPair::new(&scenario, 1).run();
    report.assert_complete();
    assert!(report.sides[0].queue_full > 0, "{report}");
    assert!(report.sides[0].queued_bytes_max > 100_000, "{report}");
}

#[test]
fn send_queue_stays_bounded_while_no_path_is_up() {
    let mut scenario = scenario(200, 10_000);
    scenario.a.send_queue_bytes_max = ByteCount::new(100_000);
    for (at, change) in [(50 * MS, Change::Down), (5 * SECOND, Change::Up)] {
        let what = ScenarioEvent::Path {
            path: 0,
            direction: PathDirection::Both,
            change,
        };
        scenario.add_event(at, what);
    }
    let report = GatewayPair::new(&scenario, 1).run();
    report.assert_complete();
    assert!(report.sides[0].queue_full > 0, "{report}");
}

/// Messages of 1 MB to a receiver with 20 MB of reassembly (16 MiB is the minimum).
fn large_messages(receiver: Receiver) -> Scenario {
    let path = PathSpec::new(Bandwidth::from_mbit_per_second(1000), 5 * MS);
    let mut scenario = Scenario::new(vec![path]);
    let app = scenario.add_message_app(Some(100 * MS), &[0]);
    let made = Arrivals::Every {
        interval: MS,
        count: 60,
    };
    scenario.add_traffic(app, made, Length::Fixed(1_000_000));
    scenario.b.reassembly_bytes_max = ByteCount::new(20_000_000);
    scenario.b.receiver = receiver;
    scenario
}

#[test]
fn slow_receiver_holds_the_sender_back() {
    let scenario = large_messages(Receiver::TakesAfter(500 * MS));
    let report = GatewayPair::new(&scenario, 1).run();
    report.assert_complete();
    let most = report.sides[1].reassembly_bytes_max;
    assert!(most > 15_000_000, "{most}\n{report}");
    let session = report.sides[1].session.as_ref().unwrap();
    assert_eq!(session.stats.reassembly_bytes, 0, "{report}");
}

#[test]
fn receiver_that_never_takes_anything_costs_bounded_memory() {
    let scenario = large_messages(Receiver::Holds);
    let report = GatewayPair::new(&scenario, 1).run_for_measured(10 * SECOND);
    report.assert_safe();
    assert!(
        report.messages.iter().all(|m| m.outcome.is_none()),
        "{report}"
    );
    let delivered = report.messages.iter().filter(|m| m.deliveries > 0).count();
    assert!((15..=20).contains(&delivered), "{delivered}\n{report}");
    // A refused message is not sent again and again.
    let carried = report.links[0][0].arrived_bytes;
    assert!(
        carried < 22_000_000,
        "{carried} bytes for nothing\n{report}"
    );
}

#[test]
fn refused_messages_end_with_their_reason() {
    let mut scenario = scenario(50, 2000);
    scenario.b.receiver = Receiver::Refuses(RefusalReason::NoReceiver);
    let report = GatewayPair::new(&scenario, 1).run();
    report.assert_complete();
    let refused = Some(MessageOutcome::Refused(RefusalReason::NoReceiver));
    assert!(
        report.messages.iter().all(|m| m.outcome == refused),
        "{report}"
    );
}

#[test]
fn flood_of_datagrams_is_dropped_here_and_counted() {
    let path = PathSpec::new(Bandwidth::from_mbit_per_second(5), 5 * MS);
    let mut scenario = Scenario::new(vec![path]);
    let app = scenario.add_datagram_app(None, &[0]);
    let made = Arrivals::Every {
        interval: Duration::from_micros(100),
        count: 20_000,
    };
    scenario.add_traffic(app, made, Length::Fixed(1000));
    let mut pair = GatewayPair::new(&scenario, 1);
    pair.set_up().unwrap_or_else(|failure| panic!("{failure}"));
    pair.begin();
    pair.run_for(SECOND);
    let queued = pair.gateway(Side::A).session().unwrap().paths[0]
        .stats
        .queued_bytes;
    assert!(queued <= 4 << 20, "{queued} bytes queued");
    pair.finish().unwrap_or_else(|failure| panic!("{failure}"));
    let report = pair.report();
    report.assert_safe();
    let session = report.sides[0].session.as_ref().unwrap();
    let delivered = report.datagrams.iter().filter(|d| d.delivered_at.is_some());
    let delivered = delivered.count() as u64;
    assert_eq!(
        session.apps[0].stats.refused_messages + delivered,
        20_000,
        "{report}"
    );
    assert_eq!(report.links[0][0].drops.buffer, 0, "{report}");
}
