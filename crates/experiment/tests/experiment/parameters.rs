//! Studies of S, I and N, from plan to files.

use keiro_experiment::{
    campaign::{Campaign, Options},
    plan::Plan,
    report::Report,
    simulator::Simulator,
};

/// Runs these variants of a plan's quick extent in the simulator.
fn run(id: &str, variants: &[&str]) -> (Report, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        quick: true,
        variants: variants.iter().map(|name| (*name).to_owned()).collect(),
        results: directory.path().to_owned(),
        version: "test",
    };
    let mut campaign = Campaign::new(options, vec![Box::new(Simulator)]);
    let plan = Plan::find(id).unwrap();
    let report = campaign.run(&plan, &mut |_| {});
    let report = report.unwrap_or_else(|error| panic!("{error:#}"));
    (report, directory)
}

fn value(report: &Report, name: &str) -> f64 {
    let row = report.rows.iter().find(|row| row.name == name);
    let row = row.unwrap_or_else(|| panic!("no row {name}:\n{}", report.table()));
    row.measured
        .unwrap_or_else(|| panic!("{name} has no value"))
}

#[test]
fn controllers_meet_every_impairment_and_leave_a_figure() {
    let (report, directory) = run("aggregation/controller-path", &["adaptive", "none"]);
    let before = value(&report, "none before lost sim");
    assert_eq!(before, 0.0, "{}", report.table());
    for trouble in ["slow receiver", "others' bursts", "line loss", "congestion"] {
        let lost = value(&report, &format!("none {trouble} lost sim"));
        assert!(lost > 0.0, "`{trouble}` loses nothing:\n{}", report.table());
    }
    for file in ["path-adaptive-sim.svg", "path-none-sim.csv", "trace.csv"] {
        assert!(report.files.iter().any(|name| name == file), "{file}");
    }
    let trace = directory.path().join(&report.directory).join("trace.csv");
    let trace = std::fs::read_to_string(trace).unwrap();
    let sizes = |controller: &str| -> std::collections::BTreeSet<&str> {
        let of_controller = trace.lines().filter(|line| line.contains(controller));
        of_controller
            .filter_map(|line| line.split(',').nth(4))
            .collect()
    };
    // Without a controller, only S follows the bandwidth.
    assert!(sizes(",adaptive,").len() > sizes(",none,").len(), "{trace}");
}

#[test]
fn combinations_are_measured_in_every_condition() {
    let (report, _directory) = run("aggregation/table1", &[]);
    let of = |cell: &str| value(&report, &format!("{cell} sim"));
    assert!(of("N 3 line loss sent") > 2.0 * of("N 1 line loss sent"));
    assert!(of("I 4ms line loss packets") < of("I 500us line loss packets"));
    assert!(of("default congestion lost") >= 0.0);
    assert!(report.files.iter().any(|name| name == "effects-sim.svg"));
}
