//! Joins behind closed firewalls: what is opened, by which program, and that it is closed again.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use keiro_linux::process::SIGTERM;

use crate::{
    harness::{Site, eventually, finish, shown},
    join::{World, make_local},
};

/// What a distribution's rules look like: nothing passes that is not known.
const CLOSED: &str = "table inet filter {
  chain in { type filter hook input priority filter; policy drop; iif lo accept
    ct state established,related accept; ip protocol icmp accept
  }
  chain forwarded { type filter hook forward priority filter; policy drop; ct state established,related accept
  }
}";

#[test]
fn a_join_opens_a_closed_firewall_and_a_leave_closes_it() {
    let mut world = World::start();
    world.sh("kyoto", &format!("nft '{CLOSED}'"));
    world.sh("shelf", "ip route add default via 10.2.0.1");
    world.sh("kyoto", "sysctl -qw net.ipv4.conf.lan1.forwarding=0");
    let token = world.invite(&["kyoto"]);
    let kyoto = Site::without_key();
    let joined = world.join("kyoto", &kyoto, &token, &[]).expect_code(0);
    let _ = joined.says(&[
        "drops packets that are needed: chain inet filter forwarded",
        "opened the firewall: nft insert rule inet filter forwarded iifname \"lan1\" oifname \"keiro1\" accept",
        "add `iifname \"keiro1\" oifname \"lan1\" accept` to chain forwarded",
    ]);
    let rules = |world: &World| world.sh("kyoto", "nft list chain inet filter forwarded");
    assert_eq!(
        rules(&world).matches("comment \"keiro\"").count(),
        2,
        "{}",
        rules(&world)
    );
    make_local(&kyoto);
    world.spawn("kyoto", &kyoto.path("keiro/gateway.toml"));
    world.forward("kyoto", "keiro1");
    world.ping("shelf", "10.0.0.10");
    world.ping("server", "10.2.0.10");

    let file = shown(&kyoto.path("keiro/gateway.toml"));
    let leave = |more: &[&str]| {
        let args = ["leave", "--config", &file];
        let args: Vec<&str> = args.iter().chain(more).copied().collect();
        world.keiro("kyoto", &args)
    };
    leave(&[]).expect_code(64).says(&["add --yes"]);
    leave(&["--yes"]).expect_code(1).says(&["a gateway runs"]);
    let gateway = world.processes.last().expect("it was started");
    gateway.signal(SIGTERM).expect("sent");
    let left = eventually("the gateway has ended", || {
        let ran = leave(&["--yes"]);
        (ran.code == Some(0)).then_some(ran)
    });
    let _ = left.says(&["left the network of hub", "`keiro revoke kyoto`"]);
    let rules = rules(&world);
    assert!(
        !rules.contains("keiro") && rules.contains("policy drop"),
        "{rules}"
    );
    let forwarding = world.sh("kyoto", "cat /proc/sys/net/ipv4/conf/lan1/forwarding");
    assert_eq!(forwarding.trim(), "0");
    let routes = world.sh("kyoto", "ip route show table all");
    assert!(!routes.contains("proto 75"), "{routes}");
    let kept = names(&kyoto.path("keiro"));
    // The test has edited the configuration, and written the log.
    assert_eq!(kept, ["gateway.log", "gateway.toml.left"]);
    assert_eq!(names(&kyoto.path("sysctl")), [] as [&str; 0]);
    leave(&["--yes"])
        .expect_code(1)
        .says(&["has not made this gateway"]);
}

#[test]
fn a_join_that_fails_late_leaves_the_firewall_closed() {
    let world = World::start();
    world.sh("kyoto", &format!("nft '{CLOSED}'"));
    let token = world.invite(&["kyoto"]);
    let kyoto = Site::without_key();
    // The record cannot be written where a directory is.
    fs::create_dir_all(kyoto.path("keiro/changes.json")).expect("made");
    world
        .join("kyoto", &kyoto, &token, &[])
        .expect_code(1)
        .says(&["opened the firewall", "cannot write"]);
    let rules = world.sh("kyoto", "nft list chain inet filter forwarded");
    assert!(!rules.contains("keiro"), "{rules}");
    // Nor is it opened where that is not wanted.
    fs::remove_dir(kyoto.path("keiro/changes.json")).expect("empty");
    let joined = world.join("kyoto", &kyoto, &token, &["--no-firewall"]);
    assert!(!joined.expect_code(0).stderr.contains("opened"));
    let rules = world.sh("kyoto", "nft list chain inet filter forwarded");
    assert!(!rules.contains("keiro"), "{rules}");
}

/// What the programs print on a machine with ufw, with Docker, and with firewalld, and what is run.
const MACHINES: [(&str, &str, &str, &[&str]); 3] = [
    (
        "*filter\n:INPUT DROP [0:0]\n:FORWARD DROP [0:0]\n:ufw-before-input - [0:0]\n-A INPUT -j ufw-before-input\n\
         -A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\nCOMMIT\n",
        "{\"nftables\": []}",
        "ufw",
        &[
            "ufw allow 7600/udp comment keiro",
            "ufw route allow in on lan1 out on keiro1 comment keiro",
            "ufw route allow in on keiro1 out on lan1 comment keiro",
            "ufw route delete allow in on keiro1 out on lan1",
            "ufw route delete allow in on lan1 out on keiro1",
            "ufw delete allow 7600/udp",
        ],
    ),
    (
        "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:DOCKER-USER - [0:0]\n-A FORWARD -j DOCKER-USER\nCOMMIT\n",
        "{\"nftables\": []}",
        "iptables",
        &[
            "iptables -w -I DOCKER-USER -i lan1 -o keiro1 -m comment --comment keiro -j ACCEPT",
            "iptables -w -I DOCKER-USER -i keiro1 -o lan1 -m comment --comment keiro -j ACCEPT",
            "iptables -w -D DOCKER-USER -i keiro1 -o lan1 -m comment --comment keiro -j ACCEPT",
            "iptables -w -D DOCKER-USER -i lan1 -o keiro1 -m comment --comment keiro -j ACCEPT",
        ],
    ),
    (
        "",
        "{\"nftables\": [{\"chain\": {\"family\": \"inet\", \"table\": \"firewalld\", \"name\": \"filter_INPUT\", \
         \"type\": \"filter\", \"hook\": \"input\", \"prio\": 10, \"policy\": \"drop\"}}]}",
        "firewall-cmd",
        &[
            "firewall-cmd --get-default-zone",
            "firewall-cmd --get-active-zones",
            "firewall-cmd --zone=public --query-forward",
            "firewall-cmd --zone=public --add-port=7600/udp",
            "firewall-cmd --permanent --zone=public --add-port=7600/udp",
            "firewall-cmd --zone=public --remove-port=7600/udp",
            "firewall-cmd --permanent --zone=public --remove-port=7600/udp",
        ],
    ),
];

#[test]
fn a_hub_opens_its_firewall_by_the_program_that_owns_it() {
    let world = World::start();
    for (iptables, nft, program, expected) in MACHINES {
        let site = Site::without_key();
        let bin = site.path("bin");
        fs::create_dir(&bin).expect("made");
        let ran = site.path("ran");
        stand_in(
            &bin,
            "iptables-save",
            &format!("cat <<'END'\n{iptables}END"),
        );
        stand_in(&bin, "ip6tables-save", "exit 0");
        stand_in(&bin, "nft", &format!("cat <<'END'\n{nft}\nEND"));
        let note = format!("echo {program} \"$@\" >> {}\n", shown(&ran));
        let zone = "case $1 in --get-default-zone) echo public;; esac";
        stand_in(&bin, program, &format!("{note}{zone}"));
        let file = shown(&site.path("keiro/gateway.toml"));
        let keiro = |args: &[&str]| {
            let mut command = world
                .lab
                .host("kyoto")
                .expect("a host")
                .command(crate::PROGRAM);
            command
                .args(args)
                .env("PATH", format!("{}:/usr/bin:/bin", shown(&bin)));
            finish(&mut command, b"")
        };
        // Without a terminal and --yes, only what is to be done is said.
        let init = ["init", "--hub", "--name", "hub", "--output", &file];
        let silent = keiro(&init).expect_code(0);
        let _ = silent.says(&["drops packets that are needed", "nothing was opened"]);
        let yes: Vec<&str> = init.into_iter().chain(["--yes", "--force"]).collect();
        let _ = keiro(&yes).expect_code(0).says(&["opened the firewall"]);
        keiro(&["leave", "--openings", "--yes", "--config", &file]).expect_code(0);
        let ran = fs::read_to_string(&ran).expect("it was run");
        let mut lines: Vec<&str> = ran.lines().collect();
        // Both calls of `init` ask firewalld.
        lines.dedup();
        let asked = expected
            .iter()
            .take_while(|line| line.contains("get-") || line.contains("query-"));
        let asked = asked.count();
        assert_eq!(
            lines[lines.len() - (expected.len() - asked)..],
            expected[asked..],
            "{ran}"
        );
        for line in &expected[..asked] {
            assert!(lines.contains(line), "no `{line}` in {ran}");
        }
    }
}

/// A program that says what another one says.
fn stand_in(directory: &Path, name: &str, script: &str) {
    let file = directory.join(name);
    fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("mode set");
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<String> = names
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
