//! Tenants that share bottlenecks, from plan to files, in the simulator.

use keiro_experiment::{
    campaign::{Campaign, Options, Runners},
    plan::Plan,
    report::Report,
    row::Verdict,
};

/// Short: its targets concern a second or two.
const PLAN: &str = r#"
id = "test/sharing"
title = "Two tenants"
source = "[fairness fig. 2]"
tenants = "shares"
hosts = ["linux"]
begin = "1s"
controls = [
    { name = "none", controller = "none" },
    { name = "keiro", controller = { keiro = {} } },
    { name = "classes", controller = "classes" },
]
targets = [
    "classes F >= 0.97 of 1",
    "classes share 2 <= 104 %",
    "keiro F >= none F",
    "keiro settled <= 0 s",
]

[[settings]]
name = "two"
unit = "3Mbit"
bottlenecks = [{ rate = "10Mbit", buffer_packets = 30, background = "10%" }]
tenants = [
    { weight = 1, flows = 8, delay = "5ms" },
    { weight = 2, udp = "20Mbit", delay = "5ms" },
]

[run]
rounds = 2
duration = "10s"
warm_up = "4s"
seed = 3

[quick]
rounds = 1
duration = "10s"
warm_up = "4s"
seed = 3
"#;

fn run(text: &str, variants: &[&str]) -> anyhow::Result<(Report, tempfile::TempDir)> {
    let directory = tempfile::tempdir()?;
    let options = Options {
        quick: false,
        variants: variants.iter().map(|name| (*name).to_owned()).collect(),
        results: directory.path().to_owned(),
        version: "test",
    };
    let plan = Plan::parse("plan.toml", text, |_| None)?;
    let report =
        Campaign::new(options, Runners::default().with_simulator()).run(&plan, &mut |_| {})?;
    Ok((report, directory))
}

#[test]
fn every_control_is_reported_with_its_files() {
    let (report, directory) = run(PLAN, &[]).expect("it can be run");
    let row = |name: &str| {
        let row = report.rows.iter().find(|row| row.name == name);
        row.unwrap_or_else(|| panic!("no row {name}: {}", report.table()))
    };
    let table = report.table();
    assert_eq!(row("classes F").verdict, Verdict::Reached, "{table}");
    assert_eq!(row("classes share 2").verdict, Verdict::Reached, "{table}");
    // Without control the unresponsive tenant gets nearly everything.
    assert_eq!(row("keiro F").verdict, Verdict::Reached, "{table}");
    assert!(row("none F").measured < Some(0.9), "{table}");
    assert!(row("keiro F").low.is_some(), "{table}");
    for name in ["shares.svg", "shares.csv", "seconds.csv"] {
        assert!(
            report.files.contains(&name.to_owned()),
            "{:?}",
            report.files
        );
    }
    let directory = directory.path().join(&report.directory);
    let seconds = std::fs::read_to_string(directory.join("seconds.csv")).expect("it was written");
    assert_eq!(seconds.lines().count(), 1 + 3 * 2 * 10 * 2);
}

#[test]
fn the_same_seeds_give_the_same_rows() {
    let rows = || run(PLAN, &["keiro"]).expect("it can be run").0.rows;
    assert_eq!(rows(), rows());
}

#[test]
fn an_unknown_control_is_refused() {
    let error = run(PLAN, &["keira"])
        .expect_err("there is none")
        .to_string();
    assert!(error.contains("did you mean `keiro`"), "{error}");
}
