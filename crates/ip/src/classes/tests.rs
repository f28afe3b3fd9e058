//! What the sorter makes of flows, and of wrong and hostile packets.

mod office;
mod packets;

use std::{net::IpAddr, time::Duration};

use self::packets::{Pair, answer, client_hello, query, quic_initial, rtp, stun};
use super::{BuiltInClass, DomainPattern, Evidence, PatternId, Sorter};
use crate::{FlowKey, flow::FlowSeed, protocol};

fn sorter() -> Sorter {
    Sorter::new(FlowSeed::new(&[3; 16]), true, &[])
}

fn pair(protocol: u8, server_port: u16) -> Pair {
    Pair {
        client: address("10.1.0.7"),
        server: address("198.51.100.9"),
        protocol,
        client_port: 40_000,
        server_port,
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Sends a packet; the class of its flow and why.
fn send(
    sorter: &mut Sorter,
    now: Duration,
    pair: &Pair,
    is_up: bool,
    packet: &[u8],
) -> (Option<BuiltInClass>, Evidence) {
    let header = pair.header(is_up);
    let sorted = sorter.on_packet(now, &header, packet, 1);
    let flow = sorter.flow(FlowKey::of(&header)).expect("it is known");
    assert_eq!(flow.sorted, sorted);
    (sorted.class, flow.evidence)
}

/// A client asks for a name and gets addresses.
fn resolve(sorter: &mut Sorter, now: Duration, name: &str, alias: Option<&str>, to: &[IpAddr]) {
    let dns = Pair {
        server: address("192.0.2.53"),
        ..pair(protocol::UDP, 53)
    };
    send(sorter, now, &dns, true, &dns.packet(&query(77, name), 0));
    let answer = answer(77, name, alias, to);
    send(sorter, now, &dns, false, &dns.packet(&answer, 0));
}

#[test]
fn ports_decide_where_one_kind_of_traffic_uses_them() {
    let mut sorter = sorter();
    for (protocol, port, class) in [
        (protocol::TCP, 22, Some(BuiltInClass::Interactive)),
        (protocol::UDP, 5060, Some(BuiltInClass::Voice)),
        (protocol::TCP, 443, Some(BuiltInClass::Web)),
        (protocol::TCP, 873, Some(BuiltInClass::Backup)),
        (protocol::UDP, 27_015, Some(BuiltInClass::Games)),
        (protocol::TCP, 993, None),
        (protocol::UDP, 443, None),
        (protocol::UDP, 51_820, None),
    ] {
        let pair = pair(protocol, port);
        let found = send(&mut sorter, at(0), &pair, true, &pair.packet(&[], 100)).0;
        assert_eq!(found, class, "{port}");
        let found = send(&mut sorter, at(0), &pair, false, &pair.packet(&[], 100)).0;
        assert_eq!(found, class, "{port} back");
    }
    let quic = Pair {
        client_port: 2,
        ..pair(protocol::UDP, 443)
    };
    let found = send(
        &mut sorter,
        at(0),
        &quic,
        true,
        &quic.packet(&quic_initial(), 0),
    );
    assert_eq!(found.0, Some(BuiltInClass::Web));
}

#[test]
fn all_addresses_of_an_answer_have_its_name_and_the_newest_counts() {
    let mut sorter = sorter();
    let other = address("198.51.100.10");
    let zoom = pair(protocol::UDP, 9000);
    let second = Pair {
        server: other,
        ..zoom
    };
    resolve(
        &mut sorter,
        at(0),
        "Eu01.Zoom.US",
        None,
        &[zoom.server, other],
    );
    for pair in [zoom, second] {
        let found = send(&mut sorter, at(1), &pair, true, &pair.packet(&[], 200));
        let expected = (Some(BuiltInClass::Voice), Evidence::Dns("zoom.us"));
        assert_eq!(found, expected);
    }
    // A flow keeps its class; the next one of the same address has the new name.
    resolve(&mut sorter, at(2), "pics.example", None, &[other]);
    let found = send(&mut sorter, at(3), &second, true, &second.packet(&[], 200));
    assert_eq!(found.0, Some(BuiltInClass::Voice));
    let later = Pair {
        client_port: 40_001,
        ..second
    };
    let found = send(&mut sorter, at(3), &later, true, &later.packet(&[], 200));
    assert_eq!(found, (None, Evidence::None));
    resolve(
        &mut sorter,
        at(3),
        "cdn.customer.example",
        Some("x.zoom.us"),
        &[other],
    );
    let alias = Pair {
        client_port: 40_002,
        ..second
    };
    let found = send(&mut sorter, at(3), &alias, true, &alias.packet(&[], 200));
    assert_eq!(found.0, Some(BuiltInClass::Voice));
    // Names end.
    let late = Pair {
        client_port: 40_003,
        ..second
    };
    let found = send(&mut sorter, at(304), &late, true, &late.packet(&[], 200));
    assert_eq!(found, (None, Evidence::None));
}

#[test]
fn an_address_has_a_name_for_clients_that_did_not_ask_unless_names_differ() {
    let mut sorter = sorter();
    let server = address("198.51.100.9");
    resolve(&mut sorter, at(0), "teams.microsoft.com", None, &[server]);
    let other = Pair {
        client: address("10.1.0.8"),
        ..pair(protocol::TCP, 443)
    };
    let found = send(&mut sorter, at(1), &other, true, &other.packet(&[], 60));
    assert_eq!(found.0, Some(BuiltInClass::Voice));
    resolve(&mut sorter, at(1), "www.example", None, &[server]);
    let third = Pair {
        client_port: 9,
        ..other
    };
    let found = send(&mut sorter, at(1), &third, true, &third.packet(&[], 60));
    assert_eq!(found, (Some(BuiltInClass::Web), Evidence::CommonPort(443)));
}

#[test]
fn only_the_answer_to_a_query_from_the_server_that_was_asked_counts() {
    let zoom = pair(protocol::UDP, 9000);
    let dns = Pair {
        server: address("192.0.2.53"),
        ..pair(protocol::UDP, 53)
    };
    let forged = |of: Pair, id, name: &str| (of, answer(id, name, None, &[zoom.server]));
    let elsewhere = Pair {
        server: address("192.0.2.54"),
        ..dns
    };
    let to_port = Pair {
        client_port: 40_001,
        ..dns
    };
    let to_host = Pair {
        client: address("10.1.0.8"),
        ..dns
    };
    for (from, message) in [
        forged(elsewhere, 77, "zoom.us"),
        forged(to_port, 77, "zoom.us"),
        forged(to_host, 77, "zoom.us"),
        forged(dns, 78, "zoom.us"),
        forged(dns, 77, "a.zoom.us"),
        (dns, query(77, "zoom.us")),
    ] {
        let mut sorter = sorter();
        send(
            &mut sorter,
            at(0),
            &dns,
            true,
            &dns.packet(&query(77, "zoom.us"), 0),
        );
        send(&mut sorter, at(0), &from, false, &from.packet(&message, 0));
        let found = send(&mut sorter, at(1), &zoom, true, &zoom.packet(&[], 200));
        assert_eq!(found.0, None, "{from:?}");
    }
    // The second answer to one query, and a late one.
    let mut sorter = sorter();
    resolve(&mut sorter, at(0), "www.example", None, &[zoom.server]);
    let second = answer(77, "www.example", Some("zoom.us"), &[zoom.server]);
    send(&mut sorter, at(0), &dns, false, &dns.packet(&second, 0));
    let found = send(&mut sorter, at(1), &zoom, true, &zoom.packet(&[], 200));
    assert_eq!(found.0, None);
}

#[test]
fn a_server_name_in_two_segments_is_read_and_outdoes_the_name_of_dns() {
    let mut sorter = sorter();
    let web = pair(protocol::TCP, 443);
    resolve(
        &mut sorter,
        at(0),
        "teams.microsoft.com",
        None,
        &[web.server],
    );
    let hello = client_hello("Officecdn.Microsoft.com", 1500);
    let (first, second) = hello.split_at(1348);
    let found = send(&mut sorter, at(1), &web, true, &web.segment(99, 2, &[]));
    assert_eq!(found.0, Some(BuiltInClass::Voice));
    send(
        &mut sorter,
        at(1),
        &web,
        true,
        &web.segment(100, 0x10, first),
    );
    // Sent again.
    send(
        &mut sorter,
        at(1),
        &web,
        true,
        &web.segment(100, 0x10, first),
    );
    let sequence = 100 + first.len() as u32;
    let segment = web.segment(sequence, 0x18, second);
    let found = send(&mut sorter, at(1), &web, true, &segment);
    let expected = Evidence::Sni("officecdn.microsoft.com");
    assert_eq!(found, (Some(BuiltInClass::Bulk), expected));
    // The port's next connection is another flow, and a name that is in no list says that it is not the meeting.
    let found = send(&mut sorter, at(2), &web, true, &web.segment(7, 2, &[]));
    assert_eq!(found.0, Some(BuiltInClass::Voice));
    let hello = web.segment(8, 0x18, &client_hello("www.example", 10));
    let found = send(&mut sorter, at(2), &web, true, &hello);
    assert_eq!(found, (Some(BuiltInClass::Web), Evidence::CommonPort(443)));
}

#[test]
fn media_is_known_by_its_form_and_other_udp_is_not_media() {
    let mut sorter = sorter();
    let call = pair(protocol::UDP, 16_400);
    for number in 0..4 {
        let packet = call.packet(&rtp(5, 100 + number, 111), 200);
        let class = send(&mut sorter, at(0), &call, true, &packet).0;
        assert_eq!(class, (number == 3).then_some(BuiltInClass::Voice));
    }
    let meeting = pair(protocol::UDP, 10_000);
    send(
        &mut sorter,
        at(0),
        &meeting,
        true,
        &meeting.packet(&stun(), 0),
    );
    for number in 0..2 {
        let packet = meeting.packet(&rtp(5, number, 96), 1100);
        send(&mut sorter, at(0), &meeting, false, &packet);
    }
    let packet = meeting.packet(&[], 100);
    let found = send(&mut sorter, at(0), &meeting, true, &packet);
    assert_eq!(found, (Some(BuiltInClass::Voice), Evidence::Media));
    // A data channel begins with STUN too (DTLS).
    let data = pair(protocol::UDP, 10_001);
    send(&mut sorter, at(0), &data, true, &data.packet(&stun(), 0));
    for _ in 0..200 {
        let packet = data.packet(&[23, 254, 253, 0, 1], 1200);
        assert_eq!(send(&mut sorter, at(0), &data, true, &packet).0, None);
    }
}

#[test]
fn a_flow_becomes_bulk_once_and_stays_so() {
    let mut sorter = sorter();
    let web = pair(protocol::TCP, 443);
    let packet = web.packet(&[], 60_000);
    let mut changes = 0;
    let mut before = Some(BuiltInClass::Web);
    for number in 0..2_000u64 {
        // Pages, a download, pages.
        let now = match number {
            0..100 => at(10 * number),
            100..500 => at(1_000) + Duration::from_millis(20 * (number - 100)),
            _ => at(2_000 + 10 * number),
        };
        let class = send(&mut sorter, now, &web, false, &packet).0;
        changes += usize::from(class != before);
        before = class;
    }
    assert_eq!((before, changes), (Some(BuiltInClass::Bulk), 1));
    let rows: Vec<_> = sorter.counts().collect();
    let bulk = rows.iter().find(|row| row.1 == "volume").expect("a row");
    assert_eq!((bulk.0, bulk.2.flows), (Some(BuiltInClass::Bulk), 1));
    assert_eq!(rows.iter().map(|row| row.2.flows).sum::<u64>(), 1);
}

#[test]
fn names_of_rules_are_found_without_classes() {
    let patterns: Vec<DomainPattern> = ["*.zoom.us", "erp.example"]
        .map(|text| text.parse().expect("a pattern"))
        .into();
    let mut sorter = Sorter::new(FlowSeed::new(&[4; 16]), false, &patterns);
    let erp = pair(protocol::TCP, 22);
    resolve(&mut sorter, at(0), "erp.example", None, &[erp.server]);
    let sorted = sorter.on_packet(at(1), &erp.header(true), &erp.packet(&[], 60), 1);
    assert_eq!((sorted.class, sorted.name), (None, Some(PatternId(1))));
}

#[test]
fn memory_is_bounded_whatever_comes() {
    let mut sorter = sorter();
    let mut kept = 0;
    for number in 0..1_000_000u32 {
        let [a, b, c, d] = number.to_be_bytes();
        let flow = Pair {
            client: IpAddr::from([10, b, c, d]),
            ..pair(protocol::UDP, 53)
        };
        let packet = flow.packet(&query(number as u16, "a.very.long.name.example"), 0);
        sorter.on_packet(at(u64::from(a)), &flow.header(true), &packet, 1);
        if number % 100_000 == 99_999 {
            kept = sorter.flows();
        }
    }
    assert!((30_000..=32_768).contains(&kept), "{kept}");
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(
        bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300),
        port in proptest::sample::select(vec![53u16, 443, 9999]),
        is_tcp in proptest::bool::ANY,
        is_up in proptest::bool::ANY,
        cut in 0usize..60,
    ) {
        let mut sorter = sorter();
        let pair = pair(if is_tcp { protocol::TCP } else { protocol::UDP }, port);
        send(&mut sorter, at(0), &pair, true, &pair.packet(&query(7, "a.example"), 0));
        let mut packet = pair.packet(&bytes, 0);
        send(&mut sorter, at(0), &pair, is_up, &packet);
        packet.truncate(cut);
        send(&mut sorter, at(0), &pair, is_up, &packet);
        // A message with a right begin.
        let mut message = query(7, "a.example");
        message[2] = 0x81;
        message[7] = 3;
        message.extend(&bytes);
        send(&mut sorter, at(0), &pair, false, &pair.packet(&message, 0));
        let mut hello = client_hello("a.example", 3);
        let place = bytes.len() % hello.len();
        hello.truncate(place);
        hello.extend(&bytes);
        send(&mut sorter, at(0), &pair, is_up, &pair.segment(5, 0x10, &hello));
    }
}
