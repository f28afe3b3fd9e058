//! Paths that name an interface instead of an address.

use super::*;

/// With the second path by `wwan0`, and `more` in it.
fn text(more: &str) -> String {
    GOOD.replace(
        "local = \"192.0.2.129:7600\"",
        &format!("interface = \"wwan0\"\n{more}"),
    )
}

fn local(text: &str) -> Local {
    let config = Config::parse(text, "f").unwrap_or_else(|e| panic!("{e}"));
    config.paths[1].local.clone()
}

#[test]
fn interface_has_the_default_port_and_the_version_of_the_endpoints() {
    let expected = |port, family| {
        Local::Interface(InterfaceLocal {
            interface: "wwan0".to_owned(),
            port,
            family,
        })
    };
    assert_eq!(local(&text("")), expected(7600, Some(Family::V4)));
    let v6 = text("port = 7601").replace("203.0.113.1:7600", "[2001:db8::1]:7600");
    assert_eq!(local(&v6), expected(7601, Some(Family::V6)));
    let none = text("").replace(", path2 = \"203.0.113.1:7600\"", "");
    assert_eq!(local(&none), expected(7600, None));
    assert_eq!(local(&none).to_string(), "wwan0:7600");
    let given = none.replace("\"wwan0\"", "\"wwan0\"\nfamily = \"ipv6\"");
    assert_eq!(local(&given), expected(7600, Some(Family::V6)));
}

#[test]
fn what_an_interface_path_cannot_have_is_refused() {
    for (text, problem) in [
        (
            text("local = \"192.0.2.129:7600\""),
            "18:9: interface and local: only one of them; write another entry for the other",
        ),
        (
            text("port = 0"),
            "18:8: port: 0 is no UDP port; write 1 to 65535, as in port = 7600",
        ),
        (
            text("port = 65536"),
            "18:8: port: 65536 is no UDP port; write 1 to 65535, as in port = 7600",
        ),
        (
            text("family = \"ipv5\""),
            "18:10: family: `ipv5` is none of the choices; write \"ipv4\" or \"ipv6\"",
        ),
        (
            text("family = \"ipv6\""),
            "24:52: endpoints: `203.0.113.1:7600` is IPv4, but path2 is an IPv6 path; write the peer's IPv6 \
             address, or add a path for IPv4",
        ),
        (
            text("").replace("wwan0", "wwan/0"),
            "17:13: interface: `wwan/0` is not a name of an interface: it has `/`; write 1 to 15 letters, digits, \
             `-`, `_` or `.`",
        ),
        (
            GOOD.replace("100Mbit\"", "100Mbit\"\nport = 7601"),
            "12:8: port: it is part of `local` already; remove it, or write interface instead of local",
        ),
        (
            text("").replace("local = \"192.0.2.1:7600\"", "interface = \"wwan0\""),
            "17:13: interface: port 7600 of `wwan0` is already taken by line 10; write another one, as in port = 7601",
        ),
        (
            text("").replace("127.0.0.1:5005", "0.0.0.0:7600"),
            "17:13: interface: port 7600 of `wwan0` is already taken by line 44; write another one, as in port = 7601",
        ),
        (
            GOOD.replace("local = \"192.0.2.129:7600\"\n", ""),
            "15:1: [[path]] has no `interface`, nor `local`; add interface = \"eth0\"",
        ),
    ] {
        let found = problems(&text);
        assert_eq!(found[0], problem, "{found:#?}");
    }
}

#[test]
fn endpoints_of_one_interface_path_are_of_one_version() {
    let second = format!(
        "[[peer]]\nname = \"kobe\"\npublic_key = \"{}\"\nendpoints.path2 = \"[2001:db8::1]:7600\"\n",
        KEY.replace("AQ", "AB")
    );
    let found = problems(&format!("{}{second}", text("")));
    assert!(
        found[0].contains("is IPv6, but path2 is an IPv4 path"),
        "{found:?}"
    );
}

#[test]
fn two_paths_of_one_interface_differ_in_port_or_version() {
    let first = "local = \"192.0.2.1:7600\"";
    for more in ["port = 7601", "family = \"ipv6\""] {
        let text = text(more).replace(", path2 = \"203.0.113.1:7600\"", "");
        let text = text.replace(first, "interface = \"wwan0\"");
        assert_eq!(problems(&text), [""; 0], "{more}");
    }
}

#[test]
fn path_with_another_interface_has_changed() {
    let config = |text: &str| Config::parse(text, "f").unwrap_or_else(|e| panic!("{e}"));
    let (address, interface) = (config(GOOD), config(&text("")));
    assert_eq!(address.diff(&interface).paths.changed, ["path2"]);
    let port = config(&text("port = 7601"));
    assert_eq!(interface.diff(&port).paths.changed, ["path2"]);
    assert!(interface.diff(&config(&text("port = 7600"))).is_empty());
}
