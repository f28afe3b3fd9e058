//! The framing against its documentation, in pieces, and with garbage.

use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    thread,
};

use proptest::prelude::*;

use super::{client::*, *};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// Decodes `bytes` in pieces of the given lengths, then the rest at once.
fn in_pieces<T>(
    bytes: &[u8],
    pieces: &[usize],
    mut decode: impl FnMut(&mut &[u8]) -> Result<Option<T>, FramingError>,
) -> Result<Vec<T>, FramingError> {
    let mut found = Vec::new();
    let mut rest = bytes;
    for piece in pieces.iter().copied().chain([usize::MAX]) {
        let (mut now, later) = rest.split_at(piece.min(rest.len()));
        while let Some(item) = decode(&mut now)? {
            found.push(item);
        }
        assert!(
            now.is_empty(),
            "a decoder that wants more has taken everything"
        );
        rest = later;
    }
    Ok(found)
}

fn hello() -> impl Strategy<Value = Hello> {
    let role = prop_oneof![Just(Role::Send), Just(Role::Receive)];
    (VERSION_MIN..=VERSION, role, "[A-Za-z0-9._-]{1,64}").prop_map(|(version, role, app)| Hello {
        version,
        role,
        app: name(&app),
    })
}

fn answer() -> impl Strategy<Value = Answer> {
    let refused = (1..=255_u8, "\\PC{0,80}").prop_map(|(code, text)| Answer::Refused {
        reason: RefusalReason::of_code(code),
        text,
    });
    prop_oneof![Just(Answer::Accepted), refused]
}

fn ack() -> impl Strategy<Value = Ack> {
    let outcome = prop_oneof![
        Just(Outcome::Delivered),
        Just(Outcome::Expired),
        any::<u8>().prop_map(|code| Outcome::Refused(RefusedReason::of_code(code))),
        any::<u8>().prop_map(|code| Outcome::Unknown(UnknownReason::of_code(code))),
    ];
    (any::<u64>(), outcome, any::<u64>()).prop_map(|(id, outcome, nanos)| Ack {
        id,
        outcome,
        delay: Duration::from_nanos(nanos),
    })
}

fn message() -> impl Strategy<Value = Message> {
    (any::<u64>(), prop::collection::vec(any::<u8>(), 1..300))
        .prop_map(|(id, body)| Message { id, body })
}

fn encode_message(message: &Message) -> Vec<u8> {
    let mut bytes = encode_message_header(message.id, message.body.len())
        .unwrap()
        .to_vec();
    bytes.extend_from_slice(&message.body);
    bytes
}

proptest! {
    #[test]
    fn frames_round_trip_in_any_fragmentation(
        hello in hello(),
        answer in answer(),
        acks in prop::collection::vec(ack(), 0..8),
        messages in prop::collection::vec(message(), 0..8),
        pieces in prop::collection::vec(0..40_usize, 0..50),
    ) {
        let mut decoder = HelloDecoder::default();
        let found = in_pieces(&hello.encode(), &pieces, |input| decoder.decode(input));
        prop_assert_eq!(found, Ok(vec![hello]));

        let token = "t".repeat(1 + usize::from(acks.len() as u8) * 30);
        let mut decoder = TokenDecoder::default();
        let bytes = encode_token(&token).unwrap();
        let found = in_pieces(&bytes, &pieces, |input| decoder.decode(input));
        let found = found.map(|tokens| tokens.iter().map(|t| t.to_vec()).collect::<Vec<_>>());
        prop_assert_eq!(found, Ok(vec![token.into_bytes()]));

        let mut decoder = AnswerDecoder::default();
        let found = in_pieces(&answer.encode(VERSION), &pieces, |input| decoder.decode(input));
        prop_assert_eq!(found, Ok(vec![answer]));

        let bytes: Vec<u8> = acks.iter().flat_map(|a| a.encode(VERSION)).collect();
        let mut decoder = AckDecoder::default();
        let found = in_pieces(&bytes, &pieces, |input| decoder.decode(input));
        prop_assert!(decoder.is_between_acks());
        prop_assert_eq!(found, Ok(acks));

        let bytes: Vec<u8> = messages.iter().flat_map(encode_message).collect();
        let mut decoder = MessageDecoder::default();
        let found = in_pieces(&bytes, &pieces, |input| decoder.decode(input));
        prop_assert!(decoder.is_between_messages());
        prop_assert_eq!(found, Ok(messages));
    }

    #[test]
    fn garbage_does_not_panic_or_allocate(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        with_magic in any::<bool>(),
        pieces in prop::collection::vec(0..40_usize, 0..10),
    ) {
        let mut bytes = bytes;
        if with_magic {
            bytes.splice(..0, MAGIC.into_iter().chain([VERSION]));
        }
        let mut decoder = HelloDecoder::default();
        let _ = in_pieces_until_error(&bytes, &pieces, |input| decoder.decode(input).map(|o| o.is_some()));
        let mut decoder = AnswerDecoder::default();
        let _ = in_pieces_until_error(&bytes, &pieces, |input| decoder.decode(input).map(|o| o.is_some()));
        let mut decoder = AckDecoder::default();
        let _ = in_pieces_until_error(&bytes, &pieces, |input| decoder.decode(input).map(|o| o.is_some()));
        let mut decoder = MessageDecoder::default();
        let _ = in_pieces_until_error(&bytes, &pieces, |input| decoder.decode(input).map(|o| o.is_some()));
        prop_assert!(decoder.held_bytes() <= 2 * bytes.len() + MESSAGE_HEADER_BYTES);
    }

    #[test]
    fn flipped_byte_gives_another_hello_or_an_error(hello in hello(), at in 0..71_usize, bit in 0..8_u32) {
        let mut bytes = hello.encode();
        let at = at % bytes.len();
        bytes[at] ^= 1_u8 << bit;
        let mut decoder = HelloDecoder::default();
        let decoded = decoder.decode(&mut bytes.as_slice());
        prop_assert_ne!(decoded, Ok(Some(hello)));
    }
}

fn in_pieces_until_error(
    bytes: &[u8],
    pieces: &[usize],
    mut decode: impl FnMut(&mut &[u8]) -> Result<bool, FramingError>,
) -> Result<(), FramingError> {
    let mut rest = bytes;
    for piece in pieces.iter().copied().chain([usize::MAX]) {
        let (mut now, later) = rest.split_at(piece.min(rest.len()));
        while decode(&mut now)? {}
        rest = later;
    }
    Ok(())
}

#[test]
fn the_hello_ends_where_the_first_message_begins() {
    let mut bytes = Hello::new(Role::Send, name("A3")).encode();
    bytes.extend_from_slice(&encode_message(&Message {
        id: 1,
        body: vec![9],
    }));
    let mut input = bytes.as_slice();
    let hello = HelloDecoder::default().decode(&mut input).unwrap().unwrap();
    assert_eq!(hello.app, name("A3"));
    let message = MessageDecoder::default()
        .decode(&mut input)
        .unwrap()
        .unwrap();
    assert_eq!(
        message,
        Message {
            id: 1,
            body: vec![9]
        }
    );
    assert!(input.is_empty());
}

#[test]
fn invalid_hellos_are_refused() {
    let decode = |bytes: &[u8]| HelloDecoder::default().decode(&mut &bytes[..]);
    assert_eq!(
        decode(b"GET / HTTP/1.1"),
        Err(FramingError::NotThisProtocol)
    );
    assert_eq!(decode(b"KEIM\x03\x01\x02A3"), Err(FramingError::Version(3)));
    assert_eq!(decode(b"KEIM\x00\x01\x02A3"), Err(FramingError::Version(0)));
    assert_eq!(decode(b"KEIM\x01\x03\x02A3"), Err(FramingError::Role(3)));
    assert_eq!(
        decode(b"KEIM\x01\x01\x00"),
        Err(FramingError::App(NameError::Empty))
    );
    assert_eq!(
        decode(b"KEIM\x01\x01\x41"),
        Err(FramingError::App(NameError::TooLong(65)))
    );
    assert!(matches!(
        decode(b"KEIM\x01\x01\x02A\xff"),
        Err(FramingError::App(_))
    ));
    assert_eq!(decode(b"KEIM\x01\x01\x02A"), Ok(None));
}

#[test]
fn message_bodies_have_1_byte_to_16_mib() {
    for length in [0, BODY_BYTES_MAX + 1, u32::MAX as usize, usize::MAX] {
        assert!(matches!(
            encode_message_header(0, length),
            Err(FramingError::BodyLength(_))
        ));
    }
    for length in [0, (BODY_BYTES_MAX as u32) + 1, u32::MAX] {
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend_from_slice(&[0; 8]);
        let decoded = MessageDecoder::default().decode(&mut bytes.as_slice());
        assert_eq!(decoded, Err(FramingError::BodyLength(u64::from(length))));
    }
    let mut decoder = MessageDecoder::default();
    let header = encode_message_header(5, BODY_BYTES_MAX).unwrap();
    assert_eq!(decoder.decode(&mut header.as_slice()), Ok(None));
    assert!(
        decoder.held_bytes() < 100,
        "an announced body takes no memory"
    );
    let body = vec![1; BODY_BYTES_MAX];
    let message = decoder.decode(&mut body.as_slice()).unwrap().unwrap();
    assert_eq!((message.id, message.body.len()), (5, BODY_BYTES_MAX));
}

#[test]
fn long_refusals_are_cut_between_characters() {
    let text = "é".repeat(1000);
    let bytes = Answer::Refused {
        reason: RefusalReason::Busy,
        text,
    }
    .encode(VERSION);
    match AnswerDecoder::default().decode(&mut bytes.as_slice()) {
        Ok(Some(Answer::Refused { reason, text })) => {
            assert_eq!(reason, RefusalReason::Busy);
            assert_eq!(text, "é".repeat(512));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn invalid_tokens_are_refused() {
    let decode = |bytes: &[u8]| {
        let found = TokenDecoder::default().decode(&mut &bytes[..]);
        found.map(|token| token.map(|token| token.to_vec()))
    };
    assert_eq!(decode(b"KEIT\x01\x02ab"), Ok(Some(b"ab".to_vec())));
    assert_eq!(decode(b"KEIT\x01\xffab"), Ok(None));
    assert_eq!(decode(b"KEIT\x01\x00"), Err(FramingError::EmptyToken));
    assert_eq!(decode(b"KEIT\x02\x01a"), Err(FramingError::TokenVersion(2)));
    // A hello without a token, and another protocol.
    for wrong in [&b"KEIM\x01\x01\x02A3"[..], b"GET / HTTP/1.1"] {
        assert_eq!(decode(wrong), Err(FramingError::NotThisProtocol));
    }
    assert!(encode_token("").is_none());
    assert!(encode_token(&"t".repeat(256)).is_none());
    let longest = "t".repeat(255);
    let bytes = encode_token(&longest).unwrap();
    assert_eq!(decode(&bytes), Ok(Some(longest.into_bytes())));
}

/// The examples of docs/message-socket.md, by their names.
fn documented(name: &str) -> Vec<u8> {
    let document = include_str!("../../../../docs/message-socket.md");
    let prefix = format!("{name}: ");
    let mut lines = document.lines().filter_map(|l| l.strip_prefix(&prefix));
    let hex = lines
        .next()
        .unwrap_or_else(|| panic!("docs/message-socket.md has no example {name}"));
    assert_eq!(lines.next(), None, "{name} twice");
    hex.split(' ')
        .map(|byte| u8::from_str_radix(byte, 16).unwrap())
        .collect()
}

#[test]
fn documented_bytes_match_the_code() {
    let hello = Hello::new(Role::Send, name("A3"));
    assert_eq!(hello.encode(), documented("hello of a sender"));
    let hello = Hello::new(Role::Receive, name("A3"));
    assert_eq!(hello.encode(), documented("hello of a receiver"));
    let token = encode_token("dG9rZW4=").unwrap();
    assert_eq!(*token, documented("token"));
    assert_eq!(Answer::Accepted.encode(VERSION), documented("accepted"));
    let refused = Answer::Refused {
        reason: RefusalReason::UnknownApp,
        text: "no A9".to_owned(),
    };
    assert_eq!(refused.encode(VERSION), documented("refused"));
    let message = Message {
        id: 7,
        body: b"hi".to_vec(),
    };
    assert_eq!(encode_message(&message), documented("message"));
    let delivered = Ack {
        id: 7,
        outcome: Outcome::Delivered,
        delay: Duration::from_micros(10_500),
    };
    assert_eq!(delivered.encode(VERSION).to_vec(), documented("delivered"));
    let queue_full = Ack {
        id: 8,
        outcome: Outcome::Refused(RefusedReason::QueueFull),
        delay: Duration::ZERO,
    };
    assert_eq!(
        queue_full.encode(VERSION).to_vec(),
        documented("refused message")
    );
    let unknown = Ack {
        id: 9,
        outcome: Outcome::Unknown(UnknownReason::PeerRestarted),
        delay: Duration::ZERO,
    };
    assert_eq!(unknown.encode(VERSION).to_vec(), documented("unknown"));
    assert_eq!(unknown.encode(1).to_vec(), documented("unknown, version 1"));
}

#[test]
fn documented_numbers_match_the_code() {
    let document = include_str!("../../../../docs/message-socket.md");
    for code in 1..=8 {
        let row = format!("| {code} | `{:?}` |", RefusalReason::of_code(code));
        assert!(document.contains(&row), "missing: {row}");
    }
    for code in 1..=9 {
        let row = format!("| {code} | `{:?}` |", RefusedReason::of_code(code));
        assert!(document.contains(&row), "missing: {row}");
    }
    for code in 1..=3 {
        let row = format!("| {code} | `{:?}` |", UnknownReason::of_code(code));
        assert!(document.contains(&row), "missing: {row}");
    }
}

/// A gateway's side of the socket in a thread of its own.
fn served(
    serve: impl FnOnce(UnixStream) + Send + 'static,
) -> (
    tempfile::TempDir,
    std::path::PathBuf,
    thread::JoinHandle<()>,
) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("message.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || serve(listener.accept().unwrap().0));
    (directory, path, server)
}

fn read_hello(stream: &mut UnixStream) -> Hello {
    let mut decoder = HelloDecoder::default();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        if let Some(hello) = decoder.decode(&mut byte.as_slice()).unwrap() {
            return hello;
        }
    }
}

#[test]
fn a_client_sends_messages_and_gets_acks() {
    let (_directory, path, server) = served(|mut stream| {
        assert_eq!(read_hello(&mut stream), Hello::new(Role::Send, name("A3")));
        stream.write_all(&Answer::Accepted.encode(VERSION)).unwrap();
        let mut messages = MessageReader::new(stream.try_clone().unwrap());
        while let Some(message) = messages.next_message().unwrap() {
            let delay = Duration::from_nanos(message.body.len() as u64);
            let ack = Ack {
                id: message.id,
                outcome: Outcome::Delivered,
                delay,
            };
            stream.write_all(&ack.encode(VERSION)).unwrap();
        }
    });
    let connection = Connection::unix(&path, Role::Send, &name("A3")).unwrap();
    let mut acks = AckReader::new(connection.try_clone().unwrap());
    let mut messages = MessageWriter::new(connection);
    assert!(matches!(
        messages.send(0, b""),
        Err(ClientError::Framing(_))
    ));
    let large = vec![3; 1_000_000];
    messages.send(1, &large).unwrap();
    messages.send(2, b"x").unwrap();
    messages.stream().finish_sending().unwrap();
    let ack = acks.next_ack().unwrap().unwrap();
    assert_eq!((ack.id, ack.delay), (1, Duration::from_millis(1)));
    assert_eq!(acks.next_ack().unwrap().unwrap().id, 2);
    assert_eq!(acks.next_ack().unwrap(), None);
    server.join().unwrap();
}

#[test]
fn a_client_speaks_the_version_of_an_older_gateway() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("message.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || {
        let mut versions = Vec::new();
        while versions.last() != Some(&VERSION_MIN) {
            let mut stream = listener.accept().unwrap().0;
            let version = read_hello(&mut stream).version;
            versions.push(version);
            let answer = match version {
                VERSION_MIN => Answer::Accepted,
                other => Answer::Refused {
                    reason: RefusalReason::Version,
                    text: format!("version {other}"),
                },
            };
            stream.write_all(&answer.encode(VERSION_MIN)).unwrap();
        }
        versions
    });
    Connection::unix(&path, Role::Send, &name("A3")).unwrap();
    assert_eq!(server.join().unwrap(), [2, 1]);
}

#[test]
fn a_refused_client_gets_the_reason() {
    let (_directory, path, server) = served(|mut stream| {
        read_hello(&mut stream);
        let text = "there is no application A9; `keiro show app` lists them".to_owned();
        let answer = Answer::Refused {
            reason: RefusalReason::UnknownApp,
            text,
        };
        stream.write_all(&answer.encode(VERSION)).unwrap();
    });
    let error = Connection::unix(&path, Role::Receive, &name("A9")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the gateway refused the connection: there is no application A9; `keiro show app` lists \
         them"
    );
    server.join().unwrap();
}

#[test]
fn a_stream_that_ends_within_a_message_is_an_error() {
    let (_directory, path, server) = served(|mut stream| {
        read_hello(&mut stream);
        stream.write_all(&Answer::Accepted.encode(VERSION)).unwrap();
        let whole = encode_message(&Message {
            id: 1,
            body: vec![5; 10],
        });
        stream.write_all(&whole).unwrap();
        stream.write_all(&whole[..15]).unwrap();
    });
    let connection = Connection::unix(&path, Role::Receive, &name("A3")).unwrap();
    let mut messages = MessageReader::new(connection);
    assert_eq!(
        messages.next_message().unwrap(),
        Some(Message {
            id: 1,
            body: vec![5; 10]
        })
    );
    assert!(matches!(messages.next_message(), Err(ClientError::Closed)));
    server.join().unwrap();
}

#[test]
fn a_gateway_that_closes_at_once_is_an_error() {
    let (_directory, path, server) = served(|mut stream| {
        read_hello(&mut stream);
    });
    let error = Connection::unix(&path, Role::Send, &name("A3")).unwrap_err();
    assert!(matches!(error, ClientError::Closed), "{error}");
    server.join().unwrap();
}

#[test]
fn timed_out_read_loses_no_bytes() {
    let (near, mut far) = UnixStream::pair().unwrap();
    near.set_read_timeout(Some(Duration::from_millis(1)))
        .unwrap();
    let mut acks = AckReader::new(near);
    let ack = Ack {
        id: 9,
        outcome: Outcome::Expired,
        delay: Duration::from_secs(2),
    };
    let bytes = ack.encode(VERSION);
    far.write_all(&bytes[..7]).unwrap();
    assert!(matches!(acks.next_ack(), Err(ClientError::Io(_))));
    far.write_all(&bytes[7..]).unwrap();
    assert_eq!(acks.next_ack().unwrap(), Some(ack));
}
