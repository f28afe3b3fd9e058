//! Transfers in the laboratory: `keiro measure` over an emulated link, from plan to files, and kernel
//! connections over a recorded line.

use std::time::Duration;

use keiro_experiment::{
    campaign::{Campaign, Options, Runners},
    laboratory::{Laboratory, Programs},
    plan::Plan,
    recorded::{RecordedRequest, RecordedRunner, Transport},
    report::Report,
};
use keiro_link::Trace;

/// Small transfers over the LAN, once; `None` without root.
fn run(settings: &[&str]) -> Option<(Report, tempfile::TempDir)> {
    if !Laboratory::is_possible() {
        eprintln!("not root: nothing was run in the laboratory");
        return None;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let options = Options {
        quick: false,
        variants: vec!["lan".to_owned()],
        results: directory.path().to_owned(),
        version: "test",
    };
    let few = [
        "transfers.sizes=[\"50kB\", \"100kB\", \"150kB\", \"200kB\", \"300kB\", \"400kB\", \"500kB\", \"600kB\"]",
        "transfers.split=200kB",
        "transfers.lab.rounds=1",
    ];
    let settings: Vec<_> = few
        .iter()
        .chain(settings)
        .map(|set| set.parse().expect("a setting"))
        .collect();
    let plan = Plan::find("latency-bandwidth/fig3").expect("it is built in");
    let plan = plan.with(&settings).expect("it is valid");
    // No program is started.
    let programs = Programs {
        keiro: "keiro-is-not-used".into(),
        keiro_lab: "keiro-lab-is-not-used".into(),
    };
    let laboratory = Laboratory::new(programs, None);
    let report = Campaign::new(options, Runners::default().with_laboratory(&laboratory))
        .run(&plan, &mut |_| {});
    Some((
        report.unwrap_or_else(|error| panic!("{error:#}")),
        directory,
    ))
}

fn value(report: &Report, name: &str) -> Option<f64> {
    let row = report.rows.iter().find(|row| row.name == name);
    row.unwrap_or_else(|| panic!("no row {name}:\n{}", report.table()))
        .measured
}

#[test]
fn transfers_of_the_laboratory_have_rows_of_their_own_and_a_figure() {
    let Some((report, directory)) = run(&[]) else {
        return;
    };
    assert_eq!(value(&report, "unended lan"), Some(0.0));
    let line = value(&report, "slope above lan");
    assert!(line.is_some_and(|slope| slope > 0.0), "{}", report.table());
    assert!(report.rows.iter().all(|row| !row.name.ends_with(" sim")));
    let read = |name: &str| {
        let file = directory.path().join(&report.directory).join(name);
        std::fs::read_to_string(file).expect(name)
    };
    assert_eq!(
        read("times.csv")
            .lines()
            .filter(|line| line.starts_with("lab,lan,0,"))
            .count(),
        8
    );
    assert!(read("time.svg").contains("laboratory;"));
    assert!(report.manifest.notes[0].starts_with("NOT MEASURED: nothing of the simulator"));
}

#[test]
fn a_transfer_of_the_laboratory_ends_with_its_time() {
    // 50 kB take four seconds.
    let slow = [
        "transfers.networks.lan.rate=100kbit",
        "transfers.lab.duration=500ms",
    ];
    let Some((report, _directory)) = run(&slow) else {
        return;
    };
    assert_eq!(
        value(&report, "unended lan"),
        Some(8.0),
        "{}",
        report.table()
    );
}

#[test]
fn a_buffer_that_fills_holds_up_what_is_behind_it() {
    let full = [
        // Slow enough to be followed.
        "transfers.networks.lan.rate=8Mbit",
        "transfers.networks.lan.full.after=250kB",
        "transfers.networks.lan.full.standstill=600ms",
        "transfers.networks.lan.full.rate=8Mbit",
    ];
    let Some((report, _directory)) = run(&full) else {
        return;
    };
    let of = |name: &str| value(&report, name).unwrap_or_else(|| panic!("{name} has no value"));
    assert!(of("overhead below lan") < 0.2, "{}", report.table());
    // They end after the first half of the standstill.
    assert!(of("overhead above lan") > 0.2, "{}", report.table());
}

#[test]
fn a_kernel_connection_over_a_recorded_line_queues_and_delays_the_thin_application() {
    if !Laboratory::is_possible() {
        eprintln!("not root: nothing was run in the laboratory");
        return;
    }
    let plan = Plan::find("uplinks/recorded").expect("it is built in");
    let recorded = plan.recorded().expect("of recordings");
    // 6 Mbit/s.
    let lines: String = (1..=1500).map(|step| format!("{}\n", step * 2)).collect();
    let trace = Trace::from_mahimahi(&lines).expect("a recording");
    let programs = Programs {
        keiro: "keiro-is-not-used".into(),
        keiro_lab: "keiro-lab-is-not-used".into(),
    };
    let mut laboratory = Laboratory::new(programs, None);
    let request = RecordedRequest {
        recorded,
        link: &recorded.links[0],
        trace: &trace,
        transports: &[Transport::Cubic, Transport::Alone],
        seed: 1,
        duration: Duration::from_secs(3),
        drain: Duration::from_secs(2),
    };
    let outcome = RecordedRunner::run(&mut laboratory, &request, &mut |_| {});
    let outcome = outcome.unwrap_or_else(|error| panic!("{error:#}"));
    let [cubic, alone] = [Transport::Cubic, Transport::Alone].map(|of| &outcome.carried[&of]);
    let most = 6_000_000 / 8 * 3;
    assert!(
        (most / 4..most).contains(&cubic.received_bytes),
        "{cubic:?}"
    );
    assert_eq!(alone.received_bytes, 0);
    // CUBIC fills a buffer of a second; alone a datagram waits for the next opportunity only.
    assert!(cubic.queue_p95_ms > Some(100.0), "{:?}", cubic.queue_p95_ms);
    assert!(alone.queue_p95_ms < Some(10.0), "{:?}", alone.queue_p95_ms);
    assert_eq!(alone.thin_ms.len(), 60);
    let mut delays: Vec<f64> = alone
        .thin_ms
        .iter()
        .map(|ms| ms.expect("none is lost"))
        .collect();
    delays.sort_by(f64::total_cmp);
    assert!((25.0..60.0).contains(&delays[30]), "{delays:?}");
}
