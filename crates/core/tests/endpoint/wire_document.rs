//! Holds `docs/wire-format.md` against the code: every length, every type, every example.

use std::collections::BTreeMap;

use keiro_core::{
    AppId, CostPerGb, PacketAddress, PathRole, PathTerms, PrefixMismatch, RefusalReason,
    ResetReason, TenantId, wire::*,
};

const DOCUMENT: &str = include_str!("../../../../docs/wire-format.md");

/// The examples of the page: what it calls them, and their bytes.
fn examples() -> BTreeMap<&'static str, Vec<u8>> {
    let mut examples = BTreeMap::new();
    for line in DOCUMENT
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
    {
        let (name, hex) = line.rsplit_once(": ").expect("an example is `name: bytes`");
        let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
        assert!(digits.len().is_multiple_of(2), "{name}: half a byte");
        let bytes = digits.chunks(2).map(|d| (d[0] << 4 | d[1]) as u8).collect();
        assert!(examples.insert(name, bytes).is_none(), "{name} twice");
    }
    examples
}

fn two_copies() -> CopySpacing {
    let mut copies = CopySpacing::new(1000, 2, 0);
    copies.push(1, std::time::Duration::from_micros(80));
    copies
}

/// What the page's examples say, as values.
fn expected() -> BTreeMap<&'static str, Frame<'static>> {
    let app = AppId(0x0a0b_0c0d);
    let token = 0x0102_0304_0506_0708;
    BTreeMap::from([
        ("padding", Frame::Padding),
        ("ping", Frame::Ping),
        ("challenge", Frame::PathChallenge(token)),
        ("response", Frame::PathResponse(token)),
        (
            "datagram \"hi\", app 0x0a0b0c0d, flow 3, reply",
            Frame::Datagram {
                app,
                flow: 3,
                reply: true,
                data: b"hi",
            },
        ),
        (
            "fragment 9 at 100 of 2000, \"hi\", app 0x0a0b0c0d, flow 3",
            Frame::Fragment {
                id: 9,
                total: 2000,
                offset: 100,
                app,
                flow: 3,
                reply: false,
                data: b"hi",
            },
        ),
        (
            "message 5 at 0 of 300, \"hi\", app 0x0a0b0c0d",
            Frame::Message {
                id: 5,
                app,
                total: 300,
                offset: 0,
                data: b"hi",
            },
        ),
        (
            "message 5 delivered, complete at 1000",
            Frame::MessageDone {
                id: 5,
                status: MessageStatus::Delivered,
                whole_at: 1000,
            },
        ),
        (
            "message 5 refused, no receiver, complete at 1000",
            Frame::MessageDone {
                id: 5,
                status: MessageStatus::Refused(RefusalReason::NoReceiver),
                whole_at: 1000,
            },
        ),
        (
            "message 5 of 300 dropped",
            Frame::MessageDrop { id: 5, total: 300 },
        ),
        ("credit of 16384", Frame::Credit(16384)),
        ("close", Frame::Close),
        (
            "open 3 of app 0x0a0b0c0d to its forward",
            Frame::StreamOpen {
                id: 6,
                app: AppId(0x0a0b_0c0d),
                target: None,
            },
        ),
        (
            "open 3 of app 0x0a0b0c0d to 192.0.2.1:80",
            Frame::StreamOpen {
                id: 6,
                app: AppId(0x0a0b_0c0d),
                target: Some(([192, 0, 2, 1], 80).into()),
            },
        ),
        (
            "stream 3 at 100, from its opener, \"hi\"",
            Frame::Stream {
                id: 6,
                offset: 100,
                fin: false,
                data: b"hi",
            },
        ),
        (
            "stream 3 ends at 102, from the other side",
            Frame::Stream {
                id: 7,
                offset: 102,
                fin: true,
                data: b"",
            },
        ),
        (
            "stream 3 may be sent up to 16384",
            Frame::StreamCredit {
                id: 6,
                granted: 16384,
            },
        ),
        (
            "49152 of stream 3 given back",
            Frame::StreamReturn {
                id: 6,
                returned: 49152,
            },
        ),
        (
            "stream 3 refused, by the other side",
            Frame::StreamReset {
                id: 7,
                reason: ResetReason::Refused,
            },
        ),
        (
            "copy 1 of 2 of aggregate 700 of path 3",
            Frame::Aggregate {
                path: 3,
                number: 700,
                index: 1,
                count: 2,
            },
        ),
        (
            "of path 3 came 9 of 11 aggregates in 17 copies, 5 and 6 overflows, two of 1000 bytes \
             80000 ns apart",
            Frame::Feedback(Feedback {
                path: 3,
                highest: 10,
                aggregates: 9,
                copies: 17,
                socket_overflows: 5,
                system_overflows: 6,
                spacing: Some(two_copies()),
            }),
        ),
        (
            "aggregate 701 of path 3, the second of its group",
            Frame::Protected {
                path: 3,
                number: 701,
                place: 1,
            },
        ),
        (
            "parity 1 of 2 of the group of 4 from 700 of path 3, of two bytes",
            Frame::Parity(ParityFrame {
                path: 3,
                first: 700,
                data: 4,
                count: 2,
                index: 1,
                shard: &[0xab, 0xcd],
            }),
        ),
        (
            "5 packets of tenant 300 dropped",
            Frame::UnknownTenant {
                tenant: 300,
                packets: 5,
            },
        ),
        (
            "refusal, duplicate key",
            Frame::Refusal(RefusalCause::DuplicateKey),
        ),
        (
            "5 packets of tenant 300 from 10.9.0.7 dropped",
            Frame::PrefixMismatch(PrefixMismatch {
                tenant: TenantId(300),
                address: PacketAddress::Source([10, 9, 0, 7].into()),
                packets: 5,
            }),
        ),
        ("a metered path", Frame::ProbeLimit(Some(0))),
        ("1 GB a month", Frame::ProbeLimit(Some(1_000_000_000))),
        ("no limit any more", Frame::ProbeLimit(None)),
        ("tenant 300 is limited", Frame::TenantLimited(300)),
        ("a weight of 1 gets 4 Mbit/s", Frame::TenantUnit(4_000_000)),
        (
            "a backup at 3.50 per GB",
            Frame::PathTerms(PathTerms {
                role: PathRole::Backup,
                cost: CostPerGb::from_micros(3_500_000),
                is_spent: false,
            }),
        ),
        (
            "a path whose budget is used up",
            Frame::PathTerms(PathTerms {
                is_spent: true,
                ..PathTerms::FREE
            }),
        ),
        (
            "strangers have displaced 300 packets of path 3",
            Frame::StrangerDrops {
                path: 3,
                packets: 300,
            },
        ),
        (
            "packet \"hi\" of tenant 300",
            Frame::Packet {
                tenant: 300,
                marked: false,
                data: b"hi",
            },
        ),
        (
            "marked packet \"hi\" of tenant 1",
            Frame::Packet {
                tenant: 1,
                marked: true,
                data: b"hi",
            },
        ),
        (
            "packet \"hi\" of tenant 300, number 70 of flow 5, held for 25 ms, on paths 0 and 2",
            Frame::OrderedPacket {
                tenant: 300,
                order: PacketOrder {
                    flow: 5,
                    number: 70,
                    hold_ms: 25,
                    paths: 0b101,
                },
                marked: false,
                data: b"hi",
            },
        ),
        (
            "marked packet \"hi\" of tenant 1, number 0 of flow 0, held for 1 ms, on path 1",
            Frame::OrderedPacket {
                tenant: 1,
                order: PacketOrder {
                    flow: 0,
                    number: 0,
                    hold_ms: 1,
                    paths: 0b10,
                },
                marked: true,
                data: b"hi",
            },
        ),
        (
            "part 1 of 2 of packet 9 of tenant 300, \"hi\"",
            Frame::PacketPart {
                tenant: 300,
                number: 9,
                count: 2,
                index: 1,
                marked: false,
                data: b"hi",
            },
        ),
        (
            "packet 0 of 2 of train 5",
            Frame::Train {
                id: 5,
                index: 0,
                count: 2,
            },
        ),
    ])
}

#[test]
fn examples_are_what_the_code_reads_and_writes() {
    let mut examples = examples();
    let ack = "acknowledgement of 7-9 and 2-4 of path 1, received 1000, held 5, ce 0";
    let ack = examples
        .remove(ack)
        .expect("the example of an acknowledgement");
    let mut written = Vec::new();
    let head = AckFrame::head(1, 9, 1000, 5, 0);
    AckFrame::encode(&mut written, &head, [(7, 9), (2, 4)].into_iter());
    assert_eq!(written, ack);
    let report = "train 5 of path 1, the second 120000 ns after the first";
    let report = examples.remove(report).expect("the example of a report");
    let mut written = Vec::new();
    TrainReport::encode(&mut written, 1, 5, [(0, 0), (1, 120_000)].into_iter());
    assert_eq!(written, report);
    for (name, frame) in expected() {
        let bytes = examples
            .remove(name)
            .unwrap_or_else(|| panic!("no example `{name}`"));
        let mut written = Vec::new();
        frame.encode(&mut written);
        assert_eq!(written, bytes, "{name}");
        let mut reader = Reader::new(&bytes);
        assert_eq!(Frame::decode(&mut reader), Ok(Some(frame)), "{name}");
        assert!(reader.is_empty(), "{name}");
    }
    assert!(
        examples.is_empty(),
        "examples that are not checked: {:?}",
        examples.keys()
    );
}

#[test]
fn every_frame_type_has_its_section_and_no_other_is_read() {
    for kind in 0..0x40u8 {
        let unknown = Frame::decode(&mut Reader::new(&[kind])) == Err(FrameError::UnknownType);
        let named = DOCUMENT.contains(&format!("### 0x{kind:02x} "))
            || DOCUMENT.contains(&format!(", 0x{kind:02x} path response"))
            || DOCUMENT.contains(&format!(", 0x{kind:02x} stream end"));
        assert_eq!(named, !unknown, "type 0x{kind:02x}");
    }
    // Those that may be skipped: an empty one of a known type is cut off.
    for kind in 0x40..=0xffu8 {
        let empty = [0x40, kind, 0];
        let known = Frame::decode(&mut Reader::new(&empty)) == Err(FrameError::Truncated);
        let named = DOCUMENT.contains(&format!("### 0x{kind:02x} "));
        assert_eq!(named, known, "type 0x{kind:02x}");
    }
}

#[test]
fn lengths_and_kinds_are_the_codes() {
    for (kind, name, len) in [
        (KIND_INITIATION, "handshake initiation", INITIATION_LEN),
        (KIND_RESPONSE, "handshake response", RESPONSE_LEN),
        (KIND_COOKIE, "cookie reply", COOKIE_LEN),
        (KIND_VERSION_REPLY, "version reply", VERSION_REPLY_LEN),
    ] {
        let row = format!("| {kind} | {name} | {len} |");
        assert!(DOCUMENT.contains(&row), "{row}");
    }
    let row = format!(
        "| {KIND_DATA} | data | {} or more |",
        DATA_HEADER_LEN + TAG_LEN
    );
    assert!(DOCUMENT.contains(&row), "{row}");
    assert!(DOCUMENT.contains(&format!("payload ({PAYLOAD_LEN}), encrypted")));
    assert!(DOCUMENT.contains(&format!("version, {VERSION} |")));
    let shortest = format!("an initiation has at least {ANY_INITIATION_LEN_MIN} bytes");
    assert!(DOCUMENT.contains(&shortest), "{shortest}");
    for (bit, name) in Features::SUPPORTED.names().enumerate() {
        let row = format!("| {bit} | `{name}` |");
        assert!(DOCUMENT.contains(&row), "{row}");
    }
    assert!(DOCUMENT.contains(&format!("`total` + {CREDIT_PER_MESSAGE} of the credit")));
    let parts =
        format!("at most {SPLIT_PACKET_MAX} bytes in all, in 2 to {PACKET_PARTS_MAX} parts");
    assert!(DOCUMENT.contains(&parts), "{parts}");
}

#[test]
fn field_tables_leave_no_gap() {
    // Rows `| offset | bytes | field |` with numbers: each begins where the one before ends.
    let mut end = 0;
    let mut tables = 0;
    for line in DOCUMENT.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let numbers = cells.get(1).zip(cells.get(2));
        let row = numbers
            .and_then(|(at, len)| Some((at.parse::<usize>().ok()?, len.parse::<usize>().ok()?)));
        match row {
            Some((0, len)) => {
                tables += 1;
                end = len;
            }
            Some((at, len)) => {
                assert_eq!(at, end, "{line}");
                end = at + len;
            }
            None => {}
        }
    }
    assert_eq!(
        tables, 6,
        "initiation, response, payload, cookie reply, version reply, data packet"
    );
}
