//! What the machine's files and programs say.

use std::{fs::File, io::Read, process::Command};

use super::{Gathering, bundle::ENTRY_BYTES_MAX};
use crate::{
    command::program::{Output, output},
    failure::Failure,
};

/// Files, by their names in the bundle.
const FILES: &[(&str, &str)] = &[
    ("kernel.txt", "/proc/version"),
    ("os-release.txt", "/etc/os-release"),
    ("uptime.txt", "/proc/uptime"),
    ("load.txt", "/proc/loadavg"),
    ("memory.txt", "/proc/meminfo"),
    ("pressure-cpu.txt", "/proc/pressure/cpu"),
    ("net-snmp.txt", "/proc/net/snmp"),
    ("net-snmp6.txt", "/proc/net/snmp6"),
    ("net-netstat.txt", "/proc/net/netstat"),
    ("net-softnet.txt", "/proc/net/softnet_stat"),
    ("sysctl-ip-forward.txt", "/proc/sys/net/ipv4/ip_forward"),
    (
        "sysctl-ip6-forwarding.txt",
        "/proc/sys/net/ipv6/conf/all/forwarding",
    ),
    (
        "sysctl-rp-filter.txt",
        "/proc/sys/net/ipv4/conf/all/rp_filter",
    ),
    ("sysctl-rmem-max.txt", "/proc/sys/net/core/rmem_max"),
    ("sysctl-wmem-max.txt", "/proc/sys/net/core/wmem_max"),
];

/// Programs with their arguments, by the names of their outputs in the bundle.
const PROGRAMS: &[(&str, &[&str])] = &[
    (
        "ip-address.txt",
        &["ip", "-details", "-statistics", "address"],
    ),
    (
        "ip-route.txt",
        &["ip", "-details", "route", "show", "table", "all"],
    ),
    (
        "ip6-route.txt",
        &["ip", "-6", "-details", "route", "show", "table", "all"],
    ),
    ("ip-rule.txt", &["ip", "rule"]),
    ("ip6-rule.txt", &["ip", "-6", "rule"]),
    ("nft.txt", &["nft", "list", "ruleset"]),
    ("iptables.txt", &["iptables-save"]),
    ("ip6tables.txt", &["ip6tables-save"]),
    (
        "sockets.txt",
        &[
            "ss",
            "--udp",
            "--tcp",
            "--listening",
            "--numeric",
            "--processes",
            "--memory",
        ],
    ),
    ("clock.txt", &["timedatectl", "show"]),
    (
        "units.txt",
        &["systemctl", "--no-pager", "--all", "list-units", "keiro-*"],
    ),
];

/// The newest log lines of the daemons.
const JOURNAL: &[&str] = &[
    "journalctl",
    "--no-pager",
    "--output=short-iso-precise",
    "--lines=20000",
    "--unit=keiro-*",
];

pub(super) fn gather(gathering: &mut Gathering) -> Result<(), Failure> {
    for (name, file) in FILES {
        let read = File::open(file).and_then(|file| {
            let mut text = String::new();
            file.take(ENTRY_BYTES_MAX as u64)
                .read_to_string(&mut text)?;
            Ok(text)
        });
        gathering.add_result(
            &format!("machine/{name}"),
            read.map_err(|error| format!("{file}: {error}")),
        )?;
    }
    for (name, words) in PROGRAMS {
        add_output(gathering, &format!("machine/{name}"), words)?;
    }
    Ok(())
}

pub(super) fn journal(gathering: &mut Gathering) -> Result<(), Failure> {
    add_output(gathering, "journal.txt", JOURNAL)
}

/// What a machine does not have is not missed.
fn add_output(gathering: &mut Gathering, name: &str, words: &[&str]) -> Result<(), Failure> {
    let (program, arguments) = words.split_first().unwrap_or((&"", &[]));
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C");
    match output(&mut command, ENTRY_BYTES_MAX as u64) {
        Output::Text(text) => gathering.add_result(name, Ok(text)),
        Output::Failed(why) => {
            gathering.add_result(name, Err(format!("{}: {why}", words.join(" "))))
        }
        Output::NoTool => Ok(()),
    }
}
