//! Thin traffic gathered into aggregates, as a driver sees it.

use keiro_core::{
    AggregationConfig, AggregationMode, AggregationSnapshot, CopySpread, NewDatagram, Redundancy,
};
use keiro_model::aggregation::{Cause, ControllerKind, Limits, Settings};
use keiro_units::ByteCount;

use super::*;

pub(crate) fn fixed_copies(mode: AggregationMode, copies: u8) -> AggregationConfig {
    let settings = Settings {
        copies: vec![copies],
        copies_initial: copies,
        ..Settings::default()
    };
    AggregationConfig {
        mode,
        limits: Limits::try_from(settings).unwrap(),
        controller: ControllerKind::None,
        spread: CopySpread::BackToBack,
        redundancy: Redundancy::Copies,
    }
}

pub(crate) fn pair(config: &AggregationConfig) -> Pair {
    let rate = Bandwidth::from_mbit_per_second(100);
    let mut pair = Pair::with_config(DeliveryClass::Datagram, rate, |endpoint| {
        endpoint.aggregation = config.clone();
    });
    pair.up();
    // MTU probes and challenges are over.
    pair.run(Duration::from_secs(1), |_| false);
    pair
}

impl Pair {
    pub(crate) fn send_one(&mut self, number: u32) {
        let (end, peer) = (&mut self.ends[0], self.peers[0]);
        let data = number.to_be_bytes();
        end.send_datagram(
            self.now,
            peer,
            NewDatagram::new(AppId::of_name(APP), FlowId(1), self.now, &data),
        )
        .unwrap();
    }

    pub(crate) fn arrived(&self) -> Vec<u32> {
        let number = |data: &Vec<u8>| u32::from_be_bytes(data[..4].try_into().unwrap());
        self.sides[1]
            .datagrams
            .iter()
            .map(|d| number(&d.2))
            .collect()
    }

    pub(crate) fn aggregation(&self) -> AggregationSnapshot {
        let session = self.ends[0].session(self.peers[0]).unwrap();
        session.paths[1].aggregation.clone().expect("it gathers")
    }

    /// Sends `count` datagrams, one every `interval`.
    pub(crate) fn send_many(&mut self, count: u32, interval: Duration) {
        for number in 0..count {
            self.send_one(number);
            self.run(interval, |_| false);
        }
        self.run(Duration::from_millis(100), |_| false);
    }
}

#[test]
fn copies_recover_losses_and_deliver_once() {
    let mut pair = pair(&fixed_copies(AggregationMode::Eager, 2));
    // Never two in a row.
    pair.counts = [(0, 0); 2];
    pair.loses = |sent| sent % 7 == 0;
    pair.send_many(2000, Duration::from_millis(1));
    assert_eq!(pair.arrived(), (0..2000).collect::<Vec<u32>>());
    let seen = pair.aggregation();
    assert_eq!(seen.stats.lost_aggregates, 0);
    let (sent, lost) = pair.counts[0];
    let error = seen.stats.lost_copies.abs_diff(lost);
    assert!(error * 50 < lost, "{lost} of {sent} lost, {seen:?}");
    assert!(seen.stats.sent_aggregates > 1900, "{seen:?}");
}

#[test]
fn without_copies_line_losses_lose_datagrams() {
    let mut pair = pair(&fixed_copies(AggregationMode::Eager, 1));
    pair.loses = |sent| sent % 10 == 0;
    pair.send_many(2000, Duration::from_millis(1));
    let lost = 2000 - pair.arrived().len();
    let seen = pair.aggregation();
    assert!(lost > 100, "{lost}");
    assert!(
        seen.stats.lost_aggregates.abs_diff(lost as u64) < 10,
        "{lost} and {seen:?}"
    );
}

#[test]
fn eager_mode_adds_no_delay_on_an_idle_path_and_fixed_mode_does() {
    for (mode, least_us, most_us) in [
        (AggregationMode::Eager, 2000, 2050),
        (AggregationMode::Fixed, 2000, 3100),
    ] {
        let mut pair = pair(&fixed_copies(mode, 2));
        let mut longest = Duration::ZERO;
        for number in 0..50 {
            pair.run(
                Duration::from_micros(5000 + 137 * u64::from(number)),
                |_| false,
            );
            let begun = pair.now;
            pair.send_one(number);
            let there = |pair: &Pair| pair.arrived().last() == Some(&number);
            assert!(pair.run(Duration::from_secs(1), there));
            longest = longest.max(pair.now - begun);
        }
        let range = Duration::from_micros(least_us)..Duration::from_micros(most_us);
        assert!(range.contains(&longest), "{mode:?}: {longest:?}");
        assert!(mode == AggregationMode::Eager || longest > Duration::from_micros(2500));
    }
}

#[test]
fn a_receiver_that_overflows_gets_fewer_packets_until_it_keeps_up() {
    /// Packets that the receiver takes every 10 ms; 50 datagrams come.
    const ROOM: u64 = 12;
    let config = AggregationConfig {
        mode: AggregationMode::Eager,
        ..AggregationConfig::default()
    };
    let mut pair = pair(&config);
    let (mut number, mut overflowed) = (0, 0);
    // Sends for so long, and gives how many packets left in every 10 ms.
    let mut packets_per_10ms = |pair: &mut Pair, seconds: u64, room: u64| {
        let before = pair.counts[0].0;
        for _ in 0..100 * seconds {
            let sent = pair.counts[0].0;
            for _ in 0..50 {
                pair.send_one(number);
                number += 1;
                pair.run(Duration::from_micros(200), |_| false);
            }
            overflowed += (pair.counts[0].0 - sent).saturating_sub(room);
            pair.ends[1].set_overflows(SocketId(1), overflowed, 0);
        }
        (pair.counts[0].0 - before) / (100 * seconds)
    };
    let at_once = packets_per_10ms(&mut pair, 1, u64::MAX);
    assert!(at_once > 45, "{at_once}");
    packets_per_10ms(&mut pair, 3, ROOM);
    let relieved = packets_per_10ms(&mut pair, 1, ROOM);
    assert!(relieved <= ROOM, "{relieved}, {:?}", pair.aggregation());
    // Of patience and steps back is model's own test; here only that it ends.
    packets_per_10ms(&mut pair, 20, u64::MAX);
    let again = packets_per_10ms(&mut pair, 1, u64::MAX);
    assert!(again > 45, "{again}, {:?}", pair.aggregation());
    assert!(pair.arrived().len() as u32 >= number - 50);
}

/// Packets that leave in 10 ms while strangers send `strangers` datagrams in that time to the receiver, which
/// drops `dropped`.
fn packets_while_strangers_flood(strangers: u64, dropped: u64) -> u64 {
    let config = AggregationConfig {
        mode: AggregationMode::Eager,
        ..AggregationConfig::default()
    };
    let mut pair = pair(&config);
    let (mut number, mut overflowed) = (0, 0);
    let stranger = SocketAddr::from(([203, 0, 113, 9], 7600));
    let before = pair.counts[0].0;
    for _ in 0..300 {
        for _ in 0..50 {
            pair.send_one(number);
            number += 1;
            pair.run(Duration::from_micros(200), |_| false);
        }
        for kind in (0..strangers).map(|packet| packet as u8 % 6) {
            let meta = DatagramMeta {
                socket: SocketId(1),
                remote: stranger,
                ecn: 0,
                received_at: pair.now,
            };
            pair.ends[1].handle_datagram(pair.now, meta, &mut [kind; 164]);
        }
        overflowed += dropped;
        pair.ends[1].set_overflows(SocketId(1), overflowed, 0);
    }
    (pair.counts[0].0 - before) / 300
}

#[test]
fn overflow_caused_by_strangers_does_not_slow_the_sender() {
    // As many are dropped as are read, and many more.
    for (strangers, dropped) in [(1000, 200), (1000, 1000), (1000, 10_000)] {
        let packets = packets_while_strangers_flood(strangers, dropped);
        assert!(packets > 45, "{strangers}, {dropped}: {packets}");
    }
    let by_peer = packets_while_strangers_flood(3, 30);
    assert!(by_peer < 40, "{by_peer}");
}

#[test]
fn eager_mode_sends_s_per_interval_with_a_burst_of_s() {
    let sent = |pair: &Pair| {
        pair.ends[0].session(pair.peers[0]).unwrap().paths[1]
            .stats
            .sent_bytes
    };
    for (mode, in_an_interval) in [(AggregationMode::Eager, 2), (AggregationMode::Fixed, 1)] {
        let mut pair = pair(&fixed_copies(mode, 2));
        let before = sent(&pair);
        let begun = pair.now;
        for number in 0..3000 {
            pair.send_one(number);
        }
        let mut most_in_one = 0;
        while pair.arrived().len() < 3000 {
            let before = sent(&pair);
            pair.run(Duration::from_millis(1), |_| false);
            most_in_one = most_in_one.max(sent(&pair) - before);
            assert!(pair.now - begun < Duration::from_secs(5), "{mode:?}");
        }
        // Both copies of S, and what is acknowledged and probed.
        let most = in_an_interval * 4096 + 2 * 1500;
        assert!(most_in_one <= most, "{mode:?}: {most_in_one} bytes in 1 ms");
        let bytes = sent(&pair) - before;
        let took = pair.now - begun;
        // M = N·S/I, one burst and the acknowledgements.
        let most = took.as_secs_f64() * 4_096_000.0 * 1.02 + 8192.0;
        assert!((bytes as f64) < most, "{mode:?}: {bytes} bytes in {took:?}");
        assert!(
            bytes as f64 > most * 0.6,
            "{mode:?}: {bytes} bytes in {took:?}"
        );
    }
}

#[test]
fn fixed_mode_never_exceeds_m() {
    for (size, interval_us, copies) in [(1000, 1000, 2), (2000, 2000, 2), (4000, 2000, 1)] {
        for length in [20, 60, 200, 500] {
            let interval = Duration::from_micros(interval_us);
            let settings = Settings {
                size_min: ByteCount::new(size),
                size_initial: ByteCount::new(size),
                intervals: vec![interval],
                interval_initial: interval,
                copies: vec![copies],
                copies_initial: copies,
                ..Settings::default()
            };
            let mut config = fixed_copies(AggregationMode::Fixed, copies);
            config.limits = Limits::try_from(settings).unwrap();
            let mut pair = pair(&config);
            let sent = |pair: &Pair| {
                pair.ends[0].session(pair.peers[0]).unwrap().paths[1]
                    .stats
                    .sent_bytes
            };
            let (before, begun) = (sent(&pair), pair.now);
            let (now, peer) = (pair.now, pair.peers[0]);
            for _ in 0..800_000 / length {
                pair.ends[0]
                    .send_datagram(
                        now,
                        peer,
                        NewDatagram::new(AppId::of_name(APP), FlowId(1), now, &vec![7; length]),
                    )
                    .unwrap();
            }
            pair.run(Duration::from_millis(200), |_| false);
            let bits = 8.0 * (sent(&pair) - before) as f64 / (pair.now - begun).as_secs_f64();
            // 16 Mbit/s, and a burst and the acknowledgements.
            assert!(
                bits < 16.4e6,
                "S {size}, I {interval:?}, N {copies}, {length} bytes: {bits}"
            );
        }
    }
}

#[test]
fn every_thin_datagram_fits_into_an_aggregate() {
    for size in [512, 1000, 2048] {
        let settings = Settings {
            size_min: ByteCount::new(size),
            size_initial: ByteCount::new(size),
            size_max: ByteCount::new(size),
            ..Settings::default()
        };
        let mut config = fixed_copies(AggregationMode::Fixed, 1);
        config.limits = Limits::try_from(settings).unwrap();
        let mut pair = pair(&config);
        for length in 4..1400u32 {
            let mut data = length.to_be_bytes().to_vec();
            data.resize(length as usize, 7);
            let (now, peer) = (pair.now, pair.peers[0]);
            pair.ends[0]
                .send_datagram(
                    now,
                    peer,
                    NewDatagram::new(AppId::of_name(APP), FlowId(1), now, &data),
                )
                .unwrap();
            let mut came = |pair: &Pair| pair.arrived().last() == Some(&length);
            assert!(
                pair.run(Duration::from_millis(50), &mut came),
                "S {size}: {length} bytes"
            );
        }
    }
}

#[test]
fn messages_are_neither_aggregated_nor_copied() {
    // Packets, and the time that messages of many lengths took one after the other.
    let carried = |mode| {
        let rate = Bandwidth::from_mbit_per_second(100);
        let mut pair = Pair::with_config(DeliveryClass::Message, rate, |endpoint| {
            endpoint.aggregation = fixed_copies(mode, 2);
        });
        pair.up();
        pair.run(Duration::from_secs(1), |_| false);
        let (before, mut took) = (pair.counts[0].0, Duration::ZERO);
        for number in 0..100 {
            pair.sides[1].messages.clear();
            let begun = pair.now;
            let length = [1, 100, 600, 1200, 20_000][number % 5];
            pair.send(0, body(length)).expect("room");
            let came = |pair: &Pair| pair.sides[1].messages.len() == 1;
            assert!(pair.run(Duration::from_secs(1), came));
            took += pair.now - begun;
            pair.run(Duration::from_micros(3137), |_| false);
        }
        (pair.counts[0].0 - before, took)
    };
    let (packets, took) = carried(AggregationMode::Off);
    for mode in [AggregationMode::Eager, AggregationMode::Fixed] {
        let (more, longer) = carried(mode);
        // A clock would add half a millisecond to each, copies as many packets again.
        assert!(
            longer < took + Duration::from_millis(5),
            "{mode:?}: {longer:?}, {took:?}"
        );
        assert!(more < packets + packets / 5, "{mode:?}: {more}, {packets}");
    }
}

#[test]
fn thin_datagrams_survive_an_outage_of_their_path() {
    // Above and below what a packet of the least MTU has room for.
    for length in 1150..1240 {
        let mut pair = pair(&fixed_copies(AggregationMode::Eager, 1));
        pair.restart(DeliveryClass::Datagram);
        let data = vec![7; length];
        let came = |pair: &Pair| pair.sides[1].datagrams.iter().any(|d| d.2.len() == length);
        // The first show that the peer is another one, and are lost.
        for attempt in 0.. {
            let app = AppId::of_name(APP);
            let sent = pair.ends[0].send_datagram(
                pair.now,
                pair.peers[0],
                NewDatagram::new(app, FlowId(1), pair.now, &data),
            );
            sent.unwrap();
            if pair.run(Duration::from_millis(10), came) {
                break;
            }
            assert!(attempt < 300, "{length}");
        }
    }
}

#[test]
fn what_just_fits_leaves_though_there_is_something_to_acknowledge() {
    let settings = Settings {
        size_min: ByteCount::new(1000),
        size_initial: ByteCount::new(1000),
        size_max: ByteCount::new(1000),
        copies: vec![1],
        copies_initial: 1,
        ..Settings::default()
    };
    let mut config = fixed_copies(AggregationMode::Fixed, 1);
    config.limits = Limits::try_from(settings).unwrap();
    let mut pair = pair(&config);
    // What comes back between two ticks has gaps, and is not yet acknowledged at the next.
    pair.delays = [Duration::from_micros(20_300); 2];
    pair.loses_back_every = 3;
    let mut sent = 0;
    // Up to the longest thin one.
    for length in 895..=914 {
        for _ in 0..50 {
            for (side, length) in [(0, length), (1, 100)] {
                let (now, peer, data) = (pair.now, pair.peers[side], vec![7; length]);
                pair.ends[side]
                    .send_datagram(
                        now,
                        peer,
                        NewDatagram::new(AppId::of_name(APP), FlowId(1), now, &data),
                    )
                    .unwrap();
            }
            sent += 1;
            pair.run(Duration::from_millis(1), |_| false);
        }
        let waits = sent - pair.sides[1].datagrams.len();
        assert!(
            waits <= 25,
            "{waits} of {length} bytes wait or are on the way"
        );
    }
}

#[test]
fn datagrams_beyond_s_wait_for_the_next_interval() {
    let mut pair = pair(&fixed_copies(AggregationMode::Fixed, 2));
    let (end, peer) = (&mut pair.ends[0], pair.peers[0]);
    for number in 0..60u32 {
        let mut data = number.to_be_bytes().to_vec();
        data.resize(if number % 2 == 0 { 700 } else { 1200 }, 7);
        end.send_datagram(
            pair.now,
            peer,
            NewDatagram::new(AppId::of_name(APP), FlowId(1), pair.now, &data),
        )
        .unwrap();
    }
    let all = |pair: &Pair| pair.arrived().len() == 60;
    assert!(pair.run(Duration::from_secs(1), all));
}

#[test]
fn no_copy_leaves_in_one_batch_with_what_it_repeats() {
    let mut pair = pair(&fixed_copies(AggregationMode::Eager, 3));
    pair.batched_max = 0;
    pair.send_many(200, Duration::from_millis(1));
    assert_eq!(pair.arrived().len(), 200);
    assert_eq!(pair.batched_max, 1);
}

#[test]
fn copies_with_time_between_them_survive_a_pause_of_the_line() {
    let lost = |spread| {
        let mut config = fixed_copies(AggregationMode::Eager, 2);
        config.spread = spread;
        let mut pair = pair(&config);
        for number in 0..400 {
            // For 2 ms of every 20 nothing comes through.
            pair.down = [number % 20 >= 18; 2];
            pair.send_one(number);
            pair.run(Duration::from_millis(1), |_| false);
        }
        pair.down = [false; 2];
        pair.run(Duration::from_millis(100), |_| false);
        400 - pair.arrived().len()
    };
    assert_eq!(lost(CopySpread::BackToBack), 40);
    assert_eq!(lost(CopySpread::Spaced(Duration::from_millis(3))), 0);
}

#[test]
fn copies_with_time_between_them_say_nothing_of_the_bandwidth() {
    let line = Bandwidth::from_mbit_per_second(100);
    let measured = |spread| {
        let config = AggregationConfig {
            spread,
            ..fixed_copies(AggregationMode::Eager, 2)
        };
        let mut pair = Pair::with_config(DeliveryClass::Datagram, line, |endpoint| {
            endpoint.aggregation = config.clone();
            endpoint.probe_share = Probability::ZERO;
        });
        pair.line = Some(line);
        pair.up();
        let (peer, app) = (pair.peers[0], AppId::of_name(APP));
        for _ in 0..2000 {
            let now = pair.now;
            pair.ends[0]
                .send_datagram(now, peer, NewDatagram::new(app, FlowId(1), now, &[7; 1300]))
                .unwrap();
            pair.run(Duration::from_millis(2), |_| false);
        }
        pair.aggregation().bandwidth
    };
    let back_to_back = measured(CopySpread::BackToBack).expect("a bandwidth");
    let error = back_to_back.bandwidth().as_bits_per_second() as f64 / 1e8;
    assert!((0.95..1.05).contains(&error), "{back_to_back:?}");
    let spaced = measured(CopySpread::Spaced(Duration::from_micros(500)));
    assert_eq!(spaced, None);
}

#[test]
fn transfers_beside_it_take_no_copies_from_thin_traffic() {
    let config = AggregationConfig {
        mode: AggregationMode::Eager,
        ..AggregationConfig::default()
    };
    let rate = Bandwidth::from_mbit_per_second(20);
    let mut pair = Pair::with_config(DeliveryClass::Stream, rate, |endpoint| {
        endpoint.aggregation = config.clone();
    });
    pair.line = Some(rate);
    pair.up();
    pair.loses = |sent| sent.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 31 == 0;
    let (now, peer, app) = (pair.now, pair.peers[0], AppId::of_name(APP));
    let mut open = || pair.ends[0].open_stream(now, peer, app, None).unwrap();
    let (thin, long) = (open(), [(); 16].map(|()| open()));
    let body = body(64 << 10);
    let mut with_fewer = 0;
    for at in 0..6000 {
        let now = pair.now;
        pair.ends[0]
            .write_stream(now, peer, thin, &[7; 40])
            .unwrap();
        // As much as is taken: something always waits.
        for long in long {
            pair.ends[0].write_stream(now, peer, long, &body).unwrap();
        }
        pair.run(Duration::from_millis(1), |_| false);
        if at > 3000 && pair.aggregation().parameters.copies() < 2 {
            with_fewer += 1;
        }
    }
    assert_eq!(with_fewer, 0, "{:?}", pair.aggregation());
}

#[test]
fn copies_on_other_paths_survive_the_failure_of_one() {
    over_both_paths_the_failure_of_one_costs_nothing(fixed_copies(AggregationMode::Eager, 2));
}

pub(crate) fn over_both_paths_the_failure_of_one_costs_nothing(mut config: AggregationConfig) {
    config.spread = CopySpread::Paths;
    let mut pair = pair(&config);
    pair.send_many(50, Duration::from_millis(5));
    pair.down[1] = true;
    for number in 50..100 {
        pair.send_one(number);
        pair.run(Duration::from_millis(5), |_| false);
    }
    pair.run(Duration::from_millis(200), |_| false);
    assert_eq!(pair.arrived(), (0..100).collect::<Vec<u32>>());
}

#[test]
fn lossy_line_gets_copies_and_clean_line_does_not() {
    let config = AggregationConfig {
        mode: AggregationMode::Eager,
        ..AggregationConfig::default()
    };
    let mut pair = pair(&config);
    // As many as show that one copy would do.
    pair.send_many(8000, Duration::from_millis(1));
    let clean = pair.aggregation();
    pair.loses = |sent| sent.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 63 == 0;
    pair.send_many(6000, Duration::from_millis(1));
    let lossy = pair.aggregation();
    assert!(lossy.parameters.copies() >= 2, "{lossy:?}");
    assert_eq!(clean.parameters.copies(), 1, "{clean:?}");
    let raised = |event: &Event| match event {
        Event::AggregationChanged { decision, .. } => {
            let more = decision.parameters.copies() > decision.before.copies();
            more && matches!(decision.cause, Cause::LineLoss { .. })
        }
        _ => false,
    };
    assert!(pair.sides[0].events.iter().any(raised));
}

#[test]
fn every_path_and_direction_has_parameters_of_its_own() {
    let config = AggregationConfig {
        mode: AggregationMode::Eager,
        ..AggregationConfig::default()
    };
    let mut pair = pair(&config);
    // One way of one path.
    pair.loses_back_every = 50;
    for _ in 0..9000 {
        for side in [0, 1] {
            let (now, peer) = (pair.now, pair.peers[side]);
            pair.ends[side]
                .send_datagram(
                    now,
                    peer,
                    NewDatagram::new(AppId::of_name(APP), FlowId(1), now, &[7; 4]),
                )
                .unwrap();
        }
        pair.run(Duration::from_millis(1), |_| false);
    }
    let copies = |side: usize, path: usize| {
        let session = pair.ends[side].session(pair.peers[side]).unwrap();
        let aggregation = session.paths[path].aggregation.as_ref();
        aggregation.expect("it gathers").parameters.copies()
    };
    assert!(copies(1, 1) >= 2, "lossy: {}", copies(1, 1));
    assert_eq!(copies(0, 1), 1, "the way there");
    let initial = config.limits.initial().copies();
    assert_eq!([copies(0, 0), copies(1, 0)], [initial; 2], "the other path");
}

#[test]
fn streams_are_aggregated_too_and_transfers_are_not_copied() {
    let config = fixed_copies(AggregationMode::Eager, 2);
    let rate = Bandwidth::from_mbit_per_second(100);
    let mut pair = Pair::with_config(DeliveryClass::Stream, rate, |endpoint| {
        endpoint.aggregation = config.clone();
    });
    pair.up();
    pair.loses = |sent| sent % 9 == 0;
    let (end, peer) = (&mut pair.ends[0], pair.peers[0]);
    let stream = end
        .open_stream(pair.now, peer, AppId::of_name(APP), None)
        .unwrap();
    let long = body(2 << 20);
    pair.write_all(0, stream, &long);
    let all = |pair: &Pair| {
        pair.sides[1]
            .read
            .values()
            .any(|read| read.0.len() == long.len())
    };
    assert!(pair.run(Duration::from_secs(5), all));
    assert!(pair.sides[1].read.values().all(|read| read.0 == long));
    let session = pair.ends[0].session(pair.peers[0]).unwrap();
    let sent = session.paths[1].stats.sent_bytes as f64;
    assert!(
        sent < long.len() as f64 * 1.25,
        "{sent}: once, and one in nine again"
    );
}

/// Sends every 4 ms until `done`; how long that took.
fn sent_until(pair: &mut Pair, limit: Duration, done: impl Fn(&Pair) -> bool) -> Duration {
    let begun = pair.now;
    while !done(pair) {
        let passed = pair.now - begun;
        assert!(passed < limit, "{passed:?}: {:?}", pair.aggregation());
        pair.send_one(0);
        pair.run(Duration::from_millis(4), |_| false);
    }
    pair.now - begun
}

/// Gathers by the clock over a path of 10 Mbit/s, its line too narrow for that for a while; how long
/// after that it is gathered again, `patience` at most.
fn gathered_again_after(probe_share: Probability, patience: Duration) -> Duration {
    let config = fixed_copies(AggregationMode::Fixed, 2);
    let rate = Bandwidth::from_mbit_per_second(10);
    let mut pair = Pair::with_config(DeliveryClass::Datagram, rate, |endpoint| {
        endpoint.aggregation = config.clone();
        endpoint.probe_share = probe_share;
    });
    pair.line = Some(rate);
    pair.up();
    let happened = |pair: &Pair, of: fn(&Event) -> bool| pair.sides[0].events.iter().any(of);
    let is_paused = |event: &Event| match event {
        Event::AggregationPaused { too_narrow, .. } => {
            assert!(too_narrow.bandwidth < too_narrow.needed(), "{too_narrow}");
            true
        }
        _ => false,
    };
    let is_resumed = |event: &Event| match event {
        Event::AggregationResumed {
            bandwidth,
            parameters,
            ..
        } => {
            assert!(parameters.rate() <= *bandwidth, "{parameters}, {bandwidth}");
            true
        }
        _ => false,
    };
    let whole_line = Duration::from_secs(3);
    sent_until(&mut pair, Duration::MAX, |pair| {
        pair.now > Instant::ZERO + whole_line
    });
    assert!(!happened(&pair, is_paused));
    pair.line = Some(Bandwidth::from_bits_per_second(700_000));
    sent_until(&mut pair, Duration::from_secs(30), |pair| {
        happened(pair, is_paused)
    });
    let narrow_until = pair.now + Duration::from_secs(5);
    sent_until(&mut pair, Duration::MAX, |pair| pair.now > narrow_until);
    assert!(!happened(&pair, is_resumed));
    assert!(pair.aggregation().too_narrow.is_some());
    pair.line = Some(rate);
    let took = sent_until(&mut pair, patience, |pair| happened(pair, is_resumed));
    // It is gathered and reported in feedback.
    let sent = pair.aggregation().stats.sent_aggregates;
    let again = Duration::from_secs(5);
    sent_until(&mut pair, again, |pair| {
        pair.aggregation().stats.sent_aggregates > sent + 100
    });
    assert_eq!(pair.aggregation().too_narrow, None);
    took
}

#[test]
fn with_timers_it_is_gathered_again_when_trains_measure_room() {
    let share = Probability::new(0.005).unwrap();
    let took = gathered_again_after(share, Duration::from_secs(30));
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[test]
fn with_timers_it_is_gathered_again_when_what_was_known_has_aged_out() {
    let took = gathered_again_after(Probability::ZERO, Duration::from_secs(65));
    assert!(took > Duration::from_secs(30), "{took:?}");
}

#[test]
fn trains_are_rare_where_thin_traffic_passes() {
    let share = Probability::new(0.005).unwrap();
    let rate = Bandwidth::from_mbit_per_second(100);
    // IP bytes sent for measurement alone in ten seconds of little traffic.
    let probed = |mode: AggregationMode| {
        let mut pair = Pair::with_config(DeliveryClass::Datagram, rate, |endpoint| {
            endpoint.aggregation = fixed_copies(mode, 2);
            endpoint.probe_share = share;
        });
        pair.line = Some(rate);
        pair.up();
        let mut at = |seconds| {
            let until = Instant::ZERO + Duration::from_secs(seconds);
            sent_until(&mut pair, Duration::MAX, |pair| pair.now > until);
            let session = pair.ends[0].session(pair.peers[0]).unwrap();
            session.paths[1].stats.probe_bytes
        };
        let before = at(10);
        at(20) - before
    };
    // Of four full packets, some 0.4 s apart.
    let thin = probed(AggregationMode::Eager) / (4 * 1500);
    assert!((20..=30).contains(&thin), "{thin}");
    // Else what the share pays for, but for what fills the reserve.
    let paid = rate
        .share_floor(share)
        .bytes_in_floor(Duration::from_secs(10))
        .get();
    let other = probed(AggregationMode::Off);
    // The last train may be paid for from what was left at the beginning.
    let train = 4 * 1500;
    assert!(
        other > paid / 2 && other <= paid + train,
        "{other} of {paid}"
    );
}
