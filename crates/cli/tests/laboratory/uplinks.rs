//! Uplinks whose interfaces and addresses come, change and go, behind a provider that drops packets with a
//! source address of another uplink.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    io::{Read, Write},
    net::Shutdown,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use keiro_lab::{Lab, Process};
use keiro_linux::process::{SIGKILL, SIGTERM};

use crate::{
    carried_connection::CarriedConnection,
    flow::Flow,
    harness::{Site, eventually, finish, shown},
    pair::{APP, Gateway, Pair},
};

/// Two uplinks of tokyo at the provider, and osaka behind it.
const TOPOLOGY: &str = r#"
[host.tokyo]
sysctl = { "net.ipv4.conf.all.promote_secondaries" = 1 }
[host.isp]
sysctl = { "net.ipv4.ip_forward" = 1, "net.ipv6.conf.all.forwarding" = 1 }
[host.osaka]
routes = [{ to = "default", via = "203.0.113.1" }, { to = "default", via = "2001:db8::1" }]
[link.wan0]
a = { host = "tokyo", addresses = ["192.0.2.2/28"] }
b = { host = "isp", addresses = ["192.0.2.1/28"] }
[link.wan1]
a = { host = "tokyo", addresses = ["198.51.100.2/28", "2001:db8:1::2/64"] }
b = { host = "isp", addresses = ["198.51.100.1/28", "2001:db8:1::1/64"] }
[link.core]
a = { host = "isp", addresses = ["203.0.113.1/28", "2001:db8::1/64"] }
b = { host = "osaka", addresses = ["203.0.113.2/28", "2001:db8::2/64"] }
each_way = { rate = "50Mbit", delay = "10ms", buffer = "128KiB" }
"#;

/// A TCP connection from tokyo to osaka that carries a known sequence of bytes.
struct Bytes {
    stop: Arc<AtomicBool>,
    writing: JoinHandle<usize>,
    reading: JoinHandle<usize>,
}

impl Bytes {
    fn start(pair: &Pair) -> Self {
        let CarriedConnection { mut near, mut far } = CarriedConnection::open(pair);
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let writing = thread::spawn(move || {
            let mut count = 0;
            while !is_over.load(Ordering::Acquire) {
                let block: Vec<u8> = (count..count + 1000).map(byte).collect();
                near.write_all(&block).expect("the connection stays");
                count += block.len();
                thread::sleep(Duration::from_millis(5));
            }
            near.shutdown(Shutdown::Write).expect("it ends");
            count
        });
        let reading = thread::spawn(move || {
            let mut count = 0;
            let mut block = [0; 4096];
            loop {
                let length = far.read(&mut block).expect("the connection stays");
                for (number, found) in (count..).zip(&block[..length]) {
                    assert_eq!(*found, byte(number), "byte {number}");
                }
                count += length;
                if length == 0 {
                    return count;
                }
            }
        });
        Self {
            stop,
            writing,
            reading,
        }
    }

    /// Panics unless all bytes have arrived in order.
    fn finish(self) {
        self.stop.store(true, Ordering::Release);
        let written = self.writing.join().expect("it writes");
        assert_eq!(self.reading.join().expect("it reads"), written);
    }
}

fn byte(number: usize) -> u8 {
    (number % 251) as u8
}

fn ip(lab: &Lab, host: &str, args: &str) -> String {
    let host = lab.host(host).expect("a host");
    let mut command = host.command("ip");
    command.args(args.split_whitespace());
    finish(&mut command, b"").expect_code(0).stdout
}

/// The second default route has the larger metric, and the provider looks at source addresses.
fn prepare(lab: &Lab) {
    ip(
        lab,
        "tokyo",
        "route add default via 192.0.2.1 dev wan0 metric 100",
    );
    ip(
        lab,
        "tokyo",
        "route add default via 198.51.100.1 dev wan1 metric 200",
    );
    filter_sources(lab);
}

fn filter_sources(lab: &Lab) {
    let host = lab.host("isp").expect("a host");
    let filter = || {
        for device in ["wan0", "wan1"] {
            let file = format!("/proc/sys/net/ipv4/conf/{device}/rp_filter");
            fs::write(file, "1").expect("a sysctl");
        }
    };
    host.run(filter).expect("in the host");
}

/// Of tokyo the paths `wan0` and `wan1`, which leave by `locals`; osaka has a port for each.
fn text(own: usize, beginning: String, peer_key: &str, locals: [&str; 2]) -> String {
    let mut text = beginning;
    for (number, local) in locals.into_iter().enumerate() {
        let port = 7600 + number;
        let address = match locals[number].contains("ipv6") {
            true => format!("[2001:db8::2]:{port}"),
            false => format!("203.0.113.2:{port}"),
        };
        let local = match own {
            0 => local.to_owned(),
            _ => format!("local = \"{address}\""),
        };
        let _ = write!(
            text,
            "[[path]]\nname = \"wan{number}\"\n{local}\nrate = \"40Mbit\"\ndelay = \"{}ms\"\n",
            10 + number
        );
    }
    let endpoints = match own {
        0 => {
            let second = match locals[1].contains("ipv6") {
                true => "[2001:db8::2]:7601",
                false => "203.0.113.2:7601",
            };
            format!("endpoints = {{ wan0 = \"203.0.113.2:7600\", wan1 = \"{second}\" }}\n")
        }
        _ => String::new(),
    };
    let peer = ["osaka", "tokyo"][own];
    let bytes = CarriedConnection::end_of("bytes", own);
    let _ = write!(
        text,
        "[[peer]]\nname = \"{peer}\"\npublic_key = \"{peer_key}\"\n{endpoints}\
         [[app]]\nname = \"{APP}\"\nclass = \"message\"\npeer = \"{peer}\"\n\
         [[app]]\nname = \"bytes\"\nclass = \"stream\"\npeer = \"{peer}\"\n{bytes}"
    );
    text
}

const BY_INTERFACE: [&str; 2] = ["interface = \"wan0\"", "interface = \"wan1\""];

fn start(locals: [&str; 2], prepare: impl FnOnce(&Lab)) -> Pair {
    Pair::start_in(TOPOLOGY, prepare, |own, beginning, peer_key| {
        text(own, beginning, peer_key, locals)
    })
}

/// Waits until `paths` paths of tokyo are up; how long that took.
#[track_caller]
fn wait_up(pair: &Pair, paths: u64) -> Duration {
    let begun = Instant::now();
    eventually("paths are up", || {
        (pair.tokyo.status()?["paths_up"] == paths).then_some(())
    });
    begun.elapsed()
}

#[track_caller]
fn wait_for_problem(pair: &Pair, path: &str, part: &str) {
    eventually(part, || {
        let status = pair.tokyo.status()?;
        let problems = status["path_problems"].as_array()?.clone();
        let beginning = format!("path {path}: ");
        let mut problems = problems.iter().filter_map(|line| line.as_str());
        problems
            .any(|line| line.starts_with(&beginning) && line.contains(part))
            .then_some(())
    });
    assert_eq!(pair.tokyo.path(path)["state"], "down");
    let text = pair.tokyo.ask(&["show", "path", path]).stdout;
    assert!(text.contains(part), "{text}");
}

#[test]
fn each_path_leaves_by_its_uplink_whatever_the_metrics_of_the_default_routes_are() {
    let fixed = [
        "local = \"192.0.2.2:7600\"",
        "local = \"198.51.100.2:7600\"",
    ];
    for locals in [BY_INTERFACE, fixed] {
        let pair = start(locals, prepare);
        wait_up(&pair, 2);
        let path = pair.tokyo.path("wan1");
        assert_eq!(path["local"], "198.51.100.2:7600");
        assert_eq!(pair.osaka.path("wan1")["remote"], "198.51.100.2:7600");
        assert_eq!(path.get("problem"), None, "{path}");
    }
}

#[test]
fn gateway_starts_with_the_uplinks_that_are_there_and_takes_the_others_when_they_appear() {
    let pair = start(BY_INTERFACE, |lab| {
        prepare(lab);
        ip(lab, "tokyo", "link delete wan1");
    });
    wait_up(&pair, 1);
    wait_for_problem(&pair, "wan1", "interface wan1 does not exist");
    let flow = Flow::start(&pair, 1000, Duration::from_millis(5), None);
    add_wan1(&pair.lab, "wan1");
    wait_for_problem(&pair, "wan1", "interface wan1 is down");
    ip(&pair.lab, "tokyo", "link set wan1 up");
    wait_for_problem(&pair, "wan1", "interface wan1 has no IPv4 address");
    ip(&pair.lab, "tokyo", "address add 198.51.100.2/28 dev wan1");
    eventually("the missing route is reported", || {
        let path = pair.tokyo.path("wan1");
        path["problem"]
            .as_str()?
            .contains("no default route")
            .then_some(())
    });
    ip(
        &pair.lab,
        "tokyo",
        "route add default via 198.51.100.1 dev wan1 metric 200",
    );
    let took = wait_up(&pair, 2);
    assert!(took < Duration::from_secs(2), "{took:?}");
    let status = pair.tokyo.status().expect("it answers");
    assert_eq!(status.get("path_problems"), None, "{status}");

    // The interface goes, comes back as another device, and from under another name.
    ip(&pair.lab, "tokyo", "link delete wan1");
    wait_for_problem(&pair, "wan1", "interface wan1 does not exist");
    add_wan1(&pair.lab, "usb7");
    set_up(&pair.lab, "usb7");
    ip(&pair.lab, "tokyo", "link set usb7 down");
    ip(&pair.lab, "tokyo", "link set usb7 name wan1");
    set_up(&pair.lab, "wan1");
    let took = wait_up(&pair, 2);
    assert!(took < Duration::from_secs(2), "{took:?}");
    ip(&pair.lab, "tokyo", "link set wan1 down");
    wait_for_problem(&pair, "wan1", "interface wan1 is down");
    ip(&pair.lab, "tokyo", "link set wan1 up");
    ip(
        &pair.lab,
        "tokyo",
        "route add default via 198.51.100.1 dev wan1 metric 200",
    );
    let took = wait_up(&pair, 2);
    assert!(took < Duration::from_secs(2), "{took:?}");
    // Into another namespace and back.
    let namespace = |host: &str| pair.lab.host(host).expect("a host").namespace().to_owned();
    ip(
        &pair.lab,
        "tokyo",
        &format!("link set wan1 netns {}", namespace("osaka")),
    );
    wait_for_problem(&pair, "wan1", "interface wan1 does not exist");
    ip(
        &pair.lab,
        "osaka",
        &format!("link set wan1 netns {}", namespace("tokyo")),
    );
    set_up(&pair.lab, "wan1");
    let took = wait_up(&pair, 2);
    assert!(took < Duration::from_secs(2), "{took:?}");
    flow.finish();
}

/// A new device at tokyo that leads to the provider, without an address.
fn add_wan1(lab: &Lab, name: &str) {
    let isp = lab.host("isp").expect("a host").namespace().to_owned();
    ip(
        lab,
        "tokyo",
        &format!("link add {name} type veth peer wan1 netns {isp}"),
    );
    ip(lab, "isp", "address add 198.51.100.1/28 dev wan1");
    ip(lab, "isp", "link set wan1 up");
    filter_sources(lab);
}

fn set_up(lab: &Lab, name: &str) {
    ip(lab, "tokyo", &format!("link set {name} up"));
    ip(
        lab,
        "tokyo",
        &format!("address replace 198.51.100.2/28 dev {name}"),
    );
    ip(
        lab,
        "tokyo",
        &format!("route add default via 198.51.100.1 dev {name} metric 200"),
    );
}

#[test]
fn fixed_address_that_is_missing_is_waited_for() {
    let locals = [
        "local = \"192.0.2.2:7600\"",
        "local = \"198.51.100.7:7600\"",
    ];
    let pair = start(locals, prepare);
    wait_up(&pair, 1);
    wait_for_problem(&pair, "wan1", "no interface has the address 198.51.100.7");
    ip(&pair.lab, "tokyo", "address add 198.51.100.7/28 dev wan1");
    let took = wait_up(&pair, 2);
    assert!(took < Duration::from_secs(2), "{took:?}");
    ip(
        &pair.lab,
        "tokyo",
        "address delete 198.51.100.7/28 dev wan1",
    );
    wait_for_problem(&pair, "wan1", "no interface has the address 198.51.100.7");
}

/// The gain and the loss of a default route, again and again, replace no socket and lose no round trip.
#[test]
fn default_routes_that_come_and_go_leave_a_fixed_address_its_socket() {
    let locals = [
        "local = \"192.0.2.2:7600\"",
        "local = \"198.51.100.2:7600\"",
    ];
    let pair = start(locals, |lab| {
        prepare(lab);
        ip(lab, "tokyo", "route delete default dev wan1");
        // By the routes alone, it leaves by wan1 only towards osaka.
        ip(
            lab,
            "tokyo",
            "route add 203.0.113.2 via 198.51.100.1 dev wan1",
        );
    });
    wait_up(&pair, 2);
    // Once it has been up for a second, an interruption would show.
    let up_seconds = eventually("the path has been up for a second", || {
        let seconds = pair.tokyo.path("wan1")["state_seconds"].as_f64()?;
        (seconds >= 1.0).then_some(seconds)
    });
    let begun = Instant::now();
    for _ in 0..3 {
        ip(
            &pair.lab,
            "tokyo",
            "route add default via 198.51.100.1 dev wan1 metric 200",
        );
        eventually("the socket is bound to the interface", || {
            let host = pair.lab.host("tokyo").expect("a host");
            let mut list = host.command("ss");
            list.args(["-ulnH"]);
            let sockets = finish(&mut list, b"").expect_code(0).stdout;
            sockets.contains("198.51.100.2%wan1:7600").then_some(())
        });
        ip(&pair.lab, "tokyo", "route delete default dev wan1");
    }
    let least = up_seconds + begun.elapsed().as_secs_f64() - 0.1;
    let path = pair.tokyo.path("wan1");
    assert!(path["state_seconds"].as_f64() >= Some(least), "{path}");
    assert_eq!(path["state"], "up");
}

#[test]
fn address_that_changes_under_messages_and_streams_is_followed_and_nothing_is_lost() {
    change_addresses(3);
}

#[test]
#[ignore = "takes half a minute; by hand"]
fn fifty_addresses_under_messages_and_streams_lose_nothing() {
    change_addresses(50);
}

/// Of the only path that is up.
fn change_addresses(count: usize) {
    let pair = start(BY_INTERFACE, |lab| {
        prepare(lab);
        ip(lab, "tokyo", "link set wan0 down");
    });
    wait_up(&pair, 1);
    let flow = Flow::start(&pair, 1000, Duration::from_millis(5), None);
    let bytes = Bytes::start(&pair);
    flow.wait_for_more(20);
    for number in 0..count {
        let [old, new] = [number, number + 1].map(|number| 2 + number % 12);
        let add = format!("address add 198.51.100.{new}/28 dev wan1");
        let delete = format!("address delete 198.51.100.{old}/28 dev wan1");
        // A client of DHCP may do either first.
        let steps = match number % 2 {
            0 => [add, delete],
            _ => [delete, add],
        };
        for step in steps {
            ip(&pair.lab, "tokyo", &step);
        }
        ip(
            &pair.lab,
            "tokyo",
            "route replace default via 198.51.100.1 dev wan1 metric 200",
        );
        eventually("the new address is in use", || {
            let path = pair.tokyo.path("wan1");
            let is_there = path["local"] == format!("198.51.100.{new}:7600");
            (is_there && path["state"] == "up").then_some(())
        });
        flow.wait_for_more(20);
    }
    flow.finish();
    bytes.finish();
    let log = pair.tokyo.log();
    // What repeats is one line a minute.
    assert!(log.contains("leaves from 198.51.100."), "{log}");
}

#[test]
fn ipv6_address_is_followed() {
    let locals = [BY_INTERFACE[0], "interface = \"wan1\"\nfamily = \"ipv6\""];
    let pair = start(locals, |lab| {
        prepare(lab);
        ip(
            lab,
            "tokyo",
            "-6 route add default via 2001:db8:1::1 dev wan1",
        );
    });
    wait_up(&pair, 2);
    assert_eq!(pair.tokyo.path("wan1")["local"], "[2001:db8:1::2]:7600");
    ip(
        &pair.lab,
        "tokyo",
        "address add 2001:db8:1::3/64 dev wan1 nodad",
    );
    ip(
        &pair.lab,
        "tokyo",
        "address delete 2001:db8:1::2/64 dev wan1",
    );
    eventually("the new address is in use", || {
        let path = pair.tokyo.path("wan1");
        (path["local"] == "[2001:db8:1::3]:7600" && path["state"] == "up").then_some(())
    });
}

#[test]
fn two_uplinks_in_one_subnet_are_two_paths() {
    let pair = start(BY_INTERFACE, |lab| {
        for device in ["wan0", "wan1"] {
            ip(lab, "isp", &format!("address flush dev {device}"));
            ip(lab, "tokyo", &format!("address flush dev {device}"));
        }
        ip(lab, "isp", "link add lan type bridge");
        for device in ["wan0", "wan1"] {
            ip(lab, "isp", &format!("link set {device} master lan"));
        }
        ip(lab, "isp", "link set lan up");
        ip(lab, "isp", "address add 192.0.2.1/28 dev lan");
        for (device, host, metric) in [("wan0", 2, 100), ("wan1", 3, 200)] {
            ip(
                lab,
                "tokyo",
                &format!("address add 192.0.2.{host}/28 dev {device}"),
            );
            ip(
                lab,
                "tokyo",
                &format!("route add default via 192.0.2.1 dev {device} metric {metric}"),
            );
        }
    });
    wait_up(&pair, 2);
    assert_eq!(pair.tokyo.path("wan1")["local"], "192.0.2.3:7600");
}

/// A lease script for udhcpc: address and route of the interface.
const LEASE_SCRIPT: &str = r#"#!/bin/sh
case $1 in
deconfig) ip address flush dev $interface; ip link set $interface up ;;
bound|renew)
    ip address replace $ip/$mask dev $interface
    for old in $(ip -4 -o address show dev $interface | awk '{ print $4 }'); do
        [ "$old" = "$ip/$mask" ] || ip address delete $old dev $interface
    done
    ip route replace default via $router dev $interface metric 200 ;;
esac
"#;

/// The provider's DHCP server gives `host` to all that ask.
fn dhcp_server(pair: &Pair, host: u8) -> Process {
    let isp = pair.lab.host("isp").expect("a host");
    let mut command = isp.command("dnsmasq");
    let range = format!("198.51.100.{host},198.51.100.{host},255.255.255.240,2m");
    let leases = pair.tokyo.site.path(&format!("leases{host}"));
    command
        .args([
            "--keep-in-foreground",
            "--no-daemon",
            "--port=0",
            "--conf-file=/dev/null",
        ])
        .args([
            "--interface=wan1",
            "--bind-interfaces",
            "--dhcp-authoritative",
            "--user=root",
        ])
        .args([
            "--dhcp-option=3,198.51.100.1",
            "--no-ping",
            "--leasefile-ro",
        ])
        .arg(format!("--dhcp-range={range}"))
        .arg(format!("--dhcp-leasefile={}", shown(&leases)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    isp.spawn(command).expect("dnsmasq starts")
}

#[test]
fn lease_of_another_address_is_followed() {
    // POSIX's number: udhcpc asks for its lease again.
    const SIGUSR1: i32 = 10;
    let pair = start(BY_INTERFACE, |lab| {
        prepare(lab);
        ip(lab, "tokyo", "address flush dev wan1");
    });
    wait_up(&pair, 1);
    wait_for_problem(&pair, "wan1", "interface wan1 has no IPv4 address");
    let server = dhcp_server(&pair, 5);
    let script = pair.tokyo.site.write("lease", LEASE_SCRIPT);
    pair.tokyo.site.set_mode("lease", 0o700);
    let tokyo = pair.lab.host("tokyo").expect("a host");
    let mut command = tokyo.command("udhcpc");
    command
        .args([
            "-f",
            "-i",
            "wan1",
            "-t",
            "100",
            "-T",
            "1",
            "-s",
            &shown(&script),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let client = tokyo.spawn(command).expect("udhcpc starts");
    let has = |host: u8| {
        eventually("the lease is in use", || {
            let path = pair.tokyo.path("wan1");
            let is_there = path["local"] == format!("198.51.100.{host}:7600");
            (is_there && path["state"] == "up").then_some(())
        });
    };
    has(5);
    let flow = Flow::start(&pair, 1000, Duration::from_millis(5), None);
    server.signal(SIGTERM).expect("signalled");
    eventually("the server ends", || {
        server.wait(Duration::ZERO).expect("a child")
    });
    let _server = dhcp_server(&pair, 9);
    // The new server refuses the old address, and the client asks for another one.
    eventually("the new lease", || {
        let path = pair.tokyo.path("wan1");
        // Once it has given up the old lease, each signal would have it begin again.
        if path["local"] == "198.51.100.5:7600" {
            client.signal(SIGUSR1).expect("signalled");
        }
        let is_there = path["local"] == "198.51.100.9:7600";
        (is_there && path["state"] == "up").then_some(())
    });
    flow.finish();
}

/// The kernel of tokyo drops packets that come in by another interface than it would answer by.
#[test]
fn answers_pass_a_strict_reverse_path_filter_by_a_table_that_goes_with_the_gateway() {
    const LEFT_BEHIND: &str = "from 198.51.100.99 lookup 7600099";
    let pair = start(BY_INTERFACE, |lab| {
        prepare(lab);
        filter_strictly(lab);
        // As by a gateway that was killed.
        let rule = format!("rule add {LEFT_BEHIND} priority 7599 protocol 75");
        ip(lab, "tokyo", &rule);
    });
    wait_up(&pair, 2);
    let rules = || ip(&pair.lab, "tokyo", "rule show");
    let own = |rules: &str| {
        rules
            .lines()
            .filter(|line| line.starts_with("7599:"))
            .count()
    };
    // The first uplink has the best default route, and needs none.
    let present = rules();
    assert!(
        own(&present) == 1
            && present.contains("from 198.51.100.2 ipproto udp sport 7600 lookup 7600"),
        "{present}"
    );
    ip(&pair.lab, "tokyo", "rule delete priority 7599");
    eventually("the rule is put back", || {
        (own(&rules()) == 1).then_some(())
    });
    ip(&pair.lab, "tokyo", "address add 198.51.100.3/28 dev wan1");
    ip(
        &pair.lab,
        "tokyo",
        "address delete 198.51.100.2/28 dev wan1",
    );
    eventually("the rule follows the address", || {
        let rules = rules();
        (own(&rules) == 1 && rules.contains("from 198.51.100.3 ipproto udp sport 7600 lookup 7600"))
            .then_some(())
    });
    wait_up(&pair, 2);
    pair.tokyo.process.signal(SIGTERM).expect("signalled");
    eventually("the gateway ends", || {
        pair.tokyo.process.wait(Duration::ZERO).expect("a child")
    });
    assert_eq!(own(&rules()), 0, "{}", rules());
    let routes = ip(&pair.lab, "tokyo", "route show table all");
    assert!(!routes.contains("table 7600"), "{routes}");
}

/// The kernel of tokyo filters strictly by the reverse path.
fn filter_strictly(lab: &Lab) {
    let strict = || {
        for device in ["wan0", "wan1"] {
            let file = format!("/proc/sys/net/ipv4/conf/{device}/rp_filter");
            fs::write(file, "1").expect("a sysctl");
        }
    };
    let tokyo = lab.host("tokyo").expect("a host");
    tokyo.run(strict).expect("in the host");
}

/// The tables that the rules of uplinks at tokyo select, by the port that they are for.
fn uplink_tables(lab: &Lab) -> BTreeMap<String, Vec<String>> {
    let rules = ip(lab, "tokyo", "rule show");
    let mut tables: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in rules.lines().filter(|line| line.starts_with("7599:")) {
        let after = |word: &str| {
            let mut words = line.split_whitespace().skip_while(|found| *found != word);
            words.nth(1).unwrap_or_default().to_owned()
        };
        tables
            .entry(after("sport"))
            .or_default()
            .push(after("lookup"));
    }
    tables
}

/// Waits until both gateways have one rule each, with tables of their own that stay.
#[track_caller]
fn wait_for_two_rules(lab: &Lab) {
    eventually("each gateway has its rule and table", || {
        let tables = uplink_tables(lab);
        let is_one = |port: &str| tables.get(port).is_some_and(|tables| tables.len() == 1);
        (is_one("7600") && is_one("7700") && tables["7600"] != tables["7700"]).then_some(())
    });
}

#[test]
fn gateways_in_one_namespace_leave_each_others_rules_and_tables_alone() {
    let mut pair = start(BY_INTERFACE, |lab| {
        prepare(lab);
        filter_strictly(lab);
    });
    wait_up(&pair, 2);
    let site = Site::new();
    let mut text = site.gateway("kyoto");
    for device in ["wan0", "wan1"] {
        let _ = write!(
            text,
            "[[path]]\nname = \"{device}\"\ninterface = \"{device}\"\nport = 7700\nrate = \"40Mbit\"\n"
        );
    }
    let key = Site::new().public_key();
    let _ = write!(text, "[[peer]]\nname = \"nara\"\npublic_key = \"{key}\"\n");
    let mut kyoto = Gateway::start(&pair.lab, "tokyo", site, &text, &[]);
    wait_for_two_rules(&pair.lab);
    let kill = |gateway: &Gateway| {
        gateway.process.signal(SIGKILL).expect("signalled");
        eventually("the gateway ends", || {
            gateway.process.wait(Duration::ZERO).expect("a child")
        });
    };
    // One is killed, and started again beside the other; `true`: tokyo's.
    for is_first in [false, true] {
        kill(if is_first { &pair.tokyo } else { &kyoto });
        match is_first {
            true => pair.tokyo.restart(&pair.lab),
            false => kyoto.restart(&pair.lab),
        }
        wait_for_two_rules(&pair.lab);
        wait_up(&pair, 2);
    }
    // Both are killed, and started again in either order.
    for first in [false, true] {
        kill(&pair.tokyo);
        kill(&kyoto);
        for is_first in [first, !first] {
            match is_first {
                true => pair.tokyo.restart(&pair.lab),
                false => kyoto.restart(&pair.lab),
            }
        }
        wait_up(&pair, 2);
        wait_for_two_rules(&pair.lab);
    }
    // What one has left behind is removed by hand while the other runs, and one that stops takes only its own.
    kill(&kyoto);
    let host = pair.lab.host("tokyo").expect("a host");
    let mut cleanup = host.command(env!("CARGO_BIN_EXE_keiro"));
    cleanup.args(["gateway", "--cleanup"]);
    let removed = finish(&mut cleanup, b"").expect_code(0).stdout;
    assert!(removed.contains("sport 7700"), "{removed}");
    assert!(!removed.contains("sport 7600"), "{removed}");
    let ports = || -> Vec<String> { uplink_tables(&pair.lab).into_keys().collect() };
    assert_eq!(ports(), ["7600"]);
    kyoto.restart(&pair.lab);
    wait_for_two_rules(&pair.lab);
    kyoto.process.signal(SIGTERM).expect("signalled");
    eventually("kyoto's rule goes", || (ports() == ["7600"]).then_some(()));
    pair.tokyo.process.signal(SIGTERM).expect("signalled");
    eventually("tokyo's rule goes", || ports().is_empty().then_some(()));
    let routes = ip(&pair.lab, "tokyo", "route show table all");
    assert!(
        !routes.contains("table 7600") && !routes.contains("table 8600"),
        "{routes}"
    );
}

#[test]
fn what_happened_while_reports_were_lost_is_seen() {
    // signal(7): what no process can refuse or miss.
    const SIGSTOP: i32 = 19;
    const SIGCONT: i32 = 18;
    let pair = start(BY_INTERFACE, prepare);
    wait_up(&pair, 2);
    let ipv4 = |number: u32| format!("10.{}.{}.0/24", number / 250, number % 250);
    let routes: String = (0..2000)
        .map(|number| format!("route add unreachable {}\n", ipv4(number)))
        .collect();
    let batch = pair.tokyo.site.write("routes", &routes);
    pair.tokyo.process.signal(SIGSTOP).expect("signalled");
    ip(&pair.lab, "tokyo", &format!("-batch {}", shown(&batch)));
    ip(&pair.lab, "tokyo", "address add 198.51.100.3/28 dev wan1");
    ip(
        &pair.lab,
        "tokyo",
        "address delete 198.51.100.2/28 dev wan1",
    );
    pair.tokyo.process.signal(SIGCONT).expect("signalled");
    eventually("the new address is in use", || {
        let path = pair.tokyo.path("wan1");
        (path["local"] == "198.51.100.3:7600" && path["state"] == "up").then_some(())
    });
}
