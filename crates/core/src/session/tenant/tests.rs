//! Tenants without packets around them: turns, memory, windows.

use super::{tenant_path::TenantPath, *};
use crate::session::recovery::Lost;
use keiro_model::fairness::controller::{ControllerConfig, RoundTrip, Weight};
use keiro_units::{Bandwidth, ByteCount};
use proptest::prelude::*;
use std::{collections::VecDeque, time::Duration};

const PATH: PathId = PathId(0);
const APP: AppId = AppId(1);
const OVERHEAD: u64 = 60;
const REQUEST: PathSendState = PathSendState {
    id: PATH,
    coalescing_at: Instant::ZERO,
    mtu: 1500,
    packet_overhead: OVERHEAD,
    control_waits: false,
};

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1000)
}

fn config(id: u32, weight: f64, controller: ControllerConfig) -> TenantConfig {
    TenantConfig {
        weight: Weight::new(weight).expect("above 0"),
        controller,
        ..TenantConfig::new(TenantId(id))
    }
}

fn tenants(configs: &[TenantConfig]) -> Tenants {
    let mut tenants = Tenants::new(100, 1 << 20);
    for config in configs {
        tenants.set(at(0), *config).expect("few");
    }
    tenants
}

fn on(path: PathId, mtu: u16) -> PathIdMtu {
    PathIdMtu { path, mtu }
}

fn path_of(tenants: &Tenants, id: u32) -> &TenantPath {
    let path_tenants = tenants.paths.get(PATH).expect("it was sent on");
    path_tenants
        .tenant_paths
        .get(TenantId(id))
        .expect("it has sent")
}

fn push(tenants: &mut Tenants, now: Instant, id: u32, len: usize) {
    let packet = IpPacket {
        flow_hash: 1,
        ecn: 0,
        needs_order: false,
        data: vec![0; len],
    };
    let new = NewIpPacket {
        tenant: TenantId(id),
        app: APP,
        order: None,
        packet,
    };
    tenants.push(now, on(PATH, 1500), new);
}

/// Sends the next packet; whose it was, and wire bytes.
fn pop(tenants: &mut Tenants, now: Instant) -> Option<(u32, u64)> {
    let grant = tenants.poll_next(now, REQUEST, |_| BacklogState::None)?;
    let taken = tenants.take(now, PATH, grant).expect("it was announced");
    let leaving = taken.packet;
    let bytes = leaving.data.len() as u64 + OVERHEAD;
    tenants.on_sent(now, PATH, grant, bytes);
    Some((grant.tenant.0, bytes))
}

#[test]
fn bytes_are_shared_by_weight_whatever_the_packets_lengths() {
    let mut tenants = tenants(&[
        config(1, 1.0, ControllerConfig::Open),
        config(2, 2.5, ControllerConfig::Open),
    ]);
    let mut bytes = [0u64; 3];
    for _ in 0..4000 {
        push(&mut tenants, at(0), 1, 1400);
        for _ in 0..3 {
            push(&mut tenants, at(0), 2, 300);
        }
        for _ in 0..2 {
            let (id, sent) = pop(&mut tenants, at(0)).expect("much waits");
            bytes[id as usize] += sent;
        }
    }
    let ratio = bytes[2] as f64 / bytes[1] as f64;
    assert!((2.45..2.55).contains(&ratio), "{ratio}");
    tenants.check_invariants();
}

#[test]
fn idle_tenant_accrues_no_credit() {
    let mut tenants = tenants(&[
        config(1, 1.0, ControllerConfig::Open),
        config(2, 1.0, ControllerConfig::Open),
    ]);
    for _ in 0..500 {
        push(&mut tenants, at(0), 1, 1000);
    }
    for _ in 0..400 {
        pop(&mut tenants, at(0));
    }
    for _ in 0..100 {
        push(&mut tenants, at(1), 2, 1000);
    }
    let next: Vec<u32> = (0..20)
        .filter_map(|_| Some(pop(&mut tenants, at(1))?.0))
        .collect();
    let first = next.iter().filter(|id| **id == 1).count();
    assert!((9..=11).contains(&first), "{next:?}");
}

#[test]
fn all_tenants_together_keep_within_the_memory() {
    let mut tenants = Tenants::new(100, 50_000);
    for id in 1..=10 {
        tenants
            .set(at(0), config(id, 1.0, ControllerConfig::Open))
            .expect("few");
        for _ in 0..20 {
            push(&mut tenants, at(0), id, 1000);
        }
    }
    assert!(tenants.cost <= 50_000);
    let drops: u64 = tenants.tenants.values().map(|t| t.drops.memory).sum();
    assert!(drops >= 150, "{drops}");
    // Who waited first is not pushed out.
    assert!(tenants.tenants[&TenantId(1)].cost >= 20_000);
    tenants.check_invariants();
}

#[test]
fn packets_of_a_removed_path_move_or_are_counted_as_dropped() {
    let mut tenants = tenants(&[config(1, 1.0, ControllerConfig::default())]);
    for _ in 0..10 {
        push(&mut tenants, at(0), 1, 1000);
    }
    tenants.move_all(at(1), PATH, |_| Some(on(PathId(1), 1400)));
    assert_eq!(tenants.next_at(PATH), None);
    assert_eq!(tenants.next_at(PathId(1)), Some(Instant::ZERO));
    tenants.check_invariants();
    tenants.move_all(at(2), PathId(1), |_| None);
    assert!(tenants.is_idle());
    assert_eq!(tenants.tenants[&TenantId(1)].drops.no_path, 10);
    tenants.check_invariants();
}

proptest! {
    /// Whatever happens in whatever order: sums are right, windows are kept, no tenant that may
    /// send is forgotten, and what was sent is answered for once.
    #[test]
    fn tenant_accounting_is_consistent(
        steps in proptest::collection::vec((0u8..12, 1u32..5, 1usize..1400), 1..400),
    ) {
        let unit = Bandwidth::from_mbit_per_second(10);
        let mut tenants = Tenants::new(4, 30_000);
        let mut flying: Vec<(u32, u64)> = Vec::new();
        let mut now = at(0);
        for (what, id, len) in steps {
            now += Duration::from_micros(len as u64);
            match what {
                0 => {
                    let controller = if len % 2 == 0 { ControllerConfig::Keiro { unit: Some(unit) } } else { ControllerConfig::Open };
                    let small = TenantConfig {
                        queue_bytes_max: ByteCount::new(len as u64 * 10),
                        ..config(id, f64::from(id), controller)
                    };
                    prop_assert!(tenants.set(now, small).is_ok());
                }
                1 if len % 4 == 0 => tenants.remove(TenantId(id)),
                1..6 => push(&mut tenants, now, id, len),
                6..9 => {
                    if let Some((id, bytes)) = pop(&mut tenants, now) {
                        let tenant_path = path_of(&tenants, id);
                        let of_tenant = flying.iter().filter(|(flyer, _)| *flyer == id);
                        let before: u64 = of_tenant.map(|(_, bytes)| bytes).sum();
                        prop_assert_eq!(tenant_path.in_flight(), before + bytes);
                        let window = tenant_path.snapshot(now, PATH, None).stats.window_bytes.unwrap_or(u64::MAX);
                        prop_assert!(before == 0 || tenant_path.in_flight() <= window);
                        flying.push((id, bytes));
                    }
                }
                _ if !flying.is_empty() => {
                    let (id, bytes) = flying.remove(len % flying.len());
                    let lost = u64::from(what == 9);
                    let report = DeliveryReport {
                        acked_bytes: bytes * (1 - lost),
                        acked: 1 - lost,
                        lost: Lost { by_congestion: lost, ..Lost::default() },
                        no_longer_in_flight: bytes,
                        round_trip: Some(RoundTrip {
                            sample: Duration::from_micros(len as u64 * 20),
                            is_long: true,
                            min: None,
                        }),
                        ..DeliveryReport::default()
                    };
                    tenants.on_delivery_report(now, on(PATH, 1500), TenantId(id), &report);
                }
                _ => {}
            }
            tenants.check_invariants();
        }
        // Once everything has landed, all that waits can leave.
        for (id, bytes) in flying {
            let report = DeliveryReport { no_longer_in_flight: bytes, acked: 1, ..DeliveryReport::default() };
            tenants.on_delivery_report(now, on(PATH, 1500), TenantId(id), &report);
        }
        for _ in 0..10_000 {
            let Some(next) = tenants.next_at(PATH) else { break };
            now = now.max(next);
            if let Some((id, bytes)) = pop(&mut tenants, now) {
                let report = DeliveryReport { no_longer_in_flight: bytes, acked: 1, ..DeliveryReport::default() };
                tenants.on_delivery_report(now, on(PATH, 1500), TenantId(id), &report);
            }
        }
        prop_assert!(tenants.is_idle());
    }
}

#[test]
fn items_that_wait_to_be_coalesced_hold_up_no_other_tenant_and_get_their_turn_again() {
    let mut tenants = tenants(&[
        config(1, 1.0, ControllerConfig::Open),
        config(2, 1.0, ControllerConfig::Open),
    ]);
    let next = |tenants: &mut Tenants, has: BacklogState| {
        let grant = tenants.poll_next(at(0), REQUEST, |_| has)?;
        Some((grant.tenant.0, grant.kind))
    };
    assert_eq!(
        next(&mut tenants, BacklogState::Ready),
        None,
        "no tenant has any"
    );
    let path = PathIdMtu {
        path: PATH,
        mtu: 1500,
    };
    tenants.on_backlog(at(0), path, TenantId(1), BacklogState::Ready);
    assert_eq!(tenants.next_at(PATH), Some(Instant::ZERO));
    push(&mut tenants, at(0), 2, 100);
    let packet = GrantKind::IpPackets(FirstPacket {
        len: 100,
        ecn: 0,
        is_ordered: false,
    });
    assert_eq!(
        next(&mut tenants, BacklogState::Coalescing),
        Some((2, packet))
    );
    assert!(tenants.awaits_coalescing(PATH));
    pop(&mut tenants, at(0)).expect("tenant 2's");
    assert_eq!(
        next(&mut tenants, BacklogState::Ready),
        None,
        "no tenant was woken"
    );
    assert_eq!(tenants.next_at(PATH), None);
    tenants.on_may_coalesce(PATH);
    assert!(!tenants.awaits_coalescing(PATH));
    assert_eq!(
        next(&mut tenants, BacklogState::Ready),
        Some((1, GrantKind::Items))
    );
    // They had nothing in the end.
    assert_eq!(next(&mut tenants, BacklogState::None), None);
    assert_eq!(tenants.next_at(PATH), None);
    tenants.check_invariants();
}

/// A tenant alone on a line without a queue, which always has packets of 1000 bytes and hears of each
/// 20 ms later; wire bytes per second that left in each of `seconds`.
fn alone(config: TenantConfig, seconds: usize) -> Vec<u64> {
    let mut tenants = tenants(&[config]);
    let id = config.id;
    let mut sent = vec![0; seconds];
    let mut flying = VecDeque::new();
    for step in 0..seconds as u64 * 1000 {
        let now = at(step * 1000);
        while tenants.cost < 100_000 {
            push(&mut tenants, now, id.0, 1000);
        }
        while let Some((_, bytes)) = pop(&mut tenants, now) {
            sent[step as usize / 1000] += bytes;
            flying.push_back((now + Duration::from_millis(20), bytes));
            // What is beyond any line here.
            if sent[step as usize / 1000] > 10_000_000 {
                return sent;
            }
        }
        while let Some((_, bytes)) = flying.pop_front_if(|(landed, _)| *landed <= now) {
            let report = DeliveryReport {
                acked_bytes: bytes,
                acked: 1,
                no_longer_in_flight: bytes,
                round_trip: Some(RoundTrip {
                    sample: Duration::from_millis(20),
                    is_long: true,
                    min: None,
                }),
                ..DeliveryReport::default()
            };
            tenants.on_delivery_report(now, on(PATH, 1500), id, &report);
        }
    }
    sent
}

#[test]
fn tenant_of_any_weight_gets_an_idle_line() {
    for (weight, unit) in [(1.0, 40_000), (0.01, 4_000_000), (0.001, 4_000_000)] {
        let unit = Bandwidth::from_bits_per_second(unit);
        let sent = alone(
            config(1, weight, ControllerConfig::Keiro { unit: Some(unit) }),
            40,
        );
        let most = sent.iter().max().expect("40 seconds");
        assert!(*most > 1_000_000, "weight {weight}, {unit}: {sent:?}");
    }
}

/// A path carries less than when the first part left: the packet begins anew, under another number.
#[test]
fn a_packet_in_parts_restarts_where_its_next_part_does_not_fit() {
    let mut tenants = tenants(&[config(1, 1.0, ControllerConfig::Open)]);
    let one = TenantId(1);
    push(&mut tenants, at(0), 1, 1280);
    push(&mut tenants, at(0), 1, 100);
    let mut left = Vec::new();
    for room in [1200, 500, 500, 500] {
        let path = PathSendState {
            mtu: 1280,
            ..REQUEST
        };
        let grant = tenants.poll_next(at(0), path, |_| BacklogState::None);
        let grant = grant.expect("it waits");
        let len = tenants.next_part_len(PATH, one, room).expect("it fits");
        let part = tenants.poll_part(PATH, one).expect("it was announced");
        assert_eq!(part.data.len(), len);
        left.push((part.number, part.index, part.count, len));
        tenants.on_sent(at(0), PATH, grant, len as u64 + OVERHEAD);
        tenants.check_invariants();
    }
    assert_eq!(
        left,
        [
            (0, 0, 2, 640),
            (1, 0, 3, 427),
            (1, 1, 3, 427),
            (1, 2, 3, 426)
        ]
    );
    let grant = tenants.poll_next(at(0), REQUEST, |_| BacklogState::None);
    let taken = tenants.take(at(0), PATH, grant.expect("it waits"));
    let taken = taken.expect("the whole");
    assert_eq!(
        (taken.packet.data.len(), taken.next.map(|of| of.len)),
        (1280, Some(100))
    );
    assert_eq!(pop(&mut tenants, at(0)), Some((1, 100 + OVERHEAD)));
    // One that moves to another path begins anew there.
    push(&mut tenants, at(0), 1, 1280);
    tenants.poll_next(at(0), REQUEST, |_| BacklogState::None);
    tenants.next_part_len(PATH, one, 1200);
    tenants.poll_part(PATH, one);
    tenants.move_all(at(1), PATH, |_| Some(on(PathId(1), 1280)));
    let path = PathSendState {
        id: PathId(1),
        ..REQUEST
    };
    tenants.poll_next(at(1), path, |_| BacklogState::None);
    assert_eq!(tenants.next_part_len(PathId(1), one, 1200), Some(640));
    let part = tenants.poll_part(PathId(1), one).expect("announced");
    assert_eq!((part.number, part.index), (3, 0));
    // Too long for three parts, and for any.
    assert_eq!(tenants.next_part_len(PathId(1), one, 400), None);
    tenants.check_invariants();
}

proptest! {
    /// The next turn of the same tenant is the one that the scheduler would decide on.
    #[test]
    fn a_tenant_goes_on_only_where_it_is_its_turn_again(
        steps in proptest::collection::vec((0u8..4, 1u32..4, 40usize..1400, 0u32..50), 1..200),
        weights in [1u32..5, 1u32..5, 1u32..5],
    ) {
        let unit = Some(Bandwidth::from_mbit_per_second(2));
        let mut tenants = tenants(&[
            config(1, f64::from(weights[0]), ControllerConfig::Open),
            config(2, f64::from(weights[1]), ControllerConfig::Keiro { unit }),
            config(3, f64::from(weights[2]), ControllerConfig::Open),
        ]);
        let mut now = at(0);
        for (what, id, len, us) in steps {
            now += Duration::from_micros(us.into());
            if what > 0 {
                push(&mut tenants, now, id, len);
                continue;
            }
            let mut next = tenants.poll_next(now, REQUEST, |_| BacklogState::None);
            while let Some(grant) = next {
                let taken = tenants.take(now, PATH, grant).expect("it was announced");
                let bytes = taken.packet.data.len() as u64 + OVERHEAD;
                tenants.on_sent(now, PATH, grant, bytes);
                let same = tenants.poll_same(now, REQUEST, grant);
                next = tenants.poll_next(now, REQUEST, |_| BacklogState::None);
                if same.is_some() {
                    prop_assert_eq!(next, same);
                }
                tenants.check_invariants();
            }
        }
    }
}
