//! A link that is a backup, and one whose budget of the month is used up.

use std::{fs, time::Duration, time::SystemTime};

use keiro_control::{
    config::{Budget, Day},
    protocol::EventKind,
};
use keiro_linux::process::SIGTERM;
use keiro_units::ByteCount;

use crate::{
    harness::{Ran, eventually},
    links::{FAR, HOSTS, NEAR},
    pair::{APP, Gateway, Monitor, Pair, Setup},
};

/// An application without a latency target.
const BULK: &str = "bulk";

fn setup() -> Setup {
    let bulk = |own: usize| {
        let peer = HOSTS[1 - own];
        format!("[[app]]\nname = \"{BULK}\"\nclass = \"message\"\npeer = \"{peer}\"\n")
    };
    Setup {
        more: [bulk(0), bulk(1)],
        ..Setup::of(&[NEAR, FAR])
    }
}

/// The configuration with these keys for the path "near", the first one.
fn with_keys(gateway: &Gateway, keys: &str) {
    let name = "name = \"near\"\n";
    let text = gateway.configuration();
    let text = text.replacen(name, &format!("{name}{keys}"), 1);
    gateway.site.write("gateway.toml", &text);
}

fn is_on(gateway: &Gateway, app: &str, path: Option<&str>) -> Option<()> {
    (gateway.app(app)["path"].as_str() == path).then_some(())
}

/// Its answer, which is broken into lines, has all of these.
#[track_caller]
fn says(answer: &Ran, parts: &[&str]) {
    let words: Vec<&str> = answer.stdout.split_whitespace().collect();
    let text = words.join(" ");
    for part in parts {
        assert!(text.contains(part), "no `{part}` in:\n{}", answer.stdout);
    }
}

#[test]
fn a_backup_carries_what_the_others_do_not_serve_and_gives_it_back() {
    let pair = Pair::start(&setup());
    with_keys(&pair.tokyo, "role = \"backup\"\ncost_per_gb = 3.5\n");
    pair.tokyo.ask(&["reload"]).expect_code(0);
    // Both ends keep what can go elsewhere away from it: osaka has learned of the role.
    for gateway in [&pair.tokyo, &pair.osaka] {
        eventually("bulk is on the primary path", || {
            is_on(gateway, BULK, Some("far"))
        });
        eventually(
            "the application with a narrow target is on the backup",
            || is_on(gateway, APP, Some("near")),
        );
        let path = gateway.path("near");
        assert_eq!(path["path_terms"]["role"], "backup", "{path:#}");
        assert_eq!(path["path_terms"]["cost_per_gb"], 3.5, "{path:#}");
    }
    let explained = pair.tokyo.ask(&["explain", APP]).expect_code(0);
    says(
        &explained,
        &[
            "near is a backup: no primary path meets its target",
            "near costs 3.50 per GB",
        ],
    );
    let explained = pair.tokyo.ask(&["explain", BULK]).expect_code(0);
    says(&explained, &["; is a backup; costs 3.50 per GB more"]);
    let monitor = Monitor::start(&pair.tokyo);
    let moved = |kind: &EventKind, from: &str| matches!(kind, EventKind::AppMoved { app, from: Some(at), .. } if app == BULK && at == from);
    let cut = pair.lab.link("far").and_then(|link| link.cut());
    cut.expect("cut");
    monitor.wait_for("bulk moves to the backup", |kind| moved(kind, "far"));
    let mended = pair.lab.link("far").and_then(|link| link.mend());
    mended.expect("mended");
    monitor.wait_for("and back", |kind| moved(kind, "near"));
    eventually("all is as before", || is_on(&pair.tokyo, BULK, Some("far")));
    eventually("all is as before", || is_on(&pair.tokyo, APP, Some("near")));
}

#[test]
fn a_used_up_budget_leaves_keepalives_and_what_is_essential() {
    let mut pair = Pair::start(&setup());
    pair.tokyo.process.signal(SIGTERM).expect("signalled");
    eventually("it ends", || {
        pair.tokyo.process.wait(Duration::ZERO).expect("a child")
    });
    with_keys(&pair.tokyo, "monthly_budget = \"60MB\"\n");
    let budget = Budget {
        bytes: ByteCount::new(60_000_000),
        day: 1,
    };
    let [began, _]: [Day; 2] = budget.month(SystemTime::now());
    let state = pair.tokyo.site.path("state");
    fs::create_dir_all(&state).expect("made");
    fs::write(state.join("budgets"), format!("near {began} 59999900\n")).expect("written");
    let Pair { lab, tokyo, .. } = &mut pair;
    tokyo.restart(lab);
    for gateway in [&pair.tokyo, &pair.osaka] {
        for app in [APP, BULK] {
            eventually("it has left the spent path", || {
                gateway.status()?;
                is_on(gateway, app, Some("far"))
            });
        }
        eventually("the path stays up", || {
            let path = gateway.path("near");
            (path["state"] == "up" && path["path_terms"]["budget_spent"] == true).then_some(())
        });
    }
    let path = pair.tokyo.path("near");
    assert_eq!(path["budget"]["left_bytes"], 0, "{path:#}");
    says(
        &pair.tokyo.ask(&["status"]),
        &["path near: its budget of 60 MB is used up until"],
    );
    let cut = pair.lab.link("far").and_then(|link| link.cut());
    cut.expect("cut");
    for gateway in [&pair.tokyo, &pair.osaka] {
        eventually("what is essential is on the spent path", || {
            is_on(gateway, APP, Some("near"))
        });
        eventually("the other one waits", || is_on(gateway, BULK, None));
    }
    let explained = pair.tokyo.ask(&["explain", BULK]).expect_code(0);
    says(
        &explained,
        &[
            "bulk has no path: the budget of the month of near is used up",
            "bulk is not essential; its last path was far.",
        ],
    );
    let shown = pair.tokyo.ask(&["show", "app", BULK]).expect_code(0);
    says(
        &shown,
        &[
            "path none: the budget of the month of near is used up",
            "traffic waits, last on far",
        ],
    );
    let why = pair.osaka.app(BULK)["no_path"].to_string();
    assert!(why.contains("of near at tokyo is used up"), "{why}");
    let mended = pair.lab.link("far").and_then(|link| link.mend());
    mended.expect("mended");
    for app in [APP, BULK] {
        eventually("both are back", || is_on(&pair.tokyo, app, Some("far")));
    }
}
