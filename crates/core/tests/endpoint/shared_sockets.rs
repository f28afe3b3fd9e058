//! Several paths over one socket: a gateway with one address and a peer with several uplinks, several addresses of
//! a peer over one uplink, and both.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use keiro_core::{
    AppConfig, AppId, DatagramMeta, Delivery, DeliveryClass, Endpoint, EndpointConfig, Event,
    Instant, PathConfig, PathId, PathSnapshot, PathState, PeerConfig, PeerId, PrivateKey, SocketId,
    TenantId, TransmitBuf,
};
use keiro_units::{Bandwidth, ByteCount};

const APP: &str = "A";
const SECOND: Duration = Duration::from_secs(1);
/// Traffic takes its second path from each side in turn, so that both directions differ.
const MESSAGES: usize = 40;

/// A path of a gateway: its socket, and the socket of the other that it leads to, if that is known.
type Leads = (u16, Option<u16>);

/// On its way to the gateway `to`.
struct PacketOnWire {
    to: usize,
    socket: SocketId,
    source: SocketAddr,
    bytes: Vec<u8>,
}

/// Two gateways, each with some sockets. Every socket of one reaches every socket of the other, unless that is
/// forbidden.
struct Net {
    now: Instant,
    ends: [Endpoint; 2],
    peers: [PeerId; 2],
    events: [Vec<Event>; 2],
    received: [usize; 2],
    /// By arrival and order.
    wire: BTreeMap<(Instant, u64), PacketOnWire>,
    order: u64,
    /// The port at which each socket of side 0 is seen: a NAT changes it.
    seen: BTreeMap<u16, u16>,
    /// All addresses of side 1 are those of its first socket, which sends from the first.
    merged: bool,
    /// Pairs of sockets (of side 0, of side 1) between which nothing passes.
    cut: BTreeSet<(u16, u16)>,
    /// Challenges and all else that side 0 has sent from a socket to another, by pair.
    sent: BTreeMap<(u16, u16), u32>,
}

fn key(end: usize) -> PrivateKey {
    PrivateKey::from_bytes([end as u8 + 1; 32])
}

/// Where a socket is, without a NAT.
fn address(end: usize, socket: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, end as u8 + 2, socket as u8 + 1], 7600))
}

fn paths(end: usize, paths: &[Leads]) -> Vec<PathConfig> {
    let path = |(id, (socket, remote)): (u8, &Leads)| PathConfig {
        id: PathId(id),
        socket: SocketId(*socket),
        remote: remote.map(|remote| address(1 - end, remote)),
        rate: Some(Bandwidth::from_mbit_per_second(100)),
        mtu_max: 1500,
        probe_limit: None,
        terms: keiro_core::PathTerms::FREE,
    };
    (0..).zip(paths).map(path).collect()
}

impl Net {
    fn new(leads: [&[Leads]; 2]) -> Self {
        let mut ends = [0, 1].map(|end| {
            let config = EndpointConfig::new(key(end));
            Endpoint::new(Instant::ZERO, config, [end as u8; 32])
        });
        let peers = [0, 1].map(|end| {
            let mut peer = PeerConfig::new(key(1 - end).public_key());
            peer.paths = paths(end, leads[end]);
            peer.apps = vec![AppConfig {
                id: AppId::of_name(APP),
                class: DeliveryClass::Message,
                latency_target: None,
                lifetime: None,
                paths: Vec::new(),
                tenant: TenantId::ZERO,
                is_spread: false,
            }];
            ends[end].add_peer(Instant::ZERO, peer)
        });
        Self {
            now: Instant::ZERO,
            ends,
            peers,
            events: Default::default(),
            received: [0; 2],
            wire: BTreeMap::new(),
            order: 0,
            seen: BTreeMap::new(),
            merged: false,
            cut: BTreeSet::new(),
            sent: BTreeMap::new(),
        }
    }

    /// The address at which the other side sees a socket.
    fn seen(&self, end: usize, socket: u16) -> SocketAddr {
        let mut seen = address(end, socket);
        if let Some(port) = self.seen.get(&socket).filter(|_| end == 0) {
            seen.set_port(*port);
        }
        seen
    }

    /// The pair of sockets, that of side 0 first.
    fn pair(from: usize, socket: u16, to: u16) -> (u16, u16) {
        match from {
            0 => (socket, to),
            _ => (to, socket),
        }
    }

    fn run(&mut self, limit: Duration, mut done: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now + limit;
        let mut buf = TransmitBuf::new(10);
        loop {
            for side in 0..2 {
                self.ends[side].handle_timeout(self.now);
                self.drain(side, &mut buf);
                self.ends[side].check_invariants();
            }
            if done(self) {
                return true;
            }
            let timers = self.ends.iter().filter_map(Endpoint::poll_timeout);
            let arrivals = self.wire.keys().next().map(|(at, _)| *at);
            let next = timers.chain(arrivals).min().expect("keepalives never end");
            if next > end {
                self.now = end;
                return false;
            }
            self.now = self.now.max(next);
            while let Some(entry) = self.wire.first_entry().filter(|e| e.key().0 <= self.now) {
                let mut packet = entry.remove();
                let meta = DatagramMeta {
                    socket: packet.socket,
                    remote: packet.source,
                    ecn: 0,
                    received_at: self.now,
                };
                self.ends[packet.to].handle_datagram(self.now, meta, &mut packet.bytes);
            }
        }
    }

    fn drain(&mut self, side: usize, buf: &mut TransmitBuf) {
        while let Some(transmit) = self.ends[side].poll_transmit(self.now, buf) {
            let from = transmit.socket.0;
            let there = (0..8).find(|socket| self.seen(1 - side, *socket) == transmit.remote);
            let Some(to) = there else { continue };
            let pair = Self::pair(side, from, to);
            if side == 0 {
                *self.sent.entry(pair).or_default() += 1;
            }
            if self.cut.contains(&pair) {
                continue;
            }
            // Every pair of sockets has another delay.
            let delay = Duration::from_millis(5 + 3 * u64::from(pair.0) + 7 * u64::from(pair.1));
            for datagram in buf.filled().chunks(transmit.segment_size) {
                self.order += 1;
                let socket = match self.merged && side == 0 {
                    true => 0,
                    false => to,
                };
                let packet = PacketOnWire {
                    to: 1 - side,
                    socket: SocketId(socket),
                    source: self.seen(side, from),
                    bytes: datagram.to_vec(),
                };
                self.wire.insert((self.now + delay, self.order), packet);
            }
        }
        let mut finished = Vec::new();
        while let Some(delivery) = self.ends[side].poll_delivery() {
            if let Delivery::Message { peer, id, .. } = delivery {
                self.received[side] += 1;
                finished.push((peer, id));
            }
        }
        for (peer, id) in finished {
            self.ends[side].finish_message(peer, id, None);
        }
        while let Some(event) = self.ends[side].poll_event() {
            self.events[side].push(event);
        }
    }

    fn paths(&self, side: usize) -> Vec<PathSnapshot> {
        self.ends[side].paths(self.peers[side])
    }

    /// The paths of a side that are up, and where they lead.
    fn up(&self, side: usize) -> Vec<(u8, SocketAddr)> {
        let paths = self.paths(side).into_iter();
        let up = paths.filter(|path| path.state == PathState::Up);
        up.filter_map(|path| Some((path.id.0, path.remote?)))
            .collect()
    }

    fn until_up(&mut self, counts: [usize; 2]) {
        let all_up = |net: &Self| [0, 1].map(|side| net.up(side).len()) == counts;
        let came = self.run(3 * SECOND, all_up);
        assert!(came, "{:?} and {:?} are up", self.up(0), self.up(1));
    }

    /// Where the peer moved to.
    fn moves(&self, side: usize) -> usize {
        let moved = |event: &&Event| matches!(event, Event::PathMoved { from: Some(_), .. });
        self.events[side].iter().filter(moved).count()
    }

    fn downs(&self, side: usize) -> usize {
        let down = |event: &&Event| matches!(event, Event::PathDown { .. });
        self.events[side].iter().filter(down).count()
    }

    /// Sends messages in both directions over each path in turn; all arrive.
    fn carry(&mut self) {
        let counts = [0, 1].map(|side| self.paths(side).len());
        let before = self.received;
        for number in 0..MESSAGES {
            for (side, count) in counts.into_iter().enumerate() {
                let peer = self.peers[side];
                let app = AppConfig {
                    id: AppId::of_name(APP),
                    class: DeliveryClass::Message,
                    latency_target: None,
                    lifetime: None,
                    paths: vec![PathId(((number + side) % count) as u8)],
                    tenant: TenantId::ZERO,
                    is_spread: false,
                };
                self.ends[side].set_app(peer, app);
                let app = AppId::of_name(APP);
                let body = vec![7; 20_000];
                let sent = self.ends[side].send_message(self.now, self.now, peer, app, body);
                sent.expect("there is room");
            }
            self.run(Duration::from_millis(50), |_| false);
        }
        let arrived =
            |net: &Self| [0, 1].map(|side| net.received[side] - before[side]) == [MESSAGES; 2];
        assert!(self.run(5 * SECOND, arrived), "{:?}", self.received);
    }

    /// All is calm: no path has gone down or followed the peer elsewhere.
    fn assert_calm(&self) {
        for side in 0..2 {
            assert_eq!(self.moves(side), 0, "{:?}", self.events[side]);
            assert_eq!(self.downs(side), 0, "{:?}", self.events[side]);
        }
    }

    /// Each side sends on every path about as much as on each other: none carries another's traffic.
    fn assert_round_trips_differ(&self, side: usize) {
        let mut times: Vec<Duration> = Vec::new();
        for path in self.paths(side) {
            let rtt = path.stats.min_rtt.expect("it is up");
            assert!(!times.contains(&rtt), "{side}: {times:?} and {rtt:?}");
            times.push(rtt);
        }
    }
}

/// Uplinks of side 0 that all lead to the one socket of side 1, which does not know where the peer is.
fn uplinks(count: u16) -> [Vec<Leads>; 2] {
    let here = (0..count).map(|socket| (socket, Some(0))).collect();
    [here, vec![(0, None); usize::from(count)]]
}

fn net(leads: &[Vec<Leads>; 2]) -> Net {
    Net::new([&leads[0], &leads[1]])
}

#[test]
fn several_uplinks_reach_one_address() {
    for count in [2, 3, 8] {
        let mut net = net(&uplinks(count));
        net.until_up([usize::from(count); 2]);
        let mut seen: Vec<SocketAddr> = net.up(1).iter().map(|(_, remote)| *remote).collect();
        seen.sort_unstable();
        let expected: Vec<SocketAddr> = (0..count).map(|socket| address(0, socket)).collect();
        assert_eq!(seen, expected, "one path for each uplink");
        net.carry();
        net.run(60 * SECOND, |_| false);
        net.assert_calm();
        net.assert_round_trips_differ(0);
        net.assert_round_trips_differ(1);
    }
}

#[test]
fn one_uplink_reaches_several_addresses() {
    for count in [2, 3] {
        let here: Vec<Leads> = (0..count).map(|to| (0, Some(to))).collect();
        for there in [None, Some(0)] {
            let there: Vec<Leads> = (0..count).map(|socket| (socket, there)).collect();
            let mut net = Net::new([&here, &there]);
            net.until_up([usize::from(count); 2]);
            net.carry();
            net.run(60 * SECOND, |_| false);
            net.assert_calm();
            net.assert_round_trips_differ(0);
            net.assert_round_trips_differ(1);
        }
    }
}

#[test]
fn every_uplink_reaches_every_address() {
    for (sockets, addresses) in [(2, 2), (3, 2), (2, 3)] {
        let all = |from: u16, to: u16, known: bool| -> Vec<Leads> {
            let to_all = |socket| (0..to).map(move |to| (socket, known.then_some(to)));
            (0..from).flat_map(to_all).collect()
        };
        for known in [false, true] {
            let leads = [
                all(sockets, addresses, true),
                all(addresses, sockets, known),
            ];
            let mut net = net(&leads);
            net.until_up([usize::from(sockets * addresses); 2]);
            net.carry();
            net.run(60 * SECOND, |_| false);
            net.assert_calm();
        }
    }
}

/// As of a gateway with a wildcard address, or behind port forwarding.
#[test]
fn metered_paths_over_one_uplink_stay_up_and_cost_little_without_data() {
    let here: Vec<Leads> = (0..3).map(|to| (0, Some(to))).collect();
    let there: Vec<Leads> = (0..3).map(|socket| (socket, None)).collect();
    let mut net = Net::new([&here, &there]);
    let mut configs = paths(0, &here);
    for config in &mut configs {
        config.probe_limit = Some(ByteCount::ZERO);
    }
    let (now, peer) = (net.now, net.peers[0]);
    net.ends[0].set_paths(now, peer, &configs);
    net.until_up([3; 2]);
    net.run(600 * SECOND, |_| false);
    let sum = |net: &Net| -> u64 {
        let paths = net.paths(0).into_iter();
        paths
            .map(|path| path.stats.sent_bytes + path.stats.received_bytes)
            .sum()
    };
    let before = sum(&net);
    net.run(6 * 3600 * SECOND, |_| false);
    let day = (sum(&net) - before) * 4;
    println!("three metered paths over one uplink: {day} bytes a day");
    assert!(day <= 10_000_000, "{day} bytes a day");
    net.assert_calm();
    for side in 0..2 {
        let limits = net.paths(side).into_iter().map(|path| path.probe_limit);
        assert!(limits.eq([Some(ByteCount::ZERO); 3]), "both ends know");
    }
    net.carry();
}

#[test]
fn addresses_of_one_socket_are_as_good_as_one_each() {
    let here: Vec<Leads> = (0..2)
        .flat_map(|socket| [(socket, Some(0)), (socket, Some(1))])
        .collect();
    let mut net = net(&[here, vec![(0, None); 2]]);
    net.merged = true;
    net.until_up([4, 2]);
    let before: Vec<_> = net.up(0);
    net.carry();
    net.run(60 * SECOND, |_| false);
    net.assert_calm();
    assert_eq!(net.up(0), before);
}

#[test]
fn uplinks_behind_nats_keep_their_paths_when_the_nats_forget() {
    let mut net = net(&uplinks(3));
    net.until_up([3; 2]);
    for (round, socket) in (0..12).map(|round| (round, round % 3)) {
        net.seen.insert(socket, 20_000 + round);
        let expected = net.seen(0, socket);
        let follows = |net: &Net| net.up(1).iter().any(|(_, remote)| *remote == expected);
        assert!(net.run(5 * SECOND, follows), "{round}: {:?}", net.up(1));
        net.until_up([3; 2]);
    }
    net.carry();
    // Each path has followed its own uplink, and no other.
    assert!(net.moves(1) <= 12, "{:?}", net.events[1]);
}

#[test]
fn a_failed_uplink_affects_no_other() {
    let mut net = net(&uplinks(2));
    net.until_up([2; 2]);
    for dead in [0, 1] {
        net.cut.insert((dead, 0));
        let left = |net: &Net| net.up(0).len() == 1 && net.up(1).len() == 1;
        assert!(net.run(2 * SECOND, left), "{:?}", net.up(1));
        assert_eq!(net.up(1)[0].1, address(0, 1 - dead));
        net.run(60 * SECOND, |_| false);
        net.cut.clear();
        net.until_up([2; 2]);
    }
    net.carry();
    assert_eq!(net.moves(1), 0, "{:?}", net.events[1]);
}

/// The one socket has fewer paths than the peer has uplinks: it stays with one that works, asks for more once, and
/// goes to another when that one dies.
#[test]
fn too_few_paths_stay_and_more_are_requested() {
    let leads = [uplinks(3)[0].clone(), vec![(0, None)]];
    let mut net = net(&leads);
    net.run(2 * SECOND, |_| false);
    assert_eq!(net.up(1).len(), 1);
    // Until one is up, it is looked for at each address that the peer comes from.
    let moves = net.moves(1);
    let wanted = |net: &Net| -> Vec<usize> {
        let paths = |event: &Event| match event {
            Event::PathsWanted { paths, .. } => Some(*paths),
            _ => None,
        };
        net.events[1].iter().filter_map(paths).collect()
    };
    net.run(60 * SECOND, |_| false);
    assert_eq!(wanted(&net), [2], "asked once");
    assert_eq!(net.moves(1), moves, "{:?}", net.events[1]);
    // It dies, and another uplink takes over.
    let served = net.up(1)[0].1;
    let socket = (0..3).find(|socket| address(0, *socket) == served);
    let socket = socket.expect("it is an uplink");
    net.cut.insert((socket, 0));
    let other = |net: &Net| net.up(1).first().is_some_and(|(_, to)| *to != served);
    assert!(net.run(2 * SECOND, other), "{:?}", net.up(1));
    net.cut.clear();
    // The driver follows: first one more, then another.
    for count in [2, 3] {
        let there = vec![(0, None); count];
        let (now, peer) = (net.now, net.peers[1]);
        net.ends[1].set_paths(now, peer, &paths(1, &there));
        let came = net.run(5 * SECOND, |net| net.up(1).len() == count);
        assert!(came, "{:?}", net.up(1));
        net.run(5 * SECOND, |_| false);
    }
    net.until_up([3; 2]);
    assert_eq!(wanted(&net).last(), Some(&3));
    net.carry();
}

/// Uplink 0 reaches address 0 only, and uplink 1 address 1 only, as where one of them is a private network.
#[test]
fn combinations_that_never_answer_are_abandoned_and_found_again() {
    let all: Vec<Leads> = vec![(0, Some(0)), (0, Some(1)), (1, Some(0)), (1, Some(1))];
    let mut net = Net::new([&all, &[(0, None), (0, None), (1, None), (1, None)]]);
    net.cut.extend([(0, 1), (1, 0)]);
    let abandoned = |net: &Net| -> Vec<u8> {
        let paths = net.paths(0).into_iter().filter(|path| path.is_abandoned);
        paths.map(|path| path.id.0).collect()
    };
    net.until_up([2; 2]);
    net.run(29 * SECOND, |_| false);
    assert_eq!(abandoned(&net), [] as [u8; 0]);
    net.run(3 * SECOND, |_| false);
    assert_eq!(abandoned(&net), [1, 2]);
    let before = net.sent.clone();
    net.run(1200 * SECOND, |_| false);
    let more = |pair| net.sent[&pair] - before[&pair];
    // Ten of these are handshakes, which leave everywhere; challenges twice a second would be 2400.
    for pair in [(0, 1), (1, 0)] {
        assert!((12..30).contains(&more(pair)), "{pair:?}: {}", more(pair));
    }
    let reports = |event: &&Event| matches!(event, Event::PathAbandoned { .. });
    assert_eq!(net.events[0].iter().filter(reports).count(), 2);
    assert_eq!(net.up(0).len(), 2);
    // The path that works goes: the other is challenged at once.
    net.cut.remove(&(0, 1));
    net.cut.insert((0, 0));
    let other = |net: &Net| net.up(0).iter().any(|(id, _)| *id == 1);
    assert!(net.run(3 * SECOND, other), "{:?}", net.up(0));
}

/// A path that worked has a fault: it is not abandoned.
#[test]
fn paths_with_a_fault_are_not_abandoned() {
    let mut net = Net::new([&[(0, Some(0)), (0, Some(1))], &[(0, None), (1, None)]]);
    net.until_up([2; 2]);
    net.cut.insert((0, 1));
    net.run(120 * SECOND, |_| false);
    assert!(net.paths(0).iter().all(|path| !path.is_abandoned));
    assert_eq!(net.up(0).len(), 1);
    // And a lone path of a socket is not, however long it is silent.
    let mut net = Net::new([&[(0, Some(0)), (1, Some(0))], &[(0, None), (0, None)]]);
    net.cut.insert((1, 0));
    net.run(120 * SECOND, |_| false);
    assert!(net.paths(0).iter().all(|path| !path.is_abandoned));
}
