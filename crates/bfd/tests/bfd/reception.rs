//! The rules of reception, RFC 5880 §6.8.6, one by one.

use keiro_bfd::{
    Change, ControlPacket, Datagram, Diagnostic, Discard, Discards, State, sessions::AddError,
};
use proptest::prelude::*;

use crate::{
    ID, Router, at,
    encoder::{ADMIN_DOWN, DOWN, INIT, Raw, UP},
    ms, neighbour,
};

fn count(discards: &Discards) -> Vec<(&'static str, u64)> {
    let all = discards.by_reason().into_iter();
    all.filter(|(_, count)| *count > 0).collect()
}

#[test]
fn what_must_be_discarded_is_and_is_counted_by_reason() {
    let down = Raw::down();
    type Case = (&'static str, Discard, Vec<u8>);
    let of = |reason, discard, packet: Raw| -> Case { (reason, discard, packet.octets()) };
    let cases = [
        ("too_short", Discard::TooShort, down.octets()[..23].to_vec()),
        ("too_short", Discard::TooShort, Vec::new()),
        of("version", Discard::Version, Raw { version: 0, ..down }),
        of("version", Discard::Version, Raw { version: 2, ..down }),
        of("length", Discard::Length, Raw { length: 23, ..down }),
        of("length", Discard::Length, Raw { length: 25, ..down }),
        // With authentication the least is 26.
        of(
            "length",
            Discard::Length,
            Raw {
                authenticated: 1,
                ..down
            },
        ),
        (
            "authentication",
            Discard::Authentication,
            [
                Raw {
                    authenticated: 1,
                    length: 26,
                    ..down
                }
                .octets(),
                vec![1, 2],
            ]
            .concat(),
        ),
        of(
            "zero_multiplier",
            Discard::ZeroMultiplier,
            Raw {
                multiplier: 0,
                ..down
            },
        ),
        of(
            "multipoint",
            Discard::Multipoint,
            Raw {
                multipoint: 1,
                ..down
            },
        ),
        of(
            "zero_discriminator",
            Discard::ZeroDiscriminator,
            Raw { my: 0, ..down },
        ),
        of(
            "unknown_discriminator",
            Discard::UnknownDiscriminator,
            Raw { your: 1, ..down },
        ),
        of(
            "missing_discriminator",
            Discard::MissingDiscriminator,
            Raw {
                state: INIT,
                ..down
            },
        ),
        of(
            "missing_discriminator",
            Discard::MissingDiscriminator,
            Raw { state: UP, ..down },
        ),
    ];
    for (reason, discard, octets) in cases {
        let mut router = Router::new();
        router.sent();
        assert_eq!(router.receive_octets(&octets), Err(discard), "{reason}");
        assert_eq!(count(router.sessions.discards()), [(reason, 1)]);
        assert_eq!(router.status().remote_discriminator, 0, "{reason}");
        assert_eq!(router.sent(), [], "{reason}: it answers nothing");
    }
}

#[test]
fn only_a_direct_neighbour_at_its_own_address_is_heard() {
    let mut router = Router::new();
    let other = "192.0.2.3".parse().unwrap();
    let known = Raw {
        your: router.number(),
        ..Raw::down()
    };
    let cases = [
        (neighbour(), Some(254), Raw::down(), Discard::Ttl),
        (neighbour(), None, Raw::down(), Discard::Ttl),
        (other, Some(255), Raw::down(), Discard::UnknownNeighbour),
        (other, Some(255), known, Discard::WrongAddress),
    ];
    for (from, ttl, packet, discard) in cases {
        let payload = &packet.octets();
        let datagram = Datagram {
            from,
            ttl,
            interface: None,
            payload,
        };
        let result = router.sessions.handle_datagram(at(0), &datagram);
        assert_eq!(result, Err(discard));
    }
    let all = [("ttl", 2), ("unknown_neighbour", 1), ("wrong_address", 1)];
    assert_eq!(count(router.sessions.discards()), all);
    // Octets behind the packet are none of its.
    let long = [Raw::down().octets(), vec![0; 40]].concat();
    assert_eq!(router.receive_octets(&long), Ok(ID));
}

/// Brings a fresh session into a state.
fn in_state(state: State) -> (Router, Raw) {
    let mut router = Router::new();
    let mut packet = Raw::down();
    match state {
        State::Init => _ = router.receive(&packet),
        State::Up => packet = router.bring_up(50_000),
        _ => {}
    }
    router.sent();
    router.now += ms(10);
    packet.your = router.number();
    (router, packet)
}

#[test]
fn the_state_follows_the_neighbours() {
    let table = [
        (State::Down, ADMIN_DOWN, State::Down, None),
        (State::Down, DOWN, State::Init, None),
        (State::Down, INIT, State::Up, Some(Change::Up)),
        (State::Down, UP, State::Down, None),
        (State::Init, ADMIN_DOWN, State::Down, None),
        (State::Init, DOWN, State::Init, None),
        (State::Init, INIT, State::Up, Some(Change::Up)),
        (State::Init, UP, State::Up, Some(Change::Up)),
        (
            State::Up,
            ADMIN_DOWN,
            State::Down,
            Some(Change::DisabledByNeighbour),
        ),
        (State::Up, INIT, State::Up, None),
        (State::Up, UP, State::Up, None),
    ];
    for (before, theirs, after, change) in table {
        let (mut router, packet) = in_state(before);
        assert_eq!(router.status().state, before);
        router
            .receive(&Raw {
                state: theirs,
                ..packet
            })
            .unwrap();
        assert_eq!(router.status().state, after, "{before:?} and {theirs}");
        let changes: Vec<Change> = router.events().iter().map(|event| event.change).collect();
        assert_eq!(changes, Vec::from_iter(change), "{before:?} and {theirs}");
        // A changed state is sent without waiting for the timer.
        let sent = router.sent();
        assert_eq!(
            sent.len(),
            usize::from(before != after),
            "{before:?} and {theirs}"
        );
        assert!(sent.iter().all(|packet| packet.last == 0));
    }
}

#[test]
fn a_session_that_is_up_takes_packets_of_its_interface_only() {
    let (mut router, packet) = in_state(State::Up);
    let other = crate::INTERFACE + 1;
    // What anyone on another link can say in the neighbour's name.
    let forged = Raw {
        state: DOWN,
        your: 0,
        ..packet
    };
    let result = router.receive_by(other, &forged.octets());
    assert_eq!(result, Err(Discard::WrongInterface));
    assert_eq!(router.status().state, State::Up);
    assert_eq!(router.sessions.discards().wrong_interface, 1);
    // The neighbour's own packets come by another link only after the session has ended.
    router.run(router.now + ms(1000));
    assert_eq!(router.status().state, State::Down);
    let down = Raw {
        state: DOWN,
        your: 0,
        ..packet
    };
    assert_eq!(router.receive_by(other, &down.octets()), Ok(ID));
    assert_eq!(router.status().state, State::Init);
}

#[test]
fn a_neighbour_that_signals_down_ends_the_session_with_that_diagnostic() {
    let (mut router, packet) = in_state(State::Up);
    let up = Raw {
        state: UP,
        ..packet
    };
    router.receive(&up).unwrap();
    let confirmed_at = router.now;
    router.run(confirmed_at + ms(20));
    let down = Raw {
        state: DOWN,
        independent: 1,
        diagnostic: 1,
        ..packet
    };
    router.receive(&down).unwrap();
    let [event] = router.events()[..] else {
        panic!("one event");
    };
    let Change::Down(failure) = event.change else {
        panic!("{event:?}");
    };
    assert_eq!(failure.diagnostic, Diagnostic::NeighbourSignalledDown);
    assert!(failure.control_plane_independent);
    assert_eq!(failure.confirmed_at, confirmed_at);
    let status = router.status();
    assert_eq!(status.remote_diagnostic, Diagnostic::DetectionTimeExpired);
    let [sent] = router.sent()[..] else {
        panic!("one packet");
    };
    assert_eq!((sent.state, sent.diagnostic), (DOWN, 3));
    assert_eq!(
        (sent.your, sent.min_tx),
        (packet.my, 1_000_000),
        "slow again"
    );
}

#[test]
fn a_poll_is_answered_at_once_with_final_and_without_poll() {
    for state in [State::Down, State::Init, State::Up] {
        let (mut router, packet) = in_state(state);
        // In each of these states this one changes nothing.
        let theirs = match state {
            State::Down => UP,
            State::Init => DOWN,
            _ => UP,
        };
        let poll = Raw {
            poll: 1,
            state: theirs,
            ..packet
        };
        router.receive(&poll).unwrap();
        let sent = router.sent();
        assert_eq!(sent.len(), 1, "{state:?}");
        assert_eq!((sent[0].last, sent[0].poll), (1, 0), "{state:?}");
        assert_eq!(sent[0].your, packet.my, "{state:?}");
    }
}

#[test]
fn a_removed_session_says_that_it_was_disabled_and_hears_nothing_more() {
    let (mut router, packet) = in_state(State::Up);
    router.sessions.remove(ID);
    let sent = router.sent();
    assert!(!sent.is_empty());
    assert!(
        sent.iter()
            .all(|it| (it.state, it.diagnostic) == (ADMIN_DOWN, 7))
    );
    assert_eq!(router.receive(&packet), Err(Discard::UnknownDiscriminator));
    assert_eq!(router.sessions.poll_timeout(), None);
    assert_eq!(router.sessions.status(ID), None);
    // What was there before is of no interest.
    assert_eq!(router.events(), []);
}

#[test]
fn sessions_are_one_of_a_number_and_one_of_an_address() {
    let mut router = Router::new();
    let config = keiro_bfd::Config {
        interval: ms(50),
        multiplier: 3,
    };
    let mut add = |number, address: &str| {
        let id = keiro_bfd::SessionId(number);
        let sessions = &mut router.sessions;
        sessions.add(at(0), id, address.parse().unwrap(), config)
    };
    assert_eq!(add(7, "192.0.2.9"), Err(AddError::Exists));
    assert_eq!(add(8, "192.0.2.2"), Err(AddError::Exists));
    for number in 8..1031 {
        add(number, &format!("2001:db8::{number:x}")).unwrap();
    }
    assert_eq!(add(1031, "2001:db8::ffff"), Err(AddError::Full));
    router.sessions.check_invariants();
}

proptest! {
    #[test]
    fn every_packet_reads_as_it_was_written(
        (diagnostic, state, flags) in (0..32u32, 0..4u32, 0..16u32),
        (multiplier, my) in (1..256u32, 1..=u32::MAX),
        (your, min_tx, min_rx, min_echo_rx) in any::<(u32, u32, u32, u32)>(),
    ) {
        let raw = Raw {
            diagnostic,
            state,
            poll: flags & 1,
            last: flags >> 1 & 1,
            independent: flags >> 2 & 1,
            demand: flags >> 3 & 1,
            multiplier,
            my,
            your,
            min_tx,
            min_rx,
            min_echo_rx,
            ..Raw::down()
        };
        let octets = raw.octets();
        let packet = ControlPacket::decode(&octets).unwrap();
        prop_assert_eq!(packet.encode().to_vec(), octets);
        prop_assert_eq!(packet.multiplier, multiplier as u8);
        prop_assert_eq!((packet.my_discriminator, packet.your_discriminator), (my, your));
        prop_assert_eq!((packet.desired_min_tx.0, packet.required_min_rx.0), (min_tx, min_rx));
        prop_assert_eq!(packet.poll, raw.poll == 1);
        prop_assert_eq!(packet.is_final, raw.last == 1);
        prop_assert_eq!(packet.demand, raw.demand == 1);
    }

    #[test]
    fn arbitrary_octets_never_panic_nor_bring_a_session_up(
        datagrams in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..64),
    ) {
        let mut router = Router::new();
        for (number, octets) in datagrams.iter().enumerate() {
            router.now = at(number as u64 * 10);
            let _ = router.receive_octets(octets);
            // Each packet asks for two at most: an answer to its poll, and a changed state.
            prop_assert!(router.sent().len() <= 2 + usize::from(number == 0));
        }
        // Our discriminator cannot be guessed.
        prop_assert_ne!(router.status().state, State::Up);
    }
    #[test]
    fn arbitrary_valid_packets_are_taken_by_the_rules_and_answered_by_few(
        packets in prop::collection::vec((
            0..3u8, 1..u32::MAX, 0..4u32, 0..16u32, 1..256u32, extreme(), extreme(), 1..2000u64,
        ), 0..64),
    ) {
        let mut router = Router::new();
        for (to, my, state, flags, multiplier, min_tx, min_rx, pause) in packets {
            router.now += ms(pause);
            router.sent();
            let own = router.number();
            let your = [0, own, own ^ 1][usize::from(to)];
            let packet = Raw {
                state,
                poll: flags & 1,
                last: flags >> 1 & 1,
                independent: flags >> 2 & 1,
                demand: flags >> 3 & 1,
                multiplier,
                my,
                your,
                min_tx,
                min_rx,
                ..Raw::down()
            };
            let expected = match (to, state) {
                (0, INIT | UP) => Err(Discard::MissingDiscriminator),
                (2, _) => Err(Discard::UnknownDiscriminator),
                _ => Ok(ID),
            };
            prop_assert_eq!(router.receive(&packet), expected);
            // An answer to its poll, a changed state, and what was due.
            prop_assert!(router.sent().len() <= 3);
        }
    }
}

fn extreme() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(1), Just(u32::MAX), any::<u32>()]
}
