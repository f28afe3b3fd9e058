//! What is opened in firewalls as the tools print them, and by which program.

use ipnet::IpNet;

use super::broken::{DOCKER, UFW};
use crate::{
    firewall::Firewall,
    openings::{COMMENT, Need, NotOpened, Opening, Openings, Sample, Setting, Zones, decide},
};

const FIREWALLD: &str = r#"{"nftables": [
    {"chain": {"family": "inet", "table": "firewalld", "name": "filter_INPUT", "type": "filter", "hook": "input", "prio": 10, "policy": "accept"}},
    {"chain": {"family": "inet", "table": "firewalld", "name": "filter_FORWARD", "type": "filter", "hook": "forward", "prio": 10, "policy": "accept"}},
    {"rule": {"family": "inet", "table": "firewalld", "chain": "filter_INPUT", "expr": [
        {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": {"set": ["established", "related"]}}}, {"accept": null}]}},
    {"rule": {"family": "inet", "table": "firewalld", "chain": "filter_INPUT", "expr": [{"reject": {"type": "icmpx", "expr": "admin-prohibited"}}]}},
    {"rule": {"family": "inet", "table": "firewalld", "chain": "filter_FORWARD", "expr": [{"reject": {"type": "icmpx", "expr": "admin-prohibited"}}]}}]}"#;
const NFT: &str = r#"{"nftables": [
    {"chain": {"family": "inet", "table": "filter", "name": "forward", "type": "filter", "hook": "forward", "prio": 0, "policy": "drop"}}]}"#;

/// A hub with one uplink and one LAN.
fn samples() -> Vec<Sample> {
    let [near, far]: [IpNet; 2] =
        ["10.1.0.0/24", "198.18.0.1/32"].map(|text| text.parse().unwrap());
    let forward = |incoming: &str, outgoing: &str, source, destination| Sample {
        need: Need::Forward {
            incoming: incoming.to_owned(),
            outgoing: outgoing.to_owned(),
        },
        source: Some(source),
        destination: Some(destination),
        is_ipv6: false,
        is_reply: false,
    };
    vec![
        Sample {
            need: Need::Port {
                interface: "wan0".to_owned(),
                port: 7600,
            },
            source: None,
            destination: Some("192.0.2.2/32".parse().unwrap()),
            is_ipv6: false,
            is_reply: false,
        },
        forward("lan0", "keiro1", near, far),
        forward("keiro1", "lan0", far, near),
    ]
}

fn setting(zones: Zones) -> Setting {
    Setting {
        device: "keiro1".to_owned(),
        uplinks: vec!["wan0".to_owned()],
        zones,
    }
}

/// The commands for a firewall that iptables and nft print so.
fn decided(iptables: &str, nft: &str, zones: Zones) -> Openings {
    let mut firewall = Firewall::default();
    firewall.add_iptables(iptables, false);
    firewall.add_nft(nft);
    decide(&firewall, &samples(), &setting(zones))
}

fn commands(openings: &[Opening], of: fn(&Opening) -> Vec<Vec<String>>) -> Vec<String> {
    let all = openings.iter().flat_map(of);
    all.map(|words| words.join(" ")).collect()
}

#[test]
fn the_program_that_owns_the_chain_opens_it_and_closes_it_again() {
    let ufw = decided(UFW, "", Zones::default());
    assert_eq!(
        ufw.dropping,
        [
            "chain INPUT of iptables (ufw)",
            "chain FORWARD of iptables (ufw)"
        ]
    );
    assert_eq!(
        commands(&ufw.all, Opening::commands),
        [
            "ufw allow 7600/udp comment keiro",
            "ufw route allow in on lan0 out on keiro1 comment keiro",
            "ufw route allow in on keiro1 out on lan0 comment keiro",
        ]
    );
    assert_eq!(
        commands(&ufw.all, Opening::undo_commands),
        [
            "ufw delete allow 7600/udp",
            "ufw route delete allow in on lan0 out on keiro1",
            "ufw route delete allow in on keiro1 out on lan0",
        ]
    );
    assert!(ufw.all.iter().all(|opening| opening.lasting().is_none()));

    let docker = decided(DOCKER, "", Zones::default());
    assert_eq!(
        commands(&docker.all, Opening::commands),
        [
            "iptables -w -I DOCKER-USER -i lan0 -o keiro1 -m comment --comment keiro -j ACCEPT",
            "iptables -w -I DOCKER-USER -i keiro1 -o lan0 -m comment --comment keiro -j ACCEPT",
        ]
    );
    assert!(docker.all.iter().all(|opening| opening.lasting().is_some()));

    let nft = decided("", NFT, Zones::default());
    assert_eq!(
        commands(&nft.all, Opening::commands),
        [
            "nft insert rule inet filter forward iifname \"lan0\" oifname \"keiro1\" accept comment \"keiro\"",
            "nft insert rule inet filter forward iifname \"keiro1\" oifname \"lan0\" accept comment \"keiro\"",
        ]
    );
    assert_eq!(
        decided("", "", Zones::default()),
        Openings::default(),
        "nothing drops"
    );
}

#[test]
fn firewalld_gets_the_device_in_the_zone_of_the_lan() {
    let zones = |lan: &str, forwarding: &[&str]| Zones {
        of_interface: [("lan0", lan), ("wan0", "public")]
            .map(|(interface, zone)| (interface.to_owned(), zone.to_owned()))
            .into(),
        default: "public".to_owned(),
        forwarding: forwarding.iter().map(|&zone| zone.to_owned()).collect(),
    };
    let found = decided("", FIREWALLD, zones("internal", &[]));
    assert_eq!(
        commands(&found.all, Opening::commands),
        [
            "firewall-cmd --zone=public --add-port=7600/udp",
            "firewall-cmd --permanent --zone=public --add-port=7600/udp",
            "firewall-cmd --zone=internal --add-interface=keiro1",
            "firewall-cmd --permanent --zone=internal --add-interface=keiro1",
            "firewall-cmd --zone=internal --add-forward",
            "firewall-cmd --permanent --zone=internal --add-forward",
        ]
    );
    let undone = commands(&found.all, Opening::undo_commands);
    assert_eq!(
        undone[5],
        "firewall-cmd --permanent --zone=internal --remove-forward"
    );
    // It forwards already, so that stays when the device goes.
    let found = decided("", FIREWALLD, zones("internal", &["internal"]));
    assert_eq!(found.all.len(), 2);
    // Between LAN and uplink nothing is opened along the way.
    let found = decided("", FIREWALLD, zones("public", &[]));
    let [NotOpened::SharedZone { uplink, .. }] = &found.not_opened[..] else {
        panic!("{found:#?}");
    };
    assert_eq!((uplink.as_str(), found.all.len()), ("wan0", 1));
}

#[test]
fn every_chain_that_drops_is_opened_and_none_twice() {
    // Both tools show the chain of iptables.
    let same = NFT
        .replace("inet", "ip")
        .replace("\"forward\", \"type", "\"FORWARD\", \"type");
    let twice = decided(DOCKER, &same, Zones::default());
    assert_eq!(twice.all.len(), 2, "{twice:#?}");
    let both = decided(UFW, NFT, Zones::default());
    assert_eq!(both.all.len(), 5, "{both:#?}");
}

#[test]
fn names_that_a_program_would_take_for_something_else_are_refused() {
    let mut firewall = Firewall::default();
    firewall.add_nft(NFT);
    let mut samples = samples();
    for sample in &mut samples {
        if let Need::Forward { incoming, outgoing } = &mut sample.need {
            for name in [incoming, outgoing] {
                *name = name.replace("lan0", "\" accept; drop table x;");
            }
        }
    }
    let found = decide(&firewall, &samples, &setting(Zones::default()));
    assert_eq!(found.all, []);
    assert!(
        matches!(found.not_opened[..], [NotOpened::Name(_)]),
        "{found:#?}"
    );
    let read = r#"{"by": "nft", "family": "inet", "table": "f; x", "chain": "c", "need": {"port": {"interface": "w", "port": 1}}}"#;
    let read: Opening = serde_json::from_str(read).unwrap();
    assert!(!read.is_sound());
}

#[test]
fn a_rule_of_nftables_is_found_again_by_its_comment_and_interfaces() {
    let opening = |incoming: &str, outgoing: &str| Opening::Nft {
        family: "inet".to_owned(),
        table: "filter".to_owned(),
        chain: "forward".to_owned(),
        need: Need::Forward {
            incoming: incoming.to_owned(),
            outgoing: outgoing.to_owned(),
        },
    };
    let rule = |handle: u64, comment: &str, incoming: &str, outgoing: &str| {
        let name = |key: &str, name: &str| {
            format!(
                r#"{{"match": {{"op": "==", "left": {{"meta": {{"key": "{key}"}}}}, "right": "{name}"}}}}"#
            )
        };
        format!(
            r#"{{"rule": {{"handle": {handle}, "comment": "{comment}", "expr": [{}, {}, {{"accept": null}}]}}}}"#,
            name("iifname", incoming),
            name("oifname", outgoing)
        )
    };
    let listed = format!(
        r#"{{"nftables": [{}, {}, {}, {}]}}"#,
        rule(4, COMMENT, "lan0", "keiro1"),
        rule(5, "mine", "lan0", "keiro1"),
        rule(6, COMMENT, "keiro1", "lan0"),
        rule(7, COMMENT, "lan0", "keiro11"),
    );
    let handles = |incoming, outgoing| opening(incoming, outgoing).nft_handles(&listed);
    assert_eq!(handles("lan0", "keiro1"), Some(vec![4]));
    assert_eq!(handles("keiro1", "lan0"), Some(vec![6]));
    assert_eq!(opening("lan0", "keiro1").nft_handles("{"), Some(Vec::new()));
    assert_eq!(Opening::UfwPort { port: 1 }.nft_handles(&listed), None);
}
