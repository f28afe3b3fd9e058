//! `keiro init` on a machine with two uplinks, which a network namespace is.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use crate::harness::{Ran, finish, is_root, keiro, run, shown};

/// A machine with two uplinks, removed when dropped.
struct Machine(String);

impl Machine {
    fn new(what: &str) -> Self {
        let machine = Self(format!("keiro-init-{}-{what}", std::process::id()));
        ip(&format!("netns add {}", machine.0));
        for (link, net) in [("wan0", "192.0.2"), ("wan1", "198.51.100")] {
            machine.ip(&format!("link add {link} type veth peer name {link}far"));
            machine.ip(&format!("address add {net}.1/24 dev {link}"));
            machine.ip(&format!("link set {link}far up"));
            machine.ip(&format!("link set {link} up"));
        }
        machine.ip("route add default via 192.0.2.254 dev wan0");
        machine.ip("route add default via 198.51.100.254 dev wan1 metric 100");
        machine
    }

    fn ip(&self, args: &str) {
        ip(&format!("-n {} {args}", self.0));
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.0, env!("CARGO_BIN_EXE_keiro")])
            .args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Ran {
        finish(&mut self.command(args), b"")
    }
}

fn ip(args: &str) {
    let status = Command::new("ip")
        .args(args.split_whitespace())
        .status()
        .expect("ip runs");
    assert!(status.success(), "ip {args}");
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "delete", &self.0])
            .output();
    }
}

#[test]
fn a_first_configuration_has_the_uplinks_and_passes_the_check() {
    if !is_root("a_first_configuration_has_the_uplinks_and_passes_the_check") {
        return;
    }
    let machine = Machine::new("first");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("etc/gateway.toml");
    let ran = machine
        .run(&["init", "--output", &shown(&file), "--name", "tokyo"])
        .expect_code(0);
    let text = fs::read_to_string(&file).expect("the file is there");
    for part in [
        "name = \"tokyo\"",
        "interface = \"wan0\"",
        "interface = \"wan1\"",
        "# 192.0.2.1, default route",
        "name = \"wan0\"",
        "via 192.0.2.254",
        "#endpoints = { wan0 = \"203.0.113.1:7600\", wan1 = \"203.0.113.129:7600\" }",
    ] {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
    run(["config", "check", &shown(&file)]).expect_code(0);

    let key = directory.path().join("etc/private.key");
    let mode = fs::metadata(&key)
        .expect("the key is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let private = fs::read(&key).expect("the key");
    let public = finish(&mut keiro(["pubkey"]), &private)
        .expect_code(0)
        .stdout;
    assert_eq!(ran.stdout, public, "the public key is the only output");
}

#[test]
fn links_that_come_up_meanwhile_are_uplinks() {
    if !is_root("links_that_come_up_meanwhile_are_uplinks") {
        return;
    }
    let machine = Machine::new("late");
    for link in ["wan0far", "wan1far"] {
        machine.ip(&format!("link set {link} down"));
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("gateway.toml");
    let init = machine
        .command(&["init", "--output", &shown(&file)])
        .spawn();
    let mut init = init.expect("keiro runs");
    for link in ["wan0far", "wan1far"] {
        machine.ip(&format!("link set {link} up"));
    }
    assert!(init.wait().expect("it ends").success());
    let text = fs::read_to_string(&file).expect("the file is there");
    for part in ["interface = \"wan0\"", "interface = \"wan1\""] {
        assert!(text.contains(part), "no {part} in:\n{text}");
    }
}

#[test]
fn what_is_there_is_kept() {
    if !is_root("what_is_there_is_kept") {
        return;
    }
    let machine = Machine::new("kept");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("gateway.toml");
    let init = ["init", "--output", &shown(&file)];
    let first = machine.run(&init).expect_code(0).stdout;
    fs::write(&file, "mine").expect("written");
    machine
        .run(&init)
        .expect_code(1)
        .says(&["is there already", "try: ", "--force"]);
    assert_eq!(fs::read_to_string(&file).expect("still there"), "mine");
    let forced = machine
        .run(&["init", "--output", &shown(&file), "--force"])
        .expect_code(0);
    assert_eq!(forced.stdout, first, "the key stays");
    assert!(
        fs::read_to_string(&file)
            .expect("there")
            .contains("[gateway]")
    );
    let left: Vec<_> = fs::read_dir(directory.path())
        .expect("a directory")
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn a_place_that_cannot_be_written_is_an_error() {
    let ran = run(["init", "--output", "/proc/no/gateway.toml"]).expect_code(1);
    ran.says(&["keiro: ", "/proc/no"]);
}

#[test]
fn files_of_the_egress_suite_are_written_checked_and_diagnosed() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    let (border, server) = (file("asbr.toml"), file("egress.toml"));
    // Nothing is asked on a link, since the reflector is this machine.
    let bgp = "--asn 65000 --router-id 192.0.2.1 --reflector 127.0.0.1";
    let asbr = format!(
        "init asbr {bgp} --locator 2001:db8:a:1::/64 --announce 2001:db8:a::/48 \
         --peer transit-a=65001@2001:db8:f:a::1 --output {border}"
    );
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let ran = run(words(&asbr)).expect_code(0);
    let for_servers =
        "keiro init egress --asn 65000 --reflector 127.0.0.1 --peer transit-a=65000:1@ADDRESS";
    ran.says(&[for_servers, "next: systemctl enable --now keiro-asbr"]);
    run(words(&asbr)).expect_code(1).says(&["is there already"]);
    let egress =
        format!("init egress {bgp} --peer transit-a=65000:1@2001:db8:a:e::a --output {server}");
    run(words(&egress)).expect_code(0);
    for (file, role) in [(&border, "asbr"), (&server, "egress")] {
        run(["config", "check", file]).expect_code(0);
        let found = run(["doctor", "--json", "--config", file]).expect_code(1);
        let found: serde_json::Value = serde_json::from_str(&found.stdout).unwrap();
        assert_eq!(found["role"], role);
        let causes = found["findings"].as_array().unwrap();
        assert!(
            causes
                .iter()
                .any(|one| one["cause"] == "egress_not_running"),
            "{found}"
        );
    }
    let own =
        format!("init asbr {bgp} --locator 2001:db8:a:1::/120 --peer a=1@::1 --output {border}");
    run(words(&own))
        .expect_code(1)
        .says(&["leaves no room for a function"]);
}
