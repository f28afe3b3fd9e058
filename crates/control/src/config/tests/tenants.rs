//! Tenants: what is read, and what is refused with what hint.

use keiro_model::fairness::law::LawConfig;

use super::*;

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
    let told = error.to_string();
    for part in parts {
        assert!(told.contains(part), "no `{part}` in: {told}");
    }
    assert_eq!(error.problems().len(), 1, "{told}");
}

#[test]
fn what_is_not_written_has_good_values() {
    let config = parsed(BLUE);
    let tenant = config.tenant_named("blue").expect("it is there");
    assert_eq!((tenant.device.as_str(), tenant.id), ("keiro1", 1));
    assert_eq!(tenant.device_queues, 1);
    assert_eq!((tenant.weight.get(), tenant.law), (1.0, TenantLaw::Keiro));
    assert_eq!(tenant.routes, tenant.peers[0].prefixes);
    assert_eq!(tenant.mtu, DEFAULT_TENANT_MTU);
    assert_eq!(tenant.law(&config.fairness), LawConfig::default());
    assert!(tenant.uses(false) && tenant.uses(true));
}

#[test]
fn everything_can_be_written() {
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
law = "i2vfc"
device = "blue"
device_queues = 64
addresses = ["10.1.0.1/24", "fd00:1::1/128"]
mtu = "1300B"
table = 101
interfaces = ["eth1"]
prefixes = ["10.1.0.0/16"]
routes = ["10.2.0.0/17"]
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
    let LawConfig::I2vfc(provider) = tenant.law(&config.fairness) else {
        panic!("{tenant:?}");
    };
    assert_eq!(
        (provider.aimd.increase(), provider.aimd.decrease()),
        (0.2, 0.5)
    );
    assert_eq!(tenant.rules[0].protocol, Some(50));
    assert_eq!(tenant.rules[1].source_ports, Some(53..=53));
    assert_eq!(tenant.rules[1].destination_ports, Some(5004..=5010));
    assert_eq!((config.fairness.tenants_max, tenant.table), (7, Some(101)));
    assert_eq!(tenant.device_queues, 64);
}

#[test]
fn bad_values_are_refused_with_what_to_write() {
    for (from, to, parts) in [
        ("id = 1\n", "", ["[tenant.NAME] has no `id`", "add id = 1"]),
        (
            "id = 1\n",
            "id = 0\n",
            ["0 is no tenant's number", "write 1 to"],
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
            ["no table for a tenant", "256"],
        ),
        (
            "id = 1\n",
            "id = 1\ndevice = \"a/b\"\n",
            ["no name of an interface", "1 to 15"],
        ),
        (
            "id = 1\n",
            "id = 1\nmtu = \"1000B\"\n",
            ["out of range", "1280B"],
        ),
        (
            "id = 1\n",
            "id = 1\nlaw = \"reno\"\n",
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
fn what_only_one_tenant_can_have_is_refused_to_another() {
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
fn a_unit_far_below_the_line_is_told() {
    let with = |rate: &str, unit: &str| {
        let base = BASE.replace("10Mbit", rate);
        let config = format!("{base}{unit}{BLUE}");
        Config::parse(&config, "x.toml").unwrap().unit_note()
    };
    assert_eq!(with("50Mbit", ""), None);
    assert_eq!(with("10Gbit", "[fairness]\nunit = \"1Gbit\"\n"), None);
    let note = with("1Gbit", "").expect("250 times the default");
    assert!(note.contains("4Mbit") && note.contains("1Gbit"), "{note}");
}
