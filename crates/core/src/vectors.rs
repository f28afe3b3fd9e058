//! Recorded bytes of released versions: each must still be read as the same values, and the values
//! must still be written as the same bytes.
//!
//! `tests/vectors/` has one file per release. A file is never changed; a release whose bytes differ
//! adds its own, and this test keeps reading the ones before it.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use keiro_units::Instant;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;

use crate::{
    config::Cipher,
    crypto::PacketKeys,
    event::{RefusalReason, ResetReason},
    handshake::{
        Agreed, CookieJar, CookieSecrets, Initiation, MacCheck, MacKeys, PrivateKey, Responder,
        cookie_reply, open_cookie_reply,
    },
    id::{AppId, PathId},
    wire::{
        AckFrame, CopySpacing, DATA_HEADER_LEN, DataHeader, Features, Feedback, Frame,
        HandshakePayload, MessageStatus, ParityFrame, Reader, TrainReport, expand_packet_number,
    },
};

const RELEASE_0_1_0: &str = include_str!("../tests/vectors/0.1.0.hex");

const INITIATOR: [u8; 32] = [1; 32];
const RESPONDER: [u8; 32] = [2; 32];
const PRESHARED: [u8; 32] = [3; 32];
const INITIATOR_INDEX: u32 = 0x0a0b_0c0d;
const RESPONDER_INDEX: u32 = 0x1a1b_1c1d;
const NOW: Instant = Instant::ZERO;

/// A recording: the bytes of each line `name: bytes`.
fn recorded(file: &'static str) -> BTreeMap<&'static str, Vec<u8>> {
    let lines = file
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (name, hex) = line.rsplit_once(": ").expect("a line is `name: bytes`");
            let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
            (name, (0..hex.len()).step_by(2).map(byte).collect())
        })
        .collect()
}

fn remote() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 7600))
}

fn initiation_payload() -> HandshakePayload {
    HandshakePayload {
        ciphers: 1,
        features: Features::NONE,
        timestamp: 0x0102_0304_0506_0708,
        incarnation: 0x1112_1314_1516_1718,
        credit: 0x0000_0000_0400_0000,
    }
}

fn response_payload() -> HandshakePayload {
    HandshakePayload {
        ciphers: 1,
        features: Features::NONE,
        timestamp: 0,
        incarnation: 0x2122_2324_2526_2728,
        credit: 0x0000_0000_0200_0000,
    }
}

/// One handshake between fixed keys with fixed randomness.
struct Handshake {
    initiation: Vec<u8>,
    cookie_reply: Vec<u8>,
    initiation_with_cookie: Vec<u8>,
    response: Vec<u8>,
    at_initiator: Agreed,
    at_responder: Agreed,
}

fn handshake() -> Handshake {
    let initiator = PrivateKey::from_bytes(INITIATOR);
    let responder = PrivateKey::from_bytes(RESPONDER);
    let to_responder = MacKeys::new(&responder.public_key());
    let to_initiator = MacKeys::new(&initiator.public_key());
    let mut random = ChaCha20Rng::from_seed([4; 32]);
    let secrets = CookieSecrets::new(NOW, &mut random);
    let mut jar = CookieJar::default();

    let state = Initiation::new(
        &initiator,
        &responder.public_key(),
        &PRESHARED,
        INITIATOR_INDEX,
        &initiation_payload(),
        [5; 32],
    )
    .expect("a valid public key");
    let mut initiation = state.body.clone();
    to_responder.append(NOW, &mut initiation, &mut jar);
    let cookie_reply = cookie_reply(
        &to_responder,
        &secrets,
        &initiation,
        INITIATOR_INDEX,
        remote(),
        &mut random,
    )
    .expect("an initiation has MACs");
    let cookie = open_cookie_reply(&to_responder, &jar, &cookie_reply).expect("authentic");
    jar.put(NOW, cookie);
    let mut initiation_with_cookie = state.body.clone();
    to_responder.append(NOW, &mut initiation_with_cookie, &mut jar);
    let check = to_responder.check(NOW, &initiation_with_cookie, remote(), &secrets);
    assert_eq!(check, MacCheck::WithCookie);

    let read = Responder::read(&responder, &initiation_with_cookie, [6; 32]).expect("authentic");
    assert_eq!(read.peer, initiator.public_key());
    let (mut response, at_responder) = read
        .answer(&PRESHARED, RESPONDER_INDEX, &response_payload())
        .expect("the same preshared key");
    to_initiator.append(NOW, &mut response, &mut CookieJar::default());
    let at_initiator = state.finish(&response).ok().expect("authentic");
    Handshake {
        initiation,
        cookie_reply,
        initiation_with_cookie,
        response,
        at_initiator,
        at_responder,
    }
}

fn feedback() -> Feedback {
    let mut spacing = CopySpacing::new(1000, 3, 0);
    spacing.push(2, Duration::from_micros(80));
    Feedback {
        path: 3,
        highest: 300,
        aggregates: 290,
        copies: 570,
        socket_overflows: 5,
        system_overflows: 70_000,
        spacing: Some(spacing),
    }
}

/// A frame of every type that the encoder writes from a [`Frame`], by name.
fn frames() -> Vec<(&'static str, Frame<'static>)> {
    let app = AppId(0x0a0b_0c0d);
    vec![
        ("padding", Frame::Padding),
        ("ping", Frame::Ping),
        (
            "path challenge",
            Frame::PathChallenge(0x0102_0304_0506_0708),
        ),
        ("path response", Frame::PathResponse(0x1112_1314_1516_1718)),
        (
            "datagram",
            Frame::Datagram {
                app,
                flow: 3,
                reply: false,
                data: b"to the forward",
            },
        ),
        (
            "datagram reply",
            Frame::Datagram {
                app,
                flow: 0x0123_4567,
                reply: true,
                data: b"to the listener",
            },
        ),
        (
            "fragment",
            Frame::Fragment {
                id: 9,
                total: 65_507,
                offset: 1200,
                app,
                flow: 70,
                reply: true,
                data: b"part",
            },
        ),
        (
            "message",
            Frame::Message {
                id: 70_000,
                app,
                total: 16_777_224,
                offset: 16_384,
                data: b"part",
            },
        ),
        (
            "message delivered",
            Frame::MessageDone {
                id: 5,
                status: MessageStatus::Delivered,
                whole_at: 0x0102_0304,
            },
        ),
        (
            "message for an unknown application",
            message_refused(RefusalReason::UnknownApplication),
        ),
        (
            "message without receiver",
            message_refused(RefusalReason::NoReceiver),
        ),
        (
            "message for a full receiver",
            message_refused(RefusalReason::ReceiverFull),
        ),
        ("message drop", Frame::MessageDrop { id: 5, total: 300 }),
        ("credit", Frame::Credit(1 << 40)),
        ("close", Frame::Close),
        (
            "stream open to the forward",
            Frame::StreamOpen {
                id: 6,
                app,
                target: None,
            },
        ),
        (
            "stream open to IPv4",
            Frame::StreamOpen {
                id: 8,
                app,
                target: Some(([192, 0, 2, 1], 80).into()),
            },
        ),
        (
            "stream open to IPv6",
            Frame::StreamOpen {
                id: 10,
                app,
                target: Some(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 8080).into()),
            },
        ),
        (
            "stream",
            Frame::Stream {
                id: 6,
                offset: 100_000,
                fin: false,
                data: b"bytes",
            },
        ),
        (
            "stream end",
            Frame::Stream {
                id: 7,
                offset: 102,
                fin: true,
                data: b"",
            },
        ),
        (
            "stream credit",
            Frame::StreamCredit {
                id: 6,
                granted: 1 << 33,
            },
        ),
        (
            "stream return",
            Frame::StreamReturn {
                id: 6,
                returned: 49_152,
            },
        ),
        (
            "aggregate",
            Frame::Aggregate {
                path: 3,
                number: 700,
                index: 1,
                count: 2,
            },
        ),
        (
            "packet",
            Frame::Packet {
                tenant: 300,
                marked: false,
                data: b"an IP packet",
            },
        ),
        (
            "marked packet",
            Frame::Packet {
                tenant: u32::MAX,
                marked: true,
                data: b"an IP packet",
            },
        ),
        (
            "train",
            Frame::Train {
                id: 500,
                index: 3,
                count: 16,
            },
        ),
        ("feedback", Frame::Feedback(feedback())),
        (
            "feedback without spacing",
            Frame::Feedback(Feedback {
                spacing: None,
                ..feedback()
            }),
        ),
        (
            "protected aggregate",
            Frame::Protected {
                path: 3,
                number: 701,
                place: 1,
            },
        ),
        (
            "parity",
            Frame::Parity(ParityFrame {
                path: 3,
                first: 700,
                data: 4,
                count: 2,
                index: 1,
                shard: &[0xab, 0xcd, 0xef],
            }),
        ),
        (
            "unknown tenant",
            Frame::UnknownTenant {
                tenant: 300,
                packets: 5,
            },
        ),
        (
            "stream reset: application",
            stream_reset(ResetReason::Application),
        ),
        ("stream reset: refused", stream_reset(ResetReason::Refused)),
        (
            "stream reset: unreachable",
            stream_reset(ResetReason::Unreachable),
        ),
        ("stream reset: too many", stream_reset(ResetReason::TooMany)),
        (
            "stream reset: unknown application",
            stream_reset(ResetReason::UnknownApplication),
        ),
        (
            "stream reset: forbidden",
            stream_reset(ResetReason::Forbidden),
        ),
        ("stream reset: gateway", stream_reset(ResetReason::Gateway)),
        (
            "stream reset: protocol",
            stream_reset(ResetReason::Protocol),
        ),
    ]
}

fn message_refused(reason: RefusalReason) -> Frame<'static> {
    Frame::MessageDone {
        id: 5,
        status: MessageStatus::Refused(reason),
        whole_at: 1000,
    }
}

fn stream_reset(reason: ResetReason) -> Frame<'static> {
    Frame::StreamReset { id: 7, reason }
}

const ACK_RANGES: [(u64, u64); 3] = [(700, 900), (5, 600), (2, 2)];
const TRAIN_ARRIVALS: [(u8, u64); 3] = [(0, 0), (2, 120_000), (1, 120_001)];

fn acknowledgement() -> Vec<u8> {
    let head = AckFrame::head(1, 900, 70_000, 250, 12);
    let mut bytes = Vec::new();
    AckFrame::encode(&mut bytes, &head, ACK_RANGES.into_iter());
    bytes
}

fn train_report() -> Vec<u8> {
    let mut bytes = Vec::new();
    TrainReport::encode(&mut bytes, 1, 500, TRAIN_ARRIVALS.into_iter());
    bytes
}

/// The cipher and the packet number of each sealed packet, which carries every frame: with numbers
/// below and above 2^32.
const SEALED: [(&str, Cipher, u8, u64); 3] = [
    ("data packet, AES-256-GCM", Cipher::Aes256Gcm, 0, 7),
    (
        "data packet, ChaCha20-Poly1305",
        Cipher::ChaCha20Poly1305,
        3,
        0x1234,
    ),
    (
        "data packet, number above 2^32",
        Cipher::Aes256Gcm,
        255,
        0x0002_0000_0001,
    ),
];

fn every_frame() -> Vec<u8> {
    let mut clear = [acknowledgement(), train_report()].concat();
    for (_, frame) in frames() {
        frame.encode(&mut clear);
    }
    clear
}

/// Everything as the present code writes it.
fn written() -> BTreeMap<&'static str, Vec<u8>> {
    let handshake = handshake();
    let mut all = BTreeMap::from([
        ("initiation", handshake.initiation),
        ("cookie reply", handshake.cookie_reply),
        ("initiation with cookie", handshake.initiation_with_cookie),
        ("response", handshake.response),
        ("frame acknowledgement", acknowledgement()),
        ("frame train report", train_report()),
    ]);
    let keys = &handshake.at_initiator.keys;
    for (name, cipher, path, number) in SEALED {
        let header = DataHeader {
            path,
            receiver: RESPONDER_INDEX,
            packet_number: number as u32,
        };
        let mut packet = header.encode().to_vec();
        packet.extend(every_frame());
        PacketKeys::new(cipher, &keys.send, &keys.receive).seal(
            PathId(path),
            number,
            &mut packet,
            0,
        );
        all.insert(name, packet);
    }
    for (name, frame) in frames() {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let name: &'static str = format!("frame {name}").leak();
        assert!(all.insert(name, bytes).is_none(), "{name} twice");
    }
    all
}

#[test]
fn written_bytes_match_those_of_0_1_0() {
    let mut recorded = recorded(RELEASE_0_1_0);
    for (name, bytes) in written() {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(recorded.remove(name), Some(bytes), "{name}: {hex}");
    }
    assert!(recorded.is_empty(), "not written: {:?}", recorded.keys());
}

#[test]
fn frames_of_0_1_0_are_still_read() {
    let recorded = recorded(RELEASE_0_1_0);
    for (name, frame) in frames() {
        let mut reader = Reader::new(&recorded[format!("frame {name}").as_str()]);
        assert_eq!(Frame::decode(&mut reader), Ok(Some(frame)), "{name}");
        assert!(reader.is_empty(), "{name}");
    }
    let mut reader = Reader::new(&recorded["frame acknowledgement"]);
    let Ok(Some(Frame::Ack(ack))) = Frame::decode(&mut reader) else {
        panic!("an acknowledgement");
    };
    let fields = (ack.path, ack.largest, ack.received_at_us, ack.delay_us);
    assert_eq!(fields, (1, 900, 70_000, 250));
    assert_eq!(ack.ecn_ce, 12);
    assert_eq!(ack.ranges.iter().collect::<Vec<_>>(), ACK_RANGES);
    let mut reader = Reader::new(&recorded["frame train report"]);
    let Ok(Some(Frame::TrainReport(report))) = Frame::decode(&mut reader) else {
        panic!("a train report");
    };
    assert_eq!((report.path, report.train), (1, 500));
    assert_eq!(report.arrivals().collect::<Vec<_>>(), TRAIN_ARRIVALS);
}

#[test]
fn handshake_of_0_1_0_is_still_agreed_upon() {
    let recorded = recorded(RELEASE_0_1_0);
    let responder = PrivateKey::from_bytes(RESPONDER);
    let initiator = PrivateKey::from_bytes(INITIATOR);
    let read = Responder::read(&responder, &recorded["initiation"], [6; 32]).expect("authentic");
    assert_eq!(read.peer, initiator.public_key());
    assert_eq!(read.remote_index, INITIATOR_INDEX);
    assert_eq!(read.payload, initiation_payload());
    let agreed = Initiation::new(
        &initiator,
        &responder.public_key(),
        &PRESHARED,
        INITIATOR_INDEX,
        &initiation_payload(),
        [5; 32],
    )
    .expect("a valid public key")
    .finish(&recorded["response"])
    .ok()
    .expect("authentic");
    assert_eq!(agreed.payload, response_payload());
    assert_eq!(agreed.remote_index, RESPONDER_INDEX);
}

#[test]
fn data_packets_of_0_1_0_are_still_opened() {
    let recorded = recorded(RELEASE_0_1_0);
    let keys = handshake().at_responder.keys;
    for (name, cipher, path, number) in SEALED {
        let mut packet = recorded[name].clone();
        let header = DataHeader::decode(&packet).expect("long enough");
        assert_eq!((header.path, header.receiver), (path, RESPONDER_INDEX));
        // A receiver expects a number close to this one.
        let number_read = expand_packet_number(number + 100, header.packet_number);
        assert_eq!(number_read, number, "{name}");
        let keys = PacketKeys::new(cipher, &keys.send, &keys.receive);
        let clear = keys.open(path, number, &mut packet).expect("authentic");
        assert_eq!(clear, every_frame(), "{name}");
        assert_eq!(packet.len(), DATA_HEADER_LEN + every_frame().len() + 16);
    }
}
