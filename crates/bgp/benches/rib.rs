//! A full table of VPN routes with SIDs, as a route reflector sends it: the time from octets to the
//! RIB, and the time to drop all routes of a neighbour. With `KEIRO_RIB_MEMORY=1`, prints the peak
//! memory of the process instead (the RIB, and the sender's octets); with
//! `KEIRO_RIB_MEMORY=unicast`, the same for the unicast routes of an egress peer.

use std::{fs, net::Ipv6Addr, sync::Arc};

use divan::Bencher;
use ipnet::Ipv6Net;
use keiro_bgp::{
    address::Family,
    policy::{Action as PolicyAction, AttributeChanges, Policy, Rule},
    rib::NeighbourId,
    rpki::{Validity, Vrp, Vrps},
    speaker::{
        Action, ConnectionId, Direction, Input, NeighbourConfig, Speaker, SpeakerConfig, VpnExport,
    },
    srv6::{Label, Service},
};
use keiro_units::Instant;

const ROUTES: u32 = 200_000;
const PAYLOADS: u32 = 600_000;
const FIRST: NeighbourId = NeighbourId(0);
const NOW: Instant = Instant::from_nanos(1);

fn main() {
    if let Some(what) = std::env::var_os("KEIRO_RIB_MEMORY") {
        let speaker = match what == "unicast" {
            true => border(Policy::permit_all()).0,
            false => filled(&octets()),
        };
        let routes = speaker.rib().len();
        println!("{routes} routes: peak of the process {} KiB", peak_kib());
        return;
    }
    divan::main();
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn receive_200k_vpn_routes(bencher: Bencher<'_, '_>) {
    let octets = octets();
    bencher
        .with_inputs(receiver)
        .bench_values(|speaker| fill(speaker, &octets));
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn lose_the_neighbour(bencher: Bencher<'_, '_>) {
    let octets = octets();
    let full = || filled(&octets);
    bencher.with_inputs(full).bench_values(|mut speaker| {
        speaker.handle(NOW, Input::Disconnected(connection()));
        assert!(speaker.rib().is_empty());
        speaker
    });
}

/// Re-evaluates a peer's routes under another policy, without a route refresh.
#[divan::bench(sample_count = 10, sample_size = 1, args = ["deny all", "take all again", "prefer all"])]
fn another_policy(bencher: Bencher<'_, '_>, what: &str) {
    let preferred = AttributeChanges {
        local_pref: Some(200),
        ..AttributeChanges::default()
    };
    let (before, after) = match what {
        "deny all" => (Policy::permit_all(), Policy::default()),
        "take all again" => (Policy::default(), Policy::permit_all()),
        _ => (Policy::permit_all(), permit(preferred)),
    };
    bencher
        .with_inputs(|| border(before.clone()))
        .bench_values(|(mut border, peer)| {
            border.set_policies(NOW, peer, of_transit(after.clone()));
            border.take_changes();
            border
        });
}

/// The same with other VRPs: about as many as the Internet has, none of which covers these routes.
#[divan::bench(sample_count = 10, sample_size = 1)]
fn another_rpki(bencher: Bencher<'_, '_>) {
    let vrps = Arc::new(Vrps::new((0..PAYLOADS).map(payload).collect()));
    let mut policy = permit(AttributeChanges::default());
    policy.rules[0].validity = vec![Validity::NotFound];
    bencher
        .with_inputs(|| border(policy.clone()))
        .bench_values(|(mut border, _)| {
            border.set_vrps(Arc::clone(&vrps));
            border.take_changes();
            assert_eq!(border.rib().len(), ROUTES as usize);
            border
        });
}

/// Receives an egress peer's routes at a border router.
#[divan::bench(sample_count = 10, sample_size = 1)]
fn receive_200k_unicast_routes(bencher: Bencher<'_, '_>) {
    bencher.bench_local(|| border(Policy::permit_all()));
}

/// Makes the next hop of twenty routes, or of all others, unreachable and then reachable again.
#[divan::bench(sample_count = 10, sample_size = 1, args = [2, 1])]
fn lose_and_find_the_next_hop(bencher: Bencher<'_, '_>, number: u16) {
    let (mut border, peer) = border(Policy::permit_all());
    let next_hop = || vec![(peer, next_hop(number).into())];
    let routes = if number == 2 {
        20
    } else {
        ROUTES as usize - 20
    };
    bencher.bench_local(|| {
        for input in [Input::Unreachable(next_hop()), Input::Reachable(next_hop())] {
            border.handle(NOW, input);
            assert_eq!(border.take_changes().best.len(), routes);
        }
    });
}

fn permit(changes: AttributeChanges) -> Policy {
    Policy {
        rules: vec![Rule {
            action: PolicyAction::Permit(changes),
            ..Rule::default()
        }],
        ..Policy::default()
    }
}

/// A VRP that covers none of the routes of [`update`].
fn payload(number: u32) -> Vrp {
    let part = |shift: u32| (number >> shift) as u16;
    let address = Ipv6Addr::new(
        0x2600 + (number % 0x400) as u16,
        part(8),
        part(0),
        0,
        0,
        0,
        0,
        0,
    );
    Vrp {
        prefix: Ipv6Net::new(address, 48).expect("a length").into(),
        length_max: 48,
        asn: number,
    }
}

/// A border router with 200,000 routes from a transit.
fn border(import: Policy) -> (Speaker, NeighbourId) {
    let mut border = speaker(2, 65000);
    let peer = border.add_neighbour(of_transit(import));
    let mut transit = speaker(3, 65001);
    transit.add_neighbour(neighbour(65000, &[Family::Ipv6]));
    establish(&mut border, peer, &mut transit);
    for group in 0..ROUTES / 20 {
        let input = Input::Received(ConnectionId::new(peer, Direction::Incoming), update(group));
        border.handle(NOW, input);
    }
    border.take_changes();
    (border, peer)
}

fn of_transit(import: Policy) -> NeighbourConfig {
    NeighbourConfig {
        import,
        track_routes: true,
        ..neighbour(65001, &[Family::Ipv6])
    }
}

fn filled(octets: &[u8]) -> Speaker {
    fill(receiver(), octets)
}

fn fill(mut speaker: Speaker, octets: &[u8]) -> Speaker {
    for piece in octets.chunks(65_536) {
        speaker.handle(NOW, Input::Received(connection(), piece.to_vec()));
        speaker.take_changes();
    }
    assert_eq!(speaker.rib().len(), ROUTES as usize);
    speaker
}

fn connection() -> ConnectionId {
    ConnectionId::new(FIRST, Direction::Incoming)
}

fn neighbour(asn: u32, families: &[Family]) -> NeighbourConfig {
    NeighbourConfig {
        address: Ipv6Addr::LOCALHOST.into(),
        asn,
        families: families.to_vec(),
        import: Policy::permit_all(),
        export: Policy::permit_all(),
        passive: true,
        hold_time: 0,
        add_path: false,
        graceful_restart: None,
        restarted: false,
        extended_messages: true,
        routes_max: None,
        next_hop: Some("2001:db8::1".parse().expect("an address")),
        next_hop_self: true,
        track_routes: false,
    }
}

fn speaker(number: u8, asn: u32) -> Speaker {
    Speaker::new(SpeakerConfig {
        asn,
        router_id: [10, 0, 0, number].into(),
    })
}

/// Establishes a session between two speakers; `of_a` is the neighbour of `a`.
fn establish(a: &mut Speaker, of_a: NeighbourId, b: &mut Speaker) {
    let local = Ipv6Addr::LOCALHOST.into();
    let connection_a = ConnectionId::new(of_a, Direction::Incoming);
    for (speaker, id, connection) in [
        (&mut *a, of_a, connection_a),
        (&mut *b, FIRST, connection()),
    ] {
        speaker.handle(NOW, Input::Start(id));
        speaker.handle(NOW, Input::IncomingConnection(id));
        assert_eq!(speaker.poll_action(), Some(Action::Accept(id)));
        speaker.handle(NOW, Input::Connected(connection, local));
    }
    for _ in 0..4 {
        let mut out = Vec::new();
        a.transmit(connection_a, &mut out, 1);
        b.handle(NOW, Input::Received(connection(), out));
        let mut out = Vec::new();
        b.transmit(connection(), &mut out, 1);
        a.handle(NOW, Input::Received(connection_a, out));
    }
    assert!(a.is_up(of_a) && b.is_up(FIRST));
}

fn receiver() -> Speaker {
    let mut receiver = speaker(1, 65000);
    receiver.add_neighbour(neighbour(65000, &[Family::Ipv6, Family::Vpn6]));
    let mut sender = speaker(2, 65000);
    sender.add_neighbour(neighbour(65000, &[Family::Ipv6, Family::Vpn6]));
    establish(&mut receiver, FIRST, &mut sender);
    receiver
}

/// What a border router sends for the table of one peer: AS paths of several lengths, each with
/// about twenty prefixes, as in Internet tables.
fn octets() -> Vec<u8> {
    let mut border = speaker(2, 65000);
    let peer = border.add_neighbour(neighbour(65001, &[Family::Ipv6]));
    let server = border.add_neighbour(NeighbourConfig {
        export: Policy::default(),
        ..neighbour(65000, &[Family::Ipv6, Family::Vpn6])
    });
    let mut transit = speaker(3, 65001);
    transit.add_neighbour(neighbour(65000, &[Family::Ipv6]));
    establish(&mut border, peer, &mut transit);
    for group in 0..ROUTES / 20 {
        let announced = update(group);
        let input = Input::Received(ConnectionId::new(peer, Direction::Incoming), announced);
        border.handle(NOW, input);
    }
    let export = VpnExport {
        from: peer,
        targets: vec!["65000:1".parse().expect("a target")],
        service: Service {
            sid: "2001:db8:a:1:100::".parse().expect("a SID"),
            behaviour: 18,
            structure: None,
        },
        label: Label::IMPLICIT_NULL,
        ipv4: None,
    };
    let mut other = receiver_alone();
    establish(&mut border, server, &mut other);
    border.handle(
        NOW,
        Input::Export("65000:1".parse().expect("an RD"), export),
    );
    let mut out = Vec::new();
    border.transmit(
        ConnectionId::new(server, Direction::Incoming),
        &mut out,
        usize::MAX,
    );
    out
}

fn receiver_alone() -> Speaker {
    let mut receiver = speaker(1, 65000);
    receiver.add_neighbour(neighbour(65000, &[Family::Ipv6, Family::Vpn6]));
    receiver
}

fn next_hop(number: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, number)
}

/// An UPDATE of a transit: twenty /48 prefixes with an AS path of their own. The first group has
/// another next hop.
fn update(group: u32) -> Vec<u8> {
    let mut path = vec![2, 2 + (group % 5) as u8];
    path.extend(65001u32.to_be_bytes());
    for hop in 0..=group % 5 {
        path.extend((1_000 + group * 7 + hop).to_be_bytes());
    }
    let mut reach = vec![0, 2, 1, 16];
    reach.extend(next_hop(1 + u16::from(group == 0)).octets());
    reach.push(0);
    for i in 0..20 {
        let prefix = group * 20 + i;
        reach.extend([48, 0x2a, (prefix >> 24) as u8]);
        reach.extend([(prefix >> 16) as u8, (prefix >> 8) as u8, prefix as u8, 0]);
    }
    let mut attributes = vec![0x90, 14];
    attributes.extend((reach.len() as u16).to_be_bytes());
    attributes.extend(reach);
    attributes.extend([0x40, 1, 1, 0, 0x40, 2, path.len() as u8]);
    attributes.extend(path);
    let mut message = vec![0xff; 16];
    message.extend((23 + attributes.len() as u16).to_be_bytes());
    message.extend([2, 0, 0]);
    message.extend((attributes.len() as u16).to_be_bytes());
    message.extend(attributes);
    message
}

fn peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    number.unwrap_or_default()
}
