//! Broken set-ups, and the one cause that is found in each.

use std::{collections::BTreeSet, time::Duration};

use keiro_control::{
    config::{Class, Conflict, Name, PrefixOwner, Withheld},
    protocol::{
        AddressField, DeviceState, EventKind, KeyFault, PathFault, PathRef, Side, VersionRange,
    },
};

use super::{branch, branch_absent, causes, hub_down, not_running, reported, with};
use crate::{
    CAUSES, Facts, Subject, diagnose,
    facts::{ConfigurationProblem, Exit, RouteLookup, Spent, Tun, UplinkProblem},
};

const HUB: &str = "hub";

fn on(path: &str) -> PathRef {
    PathRef {
        path: path.to_owned(),
        peer: HUB.to_owned(),
    }
}

fn key(peer: Option<&str>, fault: KeyFault) -> EventKind {
    EventKind::WrongKey {
        peer: peer.map(str::to_owned),
        remote: "203.0.113.2:7600".to_owned(),
        at_peer_address: peer.is_some(),
        fault,
        public_key: (fault == KeyFault::NotOfPeer).then(|| "THEIRS=".to_owned()),
    }
}

fn app(seen_by: Side, here: Option<(&str, Class)>) -> EventKind {
    EventKind::AppMismatch {
        peer: HUB.to_owned(),
        app: Some("voice".to_owned()),
        class: Class::Datagram,
        seen_by,
        configured_peer: here.map(|(peer, _)| peer.to_owned()),
        configured_class: here.map(|(_, class)| class),
    }
}

fn prefix(peer: Option<&str>, from: Side, field: AddressField) -> EventKind {
    EventKind::PrefixMismatch {
        tenant: "blue".to_owned(),
        peer: peer.map(str::to_owned),
        from,
        field,
        address: "10.9.0.7".to_owned(),
        dropped_packets: 3,
    }
}

fn fault(mut facts: Facts, path: usize, fault: PathFault) -> Facts {
    let session = facts.peers[0].session.as_mut().unwrap();
    session.paths[path].fault = Some(fault);
    session.paths[path].is_up = fault == PathFault::SmallMtu;
    session.paths[path].mtu_bytes = 1200;
    facts
}

/// An uplink of the two does not carry anything.
fn wan1_down() -> Facts {
    with(branch(), |facts| {
        facts.peers[0].session.as_mut().unwrap().paths[1].is_up = false;
    })
}

fn wan1_problem(problem: UplinkProblem) -> Facts {
    with(wan1_down(), |facts| {
        facts.uplinks[1].problem = Some(problem);
    })
}

fn accepting(ruleset: &str) -> Facts {
    with(branch(), |facts| {
        facts.firewall.add_iptables(ruleset, false);
    })
}

pub(super) const DOCKER: &str = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:DOCKER-USER - [0:0]\n\
    -A FORWARD -j DOCKER-USER\n-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
    -A FORWARD -i docker0 ! -o docker0 -j ACCEPT\n-A DOCKER-USER -j RETURN\nCOMMIT\n";
pub(super) const UFW: &str = "*filter\n:INPUT DROP [0:0]\n:FORWARD DROP [0:0]\n:ufw-before-forward - [0:0]\n\
    :ufw-before-input - [0:0]\n-A INPUT -j ufw-before-input\n-A FORWARD -j ufw-before-forward\n\
    -A ufw-before-input -i lo -j ACCEPT\n-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
    -A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\nCOMMIT\n";

/// What is wrong, the facts, the cause, what it is about and a part of what is to be done.
type Case = (Facts, &'static str, Subject, &'static str);

fn configurations() -> Vec<Case> {
    let configuration = |problem| {
        let facts = with(Facts::default(), |facts| {
            facts.configuration.file = "/etc/keiro/gateway.toml".to_owned();
            facts.configuration.problem = Some(problem);
        });
        (facts, Subject::Configuration)
    };
    let (missing, of_file) = configuration(ConfigurationProblem::Missing);
    let invalid = ConfigurationProblem::Invalid {
        first: "gateway.toml:3: peer: no such peer".to_owned(),
        count: 2,
    };
    let (invalid, _) = configuration(invalid);
    vec![
        (missing, "no_configuration", of_file.clone(), "keiro init"),
        (
            invalid,
            "invalid_configuration",
            of_file.clone(),
            "keiro config check",
        ),
        (
            with(branch(), |facts| {
                facts.gateway.as_mut().unwrap().rejected = Some("gateway.toml:3".to_owned());
            }),
            "rejected_configuration",
            of_file.clone(),
            "keiro reload",
        ),
        (
            with(branch(), |facts| {
                facts.gateway.as_mut().unwrap().needs_restart = vec!["metrics".to_owned()];
            }),
            "needs_restart",
            of_file,
            "systemctl restart",
        ),
    ]
}

fn machine() -> Vec<Case> {
    let key = "/k: others can read or write this key (mode 0644); run `chmod 600 /k`";
    let no_device = |facts: &mut Facts| {
        facts.tenants[0].device_problem = Some((DeviceState::Missing, "not made".to_owned()));
    };
    let behind = (
        "/var/lib/keiro/plan".to_owned(),
        Duration::from_secs(86_400),
    );
    vec![
        (
            with(branch(), |facts| {
                facts.machine.key_problem = Some(key.to_owned());
            }),
            "key_unusable",
            Subject::Machine,
            "run `chmod 600 /k`",
        ),
        (
            with(branch(), |facts| {
                facts.machine.tun = Tun::Missing;
                no_device(facts);
            }),
            "no_tun",
            Subject::Machine,
            "modprobe tun",
        ),
        (
            with(branch(), |facts| {
                facts.machine.tun = Tun::Refused;
                no_device(facts);
            }),
            "no_tun",
            Subject::Machine,
            "--device /dev/net/tun",
        ),
        (
            with(hub_down(), |facts| {
                facts.machine.clock_behind = Some(behind);
            }),
            "clock_behind",
            Subject::Machine,
            "timedatectl set-ntp true",
        ),
        (
            not_running(),
            "not_running",
            Subject::Gateway,
            "systemctl start",
        ),
        (
            with(branch(), |facts| {
                facts.gateway.as_mut().unwrap().has_net_admin = Some(false);
                no_device(facts);
            }),
            "no_net_admin",
            Subject::Gateway,
            "AmbientCapabilities=CAP_NET_ADMIN",
        ),
        (
            with(branch(), |facts| {
                facts.gateway.as_mut().unwrap().store_lost = Some("etcd: refused".to_owned());
            }),
            "store_lost",
            Subject::Gateway,
            "etcdctl endpoint health",
        ),
    ]
}

fn uplink_problems() -> Vec<Case> {
    let wan1 = || Subject::Path("wan1".to_owned());
    let moved = UplinkProblem::AddressNotHere {
        address: "198.51.100.2".parse().unwrap(),
        instead: Some(("wwan0".to_owned(), "198.51.100.9".parse().unwrap())),
    };
    vec![
        (
            wan1_problem(UplinkProblem::NoInterface),
            "no_interface",
            wan1(),
            "ip link",
        ),
        (
            wan1_problem(UplinkProblem::Down),
            "interface_down",
            wan1(),
            "ip link set wwan0 up",
        ),
        (
            wan1_problem(UplinkProblem::NoCarrier),
            "no_carrier",
            wan1(),
            "cable",
        ),
        (
            wan1_problem(UplinkProblem::PortOf("br0".to_owned())),
            "port_of_bridge",
            wan1(),
            "interface = \"br0\"",
        ),
        (
            wan1_problem(UplinkProblem::NoAddress("IPv4")),
            "no_address",
            wan1(),
            "DHCP client",
        ),
        (
            wan1_problem(moved),
            "address_not_here",
            wan1(),
            "interface = \"wwan0\"",
        ),
    ]
}

fn routes() -> Vec<Case> {
    let wan1 = || Subject::Path("wan1".to_owned());
    let lost =
        |facts: &mut Facts| facts.uplinks[1].remotes[0].outgoing = Some(RouteLookup::Nowhere);
    vec![
        (
            with(wan1_down(), |facts| {
                lost(facts);
                facts.uplinks[1].has_default_route = false;
            }),
            "no_default_route",
            wan1(),
            "ip route add default via ROUTER dev wwan0 metric 200",
        ),
        (
            with(wan1_down(), lost),
            "no_route_to_peer",
            wan1(),
            "ip route get 203.0.113.2 oif wwan0",
        ),
        (
            with(wan1_down(), |facts| {
                facts.uplinks[1].strict_reverse_path = true;
                facts.uplinks[1].remotes[0].reverse =
                    Some(RouteLookup::Interface("eth0".to_owned()));
            }),
            "reverse_path_filter",
            wan1(),
            "net.ipv4.conf.wwan0.rp_filter=2",
        ),
        (
            with(branch(), |facts| {
                facts.uplinks[0].ignores_router_advertisements = true;
            }),
            "router_advertisements_ignored",
            Subject::Path("wan0".to_owned()),
            "net.ipv6.conf.eth0.accept_ra=2",
        ),
    ]
}

fn paths() -> Vec<Case> {
    let wan1 = || Subject::Path("wan1".to_owned());
    vec![
        (
            fault(wan1_down(), 1, PathFault::Silent),
            "path_silent",
            wan1(),
            "keiro doctor",
        ),
        (
            fault(branch(), 1, PathFault::SmallMtu),
            "path_mtu",
            wan1(),
            "1280 bytes",
        ),
        (
            fault(branch(), 1, PathFault::TooSmall),
            "path_mtu",
            wan1(),
            "1280 bytes",
        ),
        (
            with(fault(branch(), 1, PathFault::SmallMtu), |facts| {
                facts.uplinks[1].mtu = 1200;
            }),
            "path_mtu",
            wan1(),
            "ip link set wwan0 mtu 1500",
        ),
        (
            fault(branch(), 1, PathFault::OneWay),
            "one_way",
            wan1(),
            "output chain here",
        ),
        (
            reported(
                branch(),
                EventKind::RemoteChanged {
                    on: on("wan1"),
                    from: "203.0.113.9:7600".to_owned(),
                    to: "203.0.113.9:7601".to_owned(),
                },
                7,
            ),
            "peer_moves",
            wan1(),
            "UDP timeout",
        ),
        (
            with(wan1_down(), |facts| {
                let ends = "2026-12-01".to_owned();
                facts.peers[0].session.as_mut().unwrap().paths[0].spent =
                    Some(Spent::Here { ends });
            }),
            "budget_spent",
            Subject::Path("wan0".to_owned()),
            "essential = true",
        ),
        (
            with(wan1_down(), |facts| {
                facts.peers[0].session.as_mut().unwrap().paths[0].spent = Some(Spent::AtPeer);
            }),
            "budget_spent",
            Subject::Path("wan0".to_owned()),
            "monthly_budget` at the peer",
        ),
    ]
}

fn endpoints() -> Vec<Case> {
    let hub = || Subject::Peer(HUB.to_owned());
    let endpoint = |text: &str, addresses: Result<Vec<_>, String>| {
        with(hub_down(), |facts| {
            let endpoint = &mut facts.peers[0].endpoints[0];
            (endpoint.text, endpoint.addresses) = (text.to_owned(), addresses);
        })
    };
    vec![
        (
            endpoint("hub.invalid:7600", Err("no such name".to_owned())),
            "endpoint_unresolved",
            hub(),
            "getent ahosts hub.invalid",
        ),
        (
            endpoint("branch:7600", Ok(vec!["192.0.2.2:7600".parse().unwrap()])),
            "endpoint_is_this_machine",
            hub(),
            "write the peer's address",
        ),
        (
            endpoint("branch:7600", Ok(vec!["127.0.1.1:7600".parse().unwrap()])),
            "endpoint_is_this_machine",
            hub(),
            "/etc/hosts",
        ),
    ]
}

fn keys() -> Vec<Case> {
    let hub = || Subject::Peer(HUB.to_owned());
    let versions = EventKind::VersionMismatch {
        peer: Some(HUB.to_owned()),
        remote: "203.0.113.2:7600".to_owned(),
        peer_versions: VersionRange {
            oldest: 1,
            newest: 1,
        },
        our_versions: VersionRange {
            oldest: 2,
            newest: 3,
        },
    };
    let duplicate = EventKind::DuplicateKey {
        peer: HUB.to_owned(),
        served: "203.0.113.2:7600".to_owned(),
        other: "203.0.113.3:7600".to_owned(),
    };
    let refused = EventKind::KeyRefused {
        peer: HUB.to_owned(),
    };
    let not_ours = key(Some(HUB), KeyFault::NotOurs);
    let not_of_peer = key(None, KeyFault::NotOfPeer);
    let preshared = key(Some(HUB), KeyFault::Preshared);
    vec![
        (
            reported(hub_down(), not_ours, 1),
            "wrong_key",
            hub(),
            "public_key = \"OWN=\"",
        ),
        (
            reported(branch_absent(), not_of_peer, 1),
            "wrong_key",
            hub(),
            "public_key = \"THEIRS=\"",
        ),
        (
            reported(hub_down(), preshared, 1),
            "wrong_key",
            hub(),
            "preshared_key_file",
        ),
        (
            reported(hub_down(), versions, 1),
            "version_mismatch",
            hub(),
            "upgrade gateway hub",
        ),
        (
            reported(hub_down(), refused, 1),
            "key_refused",
            hub(),
            "keiro genkey",
        ),
        (
            reported(branch(), duplicate, 1),
            "duplicate_key",
            hub(),
            "the gateway at 203.0.113.3:7600",
        ),
    ]
}

fn peers() -> Vec<Case> {
    let hub = || Subject::Peer(HUB.to_owned());
    vec![
        (
            with(branch_absent(), |facts| {
                facts.peers[0].session.as_mut().unwrap().stale_handshakes = 2;
            }),
            "peer_clock_behind",
            hub(),
            "timedatectl",
        ),
        (
            fault(
                fault(hub_down(), 0, PathFault::OneWay),
                1,
                PathFault::OneWay,
            ),
            "one_way",
            hub(),
            "output chain here",
        ),
        (hub_down(), "peer_silent", hub(), "UDP to 203.0.113.2:7600"),
        (branch_absent(), "peer_absent", hub(), "UDP port 7600"),
        (
            reported(branch(), app(Side::Us, Some((HUB, Class::Message))), 1),
            "app_mismatch",
            Subject::App("voice".to_owned()),
            "class = \"datagram\"",
        ),
        (
            reported(branch(), app(Side::Us, Some(("kobe", Class::Message))), 1),
            "app_mismatch",
            Subject::App("voice".to_owned()),
            "another name",
        ),
        (
            reported(branch(), app(Side::Peer, None), 1),
            "app_mismatch",
            Subject::App("voice".to_owned()),
            "[[app]] at hub",
        ),
    ]
}

fn tenants() -> Vec<Case> {
    let blue = || Subject::Tenant("blue".to_owned());
    let of_report = |kind| reported(branch(), kind, 1);
    let refused = EventKind::TenantRefused {
        tenant: "blue".to_owned(),
        id: 1,
        peer: HUB.to_owned(),
    };
    let unknown = EventKind::TenantUnknown {
        peer: HUB.to_owned(),
        id: 9,
    };
    let (source, destination) = (AddressField::Source, AddressField::Destination);
    vec![
        (
            with(branch(), |facts| {
                let why = "it was set down".to_owned();
                facts.tenants[0].device_problem = Some((DeviceState::Down, why));
            }),
            "device_unusable",
            blue(),
            "ip link set t-blue up",
        ),
        (of_report(refused), "tenant_refused", blue(), "id = 1"),
        (
            with(branch(), |facts| {
                facts.tenants[0].peers[0].refused_packets = 4;
            }),
            "tenant_refused",
            blue(),
            "at hub write",
        ),
        (
            of_report(unknown),
            "tenant_unknown",
            Subject::Peer(HUB.to_owned()),
            "id = 9",
        ),
        (
            of_report(prefix(Some(HUB), Side::Us, source)),
            "prefix_mismatch",
            blue(),
            "at hub",
        ),
        (
            of_report(prefix(Some(HUB), Side::Us, destination)),
            "prefix_mismatch",
            blue(),
            "at hub",
        ),
        (
            of_report(prefix(Some(HUB), Side::Peer, source)),
            "prefix_mismatch",
            blue(),
            "[tenant.blue.peer.hub]",
        ),
        (
            of_report(prefix(Some(HUB), Side::Peer, destination)),
            "prefix_mismatch",
            blue(),
            "[tenant.blue]",
        ),
        (
            of_report(prefix(None, Side::Us, source)),
            "prefix_mismatch",
            blue(),
            "[tenant.blue]",
        ),
    ]
}

fn tenants_networks() -> Vec<Case> {
    let blue = || Subject::Tenant("blue".to_owned());
    let theirs = "10.2.0.0/16".parse().unwrap();
    let elsewhere = |facts: &mut Facts| {
        facts.tenants[0].peers[0].routes =
            vec![(theirs, RouteLookup::Interface("tailscale0".to_owned()))];
    };
    vec![
        (
            with(branch(), |facts| {
                facts.tenants[0].lans[0].networks = vec!["10.0.0.0/8".parse().unwrap()];
            }),
            "lan_overlaps_peer",
            blue(),
            "other addresses",
        ),
        (
            with(branch(), |facts| {
                facts.tenants[0].has_table = false;
                facts.uplinks[0].networks = vec!["10.2.0.0/16".parse().unwrap()];
            }),
            "uplink_overlaps_peer",
            blue(),
            "table = 101",
        ),
        (
            with(branch(), |facts| {
                facts.tenants[0].lans[0].forwards[0] = Some(false);
            }),
            "forwarding_off",
            blue(),
            "net.ipv4.conf.eth1.forwarding=1",
        ),
        (
            with(branch(), |facts| {
                facts.tenants[0].lans[0].forwards[0] = Some(false);
                facts.tenants[0].device_forwards[0] = Some(false);
            }),
            "forwarding_off",
            blue(),
            "net.ipv4.ip_forward=1",
        ),
        (
            with(branch(), |facts| {
                facts.tenants[0]
                    .prefixes
                    .push("fd00:1::/64".parse().unwrap());
            }),
            "forwarding_off",
            blue(),
            "net.ipv6.conf.all.forwarding=1",
        ),
        (
            with(branch(), |facts| {
                facts.tenants[0].exit = Some(Exit::default());
            }),
            "exit_without_default_route",
            blue(),
            "ip route show default",
        ),
        (
            with(branch(), |facts| {
                let uplinks = [vec![("eth0".to_owned(), Some(false))], Vec::new()];
                facts.tenants[0].exit = Some(Exit {
                    uplinks,
                    rules_problem: None,
                });
            }),
            "exit_not_forwarding",
            blue(),
            "net.ipv4.ip_forward=1",
        ),
        (
            with(branch(), |facts| {
                let uplinks = [vec![("eth0".to_owned(), Some(true))], Vec::new()];
                facts.tenants[0].exit = Some(Exit {
                    uplinks,
                    rules_problem: Some("there is no program nft".to_owned()),
                });
            }),
            "exit_rules_missing",
            blue(),
            "package nftables",
        ),
        (
            with(branch(), |facts| {
                facts.tenants[0].exit_not_offered_by = Some("hub".to_owned());
            }),
            "exit_not_offered",
            blue(),
            "exit = true",
        ),
        (
            with(branch(), elsewhere),
            "routed_elsewhere",
            blue(),
            "ip route show match 10.2.0.0/16",
        ),
        (
            with(branch(), |facts| {
                elsewhere(facts);
                facts.tenants[0].peers[0].foreign_rules =
                    vec!["rule priority 5270 from all lookup 52 proto 0".to_owned()];
            }),
            "routed_elsewhere",
            blue(),
            "above 7602",
        ),
        (
            with(branch(), |facts| {
                facts.tenants[0].withheld.push(Withheld {
                    tenant: Name::new("blue").unwrap(),
                    prefix: "192.168.1.0/24".parse().unwrap(),
                    owner: PrefixOwner::Site(Name::new("kobe").unwrap()),
                    conflict: Conflict::Uplink {
                        interface: "eth0".to_owned(),
                        network: "192.168.0.0/16".parse().unwrap(),
                    },
                });
            }),
            "prefix_withheld",
            blue(),
            "at the router of eth0, or that of site `kobe`",
        ),
        (
            with(branch(), |facts| facts.tenants[0].ingress_packets = 0),
            "no_answers",
            blue(),
            "add a route to 10.2.0.0/16",
        ),
    ]
}

fn firewalls() -> Vec<Case> {
    let blocked = |ruleset: &str| {
        with(branch_absent(), |facts| {
            facts.tenants.clear();
            facts.uplinks.truncate(1);
            facts.firewall.add_nft(ruleset);
        })
    };
    let input = r#"{"nftables": [
        {"chain": {"family": "inet", "table": "filter", "name": "input", "type": "filter", "hook": "input", "policy": "drop"}},
        {"rule": {"family": "inet", "table": "filter", "chain": "input", "expr": [
            {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}},
            {"accept": null}]}}]}"#;
    let blue = || Subject::Tenant("blue".to_owned());
    vec![
        (
            blocked(input),
            "input_blocked",
            Subject::Path("wan0".to_owned()),
            "nft insert rule inet filter input udp dport 7600 accept",
        ),
        (
            accepting(DOCKER),
            "forward_blocked",
            blue(),
            "iptables -I DOCKER-USER -i eth1 -o t-blue -j ACCEPT",
        ),
        (
            accepting(UFW),
            "forward_blocked",
            blue(),
            "ufw route allow in on eth1 out on t-blue",
        ),
    ]
}

fn all() -> Vec<Case> {
    [
        configurations(),
        machine(),
        uplink_problems(),
        routes(),
        paths(),
        endpoints(),
        keys(),
        peers(),
        tenants(),
        tenants_networks(),
        firewalls(),
    ]
    .concat()
}

#[test]
fn each_broken_set_up_has_its_cause_and_what_to_do() {
    for (facts, cause, subject, remedy) in all() {
        let found = diagnose(&facts);
        assert_eq!(causes(&facts), [cause], "{found:#?}");
        assert_eq!(found[0].subject, subject, "{found:#?}");
        assert!(
            found[0].remedy.contains(remedy),
            "no `{remedy}` in {found:#?}"
        );
    }
}

#[test]
fn there_is_a_broken_set_up_for_every_cause() {
    let tested: BTreeSet<&str> = all().iter().map(|(_, cause, ..)| *cause).collect();
    let causes: BTreeSet<&str> = CAUSES.iter().map(|cause| cause.id).collect();
    assert_eq!(tested, causes);
    assert_eq!(causes.len(), CAUSES.len(), "an identifier is there twice");
}

#[test]
fn what_is_basic_comes_before_what_follows_from_it() {
    let mut facts = hub_down();
    for uplink in &mut facts.uplinks {
        uplink.problem = Some(UplinkProblem::NoCarrier);
    }
    facts.tenants[0].lans[0].forwards[0] = Some(false);
    // That the hub is silent follows from its uplinks.
    assert_eq!(
        causes(&facts),
        ["no_carrier", "no_carrier", "forwarding_off"]
    );
    facts.uplinks[0].problem = None;
    let order = ["no_carrier", "peer_silent", "forwarding_off"];
    assert_eq!(causes(&facts), order);
}
