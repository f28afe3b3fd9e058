//! Copies of aggregates on other paths: what these carry, and how copies that never left are reported.

use keiro_core::{
    AggregationConfig, AggregationMode, CopySpread, NewDatagram, Parity, PathSnapshot, Redundancy,
};

use super::{
    aggregates::{fixed_copies, pair},
    *,
};

const OTHER: &str = "other";

fn on_paths(copies: u8) -> AggregationConfig {
    AggregationConfig {
        spread: CopySpread::Paths,
        ..fixed_copies(AggregationMode::Eager, copies)
    }
}

impl Pair {
    fn change_first_path(&mut self, change: impl FnOnce(&mut PathConfig)) {
        let mut paths = paths_to(1, Bandwidth::from_mbit_per_second(100));
        change(&mut paths[0]);
        self.ends[0].set_paths(self.now, self.peers[0], &paths);
    }

    fn path(&self, path: usize) -> PathSnapshot {
        let session = self.ends[0].session(self.peers[0]).expect("peer exists");
        session.paths[path].clone()
    }

    fn send_thin(&mut self, len: usize) {
        let (now, peer, app) = (self.now, self.peers[0], AppId::of_name(APP));
        self.ends[0]
            .send_datagram(
                now,
                peer,
                NewDatagram::new(app, FlowId(1), now, &vec![7; len]),
            )
            .expect("room");
    }

    /// What leaves over the first path while thin traffic of 10 Mbit/s takes the second, in Mbit/s.
    fn mbit_over_the_first(&mut self, time: Duration) -> f64 {
        let before = self.path(0).stats.sent_bytes;
        for _ in 0..time.as_micros() / 800 {
            self.send_thin(930);
            self.run(Duration::from_micros(800), |_| false);
        }
        (self.path(0).stats.sent_bytes - before) as f64 * 8e-6 / time.as_secs_f64()
    }

    /// A message of the application that [`add_app`](Self::add_app) has added.
    fn send_over_the_first(&mut self, len: usize) {
        let (now, peer, app) = (self.now, self.peers[0], AppId::of_name(OTHER));
        let sent = self.ends[0].send_message(now, now, peer, app, body(len));
        sent.expect("room");
    }

    fn add_app(&mut self, class: DeliveryClass, path: u8) {
        for end in 0..2 {
            let app = AppConfig {
                id: AppId::of_name(OTHER),
                class,
                latency_target: None,
                lifetime: None,
                paths: vec![PathId(path)],
                tenant: TenantId::ZERO,
                is_spread: false,
            };
            self.ends[end].set_app(self.peers[end], app);
        }
    }
}

#[test]
fn a_slow_path_carries_no_more_copies_than_its_rate_has_room_for() {
    let mut pair = pair(&on_paths(2));
    pair.add_app(DeliveryClass::Message, 0);
    pair.change_first_path(|path| path.rate = Some(Bandwidth::from_mbit_per_second(2)));
    let mbit = pair.mbit_over_the_first(Duration::from_secs(5));
    assert!((0.9..1.2).contains(&mbit), "{mbit} Mbit/s");
    // What is the path's own does not wait for long: for a copy, and for a packet before it.
    let begun = pair.now;
    pair.send_over_the_first(100);
    assert!(
        pair.run(Duration::from_secs(30), |pair| pair.sides[1].messages.len()
            == 1)
    );
    let took = pair.now - begun - pair.delays[0];
    assert!(took < Duration::from_millis(12), "{took:?}");
}

#[test]
fn copies_leave_half_of_a_busy_path_to_its_own_traffic() {
    let narrow = Bandwidth::from_mbit_per_second(2);
    for uplink in [None, Some(narrow)] {
        let mut pair = pair(&on_paths(2));
        pair.add_app(DeliveryClass::Message, 0);
        match uplink {
            None => pair.change_first_path(|path| path.rate = Some(narrow)),
            rate => pair.ends[0].set_uplink(SocketId(0), rate),
        }
        for _ in 0..20 {
            pair.send_over_the_first(100_000);
        }
        let mbit = pair.mbit_over_the_first(Duration::from_secs(5));
        assert!((1.95..2.05).contains(&mbit), "{uplink:?}: {mbit} Mbit/s");
        // 5 s of 1 Mbit/s, less than the heads of packets.
        let came: usize = pair.sides[1].messages.iter().map(Vec::len).sum();
        assert!(
            (500_000..1_200_000).contains(&came),
            "{uplink:?}: {came} bytes"
        );
    }
}

#[test]
fn an_uplink_carries_no_more_copies_than_its_rate_has_room_for() {
    let mut pair = pair(&on_paths(2));
    let rate = Bandwidth::from_mbit_per_second(2);
    pair.ends[0].set_uplink(SocketId(0), Some(rate));
    let mbit = pair.mbit_over_the_first(Duration::from_secs(5));
    assert!((0.9..1.2).contains(&mbit), "{mbit} Mbit/s");
}

#[test]
fn copies_that_a_narrow_path_leaves_out_are_no_loss() {
    let parity = Parity::new(1, 1, None).expect("as much as copies");
    for redundancy in [Redundancy::Copies, Redundancy::Parity(parity)] {
        let mut pair = pair(&AggregationConfig {
            redundancy,
            ..on_paths(2)
        });
        pair.change_first_path(|path| path.mtu_max = 1280);
        for _ in 0..1000 {
            pair.send_thin(1330);
            pair.run(Duration::from_millis(1), |_| false);
        }
        pair.run(Duration::from_millis(100), |_| false);
        let seen = pair.aggregation();
        assert!(seen.stats.sent_aggregates > 900, "{seen:?}");
        assert_eq!(
            (seen.stats.lost_aggregates, seen.stats.lost_copies),
            (0, 0),
            "{seen:?}"
        );
        assert_eq!(seen.stats.unsent_copies, 1000, "{seen:?}");
    }
}

#[test]
fn delayed_copies_are_not_lost_before_they_leave() {
    let group = |packets| Redundancy::Parity(Parity::new(4, packets, None).expect("fits"));
    for (redundancy, copies, least) in [
        (Redundancy::Copies, 2, 3950),
        (Redundancy::Copies, 3, 5950),
        (group(2), 2, 2950),
    ] {
        for one_way in [Duration::from_millis(1), Duration::from_millis(40)] {
            let mut pair = pair(&AggregationConfig {
                spread: CopySpread::Spaced(Duration::from_millis(50)),
                redundancy,
                ..fixed_copies(AggregationMode::Eager, copies)
            });
            pair.delays[1] = one_way;
            pair.run(Duration::from_secs(10), |_| false);
            pair.send_many(2000, Duration::from_millis(1));
            // Copies leave and are reported in feedback.
            pair.run(Duration::from_millis(300), |_| false);
            pair.send_many(1, Duration::from_millis(1));
            let seen = pair.aggregation();
            assert!(seen.stats.sent_copies > least, "{seen:?}");
            let lost = (seen.stats.lost_aggregates, seen.stats.lost_copies);
            assert_eq!(
                lost,
                (0, 0),
                "{redundancy:?}, {copies}, {one_way:?}: {seen:?}"
            );
            // Losses are reported none the less.
            pair.counts = [(0, 0); 2];
            pair.loses = |sent| sent % 10 == 0;
            pair.send_many(2000, Duration::from_millis(1));
            let (lost, reported) = (pair.counts[0].1, pair.aggregation().stats.lost_copies);
            assert!(reported * 10 > lost * 8, "{reported} of {lost} reported");
            assert!(reported <= lost, "{reported} of {lost} reported");
        }
    }
}

#[test]
fn a_controller_sends_copies_later_for_what_the_line_loses_and_for_nothing_else() {
    for (loses, most) in [(false, 1), (true, 3)] {
        let mut pair = pair(&AggregationConfig {
            mode: AggregationMode::Eager,
            spread: CopySpread::Spaced(Duration::from_millis(50)),
            ..AggregationConfig::default()
        });
        pair.loses = match loses {
            true => |sent| sent % 20 == 0,
            false => |_| false,
        };
        pair.send_many(10_000, Duration::from_millis(1));
        let seen = pair.aggregation();
        let copies = seen.parameters.copies();
        assert!((1..=most).contains(&copies), "{seen:?}");
        assert_eq!(copies > 1, loses, "{seen:?}");
    }
}

#[test]
fn copies_of_a_removed_path_are_no_loss() {
    let mut pair = pair(&on_paths(2));
    pair.send_many(100, Duration::from_millis(1));
    // The aggregate leaves, and its copy waits when the other path is removed.
    pair.send_one(100);
    let mut buf = TransmitBuf::new(1);
    let transmit = pair.ends[0].poll_transmit(pair.now, &mut buf);
    assert_eq!(transmit.map(|transmit| transmit.socket), Some(SocketId(1)));
    let paths = paths_to(1, Bandwidth::from_mbit_per_second(100));
    pair.ends[0].set_paths(pair.now, pair.peers[0], &paths[1..]);
    let session = pair.ends[0].session(pair.peers[0]).expect("peer exists");
    let seen = session.paths[0].aggregation.as_ref().expect("it gathers");
    assert_eq!(seen.stats.unsent_copies, 1);
}

#[test]
fn bytes_of_an_aggregate_that_thousands_overtook_are_not_acknowledged_unread() {
    /// Longer than anything else that is sent meanwhile.
    const LONG: usize = 700;
    let mut pair = pair(&on_paths(2));
    pair.add_app(DeliveryClass::Stream, 1);
    // Late copies are not forgotten before they come.
    pair.delays[0] = Duration::from_millis(600);
    pair.run(Duration::from_secs(5), |_| false);
    let (now, peer) = (pair.now, pair.peers[0]);
    let stream = pair.ends[0]
        .open_stream(now, peer, AppId::of_name(OTHER), None)
        .expect("its application is known");
    pair.run(Duration::from_millis(100), |_| false);
    pair.write_all(0, stream, &body(LONG));
    pair.run(Duration::from_millis(1), |_| false);
    // What was written comes over neither path, except for a copy that is late.
    let lose = |pair: &mut Pair| {
        let is_long = |packet: &InFlight| packet.0 == 1 && packet.3.len() > LONG;
        let lost = pair.wire.extract_if(.., |_, packet| is_long(packet));
        let lost: Vec<InFlight> = lost.map(|(_, packet)| packet).collect();
        lost.into_iter().find(|packet| packet.1 == SocketId(0))
    };
    let late = lose(&mut pair).expect("a copy is on its way over the first path");
    // It is aggregates that pass, not packets of the first path.
    pair.ends[0].set_aggregation(on_paths(1));
    for number in 0..8500 {
        pair.send_one(number);
        pair.run(Duration::from_micros(200), |_| false);
        lose(&mut pair);
    }
    pair.wire.insert((pair.now, 0), late);
    for _ in 0..700 {
        pair.run(Duration::from_millis(1), |_| false);
        lose(&mut pair);
    }
    pair.run(Duration::from_secs(5), |_| false);
    let read = pair.sides[1].read.values().map(|read| read.0.len());
    assert_eq!(read.collect::<Vec<_>>(), [LONG]);
}
