//! UPDATEs octet by octet: as other implementations send them, and malformed ones.

use keiro_bgp::{
    address::{Destination, Family, RouteDistinguisher},
    rib::NeighbourId,
    speaker::{Event, Input, NeighbourConfig},
};
use proptest::prelude::*;

use crate::network::{Network, neighbour};

const FIRST: NeighbourId = NeighbourId(0);
const ALL: &[Family] = &[Family::Ipv4, Family::Ipv6, Family::Vpn6];

/// Node 0 receives what the test sends in the name of node 1.
pub(crate) fn listener(remote_asn: u32, change: impl Fn(&mut NeighbourConfig)) -> Network {
    let mut network = Network::new();
    let (a, b) = (network.add(65000), network.add(remote_asn));
    let (mut of_b, mut of_a) = (neighbour(remote_asn, ALL), neighbour(65000, ALL));
    change(&mut of_b);
    change(&mut of_a);
    network.join(a, b, of_b, of_a);
    network.start_all();
    network.nodes[0].events.clear();
    network
}

pub(crate) fn hear(network: &mut Network, octets: Vec<u8>) {
    let connection = network.connection_of(0, FIRST);
    network.hand(0, Input::Received(connection, octets));
    network.settle();
}

pub(crate) fn attribute(flags: u8, kind: u8, value: &[u8]) -> Vec<u8> {
    let mut all = vec![flags | 0x10, kind];
    all.extend((value.len() as u16).to_be_bytes());
    all.extend(value);
    all
}

pub(crate) fn update(withdrawn: &[u8], attributes: &[Vec<u8>], announced: &[u8]) -> Vec<u8> {
    let attributes = attributes.concat();
    let length = 23 + withdrawn.len() + attributes.len() + announced.len();
    let mut all = vec![0xff; 16];
    all.extend((length as u16).to_be_bytes());
    all.push(2);
    all.extend((withdrawn.len() as u16).to_be_bytes());
    all.extend(withdrawn);
    all.extend((attributes.len() as u16).to_be_bytes());
    all.extend(attributes);
    all.extend(announced);
    all
}

pub(crate) fn origin() -> Vec<u8> {
    attribute(0x40, 1, &[0])
}

pub(crate) fn as_path(asns: &[u32]) -> Vec<u8> {
    let mut value = Vec::new();
    if !asns.is_empty() {
        value.extend([2, asns.len() as u8]);
        value.extend(asns.iter().flat_map(|asn| asn.to_be_bytes()));
    }
    attribute(0x40, 2, &value)
}

pub(crate) fn local_pref() -> Vec<u8> {
    attribute(0x40, 5, &100u32.to_be_bytes())
}

pub(crate) fn host(address: &str) -> [u8; 16] {
    address.parse::<std::net::Ipv6Addr>().unwrap().octets()
}

pub(crate) fn global() -> [u8; 16] {
    host("2001:db8::1")
}

/// The address of node 0.
pub(crate) fn own() -> [u8; 16] {
    host("2001:db8:ffff::1")
}

pub(crate) fn reach(safi: u8, next_hop: &[u8], list: &[u8]) -> Vec<u8> {
    let mut value = vec![0, 2, safi, next_hop.len() as u8];
    value.extend(next_hop);
    value.push(0);
    value.extend(list);
    attribute(0x80, 14, &value)
}

pub(crate) fn unreach(safi: u8, list: &[u8]) -> Vec<u8> {
    attribute(0x80, 15, &[&[0, 2, safi], list].concat())
}

/// 2001:db8:N::/48.
pub(crate) fn prefix(number: u8) -> Vec<u8> {
    vec![48, 0x20, 0x01, 0x0d, 0xb8, 0, number]
}

pub(crate) fn vpn_prefix(label: [u8; 3], number: u8) -> Vec<u8> {
    let rd: RouteDistinguisher = "65000:1".parse().unwrap();
    let mut all = vec![48 + 88];
    all.extend(label);
    all.extend(rd.0.to_be_bytes());
    all.extend(&prefix(number)[1..]);
    all
}

pub(crate) fn good(number: u8) -> Vec<u8> {
    let attributes = [
        reach(1, &global(), &prefix(number)),
        origin(),
        as_path(&[65001]),
    ];
    update(&[], &attributes, &[])
}

#[test]
fn vpn_routes_of_frr_are_understood_with_next_hops_of_both_lengths() {
    // A bare locator, behaviour 0xffff, and sixteen bits of function in the label, as FRR 8.4.4
    // sends them.
    let mut sid = vec![5, 0, 34, 0, 1, 0, 30, 0];
    sid.extend(
        "2001:db8:a:1::"
            .parse::<std::net::Ipv6Addr>()
            .unwrap()
            .octets(),
    );
    sid.extend([0, 0xff, 0xff, 0, 1, 0, 6, 40, 24, 16, 0, 16, 64]);
    let link_local: std::net::Ipv6Addr = "fe80::1".parse().unwrap();
    let short = [&[0; 8][..], &global()].concat();
    let long = [&short[..], &[0; 8], &link_local.octets()].concat();
    let mut network = listener(65000, |_| ());
    for (number, next_hop) in [(1, &short), (2, &long)] {
        let attributes = [
            reach(128, next_hop, &vpn_prefix([0x01, 0x00, 0x03], number)),
            origin(),
            as_path(&[65001]),
            local_pref(),
            attribute(0xc0, 16, &0x0002_fde8_0000_0001u64.to_be_bytes()),
            attribute(0xc0, 40, &sid),
        ];
        hear(&mut network, update(&[], &attributes, &[]));
        let rd = "65000:1".parse().unwrap();
        let net = format!("2001:db8:{number}::/48").parse().unwrap();
        let rib = network.nodes[0].speaker.rib();
        let path = rib.best(&Destination::Vpn6(rd, net)).expect("taken");
        assert_eq!(path.attributes.next_hop.to_string(), "2001:db8::1");
        let service = path.attributes.service.unwrap();
        assert_eq!(service.sid(path.label).to_string(), "2001:db8:a:1:100::");
    }
    // Withdrawn with an MP_UNREACH_NLRI alone, whatever the label.
    for (number, label) in [(1, [0, 0, 0]), (2, [0x80, 0, 0])] {
        let list = vpn_prefix(label, number);
        hear(&mut network, update(&[], &[unreach(128, &list)], &[]));
    }
    assert!(network.nodes[0].prefixes().is_empty());
    assert!(
        network.nodes[0].events.is_empty(),
        "{:?}",
        network.nodes[0].events
    );
}

#[test]
fn malformed_update_withdraws_its_routes_and_keeps_the_session() {
    let malformed = [
        (
            "no ORIGIN",
            vec![reach(1, &global(), &prefix(1)), as_path(&[65001])],
        ),
        (
            "no AS_PATH",
            vec![reach(1, &global(), &prefix(1)), origin()],
        ),
        (
            "an ORIGIN that does not exist",
            vec![
                reach(1, &global(), &prefix(1)),
                attribute(0x40, 1, &[9]),
                as_path(&[65001]),
            ],
        ),
        (
            "half an AS",
            vec![
                reach(1, &global(), &prefix(1)),
                origin(),
                attribute(0x40, 2, &[2, 1, 0, 0]),
            ],
        ),
        (
            "communities that are none",
            vec![
                reach(1, &global(), &prefix(1)),
                origin(),
                as_path(&[65001]),
                attribute(0xc0, 8, &[1, 2, 3]),
            ],
        ),
        (
            "an attribute that leads beyond the others",
            vec![
                reach(1, &global(), &prefix(1)),
                origin(),
                as_path(&[65001]),
                vec![0xc0, 8, 200, 1],
            ],
        ),
        (
            "a next hop that leads nowhere",
            vec![reach(1, &[0; 16], &prefix(1)), origin(), as_path(&[65001])],
        ),
        (
            "a next hop that is many",
            vec![
                reach(1, &host("ff02::1"), &prefix(1)),
                origin(),
                as_path(&[65001]),
            ],
        ),
        (
            "a loopback next hop",
            vec![
                reach(1, &host("::1"), &prefix(1)),
                origin(),
                as_path(&[65001]),
            ],
        ),
        (
            "no next hop but one on the link",
            vec![
                reach(1, &[[0; 16], host("fe80::1")].concat(), &prefix(1)),
                origin(),
                as_path(&[65001]),
            ],
        ),
        (
            "our own address as next hop",
            vec![reach(1, &own(), &prefix(1)), origin(), as_path(&[65001])],
        ),
        (
            "the path of another neighbour",
            vec![reach(1, &global(), &prefix(1)), origin(), as_path(&[65009])],
        ),
    ];
    for (what, attributes) in malformed {
        let mut network = listener(65001, |_| ());
        hear(&mut network, good(1));
        hear(&mut network, good(2));
        assert_eq!(network.nodes[0].prefixes().len(), 2, "{what}");
        hear(&mut network, update(&[], &attributes, &[]));
        assert_eq!(network.nodes[0].prefixes(), ["2001:db8:2::/48"], "{what}");
        assert!(network.nodes[0].speaker.is_up(FIRST), "{what}");
        let events = &network.nodes[0].events;
        let complains = |event: &Event| matches!(event, Event::MalformedUpdate(..));
        assert!(events.iter().any(complains), "{what}: {events:?}");
        assert_eq!(
            network.nodes[0].speaker.status(FIRST).malformed_updates,
            1,
            "{what}"
        );
    }
}

#[test]
fn undecodable_destinations_end_the_session() {
    for (what, attributes) in [
        (
            "a prefix beyond the list",
            vec![reach(1, &global(), &[48, 1, 2])],
        ),
        ("a prefix of 129 bits", vec![unreach(1, &[129; 18])]),
        (
            "two lists",
            vec![unreach(1, &prefix(1)), unreach(1, &prefix(2))],
        ),
        (
            "a list beyond the attributes",
            vec![vec![0x80, 14, 200, 0, 2, 1, 16]],
        ),
    ] {
        let mut network = listener(65001, |_| ());
        hear(&mut network, good(1));
        hear(&mut network, update(&[], &attributes, &[]));
        assert!(!network.nodes[0].speaker.is_up(FIRST), "{what}");
        let error = network.nodes[0].speaker.status(FIRST).last_error.unwrap();
        assert!(error.starts_with("bad UPDATE"), "{what}: {error}");
        assert!(network.nodes[0].prefixes().is_empty(), "{what}");
    }
}

#[test]
fn routes_with_an_as_path_loop_are_not_accepted() {
    let reflected = |extra: Vec<u8>| {
        let mut attributes = vec![
            reach(1, &global(), &prefix(1)),
            origin(),
            as_path(&[65001]),
            local_pref(),
        ];
        attributes.push(extra);
        update(&[], &attributes, &[])
    };
    for (extra, taken) in [
        // ORIGINATOR_ID and CLUSTER_LIST; ours is 10.0.0.1.
        (attribute(0x80, 9, &[10, 0, 0, 1]), false),
        (attribute(0x80, 9, &[10, 0, 0, 7]), true),
        (attribute(0x80, 10, &[10, 0, 0, 9, 10, 0, 0, 1]), false),
        (attribute(0x80, 10, &[10, 0, 0, 9]), true),
    ] {
        let mut network = listener(65000, |_| ());
        hear(&mut network, reflected(extra));
        assert_eq!(!network.nodes[0].prefixes().is_empty(), taken);
    }
    let mut network = listener(65001, |_| ());
    let attributes = [
        reach(1, &global(), &prefix(1)),
        origin(),
        as_path(&[65001, 65000]),
    ];
    hear(&mut network, update(&[], &attributes, &[]));
    assert!(
        network.nodes[0].prefixes().is_empty(),
        "our AS is in its path"
    );
}

#[test]
fn ipv4_nlri_is_encoded_outside_the_attributes() {
    let mut network = listener(65001, |_| ());
    let attributes = [
        origin(),
        as_path(&[65001]),
        attribute(0x40, 3, &[192, 0, 2, 1]),
    ];
    let list = [24, 203, 0, 113, 8, 10];
    hear(&mut network, update(&[], &attributes, &list));
    assert_eq!(
        network.nodes[0].prefixes(),
        ["10.0.0.0/8", "203.0.113.0/24"]
    );
    hear(&mut network, update(&[8, 10], &[], &[]));
    assert_eq!(network.nodes[0].prefixes(), ["203.0.113.0/24"]);
    hear(&mut network, update(&[], &[], &[]));
    hear(&mut network, update(&[], &[unreach(128, &[])], &[]));
    let ends = [
        Event::EndOfRib(FIRST, Family::Ipv4),
        Event::EndOfRib(FIRST, Family::Vpn6),
    ];
    assert_eq!(network.nodes[0].events, ends);
}

#[test]
fn ipv4_routes_with_a_non_host_next_hop_are_withdrawn() {
    let by = |next_hop: [u8; 4]| {
        let attributes = [origin(), as_path(&[65001]), attribute(0x40, 3, &next_hop)];
        update(&[], &attributes, &[8, 10])
    };
    for bad in [[0; 4], [127, 0, 0, 1], [224, 0, 0, 5]] {
        let mut network = listener(65001, |_| ());
        hear(&mut network, by([192, 0, 2, 1]));
        assert_eq!(network.nodes[0].prefixes(), ["10.0.0.0/8"]);
        hear(&mut network, by(bad));
        assert!(network.nodes[0].prefixes().is_empty(), "{bad:?}");
        assert!(network.nodes[0].speaker.is_up(FIRST), "{bad:?}");
        assert_eq!(network.nodes[0].speaker.status(FIRST).malformed_updates, 1);
    }
}

#[test]
fn changing_next_hops_leave_no_state_behind() {
    let mut network = listener(65001, |_| ());
    let next_hop = |number: u16| {
        let mut octets = global();
        octets[14..].copy_from_slice(&number.to_be_bytes());
        octets
    };
    let of = |number: u16| (FIRST, std::net::IpAddr::from(next_hop(number)));
    let announce = |network: &mut Network, number: u16| {
        let attributes = [
            reach(1, &next_hop(number), &prefix(1)),
            origin(),
            as_path(&[65001]),
        ];
        hear(network, update(&[], &attributes, &[]));
    };
    let unused = |network: &mut Network| network.nodes[0].speaker.take_changes().unused;
    // One route, re-announced each time with another unreachable next hop.
    for number in 1..=1000 {
        announce(&mut network, number);
        network.hand(0, Input::Unreachable(vec![of(number)]));
        let known = (1..=number).filter(|n| network.nodes[0].speaker.has_next_hop(of(*n)));
        assert_eq!(known.collect::<Vec<_>>(), [number]);
        let before = (number > 1).then(|| of(number - 1));
        assert_eq!(unused(&mut network), before.into_iter().collect());
    }
    // A next hop that is not in use is not remembered.
    network.hand(0, Input::Unreachable(vec![of(1)]));
    assert_eq!(unused(&mut network), [of(1)].into());
    announce(&mut network, 1);
    let at = Destination::unicast("2001:db8:1::/48".parse().unwrap());
    assert!(network.nodes[0].speaker.rib().best(&at).is_some());
    assert_eq!(unused(&mut network), [of(1000)].into());
    // A next hop is dropped with its session.
    network.hand(0, Input::Unreachable(vec![of(1)]));
    assert!(network.nodes[0].speaker.rib().best(&at).is_none());
    network.cut(0, FIRST);
    assert_eq!(unused(&mut network), [of(1)].into());
    assert!(!network.nodes[0].speaker.has_next_hop(of(1)));
}

#[test]
fn add_path_distinguishes_paths_of_one_neighbour() {
    let mut network = listener(65001, |config| config.add_path = true);
    // Both sides only receive, so ADD-PATH is not negotiated and NLRI have no path identifiers.
    hear(&mut network, good(1));
    assert_eq!(network.nodes[0].prefixes(), ["2001:db8:1::/48"]);
}

proptest! {
    /// Whatever UPDATE arrives, the speaker goes on and its RIB is consistent.
    #[test]
    fn arbitrary_updates_do_not_panic(
        attributes in prop::collection::vec(
            (prop::sample::select(vec![0x40u8, 0x80, 0xc0, 0xe0, 0]), 0u8..45,
             prop::collection::vec(any::<u8>(), 0..40)), 0..6),
        withdrawn in prop::collection::vec(any::<u8>(), 0..20),
        announced in prop::collection::vec(any::<u8>(), 0..20),
        internal: bool,
    ) {
        let mut network = listener(if internal { 65000 } else { 65001 }, |_| ());
        hear(&mut network, good(1));
        let attributes: Vec<Vec<u8>> = attributes.iter()
            .map(|(flags, kind, value)| attribute(*flags, *kind, value)).collect();
        hear(&mut network, update(&withdrawn, &attributes, &announced));
        if !network.nodes[0].speaker.is_up(FIRST) {
            prop_assert!(network.nodes[0].prefixes().is_empty());
        }
    }

    /// The same for octets that are no messages at all.
    #[test]
    fn arbitrary_octets_do_not_panic(octets in prop::collection::vec(any::<u8>(), 0..400), headed: bool) {
        let mut network = listener(65001, |_| ());
        let mut all = if headed { vec![0xff; 16] } else { Vec::new() };
        all.extend(octets);
        let connection = network.connection_of(0, FIRST);
        network.hand(0, Input::Received(connection, all));
        let _ = network.nodes[0].speaker.poll_timeout();
    }
}
