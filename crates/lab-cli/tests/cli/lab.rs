//! Laboratories from the command line: what is missing or in the way, and that nothing is left.

use std::{
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

use crate::harness::{
    self, Site, eventually, finish, is_root, keiro as keiro_lab, run, shown, signal, wait,
};

const TOPOLOGY: &str = "\
[host.a]
[host.b]
[link.wan]
a = { host = \"a\", addresses = [\"10.66.0.1/30\"] }
b = { host = \"b\", addresses = [\"10.66.0.2/30\"] }
";

/// A laboratory's name that no other run uses.
fn name(what: &str) -> String {
    format!("t{}{what}", std::process::id())
}

fn namespaces() -> String {
    let list = Command::new("ip")
        .args(["netns", "list"])
        .output()
        .expect("ip runs");
    String::from_utf8_lossy(&list.stdout).into_owned()
}

/// A command that is ended whatever happens.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(Some(_))) {
            return;
        }
        // SIGTERM, so that it removes its laboratory.
        signal(&self.0, "TERM");
        if wait(&mut self.0, harness::LIMIT).is_none() {
            let _ = self.0.kill();
        }
    }
}

/// Removes a namespace whatever happens.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "delete", &self.0])
            .output();
    }
}

#[test]
fn without_root_a_laboratory_says_what_it_needs() {
    let site = Site::without_key();
    let file = site.write("topology.toml", TOPOLOGY);
    site.set_mode("topology.toml", 0o644);
    std::fs::set_permissions(
        site.directory.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .expect("mode set");
    let mut command = keiro_lab(["up", &shown(&file), "--name", &name("nobody")]);
    if is_root("without_root_a_laboratory_says_what_it_needs") {
        // The test binary itself may lie where only root can read.
        let copy = site.path("keiro-lab");
        keiro_testing::copy_program(crate::PROGRAM, &copy);
        command = Command::new(copy);
        command
            .args(["up", &shown(&file), "--name", &name("nobody")])
            .uid(65_534)
            .gid(65_534);
    }
    finish(&mut command, b"")
        .expect_code(1)
        .says(&["needs root", "sudo"]);
}

#[test]
fn a_missing_tool_is_named_with_its_package() {
    if !is_root("a_missing_tool_is_named_with_its_package") {
        return;
    }
    let site = Site::without_key();
    let file = site.write("topology.toml", TOPOLOGY);
    let mut command = keiro_lab(["up", &shown(&file), "--name", &name("tool")]);
    finish(command.env("PATH", ""), b"")
        .expect_code(1)
        .says(&["`ip` is missing", "iproute2"]);
    assert!(!namespaces().contains(&name("tool")));
}

#[test]
fn a_topology_that_is_wrong_is_shown_with_its_line() {
    let site = Site::without_key();
    let file = site.write(
        "topology.toml",
        &TOPOLOGY.replace("[link.wan]", "[link.wan]\nemulatd = true"),
    );
    let ran = run(["up", &shown(&file), "--name", "x"]).expect_code(1);
    ran.says(&[
        "topology.toml:4:1: unknown key `emulatd`",
        "did you mean `emulated`?",
    ]);
    run(["up", "/no/such.toml"])
        .expect_code(1)
        .says(&["/no/such.toml"]);
}

#[test]
fn a_command_runs_in_a_host_and_its_status_is_kept() {
    if !is_root("a_command_runs_in_a_host_and_its_status_is_kept") {
        return;
    }
    let site = Site::without_key();
    let file = site.write("topology.toml", TOPOLOGY);
    let lab = name("run");
    let args = ["run", &shown(&file), "--name", &lab, "--host", "a", "--"];
    let ran = run(args.iter().copied().chain(["ip", "-o", "address"])).expect_code(0);
    assert!(ran.stdout.contains("10.66.0.1/30"), "{}", ran.stdout);
    run(args.iter().copied().chain(["sh", "-c", "exit 7"])).expect_code(7);
    run(args.iter().copied().chain(["/no/such"]))
        .expect_code(1)
        .says(&["cannot start `/no/such`"]);
    assert!(!namespaces().contains(&lab), "{}", namespaces());
}

#[test]
fn a_namespace_left_over_is_refused_by_name_and_removed_by_force() {
    if !is_root("a_namespace_left_over_is_refused_by_name_and_removed_by_force") {
        return;
    }
    let site = Site::without_key();
    let file = site.write("topology.toml", TOPOLOGY);
    let lab = name("left");
    let namespace = Namespace(format!("keiro-{lab}-a"));
    let made = Command::new("ip")
        .args(["netns", "add", &namespace.0])
        .status()
        .expect("ip runs");
    assert!(made.success());
    let args = ["run", &shown(&file), "--name", &lab, "--host", "a"];
    let ran = run(args.iter().copied().chain(["--", "true"])).expect_code(1);
    ran.says(&[&namespace.0, "exists already", "--force"]);
    assert!(namespaces().contains(&namespace.0), "what is there stays");
    run(args.iter().copied().chain(["--force", "--", "true"])).expect_code(0);
    assert!(!namespaces().contains(&lab));
}

#[test]
fn a_laboratory_is_listed_used_and_removed_from_elsewhere() {
    if !is_root("a_laboratory_is_listed_used_and_removed_from_elsewhere") {
        return;
    }
    let site = Site::without_key();
    let file = site.write("topology.toml", TOPOLOGY);
    let lab = name("up");
    let up = keiro_lab(["up", &shown(&file), "--name", &lab])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut up = Running(up);
    let exec = |command: &str| run(["exec", &lab, "b", "--", "sh", "-c", command]);
    eventually("the laboratory is up", || {
        (exec("ip -o address show dev wan | grep -q 10.66.0.2").code == Some(0)).then_some(())
    });
    let listed = run(["list", "--json"]).expect_code(0).json();
    let ours = listed
        .as_array()
        .expect("a list")
        .iter()
        .find(|l| l["name"] == lab.as_str());
    assert_eq!(ours.expect("listed")["alive"], true);
    assert!(run(["list"]).expect_code(0).stdout.contains(&lab));
    run(["exec", &lab, "c", "--", "true"])
        .expect_code(1)
        .says(&["no host `c`"]);
    run(["up", &shown(&file), "--name", &lab])
        .expect_code(1)
        .says(&["in use by process"]);

    run(["down", &lab]).expect_code(0);
    assert_eq!(
        wait(&mut up.0, harness::LIMIT),
        Some(Some(0)),
        "its owner ends too"
    );
    assert!(!namespaces().contains(&lab));
    run(["down", &lab])
        .expect_code(1)
        .says(&["there is no laboratory"]);
}
