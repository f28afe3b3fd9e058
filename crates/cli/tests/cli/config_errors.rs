//! Configurations that are wrong: what is said, where, and what to try.

use crate::harness::{self, Ran, Site, run, shown};

const PATH: &str = "[[path]]\nname = \"p\"\nlocal = \"127.0.0.1:7600\"\nrate = \"100Mbit\"\n";

fn check(site: &Site, text: &str) -> Ran {
    let file = site.write("gateway.toml", text);
    run(["config", "check", &shown(&file)])
}

fn with(site: &Site, rest: &str) -> String {
    format!("{}{PATH}{rest}", site.gateway("a"))
}

#[test]
fn a_good_file_is_summed_up() {
    let site = Site::new();
    let ran = check(&site, &with(&site, "")).expect_code(0);
    assert!(
        ran.stdout.contains("ok: gateway `a`, 1 path, 0 peers"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("0 tenants\n"), "{}", ran.stdout);
    assert_eq!(ran.stderr, "");
}

#[test]
fn a_missing_file_says_how_to_get_one() {
    let ran = run(["config", "check", "/no/such.toml"]).expect_code(1);
    ran.says(&["keiro: /no/such.toml: no such file", "try: `keiro init`"]);
}

#[test]
fn broken_toml_is_shown_with_its_place() {
    let site = Site::new();
    let ran = check(&site, "[gateway\nname = \"a\"\n").expect_code(1);
    ran.says(&["gateway.toml:1:", "[gateway", "^"]);
}

#[test]
fn an_unknown_key_is_shown_with_its_place_and_the_nearest_known_key() {
    let site = Site::new();
    let ran = check(&site, &with(&site, "dely = \"1ms\"\n")).expect_code(1);
    ran.says(&[
        "gateway.toml:11:1: unknown key `dely`",
        "did you mean `delay`?",
        "11 | dely",
        "1 problem",
    ]);
}

#[test]
fn a_wrong_unit_says_which_there_are() {
    let site = Site::new();
    let text = with(&site, "delay = \"2Mbit\"\n");
    check(&site, &text)
        .expect_code(1)
        .says(&["gateway.toml:11:9", "Mbit", "ms"]);
    let text = with(&site, "delay = 2\n");
    check(&site, &text)
        .expect_code(1)
        .says(&["has no unit", "ms"]);
}

#[test]
fn a_duplicate_name_says_where_the_other_is() {
    let site = Site::new();
    let again = PATH.replace("7600", "7601");
    let ran = check(&site, &with(&site, &again)).expect_code(1);
    ran.says(&["gateway.toml:12:", "`p`", "line 8"]);
}

#[test]
fn an_unparsable_public_key_is_refused() {
    let site = Site::new();
    let peer =
        "[[peer]]\nname = \"b\"\npublic_key = \"abc\"\nendpoints = { p = \"192.0.2.1:7600\" }\n";
    let ran = check(&site, &with(&site, peer)).expect_code(1);
    ran.says(&["gateway.toml:13:", "public_key", "base64"]);
}

#[test]
fn all_problems_are_reported_at_once() {
    let site = Site::new();
    let text = format!(
        "{}{PATH}dely = 1\nmtu_max = \"1B\"\n[[app]]\nname = \"x\"\n",
        site.gateway("a")
    );
    let ran = check(&site, &text).expect_code(1).says(&[
        "unknown key `dely`",
        "mtu_max",
        "[[app]] has no `class`",
        "gateway.toml: 4 problems",
    ]);
    // A check changes nothing anyway.
    assert!(!ran.stderr.contains("changed"), "{}", ran.stderr);
}

#[test]
fn problems_as_json_name_file_line_and_column() {
    let site = Site::new();
    let file = site.write("gateway.toml", &with(&site, "dely = \"1ms\"\n"));
    let ran = run(["config", "check", "--json", &shown(&file)]).expect_code(1);
    let json = ran.json();
    assert_eq!(json["ok"], false);
    let problem = &json["problems"][0];
    assert_eq!(
        (&problem["place"]["line"], &problem["place"]["column"]),
        (&11.into(), &1.into())
    );
    assert!(
        problem["hint"]
            .as_str()
            .is_some_and(|hint| hint.contains("delay")),
        "{json}"
    );

    let file = site.write("gateway.toml", &with(&site, ""));
    let json = run(["config", "check", "--json", &shown(&file)])
        .expect_code(0)
        .json();
    assert_eq!(
        (&json["ok"], &json["problems"]),
        (&true.into(), &serde_json::json!([]))
    );
}

#[test]
fn a_check_notes_a_key_that_the_gateway_would_refuse() {
    let site = Site::new();
    site.set_mode("private.key", 0o644);
    let ran = check(&site, &with(&site, "")).expect_code(0);
    assert!(
        ran.stdout.contains("would not start") && ran.stdout.contains("chmod 600"),
        "{}",
        ran.stdout
    );
}

#[test]
fn aggregation_that_cannot_be_is_refused_with_both_figures() {
    let site = Site::new();
    let narrow = with(&site, "[aggregation]\nmode = \"fixed\"\n").replace("100Mbit", "1Mbit");
    check(&site, &narrow).expect_code(1).says(&[
        "`p` is too narrow for mode = \"fixed\"",
        "needs 1.024Mbit, and the path gives 1Mbit",
        "write mode = \"eager\"",
    ]);
    for (table, reported) in [
        ("interval = \"0s\"", "interval I of zero never ends"),
        ("intervals = []", "no interval I is given"),
        ("copies_values = []", "no number of copies N is given"),
        ("size_min = \"20B\"", "leaves no room for payload behind"),
        ("overflow_low = 50", "is not below overflow_high"),
        ("loss_low = \"1%\"", "is not below loss_high"),
        ("fec_group = 40", "fec_group: is not a number from 1 to 32"),
    ] {
        let text = with(&site, &format!("[aggregation]\n{table}\n"));
        // At the key, not at the table.
        let (key, _) = table.split_once(" = ").expect("a key and a value");
        let line = format!("| {table}");
        check(&site, &text)
            .expect_code(1)
            .says(&[key, reported, &line]);
    }
}

#[test]
fn a_reader_that_leaves_early_does_not_make_a_bad_file_good() {
    let site = Site::new();
    let file = site.write("bad.toml", "[gateway]\nnme = \"a\"\n");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = harness::keiro(["config", "check", "--json", &shown(&file)])
        .stdout(writer)
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn values_that_only_reproduce_a_paper_are_unknown() {
    let site = Site::new();
    check(
        &site,
        &(site.gateway("a") + "planner = \"greedy\"\n" + PATH),
    )
    .expect_code(1)
    .says(&[
        "gateway.toml:7:11: planner: `greedy` is none of the choices",
        "write \"frugal\" or \"exact\" or \"off\"",
    ]);
    let printed = with(&site, "[aggregation]\ncontroller = \"table2-printed\"\n");
    check(&site, &printed).expect_code(1).says(&[
        "gateway.toml:12:14: controller: `table2-printed` is none of the choices",
        "write \"adaptive\" or \"table2\" or \"none\"",
    ]);
    check(&site, &printed.replace("-printed", "")).expect_code(0);
}
