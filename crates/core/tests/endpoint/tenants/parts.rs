//! IP packets of at most 1280 bytes on paths that carry less in one piece: they travel in parts.

use keiro_core::wire::{Features, Frame, Reader};

use super::{
    ByteCount, ControllerConfig, Duration, IpPacket, MS, Net, ONE, PacketError, TWO, TenantId,
    Victim, app, keiro, narrow, tenant,
};
use crate::support::{Hello, endpoint, frame, packet_part, varint};

const SIZES: [usize; 5] = [576, 1124, 1200, 1280, 1300];

impl Net {
    /// A path that has never carried more than `longest` bytes, and whose largest packet is known.
    fn over(longest: usize) -> Self {
        let mut net = Self::begin(100, narrow());
        net.longest = longest;
        net.set(tenant(ONE, 1.0, ControllerConfig::Open));
        for _ in 0..60 {
            net.run(Duration::from_secs(1), |_| {});
            if net.ends[0].is_up(net.peers[0]) && net.now.as_nanos() > 20_000_000_000 {
                return net;
            }
        }
        panic!("no path over {longest} bytes is up");
    }

    fn send_bytes(&mut self, data: Vec<u8>) -> Result<(), PacketError> {
        let packet = IpPacket {
            flow_hash: 1,
            ecn: 2,
            needs_order: false,
            data,
        };
        self.ends[0].send_packet(self.now, self.peers[0], ONE, app(), packet)
    }

    /// How long packets may be in one datagram, and at all.
    fn room_and_max(&self) -> (usize, usize) {
        let room = self.ends[0].packet_room(self.peers[0], ONE, app());
        let max = self.ends[0].packet_max(self.peers[0], ONE, app());
        (room.expect("it is up"), max.expect("it is up"))
    }
}

/// Bytes that differ from place to place and from packet to packet.
fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 256 + len) as u8).collect()
}

#[test]
fn packets_of_every_length_up_to_1280_bytes_arrive_whatever_the_path_carries() {
    for longest in SIZES {
        let mut net = Net::over(longest);
        let (room, max) = net.room_and_max();
        assert!(
            room < longest && room + 100 > longest.min(1280),
            "{longest}: {room}"
        );
        assert_eq!(max, 1280, "{longest}");
        net.kept = Some(Vec::new());
        for len in 20..=1280 {
            net.send_bytes(content(len)).expect("it is accepted");
            if len % 4 == 0 {
                net.run(4 * MS, |_| {});
            }
        }
        net.run(Duration::from_secs(1), |_| {});
        let mut arrived = net.kept.take().expect("they are kept");
        arrived.sort_by_key(|(_, data)| data.len());
        let expected: Vec<(u8, Vec<u8>)> = (20..=1280).map(|len| (2, content(len))).collect();
        assert!(arrived == expected, "{longest}: {} arrive", arrived.len());
        let refused = net.send_bytes(content(1281));
        let len = 1281;
        assert_eq!(refused, Err(PacketError::TooLong { len, room }));
        let paths = net.snapshot(ONE).paths;
        assert_eq!(paths[0].stats.lost_packets, 0);
        assert_eq!(
            paths[0].stats.in_flight_bytes, 0,
            "all parts are acknowledged"
        );
    }
}

#[test]
fn a_path_with_room_for_1280_bytes_carries_nothing_in_parts() {
    let net = Net::over(1500);
    let (room, max) = net.room_and_max();
    assert!(room > 1400);
    assert_eq!(max, room);
}

#[test]
fn a_mark_on_the_way_of_a_part_reaches_the_packet() {
    let mut net = Net::over(1280);
    net.kept = Some(Vec::new());
    net.marks_all = true;
    net.send_bytes(content(1280)).expect("it is accepted");
    net.run(100 * MS, |_| {});
    assert_eq!(net.kept, Some(vec![(3, content(1280))]));
}

/// A part more is a datagram more: windows and weights count it.
#[test]
fn parts_count_in_windows_and_shares() {
    let mut net = Net::over(1280);
    net.set(tenant(ONE, 1.0, keiro()));
    net.set(tenant(TWO, 2.0, keiro()));
    net.over_window = 0;
    let both = |net: &mut Net| {
        for (id, len) in [(ONE, 1280), (TWO, 600)] {
            while net.snapshot(id).stats.queued_bytes < 60_000 {
                net.send(id, 1, len).expect("accepted");
            }
        }
    };
    net.run(Duration::from_secs(5), both);
    let sent = |net: &Net, id| net.snapshot(id).paths[0].stats.sent_bytes as f64;
    let before = [ONE, TWO].map(|id| sent(&net, id));
    net.run(Duration::from_secs(10), both);
    let bytes = [0, 1].map(|at| sent(&net, [ONE, TWO][at]) - before[at]);
    let share = bytes[0] / (bytes[0] + bytes[1]);
    assert!((0.28..0.39).contains(&share), "{share} of {bytes:?}");
    assert_eq!(net.over_window, 0);
    let stats = net.snapshot(ONE).paths[0].stats;
    let mean = ByteCount::new(stats.sent_bytes / stats.sent_packets);
    assert!(mean < ByteCount::new(750), "{mean:?}: two datagrams each");
}

/// A peer that has announced `features`, and knows a tenant that is configured on both sides.
fn victim(features: Features) -> Victim {
    let mut hello = Hello::new(2, 1, 1);
    hello.features = features.bits();
    let mut victim = Victim::with_hello(endpoint(1), hello);
    let tenant = tenant(ONE, 1.0, ControllerConfig::Open);
    let set = victim.end.set_tenant(victim.now, victim.peer, tenant);
    set.expect("room for tenants");
    victim
}

fn send(victim: &mut Victim, len: usize) -> Result<(), PacketError> {
    let packet = IpPacket {
        flow_hash: 1,
        ecn: 0,
        needs_order: false,
        data: content(len),
    };
    victim
        .end
        .send_packet(victim.now, victim.peer, ONE, app(), packet)
}

/// Parts that leave: number, place and bytes.
fn parts_heard(victim: &mut Victim) -> Vec<(u64, [u8; 2], Vec<u8>)> {
    let mut heard = Vec::new();
    for (_, clear) in victim.hear().packets {
        let mut reader = Reader::new(&clear);
        while let Some(frame) = Frame::decode(&mut reader).expect("sound frames") {
            if let Frame::PacketPart {
                tenant,
                number,
                count,
                index,
                marked,
                data,
            } = frame
            {
                assert_eq!((tenant, marked), (1, false));
                heard.push((number, [index, count], data.to_vec()));
            }
        }
    }
    heard
}

#[test]
fn packet_parts_are_sent_only_with_the_feature() {
    let mut old = victim(Features::VERSION_REPLY);
    let room = old.end.packet_room(old.peer, ONE, app()).expect("up");
    assert_eq!(room, 1222);
    assert_eq!(old.end.packet_max(old.peer, ONE, app()), Some(room));
    let refused = send(&mut old, 1223);
    assert_eq!(refused, Err(PacketError::TooLong { len: 1223, room }));
    send(&mut old, 1222).expect("it fits");
    assert_eq!(parts_heard(&mut old), []);

    let mut new = victim(Features::SPLIT_PACKETS);
    send(&mut new, 1222).expect("it fits");
    assert_eq!(parts_heard(&mut new), []);
    for (number, len) in [(0, 1223), (1, 1280)] {
        send(&mut new, len).expect("it is accepted");
        let heard = parts_heard(&mut new);
        let places: Vec<(u64, [u8; 2])> = heard.iter().map(|(n, place, _)| (*n, *place)).collect();
        assert_eq!(places, [(number, [0, 2]), (number, [1, 2])]);
        let bytes: Vec<u8> = heard.into_iter().flat_map(|(_, _, data)| data).collect();
        assert_eq!(bytes, content(len));
    }
}

#[test]
fn incomplete_packets_are_bounded_and_expire_after_a_second() {
    let mut victim = victim(Features::SPLIT_PACKETS);
    let memory = |victim: &Victim| {
        let session = victim.end.session(victim.peer).expect("it exists");
        session.stats.receive_memory_bytes
    };
    let before = memory(&victim);
    for number in 0..5_000 {
        // What a peer sends beyond its work of a turn waits.
        victim.now += Duration::from_micros(10);
        victim.inject(&packet_part(1, number, [0, 2], &[7; 1279]));
    }
    let kept = memory(&victim) - before;
    assert!((50_000..200_000).contains(&kept), "{kept} bytes");
    victim.end.check_invariants();
    victim.now += Duration::from_secs(1);
    assert!(victim.hear().ip_packets.is_empty());
    assert_eq!(memory(&victim), before);
    // The other part comes too late.
    victim.inject(&packet_part(1, 4_999, [1, 2], &[7]));
    assert!(victim.hear().ip_packets.is_empty());
    assert_eq!(victim.drops(), []);
    victim.assert_alive();
}

#[test]
fn wrong_parts_are_counted_and_change_nothing() {
    let mut victim = victim(Features::SPLIT_PACKETS);
    victim.inject(&packet_part(1, 1, [0, 2], b"ab"));
    for wrong in [
        // Repeated, of another count, no such place, empty, and longer than any that is split.
        packet_part(1, 1, [0, 2], b"xy"),
        packet_part(1, 1, [1, 3], b"xy"),
        packet_part(1, 1, [2, 2], b"xy"),
        packet_part(1, 1, [1, 2], b""),
        packet_part(1, 1, [1, 2], &[1; 1280]),
        packet_part(1 << 32, 1, [1, 2], b"xy"),
    ] {
        victim.inject(&wrong);
    }
    // In an aggregate they might be read twice.
    let aggregate = [
        frame(0x11, &[&[0], &varint(1), &[1, 0]]),
        packet_part(1, 1, [1, 2], b"xy"),
    ];
    victim.inject(&aggregate.concat());
    assert_eq!(victim.drops(), [("malformed", 7)]);
    victim.inject(&packet_part(2, 1, [0, 2], b"xy"));
    victim.inject(&packet_part(2, 1, [1, 2], b"xy"));
    assert!(victim.hear().ip_packets.is_empty());
    assert_eq!(victim.drops(), [("malformed", 7), ("unknown_tenant", 1)]);
    victim.inject(&packet_part(1, 1, [1, 2], b"cd"));
    let expected: Vec<(TenantId, u8, Vec<u8>)> = vec![(ONE, 0, b"abcd".to_vec())];
    assert_eq!(victim.hear().ip_packets, expected);
    victim.assert_alive();
}
