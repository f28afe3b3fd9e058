//! What a gateway ignores, each reason by itself.

use std::time::Duration;

use keiro_core::{Endpoint, Event, Instant, MessageOutcome, PathState, wire::Frame, wire::Reader};

use crate::support::{
    self, Hello, Victim, acknowledgement, address, app, drain, drops, endpoint, feed, fragment,
    frame, mend_first_mac, message, message_drop, peer, varint,
};

/// Gateway 1 with a peer, gateway 2, that has not come yet.
fn fresh() -> (Endpoint, keiro_core::PeerId) {
    let mut end = endpoint(1);
    let id = end.add_peer(Instant::ZERO, peer(2, None));
    (end, id)
}

/// Gateway 1 in a handshake that it has begun with gateway 2, and its initiation.
fn waiting() -> (Endpoint, keiro_core::PeerId, Vec<u8>) {
    let mut end = endpoint(1);
    let id = end.add_peer(Instant::ZERO, peer(2, Some(address(2))));
    end.handle_timeout(Instant::ZERO);
    let initiation = drain(&mut end, Instant::ZERO)
        .packets
        .pop()
        .expect("an initiation");
    (end, id, initiation.1)
}

/// What gateway 2 answers to an initiation of gateway 1.
fn response_to(initiation: &[u8]) -> Vec<u8> {
    let mut other = endpoint(2);
    other.add_peer(Instant::ZERO, peer(1, None));
    feed(&mut other, Instant::ZERO, address(1), initiation);
    drain(&mut other, Instant::ZERO)
        .packets
        .pop()
        .expect("a response")
        .1
}

pub(crate) fn frames_of(bytes: &[u8]) -> Vec<Frame<'_>> {
    let mut reader = Reader::new(bytes);
    std::iter::from_fn(|| Frame::decode(&mut reader).expect("well-formed frames")).collect()
}

/// Exactly these are counted when `packets` arrive at gateway 1, which has only heard of its peer.
fn assert_counted(packets: &[Vec<u8>], reason: &'static str, count: u64) {
    let (mut end, id) = fresh();
    for packet in packets {
        feed(&mut end, Instant::ZERO, address(2), packet);
    }
    let counted: Vec<_> = drops(&end, &[id]).into_iter().collect();
    assert_eq!(counted, [(reason, count)]);
    assert!(drain(&mut end, Instant::ZERO).packets.is_empty());
}

#[test]
fn truncated_packets_are_counted() {
    let mut packets = vec![Vec::new()];
    for (kind, lengths) in [
        (1, &[1, 163, 165][..]),
        (2, &[1, 119, 121]),
        (3, &[1, 63, 65]),
        (5, &[1, 23, 25]),
        (4, &[1, 9, 10, 25]),
    ] {
        for len in lengths {
            let mut packet = vec![0; *len];
            packet[0] = kind;
            if kind == 1 && *len > 1 {
                packet[1] = 1;
            }
            packets.push(packet);
        }
    }
    assert_counted(&packets, "truncated", 17);
}

#[test]
fn packets_of_unknown_kind_are_counted() {
    let packets: Vec<_> = [0, 6, 0x45, 255].map(|kind| vec![kind; 200]).into();
    assert_counted(&packets, "unknown_kind", 4);
}

#[test]
fn unknown_receiver_indices_are_counted() {
    let packet = |kind, len| {
        let mut packet = vec![0; len];
        packet[0] = kind;
        packet
    };
    let packets = [packet(2, 120), packet(3, 64), packet(4, 26), packet(5, 24)];
    assert_counted(&packets, "unknown_index", 4);
}

#[test]
fn unauthentic_data_packets_are_counted() {
    let mut victim = Victim::new();
    let sealed = victim.raw.packet(&[1]);
    for index in [1, 6, 9, 10, sealed.len() - 1] {
        let mut altered = sealed.clone();
        // In the packet number, a bit that makes no number of before.
        altered[index] ^= if index == 9 { 0x40 } else { 1 };
        victim.give(&altered);
    }
    assert_eq!(victim.drops(), [("unauthentic", 5)]);
    victim.give(&sealed);
    victim.assert_alive();
    assert_eq!(victim.drops(), [("unauthentic", 5)]);
}

#[test]
fn unauthentic_initiations_are_counted() {
    let (_, mut initiation) = Hello::new(2, 1, 1).initiate();
    initiation[100] ^= 1;
    mend_first_mac(&mut initiation, 1);
    assert_counted(&[initiation], "unauthentic", 1);
}

#[test]
fn unauthentic_response_does_not_end_the_handshake() {
    let (mut end, id, initiation) = waiting();
    let response = response_to(&initiation);
    let mut forged = response.clone();
    forged[50] ^= 1;
    mend_first_mac(&mut forged, 1);
    feed(&mut end, Instant::ZERO, address(2), &forged);
    assert_eq!(drops(&end, &[id])["unauthentic"], 1);
    assert_eq!(end.snapshot().stats.accepted_messages, 0);
    feed(&mut end, Instant::ZERO, address(2), &response);
    assert_eq!(end.snapshot().stats.accepted_messages, 1);
    assert_eq!(drops(&end, &[id]).len(), 1);
}

#[test]
fn unauthentic_cookie_replies_are_counted() {
    let (mut end, id, initiation) = waiting();
    let mut reply = vec![3, 0, 0, 0];
    reply.extend_from_slice(&initiation[4..8]);
    reply.resize(64, 9);
    feed(&mut end, Instant::ZERO, address(2), &reply);
    let counted: Vec<_> = drops(&end, &[id]).into_iter().collect();
    assert_eq!(counted, [("unauthentic", 1)]);
    assert!(drain(&mut end, Instant::ZERO).packets.is_empty());
}

#[test]
fn replayed_packets_are_counted() {
    let mut victim = Victim::new();
    let body = message(0, 2, 0, b"hi");
    let packet = victim.raw.packet(&body);
    for _ in 0..3 {
        victim.give(&packet);
    }
    assert_eq!(victim.drops(), [("replayed", 2)]);
    assert_eq!(victim.hear().messages, [b"hi"]);
}

#[test]
fn packet_below_the_window_is_a_replay() {
    let mut victim = Victim::new();
    let first = victim.raw.next[&0];
    let (old, newer) = (
        victim.raw.packet_at(0, first, &[1]),
        victim.raw.packet_at(0, first + 1, &[1]),
    );
    let packet = victim.raw.packet_at(0, first + 8192, &[1]);
    victim.give(&packet);
    victim.give(&old);
    assert_eq!(victim.drops(), [("replayed", 1)]);
    victim.give(&newer);
    assert_eq!(victim.drops(), [("replayed", 1)]);
}

#[test]
fn replayed_over_another_path_is_not_authentic() {
    let mut victim = Victim::new();
    let mut packet = victim.raw.packet(&[1]);
    packet[1] = 9;
    victim.give(&packet);
    assert_eq!(victim.drops(), [("unauthentic", 1)]);
}

#[test]
fn malformed_frames_are_counted() {
    let mut victim = Victim::new();
    let (long, zero) = (varint(1 << 61), varint(0));
    let malformed = [
        // Types below 0x40 that are not known.
        vec![0x0c],
        vec![0x3f, 0],
        // Cut off: in a type, in fixed and variable fields, in a length that must be skipped.
        vec![0x40],
        vec![3, 1, 2, 3],
        vec![2, 0, 5],
        vec![9, 5],
        frame(0x41, &[&varint(5), b"abc"]),
        frame(0x41, &[&long, b"abc"]),
        frame(5, &[&app("datagrams"), &zero, &long, b"abc"]),
        // Parts that are empty, too long or not inside the whole.
        message(0, 10, 0, b""),
        message(0, 10, 9, b"ab"),
        message(0, 0, 0, b"a"),
        message(0, (16 << 20) + 9, 0, b"a"),
        message(0, u64::MAX >> 2, (u64::MAX >> 2) - 1, b"a"),
        fragment(0, 65_508, 0, b"a"),
        fragment(0, 10, 10, b"a"),
        message_drop(0, (16 << 20) + 9),
        // Acknowledgements: no range, too many ranges, ranges below zero.
        frame(2, &[&[0], &zero, &zero, &zero, &zero, &zero]),
        frame(
            2,
            &[&[0], &zero, &zero, &zero, &zero, &varint(33), &[0; 66]],
        ),
        frame(
            2,
            &[
                &[0],
                &varint(3),
                &zero,
                &zero,
                &zero,
                &varint(1),
                &varint(4),
            ],
        ),
    ];
    // Groups: a place outside, aggregates below zero, none or too many of anything, no parity.
    let protected = |number: u64, place: u8| sized(0x43, &[&[0], &varint(number), &[place]]);
    let parity = |data: u8, count: u8, index: u8, shard: &[u8]| {
        sized(0x44, &[&[0], &varint(7), &[data, count, index], shard])
    };
    let malformed = malformed.into_iter().chain([
        protected(100, 32),
        protected(3, 4),
        sized(0x43, &[&[0], &varint(3)]),
        [protected(8, 0), protected(9, 1)].concat(),
        parity(0, 2, 0, b"abcd"),
        parity(33, 2, 0, b"abcd"),
        parity(4, 65, 0, b"abcd"),
        parity(4, 2, 2, b"abcd"),
        parity(4, 2, 0, b"a"),
        sized(0x44, &[&[0], &long, &[4, 2]]),
    ]);
    for (index, frames) in malformed.enumerate() {
        victim.inject(&frames);
        let count = index as u64 + 1;
        assert_eq!(victim.drops(), [("malformed", count)], "{frames:02x?}");
    }
    assert!(victim.hear().messages.is_empty());
    assert_eq!(
        victim
            .end
            .session(victim.peer)
            .unwrap()
            .stats
            .reassembly_bytes,
        0
    );
    victim.assert_alive();
}

#[test]
fn frames_before_a_malformed_one_are_processed() {
    let mut victim = Victim::new();
    let mut frames = message(0, 2, 0, b"hi");
    frames.push(0x0c);
    frames.extend(message(1, 2, 0, b"no"));
    victim.inject(&frames);
    assert_eq!(victim.drops(), [("malformed", 1)]);
    assert_eq!(victim.hear().messages, [b"hi"]);
}

#[test]
fn acknowledgement_of_what_was_never_sent_is_malformed() {
    let mut victim = Victim::new();
    let sent = victim.end.session(victim.peer).unwrap().paths[0]
        .stats
        .sent_packets;
    for largest in [sent, sent + 100, u64::MAX >> 2] {
        victim.inject(&acknowledgement(largest));
    }
    assert_eq!(victim.drops(), [("malformed", 3)]);
    let path = &victim.end.session(victim.peer).unwrap().paths[0];
    assert_eq!(path.stats.acked_packets, 0);
    victim.assert_alive();
}

#[test]
fn message_whose_parts_contradict_each_other_is_given_up() {
    let mut victim = Victim::new();
    victim.inject(&message(0, 10, 0, b"hello"));
    victim.inject(&message(0, 11, 5, b"world!"));
    assert_eq!(victim.drops(), [("malformed", 1)]);
    assert_eq!(
        victim
            .end
            .session(victim.peer)
            .unwrap()
            .stats
            .reassembly_bytes,
        0
    );
    victim.inject(&message(0, 10, 5, b"world"));
    assert!(victim.hear().messages.is_empty());
    victim.assert_alive();
}

#[test]
fn initiations_of_unknown_keys_are_counted() {
    let (_, initiation) = Hello::new(77, 1, 1).initiate();
    assert_counted(&[initiation], "foreign_key", 1);
}

#[test]
fn initiations_with_a_bad_mac_are_counted() {
    let (_, mut for_another) = Hello::new(2, 3, 1).initiate();
    let (_, mut altered) = Hello::new(2, 1, 1).initiate();
    altered[140] ^= 1;
    for_another[150] ^= 1;
    assert_counted(&[for_another, altered], "bad_mac", 2);
}

#[test]
fn responses_with_a_bad_mac_are_counted() {
    let (mut end, id, initiation) = waiting();
    let mut response = response_to(&initiation);
    response[90] ^= 1;
    feed(&mut end, Instant::ZERO, address(2), &response);
    let counted: Vec<_> = drops(&end, &[id]).into_iter().collect();
    assert_eq!(counted, [("bad_mac", 1)]);
}

#[test]
fn stale_initiations_are_counted() {
    let (mut end, id) = fresh();
    let (_, newer) = Hello::new(2, 1, 9).initiate();
    let (_, older) = Hello::new(2, 1, 8).initiate();
    for packet in [&newer, &newer, &older] {
        feed(&mut end, Instant::ZERO, address(2), packet);
    }
    let counted: Vec<_> = drops(&end, &[id]).into_iter().collect();
    assert_eq!(counted, [("stale_handshake", 2)]);
    assert_eq!(end.snapshot().stats.accepted_messages, 1);
    assert_eq!(drain(&mut end, Instant::ZERO).packets.len(), 1);
}

/// Lets all initiations be read that wait; when they have been.
fn read_all(end: &mut Endpoint, mut now: Instant) -> Instant {
    while end.snapshot().stats.waiting_initiations > 0 {
        now += Duration::from_millis(1);
        end.handle_timeout(now);
    }
    now
}

#[test]
fn initiations_beyond_the_rate_limit_are_counted() {
    let (mut end, id) = fresh();
    let (_, first) = Hello::new(2, 1, 1).initiate();
    // 100 a second are answered without a cookie.
    for _ in 0..=100 {
        feed(&mut end, Instant::ZERO, address(2), &first);
    }
    let mut packets = drain(&mut end, Instant::ZERO).packets;
    let now = read_all(&mut end, Instant::ZERO);
    let (_, reply) = packets.pop().expect("a cookie reply");
    let cookie = support::open_cookie(&reply, &first, 1);
    let before = drops(&end, &[id]);
    assert_eq!(before.get("rate_limited"), None);
    for timestamp in 2..9 {
        let mut hello = Hello::new(2, 1, timestamp);
        hello.cookie = Some(cookie);
        feed(&mut end, now, address(2), &hello.initiate().1);
    }
    read_all(&mut end, now);
    let mut expected = before;
    expected.insert("rate_limited", 2);
    assert_eq!(drops(&end, &[id]), expected);
    assert_eq!(end.snapshot().stats.accepted_messages, 1 + 5);
}

#[test]
fn messages_beyond_the_credit_are_counted() {
    let mut victim = Victim::new();
    // The first credit, 24 MiB, holds one of the longest messages with its charge, not two.
    for number in 0..2 {
        victim.inject(&message(number, 16 << 20, 0, b"a"));
    }
    assert_eq!(victim.drops(), [("over_credit", 1)]);
    let session = victim.end.session(victim.peer).unwrap();
    assert_eq!(session.stats.reassembly_bytes, (16 << 20) + 256);
    victim.assert_alive();
}

#[test]
fn second_implementation_exchanges_messages_with_an_endpoint() {
    for ciphers in [0, 1] {
        let mut end = endpoint(1);
        let id = end.add_peer(Instant::ZERO, peer(2, None));
        let mut hello = Hello::new(2, 1, 1);
        hello.ciphers = ciphers;
        let (state, initiation) = hello.initiate();
        let now = Instant::from_nanos(1);
        feed(&mut end, now, address(2), &initiation);
        let response = drain(&mut end, now).packets.pop().expect("a response").1;
        let mut victim = Victim {
            heard: 0,
            raw: support::Raw::new(state, &response),
            now,
            end,
            peer: id,
        };
        victim.inject(&[1]);
        victim.answer_challenges();
        let session = victim.end.session(id).unwrap();
        assert_eq!(session.paths[0].state, PathState::Up);
        assert_eq!(session.paths[0].remote, Some(address(2)));

        victim.inject(&message(0, 5, 3, b"lo"));
        victim.inject(&message(0, 5, 0, b"hel"));
        let mut heard = victim.hear();
        assert_eq!(heard.messages, [b"hello"]);
        victim.now += Duration::from_millis(10);
        heard.packets.extend(victim.hear().packets);
        let taken = [8, 0, 0];
        assert!(
            heard
                .packets
                .iter()
                .any(|(_, frames)| frames.windows(3).any(|w| w == taken))
        );

        victim.inject(&frame(5, &[&app("datagrams"), &[6], &[2], b"hi"]));
        victim.inject(&fragment(0, 4, 2, b"cd"));
        victim.inject(&fragment(0, 4, 0, b"ab"));
        assert_eq!(victim.hear().datagrams, [b"hi".to_vec(), b"abcd".to_vec()]);

        let app_id = keiro_core::AppId::of_name(support::MESSAGES);
        victim
            .end
            .send_message(victim.now, victim.now, id, app_id, b"back".to_vec())
            .expect("room");
        let expected = message(0, 4, 0, b"back");
        let heard = victim.hear();
        let sent = |frames: &Vec<u8>| frames.windows(expected.len()).any(|w| w == expected);
        assert!(
            heard.packets.iter().any(|(_, frames)| sent(frames)),
            "{heard:?}"
        );
        victim.inject(&frame(8, &[&[0, 0], &[0, 1, 2, 3]]));
        let delivered = |event: &Event| {
            matches!(
                event,
                Event::MessageDone {
                    outcome: MessageOutcome::Delivered,
                    ..
                }
            )
        };
        assert!(victim.hear().events.iter().any(delivered));
        assert_eq!(victim.drops(), []);
    }
}

/// A frame that says how long it is.
fn sized(kind: u64, fields: &[&[u8]]) -> Vec<u8> {
    let body = fields.concat();
    frame(kind, &[&varint(body.len() as u64), &body])
}

/// Parity of one aggregate with this content, which gives it back.
fn parity_of(number: u64, content: &[u8]) -> Vec<u8> {
    let mut shard = (content.len() as u16).to_be_bytes().to_vec();
    shard.extend_from_slice(content);
    let parity = keiro_model::erasure::encode(&[shard], 1);
    sized(0x44, &[&[0], &varint(number), &[1, 1, 0], &parity[0]])
}

#[test]
fn aggregates_recovered_from_parity_are_delivered_once() {
    let mut victim = Victim::new();
    let content = message(0, 2, 0, b"hi");
    victim.inject(&parity_of(5, &content));
    victim.inject(&parity_of(5, &content));
    let late = [sized(0x43, &[&[0], &varint(5), &[0]]), content].concat();
    victim.inject(&late);
    assert_eq!(victim.hear().messages, [b"hi"]);
    assert_eq!(victim.drops(), []);
}

#[test]
fn a_packet_has_one_packet_of_a_group() {
    let mut victim = Victim::new();
    let content = message(0, 2, 0, b"hi");
    let protected = [sized(0x43, &[&[0], &varint(9), &[0]]), vec![1]].concat();
    let parity = parity_of(5, &content);
    for second in [parity_of(7, &message(1, 2, 0, b"no")), protected] {
        victim.inject(&[parity.clone(), second].concat());
    }
    assert_eq!(victim.drops(), [("malformed", 2)]);
    assert_eq!(victim.hear().messages, [b"hi"]);
}

#[test]
fn nested_aggregates_are_malformed() {
    let mut victim = Victim::new();
    let inner = [parity_of(9, &message(0, 2, 0, b"no")), vec![1]].concat();
    victim.inject(&parity_of(7, &inner));
    victim.inject(&parity_of(20, &frame(0x11, &[&[0], &varint(3), &[1, 0]])));
    assert_eq!(victim.drops(), [("malformed", 2)]);
    // A length beyond what is there, and what makes no frames.
    let shard = [0xff, 0xff, 1];
    let parity = keiro_model::erasure::encode(&[shard.to_vec()], 1);
    victim.inject(&sized(0x44, &[&[0], &varint(30), &[1, 1, 0], &parity[0]]));
    victim.inject(&parity_of(40, &[0x3f]));
    assert_eq!(victim.drops(), [("malformed", 3)]);
    assert!(victim.hear().messages.is_empty());
    victim.assert_alive();
}
