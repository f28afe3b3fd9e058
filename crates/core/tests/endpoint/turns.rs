//! What an honest peer gets in a turn of a gateway beside a hostile one.

use std::time::Duration;

use keiro_core::{
    AppConfig, AppId, Delivery, DeliveryClass, PathId, PeerId, StreamSignal, TenantId,
    wire::{AckFrame, Feedback, Frame, TrainReport},
};

use crate::support::{
    DATAGRAMS, Hello, Raw, Victim, address, app, drain, drops, feed, fragment, frame, message,
    message_drop, meta, peer, varint,
};

/// Packets of the honest peer in a turn, and of the hostile one beside: a full batch of the kernel.
const HONEST: usize = 8;
const HOSTILE: usize = 300;
/// Stream opens that the hostile peer gets in a turn, a packet of them more than its share.
const OPENS_MAX: usize = 50 + 90;

/// Gateway 1 with a hostile peer, 2, and an honest one, 3.
struct Turns {
    victim: Victim,
    honest: PeerId,
    raw: Raw,
    /// Counts what the hostile peer has said.
    said: u64,
}

impl Turns {
    fn new() -> Self {
        let mut victim = Victim::new();
        let now = victim.now;
        let streams = AppConfig {
            id: AppId::of_name("streams"),
            class: DeliveryClass::Stream,
            latency_target: None,
            lifetime: None,
            paths: vec![PathId(0)],
            tenant: TenantId::ZERO,
            is_spread: false,
        };
        victim.end.set_app(victim.peer, streams);
        let honest = victim.end.add_peer(now, peer(3, None));
        let (state, initiation) = Hello::new(3, 1, 2).initiate();
        feed(&mut victim.end, now, address(3), &initiation);
        let output = drain(&mut victim.end, now);
        let response = output.packets.iter().find(|(to, _)| *to == address(3));
        let (_, response) = response.expect("a response");
        let raw = Raw::new(state, response);
        Self {
            victim,
            honest,
            raw,
            said: 0,
        }
    }

    /// Turns in which nothing arrives, until all that waited is handled: two for each packet.
    fn rest(&mut self) {
        for _ in 0..4 * HOSTILE {
            self.victim.now += Duration::from_micros(500);
            self.victim.end.handle_timeout(self.victim.now);
            while self.victim.end.poll_delivery().is_some() {}
        }
    }

    /// A turn in which nothing arrives; whether a message of what waited was delivered in it.
    fn has_message_in_next_turn(&mut self) -> bool {
        self.victim.now += Duration::from_micros(500);
        self.victim.end.handle_timeout(self.victim.now);
        let mut found = false;
        while let Some(delivery) = self.victim.end.poll_delivery() {
            found |= matches!(delivery, Delivery::Message { .. });
        }
        found
    }

    /// A turn of the driver, in which the packets of both come mixed. Datagrams of the honest peer, and signals of
    /// streams of the other one.
    fn turn(&mut self, hostile: &[(u8, Vec<u8>)]) -> (usize, usize) {
        self.victim.now += Duration::from_millis(1);
        let now = self.victim.now;
        self.victim.end.begin_turn(now);
        let datagram = frame(5, &[&app(DATAGRAMS), &varint(3 << 1), &[2], b"hi"]);
        let every = hostile.len().max(HONEST) / HONEST;
        for (place, (path, frames)) in hostile.iter().enumerate() {
            let packet = self.victim.raw.packet_on(*path, frames);
            self.give(2, packet);
            if place % every == 0 && place / every < HONEST {
                let packet = self.raw.packet(&datagram);
                self.give(3, packet);
            }
        }
        let (mut datagrams, mut opens) = (0, 0);
        while let Some(delivery) = self.victim.end.poll_delivery() {
            match delivery {
                Delivery::Datagram { peer, .. } if peer == self.honest => datagrams += 1,
                Delivery::Stream {
                    signal: StreamSignal::Opened { .. },
                    ..
                } => opens += 1,
                _ => {}
            }
        }
        self.victim.end.check_invariants();
        (datagrams, opens)
    }

    fn give(&mut self, from: u16, mut packet: Vec<u8>) {
        let now = self.victim.now;
        let meta = meta(now, address(from));
        self.victim.end.handle_datagram(now, meta, &mut packet);
    }

    /// A packet of each kind of attack: its path and its frames.
    fn attack(&mut self, kind: &str) -> (u8, Vec<u8>) {
        self.said += 1;
        let said = self.said;
        let many = |count: u64, frame: &dyn Fn(u64) -> Vec<u8>| -> Vec<u8> {
            (0..count)
                .flat_map(|number| frame(said * count + number))
                .collect()
        };
        match kind {
            "opens" => (
                0,
                many(90, &|number| {
                    frame(12, &[&varint(number << 1), &app("streams"), &[0]])
                }),
            ),
            "paths" => ((said % 64) as u8, vec![1]),
            "parity" => {
                let (group, index) = (said / 32, (said % 32) as u8);
                let body = [
                    &[0][..],
                    &varint(group * 32),
                    &[32, 64, index],
                    &[index; 1250],
                ]
                .concat();
                (0, frame(0x44, &[&varint(body.len() as u64), &body]))
            }
            "challenges" => (0, many(140, &|number| frame(3, &[&number.to_be_bytes()]))),
            "messages" => (0, many(60, &|number| message(number, 1, 0, b"x"))),
            "drops" => (0, many(200, &|number| message_drop(number * 2, 1))),
            "fragments" => (
                0,
                many(60, &|number| fragment(number, 65_000, 64_000, b"x")),
            ),
            "gaps" => (
                0,
                many(60, &|number| {
                    let (stream, offset) = (varint((number / 32) << 1), 1 + number % 32 * 2);
                    frame(13, &[&stream, &varint(offset), &[1], b"x"])
                }),
            ),
            // Of packets that were never sent, too.
            "acks" => (
                0,
                many(60, &|number| {
                    encoded(|bytes| {
                        let head = AckFrame::head(0, number, number, 0, 0);
                        AckFrame::encode(bytes, &head, [(number, number)].into_iter());
                    })
                }),
            ),
            "ranges" => (
                0,
                many(12, &|number| {
                    encoded(|bytes| {
                        let largest = 100 + number;
                        let head = AckFrame::head((number % 4) as u8, largest, number, 0, 0);
                        let ranges = (0..32).map(|place| largest - 2 * place);
                        AckFrame::encode(bytes, &head, ranges.map(|one| (one, one)));
                    })
                }),
            ),
            "trains" => (
                0,
                many(120, &|number| {
                    encoded(|bytes| {
                        let (id, index) = (number / 16, (number % 16) as u8);
                        Frame::Train {
                            id,
                            index,
                            count: 16,
                        }
                        .encode(bytes);
                    })
                }),
            ),
            "reports" => (
                0,
                many(14, &|number| {
                    encoded(|bytes| {
                        let arrivals = (0..16).map(|place| (place, u64::from(place) * 10_000));
                        TrainReport::encode(bytes, 0, number, arrivals);
                    })
                }),
            ),
            "feedback" => (
                0,
                many(50, &|number| {
                    encoded(|bytes| {
                        Frame::Feedback(Feedback {
                            path: 0,
                            highest: number,
                            aggregates: number,
                            copies: number,
                            socket_overflows: number,
                            system_overflows: 0,
                            spacing: None,
                        })
                        .encode(bytes);
                    })
                }),
            ),
            "mix" => {
                let kinds = ATTACKS.len() - 1;
                self.attack(ATTACKS[said as usize / 3 % kinds])
            }
            _ => (0, vec![0; 1300]),
        }
    }
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    bytes
}

/// The last is one of each of the others in turn.
const ATTACKS: [&str; 15] = [
    "opens",
    "paths",
    "parity",
    "challenges",
    "messages",
    "drops",
    "fragments",
    "padding",
    "gaps",
    "acks",
    "ranges",
    "trains",
    "reports",
    "feedback",
    "mix",
];
/// Of which a full batch in every turn is less than the peer may have done.
const CHEAP: [&str; 3] = ["paths", "padding", "ranges"];

#[test]
fn what_an_honest_peer_gets_in_a_turn_does_not_depend_on_what_another_sends() {
    for kind in ATTACKS {
        let mut turns = Turns::new();
        for number in 0..20 {
            let packets: Vec<_> = (0..HOSTILE).map(|_| turns.attack(kind)).collect();
            let (datagrams, opens) = turns.turn(&packets);
            assert_eq!(datagrams, HONEST, "{kind} in turn {number}");
            assert!(opens <= OPENS_MAX, "{kind} in turn {number}: {opens}");
        }
        assert_eq!(
            drops(&turns.victim.end, &[turns.honest]).get("over_budget"),
            None
        );
        // What it costs is counted: more waits than there is room for.
        let dropped = turns
            .victim
            .drops()
            .iter()
            .any(|(reason, _)| *reason == "over_budget");
        assert_eq!(dropped, !CHEAP.contains(&kind), "{kind}");
    }
}

#[test]
fn recovery_costs_what_it_computes_whether_or_not_it_gives_anything_back() {
    // A group of 32 lost packets of 1250 bytes is a sum of 32 packets for each: more than a turn.
    let mut turns = Turns::new();
    let mut packets: Vec<_> = (0..HOSTILE).map(|_| turns.attack("parity")).collect();
    packets.push((0, message(1 << 40, 1, 0, b"x")));
    let groups = HOSTILE / 32;
    turns.turn(&packets);
    let mut later = 0;
    while !turns.has_message_in_next_turn() {
        later += 1;
        assert!(later < 20 * groups, "they are handled");
    }
    assert!(later >= 2 * groups, "{later} turns for {groups} groups");
}

#[test]
fn packets_that_wait_are_handled_in_order_and_the_oldest_of_too_many_are_dropped() {
    let mut turns = Turns::new();
    let packets: Vec<_> = (0..HOSTILE).map(|_| turns.attack("opens")).collect();
    turns.turn(&packets);
    assert!(turns.victim.drops().is_empty());
    // Without anything new, turn by turn, as the driver is asked for.
    turns.rest();
    assert!(
        turns.victim.drops().is_empty(),
        "{:?}",
        turns.victim.drops()
    );
    for _ in 0..10 {
        let packets: Vec<_> = (0..HOSTILE).map(|_| turns.attack("opens")).collect();
        turns.turn(&packets);
    }
    let dropped = turns.victim.drops();
    assert!(
        dropped
            .iter()
            .any(|(reason, count)| *reason == "over_budget" && *count > 1000),
        "{dropped:?}"
    );
    // It is still served.
    turns.rest();
    let packet = turns.victim.raw.packet(&message(1 << 40, 1, 0, b"x"));
    turns.victim.end.begin_turn(turns.victim.now);
    turns.give(2, packet);
    let dropped = turns.victim.drops();
    let delivery = turns.victim.end.poll_delivery();
    assert!(
        matches!(delivery, Some(Delivery::Message { .. })),
        "{delivery:?}, {dropped:?}"
    );
}

#[test]
fn a_driver_without_turns_has_everything_handled_at_once() {
    let mut turns = Turns::new();
    let datagram = frame(5, &[&app(DATAGRAMS), &varint(3 << 1), &[2], b"hi"]);
    for _ in 0..HOSTILE {
        let (path, frames) = turns.attack("opens");
        let packet = turns.victim.raw.packet_on(path, &frames);
        turns.give(2, packet);
        let packet = turns.raw.packet(&datagram);
        turns.give(3, packet);
    }
    let output = drain(&mut turns.victim.end, turns.victim.now);
    assert_eq!(output.datagrams.len(), HOSTILE);
}
