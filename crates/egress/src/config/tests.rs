//! What configuration files of both roles are read as, and what is refused.

use std::fs;

use keiro_bgp::rpki::Validity;

use super::*;

const ASBR: &str = r#"
[asbr]
asn = 65000
router_id = "192.0.2.1"
locator = "2001:db8:a:1::/64"
announce = ["2001:db8:a::/48"]

[[reflector]]
name = "rr"
address = "2001:db8:a:ff::1"

[[peer]]
name = "transit-a"
address = "2001:db8:f:a::1"
asn = 65001
function = 0x100
import = "all"
export = "own"

[[peer]]
name = "transit-b"
address = "2001:db8:f:b::1"
asn = 65002
import = [
  { prefixes = ["::/0 le 15", "::/0 ge 49"], action = "deny" },
  { through_as = [666], action = "deny" },
  { prefixes = ["2000::/3 le 48"], path_max = 50, local_pref = 90 },
]
"#;

#[test]
fn a_byte_order_mark_changes_nothing() {
    let marked = format!("\u{feff}{ASBR}");
    assert_eq!(Kind::of(&marked), Kind::of(ASBR));
    assert_eq!(Kind::of("\u{feff}[egress]\n"), Some(Kind::Endpoint));
    assert_eq!(Kind::of("\u{feff}# a comment\n[gateway]\n"), None);
    assert!(AsbrConfig::parse(&marked, "asbr.toml").is_ok());
    // Nor is it a part of a TCP-MD5 key.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("md5.key");
    let key = |text: &str| {
        fs::write(&file, text).unwrap();
        let only_ours = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&file, only_ours).unwrap();
        let said = format!("asn = 65001\nmd5_file = \"{}\"", file.display());
        let text = ASBR.replacen("asn = 65001", &said, 1);
        AsbrConfig::parse(&text, "asbr.toml").unwrap().peers[0]
            .neighbour
            .md5
            .clone()
    };
    assert!(key("secret").is_some());
    assert_eq!(key("\u{feff}secret\n"), key("secret"));
}

#[test]
fn a_border_routers_peers_get_segments_of_its_locator() {
    let config = AsbrConfig::parse(ASBR, "asbr.toml").unwrap();
    let [a, b] = &config.peers[..] else {
        panic!("two peers");
    };
    assert_eq!(a.behaviour, Behaviour::Table);
    assert_eq!(a.sid.to_string(), "2001:db8:a:1:100::");
    assert_eq!(
        (a.rd.to_string(), a.rt.to_string()),
        ("65000:256".into(), "65000:256".into())
    );
    assert_eq!(b.sid.to_string(), "2001:db8:a:1:2::");
    assert_eq!((a.table, b.table), (7700, 7701));
    assert!(a.neighbour.one_hop && !config.reflectors[0].one_hop);
    assert_eq!(a.neighbour.export.rules.len(), 1);
    assert_eq!(
        b.neighbour.export,
        Policy::default(),
        "nothing is announced by default"
    );
    // They come behind the prefixes that no other AS may announce.
    assert_eq!(b.neighbour.import.rules.len(), 4);
    let guard = &b.neighbour.import.rules[0];
    assert_eq!(guard.action, keiro_bgp::policy::Action::Deny);
    let of = |text: &str| {
        let net: IpNet = text.parse().unwrap();
        let mut ranges = guard.prefixes.iter();
        ranges.any(|range| {
            let longer = (range.length_min..=range.length_max).contains(&net.prefix_len());
            range.within.contains(&net) && longer
        })
    };
    for denied in [
        "2001:db8:a:1::/64",
        "2001:db8:a:1:2::/128",
        "fe80::/64",
        "ff00::/8",
        "::1/128",
        "::ffff:192.0.2.0/120",
        "127.0.0.0/8",
        "224.0.0.5/32",
    ] {
        assert!(of(denied), "{denied}");
    }
    for left in [
        "::/0",
        "64:ff9b::/96",
        "2001:db8:a::/48",
        "2001:db8:b::/48",
        "0.0.0.0/0",
    ] {
        assert!(!of(left), "{left}");
    }
    assert_eq!(config.reflectors[0].asn, 65000);
    assert_eq!(config.reflectors[0].families, [Family::Ipv6, Family::Vpn6]);
}

#[test]
fn peers_with_ipv4_have_a_second_segment_and_address() {
    let read = |keys: &str| -> Result<Option<String>, String> {
        let text = ASBR.replacen("asn = 65001", &format!("asn = 65001\n{keys}"), 1);
        let config = AsbrConfig::parse(&text, "asbr.toml");
        let config = config.map_err(|error| error.to_string())?;
        Ok(config.peers[0].ipv4_sid.map(|sid| sid.to_string()))
    };
    let sid = |text: &str| Ok(Some(text.to_owned()));
    assert_eq!(read(""), Ok(None));
    assert_eq!(read("ipv4 = true"), sid("2001:db8:a:1:8100::"));
    assert_eq!(
        read("ipv4 = true\nipv4_function = 7"),
        sid("2001:db8:a:1:7::")
    );
    assert_eq!(read("ipv4 = true\nbehaviour = \"end.dx6\""), Ok(None));
    for (keys, wanted) in [
        ("ipv4_function = 7", "announces no IPv4 routes"),
        ("ipv4 = true\nipv4_function = 0", "0 is the locator itself"),
        ("ipv4 = true\nipv4_function = 0x100", "each needs its own"),
        (
            "ipv4 = true\nipv4_function = 7\nbehaviour = \"end.dx6\"",
            "needs a table",
        ),
    ] {
        let error = read(keys).unwrap_err();
        assert!(error.contains(wanted), "{keys}: {error}");
    }
    let server = |reflector: &str, address: &str| {
        let text = format!(
            "[egress]\nasn = 65000\nrouter_id = \"10.0.0.20\"\n[[reflector]]\nname = \"rr\"\n\
             address = \"2001:db8::1\"\n{reflector}[[peer]]\nname = \"a\"\nrt = \"65000:1\"\n\
             address = \"2001:db8::a\"\nipv4_address = \"{address}\"\n"
        );
        let config = EndpointConfig::parse(&text, "egress.toml");
        config
            .map(|config| config.peers[0].ipv4_address)
            .map_err(|error| error.to_string())
    };
    let with = "ipv4 = true\n";
    assert_eq!(server(with, "192.0.2.10"), Ok(Some([192, 0, 2, 10].into())));
    let error = server("", "192.0.2.10").unwrap_err();
    assert!(error.contains("no [[reflector]] exchanges IPv4"), "{error}");
    for address in [
        "0.0.0.0",
        "127.0.0.1",
        "169.254.1.1",
        "224.0.0.1",
        "255.255.255.255",
    ] {
        let error = server(with, address).unwrap_err();
        assert!(error.contains("clients cannot reach"), "{error}");
    }
}

/// Every case is (old, new, wanted): `text` with `new` for `old` is refused with `wanted`.
fn assert_refused(text: &str, cases: &[(&str, &str, &str)]) {
    for (old, new, wanted) in cases {
        let error = EndpointConfig::parse(&text.replacen(old, new, 1), "e.toml");
        let error = error.unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn problems_have_their_place_and_what_to_try() {
    for (old, new, wanted) in [
        (
            "asn = 65001",
            "asm = 65001",
            "asbr.toml:15:1: unknown key `asm`; did you mean `asn`?",
        ),
        ("asn = 65001", "", "[[peer]] has no `asn`"),
        (
            "asn = 65001",
            "asn = 65000",
            "is our own AS; neighbours of this AS are a [[reflector]]",
        ),
        ("0x100", "2", "transit-b"),
        (
            "\"own\"",
            "\"everything\"",
            "write \"all\", \"own\", \"none\" or a list of rules",
        ),
        (
            "asn = 65001",
            "asn = 65001\ntable = 7701",
            "is the table of `transit-a`",
        ),
        (
            "asn = 65001",
            "asn = 65001\ninterface = \"lo\"",
            "segments do not work on the loopback interface",
        ),
        (
            "asn = 65001",
            "asn = 65001\ninterface = \"eth 0\"",
            "is not the name of an interface",
        ),
        (
            "asn = 65000",
            "asn = 65000\nnexthop_ids = [9, 8]",
            "nexthop_ids: [9, 8] has no numbers",
        ),
        ("::/0 le 15", "::/0 lt 15", "write a prefix"),
        (
            "{ through_as",
            "{ rpki = \"invalid\", through_as",
            "import: `rpki` needs `rpki_file` in [asbr]",
        ),
        (
            "{ through_as",
            "{ rpki = \"unknown\", through_as",
            "rpki: `unknown`: write \"valid\", \"invalid\", \"not-found\"",
        ),
        ("{ through_as", "{ rpki = [], through_as", "leave it out"),
        (
            "export = \"own\"",
            "export = [{ rpki = \"valid\" }]",
            "ask for it in `import`",
        ),
        (
            "asn = 65000",
            "asn = 65000\nrpki_file = \"/nowhere/at/all\"",
            "asbr.toml:4:13: rpki_file: /nowhere/at/all: No such file",
        ),
        (
            "asn = 65001",
            "asn = 65001\nbehaviour = \"end.dx4\"",
            "`end.dx6`",
        ),
        (
            "address = \"2001:db8:f:b::1\"",
            "address = \"192.0.2.7\"\nbehaviour = \"end.dx6\"",
            "leads to an IPv6 address",
        ),
        ("/64\"", "/121\"", "leaves no room"),
        (
            "2001:db8:a:1::/64",
            "ff05::/64",
            "`ff05::/64` cannot be a locator",
        ),
        ("2001:db8:a:1::/64", "::/0", "at least /16"),
        (
            "\"192.0.2.1\"",
            "\"0.0.0.0\"",
            "asbr.toml:4:13: router_id: 0.0.0.0 identifies no router",
        ),
        (
            "asn = 65001",
            "asn = 65001\nroutes_max = 0",
            "use 1 or more",
        ),
        (
            "\"transit-b\"",
            "\"transit-a\"",
            "there are two `transit-a`",
        ),
        ("\"transit-b\"", "\"\"", "name: it is empty"),
        ("\"192.0.2.1\"", "\"192.0.2\"", "asbr.toml:4:"),
        (
            "address = \"2001:db8:f:b::1\"",
            "address = \"2001:db8:f:a::1\"",
            "is the address of",
        ),
    ] {
        let text = ASBR.replacen(old, new, 1);
        assert_ne!(text, ASBR, "{old}");
        let error = AsbrConfig::parse(&text, "asbr.toml")
            .unwrap_err()
            .to_string();
        assert!(error.contains(wanted), "{old} → {new}: {error}");
        assert!(error.starts_with("asbr.toml:"), "{error}");
    }
}

#[test]
fn rules_match_one_rpki_state_or_several() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("json");
    fs::write(&file, "{\"roas\": [{\"asn\": 1, \"prefix\": \"::/0\"}]}").unwrap();
    let text = ASBR
        .replacen(
            "asn = 65000",
            &format!("asn = 65000\nrpki_file = {file:?}"),
            1,
        )
        .replacen("{ through_as", "{ rpki = \"invalid\", through_as", 1)
        .replacen("path_max", "rpki = [\"valid\", \"not-found\"], path_max", 1);
    let config = AsbrConfig::parse(&text, "asbr.toml").unwrap();
    assert_eq!(config.speaker.vrps.unwrap().len(), 1);
    let rules = &config.peers[1].neighbour.import.rules;
    assert_eq!(rules[1].validity, []);
    assert_eq!(rules[2].validity, [Validity::Invalid]);
    assert_eq!(rules[3].validity, [Validity::Valid, Validity::NotFound]);
}

#[test]
fn an_endpoints_peers_need_tables_and_addresses_of_their_own() {
    let text = r#"
[egress]
asn = 65000
router_id = "192.0.2.9"
[[reflector]]
name = "rr"
address = "2001:db8:a:ff::1"
add_path = true
[[peer]]
name = "transit-a"
rt = "65000:256"
address = "2001:db8:a:e::a"
[[peer]]
name = "transit-b"
rt = "65000:2"
address = "2001:db8:a:e::b"
table = 7000
"#;
    let config = EndpointConfig::parse(text, "e.toml").unwrap();
    assert_eq!(config.classes, []);
    assert_eq!((config.peers[0].table, config.peers[1].table), (7600, 7000));
    assert!(config.reflectors[0].add_path);
    assert_eq!(
        config.reflectors[0].graceful_restart,
        Some(Duration::from_secs(120))
    );
    assert_refused(
        text,
        &[
            (
                "\"65000:2\"",
                "\"65000:256\"",
                "is the target of `transit-a`",
            ),
            ("7000", "7600", "is the table of `transit-a`"),
            ("::b\"", "::a\"", "is the address of `transit-a`"),
            (
                "2001:db8:a:e::b",
                "ff02::b",
                "e.toml:16:11: address: clients cannot reach",
            ),
            ("2001:db8:a:e::b", "fe80::b", "clients cannot reach"),
            ("2001:db8:a:e::b", "::1", "clients cannot reach"),
            (
                "2001:db8:a:e::b",
                "::ffff:192.0.2.1",
                "clients cannot reach",
            ),
            ("\"transit-b\"", "\"rr\"", "there are two `rr`"),
            (
                "::b\"",
                "::b\"\nvrf = \"lo\"",
                "`lo` cannot be the name of a VRF device",
            ),
            (
                "::b\"",
                "::b\"\nvrf = \"a-very-long-name\"",
                "at most 15 octets",
            ),
            ("7000", "254", "between 1000"),
            (
                "asn = 65000",
                "asn = 65000\nrule_priority = 32766",
                "use 1 to 32765",
            ),
            (
                "asn = 65000",
                "asn = 65000\ninterface = \"\"",
                "interface: ``: it is empty",
            ),
            ("\"65000:2\"", "\"65000\"", "ASN:NUMBER"),
            (
                "asn = 65000",
                "asn = 65000\nhelper_ports = [443]",
                "mptcp = \"precise\"",
            ),
            (
                "asn = 65000",
                "asn = 65000\nmptcp = \"kernel\"\nhelper_ports = [0]",
                "0 is not a port",
            ),
        ],
    );
}

#[test]
fn classes_name_ports_and_peers() {
    let text = r#"
[egress]
asn = 65000
router_id = "192.0.2.9"
mptcp = "precise"
[[peer]]
name = "transit-a"
rt = "65000:1"
address = "2001:db8:a:e::a"
[[peer]]
name = "transit-b"
rt = "65000:2"
address = "2001:db8:a:e::b"
[[class]]
name = "video"
ports = [443, 8443]
prefer = ["transit-b"]
[[class]]
name = "mail"
ports = [25]
prefer = ["transit-a", "transit-b"]
"#;
    let config = EndpointConfig::parse(text, "e.toml").unwrap();
    let video = Class {
        name: "video".to_owned(),
        ports: BTreeSet::from([443, 8443]),
        prefer: BTreeSet::from([1]),
    };
    assert_eq!(config.classes[0], video);
    assert_eq!(config.classes[1].prefer, BTreeSet::from([0, 1]));
    assert_refused(
        text,
        &[
            ("\"precise\"", "\"kernel\"", "mptcp = \"precise\""),
            ("[25]", "[25, 443]", "port 443 is one of `video`"),
            ("[25]", "[]", "ports"),
            ("[25]", "[0]", "0 is not a port"),
            (
                "[\"transit-b\"]",
                "[\"transit-c\"]",
                "`transit-a`, `transit-b`",
            ),
            ("[\"transit-b\"]", "[]", "prefer"),
        ],
    );
}

#[test]
fn a_comparison_has_shares_and_bounds() {
    let text = r#"
[egress]
asn = 65000
router_id = "192.0.2.9"
mptcp = "precise"
[[peer]]
name = "transit-a"
rt = "65000:1"
address = "2001:db8:a:e::a"
"#;
    let config = EndpointConfig::parse(text, "e.toml").unwrap();
    assert_eq!(config.comparison, Settings::DEFAULT);
    let section = r#"[comparison]
held_out = "10%"
prefix_bits = 40
prefixes_max = 7
bytes_min = "2MiB"
loss_max = "3%"
confidence = "95%"
again_after = "30min"
"#;
    let text = text.to_owned() + section;
    let config = EndpointConfig::parse(&text, "e.toml").unwrap();
    let wanted = Settings {
        held_out: 0.1,
        prefix_bits: 40,
        prefixes_max: 7,
        bytes_min: 2 << 20,
        loss_max: 0.03,
        confidence: 0.95,
        again_after: Duration::from_secs(1800),
    };
    assert_eq!(config.comparison, wanted);
    assert_refused(
        &text,
        &[
            (
                "\"precise\"",
                "\"kernel\"",
                "[comparison] needs mptcp = \"precise\"",
            ),
            ("\"10%\"", "\"60%\"", "to \"50%\""),
            ("\"10%\"", "0.1", "held_out = 0.1"),
            ("= 40", "= 129", "prefix_bits: write 1 to 128"),
            ("= 7", "= 0", "prefixes_max: write 1 to 1000000"),
            ("\"3%\"", "\"91%\"", "loss_max"),
            ("\"95%\"", "\"100%\"", "confidence: write"),
            ("\"30min\"", "\"0s\"", "again_after: at least"),
            ("loss_max", "loss_least", "unknown key `loss_least`"),
        ],
    );
}

#[test]
fn steering_has_shares_bounds_and_tables_of_its_own() {
    let text = r#"
[egress]
asn = 65000
router_id = "192.0.2.9"
[[peer]]
name = "transit-a"
rt = "65000:1"
address = "2001:db8:a:e::a"
table = 1900
[steering]
mode = "observe"
"#;
    let config = EndpointConfig::parse(text, "e.toml").unwrap();
    let steered = config.steering.unwrap();
    assert_eq!(steered.settings, crate::steering::Settings::DEFAULT);
    assert_eq!(steered.ports, BTreeSet::from([80, 443]));
    let rest = r#"ports = [8080]
explore = "2%"
confirm = "20%"
confidence = "95%"
moves_per_minute = 3
prefixes_max = 7
bytes_min = "1MiB"
keep_for = "5min"
first_table = 2000
first_mark = 0x100
"#;
    let text = text.to_owned() + rest;
    let config = EndpointConfig::parse(&text, "e.toml").unwrap();
    let steered = config.steering.unwrap();
    let wanted = crate::steering::Settings {
        mode: crate::steering::Mode::Observe,
        explore: 0.02,
        confirm: 0.2,
        confidence: 0.95,
        moves_per_minute: 3,
        prefixes_max: 7,
        bytes_min: 1 << 20,
        keep_for: Duration::from_secs(300),
    };
    assert_eq!(steered.settings, wanted);
    assert_eq!((steered.first_table, steered.first_mark), (2000, 0x100));
    assert_refused(
        &text,
        &[
            ("\"observe\"", "\"dry\"", "`observe` or `steer`"),
            ("mode =", "modus =", "unknown key `modus`"),
            ("\"2%\"", "\"11%\"", "to \"10%\""),
            ("\"20%\"", "\"31%\"", "to \"30%\""),
            ("\"95%\"", "\"100%\"", "confidence: write"),
            ("= 3\n", "= 0\n", "moves_per_minute: write 1 to"),
            ("= 7\n", "= 0\n", "prefixes_max: write 1 to"),
            ("\"5min\"", "\"5s\"", "keep_for: at least"),
            ("[8080]", "[]", "ports: write 1 to"),
            ("= 2000", "= 1800", "an egress peer has table 1900"),
            ("0x100", "0", "first_mark: write 1 to"),
        ],
    );
}

#[test]
fn all_problems_come_in_one_report() {
    let text = ASBR
        .replacen("asn = 65000", "asn = 0", 1)
        .replacen("address = \"2001:db8:a:ff::1\"", "addres = \"x\"", 1)
        .replacen("asn = 65001", "asn = \"x\"", 1)
        .replacen("asn = 65002", "asn = 65002\ncolour = 1", 1);
    let lines = |error: &ConfigError| -> Vec<String> {
        error.problems().iter().map(ToString::to_string).collect()
    };
    let error = AsbrConfig::parse(&text, "a").unwrap_err();
    let expected = [
        "a:8:1: there is no `address`; add it",
        "a:10:1: unknown key `addres`; did you mean `address`?",
        "a:15:7: invalid type: string \"x\", expected u32",
        "a:24:1: unknown key `colour`; known keys are ",
    ];
    let found = lines(&error);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}");
    }
    // Values are judged once the file has its form.
    let text = ASBR
        .replacen("asn = 65000", "asn = 0\nrule_priority = 0", 1)
        .replacen("\"rr\"", "\"\"", 1)
        .replacen("0x100", "0", 1)
        .replacen("asn = 65002", "asn = 65002\nroutes_max = 0", 1);
    let error = AsbrConfig::parse(&text, "a").unwrap_err();
    let expected = [
        "a:3:7: asn: 0 is not the number of an AS",
        "a:4:17: rule_priority: 0",
        "a:9:1: name: it is empty",
        "a:17:12: function: 0 is the locator itself",
        "a:25:14: routes_max: 0",
    ];
    let found = lines(&error);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn the_examples_of_the_documentation_are_valid() {
    let page = include_str!("../../../../docs/egress.md");
    let blocks: Vec<&str> = page
        .split("```toml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    let [asbr, egress] = blocks[..] else {
        panic!("the page has {} examples", blocks.len());
    };
    AsbrConfig::parse(asbr, "asbr.toml").unwrap();
    let egress = EndpointConfig::parse(egress, "egress.toml").unwrap();
    assert_eq!(egress.mptcp, Mptcp::Precise);
}

#[test]
fn bfd_is_on_or_off_or_has_intervals_that_a_process_can_keep() {
    let of = |bfd: &str| {
        let said = format!("asn = 65001\n{bfd}");
        let text = ASBR.replacen("asn = 65001", &said, 1);
        let config = AsbrConfig::parse(&text, "asbr.toml");
        config.map(|config| {
            let peers = config.peers.iter().map(|peer| peer.neighbour.bfd);
            let own: Vec<_> = peers.collect();
            assert_eq!(own[1], None, "the other peer has none");
            own[0].map(|it| (it.interval.as_millis() as u64, it.multiplier))
        })
    };
    let cases = [
        ("", None),
        ("bfd = false", None),
        ("bfd = true", Some((50, 3))),
        ("bfd = {}", Some((50, 3))),
        (
            "bfd = { interval = \"10ms\", multiplier = 1 }",
            Some((10, 1)),
        ),
        ("bfd = { multiplier = 255 }", Some((50, 255))),
        ("bfd.interval = \"60s\"", Some((60_000, 3))),
    ];
    for (bfd, expected) in cases {
        assert_eq!(of(bfd).unwrap(), expected, "{bfd}");
    }
    for (bfd, message) in [
        (
            "bfd = { interval = \"9ms\" }",
            "16:7: bfd: interval \"9ms\" is shorter",
        ),
        (
            "bfd = { interval = \"2min\" }",
            "16:7: bfd: interval \"2min\" is longer",
        ),
        (
            "bfd = { multiplier = 0 }",
            "16:7: bfd: multiplier 0 would end",
        ),
        ("bfd = { multiplier = 256 }", "16:"),
        ("bfd = { intervall = \"50ms\" }", "did you mean `interval`"),
        ("bfd = 50", "true, false, or { interval"),
    ] {
        let error = of(bfd).unwrap_err().to_string();
        assert!(error.contains(message), "{bfd}: {error}");
    }
    // Sessions are bounded.
    let more = (1..=1024).map(|number| {
        format!(
            "[[peer]]\nname = \"p{number}\"\naddress = \"2001:db8:77::{number:x}\"\nasn = 65077\nbfd = true\n\
             function = {}\n",
            0x1000 + number
        )
    });
    let more: String = more.collect();
    assert!(AsbrConfig::parse(&format!("{ASBR}{more}"), "asbr.toml").is_ok());
    let one_too_many = ASBR.replacen("asn = 65001", "asn = 65001\nbfd = true", 1);
    let error = AsbrConfig::parse(&format!("{one_too_many}{more}"), "asbr.toml").unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("bfd: more than 1024 peers have it"),
        "{error}"
    );
    // Reflectors may be behind other routers, and their routes are kept without them.
    let text = ASBR.replacen("name = \"rr\"", "name = \"rr\"\nbfd = true", 1);
    assert!(AsbrConfig::parse(&text, "asbr.toml").is_err());
}

#[test]
fn rules_have_communities_as_texts() {
    use keiro_bgp::{
        communities::{Community, CommunityPattern},
        policy::Action,
    };
    let of = |rule: &str| {
        let text = ASBR.replacen("import = \"all\"", &format!("import = [{rule}]"), 1);
        AsbrConfig::parse(&text, "asbr.toml")
            .map(|config| config.peers[0].neighbour.import.rules[1].clone())
    };
    let rule = of(
        "{ communities = [\"65001:7\", \"70000:1:*\", \"blackhole\"], \
         remove_communities = [\"65000:*\", \"65000:*:*\"], add_communities = [\"no-export\", \"65000:1:2\"] }",
    );
    let rule = rule.unwrap();
    let expected = [
        CommunityPattern::Standard(65001, Some(7)),
        CommunityPattern::Large(70000, [Some(1), None]),
        CommunityPattern::Standard(65535, Some(666)),
    ];
    assert_eq!(rule.communities, expected);
    let Action::Permit(changes) = rule.action else {
        panic!("{rule:?}");
    };
    let changes = changes.communities.unwrap();
    let removed = [
        CommunityPattern::Standard(65000, None),
        CommunityPattern::Large(65000, [None, None]),
    ];
    assert_eq!(changes.remove, removed);
    let added = [
        Community::Standard(0xffff_ff01),
        Community::Large([65000, 1, 2]),
    ];
    assert_eq!(changes.add, added);
    for wrong in [
        "65536:1",
        "65000",
        "*:1",
        "1:2:3:4",
        "65000:-1",
        "blackholes",
        "",
    ] {
        let error = of(&format!("{{ communities = [\"{wrong}\"] }}")).unwrap_err();
        assert!(
            error.to_string().contains("is no community"),
            "{wrong}: {error}"
        );
    }
    // Dropping is for what others announce, and needs a table.
    let blackhole = "{ communities = [\"blackhole\"], action = \"blackhole\" }";
    let Action::Permit(changes) = of(blackhole).unwrap().action else {
        panic!("it is taken");
    };
    assert!(changes.blackhole);
    let exported = ASBR.replacen("export = \"own\"", &format!("export = [{blackhole}]"), 1);
    let direct = ASBR.replacen("import = \"all\"", &format!("import = [{blackhole}]"), 1);
    let direct = direct.replacen("asn = 65001", "asn = 65001\nbehaviour = \"end.dx6\"", 1);
    for (text, message) in [
        (exported, "add_communities = [\"blackhole\"]"),
        (direct, "use \"end.dt6\""),
    ] {
        let error = AsbrConfig::parse(&text, "a").unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    let error = of("{ add_communities = [\"65000:*\"] }")
        .unwrap_err()
        .to_string();
    assert!(error.contains("cannot be added"), "{error}");
}

#[test]
fn peers_of_a_group_have_its_values_unless_they_have_their_own() {
    let group = r#"
[[group]]
name = "exchange"
asn = 65003
import = [{ prefixes = ["2000::/3 le 48"], path_max = 5 }]
export = "own"
routes_max = 5000
ttl_security = false
bfd = true
hold_time = "9s"
"#;
    let lines = (1..=40).map(|number| {
        format!("  {{ group = \"exchange\", name = \"p{number}\", address = \"2001:db8:77::{number}\" }},\n")
    });
    let (head, _) = ASBR.split_once("[[reflector]]").unwrap();
    let peers: String = lines.collect();
    // Keys of the file's beginning come before its tables.
    let text = |own: &str| format!("peer = [\n{own}{peers}]\n{head}{group}");
    let own = "  { group = \"exchange\", name = \"own\", address = \"2001:db8:78::1\", asn = 65004, \
               hold_time = \"30s\", bfd = false, export = \"none\" },\n";
    let config = AsbrConfig::parse(&text(own), "asbr.toml").unwrap();
    let neighbours: Vec<_> = config.peers.iter().map(|peer| &peer.neighbour).collect();
    assert_eq!(neighbours.len(), 41);
    for peer in &neighbours[1..] {
        assert_eq!((peer.asn, peer.routes_max), (65003, Some(5000)));
        assert!(!peer.one_hop && peer.bfd.is_some() && peer.export.rules.len() == 1);
        // The locator and martians come first.
        assert_eq!(peer.import.rules[1].as_path.length_max, Some(5));
    }
    let own = neighbours[0];
    assert_eq!((own.asn, own.bfd), (65004, None));
    assert_eq!(own.hold_time, Duration::from_secs(30));
    assert!(own.export.rules.is_empty() && own.import.rules.len() == 2);
    // Segments, tables and the like are each peer's own.
    let sids: BTreeSet<_> = config.peers.iter().map(|peer| peer.sid).collect();
    assert_eq!(sids.len(), 41);

    let refused = |text: String| AsbrConfig::parse(&text, "a").unwrap_err().to_string();
    let misspelt = text("  { group = \"exchang\", name = \"x\", address = \"2001:db8:79::1\" },\n");
    let error = refused(misspelt);
    assert!(
        error.contains("there is no group `exchang`; there are `exchange`"),
        "{error}"
    );
    let twice = refused(text("") + group);
    assert!(twice.contains("there are two groups `exchange`"), "{twice}");
    let address = refused(text("").replacen("routes_max = 5000", "function = 1", 1));
    assert!(address.contains("function"), "{address}");
    // A wrong value is reported once, at its place in the group.
    let wrong = refused(text("").replacen("\"9s\"", "\"1s\"", 1));
    assert_eq!(
        wrong.matches("hold_time").count(),
        2,
        "message and line: {wrong}"
    );
}

#[test]
fn a_peer_is_drained_by_a_key_and_its_own_wish_is_honoured_unless_that_is_off() {
    use keiro_bgp::policy::GracefulShutdown::{All, Never, Received};
    for (keys, import, export) in [
        ("", Received, Never),
        ("graceful_shutdown = false", Never, Never),
        ("drain = true", All, All),
        ("drain = true\ngraceful_shutdown = false", All, All),
    ] {
        let said = format!("asn = 65001\n{keys}");
        let text = ASBR.replacen("asn = 65001", &said, 1);
        let config = AsbrConfig::parse(&text, "asbr.toml").unwrap();
        let peer = config.peers[0].neighbour.speaker_config();
        let found = (peer.import.graceful_shutdown, peer.export.graceful_shutdown);
        assert_eq!(found, (import, export), "{keys}");
    }
}
