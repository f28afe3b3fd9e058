//! Planning from a file alone: exit statuses and what is shown.

use crate::harness::{self, run, shown};

const EXAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../packaging/examples/gateway-a.toml"
);

fn example() -> String {
    std::fs::read_to_string(EXAMPLE).expect("the example")
}

fn write(text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("gateway.toml");
    std::fs::write(&file, text).expect("written");
    (directory, shown(&file))
}

#[test]
fn a_plan_that_meets_every_target_ends_with_0() {
    let ran = run(["plan", "--config", EXAMPLE, "--json"]).expect_code(0);
    let plan = ran.json();
    assert_eq!(
        (&plan["feasible"], &plan["unmet"]),
        (&true.into(), &0.into())
    );
    let apps = plan["apps"].as_array().expect("applications");
    assert_eq!(apps.len(), 5);
    for app in apps {
        assert_eq!(app["target_met"], true, "{app}");
        for term in [
            "propagation_seconds",
            "length_bytes",
            "rate_bits_per_second",
            "other_load_bits_per_second",
        ] {
            assert!(app["terms"][term].is_number(), "no {term} in {app}");
        }
        // Both models side by side.
        assert!(app["terms"]["paper_delay_seconds"].is_number(), "{app}");
        assert!(app["terms"]["predicted_delay_seconds"].is_number(), "{app}");
    }
    let table = run(["plan", "--config", EXAMPLE]).expect_code(0).stdout;
    for part in [
        "H eq. 3",
        "H model",
        "all latency targets are met",
        "A3",
        "path2",
        "100 Mbit/s",
    ] {
        assert!(table.contains(part), "no `{part}` in:\n{table}");
    }
}

#[test]
fn a_target_that_cannot_be_met_ends_with_3() {
    let (_directory, file) =
        write(&example().replace("latency_target = \"20ms\"", "latency_target = \"3ms\""));
    let ran = run(["plan", "--config", &file]).expect_code(3);
    let said = &ran.stdout;
    assert!(
        said.contains("1 of 5 latency targets would be missed on average, by ")
            && said.contains("NO"),
        "{said}"
    );
    let plan = run(["plan", "--config", &file, "--json"])
        .expect_code(3)
        .json();
    assert_eq!(plan["feasible"], false);
    assert!(
        plan["lateness_seconds"]
            .as_f64()
            .is_some_and(|late| late > 0.0),
        "{plan}"
    );
}

#[test]
fn who_is_on_an_overloaded_path_is_not_late_by_no_time() {
    // 1 MB every millisecond, and no application has a latency target.
    let text = example().replacen("interval = \"200ms\"", "interval = \"1ms\"", 1);
    let kept = text
        .lines()
        .filter(|line| !line.starts_with("latency_target = "));
    let (_directory, file) = write(&kept.collect::<Vec<_>>().join("\n"));
    let ran = run(["plan", "--config", &file]).expect_code(3);
    let said = &ran.stdout;
    assert!(said.contains("A1: overloaded: "), "{said}");
    // No application has a latency target, so none is missed.
    assert!(
        !said.contains("missed") && !said.contains("in all"),
        "{said}"
    );
}

#[test]
fn a_pinned_application_stays_where_it_is_pinned() {
    let pinned = example().replacen(
        "latency_target = \"20ms\"",
        "latency_target = \"20ms\"\npath = \"path1\"",
        1,
    );
    let (_directory, file) = write(&pinned);
    let plan = run(["plan", "--config", &file, "--json"])
        .expect_code(3)
        .json();
    let apps = plan["apps"].as_array().expect("applications");
    let a3 = apps.iter().find(|app| app["name"] == "A3").expect("A3");
    assert_eq!(
        (&a3["path"], &a3["assigned_by"], &a3["target_met"]),
        (&"path1".into(), &"pin".into(), &false.into())
    );
}

#[test]
fn what_a_plan_without_measurements_needs_is_said() {
    let text = example()
        .replace("delay = \"2ms\"\n", "")
        .replacen("interval = \"200ms\"\n", "", 1);
    let (_directory, file) = write(&text);
    let ran = run(["plan", "--config", &file]).expect_code(1);
    ran.says(&[
        "path `path2` has no `delay`",
        "application `A1` has no `interval`",
        "without --config",
    ]);
    run(["plan", "--config", "/no/such.toml"])
        .expect_code(1)
        .says(&["no such file"]);
}

/// The plan for the example with these suppositions.
fn suppose(what: &[&str], code: i32) -> (serde_json::Value, String) {
    let mut args = vec!["plan", "--config", EXAMPLE];
    args.extend(what.iter().flat_map(|what| ["--what-if", what]));
    let text = run(&args).expect_code(code).stdout;
    args.push("--json");
    (run(&args).expect_code(code).json(), text)
}

fn app<'a>(plan: &'a serde_json::Value, name: &str) -> &'a serde_json::Value {
    let apps = plan["apps"].as_array().expect("applications");
    apps.iter().find(|app| app["name"] == name).expect(name)
}

#[test]
fn an_overload_by_the_model_is_never_met_whatever_equation_3_says() {
    // Without headers there would be room, and another path would have it.
    let (plan, _) = suppose(&["set path1 rate=50Mbit"], 0);
    assert_eq!(plan["feasible"], true);
    let (plan, text) = suppose(&["lose path2", "set path1 rate=60Mbit"], 3);
    assert_eq!(
        (&plan["feasible"], &plan["unmet"]),
        (&false.into(), &5.into())
    );
    for name in ["A1", "A2", "A3", "A4", "A5"] {
        let app = app(&plan, name);
        assert!(app["terms"]["paper_delay_seconds"].is_number(), "{app}");
        assert_eq!(
            app["terms"]["predicted_delay_seconds"],
            serde_json::Value::Null
        );
        assert_eq!(app["margin_seconds"], serde_json::Value::Null, "{app}");
        assert_eq!(
            (&app["target_met"], &app["overloaded"], &app["judged_by"]),
            (&false.into(), &true.into(), &"forecast".into()),
            "{app}"
        );
    }
    assert_eq!(
        plan["newly_unmet"],
        serde_json::json!(["A1", "A2", "A3", "A4", "A5"])
    );
    for part in [
        "5 of 5 latency targets would be missed\n",
        "A1, A2, A3, A4, A5: overloaded: 101 % of the path's rate is asked for, so delays grow without bound\n",
        "missed only after the supposed change: A1, A2, A3, A4, A5\n",
    ] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
}

#[test]
fn who_is_overloaded_is_beside_the_time_that_others_are_late() {
    // A1 is too much for either path, and the others are on path 2.
    let changes = [
        "set path1 rate=30Mbit",
        "set path2 rate=30Mbit",
        "latency-target A3 3ms",
    ];
    let (_, text) = suppose(&changes, 3);
    let line = text.lines().find(|line| line.contains("would be missed"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    assert!(
        line.starts_with("2 of 5 latency targets would be missed on average: 1 by ")
            && line.ends_with(" in total, 1 without bound"),
        "{line}"
    );
}

#[test]
fn the_margin_is_that_of_the_predicted_mean() {
    let (plan, _) = suppose(&["set path2 rate=10Mbit loss=5%"], 3);
    let mut late = 0.0;
    for app in plan["apps"].as_array().expect("applications") {
        let number = |value: &serde_json::Value| value.as_f64().expect("a number");
        let predicted = number(&app["terms"]["predicted_delay_seconds"]);
        let margin = number(&app["latency_target_seconds"]) - predicted;
        assert!(
            (number(&app["margin_seconds"]) - margin).abs() < 1e-9,
            "{app}"
        );
        assert_eq!(app["target_met"], margin >= 0.0, "{app}");
        late += (-margin).max(0.0);
    }
    let reported = plan["lateness_seconds"].as_f64().expect("a number");
    assert!((reported - late).abs() < 1e-6, "{reported} {late}");
}

#[test]
fn a_target_missed_at_the_99th_percentile_is_named() {
    let (plan, text) = suppose(&["set path2 rate=10Mbit loss=5%"], 3);
    let a5 = app(&plan, "A5");
    assert_eq!(
        (&a5["target_met"], &a5["target_met_at_p99"]),
        (&true.into(), &false.into()),
        "{a5}"
    );
    assert!(
        text.contains("met on average, but missed at the 99th percentile: A5"),
        "{text}"
    );
    // The legend says which of the two decides.
    assert!(text.contains("as `keiro status`\njudges."), "{text}");
}

#[test]
fn changes_without_effect_are_named() {
    let (plan, text) = suppose(&["set path1 rate=100Mbit", "latency-target A3 20ms"], 0);
    let expected = [
        "set path1 rate=100Mbit: path1 has a rate of 100 Mbit/s already",
        "latency-target A3 20ms: the latency target of A3 is 20 ms already",
    ];
    assert_eq!(plan["without_effect"], serde_json::json!(expected));
    for line in expected {
        assert!(
            text.contains(&format!("without effect: {line}\n")),
            "{text}"
        );
    }
    let (plan, _) = suppose(&["lose path2", "set path2 delay=1ms"], 3);
    assert_eq!(
        plan["without_effect"],
        serde_json::json!(["set path2 delay=1ms: path2 is down"])
    );
}

#[test]
fn what_is_supposed_twice_is_a_wrong_command_line() {
    let refused = |what: &[&str]| {
        let mut args = vec!["plan", "--config", EXAMPLE];
        args.extend(what.iter().flat_map(|what| ["--what-if", what]));
        run(&args).expect_code(64)
    };
    refused(&["lose path2", "lose path2"]).says(&["the loss of path2 twice", "try: "]);
    refused(&["set path1 rate=1Mbit rate=2Mbit"]).says(&["`rate` is given twice"]);
    refused(&["set path1 rate=1Mbit", "set path1 rate=2Mbit"]).says(&["path1's rate twice"]);
    refused(&["gain path1"]).says(&["supposes nothing", "lose PATH"]);
    refused(&["set path1 rate=fast"]).says(&["fast"]);
    refused(&["set path1 rate=0bit"]).says(&["0 bit/s", "lose the path instead"]);
    refused(&["latency-target A3 0s"]).says(&["more than 0 s"]);
}

#[test]
fn an_unknown_name_is_reported_with_the_known_ones() {
    run(["plan", "--config", EXAMPLE, "--what-if", "lose path9"])
        .expect_code(1)
        .says(&["there is no path `path9`", "  try: one of path1, path2"]);
    run(["plan", "--config", EXAMPLE, "--what-if", "add a3"])
        .expect_code(1)
        .says(&["there is no application `a3`", "A1, A2, A3"]);
}

#[test]
fn applications_that_are_added_are_planned_with() {
    let (plan, text) = suppose(&["add 40 A3"], 3);
    assert_eq!(plan["apps"].as_array().map(Vec::len), Some(45));
    assert!(plan["unmet"].as_u64() > Some(0), "{plan}");
    // Of so many not all are named.
    assert!(text.contains(" more\n"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() < 200),
        "{text}"
    );
}

#[test]
fn a_reader_that_leaves_early_does_not_hide_the_status() {
    for (what, code) in [("lose path2", 3), ("add A5", 0)] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let status = harness::keiro(["plan", "--config", EXAMPLE, "--what-if", what])
            .stdout(writer)
            .status()
            .expect("it runs");
        assert_eq!(status.code(), Some(code), "{what}");
    }
}
