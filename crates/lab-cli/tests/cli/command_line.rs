//! The command line itself: exit statuses, version, completion, man pages.

use std::fs;

use crate::harness::{run, shown};

#[test]
fn usage_errors_end_with_64() {
    run(["upp"])
        .expect_code(64)
        .says(&["unrecognized subcommand", "up"]);
    run(["run", "x.toml"]).expect_code(64).says(&["--host"]);
    run::<&str>([]).expect_code(64).says(&["Usage: keiro-lab"]);
}

#[test]
fn the_version_is_that_of_keiro() {
    let version = run(["--version"]).expect_code(0).stdout;
    assert!(
        version.starts_with(concat!("keiro-lab ", env!("CARGO_PKG_VERSION"))),
        "{version}"
    );
}

#[test]
fn there_are_completion_and_man_pages_of_all_commands_but_the_hidden_one() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(["completion", shell]).expect_code(0).stdout;
        for word in ["keiro-lab", "KEIRO_COMPLETE"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    run(["man", "--output", &shown(directory.path())]).expect_code(0);
    for page in [
        "keiro-lab.1",
        "keiro-lab-up.1",
        "keiro-lab-experiment-run.1",
        "keiro-lab-demo.1",
    ] {
        let text = fs::read_to_string(directory.path().join(page)).expect(page);
        assert!(
            text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"),
            "{page}:\n{text}"
        );
    }
    assert!(!directory.path().join("keiro-lab-echo.1").exists());
}

#[test]
fn messages_begin_with_the_programs_own_name() {
    let ran = run(["up", "/no/such.toml"]).expect_code(1);
    assert!(ran.stderr.starts_with("keiro-lab: "), "{}", ran.stderr);
}
