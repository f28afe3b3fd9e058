//! Keys that are not used any more are nowhere on the heap. A process of its own, since it searches all of
//! its memory.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    time::Duration,
};

use keiro_core::{
    DatagramMeta, Endpoint, EndpointConfig, Instant, PathConfig, PathId, PeerConfig, PeerId,
    PresharedKey, PrivateKey, SocketId, TransmitBuf,
};
use keiro_units::Bandwidth;

/// Keys are kept here in this form, so that they are not found in the test itself.
const MASK: u8 = 0xa5;

fn masked(key: &[u8; 32]) -> [u8; 32] {
    key.map(|byte| byte ^ MASK)
}

/// How often the key, which is given masked, lies on the heap or in other anonymous memory but the stack.
fn found(key: &[u8; 32]) -> usize {
    let memory = File::open("/proc/self/mem").expect("Linux");
    let maps = fs::read_to_string("/proc/self/maps").expect("Linux");
    let on_stack = 0u8;
    let stack = std::ptr::from_ref(&on_stack) as u64;
    let mut count = 0;
    for line in maps.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_anonymous = fields.get(5).is_none_or(|name| *name == "[heap]");
        if !fields[1].starts_with("rw") || !is_anonymous {
            continue;
        }
        let (from, to) = fields[0].split_once('-').expect("a range");
        let [from, to] = [from, to].map(|end| u64::from_str_radix(end, 16).expect("hexadecimal"));
        if (from..to).contains(&stack) {
            continue;
        }
        let mut bytes = vec![0; (to - from) as usize];
        if memory.read_exact_at(&mut bytes, from).is_err() {
            continue;
        }
        // The copy that was just made is not found: it is searched, not memory.
        count += bytes
            .windows(32)
            .filter(|window| window.iter().zip(key).all(|(a, b)| a ^ MASK == *b))
            .count();
        bytes.fill(0);
        std::hint::black_box(&bytes);
    }
    count
}

/// A key that is made on the heap, and masked; nothing else remembers it.
fn key(number: u8) -> (Box<[u8; 32]>, [u8; 32]) {
    let mut bytes = Box::new([0; 32]);
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = (place as u8).wrapping_mul(37).wrapping_add(number) ^ 0x5a;
    }
    let kept = masked(&bytes);
    (bytes, kept)
}

fn endpoint(private: &[u8; 32], seed: u8) -> Endpoint {
    let config = EndpointConfig::new(PrivateKey::from_bytes(*private));
    Endpoint::new(Instant::ZERO, config, [seed; 32])
}

fn peer_of(private: &[u8; 32], preshared: &[u8; 32], port: u16) -> PeerConfig {
    let mut peer = PeerConfig::new(PrivateKey::from_bytes(*private).public_key());
    peer.preshared_key = PresharedKey::from_bytes(*preshared);
    peer.paths = vec![PathConfig {
        id: PathId(0),
        socket: SocketId(0),
        remote: Some(([10, 0, 0, 1], port).into()),
        rate: Some(Bandwidth::from_mbit_per_second(100)),
        mtu_max: 1500,
        probe_limit: None,
        terms: keiro_core::PathTerms::FREE,
    }];
    peer
}

/// Runs both until both are up.
fn connect(ends: &mut [Endpoint; 2], peers: [PeerId; 2]) -> Instant {
    let mut now = Instant::ZERO;
    for _ in 0..2000 {
        for side in 0..2 {
            ends[side].handle_timeout(now);
            let mut buf = TransmitBuf::new(1);
            while ends[side].poll_transmit(now, &mut buf).is_some() {
                let meta = DatagramMeta {
                    socket: SocketId(0),
                    remote: ([10, 0, 0, 1], side as u16 + 1).into(),
                    ecn: 0,
                    received_at: now,
                };
                let mut packet = buf.filled().to_vec();
                ends[1 - side].handle_datagram(now, meta, &mut packet);
            }
        }
        if (0..2).all(|side| ends[side].is_up(peers[side])) {
            return now;
        }
        now += Duration::from_millis(1);
    }
    panic!("both come up");
}

#[test]
fn keys_of_an_endpoint_are_erased_with_it() {
    let (first, first_kept) = key(1);
    let (second, second_kept) = key(2);
    let (preshared, preshared_kept) = key(3);
    let mut ends = [endpoint(&first, 11), endpoint(&second, 12)];
    let peers = [
        ends[0].add_peer(Instant::ZERO, peer_of(&second, &preshared, 2)),
        ends[1].add_peer(Instant::ZERO, peer_of(&first, &preshared, 1)),
    ];
    let now = connect(&mut ends, peers);
    for kept in [&first_kept, &second_kept, &preshared_kept] {
        assert!(found(kept) > 0, "the search finds what is in use");
    }
    for end in &mut ends {
        end.close(now);
    }
    drop(ends);
    for mut bytes in [first, second, preshared] {
        bytes.fill(0);
        std::hint::black_box(&bytes);
    }
    for kept in [&first_kept, &second_kept, &preshared_kept] {
        assert_eq!(found(kept), 0, "copies on the heap");
    }
}
