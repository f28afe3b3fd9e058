//! Packets that overtake each other, get lost, or come from a hostile peer.

use proptest::prelude::*;

use super::*;

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1000)
}

fn packet(flow: u32, number: u32, path: u8, hold_ms: u16, data: &[u8]) -> OrderedPacket<'_> {
    OrderedPacket {
        tenant: TenantId(1),
        order: PacketOrder {
            flow,
            number,
            hold_ms,
            paths: 0b11,
        },
        path,
        ecn: 0,
        data,
    }
}

/// What a flow's packets of one byte are delivered as, by `(ms, number, path)` of their arrivals.
fn delivered(arrivals: &[(u64, u8, u8)]) -> Vec<(u64, u8)> {
    let mut resequencer = Resequencer::default();
    let mut delivered = Vec::new();
    for (ms, number, path) in arrivals {
        while let Some(due) = resequencer.due().filter(|due| *due <= at(ms * 1000)) {
            resequencer.on_timeout(due);
            let ms = due.as_nanos() / 1_000_000;
            delivered.extend(drain(&mut resequencer).map(|data| (ms, data[0])));
        }
        let data = [*number];
        let new = packet(1, (*number).into(), *path, 20, &data);
        if resequencer.on_packet(at(ms * 1000), new) == Arrival::Deliver {
            delivered.push((*ms, *number));
        }
        delivered.extend(drain(&mut resequencer).map(|data| (*ms, data[0])));
        resequencer.check_invariants();
    }
    delivered
}

fn drain(resequencer: &mut Resequencer) -> impl Iterator<Item = Vec<u8>> {
    std::iter::from_fn(|| resequencer.poll()).map(|held| held.data)
}

#[test]
fn a_packet_waits_for_the_one_before_it_and_no_longer() {
    let arrivals = [(0, 0, 0), (1, 2, 0), (2, 3, 0), (5, 1, 1), (6, 4, 0)];
    assert_eq!(
        delivered(&arrivals),
        [(0, 0), (5, 1), (5, 2), (5, 3), (6, 4)]
    );
}

#[test]
fn a_packet_that_every_path_has_passed_is_not_waited_for() {
    let arrivals = [(0, 0, 0), (1, 1, 1), (2, 3, 0), (3, 4, 1), (4, 2, 0)];
    assert_eq!(
        delivered(&arrivals),
        [(0, 0), (1, 1), (3, 3), (3, 4), (4, 2)]
    );
}

#[test]
fn a_packet_is_held_as_long_as_its_sender_says() {
    let arrivals = [(0, 0, 0), (1, 1, 1), (2, 3, 0), (4, 4, 0), (30, 5, 0)];
    assert_eq!(
        delivered(&arrivals),
        [(0, 0), (1, 1), (22, 3), (22, 4), (30, 5)]
    );
}

#[test]
fn a_hostile_peer_takes_bounded_memory_and_loses_no_packet() {
    let mut resequencer = Resequencer::default();
    let data = [7; 1400];
    let mut delivered = 0;
    for step in 0..40_000u32 {
        let new = packet(
            step % 10_000,
            5 + step / 10_000 * 2,
            0,
            u16::MAX >> 2,
            &data,
        );
        if resequencer.on_packet(at(0), new) == Arrival::Deliver {
            delivered += 1;
        }
        delivered += drain(&mut resequencer).count();
        if step % 5_000 == 0 {
            resequencer.check_invariants();
        }
        assert!(resequencer.memory() <= HELD_BYTES_MAX + FLOWS_MAX as u64 * FLOW_OVERHEAD);
    }
    resequencer.check_invariants();
    assert!(resequencer.due() <= Some(at(0) + HOLD_MAX));
    resequencer.on_timeout(at(0) + HOLD_MAX);
    delivered += drain(&mut resequencer).count();
    assert_eq!((delivered, resequencer.due()), (40_000, None));
    resequencer.on_peer_restarted(at(0));
    assert_eq!(resequencer.memory(), 0);
}

#[test]
fn what_is_held_of_a_tenant_goes_with_it() {
    let mut resequencer = Resequencer::default();
    let _ = resequencer.on_packet(at(0), packet(1, 5, 0, 20, b"x"));
    resequencer.forget_tenant(TenantId(1));
    resequencer.check_invariants();
    assert_eq!((resequencer.memory(), resequencer.due()), (0, None));
    assert_eq!(resequencer.poll(), None);
}

proptest! {
    /// Two paths that keep order, with losses: order is kept as long as the other path's delay is predicted, and
    /// whatever happens no packet is held longer than announced and every packet that arrives is delivered once.
    #[test]
    fn flows_keep_their_order_and_no_packet_is_held_longer_than_announced(
        sent in prop::collection::vec((any::<bool>(), 0..20u8, 0..400u64), 1..120),
        delays in (1_000..50_000u64, 1_000..50_000u64),
        hold_ms in 0..60u16,
    ) {
        let mut arrivals = Vec::new();
        let mut now = 0;
        let mut last = [0, 0];
        for (number, (second, fate, gap)) in (0..).zip(&sent) {
            now += gap;
            let path = usize::from(*second);
            let delay = [delays.0, delays.1][path];
            last[path] = (now + delay).max(last[path]);
            if *fate > 0 {
                arrivals.push((last[path], number, path as u8));
            }
        }
        arrivals.sort();
        let enough = u64::from(hold_ms) * 1000 > delays.0.abs_diff(delays.1);
        let mut resequencer = Resequencer::default();
        let mut came: BTreeMap<u32, u64> = BTreeMap::new();
        let mut delivered: Vec<u32> = Vec::new();
        let mut next = arrivals.iter().peekable();
        loop {
            let due = resequencer.due().map(|due| due.as_nanos() / 1000);
            let arrival = next.peek().map(|(at, ..)| *at);
            let (now, is_arrival) = match (due, arrival) {
                (Some(due), Some(arrival)) => (due.min(arrival), arrival < due),
                (Some(due), None) => (due, false),
                (None, Some(arrival)) => (arrival, true),
                (None, None) => break,
            };
            if is_arrival && let Some((_, number, path)) = next.next() {
                came.insert(*number, now);
                let data = number.to_be_bytes();
                let new = packet(9, *number, *path, hold_ms, &data);
                if resequencer.on_packet(at(now), new) == Arrival::Deliver {
                    delivered.push(*number);
                }
            } else {
                resequencer.on_timeout(at(now));
            }
            for data in drain(&mut resequencer) {
                let number = u32::from_be_bytes(data.try_into().unwrap());
                prop_assert!(now - came[&number] <= u64::from(hold_ms) * 1000);
                delivered.push(number);
            }
            resequencer.check_invariants();
        }
        prop_assert_eq!(delivered.len(), arrivals.len());
        if enough {
            prop_assert!(delivered.is_sorted(), "{delivered:?}");
        }
    }
}
