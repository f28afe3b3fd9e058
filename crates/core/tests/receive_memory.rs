//! What one authenticated peer makes an endpoint keep, whatever it sends. A process of its own, since it
//! measures the memory of all of it.

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "endpoint/support/mod.rs"]
mod support;

use std::fs;

use keiro_core::{
    AppConfig, AppId, Delivery, DeliveryClass, PathId, StreamId, TenantConfig, TenantId,
};

use crate::support::{
    Victim, address, app, fragment, frame, message, message_drop, meta, packet_part, varint,
};

/// The most that all of a peer may take: the target is 64 MB.
const MEMORY_MAX: u64 = 64_000_000;
const STREAMS: &str = "streams";
/// Streams that a peer may have open.
const STREAMS_MAX: u64 = 16_384;
/// Data in one packet.
const PART: usize = 1300;
const WINDOW_INITIAL: u64 = 16 << 10;

/// A peer that wants as much memory as it can get.
struct Hoarder {
    victim: Victim,
    packets: u64,
    /// The stream of which the driver got the last signal.
    heard: Option<StreamId>,
}

impl Hoarder {
    fn new() -> Self {
        let mut victim = Victim::new();
        let streams = AppConfig {
            id: AppId::of_name(STREAMS),
            class: DeliveryClass::Stream,
            latency_target: None,
            lifetime: None,
            paths: vec![PathId(0)],
            tenant: TenantId::ZERO,
            is_spread: false,
        };
        victim.end.set_app(victim.peer, streams);
        for tenant in 1..=3 {
            let tenant = TenantConfig::new(TenantId(tenant));
            let set = victim.end.set_tenant(victim.now, victim.peer, tenant);
            set.expect("room for tenants");
        }
        Self {
            victim,
            packets: 0,
            heard: None,
        }
    }

    /// Sends a packet over a path of its own numbers. The driver takes nothing.
    fn tell_on(&mut self, path: u8, frames: &[u8]) {
        let mut packet = self.victim.raw.packet_on(path, frames);
        let meta = meta(self.victim.now, address(2));
        let now = self.victim.now;
        self.victim.end.handle_datagram(now, meta, &mut packet);
        self.packets += 1;
        if self.packets.is_multiple_of(16) {
            self.take_deliveries();
        }
        if self.packets.is_multiple_of(4000) {
            self.victim.end.check_invariants();
            assert!(self.accounted() <= MEMORY_MAX, "{} bytes", self.accounted());
        }
    }

    fn inject(&mut self, frames: &[u8]) {
        self.tell_on(0, frames);
    }

    /// What the endpoint says that this peer takes.
    fn accounted(&self) -> u64 {
        let session = self.victim.end.session(self.victim.peer);
        session.expect("it is there").stats.receive_memory_bytes
    }

    /// Sends all of a message but its last byte.
    fn hold_message(&mut self, number: u64, total: usize) {
        for offset in (0..total - 1).step_by(PART) {
            let len = PART.min(total - 1 - offset);
            self.inject(&message(number, total as u64, offset as u64, &vec![7; len]));
        }
    }

    fn open_streams(&mut self) {
        for first in (0..STREAMS_MAX).step_by(64) {
            let opens = (first..first + 64)
                .map(|number| frame(12, &[&varint(number << 1), &app(STREAMS), &[0]]));
            let opens: Vec<Vec<u8>> = opens.collect();
            self.inject(&opens.concat());
        }
    }

    fn fill(&mut self, stream: u64, from: u64, to: u64) {
        for offset in (from..to).step_by(PART) {
            let len = (to - offset).min(PART as u64);
            let data = vec![7; len as usize];
            let id = varint(stream << 1);
            self.inject(&frame(13, &[&id, &varint(offset), &varint(len), &data]));
        }
    }

    /// Opens a stream and sends what it takes, as long as its reader reads and its window grows, and once more when
    /// the reader has stopped.
    fn widen(&mut self, stream: u64) {
        self.inject(&frame(12, &[&varint(stream << 1), &app(STREAMS), &[0]]));
        self.take_deliveries();
        let (peer, now) = (self.victim.peer, self.victim.now);
        let id = self.heard.expect("it was opened");
        let (mut sent, mut window) = (0, WINDOW_INITIAL);
        loop {
            self.fill(stream, sent, sent + window);
            sent += window;
            let before = self.accounted();
            let end = &mut self.victim.end;
            end.consume_stream(now, peer, id, window as usize);
            let grown = self.accounted().saturating_sub(before);
            if grown == 0 {
                self.fill(stream, sent, sent + window);
                return;
            }
            window += grown;
        }
    }

    fn take_deliveries(&mut self) {
        while let Some(delivery) = self.victim.end.poll_delivery() {
            if let Delivery::Stream { stream, .. } = delivery {
                self.heard = Some(stream);
            }
        }
    }

    /// Gives up every second of as many messages that it never sent as it has credit for.
    fn drop_messages(&mut self) {
        for first in (0..4_000u64).step_by(200) {
            let drops = (first..first + 200).map(|number| message_drop((1 << 20) + number * 2, 1));
            let drops: Vec<Vec<u8>> = drops.collect();
            self.inject(&drops.concat());
        }
    }

    /// Datagrams in fragments, IP packets in parts, groups of aggregates of which nothing but parity comes, on all path numbers, and
    /// numbers of streams of which every second is used.
    fn leave_gaps(&mut self) {
        for number in 0..40 {
            self.inject(&fragment(number, 65_000, 64_000, &[1; 100]));
        }
        for number in 0..200 {
            for tenant in 1..=3 {
                self.inject(&packet_part(tenant, number, [0, 2], &[1; 1279]));
            }
        }
        for path in 0..64 {
            self.tell_on(path, &[1]);
            for group in 0..300u64 {
                let head: [&[u8]; 3] = [&[path], &varint(group * 32), &[32, 64, 0]];
                let body = [&head.concat(), &vec![5; 1250][..]].concat();
                self.tell_on(path, &frame(0x44, &[&varint(body.len() as u64), &body]));
            }
        }
        for first in (0..22_000u64).step_by(100) {
            let resets = (first..first + 100)
                .map(|number| frame(16, &[&varint((20_000 + number * 2) << 1), &[0]]));
            let resets: Vec<Vec<u8>> = resets.collect();
            self.inject(&resets.concat());
        }
    }

    /// Bytes of every stream, with gaps between them.
    fn fill_streams(&mut self) {
        for stream in 0..STREAMS_MAX {
            let id = varint(stream << 1);
            let byte = |offset: u64| frame(13, &[&id, &varint(offset), &[1], b"x"]);
            let gaps: Vec<Vec<u8>> = (0..100).map(|number| byte(1 + number * 2)).collect();
            self.inject(&gaps.concat());
            self.inject(&byte(WINDOW_INITIAL - 1));
        }
    }
}

/// Resident memory that belongs to this process alone.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.expect("Linux 4.5").trim().trim_end_matches(" kB");
    kilobytes.parse::<u64>().expect("a number") * 1024
}

/// Fills everything that a peer can; what the process has grown by since `begun`.
fn fill(begun: u64) -> u64 {
    let mut hoarder = Hoarder::new();
    hoarder.widen(0);
    let wide = hoarder.accounted();
    hoarder.hold_message(0, 16 << 20);
    hoarder.hold_message(1, 7 << 20);
    hoarder.open_streams();
    hoarder.fill_streams();
    let streams = hoarder.accounted();
    hoarder.leave_gaps();
    hoarder.drop_messages();
    let (accounted, grown) = (hoarder.accounted(), resident().saturating_sub(begun));
    println!(
        "{} packets: {accounted} bytes accounted ({wide} with a wide window, {streams} with streams), {grown} resident; drops {:?}",
        hoarder.packets,
        hoarder.victim.drops()
    );
    assert!(accounted > MEMORY_MAX * 3 / 4, "it got little: {accounted}");
    assert!(accounted <= MEMORY_MAX, "{accounted}");
    assert!(grown <= MEMORY_MAX, "{grown}");
    hoarder.victim.end.check_invariants();
    let (now, peer) = (hoarder.victim.now, hoarder.victim.peer);
    hoarder.victim.end.remove_peer(now, peer);
    grown
}

#[test]
fn a_peer_that_fills_everything_takes_less_than_64_mb_and_leaves_all_of_it_to_the_next() {
    let begun = resident();
    // The allocator keeps what was freed, and the next peers get it: after some of them nothing grows.
    let grown = (0..3).map(|_| fill(begun)).max().expect("three peers");
    for _ in 0..2 {
        let next = fill(begun);
        assert!(next <= grown + (1 << 20), "{next} after {grown}");
    }
}
