//! Studies of S, I and N, from plan to files.

use keiro_experiment::{
    campaign::{Campaign, Options, Runners},
    plan::Plan,
    report::Report,
};

use crate::simulate;

/// Runs these variants of a plan's quick extent in the simulator.
fn run(id: &str, variants: &[&str]) -> (Report, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let options = Options {
        quick: true,
        variants: variants.iter().map(|name| (*name).to_owned()).collect(),
        results: directory.path().to_owned(),
        version: "test",
    };
    let mut campaign = Campaign::new(options, Runners::default().with_simulator());
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

#[test]
fn the_simulator_has_one_of_several_senders_with_its_share_of_the_receiver() {
    let short = ["run.rounds=1", "run.duration=4s", "run.warm_up=1s"];
    let variant = "off 2 Mbit/s load";
    let lost = |settings: &[&str]| {
        let settings = [&short, settings].concat();
        let (report, _directory) = simulate("aggregation/load", &settings, &[variant]);
        value(&report, &format!("{variant} lost sim"))
    };
    let of_two = lost(&[]);
    assert!(of_two > 0.0, "the load loses nothing");
    let as_alone = [
        "senders=1",
        "conditions.4.trouble.receiver={ each = \"832us\", room = 32 }",
    ];
    assert_eq!(lost(&as_alone), of_two);
}

#[test]
fn conditions_that_name_a_column_share_its_lines() {
    let short = ["run.rounds=1", "run.duration=3s", "run.warm_up=1s"];
    let (report, directory) = simulate(
        "aggregation/load",
        &short,
        &["off 1 Mbit/s", "off 1 Mbit/s load"],
    );
    let csv = directory
        .path()
        .join(&report.directory)
        .join("effects-sim.csv");
    let csv = std::fs::read_to_string(csv).expect("the figure's numbers");
    for column in ["control, no load", "control, load", "control, heavy load"] {
        assert!(
            csv.contains(&format!("1 Mbit/s,\"{column}\",off,")),
            "{column}:\n{csv}"
        );
    }
}

#[test]
fn wrong_senders_are_refused() {
    let plan = Plan::find("aggregation/load").unwrap();
    for (set, part) in [
        ("senders=0", "`senders` is 1 to 2"),
        ("senders=3", "`senders` is 1 to 2"),
        (
            "conditions.0.trouble={ loss = \"1%\" }",
            "a trouble is `receiver`",
        ),
    ] {
        let error = plan.clone().with(&[set.parse().unwrap()]).unwrap_err();
        assert!(error.to_string().contains(part), "{set}: {error}");
    }
}
