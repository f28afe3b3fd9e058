//! Messages from one gateway's message socket to the other's.

use crate::site::{Pair, app, body, next, wait_for};
use keiro_control::message_socket::{
    Outcome, RefusalReason, RefusedReason, Role, client::ClientError,
};

fn pair() -> Pair {
    let a = app("M", "message", "b") + &app("D", "datagram", "b");
    let b = app("M", "message", "a") + &app("D", "datagram", "a");
    Pair::new(&a, &b)
}

#[test]
fn messages_of_every_length_arrive_whole_both_ways() {
    let pair = pair();
    for (from, to) in [(&pair.a, &pair.b), (&pair.b, &pair.a)] {
        let mut receiver = to.receiver("M");
        let mut sender = from.sender("M");
        for (id, length) in [1, 2, 1400, 1500, 10_000, 100_000, 1_000_000]
            .into_iter()
            .enumerate()
        {
            let (id, sent) = (id as u64, body(id as u64, length));
            sender.send(id, &sent);
            let message = next(&mut receiver);
            assert_eq!(
                (message.id, message.body == sent),
                (id, true),
                "{length} bytes"
            );
            let ack = sender.ack();
            assert_eq!((ack.id, ack.outcome), (id, Outcome::Delivered));
            assert!(!ack.delay.is_zero());
        }
    }
    let shown = pair.a.app("M");
    assert_eq!(
        (
            shown.stats.sent_messages,
            shown.stats.delivered_messages,
            shown.stats.received_messages
        ),
        (7, 7, 7)
    );
    // Delays are counted anew when a plan that knows more gives the application something else.
    assert!(shown.delay.is_none_or(|delay| delay.count <= 7));
}

#[test]
fn a_message_of_the_largest_length_arrives() {
    let pair = pair();
    let mut receiver = pair.b.receiver("M");
    let sent = body(1, 16 << 20);
    let mut sender = pair.a.sender("M");
    let writer = std::thread::spawn(move || {
        sender.send(7, &sent);
        (sender.ack(), sent)
    });
    let message = next(&mut receiver);
    let (ack, sent) = writer.join().unwrap();
    assert_eq!(ack.outcome, Outcome::Delivered);
    assert!(message.body == sent);
}

#[test]
fn many_messages_at_once_all_arrive_once() {
    const COUNT: u64 = 2000;
    let pair = pair();
    let mut receiver = pair.b.receiver("M");
    let sender = pair.a.sender("M");
    let crate::site::Sender {
        mut writer,
        mut acks,
    } = sender;
    let sending = std::thread::spawn(move || {
        for id in 0..COUNT {
            writer
                .send(id, &body(id, 1 + (id as usize * 37) % 9000))
                .unwrap();
        }
        writer
    });
    let receiving = std::thread::spawn(move || {
        let mut seen = vec![0; COUNT as usize];
        for _ in 0..COUNT {
            let message = next(&mut receiver);
            assert!(message.body == body(message.id, message.body.len()));
            seen[message.id as usize] += 1;
        }
        seen
    });
    for _ in 0..COUNT {
        assert_eq!(
            acks.next_ack().unwrap().unwrap().outcome,
            Outcome::Delivered
        );
    }
    drop(sending.join().unwrap());
    assert!(receiving.join().unwrap().iter().all(|count| *count == 1));
}

#[test]
fn every_receiver_gets_every_message() {
    let pair = pair();
    let mut receivers = [pair.b.receiver("M"), pair.b.receiver("M")];
    let mut sender = pair.a.sender("M");
    sender.send(5, b"to all");
    for receiver in &mut receivers {
        assert_eq!(next(receiver).body, b"to all");
    }
    assert_eq!(sender.ack().outcome, Outcome::Delivered);
}

#[test]
fn a_message_waits_a_while_for_its_receiver() {
    let pair = pair();
    let mut sender = pair.a.sender("M");
    sender.send(1, b"early");
    wait_for("the message to cross", || {
        pair.b.app("M").stats.received_messages == 1
    });
    let mut receiver = pair.b.receiver("M");
    assert_eq!(next(&mut receiver).body, b"early");
    assert_eq!(sender.ack().outcome, Outcome::Delivered);
}

#[test]
fn without_a_receiver_a_message_is_refused_in_the_end() {
    let pair = pair();
    let mut sender = pair.a.sender("M");
    sender.send(1, b"to nobody");
    assert_eq!(
        sender.ack().outcome,
        Outcome::Refused(RefusedReason::NoReceiver)
    );
}

#[test]
fn a_receiver_that_leaves_half_way_loses_nothing_for_the_next() {
    let pair = pair();
    let idle = pair.b.receiver("M");
    let mut sender = pair.a.sender("M");
    // More than its socket's buffers hold: it does not read.
    let sent = body(9, 8 << 20);
    sender.send(9, &sent);
    wait_for("the message to cross", || {
        pair.b.app("M").stats.received_messages == 1
    });
    drop(idle);
    let mut receiver = pair.b.receiver("M");
    assert!(next(&mut receiver).body == sent);
    assert_eq!(sender.ack().outcome, Outcome::Delivered);
}

#[test]
fn a_number_in_use_is_refused_and_the_first_message_still_gets_its_ack() {
    let pair = pair();
    let mut sender = pair.a.sender("M");
    sender.send(3, b"first");
    sender.send(3, b"second");
    let ack = sender.ack();
    assert_eq!(
        (ack.id, ack.outcome),
        (3, Outcome::Refused(RefusedReason::DuplicateId))
    );
    let mut receiver = pair.b.receiver("M");
    assert_eq!(next(&mut receiver).body, b"first");
    assert_eq!(sender.ack().outcome, Outcome::Delivered);
}

#[test]
fn a_sender_that_finishes_gets_its_acks_and_the_end() {
    let pair = pair();
    let mut receiver = pair.b.receiver("M");
    let mut sender = pair.a.sender("M");
    for id in 0..10 {
        sender.send(id, b"last words");
    }
    sender.writer.stream().finish_sending().unwrap();
    for _ in 0..10 {
        next(&mut receiver);
        assert_eq!(sender.ack().outcome, Outcome::Delivered);
    }
    assert_eq!(sender.acks.next_ack().unwrap(), None);
    wait_for("the sender to be forgotten", || {
        pair.a.status().message_senders == 0
    });
}

#[test]
fn clients_that_ask_for_what_does_not_exist_learn_why() {
    let pair = pair();
    let refusal = |app: &str| {
        let name = keiro_control::config::Name::new(app).unwrap();
        let path = pair.a.file("message.sock");
        match keiro_control::message_socket::client::Connection::unix(&path, Role::Send, &name) {
            Err(ClientError::Refused { reason, text }) => (reason, text),
            other => panic!("{other:?}"),
        }
    };
    let (reason, text) = refusal("nothing");
    assert_eq!(reason, RefusalReason::UnknownApp);
    assert!(text.contains("keiro show app"), "{text}");
    assert_eq!(refusal("D").0, RefusalReason::NotAvailable);
}

#[test]
fn garbage_ends_the_connection_and_nothing_else() {
    use std::io::{Read, Write};
    let pair = pair();
    let mut stream = std::os::unix::net::UnixStream::connect(pair.a.file("message.sock")).unwrap();
    stream.set_read_timeout(Some(crate::site::LIMIT)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // The refusal, and then the end, perhaps as a reset since not all was read.
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.starts_with(b"KEIM"), "{answer:?}");
    let mut sender = pair.a.sender("M");
    let mut receiver = pair.b.receiver("M");
    sender.send(1, b"still there");
    assert_eq!(next(&mut receiver).body, b"still there");
    assert_eq!(sender.ack().outcome, Outcome::Delivered);
}
