//! Rulesets as the tools print them.

use crate::firewall::{Firewall, Owner, Packet};

fn packet<'a>(incoming: &'a str, outgoing: Option<&'a str>) -> Packet<'a> {
    Packet {
        incoming,
        outgoing,
        source: Some("10.1.0.0/24".parse().unwrap()),
        destination: Some("10.2.0.0/16".parse().unwrap()),
        is_ipv6: false,
        udp_port: None,
        is_reply: false,
    }
}

fn nft(chains: &[&str], rules: &[(&str, &str)]) -> Firewall {
    let chain = |chain: &&str| {
        let (name, hook) = chain.split_once(' ').unwrap_or((chain, ""));
        let base = match hook {
            "" => String::new(),
            hook => format!(r#","type":"filter","hook":"{hook}","prio":0,"policy":"drop""#),
        };
        format!(r#"{{"chain":{{"family":"inet","table":"filter","name":"{name}"{base}}}}}"#)
    };
    let rule = |(chain, parts): &(&str, &str)| {
        format!(
            r#"{{"rule":{{"family":"inet","table":"filter","chain":"{chain}","expr":[{parts}]}}}}"#
        )
    };
    let all: Vec<String> = chains
        .iter()
        .map(chain)
        .chain(rules.iter().map(rule))
        .collect();
    let mut firewall = Firewall::default();
    firewall.add_nft(&format!(r#"{{"nftables":[{}]}}"#, all.join(",")));
    firewall
}

const IN_LAN: &str = r#"{"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"eth1"}}"#;
const NOT_WAN: &str =
    r#"{"match":{"op":"!=","left":{"meta":{"key":"iifname"}},"right":{"set":["wan0","wan*"]}}}"#;
const SAVED: &str = r#"{"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"@lans"}}"#;
const STATES: &str = r#"{"vmap":{"key":{"ct":{"key":"state"}},"data":{"set":[["established",{"accept":null}],["invalid",{"drop":null}]]}}}"#;
const FROM: &str = r#"{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":{"prefix":{"addr":"10.0.0.0","len":8}}}}"#;
const PART: &str = r#"{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":"10.1.0.7"}}"#;
const TCP: &str = r#"{"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},"right":{"set":[22,{"range":[80,90]}]}}}"#;
const PORT: &str =
    r#"{"match":{"op":"==","left":{"payload":{"protocol":"udp","field":"dport"}},"right":7600}}"#;
const ACCEPT: &str = r#"{"accept":null}"#;
const COUNTER: &str = r#"{"counter":{"packets":1,"bytes":2}}"#;

#[test]
fn a_packet_is_dropped_where_no_rule_can_accept_it() {
    let forward = packet("eth1", Some("t-blue"));
    let is_dropped = |chains: &[&str], rules: &[(&str, String)]| {
        let rules: Vec<(&str, &str)> = rules.iter().map(|(c, r)| (*c, r.as_str())).collect();
        nft(chains, &rules).dropped_by(forward).is_some()
    };
    let base = ["f forward"];
    let join = |parts: &[&str]| parts.join(",");
    for (rule, dropped) in [
        (join(&[COUNTER]), true),
        (join(&[STATES]), true),
        (join(&[IN_LAN, COUNTER, ACCEPT]), false),
        (join(&[NOT_WAN, ACCEPT]), false),
        (join(&[FROM, ACCEPT]), false),
        // It may be one of these.
        (join(&[SAVED, ACCEPT]), false),
        (join(&[PART, ACCEPT]), false),
        (join(&[TCP, ACCEPT]), false),
        (join(&[r#"{"xt":null}"#]), false),
        (join(&[r#"{"drop":null}"#]), true),
    ] {
        assert_eq!(is_dropped(&base, &[("f", rule.clone())]), dropped, "{rule}");
    }
    assert!(!is_dropped(&["i input"], &[]), "another hook");
    let jump = r#"{"jump":{"target":"lan"}}"#.to_owned();
    let called = ["f forward", "lan"];
    let accepts = [("f", jump.clone()), ("lan", join(&[IN_LAN, ACCEPT]))];
    assert!(!is_dropped(&called, &accepts));
    let returns = [
        ("f", jump.clone()),
        ("lan", r#"{"return":null}"#.to_owned()),
    ];
    assert!(is_dropped(&called, &returns));
    // A chain that calls itself ends.
    assert!(!is_dropped(&called, &[("f", jump.clone()), ("lan", jump)]));
}

#[test]
fn ports_and_states_decide_about_what_comes_in() {
    let with = |parts: &[&str]| nft(&["i input"], &[("i", &parts.join(","))]);
    let established =
        r#"{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":["established","related"]}}"#;
    let to = |port, is_reply| Packet {
        udp_port: Some(port),
        is_reply,
        ..packet("wan0", None)
    };
    let is_dropped =
        |firewall: &Firewall, port, is_reply| firewall.dropped_by(to(port, is_reply)).is_some();
    let open = with(&[PORT, ACCEPT]);
    assert!(!is_dropped(&open, 7600, false));
    assert!(is_dropped(&open, 7601, false));
    let stateful = with(&[established, ACCEPT]);
    assert!(is_dropped(&stateful, 7600, false));
    assert!(!is_dropped(&stateful, 7600, true));
    assert!(is_dropped(&with(&[TCP, ACCEPT]), 7600, false));
}

#[test]
fn rules_of_iptables_are_read_with_their_options() {
    let with = |rule: &str| {
        let mut firewall = Firewall::default();
        let text = format!(
            "# Generated\n*nat\n:FORWARD ACCEPT [0:0]\nCOMMIT\n*filter\n:FORWARD DROP [1:2]\n:mine - [0:0]\n\
             -A FORWARD {rule}\n-A mine -i eth+ -j ACCEPT\nCOMMIT\n"
        );
        firewall.add_iptables(&text, false);
        firewall
    };
    let forward = packet("eth1", Some("t-blue"));
    for (rule, dropped) in [
        ("-j LOG --log-prefix \"dropped: \"", true),
        ("-i eth1 -j ACCEPT", false),
        ("! -i eth1 -j ACCEPT", true),
        (
            "-s 10.1.0.0/16 -m comment --comment \"a \\\"b\\\" -j DROP\" -j ACCEPT",
            false,
        ),
        ("-d 192.0.2.0/24 -j ACCEPT", true),
        ("-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", true),
        ("-m state --state NEW -j ACCEPT", false),
        ("-p tcp -m tcp --dport 22 -j ACCEPT", false),
        ("-m physdev --physdev-is-bridged -j ACCEPT", false),
        ("-m set --match-set trusted src,dst -j ACCEPT", false),
        ("-j mine", false),
        ("-g mine", false),
        ("-j REJECT --reject-with icmp-port-unreachable", true),
        ("-j SOMETHING", false),
    ] {
        assert_eq!(with(rule).dropped_by(forward).is_some(), dropped, "{rule}");
    }
    let of_v6 = Packet {
        is_ipv6: true,
        ..forward
    };
    assert!(with("-j LOG").dropped_by(of_v6).is_none());
}

#[test]
fn the_owner_of_a_chain_is_known_by_its_neighbours() {
    let owner = |chain: &str| {
        let mut firewall = Firewall::default();
        let text = format!("*filter\n:FORWARD DROP [0:0]\n:{chain} - [0:0]\nCOMMIT\n");
        firewall.add_iptables(&text, false);
        let place = firewall.dropped_by(packet("eth1", Some("t-blue")));
        firewall.owner(place.expect("it drops"))
    };
    assert_eq!(owner("DOCKER-USER"), Owner::Docker);
    assert_eq!(owner("ufw-user-forward"), Owner::Ufw);
    assert_eq!(owner("mine"), Owner::Rules);
}

#[test]
fn what_is_no_ruleset_is_left_out() {
    let mut firewall = Firewall::default();
    for text in [
        "",
        "{",
        "[]",
        r#"{"nftables":7}"#,
        r#"{"nftables":[{"chain":{"family":7}},{"rule":{"expr":[null,7,{}]}}]}"#,
        r#"{"nftables":[{"chain":{"family":"inet","table":"f","name":"c","type":"filter","hook":"forward","policy":"accept"}},
            {"rule":{"family":"inet","table":"f","chain":"c","expr":[null,7,{},{"match":null},{"vmap":{}}]}}]}"#,
    ] {
        firewall.add_nft(text);
        firewall.add_iptables(text, false);
    }
    assert_eq!(firewall.dropped_by(packet("eth1", Some("t-blue"))), None);
}
