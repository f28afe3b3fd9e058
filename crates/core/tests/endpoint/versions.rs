//! Gateways of different versions: both ends report it, and a report costs little and proves nothing.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use keiro_core::{
    Endpoint, EndpointConfig, Event, Instant, PeerId,
    wire::{Features, Versions},
};

use crate::support::{
    self, Hello, Victim, address, drain, endpoint, feed, key, mend_first_mac, peer, version_reply,
};

/// An initiation of gateway 2 to gateway 1 in version 2.
fn initiation_of_version_2() -> Vec<u8> {
    let mut hello = Hello::new(2, 1, 1);
    hello.version = 2;
    hello.initiate().1
}

/// Gateway 1 that expects gateway 2 at its address.
fn responder() -> (Endpoint, PeerId) {
    let mut end = endpoint(1);
    let id = end.add_peer(Instant::ZERO, peer(2, Some(address(2))));
    (end, id)
}

/// Gateway 1 in a handshake that it has begun with gateway 2, and its initiation.
fn initiator() -> (Endpoint, PeerId, Vec<u8>) {
    let (mut end, id) = responder();
    end.handle_timeout(Instant::ZERO);
    let mut packets = drain(&mut end, Instant::ZERO).packets;
    (end, id, packets.pop().expect("an initiation").1)
}

fn mismatches(events: &[Event]) -> Vec<(Option<PeerId>, Versions, Versions)> {
    let mismatch = |event: &Event| match event {
        Event::VersionMismatch {
            peer, theirs, ours, ..
        } => Some((*peer, *theirs, *ours)),
        _ => None,
    };
    events.iter().filter_map(mismatch).collect()
}

#[test]
fn responder_reports_the_version_of_its_peer_and_answers_with_its_own() {
    let (mut end, id) = responder();
    let initiation = initiation_of_version_2();
    feed(&mut end, Instant::ZERO, address(2), &initiation);
    let output = drain(&mut end, Instant::ZERO);
    let (ours, theirs) = (Versions::only(1), Versions::only(2));
    assert_eq!(mismatches(&output.events), [(Some(id), theirs, ours)]);
    let [(to, reply)] = &output.packets[..] else {
        panic!("one answer: {:?}", output.packets);
    };
    assert_eq!(*to, address(2));
    assert_eq!(*reply, version_reply(1, 1, &initiation, 1));
    assert!(reply.len() < initiation.len());
    assert_eq!(
        support::drops(&end, &[id]).into_iter().collect::<Vec<_>>(),
        [("version", 1)]
    );
    assert_eq!(end.snapshot().stats.sent_version_replies, 1);
    assert_eq!(end.snapshot().stats.accepted_messages, 0);
}

#[test]
fn initiator_reports_the_versions_that_its_peer_answers_with() {
    let (mut end, id, initiation) = initiator();
    let reply = version_reply(2, 3, &initiation, 2);
    feed(&mut end, Instant::ZERO, address(2), &reply);
    let output = drain(&mut end, Instant::ZERO);
    let theirs = Versions::new(2, 3).expect("a range");
    assert_eq!(
        mismatches(&output.events),
        [(Some(id), theirs, Versions::only(1))]
    );
    assert!(output.packets.is_empty(), "an answer is not answered");
    assert_eq!(
        support::drops(&end, &[id]).into_iter().collect::<Vec<_>>(),
        [("version", 1)]
    );
}

#[test]
fn handshake_goes_on_after_a_version_reply() {
    let (mut end, id, initiation) = initiator();
    let reply = version_reply(2, 2, &initiation, 2);
    feed(&mut end, Instant::ZERO, address(2), &reply);
    let (mut raw, response, _) = support::respond(&initiation, 2, 1);
    feed(&mut end, Instant::ZERO, address(2), &response);
    assert_eq!(end.snapshot().stats.accepted_messages, 1);
    let packet = raw.packet(&support::message(0, 2, 0, b"hi"));
    feed(&mut end, Instant::ZERO, address(2), &packet);
    assert_eq!(drain(&mut end, Instant::ZERO).messages, [b"hi"]);
    assert_eq!(
        end.session(id).expect("it exists").features,
        Some(Features::NONE)
    );
}

#[test]
fn altered_or_foreign_version_replies_are_not_reported() {
    let (mut end, id, initiation) = initiator();
    let reply = version_reply(2, 2, &initiation, 2);
    for at in [1, 2, 3, 8, 23] {
        let mut altered = reply.clone();
        altered[at] ^= 1;
        feed(&mut end, Instant::ZERO, address(2), &altered);
    }
    // Of another gateway, and of another initiation.
    feed(
        &mut end,
        Instant::ZERO,
        address(2),
        &version_reply(2, 2, &initiation, 3),
    );
    let mut other = initiation.clone();
    other[140] ^= 1;
    feed(
        &mut end,
        Instant::ZERO,
        address(2),
        &version_reply(2, 2, &other, 2),
    );
    assert_eq!(support::drops(&end, &[id])["unauthentic"], 7);
    // One that says that they speak our version, or that no version is spoken.
    feed(
        &mut end,
        Instant::ZERO,
        address(2),
        &version_reply(1, 2, &initiation, 2),
    );
    assert_eq!(support::drops(&end, &[id])["malformed"], 1);
    feed(
        &mut end,
        Instant::ZERO,
        address(2),
        &version_reply(3, 2, &initiation, 2),
    );
    assert_eq!(support::drops(&end, &[id])["unauthentic"], 8);
    assert_eq!(mismatches(&drain(&mut end, Instant::ZERO).events), []);
}

#[test]
fn version_reply_after_the_handshake_is_not_reported() {
    let (mut end, id, initiation) = initiator();
    let (_, response, _) = support::respond(&initiation, 2, 1);
    feed(&mut end, Instant::ZERO, address(2), &response);
    feed(
        &mut end,
        Instant::ZERO,
        address(2),
        &version_reply(2, 2, &initiation, 2),
    );
    assert_eq!(mismatches(&drain(&mut end, Instant::ZERO).events), []);
    assert_eq!(support::drops(&end, &[id])["unknown_index"], 1);
}

#[test]
fn initiation_without_our_public_key_is_neither_answered_nor_reported() {
    let (mut end, id) = responder();
    let mut initiation = initiation_of_version_2();
    initiation[60] ^= 1;
    feed(&mut end, Instant::ZERO, address(2), &initiation);
    let output = drain(&mut end, Instant::ZERO);
    assert!(output.packets.is_empty());
    assert_eq!(mismatches(&output.events), []);
    assert_eq!(
        support::drops(&end, &[id]).into_iter().collect::<Vec<_>>(),
        [("bad_mac", 1)]
    );
}

#[test]
fn initiations_of_any_length_are_answered_by_less() {
    let (mut end, _) = responder();
    for len in [40, 164, 1400] {
        let mut initiation = vec![9; len];
        initiation[..2].copy_from_slice(&[1, 2]);
        mend_first_mac(&mut initiation, 1);
        feed(&mut end, Instant::ZERO, address(2), &initiation);
        let packets = drain(&mut end, Instant::ZERO).packets;
        assert_eq!(packets.len(), 1, "{len} bytes");
        assert!(packets[0].1.len() < len);
    }
    // Too short for two MACs.
    feed(&mut end, Instant::ZERO, address(2), &[[1, 2]; 19].concat());
    assert!(drain(&mut end, Instant::ZERO).packets.is_empty());
    assert_eq!(end.snapshot().drops.truncated, 1);
}

/// Where an honest peer of another version is, and where it is not known.
const KNOWN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7)), 7600);
const UNKNOWN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9)), 7600);

/// How long the flood is there before them, in milliseconds.
const LEAD: u32 = 200;

type AddressOf = fn(u32) -> SocketAddr;

/// Another address for every packet.
fn forged(number: u32) -> SocketAddr {
    SocketAddr::from((number.wrapping_mul(2_654_435_761).to_be_bytes(), 7600))
}

/// The networks of one customer's /48, each of which asks twice.
fn customer(number: u32) -> SocketAddr {
    let subnet = (number / 2).to_be_bytes();
    let subnet = u16::from_be_bytes([subnet[2], subnet[3]]);
    SocketAddr::from(([0x2001, 0xdb8, 1, subnet, 0, 0, 0, 1], 7600))
}

/// What an endpoint does about a flood of another version beside two peers of that version, one at an address that
/// it knows and one elsewhere. Both try again as gateways do.
#[derive(Debug)]
struct Flooded {
    /// Milliseconds until each was answered: the known one, and the other.
    answered: [u32; 2],
    /// And until the known one was named.
    named: u32,
    replies_per_second: u64,
}

fn flooded(per_millisecond: u32, of: AddressOf) -> Flooded {
    let mut end = endpoint(1);
    let known = end.add_peer(Instant::ZERO, peer(2, Some(KNOWN)));
    end.add_peer(Instant::ZERO, peer(3, None));
    let initiation = initiation_of_version_2();
    let (mut answered, mut named) = ([None; 2], None);
    let mut number = 0;
    let tries = [0, 500, 1500, 3500, 7500];
    for millisecond in 0..9_000u32 {
        let now = Instant::from_nanos(u64::from(millisecond) * 1_000_000);
        for place in 0..per_millisecond {
            let is_try = tries.map(|at| at + LEAD).contains(&millisecond);
            // Honest packets come somewhere in the middle of the others.
            if is_try && place == per_millisecond / 2 {
                for honest in [KNOWN, UNKNOWN] {
                    feed(&mut end, now, honest, &initiation);
                }
            }
            let packet = &mut initiation.clone();
            end.handle_datagram(now, support::meta(now, of(number)), packet);
            number += 1;
        }
        end.handle_timeout(now);
        let output = drain(&mut end, now);
        let since = millisecond.saturating_sub(LEAD);
        for (to, packet) in &output.packets {
            let place = [KNOWN, UNKNOWN].iter().position(|honest| honest == to);
            if let Some(place) = place.filter(|_| packet[0] == 5) {
                answered[place].get_or_insert(since);
            }
        }
        let reports = mismatches(&output.events);
        if reports.iter().any(|(peer, ..)| *peer == Some(known)) {
            named.get_or_insert(since);
        }
        if let ([Some(first), Some(second)], Some(named)) = (answered, named) {
            end.check_invariants();
            let seconds = u64::from(millisecond / 1000 + 1);
            return Flooded {
                answered: [first, second],
                named,
                replies_per_second: end.snapshot().stats.sent_version_replies / seconds,
            };
        }
    }
    panic!("answered {answered:?}, named {named:?}");
}

#[test]
fn flood_of_another_version_keeps_no_peer_of_another_release_from_being_answered_and_named() {
    // The peer at no known address asks again once, or twice if it has bad luck.
    for (per_millisecond, of, within) in [
        (1, forged as AddressOf, 600),
        (20, forged, 600),
        (150, forged, 2000),
        (20, customer, 600),
        (150, customer, 600),
    ] {
        let flooded = flooded(per_millisecond, of);
        let shown = format!("{per_millisecond} per ms: {flooded:?}");
        assert!(flooded.answered[0] <= 1 && flooded.named <= 1, "{shown}");
        assert!(flooded.answered[1] <= within, "{shown}");
        assert!(flooded.replies_per_second <= 20_200, "{shown}");
    }
}

#[test]
fn flood_of_another_version_is_reported_once_a_minute_and_costs_cookies_nothing() {
    let (mut end, _) = responder();
    let initiation = initiation_of_version_2();
    let flood = |end: &mut Endpoint, now: Instant| {
        let (mut replies, mut reports) = (0, Vec::new());
        for number in 0..3000u16 {
            feed(end, now, address(1000 + number), &initiation);
            let output = drain(end, now);
            replies += output.packets.len();
            reports.extend(mismatches(&output.events));
        }
        (replies, reports)
    };
    let report = (None, Versions::only(2), Versions::only(1));
    let mut now = Instant::ZERO;
    // A hundred without load, and a hundred of strangers in ten milliseconds.
    assert_eq!(flood(&mut end, now), (200, vec![report]));
    // And a hundred of those that ask again.
    now += Duration::from_secs(1);
    assert_eq!(flood(&mut end, now), (300, vec![]));
    now += Duration::from_secs(59);
    assert_eq!(flood(&mut end, now), (300, vec![report]));
    assert_eq!(end.snapshot().drops.version, 9000, "every one is counted");
    // It costs honest peers nothing: one of our version is answered in the same second.
    let (_, honest) = Hello::new(2, 1, 1).initiate();
    feed(&mut end, now, address(2), &honest);
    assert_eq!(drain(&mut end, now).packets[0].1[0], 2);
    assert_eq!(end.snapshot().stats.accepted_messages, 1);
}

/// One who forges a known peer's address gets no more than that address's share and a stranger's.
#[test]
fn flood_in_the_name_of_a_peer_names_it_and_leaves_the_others_their_answers() {
    let (mut end, id) = responder();
    let initiation = initiation_of_version_2();
    let other = end.add_peer(Instant::ZERO, peer(3, Some(address(3))));
    let now = Instant::ZERO;
    for _ in 0..3000 {
        feed(&mut end, now, address(2), &initiation);
    }
    let first = drain(&mut end, now);
    assert_eq!(first.packets.len(), 20 + 100 + 25);
    feed(&mut end, now, address(3), &initiation);
    let second = drain(&mut end, now);
    assert_eq!(second.packets.len(), 1);
    let named = [first, second].map(|output| mismatches(&output.events)[0].0);
    assert_eq!(named, [Some(id), Some(other)]);
}

#[test]
fn mismatch_of_a_peer_is_reported_again_after_a_minute() {
    let (mut end, id) = responder();
    let initiation = initiation_of_version_2();
    let mut reported_at = Vec::new();
    for second in 0..=120 {
        let now = Instant::ZERO + Duration::from_secs(second);
        feed(&mut end, now, address(2), &initiation);
        // A sender at no peer's address has a limit of its own.
        feed(&mut end, now, address(3), &initiation);
        for (peer, ..) in mismatches(&drain(&mut end, now).events) {
            reported_at.push((second, peer));
        }
    }
    let expected = [0, 60, 120].map(|second| [(second, Some(id)), (second, None)]);
    assert_eq!(reported_at, expected.concat());
}

#[test]
fn forged_initiation_says_nothing_of_a_peer_that_is_up() {
    let mut victim = Victim::new();
    victim.give(&initiation_of_version_2());
    let reported = mismatches(&victim.hear().events);
    assert_eq!(reported, [(None, Versions::only(2), Versions::only(1))]);
    victim.assert_alive();
}

#[test]
fn features_that_both_sides_have_are_in_force() {
    for (theirs, effective) in [
        (0, Features::NONE),
        (1, Features::VERSION_REPLY),
        // Those that only the other side knows are ignored.
        (0xffff, Features::SUPPORTED),
        (0xfffe, Features::from_bits(30)),
        (0xfffc, Features::from_bits(28)),
        (0xfff8, Features::from_bits(24)),
        (0xfff0, Features::ORDERED_PACKETS),
        (0xffe0, Features::NONE),
    ] {
        let mut end = Endpoint::new(Instant::ZERO, EndpointConfig::new(key(1)), [1; 32]);
        let id = end.add_peer(Instant::ZERO, peer(2, None));
        assert_eq!(end.session(id).expect("it exists").features, None);
        let mut hello = Hello::new(2, 1, 1);
        hello.features = theirs;
        let (state, initiation) = hello.initiate();
        feed(&mut end, Instant::ZERO, address(2), &initiation);
        let response = drain(&mut end, Instant::ZERO).packets.remove(0).1;
        let mut raw = support::Raw::new(state, &response);
        assert_eq!(raw.features, Features::SUPPORTED.bits());
        feed(&mut end, Instant::ZERO, address(2), &raw.packet(&[1]));
        assert_eq!(
            end.session(id).expect("it exists").features,
            Some(effective),
            "{theirs:#x}"
        );
    }
}
