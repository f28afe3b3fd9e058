//! Plans from files and with settings: every plan can be shown, edited and run, and no edit is ignored.

use std::{fs, path::Path};

use keiro_experiment::{
    plan::Plan,
    vary::{Origin, Setting},
};

fn settings(texts: &[&str]) -> Vec<Setting> {
    let parsed = texts.iter().map(|text| text.parse());
    parsed.collect::<Result<_, _>>().expect("they are settings")
}

fn with(id: &str, texts: &[&str]) -> Result<Plan, String> {
    let plan = Plan::find(id).expect("it is built in");
    plan.with(&settings(texts))
        .map_err(|error| error.to_string())
}

#[track_caller]
fn says(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "`{part}` is missing in: {error}");
    }
}

fn written(directory: &Path, text: &str) -> std::path::PathBuf {
    let file = directory.join("edited.toml");
    fs::write(&file, text).expect("it can be written");
    file
}

#[test]
fn every_plan_shown_and_read_again_is_the_same() {
    let directory = tempfile::tempdir().expect("a directory");
    for plan in Plan::all().expect("all are valid") {
        let file = written(directory.path(), &plan.written.text);
        let read = Plan::read(&file).unwrap_or_else(|error| panic!("{}: {error}", plan.id));
        assert_eq!(read.written.text, plan.written.text, "{}", plan.id);
        assert_eq!(read.written.origin.file.as_deref(), Some("edited.toml"));
        let same = |plan: &Plan| format!("{:?} {:?} {:?}", plan.setup, plan.subject, plan.targets);
        assert_eq!(same(&read), same(&plan), "{}", plan.id);
    }
}

#[test]
fn a_shown_plan_keeps_its_comments_and_has_its_setup_within() {
    let text = Plan::find("path-selection/table6")
        .expect("it is built in")
        .written
        .text;
    says(
        &text,
        &["[setup]\n", "[[setup.paths]]", "[setup.run]", "# "],
    );
    assert!(!text.contains("setup = "), "{text}");
}

#[test]
fn every_value_of_every_plan_can_be_set_and_is_not_ignored() {
    for plan in Plan::all().expect("all are valid") {
        let id = plan.id.clone();
        let document = plan.written.document();
        let parts = [
            ("setup", "setup.run"),
            ("workloads", "workloads.simulated"),
            ("transfers", "transfers.run"),
        ];
        let part = parts.iter().find(|(part, _)| document.contains_key(*part));
        let key = part.map_or("run", |(_, key)| key);
        let set = format!("{key}.seed=777");
        let varied = plan
            .with(&settings(&[&set]))
            .unwrap_or_else(|error| panic!("{error}"));
        let read = match varied.accuracy() {
            Some(accuracy) => accuracy.workloads.simulated.seed,
            None => varied.setup.run.seed,
        };
        assert_eq!(read, 777, "{id}");
        let origin = Origin {
            file: None,
            set: vec![set],
        };
        assert_eq!(varied.written.origin, origin, "{id}");
        assert!(varied.written.text.contains("seed = 777"), "{id}");
        let unknown = varied.with(&settings(&[&format!("{key}.sead=1")]));
        let error = unknown.expect_err("no such key").to_string();
        says(
            &error,
            &[
                &id,
                &format!("--set {key}.sead=1"),
                "unknown key `sead`",
                "`seed`",
            ],
        );
    }
}

#[test]
fn entries_of_lists_are_named_by_number_or_name() {
    let plan = with(
        "path-selection/table6",
        &[
            "setup.applications.A3.length=50kB",
            "setup.paths.0.delay=\"80ms\"",
        ],
    )
    .expect("they are accepted");
    assert_eq!(plan.setup.applications[2].length.0.get(), 50_000);
    assert_eq!(plan.setup.paths[0].delay.0.as_millis(), 80);
    let plan = with("fairness/fig2", &["settings.one.bottlenecks.0.rate=20Mbit"]);
    let rate = plan
        .expect("it is accepted")
        .sharing()
        .expect("of tenants")
        .settings[0]
        .bottlenecks[0]
        .rate;
    assert_eq!(rate.to_string(), "20Mbit");
}

#[test]
fn a_part_of_a_key_with_a_dot_is_quoted() {
    let set = ["paper.\"i2vfc-0.01 linux F\"=0.5"];
    let plan = with("fairness/fig2", &set).expect("it is accepted");
    let sharing = plan.sharing().expect("of tenants");
    assert_eq!(sharing.paper["i2vfc-0.01 linux F"], 0.5);
    for wrong in ["a.\"b=1", "a..b=1", "=1", "a b=1", "a.#=1"] {
        assert!(wrong.parse::<Setting>().is_err(), "{wrong}");
    }
}

#[test]
fn wrong_settings_are_refused_with_key_and_accepted_values() {
    for (id, set, parts) in [
        (
            "fairness/fig2",
            "run.rounds=many",
            &["--set run.rounds=many", "expected u32"][..],
        ),
        (
            "fairness/fig2",
            "run.rounds=-1",
            &["--set run.rounds=-1", "u32"],
        ),
        (
            "fairness/fig2",
            "run.rounds=0",
            &["--set run.rounds=0", "[run]", "it needs a round"],
        ),
        (
            "fairness/fig2",
            "run.rounds=1000000",
            &["[run]", "1000 rounds"],
        ),
        (
            "fairness/fig2",
            "run.duration=9h",
            &["[run] duration", "an hour at most"],
        ),
        (
            "fairness/fig2",
            "tenants=pie",
            &["unknown variant `pie`", "`index`", "`inside`"],
        ),
        (
            "fairness/fig2",
            "begin=5",
            &["--set begin=5", "integer `5`"],
        ),
        (
            "fairness/fig2",
            "begin=5 parsecs",
            &["--set begin=5 parsecs"],
        ),
        (
            "fairness/fig2",
            "controls.9.name=x",
            &["`controls` has no entry `9`", "0 to 6", "keiro"],
        ),
        (
            "fairness/fig2",
            "controls.kiero.name=x",
            &["no entry `kiero`", "did you mean `keiro`"],
        ),
        ("fairness/fig2", "begin.at=5s", &["`begin` is a string"]),
        ("fairness/fig2", "id=../../etc", &["`id` must be words"]),
        (
            "fairness/fig10",
            "topology=moon",
            &["no topology `moon`", "fairness/sites"],
        ),
        (
            "path-selection/table6",
            "setup.applications.A1.interval=1ns",
            &["messages", "make intervals longer"],
        ),
        (
            "path-selection/table6",
            "setup.applications.A1.length=1GB",
            &["`A1`", "16777216 bytes"],
        ),
        (
            "path-selection/table6",
            "setup.applications.A1.name=A2",
            &["two applications", "`A2`"],
        ),
        (
            "prediction/error",
            "workloads.simulated.workloads=4000000000",
            &["`workloads`", "1000 at most"],
        ),
    ] {
        let error = with(id, &[set]).expect_err(set);
        says(&error, parts);
        says(&error, &[id]);
    }
    for text in ["run.rounds", "=3", ".x=1", "a..b=1"] {
        let error = text.parse::<Setting>().expect_err(text);
        says(&error, &["KEY=VALUE"]);
    }
}

#[test]
fn settings_are_judged_together() {
    let both = ["run.warm_up=60s", "run.duration=90s"];
    assert!(with("fairness/fig2", &both[..1]).is_err());
    let plan = with("fairness/fig2", &both).expect("together they fit");
    assert_eq!(plan.setup.run.counted().as_secs(), 300);
}

#[test]
fn faults_of_a_file_are_reported_with_line_and_column() {
    let directory = tempfile::tempdir().expect("a directory");
    let text = Plan::find("fairness/fig2")
        .expect("it is built in")
        .written
        .text;
    let line = |part: &str| {
        text.lines()
            .position(|line| line.contains(part))
            .expect(part)
            + 1
    };
    for (from, to, parts) in [
        (
            "rounds = 10",
            "rounds = \"x\"",
            &["invalid type", "u32"][..],
        ),
        (
            "rounds = 10",
            "runds = 10",
            &["unknown key `runds`", "`rounds`"],
        ),
        (
            "keiro linux F >= 0.98 of 1",
            "keiro linux G >= 0.98 of 1",
            &["no row `keiro linux G`"],
        ),
        ("weight = 4", "weight = 0", &["tenant 5", "above zero"]),
        ("rate = \"50Mbit\"", "rate = \"0Mbit\"", &["above zero"]),
        (
            "tenants = \"index\"",
            "tenants = \"pie\"",
            &["`pie`", "`index`"],
        ),
    ] {
        let file = written(directory.path(), &text.replacen(from, to, 1));
        let error = Plan::read(&file).expect_err(to).to_string();
        says(&error, parts);
        let name = file.display();
        let is_of_setting = error.contains("setting `one`");
        let at = if is_of_setting {
            line("name = \"one\"")
        } else {
            line(from)
        };
        says(&error, &[&format!("{name}:{at}:")]);
    }
    let error = Plan::read(&directory.path().join("none.toml")).expect_err("there is none");
    says(&error.to_string(), &["no such file", "experiment show"]);
    fs::write(directory.path().join("long.toml"), vec![b'#'; 2 << 20]).expect("it is written");
    let error = Plan::read(&directory.path().join("long.toml")).expect_err("it is too long");
    says(&error.to_string(), &["longer than"]);
}

#[test]
fn a_setup_beside_a_plan_is_the_one_that_it_names() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path().join("experiments/path-selection");
    fs::create_dir_all(folder.join("table6")).expect("folders");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/path-selection");
    let setup = fs::read_to_string(root.join("five-applications.toml")).expect("a setup");
    let setup = setup.replace("length = \"1MB\"", "length = \"2MB\"");
    fs::write(folder.join("five-applications.toml"), setup).expect("it is written");
    fs::copy(
        root.join("table6/plan.toml"),
        folder.join("table6/plan.toml"),
    )
    .expect("a plan");
    let plan = Plan::read(&folder.join("table6/plan.toml")).expect("it is valid");
    assert_eq!(plan.setup.applications[0].length.0.get(), 2_000_000);
}

#[test]
fn edits_of_a_source_tree_are_refused_and_not_ignored() {
    let tree = tempfile::tempdir().expect("a directory");
    let at = |name: &str| tree.path().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::create_dir_all(at("crates/experiment")).expect("a folder");
    fs::write(at("crates/experiment/Cargo.toml"), "").expect("a file");
    for file in [
        "experiments/egress/scenario2/plan.toml",
        "experiments/egress/topology.toml",
        "experiments/path-selection/table6/plan.toml",
        "experiments/path-selection/five-applications.toml",
    ] {
        fs::create_dir_all(at(file).parent().expect("a folder")).expect("folders");
        fs::copy(source.join(file), at(file)).expect("a copy");
    }
    let check = |id: &str| {
        let plan = Plan::find(id).expect("it is built in");
        plan.check_edits(&at("experiments"))
            .map_err(|error| error.to_string())
    };
    for (id, file, hint) in [
        ("egress/scenario2", "egress/scenario2/plan.toml", "--plan"),
        (
            "egress/scenario2",
            "egress/topology.toml",
            "build keiro-lab again",
        ),
        (
            "path-selection/table6",
            "path-selection/table6/plan.toml",
            "--plan",
        ),
        (
            "path-selection/table6",
            "path-selection/five-applications.toml",
            "--plan",
        ),
    ] {
        check(id).expect("nothing is edited");
        let file = at("experiments").join(file);
        let before = fs::read_to_string(&file).expect("it is there");
        fs::write(&file, format!("{before}# edited\n")).expect("it is written");
        let error = check(id).expect_err("it is edited");
        says(&error, &[&file.display().to_string(), "differs", hint]);
        fs::write(&file, before).expect("it is written");
    }
}
