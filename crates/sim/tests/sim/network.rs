//! The network: packets take the time of their links, runs are repeatable, and a livelock is detected.

use std::{net::SocketAddr, time::Duration};

use keiro_link::{Buffer, LinkConfig, Loss, Reorder};
use keiro_sim::{
    Direction, Interface, LinkId, LinkSpec, Network, Never, Node, NodeId, Outbox, Packet, Stop,
};
use keiro_units::{Bandwidth, Instant, Probability};
use proptest::prelude::*;

const SECOND: Instant = Instant::from_nanos(1_000_000_000);

/// Sends numbered packets at equal intervals, answers none, and records what it receives.
#[derive(Debug, Default)]
struct Peer {
    to: Option<SocketAddr>,
    interval: Duration,
    left: u32,
    next: Instant,
    payload: usize,
    got: Vec<(Instant, Vec<u8>)>,
    answers: bool,
    /// A node whose timer is always due.
    restless: bool,
}

impl Node for Peer {
    fn handle_packet(
        &mut self,
        now: Instant,
        interface: usize,
        packet: &mut Packet,
        out: &mut Outbox<'_>,
    ) {
        self.got.push((now, packet.payload.clone()));
        if self.answers {
            out.send(interface, packet.source, packet.ecn, &packet.payload);
        }
    }

    fn handle_timeout(&mut self, _: Instant, out: &mut Outbox<'_>) {
        if self.restless {
            return;
        }
        let Some(to) = self.to else { return };
        let mut payload = vec![0; self.payload];
        payload[..4].copy_from_slice(&self.left.to_be_bytes());
        self.left -= 1;
        self.next += self.interval;
        out.send(0, to, 0, &payload);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        if self.restless {
            return Some(Instant::ZERO);
        }
        (self.left > 0).then_some(self.next)
    }
}

fn address(host: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host], 1000))
}

fn sender(count: u32, interval: Duration, payload: usize) -> Peer {
    Peer {
        to: Some(address(2)),
        interval,
        left: count,
        payload,
        ..Peer::default()
    }
}

struct Setting {
    network: Network<Peer>,
    ends: [(NodeId, usize); 2],
    link: LinkId,
}

fn two_hosts(a: Peer, b: Peer, link: LinkSpec, seed: u64) -> Setting {
    let mut network = Network::new(seed);
    let ends = [(a, 1), (b, 2)].map(|(peer, host)| {
        let node = network.add_node(peer);
        let interface = network.add_interface(node, Interface::Host(address(host)));
        (node, interface)
    });
    let link = network.connect(ends[0], ends[1], link);
    Setting {
        network,
        ends,
        link,
    }
}

fn rate_and_delay() -> LinkConfig {
    LinkConfig {
        rate: Some(Bandwidth::from_mbit_per_second(8)),
        delay: Duration::from_millis(10),
        ..LinkConfig::default()
    }
}

#[test]
fn packet_takes_its_transmission_and_propagation_time_in_ip_bytes() {
    let link = LinkSpec::symmetric(rate_and_delay());
    // 972 + 28 bytes of headers are 1 ms at 8 Mbit/s; then back over the same link.
    let answering = Peer {
        answers: true,
        ..Peer::default()
    };
    let mut s = two_hosts(sender(1, Duration::ZERO, 972), answering, link, 1);
    assert_eq!(s.network.run(SECOND, &mut Never), Stop::Idle);
    let there = s.network.node(s.ends[1].0).got[0].0;
    let back = s.network.node(s.ends[0].0).got[0].0;
    assert_eq!(there.as_nanos(), 11_000_000);
    assert_eq!(back.as_nanos(), 22_000_000);
    assert_eq!(s.network.now(), SECOND);
    assert_eq!(s.network.packets_under_way(), 0);
}

#[test]
fn packets_wait_for_each_other_and_a_full_buffer_drops() {
    let config = LinkConfig {
        buffer: Buffer::Packets(4),
        ..rate_and_delay()
    };
    let mut s = two_hosts(
        sender(10, Duration::from_nanos(1), 972),
        Peer::default(),
        LinkSpec::symmetric(config),
        1,
    );
    let _ = s.network.run(SECOND, &mut Never);
    let got = &s.network.node(s.ends[1].0).got;
    assert_eq!(got.len(), 5, "one in service and four that wait");
    for pair in got.windows(2) {
        assert_eq!(pair[1].0 - pair[0].0, Duration::from_millis(1));
    }
    let counters = s.network.link_counters(s.link, Direction::Forward);
    assert_eq!(counters.drops.buffer, 5);
}

#[test]
fn packets_above_the_mtu_and_to_addresses_left_behind_vanish() {
    let link = LinkSpec {
        mtu: 1000,
        ..LinkSpec::symmetric(rate_and_delay())
    };
    let ms = Duration::from_millis(1);
    let mut s = two_hosts(sender(1, ms, 973), Peer::default(), link, 1);
    let _ = s.network.run(SECOND, &mut Never);
    assert_eq!(s.network.counts().too_long, 1);

    let mut s = two_hosts(sender(20, 5 * ms, 972), Peer::default(), link, 1);
    let _ = s.network.run(Instant::ZERO + 50 * ms, &mut Never);
    let (node, interface) = s.ends[1];
    s.network
        .set_interface(node, interface, Interface::Host(address(9)));
    let _ = s.network.run(SECOND, &mut Never);
    let got = s.network.node(node).got.len() as u64;
    assert!(got > 0);
    assert_eq!(s.network.counts().misaddressed, 20 - got);
}

#[test]
fn a_cut_destroys_packets_in_flight_and_a_restored_link_carries_again() {
    let ms = Duration::from_millis(1);
    let config = rate_and_delay();
    let mut s = two_hosts(
        sender(20, 5 * ms, 100),
        Peer::default(),
        LinkSpec::symmetric(config),
        1,
    );
    let down = LinkConfig {
        down: true,
        ..config
    };
    let _ = s.network.run(Instant::ZERO + 27 * ms, &mut Never);
    s.network.set_link(s.link, Direction::Forward, down);
    assert_eq!(s.network.packets_under_way(), 0);
    let _ = s.network.run(Instant::ZERO + 52 * ms, &mut Never);
    s.network.set_link(s.link, Direction::Forward, config);
    let _ = s.network.run(SECOND, &mut Never);
    // Sent at 0, 5, …, 95 ms. Those of 20 and 25 ms are lost in flight, those of 30 to 50 ms at the link.
    let got = s.network.node(s.ends[1].0).got.len();
    assert_eq!(got, 20 - 7);
}

#[test]
fn duplicates_arrive_twice_and_corruption_changes_one_bit() {
    let config = LinkConfig {
        duplicate: Probability::ONE,
        corrupt: Probability::ONE,
        ..rate_and_delay()
    };
    let interval = Duration::from_millis(5);
    let mut s = two_hosts(
        sender(3, interval, 100),
        Peer::default(),
        LinkSpec::symmetric(config),
        7,
    );
    let _ = s.network.run(SECOND, &mut Never);
    let got = &s.network.node(s.ends[1].0).got;
    assert_eq!(got.len(), 6);
    for (copies, left) in got.chunks(2).zip([3_u32, 2, 1]) {
        assert_eq!(copies[0], copies[1]);
        let mut sent = [0; 100];
        sent[..4].copy_from_slice(&left.to_be_bytes());
        let flipped: u32 = sent
            .iter()
            .zip(&copies[0].1)
            .map(|(a, b)| (a ^ b).count_ones())
            .sum();
        assert_eq!(flipped, 1);
    }
}

#[test]
fn a_livelock_is_detected() {
    let restless = Peer {
        restless: true,
        ..Peer::default()
    };
    let link = LinkSpec::symmetric(LinkConfig::default());
    let mut s = two_hosts(restless, Peer::default(), link, 1);
    assert_eq!(s.network.run(SECOND, &mut Never), Stop::Livelock);
}

#[test]
fn endless_packets_over_a_link_without_delay_are_a_livelock() {
    let answering = || Peer {
        answers: true,
        ..sender(1, Duration::ZERO, 10)
    };
    let quiet = Peer {
        answers: true,
        ..Peer::default()
    };
    let link = LinkSpec::symmetric(LinkConfig::default());
    let mut s = two_hosts(answering(), quiet, link, 1);
    assert_eq!(s.network.run(SECOND, &mut Never), Stop::Livelock);
}

#[test]
fn goal_ends_the_run_at_its_instant() {
    let interval = Duration::from_millis(20);
    let link = LinkSpec::symmetric(rate_and_delay());
    let mut s = two_hosts(sender(20, interval, 972), Peer::default(), link, 1);
    let mut three = |_: Instant, nodes: &[Peer]| nodes[1].got.len() == 3;
    assert_eq!(s.network.run(SECOND, &mut three), Stop::Goal);
    assert_eq!(s.network.now().as_nanos(), 51_000_000);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Under any faults of links: the same seed gives the same trace, and no packet leaks.
    #[test]
    fn same_seed_same_trace(
        seed in any::<u64>(),
        loss in 0.0..0.5_f64,
        duplicate in 0.0..0.5_f64,
        corrupt in 0.0..0.5_f64,
        reorder in 0.0..0.5_f64,
        jitter_us in 0..5000_u64,
        count in 1..200_u32,
    ) {
        let config = LinkConfig {
            loss: Loss::Bernoulli(Probability::new(loss).unwrap()),
            duplicate: Probability::new(duplicate).unwrap(),
            corrupt: Probability::new(corrupt).unwrap(),
            reorder: Reorder {
                probability: Probability::new(reorder).unwrap(),
                extra_delay: Duration::from_millis(3),
            },
            jitter: Duration::from_micros(jitter_us),
            jitter_overtakes: true,
            ..rate_and_delay()
        };
        let run = |seed| {
            let answering = Peer { answers: true, ..Peer::default() };
            let interval = Duration::from_micros(700);
            let link = LinkSpec::symmetric(config);
            let mut s = two_hosts(sender(count, interval, 200), answering, link, seed);
            let _ = s.network.run(SECOND, &mut Never);
            prop_assert_eq!(s.network.packets_under_way(), 0);
            let counters = *s.network.link_counters(s.link, Direction::Forward);
            prop_assert_eq!(
                counters.departed_packets + counters.duplicated_packets,
                s.network.node(s.ends[1].0).got.len() as u64
            );
            Ok(s.network.trace_hash())
        };
        let first = run(seed)?;
        prop_assert_eq!(first, run(seed)?);
        if count > 20 && loss > 0.1 {
            prop_assert_ne!(first, run(seed ^ 1)?);
        }
    }
}
