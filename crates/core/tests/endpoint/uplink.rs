//! Several peers over one uplink: together they keep its rate, and each gets its turn.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use keiro_core::{
    AppConfig, AppId, DatagramMeta, Delivery, DeliveryClass, Endpoint, EndpointConfig, Instant,
    PathConfig, PathId, PathState, PeerConfig, PeerId, PrivateKey, SocketId, TenantId, TransmitBuf,
};
use keiro_units::Bandwidth;

use crate::support::Hello;

const UPLINK: SocketId = SocketId(0);
const DELAY: Duration = Duration::from_millis(2);
const MESSAGE_BYTES: usize = 10_000;

/// Gateway 0 in the middle, the others around it; everybody has one socket.
struct Star {
    now: Instant,
    ends: Vec<Endpoint>,
    /// The middle's peers, in the order of the ends.
    peers: Vec<PeerId>,
    /// By arrival and order: to, from, bytes.
    wire: BTreeMap<(Instant, u64), (usize, usize, Vec<u8>)>,
    order: u64,
    /// Bytes of messages that each end has received.
    received: Vec<usize>,
    /// IP bytes that have left the middle.
    left_the_middle: u64,
}

fn address(end: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, end as u8 + 1], 7600))
}

fn key(end: usize) -> PrivateKey {
    PrivateKey::from_bytes([end as u8 + 1; 32])
}

fn peer(end: usize, rate: Bandwidth) -> PeerConfig {
    let mut peer = PeerConfig::new(key(end).public_key());
    peer.paths = vec![PathConfig {
        id: PathId(0),
        socket: UPLINK,
        remote: Some(address(end)),
        rate: Some(rate),
        mtu_max: 1500,
        probe_limit: None,
        terms: keiro_core::PathTerms::FREE,
    }];
    peer.apps = vec![AppConfig {
        id: AppId::of_name("A"),
        class: DeliveryClass::Message,
        latency_target: None,
        lifetime: None,
        paths: Vec::new(),
        tenant: TenantId::ZERO,
        is_spread: false,
    }];
    peer
}

impl Star {
    fn new(points: usize, rate: Bandwidth) -> Self {
        let endpoint = |end: usize| {
            let config = EndpointConfig::new(key(end));
            Endpoint::new(Instant::ZERO, config, [end as u8; 32])
        };
        let mut ends: Vec<Endpoint> = (0..=points).map(endpoint).collect();
        let mut peers = Vec::new();
        for end in 1..=points {
            peers.push(ends[0].add_peer(Instant::ZERO, peer(end, rate)));
            ends[end].add_peer(Instant::ZERO, peer(0, rate));
        }
        ends[0].set_uplink(UPLINK, Some(rate));
        let mut star = Self {
            now: Instant::ZERO,
            ends,
            peers,
            wire: BTreeMap::new(),
            order: 0,
            received: vec![0; points + 1],
            left_the_middle: 0,
        };
        star.run(Duration::from_secs(1));
        let up = |peer: &PeerId| {
            let session = star.ends[0].session(*peer).expect("the peer was added");
            session.paths[0].state == PathState::Up
        };
        assert!(star.peers.iter().all(up), "every path comes up");
        star
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let mut buf = TransmitBuf::new(10);
        loop {
            for number in 0..self.ends.len() {
                self.ends[number].handle_timeout(self.now);
                self.drain(number, &mut buf);
            }
            let timers = self.ends.iter().filter_map(Endpoint::poll_timeout);
            let arrivals = self.wire.keys().next().map(|(at, _)| *at);
            let next = timers.chain(arrivals).min().expect("keepalives never end");
            if next > end {
                self.now = end;
                return;
            }
            self.now = self.now.max(next);
            while let Some(entry) = self.wire.first_entry().filter(|e| e.key().0 <= self.now) {
                let (to, from, mut bytes) = entry.remove();
                let meta = DatagramMeta {
                    socket: UPLINK,
                    remote: address(from),
                    ecn: 0,
                    received_at: self.now,
                };
                self.ends[to].handle_datagram(self.now, meta, &mut bytes);
            }
        }
    }

    fn drain(&mut self, number: usize, buf: &mut TransmitBuf) {
        while let Some(transmit) = self.ends[number].poll_transmit(self.now, buf) {
            let Some(to) = (0..self.ends.len()).find(|end| address(*end) == transmit.remote) else {
                continue;
            };
            for datagram in buf.filled().chunks(transmit.segment_size) {
                if number == 0 {
                    self.left_the_middle += datagram.len() as u64 + 28;
                }
                self.order += 1;
                let packet = (to, number, datagram.to_vec());
                self.wire.insert((self.now + DELAY, self.order), packet);
            }
        }
        let mut finished = Vec::new();
        while let Some(delivery) = self.ends[number].poll_delivery() {
            if let Delivery::Message { peer, id, body, .. } = delivery {
                self.received[number] += body.len();
                finished.push((peer, id));
            }
        }
        for (peer, id) in finished {
            self.ends[number].finish_message(peer, id, None);
        }
        while self.ends[number].poll_event().is_some() {}
    }

    /// As [`Self::run`], while a stranger floods the middle with initiations.
    fn run_flooded(&mut self, time: Duration, per_millisecond: usize) {
        let end = self.now + time;
        let (_, initiation) = Hello::new(9, 1, 1).initiate();
        while self.now < end {
            for _ in 0..per_millisecond {
                let meta = DatagramMeta {
                    socket: UPLINK,
                    remote: SocketAddr::from(([198, 51, 100, 1], 9)),
                    ecn: 0,
                    received_at: self.now,
                };
                self.ends[0].handle_datagram(self.now, meta, &mut initiation.clone());
            }
            self.run(Duration::from_millis(1));
        }
    }

    /// A backlog for every peer.
    fn fill(&mut self, messages: usize) {
        for peer in self.peers.clone() {
            for _ in 0..messages {
                let body = vec![7; MESSAGE_BYTES];
                let sent =
                    self.ends[0].send_message(self.now, self.now, peer, AppId::of_name("A"), body);
                sent.expect("room");
            }
        }
    }
}

#[test]
fn peers_over_one_uplink_share_its_rate() {
    let rate = Bandwidth::from_mbit_per_second(20);
    let mut star = Star::new(3, rate);
    star.fill(300);
    let before = star.left_the_middle;
    star.run(Duration::from_secs(2));
    let share = (star.left_the_middle - before) as f64 * 8.0 / 2.0 / 20e6;
    assert!((0.98..1.01).contains(&share), "{share} of the rate");
    let third = star.received.iter().sum::<usize>() / 3;
    for received in &star.received[1..] {
        let off = received.abs_diff(third);
        assert!(off <= third / 50, "{:?}", star.received);
    }
}

#[test]
fn a_faster_uplink_is_used_at_once_and_an_unbounded_one_too() {
    let rate = Bandwidth::from_mbit_per_second(20);
    let mut star = Star::new(2, rate);
    star.fill(1000);
    for (uplink, mbit) in [(Some(30), 30.0), (None, 40.0), (Some(10), 10.0)] {
        let uplink = uplink.map(Bandwidth::from_mbit_per_second);
        star.ends[0].set_uplink(UPLINK, uplink);
        let before = star.left_the_middle;
        star.run(Duration::from_millis(500));
        let share = (star.left_the_middle - before) as f64 * 8.0 / 0.5 / (mbit * 1e6);
        assert!((0.97..1.02).contains(&share), "{share} of {mbit} Mbit/s");
    }
}

#[test]
fn strangers_cannot_keep_an_uplink_busy() {
    let rate = Bandwidth::from_mbit_per_second(1);
    let mut star = Star::new(1, rate);
    star.fill(1);
    let before = star.received[1];
    star.run_flooded(Duration::from_secs(1), 4);
    assert_eq!(star.received[1] - before, MESSAGE_BYTES, "within a second");
    assert!(
        star.ends[0].snapshot().stats.sent_cookies > 0,
        "there was a flood"
    );
}

#[test]
fn a_peer_that_also_sends_gets_its_turns() {
    let rate = Bandwidth::from_mbit_per_second(20);
    let mut star = Star::new(2, rate);
    star.fill(600);
    for _ in 0..300 {
        let body = vec![7; MESSAGE_BYTES];
        let (now, app) = (star.now, AppId::of_name("A"));
        let sent = star.ends[1].send_message(now, now, PeerId(0), app, body);
        sent.expect("room");
    }
    star.run(Duration::from_secs(1));
    let ratio = star.received[1] as f64 / star.received[2] as f64;
    assert!((0.97..1.03).contains(&ratio), "{:?}", star.received);
}
