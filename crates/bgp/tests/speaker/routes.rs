//! Export: which routes are advertised to which neighbour, and with which attributes.

use keiro_bgp::{
    address::{Destination, Family, RouteDistinguisher},
    policy::{Action, AttributeChanges, Policy, PrefixRange, Rule},
    record,
    rib::NeighbourId,
    speaker::{Event, Input, NeighbourConfig, VpnExport},
    srv6::{Label, Service, Structure},
};

use crate::{
    network::{Network, neighbour},
    updates::{self, attribute, host, reach},
};

const V6: &[Family] = &[Family::Ipv6];
const BOTH: &[Family] = &[Family::Ipv6, Family::Vpn6];
const UNICAST: &[Family] = &[Family::Ipv4, Family::Ipv6];

fn originate(network: &mut Network, node: usize, prefix: &str) {
    network.hand(node, Input::Originate(prefix.parse().unwrap()));
    network.settle();
}

fn retract(network: &mut Network, node: usize, prefix: &str) {
    network.hand(node, Input::Retract(prefix.parse().unwrap()));
    network.settle();
}

fn track_routes(asn: u32, families: &[Family]) -> NeighbourConfig {
    NeighbourConfig {
        track_routes: true,
        ..neighbour(asn, families)
    }
}

/// Two transits, the border router, and the server.
fn suite() -> (Network, [NeighbourId; 2]) {
    suite_with(true, V6, BOTH)
}

/// The same; whether the border router offers extended messages to the first transit and the server, and
/// the families of transits and server.
fn suite_with(
    extended_messages: bool,
    outside: &[Family],
    inside: &[Family],
) -> (Network, [NeighbourId; 2]) {
    let mut network = Network::new();
    let (a, b) = (network.add(65001), network.add(65002));
    let (border, server) = (network.add(65000), network.add(65000));
    let of_a = NeighbourConfig {
        extended_messages,
        ..track_routes(65001, outside)
    };
    let (at_a, _) = network.join(border, a, of_a, neighbour(65000, outside));
    let (at_b, _) = network.join(
        border,
        b,
        track_routes(65002, outside),
        neighbour(65000, outside),
    );
    let of_server = NeighbourConfig {
        next_hop_self: true,
        extended_messages,
        ..neighbour(65000, inside)
    };
    network.join(border, server, of_server, neighbour(65000, inside));
    network.start_all();
    (network, [at_a, at_b])
}

fn export(from: NeighbourId, function: u16, transposed: u8) -> VpnExport {
    let sid = format!("2001:db8:a:1:{function:x}::").parse().unwrap();
    let structure = Structure {
        block: 40,
        node: 24,
        function: 16,
        argument: 0,
        transposed,
        offset: 64,
    };
    let (service, label) = Service::transposed(sid, 18, structure).unwrap();
    VpnExport {
        from,
        targets: vec![format!("65000:{function}").parse().unwrap()],
        service,
        label,
        ipv4: None,
    }
}

fn vpn(rd: &str, prefix: &str) -> Destination {
    Destination::vpn(rd.parse().unwrap(), prefix.parse().unwrap())
}

#[test]
fn every_peers_route_reaches_the_server_with_its_own_sid() {
    let (mut network, [at_a, at_b]) = suite();
    for transposed in [0, 16, 20] {
        for (id, number) in [(at_a, 1), (at_b, 2)] {
            let rd: RouteDistinguisher = format!("65000:{number}").parse().unwrap();
            let function = u16::from(number as u8) << 8;
            let export = export(id, function, transposed);
            network.hand(2, Input::Export(rd, export));
        }
        for transit in [0, 1] {
            originate(&mut network, transit, "2001:db8:c::/48");
        }
        let server = &network.nodes[3].speaker;
        for (rd, sid) in [
            ("65000:1", "2001:db8:a:1:100::"),
            ("65000:2", "2001:db8:a:1:200::"),
        ] {
            let path = server.rib().best(&vpn(rd, "2001:db8:c::/48")).unwrap();
            let service = path.attributes.service.unwrap();
            let found = service.sid(path.label);
            assert_eq!(found.to_string(), sid, "{transposed} bits transposed");
            let border = network.nodes[2].address;
            assert_eq!(path.attributes.next_hop, border);
            assert_eq!(path.attributes.route_targets().count(), 1);
        }
        // The best path changes too, and is reported once.
        let best = Destination::unicast("2001:db8:c::/48".parse().unwrap());
        assert_eq!(server.rib().paths(&best).len(), 1);
    }
    retract(&mut network, 0, "2001:db8:c::/48");
    assert_eq!(
        network.nodes[3].prefixes(),
        ["2001:db8:c::/48", "65000:2 2001:db8:c::/48"]
    );
    network.hand(2, Input::Unexport("65000:2".parse().unwrap()));
    network.settle();
    assert_eq!(network.nodes[3].prefixes(), ["2001:db8:c::/48"]);
}

#[test]
fn ipv4_routes_reach_the_server_with_sids_of_their_own_and_ipv6_next_hops() {
    let prefix = "192.0.2.0/24";
    let (mut network, [at_a, at_b]) = suite_with(true, UNICAST, &Family::ALL);
    let sid = |function: u16| format!("2001:db8:a:1:{function:x}::").parse().unwrap();
    let of_ipv4 = |function| Service {
        sid: sid(function),
        behaviour: 19,
        structure: None,
    };
    for (id, number) in [(at_a, 1), (at_b, 2)] {
        let rd: RouteDistinguisher = format!("65000:{number}").parse().unwrap();
        let both = VpnExport {
            ipv4: Some(of_ipv4(0x8000 | number)),
            ..export(id, number, 16)
        };
        network.hand(2, Input::Export(rd, both));
    }
    for transit in [0, 1] {
        originate(&mut network, transit, prefix);
        originate(&mut network, transit, "2001:db8:c::/48");
    }
    let server = &network.nodes[3].speaker;
    let border = network.nodes[2].address;
    for (rd, function) in [("65000:1", 1), ("65000:2", 2)] {
        for (prefix, function) in [(prefix, 0x8000 | function), ("2001:db8:c::/48", function)] {
            let path = server.rib().best(&vpn(rd, prefix)).unwrap();
            let service = path.attributes.service.unwrap();
            assert_eq!(service.sid(path.label), sid(function), "{rd} {prefix}");
            assert_eq!(path.attributes.next_hop, border);
        }
    }
    // Without a service for it, IPv4 is withdrawn, and IPv6 stays.
    let rd: RouteDistinguisher = "65000:1".parse().unwrap();
    network.hand(2, Input::Export(rd, export(at_a, 1, 16)));
    network.settle();
    let of_server = || network.nodes[3].prefixes();
    assert!(!of_server().contains(&format!("65000:1 {prefix}")));
    assert!(of_server().contains(&"65000:1 2001:db8:c::/48".to_owned()));
    retract(&mut network, 1, prefix);
    network.hand(2, Input::Unexport("65000:2".parse().unwrap()));
    network.settle();
    let left = network.nodes[3].prefixes();
    let expected = [prefix, "2001:db8:c::/48", "65000:1 2001:db8:c::/48"];
    assert_eq!(left, expected);
}

#[test]
fn a_route_with_an_unreachable_next_hop_is_not_advertised_until_it_is_reachable() {
    let (mut network, [at_a, at_b]) = suite();
    for (id, number) in [(at_a, 1), (at_b, 2)] {
        let rd = format!("65000:{number}").parse().unwrap();
        network.hand(2, Input::Export(rd, export(id, number << 8, 0)));
    }
    for transit in [0, 1] {
        originate(&mut network, transit, "2001:db8:c::/48");
    }
    let best = Destination::unicast("2001:db8:c::/48".parse().unwrap());
    let by = |network: &Network, node: usize| {
        let path = network.nodes[node].speaker.rib().best(&best);
        path.and_then(|path| path.attributes.as_path.neighbour())
    };
    let has = |network: &Network, rd: &str| {
        let rib = network.nodes[3].speaker.rib();
        rib.best(&vpn(rd, "2001:db8:c::/48")).is_some()
    };
    assert_eq!(by(&network, 2), Some(65001));
    network.nodes[2].speaker.take_changes();
    let of_a = vec![(at_a, network.nodes[0].address)];
    network.hand(2, Input::Unreachable(of_a.clone()));
    network.settle();
    let changes = network.nodes[2].speaker.take_changes();
    assert!(changes.best.contains(&best) && changes.by_neighbour.contains(&(at_a, best)));
    assert_eq!(network.nodes[2].speaker.route_of(at_a, &best), None);
    assert_eq!(by(&network, 2), Some(65002));
    assert_eq!(by(&network, 3), Some(65002), "the server gets it");
    assert_eq!(
        [has(&network, "65000:1"), has(&network, "65000:2")],
        [false, true]
    );
    // Routes received meanwhile are kept and ignored too; the next hop of another neighbour is not
    // affected.
    originate(&mut network, 0, "2001:db8:d::/48");
    assert!(
        !network.nodes[3]
            .prefixes()
            .iter()
            .any(|p| p.contains("2001:db8:d::"))
    );
    retract(&mut network, 1, "2001:db8:c::/48");
    assert_eq!(by(&network, 2), None);
    assert!(network.nodes[3].prefixes().is_empty());
    network.hand(2, Input::Reachable(of_a));
    network.settle();
    assert_eq!(by(&network, 3), Some(65001));
    assert_eq!(
        network.nodes[3].prefixes().len(),
        4,
        "both prefixes, with and without segment"
    );
}

/// The octets of a message of a peer (node 1) with a route and this many octets of an attribute that
/// is passed on.
fn long_route(number: u8, octets: usize) -> Vec<u8> {
    let attributes = [
        reach(1, &host("2001:db8::1"), &updates::prefix(number)),
        updates::origin(),
        updates::as_path(&[65002]),
        attribute(0xc0, 202, &vec![7; octets]),
    ];
    updates::update(&[], &attributes, &[])
}

#[test]
fn a_route_that_does_not_fit_into_a_message_is_reported_and_counted() {
    let (mut network, [at_a, at_b]) = suite_with(false, V6, BOTH);
    let (border, inside) = (2, NeighbourId(2));
    let rd: RouteDistinguisher = "65000:2".parse().unwrap();
    network.hand(border, Input::Export(rd, export(at_b, 0x200, 0)));
    // As unicast it fits, as a VPN route with distinguisher, target and SID it does not.
    let fits = Destination::unicast("2001:db8:1::/48".parse().unwrap());
    let vpn_route = Destination::Vpn6(rd, "2001:db8:1::/48".parse().unwrap());
    let connection = network.connection_of(border, at_b);
    network.hand(border, Input::Received(connection, long_route(1, 100)));
    network.settle();
    assert_eq!(network.nodes[3].prefixes().len(), 2);
    let server = |network: &Network| network.nodes[3].prefixes();
    network.nodes[border].events.clear();
    for _ in 0..2 {
        network.hand(border, Input::Received(connection, long_route(1, 3960)));
        network.settle();
    }
    assert_eq!(server(&network), ["2001:db8:1::/48"]);
    let speaker = &network.nodes[border].speaker;
    assert_eq!(speaker.status(inside).not_advertised, 1);
    let why = speaker.not_advertised(inside, &vpn_route).expect("known");
    assert!(why.contains("octets leave no room"), "{why}");
    assert_eq!(speaker.not_advertised(inside, &fits), None);
    let reported = |network: &Network| {
        let events = network.nodes[border].events.iter();
        let of = |event: &Event| match event {
            Event::NotAdvertised(id, what) => Some((*id, what.destination, what.routes)),
            _ => None,
        };
        events.filter_map(of).collect::<Vec<_>>()
    };
    assert_eq!(reported(&network), [(inside, vpn_route, 1)], "once");
    // The whole message is longer than any that may be sent, in either form.
    network.hand(border, Input::Received(connection, long_route(2, 4800)));
    network.settle();
    assert_eq!(server(&network), ["2001:db8:1::/48"]);
    let speaker = &network.nodes[border].speaker;
    assert_eq!(speaker.status(inside).not_advertised, 3);
    assert_eq!(speaker.status(at_a).not_advertised, 1);
    assert_eq!(reported(&network).len(), 4);
    // A refresh reports nothing again; a shorter version of a route is advertised.
    network.hand(3, Input::Refresh(NeighbourId(0), Family::Vpn6));
    network.settle();
    assert_eq!(reported(&network).len(), 4);
    for number in [1, 2] {
        network.hand(border, Input::Received(connection, long_route(number, 9)));
    }
    network.settle();
    assert_eq!(server(&network).len(), 4);
    let status = network.nodes[border].speaker.status(inside);
    assert_eq!(status.not_advertised, 0);
}

#[test]
fn long_attributes_are_sent_in_extended_messages_where_both_sides_have_them() {
    let (mut network, [at_a, at_b]) = suite();
    let (border, inside) = (2, NeighbourId(2));
    let rd: RouteDistinguisher = "65000:2".parse().unwrap();
    network.hand(border, Input::Export(rd, export(at_b, 0x200, 0)));
    let connection = network.connection_of(border, at_b);
    for (number, octets) in [(1, 4800), (2, 65_300)] {
        let message = long_route(number, octets);
        network.hand(border, Input::Received(connection, message));
        network.settle();
        let destination = Destination::unicast(format!("2001:db8:{number}::/48").parse().unwrap());
        for node in [0, 3] {
            let rib = network.nodes[node].speaker.rib();
            let best = rib.best(&destination).expect("it was advertised");
            assert_eq!(best.attributes.unknown[0].value.len(), octets);
        }
    }
    // What is too long even for them is reported, and the session stays.
    network.hand(border, Input::Received(connection, long_route(3, 65_440)));
    network.settle();
    let speaker = &network.nodes[border].speaker;
    assert_eq!(speaker.status(inside).not_advertised, 2);
    assert!(speaker.is_up(inside) && speaker.is_up(at_a));
    let vpn_route = Destination::Vpn6(rd, "2001:db8:3::/48".parse().unwrap());
    let why = speaker.not_advertised(inside, &vpn_route).expect("known");
    assert!(why.contains("in a message of 65535"), "{why}");
}

#[test]
fn best_paths_wait_for_the_forwarding_plane_vpn_routes_do_not() {
    let (mut network, [at_a, _]) = suite();
    let rd: RouteDistinguisher = "65000:1".parse().unwrap();
    network.hand(2, Input::Export(rd, export(at_a, 0x100, 0)));
    network.nodes[2].speaker.hold_best_paths();
    let heard = |network: &Network| network.nodes[3].prefixes();
    let of_vpn = "65000:1 2001:db8:c::/48";
    let best = [Destination::unicast("2001:db8:c::/48".parse().unwrap())];
    originate(&mut network, 0, "2001:db8:c::/48");
    assert_eq!(heard(&network), [of_vpn]);
    network.nodes[2].speaker.on_applied(&best);
    network.settle();
    assert_eq!(heard(&network), ["2001:db8:c::/48", of_vpn]);
    retract(&mut network, 0, "2001:db8:c::/48");
    assert_eq!(heard(&network), ["2001:db8:c::/48"], "it may still be used");
    network.nodes[2].speaker.on_applied(&best);
    network.settle();
    assert_eq!(heard(&network), Vec::<String>::new());
}

#[test]
fn withdrawal_of_an_egress_peer_precedes_a_thousand_best_paths() {
    let (mut network, [at_a, _]) = suite();
    let rd: RouteDistinguisher = "65000:1".parse().unwrap();
    network.hand(2, Input::Export(rd, export(at_a, 0x100, 0)));
    let many: Vec<String> = (0..3000).map(|n| format!("2001:db8:{n:x}::/48")).collect();
    for prefix in &many {
        network.hand(0, Input::Originate(prefix.parse().unwrap()));
    }
    network.settle();
    assert_eq!(network.nodes[3].prefixes().len(), 6000);
    network.hand(2, Input::Unexport(rd));
    for prefix in &many {
        network.hand(0, Input::Retract(prefix.parse().unwrap()));
    }
    // What transit A withdraws reaches the border router, which sends about half of what it has.
    let at_border = network.connection_of(2, at_a);
    let from_a = network.connection_of(0, NeighbourId(0));
    let mut heard = Vec::new();
    network.nodes[0]
        .speaker
        .transmit(from_a, &mut heard, usize::MAX);
    network.hand(2, Input::Received(at_border, heard));
    let (to_server, at_server) = (
        network.connection_of(2, NeighbourId(2)),
        network.connection_of(3, NeighbourId(0)),
    );
    let left = |network: &Network| {
        let all = network.nodes[3].prefixes();
        let of_vpn = all.iter().filter(|prefix| prefix.starts_with("65000:1 "));
        (of_vpn.count(), all.len())
    };
    while left(&network).0 > 0 {
        let mut out = Vec::new();
        let speaker = &mut network.nodes[2].speaker;
        speaker.transmit(to_server, &mut out, 4096);
        network.hand(3, Input::Received(at_server, out));
    }
    let (_, unicast) = left(&network);
    assert!(unicast > 1500, "only {unicast} best paths are left");
    network.settle();
    assert_eq!(left(&network), (0, 0));
}

#[test]
fn vpn_routes_are_advertised_before_best_paths() {
    let (mut network, [at_a, _]) = suite();
    let rd: RouteDistinguisher = "65000:1".parse().unwrap();
    network.hand(2, Input::Export(rd, export(at_a, 0x100, 0)));
    network.settle();
    for announced in [true, false] {
        let before = network.nodes[3].log.len();
        match announced {
            true => originate(&mut network, 0, "2001:db8:c::/48"),
            false => retract(&mut network, 0, "2001:db8:c::/48"),
        }
        let heard = network.nodes[3].log[before..].iter();
        let heard = heard.filter_map(|line| match record::read(line).unwrap() {
            (_, Input::Received(_, octets)) => Some(octets),
            _ => None,
        });
        let heard: Vec<u8> = heard.flatten().collect();
        // MP_REACH_NLRI has a next hop after its family, MP_UNREACH_NLRI a prefix.
        let families = match announced {
            true => [[0, 2, 128, 24], [0, 2, 1, 16]],
            false => [[0, 2, 128, 136], [0, 2, 1, 48]],
        };
        let at = families.map(|family| heard.windows(4).position(|four| four == family));
        let [vpn, best] = at.map(|at| at.expect("both are advertised"));
        assert!(vpn < best, "announced: {announced}");
    }
}

#[test]
fn peer_that_withdraws_everything_leaves_no_routes() {
    let (mut network, [at_a, _]) = suite();
    let export = export(at_a, 0x100, 0);
    network.hand(2, Input::Export("65000:1".parse().unwrap(), export));
    for i in 0..3000 {
        let prefix = format!("2001:db8:{i:x}::/48");
        network.hand(0, Input::Originate(prefix.parse().unwrap()));
    }
    network.settle();
    assert_eq!(network.nodes[3].speaker.rib().len(), 6000);
    network.hand(0, Input::Stop(NeighbourId(0)));
    network.settle();
    assert_eq!(network.nodes[3].speaker.rib().len(), 0);
    assert_eq!(
        network.nodes[2].speaker.take_changes().by_neighbour.len(),
        3000
    );
}

#[test]
fn transits_get_our_prefixes_and_each_others_only_if_allowed() {
    let mut network = Network::new();
    let (a, b, border) = (network.add(65001), network.add(65002), network.add(65000));
    let own = Policy {
        rules: vec![Rule {
            prefixes: vec![PrefixRange::exactly("2001:db8:a::/48".parse().unwrap())],
            action: Action::Permit(AttributeChanges {
                prepend: 2,
                med: Some(7),
                ..AttributeChanges::default()
            }),
            ..Rule::default()
        }],
        ..Policy::default()
    };
    for transit in [a, b] {
        let asn = 65001 + transit as u32;
        let config = NeighbourConfig {
            export: own.clone(),
            ..track_routes(asn, V6)
        };
        network.join(border, transit, config, neighbour(65000, V6));
    }
    network.start_all();
    originate(&mut network, a, "2001:db8:1::/48");
    originate(&mut network, border, "2001:db8:a::/48");
    assert_eq!(network.nodes[b].prefixes(), ["2001:db8:a::/48"]);
    let ours = Destination::unicast("2001:db8:a::/48".parse().unwrap());
    let path = network.nodes[b].speaker.rib().best(&ours).unwrap();
    let asns: Vec<u32> = path.attributes.as_path.asns().collect();
    assert_eq!((asns, path.attributes.med), (vec![65000; 3], Some(7)));
    assert_eq!(path.attributes.next_hop, network.nodes[border].address);
}

#[test]
fn without_a_policy_no_route_is_imported_or_exported() {
    let mut network = Network::new();
    let (a, b) = (network.add(65001), network.add(65002));
    let closed = |asn| NeighbourConfig {
        import: Policy::default(),
        export: Policy::default(),
        ..neighbour(asn, V6)
    };
    network.join(a, b, closed(65002), neighbour(65001, V6));
    network.start_all();
    originate(&mut network, a, "2001:db8:1::/48");
    originate(&mut network, b, "2001:db8:2::/48");
    assert_eq!(network.nodes[a].prefixes(), ["2001:db8:1::/48"]);
    assert_eq!(network.nodes[b].prefixes(), ["2001:db8:2::/48"]);
}

#[test]
fn routes_of_this_as_are_not_advertised_back_to_it() {
    let (mut network, _) = suite();
    // From the server through the border router to both transits and no further.
    originate(&mut network, 3, "2001:db8:5::/48");
    assert_eq!(network.nodes[0].prefixes(), ["2001:db8:5::/48"]);
    // If a transit advertised it back, there would be a loop.
    let path = Destination::unicast("2001:db8:5::/48".parse().unwrap());
    assert_eq!(network.nodes[2].speaker.rib().paths(&path).len(), 1);
}

#[test]
fn initial_routes_end_with_end_of_rib_and_refresh_resends_them() {
    let (mut network, [at_a, _]) = suite();
    originate(&mut network, 0, "2001:db8:1::/48");
    let marks = |network: &Network, node: usize| {
        let events = network.nodes[node].events.iter();
        events.filter(|e| matches!(e, Event::EndOfRib(..))).count()
    };
    assert_eq!(marks(&network, 3), 2, "one for each family");
    let octets = |network: &Network| network.nodes[2].log.len();
    let before = octets(&network);
    network.hand(2, Input::Refresh(at_a, Family::Ipv6));
    network.settle();
    assert!(octets(&network) > before + 1, "it was announced again");
    let of_a = Destination::unicast("2001:db8:1::/48".parse().unwrap());
    assert!(network.nodes[2].speaker.route_of(at_a, &of_a).is_some());
}

#[test]
fn slow_neighbour_gets_only_the_latest_state() {
    let (mut network, [at_a, _]) = suite();
    let connection = network.connection_of(2, NeighbourId(2));
    for i in 0..50u32 {
        let prefix = "2001:db8:c::/48".parse().unwrap();
        let input = match i % 2 {
            0 => Input::Originate(prefix),
            _ => Input::Retract(prefix),
        };
        network.hand(0, input);
        // From the transit to the border router, but not on to the server.
        let from_a = network.connection_of(0, NeighbourId(0));
        let mut sent = Vec::new();
        network.nodes[0].speaker.transmit(from_a, &mut sent, 4096);
        let at_border = network.connection_of(2, at_a);
        network.hand(2, Input::Received(at_border, sent));
    }
    let mut sent = Vec::new();
    network.nodes[2]
        .speaker
        .transmit(connection, &mut sent, 4096);
    assert!(sent.is_empty(), "announced and withdrawn: nothing to send");
    let _ = Label::IMPLICIT_NULL;
    let _: Option<Service> = None;
}
