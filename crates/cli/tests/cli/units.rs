//! The service units in packaging/systemd: each daemon has one, in a sandbox, with options that it takes.

use std::{collections::BTreeMap, fs, path::Path};

use crate::harness::run;

const UNITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd");

/// By file name.
fn units() -> BTreeMap<String, String> {
    let files = fs::read_dir(UNITS).expect("a directory");
    files
        .map(|file| {
            let path = file.expect("a file").path();
            let name = path.file_name().expect("a name").to_string_lossy();
            (
                name.into_owned(),
                fs::read_to_string(&path).expect("a text"),
            )
        })
        .collect()
}

#[test]
fn every_daemon_has_a_unit_that_confines_it() {
    let units = units();
    let names: Vec<&str> = units.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "keiro-asbr.service",
            "keiro-block.service",
            "keiro-egress.service",
            "keiro-flowstats@.service",
            "keiro-gateway.service",
            "keiro-hooks.service",
            "keiro-measure.service",
            "keiro-web.service"
        ]
    );
    for (name, text) in &units {
        let lines: Vec<&str> = text.lines().collect();
        // The keys are user keiro's. Pages need none, and commands of hooks must not be able to read any.
        let (user, families) = match &name[..] {
            "keiro-web.service" => ("keiro-web", "AF_INET AF_INET6 AF_UNIX"),
            "keiro-hooks.service" => ("keiro-hooks", "AF_INET AF_INET6 AF_NETLINK AF_UNIX"),
            _ => ("keiro", "AF_INET AF_INET6 AF_NETLINK AF_UNIX"),
        };
        for line in [
            &format!("User={user}")[..],
            &format!("RestrictAddressFamilies={families}"),
            "NoNewPrivileges=yes",
            "LimitCORE=0",
            "ProtectSystem=strict",
            "ProtectHome=yes",
            "PrivateTmp=yes",
            "MemoryDenyWriteExecute=yes",
            "RestrictNamespaces=yes",
            "SystemCallFilter=@system-service",
            "SystemCallFilter=~@privileged @resources",
        ] {
            assert!(lines.contains(&line), "no `{line}` in {name}");
        }
        let value = |key: &str| {
            let found = lines.iter().find_map(|line| line.strip_prefix(key));
            found.unwrap_or_else(|| panic!("no {key} in {name}"))
        };
        let capabilities = match &name[..] {
            "keiro-asbr.service" | "keiro-egress.service" => "CAP_NET_ADMIN CAP_NET_BIND_SERVICE",
            "keiro-flowstats@.service" => "CAP_BPF CAP_NET_ADMIN CAP_PERFMON",
            "keiro-block.service" | "keiro-gateway.service" => "CAP_NET_ADMIN",
            _ => "",
        };
        assert_eq!(value("AmbientCapabilities="), capabilities, "{name}");
        assert_eq!(value("CapabilityBoundingSet="), capabilities, "{name}");
    }
}

#[test]
fn units_start_commands_that_exist() {
    let mut units = units();
    // A program of its own, which crates/web tests.
    units.remove("keiro-web.service");
    for (name, text) in units {
        let start = text
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart=/usr/bin/keiro "));
        let start = start.unwrap_or_else(|| panic!("no ExecStart in {name}"));
        let options = "--metrics-listen 127.0.0.1:9478";
        let start = start
            .replace("%I", "eth0")
            .replace("$OPTIONS", options)
            .replace("$ALLOW", "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=");
        run(start.split(' ').chain(["--help"])).expect_code(0);
    }
}

#[test]
fn installing_installs_every_unit() {
    let makefile = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Makefile");
    let makefile = fs::read_to_string(makefile).expect("a text");
    assert!(
        makefile.contains("for unit in packaging/systemd/*; do"),
        "`make install` leaves units out"
    );
}
