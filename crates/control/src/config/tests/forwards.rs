//! Listeners and forwards: which addresses they take, and where they may not lead.

use super::*;

#[test]
fn tcp_listeners_and_forwards_need_class_stream() {
    let stream = GOOD.replace("class = \"datagram\"", "class = \"stream\"");
    let tcp = stream
        .replace("udp = \"127.0.0.1:5005\"", "tcp = \"127.0.0.1:5005\"")
        .replace("udp = \"10.0.0.9:5005\"", "tcp = \"10.0.0.9:5005\"");
    assert_eq!(problems(&tcp), [""; 0]);
    assert_eq!(
        problems(&stream),
        [
            "43:7: udp: the application's class is `stream`; write tcp here, or another class there",
            "47:7: udp: the application's class is `stream`; write tcp here, or another class there",
        ]
    );
    refused(
        "udp = \"127.0.0.1:5005\"",
        "tproxy = \"127.0.0.1:5005\"",
        "43:10: tproxy: the application's class is `datagram`; write class = \"stream\" there, or \
         udp here",
    );
    refused(
        "udp = \"127.0.0.1:5005\"",
        "udp = \"127.0.0.1:5005\"\ntcp = \"127.0.0.1:5006\"",
        "44:7: udp and tcp: only one of them; write another entry for the other",
    );
    refused(
        "udp = \"10.0.0.9:5005\"",
        "allow_local = false",
        "45:1: [[forward]] has no `udp`, nor `tcp`, `tcp_networks`; add udp = \"10.0.0.9:5005\"",
    );
    let taken = tcp.replace("10.0.0.9:5005", "127.0.0.1:5005\"\nallow_local = true #");
    assert_eq!(
        problems(&taken),
        [
            "47:7: tcp: `127.0.0.1:5005` leads back into this gateway (line 43); write the \
             application's own address"
        ]
    );
    // UDP and TCP have ports of their own.
    let both = tcp.replace("127.0.0.1:5005", "192.0.2.1:7600");
    assert_eq!(problems(&both), [""; 0]);
    let metrics = tcp.replace("127.0.0.1:5005", "127.0.0.1:9477");
    assert_eq!(
        problems(&metrics),
        ["43:7: tcp: `127.0.0.1:9477` is already taken by line 5; choose another address or port"]
    );
}

#[test]
fn networks_of_a_forward_do_not_cover_local_addresses() {
    let stream = GOOD
        .replace("class = \"datagram\"", "class = \"stream\"")
        .replace("udp = \"127.0.0.1:5005\"", "tproxy = \"127.0.0.1:5005\"");
    let with = |networks: &str| {
        problems(&stream.replace(
            "udp = \"10.0.0.9:5005\"",
            &format!("tcp_networks = {networks}"),
        ))
    };
    assert_eq!(with("[\"0.0.0.0/0\", \"[2001:db8::/32]:443\"]"), [""; 0]);
    assert_eq!(with("[\"127.0.0.1/32:22\"]\nallow_local = true"), [""; 0]);
    assert_eq!(
        with("[\"127.0.0.1/32:22\"]"),
        [
            "47:16: tcp_networks: `127.0.0.1/32:22` is a loopback address; add allow_local = true to \
             this forward if the peer may reach it"
        ]
    );
    assert_eq!(
        with("[\"127.0.0.0/8:22\"]\nallow_local = true"),
        [
            "47:16: tcp_networks: `127.0.0.0/8:22` is loopback, and nothing in it is reached; name single \
             addresses, as /32, with allow_local = true"
        ]
    );
    assert_eq!(
        with("[\"::ffff:10.1.0.0/112\"]"),
        [
            "47:16: tcp_networks: `::ffff:10.1.0.0/112` is IPv4 in IPv6 form, and nothing in it is reached; \
             write \"10.1.0.0/16\""
        ]
    );
    assert_eq!(
        with("[\"10.1.0.0/16\"]\nallow_local = true"),
        [
            "47:16: tcp_networks: none is a single address, which allow_local = true is for; name the \
             address, as \"10.0.0.1/32\", or leave allow_local out"
        ]
    );
    // The listener is there, at one port of all.
    for network in ["127.0.0.1/32:5005", "127.0.0.1/32"] {
        assert_eq!(
            with(&format!("[\"{network}\"]\nallow_local = true")),
            [format!(
                "47:16: tcp_networks: `{network}` leads back into this gateway (line 43); write the \
                 application's own address"
            )]
        );
    }
    assert_eq!(
        with("[\"224.0.0.1/32:80\"]\nallow_local = true"),
        [
            "47:16: tcp_networks: `224.0.0.1/32:80` is not one destination; write the address of \
             the machine that the traffic is for"
        ]
    );
    assert_eq!(
        with("[\"10.1.2.3/16\"]"),
        [
            "47:16: tcp_networks: `10.1.2.3/16` has bits set behind its prefix; write \
             \"10.1.0.0/16\", or /32 for this address alone"
        ]
    );
    assert_eq!(
        with("[]"),
        [
            "47:16: tcp_networks: must have 1 to 64 networks; name those that the peer's clients \
             may reach"
        ]
    );
}

#[test]
fn forwards_reach_local_destinations_only_by_exact_address() {
    let hint = "add allow_local = true to this forward if the peer may reach it";
    for (address, what) in [
        ("127.0.0.1:22", "a loopback address"),
        ("127.8.9.10:22", "a loopback address"),
        ("[::1]:22", "a loopback address"),
        ("169.254.169.254:80", "a link-local address"),
        ("[fe80::1%2]:80", "a link-local address"),
        ("239.1.2.3:5005", "a multicast address"),
        ("[ff02::1]:5005", "a multicast address"),
        ("192.0.2.1:5005", "this gateway's own address"),
    ] {
        let from = "\"10.0.0.9:5005\"";
        refused(
            from,
            &format!("\"{address}\""),
            &format!("47:7: udp: `{address}` is {what}; {hint}"),
        );
        assert_eq!(
            with(from, &format!("\"{address}\"\nallow_local = true")),
            [""; 0]
        );
    }
}

#[test]
fn forwards_into_the_gateway_or_to_no_host_are_refused() {
    for (address, message) in [
        (
            "127.0.0.1:5005",
            "leads back into this gateway (line 43); write the application's own address",
        ),
        (
            "192.0.2.1:7600",
            "leads back into this gateway (line 10); write the application's own address",
        ),
        (
            "0.0.0.0:5006",
            "is not one destination; write the address of the machine that the traffic is for",
        ),
        (
            "255.255.255.255:5006",
            "is not one destination; write the address of the machine that the traffic is for",
        ),
    ] {
        let to = format!("\"{address}\"\nallow_local = true");
        refused(
            "\"10.0.0.9:5005\"",
            &to,
            &format!("47:7: udp: `{address}` {message}"),
        );
    }
    let wildcard = GOOD
        .replace("\"127.0.0.1:5005\"", "\"0.0.0.0:5005\"")
        .replace(
            "\"10.0.0.9:5005\"",
            "\"127.0.0.7:5005\"\nallow_local = true",
        );
    assert_eq!(
        problems(&wildcard),
        [
            "47:7: udp: `127.0.0.7:5005` leads back into this gateway (line 43); write the \
             application's own address"
        ]
    );
    let second = "[[forward]]\napp = \"A5\"\nudp = \"10.0.0.10:5005\"\n";
    assert_eq!(
        problems(&format!("{GOOD}{second}")),
        ["49:7: app: this application has a forward already (line 46); keep one of them"]
    );
}

#[test]
fn forwards_to_addresses_of_the_machine_are_refused_when_these_are_known() {
    let config = good();
    assert!(
        config
            .refuse_own_addresses(&["10.0.0.1".parse().unwrap()])
            .is_ok()
    );
    let error = config
        .refuse_own_addresses(&["10.0.0.9".parse().unwrap()])
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "good.toml:47:7: udp: `10.0.0.9:5005` is an address of this machine; add allow_local = \
         true to this forward if the peer may reach it\n  47 | udp = \"10.0.0.9:5005\"\n     |       \
         ^^^^^^^^^^^^^^^"
    );
}
