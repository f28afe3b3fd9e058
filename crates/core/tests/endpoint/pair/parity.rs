//! Parity of groups of aggregates instead of copies, as a driver sees it.

use keiro_core::{AggregationConfig, AggregationMode, NewDatagram, Parity, Redundancy};

use super::{
    aggregates::{fixed_copies, over_both_paths_the_failure_of_one_costs_nothing, pair},
    *,
};

const KIND: fn(u8, u8) -> Redundancy =
    |group, packets| Redundancy::Parity(Parity::new(group, packets, None).unwrap());

fn parity(copies: u8, group: u8, packets: u8) -> AggregationConfig {
    AggregationConfig {
        redundancy: KIND(group, packets),
        ..fixed_copies(AggregationMode::Eager, copies)
    }
}

/// Independent losses, the same in every run: `percent` of all packets.
fn lost(sent: u64, percent: u64) -> bool {
    let mut mixed = sent.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 32) % 100 < percent
}

/// Share of aggregates that cannot be recovered of groups of `data` aggregates and `parity` packets
/// of which each is lost with probability `p`: the aggregate, and as many others as there is parity.
fn residual(data: u32, parity: u32, p: f64) -> f64 {
    let others = data + parity - 1;
    let choose = |n: u32, k: u32| (0..k).fold(1.0, |c, i| c * f64::from(n - i) / f64::from(i + 1));
    let exactly = |lost: u32| {
        let kept = (others - lost) as i32;
        choose(others, lost) * p.powi(lost as i32) * (1.0 - p).powi(kept)
    };
    p * (parity..=others).map(exactly).sum::<f64>()
}

/// Four standard deviations of what is lost of `count` aggregates: those of a group are lost together,
/// one more at least than there is parity.
fn tolerance(expected: f64, parity: u32, count: u32) -> f64 {
    4.0 * (expected * f64::from(parity + 1) / f64::from(count)).sqrt()
}

struct Seen {
    residual: f64,
    /// Bytes sent for each without redundancy.
    sent: f64,
    /// After the one-way delay of the path, of those that came late.
    late: Vec<Duration>,
}

/// `count` datagrams of 200 bytes, one every `interval`.
fn measure(config: &AggregationConfig, loses: fn(u64) -> bool, count: u32) -> Seen {
    let mut pair = pair(config);
    pair.loses = loses;
    let bytes = |pair: &Pair| {
        pair.ends[0].session(pair.peers[0]).unwrap().paths[1]
            .stats
            .sent_bytes
    };
    let (before, mut made) = (bytes(&pair), Vec::new());
    for number in 0..count {
        let mut data = vec![0; 200];
        data[..4].copy_from_slice(&number.to_be_bytes());
        let (end, peer) = (&mut pair.ends[0], pair.peers[0]);
        end.send_datagram(
            pair.now,
            peer,
            NewDatagram::new(AppId::of_name(APP), FlowId(1), pair.now, &data),
        )
        .unwrap();
        made.push(pair.now);
        pair.run(Duration::from_millis(1), |_| false);
    }
    pair.run(Duration::from_millis(100), |_| false);
    let arrived = pair.arrived();
    let mut once: Vec<u32> = arrived.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), arrived.len(), "none comes twice");
    let mut late: Vec<Duration> = arrived
        .iter()
        .zip(&pair.sides[1].came_at)
        .map(|(number, at)| *at - made[*number as usize] - pair.delays[1])
        .filter(|late| *late > Duration::from_micros(200))
        .collect();
    late.sort_unstable();
    // 200 bytes and what an aggregate of them takes.
    let plain = u64::from(count) * 272;
    Seen {
        residual: 1.0 - once.len() as f64 / f64::from(count),
        sent: (bytes(&pair) - before) as f64 / plain as f64,
        late,
    }
}

#[test]
fn parity_recovers_losses_at_half_the_cost_of_a_copy() {
    let mut pair = pair(&parity(2, 4, 2));
    pair.counts = [(0, 0); 2];
    pair.loses = |sent| sent % 7 == 0;
    pair.send_many(2000, Duration::from_millis(1));
    let mut arrived = pair.arrived();
    arrived.sort_unstable();
    assert_eq!(arrived, (0..2000).collect::<Vec<u32>>());
    let seen = pair.aggregation();
    assert_eq!(seen.stats.lost_aggregates, 0, "{seen:?}");
    assert!(seen.stats.sent_aggregates > 1900, "{seen:?}");
    let (sent, lost) = pair.counts[0];
    let error = seen.stats.lost_copies.abs_diff(lost);
    assert!(error * 50 < lost, "{lost} of {sent} lost, {seen:?}");
    assert!((2900..3200).contains(&sent), "{sent}");
    let session = pair.ends[1].session(pair.peers[1]).unwrap();
    let received = session.paths[1].stats;
    assert_eq!(received.received_aggregates, 2000);
    assert!(received.recovered_aggregates > 100, "{received:?}");
}

#[test]
fn loss_after_parity_is_as_computed() {
    for (percent, loses) in [
        (10, (|sent| lost(sent, 10)) as fn(u64) -> bool),
        (30, |sent| lost(sent, 30)),
    ] {
        for (copies, group, packets) in [(2, 4, 2), (3, 4, 2), (2, 8, 3)] {
            let count = 8000;
            let seen = measure(&parity(copies, group, packets), loses, count);
            let packets = u32::from(packets) * u32::from(copies - 1);
            let p = f64::from(percent) / 100.0;
            let expected = residual(group.into(), packets, p);
            let tolerance = tolerance(expected, packets, count);
            assert!(
                (seen.residual - expected).abs() < tolerance,
                "{percent} %, {group} + {packets}: {} instead of {expected} ± {tolerance}",
                seen.residual
            );
        }
    }
}

#[test]
fn one_copy_disables_parity() {
    let mut pair = pair(&parity(1, 4, 2));
    pair.counts = [(0, 0); 2];
    pair.send_many(1000, Duration::from_millis(1));
    assert_eq!(pair.arrived().len(), 1000);
    assert!(pair.counts[0].0 < 1100, "{:?}", pair.counts);
}

#[test]
fn a_lone_aggregate_leaves_at_once_and_is_protected_after_the_wait() {
    let mut pair = pair(&parity(2, 4, 2));
    for number in 0..40 {
        pair.run(Duration::from_millis(10), |_| false);
        let begun = pair.now;
        pair.send_one(number);
        let there = |pair: &Pair| pair.arrived().last() == Some(&number);
        assert!(pair.run(Duration::from_secs(1), there));
        let took = pair.now - begun;
        assert!(took < Duration::from_micros(2050), "{took:?}");
    }
    // Every packet of side 0 is lost in turn with its parity, never both.
    pair.counts = [(0, 0); 2];
    pair.loses = |sent| sent % 3 == 0;
    let late = pair.arrived().len();
    for number in 40..140 {
        pair.send_one(number);
        pair.run(Duration::from_millis(10), |_| false);
    }
    assert_eq!(pair.arrived().len() - late, 100, "{:?}", pair.counts);
}

#[test]
fn reordering_and_duplication_lose_nothing_and_repeat_nothing() {
    for copies in [2, 3] {
        let mut pair = pair(&parity(copies, 5, 2));
        pair.late = |sent| Duration::from_micros(sent * 7919 % 6000);
        pair.doubles = |sent| sent % 3 == 0;
        pair.loses = |sent| sent % 11 == 0;
        pair.send_many(3000, Duration::from_micros(700));
        let mut arrived = pair.arrived();
        arrived.sort_unstable();
        assert_eq!(arrived, (0..3000).collect::<Vec<u32>>());
        let seen = pair.aggregation();
        assert!(seen.stats.lost_aggregates < 10, "{seen:?}");
    }
}

#[test]
fn long_and_short_aggregates_share_a_group() {
    let mut pair = pair(&parity(2, 4, 2));
    pair.loses = |sent| sent % 5 == 0;
    let (mut sent, mut largest) = (Vec::new(), 0);
    for number in 0..600usize {
        // Up to what is just thin, and longer ones that pass as they are.
        let mut data = body(1 + number * 37 % 1450);
        data[0] = number as u8;
        let (end, peer) = (&mut pair.ends[0], pair.peers[0]);
        end.send_datagram(
            pair.now,
            peer,
            NewDatagram::new(AppId::of_name(APP), FlowId(1), pair.now, &data),
        )
        .unwrap();
        if data.len() <= 1380 {
            sent.push(data.clone());
            largest = largest.max(data.len());
        }
        pair.run(Duration::from_millis(2), |_| false);
    }
    pair.run(Duration::from_millis(100), |_| false);
    let mut came: Vec<Vec<u8>> = pair.sides[1]
        .datagrams
        .iter()
        .map(|(_, _, data)| data.clone())
        .filter(|data| data.len() <= 1380)
        .collect();
    came.sort_unstable();
    sent.sort_unstable();
    assert!(
        largest > 1370 && came == sent,
        "{} {}",
        came.len(),
        sent.len()
    );
}

#[test]
fn fixed_mode_fills_groups_over_several_intervals() {
    let mut config = parity(2, 4, 2);
    config.mode = AggregationMode::Fixed;
    let seen = measure(&config, |sent| lost(sent, 5), 20_000);
    let expected = residual(4, 2, 0.05);
    let error = (seen.residual - expected).abs();
    assert!(error < tolerance(expected, 2, 20_000), "{}", seen.residual);
    // Six packets for four.
    assert!((1.45..1.55).contains(&seen.sent), "{}", seen.sent);
}

#[test]
fn parity_on_another_path_survives_the_failure_of_one() {
    over_both_paths_the_failure_of_one_costs_nothing(parity(2, 1, 1));
}

#[test]
fn switching_redundancy_back_and_forth_loses_nothing() {
    let (with, without) = (parity(2, 4, 2), fixed_copies(AggregationMode::Eager, 2));
    let mut pair = pair(&with);
    for round in 0..20u32 {
        let config = if round % 2 == 0 { &without } else { &with };
        for number in 0..50 {
            pair.send_one(round * 50 + number);
            pair.run(Duration::from_micros(900), |_| false);
        }
        pair.ends[0].set_aggregation(config.clone());
    }
    pair.run(Duration::from_millis(100), |_| false);
    assert_eq!(pair.arrived(), (0..1000).collect::<Vec<u32>>());
    let seen = pair.aggregation();
    assert_eq!(seen.stats.lost_aggregates, 0, "{seen:?}");
}

#[test]
fn the_controller_decides_how_much_parity_there_is() {
    let config = AggregationConfig {
        mode: AggregationMode::Eager,
        redundancy: KIND(4, 2),
        ..AggregationConfig::default()
    };
    let mut pair = pair(&config);
    pair.send_many(8000, Duration::from_millis(1));
    assert_eq!(pair.aggregation().parameters.copies(), 1);
    pair.loses = |sent| lost(sent, 2);
    pair.send_many(2000, Duration::from_millis(1));
    let before = pair.aggregation();
    assert!(before.parameters.copies() >= 2, "{before:?}");
    pair.send_many(10_000, Duration::from_millis(1));
    let after = pair.aggregation();
    let lost = after.stats.lost_aggregates - before.stats.lost_aggregates;
    assert!(lost < 10, "one in a thousand at most: {after:?}");
}

#[test]
fn streams_arrive_whole_over_parity() {
    for loses in [(|sent| lost(sent, 10)) as fn(u64) -> bool, |sent| {
        lost(sent, 30)
    }] {
        let config = parity(2, 4, 2);
        let rate = Bandwidth::from_mbit_per_second(100);
        let mut pair = Pair::with_config(DeliveryClass::Stream, rate, |endpoint| {
            endpoint.aggregation = config.clone();
        });
        pair.up();
        pair.loses = loses;
        let (end, peer) = (&mut pair.ends[0], pair.peers[0]);
        let stream = end
            .open_stream(pair.now, peer, AppId::of_name(APP), None)
            .unwrap();
        let whole = body(100 * 300);
        for part in whole.chunks(300) {
            pair.write_all(0, stream, part);
            pair.run(Duration::from_micros(700), |_| false);
        }
        let all = |pair: &Pair| {
            let mut read = pair.sides[1].read.values();
            read.any(|read| read.0.len() == whole.len())
        };
        assert!(pair.run(Duration::from_secs(10), all));
        assert!(pair.sides[1].read.values().all(|read| read.0 == whole));
    }
}

/// Prints the table of docs/aggregation.md.
#[test]
fn parity_is_compared_with_copies() {
    let one = fixed_copies(AggregationMode::Eager, 1);
    let two = fixed_copies(AggregationMode::Eager, 2);
    let rows = [
        ("one copy", one),
        ("two copies", two),
        ("parity 4 + 1", parity(2, 4, 1)),
        ("parity 4 + 2", parity(2, 4, 2)),
        ("parity 8 + 2", parity(2, 8, 2)),
        ("parity 4 + 4 (N = 3)", parity(3, 4, 2)),
    ];
    println!("| loss | | not arrived % | sent | late % | late by, median, longest ms |");
    for (percent, loses) in [
        (1, (|sent| lost(sent, 1)) as fn(u64) -> bool),
        (5, |sent| lost(sent, 5)),
    ] {
        let mut of_copies = 0.0;
        for (name, config) in &rows {
            let count = 20_000;
            let seen = measure(config, loses, count);
            let late = seen.late.len() as f64 / f64::from(count);
            let ms = |at: usize| seen.late.get(at).map_or(0.0, |d| d.as_secs_f64() * 1e3);
            println!(
                "| {percent} % | {name} | {:.3} | {:.2} | {:.2} | {:.2}, {:.2} |",
                seen.residual * 100.0,
                seen.sent,
                late * 100.0,
                ms(seen.late.len() / 2),
                ms(seen.late.len().saturating_sub(1)),
            );
            match *name {
                "two copies" => of_copies = seen.residual,
                "parity 4 + 2" => {
                    assert!(seen.residual <= of_copies, "{}", seen.residual);
                    assert!(seen.sent < 1.75, "{}", seen.sent);
                }
                _ => {}
            }
        }
    }
}

#[test]
fn parity_of_unequal_aggregates_leaves_m_as_it_is() {
    for (copies, group, packets) in [(2, 4, 4), (2, 4, 2), (3, 4, 4)] {
        let config = parity(copies, group, packets);
        let mut pair = pair(&config);
        let sent = |pair: &Pair| {
            pair.ends[0].session(pair.peers[0]).unwrap().paths[1]
                .stats
                .sent_bytes
        };
        let (before, begun) = (sent(&pair), pair.now);
        // They do not fit together: aggregates are short and long by turns.
        for _ in 0..300 {
            for length in [60, 1330] {
                let (now, peer) = (pair.now, pair.peers[0]);
                let app = AppId::of_name(APP);
                pair.ends[0]
                    .send_datagram(
                        now,
                        peer,
                        NewDatagram::new(app, FlowId(1), now, &vec![7; length]),
                    )
                    .unwrap();
            }
        }
        let all = |pair: &Pair| pair.sides[1].datagrams.len() >= 600;
        assert!(pair.run(Duration::from_secs(5), all));
        let (bytes, took) = (sent(&pair) - before, pair.now - begun);
        // N·S/I, with S = 2048 and I = 1 ms; bursts at both ends, and acknowledgements.
        let m = f64::from(copies) * 2_048_000.0;
        let most = took.as_secs_f64() * m * 1.02 + 16_384.0;
        assert!(
            (bytes as f64) < most,
            "{copies} {group}+{packets}: {bytes} in {took:?}"
        );
    }
}
