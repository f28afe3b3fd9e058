//! Cookie defence: a flood of handshakes from forged addresses costs little and shuts no peer out.

use std::time::Duration;

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

/// Brings the responder above its limit.
fn load(end: &mut Endpoint, now: Instant) {
    let packet = &strangers_initiations(1)[0];
    for number in 0..=LIMIT as u16 {
        feed(end, now, address(1000 + number), packet);
    }
    drain(end, now);
}

/// The one packet that an initiation is answered with, if any.
fn answer(end: &mut Endpoint, now: Instant, from: u16, packet: &[u8]) -> Option<Vec<u8>> {
    feed(end, now, address(from), packet);
    let mut packets = drain(end, now).packets;
    packets.retain(|(to, packet)| *to == address(from) && packet[0] != 4);
    assert!(packets.len() <= 1);
    packets.pop().map(|(_, packet)| packet)
}

fn cookie_for(end: &mut Endpoint, now: Instant, from: u16, timestamp: u64) -> [u8; 16] {
    let (_, initiation) = Hello::new(2, 1, timestamp).initiate();
    let reply = answer(end, now, from, &initiation).expect("a cookie reply");
    open_cookie(&reply, &initiation, 1)
}

#[test]
fn flood_gets_cookies_and_neither_work_nor_memory_nor_amplification() {
    let (mut end, _) = responder();
    let packets = strangers_initiations(16);
    let now = Instant::from_nanos(1);
    let flood = 3000u16;
    for number in 0..flood {
        feed(
            &mut end,
            now,
            address(number),
            &packets[usize::from(number) % 16],
        );
    }
    let snapshot = end.snapshot();
    assert_eq!(snapshot.stats.accepted_messages, 0);
    // Only these were read, which takes the Diffie-Hellman operations.
    assert_eq!(snapshot.drops.foreign_key, u64::from(LIMIT));
    let output = drain(&mut end, now);
    assert!(!output.packets.is_empty());
    assert!(output.packets.len() <= 256, "{}", output.packets.len());
    assert_eq!(snapshot.stats.sent_cookies, output.packets.len() as u64);
    let unanswered = snapshot.drops.rate_limited;
    let counted = snapshot.stats.sent_cookies + unanswered + u64::from(LIMIT);
    assert_eq!(counted, u64::from(flood), "every one is counted");
    let mut answered = std::collections::BTreeSet::new();
    for (to, reply) in &output.packets {
        assert_eq!((reply[0], reply.len()), (3, 64));
        assert!(reply.len() < INITIATION_LEN);
        assert!(answered.insert(*to), "one answer for one packet");
    }
    assert!(end.is_drained());
}

#[test]
fn cookies_of_a_second_are_bounded_and_come_again_in_the_next() {
    let (mut end, _) = responder();
    let packets = strangers_initiations(16);
    let flood = |end: &mut Endpoint, now: Instant| {
        let before = end.snapshot().stats.sent_cookies;
        for number in 0..3000u16 {
            let packet = &packets[usize::from(number) % 16];
            feed(end, now, address(number), packet);
            drain(end, now);
        }
        end.snapshot().stats.sent_cookies - before
    };
    assert_eq!(flood(&mut end, Instant::from_nanos(1)), 1000);
    assert_eq!(flood(&mut end, Instant::from_nanos(2_000_000_000)), 1000);
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
fn cookie_is_good_for_its_own_address_only() {
    let (mut end, _) = responder();
    let now = Instant::from_nanos(1);
    load(&mut end, now);
    let cookie = cookie_for(&mut end, now, 50, 1);
    let mut hello = Hello::new(2, 1, 2);
    hello.cookie = Some(cookie);
    let (_, initiation) = hello.initiate();
    let before = end.snapshot().stats.sent_cookies;
    let elsewhere = answer(&mut end, now, 51, &initiation).expect("an answer");
    assert_eq!(elsewhere[0], 3);
    let mut other_port = address(50);
    other_port.set_port(7601);
    feed(&mut end, now, other_port, &initiation);
    assert_eq!(drain(&mut end, now).packets[0].1[0], 3);
    assert_eq!(end.snapshot().stats.sent_cookies, before + 2);
    assert_eq!(end.snapshot().stats.accepted_messages, 0);
    let here = answer(&mut end, now, 50, &initiation).expect("an answer");
    assert_eq!(here[0], 2);
    assert_eq!(end.snapshot().stats.accepted_messages, 1);
    assert_eq!(end.snapshot().stats.sent_cookies, before + 2);
}

#[test]
fn altered_cookie_is_none() {
    let (mut end, _) = responder();
    let now = Instant::from_nanos(1);
    load(&mut end, now);
    let mut hello = Hello::new(2, 1, 2);
    let mut cookie = cookie_for(&mut end, now, 50, 1);
    cookie[3] ^= 1;
    hello.cookie = Some(cookie);
    let reply = answer(&mut end, now, 50, &hello.initiate().1).expect("an answer");
    assert_eq!(reply[0], 3);
}

#[test]
fn no_cookie_is_asked_when_the_load_ends() {
    let (mut end, _) = responder();
    let mut now = Instant::from_nanos(1);
    load(&mut end, now);
    cookie_for(&mut end, now, 50, 1);
    let cookies = end.snapshot().stats.sent_cookies;
    now += Duration::from_secs(1);
    let (_, initiation) = Hello::new(2, 1, 2).initiate();
    let reply = answer(&mut end, now, 50, &initiation).expect("an answer");
    assert_eq!(reply[0], 2);
    assert_eq!(end.snapshot().stats.sent_cookies, cookies);
}

#[test]
fn cookie_ends_with_the_secrets_behind_it() {
    let (mut end, _) = responder();
    let mut now = Instant::from_nanos(1);
    load(&mut end, now);
    let mut hello = Hello::new(2, 1, 2);
    hello.cookie = Some(cookie_for(&mut end, now, 50, 1));
    for _ in 0..2 {
        now += Duration::from_secs(121);
        load(&mut end, now);
    }
    let reply = answer(&mut end, now, 50, &hello.initiate().1).expect("an answer");
    assert_eq!(reply[0], 3, "a new cookie is offered");
}

#[test]
fn verified_address_has_a_limit_too() {
    let (mut end, _) = responder();
    let now = Instant::from_nanos(1);
    load(&mut end, now);
    let cookie = cookie_for(&mut end, now, 50, 1);
    let answers = (2..20u64).filter(|timestamp| {
        let mut hello = Hello::new(2, 1, *timestamp);
        hello.cookie = Some(cookie);
        answer(&mut end, now, 50, &hello.initiate().1).is_some()
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
