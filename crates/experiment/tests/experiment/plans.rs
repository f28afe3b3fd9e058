//! The plans of this repository, and errors of wrong plans.

use keiro_experiment::{
    parameters::StudyKind,
    plan::{Kind, Plan},
    row::RowName,
};

const SETUP: &str = include_str!("../../../../experiments/path-selection/five-applications.toml");

const PLAN: &str = r#"
id = "test/plan"
title = "A plan"
source = "[path-selection table 6]"
kind = "measurement"
setup = "test/setup"
rows = ["{app} mean {variant}", "A3 mean keiro sim", "undelivered {variant}"]
targets = ["A3 mean keiro <= 11.5 ms", "A3 mean keiro sim within 5 % or 0.3 ms of A3 mean keiro"]
figures = [{ shape = "ecdf", application = "A3", variants = ["keiro"] }]

[paper]
"A3 mean keiro" = 17.7
"#;

fn parse(plan: &str) -> Result<Plan, String> {
    parse_with(plan, SETUP)
}

fn parse_with(plan: &str, setup: &str) -> Result<Plan, String> {
    let setup = |id: &str| (id == "test/setup").then(|| setup.to_owned());
    Plan::parse("plan.toml", plan, setup).map_err(|error| error.to_string())
}

/// The error of the plan with `from` replaced by `to`.
#[track_caller]
fn error(from: &str, to: &str) -> String {
    assert!(PLAN.contains(from), "the plan has no `{from}`");
    parse(&PLAN.replacen(from, to, 1)).expect_err("the plan must be refused")
}

#[track_caller]
fn setup_error(from: &str, to: &str) -> String {
    assert!(SETUP.contains(from), "the setup has no `{from}`");
    parse_with(PLAN, &SETUP.replacen(from, to, 1)).expect_err("the setup must be refused")
}

#[track_caller]
fn says(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "`{part}` is missing in: {error}");
    }
}

#[test]
fn every_plan_of_this_repository_is_valid_and_named_after_its_folder() {
    let plans = Plan::all().expect("all plans are valid");
    let ids: Vec<&str> = plans.iter().map(|p| p.id.as_str()).collect();
    let expected = ["churn", "figure7", "figure8", "table4", "table5", "table6"];
    let expected = expected.map(|name| format!("path-selection/{name}"));
    let mut expected = expected.to_vec();
    for name in ["table1", "fig4", "fig3", "fig2"] {
        expected.insert(0, format!("latency-bandwidth/{name}"));
    }
    for name in [
        "unresponsive",
        "unit",
        "round-trips",
        "one-against-hundred",
        "min-rto",
        "idle",
        "fig7-long",
        "fig7",
        "fig5",
        "fig4",
        "fig3",
        "fig2",
        "fig12",
        "fig11",
        "fig10",
        "changing-weight",
    ] {
        expected.insert(0, format!("fairness/{name}"));
    }
    for number in [3, 2, 1] {
        expected.insert(0, format!("egress/scenario{number}"));
    }
    expected.insert(0, "egress/isps".to_owned());
    for name in [
        "table5",
        "table1",
        "spacing",
        "load",
        "controller-path",
        "equal-m",
        "clients",
        "bulk",
    ] {
        expected.insert(0, format!("aggregation/{name}"));
    }
    expected.push("prediction/error".to_owned());
    expected.push("uplinks/recorded".to_owned());
    assert_eq!(ids, expected);
    for plan in &plans {
        assert_eq!(Plan::find(&plan.id).unwrap().id, plan.id);
        let of_transactions = plan.transactions().map(|t| t.targets.len());
        let of_study = plan.study().map(|study| study.targets.len());
        let of_trials = plan.trials().map(|trials| trials.targets.len());
        let of_sharing = plan.sharing().map(|sharing| sharing.targets.len());
        let of_churn = plan.churn().map(|churn| churn.targets.len());
        let of_recorded = plan.recorded().map(|recorded| recorded.targets.len());
        let of_transfers = plan.transfers().map(|transfers| transfers.targets.len());
        let of_kind = of_transactions
            .or(of_study)
            .or(of_trials)
            .or(of_sharing)
            .or(of_transfers)
            .or(of_churn)
            .or(of_recorded);
        let targets = plan.targets.len() + of_kind.unwrap_or(0);
        let asks = targets > 0 || plan.accuracy().is_some();
        assert!(asks, "{} asks for nothing", plan.id);
    }
}

#[test]
fn a_full_run_measures_at_least_five_minutes() {
    for plan in Plan::all().unwrap() {
        // Combinations of parameters differ visibly in less time, and trials end by themselves.
        let is_of_cells = plan
            .study()
            .is_some_and(|study| matches!(study.kind, StudyKind::Cells(_)));
        let is_shorter = is_of_cells || plan.trials().is_some();
        if plan.kind == Kind::Measurement && plan.accuracy().is_none() && !is_shorter {
            let counted = plan.setup.run.counted();
            assert!(counted.as_secs() >= 300, "{}: {counted:?}", plan.id);
        }
    }
}

#[test]
fn templates_expand_to_all_possible_rows() {
    let plan = parse(PLAN).unwrap();
    let names: Vec<String> = plan.rows.iter().map(|row| row.text(&plan.setup)).collect();
    assert_eq!(names.len(), 5 * 5 + 1 + 5);
    assert_eq!(names[2], "A1 mean keiro");
    assert_eq!(names[25], "A3 mean keiro sim");
    assert_eq!(names[30], "undelivered mptcp");
}

#[test]
fn row_names_survive_reading_and_writing() {
    let setup = parse(PLAN).unwrap().setup;
    for name in [
        "A3 mean keiro",
        "A5 p99 tcp",
        "A1 mean conventional sim",
        "undelivered keiro sim",
    ] {
        assert_eq!(RowName::parse(name, &setup).unwrap().text(&setup), name);
    }
}

#[test]
fn unknown_experiments_get_the_nearest_name() {
    let error = Plan::find("path-selection/table7").unwrap_err().to_string();
    says(
        &error,
        &[
            "`path-selection/table7`",
            "did you mean `path-selection/table",
            "experiment list",
        ],
    );
    for id in ["aggregation/table6", "table6"] {
        let error = Plan::find(id).unwrap_err().to_string();
        says(&error, &["did you mean `path-selection/table6`?"]);
    }
    let error = Plan::find("aggregation/tabel5").unwrap_err().to_string();
    says(&error, &["did you mean `aggregation/table5`?"]);
}

#[test]
fn broken_toml_is_reported_with_its_place() {
    says(
        &error("kind = \"measurement\"", "kind = "),
        &["plan.toml:5:8"],
    );
    says(
        &error("title =", "titel ="),
        &["plan.toml:3:", "`titel`", "`title`"],
    );
    says(
        &error("\"measurement\"", "\"guess\""),
        &["toml:5:", "`guess`", "`prediction`"],
    );
    says(
        &error("shape = \"ecdf\"", "shape = \"pie\""),
        &["`pie`", "`ecdf`"],
    );
}

#[test]
fn impossible_rows_are_refused() {
    says(
        &error("{app} mean {variant}", "A6 mean keiro"),
        &["`A6`", "did you mean `A"],
    );
    says(
        &error("{app} mean {variant}", "{app} maen {variant}"),
        &["`maen`", "did you mean `mean`"],
    );
    says(
        &error("{app} mean {variant}", "{app} p0 {variant}"),
        &["`p0`"],
    );
    says(
        &error("A3 mean keiro sim\"", "A3 mean kiero\""),
        &["`kiero`", "did you mean `keiro`"],
    );
    says(
        &error("A3 mean keiro sim\"", "A3 mean tcp sim\""),
        &["A3 mean tcp sim", "simulator"],
    );
    says(
        &error("A3 mean keiro sim\"", "A3 eq3 mptcp\""),
        &["`mptcp`", "no assignment"],
    );
    says(
        &error("A3 mean keiro sim\"", "A3 mean keiro\""),
        &["`A3 mean keiro`", "twice"],
    );
    says(
        &error("undelivered {variant}", "A1 undelivered tcp"),
        &["no application"],
    );
    says(
        &error("undelivered {variant}", "mean tcp"),
        &["an application"],
    );
    says(
        &error("undelivered {variant}", "tcp"),
        &["not a row's name"],
    );
}

#[test]
fn meaningless_targets_are_refused() {
    for (target, parts) in [
        (
            "A3 mean keiro < 11.5 ms",
            &["none of <=, >=, =, within"][..],
        ),
        ("A3 mean keiro <= 11.5 s", &["11.5 s", "ms"]),
        ("A3 mean keiro <= 11.5", &["11.5", "ms"]),
        ("A3 mean keiro <= inf ms", &["inf"]),
        ("A3 mean keiro <= paper cup", &["paper cup"]),
        ("A3 mean tcp <= paper", &["no value"]),
        ("A3 mean keiro within 5 %", &["within", "of BOUND"]),
        ("A3 mean keiro within x % of paper", &["`x`"]),
        (
            "A3 mean keiro <= undelivered keiro",
            &["compares ms with messages"],
        ),
        ("undelivered keiro <= latency_target", &["latency_target"]),
        (
            "A3 p99 keiro <= latency_target",
            &["A3 p99 keiro", "not among the rows"],
        ),
        (
            "A3 mean keiro <= A3 p99 keiro",
            &["A3 p99 keiro", "not among the rows"],
        ),
    ] {
        says(&error("A3 mean keiro <= 11.5 ms", target), parts);
    }
}

#[test]
fn figures_and_paper_values_must_fit_the_setup() {
    says(
        &error("application = \"A3\", ", ""),
        &["need an application"],
    );
    says(
        &error("variants = [\"keiro\"]", "variants = [\"kairo\"]"),
        &["`kairo`", "`keiro`"],
    );
    says(
        &error("variants = [\"keiro\"]", "variants = []"),
        &["empty"],
    );
    says(
        &error("\"A3 mean keiro\" =", "\"A3 p99 keiro\" ="),
        &["[paper]", "not among the rows"],
    );
}

#[test]
fn predictions_neither_measure_nor_draw() {
    says(
        &error("\"measurement\"", "\"prediction\""),
        &["A1 mean conventional", "prediction"],
    );
}

#[test]
fn a_missing_setup_is_named() {
    says(
        &error("test/setup", "test/none"),
        &["test/none", "plan.toml"],
    );
}

#[test]
fn inconsistent_setups_are_refused() {
    says(
        &setup_error("bandwidth = \"100Mbit\"", "bandwidth = \"100\""),
        &["no unit", "Mbit"],
    );
    says(
        &setup_error("bandwidth = \"100Mbit\"", "bandwidth = \"0Mbit\""),
        &["path1", "no bandwidth"],
    );
    says(
        &setup_error("name = \"A2\"", "name = \"A1\""),
        &["two applications", "`A1`"],
    );
    says(
        &setup_error("name = \"A2\"", "name = \"A 2\""),
        &["`A 2`", "one word"],
    );
    says(&setup_error("name = \"tcp\"", "name = \"sim\""), &["`sim`"]);
    says(
        &setup_error("one-path = \"path2\"", "one-path = \"path3\""),
        &["`path3`", "did you mean"],
    );
    says(
        &setup_error("length = \"1MB\"", "length = \"0B\""),
        &["A1", "above zero"],
    );
    says(
        &setup_error("warm_up = \"3s\"", "warm_up = \"30s\""),
        &["[run]", "counts nothing"],
    );
    says(
        &setup_error("scheduler = \"fifo\"", "scheduler = \"lifo\""),
        &["`lifo`", "`fifo`"],
    );
    says(
        &setup_error("scheduler = \"fifo\"\n", ""),
        &["conventional", "scheduler"],
    );
    says(&setup_error("drain =", "dran ="), &["`dran`", "`drain`"]);
}

#[test]
fn every_figure_of_the_documents_is_made_by_the_script() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let script = std::fs::read_to_string(root.join("scripts/figures")).expect("the script");
    let lines: Vec<Vec<&str>> = script
        .lines()
        .map(|line| line.split(' ').collect())
        .collect();
    for folder in ["docs/figures", "docs/prediction"] {
        for file in std::fs::read_dir(root.join(folder)).expect(folder) {
            let name = file
                .expect("a file")
                .file_name()
                .into_string()
                .expect("UTF-8");
            // A drawing, not a measurement.
            if name == "overview.svg" || !name.ends_with(".svg") {
                continue;
            }
            let target = format!("{folder}/{name}");
            let line = lines
                .iter()
                .find(|line| line.last() == Some(&target.as_str()));
            let line = line.unwrap_or_else(|| panic!("scripts/figures does not make {target}"));
            Plan::find(line[0]).unwrap_or_else(|error| panic!("{target}: {error}"));
        }
    }
}
