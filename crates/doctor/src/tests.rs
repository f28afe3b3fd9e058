//! Set-ups as tables of facts: what is found in broken ones, and that nothing is found in good ones.

mod broken;
mod document;
mod firewall;
mod good;
mod openings;

use std::time::Duration;

use keiro_control::protocol::EventKind;

use crate::facts::{
    Endpoint, Facts, Gateway, Lan, Peer, PeerPath, Remote, Report, RouteLookup, Session, Tenant,
    TenantPeer, Uplink,
};

/// A branch with two uplinks, a hub and a tenant with a table, all of it well.
fn branch() -> Facts {
    let path = |name: &str| PeerPath {
        path: name.to_owned(),
        is_up: true,
        since: Duration::from_secs(3600),
        remote: Some("203.0.113.2:7600".to_owned()),
        mtu_bytes: 1500,
        ..PeerPath::default()
    };
    Facts {
        gateway: Some(Gateway {
            name: "branch".to_owned(),
            public_key: "OWN=".to_owned(),
            has_net_admin: Some(true),
            ..Gateway::default()
        }),
        uplinks: vec![
            uplink("wan0", "eth0", "192.0.2.2"),
            uplink("wan1", "wwan0", "198.51.100.2"),
        ],
        peers: vec![Peer {
            name: "hub".to_owned(),
            endpoints: vec![Endpoint {
                text: "203.0.113.2:7600".to_owned(),
                addresses: Ok(vec!["203.0.113.2:7600".parse().unwrap()]),
            }],
            session: Some(Session {
                is_up: true,
                since: Duration::from_secs(3600),
                paths: vec![path("wan0"), path("wan1")],
                ..Session::default()
            }),
        }],
        tenants: vec![tenant()],
        ..Facts::default()
    }
}

fn uplink(path: &str, interface: &str, address: &str) -> Uplink {
    let by = Some(RouteLookup::Interface(interface.to_owned()));
    Uplink {
        path: path.to_owned(),
        interface: Some(interface.to_owned()),
        local: Some(format!("{address}:7600").parse().unwrap()),
        port: 7600,
        networks: vec![format!("{address}/28").parse().unwrap()],
        follows_interface: true,
        mtu: 1500,
        has_default_route: true,
        remotes: vec![Remote {
            peer: "hub".to_owned(),
            address: "203.0.113.2:7600".parse().unwrap(),
            on_link: false,
            outgoing: by.clone(),
            reverse: by,
        }],
        ..Uplink::default()
    }
}

fn tenant() -> Tenant {
    let theirs = "10.2.0.0/16".parse().unwrap();
    Tenant {
        name: "blue".to_owned(),
        id: 1,
        device: "t-blue".to_owned(),
        has_table: true,
        prefixes: vec!["10.1.0.0/16".parse().unwrap()],
        peers: vec![TenantPeer {
            peer: "hub".to_owned(),
            prefixes: vec![theirs],
            routes: vec![(theirs, RouteLookup::Interface("t-blue".to_owned()))],
            ..TenantPeer::default()
        }],
        lans: vec![Lan {
            interface: "eth1".to_owned(),
            networks: vec!["10.1.0.0/24".parse().unwrap()],
            forwards: [Some(true), Some(false)],
        }],
        device_forwards: [Some(true), Some(false)],
        ingress_packets: 100,
        egress_packets: 100,
        ..Tenant::default()
    }
}

/// The same while the hub does not answer.
fn hub_down() -> Facts {
    let mut facts = branch();
    let session = facts.peers[0].session.as_mut().unwrap();
    session.is_up = false;
    for path in &mut session.paths {
        path.is_up = false;
    }
    facts
}

/// The hub without an endpoint: a branch that has to come to this gateway.
fn branch_absent() -> Facts {
    let mut facts = hub_down();
    facts.peers[0].endpoints.clear();
    facts
}

fn not_running() -> Facts {
    let mut facts = branch();
    facts.gateway = None;
    facts.peers[0].session = None;
    facts
}

fn reported(mut facts: Facts, kind: EventKind, count: u64) -> Facts {
    let report = Report {
        kind,
        count,
        age: Duration::from_secs(20),
    };
    facts.gateway.as_mut().unwrap().reports.push(report);
    facts
}

fn with(mut facts: Facts, change: impl FnOnce(&mut Facts)) -> Facts {
    change(&mut facts);
    facts
}

/// The identifiers of what is found.
fn causes(facts: &Facts) -> Vec<&'static str> {
    let found = crate::diagnose(facts);
    found.iter().map(|finding| finding.cause).collect()
}
