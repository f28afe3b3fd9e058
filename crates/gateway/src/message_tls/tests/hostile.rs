//! What strangers and broken clients send: each is closed with a reason, and others do not notice.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use super::*;
use crate::message_tls::connection::{OPENING_TIME, STUCK_TIME};

/// Writes `bytes` without TLS, and turns until the other end is closed.
#[track_caller]
fn closes_after(served: &mut Served, bytes: &[u8]) {
    let mut stream = TcpStream::connect(served.address).unwrap();
    stream.write_all(bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    stream.set_nonblocking(true).unwrap();
    served.eventually("it is closed", |_| match stream.read(&mut [0; 1000]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    });
}

/// The refusal of a client that sends `bytes` inside TLS.
#[track_caller]
fn refused(served: &mut Served, bytes: &[u8]) -> (RefusalReason, String) {
    let mut client = served.connect();
    client.send(bytes);
    served.until(&mut client, "it is refused", |client| {
        client.refusal().is_some()
    });
    client.refusal().unwrap()
}

#[test]
fn invalid_hellos_are_refused_with_a_reason() {
    let mut served = Served::with_one();
    let (mut good, mut end) = served.attach(TOKEN, Role::Send);
    let (reason, text) = refused(&mut served, &opening(OTHER, Role::Send, APP));
    assert_eq!(reason, RefusalReason::BadToken);
    assert!(text.contains("token_file"), "{text}");
    let (reason, text) = refused(&mut served, &opening(TOKEN, Role::Send, "A9"));
    assert_eq!(reason, RefusalReason::Forbidden);
    assert!(text.contains("no `A9` in its `send`"), "{text}");
    for wrong in [
        &b"KEIM\x01\x01\x02A3"[..],
        b"GET / HTTP/1.1\r\n\r\n",
        b"KEIT\x01\x00",
    ] {
        assert_eq!(
            refused(&mut served, wrong).0,
            RefusalReason::BadHello,
            "{wrong:?}"
        );
    }
    assert_eq!(
        refused(&mut served, b"KEIT\x07\x01a").0,
        RefusalReason::Version
    );
    let token = encode_token(TOKEN).unwrap();
    for hello in [&b"KEIM\x01\x03\x02A3"[..], b"KEIM\x01\x01\x00", b"nothing"] {
        let bytes = [&token[..], hello].concat();
        assert_eq!(
            refused(&mut served, &bytes).0,
            RefusalReason::BadHello,
            "{hello:?}"
        );
    }
    served.serves(&mut good, &mut end);
    assert_eq!((served.closed("token"), served.closed("client")), (1, 1));
    assert_eq!(served.closed("protocol"), 7);
}

#[test]
fn refused_clients_read_why_although_they_sent_more() {
    let mut served = Served::with_one();
    let mut bytes = opening(OTHER, Role::Send, APP);
    bytes.extend(message(1, &[0; 50_000]));
    assert_eq!(refused(&mut served, &bytes).0, RefusalReason::BadToken);
    // One that never closes goes after a while.
    let mut client = served.connect();
    client.send(&bytes);
    served.until(&mut client, "it is refused", |client| {
        client.refusal().is_some()
    });
    served.pass(Duration::from_secs(3));
    assert_eq!(served.figures().opening_connections, 0);
}

#[test]
fn wrong_messages_close_their_connection_alone() {
    for wrong in [
        &b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"[..],
        b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01",
        b"\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x01",
    ] {
        let mut served = Served::with_one();
        let (mut good, mut end) = served.attach(TOKEN, Role::Send);
        let (mut bad, mut bad_end) = served.attach(TOKEN, Role::Send);
        bad.send(wrong);
        served.until(&mut bad, "it is closed", |client| client.closed);
        let mut came = Vec::new();
        drain(&mut bad_end, &mut came);
        assert!(came.is_empty(), "nothing of it reaches the message socket");
        served.serves(&mut good, &mut end);
        assert_eq!(served.closed("protocol"), 1);
        let error = served.figures().clients[0].last_error.clone().unwrap().1;
        assert!(error.contains("1 to 16777216 are allowed"), "{error}");
    }
    let mut served = Served::with_one();
    let (mut receiver, _end) = served.attach(TOKEN, Role::Receive);
    receiver.send(b"x");
    served.until(&mut receiver, "it is closed", |client| client.closed);
    assert_eq!(served.closed("protocol"), 1);
}

#[test]
fn garbage_instead_of_tls_is_closed_and_charged_to_its_network() {
    let mut served = Served::with_one();
    let (mut good, mut end) = served.attach(TOKEN, Role::Send);
    closes_after(&mut served, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut random = ChaCha8Rng::seed_from_u64(20);
    for length in [1, 5, 6, 100, 20_000] {
        let mut bytes = vec![0; length];
        random.fill_bytes(&mut bytes);
        closes_after(&mut served, &bytes);
    }
    // A record that announces more than there may be.
    closes_after(&mut served, b"\x16\x03\x01\xff\xff");
    for _ in 0..20 {
        closes_after(&mut served, &[0x80; 64]);
    }
    assert!(served.closed("failures") > 0);
    served.serves(&mut good, &mut end);
    // After a minute its network may try again.
    served.pass(Duration::from_secs(60));
    let (mut again, mut again_end) = served.attach(TOKEN, Role::Send);
    served.serves(&mut again, &mut again_end);
}

#[test]
fn broken_tls_of_an_attached_client_ends_it_and_what_it_had_under_way() {
    let mut served = Served::with_one();
    let (mut good, mut end) = served.attach(TOKEN, Role::Send);
    let (mut bad, mut bad_end) = served.attach(TOKEN, Role::Send);
    bad.send(&message(1, b"whole"));
    let mut came = Vec::new();
    served.eventually("its message comes", |_| {
        bad.turn();
        drain(&mut bad_end, &mut came);
        came.len() == 17
    });
    // A record that cannot be decrypted.
    bad.stream.write_all(b"\x17\x03\x03\x00\x20").unwrap();
    bad.stream.write_all(&[0; 32]).unwrap();
    served.eventually("it is closed", |served| served.closed("tls") == 1);
    let figures = served.figures();
    let stats = &figures.clients[0].stats;
    assert_eq!(
        (stats.open_connections, figures.opening_connections),
        (1, 0)
    );
    assert_eq!((stats.unfinished_messages, stats.unknown_messages), (0, 1));
    served.serves(&mut good, &mut end);
}

#[test]
fn mutated_hellos_end_no_other_connection() {
    let mut served = Served::with_one();
    let (mut good, mut end) = served.attach(TOKEN, Role::Send);
    let mut whole = opening(TOKEN, Role::Send, APP);
    whole.extend(message(1, b"a message"));
    let mut random = ChaCha8Rng::seed_from_u64(38);
    for round in 0..300 {
        let mut bytes = whole.clone();
        let at = random.next_u32() as usize % bytes.len();
        match round % 3 {
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << (random.next_u32() % 8),
            _ => bytes.extend((0..at).map(|_| random.next_u32() as u8)),
        }
        let mut client = served.connect();
        if !bytes.is_empty() {
            client.send(&bytes);
        }
        for _ in 0..20 {
            client.turn();
            served.turn();
        }
        drop(client);
        while served.attached.accept().is_ok() {}
        // Failures of this network are forgiven.
        served.pass(Duration::from_secs(7));
    }
    served.pass(OPENING_TIME);
    served.serves(&mut good, &mut end);
    let figures = served.figures();
    assert_eq!(
        (
            figures.opening_connections,
            figures.clients[0].stats.open_connections
        ),
        (0, 1)
    );
}

#[test]
fn silent_connections_are_closed_after_ten_seconds() {
    let mut served = Served::with_one();
    let (mut good, mut end) = served.attach(TOKEN, Role::Send);
    let silent: Vec<TcpStream> = (0..5)
        .map(|_| TcpStream::connect(served.address).unwrap())
        .collect();
    let mut half = served.connect();
    half.send(&encode_token(TOKEN).unwrap());
    served.until(&mut half, "its handshake is over", |client| {
        !client.tls.is_handshaking()
    });
    served.eventually("all of them are there", |served| {
        served.figures().opening_connections == 6
    });
    served.pass(Duration::from_secs(9));
    assert_eq!(served.figures().opening_connections, 6);
    served.pass(Duration::from_secs(2));
    let figures = served.figures();
    assert_eq!(
        (
            figures.opening_connections,
            figures.closed_connections["timeout"]
        ),
        (0, 6)
    );
    served.serves(&mut good, &mut end);
    drop(silent);
}

#[test]
fn a_network_opens_few_connections_at_once_and_may_go_on_later() {
    let mut served = Served::with_one();
    let (mut good, mut end) = served.attach(TOKEN, Role::Send);
    let many: Vec<TcpStream> = (0..40)
        .map(|_| TcpStream::connect(served.address).unwrap())
        .collect();
    served.eventually("all of them were looked at", |served| {
        let figures = served.figures();
        figures.opening_connections + figures.closed_connections["limit"] == 40
    });
    assert_eq!(served.figures().opening_connections, 16);
    served.serves(&mut good, &mut end);
    drop(many);
    served.eventually("they are gone", |served| {
        served.figures().opening_connections == 0
    });
    let (mut other, mut other_end) = served.attach(TOKEN, Role::Send);
    served.serves(&mut other, &mut other_end);
}

#[test]
fn a_client_has_as_many_connections_as_it_may() {
    let mut served = Served::with_one();
    let mut kept: Vec<_> = (0..4).map(|_| served.attach(TOKEN, Role::Send)).collect();
    let (reason, text) = refused(&mut served, &opening(TOKEN, Role::Send, APP));
    assert_eq!(reason, RefusalReason::Busy);
    assert!(text.contains("4 connections"), "{text}");
    assert_eq!(served.figures().clients[0].stats.refused_connections, 1);
    let (client, end) = kept.pop().unwrap();
    drop((client, end));
    served.eventually("it is gone", |served| {
        served.figures().clients[0].stats.open_connections == 3
    });
    served.attach(TOKEN, Role::Send);
}

#[test]
fn stalled_receiver_on_another_host_is_closed() {
    let mut served = Served::with_one();
    let (client, mut end) = served.attach(TOKEN, Role::Receive);
    let bytes = message(1, &vec![1; 16 << 20]);
    let (mut sent, mut idle) = (0, 0);
    // The buffers in between hold less.
    served.eventually("nothing more is taken", |_| {
        match end.write(&bytes[sent..]) {
            Ok(count) => (sent, idle) = (sent + count, 0),
            Err(_) => idle += 1,
        }
        idle > 100
    });
    assert!(sent < bytes.len(), "everything was taken");
    served.pass(STUCK_TIME / 2);
    assert_eq!(served.figures().clients[0].stats.open_connections, 1);
    served.pass(STUCK_TIME);
    assert_eq!(served.closed("stuck"), 1);
    assert!(end.write(&bytes[sent..]).is_err());
    drop(client);
}

#[test]
fn the_message_sockets_end_stops_and_the_client_sees_it() {
    let mut served = Served::with_one();
    let (mut client, end) = served.attach(TOKEN, Role::Send);
    drop(end);
    served.until(&mut client, "it is closed", |client| client.closed);
    drop(std::mem::replace(
        &mut served.attached,
        attach::channel().unwrap().1,
    ));
    assert_eq!(
        refused(&mut served, &opening(TOKEN, Role::Send, APP)).0,
        RefusalReason::Stopping
    );
}
