//! Effects of a link on single packets, in virtual time.

use std::time::Duration;

use keiro_link::{
    Arrival, Buffer, Departure, DropReason, Link, LinkConfig, Loss, Queue, Reorder, Ticket,
};
use keiro_units::{Bandwidth, ByteCount, Instant, Probability};

/// 12 µs for 1500 bytes.
const GIGABIT: Bandwidth = Bandwidth::from_mbit_per_second(1000);
const PACKET: ByteCount = ByteCount::new(1500);

fn micros(micros: u64) -> Instant {
    Instant::from_nanos(micros * 1000)
}

fn accepted(arrival: Arrival) -> Ticket {
    match arrival {
        Arrival::Accepted(ticket) => ticket,
        Arrival::Dropped(reason) => panic!("dropped: {reason:?}"),
    }
}

/// All packets that will leave, in order.
fn drain(link: &mut Link) -> Vec<Departure> {
    std::iter::from_fn(|| link.poll_departure(link.poll_timeout()?)).collect()
}

fn departures(link: &mut Link) -> Vec<(u64, u64)> {
    let out = drain(link);
    out.iter()
        .map(|d| (d.ticket.index(), d.at.as_nanos()))
        .collect()
}

#[test]
fn perfect_link_delivers_at_once() {
    let mut link = Link::new(LinkConfig::default(), 0);
    for at in [3, 3, 5] {
        let _ = link.arrive(Instant::from_nanos(at), PACKET);
    }
    assert_eq!(departures(&mut link), [(0, 3), (1, 3), (2, 5)]);
}

#[test]
fn packet_leaves_after_transmission_and_propagation() {
    let config = LinkConfig {
        rate: Some(GIGABIT),
        delay: Duration::from_millis(2),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 0);
    let _ = link.arrive(micros(0), PACKET);
    let _ = link.arrive(micros(1), PACKET);
    let _ = link.arrive(micros(100), PACKET);
    assert_eq!(link.poll_timeout(), Some(micros(2012)));
    assert_eq!(link.poll_departure(Instant::from_nanos(2_011_999)), None);
    assert_eq!(
        departures(&mut link),
        [(0, 2_012_000), (1, 2_024_000), (2, 2_112_000)]
    );
    assert_eq!(link.poll_timeout(), None);
}

#[test]
fn rate_is_exact_over_a_million_packets() {
    // 8·61·10⁹ bits at 7,000,003 bit/s: every packet leaves a remainder below a nanosecond.
    let rate = 7_000_003u64;
    let config = LinkConfig {
        rate: Some(Bandwidth::from_bits_per_second(rate)),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 0);
    let mut last = Instant::ZERO;
    for _ in 0..1_000_000 {
        let _ = link.arrive(last, ByteCount::new(61));
        // Two are always queued, so that the transmitter is never idle.
        if link.held_packets() > 1 {
            last = link.poll_departure(Instant::MAX).unwrap().at;
        }
    }
    last = link.poll_departure(Instant::MAX).unwrap().at;
    let exact = (8u128 * 61 * 1_000_000 * 1_000_000_000).div_ceil(u128::from(rate));
    assert_eq!(u128::from(last.as_nanos()), exact);
}

#[test]
fn packet_in_service_does_not_count_in_the_buffer() {
    let config = LinkConfig {
        rate: Some(GIGABIT),
        buffer: Buffer::Packets(2),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 0);
    for _ in 0..3 {
        accepted(link.arrive(micros(0), PACKET));
    }
    assert_eq!(
        link.arrive(micros(11), PACKET),
        Arrival::Dropped(DropReason::Buffer)
    );
    assert_eq!(
        link.queue(micros(11)),
        Queue {
            packets: 2,
            bytes: 3000
        }
    );
    assert_eq!(
        link.queue(micros(12)),
        Queue {
            packets: 1,
            bytes: 1500
        }
    );
    accepted(link.arrive(micros(12), PACKET));
    assert_eq!(link.counters().drops.buffer, 1);
    assert_eq!(
        link.counters().queue_max,
        Queue {
            packets: 2,
            bytes: 3000
        }
    );
}

#[test]
fn buffer_in_bytes_refuses_what_goes_beyond_but_never_starves_an_idle_link() {
    let config = LinkConfig {
        rate: Some(GIGABIT),
        buffer: Buffer::Bytes(ByteCount::new(1000)),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 0);
    accepted(link.arrive(micros(0), PACKET));
    assert_eq!(
        link.arrive(micros(0), PACKET),
        Arrival::Dropped(DropReason::Buffer)
    );
    accepted(link.arrive(micros(0), ByteCount::new(900)));
    accepted(link.arrive(micros(0), ByteCount::new(100)));
    assert_eq!(
        link.arrive(micros(0), ByteCount::new(1)),
        Arrival::Dropped(DropReason::Buffer)
    );
}

#[test]
fn overhead_takes_time_and_buffer() {
    let config = LinkConfig {
        rate: Some(GIGABIT),
        overhead_per_packet: 25,
        buffer: Buffer::Bytes(ByteCount::new(1024)),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 0);
    accepted(link.arrive(micros(0), ByteCount::new(1000)));
    assert_eq!(link.poll_timeout(), Some(Instant::from_nanos(8200)));
    assert_eq!(
        link.arrive(micros(0), ByteCount::new(1000)),
        Arrival::Dropped(DropReason::Buffer)
    );
}

#[test]
fn change_of_rate_finishes_the_packet_in_service_at_the_new_rate() {
    let config = LinkConfig {
        rate: Some(GIGABIT),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 0);
    let _ = link.arrive(micros(0), PACKET);
    let _ = link.arrive(micros(0), PACKET);
    // A quarter is sent; the rest takes twice as long.
    let halved = LinkConfig {
        rate: Some(Bandwidth::from_mbit_per_second(500)),
        ..config
    };
    assert!(link.apply(micros(3), halved).is_empty());
    assert_eq!(departures(&mut link), [(0, 21_000), (1, 45_000)]);
}

#[test]
fn rate_of_zero_stops_and_a_later_rate_goes_on_where_it_stopped() {
    let config = LinkConfig {
        rate: Some(GIGABIT),
        ..LinkConfig::default()
    };
    let stopped = LinkConfig {
        rate: Some(Bandwidth::ZERO),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 0);
    let _ = link.arrive(micros(0), PACKET);
    assert!(link.apply(micros(9), stopped).is_empty());
    let _ = link.arrive(micros(10), PACKET);
    assert_eq!(link.poll_timeout(), None);
    assert_eq!(link.poll_departure(Instant::MAX), None);
    assert!(link.apply(micros(1000), config).is_empty());
    assert_eq!(departures(&mut link), [(0, 1_003_000), (1, 1_015_000)]);
}

#[test]
fn an_unlimited_rate_releases_queued_packets() {
    let config = LinkConfig {
        rate: Some(GIGABIT),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 0);
    let _ = link.arrive(micros(0), PACKET);
    let _ = link.arrive(micros(0), PACKET);
    assert!(link.apply(micros(5), LinkConfig::default()).is_empty());
    assert_eq!(departures(&mut link), [(0, 5000), (1, 5000)]);
}

#[test]
fn shorter_delay_does_not_let_later_packets_overtake() {
    let long = LinkConfig {
        delay: Duration::from_micros(100),
        ..LinkConfig::default()
    };
    let short = LinkConfig {
        delay: Duration::from_micros(10),
        ..LinkConfig::default()
    };
    let mut link = Link::new(long, 0);
    let _ = link.arrive(micros(0), PACKET);
    assert!(link.apply(micros(1), short).is_empty());
    let _ = link.arrive(micros(2), PACKET);
    let _ = link.arrive(micros(95), PACKET);
    assert_eq!(
        departures(&mut link),
        [(0, 100_000), (1, 100_000), (2, 105_000)]
    );
}

#[test]
fn waiting_packets_take_the_new_delay() {
    let config = LinkConfig {
        rate: Some(GIGABIT),
        delay: Duration::from_micros(10),
        ..LinkConfig::default()
    };
    let longer = LinkConfig {
        delay: Duration::from_micros(50),
        ..config
    };
    let mut link = Link::new(config, 0);
    let _ = link.arrive(micros(0), PACKET);
    let _ = link.arrive(micros(0), PACKET);
    assert!(link.apply(micros(13), longer).is_empty());
    assert_eq!(departures(&mut link), [(0, 22_000), (1, 74_000)]);
}

#[test]
fn a_cut_destroys_packets_in_the_link_and_arrivals() {
    let config = LinkConfig {
        rate: Some(GIGABIT),
        delay: Duration::from_micros(10),
        ..LinkConfig::default()
    };
    let down = LinkConfig {
        down: true,
        ..config
    };
    let mut link = Link::new(config, 0);
    let tickets: Vec<_> = (0..3)
        .map(|_| accepted(link.arrive(micros(0), PACKET)))
        .collect();
    assert_eq!(link.apply(micros(13), down), tickets);
    assert_eq!(
        link.arrive(micros(14), PACKET),
        Arrival::Dropped(DropReason::Down)
    );
    assert_eq!(link.poll_timeout(), None);
    assert_eq!(link.counters().drops.down, 4);
    assert!(link.apply(micros(20), config).is_empty());
    let _ = link.arrive(micros(20), PACKET);
    assert_eq!(departures(&mut link), [(3, 42_000)]);
}

#[test]
fn lost_packet_still_takes_its_time_at_the_transmitter() {
    let lossy = LinkConfig {
        rate: Some(GIGABIT),
        loss: Loss::Bernoulli(Probability::ONE),
        ..LinkConfig::default()
    };
    let sound = LinkConfig {
        loss: Loss::None,
        ..lossy
    };
    let mut link = Link::new(lossy, 0);
    assert_eq!(
        link.arrive(micros(0), PACKET),
        Arrival::Dropped(DropReason::Loss)
    );
    assert!(link.apply(micros(0), sound).is_empty());
    accepted(link.arrive(micros(0), PACKET));
    assert_eq!(departures(&mut link), [(1, 24_000)]);
}

#[test]
fn a_delayed_packet_is_overtaken_and_delays_no_other() {
    let held = LinkConfig {
        delay: Duration::from_micros(10),
        reorder: Reorder {
            probability: Probability::ONE,
            extra_delay: Duration::from_micros(100),
        },
        ..LinkConfig::default()
    };
    let plain = LinkConfig {
        reorder: Reorder::default(),
        ..held
    };
    let mut link = Link::new(held, 0);
    let _ = link.arrive(micros(0), PACKET);
    assert!(link.apply(micros(0), plain).is_empty());
    let _ = link.arrive(micros(1), PACKET);
    assert_eq!(departures(&mut link), [(1, 11_000), (0, 110_000)]);
}

#[test]
fn jitter_overtakes_only_if_allowed() {
    for overtakes in [false, true] {
        let config = LinkConfig {
            jitter: Duration::from_millis(5),
            jitter_overtakes: overtakes,
            ..LinkConfig::default()
        };
        let mut link = Link::new(config, 7);
        for at in 0..1000 {
            let _ = link.arrive(micros(at), PACKET);
        }
        let out = departures(&mut link);
        assert_eq!(out.is_sorted_by_key(|(ticket, _)| *ticket), !overtakes);
        assert!(
            out.iter()
                .all(|(ticket, at)| (0..=5_000_000).contains(&(at - ticket * 1000)))
        );
    }
}

#[test]
fn duplication_and_corruption_are_reported_with_the_departure() {
    let config = LinkConfig {
        duplicate: Probability::ONE,
        corrupt: Probability::ONE,
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 0);
    let _ = link.arrive(micros(0), PACKET);
    let out = drain(&mut link);
    assert!(out.len() == 1 && out[0].duplicated && out[0].corruption.is_some());
    assert_eq!(link.counters().duplicated_packets, 1);
    assert_eq!(link.counters().corrupted_packets, 1);
}

#[test]
fn the_packets_in_a_link_are_bounded() {
    let config = LinkConfig {
        delay: Duration::from_secs(1),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, 0);
    for _ in 0..keiro_link::PACKETS_MAX {
        accepted(link.arrive(micros(0), PACKET));
    }
    assert_eq!(
        link.arrive(micros(0), PACKET),
        Arrival::Dropped(DropReason::Overload)
    );
    assert_eq!(link.held_packets(), keiro_link::PACKETS_MAX);
}
