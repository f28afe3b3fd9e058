//! Timed messages over kernel TCP and MPTCP between two hosts.

mod support;

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use keiro_lab::{
    Lab, Topology,
    traffic::{
        AppTraffic, Baseline, Exchange, Plan, TrafficError, Transport, run_baseline, summarize,
    },
};
use keiro_units::ByteCount;
use support::{topology, unique_name, up};

const TWO_PATHS: &str = r#"
[host.tokyo]
[host.osaka]
[link.slow]
a = { host = "tokyo", addresses = ["192.0.2.1/24"] }
b = { host = "osaka", addresses = ["192.0.2.2/24"] }
each_way = { rate = "100Mbit", delay = "20ms", buffer = "1MB" }
[link.fast]
a = { host = "tokyo", addresses = ["198.51.100.1/24"] }
b = { host = "osaka", addresses = ["198.51.100.2/24"] }
each_way = { rate = "20Mbit", delay = "2ms", buffer = "1MB" }
"#;

fn plan() -> Plan {
    let app = |number, length, interval_ms| AppTraffic {
        number,
        name: format!("A{number}"),
        length: ByteCount::new(length),
        mean_interval: Duration::from_millis(interval_ms),
    };
    Plan {
        apps: vec![app(1, 10_000, 20), app(2, 100_000, 100)],
        seed: 11,
        duration: Duration::from_secs(2),
        drain: Duration::from_secs(10),
    }
}

fn run(lab: &Lab, transport: &Transport) -> Result<Exchange, TrafficError> {
    let seen = AtomicUsize::new(0);
    let count = |_: &_| {
        seen.fetch_add(1, Ordering::Relaxed);
    };
    let baseline = Baseline {
        from: "tokyo".into(),
        to: "osaka".into(),
        transport: transport.clone(),
        congestion: Some("cubic".into()),
    };
    let exchange = run_baseline(lab, &baseline, &plan(), &count, &AtomicBool::new(false))?;
    assert_eq!(seen.into_inner(), exchange.records.len());
    Ok(exchange)
}

fn two_paths() -> Topology {
    topology(TWO_PATHS)
}

fn mptcp() -> Transport {
    Transport::Mptcp {
        first: "fast".into(),
        also: vec!["slow".into()],
    }
}

#[test]
fn tcp_delays_are_those_of_its_link() {
    let lab = up(&two_paths(), &unique_name());
    let exchange = run(
        &lab,
        &Transport::Tcp {
            link: "fast".into(),
        },
    )
    .unwrap();
    assert!(
        exchange
            .records
            .iter()
            .all(|record| record.received_ns.is_some())
    );
    assert_eq!((exchange.duplicates, exchange.strangers), (0, 0));
    // 10 kB take 4 ms at 20 Mbit/s, plus 2 ms of delay.
    let least = exchange
        .records
        .iter()
        .filter(|r| r.app == 1)
        .filter_map(|r| r.delay())
        .min();
    assert!(least.unwrap() >= Duration::from_millis(6), "{least:?}");
    let summaries = summarize(&exchange.records);
    assert!(summaries[0].mean < Duration::from_secs(1), "{summaries:?}");
    let report = lab.emulator_report().unwrap().unwrap();
    // The host's own IPv6 packets are not messages.
    let bytes = report.link("slow").unwrap().a_to_b.link.arrived_bytes;
    assert!(bytes < 1000, "{bytes} bytes over the other link");
}

#[test]
fn same_seed_makes_the_same_messages_for_every_transport() {
    let lab = up(&two_paths(), &unique_name());
    let times = |transport: &Transport| -> Vec<_> {
        let records = run(&lab, transport).unwrap().records;
        let zero = records[0].made_ns;
        let relative = |made_ns: u64| i128::from(made_ns) - i128::from(zero);
        records
            .iter()
            .map(|r| (r.app, r.seq, relative(r.made_ns)))
            .collect()
    };
    assert_eq!(
        times(&Transport::Tcp {
            link: "fast".into()
        }),
        times(&mptcp())
    );
}

#[test]
fn mptcp_uses_both_links() {
    let lab = up(&two_paths(), &unique_name());
    let exchange = run(&lab, &mptcp()).unwrap();
    assert!(
        exchange
            .records
            .iter()
            .all(|record| record.received_ns.is_some())
    );
    let report = lab.emulator_report().unwrap().unwrap();
    for link in ["fast", "slow"] {
        let bytes = report.link(link).unwrap().a_to_b.link.departed_bytes;
        assert!(bytes > 100_000, "{link}: {bytes} bytes");
    }
}

#[test]
fn mptcp_without_its_second_path_fails_loudly() {
    let name = unique_name();
    let lab = up(&two_paths(), &name);
    lab.link("slow").unwrap().cut().unwrap();
    let error = run(&lab, &mptcp()).unwrap_err();
    assert!(matches!(error, TrafficError::Subflows { .. }), "{error}");
    let message = error.to_string();
    assert!(
        message.starts_with(
            "MPTCP uses subflows from 198.51.100.1 instead of 192.0.2.1 and 198.51.100.1"
        ),
        "{message}"
    );
}
