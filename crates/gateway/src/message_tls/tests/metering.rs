//! What a client may have under way: messages and bytes, over all its connections, in any pieces.

use keiro_control::message_socket::BODY_BYTES_MAX;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use super::*;
use crate::message_tls::{
    clients::{Account, Clients},
    framing::SenderFraming,
};

fn account_of(clients: &mut Clients) -> &mut Account {
    clients.account("one").unwrap()
}

fn clients() -> Clients {
    let mut clients = Clients::default();
    clients.apply_settings(ClientSettings::of(&[("one", TOKEN, permit())]));
    clients
}

#[test]
fn frames_pass_unchanged_in_any_pieces_and_are_counted() {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for _ in 0..100 {
        let mut clients = clients();
        let mut framing = SenderFraming::default();
        let lengths: Vec<usize> = (0..8)
            .map(|_| 1 + random.next_u32() as usize % 3000)
            .collect();
        let bytes: Vec<u8> = (1..)
            .zip(&lengths)
            .flat_map(|(id, length)| message(id, &vec![id as u8; *length]))
            .collect();
        let (mut output, mut input) = (Vec::new(), &bytes[..]);
        while !input.is_empty() {
            let piece = (1 + random.next_u32() as usize % 700).min(input.len());
            let mut now = &input[..piece];
            let max = output.len() + 1 + random.next_u32() as usize % 500;
            framing
                .pass(&mut now, account_of(&mut clients), &mut output, max)
                .unwrap();
            input = &input[piece - now.len()..];
        }
        assert!(output == bytes);
        assert!(framing.is_between_messages());
        let total: usize = lengths.iter().sum();
        let stats = account_of(&mut clients).stats();
        assert_eq!(
            (stats.unfinished_messages, stats.unfinished_bytes),
            (8, total as u64)
        );
        let acks: Vec<u8> = (1..=8).flat_map(|id| ack(id, id as u8 % 4, 1)).collect();
        let mut from_gateway = Answer::Accepted.encode(VERSION);
        from_gateway.extend(acks);
        for piece in from_gateway.chunks(1 + random.next_u32() as usize % 30) {
            framing
                .on_gateway_bytes(piece, account_of(&mut clients))
                .unwrap();
        }
        let stats = account_of(&mut clients).stats();
        assert_eq!((stats.unfinished_messages, stats.unfinished_bytes), (0, 0));
        assert_eq!((stats.delivered_messages, stats.expired_messages), (2, 2));
        assert_eq!((stats.refused_messages, stats.unknown_messages), (2, 2));
        assert_eq!(framing.unfinished(), 0);
    }
}

#[test]
fn a_message_beyond_the_limit_waits_for_an_outcome() {
    let mut clients = clients();
    let (mut first, mut second) = (SenderFraming::default(), SenderFraming::default());
    let bytes: Vec<u8> = (1..=9).flat_map(|id| message(id, b"body")).collect();
    let mut output = Vec::new();
    let mut input = &bytes[..];
    first
        .pass(
            &mut input,
            account_of(&mut clients),
            &mut output,
            usize::MAX,
        )
        .unwrap();
    assert_eq!((output.len(), input.len()), (8 * 16, 4));
    assert!(first.is_held());
    // The limit is of the client, not of the connection.
    let mut other = &bytes[..16];
    second
        .pass(
            &mut other,
            account_of(&mut clients),
            &mut output,
            usize::MAX,
        )
        .unwrap();
    assert!(second.is_held());
    assert_eq!(output.len(), 8 * 16);
    let mut answer = Answer::Accepted.encode(VERSION);
    answer.extend(ack(3, 0, 0));
    first
        .on_gateway_bytes(&answer, account_of(&mut clients))
        .unwrap();
    assert!(clients.take_finished());
    first
        .pass(
            &mut input,
            account_of(&mut clients),
            &mut output,
            usize::MAX,
        )
        .unwrap();
    assert_eq!((output.len(), input.len()), (9 * 16, 0));
    // The gateway ends: nothing stays counted.
    first.on_end(account_of(&mut clients));
    let stats = account_of(&mut clients).stats();
    assert_eq!((stats.unfinished_messages, stats.unknown_messages), (0, 8));
}

#[test]
fn bytes_are_bounded_but_one_message_always_passes() {
    let mut clients = Clients::default();
    let small = Permit {
        bytes_max: 1 << 20,
        ..permit()
    };
    clients.apply_settings(ClientSettings::of(&[("one", TOKEN, small)]));
    let account = account_of(&mut clients);
    assert!(account.has_room(BODY_BYTES_MAX));
    account.on_begun(1 << 19);
    assert!(account.has_room(1 << 19));
    assert!(!account.has_room((1 << 19) + 1));
    account.on_finished(1 << 19, Some(0));
    assert!(account.has_room(BODY_BYTES_MAX));
}

#[test]
fn a_number_that_is_used_twice_is_counted_once_more_and_not_forgotten() {
    let mut clients = clients();
    let mut framing = SenderFraming::default();
    let bytes = [message(4, b"first"), message(4, b"second!")].concat();
    let mut output = Vec::new();
    framing
        .pass(
            &mut &bytes[..],
            account_of(&mut clients),
            &mut output,
            usize::MAX,
        )
        .unwrap();
    let mut answer = Answer::Accepted.encode(VERSION);
    answer.extend(ack(4, 2, 2));
    framing
        .on_gateway_bytes(&answer, account_of(&mut clients))
        .unwrap();
    let stats = account_of(&mut clients).stats();
    assert_eq!((stats.unfinished_messages, stats.unfinished_bytes), (1, 5));
    framing
        .on_gateway_bytes(&ack(4, 0, 0), account_of(&mut clients))
        .unwrap();
    // An ack of nothing changes nothing.
    framing
        .on_gateway_bytes(&ack(4, 0, 0), account_of(&mut clients))
        .unwrap();
    let stats = account_of(&mut clients).stats();
    assert_eq!(
        (
            stats.unfinished_bytes,
            stats.delivered_messages,
            stats.refused_messages
        ),
        (0, 1, 1)
    );
}
