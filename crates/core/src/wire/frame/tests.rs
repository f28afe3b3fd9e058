use proptest::prelude::*;

use super::{ack::ACK_RANGES_MAX, *};
use crate::wire::{
    CopySpacing, MESSAGE_LEN_MAX, Reader, VARINT_MAX, put_varint, report::ARRIVALS_MAX,
};

fn decode_all(bytes: &[u8]) -> Result<Vec<Frame<'_>>, FrameError> {
    let mut reader = Reader::new(bytes);
    let mut frames = Vec::new();
    while let Some(frame) = Frame::decode(&mut reader)? {
        frames.push(frame);
    }
    Ok(frames)
}

fn frame(data: &'static [u8]) -> impl Strategy<Value = Frame<'static>> {
    let id = 0u64..1 << 62;
    prop_oneof![
        Just(Frame::Padding),
        Just(Frame::Ping),
        any::<u64>().prop_map(Frame::PathChallenge),
        any::<u64>().prop_map(Frame::PathResponse),
        any::<(u32, bool)>().prop_map(move |(tenant, marked)| Frame::Packet {
            tenant,
            marked,
            data
        }),
        (any::<(u32, bool)>(), any::<(u32, u32, u16, u32)>()).prop_map(
            move |((tenant, marked), (flow, number, hold_ms, paths))| Frame::OrderedPacket {
                tenant,
                order: PacketOrder {
                    flow: flow % PacketOrder::FLOW_END,
                    number: number % PacketOrder::NUMBER_END,
                    hold_ms: hold_ms % (PacketOrder::HOLD_MS_MAX + 1),
                    paths: paths % (1 << PacketOrder::PATHS_END),
                },
                marked,
                data,
            }
        ),
        (id.clone(), any::<(u32, bool)>(), 0..3u8).prop_map(
            move |(number, (tenant, marked), index)| Frame::PacketPart {
                tenant,
                number,
                count: 2 + index / 2,
                index,
                marked,
                data,
            }
        ),
        any::<(u32, u32, bool)>().prop_map(move |(app, flow, reply)| Frame::Datagram {
            app: AppId(app),
            flow,
            reply,
            data
        }),
        (id.clone(), any::<(u32, u32, bool)>(), 0..1000usize).prop_map(
            move |(id, (app, flow, reply), offset)| Frame::Fragment {
                id,
                total: offset + data.len() + 3,
                offset,
                app: AppId(app),
                flow,
                reply,
                data
            }
        ),
        (id.clone(), any::<u32>(), 0..1_000_000usize).prop_map(move |(id, app, offset)| {
            Frame::Message {
                id,
                app: AppId(app),
                total: offset + data.len(),
                offset,
                data,
            }
        }),
        (id.clone(), any::<u8>(), any::<u32>()).prop_map(|(id, status, whole_at)| {
            Frame::MessageDone {
                id,
                status: MessageStatus::from_byte(status),
                whole_at,
            }
        }),
        (id.clone(), 0..MESSAGE_LEN_MAX).prop_map(|(id, total)| Frame::MessageDrop { id, total }),
        id.clone().prop_map(Frame::Credit),
        Just(Frame::Close),
        (id.clone(), any::<u32>(), any::<Option<SocketAddr>>()).prop_map(|(id, app, target)| {
            Frame::StreamOpen {
                id: id & !1,
                app: AppId(app),
                target: target
                    .map(|target| SocketAddr::new(target.ip().to_canonical(), target.port())),
            }
        }),
        (id.clone(), 0u64..1 << 60, any::<bool>()).prop_map(move |(id, offset, fin)| {
            Frame::Stream {
                id,
                offset,
                fin,
                data,
            }
        }),
        (id.clone(), 0u64..1 << 62).prop_map(|(id, granted)| Frame::StreamCredit { id, granted }),
        (id.clone(), 0u64..1 << 62).prop_map(|(id, returned)| Frame::StreamReturn { id, returned }),
        (id.clone(), any::<u8>()).prop_map(|(id, byte)| Frame::StreamReset {
            id,
            reason: ResetReason::from_byte(byte)
        }),
        (id, 0..255u8, 1..100u8).prop_map(|(id, index, more)| Frame::Train {
            id,
            index,
            count: index.saturating_add(more),
        }),
        (any::<u8>(), 0u64..1 << 62, 0..5u8, 5..10u8).prop_map(|(path, number, index, count)| {
            Frame::Aggregate {
                path,
                number,
                index,
                count,
            }
        }),
        (any::<u8>(), 0u64..1 << 62, any::<Option<(u16, u32)>>()).prop_map(
            |(path, highest, copies)| Frame::Feedback(Feedback {
                path,
                highest,
                aggregates: highest / 2,
                copies: highest,
                socket_overflows: 7,
                system_overflows: highest / 3,
                spacing: copies.map(|(ip_bytes, gap)| {
                    let mut spacing = CopySpacing::new(ip_bytes, 3, 0);
                    spacing.push(2, std::time::Duration::from_nanos(u64::from(gap) >> 4));
                    spacing
                }),
            })
        ),
        (any::<u8>(), 32u64..1 << 62, 0..32u8).prop_map(|(path, number, place)| {
            Frame::Protected {
                path,
                number,
                place,
            }
        }),
        (any::<u8>(), 0u64..1 << 61, 1..=32u8, 0..32u8, 1..=32u8).prop_map(
            move |(path, first, group, index, more)| Frame::Parity(ParityFrame {
                path,
                first,
                data: group,
                count: index + more,
                index,
                shard: data,
            })
        ),
        (any::<u32>(), 0u64..1 << 62)
            .prop_map(|(tenant, packets)| Frame::UnknownTenant { tenant, packets }),
        prop_oneof![Just(RefusalCause::DuplicateKey), Just(RefusalCause::Other)]
            .prop_map(Frame::Refusal),
        (
            any::<u32>(),
            any::<std::net::IpAddr>(),
            any::<bool>(),
            0u64..1 << 62
        )
            .prop_map(
                |(tenant, address, is_source, packets)| Frame::PrefixMismatch(PrefixMismatch {
                    tenant: crate::id::TenantId(tenant),
                    address: match is_source {
                        true => crate::tenant::PacketAddress::Source(address),
                        false => crate::tenant::PacketAddress::Destination(address),
                    },
                    packets,
                })
            ),
        proptest::option::of(0..VARINT_MAX).prop_map(Frame::ProbeLimit),
        any::<u32>().prop_map(Frame::TenantLimited),
        (0..VARINT_MAX).prop_map(Frame::TenantUnit),
        (any::<bool>(), any::<bool>(), 0..=CostPerGb::MAX.as_micros()).prop_map(
            |(is_backup, is_spent, cost)| {
                Frame::PathTerms(PathTerms {
                    role: match is_backup {
                        true => PathRole::Backup,
                        false => PathRole::Primary,
                    },
                    cost: CostPerGb::from_micros(cost),
                    is_spent,
                })
            }
        ),
        (any::<u8>(), 0..VARINT_MAX)
            .prop_map(|(path, packets)| Frame::StrangerDrops { path, packets }),
        (STRANGER_DROPS + 1..1 << 62).prop_map(Frame::Unknown),
    ]
}

const DATA: &[u8] = b"some data of a frame";

proptest! {
    #[test]
    fn frames_round_trip(frames in proptest::collection::vec(frame(DATA), 0..20)) {
        let mut bytes = Vec::new();
        for frame in &frames {
            frame.encode(&mut bytes);
        }
        prop_assert_eq!(decode_all(&bytes), Ok(frames));
    }

    #[test]
    fn acks_round_trip(
        path: u8,
        times in (0u64..1 << 62, 0u64..1 << 40, 0u64..1 << 40),
        steps in proptest::collection::vec((0u64..1 << 30, 0u64..1 << 30), 1..40),
    ) {
        // From small to large: (gap, length) pairs make ranges that do not touch.
        let mut ranges = Vec::new();
        let mut next = 0;
        for (gap, len) in steps {
            let low = next + gap;
            ranges.push((low, low + len));
            next = low + len + 2;
        }
        ranges.reverse();
        let head = AckFrame {
            path,
            largest: ranges[0].1,
            received_at_us: times.0,
            delay_us: times.1,
            ecn_ce: times.2,
            ranges: AckRanges { largest: 0, encoded: &[] },
        };
        let mut bytes = Vec::new();
        AckFrame::encode(&mut bytes, &head, ranges.iter().copied());
        prop_assert!(bytes.len() <= AckFrame::len_max(ranges.len()));
        let frames = decode_all(&bytes).unwrap();
        let [Frame::Ack(ack)] = frames[..] else { panic!("one ack") };
        ranges.truncate(ACK_RANGES_MAX);
        prop_assert_eq!(ack.ranges.iter().collect::<Vec<_>>(), ranges);
        prop_assert_eq!((ack.path, ack.largest), (path, head.largest));
        let mut again = Vec::new();
        Frame::Ack(ack).encode(&mut again);
        prop_assert_eq!(bytes, again);
    }

    #[test]
    fn train_reports_round_trip(
        path: u8,
        train in 0u64..1 << 62,
        arrivals in proptest::collection::vec((any::<u8>(), 0u64..1 << 62), 2..30),
    ) {
        let mut bytes = Vec::new();
        TrainReport::encode(&mut bytes, path, train, arrivals.iter().copied());
        prop_assert!(bytes.len() <= TrainReport::LEN_MAX);
        let frames = decode_all(&bytes).unwrap();
        let [Frame::TrainReport(report)] = frames[..] else { panic!("one report") };
        prop_assert_eq!((report.path, report.train), (path, train));
        let written = &arrivals[..arrivals.len().min(ARRIVALS_MAX)];
        prop_assert_eq!(&report.arrivals().collect::<Vec<_>>(), written);
        let mut again = Vec::new();
        frames[0].encode(&mut again);
        prop_assert_eq!(bytes, again);
    }

    #[test]
    fn garbage_frames_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(frames) = decode_all(&bytes) {
            for frame in frames {
                if let Frame::Ack(ack) = frame {
                    prop_assert!(ack.ranges.iter().count() <= ACK_RANGES_MAX);
                }
            }
        }
    }
}

#[test]
fn unknown_frames_of_the_skippable_range_are_skipped() {
    let mut bytes = Vec::new();
    put_varint(&mut bytes, 0x1234);
    put_varint(&mut bytes, 3);
    bytes.extend_from_slice(b"abc");
    Frame::Ping.encode(&mut bytes);
    assert_eq!(
        decode_all(&bytes),
        Ok(vec![Frame::Unknown(0x1234), Frame::Ping])
    );
    assert_eq!(decode_all(&[0x3f]), Err(FrameError::UnknownType));
}

#[test]
fn impossible_parity_groups_are_refused() {
    let parity = ParityFrame {
        path: 0,
        first: 7,
        data: 4,
        count: 2,
        index: 1,
        shard: b"abcd",
    };
    let read = |frame: Frame<'_>| {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        decode_all(&bytes).map(|frames| frames.len())
    };
    assert_eq!(read(Frame::Parity(parity)), Ok(1));
    for wrong in [
        ParityFrame { data: 0, ..parity },
        ParityFrame { data: 33, ..parity },
        ParityFrame { count: 1, ..parity },
        ParityFrame {
            count: 65,
            ..parity
        },
        ParityFrame {
            shard: b"a",
            ..parity
        },
        ParityFrame {
            first: VARINT_MAX,
            ..parity
        },
    ] {
        assert_eq!(
            read(Frame::Parity(wrong)),
            Err(FrameError::Range),
            "{wrong:?}"
        );
    }
    for (number, place) in [(3, 4), (100, 32)] {
        let path = 0;
        let protected = Frame::Protected {
            path,
            number,
            place,
        };
        assert_eq!(read(protected), Err(FrameError::Range));
    }
}

#[test]
fn impossible_packet_parts_are_refused() {
    let part = |count, index, len| {
        let data = vec![7; len];
        let mut bytes = Vec::new();
        Frame::PacketPart {
            tenant: u32::MAX,
            number: VARINT_MAX,
            count,
            index,
            marked: true,
            data: &data,
        }
        .encode(&mut bytes);
        assert!(bytes.len() <= Frame::packet_part_head_len(u32::MAX, VARINT_MAX) + len);
        decode_all(&bytes).map(|frames| frames.len())
    };
    for (count, index, len) in [(2, 0, 1), (2, 1, 1279), (3, 2, 640)] {
        assert_eq!(part(count, index, len), Ok(1), "{index} of {count}");
    }
    for (count, index, len) in [
        (0, 0, 9),
        (1, 0, 9),
        (2, 2, 9),
        (4, 0, 9),
        (3, 255, 9),
        (2, 0, 0),
        (2, 0, 1280),
    ] {
        let read = part(count, index, len);
        assert_eq!(read, Err(FrameError::Range), "{index} of {count}, {len}");
    }
    let marked_twice = [0x40, 0x49, 6, 1, 1, 2, 0, 2, 0];
    assert_eq!(decode_all(&marked_twice), Err(FrameError::Range));
}

#[test]
fn parts_outside_their_whole_are_refused() {
    for (total, offset, data) in [
        (5, 3, &b"abc"[..]),
        (5, 5, b""),
        (MESSAGE_LEN_MAX + 1, 0, b"a"),
    ] {
        let mut bytes = Vec::new();
        Frame::Message {
            id: 1,
            app: AppId(1),
            total,
            offset,
            data,
        }
        .encode(&mut bytes);
        assert_eq!(decode_all(&bytes), Err(FrameError::Range));
    }
}
