//! MTU discovery over paths that carry what a test says.

use rand_chacha::{
    ChaCha20Rng,
    rand_core::{RngCore, SeedableRng},
};

use super::*;

/// Probes a path that carries `carries`; the MTU found and the number of probes.
fn search(carries: u16, max: u16) -> (u16, u32) {
    let mut mtu = MtuDiscovery::new(max);
    let mut probes = 0;
    let mut now = Instant::ZERO;
    while let Some(size) = mtu.wanted(now) {
        probes += 1;
        mtu.on_probe_sent(now, u64::from(probes), size);
        if size <= carries {
            mtu.on_acked(u64::from(probes), size);
        } else {
            assert!(mtu.on_probe_lost(now, u64::from(probes)));
            now = mtu.due().unwrap_or(now);
        }
        assert!(probes < 100, "search ends");
    }
    (mtu.current(), probes)
}

#[test]
fn a_late_probe_that_passes_voids_a_shorter_one_that_is_lost_after_it() {
    let mut mtu = MtuDiscovery::new(1500);
    let mut now = Instant::ZERO;
    let sizes = [1500, 1500, 1500, 1390, 1390, 1390];
    for (number, wanted) in (0..).zip(sizes) {
        let size = mtu.wanted(now).unwrap();
        assert_eq!(size, wanted);
        mtu.on_probe_sent(now, number, size);
        if number < 5 {
            mtu.on_probe_lost(now, number);
            now = mtu.due().unwrap_or(now);
        }
    }
    // The first was only late; the last is lost.
    assert_eq!(mtu.on_acked(0, 1500), Some(1500));
    assert!(!mtu.on_probe_lost(now, 5));
    assert_eq!(mtu.on_lost(now, 5, 1390), None);
    assert_eq!((mtu.current(), mtu.wanted(now)), (1500, None));
}

#[test]
fn mtu_probes_are_always_larger_than_the_mtu() {
    for seed in 0..200 {
        let mut random = ChaCha20Rng::seed_from_u64(seed);
        let mut mtu = MtuDiscovery::new(9000);
        let (mut now, mut sent) = (Instant::ZERO, Vec::new());
        for _ in 0..500 {
            now += Duration::from_millis(u64::from(random.next_u32() % 200));
            if random.next_u32().is_multiple_of(50) {
                now += RAISE_AFTER;
            }
            if let Some(size) = mtu.wanted(now) {
                let is_base = size == mtu.base && !mtu.is_base_confirmed;
                let is_asked = size > mtu.current() || is_base;
                assert!(is_asked && size <= 9000, "seed {seed}: {mtu:?}");
                mtu.on_probe_sent(now, sent.len() as u64, size);
                sent.push(size);
            } else {
                sent.push(mtu.current());
            }
            let number = random.next_u32() as usize % sent.len();
            match random.next_u32() % 4 {
                0 => drop(mtu.on_acked(number as u64, sent[number])),
                1 => drop(mtu.on_lost(now, number as u64, sent[number])),
                2 => drop(mtu.on_probe_lost(now, number as u64)),
                _ => {}
            }
        }
    }
}

#[test]
fn mtu_search_finds_the_path_mtu() {
    assert_eq!(search(1500, 1500), (1500, 1));
    for carries in [1280, 1400, 1420, 1492, 3000, 8999] {
        let (found, _) = search(carries, 9000);
        assert!(
            found <= carries && found + PRECISION >= carries,
            "{found} of {carries}"
        );
    }
}

#[test]
fn probes_that_come_late_count_all_the_same() {
    let mut mtu = MtuDiscovery::new(1500);
    let mut now = Instant::ZERO;
    for number in 0..3 {
        assert_eq!(mtu.wanted(now), Some(1500), "probe {number}");
        mtu.on_probe_sent(now, number, 1500);
        assert!(mtu.on_probe_lost(now, number));
        assert!(number == 2 || mtu.wanted(now).is_none(), "at once again");
        now = mtu.due().unwrap_or(now);
    }
    assert!(mtu.wanted(now).is_some_and(|size| size < 1500));
    assert_eq!(mtu.on_acked(0, 1500), Some(1500));
    assert_eq!((mtu.current(), mtu.wanted(now)), (1500, None));
}

/// A path of 1500 bytes.
fn found() -> MtuDiscovery {
    let mut mtu = MtuDiscovery::new(1500);
    mtu.on_probe_sent(Instant::ZERO, 0, 1500);
    assert_eq!(mtu.on_acked(0, 1500), Some(1500));
    mtu
}

/// Six full packets are lost from number 1 on.
fn fallen() -> MtuDiscovery {
    let mut mtu = found();
    for number in 1..=5 {
        assert_eq!(mtu.on_lost(Instant::ZERO, number, 1500), None);
    }
    assert_eq!(mtu.on_lost(Instant::ZERO, 6, 1500), Some(MTU_BASE));
    mtu
}

#[test]
fn black_hole_falls_back_and_delays_the_next_search() {
    let (mut mtu, mut now) = (fallen(), Instant::ZERO);
    for number in 7..10 {
        assert_eq!(mtu.wanted(now), Some(1500), "probe {number}");
        mtu.on_probe_sent(now, number, 1500);
        assert!(mtu.on_probe_lost(now, number));
        now = mtu.due().unwrap_or(now);
    }
    assert!(mtu.wanted(now).is_some_and(|size| size < 1500));
    assert_eq!(mtu.wanted(now + RAISE_AFTER), Some(1500));
}

#[test]
fn false_black_hole_restores_the_mtu() {
    let mut mtu = fallen();
    assert_eq!(mtu.wanted(Instant::ZERO), Some(1500));
    mtu.on_probe_sent(Instant::ZERO, 7, 1500);
    assert_eq!(mtu.on_acked(7, 1500), Some(1500));
    assert_eq!(mtu.wanted(Instant::ZERO), None);
}

#[test]
fn losses_before_a_full_packet_that_arrived_are_no_black_hole() {
    let mut mtu = found();
    assert_eq!(mtu.on_acked(100, 1500), None);
    for number in 1..100 {
        assert_eq!(mtu.on_lost(Instant::ZERO, number, 1500), None);
    }
    assert_eq!(mtu.current(), 1500);
}

const MS: Duration = Duration::from_millis(1);

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

#[test]
fn size_is_probed_again_after_100_and_400_ms_and_then_a_smaller_one_at_once() {
    let mut mtu = MtuDiscovery::new(1500);
    assert_eq!((mtu.max(), mtu.current()), (1500, MTU_BASE));
    assert_eq!(mtu.due(), None);
    let mut sent = at(0);
    for (number, wait) in [(0, 100), (1, 400)] {
        assert_eq!(mtu.wanted(sent), Some(1500));
        mtu.on_probe_sent(sent, number, 1500);
        assert_eq!(mtu.wanted(sent), None, "one at a time");
        assert!(!mtu.on_probe_lost(sent, 77), "another packet");
        assert!(mtu.on_probe_lost(sent + MS, number));
        assert!(!mtu.on_probe_lost(sent + MS, number), "once");
        let due = sent + MS * (1 + wait);
        assert_eq!(mtu.due(), Some(due));
        assert_eq!(mtu.wanted(due - MS), None);
        sent = due;
    }
    mtu.on_probe_sent(sent, 2, 1500);
    mtu.on_probe_lost(sent, 2);
    assert_eq!(mtu.wanted(sent), Some(1390));
    assert_eq!(mtu.due(), None, "nothing is waited for");
    mtu.check_invariants();
}

#[test]
fn search_ends_within_eight_bytes_and_begins_again_after_ten_minutes() {
    let mut mtu = MtuDiscovery::new(1500);
    let mut number = 0;
    let mut now = at(0);
    // Exactly 1400 bytes pass.
    while let Some(size) = mtu.wanted(now) {
        mtu.on_probe_sent(now, number, size);
        if size <= 1400 {
            mtu.on_acked(number, size);
        } else {
            mtu.on_probe_lost(now, number);
            now = mtu.due().unwrap_or(now);
        }
        number += 1;
        mtu.check_invariants();
    }
    assert!(mtu.current() <= 1400 && mtu.too_large > 1400);
    assert!(mtu.too_large - mtu.current() <= PRECISION, "{mtu:?}");
    assert!(mtu.too_large - mtu.current() > PRECISION / 2, "{mtu:?}");
    // Of the last size that was too large.
    let raise = mtu.raise_at.expect("a size was too large");
    assert_eq!(raise, now + Duration::from_secs(600));
    assert_eq!(mtu.wanted(raise - MS), None);
    assert_eq!(mtu.wanted(raise), Some(1500));
    mtu.on_probe_sent(raise, number, 1500);
    // Lost three times, it is halved from the maximum again.
    for _ in 0..3 {
        now = mtu.due().unwrap_or(raise).max(raise);
        if mtu.wanted(now).is_some() {
            mtu.on_probe_sent(now, number, 1500);
        }
        assert!(mtu.on_probe_lost(now, number));
        number += 1;
    }
    let current = mtu.current();
    let open = 1500 - current - 1;
    assert_eq!(mtu.wanted(now), Some(current + open.div_ceil(2)));
}

#[test]
fn late_packet_leaves_a_larger_probe_in_flight_and_voids_one_of_its_size() {
    let mut mtu = MtuDiscovery::new(9000);
    mtu.on_probe_sent(at(0), 5, 9000);
    assert_eq!(mtu.on_acked(4, MTU_BASE), None);
    assert_eq!(mtu.wanted(at(0)), None, "the probe is in flight");
    assert_eq!(mtu.on_acked(3, 1500), Some(1500));
    assert_eq!(mtu.wanted(at(0)), None, "still");
    assert!(mtu.on_probe_lost(at(0), 5));
    mtu.on_probe_sent(at(100), 6, 9000);
    assert_eq!(mtu.on_acked(5, 9000), Some(9000));
    assert!(!mtu.on_probe_lost(at(100), 6));
}

#[test]
fn size_that_seemed_to_fail_is_probed_before_larger_ones() {
    let mut mtu = MtuDiscovery::new(9000);
    mtu.on_probe_sent(at(0), 0, 1500);
    assert_eq!(mtu.on_acked(0, 1500), Some(1500));
    for number in 1..=6 {
        mtu.on_lost(at(0), number, 1500);
    }
    assert_eq!(mtu.current(), MTU_BASE);
    assert_eq!(mtu.on_acked(20, 1400), Some(1400));
    assert_eq!(mtu.wanted(at(0)), Some(1500));
    assert_eq!(mtu.on_acked(21, 1500), Some(1500));
    assert_eq!(mtu.wanted(at(0)), Some(9000));
}

#[test]
fn eight_sizes_are_searched_and_seven_are_not() {
    let mut mtu = MtuDiscovery::new(1500);
    mtu.too_large = MTU_BASE + 9;
    assert_eq!(mtu.wanted(at(0)), Some(MTU_BASE + 4));
    mtu.too_large = MTU_BASE + 8;
    assert_eq!(mtu.wanted(at(0)), None);
    // Up to the maximum nothing is known to be too large.
    let mtu = MtuDiscovery::new(MTU_BASE + 1);
    assert_eq!(mtu.wanted(at(0)), Some(MTU_BASE + 1));
}

#[test]
fn path_that_carries_the_maximum_is_not_probed_after_ten_minutes() {
    let mtu = found();
    assert_eq!(mtu.wanted(Instant::ZERO + RAISE_AFTER), None);
    let mut mtu = MtuDiscovery::new(1500);
    for number in 0..3 {
        mtu.on_probe_sent(at(0), number, 1500);
        mtu.on_probe_lost(at(0), number);
    }
    // It was only late: nothing is left to look for.
    assert_eq!(mtu.on_acked(0, 1500), Some(1500));
    assert_eq!(mtu.wanted(at(0) + RAISE_AFTER), None);
}

#[test]
fn six_full_packets_lost_in_a_row_are_a_black_hole_and_fewer_or_shorter_ones_are_none() {
    let mut mtu = found();
    for number in 1..=5 {
        assert_eq!(mtu.on_lost(at(0), number, 1500), None);
        assert_eq!(mtu.on_lost(at(0), 100 + number, MTU_LEAST - 1), None);
    }
    // One arrives that was sent after some and before others.
    assert_eq!(mtu.on_acked(50, 1500), None);
    for number in 51..=55 {
        assert_eq!(mtu.on_lost(at(0), number, 1500), None, "{number}");
    }
    assert_eq!(mtu.on_lost(at(0), 50, 1500), Some(MTU_BASE), "the sixth");
    mtu.check_invariants();
    // Nothing shorter than the base is looked for.
    for number in 60..80 {
        assert_eq!(mtu.on_lost(at(0), number, MTU_BASE), None);
    }
}

#[test]
fn short_packets_that_arrive_do_not_hide_a_black_hole() {
    let mut mtu = found();
    for number in 1..=5 {
        assert_eq!(mtu.on_lost(at(0), number, 1500), None);
        assert_eq!(mtu.on_acked(200 + number, 1499), None);
    }
    assert_eq!(mtu.on_lost(at(0), 6, 1500), Some(MTU_BASE));
}

#[test]
fn acknowledgements_of_before_the_black_hole_do_not_raise_the_mtu() {
    let mut mtu = fallen();
    assert_eq!(mtu.on_acked(5, 1500), None);
    assert_eq!(mtu.on_acked(6, 1500), None);
    assert_eq!(mtu.current(), MTU_BASE);
    assert_eq!(mtu.on_acked(7, 1500), Some(1500));
}

#[test]
fn black_hole_voids_the_probe_in_flight_and_its_wait() {
    let mut mtu = MtuDiscovery::new(9000);
    mtu.on_probe_sent(at(0), 0, 1500);
    assert_eq!(mtu.on_acked(0, 1500), Some(1500));
    mtu.on_probe_sent(at(0), 1, 9000);
    assert!(mtu.on_probe_lost(at(0), 1));
    mtu.on_probe_sent(at(100), 2, 9000);
    for number in 3..9 {
        mtu.on_lost(at(101), number, 1500);
    }
    assert_eq!(mtu.current(), MTU_BASE);
    assert!(!mtu.on_probe_lost(at(101), 2));
    assert_eq!(mtu.wanted(at(101)), Some(1500));
    assert_eq!(mtu.due(), None);
}

#[test]
fn other_maximum_or_another_route_begins_the_search_again() {
    let mut mtu = found();
    mtu.set_max(1500);
    assert_eq!(mtu.current(), 1500, "the same maximum");
    mtu.set_max(9000);
    assert_eq!((mtu.max(), mtu.current()), (9000, MTU_BASE));
    let mut mtu = found();
    mtu.reset();
    assert_eq!((mtu.max(), mtu.current()), (1500, MTU_BASE));
    assert_eq!(mtu.wanted(at(0)), Some(1500));
    let small = MtuDiscovery::new(500);
    assert_eq!((small.max(), small.wanted(at(0))), (MTU_BASE, None));
}

#[test]
fn packets_shorter_than_the_mtu_show_a_black_hole_too() {
    for size in [MTU_LEAST, 1200, 1280, 1460] {
        let mut mtu = found();
        for number in 1..=5 {
            assert_eq!(mtu.on_lost(at(0), number, size), None);
            assert_eq!(mtu.on_acked(200 + number, size - 1), None);
        }
        assert_eq!(mtu.on_lost(at(0), 6, size), Some(MTU_BASE), "{size}");
        mtu.check_invariants();
        let mut mtu = found();
        for number in 1..=50 {
            assert_eq!(mtu.on_lost(at(0), number, size), None);
            assert_eq!(mtu.on_acked(200 + number, size), None);
        }
        assert_eq!(mtu.current(), 1500, "as long ones arrive");
    }
}

/// Has the base size probed in vain, from number `first` on; when it is lost for good.
fn lose_base(mtu: &mut MtuDiscovery, first: u64) -> Instant {
    let mut now = at(0);
    for number in first..first + 3 {
        assert_eq!(mtu.base_lost_at(), None);
        assert_eq!(mtu.wanted(now), Some(MTU_BASE), "probe {number}");
        mtu.on_probe_sent(now, number, MTU_BASE);
        assert!(mtu.on_probe_lost(now, number));
        mtu.check_invariants();
        now = mtu.due().unwrap_or(now);
    }
    mtu.base_lost_at().expect("it does not pass")
}

#[test]
fn base_size_that_does_not_pass_any_more_is_noticed_within_a_second() {
    // In use with the base size.
    let mut mtu = MtuDiscovery::new(MTU_BASE);
    mtu.on_validated(MTU_BASE);
    for number in 1..=6 {
        assert_eq!(mtu.on_lost(at(0), number, MTU_BASE), None);
    }
    assert!(lose_base(&mut mtu, 7) <= at(1000));
    assert_eq!(mtu.wanted(at(10_000)), None, "the path is to be validated");
    // In use with a larger one, which is asked for first.
    let mut mtu = fallen();
    for number in 7..10 {
        mtu.on_probe_sent(at(0), number, 1500);
        mtu.on_probe_lost(at(0), number);
    }
    assert!(lose_base(&mut mtu, 10) <= at(1000));
    // One that arrives late confirms it.
    let mut mtu = fallen();
    mtu.on_acked(20, MTU_BASE);
    mtu.on_acked(21, 1500);
    assert_eq!((mtu.current(), mtu.wanted(at(0))), (1500, None));
}

#[test]
fn path_that_came_up_with_the_least_size_is_searched_from_there() {
    let mut mtu = MtuDiscovery::new(1500);
    mtu.on_validated(MTU_LEAST);
    mtu.check_invariants();
    let (mut now, mut number) = (at(0), 0);
    while let Some(size) = mtu.wanted(now) {
        number += 1;
        mtu.on_probe_sent(now, number, size);
        match size <= 1124 {
            true => drop(mtu.on_acked(number, size)),
            false => assert!(mtu.on_probe_lost(now, number)),
        }
        mtu.check_invariants();
        now = mtu.due().unwrap_or(now);
    }
    assert!(
        (1124 - PRECISION..=1124).contains(&mtu.current()),
        "{mtu:?}"
    );
    assert!(now < at(4000), "{now:?}");
    // Chance had taken the challenges of the base size.
    let mut mtu = MtuDiscovery::new(1500);
    mtu.on_validated(MTU_LEAST);
    assert_eq!(mtu.wanted(at(0)), Some(1500));
    mtu.on_probe_sent(at(0), 1, 1500);
    assert_eq!(mtu.on_acked(1, 1500), Some(1500));
    assert_eq!((mtu.wanted(at(0)), mtu.base), (None, MTU_BASE));
}

#[test]
fn peer_that_has_moved_confirms_the_maximum_or_the_base_size() {
    let mut mtu = found();
    mtu.on_moved();
    assert_eq!((mtu.current(), mtu.wanted(at(0))), (MTU_BASE, Some(1500)));
    mtu.on_probe_sent(at(0), 1, 1500);
    assert_eq!(mtu.on_acked(1, 1500), Some(1500));
    assert_eq!(mtu.wanted(at(0)), None);
    let mut mtu = MtuDiscovery::new(MTU_BASE);
    mtu.on_moved();
    assert!(lose_base(&mut mtu, 1) <= at(1000));
}

#[test]
fn arrivals_are_remembered_by_size_and_few_of_them() {
    let mut arrivals = Arrivals::default();
    for number in 0..1000 {
        arrivals.on_arrived(number, 1500 - (number % 50) as u16);
        assert!(arrivals.newest.len() <= ARRIVALS_MAX);
        assert!(arrivals.passed_after(number.saturating_sub(1), 1500 - 49) || number == 0);
    }
    assert!(!arrivals.passed_after(999, 1));
    // An older one that is acknowledged later.
    arrivals.on_arrived(998, 9000);
    assert!(arrivals.passed_after(997, 9000) && !arrivals.passed_after(998, 9000));
}
