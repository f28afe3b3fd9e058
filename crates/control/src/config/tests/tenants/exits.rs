//! Exits to the Internet, and tenants whose packets leave by one.

use super::*;

const EXIT: &str = r#"
[tenant.blue]
id = 1
addresses = ["10.1.0.1/32"]
prefixes = ["10.1.0.0/16"]
exit = true
[tenant.blue.port_forward.web]
port = 8443
to = "10.2.0.10:443"
[tenant.blue.peer.b]
prefixes = ["10.2.0.0/16"]
app = "ip-b"
"#;

const INTERNET: &str = r#"
[tenant.blue]
id = 1
prefixes = ["10.1.0.0/16", "10.9.0.0/24", "fd00:1::/48"]
map = [{ local = "192.168.1.0/24", network = "10.9.0.0/24" }]
[tenant.blue.internet]
via = "b"
[tenant.blue.peer.b]
prefixes = ["10.2.0.0/16"]
app = "ip-b"
[tenant.blue.peer.c]
prefixes = ["10.3.0.0/16"]
app = "ip-c"
"#;

#[test]
fn exit_takes_destinations_that_no_other_peer_has() {
    let tenant = &parsed(EXIT).tenants[0];
    let offered = tenant.offered_prefixes();
    let offered: Vec<String> = offered.iter().map(ToString::to_string).collect();
    assert_eq!(offered, ["10.1.0.0/16", "0.0.0.0/0", "::/0"]);
    let exit = tenant.exit.as_ref().expect("it is one");
    assert_eq!(exit.ipv6, ExitIpv6::Nat);
    let forwards: Vec<String> = exit.port_forwards.iter().map(ToString::to_string).collect();
    assert_eq!(forwards, ["tcp 8443 to 10.2.0.10:443"]);
    assert!(parsed(BLUE).tenants[0].exit.is_none());
}

#[test]
fn packets_for_an_exit_use_their_own_routing_table() {
    let tenant = &parsed(INTERNET).tenants[0];
    let behind: Vec<String> = tenant.peers[0]
        .prefixes
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(behind, ["10.2.0.0/16", "0.0.0.0/0", "::/0"]);
    let routes: Vec<String> = tenant.routes.iter().map(ToString::to_string).collect();
    assert_eq!(routes, ["10.2.0.0/16", "10.3.0.0/16"]);
    let sources = tenant.internet_sources();
    let sources: Vec<String> = sources.iter().map(ToString::to_string).collect();
    // As the hosts have them.
    assert_eq!(sources, ["10.1.0.0/16", "192.168.1.0/24", "fd00:1::/48"]);
    assert_eq!(tenant.exit_table(), 0x4b00_0001);
}

#[test]
fn invalid_exits_are_refused() {
    for (text, from, to, parts) in [
        (
            EXIT,
            "exit = true",
            "exit = false",
            [
                "port_forward: this tenant is not an exit",
                "add exit = true",
            ],
        ),
        (
            EXIT,
            "[\"10.1.0.0/16\"]",
            "[\"0.0.0.0/0\"]",
            ["0.0.0.0/0 in prefixes would open", "remove it there"],
        ),
        (
            EXIT,
            "exit = true",
            "exit = true\ntable = 101",
            [
                "exit: packets to the Internet take the main",
                "remove table",
            ],
        ),
        (
            EXIT,
            "10.2.0.10:443",
            "10.1.0.10:443",
            ["is in 10.1.0.0/16, behind this gateway", "another site"],
        ),
        (
            EXIT,
            "10.2.0.10:443",
            "[fd00::1]:443",
            ["has none of the IP version", "keep_source"],
        ),
        (
            EXIT,
            "port = 8443",
            "port = 7600\nprotocol = \"udp\"",
            ["udp port 7600 is that of path `wan`", "another port"],
        ),
        (
            EXIT,
            "\"10.2.0.10:443\"",
            "\"[fe80::1%3]:443\"",
            ["not the address and port of a host", ""],
        ),
        (
            EXIT,
            "exit = true",
            "exit = true\ndevice = \"t*\"",
            ["the device `t*` has other characters", "rename"],
        ),
        (
            EXIT,
            "port = 8443",
            "port = 0",
            ["0 is not a port", "1 to 65535"],
        ),
        (
            EXIT,
            "\n[tenant.blue.peer.b]",
            "\n[tenant.blue.port_forward.again]\nport = 8443\nto = \"10.2.0.11:80\"\n[tenant.blue.peer.b]",
            ["tcp port 8443 is that of `again`", "another port"],
        ),
        (
            INTERNET,
            "via = \"b\"",
            "via = \"d\"",
            ["there is no [[peer]] named `d`", ""],
        ),
        (
            INTERNET,
            "via = \"b\"",
            "via = \"b\"\nfrom = [\"10.4.0.0/16\"]",
            ["10.4.0.0/16 of from is not among", "prefixes"],
        ),
        (
            INTERNET,
            "via = \"b\"",
            "via = \"b\"\nfrom = []",
            ["from: nothing is named", "remove"],
        ),
        (
            INTERNET,
            "\"10.3.0.0/16\"",
            "\"0.0.0.0/0\"",
            ["prefixes: 0.0.0.0/0 overlaps", ""],
        ),
        (
            INTERNET,
            "via = \"b\"",
            "via = \"b\"\nwhen_down = \"open\"",
            ["when_down", "local"],
        ),
    ] {
        refused_part(&text.replace(from, to), &parts);
    }
    let other = INTERNET.replace("blue", "red").replace("id = 1", "id = 2");
    let other = other.replace("10.2.", "10.12.").replace("10.3.", "10.13.");
    refused_part(
        &format!("{INTERNET}{other}"),
        &["overlaps", "leads to an exit"],
    );
}

/// As [`refused`], with further problems that follow.
#[track_caller]
fn refused_part(text: &str, parts: &[&str]) {
    let error = Config::parse(&format!("{BASE}{text}"), "f").expect_err(text);
    let error_text = error.to_string();
    for part in parts {
        assert!(error_text.contains(part), "no `{part}` in: {error_text}");
    }
}
