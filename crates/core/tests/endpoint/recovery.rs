//! What acknowledgements, late packets and silence of a peer do to paths, estimates and bounds.

use std::{net::SocketAddr, time::Duration};

use keiro_core::{
    AppId, DatagramMeta, Event, PathConfig, PathDownReason, PathId, PathState, SocketId,
    wire::{Frame, Reader},
};
use keiro_units::Bandwidth;

use crate::support::{
    MESSAGES, Victim, address, drain, frame, message, message_drop, peer, varint,
};

/// A data packet that an endpoint sent.
struct SentByEndpoint {
    to: SocketAddr,
    path: u8,
    number: u64,
    clear: Vec<u8>,
}

/// The data packets that the endpoint has to send now.
fn sent(victim: &mut Victim) -> Vec<SentByEndpoint> {
    victim.end.handle_timeout(victim.now);
    let packets = drain(&mut victim.end, victim.now).packets;
    let data = packets.iter().filter(|(_, packet)| packet[0] == 4);
    data.map(|(to, packet)| SentByEndpoint {
        to: *to,
        path: packet[1],
        number: u32::from_be_bytes(packet[6..10].try_into().expect("4 bytes")).into(),
        clear: victim.raw.open(packet),
    })
    .collect()
}

fn frames_of(clear: &[u8]) -> Vec<Frame<'_>> {
    let mut reader = Reader::new(clear);
    std::iter::from_fn(|| Frame::decode(&mut reader).expect("well-formed frames")).collect()
}

fn challenges_of(packets: &[SentByEndpoint]) -> Vec<(SocketAddr, u64)> {
    let mut challenges = Vec::new();
    for packet in packets {
        for frame in frames_of(&packet.clear) {
            if let Frame::PathChallenge(token) = frame {
                challenges.push((packet.to, token));
            }
        }
    }
    challenges
}

fn give_from(victim: &mut Victim, socket: u16, from: SocketAddr, packet: &[u8]) {
    let meta = DatagramMeta {
        socket: SocketId(socket),
        remote: from,
        ecn: 0,
        received_at: victim.now,
    };
    victim
        .end
        .handle_datagram(victim.now, meta, &mut packet.to_vec());
}

/// An acknowledgement of packet `largest` of `path` alone.
fn acknowledgement_of(path: u8, largest: u64) -> Vec<u8> {
    let (largest, zero, one) = (varint(largest), varint(0), varint(1));
    frame(2, &[&[path], &largest, &zero, &zero, &zero, &one, &zero])
}

/// RFC 9000 §9.3: only the highest-numbered packet moves a path.
#[test]
fn late_packet_from_the_old_address_does_not_move_the_path_back() {
    let mut victim = Victim::new();
    let late = victim.raw.packet(&[1]);
    let newest = victim.raw.packet(&[1]);
    give_from(&mut victim, 0, address(3), &newest);
    let packets = sent(&mut victim);
    let [(to, token)] = challenges_of(&packets)[..] else {
        panic!("one challenge");
    };
    assert_eq!(to, address(3));
    let response = victim.raw.packet(&frame(4, &[&token.to_be_bytes()]));
    give_from(&mut victim, 0, address(3), &response);
    victim.end.handle_timeout(victim.now);
    let output = drain(&mut victim.end, victim.now);
    let moved = |event: &Event| matches!(event, Event::PathMoved { to, .. } if *to == address(3));
    assert!(output.events.iter().any(moved), "{:?}", output.events);

    victim.now += Duration::from_millis(1);
    give_from(&mut victim, 0, address(2), &late);
    let packets = sent(&mut victim);
    assert_eq!(challenges_of(&packets), []);
    assert!(packets.iter().all(|packet| packet.to == address(3)));
    let session = victim.end.session(victim.peer).expect("it exists");
    assert_eq!(session.paths[0].remote, Some(address(3)));
    assert_eq!(victim.drops(), [], "the late packet itself is taken");
}

/// Round trip of path 1 of [`victim_with_two_paths`].
const LONG: Duration = Duration::from_millis(40);

/// A victim with a second path, on socket 1, to `address(12)`, which messages take; both are up.
fn victim_with_two_paths() -> Victim {
    let mut victim = Victim::new();
    let path = |number: u8| PathConfig {
        id: PathId(number),
        socket: SocketId(number.into()),
        remote: None,
        rate: Some(Bandwidth::from_mbit_per_second(100)),
        mtu_max: 1500,
        probe_limit: None,
        terms: keiro_core::PathTerms::FREE,
    };
    victim
        .end
        .set_paths(victim.now, victim.peer, &[path(0), path(1)]);
    let ping = victim.raw.packet_on(1, &[1]);
    give_from(&mut victim, 1, address(12), &ping);
    loop {
        let packets = sent(&mut victim);
        let challenges = challenges_of(&packets);
        if challenges.is_empty() {
            break;
        }
        for (to, token) in challenges {
            let (path, socket) = if to == address(12) { (1, 1) } else { (0, 0) };
            if path == 1 {
                victim.now += LONG;
            }
            let response = frame(4, &[&token.to_be_bytes()]);
            let packet = victim.raw.packet_on(path, &response);
            give_from(&mut victim, socket, to, &packet);
        }
    }
    let session = victim.end.session(victim.peer).expect("it exists");
    let mut states = session.paths.iter().map(|path| path.state);
    assert!(states.all(|state| state == PathState::Up));
    let mut app = peer(2, None).apps[0].clone();
    app.paths = vec![PathId(1)];
    victim.end.set_app(victim.peer, app);
    victim
}

/// Has the endpoint send a message over path 1 and returns the number of its packet.
fn send_over_path_1(victim: &mut Victim) -> u64 {
    let (now, app) = (victim.now, AppId::of_name(MESSAGES));
    victim
        .end
        .send_message(now, now, victim.peer, app, b"hi".to_vec())
        .expect("room");
    let packets = sent(victim);
    let carries_message = |packet: &&SentByEndpoint| {
        frames_of(&packet.clear)
            .iter()
            .any(|frame| matches!(frame, Frame::Message { .. }))
    };
    let packet = packets.iter().find(carries_message).expect("the message");
    assert_eq!(packet.path, 1);
    packet.number
}

#[test]
fn acknowledgement_over_another_path_is_no_sample_of_the_round_trip() {
    let mut victim = victim_with_two_paths();
    let path_1 = |victim: &Victim| {
        let mut session = victim.end.session(victim.peer).expect("it exists");
        session.paths.remove(1)
    };
    let number = send_over_path_1(&mut victim);
    victim.now += LONG;
    let packet = victim.raw.packet_on(1, &acknowledgement_of(1, number));
    give_from(&mut victim, 1, address(12), &packet);
    let before = path_1(&victim);
    let base_rtt = before.stats.base_rtt.expect("measured");
    assert!(base_rtt > LONG * 9 / 10, "{base_rtt:?}");

    let number = send_over_path_1(&mut victim);
    victim.now += Duration::from_millis(2);
    let packet = victim.raw.packet(&acknowledgement_of(1, number));
    give_from(&mut victim, 0, address(2), &packet);
    let after = path_1(&victim);
    assert!(after.stats.acked_packets > before.stats.acked_packets);
    assert_eq!(after.stats.base_rtt, Some(base_rtt));
}

/// Outcomes of messages that wait to be sent are bounded: beyond 4096 of them the peer gets no
/// credit, so it cannot begin more messages.
#[test]
fn peer_gets_no_credit_while_too_many_outcomes_wait() {
    const OUTCOMES_MAX: usize = 4096;
    const MESSAGES_SENT: usize = OUTCOMES_MAX + 500;
    let mut victim = Victim::new();
    let first = 100;
    for number in 0..MESSAGES_SENT as u64 {
        let packet = victim.raw.packet(&message(first + number, 1, 0, b"x"));
        victim.give(&packet);
        victim.take_messages();
    }
    // Messages begun and given up: their credit could be granted again.
    let total = 16 << 20;
    for number in 0..3 {
        let id = first + MESSAGES_SENT as u64 + number;
        let begun = message(id, total, 0, b"x");
        victim.inject(&begun);
        victim.inject(&message_drop(id, total));
    }
    let mut outcomes = 0;
    let mut outcomes_before_credit = None;
    for _ in 0..200 {
        for packet in sent(&mut victim) {
            for frame in frames_of(&packet.clear) {
                match frame {
                    Frame::MessageDone { .. } => outcomes += 1,
                    Frame::Credit(_) => {
                        outcomes_before_credit.get_or_insert(outcomes);
                    }
                    _ => {}
                }
            }
        }
        victim.now += Duration::from_micros(500);
    }
    assert!(outcomes >= MESSAGES_SENT, "{outcomes} outcomes");
    let before = outcomes_before_credit.expect("credit is granted in the end");
    assert!(
        before > MESSAGES_SENT - OUTCOMES_MAX - 100,
        "credit while {} outcomes waited",
        MESSAGES_SENT - before
    );
}

fn acknowledgements_in(packets: &[SentByEndpoint]) -> usize {
    let frames = packets.iter().flat_map(|packet| frames_of(&packet.clear));
    frames
        .filter(|frame| matches!(frame, Frame::Ack(_)))
        .count()
}

/// A victim that owes no acknowledgement, a while after its last one.
fn rested_victim() -> Victim {
    let mut victim = Victim::new();
    victim.now += Duration::from_millis(5);
    sent(&mut victim);
    victim.now += Duration::from_millis(5);
    victim
}

#[test]
fn gaps_are_acknowledged_at_once_but_keep_the_spacing() {
    let mut victim = rested_victim();
    let gap = |victim: &mut Victim| {
        victim.raw.packet(&[1]);
        victim.inject(&[1]);
    };
    gap(&mut victim);
    assert_eq!(acknowledgements_in(&sent(&mut victim)), 1);
    gap(&mut victim);
    assert_eq!(acknowledgements_in(&sent(&mut victim)), 0, "too soon");
    // A tenth of 100 Mbit/s for acknowledgements of 100 bytes.
    victim.now += Duration::from_micros(80);
    assert_eq!(acknowledgements_in(&sent(&mut victim)), 1);
}

#[test]
fn packets_from_a_new_address_are_answered_with_one_challenge() {
    let mut victim = Victim::new();
    let mut challenges = 0;
    for _ in 0..10 {
        let packet = victim.raw.packet(&[1]);
        give_from(&mut victim, 0, address(3), &packet);
        challenges += challenges_of(&sent(&mut victim)).len();
    }
    assert_eq!(challenges, 1);
}

/// Acknowledges the last `count` packets of path 0 up to `largest`.
fn acknowledge(victim: &mut Victim, largest: u64, count: u64) {
    let (largest, zero, one) = (varint(largest), varint(0), varint(1));
    let range = varint(count - 1);
    let fields: [&[u8]; 7] = [&[0], &largest, &zero, &zero, &zero, &one, &range];
    victim.inject(&frame(2, &fields));
}

/// Sends `count` messages, each in a packet, 10 µs apart, and has only the last one acknowledged;
/// returns how many were taken for lost, and the number of the last.
fn overtake(victim: &mut Victim, count: u64) -> (u64, u64) {
    let lost = |victim: &Victim| {
        let session = victim.end.session(victim.peer).expect("it exists");
        session.paths[0].stats.lost_packets
    };
    let before = lost(victim);
    let mut last = 0;
    for _ in 0..count {
        let (now, app) = (victim.now, AppId::of_name(MESSAGES));
        victim
            .end
            .send_message(now, now, victim.peer, app, b"hi".to_vec())
            .expect("room");
        for packet in sent(victim) {
            last = packet.number;
        }
        victim.now += Duration::from_micros(10);
    }
    acknowledge(victim, last, 1);
    (lost(victim) - before, last)
}

/// The threshold of RFC 9002 §6.1.1 grows with what was declared lost and arrived, up to 256.
#[test]
fn reordering_threshold_follows_spurious_losses_up_to_its_bound() {
    let mut victim = Victim::new();
    // The first packets have credit, too.
    let first = send_message(&mut victim);
    acknowledge(&mut victim, first, first + 1);
    // A round trip of 40 ms: time alone takes nothing here for lost.
    let (_, last) = overtake(&mut victim, 2);
    acknowledge(&mut victim, last, last + 1);
    for _ in 0..3 {
        let (now, app) = (victim.now, AppId::of_name(MESSAGES));
        victim
            .end
            .send_message(now, now, victim.peer, app, b"hi".to_vec())
            .expect("room");
        let last = sent(&mut victim).last().expect("a packet").number;
        victim.now += Duration::from_millis(40);
        acknowledge(&mut victim, last, last + 1);
    }

    let (lost, last) = overtake(&mut victim, 6);
    assert_eq!(lost, 3, "three packets later is lost");
    acknowledge(&mut victim, last, last + 1);
    let (lost, last) = overtake(&mut victim, 6);
    assert_eq!(lost, 0, "such reordering is known now");
    acknowledge(&mut victim, last, last + 1);

    let (lost, last) = overtake(&mut victim, 400);
    assert!(lost > 300, "{lost}");
    acknowledge(&mut victim, last, last + 1);
    let (lost, _) = overtake(&mut victim, 300);
    assert!((1..100).contains(&lost), "beyond 256 is lost: {lost}");
}

/// Sends a message and returns the number of the last packet that leaves for it.
fn send_message(victim: &mut Victim) -> u64 {
    let (now, app) = (victim.now, AppId::of_name(MESSAGES));
    victim
        .end
        .send_message(now, now, victim.peer, app, b"hi".to_vec())
        .expect("room");
    sent(victim).last().expect("a packet").number
}

/// Sends messages that are acknowledged after 40 ms, until the round trip is known.
fn victim_with_round_trip() -> Victim {
    let mut victim = Victim::new();
    for _ in 0..40 {
        let last = send_message(&mut victim);
        victim.now += Duration::from_millis(40);
        acknowledge(&mut victim, last, last + 1);
    }
    victim
}

#[test]
fn path_is_given_up_after_two_round_trips_80_ms_and_two_full_packets_of_silence() {
    let mut victim = victim_with_round_trip();
    let session = victim.end.session(victim.peer).expect("it exists");
    let round_trip = session.paths[0].stats.srtt.expect("measured");
    assert!(round_trip > Duration::from_millis(35), "{round_trip:?}");
    // 1500 bytes at 100 Mbit/s.
    let full_packet = Duration::from_micros(120);
    let expected = round_trip * 2 + Duration::from_millis(80) + full_packet * 2;

    send_message(&mut victim);
    let sent_at = victim.now;
    let reason = loop {
        victim.now = victim.end.poll_timeout().expect("an answer is awaited");
        assert!(victim.now <= sent_at + expected, "it is still up");
        victim.end.handle_timeout(victim.now);
        let events = drain(&mut victim.end, victim.now).events;
        let down = events.into_iter().find_map(|event| match event {
            Event::PathDown { reason, .. } => Some(reason),
            _ => None,
        });
        if let Some(reason) = down {
            break reason;
        }
    };
    assert_eq!(victim.now, sent_at + expected);
    let PathDownReason::Silent { silent, limit } = reason else {
        panic!("{reason:?}");
    };
    assert_eq!((silent, limit), (expected, expected));
}

/// RFC 9002 §6.2.1: the row of probe timeouts ends with an acknowledgement.
#[test]
fn probes_are_15_ms_apart_until_something_is_acknowledged() {
    let mut victim = victim_with_round_trip();
    let last = send_message(&mut victim);
    let mut left = Vec::new();
    let end = victim.now + Duration::from_millis(140);
    let mut number = last;
    while let Some(due) = victim.end.poll_timeout().filter(|due| *due < end) {
        victim.now = due;
        if let Some(probe) = sent(&mut victim).last() {
            left.push(victim.now);
            number = probe.number;
        }
    }
    let gaps: Vec<u128> = left
        .windows(2)
        .map(|two| (two[1] - two[0]).as_millis())
        .collect();
    assert!(
        gaps.len() >= 2 && gaps.iter().all(|gap| *gap == 15),
        "{gaps:?}"
    );
    acknowledge(&mut victim, number, number + 1);
    let acknowledged_at = victim.now;
    send_message(&mut victim);
    victim.now = victim.end.poll_timeout().expect("an answer is awaited");
    while sent(&mut victim).is_empty() {
        victim.now = victim.end.poll_timeout().expect("an answer is awaited");
    }
    let wait = victim.now - acknowledged_at;
    assert!(wait > Duration::from_millis(40), "a full timeout: {wait:?}");
}

#[test]
fn mtu_probe_is_a_padded_ping_of_the_largest_size_and_its_acknowledgement_raises_the_mtu() {
    let mut victim = Victim::new();
    let mut path = peer(2, None).paths[0].clone();
    path.mtu_max = 1400;
    victim.end.set_paths(victim.now, victim.peer, &[path]);
    let probes = sent(&mut victim);
    let probe = probes.iter().find(|packet| packet.clear.len() > 1300);
    let probe = probe.expect("the path is probed");
    // Headers of IPv4 and UDP, of the data packet, and its tag.
    assert_eq!(probe.clear.len() + 28 + 10 + 16, 1400);
    assert_eq!(frames_of(&probe.clear)[0], Frame::Ping);
    let mtu = |victim: &Victim| {
        let session = victim.end.session(victim.peer).expect("it exists");
        session.paths[0].stats.mtu_bytes
    };
    assert_eq!(mtu(&victim), 1280);
    acknowledge(&mut victim, probe.number, 1);
    assert_eq!(mtu(&victim), 1400);
    let events = drain(&mut victim.end, victim.now).events;
    let raised = |event: &Event| matches!(event, Event::MtuChanged { mtu: 1400, .. });
    assert!(events.iter().any(raised), "{events:?}");
}
