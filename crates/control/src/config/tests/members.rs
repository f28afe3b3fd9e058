//! Listeners and forwards that name a tenant.

use super::*;

/// A gateway with a tenant that has a table and an interface, and an application for its clients.
const TEXT: &str = r#"
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
name = "ip"
class = "datagram"
peer = "b"
[[app]]
name = "web"
class = "stream"
peer = "b"
[[app]]
name = "elsewhere"
class = "stream"
peer = "c"
[tenant.blue]
id = 1
table = 101
interfaces = ["eth1"]
prefixes = ["10.1.0.0/16"]
[tenant.blue.peer.b]
prefixes = ["10.2.0.0/16"]
app = "ip"
[[listener]]
app = "web"
tcp = "10.1.0.1:80"
tenant = "blue"
[[forward]]
app = "web"
tcp = "10.1.0.9:80"
tenant = "blue"
"#;

#[test]
fn sockets_of_a_tenant_use_its_interface_or_none_without_a_table() {
    let interface = |text: &str| {
        let config = Config::parse(text, "f").unwrap_or_else(|error| panic!("{error}"));
        let of = |member| config.interface_of(member).map(str::to_owned);
        let listener = of(config.listeners[0].member.as_ref());
        assert_eq!(listener, of(config.forwards[0].member.as_ref()));
        listener
    };
    assert_eq!(interface(TEXT).as_deref(), Some("eth1"));
    let two = TEXT.replace("[\"eth1\"]", "[\"eth1\", \"eth2\"]");
    let two = two.replace(
        "tenant = \"blue\"",
        "tenant = \"blue\"\ninterface = \"eth2\"",
    );
    assert_eq!(interface(&two).as_deref(), Some("eth2"));
    let main = TEXT.replace("table = 101\ninterfaces = [\"eth1\"]\n", "");
    assert_eq!(interface(&main), None);
    assert_eq!(interface(&TEXT.replace("tenant = \"blue\"\n", "")), None);
}

#[test]
fn what_does_not_fit_the_tenant_is_refused_with_a_hint() {
    let eth1 = "[\"eth1\"]";
    let forward = "tcp = \"10.1.0.9:80\"\ntenant = \"blue\"";
    for (from, to, parts) in [
        (
            "tcp = \"10.1.0.1:80\"\ntenant = \"blue\"",
            "tcp = \"10.1.0.1:80\"\ninterface = \"eth1\"",
            &[
                "only a tenant has interfaces, and no tenant is named",
                "add tenant",
            ][..],
        ),
        (
            forward,
            "tcp = \"10.1.0.9:80\"",
            &["none here and `blue` in line", "one tenant"],
        ),
        (
            eth1,
            "[\"eth1\", \"eth2\"]",
            &["several interfaces", "one of eth1, eth2"],
        ),
        (
            "interfaces = [\"eth1\"]\n",
            "",
            &["no interface here to use", "interfaces"],
        ),
        (
            "10.1.0.9:80",
            "10.7.0.9:80",
            &["10.7.0.9:80 is not in the prefixes", "its networks"],
        ),
        (
            "tcp = \"10.1.0.1:80\"",
            "tcp = \"[2001:db8::1]:80\"",
            &["no IPv6 prefixes"],
        ),
        (
            "tcp = \"10.1.0.9:80\"",
            "tcp_networks = [\"10.1.0.0/16\", \"10.0.0.0/8\"]",
            &["10.0.0.0/8 is not in the prefixes"],
        ),
    ] {
        let error = Config::parse(&TEXT.replacen(from, to, 1), "f").expect_err(to);
        let message = error.to_string();
        for part in parts {
            assert!(message.contains(part), "no `{part}` in: {message}");
        }
    }
    for (from, to, part) in [
        (
            "tenant = \"blue\"",
            "tenant = \"green\"",
            "no [tenant.green]",
        ),
        (
            "app = \"web\"",
            "app = \"elsewhere\"",
            "names no networks behind the peer of `elsewhere`",
        ),
        (
            "tenant = \"blue\"",
            "tenant = \"blue\"\ninterface = \"lo\"",
            "`lo` is none of",
        ),
    ] {
        let error = Config::parse(&TEXT.replace(from, to), "f").expect_err(to);
        assert!(error.to_string().contains(part), "no `{part}` in: {error}");
    }
}

#[test]
fn another_tenant_is_a_change() {
    let before = Config::parse(TEXT, "f").expect("it is right");
    let after = TEXT.replace("tenant = \"blue\"\n", "");
    let after = Config::parse(&after, "f").expect("it is right");
    let diff = before.diff(&after);
    assert_eq!(diff.listeners.changed, ["tcp 10.1.0.1:80"]);
    assert_eq!(diff.forwards.changed, ["web"]);
}
