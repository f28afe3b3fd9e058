//! Properties of every link under every sequence of arrivals and changes.

use std::{collections::BTreeSet, time::Duration};

use keiro_link::{
    Arrival, Buffer, Departure, GilbertElliott, Link, LinkConfig, Loss, Reorder, Ticket,
};
use keiro_units::{Bandwidth, ByteCount, Instant, Probability};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Arrive { wait: u64, len: u64 },
    Apply { wait: u64, config: LinkConfig },
}

fn probability() -> impl Strategy<Value = Probability> {
    prop_oneof![
        3 => Just(Probability::ZERO),
        2 => (0.0..=1.0).prop_map(|p| Probability::new(p).unwrap()),
        1 => Just(Probability::ONE),
    ]
}

fn loss() -> impl Strategy<Value = Loss> {
    let chain = [probability(), probability(), probability(), probability()];
    prop_oneof![
        Just(Loss::None),
        probability().prop_map(Loss::Bernoulli),
        chain.prop_map(|[good_to_bad, bad_to_good, loss_good, loss_bad]| {
            Loss::GilbertElliott(GilbertElliott {
                good_to_bad,
                bad_to_good,
                loss_good,
                loss_bad,
            })
        }),
    ]
}

fn buffer() -> impl Strategy<Value = Buffer> {
    prop_oneof![
        Just(Buffer::Unlimited),
        (0..20u32).prop_map(Buffer::Packets),
        (0..20_000u64).prop_map(|bytes| Buffer::Bytes(ByteCount::new(bytes))),
    ]
}

fn up_to(nanos: u64) -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        (0..nanos).prop_map(Duration::from_nanos)
    ]
}

prop_compose! {
    fn config()(
        rate in prop::option::of(prop_oneof![1 => Just(0), 9 => 1_000u64..10_000_000_000]),
        delay in up_to(1_000_000),
        jitter in up_to(1_000_000),
        jitter_overtakes: bool,
        loss in loss(),
        duplicate in probability(),
        corrupt in probability(),
        held in probability(),
        extra_delay in up_to(1_000_000),
        buffer in buffer(),
        overhead_per_packet in -100..100i32,
        down in prop::bool::weighted(0.1),
    ) -> LinkConfig {
        LinkConfig {
            rate: rate.map(Bandwidth::from_bits_per_second),
            delay, jitter, jitter_overtakes, loss, duplicate, corrupt,
            reorder: Reorder { probability: held, extra_delay },
            buffer, overhead_per_packet, down,
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        9 => (0..100_000u64, 0..2_000u64).prop_map(|(wait, len)| Step::Arrive { wait, len }),
        1 => (0..100_000u64, config()).prop_map(|(wait, config)| Step::Apply { wait, config }),
    ];
    prop::collection::vec(step, 0..200)
}

/// Everything that happened at a link.
#[derive(Debug, Default, PartialEq)]
struct Trace {
    arrivals: Vec<Arrival>,
    departures: Vec<Departure>,
    cut: Vec<Ticket>,
}

/// Performs the steps. Polls after each one if `eager`, otherwise only at changes, before which a caller must
/// take packets that are due.
fn run(config: LinkConfig, steps: &[Step], eager: bool) -> (Link, Trace) {
    let mut link = Link::new(config, 42);
    let mut trace = Trace::default();
    let mut now = Instant::ZERO;
    for step in steps {
        match *step {
            Step::Arrive { wait, len } => {
                now += Duration::from_nanos(wait);
                trace.arrivals.push(link.arrive(now, ByteCount::new(len)));
                if !eager {
                    continue;
                }
            }
            Step::Apply { wait, config } => {
                now += Duration::from_nanos(wait);
                trace.departures.extend(due(&mut link, now));
                trace.cut.extend(link.apply(now, config));
            }
        }
        trace.departures.extend(due(&mut link, now));
    }
    trace.departures.extend(due(&mut link, Instant::MAX));
    (link, trace)
}

fn due(link: &mut Link, now: Instant) -> Vec<Departure> {
    std::iter::from_fn(|| link.poll_departure(now)).collect()
}

proptest! {
    #[test]
    fn packets_are_conserved(config in config(), steps in steps()) {
        let (link, trace) = run(config, &steps, true);
        let counters = link.counters();
        let drops = counters.drops;
        prop_assert_eq!(
            counters.arrived_packets,
            counters.departed_packets + link.held_packets() as u64
                + drops.down + drops.buffer + drops.loss + drops.overload
        );
        let accepted = trace.arrivals.iter().filter_map(|arrival| match arrival {
            Arrival::Accepted(ticket) => Some(*ticket),
            Arrival::Dropped(_) => None,
        });
        let mut open: BTreeSet<Ticket> = accepted.collect();
        for ticket in trace.departures.iter().map(|d| d.ticket).chain(trace.cut.iter().copied()) {
            prop_assert!(open.remove(&ticket), "{:?} came out twice or from nowhere", ticket);
        }
        prop_assert_eq!(open.len(), link.held_packets());
    }

    #[test]
    fn result_does_not_depend_on_polling(config in config(), steps in steps()) {
        prop_assert_eq!(run(config, &steps, true).1, run(config, &steps, false).1);
    }

    #[test]
    fn departures_come_in_order_of_time(config in config(), steps in steps()) {
        let (_, trace) = run(config, &steps, true);
        prop_assert!(trace.departures.is_sorted_by_key(|d| d.at));
    }

    #[test]
    fn nothing_overtakes_unless_allowed(
        config in config(),
        steps in steps(),
    ) {
        let calm = |config| LinkConfig { jitter_overtakes: false, reorder: Reorder::default(), ..config };
        let steps: Vec<_> = steps.into_iter().map(|step| match step {
            Step::Apply { wait, config } => Step::Apply { wait, config: calm(config) },
            arrive => arrive,
        }).collect();
        let (_, trace) = run(calm(config), &steps, true);
        prop_assert!(trace.departures.is_sorted_by_key(|d| d.ticket));
    }

    #[test]
    fn buffer_is_never_exceeded(config in config(), steps in steps(), buffer in buffer()) {
        let bounded = |config| LinkConfig { buffer, overhead_per_packet: 0, ..config };
        let steps: Vec<_> = steps.into_iter().map(|step| match step {
            Step::Apply { wait, config } => Step::Apply { wait, config: bounded(config) },
            arrive => arrive,
        }).collect();
        let (link, _) = run(bounded(config), &steps, true);
        let max = link.counters().queue_max;
        match buffer {
            Buffer::Unlimited => {}
            Buffer::Packets(packets) => prop_assert!(max.packets <= u64::from(packets)),
            Buffer::Bytes(bytes) => prop_assert!(max.bytes <= bytes.get()),
        }
    }

    #[test]
    fn rate_and_delay_are_a_floor(config in config(), steps in steps()) {
        let arrivals: Vec<_> = steps.into_iter().filter(|s| matches!(s, Step::Arrive { .. })).collect();
        let (_, trace) = run(config, &arrivals, true);
        let mut now = Instant::ZERO;
        let mut came_in = Vec::new();
        for (step, arrival) in arrivals.iter().zip(&trace.arrivals) {
            let Step::Arrive { wait, len } = *step else { continue };
            now += Duration::from_nanos(wait);
            if let Arrival::Accepted(ticket) = arrival {
                came_in.push((*ticket, now, ByteCount::new(len)));
            }
        }
        for departure in &trace.departures {
            let (_, came, len) = came_in[came_in.binary_search_by_key(&departure.ticket, |c| c.0).unwrap()];
            let sending = config.rate.map_or(Duration::ZERO, |rate| {
                rate.transmission_time_ceil(config.counted(len))
            });
            prop_assert!(departure.at >= came + sending + config.delay);
        }
    }
}
