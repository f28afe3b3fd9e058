//! Handshake packets between two gateways, altered on the way: none of it stops an honest handshake
//! that follows.
#![no_main]

#[allow(dead_code)]
#[path = "../../../crates/core/tests/endpoint/support/mod.rs"]
mod support;

use std::time::Duration;

use fuzz::{seeds, wire::Choices};
use keiro_core::{Endpoint, Instant, PeerId};
use libfuzzer_sys::fuzz_target;
use support::{address, drain, endpoint, feed, mend_first_mac, peer};

/// Packets that are altered, of those that both sides send.
const ALTERED_MAX: usize = 64;

fuzz_target!(init: seeds::write(seeds::handshakes()), |data: &[u8]| {
    let mut choices = Choices(data);
    let mut ends = [endpoint(1), endpoint(2)];
    let peers = [
        ends[0].add_peer(Instant::ZERO, peer(2, Some(address(2)))),
        ends[1].add_peer(Instant::ZERO, peer(1, Some(address(1)))),
    ];
    let mut now = Instant::ZERO;
    for _ in 0..ALTERED_MAX {
        if choices.is_empty() {
            break;
        }
        exchange(&mut ends, now, |to, packet| alter(packet, to, &mut choices));
        now += Duration::from_millis(u64::from(choices.next()) * 10);
    }
    assert!(comes_up(&mut ends, peers, now), "an honest handshake succeeds");
});

/// Both sides send what they have, each packet after `on_way` has seen it.
fn exchange(ends: &mut [Endpoint; 2], now: Instant, mut on_way: impl FnMut(u8, &mut Vec<u8>)) {
    for side in 0..2 {
        ends[side].handle_timeout(now);
        for (_, mut packet) in drain(&mut ends[side], now).packets {
            let to = 2 - side;
            on_way(to as u8, &mut packet);
            feed(&mut ends[to - 1], now, address(side as u16 + 1), &packet);
        }
    }
}

fn alter(packet: &mut Vec<u8>, to: u8, choices: &mut Choices<'_>) {
    let how = choices.next();
    for _ in 0..how % 8 {
        let (at, flip) = (usize::from(choices.next()), choices.next());
        if let Some(byte) = packet.get_mut(at) {
            *byte ^= flip;
        }
    }
    if how & 0x10 != 0 {
        packet.resize(usize::from(choices.next()), how);
    }
    // What is behind the first MAC is reached, too.
    if how & 0x20 != 0 {
        mend_first_mac(packet, to);
    }
    if how & 0x40 != 0 {
        packet.clear();
    }
}

/// Both sides are up within a minute of unaltered packets.
fn comes_up(ends: &mut [Endpoint; 2], peers: [PeerId; 2], mut now: Instant) -> bool {
    for _ in 0..600 {
        exchange(ends, now, |_, _| {});
        let is_up = |side: usize| ends[side].session(peers[side]).is_some_and(|s| s.up);
        if is_up(0) && is_up(1) {
            return true;
        }
        now += Duration::from_millis(100);
    }
    false
}
