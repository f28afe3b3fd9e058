//! Gateways whose files name no paths, and peers that are reached at one address by several uplinks.

use std::{
    fmt::Write as _,
    fs,
    process::Stdio,
    time::{Duration, Instant},
};

use keiro_lab::{Lab, Process};
use keiro_linux::process::SIGTERM;

use crate::{
    flow::Flow,
    harness::{eventually, finish},
    pair::{APP, Pair},
};

/// Two uplinks of tokyo, a LAN and a network of containers; osaka has one address in each version of IP.
const TOPOLOGY: &str = r#"
[host.tokyo]
[host.lan]
[host.isp]
sysctl = { "net.ipv4.ip_forward" = 1 }
[host.osaka]
routes = [{ to = "default", via = "203.0.113.1" }]
[link.wan0]
a = { host = "tokyo", addresses = ["192.0.2.2/28"] }
b = { host = "isp", addresses = ["192.0.2.1/28"] }
each_way = { rate = "50Mbit", delay = "5ms", buffer = "128KiB" }
[link.wan1]
a = { host = "tokyo", addresses = ["198.51.100.2/28"] }
b = { host = "isp", addresses = ["198.51.100.1/28"] }
each_way = { rate = "50Mbit", delay = "15ms", buffer = "128KiB" }
[link.docker0]
a = { host = "tokyo", addresses = ["172.17.0.1/24"] }
b = { host = "lan", addresses = ["172.17.0.2/24"] }
[link.core]
a = { host = "isp", addresses = ["203.0.113.1/28"] }
b = { host = "osaka", addresses = ["203.0.113.2/28", "203.0.113.3/28"] }
"#;

fn ip(lab: &Lab, host: &str, args: &str) {
    let host = lab.host(host).expect("a host");
    let mut command = host.command("ip");
    command.args(args.split_whitespace());
    finish(&mut command, b"").expect_code(0);
}

fn default_route(lab: &Lab, device: &str) {
    let (via, metric) = match device {
        "wan0" => ("192.0.2.1", 100),
        "wan1" => ("198.51.100.1", 200),
        _ => ("172.17.0.2", 300),
    };
    let route = format!("route add default via {via} dev {device} metric {metric}");
    ip(lab, "tokyo", &route);
}

/// Tokyo has no `[[path]]`, and `endpoint` of its peer; osaka has one path and waits for tokyo.
fn start(endpoint: &str, prepare: impl FnOnce(&Lab)) -> Pair {
    Pair::start_in(TOPOLOGY, prepare, |own, beginning, peer_key| {
        let mut text = beginning;
        let peer = ["osaka", "tokyo"][own];
        if own == 0 {
            text.push_str("uplinks = \"auto\"\n");
        } else {
            for (name, host) in [("line", 2), ("other", 3)] {
                let local = format!("local = \"203.0.113.{host}:7600\"");
                let _ = write!(
                    text,
                    "[[path]]\nname = \"{name}\"\n{local}\nrate = \"100Mbit\"\n"
                );
            }
        }
        let _ = write!(
            text,
            "[[peer]]\nname = \"{peer}\"\npublic_key = \"{peer_key}\"\n"
        );
        if own == 0 {
            let _ = writeln!(text, "endpoint = {endpoint}");
        }
        let _ = write!(
            text,
            "[[app]]\nname = \"{APP}\"\nclass = \"message\"\npeer = \"{peer}\"\n"
        );
        text
    })
}

/// Waits until the paths are up. `paths`: for each end, how many are up and how many there are.
#[track_caller]
fn wait_for(pair: &Pair, paths: [[u64; 2]; 2]) {
    eventually("paths are up", || {
        let counts = |of: &crate::pair::Gateway| {
            let status = of.status()?;
            Some([status["paths_up"].as_u64()?, status["paths"].as_u64()?])
        };
        ([counts(&pair.tokyo)?, counts(&pair.osaka)?] == paths).then_some(())
    });
}

#[test]
fn uplinks_come_and_go_without_a_path_in_the_file() {
    let pair = start("\"203.0.113.2:7600\"", |lab| {
        for device in ["wan0", "docker0"] {
            default_route(lab, device);
        }
    });
    wait_for(&pair, [[1, 1], [1, 2]]);
    let flow = Flow::start(&pair, 1000, Duration::from_millis(5), None);
    flow.wait_for_more(20);
    // Another uplink gets its default route: both ends have a path more, of one address at osaka.
    default_route(&pair.lab, "wan1");
    wait_for(&pair, [[2, 2], [2, 3]]);
    assert_eq!(pair.tokyo.path("wan1")["local"], "198.51.100.2:7600");
    assert_eq!(pair.tokyo.path("wan1")["remote"], "203.0.113.2:7600");
    assert_eq!(pair.osaka.path("line-2")["remote"], "198.51.100.2:7600");
    flow.wait_for_more(20);
    // The first one is cut: what is missing is named, and nothing is lost.
    ip(&pair.lab, "tokyo", "link set wan0 down");
    wait_for(&pair, [[1, 2], [1, 3]]);
    let problem = pair.tokyo.path("wan0")["problem"].to_string();
    assert!(problem.contains("interface wan0 is down"), "{problem}");
    ip(&pair.lab, "tokyo", "link set wan0 up");
    default_route(&pair.lab, "wan0");
    wait_for(&pair, [[2, 2], [2, 3]]);
    flow.wait_for_more(20);
    // An interface that is gone is no path any more.
    ip(&pair.lab, "tokyo", "link delete wan1");
    wait_for(&pair, [[1, 1], [1, 3]]);
    let text = pair.tokyo.ask(&["show", "path"]).stdout;
    assert!(
        !text.contains("docker0") && !text.contains("wan1"),
        "{text}"
    );
    flow.finish();
    let log = pair.osaka.log();
    for from in ["(was 192.0.2", "(was 198.51.100"] {
        assert!(!log.contains(from), "no path follows another uplink: {log}");
    }
}

#[test]
fn every_uplink_leads_to_every_address_of_the_peer() {
    let pair = start(
        "[\"203.0.113.2:7600\", \"203.0.113.3:7600\", \"203.0.113.14:7600\"]",
        |lab| {
            for device in ["wan0", "wan1"] {
                default_route(lab, device);
            }
        },
    );
    // Nothing is at the third address.
    eventually("paths are up", || {
        let status = pair.tokyo.status()?;
        (status["paths_up"] == 4 && status["paths"] == 6).then_some(())
    });
    for (name, remote) in [("wan0", 2), ("wan0-2", 3), ("wan1", 2), ("wan1-2", 3)] {
        let path = pair.tokyo.path(name);
        assert_eq!(path["remote"], format!("203.0.113.{remote}:7600"), "{path}");
        assert_eq!(path["state"], "up", "{path}");
    }
    eventually("what never answers is abandoned", || {
        let status = pair.tokyo.status()?;
        (status["paths_up"] == 4 && status["paths"] == 4).then_some(())
    });
    assert_eq!(pair.tokyo.path("wan0-3")["abandoned"], true);
    // A reload changes nothing.
    let text = pair.tokyo.ask(&["reload"]).stdout;
    assert!(text.contains("nothing changed"), "{text}");
    assert_eq!(pair.tokyo.status().expect("it answers")["paths_up"], 4);
}

/// The resolver of a process, as in resolv.conf(5).
const RESOLVER: &str = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n";

/// A name server in a host that knows one name.
fn name_server(pair: &Pair, host: &str) -> Process {
    let tokyo = pair.lab.host("tokyo").expect("a host");
    let mut command = tokyo.command("dnsmasq");
    command
        .args([
            "--keep-in-foreground",
            "--no-daemon",
            "--conf-file=/dev/null",
            "--no-resolv",
            "--no-hosts",
            "--user=root",
            "--listen-address=127.0.0.1",
            "--bind-interfaces",
            "--local-ttl=0",
        ])
        // The first is a lie that is refused, and nothing is at the second.
        .args(["--host-record=hub.example.net,127.0.0.1"])
        .args(["--host-record=hub.example.net,203.0.113.14"])
        .arg(format!("--host-record=hub.example.net,203.0.113.{host}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    tokyo.spawn(command).expect("dnsmasq starts")
}

#[track_caller]
fn end(process: &Process) {
    process.signal(SIGTERM).expect("signalled");
    eventually("it ends", || process.wait(Duration::ZERO).expect("a child"));
}

#[test]
fn hub_that_moves_is_found_by_its_name_and_one_that_has_not_moved_without_dns() {
    let mut pair = start("\"hub.example.net:7600\"", |lab| {
        ip(lab, "tokyo", "link set lo up");
        default_route(lab, "wan0");
    });
    pair.tokyo.restart_with_resolver(&pair.lab, RESOLVER);
    // Without DNS the failure is named.
    eventually("the failure is named", || {
        let status = pair.tokyo.status()?.to_string();
        status
            .contains("endpoint hub.example.net: its addresses are not known")
            .then_some(())
    });
    let server = name_server(&pair, "2");
    wait_up_at(&pair, 2);
    end(&server);
    // The hub moves, and DNS follows a little later.
    ip(&pair.lab, "isp", "route add blackhole 203.0.113.2/32");
    eventually("the peer is down", || {
        (pair.tokyo.status()?["peers_up"] == 0).then_some(())
    });
    let server = name_server(&pair, "3");
    let took = wait_up_at(&pair, 3);
    assert!(took < Duration::from_secs(15), "{took:?}");
    end(&server);
    eventually("its address is kept", || {
        let kept = fs::read_to_string(pair.tokyo.site.path("state/endpoints")).ok()?;
        (kept == "hub.example.net 203.0.113.3\n").then_some(())
    });
    // A start without DNS, from what was kept.
    pair.tokyo.restart_with_resolver(&pair.lab, RESOLVER);
    let took = wait_up_at(&pair, 3);
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// Waits until a path to this address of osaka is up; how long that took.
#[track_caller]
fn wait_up_at(pair: &Pair, host: u8) -> Duration {
    let begun = Instant::now();
    let remote = format!("203.0.113.{host}:7600");
    eventually("the hub is reached", || {
        let paths = pair.tokyo.ask(&["show", "path", "--json"]).stdout;
        let paths: serde_json::Value = serde_json::from_str(&paths).ok()?;
        let mut paths = paths.as_array()?.iter();
        paths
            .any(|path| path["remote"] == remote && path["state"] == "up")
            .then_some(())
    });
    begun.elapsed()
}
