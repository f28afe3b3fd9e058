//! What tenants cost: memory of those that idle, and time of those that do not.
//!
//! `cargo bench -p keiro-core --bench tenants` prints bytes per tenant (resident memory of the
//! process, so that nothing is left out), the time of an exchange of ten tenants beside more and
//! more idle ones, and IP packets per second through both ends. What is asked of memory stands beside
//! what was reached.

use std::{net::SocketAddr, time::Duration};

use divan::{
    Bencher,
    counter::{BytesCount, ItemsCount},
};
use keiro_core::{
    AppConfig, AppId, DatagramMeta, Delivery, DeliveryClass, Endpoint, EndpointConfig, Instant,
    IpPacket, PathConfig, PathId, PeerConfig, PeerId, PrivateKey, SocketId, TenantConfig, TenantId,
    TransmitBuf,
};
use keiro_model::fairness::controller::ControllerConfig;
use keiro_units::Bandwidth;

const APP: AppId = AppId(7);
const TENANTS: u32 = 100_000;
/// What all tenants may take, and an idle one at one end.
const ASKED_OF_ALL_BYTES: u64 = 1 << 30;
const ASKED_OF_EACH_BYTES: u64 = 4 << 10;

fn main() {
    println!("state of tenants, resident memory:");
    // Kept, so that one is not measured in the other's memory.
    let mut kept = Vec::new();
    for (what, each) in [("configured", false), ("that have sent", true)] {
        let before = resident_bytes();
        let mut pair = Pair::new(TENANTS, ControllerConfig::default());
        if each {
            for id in 1..=TENANTS {
                pair.send(id, 100);
                if id % 1000 == 0 {
                    pair.turns(20);
                }
            }
            pair.turns(1000);
            assert_eq!(pair.packets, TENANTS as usize, "all have arrived");
        }
        let bytes = resident_bytes().saturating_sub(before);
        let per = bytes / u64::from(TENANTS);
        // The other end has as many that only receive. Both together must keep to what is asked of one.
        println!(
            "{TENANTS} {what}: {bytes} bytes (asked {ASKED_OF_ALL_BYTES}: {}), {per} each (asked \
             {ASKED_OF_EACH_BYTES}: {}), at both ends together",
            verdict(bytes <= ASKED_OF_ALL_BYTES),
            verdict(per <= ASKED_OF_EACH_BYTES),
        );
        kept.push(pair);
    }
    drop(kept);
    divan::main();
}

const fn verdict(holds: bool) -> &'static str {
    if holds { "reached" } else { "MISSED" }
}

/// Pages of 4 KiB in memory, as bytes.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse().ok());
    pages.map_or(0, |pages: u64| pages * 4096)
}

struct Pair {
    now: Instant,
    ends: [Endpoint; 2],
    peers: [PeerId; 2],
    buf: TransmitBuf,
    packets: usize,
}

impl Pair {
    fn new(tenants: u32, controller: ControllerConfig) -> Self {
        let key = |end: usize| PrivateKey::from_bytes([end as u8 + 1; 32]);
        let mut ends = [0, 1].map(|end| {
            let mut config = EndpointConfig::new(key(end));
            config.tenants_max = TENANTS as usize;
            Endpoint::new(Instant::ZERO, config, [end as u8; 32])
        });
        let peers = [0, 1].map(|end| {
            let mut peer = PeerConfig::new(key(1 - end).public_key());
            peer.paths = vec![PathConfig {
                id: PathId(0),
                socket: SocketId(0),
                remote: Some(SocketAddr::from(([192, 0, 2, 2 - end as u8], 7600))),
                rate: Some(Bandwidth::from_mbit_per_second(1_000_000)),
                mtu_max: 1500,
                probe_limit: None,
                terms: keiro_core::PathTerms::FREE,
            }];
            peer.apps = vec![AppConfig {
                id: APP,
                class: DeliveryClass::Datagram,
                latency_target: None,
                lifetime: None,
                paths: vec![PathId(0)],
                tenant: TenantId::ZERO,
                is_spread: false,
            }];
            let id = ends[end].add_peer(Instant::ZERO, peer);
            for tenant in 1..=tenants {
                let config = TenantConfig {
                    controller,
                    ..TenantConfig::new(TenantId(tenant))
                };
                ends[end]
                    .set_tenant(Instant::ZERO, id, config)
                    .expect("within the limit");
            }
            id
        });
        let mut pair = Self {
            now: Instant::ZERO,
            ends,
            peers,
            buf: TransmitBuf::new(40),
            packets: 0,
        };
        pair.turns(100);
        assert!(pair.ends[0].is_up(pair.peers[0]));
        pair
    }

    fn send(&mut self, tenant: u32, len: usize) {
        let mut data = self.ends[0].spare_buffer(len);
        data.fill(0x45);
        let packet = IpPacket {
            flow_hash: tenant,
            ecn: 0,
            needs_order: false,
            data,
        };
        self.ends[0]
            .send_packet(self.now, self.peers[0], TenantId(tenant), APP, packet)
            .expect("it is configured and the path is up");
    }

    fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.turn();
        }
    }

    /// One turn of both drivers, 100 us apart, with no delay between them.
    fn turn(&mut self) {
        self.now += Duration::from_micros(100);
        for side in 0..2 {
            if self.ends[side]
                .poll_timeout()
                .is_some_and(|at| at <= self.now)
            {
                self.ends[side].handle_timeout(self.now);
            }
            while let Some(transmit) = self.ends[side].poll_transmit(self.now, &mut self.buf) {
                let meta = DatagramMeta {
                    socket: transmit.socket,
                    remote: SocketAddr::from(([192, 0, 2, side as u8 + 1], 7600)),
                    ecn: 0,
                    received_at: self.now,
                };
                let mut bytes = self.buf.filled().to_vec();
                for datagram in bytes.chunks_mut(transmit.segment_size) {
                    self.ends[1 - side].handle_datagram(self.now, meta, datagram);
                }
            }
            while let Some(delivery) = self.ends[1 - side].poll_delivery() {
                if let Delivery::Packet { data, .. } = delivery {
                    divan::black_box(data);
                    self.packets += 1;
                }
            }
        }
    }
}

/// Ten tenants send a packet each; the others only exist, and have sent before.
#[divan::bench(args = [10, 1000, 100_000])]
fn ten_active_of(bencher: Bencher<'_, '_>, tenants: u32) {
    let mut pair = Pair::new(tenants, ControllerConfig::default());
    for id in 1..=tenants {
        pair.send(id, 100);
        if id % 1000 == 0 {
            pair.turns(20);
        }
    }
    pair.turns(1000);
    bencher.bench_local(|| {
        for id in 1..=10 {
            pair.send(id, 1000);
        }
        pair.turns(3);
    });
}

/// IP packets of 64 and of 1400 bytes, without a window.
#[divan::bench(args = [64, 1400])]
fn packets_of(bencher: Bencher<'_, '_>, len: usize) {
    let mut pair = Pair::new(1, ControllerConfig::Open);
    pair.turns(1000);
    const BATCH: usize = 500;
    bencher
        .counter(ItemsCount::new(BATCH))
        .counter(BytesCount::new(BATCH * len))
        .bench_local(|| {
            let wanted = pair.packets + BATCH;
            for _ in 0..BATCH {
                pair.send(1, len);
            }
            while pair.packets < wanted {
                pair.turn();
            }
        });
}
