//! Which `keiro` program the laboratory runs, and that one of another version is refused.

use crate::harness::{Ran, Site, finish, is_root, keiro as keiro_lab, shown};

/// A demonstration that finds its `keiro` and, if that is right, would make a laboratory.
fn demonstrate(site: &Site, with: impl FnOnce(&mut std::process::Command)) -> Ran {
    let mut command = keiro_lab(["demo", "--output", &shown(site.directory.path())]);
    command.env_remove("KEIRO_BIN");
    with(&mut command);
    finish(&mut command, b"").expect_code(1)
}

#[test]
fn a_program_that_is_not_there_or_of_another_version_is_refused() {
    if !is_root("a_program_that_is_not_there_or_of_another_version_is_refused") {
        return;
    }
    let site = Site::without_key();
    let old = site.path("keiro");
    keiro_testing::write_script(&old, "echo keiro 0.0.9");
    let other_version = [
        "is not of this version",
        "it is `keiro 0.0.9`",
        "make build-lab",
    ];
    let named = |command: &mut std::process::Command| {
        command
            .args(["--keiro", &shown(&old)])
            .env("KEIRO_BIN", "/no/such");
    };
    demonstrate(&site, named).says(&other_version);
    let variable = |command: &mut std::process::Command| {
        command.env("KEIRO_BIN", &old);
    };
    demonstrate(&site, variable).says(&other_version);
    let missing = |command: &mut std::process::Command| {
        command.args(["--keiro", "/no/such"]);
    };
    demonstrate(&site, missing).says(&["cannot run `/no/such`", "--keiro PROGRAM", "KEIRO_BIN"]);
}

#[test]
fn it_is_looked_for_beside_keiro_lab_and_then_in_path() {
    if !is_root("it_is_looked_for_beside_keiro_lab_and_then_in_path") {
        return;
    }
    let site = Site::without_key();
    let copy = site.path("keiro-lab");
    keiro_testing::copy_program(crate::PROGRAM, &copy);
    let demonstrate = |path: &str| {
        let mut command = std::process::Command::new(&copy);
        command
            .args(["demo", "--output", &shown(site.directory.path())])
            .env_remove("KEIRO_BIN")
            .env("PATH", path);
        finish(&mut command, b"").expect_code(1)
    };
    demonstrate("/no/such").says(&["cannot find the `keiro` program", "nor in PATH"]);
    let elsewhere = Site::without_key();
    keiro_testing::write_script(elsewhere.path("keiro"), "echo keiro 0.0.8");
    let path = shown(elsewhere.directory.path());
    demonstrate(&path).says(&["it is `keiro 0.0.8`"]);
    keiro_testing::write_script(site.path("keiro"), "echo keiro 0.0.9");
    demonstrate(&path).says(&["it is `keiro 0.0.9`"]);
}
