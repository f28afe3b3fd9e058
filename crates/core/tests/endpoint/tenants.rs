//! Tenants' IP packets between gateways: shares, windows, queues, and what bad input gets.

mod common_unit;
mod delays;
mod mtu;
mod parts;
mod strangers;
mod units;
mod unknown;
mod window;

use std::{collections::BTreeMap, time::Duration};

use keiro_core::{
    AppId, DatagramMeta, Delivery, Endpoint, Event, Instant, IpPacket, NewDatagram, PacketAddress,
    PacketError, PathId, PeerId, PrefixMismatch, SocketId, TenantConfig, TenantError, TenantId,
    TenantSnapshot, TransmitBuf,
};
use keiro_model::fairness::{
    aimd::Provider,
    controller::{ControllerConfig, Weight},
};
use keiro_units::{Bandwidth, ByteCount};

use crate::support::{self, DATAGRAMS, Victim, address, endpoint, frame, peer, varint};

const ONE: TenantId = TenantId(1);
const TWO: TenantId = TenantId(2);
const MS: Duration = Duration::from_millis(1);

/// What gateway 1 sends goes through this.
#[derive(Clone, Copy)]
struct Bottleneck {
    rate: Bandwidth,
    buffer: Duration,
    delay: Duration,
}

/// Gateway 1 sends, gateway 2 receives.
struct Net {
    now: Instant,
    ends: [Endpoint; 2],
    peers: [PeerId; 2],
    wire: BTreeMap<(Instant, u64), (usize, u8, Vec<u8>)>,
    order: u64,
    bottleneck: Bottleneck,
    /// Longest IP packet that passes, either way.
    longest: usize,
    /// IP packets that arrived, with their ECN bits, if they are kept.
    kept: Option<Vec<(u8, Vec<u8>)>>,
    free_at: Instant,
    /// Bytes of IP packets that arrived, by tenant.
    arrived: BTreeMap<TenantId, u64>,
    /// Bytes of messages, streams and datagrams that arrived, by application.
    arrived_units: BTreeMap<AppId, u64>,
    marks: BTreeMap<u8, u64>,
    /// Most that a tenant had on the way beyond its window, and what the wire marks.
    over_window: u64,
    bytes_sent: BTreeMap<(usize, TenantId), u64>,
    marks_all: bool,
    /// Of the socket of gateway 2.
    overflow: strangers::Overflow,
    /// Which side reported it, for tenants that one of them does not know.
    reported: Vec<(usize, Event)>,
}

fn app() -> AppId {
    AppId::of_name(DATAGRAMS)
}

fn tenant(id: TenantId, weight: f64, controller: ControllerConfig) -> TenantConfig {
    TenantConfig {
        weight: Weight::new(weight).expect("above 0"),
        controller,
        ..TenantConfig::new(id)
    }
}

fn keiro() -> ControllerConfig {
    ControllerConfig::Keiro {
        unit: Some(Bandwidth::from_mbit_per_second(4)),
    }
}

impl Net {
    /// `rate`: of the path's pacer.
    fn new(rate: u64, bottleneck: Bottleneck) -> Self {
        let mut net = Self::begin(rate, bottleneck);
        net.run(Duration::from_secs(1), |_| {});
        assert!(net.ends[0].is_up(net.peers[0]));
        net
    }

    /// The same before anything was sent.
    fn begin(rate: u64, bottleneck: Bottleneck) -> Self {
        let mut ends = [endpoint(1), endpoint(2)];
        let peers = [0, 1].map(|side: usize| {
            let other = 2 - side as u8;
            let mut peer = peer(other, Some(address(other.into())));
            peer.paths[0].rate = Some(Bandwidth::from_mbit_per_second(rate));
            ends[side].add_peer(Instant::ZERO, peer)
        });
        Self {
            now: Instant::ZERO,
            ends,
            peers,
            wire: BTreeMap::new(),
            order: 0,
            bottleneck,
            longest: 1500,
            kept: None,
            free_at: Instant::ZERO,
            arrived: BTreeMap::new(),
            arrived_units: BTreeMap::new(),
            marks: BTreeMap::new(),
            over_window: 0,
            bytes_sent: BTreeMap::new(),
            marks_all: false,
            overflow: strangers::Overflow::default(),
            reported: Vec::new(),
        }
    }

    fn set(&mut self, config: TenantConfig) {
        for side in 0..2 {
            self.ends[side]
                .set_tenant(self.now, self.peers[side], config)
                .expect("room for tenants");
        }
    }

    fn send(&mut self, tenant: TenantId, flow: u32, len: usize) -> Result<(), PacketError> {
        self.send_with_ecn(tenant, flow, len, 0)
    }

    fn send_with_ecn(
        &mut self,
        tenant: TenantId,
        flow_hash: u32,
        len: usize,
        ecn: u8,
    ) -> Result<(), PacketError> {
        let data = vec![0x45; len];
        let packet = IpPacket {
            flow_hash,
            ecn,
            needs_order: false,
            data,
        };
        self.ends[0].send_packet(self.now, self.peers[0], tenant, app(), packet)
    }

    fn tenants(&self) -> Vec<TenantSnapshot> {
        self.ends[0].tenants(self.now, self.peers[0], None, usize::MAX)
    }

    fn snapshot(&self, id: TenantId) -> TenantSnapshot {
        let all = self.tenants();
        all.into_iter()
            .find(|tenant| tenant.id == id)
            .expect("it is configured")
    }

    /// Runs for `time`; every millisecond `each` may send something.
    fn run(&mut self, time: Duration, mut each: impl FnMut(&mut Self)) {
        let end = self.now + time;
        let mut tick = self.now;
        while self.now < end {
            if self.now >= tick {
                tick = self.now + MS;
                each(self);
            }
            for side in 0..2 {
                self.ends[side].handle_timeout(self.now);
                self.drain(side);
            }
            let timers = self.ends.iter().filter_map(Endpoint::poll_timeout).min();
            let arrival = self.wire.keys().next().map(|(at, _)| *at);
            let soonest = self.now + Duration::from_micros(1);
            let next = [timers, arrival, Some(tick), Some(end)];
            self.now = next
                .into_iter()
                .flatten()
                .min()
                .map_or(end, |at| at.max(soonest));
            while let Some(entry) = self.wire.first_entry().filter(|e| e.key().0 <= self.now) {
                let (to, ecn, mut bytes) = entry.remove();
                if to == 1 && self.overflow.drops_next() {
                    continue;
                }
                let meta = DatagramMeta {
                    socket: SocketId(0),
                    remote: address(2 - to as u16),
                    ecn,
                    received_at: self.now,
                };
                self.ends[to].handle_datagram(self.now, meta, &mut bytes);
            }
        }
    }

    fn drain(&mut self, side: usize) {
        let mut buf = TransmitBuf::new(10);
        while let Some(transmit) = self.ends[side].poll_transmit(self.now, &mut buf) {
            for datagram in buf.filled().chunks(transmit.segment_size) {
                *self.marks.entry(transmit.ecn).or_default() += 1;
                if datagram.len() + 28 > self.longest {
                    continue;
                }
                let Bottleneck {
                    rate,
                    buffer,
                    delay,
                } = self.bottleneck;
                let mut at = self.now + delay;
                if side == 0 {
                    let start = self.free_at.max(self.now);
                    if start > self.now + buffer {
                        continue;
                    }
                    let bytes = ByteCount::new(datagram.len() as u64 + 28);
                    self.free_at = start + rate.transmission_time_ceil(bytes);
                    at = self.free_at + delay;
                }
                let marked = self.marks_all && transmit.ecn != 0;
                let ecn = if marked { 3 } else { transmit.ecn };
                self.order += 1;
                self.wire
                    .insert((at, self.order), (1 - side, ecn, datagram.to_vec()));
            }
            for tenant in self.ends[side].tenants(self.now, self.peers[side], None, usize::MAX) {
                for path in tenant.paths {
                    let window = path.stats.window_bytes.unwrap_or(u64::MAX);
                    let before = self
                        .bytes_sent
                        .insert((side, tenant.id), path.stats.sent_bytes);
                    if before == Some(path.stats.sent_bytes) {
                        // A window that became smaller does not call anything back.
                        continue;
                    }
                    // A window smaller than a packet lets one go.
                    let over = path.stats.in_flight_bytes.saturating_sub(window.max(1500));
                    self.over_window = self.over_window.max(over);
                }
            }
        }
        let (mut messages, mut streams) = (Vec::new(), Vec::new());
        while let Some(delivery) = self.ends[side].poll_delivery() {
            let (app, bytes) = match delivery {
                Delivery::Packet {
                    tenant, ecn, data, ..
                } => {
                    *self.arrived.entry(tenant).or_default() += data.len() as u64;
                    *self.marks.entry(10 + ecn).or_default() += 1;
                    if let Some(kept) = &mut self.kept {
                        kept.push((ecn, data.to_vec()));
                    }
                    continue;
                }
                Delivery::Message { app, id, body, .. } => {
                    messages.push(id);
                    (app, body.len())
                }
                Delivery::Datagram { app, data, .. } => (app, data.len()),
                Delivery::Stream { app, stream, .. } => {
                    streams.push((app, stream));
                    continue;
                }
            };
            *self.arrived_units.entry(app).or_default() += bytes as u64;
        }
        for id in messages {
            self.ends[side].finish_message(self.peers[side], id, None);
        }
        for (app, stream) in streams {
            let data = self.ends[side].stream_data(self.peers[side], stream);
            let count = data.map_or(0, |(first, second, _)| first.len() + second.len());
            self.ends[side].consume_stream(self.now, self.peers[side], stream, count);
            *self.arrived_units.entry(app).or_default() += count as u64;
        }
        while let Some(event) = self.ends[side].poll_event() {
            if let Event::TenantUnknown { .. }
            | Event::TenantRefused { .. }
            | Event::PacketsRefused { .. } = event
            {
                self.reported.push((side, event));
            }
        }
    }
}

fn narrow() -> Bottleneck {
    Bottleneck {
        rate: Bandwidth::from_mbit_per_second(20),
        buffer: 20 * MS,
        delay: 10 * MS,
    }
}

/// Keeps both tenants backlogged.
fn backlog(net: &mut Net) {
    for id in [ONE, TWO] {
        while net.snapshot(id).stats.queued_bytes < 60_000 {
            net.send(id, 1, 1200).expect("accepted");
        }
    }
}

/// Has less to send than what it begins with lets go.
fn every_12_ms() -> impl FnMut(&mut Net) {
    let mut tick = 0;
    move |net| {
        tick += 1;
        if tick % 12 == 0 {
            net.send(ONE, 1, 500).expect("accepted");
        }
    }
}

fn shares(net: &mut Net, warm: u64, seconds: u64) -> f64 {
    net.run(Duration::from_secs(warm), backlog);
    net.arrived.clear();
    net.run(Duration::from_secs(seconds), backlog);
    net.arrived[&TWO] as f64 / net.arrived[&ONE] as f64
}

#[test]
fn the_paths_own_pacer_is_shared_by_weight() {
    let mut net = Net::new(10, narrow());
    net.set(tenant(ONE, 1.0, ControllerConfig::Open));
    net.set(tenant(TWO, 3.0, ControllerConfig::Open));
    let ratio = shares(&mut net, 1, 3);
    assert!((2.9..3.1).contains(&ratio), "{ratio}");
    let bits = (net.arrived[&ONE] + net.arrived[&TWO]) * 8 / 3;
    assert!(bits > 9_000_000, "{bits}");
}

#[test]
fn a_bottleneck_on_the_way_is_shared_by_weight_within_the_windows() {
    let controllers = [
        (keiro(), 2.7..3.3),
        // Additive increase takes minutes to be exact.
        (ControllerConfig::I2vfc(Provider::default()), 2.0..4.5),
    ];
    for (controller, expected) in controllers {
        let mut net = Net::new(100, narrow());
        net.set(tenant(ONE, 1.0, controller));
        net.set(tenant(TWO, 3.0, controller));
        let ratio = shares(&mut net, 15, 15);
        assert!(expected.contains(&ratio), "{}: {ratio}", controller.name());
        let bits = (net.arrived[&ONE] + net.arrived[&TWO]) * 8 / 15;
        assert!(bits > 16_000_000, "{}: {bits}", controller.name());
        assert_eq!(net.over_window, 0, "{}", controller.name());
        let paths = net.snapshot(TWO).paths;
        assert_eq!(paths.len(), 1);
        assert_eq!(paths[0].path, PathId(0));
        assert!(paths[0].stats.window_bytes.is_some() && paths[0].stats.srtt >= Some(20 * MS));
    }
}

#[test]
fn an_idle_share_is_used_by_the_other() {
    let mut net = Net::new(10, narrow());
    net.set(tenant(ONE, 1.0, ControllerConfig::Open));
    net.set(tenant(TWO, 9.0, ControllerConfig::Open));
    net.run(Duration::from_secs(2), |net| {
        while net.snapshot(ONE).stats.queued_bytes < 60_000 {
            net.send(ONE, 1, 1200).expect("accepted");
        }
    });
    let bits = net.arrived[&ONE] * 8 / 2;
    assert!(bits > 9_000_000, "{bits}");
}

#[test]
fn weights_change_while_traffic_runs() {
    let mut net = Net::new(10, narrow());
    net.set(tenant(ONE, 1.0, ControllerConfig::Open));
    net.set(tenant(TWO, 1.0, ControllerConfig::Open));
    let before = shares(&mut net, 1, 2);
    net.set(tenant(TWO, 2.0, ControllerConfig::Open));
    let after = shares(&mut net, 1, 2);
    assert!((0.95..1.05).contains(&before), "{before}");
    assert!((1.9..2.1).contains(&after), "{after}");
}

#[test]
fn late_packets_are_not_lost_to_their_tenant() {
    let mut net = Net::new(100, narrow());
    net.set(tenant(ONE, 1.0, keiro()));
    net.run(Duration::from_secs(2), every_12_ms());
    // Longer than the probe timeout nothing is heard, and then everything.
    net.bottleneck.delay = 50 * MS;
    for _ in 0..3 {
        net.send(ONE, 1, 500).expect("accepted");
    }
    net.run(Duration::from_secs(1), |_| {});
    let path = &net.snapshot(ONE).paths[0];
    assert_eq!(
        (path.stats.lost_packets, path.stats.in_flight_bytes),
        (0, 0)
    );
    assert_eq!(path.stats.acked_packets, path.stats.sent_packets);
}

#[test]
fn packets_lost_without_a_successor_are_counted_as_lost_once() {
    let mut net = Net::new(100, narrow());
    net.set(tenant(ONE, 1.0, keiro()));
    net.run(Duration::from_secs(2), every_12_ms());
    let before = net.snapshot(ONE).paths[0].clone();
    assert_eq!(before.stats.lost_packets, 0);
    // As long as a queue without room; the path stays up.
    let buffer = std::mem::take(&mut net.bottleneck.buffer);
    net.free_at = net.now + 60 * MS;
    net.run(50 * MS, every_12_ms());
    net.bottleneck.buffer = buffer;
    net.run(Duration::from_secs(1), |_| {});
    let path = &net.snapshot(ONE).paths[0];
    assert_eq!(path.stats.in_flight_bytes, 0);
    assert!(path.stats.lost_packets > 0);
    assert_eq!(
        path.stats.acked_packets + path.stats.lost_packets,
        path.stats.sent_packets
    );
}

#[test]
fn messages_have_the_weight_of_tenant_zero_and_its_window() {
    let mut net = Net::new(100, narrow());
    let window = ControllerConfig::I2vfc(Provider::default());
    net.set(tenant(TenantId::ZERO, 1.0, window));
    net.set(tenant(ONE, 1.0, ControllerConfig::Open));
    for _ in 0..20 {
        net.ends[0]
            .send_datagram(
                net.now,
                net.peers[0],
                NewDatagram::new(app(), keiro_core::FlowId(0), net.now, &[1; 60_000]),
            )
            .expect("room");
    }
    net.run(Duration::from_secs(2), |_| {});
    let zero = net.snapshot(TenantId::ZERO);
    assert!(zero.paths[0].stats.sent_bytes > 1_000_000, "{zero:?}");
    assert_eq!(zero.paths[0].stats.in_flight_bytes, 0, "all was answered");
    assert!(zero.paths[0].stats.window_bytes.is_some());
    assert_eq!(net.over_window, 0);
}

#[test]
fn removed_tenant_drops_its_packets_and_may_return() {
    let mut net = Net::new(5, narrow());
    net.set(tenant(ONE, 1.0, keiro()));
    net.set(tenant(TWO, 1.0, keiro()));
    net.run(50 * MS, backlog);
    assert!(net.snapshot(ONE).stats.queued_bytes > 0);
    let peers = net.peers;
    net.ends[0].remove_tenant(peers[0], ONE);
    assert_eq!(net.tenants().len(), 1);
    assert_eq!(net.send(ONE, 1, 100), Err(PacketError::UnknownTenant));
    net.ends[0].remove_tenant(peers[0], TWO);
    net.run(5 * MS, |_| {});
    // What is on the way of its former life counts in the next, and is answered for.
    net.set(tenant(TWO, 1.0, keiro()));
    net.set(tenant(ONE, 1.0, keiro()));
    net.run(Duration::from_secs(1), backlog);
    assert_eq!(net.over_window, 0);
    net.run(Duration::from_secs(10), |_| {});
    for id in [ONE, TWO] {
        let paths = net.snapshot(id).paths;
        assert_eq!(
            (paths[0].stats.in_flight_bytes, paths[0].stats.queued_bytes),
            (0, 0)
        );
    }
    let session = net.ends[0].session(peers[0]).expect("it exists");
    assert!(session.up);
    net.ends[0].remove_tenant(peers[0], ONE);
    net.ends[0].remove_tenant(peers[0], TWO);
    net.run(Duration::from_secs(1), |_| {});
    assert!(net.ends[0].is_drained());
}

#[test]
fn too_long_packets_are_refused_with_the_room() {
    let mut net = Net::new(100, narrow());
    net.set(tenant(ONE, 1.0, ControllerConfig::Open));
    let room = net.ends[0]
        .packet_room(net.peers[0], ONE, app())
        .expect("a path");
    assert!((1400..1472).contains(&room), "{room}");
    let refused = net.send(ONE, 1, room + 1);
    assert_eq!(
        refused,
        Err(PacketError::TooLong {
            len: room + 1,
            room
        })
    );
    net.send(ONE, 1, room).expect("it fits");
    net.run(100 * MS, |_| {});
    assert_eq!(net.arrived[&ONE], room as u64);
    assert_eq!(net.snapshot(ONE).drops.too_long, 1);
}

#[test]
fn every_datagram_has_the_ecn_bits_of_its_packets() {
    let mut net = Net::new(100, narrow());
    net.set(tenant(ONE, 1.0, ControllerConfig::Open));
    net.marks.clear();
    for ecn in [0, 2, 2, 0, 1, 3, 2] {
        net.send_with_ecn(ONE, 1, 300, ecn).expect("accepted");
    }
    net.run(100 * MS, |_| {});
    // Deliveries are counted from 10 on.
    let delivered: Vec<u64> = (10..14)
        .map(|ecn| net.marks.get(&ecn).copied().unwrap_or(0))
        .collect();
    assert_eq!(delivered, [2, 1, 3, 1]);
    net.marks_all = true;
    net.send_with_ecn(ONE, 1, 300, 2).expect("accepted");
    net.run(100 * MS, |_| {});
    assert_eq!(net.marks[&13], 2, "the mark of the way is reported");
    assert_eq!(net.snapshot(ONE).paths[0].stats.acked_ce_packets, 1);
}

#[test]
fn queues_are_bounded_and_drops_counted_by_cause() {
    let mut net = Net::new(1, narrow());
    let small = TenantConfig {
        queue_bytes_max: ByteCount::new(20_000),
        ..tenant(ONE, 1.0, ControllerConfig::Open)
    };
    net.set(small);
    for _ in 0..100 {
        net.send(ONE, 1, 1000).expect("accepted");
    }
    let snapshot = net.snapshot(ONE);
    assert!(snapshot.stats.queued_bytes <= 20_000);
    assert!(snapshot.drops.queue_full >= 80, "{:?}", snapshot.drops);
    // A flow that does not slow down meets CoDel.
    net.run(Duration::from_secs(2), |net| {
        net.send(ONE, 1, 300).expect("accepted");
    });
    assert!(net.snapshot(ONE).drops.delayed > 0);
    net.run(Duration::from_secs(1), |_| {});
    let last = net.snapshot(ONE);
    assert_eq!(last.stats.queued_bytes, 0);
    let sent = last.stats.accepted_packets - last.drops.queue_full - last.drops.delayed;
    assert!(net.arrived[&ONE] >= sent * 300);
}

#[test]
fn tenants_beyond_the_limit_are_refused_and_none_is_needed_to_change_one() {
    let mut net = Net::new(1, narrow());
    let (now, peer) = (net.now, net.peers[0]);
    let mut refused = 0;
    for id in 1..=40_960 {
        match net.ends[0].set_tenant(now, peer, TenantConfig::new(TenantId(id))) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, TenantError::TooMany { max: 4096 });
                refused += 1;
            }
        }
    }
    assert_eq!(refused, 40_960 - 4096);
    net.ends[0]
        .set_tenant(now, peer, tenant(TenantId(7), 2.0, keiro()))
        .expect("it is there already");
    let page = net.ends[0].tenants(net.now, peer, Some(TenantId(4000)), 10);
    assert_eq!((page.len(), page[0].id), (10, TenantId(4001)));
    let unknown = net.ends[0].set_tenant(now, PeerId(99), TenantConfig::new(ONE));
    assert_eq!(unknown, Err(TenantError::UnknownPeer));
}

#[test]
fn tenant_zero_and_unknown_applications_carry_no_ip_packets() {
    let mut net = Net::new(1, narrow());
    net.set(tenant(TenantId::ZERO, 1.0, ControllerConfig::Open));
    net.set(tenant(ONE, 1.0, ControllerConfig::Open));
    assert_eq!(
        net.send(TenantId::ZERO, 1, 100),
        Err(PacketError::UnknownTenant)
    );
    let packet = IpPacket {
        flow_hash: 0,
        ecn: 0,
        needs_order: false,
        data: vec![0x45; 20],
    };
    let messages = AppId::of_name(support::MESSAGES);
    let refused = net.ends[0].send_packet(net.now, net.peers[0], ONE, messages, packet);
    assert_eq!(refused, Err(PacketError::UnknownApplication));
}

#[test]
fn flows_wait_where_only_a_path_is_left_whose_budget_is_used_up() {
    let mut net = Net::new(1, narrow());
    net.set(tenant(ONE, 1.0, ControllerConfig::Open));
    let (now, peer_id) = (net.now, net.peers[0]);
    let config = peer(2, Some(address(2)));
    let mut paths = config.paths;
    paths[0].terms.is_spent = true;
    net.ends[0].set_paths(now, peer_id, &paths);
    let spread = config.apps.into_iter().find(|of| of.id == app());
    let mut spread = spread.expect("an application of datagrams");
    spread.is_spread = true;
    for (paths, expected) in [
        (vec![], Err(PacketError::NoPath)),
        (vec![PathId(0)], Ok(())),
    ] {
        spread.paths = paths;
        net.ends[0].set_app(peer_id, spread.clone());
        assert_eq!(net.send(ONE, 1, 100), expected);
    }
}

fn packet_frame(kind: u64, tenant: u64, data: &[u8]) -> Vec<u8> {
    frame(kind, &[&varint(tenant), &varint(data.len() as u64), data])
}

#[test]
fn packets_of_unknown_tenants_are_counted_and_dropped() {
    let mut victim = Victim::new();
    victim
        .end
        .set_tenant(victim.now, victim.peer, TenantConfig::new(ONE))
        .expect("room");
    let mut frames = packet_frame(0x12, 1, b"known");
    frames.extend(packet_frame(0x13, 1, b"marked"));
    frames.extend(packet_frame(0x12, 2, b"unknown"));
    frames.extend(packet_frame(0x12, u64::from(u32::MAX), b"unknown"));
    frames.extend(packet_frame(0x12, 0, b"strange!"));
    victim.inject(&frames);
    let output = victim.hear();
    let expected = vec![(ONE, 0, b"known".to_vec()), (ONE, 3, b"marked".to_vec())];
    assert_eq!(output.ip_packets, expected);
    assert_eq!(victim.drops(), [("unknown_tenant", 3)]);
    victim.assert_alive();
}

#[test]
fn impossible_packet_frames_are_malformed() {
    for frames in [
        packet_frame(0x12, 1 << 32, b"too large a tenant"),
        frame(0x12, &[&varint(1), &varint(50), b"shorter than it says"]),
        frame(0x13, &[&varint(1)]),
        frame(0x12, &[&varint(1), &varint(1 << 40), b"x"]),
    ] {
        let mut victim = Victim::new();
        victim.inject(&frames);
        assert!(victim.hear().ip_packets.is_empty());
        assert_eq!(victim.drops(), [("malformed", 1)]);
        victim.assert_alive();
    }
}

/// Ten full packets take 6 ms at the bottleneck, and 10 ms from there.
#[test]
fn a_short_flow_on_an_idle_line_is_over_in_little_more_than_a_round_trip() {
    let mut net = Net::new(100, narrow());
    net.set(tenant(ONE, 1.0, keiro()));
    net.send(ONE, 1, 100).expect("accepted");
    for rest in [2, 1, 60] {
        net.run(Duration::from_secs(rest), |_| {});
        net.arrived.clear();
        for _ in 0..10 {
            net.send(ONE, 1, 1400).expect("accepted");
        }
        net.run(35 * MS, |_| {});
        assert_eq!(net.arrived[&ONE], 14_000, "after {rest} s");
    }
    assert_eq!(net.over_window, 0);
}

#[test]
fn the_rate_of_a_tenant_that_has_become_idle_falls_to_zero() {
    let mut net = Net::new(100, narrow());
    net.set(tenant(ONE, 1.0, keiro()));
    net.set(tenant(TWO, 1.0, keiro()));
    net.run(Duration::from_secs(3), backlog);
    assert!(net.snapshot(ONE).paths[0].stats.acked_rate > Bandwidth::from_mbit_per_second(5));
    net.run(Duration::from_secs(4), |_| {});
    assert_eq!(net.snapshot(ONE).paths[0].stats.acked_rate, Bandwidth::ZERO);
}
