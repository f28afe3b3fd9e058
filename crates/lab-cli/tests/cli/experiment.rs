//! Experiments and the demonstration from the command line.

use std::process::{Command, Stdio};

use crate::harness::{
    LIMIT, Site, eventually, is_root, keiro as keiro_lab, run, shown, signal, wait,
};

#[test]
fn experiments_are_listed() {
    let table = run(["experiment", "list"]).expect_code(0).stdout;
    let json = run(["experiment", "list", "--json"]).expect_code(0).json();
    let listed = json.as_array().expect("a list");
    for id in [
        "path-selection/table4",
        "path-selection/table6",
        "path-selection/figure7",
    ] {
        assert!(
            table.contains(id) && listed.iter().any(|one| one["id"] == id),
            "{id}"
        );
    }
}

#[test]
fn a_prediction_runs_at_once_and_leaves_its_files() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = shown(directory.path());
    let run_it = |more: &[&str]| {
        let args = [
            "experiment",
            "run",
            "path-selection/table4",
            "--output",
            &output,
        ];
        run(args.iter().chain(more))
    };
    let report = run_it(&["--json"]).expect_code(0).json();
    assert_eq!(report["id"], "path-selection/table4");
    let rows = report["rows"].as_array().expect("rows");
    for row in rows {
        for key in [
            "name", "unit", "paper", "measured", "low", "high", "floor", "verdict",
        ] {
            assert!(row.get(key).is_some(), "no {key} in {row}");
        }
    }
    let files = directory
        .path()
        .join(report["directory"].as_str().expect("a directory"));
    assert!(files.join("rows.csv").exists() && files.join("manifest.json").exists());
    assert!(run_it(&[]).expect_code(0).stdout.contains("verdict"));
}

#[test]
fn what_there_is_not_is_named_with_the_nearest() {
    run(["experiment", "run", "path-selection/tabel6"])
        .expect_code(1)
        .says(&[
            "no experiment `path-selection/tabel6`",
            "did you mean `path-selection/table6`?",
        ]);
    run(["experiment", "run", "aggregation/"])
        .expect_code(1)
        .says(&["; there are aggregation/bulk, "]);
    run(["experiment", "run", "x", "--run-time", "-5s"])
        .expect_code(64)
        .says(&["invalid value '-5s' for '--run-time <TIME>'"]);
    run(["experiment", "run"]).expect_code(64).says(&["<ID>"]);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = shown(directory.path());
    run([
        "experiment",
        "run",
        "path-selection/table6",
        "--quick",
        "--only",
        "sim",
        "--variant",
        "kiero",
        "--output",
        &output,
    ])
    .expect_code(1)
    .says(&["no variant `kiero`", "keiro"]);
}

#[test]
fn a_plan_is_shown_edited_and_run() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let shown_plan = run(["experiment", "show", "path-selection/table4"])
        .expect_code(0)
        .stdout;
    let edited = shown_plan.replace("length = \"1MB\"", "length = \"2MB\"");
    assert_ne!(edited, shown_plan);
    let file = directory.path().join("mine.toml");
    std::fs::write(&file, edited).expect("it is written");
    let output = shown(&directory.path().join("out"));
    let of_plan = [
        "experiment",
        "run",
        "--plan",
        &shown(&file),
        "--output",
        &output,
        "--json",
    ];
    let report = run(of_plan).json();
    let set = "setup.applications.A1.length=2MB";
    let of_set = [
        "experiment",
        "run",
        "path-selection/table4",
        "--set",
        set,
        "--output",
        &output,
        "--json",
    ];
    let same = run(of_set).json();
    assert_eq!(report["rows"], same["rows"]);
    assert_eq!(report["manifest"]["plan"]["file"], "mine.toml");
    assert_eq!(same["manifest"]["plan"]["set"][0], set);
    let built_in = run([
        "experiment",
        "run",
        "path-selection/table4",
        "--output",
        &output,
        "--json",
    ]);
    assert_ne!(built_in.expect_code(0).json()["rows"], same["rows"]);
    let json = run([
        "experiment",
        "show",
        "path-selection/table4",
        "--set",
        set,
        "--json",
    ]);
    assert_eq!(
        json.expect_code(0).json()["setup"]["applications"][0]["length"],
        "2MB"
    );
}

#[test]
fn wrong_plans_and_settings_are_refused() {
    let id = "path-selection/table4";
    run([
        "experiment",
        "run",
        id,
        "--set",
        "setup.applications.A1.lenth=2MB",
    ])
    .expect_code(1)
    .says(&[
        "--set setup.applications.A1.lenth=2MB",
        "unknown key `lenth`",
        "`length`",
    ]);
    run(["experiment", "run", id, "--set", "rounds"])
        .expect_code(64)
        .says(&["KEY=VALUE"]);
    run(["experiment", "run", "--plan", "/none.toml"])
        .expect_code(1)
        .says(&["/none.toml", "no such file"]);
    run(["experiment", "run", "--all", "--set", "run.rounds=1"])
        .expect_code(64)
        .says(&["--all", "--set"]);
    run(["experiment", "show"]).expect_code(64).says(&["<ID>"]);
}

#[test]
fn max_min_rates_are_printed_as_text_and_json() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("links.toml");
    let text = "[links]\nwan = \"10Mbit\"\n\
                [[flows]]\nname = \"a\"\ndemand = \"1Mbit\"\nlinks = [\"wan\"]\n\
                [[flows]]\nname = \"b\"\nlinks = [\"wan\"]\n";
    std::fs::write(&file, text).expect("it is written");
    let table = run(["max-min", &shown(&file)]).expect_code(0).stdout;
    assert!(
        table.contains("9.000 Mbit/s") && table.contains("demand"),
        "{table}"
    );
    let json = run(["max-min", &shown(&file), "--json"])
        .expect_code(0)
        .json();
    assert_eq!(json["flows"][1]["rate_mbit"], 9.0);
    assert_eq!(json["flows"][1]["bound_by"], "wan");
    std::fs::write(&file, text.replace("[\"wan\"]", "[\"van\"]")).expect("it is written");
    run(["max-min", &shown(&file)])
        .expect_code(1)
        .says(&["links.toml:6:", "`van`", "`wan`"]);
}

#[test]
fn a_run_time_is_for_transactions_and_longer_than_their_warm_up() {
    let refused = |id, time| run(["experiment", "run", id, "--run-time", time]);
    refused("aggregation/controller-path", "20s")
        .expect_code(1)
        .says(&["aggregation/controller-path", "only runs of transactions"]);
    refused("aggregation/table5", "1s").expect_code(1).says(&[
        "aggregation/table5",
        "[run] counts nothing",
        "warm-up (1s)",
    ]);
    refused("aggregation/table5", "2h")
        .expect_code(64)
        .says(&["--run-time", "1h at most"]);
    run(["experiment", "run", "--all", "--run-time", "20s"])
        .expect_code(64)
        .says(&["--all", "--run-time"]);
}

#[test]
fn pause_repeats_are_for_transactions_and_few() {
    let refused = |id, repeats| run(["experiment", "run", id, "--pause-repeats", repeats]);
    refused("aggregation/controller-path", "0")
        .expect_code(1)
        .says(&["aggregation/controller-path", "only runs of transactions"]);
    refused("aggregation/table5", "4")
        .expect_code(64)
        .says(&["--pause-repeats", "0..=3"]);
    run(["experiment", "run", "--all", "--pause-repeats", "0"])
        .expect_code(64)
        .says(&["--all", "--pause-repeats"]);
}

#[test]
fn the_simulated_demonstration_ends_with_the_comparison_and_its_figures() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let started = std::time::Instant::now();
    let ran = run(["demo", "--simulate", "--output", &shown(directory.path())]).expect_code(0);
    for part in [
        "conventional, round 1",
        "keiro, round 2",
        "5 of 5 with Keiro",
        "paper",
        "27.4 ms",
        "Next:",
    ] {
        assert!(ran.stdout.contains(part), "no `{part}` in:\n{}", ran.stdout);
    }
    let figures = ran
        .stdout
        .lines()
        .filter(|line| line.trim_end().ends_with(".svg"));
    let figures: Vec<&str> = figures.map(str::trim).collect();
    assert_eq!(figures.len(), 3, "{figures:?}");
    for figure in figures {
        let svg = std::fs::read_to_string(figure).expect("the figure is there");
        assert!(svg.contains("<svg"), "{figure}");
    }
    assert!(started.elapsed() < LIMIT);
}

#[test]
fn a_demonstration_that_is_interrupted_removes_its_laboratory() {
    if !is_root("a_demonstration_that_is_interrupted_removes_its_laboratory") {
        return;
    }
    // Stands for a gateway of this version that never answers.
    let site = Site::without_key();
    let version = run(["--version"]).expect_code(0).stdout;
    let version = version.trim().replacen("keiro-lab", "keiro", 1);
    let gateway = site.path("keiro");
    let text = format!("[ \"$1\" = --version ] && echo '{version}' && exit\nexec sleep 600");
    keiro_testing::write_script(&gateway, &text);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut demo = keiro_lab(["demo", "--output", &shown(directory.path())])
        .args(["--keiro", &shown(&gateway)])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let pid = demo.id();
    // Its laboratory is the one on record that it owns.
    let laboratory = || {
        let listed = run(["list", "--json"]).expect_code(0).json();
        let labs = listed.as_array().expect("a list").clone();
        labs.into_iter().find(|lab| lab["pid"] == pid)
    };
    let ours = eventually("the laboratory is there", laboratory);
    let namespace = ours["namespaces"][0]["name"]
        .as_str()
        .expect("a name")
        .to_owned();
    signal(&demo, "INT");
    let code = wait(&mut demo, LIMIT).expect("it ends");
    assert_ne!(code, Some(0));
    let list = Command::new("ip")
        .args(["netns", "list"])
        .output()
        .expect("ip runs");
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(!list.contains(&namespace), "{list}");
    assert!(laboratory().is_none());
}
