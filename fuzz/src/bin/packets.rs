//! An endpoint in a session with a hostile peer, which can seal any frames: nothing panics, and no
//! poll goes on for ever.
#![no_main]

#[allow(dead_code)]
#[path = "../../../crates/core/tests/endpoint/support/mod.rs"]
mod support;

use std::time::Duration;

use fuzz::{seeds, wire::Choices};
use keiro_core::{AppId, FlowId, NewDatagram};
use libfuzzer_sys::fuzz_target;
use support::{DATAGRAMS, MESSAGES, Victim};

fuzz_target!(init: seeds::write(seeds::packets()), |data: &[u8]| {
    let mut choices = Choices(data);
    let mut victim = Victim::new();
    while !choices.is_empty() {
        step(&mut victim, &mut choices);
        // What it sends is not read: a close may have ended the keys.
        victim.end.handle_timeout(victim.now);
        support::drain(&mut victim.end, victim.now);
    }
    victim.now += Duration::from_secs(100);
    victim.end.handle_timeout(victim.now);
    support::drain(&mut victim.end, victim.now);
});

fn step(victim: &mut Victim, choices: &mut Choices<'_>) {
    let (what, len) = (choices.next(), usize::from(choices.next()));
    match what % 8 {
        // The next packet of a path.
        0..=2 => {
            let packet = victim.raw.packet_on(what >> 6, choices.take(len * 5));
            victim.give(&packet);
        }
        // A packet with any number.
        3 => {
            let number = u64::from_be_bytes([0, 0, 0, choices.next(), 0, 0, what, len as u8]);
            let packet = victim.raw.packet_at(what >> 6, number, choices.take(len));
            victim.give(&packet);
        }
        // Not sealed.
        4 => victim.give(choices.take(len)),
        5 => victim.now += Duration::from_micros(1 << (len % 24)),
        6 => {
            let (now, app) = (victim.now, AppId::of_name(MESSAGES));
            let body = vec![what; 1 + len * 32];
            let _ = victim.end.send_message(now, now, victim.peer, app, body);
        }
        _ => {
            let (now, app) = (victim.now, AppId::of_name(DATAGRAMS));
            let body = vec![what; len * 16];
            let _ = victim.end.send_datagram(
                now,
                victim.peer,
                NewDatagram::new(app, FlowId(3), now, &body),
            );
        }
    }
}
