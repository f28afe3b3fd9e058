//! What is in `packaging/` is what is made here, Grafana can lay it out, and promtool accepts it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use crate::{
    alerts,
    board::COLUMNS,
    catalogue, dashboards,
    query::{Query, QueryError},
};

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../packaging")
        .join(file)
}

/// Holds a file to what is made; writes it instead if the environment has `KEIRO_UPDATE`.
#[track_caller]
fn check(file: &Path, made: &str) {
    if std::env::var_os("KEIRO_UPDATE").is_some() {
        fs::write(file, made).expect("written");
        return;
    }
    let published = fs::read_to_string(file).unwrap_or_default();
    assert!(
        published == made,
        "{} differs from the declarations; if the change is meant, run KEIRO_UPDATE=1 cargo test -p keiro-dashboards",
        file.display()
    );
}

#[test]
fn what_is_packaged_is_what_the_declarations_make() {
    for board in dashboards::all() {
        check(
            &packaging(&format!("grafana/{}", board.file())),
            &board.json(),
        );
    }
    check(&packaging("prometheus/keiro.rules.yml"), &alerts::rules());
    let made: BTreeSet<String> = dashboards::all().iter().map(|board| board.file()).collect();
    let there = fs::read_dir(packaging("grafana"))
        .expect("a directory")
        .flatten();
    let there: BTreeSet<String> = there
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(made, there);
}

#[test]
fn every_declared_metric_is_on_a_dashboard() {
    let queries: String = dashboards::all()
        .iter()
        .flat_map(|board| {
            board
                .queries()
                .map(|query| query.text().to_owned())
                .collect::<Vec<_>>()
        })
        .collect();
    // Of single peers, clients and decisions, or of the process: too many, or of use to none but programmers.
    let left_out = [
        "keiro_config_loaded_timestamp_seconds",
        "keiro_control_clients",
        "keiro_handshake_",
        "keiro_history_size_bytes",
        "keiro_message_",
        "keiro_model_valid",
        "keiro_path_aggregation_decisions_total",
        "keiro_peer_",
        "keiro_uplink_",
    ];
    let is_shown = |metric: &catalogue::Metric| queries.contains(metric.name);
    for metric in catalogue::all() {
        let is_left_out = left_out.iter().any(|name| metric.name.starts_with(name));
        assert!(
            is_shown(&metric) || is_left_out,
            "{} is on no dashboard",
            metric.name
        );
    }
}

#[test]
fn panels_have_numbers_of_their_own_and_do_not_overlap() {
    for board in dashboards::all() {
        let json: Value = serde_json::from_str(&board.json()).expect("JSON");
        let mut ids = BTreeSet::new();
        let mut cells = BTreeSet::new();
        for panel in json["panels"].as_array().expect("panels") {
            assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{panel}");
            let at = |key: &str| {
                u32::try_from(panel["gridPos"][key].as_u64().expect("a number")).expect("small")
            };
            let (x, y, w, h) = (at("x"), at("y"), at("w"), at("h"));
            assert!(x + w <= COLUMNS, "{panel}");
            for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                assert!(
                    cells.insert(cell),
                    "{} overlaps at {cell:?}",
                    panel["title"]
                );
            }
            let targets = panel["targets"].as_array().map_or(&[][..], Vec::as_slice);
            let refs: BTreeSet<_> = targets
                .iter()
                .map(|target| target["refId"].as_str())
                .collect();
            assert_eq!(refs.len(), targets.len(), "{panel}");
        }
    }
}

#[test]
fn a_query_of_what_is_not_declared_is_refused() {
    let refused = |text: &str| Query::new(text).expect_err(text);
    assert_eq!(
        refused("keiro_path_srtt"),
        QueryError::UnknownMetric("keiro_path_srtt".to_owned())
    );
    assert_eq!(
        refused("keiro_path_srtt_seconds_bucket"),
        QueryError::UnknownMetric("keiro_path_srtt_seconds_bucket".to_owned())
    );
    for text in [
        r#"keiro_path_up{app="a"}"#,
        "sum by (app) (keiro_path_up)",
        "keiro_path_up / on (app) group_left () keiro_peer_up",
    ] {
        assert_eq!(
            refused(text),
            QueryError::UnknownLabel("app".to_owned()),
            "{text}"
        );
    }
    assert_eq!(refused("vector(0)"), QueryError::NoMetric);
    for text in [
        r#"sum by (path, le, instance) (keiro_path_up{peer=~"keiro_none{x}"})"#,
        "rate(keiro_app_delay_seconds_bucket[5m])",
    ] {
        assert!(Query::new(text).is_ok(), "{text}");
    }
}

#[test]
fn alerts_have_names_of_their_own_and_are_documented() {
    let names: BTreeSet<&str> = alerts::all().iter().map(|alert| alert.name).collect();
    assert_eq!(names.len(), alerts::all().len());
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
    let page = fs::read_to_string(page).expect("the page");
    let of_egress = |name: &str| name.starts_with("KeiroEgress") && page.contains("`KeiroEgress…`");
    for name in names {
        assert!(
            page.contains(&format!("`{name}`")) || of_egress(name),
            "{name} is not documented"
        );
    }
}

#[test]
#[ignore = "needs promtool, which make test-dashboards installs"]
fn promtool_accepts_every_rule_and_sees_it_fire_and_be_silent() {
    let directory = tempfile::tempdir().expect("a directory");
    let rules = directory.path().join("keiro.rules.yml");
    let tests = directory.path().join("keiro.rules.test.yml");
    fs::write(&rules, alerts::rules()).expect("written");
    fs::write(&tests, alerts::tests(&rules.display().to_string())).expect("written");
    for (what, file) in [("check", &rules), ("test", &tests)] {
        let ran = Command::new("promtool")
            .args([what, "rules"])
            .arg(file)
            .output()
            .expect("promtool runs");
        assert!(
            ran.status.success(),
            "promtool {what} rules: {}{}",
            String::from_utf8_lossy(&ran.stdout),
            String::from_utf8_lossy(&ran.stderr)
        );
    }
}
