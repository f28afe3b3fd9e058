//! What a hostile peer cannot make a gateway do.

use std::time::Duration;

use keiro_core::wire::Frame;

use crate::{
    drops::frames_of,
    support::{
        Net, Victim, address, drain, drops, feed, fragment, frame, message, message_drop, varint,
    },
};

#[test]
fn unknown_skippable_frames_are_skipped() {
    let mut victim = Victim::new();
    let mut frames = frame(0x4f, &[&[0]]);
    frames.extend(frame(0x1234, &[&[3], b"\x0c\x0c\x0c"]));
    frames.extend(frame(u64::MAX >> 2, &[&varint(100), &[0x0c; 100]]));
    frames.extend(message(0, 2, 0, b"hi"));
    victim.inject(&frames);
    assert_eq!(victim.drops(), []);
    assert_eq!(victim.hear().messages, [b"hi"]);
}

#[test]
fn nonsensical_credit_and_outcomes_are_harmless() {
    let mut victim = Victim::new();
    victim.inject(&frame(10, &[&varint(u64::MAX >> 2)]));
    victim.inject(&frame(10, &[&varint(0)]));
    victim.inject(&frame(8, &[&varint(123), &[0], &[0xff; 4]]));
    victim.inject(&frame(8, &[&varint(u64::MAX >> 2), &[255], &[0; 4]]));
    victim.inject(&frame(4, &[&[9; 8]]));
    assert_eq!(victim.drops(), []);
    victim.assert_alive();
}

#[test]
fn drop_with_another_length_than_its_message_returns_no_more_than_that_took() {
    for total in [1, 9, 11, 5000, 16 << 20] {
        let mut victim = Victim::new();
        victim.inject(&message(0, 10, 0, b"hello"));
        victim.inject(&message_drop(0, total));
        let session = victim.end.session(victim.peer).unwrap();
        assert!(
            session.stats.reassembly_bytes <= 266,
            "{}",
            session.stats.reassembly_bytes
        );
        victim.assert_alive();
    }
}

#[test]
fn messages_beyond_the_credit_take_no_memory() {
    let mut victim = Victim::new();
    for number in 0..10_000 {
        victim.inject(&message(number, 1 << 20, 0, b"a"));
    }
    let session = victim.end.session(victim.peer).unwrap();
    assert!(session.stats.reassembly_bytes <= 24 << 20);
    let open = session.stats.reassembly_bytes / ((1 << 20) + 256);
    assert_eq!(victim.drops(), [("over_credit", 10_000 - open)]);
}

#[test]
fn seventy_thousand_gaps_are_survived() {
    let mut victim = Victim::new();
    let mut delivered = 0;
    for packet in 0..800u64 {
        let numbers = (0..100).map(|index| (packet * 100 + index) * 2);
        let frames: Vec<u8> = numbers
            .flat_map(|number| message(number, 1, 0, b"x"))
            .collect();
        victim.inject(&frames);
        victim.now += Duration::from_millis(1);
        delivered += victim.hear().messages.len();
    }
    assert_eq!(delivered, 80_000);
    assert_eq!(victim.drops(), []);
    // What was finished lately is still known.
    let last = (800 * 100 - 1) * 2;
    victim.inject(&message(last, 1, 0, b"x"));
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
}

#[test]
fn gaps_in_packet_numbers_leave_acknowledgements_short() {
    let mut victim = Victim::new();
    let first = victim.raw.next[&0];
    let mut heard = Vec::new();
    for number in 0..70_000u64 {
        let packet = victim.raw.packet_at(0, first + 2 * number, &[1]);
        victim.give(&packet);
        if number % 1000 == 0 {
            victim.now += Duration::from_millis(20);
            heard.extend(victim.hear().packets);
        }
    }
    let mut acknowledgements = 0;
    for (_, frames) in heard {
        for frame in frames_of(&frames) {
            if let Frame::Ack(ack) = frame {
                assert!(ack.ranges.iter().count() <= 32);
                acknowledgements += 1;
            }
        }
    }
    assert!(acknowledgements > 10, "{acknowledgements}");
    victim.raw.next.insert(0, first + 140_000);
    victim.assert_alive();
}

#[test]
fn message_in_too_many_fragments_is_given_up() {
    let mut victim = Victim::new();
    for part in 0..100_000 {
        victim.inject(&message(0, 16 << 20, 2 * part, b"a"));
    }
    let session = victim.end.session(victim.peer).unwrap();
    assert_eq!(session.stats.reassembly_bytes, 0);
    assert_eq!(session.drops.malformed, 1);
    victim.assert_alive();
}

#[test]
fn endless_fragments_are_given_up() {
    let mut victim = Victim::new();
    for number in 0..5_000 {
        victim.inject(&fragment(number, 65_507, 1, b"a"));
    }
    // Only the youngest are still waited for.
    victim.inject(&fragment(0, 4, 0, b"abcd"));
    assert_eq!(victim.hear().datagrams, [b"abcd"]);
    assert_eq!(victim.drops(), []);
}

#[test]
fn challenges_and_paths_without_end_are_answered_in_bounds() {
    let mut victim = Victim::new();
    let mut frames = Vec::new();
    for token in 0..100u64 {
        frames.extend(frame(3, &[&token.to_be_bytes()]));
    }
    let before = victim.end.session(victim.peer).unwrap().paths[0]
        .stats
        .sent_bytes;
    let mut received = 0;
    for path in 0..=255 {
        let packet = victim.raw.packet_on(path, &frames);
        received += packet.len() as u64;
        victim.give(&packet);
    }
    victim.hear();
    let sent = victim.end.session(victim.peer).unwrap().paths[0]
        .stats
        .sent_bytes
        - before;
    assert!(sent < received / 10, "{sent} for {received}");
    victim.assert_alive();
}

#[test]
fn packets_of_more_paths_than_a_gateway_has_are_not_taken() {
    let mut victim = Victim::new();
    for path in (0..=255).rev() {
        let packet = victim.raw.packet_on(path, &[1]);
        victim.give(&packet);
    }
    // Path 0 has been there before.
    assert_eq!(victim.drops(), [("malformed", 256 - 64)]);
    victim.assert_alive();
}

#[test]
fn aggregates_of_paths_that_have_sent_nothing_are_malformed() {
    let mut victim = Victim::new();
    for path in 1..=255 {
        victim.inject(&frame(0x11, &[&[path], &varint(0), &[1], &[0]]));
    }
    assert_eq!(victim.drops(), [("malformed", 255)]);
    let packet = victim.raw.packet_on(9, &[1]);
    victim.give(&packet);
    victim.inject(&frame(0x11, &[&[9], &varint(0), &[1], &[0]]));
    assert_eq!(victim.drops(), [("malformed", 255)]);
    victim.assert_alive();
}

#[test]
fn address_that_a_peer_only_claims_gets_no_more_than_three_times_what_came_from_it() {
    const HEADERS: usize = 28;
    for challenges in [1u64, 4, 100] {
        let mut victim = Victim::new();
        let claimed = address(77);
        let (mut received, mut sent) = (0, 0);
        for round in 0..200u64 {
            let frames = |token: u64| frame(3, &[&(round << 32 | token).to_be_bytes()]);
            let frames: Vec<u8> = (0..challenges).flat_map(frames).collect();
            let packet = victim.raw.packet(&frames);
            received += packet.len() + HEADERS;
            feed(&mut victim.end, victim.now, claimed, &packet);
            victim.end.handle_timeout(victim.now);
            let packets = drain(&mut victim.end, victim.now).packets;
            let to_claimed = packets.iter().filter(|(to, _)| *to == claimed);
            sent += to_claimed
                .map(|(_, packet)| packet.len() + HEADERS)
                .sum::<usize>();
            assert!(sent <= 3 * received, "{sent} for {received}");
            victim.now += Duration::from_millis(1);
        }
        assert!(sent > 0);
    }
}

/// The peer gives up what it never began, or takes no answer: what is owed to it stays small.
#[test]
fn control_frames_for_a_lossy_peer_are_bounded() {
    let mut victim = Victim::new();
    let mut number = 0;
    for _ in 0..1000 {
        let frames: Vec<u8> = (0..100)
            .flat_map(|_| {
                number += 1;
                message_drop(number, 1)
            })
            .collect();
        victim.inject(&frames);
    }
    let before = victim.end.session(victim.peer).unwrap().paths[0]
        .stats
        .sent_bytes;
    for _ in 0..100 {
        victim.now += Duration::from_millis(1);
        victim.hear();
    }
    let sent = victim.end.session(victim.peer).unwrap().paths[0]
        .stats
        .sent_bytes
        - before;
    assert!(sent < 20_000, "{sent} bytes of credit");
}

#[test]
fn replayed_initiation_does_not_disturb_a_session() {
    let mut net = Net::new();
    assert!(net.run(Duration::from_secs(2), Net::is_up));
    let handshakes: Vec<_> = net.seen.iter().filter(|(_, p)| p[0] < 4).cloned().collect();
    for (from, packet) in handshakes {
        feed(&mut net.ends[1 - from], net.now, address(999), &packet);
    }
    let stale =
        |side: usize| drops(&net.ends[side], &[net.peers[side]]).contains_key("stale_handshake");
    assert!(stale(0) || stale(1));
    assert!(net.deliver());
}

/// The peer takes no acknowledgement and gives none: it gets no credit for more messages than it
/// has heard the outcome of.
#[test]
fn peer_that_acknowledges_no_outcome_gets_no_more_credit() {
    let mut victim = Victim::new();
    let mut number = 0;
    for _ in 0..5000 {
        let frames: Vec<u8> = (0..80)
            .flat_map(|_| {
                number += 1;
                message(number, 1, 0, b"x")
            })
            .collect();
        victim.inject(&frames);
        victim.take_messages();
    }
    let over = victim
        .drops()
        .into_iter()
        .find(|(reason, _)| *reason == "over_credit");
    assert!(
        over.is_some_and(|(_, count)| count > 0),
        "{:?}",
        victim.drops()
    );
}

#[test]
fn nonsensical_trains_and_reports_are_harmless() {
    let mut victim = Victim::new();
    let train = |fields: &[u8]| [&varint(0x40), &varint(fields.len() as u64), fields].concat();
    let report = |fields: &[u8]| [&varint(0x41), &varint(fields.len() as u64), fields].concat();
    // A place outside the train, a cut-off number, one arrival, more than there may be.
    let mut many = vec![0, 0];
    many.extend([1, 0].repeat(17));
    for malformed in [
        train(&[5, 2, 2]),
        train(&[0xff, 1]),
        report(&[0, 5, 0, 0]),
        report(&many),
    ] {
        let before = victim.drops();
        victim.inject(&malformed);
        assert_ne!(victim.drops(), before, "{malformed:?}");
    }
    // Well-formed: trains without end, and reports of trains and paths that there are not.
    let drops = victim.drops();
    for number in 0..200u8 {
        victim.inject(&train(&[number & 0x3f, 0, 255]));
        victim.inject(&report(&[number, number & 0x3f, 0, 0, 0, 0, 200, 0]));
    }
    assert_eq!(victim.drops(), drops);
    victim.assert_alive();
}
