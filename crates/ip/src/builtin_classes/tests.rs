//! Classes of flows, and wrong and hostile packets.

mod office;
mod packets;

use std::{net::IpAddr, time::Duration};

use self::packets::{Pair, answer, client_hello, query, quic_initial, rtp, stun};
use super::{BuiltInClass, DomainPattern, Evidence, FlowClassifier, PatternId, Sorting};
use crate::{FlowKey, flow::FlowSeed, protocol};

fn classifier() -> FlowClassifier {
    sorter_of(sorting(true, &[]))
}

fn sorter_of(sorting: Sorting) -> FlowClassifier {
    FlowClassifier::new(FlowSeed::new(&[3; 16]), sorting)
}

fn sorting(has_classes: bool, patterns: &[&str]) -> Sorting {
    let patterns = patterns.iter().map(|text| pattern(text));
    Sorting {
        has_classes,
        patterns: patterns.collect(),
        resolvers: Vec::new(),
    }
}

fn pattern(text: &str) -> DomainPattern {
    text.parse().expect("a pattern")
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
    classifier: &mut FlowClassifier,
    now: Duration,
    pair: &Pair,
    is_up: bool,
    packet: &[u8],
) -> (Option<BuiltInClass>, Evidence) {
    let header = pair.header(is_up);
    let sorted = classifier.on_packet(now, &header, packet, 1);
    let flow = classifier.flow(FlowKey::of(&header)).expect("it is known");
    assert_eq!(flow.sorted, sorted);
    (sorted.class, flow.evidence)
}

/// A client asks for a name and gets addresses.
fn resolve(
    classifier: &mut FlowClassifier,
    now: Duration,
    name: &str,
    alias: Option<&str>,
    to: &[IpAddr],
) {
    let client = pair(protocol::UDP, 53).client;
    let aliases: Vec<&str> = alias.into_iter().collect();
    resolve_for(
        classifier,
        now,
        client,
        &answer(77, name, &aliases, to),
        name,
    );
}

/// A client asks for a name and gets this answer.
fn resolve_for(
    classifier: &mut FlowClassifier,
    now: Duration,
    client: IpAddr,
    answer: &[u8],
    name: &str,
) {
    let dns = Pair {
        client,
        server: address("192.0.2.53"),
        ..pair(protocol::UDP, 53)
    };
    send(
        classifier,
        now,
        &dns,
        true,
        &dns.packet(&query(77, name), 0),
    );
    send(classifier, now, &dns, false, &dns.packet(answer, 0));
}

#[test]
fn ports_decide_where_one_kind_of_traffic_uses_them() {
    let mut classifier = classifier();
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
        let found = send(&mut classifier, at(0), &pair, true, &pair.packet(&[], 100)).0;
        assert_eq!(found, class, "{port}");
        let found = send(&mut classifier, at(0), &pair, false, &pair.packet(&[], 100)).0;
        assert_eq!(found, class, "{port} back");
    }
    let quic = Pair {
        client_port: 2,
        ..pair(protocol::UDP, 443)
    };
    let found = send(
        &mut classifier,
        at(0),
        &quic,
        true,
        &quic.packet(&quic_initial(), 0),
    );
    assert_eq!(found.0, Some(BuiltInClass::Web));
}

#[test]
fn all_addresses_of_an_answer_have_its_name_and_the_newest_counts() {
    let mut classifier = classifier();
    let other = address("198.51.100.10");
    let zoom = pair(protocol::UDP, 9000);
    let second = Pair {
        server: other,
        ..zoom
    };
    resolve(
        &mut classifier,
        at(0),
        "Eu01.Zoom.US",
        None,
        &[zoom.server, other],
    );
    for pair in [zoom, second] {
        let found = send(&mut classifier, at(1), &pair, true, &pair.packet(&[], 200));
        let expected = (Some(BuiltInClass::Voice), Evidence::Dns("zoom.us"));
        assert_eq!(found, expected);
    }
    // A flow keeps its class; the next one of the same address has the new name.
    resolve(&mut classifier, at(2), "pics.example", None, &[other]);
    let found = send(
        &mut classifier,
        at(3),
        &second,
        true,
        &second.packet(&[], 200),
    );
    assert_eq!(found.0, Some(BuiltInClass::Voice));
    let later = Pair {
        client_port: 40_001,
        ..second
    };
    let found = send(
        &mut classifier,
        at(3),
        &later,
        true,
        &later.packet(&[], 200),
    );
    assert_eq!(found, (None, Evidence::None));
    resolve(
        &mut classifier,
        at(3),
        "cdn.customer.example",
        Some("x.zoom.us"),
        &[other],
    );
    let alias = Pair {
        client_port: 40_002,
        ..second
    };
    let found = send(
        &mut classifier,
        at(3),
        &alias,
        true,
        &alias.packet(&[], 200),
    );
    assert_eq!(found.0, Some(BuiltInClass::Voice));
    // Names end.
    let late = Pair {
        client_port: 40_003,
        ..second
    };
    let found = send(
        &mut classifier,
        at(304),
        &late,
        true,
        &late.packet(&[], 200),
    );
    assert_eq!(found, (None, Evidence::None));
}

#[test]
fn an_address_has_a_name_for_clients_that_did_not_ask_unless_names_differ() {
    let mut classifier = classifier();
    let server = address("198.51.100.9");
    resolve(
        &mut classifier,
        at(0),
        "teams.microsoft.com",
        None,
        &[server],
    );
    let other = Pair {
        client: address("10.1.0.8"),
        ..pair(protocol::TCP, 443)
    };
    let found = send(&mut classifier, at(1), &other, true, &other.packet(&[], 60));
    assert_eq!(found.0, Some(BuiltInClass::Voice));
    resolve(&mut classifier, at(1), "www.example", None, &[server]);
    let third = Pair {
        client_port: 9,
        ..other
    };
    let found = send(&mut classifier, at(1), &third, true, &third.packet(&[], 60));
    assert_eq!(found, (Some(BuiltInClass::Web), Evidence::CommonPort(443)));
}

#[test]
fn only_the_answer_to_a_query_from_the_server_that_was_asked_counts() {
    let zoom = pair(protocol::UDP, 9000);
    let dns = Pair {
        server: address("192.0.2.53"),
        ..pair(protocol::UDP, 53)
    };
    let forged = |of: Pair, id, name: &str| (of, answer(id, name, &[], &[zoom.server]));
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
        let mut classifier = classifier();
        send(
            &mut classifier,
            at(0),
            &dns,
            true,
            &dns.packet(&query(77, "zoom.us"), 0),
        );
        send(
            &mut classifier,
            at(0),
            &from,
            false,
            &from.packet(&message, 0),
        );
        let found = send(&mut classifier, at(1), &zoom, true, &zoom.packet(&[], 200));
        assert_eq!(found.0, None, "{from:?}");
    }
    // The second answer to one query, and a late one.
    let mut classifier = classifier();
    resolve(&mut classifier, at(0), "www.example", None, &[zoom.server]);
    let second = answer(77, "www.example", &["zoom.us"], &[zoom.server]);
    send(&mut classifier, at(0), &dns, false, &dns.packet(&second, 0));
    let found = send(&mut classifier, at(1), &zoom, true, &zoom.packet(&[], 200));
    assert_eq!(found.0, None);
}

#[test]
fn a_server_name_in_two_segments_is_read_and_outdoes_the_name_of_dns() {
    let mut classifier = classifier();
    let web = pair(protocol::TCP, 443);
    resolve(
        &mut classifier,
        at(0),
        "teams.microsoft.com",
        None,
        &[web.server],
    );
    let hello = client_hello("Officecdn.Microsoft.com", 1500);
    let (first, second) = hello.split_at(1348);
    let found = send(&mut classifier, at(1), &web, true, &web.segment(99, 2, &[]));
    assert_eq!(found.0, Some(BuiltInClass::Voice));
    send(
        &mut classifier,
        at(1),
        &web,
        true,
        &web.segment(100, 0x10, first),
    );
    // Sent again.
    send(
        &mut classifier,
        at(1),
        &web,
        true,
        &web.segment(100, 0x10, first),
    );
    let sequence = 100 + first.len() as u32;
    let segment = web.segment(sequence, 0x18, second);
    let found = send(&mut classifier, at(1), &web, true, &segment);
    let expected = Evidence::Sni("officecdn.microsoft.com");
    assert_eq!(found, (Some(BuiltInClass::Bulk), expected));
    // The port's next connection is another flow, and a name that is in no list says that it is not the meeting.
    let found = send(&mut classifier, at(2), &web, true, &web.segment(7, 2, &[]));
    assert_eq!(found.0, Some(BuiltInClass::Voice));
    let hello = web.segment(8, 0x18, &client_hello("www.example", 10));
    let found = send(&mut classifier, at(2), &web, true, &hello);
    assert_eq!(found, (Some(BuiltInClass::Web), Evidence::CommonPort(443)));
}

#[test]
fn rtp_is_recognised_by_its_headers() {
    let mut classifier = classifier();
    let call = pair(protocol::UDP, 16_400);
    for number in 0..4 {
        let packet = call.packet(&rtp(5, 100 + number, 111), 200);
        let class = send(&mut classifier, at(0), &call, true, &packet).0;
        assert_eq!(class, (number == 3).then_some(BuiltInClass::Voice));
    }
    let meeting = pair(protocol::UDP, 10_000);
    send(
        &mut classifier,
        at(0),
        &meeting,
        true,
        &meeting.packet(&stun(), 0),
    );
    for number in 0..2 {
        let packet = meeting.packet(&rtp(5, number, 96), 1100);
        send(&mut classifier, at(0), &meeting, false, &packet);
    }
    let packet = meeting.packet(&[], 100);
    let found = send(&mut classifier, at(0), &meeting, true, &packet);
    assert_eq!(found, (Some(BuiltInClass::Voice), Evidence::Media));
    // A data channel begins with STUN too (DTLS).
    let data = pair(protocol::UDP, 10_001);
    send(
        &mut classifier,
        at(0),
        &data,
        true,
        &data.packet(&stun(), 0),
    );
    for _ in 0..200 {
        let packet = data.packet(&[23, 254, 253, 0, 1], 1200);
        assert_eq!(send(&mut classifier, at(0), &data, true, &packet).0, None);
    }
}

#[test]
fn a_flow_becomes_bulk_once_and_stays_so() {
    let mut classifier = classifier();
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
        let class = send(&mut classifier, now, &web, false, &packet).0;
        changes += usize::from(class != before);
        before = class;
    }
    assert_eq!((before, changes), (Some(BuiltInClass::Bulk), 1));
    let rows: Vec<_> = classifier.counts().collect();
    let bulk = rows.iter().find(|row| row.1 == "volume").expect("a row");
    assert_eq!((bulk.0, bulk.2.flows), (Some(BuiltInClass::Bulk), 1));
    assert_eq!(rows.iter().map(|row| row.2.flows).sum::<u64>(), 1);
}

#[test]
fn names_of_rules_are_found_without_classes() {
    let mut classifier = sorter_of(sorting(false, &["*.zoom.us", "erp.example"]));
    let erp = pair(protocol::TCP, 22);
    resolve(&mut classifier, at(0), "erp.example", None, &[erp.server]);
    let sorted = classifier.on_packet(at(1), &erp.header(true), &erp.packet(&[], 60), 1);
    assert_eq!((sorted.class, sorted.name), (None, Some(PatternId(1))));
}

/// What is known of a flow that begins, of this client to this server.
fn begins(
    classifier: &mut FlowClassifier,
    now: Duration,
    client: IpAddr,
    server: IpAddr,
    client_port: u16,
) -> (Option<BuiltInClass>, Option<PatternId>) {
    let flow = Pair {
        client,
        server,
        client_port,
        ..pair(protocol::UDP, 9000)
    };
    let sorted = classifier.on_packet(now, &flow.header(true), &flow.packet(&[], 200), 1);
    (sorted.class, sorted.name)
}

#[test]
fn a_rule_takes_names_of_its_own_client_and_of_resolvers_and_a_class_those_of_all() {
    let mut of = sorting(true, &["*.zoom.us"]);
    let resolver = address("10.1.0.53");
    of.resolvers = vec![resolver];
    let mut classifier = sorter_of(of);
    let [asker, other] = [address("10.1.0.7"), address("10.1.0.8")];
    let [first, second] = [address("198.51.100.1"), address("198.51.100.2")];
    let to = |server| answer(77, "eu.zoom.us", &[], &[server]);
    resolve_for(&mut classifier, at(0), asker, &to(first), "eu.zoom.us");
    resolve_for(&mut classifier, at(0), resolver, &to(second), "eu.zoom.us");
    let (voice, rule) = (Some(BuiltInClass::Voice), Some(PatternId(0)));
    assert_eq!(
        begins(&mut classifier, at(1), asker, first, 1),
        (voice, rule)
    );
    assert_eq!(
        begins(&mut classifier, at(1), other, first, 1),
        (voice, None)
    );
    assert_eq!(
        begins(&mut classifier, at(1), other, second, 1),
        (voice, rule)
    );
    // A host cannot take that away.
    let answer = answer(77, "www.example", &[], &[second]);
    resolve_for(&mut classifier, at(2), asker, &answer, "www.example");
    assert_eq!(
        begins(&mut classifier, at(2), other, second, 2),
        (voice, rule)
    );
}

#[test]
fn names_of_one_class_agree_on_an_address() {
    let mut classifier = classifier();
    let server = address("198.51.100.1");
    for name in ["www.office.com", "outlook.office365.com"] {
        resolve(&mut classifier, at(0), name, None, &[server]);
    }
    let found = begins(&mut classifier, at(1), address("10.1.0.8"), server, 1);
    assert_eq!(found.0, Some(BuiltInClass::Web));
}

#[test]
fn one_client_cannot_displace_names_that_others_use() {
    let mut classifier = classifier();
    let server = |set: u8, number: u8| IpAddr::from([198, 18 + set, 7, number]);
    for number in 0..100 {
        resolve(
            &mut classifier,
            at(0),
            "eu.zoom.us",
            None,
            &[server(0, number)],
        );
    }
    for number in 0..3_000u32 {
        let [.., high, low] = number.to_be_bytes();
        let to: Vec<IpAddr> = (0..64)
            .map(|last| IpAddr::from([20, high, low, last]))
            .collect();
        let mut answer = answer(77, "www.example", &[], &to);
        // Its records live for a day.
        let head = query(77, "www.example").len();
        for record in answer[head..].chunks_exact_mut(16) {
            record[6..10].copy_from_slice(&86_400u32.to_be_bytes());
        }
        let client = address("10.1.0.66");
        let now = Duration::from_millis(10 * u64::from(number));
        resolve_for(&mut classifier, now, client, &answer, "www.example");
    }
    let client = address("10.1.0.7");
    let known = (0..100).filter(|number| {
        let found = begins(&mut classifier, at(30), client, server(0, *number), 1);
        found.0.is_some()
    });
    assert_eq!(known.count(), 100);
}

#[test]
fn of_an_answer_the_first_aliases_and_addresses_are_read() {
    let mut classifier = classifier();
    let client = address("10.1.0.7");
    let to: Vec<IpAddr> = (0..20).map(|last| IpAddr::from([20, 0, 0, last])).collect();
    let mut aliases = ["a.example"; 8];
    aliases[7] = "x.zoom.us";
    let whole = answer(77, "cdn.example", &aliases, &to);
    resolve_for(&mut classifier, at(0), client, &whole, "cdn.example");
    let is_voice = |server: &&IpAddr| {
        begins(&mut classifier, at(1), client, **server, 1)
            .0
            .is_some()
    };
    assert_eq!(to.iter().filter(is_voice).count(), 16);
    let mut classifier = self::classifier();
    let aliases = [&["a.example"; 8][..], &["x.zoom.us"]].concat();
    let long = answer(77, "cdn.example", &aliases, &to);
    resolve_for(&mut classifier, at(0), client, &long, "cdn.example");
    assert_eq!(begins(&mut classifier, at(1), client, to[0], 1).0, None);
}

/// Sends a ClientHello in two segments, the first with this sequence number; what the flow then is.
fn hello(
    classifier: &mut FlowClassifier,
    now: Duration,
    of: &Pair,
    sequence: u32,
    name: &str,
) -> Evidence {
    let bytes = client_hello(name, 1500);
    let (first, second) = bytes.split_at(1348);
    let segment = of.segment(sequence, 0x10, first);
    send(classifier, now, of, true, &segment);
    let segment = of.segment(sequence + first.len() as u32, 0x18, second);
    send(classifier, now, of, true, &segment).1
}

#[test]
fn unfinished_handshakes_of_a_client_take_no_place_of_others() {
    let mut classifier = classifier();
    let begin = &client_hello("zoom.us", 1500)[..6];
    for client_port in 20_001..20_500 {
        let flow = Pair {
            client: address("10.1.0.66"),
            client_port,
            ..pair(protocol::TCP, 443)
        };
        let segment = flow.segment(1, 0x18, begin);
        send(&mut classifier, at(0), &flow, true, &segment);
    }
    let web = pair(protocol::TCP, 443);
    let found = hello(&mut classifier, at(0), &web, 100, "eu.zoom.us");
    assert_eq!(found, Evidence::Sni("zoom.us"));
    assert_eq!(classifier.unread_handshakes(), 499 - 8);
    // Nor do those of very many clients.
    for last in 0..250 {
        let flow = Pair {
            client: IpAddr::from([10, 1, 1, last]),
            ..web
        };
        let segment = flow.segment(1, 0x18, begin);
        send(&mut classifier, at(0), &flow, true, &segment);
    }
    let next = Pair {
        client_port: 5,
        ..web
    };
    let found = hello(&mut classifier, at(0), &next, 100, "eu.zoom.us");
    assert_eq!(found, Evidence::Sni("zoom.us"));
}

#[test]
fn an_unfinished_handshake_is_dropped_after_a_while_and_when_its_ports_are_used_again() {
    let mut classifier = classifier();
    let web = pair(protocol::TCP, 443);
    let begin = client_hello("zoom.us", 1500);
    send(
        &mut classifier,
        at(0),
        &web,
        true,
        &web.segment(1, 0x18, &begin[..900]),
    );
    send(
        &mut classifier,
        at(0),
        &web,
        true,
        &web.segment(7_000, 2, &[]),
    );
    let found = hello(&mut classifier, at(0), &web, 7_001, "eu.zoom.us");
    assert_eq!(found, Evidence::Sni("zoom.us"));
    let other = Pair {
        client_port: 5,
        ..web
    };
    let segment = other.segment(1, 0x18, &begin[..900]);
    send(&mut classifier, at(1), &other, true, &segment);
    assert_eq!(classifier.kept().handshake_bytes, 900);
    // Any packet of the tenant.
    let dns = pair(protocol::UDP, 123);
    send(&mut classifier, at(5), &dns, true, &dns.packet(&[], 60));
    assert_eq!(classifier.kept().handshake_bytes, 0);
    let found = hello(&mut classifier, at(5), &other, 9_000, "eu.zoom.us");
    assert_eq!(found, Evidence::Sni("zoom.us"));
}

#[test]
fn a_rules_name_is_found_on_a_port_that_decides_the_class() {
    for patterns in [&["mail.office365.com"][..], &[]] {
        let mut classifier = sorter_of(sorting(true, patterns));
        let mail = pair(protocol::TCP, 465);
        let found = hello(&mut classifier, at(0), &mail, 100, "mail.office365.com");
        assert_eq!(found, Evidence::Port(465));
        let flow = classifier
            .flow(FlowKey::of(&mail.header(true)))
            .expect("known");
        assert_eq!(flow.sorted.class, Some(BuiltInClass::Bulk));
        let rule = (!patterns.is_empty()).then_some(PatternId(0));
        assert_eq!(flow.sorted.name, rule);
    }
}

#[test]
fn other_names_in_rules_leave_flows_addresses_and_counts_as_they_are() {
    let mut classifier = sorter_of(sorting(true, &["*.zoom.us", "erp.example"]));
    let (client, server) = (address("10.1.0.7"), address("198.51.100.1"));
    resolve(&mut classifier, at(0), "erp.example", None, &[server]);
    let web = pair(protocol::TCP, 443);
    hello(&mut classifier, at(0), &web, 100, "eu.zoom.us");
    begins(&mut classifier, at(1), client, server, 1);
    let before: Vec<_> = classifier.counts().collect();
    // Sorted, so that those that stay have other places.
    classifier.set_sorting(sorting(true, &["*.example", "*.us", "a.example"]));
    assert_eq!(classifier.counts().collect::<Vec<_>>(), before);
    let name = |classifier: &mut FlowClassifier, number: Option<u16>| {
        let flow = classifier
            .flow(FlowKey::of(&web.header(true)))
            .expect("known");
        assert_eq!(flow.sorted.name, number.map(PatternId));
        assert_eq!(flow.sorted.class, Some(BuiltInClass::Voice));
    };
    name(&mut classifier, Some(1));
    // A flow that is known and one that begins.
    for port in [1, 2] {
        let found = begins(&mut classifier, at(2), client, server, port);
        assert_eq!(found.1, Some(PatternId(0)), "{port}");
    }
    classifier.set_sorting(sorting(true, &["a.example"]));
    name(&mut classifier, None);
    assert_eq!(begins(&mut classifier, at(3), client, server, 3).1, None);
}

#[test]
fn classes_that_begin_or_end_leave_flows_with_a_rules_name() {
    let mut classifier = sorter_of(sorting(false, &["*.zoom.us"]));
    let web = pair(protocol::TCP, 443);
    hello(&mut classifier, at(0), &web, 100, "eu.zoom.us");
    let shell = pair(protocol::TCP, 22);
    send(&mut classifier, at(0), &shell, true, &shell.packet(&[], 60));
    for (has_classes, class) in [(true, Some(BuiltInClass::Interactive)), (false, None)] {
        classifier.set_sorting(sorting(has_classes, &["*.zoom.us"]));
        let found = send(&mut classifier, at(1), &shell, true, &shell.packet(&[], 60));
        assert_eq!(found.0, class);
        let flow = classifier
            .flow(FlowKey::of(&web.header(true)))
            .expect("known");
        assert_eq!(flow.sorted.name, Some(PatternId(0)));
        let flows: u64 = classifier.counts().map(|(_, _, count)| count.flows).sum();
        assert_eq!(flows, 2);
    }
}

#[test]
fn memory_is_bounded_whatever_comes() {
    let mut classifier = classifier();
    let begin = client_hello("zoom.us", 7_000);
    for number in 0..300_000u32 {
        let [a, b, c, d] = number.to_be_bytes();
        let now = at(u64::from(a));
        let dns = Pair {
            client: IpAddr::from([10, b, c, d]),
            ..pair(protocol::UDP, 53)
        };
        let packet = dns.packet(&query(number as u16, "a.very.long.name.example"), 0);
        classifier.on_packet(now, &dns.header(true), &packet, 1);
        if number % 2 == 0 {
            let to: Vec<IpAddr> = (0..16).map(|e| IpAddr::from([b, c, d, e])).collect();
            let answer = answer(number as u16, "a.very.long.name.example", &[], &to);
            classifier.on_packet(now, &dns.header(false), &dns.packet(&answer, 0), 1);
        }
        let web = Pair {
            protocol: protocol::TCP,
            server_port: 443,
            ..dns
        };
        let segment = web.segment(1, 0x18, &begin[..6_000]);
        classifier.on_packet(now, &web.header(true), &segment, 1);
    }
    let kept = classifier.kept();
    assert!((30_000..=32_768).contains(&kept.flows), "{kept:?}");
    assert!((15_000..=16_384).contains(&kept.addresses), "{kept:?}");
    assert!((7_500..=8_192).contains(&kept.queries), "{kept:?}");
    assert!((900..=1_024).contains(&kept.learners), "{kept:?}");
    assert_eq!(kept.handshake_bytes, 64 * 6_000);
}

proptest::proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(
        bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300),
        port in proptest::sample::select(vec![53u16, 443, 9999]),
        is_tcp in proptest::bool::ANY,
        is_up in proptest::bool::ANY,
        cut in 0usize..60,
    ) {
        let mut classifier = classifier();
        let pair = pair(if is_tcp { protocol::TCP } else { protocol::UDP }, port);
        send(&mut classifier, at(0), &pair, true, &pair.packet(&query(7, "a.example"), 0));
        let mut packet = pair.packet(&bytes, 0);
        send(&mut classifier, at(0), &pair, is_up, &packet);
        packet.truncate(cut);
        send(&mut classifier, at(0), &pair, is_up, &packet);
        // A message with a right begin.
        let mut message = query(7, "a.example");
        message[2] = 0x81;
        message[7] = 3;
        message.extend(&bytes);
        send(&mut classifier, at(0), &pair, false, &pair.packet(&message, 0));
        let mut hello = client_hello("a.example", 3);
        let place = bytes.len() % hello.len();
        hello.truncate(place);
        hello.extend(&bytes);
        send(&mut classifier, at(0), &pair, is_up, &pair.segment(5, 0x10, &hello));
    }
}
