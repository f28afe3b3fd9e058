//! A comparison of transports of transactions, from plan to files.

use keiro_experiment::{
    campaign::{Campaign, Options, Runners},
    laboratory::{Laboratory, Programs},
    plan::Plan,
    report::Report,
    row::Verdict,
};

const PLAN: &str = include_str!("../../../experiments/aggregation/table5/plan.toml");

/// The plan with six round trips only, and a shorter extent.
fn short_plan() -> Plan {
    let of_six = PLAN.lines().filter(|line| !line.contains("12rt"));
    let text: String = of_six.flat_map(|line| [line, "\n"]).collect();
    let text = text.replace("round_trips = [6, 12]", "round_trips = [6]");
    // Only the second second counts, with 400 transactions.
    let text = text.replace("duration = \"6s\"", "duration = \"2s\"");
    Plan::parse("plan.toml", &text, |_| None).unwrap_or_else(|error| panic!("{error}"))
}

fn run(variants: &[&str], runners: Runners<'_>) -> (Report, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        quick: true,
        variants: variants.iter().map(|way| (*way).to_owned()).collect(),
        results: directory.path().to_owned(),
        version: "test",
    };
    let mut campaign = Campaign::new(options, runners);
    let report = campaign.run(&short_plan(), &mut |_| {});
    let report = report.unwrap_or_else(|error| panic!("{error:#}"));
    (report, directory)
}

fn value(report: &Report, name: &str) -> Option<f64> {
    let row = report.rows.iter().find(|row| row.name == name);
    row.unwrap_or_else(|| panic!("no row {name}")).measured
}

#[test]
fn transports_are_reported_with_their_counters() {
    if !Laboratory::is_possible() {
        eprintln!("not root: nothing was run in the laboratory");
        return;
    }
    let laboratory = Laboratory::new(programs("keiro-is-not-used"), None);
    let (report, directory) = run(
        &["tcp-cubic", "tcp-lossless"],
        Runners::default().with_laboratory(&laboratory),
    );
    assert_eq!(report.rows.len(), 4 * 6, "{}", report.table());
    for way in ["tcp-cubic no load", "tcp-lossless load"] {
        let least = value(&report, &format!("{way} min 6rt")).unwrap();
        assert!((6.0..30.0).contains(&least), "{way}: {least} ms");
        assert_eq!(value(&report, &format!("{way} unended 6rt")), Some(0.0));
    }
    let read = |file: &str| {
        let path = directory.path().join(&report.directory).join(file);
        std::fs::read_to_string(path).unwrap()
    };
    assert_eq!(read("runs.csv").lines().count(), 1 + 4);
    assert!(
        read("runs.csv")
            .lines()
            .nth(1)
            .unwrap()
            .contains(",2020,400,")
    );
    assert!(read("counters.csv").contains("router,uplink_send_drops,"));
    assert!(read("ecdf-6rt-load.csv").contains("tcp-lossless,"));
    let table = report.table();
    assert!(
        !report.files.contains(&"messages.csv".to_owned()),
        "{table}"
    );
}

#[test]
fn a_transport_that_cannot_be_measured_is_void_and_named() {
    let laboratory = Laboratory::new(programs("keiro-is-not-used"), None);
    let (report, _directory) = run(&["kcp"], Runners::default().with_laboratory(&laboratory));
    assert!(report.rows.iter().all(|row| row.verdict == Verdict::Void));
    assert!(!report.is_reached());
    let note = &report.manifest.notes[0];
    assert!(note.starts_with("NOT MEASURED: all rows of kcp"), "{note}");
    assert!(note.contains("--peers"), "{note}");
}

#[test]
fn without_the_laboratory_rows_are_left_out_with_a_note() {
    let (report, _directory) = run(&["tcp-cubic"], Runners::default().with_simulator());
    assert!(report.rows.is_empty());
    assert!(report.manifest.notes[0].starts_with("NOT MEASURED: all rows of tcp-cubic"));
}

#[test]
fn an_unknown_transport_is_refused_with_the_nearest() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        quick: true,
        variants: vec!["tcp-cubik".to_owned()],
        results: directory.path().to_owned(),
        version: "test",
    };
    let mut campaign = Campaign::new(options, Runners::default().with_simulator());
    let error = campaign.run(&short_plan(), &mut |_| {}).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("did you mean `tcp-cubic`"), "{error}");
}

fn programs(name: &str) -> Programs {
    Programs {
        keiro: name.into(),
        keiro_lab: name.into(),
    }
}
