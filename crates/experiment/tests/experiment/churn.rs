//! Applications that come and go, in the simulator.

use keiro_experiment::{plan::Plan, report::Report};

use crate::simulate;

const ID: &str = "path-selection/churn";

fn value(report: &Report, name: &str) -> f64 {
    let row = report.rows.iter().find(|row| row.name == name).expect(name);
    row.measured
        .unwrap_or_else(|| panic!("{name} has no value"))
}

#[test]
fn applications_move_when_others_go_if_paths_are_chosen_anew() {
    let (report, directory) = simulate(
        ID,
        &["run.rounds=1", "run.duration=70s"],
        &["once", "paper", "keiro"],
    );
    assert_eq!(value(&report, "moves once"), 0.0);
    for policy in ["paper", "keiro"] {
        assert!(
            value(&report, &format!("moves {policy}")) >= 1.0,
            "{}",
            report.table()
        );
    }
    assert!(
        value(&report, "voice met keiro") >= 99.0,
        "{}",
        report.table()
    );
    let read = |name: &str| {
        let file = directory.path().join(&report.directory).join(name);
        std::fs::read_to_string(file).expect(name)
    };
    let svg = read("over-time.svg");
    for text in [
        "keiro: path of each application",
        "once: mean delay",
        "bulk4",
        "path2",
    ] {
        assert!(svg.contains(text), "{text} is missing");
    }
    // Messages are made only while their application is there.
    let messages = read("messages.csv");
    let of_bulk1: Vec<f64> = messages
        .lines()
        .filter(|line| line.contains(",bulk1,"))
        .map(|line| {
            line.split(',')
                .nth(3)
                .expect("a time")
                .parse()
                .expect("a number")
        })
        .collect();
    assert!(of_bulk1.len() > 100 && of_bulk1.iter().all(|at| (10.0..60.0).contains(at)));
}

#[test]
fn wrong_applications_and_policies_are_refused() {
    let plan = Plan::find(ID).expect("it is built in");
    for (set, part) in [
        (
            "applications.voice.active=[[\"9s\", \"3s\"]]",
            "`active` is pairs of times",
        ),
        (
            "applications.voice.name=control",
            "`control` is not one word, or is there twice",
        ),
        ("applications.voice.length=0B", "a length of 1 to"),
        ("applications.voice.interval=1ns", "make intervals longer"),
        ("paths.path1.bandwidth=0Mbit", "has no bandwidth"),
        (
            "policies.one-path.assignment.one-path=path9",
            "there is no path `path9`",
        ),
        (
            "policies.once.assignment={given = [\"path1\"]}",
            "a path for each application",
        ),
        ("policies=[]", "`policies` is empty"),
        ("run.rounds=0", "[run] counts nothing"),
    ] {
        let error = plan
            .clone()
            .with(&[set.parse().expect("a setting")])
            .expect_err(set);
        assert!(
            error.to_string().contains(part),
            "`{part}` is missing in: {error}"
        );
    }
}
