//! Set-ups in which nothing is wrong, though some of their facts are unusual.

use std::time::Duration;

use keiro_control::protocol::{EventKind, KeyFault, PathRef};

use super::{branch, causes, hub_down, reported, uplink, with};
use crate::facts::{Facts, Lan, RouteLookup, Tun};

const DOCKER: &str = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n:DOCKER-USER - [0:0]\n\
    -A FORWARD -j DOCKER-USER\n-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
    -A DOCKER-USER -j RETURN\nCOMMIT\n";

fn none_found(facts: &Facts) {
    assert_eq!(
        causes(facts),
        [] as [&str; 0],
        "{:#?}",
        crate::diagnose(facts)
    );
}

#[test]
fn a_branch_with_two_uplinks_is_well() {
    none_found(&branch());
}

#[test]
fn a_single_uplink_is_well() {
    let single = with(branch(), |facts| {
        facts.uplinks.truncate(1);
        facts.peers[0].session.as_mut().unwrap().paths.truncate(1);
    });
    none_found(&single);
}

#[test]
fn ipv6_alone_is_well() {
    let facts = with(branch(), |facts| {
        let mut v6 = uplink("wan0", "eth0", "192.0.2.2");
        v6.local = Some("[2001:db8:1::2]:7600".parse().unwrap());
        v6.networks = vec!["2001:db8:1::/64".parse().unwrap()];
        v6.remotes[0].address = "[2001:db8::2]:7600".parse().unwrap();
        // The filter is IPv4's.
        v6.strict_reverse_path = true;
        facts.uplinks = vec![v6];
        facts.peers[0].session.as_mut().unwrap().paths.truncate(1);
        let tenant = &mut facts.tenants[0];
        tenant.prefixes = vec!["fd00:1::/64".parse().unwrap()];
        tenant.peers[0].prefixes = vec!["fd00:2::/64".parse().unwrap()];
        tenant.lans[0].networks = tenant.prefixes.clone();
        tenant.lans[0].forwards = [Some(false), Some(true)];
        tenant.device_forwards = [Some(false), Some(true)];
    });
    none_found(&facts);
}

#[test]
fn fixed_addresses_on_the_peers_own_link_need_no_default_route() {
    let facts = with(hub_down(), |facts| {
        for uplink in &mut facts.uplinks {
            uplink.follows_interface = false;
            uplink.has_default_route = false;
            uplink.remotes[0].on_link = true;
        }
        let session = facts.peers[0].session.as_mut().unwrap();
        // It has just begun.
        session.since = Duration::from_secs(1);
    });
    none_found(&facts);
}

#[test]
fn a_tenant_without_hosts_behind_it_forwards_nothing() {
    let facts = with(branch(), |facts| {
        let tenant = &mut facts.tenants[0];
        tenant.lans.clear();
        tenant.device_forwards = [Some(false); 2];
        facts.firewall.add_iptables(DOCKER, false);
    });
    none_found(&facts);
}

#[test]
fn docker_without_a_tenant_or_with_rules_for_it_has_no_consequence() {
    let without = with(branch(), |facts| {
        facts.tenants.clear();
        facts.firewall.add_iptables(DOCKER, false);
    });
    none_found(&without);
    let rules = "-A DOCKER-USER -i eth1 -o t-blue -j ACCEPT\n-A DOCKER-USER -i t-blue -o eth1 -j ACCEPT\n\
                 -A DOCKER-USER -j RETURN\n";
    let accepted = DOCKER.replace("-A DOCKER-USER -j RETURN\n", rules);
    none_found(&with(branch(), |facts| {
        facts.firewall.add_iptables(&accepted, false);
    }));
    // One direction is closed, which may be meant.
    let one = DOCKER.replace(
        "-A DOCKER-USER -j RETURN\n",
        "-A DOCKER-USER -i eth1 -o t-blue -j ACCEPT\n-A DOCKER-USER -j RETURN\n",
    );
    none_found(&with(branch(), |facts| {
        facts.firewall.add_iptables(&one, false);
    }));
}

#[test]
fn a_uplink_in_a_vrf_is_well() {
    let facts = with(branch(), |facts| {
        facts.uplinks[1].strict_reverse_path = true;
        // In another table than that of the machine.
        facts.uplinks[1].remotes[0].reverse = None;
    });
    none_found(&facts);
}

#[test]
fn what_is_not_used_is_not_missed() {
    let facts = with(branch(), |facts| {
        facts.tenants.clear();
        facts.machine.tun = Tun::Missing;
        facts.gateway.as_mut().unwrap().has_net_admin = Some(false);
        // The paths are up all the same.
        facts.uplinks[0].has_default_route = false;
        facts.uplinks[1].strict_reverse_path = true;
        facts.uplinks[1].remotes[0].reverse = Some(RouteLookup::Interface("eth0".to_owned()));
        let now = (
            "/etc/keiro/gateway.toml".to_owned(),
            Duration::from_secs(90_000),
        );
        facts.machine.clock_behind = Some(now);
    });
    none_found(&facts);
}

#[test]
fn a_peer_without_an_endpoint_that_has_come_is_well() {
    let drops = "*filter\n:INPUT DROP [0:0]\n:FORWARD ACCEPT [0:0]\nCOMMIT\n";
    let facts = with(branch(), |facts| {
        facts.peers[0].endpoints.clear();
        facts.firewall.add_iptables(drops, false);
        facts.peers[0].session.as_mut().unwrap().paths[1].is_abandoned = true;
        facts.peers[0].session.as_mut().unwrap().paths[1].is_up = false;
    });
    none_found(&facts);
}

#[test]
fn a_site_with_a_store_and_a_wide_lan_prefix_is_well() {
    let facts = with(branch(), |facts| {
        let tenant = &mut facts.tenants[0];
        // The peer leads to all the others.
        tenant.peers[0].prefixes = vec!["10.0.0.0/8".parse().unwrap()];
        tenant.lans.push(Lan {
            interface: "eth2".to_owned(),
            networks: vec!["10.1.9.0/24".parse().unwrap()],
            forwards: [Some(true), None],
        });
        tenant.has_table = false;
        facts.uplinks[0].networks = vec!["10.200.0.0/30".parse().unwrap()];
    });
    none_found(&facts);
}

#[test]
fn strangers_and_old_reports_are_no_finding_while_the_peers_are_up() {
    let stranger = EventKind::WrongKey {
        peer: None,
        remote: "192.0.2.99:7600".to_owned(),
        at_peer_address: false,
        fault: KeyFault::NotOfPeer,
        public_key: Some("OTHER=".to_owned()),
    };
    none_found(&reported(branch(), stranger, 9));
    // The first address, and two uplinks of the peer that have yet to find their paths.
    for from in ["unknown", "198.51.100.2:7600"] {
        let changed = EventKind::RemoteChanged {
            on: PathRef {
                path: "wan0".to_owned(),
                peer: "hub".to_owned(),
            },
            from: from.to_owned(),
            to: "203.0.113.2:7600".to_owned(),
        };
        none_found(&reported(branch(), changed, 9));
    }
    let refused = EventKind::TenantRefused {
        tenant: "blue".to_owned(),
        id: 1,
        peer: "hub".to_owned(),
    };
    let old = with(reported(branch(), refused, 1), |facts| {
        facts.gateway.as_mut().unwrap().reports[0].age = Duration::from_secs(300);
    });
    none_found(&old);
}
