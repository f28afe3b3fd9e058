//! What every malformation leads to: the tables of RFC 7606 §3 to §7, RFC 8669 §6 and RFC 9252 §7 for
//! UPDATEs, and RFC 4271 §6.1, §6.2 and §6.6 for the other messages.

use keiro_bgp::{
    rib::NeighbourId,
    speaker::{Event, Input},
};

use crate::{
    network::{Mute, Network},
    updates::{
        as_path, attribute, good, hear, host, listener, local_pref, origin, prefix, reach, unreach,
        update, vpn_prefix,
    },
};

const FIRST: NeighbourId = NeighbourId(0);
const EXTERNAL: u32 = 65001;
const INTERNAL: u32 = 65000;

/// What a malformed UPDATE leads to, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disposition {
    /// The attribute has no effect, the route stays.
    Discard,
    /// The routes of the UPDATE are withdrawn, the session stays.
    Withdraw,
    /// A NOTIFICATION with this subcode ends the session.
    Reset(u8),
}

use Disposition::{Discard, Reset, Withdraw};

fn next_hop() -> [u8; 16] {
    host("2001:db8::1")
}

/// The route that a malformed UPDATE announces, with another next hop than before.
fn announcement() -> Vec<u8> {
    reach(1, &host("2001:db8::99"), &prefix(1))
}

/// Well-formed mandatory attributes with the neighbour's AS number.
fn mandatory(asn: u32) -> Vec<Vec<u8>> {
    match asn {
        INTERNAL => vec![origin(), as_path(&[64512]), local_pref()],
        _ => vec![origin(), as_path(&[asn])],
    }
}

/// The SRv6 L3 service of `sid`, with a SID structure and its own length of the sub-TLV.
fn service(sid: &str, structure: [u8; 6]) -> Vec<u8> {
    let mut value = vec![5, 0, 34, 0, 1, 0, 30, 0];
    value.extend(host(sid));
    value.extend([0, 0, 18, 0, 1, 0, 6]);
    value.extend(structure);
    value
}

/// Malformed single attributes, each with the disposition from an external and an internal neighbour.
/// All are added to well-formed mandatory attributes or replace the one of their kind.
fn attributes() -> Vec<(&'static str, Vec<u8>, Disposition, Disposition)> {
    let long = |flags: u8, kind: u8| vec![flags, kind, 200, 0];
    vec![
        // RFC 7606 §7.1 to §7.4.
        (
            "ORIGIN of two octets",
            attribute(0x40, 1, &[0, 0]),
            Withdraw,
            Withdraw,
        ),
        ("ORIGIN 3", attribute(0x40, 1, &[3]), Withdraw, Withdraw),
        (
            "AS_PATH cut short",
            attribute(0x40, 2, &[2, 1, 0, 0]),
            Withdraw,
            Withdraw,
        ),
        (
            "AS_PATH segment 9",
            attribute(0x40, 2, &[9, 1, 0, 0, 0xfd, 0xe9]),
            Withdraw,
            Withdraw,
        ),
        (
            "AS_PATH segment of nothing",
            attribute(0x40, 2, &[2, 1, 0, 0, 0xfd, 0xe9, 2, 0]),
            Withdraw,
            Withdraw,
        ),
        (
            "AS_PATH with AS 0",
            attribute(0x40, 2, &[2, 2, 0, 0, 0xfd, 0xe9, 0, 0, 0, 0]),
            Withdraw,
            Withdraw,
        ),
        (
            "NEXT_HOP of five octets",
            attribute(0x40, 3, &[192, 0, 2, 1, 0]),
            Withdraw,
            Withdraw,
        ),
        (
            "MED of three octets",
            attribute(0x80, 4, &[0; 3]),
            Withdraw,
            Withdraw,
        ),
        // §7.5: ignored from external neighbours.
        (
            "LOCAL_PREF of three octets",
            attribute(0x40, 5, &[0; 3]),
            Discard,
            Withdraw,
        ),
        // §7.6, §7.7.
        (
            "ATOMIC_AGGREGATE with a value",
            attribute(0x40, 6, &[1]),
            Discard,
            Discard,
        ),
        (
            "AGGREGATOR of six octets",
            attribute(0xc0, 7, &[0; 6]),
            Discard,
            Discard,
        ),
        // §7.8.
        (
            "COMMUNITIES of five octets",
            attribute(0xc0, 8, &[0; 5]),
            Withdraw,
            Withdraw,
        ),
        (
            "COMMUNITIES without one",
            attribute(0xc0, 8, &[]),
            Withdraw,
            Withdraw,
        ),
        // §7.9, §7.10: ignored from external neighbours.
        (
            "ORIGINATOR_ID of three octets",
            attribute(0x80, 9, &[0; 3]),
            Discard,
            Withdraw,
        ),
        (
            "CLUSTER_LIST of six octets",
            attribute(0x80, 10, &[0; 6]),
            Discard,
            Withdraw,
        ),
        (
            "CLUSTER_LIST without one",
            attribute(0x80, 10, &[]),
            Discard,
            Withdraw,
        ),
        // §7.14, and RFC 8092 §6.
        (
            "extended communities of seven octets",
            attribute(0xc0, 16, &[0; 7]),
            Withdraw,
            Withdraw,
        ),
        (
            "large communities of eleven octets",
            attribute(0xc0, 32, &[0; 11]),
            Withdraw,
            Withdraw,
        ),
        // §3 c: flags of another class.
        (
            "ORIGIN optional",
            attribute(0xc0, 1, &[0]),
            Withdraw,
            Withdraw,
        ),
        (
            "AS_PATH not transitive",
            attribute(0x00, 2, &[]),
            Withdraw,
            Withdraw,
        ),
        (
            "MED transitive",
            attribute(0xc0, 4, &[0; 4]),
            Withdraw,
            Withdraw,
        ),
        (
            "ATOMIC_AGGREGATE optional",
            attribute(0xc0, 6, &[]),
            Withdraw,
            Withdraw,
        ),
        (
            "COMMUNITIES well-known",
            attribute(0x40, 8, &[0; 4]),
            Withdraw,
            Withdraw,
        ),
        // RFC 4271 §6.3.
        (
            "well-known attribute 99",
            attribute(0x40, 99, &[0; 4]),
            Withdraw,
            Withdraw,
        ),
        // §4: an attribute that leads beyond all of them.
        (
            "COMMUNITIES beyond the end",
            long(0xc0, 8),
            Withdraw,
            Withdraw,
        ),
        ("half a head", vec![0xc0, 8], Withdraw, Withdraw),
        // §3 g: the first one counts.
        (
            "a second ORIGIN",
            [origin(), attribute(0x40, 1, &[9])].concat(),
            Discard,
            Discard,
        ),
        // RFC 8669 §4 and §6, RFC 9252 §7.
        (
            "a service cut short",
            attribute(0xc0, 40, &[5, 0, 34, 0]),
            Discard,
            Withdraw,
        ),
        (
            "a service without a SID",
            attribute(0xc0, 40, &[5, 0, 1, 0]),
            Discard,
            Withdraw,
        ),
        (
            "a service of no length",
            attribute(0xc0, 40, &[5, 0, 0]),
            Discard,
            Withdraw,
        ),
        (
            "a TLV beyond the attribute",
            attribute(0xc0, 40, &[9, 0, 9, 0]),
            Discard,
            Discard,
        ),
        (
            "37 zeros for a Prefix-SID",
            attribute(0xc0, 40, &[0; 37]),
            Discard,
            Discard,
        ),
        (
            "a label index of three octets",
            attribute(0xc0, 40, &[1, 0, 3, 0, 0, 0]),
            Discard,
            Discard,
        ),
        (
            "Prefix-SID not transitive",
            attribute(0x80, 40, &[]),
            Discard,
            Withdraw,
        ),
        (
            "a structure of 200 bits",
            attribute(0xc0, 40, &service("2001:db8:a::", [100, 100, 0, 0, 0, 0])),
            Discard,
            Withdraw,
        ),
        (
            "a transposition of 21 bits",
            attribute(0xc0, 40, &service("2001:db8:a::", [40, 24, 16, 0, 21, 64])),
            Discard,
            Withdraw,
        ),
    ]
}

/// The attributes of an UPDATE with `bad` in place of a good one of its kind.
fn with(asn: u32, bad: &[u8]) -> Vec<Vec<u8>> {
    let mut all = mandatory(asn);
    all.retain(|good| good[1] != bad[1]);
    all.push(bad.to_vec());
    all
}

/// Sends an UPDATE to a speaker that has two routes, and checks what it leads to.
fn check(what: &str, asn: u32, octets: Vec<u8>, expected: Disposition) {
    let what = &format!("{what}, from AS {asn}");
    let mut network = listener(asn, |_| ());
    for number in [1, 2] {
        let mut attributes = mandatory(asn);
        attributes.push(reach(1, &next_hop(), &prefix(number)));
        hear(&mut network, update(&[], &attributes, &[]));
    }
    assert_eq!(network.nodes[0].prefixes().len(), 2, "{what}");
    hear(&mut network, octets);
    let status = network.nodes[0].speaker.status(FIRST);
    match expected {
        Discard => {
            assert_eq!(network.nodes[0].prefixes().len(), 2, "{what}");
            assert_eq!(status.malformed_updates, 0, "{what}");
        }
        Withdraw => {
            assert_eq!(network.nodes[0].prefixes(), ["2001:db8:2::/48"], "{what}");
            assert_eq!(status.malformed_updates, 1, "{what}");
            let events = &network.nodes[0].events;
            let reported = |event: &Event| matches!(event, Event::MalformedUpdate(..));
            assert!(events.iter().any(reported), "{what}: {events:?}");
        }
        Reset(subcode) => {
            assert!(!network.nodes[0].speaker.is_up(FIRST), "{what}");
            assert!(network.nodes[0].prefixes().is_empty(), "{what}");
            let error = status.last_error.unwrap_or_default();
            assert!(error.starts_with("bad UPDATE: "), "{what}: {error}");
            assert_notified(&network, what, 3, subcode);
            return;
        }
    }
    assert!(network.nodes[0].speaker.is_up(FIRST), "{what}");
}

/// The neighbour got this NOTIFICATION.
fn assert_notified(network: &Network, what: &str, code: u8, subcode: u8) {
    let error = network.nodes[1].speaker.status(FIRST).last_error;
    let error = error.unwrap_or_default();
    let name = match code {
        1 => "Message Header Error",
        2 => "OPEN Message Error",
        3 => "UPDATE Message Error",
        5 => "Finite State Machine Error",
        _ => "ROUTE-REFRESH Message Error",
    };
    let expected = format!("NOTIFICATION received: {name}, subcode {subcode}");
    assert_eq!(error, expected, "{what}");
}

#[test]
fn every_malformed_attribute_has_the_disposition_of_its_rfc() {
    for (what, bad, external, internal) in attributes() {
        for (asn, expected) in [(EXTERNAL, external), (INTERNAL, internal)] {
            let mut all = vec![announcement()];
            all.extend(with(asn, &bad));
            check(what, asn, update(&[], &all, &[]), expected);
        }
    }
}

#[test]
fn missing_mandatory_attributes_withdraw_the_routes() {
    for asn in [EXTERNAL, INTERNAL] {
        for (what, kind) in [("no ORIGIN", 1), ("no AS_PATH", 2)] {
            let mut all = vec![announcement()];
            all.extend(mandatory(asn));
            all.retain(|one| one[1] != kind);
            check(what, asn, update(&[], &all, &[]), Withdraw);
        }
    }
}

/// RFC 7606 §5.2. An attribute that hides the routes behind it is the reason for the rule.
#[test]
fn an_error_without_announced_routes_resets_the_session_unless_the_attribute_is_discarded() {
    for (what, bad, external, internal) in attributes() {
        for (asn, alone) in [(EXTERNAL, external), (INTERNAL, internal)] {
            let expected = match alone {
                Withdraw => Reset(1),
                other => other,
            };
            let withdraws = [vec![unreach(1, &prefix(9))], with(asn, &bad)].concat();
            check(what, asn, update(&[], &withdraws, &[]), expected);
            check(what, asn, update(&[], &with(asn, &bad), &[]), expected);
            let empty = [vec![reach(1, &next_hop(), &[])], with(asn, &bad)].concat();
            check(what, asn, update(&[], &empty, &[]), expected);
        }
    }
    let hides = vec![0x40, 1, 200, 0];
    for hidden in [unreach(1, &prefix(1)), announcement()] {
        let all = [hides.clone(), hidden];
        check("hidden routes", EXTERNAL, update(&[], &all, &[]), Reset(1));
    }
    // Missing attributes are no error where there is no route.
    let alone = update(&[], &[unreach(1, &prefix(9))], &[]);
    check("a withdrawal", EXTERNAL, alone, Discard);
}

/// RFC 7606 §3 b, §3 g, §3 i, §3 j, §5.3 and §7.11.
#[test]
fn unlocatable_nlri_resets_the_session() {
    let partial = |mut all: Vec<u8>, flags: u8| {
        all[0] = flags;
        all
    };
    let good_attributes = || mandatory(EXTERNAL);
    for (what, attributes, subcode) in [
        (
            "a prefix beyond the list",
            vec![reach(1, &next_hop(), &[48, 1, 2])],
            9,
        ),
        (
            "a prefix of 129 bits",
            vec![reach(1, &next_hop(), &[129; 18])],
            9,
        ),
        (
            "a withdrawn prefix of 129 bits",
            vec![unreach(1, &[129; 18])],
            9,
        ),
        (
            "a VPN prefix without its distinguisher",
            vec![unreach(128, &[24, 1, 2, 3])],
            9,
        ),
        (
            "two MP_UNREACH_NLRI",
            vec![unreach(1, &prefix(1)), unreach(1, &prefix(2))],
            1,
        ),
        ("two MP_REACH_NLRI", vec![announcement(), announcement()], 1),
        (
            "MP_REACH_NLRI of four octets",
            vec![attribute(0x80, 14, &[0, 2, 1, 0])],
            9,
        ),
        (
            "MP_UNREACH_NLRI of two octets",
            vec![attribute(0x80, 15, &[0, 2])],
            9,
        ),
        (
            "MP_REACH_NLRI beyond the end",
            vec![vec![0x80, 14, 200, 0, 2, 1, 16]],
            9,
        ),
        (
            "a next hop of 15 octets",
            vec![reach(1, &next_hop()[1..], &prefix(1))],
            9,
        ),
        (
            "a VPN next hop of 16 octets",
            vec![reach(128, &next_hop(), &vpn_prefix([0; 3], 1))],
            9,
        ),
        (
            "a next hop beyond the attribute",
            vec![attribute(0x80, 14, &[0, 2, 1, 99, 0])],
            9,
        ),
        (
            "MP_REACH_NLRI transitive",
            vec![partial(announcement(), 0xd0)],
            4,
        ),
        (
            "MP_UNREACH_NLRI well-known",
            vec![partial(unreach(1, &prefix(1)), 0x50)],
            4,
        ),
        (
            "MP_UNREACH_NLRI partial",
            vec![partial(unreach(1, &prefix(1)), 0xb0)],
            4,
        ),
    ] {
        let all = [attributes, good_attributes()].concat();
        check(what, EXTERNAL, update(&[], &all, &[]), Reset(subcode));
    }
    for (what, withdrawn, announced) in [
        (
            "an IPv4 prefix of 33 bits",
            &[][..],
            &[33, 1, 2, 3, 4, 5][..],
        ),
        ("an IPv4 prefix beyond the list", &[], &[24, 1, 2]),
        (
            "a withdrawn IPv4 prefix of 33 bits",
            &[33, 1, 2, 3, 4, 5],
            &[],
        ),
    ] {
        let octets = update(withdrawn, &good_attributes(), announced);
        check(what, EXTERNAL, octets, Reset(10));
    }
}

#[test]
fn routes_with_sids_that_no_router_can_have_are_withdrawn() {
    let vpn = |sid: &str, structure: [u8; 6], label: [u8; 3]| {
        let next_hop = [&[0; 8][..], &next_hop()].concat();
        let mut attributes = mandatory(INTERNAL);
        attributes.push(reach(128, &next_hop, &vpn_prefix(label, 1)));
        attributes.push(attribute(0xc0, 40, &service(sid, structure)));
        update(&[], &attributes, &[])
    };
    let plain = [40, 24, 16, 0, 0, 0];
    // The label has the first 16 bits of these.
    let moved = [40, 24, 16, 0, 16, 0];
    for (what, octets, taken) in [
        ("an address", vpn("2001:db8:a:1:1::", plain, [0; 3]), true),
        (
            "a unique local address",
            vpn("fd00::1", plain, [0; 3]),
            true,
        ),
        ("::", vpn("::", plain, [0; 3]), false),
        ("::1", vpn("::1", plain, [0; 3]), false),
        ("multicast", vpn("ff02::1", plain, [0; 3]), false),
        ("link-local", vpn("fe80::1", plain, [0; 3]), false),
        ("IPv4-mapped", vpn("::ffff:192.0.2.1", plain, [0; 3]), false),
        (
            "an address in two parts",
            vpn("0:db8:a::", moved, [0x20, 0x01, 0]),
            true,
        ),
        (
            "multicast in two parts",
            vpn("0:db8:a::", moved, [0xff, 0x02, 0]),
            false,
        ),
        (":: in two parts", vpn("::", moved, [0; 3]), false),
    ] {
        let mut network = listener(INTERNAL, |_| ());
        hear(&mut network, vpn("2001:db8:b::", plain, [0; 3]));
        assert_eq!(network.nodes[0].prefixes().len(), 1, "{what}");
        hear(&mut network, octets);
        assert_eq!(
            network.nodes[0].prefixes().len(),
            usize::from(taken),
            "{what}"
        );
        let status = network.nodes[0].speaker.status(FIRST);
        assert_eq!(status.malformed_updates, u64::from(!taken), "{what}");
        assert!(network.nodes[0].speaker.is_up(FIRST), "{what}");
    }
}

#[test]
fn discarded_attributes_are_counted() {
    let mut network = listener(EXTERNAL, |_| ());
    let mut attributes = mandatory(EXTERNAL);
    attributes.extend([
        announcement(),
        attribute(0x40, 6, &[1]),
        attribute(0xc0, 7, &[]),
    ]);
    hear(&mut network, update(&[], &attributes, &[]));
    let status = network.nodes[0].speaker.status(FIRST);
    assert_eq!(status.discarded_attributes, 2);
    assert_eq!(network.nodes[0].prefixes(), ["2001:db8:1::/48"]);
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut all = vec![0xff; 16];
    all.extend((19 + body.len() as u16).to_be_bytes());
    all.push(kind);
    all.extend(body);
    all
}

/// RFC 4271 §6.1 and §6.6, RFC 7313 §5, and RFC 7606 §3 b.
#[test]
fn bad_messages_in_a_session_end_it_with_the_notification_of_their_kind() {
    let marked = |mut all: Vec<u8>| {
        all[3] = 0;
        all
    };
    let of_length = |mut all: Vec<u8>, length: u16| {
        all[16..18].copy_from_slice(&length.to_be_bytes());
        all
    };
    for (what, octets, code, subcode) in [
        ("another marker", marked(message(4, &[])), 1, 1),
        ("a length of 18", of_length(message(4, &[]), 18), 1, 2),
        ("a KEEPALIVE with a body", message(4, &[0]), 1, 2),
        ("an UPDATE of 22 octets", message(2, &[0; 3]), 1, 2),
        ("an OPEN of 28 octets", message(1, &[4; 9]), 1, 2),
        ("type 9", message(9, &[]), 1, 3),
        (
            "withdrawn routes beyond the UPDATE",
            message(2, &[0, 9, 0, 0]),
            3,
            1,
        ),
        (
            "attributes beyond the UPDATE",
            message(2, &[0, 0, 0, 9]),
            3,
            1,
        ),
        (
            "a begin of refresh with a body",
            message(5, &[0, 2, 1, 1, 7]),
            7,
            1,
        ),
        (
            "an end of refresh with a body",
            message(5, &[0, 2, 2, 1, 7]),
            7,
            1,
        ),
        (
            "a second OPEN",
            message(1, &[4, 0xfd, 0xe9, 0, 90, 10, 0, 0, 2, 0]),
            5,
            0,
        ),
    ] {
        let mut network = listener(EXTERNAL, |_| ());
        hear(&mut network, good(1));
        hear(&mut network, octets);
        assert!(!network.nodes[0].speaker.is_up(FIRST), "{what}");
        assert!(network.nodes[0].prefixes().is_empty(), "{what}");
        assert_notified(&network, what, code, subcode);
    }
}

/// RFC 4271 §6.2.
#[test]
fn bad_opens_are_refused_with_the_notification_of_their_kind() {
    for (what, body, subcode) in [
        ("version 3", [3, 0xfd, 0xe9, 0, 90, 10, 0, 0, 2, 0], 1),
        ("another AS", [4, 0xfd, 0xea, 0, 90, 10, 0, 0, 2, 0], 2),
        (
            "the identifier 0.0.0.0",
            [4, 0xfd, 0xe9, 0, 90, 0, 0, 0, 0, 0],
            3,
        ),
        (
            "a hold time of 2 s",
            [4, 0xfd, 0xe9, 0, 2, 10, 0, 0, 2, 0],
            6,
        ),
    ] {
        let mut network = listener(EXTERNAL, |config| config.passive = config.asn == INTERNAL);
        network.nodes[1].mute = Mute::Everything;
        network.cut(0, FIRST);
        network.pass(std::time::Duration::from_secs(1));
        let connection = network.connection_of(0, FIRST);
        network.hand(0, Input::Received(connection, message(1, &body)));
        network.settle();
        assert!(!network.nodes[0].speaker.is_up(FIRST), "{what}");
        assert_notified(&network, what, 2, subcode);
    }
}

#[test]
fn malformed_open_ends_the_connection_only() {
    for body in [&[4, 0xfd, 0xe9, 0, 90, 10, 0, 0, 2, 0][..], &[3; 10], &[]] {
        let mut network = listener(EXTERNAL, |_| ());
        network.cut(0, FIRST);
        let connection =
            keiro_bgp::speaker::ConnectionId::new(FIRST, keiro_bgp::speaker::Direction::Outgoing);
        network.hand(0, Input::Received(connection, message(1, body)));
        network.settle();
        assert!(network.nodes[0].prefixes().is_empty());
    }
}
