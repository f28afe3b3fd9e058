//! Two endpoints joined by perfect paths: the protocol as a driver sees it.

pub(crate) mod aggregates;
mod copies;
mod datagram_age;
mod one_way;
mod parity;
mod streams;
mod terms;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use keiro_core::{
    AppConfig, AppId, DatagramMeta, Delivery, DeliveryClass, Endpoint, EndpointConfig, Event,
    FlowId, Instant, MessageOutcome, MismatchSeenBy, NewDatagram, PathConfig, PathId, PathState,
    PeerConfig, PeerId, PrivateKey, RefusalReason, SendError, SocketId, StreamId, StreamSignal,
    TenantId, TransmitBuf, UnknownCause,
};
use keiro_units::{Bandwidth, ByteCount, Probability};

/// What would wait longer before a narrow line is dropped.
const LINE_QUEUE_MAX: Duration = Duration::from_millis(100);
const APP: &str = "A";

/// What one side has to show for itself.
#[derive(Default)]
struct Side {
    messages: Vec<Vec<u8>>,
    datagrams: Vec<(FlowId, bool, Vec<u8>)>,
    /// When they came.
    came_at: Vec<Instant>,
    events: Vec<Event>,
    signals: Vec<(StreamId, StreamSignal)>,
    /// What was read of each stream, and whether its end was.
    read: BTreeMap<StreamId, (Vec<u8>, bool)>,
    /// Streams are left unread.
    stalled: BTreeSet<StreamId>,
}

/// To, socket, from, bytes.
type InFlight = (usize, SocketId, SocketAddr, Vec<u8>);

pub(crate) struct Pair {
    now: Instant,
    ends: [Endpoint; 2],
    peers: [PeerId; 2],
    sides: [Side; 2],
    /// Datagrams on the way: by arrival and order.
    wire: BTreeMap<(Instant, u64), InFlight>,
    order: u64,
    delays: [Duration; 2],
    down: [bool; 2],
    refuse: Option<RefusalReason>,
    /// Whether the datagram of this number gets lost.
    loses: fn(u64) -> bool,
    /// What this side sends on this path gets lost.
    blocked: Option<(usize, usize)>,
    /// Of the datagrams of side 1 on the second path one in this number gets lost, too; zero: none.
    loses_back_every: u64,
    /// How much later than others it comes.
    late: fn(u64) -> Duration,
    /// The ECN bits with which every datagram arrives.
    ecn: u8,
    /// Whether it comes twice.
    doubles: fn(u64) -> bool,
    /// What side 0 sends on the second path leaves no faster than this.
    line: Option<Bandwidth>,
    line_free_at: Instant,
    sent: u64,
    /// Datagrams of each side that were sent on the second path, and those that got lost.
    counts: [(u64, u64); 2],
    /// Datagrams that left at once, at most.
    batched_max: usize,
    events: u64,
    /// How long the kernel holds what arrives.
    held: Duration,
}

fn address(end: usize, path: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, end as u8 + 1], 7600 + path))
}

fn key(end: usize) -> PrivateKey {
    PrivateKey::from_bytes([end as u8 + 1; 32])
}

fn paths_to(end: usize, rate: Bandwidth) -> Vec<PathConfig> {
    (0..2u8)
        .map(|path| PathConfig {
            id: PathId(path),
            socket: SocketId(path.into()),
            remote: Some(address(end, path.into())),
            rate: Some(rate),
            mtu_max: 1500,
            probe_limit: None,
            terms: keiro_core::PathTerms::FREE,
        })
        .collect()
}

fn app_config(class: DeliveryClass) -> AppConfig {
    AppConfig {
        id: AppId::of_name(APP),
        class,
        latency_target: Some(Duration::from_millis(20)),
        lifetime: None,
        paths: vec![PathId(1)],
        tenant: TenantId::ZERO,
        is_spread: false,
    }
}

impl Pair {
    fn new(class: DeliveryClass) -> Self {
        Self::with_rate(class, Bandwidth::from_mbit_per_second(100))
    }

    fn with_rate(class: DeliveryClass, rate: Bandwidth) -> Self {
        Self::with_config(class, rate, |_| {})
    }

    fn with_config(
        class: DeliveryClass,
        rate: Bandwidth,
        configure: impl Fn(&mut EndpointConfig),
    ) -> Self {
        let mut ends = [0, 1].map(|end| {
            let mut config = EndpointConfig::new(key(end));
            config.timing.keepalive = Duration::from_millis(200);
            configure(&mut config);
            Endpoint::new(Instant::ZERO, config, [end as u8; 32])
        });
        let peers = [0, 1].map(|end| {
            let mut peer = PeerConfig::new(key(1 - end).public_key());
            peer.paths = paths_to(1 - end, rate);
            peer.apps = vec![app_config(class)];
            ends[end].add_peer(Instant::ZERO, peer)
        });
        Self {
            now: Instant::ZERO,
            ends,
            peers,
            sides: Default::default(),
            wire: BTreeMap::new(),
            order: 0,
            delays: [Duration::from_millis(20), Duration::from_millis(2)],
            down: [false; 2],
            refuse: None,
            loses: |_| false,
            blocked: None,
            loses_back_every: 0,
            late: |_| Duration::ZERO,
            ecn: 0,
            doubles: |_| false,
            line: None,
            line_free_at: Instant::ZERO,
            sent: 0,
            counts: [(0, 0); 2],
            batched_max: 0,
            events: 0,
            held: Duration::ZERO,
        }
    }

    /// Side 1 loses all that it knew.
    fn restart(&mut self, class: DeliveryClass) {
        let mut config = EndpointConfig::new(key(1));
        config.unix_time_at_zero = Duration::from_secs(1);
        let mut restarted = Endpoint::new(self.now, config, [77; 32]);
        let mut peer = PeerConfig::new(key(0).public_key());
        peer.paths = paths_to(0, Bandwidth::from_mbit_per_second(100));
        peer.apps = vec![AppConfig {
            id: AppId::of_name(APP),
            class,
            latency_target: None,
            lifetime: None,
            paths: vec![PathId(1)],
            tenant: TenantId::ZERO,
            is_spread: false,
        }];
        self.peers[1] = restarted.add_peer(self.now, peer);
        self.ends[1] = restarted;
    }

    /// Runs until `done` or until virtual time has passed `limit`.
    fn run(&mut self, limit: Duration, mut done: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now + limit;
        let mut buf = TransmitBuf::new(10);
        let mut stalled = 0;
        loop {
            for side in 0..2 {
                self.ends[side].handle_timeout(self.now);
                self.check_invariants(side);
                self.drain(side, &mut buf);
                self.check_invariants(side);
            }
            if done(self) {
                return true;
            }
            let timers = self.ends.iter().filter_map(Endpoint::poll_timeout);
            let arrivals = self.wire.keys().next().map(|(at, _)| *at);
            let next = timers.chain(arrivals).min().expect("keepalives never end");
            // What was finished after the last poll may leave at once, but only so often.
            stalled = if next > self.now || arrivals == Some(next) {
                0
            } else {
                stalled + 1
            };
            assert!(stalled < 3, "no progress at {}", self.now);
            if next > end {
                self.now = end;
                return false;
            }
            self.now = self.now.max(next);
            while let Some(entry) = self.wire.first_entry().filter(|e| e.key().0 <= self.now) {
                let (to, socket, remote, mut bytes) = entry.remove();
                let meta = DatagramMeta {
                    socket,
                    remote,
                    ecn: self.ecn,
                    received_at: Instant::from_nanos(
                        self.now.as_nanos() - self.held.as_nanos() as u64,
                    ),
                };
                self.ends[to].handle_datagram(self.now, meta, &mut bytes);
                self.check_invariants(to);
            }
        }
    }

    /// After every event of the first ones, in which all states are passed through, and then after
    /// some: a check visits all state.
    fn check_invariants(&mut self, side: usize) {
        self.events += 1;
        if self.events < 500 || self.events.is_multiple_of(61) {
            self.ends[side].check_invariants();
        }
    }

    fn drain(&mut self, side: usize, buf: &mut TransmitBuf) {
        while let Some(transmit) = self.ends[side].poll_transmit(self.now, buf) {
            let path = usize::from(transmit.socket.0);
            assert_eq!(transmit.len, buf.filled().len());
            let batched = transmit.len.div_ceil(transmit.segment_size);
            self.batched_max = self.batched_max.max(batched);
            for datagram in buf.filled().chunks(transmit.segment_size) {
                assert!(datagram.len() <= usize::from(u16::MAX) - 28);
                self.sent += 1;
                let is_back = (side, path) == (1, 1);
                let every = self.loses_back_every;
                let lost = (self.loses)(self.sent)
                    || is_back && every > 0 && self.counts[1].0.is_multiple_of(every);
                if path == 1 {
                    self.counts[side].0 += 1;
                    self.counts[side].1 += u64::from(lost);
                }
                if self.down[path] || lost || self.blocked == Some((side, path)) {
                    continue;
                }
                let leaves = match self.line {
                    Some(rate) if (side, path) == (0, 1) => {
                        let bytes = ByteCount::new(datagram.len() as u64 + 28);
                        let begins = self.line_free_at.max(self.now);
                        if begins - self.now > LINE_QUEUE_MAX {
                            continue;
                        }
                        self.line_free_at = begins + rate.transmission_time_nearest(bytes);
                        self.line_free_at
                    }
                    _ => self.now,
                };
                let at = leaves + self.delays[path] + (self.late)(self.sent);
                let from = address(side, transmit.socket.0);
                for _ in 0..1 + u64::from((self.doubles)(self.sent)) {
                    self.order += 1;
                    let packet = (1 - side, transmit.socket, from, datagram.to_vec());
                    self.wire.insert((at, self.order), packet);
                }
            }
        }
        let refuse = self.refuse;
        let mut finished = Vec::new();
        while let Some(delivery) = self.ends[side].poll_delivery() {
            match delivery {
                Delivery::Message { peer, id, body, .. } => {
                    finished.push((peer, id));
                    self.sides[side].messages.push(body);
                }
                Delivery::Datagram {
                    flow, reply, data, ..
                } => {
                    let side = &mut self.sides[side];
                    side.datagrams.push((flow, reply, data.to_vec()));
                    side.came_at.push(self.now);
                }
                Delivery::Packet { .. } => {}
                Delivery::Stream { stream, signal, .. } => {
                    self.sides[side].signals.push((stream, signal));
                }
            }
        }
        self.read_streams(side);
        for (peer, id) in finished {
            self.ends[side].finish_message(peer, id, refuse);
        }
        while let Some(event) = self.ends[side].poll_event() {
            self.sides[side].events.push(event);
        }
    }

    fn up(&mut self) {
        let all_up = |pair: &Self| {
            (0..2).all(|end| {
                let session = pair.ends[end]
                    .session(pair.peers[end])
                    .expect("peer exists");
                session.paths.iter().all(|path| path.state == PathState::Up)
            })
        };
        assert!(self.run(Duration::from_secs(2), all_up), "paths come up");
    }

    fn send(&mut self, side: usize, body: Vec<u8>) -> Result<(), SendError> {
        let app = AppId::of_name(APP);
        self.ends[side]
            .send_message(self.now, self.now, self.peers[side], app, body)
            .map(|_| ())
            .map_err(|(error, _)| error)
    }

    fn deliver_fifty(&mut self) {
        for _ in 0..50 {
            self.send(0, body(10_000)).expect("room");
        }
        let all = |pair: &Self| pair.sides[1].messages.len() == 50;
        assert!(self.run(Duration::from_secs(1), all));
    }

    fn outcomes(&self, side: usize) -> Vec<MessageOutcome> {
        let outcome = |event: &Event| match event {
            Event::MessageDone { outcome, .. } => Some(*outcome),
            _ => None,
        };
        self.sides[side].events.iter().filter_map(outcome).collect()
    }
}

/// The reported delays of messages of side 0 that take 20 ms over the first path, while their
/// outcomes come over the second, which is quicker at first.
fn reported_delays(pair: &mut Pair, count: usize) -> Vec<Duration> {
    pair.sides[0].events.clear();
    for _ in 0..count {
        pair.send(0, body(100)).expect("room");
        pair.run(Duration::from_millis(7), |_| false);
    }
    let ended = |pair: &Pair| pair.outcomes(0).len() == count;
    assert!(pair.run(Duration::from_secs(5), ended));
    let reported = |event: &Event| match event {
        Event::MessageDone { arrived_after, .. } => {
            Some(arrived_after.expect("its clock is known"))
        }
        _ => None,
    };
    pair.sides[0].events.iter().filter_map(reported).collect()
}

#[test]
fn return_delay_of_outcomes_is_no_message_delay() {
    let mut pair = Pair::new(DeliveryClass::Message);
    pair.up();
    let app = AppConfig {
        id: AppId::of_name(APP),
        class: DeliveryClass::Message,
        latency_target: Some(Duration::from_millis(20)),
        lifetime: None,
        paths: vec![PathId(0)],
        tenant: TenantId::ZERO,
        is_spread: false,
    };
    pair.ends[0].set_app(pair.peers[0], app);
    let near = |reported: &[Duration]| {
        let expected = Duration::from_millis(20);
        let off = reported.iter().map(|delay| delay.abs_diff(expected));
        off.max().expect("messages") < Duration::from_millis(1)
    };
    let reported = reported_delays(&mut pair, 50);
    assert!(near(&reported), "{reported:?}");
    pair.loses_back_every = 3;
    let reported = reported_delays(&mut pair, 200);
    assert!(near(&reported), "lost outcomes: {reported:?}");
    pair.loses_back_every = 0;
    pair.delays[1] = Duration::from_millis(70);
    let reported = reported_delays(&mut pair, 200);
    assert!(near(&reported), "a slow way back: {reported:?}");
}

fn body(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 % 251) as u8).collect()
}

#[test]
fn messages_of_every_size_arrive_whole() {
    let mut pair = Pair::new(DeliveryClass::Message);
    pair.up();
    let sizes = [1, 100, 1400, 1500, 100_000, 1_000_000, 16 << 20];
    for size in sizes {
        pair.send(0, body(size)).expect("room");
    }
    let all = |pair: &Pair| pair.outcomes(0).len() == sizes.len();
    assert!(pair.run(Duration::from_secs(10), all));
    assert!(
        pair.outcomes(0)
            .iter()
            .all(|outcome| *outcome == MessageOutcome::Delivered)
    );
    let mut got: Vec<usize> = pair.sides[1].messages.iter().map(Vec::len).collect();
    got.sort_unstable();
    assert_eq!(got, sizes);
    assert!(
        pair.sides[1]
            .messages
            .iter()
            .all(|message| *message == body(message.len()))
    );
}

#[test]
fn backlogged_path_is_paced_at_its_rate() {
    let mut pair = Pair::new(DeliveryClass::Message);
    pair.up();
    pair.run(Duration::from_secs(1), |_| false);
    let before = pair.ends[0].session(pair.peers[0]).unwrap().paths[1]
        .stats
        .sent_bytes;
    let start = pair.now;
    pair.send(0, body(10_000_000)).expect("room");
    let arrived = |pair: &Pair| pair.sides[1].messages.len() == 1;
    assert!(pair.run(Duration::from_secs(10), arrived));
    let bytes = pair.ends[0].session(pair.peers[0]).unwrap().paths[1]
        .stats
        .sent_bytes
        - before;
    let seconds = (pair.now - start - pair.delays[1]).as_secs_f64();
    let share = bytes as f64 * 8.0 / seconds / 100e6;
    assert!((0.98..1.01).contains(&share), "{share}");
}

#[test]
fn refused_message_is_reported_to_its_sender() {
    let mut pair = Pair::new(DeliveryClass::Message);
    pair.up();
    pair.refuse = Some(RefusalReason::NoReceiver);
    pair.send(0, body(10)).expect("room");
    assert!(pair.run(Duration::from_secs(1), |pair| !pair.outcomes(0).is_empty()));
    let refused = MessageOutcome::Refused(RefusalReason::NoReceiver);
    assert_eq!(pair.outcomes(0), [refused]);
}

#[test]
fn datagrams_arrive_and_long_ones_are_fragmented() {
    let mut pair = Pair::new(DeliveryClass::Datagram);
    pair.up();
    let app = AppId::of_name(APP);
    for size in [0, 1, 1400, 1500, 65_507] {
        let (now, peer) = (pair.now, pair.peers[0]);
        let sent = pair.ends[0].send_datagram(
            now,
            peer,
            NewDatagram {
                app,
                flow: FlowId(7),
                reply: true,
                made: now,
                data: &body(size),
            },
        );
        sent.expect("room");
    }
    assert!(
        pair.run(Duration::from_secs(1), |pair| pair.sides[1].datagrams.len()
            == 5)
    );
    for (flow, reply, data) in &pair.sides[1].datagrams {
        assert_eq!((*flow, *reply, data), (FlowId(7), true, &body(data.len())));
    }
}

#[test]
fn failed_path_is_noticed_and_its_messages_take_another() {
    let mut pair = Pair::new(DeliveryClass::Message);
    pair.up();
    for _ in 0..20 {
        pair.send(0, body(50_000)).expect("room");
    }
    pair.run(Duration::from_millis(10), |_| false);
    pair.down[1] = true;
    let died_at = pair.now;
    let noticed = |pair: &Pair| {
        pair.sides[0]
            .events
            .iter()
            .any(|event| matches!(event, Event::PathDown { .. }))
    };
    assert!(pair.run(Duration::from_secs(1), noticed));
    let after = pair.now - died_at;
    assert!(
        after <= Duration::from_millis(3 * 4 + 100),
        "noticed after {after:?}"
    );
    assert!(
        pair.run(Duration::from_secs(2), |pair| pair.sides[1].messages.len()
            == 20)
    );
    pair.down[1] = false;
    pair.run(Duration::from_secs(2), |_| false);
    let app = AppId::of_name(APP);
    assert_eq!(
        pair.ends[0].active_path(pair.peers[0], app),
        Some(PathId(1)),
        "comes back"
    );
}

#[test]
fn removed_peer_ends_its_messages_and_closes_at_once() {
    let mut pair = Pair::new(DeliveryClass::Message);
    pair.up();
    pair.send(0, body(1)).expect("room");
    pair.run(Duration::from_millis(1), |_| false);
    pair.send(0, body(1_000_000)).expect("room");
    let (now, peer) = (pair.now, pair.peers[0]);
    pair.ends[0].remove_peer(now, peer);
    let closed = |pair: &Pair| {
        let down = |event: &Event| {
            matches!(
                event,
                Event::PeerDown {
                    closed_by_peer: true,
                    ..
                }
            )
        };
        pair.sides[1].events.iter().any(down)
    };
    assert!(pair.run(Duration::from_secs(1), closed));
    let has_left = MessageOutcome::Unknown(UnknownCause::PeerRemoved);
    let has_not = MessageOutcome::Refused(RefusalReason::NotSent);
    assert_eq!(pair.outcomes(0), [has_left, has_not]);
}

#[test]
fn restarted_peer_is_found_again_and_messages_go_on() {
    let mut pair = Pair::new(DeliveryClass::Message);
    pair.up();
    pair.run(Duration::from_secs(1), |_| false);
    pair.restart(DeliveryClass::Message);
    pair.send(0, body(100_000)).expect("room");
    assert!(
        pair.run(Duration::from_secs(3), |pair| pair.sides[1].messages.len()
            == 1)
    );
    pair.send(1, body(100_000)).expect("room");
    assert!(
        pair.run(Duration::from_secs(3), |pair| pair.sides[0].messages.len()
            == 1)
    );
}

#[test]
fn peer_that_was_removed_and_added_again_starts_afresh() {
    let mut pair = Pair::new(DeliveryClass::Message);
    pair.up();
    pair.deliver_fifty();
    let (now, peer) = (pair.now, pair.peers[0]);
    pair.ends[0].remove_peer(now, peer);
    let mut again = PeerConfig::new(key(1).public_key());
    again.paths = paths_to(1, Bandwidth::from_mbit_per_second(100));
    again.apps = vec![AppConfig {
        id: AppId::of_name(APP),
        class: DeliveryClass::Message,
        latency_target: None,
        lifetime: None,
        paths: vec![PathId(1)],
        tenant: TenantId::ZERO,
        is_spread: false,
    }];
    pair.peers[0] = pair.ends[0].add_peer(now, again);
    pair.send(0, body(10_000)).expect("room");
    assert!(
        pair.run(Duration::from_secs(3), |pair| pair.sides[1].messages.len()
            == 51)
    );
}

#[test]
fn path_that_was_removed_and_added_again_uses_no_packet_number_twice() {
    let mut pair = Pair::new(DeliveryClass::Message);
    pair.up();
    pair.deliver_fifty();
    let all = paths_to(1, Bandwidth::from_mbit_per_second(100));
    let (now, peer) = (pair.now, pair.peers[0]);
    pair.ends[0].set_paths(now, peer, &all[..1]);
    pair.ends[0].set_paths(now, peer, &all);
    pair.up();
    pair.send(0, body(10_000)).expect("room");
    assert!(
        pair.run(Duration::from_secs(1), |pair| pair.sides[1].messages.len()
            == 51)
    );
    let drops = pair.ends[1].session(pair.peers[1]).unwrap().drops;
    assert_eq!(
        drops.replayed, 0,
        "a number used twice under one key is a nonce used twice"
    );
}

#[test]
fn messages_of_a_removed_application_still_end() {
    let mut pair = Pair::new(DeliveryClass::Message);
    pair.up();
    pair.send(0, body(1_000_000)).expect("room");
    pair.run(Duration::from_millis(10), |_| false);
    let app = AppId::of_name(APP);
    let peer = pair.peers[0];
    pair.ends[0].remove_app(peer, app);
    pair.down[1] = true;
    assert_eq!(pair.send(0, body(1)), Err(SendError::UnknownApplication));
    assert!(pair.run(Duration::from_secs(3), |pair| pair.outcomes(0).len() == 1));
    assert_eq!(pair.outcomes(0), [MessageOutcome::Delivered]);
    assert!(pair.ends[0].session(peer).unwrap().apps.is_empty());
}

/// The mismatches that each side has reported.
fn app_mismatches(pair: &Pair) -> [Vec<(AppId, DeliveryClass, MismatchSeenBy)>; 2] {
    let mismatch = |event: &Event| match event {
        Event::AppMismatch {
            app,
            class,
            seen_by,
            ..
        } => Some((*app, *class, *seen_by)),
        _ => None,
    };
    [0, 1].map(|side| {
        let events: &[Event] = &pair.sides[side].events;
        events.iter().filter_map(mismatch).collect()
    })
}

#[test]
fn both_ends_report_an_application_that_they_have_not_alike() {
    let app = AppId::of_name(APP);
    for class in [DeliveryClass::Message, DeliveryClass::Stream] {
        for other in [None, Some(DeliveryClass::Datagram)] {
            let mut pair = Pair::new(class);
            pair.up();
            let peer = pair.peers[1];
            pair.ends[1].remove_app(peer, app);
            if let Some(class) = other {
                pair.ends[1].set_app(peer, app_config(class));
            }
            for _ in 0..5 {
                match class {
                    DeliveryClass::Stream => {
                        let (now, peer) = (pair.now, pair.peers[0]);
                        let opened = pair.ends[0].open_stream(now, peer, app, None);
                        opened.expect("room");
                    }
                    _ => pair.send(0, body(100)).expect("room"),
                }
                pair.run(Duration::from_secs(1), |_| false);
            }
            let expected = [MismatchSeenBy::Peer, MismatchSeenBy::Us];
            let expected = expected.map(|seen_by| vec![(app, class, seen_by)]);
            assert_eq!(app_mismatches(&pair), expected, "{class:?} {other:?}");
        }
    }
}

#[test]
fn datagrams_of_an_application_of_another_class_are_reported_where_they_arrive() {
    let mut pair = Pair::new(DeliveryClass::Datagram);
    pair.up();
    let (app, peer) = (AppId::of_name(APP), pair.peers[1]);
    pair.ends[1].remove_app(peer, app);
    let (now, peer) = (pair.now, pair.peers[0]);
    let sent =
        pair.ends[0].send_datagram(now, peer, NewDatagram::new(app, FlowId(7), now, b"lost"));
    sent.expect("room");
    pair.run(Duration::from_secs(1), |_| false);
    let seen = (app, DeliveryClass::Datagram, MismatchSeenBy::Us);
    assert_eq!(app_mismatches(&pair), [vec![], vec![seen]]);
}

#[test]
fn slow_line_carries_full_packets_without_being_taken_for_down() {
    let mut pair = Pair::with_rate(
        DeliveryClass::Message,
        Bandwidth::from_bits_per_second(100_000),
    );
    pair.up();
    pair.send(0, body(20_000)).expect("room");
    assert!(
        pair.run(Duration::from_secs(10), |pair| pair.sides[1].messages.len()
            == 1)
    );
    let down = |event: &Event| matches!(event, Event::PathDown { .. });
    assert!(!pair.sides[0].events.iter().any(down));
}

#[test]
fn path_with_the_largest_mtu_carries_messages() {
    let mut pair = Pair::new(DeliveryClass::Message);
    for end in 0..2 {
        let mut paths = paths_to(1 - end, Bandwidth::from_mbit_per_second(10_000));
        for path in &mut paths {
            path.mtu_max = u16::MAX;
        }
        let (now, peer) = (pair.now, pair.peers[end]);
        pair.ends[end].set_paths(now, peer, &paths);
    }
    pair.up();
    pair.run(Duration::from_secs(1), |_| false);
    let mtu = pair.ends[0].session(pair.peers[0]).unwrap().paths[1]
        .stats
        .mtu_bytes;
    assert!(mtu > 65_000, "{mtu}");
    pair.send(0, body(1_000_000)).expect("room");
    assert!(
        pair.run(Duration::from_secs(1), |pair| pair.sides[1].messages.len()
            == 1)
    );
}

#[test]
fn congestion_marks_are_counted_at_both_ends() {
    let mut pair = Pair::new(DeliveryClass::Message);
    pair.up();
    pair.ecn = 3;
    pair.send(0, body(100_000)).expect("room");
    assert!(pair.run(Duration::from_secs(1), |pair| {
        pair.sides[1].messages.len() == 1
    }));
    pair.run(Duration::from_secs(1), |_| false);
    let [sender, receiver] = [0, 1].map(|end| {
        let session = pair.ends[end].session(pair.peers[end]).unwrap();
        session.paths[1].stats
    });
    assert!(receiver.received_ce_packets >= 70, "{receiver:?}");
    assert!(sender.acked_ce_packets >= 70, "{sender:?}");
    assert!(sender.acked_ce_packets <= receiver.received_ce_packets);
}
