//! What the protocol itself costs: two endpoints in one thread, packets handed over in memory.
//!
//! `cargo bench -p keiro-core`. Divan prints packets or bytes per second of both ends together.

use std::{net::SocketAddr, time::Duration};

use divan::{Bencher, counter::BytesCount, counter::ItemsCount};
use keiro_core::{
    DatagramMeta, Delivery, DeliveryClass, Endpoint, FlowId, Instant, NewDatagram, PeerId,
    StreamId, StreamSignal, TransmitBuf,
};
use keiro_model::erasure;
use keiro_units::Bandwidth;

mod ends;

use ends::APP;

fn main() {
    divan::main();
}

struct Pair {
    now: Instant,
    ends: [Endpoint; 2],
    peers: [PeerId; 2],
    buf: TransmitBuf,
    messages: usize,
    datagrams: usize,
    /// IP packets of tenants.
    packets: usize,
    /// Of stream bytes, by end.
    arrived: [usize; 2],
    /// Streams opened by the first end, as the second end reported them.
    opened: Vec<StreamId>,
}

impl Pair {
    fn new(class: DeliveryClass) -> Self {
        let rate = Bandwidth::from_mbit_per_second(1_000_000);
        let (ends, peers) = ends::configured(rate, class);
        let buf = TransmitBuf::new(40);
        let mut pair = Self {
            now: Instant::ZERO,
            ends,
            peers,
            buf,
            messages: 0,
            datagrams: 0,
            packets: 0,
            arrived: [0; 2],
            opened: Vec::new(),
        };
        for _ in 0..100 {
            pair.turn();
        }
        assert!(
            pair.ends[0]
                .session(pair.peers[0])
                .is_some_and(|session| session.up)
        );
        pair
    }

    /// One turn of both drivers, 100 us apart, with no delay between them.
    fn turn(&mut self) {
        self.now += Duration::from_micros(100);
        for side in 0..2 {
            self.ends[side].handle_timeout(self.now);
            while let Some(transmit) = self.ends[side].poll_transmit(self.now, &mut self.buf) {
                let remote = SocketAddr::from(([192, 0, 2, side as u8 + 1], 7600));
                let socket = transmit.socket;
                let meta = DatagramMeta {
                    socket,
                    remote,
                    ecn: 0,
                    received_at: self.now,
                };
                let mut bytes = self.buf.filled().to_vec();
                for datagram in bytes.chunks_mut(transmit.segment_size) {
                    self.ends[1 - side].handle_datagram(self.now, meta, datagram);
                }
            }
            self.deliver(1 - side);
        }
    }

    fn deliver(&mut self, side: usize) {
        let mut finished = Vec::new();
        let mut readable = Vec::new();
        while let Some(delivery) = self.ends[side].poll_delivery() {
            match delivery {
                Delivery::Message { peer, id, .. } => finished.push((peer, id)),
                Delivery::Datagram { data, .. } => {
                    divan::black_box(data);
                    self.datagrams += 1;
                }
                Delivery::Packet { data, .. } => {
                    divan::black_box(data);
                    self.packets += 1;
                }
                Delivery::Stream {
                    peer,
                    stream,
                    signal,
                    ..
                } => {
                    readable.push((peer, stream));
                    if matches!(signal, StreamSignal::Opened { .. }) {
                        self.opened.push(stream);
                    }
                }
            }
        }
        for (peer, stream) in readable {
            let data = self.ends[side].stream_data(peer, stream);
            let bytes = data.map_or(0, |(first, second, _)| first.len() + second.len());
            self.ends[side].consume_stream(self.now, peer, stream, bytes);
            self.arrived[side] += bytes;
        }
        self.messages += finished.len();
        for (peer, id) in finished {
            self.ends[side].finish_message(peer, id, None);
        }
        while self.ends[side].poll_event().is_some() {}
    }
}

#[divan::bench(args = [100, 10_000, 1_000_000], min_time = 2)]
fn messages(bencher: Bencher<'_, '_>, len: usize) {
    let mut pair = Pair::new(DeliveryClass::Message);
    let count = (2_000_000 / len).clamp(2, 2_000);
    bencher
        .counter(BytesCount::new(count * len))
        .counter(ItemsCount::new(count))
        .bench_local(|| {
            let target = pair.messages + count;
            for _ in 0..count {
                let (now, peer) = (pair.now, pair.peers[0]);
                pair.ends[0]
                    .send_message(now, now, peer, APP, vec![0; len])
                    .expect("room");
            }
            while pair.messages < target {
                pair.turn();
            }
        });
}

#[divan::bench(args = [64, 1200], min_time = 2)]
fn datagrams(bencher: Bencher<'_, '_>, len: usize) {
    const COUNT: usize = 1_000;
    let mut pair = Pair::new(DeliveryClass::Datagram);
    let data = vec![0; len];
    bencher
        .counter(BytesCount::new(COUNT * len))
        .counter(ItemsCount::new(COUNT))
        .bench_local(|| {
            let target = pair.datagrams + COUNT;
            for _ in 0..COUNT {
                let (now, peer) = (pair.now, pair.peers[0]);
                pair.ends[0]
                    .send_datagram(now, peer, NewDatagram::new(APP, FlowId(1), now, &data))
                    .expect("known");
            }
            while pair.datagrams < target {
                pair.turn();
            }
        });
}

/// Small requests and answers on 64 streams, one at a time, as a driver that sleeps in between goes
/// about it: what a message costs in the two cores together, copies, acknowledgements and timers
/// included.
#[divan::bench(min_time = 2)]
fn exchanges(bencher: Bencher<'_, '_>) {
    const STREAMS: usize = 64;
    let mut pair = Pair::new(DeliveryClass::Stream);
    let streams: Vec<StreamId> = (0..STREAMS)
        .map(|_| {
            let (now, peer) = (pair.now, pair.peers[0]);
            let opened = pair.ends[0].open_stream(now, peer, APP, None);
            pair.turn();
            opened.expect("a stream")
        })
        .collect();
    assert_eq!(pair.opened.len(), STREAMS);
    let answers = pair.opened.clone();
    let say = |pair: &mut Pair, side: usize, stream| {
        let (now, peer) = (pair.now, pair.peers[side]);
        let written = pair.ends[side].write_stream(now, peer, stream, &[7; 64]);
        assert_eq!(written, Some(64));
        let target = pair.arrived[1 - side] + 64;
        while pair.arrived[1 - side] < target {
            divan::black_box(pair.ends[side].poll_timeout());
            pair.turn();
        }
    };
    bencher
        .counter(ItemsCount::new(2 * STREAMS))
        .bench_local(|| {
            for (request, answer) in streams.iter().zip(&answers) {
                say(&mut pair, 0, *request);
                say(&mut pair, 1, *answer);
            }
        });
}

/// Aggregates of a group, and parity packets.
const GROUPS: [(usize, usize); 3] = [(4, 2), (8, 3), (32, 16)];

fn group(data: usize) -> Vec<Vec<u8>> {
    (0..data).map(|i| vec![i as u8 * 7 + 1; 1400]).collect()
}

/// Parity of a group of packets of 1400 bytes.
#[divan::bench(args = GROUPS)]
fn parity(bencher: Bencher<'_, '_>, (data, parity): (usize, usize)) {
    let packets = group(data);
    bencher
        .counter(BytesCount::new(data * 1400))
        .bench_local(|| erasure::encode(&packets, parity));
}

/// As many lost packets of it as there is parity for.
#[divan::bench(args = GROUPS)]
fn recovery(bencher: Bencher<'_, '_>, (data, parity): (usize, usize)) {
    let packets = group(data);
    let encoded = erasure::encode(&packets, parity);
    let there = |place: usize| (place >= parity).then_some(&packets[place][..]);
    let known: Vec<Option<&[u8]>> = (0..data).map(there).collect();
    let rows: Vec<(usize, &[u8])> = encoded.iter().map(|p| &p[..]).enumerate().collect();
    bencher
        .counter(BytesCount::new(parity * 1400))
        .bench_local(|| erasure::recover(&known, &rows).expect("enough parity"));
}
