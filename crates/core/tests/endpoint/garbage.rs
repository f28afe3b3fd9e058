//! Whatever arrives, in whatever state: nothing panics, polls end, and honest sessions go on.

use std::time::Duration;

use keiro_core::{
    AggregationConfig, AggregationMode, AggregationSnapshot, AppId, Endpoint, EndpointConfig,
    FlowId, Instant, NewDatagram, SocketId, wire::Reader,
};
use proptest::{collection::vec, prelude::*, sample::Index};

use crate::support::{
    self, Hello, MESSAGES, Net, Victim, address, drain, endpoint, feed, fragment, frame,
    mend_first_mac, message, message_drop, meta, peer, varint,
};

/// When the bytes arrive.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Nothing was sent yet.
    Fresh,
    /// The initiation is out, the response is not in.
    Handshaking,
    /// The session is up.
    Up,
    /// Messages are on the way in both directions.
    Busy,
    /// The other side has closed and comes back.
    Closed,
}

/// Bytes that arrive.
#[derive(Clone, Debug)]
enum Input {
    /// Any.
    Bytes(Vec<u8>),
    /// Any, behind the first byte of a packet.
    Kind(u8, Vec<u8>),
    /// A packet that was sent, again.
    Replayed(Index),
    /// One, altered in places.
    Altered(Index, Vec<(Index, u8)>),
    /// One with another length.
    Cut(Index, Index),
    /// The head of one and the tail of another.
    Spliced(Index, Index, Index),
}

fn state() -> impl Strategy<Value = State> {
    prop_oneof![
        Just(State::Fresh),
        Just(State::Handshaking),
        Just(State::Up),
        Just(State::Busy),
        Just(State::Closed),
    ]
}

fn input() -> impl Strategy<Value = Input> {
    let index = any::<Index>;
    prop_oneof![
        vec(any::<u8>(), 0..1600).prop_map(Input::Bytes),
        (0u8..6, vec(any::<u8>(), 0..300)).prop_map(|(kind, rest)| Input::Kind(kind, rest)),
        (
            0u8..6,
            prop_oneof![Just(163usize), Just(119), Just(63), Just(25)],
            any::<u8>()
        )
            .prop_map(|(kind, len, byte)| Input::Kind(kind, vec![byte; len])),
        index().prop_map(Input::Replayed),
        (index(), vec((index(), 1u8..), 1..4))
            .prop_map(|(packet, places)| Input::Altered(packet, places)),
        (index(), index()).prop_map(|(packet, len)| Input::Cut(packet, len)),
        (index(), index(), index()).prop_map(|(a, b, at)| Input::Spliced(a, b, at)),
    ]
}

impl Input {
    /// The bytes, from packets that were sent to gateway `to`.
    fn packet(&self, seen: &[Vec<u8>], to: u8) -> Vec<u8> {
        let pick = |index: &Index| match seen {
            [] => vec![1; 164],
            _ => index.get(seen).clone(),
        };
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Kind(kind, rest) => [&[*kind], rest.as_slice()].concat(),
            Self::Replayed(packet) => pick(packet),
            Self::Altered(packet, places) => {
                let mut packet = pick(packet);
                for (place, flip) in places {
                    *place.get_mut(&mut packet) ^= flip;
                }
                // So that what is behind the first MAC is reached, too.
                if packet[0] == 1 || packet[0] == 2 {
                    mend_first_mac(&mut packet, to);
                }
                packet
            }
            Self::Cut(packet, len) => {
                let mut packet = pick(packet);
                packet.truncate(len.index(packet.len() + 1));
                packet
            }
            Self::Spliced(head, tail, at) => {
                let (mut packet, tail) = (pick(head), pick(tail));
                let at = at.index(packet.len().min(tail.len()));
                packet.truncate(at);
                packet.extend_from_slice(&tail[at..]);
                packet
            }
        }
    }
}

/// Two gateways in that state; the first is the one that bytes will be fed to.
fn net_in(state: State) -> Net {
    let mut net = Net::new();
    match state {
        State::Fresh => {}
        State::Handshaking => net.drain(),
        State::Up | State::Busy | State::Closed => {
            assert!(net.run(Duration::from_secs(5), Net::is_up));
        }
    }
    match state {
        State::Fresh | State::Handshaking | State::Up => {}
        State::Busy => {
            for side in 0..2 {
                let (now, app) = (net.now, AppId::of_name(MESSAGES));
                net.ends[side]
                    .send_message(now, now, net.peers[side], app, vec![1; 100_000])
                    .expect("room");
            }
            net.run(Duration::from_millis(5), |_| false);
        }
        State::Closed => {
            net.ends[1].remove_peer(net.now, net.peers[1]);
            net.run(Duration::from_millis(5), |_| false);
            net.peers[1] = net.ends[1].add_peer(net.now, peer(1, Some(address(1))));
        }
    }
    net
}

/// A frame that says how long it is.
fn sized(kind: u64, fields: &[&[u8]]) -> Vec<u8> {
    let body = fields.concat();
    frame(kind, &[&varint(body.len() as u64), &body])
}

/// What a hostile peer, with keys, says.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    // Values near the edges are those that matter.
    let number = || {
        prop_oneof![
            0u64..4,
            0u64..70_000,
            (16u64 << 20) - 2..(16 << 20) + 10,
            (1u64 << 62) - 3..1 << 62,
            any::<u64>().prop_map(|any| any >> 2),
        ]
    };
    let data = || vec(any::<u8>(), 0..40);
    let field = move || {
        prop_oneof![
            number().prop_map(varint),
            any::<[u8; 4]>().prop_map(Vec::from),
            any::<[u8; 8]>().prop_map(Vec::from),
            data(),
        ]
    };
    let one = prop_oneof![
        4 => (number(), number(), number(), data())
            .prop_map(|(id, total, offset, data)| message(id, total, offset, &data)),
        4 => (0u64..4, 1u64..60, 0u64..60, data())
            .prop_map(|(id, total, offset, data)| message(id, total, offset, &data)),
        2 => (0u64..4, number()).prop_map(|(id, total)| message_drop(id, total)),
        1 => (number(), number()).prop_map(|(id, total)| message_drop(id, total)),
        2 => (number(), number(), number(), data())
            .prop_map(|(id, total, offset, data)| fragment(id, total, offset, &data)),
        2 => (0u64..4, 1u64..60, 0u64..60, data())
            .prop_map(|(id, total, offset, data)| fragment(id, total, offset, &data)),
        2 => number().prop_map(|credit| frame(10, &[&varint(credit)])),
        2 => (number(), any::<u8>()).prop_map(|(id, status)| frame(8, &[&varint(id), &[status]])),
        4 => (0u8..3, vec(number(), 5..12)).prop_map(|(path, numbers)| {
            let numbers: Vec<u8> = numbers.into_iter().flat_map(varint).collect();
            frame(2, &[&[path], &numbers])
        }),
        4 => (0u64..12, 0u64..4, number(), number(), number()).prop_map(
            |(largest, low, at, held, ce)| {
                let low = varint(low.min(largest));
                let (largest, at, held) = (varint(largest), varint(at), varint(held));
                frame(2, &[&[0], &largest, &at, &held, &varint(ce), &[1], &low])
            }
        ),
        2 => (3u64..5, any::<[u8; 8]>()).prop_map(|(kind, token)| frame(kind, &[&token])),
        // Groups that fit together now and then, and those that do not.
        4 => (0u8..2, 0u64..12, 0u8..5, any::<bool>()).prop_map(|(path, number, place, copy)| {
            let number = varint(number);
            match copy {
                true => frame(0x11, &[&[path], &number, &[place.max(1), 0]]),
                false => sized(0x43, &[&[path], &number, &[place]]),
            }
        }),
        4 => (0u8..2, 0u64..12, [0u8..5, 0u8..3, 0u8..3], data()).prop_map(
            |(path, first, shape, shard)| sized(0x44, &[&[path], &varint(first), &shape, &shard])
        ),
        2 => (0u8..2, number(), any::<[u8; 3]>(), data()).prop_map(
            |(path, first, shape, shard)| sized(0x44, &[&[path], &varint(first), &shape, &shard])
        ),
        1 => Just(frame(11, &[])),
        1 => Just(frame(1, &[])),
        2 => (0u64..70, vec(field(), 0..6)).prop_map(|(kind, fields)| {
            let fields: Vec<&[u8]> = fields.iter().map(Vec::as_slice).collect();
            frame(kind, &fields)
        }),
        1 => vec(any::<u8>(), 0..100),
    ];
    vec(one, 1..6).prop_map(|frames| frames.concat())
}

/// What a peer claims of our aggregates.
#[derive(Clone, Debug)]
struct Claim {
    path: u8,
    /// Either the earlier value plus this much, or any value.
    grows: bool,
    /// Highest number, aggregates, copies, overflows of the socket and of the system.
    counters: [u64; 5],
    spacing: Option<Spacing>,
}

/// How far apart it says that copies came.
#[derive(Clone, Debug)]
struct Spacing {
    ip_bytes: u16,
    sent: u8,
    /// What the index grows by, and nanoseconds.
    came: Vec<(u8, u64)>,
}

impl Claim {
    /// The frame; `claimed` is the value that was claimed before.
    fn frame(&self, claimed: &mut [u64; 5]) -> Vec<u8> {
        for (claimed, more) in claimed.iter_mut().zip(self.counters) {
            let before = if self.grows { *claimed } else { 0 };
            *claimed = (before + more).min((1 << 62) - 1);
        }
        let mut body = vec![self.path];
        body.extend(claimed.iter().flat_map(|counter| varint(*counter)));
        if let Some(spacing) = &self.spacing {
            body.extend(spacing.ip_bytes.to_be_bytes());
            body.push(spacing.sent);
            let mut index = 0u8;
            for (step, nanos) in &spacing.came {
                index = index.wrapping_add(*step);
                body.push(index);
                body.extend(varint(*nanos));
            }
        }
        sized(0x42, &[&body])
    }
}

fn claim() -> impl Strategy<Value = Claim> {
    // A number that was not used yet is not taken for one of ours.
    let highest = prop_oneof![8 => 0u64..2, 1 => 0u64..12, 1 => 0u64..400];
    let any_size = || {
        prop_oneof![
            6 => 0u64..12,
            2 => 0u64..400,
            1 => (1u64 << 61) - 2..1 << 61,
            1 => (1u64 << 62) - 3..1 << 62,
        ]
    };
    let nanos = prop_oneof![
        4 => 1_000u64..400_000,
        1 => 0u64..4,
        1 => (1u64 << 29) - 2..(1 << 29) + 3,
        1 => (1u64 << 62) - 3..1 << 62,
    ];
    let spacing = (
        prop_oneof![4 => 28u16..1500, 1 => any::<u16>()],
        prop_oneof![4 => 2u8..11, 1 => any::<u8>()],
        vec(
            (prop_oneof![8 => Just(1u8), 1 => any::<u8>()], nanos),
            0..12,
        ),
    );
    let spacing = spacing.prop_map(|(ip_bytes, sent, mut came)| {
        if let Some(first) = came.first_mut() {
            *first = (first.0 / 2, 0);
        }
        Spacing {
            ip_bytes,
            sent,
            came,
        }
    });
    let counters = (highest, any_size(), any_size(), any_size(), any_size());
    let head = (prop_oneof![8 => Just(0u8), 1 => 1u8..4], any::<bool>());
    (head, counters, proptest::option::of(spacing)).prop_map(
        |((path, grows), (highest, aggregates, copies, socket, system), spacing)| Claim {
            path,
            grows,
            counters: [highest, aggregates, copies, socket, system],
            spacing,
        },
    )
}

fn gathering() -> impl Strategy<Value = AggregationConfig> {
    let mode = prop_oneof![Just(AggregationMode::Eager), Just(AggregationMode::Fixed)];
    mode.prop_map(|mode| AggregationConfig {
        mode,
        ..AggregationConfig::default()
    })
}

/// Everything that can be read is read; nothing of it may panic.
fn look_at(end: &Endpoint, peer: keiro_core::PeerId) {
    let _ = (end.snapshot(), end.session(peer), end.poll_timeout());
    let _ = (
        end.is_drained(),
        end.active_path(peer, AppId::of_name(MESSAGES)),
    );
}

/// One that gathers its datagrams.
fn gathering_victim(config: AggregationConfig) -> Victim {
    let mut endpoint_config = EndpointConfig::new(support::key(1));
    endpoint_config.aggregation = config;
    Victim::with(Endpoint::new(Instant::ZERO, endpoint_config, [1; 32]))
}

/// It has `count` datagrams to send.
fn say(victim: &mut Victim, count: usize) {
    let app = AppId::of_name(support::DATAGRAMS);
    for _ in 0..count {
        let (now, peer) = (victim.now, victim.peer);
        let _ =
            victim
                .end
                .send_datagram(now, peer, NewDatagram::new(app, FlowId(1), now, &[7; 40]));
    }
}

/// `pause_ms` pass, in which all that it says is acknowledged.
fn go_on(victim: &mut Victim, pause_ms: u64) {
    for _ in 0..=pause_ms / 10 {
        let packets = victim.hear().packets.len();
        if packets > 0 {
            let (largest, zero, one) = (varint(victim.heard - 1), varint(0), varint(1));
            let fields: [&[u8]; 7] = [&[0], &largest, &zero, &zero, &zero, &one, &largest];
            victim.inject(&frame(2, &fields));
        }
        victim.answer_challenges();
        victim.now += Duration::from_millis(10);
    }
}

fn aggregation(victim: &Victim) -> AggregationSnapshot {
    let session = victim.end.session(victim.peer).expect("it exists");
    session.paths[0].aggregation.clone().expect("it gathers")
}

/// What the test of claims rests on: they reach the controller, again and again.
#[test]
fn reports_of_a_peer_reach_the_controller() {
    for mode in [AggregationMode::Eager, AggregationMode::Fixed] {
        let mut victim = gathering_victim(AggregationConfig {
            mode,
            ..AggregationConfig::default()
        });
        let mut claimed = [0; 5];
        say(&mut victim, 1);
        go_on(&mut victim, 10);
        for _ in 0..40 {
            say(&mut victim, 8);
            go_on(&mut victim, 100);
            let claim = Claim {
                path: 0,
                grows: true,
                counters: [1, 1, 1, 0, 0],
                spacing: None,
            };
            victim.inject(&claim.frame(&mut claimed));
        }
        let seen = aggregation(&victim);
        let decisions: u64 = seen.decisions.values().sum();
        assert!(
            decisions > 10 && seen.stats.sent_aggregates > 30,
            "{seen:?}"
        );
    }
}

proptest! {
    #[test]
    fn garbage_in_every_state_does_not_panic(
        state in state(),
        inputs in vec((input(), any::<bool>(), 0u64..3_000), 1..30),
    ) {
        let mut net = net_in(state);
        for (input, own_address, pause) in inputs {
            let seen: Vec<Vec<u8>> = net
                .seen
                .iter()
                .filter(|(from, packet)| *from == 1 && !packet.is_empty())
                .map(|(_, packet)| packet.clone())
                .collect();
            let packet = input.packet(&seen, 1);
            let from = if own_address { address(2) } else { address(3) };
            let now = net.now;
            feed(&mut net.ends[0], now, from, &packet);
            // At the same time once, and then when a little has passed.
            net.drain();
            look_at(&net.ends[0], net.peers[0]);
            net.run(Duration::from_micros(pause), |_| false);
        }
        prop_assert!(net.run(Duration::from_secs(60), Net::is_up), "comes up");
        prop_assert!(net.deliver(), "delivers");
    }

    #[test]
    fn authentic_garbage_does_not_panic(
        packets in vec((frames(), 0u8..2, 0u64..50), 1..30),
    ) {
        let mut victim = Victim::new();
        // An honest peer beside the hostile one.
        let now = victim.now;
        let honest = victim.end.add_peer(now, peer(3, None));
        for (frames, path, pause) in packets {
            let packet = victim.raw.packet_on(path, &frames);
            victim.give(&packet);
            victim.hear();
            let app = AppId::of_name(MESSAGES);
            let _ = victim.end.send_message(victim.now, victim.now, victim.peer, app, vec![1; 3000]);
            victim.hear();
            look_at(&victim.end, victim.peer);
            victim.now += Duration::from_millis(pause);
        }
        let session = victim.end.session(victim.peer).expect("it exists");
        prop_assert!(session.stats.reassembly_bytes <= 64 << 20);
        let (state, initiation) = Hello::new(3, 1, 1).initiate();
        feed(&mut victim.end, victim.now, address(3), &initiation);
        let packets = drain(&mut victim.end, victim.now).packets;
        let response = packets.iter().find(|(to, _)| *to == address(3)).expect("a response");
        let mut raw = support::Raw::new(state, &response.1);
        let packet = raw.packet(&message(0, 2, 0, b"hi"));
        feed(&mut victim.end, victim.now, address(3), &packet);
        prop_assert_eq!(drain(&mut victim.end, victim.now).messages, [b"hi"]);
        prop_assert!(victim.end.session(honest).is_some());
    }

    #[test]
    fn arbitrary_aggregation_reports_do_not_panic(
        config in gathering(),
        steps in vec((0usize..12, vec(claim(), 0..4), 0u64..400), 1..40),
    ) {
        let mut victim = gathering_victim(config);
        let mut claimed = [0; 5];
        for (sends, claims, pause) in steps {
            say(&mut victim, sends);
            for claim in claims {
                victim.inject(&claim.frame(&mut claimed));
                look_at(&victim.end, victim.peer);
            }
            go_on(&mut victim, pause);
        }
        victim.assert_alive();
    }

    /// `drain` panics if an endpoint gives out without end.
    #[test]
    fn polling_terminates(
        state in state(),
        calls in vec((0u8..9, any::<Index>(), 1usize..200_000), 1..20),
    ) {
        let mut net = net_in(state);
        for (call, index, len) in calls {
            let (now, id, app) = (net.now, net.peers[0], AppId::of_name(MESSAGES));
            let end = &mut net.ends[0];
            match call {
                0 => drop(end.send_message(now, now, id, app, vec![2; len])),
                1 => {
                    let app = AppId::of_name(support::DATAGRAMS);
                    let len = len.min(65_507);
                    let _ = end.send_datagram(now, id, NewDatagram::new(app, FlowId(1), now, &vec![3; len]));
                }
                2 => end.handle_timeout(now + Duration::from_micros(len as u64)),
                3 => end.set_paths(now, id, &[]),
                4 => end.set_paths(now, id, &peer(2, Some(address(2))).paths),
                5 => end.remove_app(id, app),
                6 => peer(2, None).apps.into_iter().for_each(|app| end.set_app(id, app)),
                7 => {
                    let packet = index.get(&[vec![4; 26], vec![1; 164], vec![]]).clone();
                    let mut where_from = meta(now, address(4));
                    where_from.socket = SocketId(len as u16);
                    end.handle_datagram(now, where_from, &mut packet.clone());
                }
                _ => {
                    end.remove_peer(now, id);
                    net.peers[0] = end.add_peer(now, peer(2, Some(address(2))));
                }
            }
            net.drain();
            net.drain();
            look_at(&net.ends[0], net.peers[0]);
            net.run(Duration::from_micros(index.index(5_000) as u64), |_| false);
        }
        let now = net.now;
        net.ends[0].set_paths(now, net.peers[0], &peer(2, Some(address(2))).paths);
        for app in peer(2, None).apps {
            net.ends[0].set_app(net.peers[0], app);
        }
        prop_assert!(net.run(Duration::from_secs(60), Net::is_up), "comes up");
        prop_assert!(net.deliver(), "delivers");
    }

    #[test]
    fn endpoint_without_peers_answers_nothing(inputs in vec(input(), 1..30)) {
        let mut end = endpoint(1);
        let seen = [Hello::new(2, 1, 1).initiate().1];
        for input in inputs {
            feed(&mut end, Instant::ZERO, address(2), &input.packet(&seen, 1));
        }
        prop_assert!(drain(&mut end, Instant::ZERO).packets.is_empty());
        prop_assert_eq!(end.poll_timeout(), None);
    }

    #[test]
    fn second_implementation_writes_the_same_varints(value in 0u64..1 << 62) {
        let bytes = varint(value);
        let mut reader = Reader::new(&bytes);
        prop_assert_eq!(reader.varint(), Some(value));
        prop_assert!(reader.is_empty());
    }
}
