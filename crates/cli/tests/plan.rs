//! Planning from a file alone: exit statuses and what is shown.

mod harness;

use harness::{run, shown};

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
fn a_plan_that_meets_every_demand_ends_with_0() {
    let ran = run(["plan", "--config", EXAMPLE, "--json"]).expect_code(0);
    let plan = ran.json();
    assert_eq!(
        (&plan["feasible"], &plan["unmet"]),
        (&true.into(), &0.into())
    );
    let apps = plan["apps"].as_array().expect("applications");
    assert_eq!(apps.len(), 5);
    for app in apps {
        assert_eq!(app["demand_met"], true, "{app}");
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
        "every demand is met",
        "A3",
        "path2",
        "100 Mbit/s",
    ] {
        assert!(table.contains(part), "no `{part}` in:\n{table}");
    }
}

#[test]
fn a_demand_that_cannot_be_met_ends_with_3() {
    let (_directory, file) = write(&example().replace("demand = \"20ms\"", "demand = \"3ms\""));
    let ran = run(["plan", "--config", &file]).expect_code(3);
    assert!(
        ran.stdout.contains("would not get what they demand") && ran.stdout.contains("NO"),
        "{}",
        ran.stdout
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
    // 1 MB every millisecond, and nobody demands anything.
    let text = example().replacen("interval = \"200ms\"", "interval = \"1ms\"", 1);
    let kept = text.lines().filter(|line| !line.starts_with("demand = "));
    let (_directory, file) = write(&kept.collect::<Vec<_>>().join("\n"));
    let ran = run(["plan", "--config", &file]).expect_code(3);
    let said = &ran.stdout;
    assert!(said.contains("would not get what they demand\n"), "{said}");
    assert!(!said.contains("late by"), "{said}");
}

#[test]
fn a_pinned_application_stays_where_it_is_pinned() {
    let pinned = example().replacen(
        "demand = \"20ms\"",
        "demand = \"20ms\"\npath = \"path1\"",
        1,
    );
    let (_directory, file) = write(&pinned);
    let plan = run(["plan", "--config", &file, "--json"])
        .expect_code(3)
        .json();
    let apps = plan["apps"].as_array().expect("applications");
    let a3 = apps.iter().find(|app| app["name"] == "A3").expect("A3");
    assert_eq!(
        (&a3["path"], &a3["assigned_by"], &a3["demand_met"]),
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
