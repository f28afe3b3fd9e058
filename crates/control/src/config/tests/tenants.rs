//! Tenants: what is read, and what is refused with what hint.

use keiro_model::fairness::controller::ControllerConfig;

use super::*;

mod exits;

/// A gateway with two peers and an application for each.
const BASE: &str = r#"
[gateway]
name = "a"
[[path]]
name = "wan"
local = "192.0.2.1:7600"
rate = "10Mbit"
[[peer]]
name = "b"
public_key = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
endpoints = { wan = "198.51.100.1:7600" }
[[peer]]
name = "c"
public_key = "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI="
[[app]]
name = "ip-b"
class = "datagram"
peer = "b"
[[app]]
name = "ip-c"
class = "datagram"
peer = "c"
[[app]]
name = "orders"
class = "message"
peer = "b"
"#;

const BLUE: &str = r#"
[tenant.blue]
id = 1
prefixes = ["10.1.0.0/16", "fd00:1::/48"]
[tenant.blue.peer.b]
prefixes = ["10.2.0.0/16"]
app = "ip-b"
"#;

fn parsed(text: &str) -> Config {
    Config::parse(&format!("{BASE}{text}"), "f").unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn refused(text: &str, parts: &[&str]) {
    let error = Config::parse(&format!("{BASE}{text}"), "f").expect_err(text);
    let error_text = error.to_string();
    for part in parts {
        assert!(error_text.contains(part), "no `{part}` in: {error_text}");
    }
    assert_eq!(error.problems().len(), 1, "{error_text}");
}

#[test]
fn tenant_defaults_are_valid() {
    let config = parsed(BLUE);
    let tenant = config.tenant_named("blue").expect("it is there");
    assert_eq!((tenant.device.as_str(), tenant.id), ("keiro1", 1));
    assert_eq!(tenant.device_queues, 1);
    assert_eq!(tenant.when_stopped, WhenStopped::Block);
    assert_eq!(
        (tenant.weight.get(), tenant.controller),
        (1.0, TenantController::Keiro)
    );
    assert_eq!(tenant.routes, tenant.peers[0].prefixes);
    assert_eq!(tenant.mtu, DEFAULT_TENANT_MTU);
    assert_eq!(
        tenant.controller(&config.fairness),
        ControllerConfig::default()
    );
    assert!(tenant.uses(false) && tenant.uses(true));
}

#[test]
fn every_tenant_key_is_read() {
    let config = parsed(
        r#"
[fairness]
tenants_max = 7
unit = "2Mbit"
increase = 0.2
decrease = 0.5
round_trip = "50ms"
[tenant.blue]
id = 4294967295
weight = 2.5
controller = "i2vfc"
device = "blue"
device_queues = 64
addresses = ["10.1.0.1/24", "fd00:1::1/128"]
mtu = "1300B"
table = 101
interfaces = ["eth1"]
prefixes = ["10.1.0.0/16"]
routes = ["10.2.0.0/17"]
when_stopped = "bypass"
queue = "64KiB"
[tenant.blue.peer.b]
prefixes = ["10.2.0.0/16"]
app = "ip-b"
[[tenant.blue.rule]]
app = "ip-b"
protocol = 50
dscp = 46
[[tenant.blue.rule]]
app = "ip-b"
protocol = "udp"
source = "10.1.2.0/24"
destination = "10.2.0.0/16"
source_ports = 53
destination_ports = "5004-5010"
"#,
    );
    let tenant = &config.tenants[0];
    let ControllerConfig::I2vfc(provider) = tenant.controller(&config.fairness) else {
        panic!("{tenant:?}");
    };
    assert_eq!(
        (provider.aimd.increase(), provider.aimd.decrease()),
        (0.2, 0.5)
    );
    assert_eq!(provider.unit, Some(Bandwidth::from_mbit_per_second(2)));
    assert_eq!(tenant.rules[0].protocol, Some(50));
    assert_eq!(tenant.rules[1].source_ports, Some(53..=53));
    assert_eq!(tenant.rules[1].destination_ports, Some(5004..=5010));
    assert_eq!((config.fairness.tenants_max, tenant.table), (7, Some(101)));
    assert_eq!(tenant.device_queues, 64);
    assert_eq!(tenant.when_stopped, WhenStopped::Bypass);
}

#[test]
fn bad_values_are_refused_with_what_to_write() {
    for (from, to, parts) in [
        ("id = 1\n", "", ["[tenant.NAME] has no `id`", "add id = 1"]),
        (
            "id = 1\n",
            "id = 0\n",
            ["0 cannot be the id of a tenant", "write 1 to"],
        ),
        (
            "id = 1\n",
            "id = 1\ndevice_queues = 65\n",
            ["65 is out of range", "write 1 to 64"],
        ),
        (
            "id = 1\n",
            "id = 1\nweight = 0\n",
            ["would get nothing", "weight = 2"],
        ),
        (
            "id = 1\n",
            "id = 1\nweight = -1.5\n",
            ["would get nothing", "weight = 2"],
        ),
        (
            "id = 1\n",
            "id = 1\ntable = 254\n",
            ["cannot be the routing table of a tenant", "256"],
        ),
        (
            "id = 1\n",
            "id = 1\ndevice = \"a/b\"\n",
            ["not a name of an interface", "1 to 15"],
        ),
        (
            "id = 1\n",
            "id = 1\nmtu = \"1000B\"\n",
            ["out of range", "1280B"],
        ),
        (
            "id = 1\n",
            "id = 1\ncontroller = \"reno\"\n",
            ["none of the choices", "i2vfc"],
        ),
        (
            "id = 1\n",
            "id = 1\ncolour = 1\n",
            ["unknown key `colour`", "known keys are"],
        ),
        (
            "id = 1\n",
            "id = 1\ninterfaces = [\"eth1\"]\n",
            ["shares the main one", "table = 101"],
        ),
        (
            "id = 1\n",
            "id = 1\nroutes = []\n",
            ["has none, so nothing enters", "remove routes"],
        ),
        (
            "id = 1\n",
            "id = 1\nroutes = [\"10.9.0.0/16\"]\n",
            ["no peer of the tenant", "prefixes"],
        ),
        (
            "10.2.0.0/16",
            "10.2.0.1/16",
            ["bits set behind", "10.2.0.0/16"],
        ),
        (
            "10.2.0.0/16",
            "10.1.2.0/24",
            ["overlaps 10.1.0.0/16", "write prefixes apart"],
        ),
        (
            "\"10.2.0.0/16\"",
            "\"10.2.0.0/16\", \"10.2.3.0/24\"",
            ["overlaps", "apart"],
        ),
        (
            "10.2.0.0/16",
            "198.51.100.0/24",
            ["into the tunnel", "table = 101"],
        ),
        (
            "app = \"ip-b\"",
            "app = \"orders\"",
            ["is of class `message`", "datagram"],
        ),
        (
            "app = \"ip-b\"",
            "app = \"ip-c\"",
            ["is of peer `c`, not `b`", "this peer"],
        ),
        ("peer.b]", "peer.d]", ["no [[peer]] named `d`", ""]),
    ] {
        refused(&BLUE.replacen(from, to, 1), &parts);
    }
}

#[test]
fn tenant_tables_exclude_those_of_uplinks() {
    let with = |table: u32| BLUE.replacen("id = 1\n", &format!("id = 1\ntable = {table}\n"), 1);
    for table in [7_600_000, 7_600_003, 15_599_999] {
        let parts = [
            "use for the uplinks of paths",
            "but for 7600000 to 15599999",
        ];
        refused(&with(table), &parts);
    }
    for table in [7_599_999, 15_600_000] {
        assert_eq!(parsed(&with(table)).tenants[0].table, Some(table));
    }
}

#[test]
fn paths_routed_into_a_tenant_device_are_refused() {
    let path = |local: &str| {
        format!("[[path]]\nname = \"loop\"\n{local}\nrate = \"1Mbit\"\n{BLUE}").replacen(
            "id = 1\n",
            "id = 1\naddresses = [\"10.1.0.1/24\"]\n",
            1,
        )
    };
    let parts = [
        "interface: `keiro1` is a tenant's device",
        "lead into itself",
    ];
    refused(&path("interface = \"keiro1\""), &parts);
    let parts = [
        "local: 10.1.0.1 is the address of tenant `blue`'s device",
        "leads to the peer",
    ];
    refused(&path("local = \"10.1.0.1:7601\""), &parts);
    // Another host of its network.
    parsed(&path("local = \"10.1.0.2:7601\""));
    parsed(&path("interface = \"keiro2\""));
}

#[test]
fn invalid_device_names_are_refused_with_the_reason() {
    for (name, why) in [
        ("", "it is empty"),
        ("a b", "it has a space"),
        ("a/b", "it has `/`"),
        ("t%d", "it has `%`"),
        ("eth0:1", "it has `:`"),
        ("tënant", "it has `ë`"),
        ("all", "net.ipv4.conf.all is of other interfaces too"),
        ("default", "net.ipv4.conf.default is of"),
        ("lo", "`lo` is the loopback interface"),
        (".hidden", "it begins with a dot"),
        ("sixteen-bytes-16", "it has 16 bytes, and 15 is the most"),
    ] {
        let text = format!("id = 1\ndevice = \"{name}\"");
        refused(
            &BLUE.replacen("id = 1", &text, 1),
            &["f:30:10: device: ", why],
        );
    }
    parsed(&BLUE.replacen("id = 1", "id = 1\ndevice = \"fifteen-bytes.1\"", 1));
}

#[test]
fn addresses_that_no_device_can_have_are_refused() {
    for (address, why) in [
        ("10.1.0.1", "is not an address and its prefix length"),
        ("10.1.0.0/24", "it is that of the network itself"),
        ("fd00:1::/64", "it is that of the network itself"),
        ("10.1.0.255/24", "it is its network's broadcast address"),
        ("0.0.0.0/32", "it is unspecified, and never forwarded"),
        ("127.0.0.1/8", "it is loopback"),
        ("169.254.3.1/16", "it is link-local"),
        ("224.0.0.1/32", "it is multicast"),
        ("255.255.255.255/32", "it is broadcast"),
        ("::/128", "it is unspecified"),
        ("::1/128", "it is loopback"),
        ("fe80::1/64", "it is link-local"),
        ("ff02::1/128", "it is multicast"),
        ("::ffff:10.1.0.1/128", "it is IPv4 in IPv6 form"),
        ("10.1.0.1/24\", \"10.1.0.1/32", "`10.1.0.1` twice"),
    ] {
        let text = format!("id = 1\naddresses = [\"{address}\"]");
        refused(
            &BLUE.replacen("id = 1", &text, 1),
            &["f:30:13: addresses: ", why],
        );
    }
    for good in ["10.1.0.0/31", "10.1.0.1/31", "10.1.0.0/32", "fd00:1::/127"] {
        let text = format!("id = 1\naddresses = [\"{good}\"]");
        parsed(&BLUE.replacen("id = 1", &text, 1));
    }
}

#[test]
fn prefixes_of_which_nothing_is_forwarded_are_refused() {
    for (prefix, kind) in [
        ("0.0.0.0/32", "unspecified"),
        ("0.0.0.0/8", "unspecified"),
        ("127.0.0.0/8", "loopback"),
        ("127.3.0.0/16", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("224.0.0.0/4", "multicast"),
        ("255.255.255.255/32", "broadcast"),
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("::ffff:0.0.0.0/96", "IPv4 in IPv6 form"),
        ("fe80::/10", "link-local"),
        ("febf::/16", "link-local"),
        ("ff05::/16", "multicast"),
    ] {
        let message = format!("` is {kind}, and never forwarded");
        for (from, key) in [("10.2.0.0/16", "prefixes: "), ("10.1.0.0/16", "prefixes: ")] {
            refused(&BLUE.replacen(from, prefix, 1), &[key, &message]);
        }
        let routes = format!("id = 1\nroutes = [\"10.2.0.0/16\", \"{prefix}\"]");
        refused(
            &BLUE.replacen("id = 1", &routes, 1),
            &["f:30:10: routes: ", &message],
        );
        let rule = format!("{BLUE}[[tenant.blue.rule]]\napp = \"ip-b\"\nsource = \"{prefix}\"\n");
        refused(&rule, &["source: ", &message]);
    }
    // Not all of it.
    let table = BLUE.replacen("id = 1", "id = 1\ntable = 7", 1);
    for some in ["0.0.0.0/0", "126.0.0.0/7", "192.0.0.0/2", "::/0"] {
        parsed(&table.replacen("10.2.0.0/16", some, 1));
    }
}

#[test]
fn duplicate_tenant_routes_are_refused() {
    let routes = "id = 1\nroutes = [\"10.2.0.0/17\",\n \"10.2.0.0/16\",\n \"10.2.0.0/17\"]";
    refused(
        &BLUE.replacen("id = 1", routes, 1),
        &["f:32:2: routes: 10.2.0.0/17 twice (line 30); write it once"],
    );
}

#[test]
fn interfaces_are_the_machines_and_named_once() {
    let with = |interfaces: &str| {
        let text = format!("id = 1\ndevice = \"t1\"\ntable = 7\ninterfaces = {interfaces}");
        BLUE.replacen("id = 1", &text, 1)
    };
    let at = "f:32:14: interfaces: ";
    refused(&with("[\"eth1\", \"eth1\"]"), &[at, "`eth1` twice"]);
    refused(&with("[\"t1\"]"), &[at, "`t1` is the tenant's own device"]);
    refused(&with("[\"lo\"]"), &[at, "`lo` stands for all programs"]);
    refused(&with("[\"a b\"]"), &[at, "it has a space"]);
    let red = |text: &str| {
        let red = text.replace("blue", "red").replacen("id = 1", "id = 2", 1);
        red.replacen("\"t1\"", "\"t2\"", 1)
            .replacen("= 7", "= 8", 1)
    };
    let both = |first: &str, second: &str| with(first) + &red(&with(second));
    parsed(&both("[\"eth1\"]", "[\"eth2\"]"));
    refused(
        &both("[\"eth1\"]", "[\"eth1\"]"),
        &["f:42:14: interfaces: `eth1` is that of another tenant (line 32)"],
    );
    refused(
        &both("[\"t2\"]", "[\"eth1\"]"),
        &[at, "`t2` is another tenant's device"],
    );
}

#[test]
fn odd_numbers_are_judged_as_they_are_written() {
    let weight = |weight: &str| BLUE.replacen("id = 1", &format!("id = 1\nweight = {weight}"), 1);
    for (written, parts) in [
        ("1e300", "`weight`: 1e300 is out of range"),
        ("0x0", "a tenant of weight 0x0 would get nothing"),
        ("-0.0", "a tenant of weight -0.0 would get nothing"),
        ("nan", "`nan` is not a finite number"),
        ("inf", "`inf` is not a finite number"),
        ("\"2\"", "this is a text"),
        ("99999999999999999999", "is out of range"),
    ] {
        let parts = parts.trim_start_matches("`weight`: ");
        refused(&weight(written), &["f:30:10: weight: ", parts]);
    }
    let config = parsed(&weight("0x10").replacen("id = 1", "id = 0x2A", 1));
    let tenant = &config.tenants[0];
    assert_eq!((tenant.id, tenant.weight.get()), (42, 16.0));
    for (text, part) in [
        (
            "increase = 0",
            "f:28:12: increase: a window that grows by 0 per round trip never grows",
        ),
        ("increase = 1e300", "increase: 1e300 is out of range"),
        (
            "decrease = 0.0",
            "decrease: a window that a loss makes smaller by 0.0 never shrinks",
        ),
        (
            "decrease = 1",
            "decrease: a loss that takes 1 of a window leaves nothing",
        ),
    ] {
        refused(&format!("[fairness]\n{text}\n"), &[part]);
    }
}

#[test]
fn a_tenant_without_peers_or_prefixes_is_refused() {
    let head = BLUE.split("[tenant.blue.peer").next().expect("a part");
    refused(head, &["has no peer", "[tenant.blue.peer.PEER]"]);
    refused(
        &BLUE.replacen("prefixes = [\"10.1.0.0/16\", \"fd00:1::/48\"]\n", "", 1),
        &["no `prefixes`"],
    );
    refused(
        &BLUE.replacen("[\"10.2.0.0/16\"]", "[]", 1),
        &["none, so nothing enters"],
    );
}

#[test]
fn prefixes_of_two_peers_do_not_overlap_and_a_default_route_goes_around_the_own() {
    let peer_c = |prefix: &str| {
        format!("{BLUE}[tenant.blue.peer.c]\nprefixes = [\"{prefix}\"]\napp = \"ip-c\"\n")
    };
    refused(
        &peer_c("10.2.128.0/17"),
        &["overlaps 10.2.0.0/16 (line 32)"],
    );
    parsed(&peer_c("10.3.0.0/16"));
    let table = BLUE.replacen("id = 1", "id = 1\ntable = 7", 1);
    parsed(&table.replacen("10.2.0.0/16", "0.0.0.0/0", 1));
    // The other end of that: what is behind no peer is this gateway's.
    parsed(&BLUE.replacen("10.1.0.0/16", "0.0.0.0/0", 1));
    refused(
        &BLUE.replacen("10.1.0.0/16", "10.0.0.0/8", 1),
        &["overlaps 10.0.0.0/8"],
    );
}

#[test]
fn id_device_and_table_are_unique_among_tenants() {
    let two = |from: &str, to: &str| {
        let first = BLUE.replacen("id = 1", "id = 1\ndevice = \"t1\"\ntable = 7", 1);
        let second = first.replace("blue", "red").replacen("id = 1", "id = 2", 1);
        let second = second
            .replacen("\"t1\"", "\"t2\"", 1)
            .replacen("= 7", "= 8", 1);
        assert!(second.contains(from), "{from}");
        format!("{first}{}", second.replacen(from, to, 1))
    };
    parsed(&two("id = 2", "id = 3"));
    for (from, to) in [
        ("id = 2", "id = 1"),
        ("\"t2\"", "\"t1\""),
        ("table = 8", "table = 7"),
    ] {
        refused(
            &two(from, to),
            &["that of another tenant (line", "give each its own"],
        );
    }
}

#[test]
fn tenants_that_share_the_main_table_lead_to_different_prefixes() {
    let two = |prefix: &str, more: &str| {
        let red = BLUE.replace("blue", "red").replacen("id = 1", "id = 2", 1);
        let red = red.replacen("10.2.0.0/16", prefix, 1);
        format!(
            "{BLUE}{}",
            red.replacen("id = 2", &format!("id = 2\n{more}"), 1)
        )
    };
    for prefix in ["10.2.0.0/16", "10.2.3.0/24"] {
        let text = two(prefix, "");
        let message = format!("routes: {prefix} overlaps 10.2.0.0/16 of tenant `blue` (line 2");
        let hint = "give the tenant a routing table of its own, as in table = 101";
        refused(&text, &[&message, "in the main routing table", hint]);
        parsed(&two(prefix, "table = 7"));
    }
    parsed(&two("10.3.0.0/16", ""));
    // Both are of the later one, whichever is the larger.
    refused(
        &two("10.0.0.0/8", "prefixes = [\"172.16.0.0/16\"]").replacen(
            "prefixes = [\"10.1.0.0/16\", \"fd00:1::/48\"]\n[tenant.red.",
            "[tenant.red.",
            1,
        ),
        &["routes: 10.0.0.0/8 overlaps 10.2.0.0/16 of tenant `blue`"],
    );
}

#[test]
fn more_tenants_than_the_limit_are_refused() {
    let many = |count: usize| {
        let one = |id: usize| {
            BLUE.replace("blue", &format!("t{id}")).replacen(
                "id = 1",
                &format!("id = {id}\ntable = {}", 1000 + id),
                1,
            )
        };
        let all: String = (1..=count).map(one).collect();
        format!("[fairness]\ntenants_max = 4\n{all}")
    };
    parsed(&many(4));
    refused(
        &many(40),
        &["40 tenants, more than the limit of 4", "tenants_max"],
    );
    // More than there may be entries.
    let one = |id: usize| {
        format!(
            "[tenant.t{id}]\nid={id}\ntable=7{id}\nprefixes=[\"10.1.0.0/16\"]\n[tenant.t{id}.peer.b]\nprefixes=[]\napp=\"ip-b\"\n"
        )
    };
    let all: String = (1..=3_400).map(one).collect();
    let error = Config::parse(&format!("{BASE}[fairness]\ntenants_max = 340\n{all}"), "f")
        .expect_err("too many");
    let error_text = error.to_string();
    for part in [
        "3400 tenants, more than the limit of 340",
        "tenants_max in [fairness]",
    ] {
        assert!(error_text.contains(part), "no `{part}` in: {error_text}");
    }
    assert!(!error_text.contains("entries"), "{error_text}");
}

#[test]
fn a_diff_names_tenants() {
    let (before, after) = (
        parsed(BLUE),
        parsed(&BLUE.replacen("id = 1", "id = 1\nweight = 3", 1)),
    );
    assert_eq!(before.diff(&after).tenants.changed, ["blue"]);
    assert_eq!(before.diff(&parsed("")).tenants.removed, ["blue"]);
    assert!(before.diff(&before).is_empty());
}

#[test]
fn unit_far_below_the_line_rate_is_noted() {
    let with = |rate: &str, unit: &str| {
        let base = BASE.replace("10Mbit", rate);
        let config = format!("{base}{unit}{BLUE}");
        Config::parse(&config, "x.toml").unwrap().unit_note()
    };
    assert_eq!(with("50Mbit", ""), None);
    assert_eq!(with("10Gbit", "[fairness]\nunit = \"1Gbit\"\n"), None);
    assert_eq!(with("1Gbit", ""), None);
    let note = with("1Gbit", "[fairness]\nunit = \"4Mbit\"\n").expect("250 times the unit");
    assert!(note.contains("4Mbit") && note.contains("1Gbit"), "{note}");
}

#[test]
fn a_mapping_has_counterparts_within_the_tenants_prefixes() {
    let with = |map: &str| {
        BLUE.replacen(
            "prefixes = [\"10.1.0.0/16\", \"fd00:1::/48\"]",
            &format!("prefixes = [\"10.1.0.0/16\", \"fd00:1::/48\"]\nmap = [{map}]"),
            1,
        )
    };
    let good = "{ local = \"192.168.1.0/24\", network = \"10.1.9.0/24\" }, \
                { local = \"fd99::/64\", network = \"fd00:1:0:7::/64\" }";
    let map = &parsed(&with(good)).tenants[0].map;
    let mapped = |text: &str| {
        let local = text.parse().unwrap();
        let found = map.iter().find_map(|of| of.mapped(local));
        found.map(|network| network.to_string())
    };
    assert_eq!(mapped("192.168.1.77/32").as_deref(), Some("10.1.9.77/32"));
    assert_eq!(mapped("192.168.1.0/24").as_deref(), Some("10.1.9.0/24"));
    assert_eq!(mapped("fd99::1/128").as_deref(), Some("fd00:1:0:7::1/128"));
    assert_eq!(mapped("192.168.0.0/16"), None);
    for (map, parts) in [
        ("7", ["map: this is", "local = "]),
        (
            "{ local = \"192.168.1.0/24\" }",
            ["`network` is missing", "local = "],
        ),
        (
            "{ local = \"192.168.1.0/24\", network = \"10.1.0.0/16\" }",
            ["differ in length", "one length"],
        ),
        (
            "{ local = \"192.168.1.0/24\", network = \"10.9.0.0/24\" }",
            ["is not in prefixes", "add it there"],
        ),
        (
            "{ local = \"10.1.3.0/24\", network = \"10.1.9.0/24\" }",
            [
                "overlaps 10.1.0.0/16 of prefixes",
                "in the place of its own",
            ],
        ),
        (
            "{ local = \"192.168.1.0/24\", network = \"10.1.9.0/24\" }, \
             { local = \"192.168.2.0/24\", network = \"10.1.9.0/24\" }",
            ["overlaps 192.168.1.0/24 = 10.1.9.0/24", "one counterpart"],
        ),
    ] {
        refused(&with(map), &parts);
    }
}
