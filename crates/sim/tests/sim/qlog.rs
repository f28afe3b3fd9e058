//! Diagnostics of a gateway's paths: counters and gauges, and the packet trace.

use std::{collections::BTreeMap, time::Duration};

use keiro_link::{Loss, Reorder};
use keiro_sim::{Arrivals, GatewayPair, Length, PathSpec, Scenario, Side};
use keiro_units::{Bandwidth, Probability};
use serde_json::Value;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn probability(value: f64) -> Probability {
    Probability::new(value).unwrap()
}

/// A path of 10 Mbit/s that loses and reorders; the gateways are configured with 20 Mbit/s.
fn scenario() -> Scenario {
    let mut path = PathSpec::new(Bandwidth::from_mbit_per_second(10), 20 * MS).with(|link| {
        link.loss = Loss::Bernoulli(probability(0.02));
        link.jitter = Duration::from_micros(500);
        link.reorder = Reorder {
            probability: probability(0.01),
            extra_delay: 30 * MS,
        };
    });
    path.rate = Bandwidth::from_mbit_per_second(20);
    let mut scenario = Scenario::new(vec![path]);
    for gateway in [&mut scenario.a, &mut scenario.b] {
        gateway.probe_share = probability(0.005);
    }
    scenario.a.qlog = true;
    let app = scenario.add_message_app(None, &[0]);
    let made = Arrivals::Every {
        interval: 20 * MS,
        count: 1000,
    };
    scenario.add_traffic(app, made, Length::Fixed(10_000));
    scenario
}

#[test]
fn every_figure_of_a_lossy_path_is_counted() {
    let mut pair = GatewayPair::new(&scenario(), 1);
    pair.set_up().unwrap_or_else(|failure| panic!("{failure}"));
    pair.begin();
    pair.run_for(15 * SECOND);
    let stats = pair.gateway(Side::A).session().unwrap().paths[0].stats;
    let configured = Some(Bandwidth::from_mbit_per_second(20));
    assert_eq!(stats.configured_rate, configured);
    let pacing = stats.pacing_rate.as_bits_per_second();
    assert!((9_000_000..10_500_000).contains(&pacing), "{stats:?}");
    assert!(stats.lost_packets > 100, "{stats:?}");
    assert!(
        (1..stats.lost_packets).contains(&stats.spurious_lost_packets),
        "{stats:?}"
    );
    assert!(stats.probe_bytes > 0, "{stats:?}");
    assert!(
        stats.delay_variation.is_some_and(|v| v > Duration::ZERO),
        "{stats:?}"
    );
    assert!(
        stats
            .smoothed_delay_variation
            .is_some_and(|v| v > Duration::ZERO),
        "{stats:?}"
    );
    assert!(
        stats.rttvar.is_some_and(|v| v > Duration::ZERO),
        "{stats:?}"
    );
    assert!(stats.acked_packets > 1000, "{stats:?}");
    assert!(stats.retransmitted_bytes > 0, "{stats:?}");
}

fn records(qlog: &[u8]) -> Vec<Value> {
    let mut records = qlog.split(|byte| *byte == 0x1e);
    assert_eq!(records.next(), Some(&[][..]));
    records
        .map(|record| serde_json::from_slice(record).expect("a JSON text per record"))
        .collect()
}

#[test]
fn the_trace_has_what_the_counters_count() {
    let report = |scenario: &Scenario| {
        let mut pair = GatewayPair::new(scenario, 1);
        pair.set_up().unwrap_or_else(|failure| panic!("{failure}"));
        pair.begin();
        pair.run_for(2 * SECOND);
        let gateway = pair.gateway(Side::A);
        (
            gateway.session().unwrap().paths[0].stats,
            gateway.log().qlog.clone(),
        )
    };
    let (stats, qlog) = report(&scenario());
    let records = records(&qlog);
    assert_eq!(records[0]["qlog_format"], "JSON-SEQ");
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut time = 0.0;
    for record in &records[1..] {
        *counts.entry(record["name"].as_str().unwrap()).or_default() += 1;
        let at = record["time"].as_f64().unwrap();
        assert!(at >= time, "{record} after {time}");
        time = at;
        assert_eq!(record["path"], "path0");
    }
    let of = |name: &str| counts.get(name).copied().unwrap_or_default();
    // Packets before the start of the recording are in the counters alone.
    let early = stats.sent_packets - of("transport:packet_sent");
    assert!(early <= 3, "{stats:?} {counts:?}");
    assert!(stats.received_packets - of("transport:packet_received") <= 3);
    let acked = of("transport:packets_acked") + of("keiro:spurious_loss");
    assert_eq!(acked, stats.acked_packets);
    // Lost MTU probes are lost packets of the trace, but not of the path. PTO-retransmitted packets count as
    // lost before loss detection confirms it.
    let lost = of("recovery:packet_lost");
    assert!(
        lost > 0 && lost.abs_diff(stats.lost_packets) <= 20,
        "{stats:?} {counts:?}"
    );
    let spurious = of("keiro:spurious_loss");
    assert!(
        spurious.abs_diff(stats.spurious_lost_packets) <= 20,
        "{stats:?} {counts:?}"
    );
    assert_eq!(of("keiro:path_validated"), 1, "{counts:?}");
    assert!(of("connectivity:mtu_updated") > 0, "{counts:?}");
    assert!(of("recovery:metrics_updated") > 0, "{counts:?}");

    let mut silent = scenario();
    silent.a.qlog = false;
    let (without, qlog) = report(&silent);
    assert_eq!((without, qlog.len()), (stats, 0), "tracing changes nothing");
}
