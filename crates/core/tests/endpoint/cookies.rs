//! Cookie defence: a flood of handshakes from forged addresses costs little and shuts no peer out.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use keiro_core::{Endpoint, EndpointConfig, Instant, PeerId};

use crate::support::{
    self, Hello, address, cookie_reply, drain, endpoint, feed, key, macs_are_right, open_cookie,
    peer, respond,
};

const LIMIT: u32 = 20;
const INITIATION_LEN: usize = 164;

/// Gateway 1 with gateway 2 as its peer.
fn responder() -> (Endpoint, PeerId) {
    let mut config = EndpointConfig::new(key(1));
    config.handshakes_per_second_max = LIMIT;
    let mut end = Endpoint::new(Instant::ZERO, config, [1; 32]);
    let peer = end.add_peer(Instant::ZERO, peer(2, None));
    (end, peer)
}

/// Initiations to gateway 1 that real endpoints with keys of strangers have made.
fn strangers_initiations(count: u8) -> Vec<Vec<u8>> {
    (0..count)
        .map(|number| {
            let mut stranger = endpoint(100 + number);
            stranger.add_peer(Instant::ZERO, peer(1, Some(address(1))));
            stranger.handle_timeout(Instant::ZERO);
            let mut output = drain(&mut stranger, Instant::ZERO);
            output.packets.pop().expect("an initiation").1
        })
        .collect()
}

/// Brings the responder above its limit. Reading what it admits takes some time.
fn load(end: &mut Endpoint, now: &mut Instant) {
    let packet = &strangers_initiations(1)[0];
    for number in 0..=LIMIT as u16 {
        feed(end, *now, address(1000 + number), packet);
    }
    pass(end, now, 20);
}

/// Lets `milliseconds` pass; what is sent meanwhile.
fn pass(end: &mut Endpoint, now: &mut Instant, milliseconds: u32) -> Vec<(SocketAddr, Vec<u8>)> {
    let mut packets = drain(end, *now).packets;
    for _ in 0..milliseconds {
        *now += Duration::from_millis(1);
        end.handle_timeout(*now);
        packets.extend(drain(end, *now).packets);
    }
    packets
}

/// The one packet that an initiation is answered with, if any.
fn answer(end: &mut Endpoint, now: &mut Instant, from: u16, packet: &[u8]) -> Option<Vec<u8>> {
    feed(end, *now, address(from), packet);
    let mut packets = pass(end, now, 2);
    packets.retain(|(to, packet)| *to == address(from) && packet[0] != 4);
    assert!(packets.len() <= 1);
    packets.pop().map(|(_, packet)| packet)
}

fn cookie_for(end: &mut Endpoint, now: &mut Instant, from: u16, timestamp: u64) -> [u8; 16] {
    let (_, initiation) = Hello::new(2, 1, timestamp).initiate();
    let reply = answer(end, now, from, &initiation).expect("a cookie reply");
    open_cookie(&reply, &initiation, 1)
}

#[test]
fn flood_gets_cookies_and_neither_work_nor_memory_nor_amplification() {
    let (mut end, _) = responder();
    let packets = strangers_initiations(16);
    let mut now = Instant::from_nanos(1);
    let flood = 3000u16;
    for number in 0..flood {
        feed(
            &mut end,
            now,
            address(number),
            &packets[usize::from(number) % 16],
        );
    }
    // A few are read at once, which takes the Diffie-Hellman operations; the others wait.
    let snapshot = end.snapshot();
    assert_eq!(snapshot.stats.read_initiations, 4);
    assert_eq!(snapshot.stats.waiting_initiations, u64::from(LIMIT) - 4);
    let output = pass(&mut end, &mut now, 20);
    let snapshot = end.snapshot();
    assert_eq!(snapshot.stats.accepted_messages, 0);
    assert_eq!(snapshot.stats.waiting_initiations, 0);
    assert_eq!(snapshot.stats.read_initiations, u64::from(LIMIT));
    assert_eq!(snapshot.drops.foreign_key, u64::from(LIMIT));
    assert!(!output.is_empty());
    assert!(output.len() <= 256, "{}", output.len());
    assert_eq!(snapshot.stats.sent_cookies, output.len() as u64);
    let unanswered = snapshot.drops.rate_limited;
    let counted = snapshot.stats.sent_cookies + unanswered + u64::from(LIMIT);
    assert_eq!(counted, u64::from(flood), "every one is counted");
    let mut answered = std::collections::BTreeSet::new();
    for (to, reply) in &output {
        assert_eq!((reply[0], reply.len()), (3, 64));
        assert!(reply.len() < INITIATION_LEN);
        assert!(answered.insert(*to), "one answer for one packet");
    }
    assert!(end.is_drained());
}

/// Floods the responder evenly, each packet from another address, beside an honest peer whose address it
/// does not know and who begins after a second. When that peer is up, and the cookies sent by then.
fn flooded(end: &mut Endpoint, id: PeerId, per_millisecond: u32, of: AddressOf) -> (u32, u64) {
    flooded_with(end, id, per_millisecond, of, |_| true)
}

/// The same where only these packets of the responder reach the peer.
fn flooded_with(
    end: &mut Endpoint,
    id: PeerId,
    per_millisecond: u32,
    of: AddressOf,
    passes: fn(&[u8]) -> bool,
) -> (u32, u64) {
    let packets = strangers_initiations(16);
    let mut honest = endpoint(2);
    honest.add_peer(Instant::ZERO, peer(1, Some(address(1))));
    let (mut to_end, mut to_honest) = (Vec::new(), Vec::new());
    let mut number = 0u32;
    for millisecond in 0..10_000 {
        let now = Instant::from_nanos(u64::from(millisecond) * 1_000_000);
        for place in 0..per_millisecond {
            // Honest packets come somewhere in the middle of the others.
            if place == number % per_millisecond {
                for packet in std::mem::take(&mut to_end) {
                    let packet: Vec<u8> = packet;
                    feed(end, now, HONEST, &packet);
                }
            }
            let packet = &mut packets[number as usize % 16].clone();
            end.handle_datagram(now, support::meta(now, of(number)), packet);
            number += 1;
        }
        for packet in std::mem::take(&mut to_honest) {
            let packet: Vec<u8> = packet;
            feed(&mut honest, now, address(1), &packet);
        }
        end.handle_timeout(now);
        let replies = drain(end, now).packets.into_iter();
        let to_peer = replies.filter(|(to, packet)| *to == HONEST && passes(packet));
        to_honest.extend(to_peer.map(|(_, packet)| packet));
        if millisecond >= 1000 {
            honest.handle_timeout(now);
            to_end.extend(drain(&mut honest, now).packets.into_iter().map(|(_, p)| p));
        }
        if end.session(id).is_some_and(|session| session.up) {
            return (millisecond - 1000, end.snapshot().stats.sent_cookies);
        }
    }
    panic!("the peer does not get through");
}

type AddressOf = fn(u32) -> SocketAddr;

const HONEST: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7)), 7600);

/// Another address for every packet.
fn forged(number: u32) -> SocketAddr {
    SocketAddr::from((number.wrapping_mul(2_654_435_761).to_be_bytes(), 7600))
}

#[test]
fn newcomer_gets_through_a_flood_from_forged_addresses() {
    for (per_millisecond, up_within) in [(1, 500), (20, 2000), (150, 5000)] {
        let (mut end, id) = responder();
        let (up, cookies) = flooded(&mut end, id, per_millisecond, forged);
        assert!(up < up_within, "{per_millisecond} per ms: up after {up} ms");
        // Replies are spread over the second, and their number is bounded.
        let seconds = u64::from(up) / 1000 + 2;
        assert!(cookies <= seconds * 20_000, "{cookies} cookies");
        let stats = end.snapshot().stats;
        let read = seconds * u64::from(LIMIT) + 5;
        assert!(stats.read_initiations <= read, "{stats:?}");
    }
}

#[test]
fn newcomer_gets_through_a_flood_that_asks_again_and_again() {
    // Each address asks twice, or many or a few addresses ask without end.
    let twice = |number: u32| forged(number / 2);
    let many = |number: u32| forged(number % 10_000);
    let few = |number: u32| forged(number % 300);
    for of in [twice as AddressOf, many, few] {
        let (mut end, id) = responder();
        let (up, _) = flooded(&mut end, id, 20, of);
        assert!(up < 2000, "up after {up} ms");
    }
}

#[test]
fn flood_in_a_peers_name_does_not_shut_it_out() {
    let (mut end, _) = responder();
    let id = end.add_peer(Instant::ZERO, peer(2, Some(HONEST)));
    let (up, _) = flooded(&mut end, id, 20, |_| HONEST);
    assert!(up < 2000, "up after {up} ms");
}

/// A firewall before the peer has forgotten it, so that it must begin.
#[test]
fn flood_in_the_name_of_a_peer_that_must_begin_does_not_shut_it_out() {
    let (mut end, _) = responder();
    let id = end.add_peer(Instant::ZERO, peer(2, Some(HONEST)));
    let is_no_initiation = |packet: &[u8]| packet[0] != 1;
    let (up, cookies) = flooded_with(&mut end, id, 20, |_| HONEST, is_no_initiation);
    assert!(up < 5000, "up after {up} ms");
    assert!(cookies <= (u64::from(up) / 1000 + 2) * 20_000, "{cookies}");
}

/// What is under keys that are agreed on needs no handshake, wherever it comes from; and the next keys
/// are agreed on from there.
#[test]
fn peer_that_moves_during_a_flood_is_served_at_its_new_address() {
    let (mut end, id) = responder();
    let mut moving = endpoint(2);
    let moving_peer = moving.add_peer(Instant::ZERO, peer(1, Some(address(1))));
    let packets = strangers_initiations(16);
    let mut new_port = HONEST;
    new_port.set_port(7601);
    let places = [HONEST, new_port, SocketAddr::from(([192, 0, 2, 77], 7600))];
    let (mut to_end, mut to_moving) = (Vec::new(), Vec::new());
    let mut number = 0;
    // Keys are replaced every two minutes; it is somewhere else for some of these times.
    for millisecond in 0..450_000u64 {
        let now = Instant::from_nanos(millisecond * 1_000_000);
        let is_step = millisecond % 25 == 0;
        if !is_step {
            continue;
        }
        let place = places[(millisecond / 150_000) as usize];
        // 2,000 a second.
        for _ in 0..50 * u32::from(millisecond > 5000) {
            let packet = &mut packets[number as usize % 16].clone();
            end.handle_datagram(now, support::meta(now, forged(number)), packet);
            number += 1;
        }
        for packet in std::mem::take(&mut to_end) {
            let packet: Vec<u8> = packet;
            feed(&mut end, now, place, &packet);
        }
        for packet in std::mem::take(&mut to_moving) {
            let packet: Vec<u8> = packet;
            feed(&mut moving, now, address(1), &packet);
        }
        end.handle_timeout(now);
        moving.handle_timeout(now);
        let output = drain(&mut end, now).packets.into_iter();
        let to_peer = output.filter(|(to, _)| *to == place);
        to_moving.extend(to_peer.map(|(_, packet)| packet));
        to_end.extend(drain(&mut moving, now).packets.into_iter().map(|(_, p)| p));
        if millisecond > 5000 && millisecond % 150_000 > 5000 {
            let is_up = |end: &Endpoint, id| end.session(id).is_some_and(|session| session.up);
            assert!(is_up(&end, id), "{millisecond} ms");
            assert!(is_up(&moving, moving_peer), "{millisecond} ms");
        }
    }
    let [of_end, of_moving] = [&end, &moving].map(|end| end.snapshot().stats.accepted_messages);
    assert!(of_end >= 3 && of_moving >= 3, "{of_end}, {of_moving}");
    assert!(end.snapshot().stats.sent_cookies > 10_000);
}

#[test]
fn peers_known_address_needs_no_cookie_and_strangers_take_none_of_its_replies() {
    let (mut end, _) = responder();
    let id = end.add_peer(Instant::ZERO, peer(2, Some(HONEST)));
    let (up, _) = flooded(&mut end, id, 150, forged);
    assert!(up < 10, "up after {up} ms");
}

/// One customer's /48 has more networks than are counted, and can receive at each of them.
#[test]
fn networks_of_one_customer_do_not_shut_out_others_who_proved_their_address() {
    let (mut end, _) = responder();
    let mut now = Instant::from_nanos(1);
    let own = |number: u16| {
        let ip = Ipv6Addr::new(0x2001, 0xdb8, 1, number, 0, 0, 0, 1);
        SocketAddr::from((ip, 7600))
    };
    let packet = &strangers_initiations(1)[0];
    let mut cookies: Vec<[u8; 16]> = Vec::new();
    while cookies.len() < 1300 {
        load(&mut end, &mut now);
        // None comes where another second has begun.
        let from = own(cookies.len() as u16);
        feed(&mut end, now, from, packet);
        let replies = pass(&mut end, &mut now, 0).into_iter();
        let mut replies = replies.filter(|(to, _)| *to == from);
        cookies.extend(
            replies
                .next()
                .map(|(_, reply)| open_cookie(&reply, packet, 1)),
        );
    }
    let honest = cookie_for(&mut end, &mut now, 50, 1);
    let mut answered = 0;
    for second in 0..5u64 {
        load(&mut end, &mut now);
        for (number, cookie) in cookies.iter().enumerate() {
            let mut hello = Hello::new(102, 1, second);
            hello.cookie = Some(*cookie);
            end.handle_datagram(
                now,
                support::meta(now, own(number as u16)),
                &mut hello.initiate().1,
            );
        }
        let mut hello = Hello::new(2, 1, 2 + second);
        hello.cookie = Some(honest);
        let reply = answer(&mut end, &mut now, 50, &hello.initiate().1);
        answered += usize::from(reply.is_some_and(|reply| reply[0] == 2));
        end.check_invariants();
        pass(&mut end, &mut now, 1000);
    }
    assert_eq!(answered, 5);
}

#[test]
fn initiations_are_read_a_few_at_a_time() {
    let (mut end, _) = responder();
    let mut now = Instant::from_nanos(1);
    let packets = strangers_initiations(16);
    for number in 0..LIMIT as u16 {
        feed(
            &mut end,
            now,
            address(number),
            &packets[usize::from(number) % 16],
        );
    }
    let mut read = end.snapshot().stats.read_initiations;
    assert_eq!(read, 4);
    while end.snapshot().stats.waiting_initiations > 0 {
        let due = end.poll_timeout().expect("one waits");
        assert!(due <= now + Duration::from_millis(1));
        pass(&mut end, &mut now, 1);
        let next = end.snapshot().stats.read_initiations;
        assert!(next <= read + 1, "{next} after {read}");
        read = next;
    }
    assert_eq!(read, u64::from(LIMIT));
}

#[test]
fn honest_peer_gets_through_during_a_flood() {
    let (mut end, responders_peer) = responder();
    let packets = strangers_initiations(16);
    let mut honest = endpoint(2);
    honest.add_peer(Instant::ZERO, peer(1, Some(address(1))));
    let (mut cookies, mut up_at) = (0, None);
    let mut to_end = Vec::new();
    let mut to_honest = Vec::new();
    let mut began = false;
    for millisecond in 0..2000u64 {
        let now = Instant::from_nanos(millisecond * 1_000_000);
        // 1,000 a second, from as many addresses.
        let number = millisecond as usize;
        feed(
            &mut end,
            now,
            address(1000 + millisecond as u16),
            &packets[number % 16],
        );
        for packet in std::mem::take(&mut to_end) {
            let packet: Vec<u8> = packet;
            feed(&mut end, now, address(2), &packet);
        }
        for packet in std::mem::take(&mut to_honest) {
            let packet: Vec<u8> = packet;
            cookies += usize::from(packet[0] == 3);
            feed(&mut honest, now, address(1), &packet);
        }
        end.handle_timeout(now);
        let replies = drain(&mut end, now).packets.into_iter();
        to_honest.extend(
            replies
                .filter(|(to, _)| *to == address(2))
                .map(|(_, packet)| packet),
        );
        if millisecond >= 300 {
            began = true;
            honest.handle_timeout(now);
            to_end.extend(drain(&mut honest, now).packets.into_iter().map(|(_, p)| p));
        }
        if end.session(responders_peer).is_some_and(|s| s.up) {
            up_at = Some(millisecond);
            break;
        }
    }
    assert!(began && cookies > 0, "{cookies} cookies");
    assert!(end.snapshot().stats.sent_cookies > 100);
    let up_at = up_at.expect("the peer gets through");
    assert!(up_at < 300 + 100, "up only at {up_at} ms");
}

#[test]
fn cookie_is_valid_for_its_own_address_only() {
    let (mut end, _) = responder();
    let mut now = Instant::from_nanos(1);
    load(&mut end, &mut now);
    let cookie = cookie_for(&mut end, &mut now, 50, 1);
    let mut hello = Hello::new(2, 1, 2);
    hello.cookie = Some(cookie);
    let (_, initiation) = hello.initiate();
    let before = end.snapshot().stats.sent_cookies;
    let elsewhere = answer(&mut end, &mut now, 51, &initiation).expect("an answer");
    assert_eq!(elsewhere[0], 3);
    let mut other_port = address(50);
    other_port.set_port(7601);
    feed(&mut end, now, other_port, &initiation);
    assert_eq!(drain(&mut end, now).packets[0].1[0], 3);
    assert_eq!(end.snapshot().stats.sent_cookies, before + 2);
    assert_eq!(end.snapshot().stats.accepted_messages, 0);
    let here = answer(&mut end, &mut now, 50, &initiation).expect("an answer");
    assert_eq!(here[0], 2);
    assert_eq!(end.snapshot().stats.accepted_messages, 1);
    assert_eq!(end.snapshot().stats.sent_cookies, before + 2);
}

#[test]
fn altered_cookie_is_refused() {
    let (mut end, _) = responder();
    let mut now = Instant::from_nanos(1);
    load(&mut end, &mut now);
    let mut hello = Hello::new(2, 1, 2);
    let mut cookie = cookie_for(&mut end, &mut now, 50, 1);
    cookie[3] ^= 1;
    hello.cookie = Some(cookie);
    let reply = answer(&mut end, &mut now, 50, &hello.initiate().1).expect("an answer");
    assert_eq!(reply[0], 3);
}

#[test]
fn no_cookie_is_required_after_the_load_ends() {
    let (mut end, _) = responder();
    let mut now = Instant::from_nanos(1);
    load(&mut end, &mut now);
    cookie_for(&mut end, &mut now, 50, 1);
    let cookies = end.snapshot().stats.sent_cookies;
    now += Duration::from_secs(1);
    let (_, initiation) = Hello::new(2, 1, 2).initiate();
    let reply = answer(&mut end, &mut now, 50, &initiation).expect("an answer");
    assert_eq!(reply[0], 2);
    assert_eq!(end.snapshot().stats.sent_cookies, cookies);
}

#[test]
fn cookie_expires_with_its_secret() {
    let (mut end, _) = responder();
    let mut now = Instant::from_nanos(1);
    load(&mut end, &mut now);
    let mut hello = Hello::new(2, 1, 2);
    hello.cookie = Some(cookie_for(&mut end, &mut now, 50, 1));
    for _ in 0..2 {
        now += Duration::from_secs(121);
        load(&mut end, &mut now);
    }
    let reply = answer(&mut end, &mut now, 50, &hello.initiate().1).expect("an answer");
    assert_eq!(reply[0], 3, "a new cookie is offered");
}

#[test]
fn verified_addresses_are_rate_limited_too() {
    let (mut end, _) = responder();
    let mut now = Instant::from_nanos(1);
    load(&mut end, &mut now);
    let cookie = cookie_for(&mut end, &mut now, 50, 1);
    let answers = (2..20u64).filter(|timestamp| {
        let mut hello = Hello::new(2, 1, *timestamp);
        hello.cookie = Some(cookie);
        answer(&mut end, &mut now, 50, &hello.initiate().1).is_some()
    });
    assert_eq!(answers.count(), 5);
    assert_eq!(end.snapshot().drops.rate_limited, 13);
}

/// The other side is the second implementation: it asks for a cookie, then answers.
#[test]
fn endpoint_begins_again_at_once_with_the_cookie_that_it_got() {
    let mut end = endpoint(1);
    let id = end.add_peer(Instant::ZERO, peer(2, Some(address(2))));
    let begin = |end: &mut Endpoint, now| {
        end.handle_timeout(now);
        let mut packets = drain(end, now).packets;
        assert_eq!(packets.len(), 1);
        packets.pop().expect("one").1
    };
    let mut now = Instant::ZERO;
    let first = begin(&mut end, now);
    assert!(macs_are_right(&first, 2, None));
    let cookie = [0xc0; 16];
    feed(&mut end, now, address(2), &cookie_reply(cookie, &first, 2));
    now += Duration::from_millis(1);
    let second = begin(&mut end, now);
    assert!(macs_are_right(&second, 2, Some(cookie)));
    let (_, _, before) = respond(&first, 2, 1);
    let (mut raw, response, after) = respond(&second, 2, 1);
    assert!(after > before, "time rises with every initiation");
    feed(&mut end, now, address(2), &response);
    assert_eq!(end.snapshot().stats.accepted_messages, 1);
    // A challenge goes out under the new key, and packets of the other side are taken.
    let packets = drain(&mut end, now).packets;
    assert!(packets.iter().any(|(_, packet)| raw.open(packet)[0] == 3));
    let packet = raw.packet(&support::message(0, 2, 0, b"hi"));
    feed(&mut end, now, address(2), &packet);
    assert_eq!(drain(&mut end, now).messages, [b"hi"]);
    assert!(support::drops(&end, &[id]).is_empty());
}
