//! Path MTU discovery: the largest packet that a path carries, by probing with padding (RFC 8899).
//!
//! A path comes up with a size that a challenge has confirmed, the base size nearly always (`validation`). Larger ones
//! are searched from there. Several losses in a row of packets of some size, while none as long arrived, say that the
//! path carries less than before: the base size is used again and has to be confirmed. If it is not, the path goes
//! down, and challenges find out what it carries.

use std::{collections::VecDeque, time::Duration};

use keiro_units::Instant;

/// Assumed to pass everywhere (RFC 8899 §5.1.2 BASE_PLPMTU as IPv6 packet): IP bytes.
pub(crate) const MTU_BASE: u16 = 1280;
/// The least that a path has to carry to be used: IP bytes. RFC 8899 §5.1.2 leaves the minimum to the protocol;
/// RFC 1122 §3.3.3 has every host take 576.
pub(crate) const MTU_LEAST: u16 = 576;
/// Probes of one size before it is taken as too large (RFC 8899 §5.1.2 MAX_PROBES).
const PROBES_MAX: u8 = 3;
/// Wait after the first lost probe of a size; four times as long after the second. Ours: a peer
/// that gets no processor for that long is rare.
const PROBE_WAIT: Duration = Duration::from_millis(100);
/// The search ends when it is known this closely: a step of IP options or one tunnel tag.
const PRECISION: u16 = 8;
/// A larger size is looked for again after this time (RFC 8899 §5.1.1 PMTU_RAISE_TIMER).
const RAISE_AFTER: Duration = Duration::from_secs(600);
/// Packets lost in a row, while nothing as long that was sent after them arrived, that say "black hole".
const BLACK_HOLE_LOSSES: u32 = 6;
/// Arrivals that are remembered, each longer than those after it. Ours: traffic has few sizes.
const ARRIVALS_MAX: usize = 8;

/// MTU discovery of one path. All sizes are IP bytes.
#[derive(Debug)]
pub(crate) struct MtuDiscovery {
    max: u16,
    current: u16,
    /// Smallest size known not to pass; above `current`.
    too_large: u16,
    probe: Option<Probe>,
    lost_in_a_row: u8,
    /// The size with which the path came up: what is fallen back to.
    base: u16,
    /// `base` passes, as far as is known; else it is probed.
    is_base_confirmed: bool,
    /// Since when it is known that `base` passes no longer.
    base_lost_at: Option<Instant>,
    losses: Losses,
    arrivals: Arrivals,
    /// A size that passed and seems not to any more. It is probed before any other, because congestion
    /// looks the same.
    suspected: Option<u16>,
    raise_at: Option<Instant>,
    /// After a probe was lost: the other side may only be slow.
    wait_until: Instant,
    /// Acknowledgements of packets up to this number are ignored: their sizes do not pass any more.
    ignore_acks_through: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    number: u64,
    size: u16,
}

/// Losses in a row while nothing as long as the shortest of them arrived.
#[derive(Clone, Copy, Debug, Default)]
struct Losses {
    count: u32,
    /// Size of the shortest of them.
    shortest: Option<u16>,
}

/// The newest packets that arrived, by their sizes: of those before them and no longer, congestion took what is
/// lost.
#[derive(Debug, Default)]
struct Arrivals {
    /// (number, size), of growing numbers and falling sizes.
    newest: VecDeque<(u64, u16)>,
}

impl Arrivals {
    fn on_arrived(&mut self, number: u64, size: u16) {
        if self.passed_after(number, size) {
            return;
        }
        self.newest
            .retain(|(known, of)| *known > number || *of > size);
        // Acknowledgements may come in another order: what is shorter and newer stays behind it.
        let place = self.newest.partition_point(|(known, _)| *known < number);
        self.newest.insert(place, (number, size));
        if self.newest.len() > ARRIVALS_MAX {
            self.newest.pop_front();
        }
    }

    /// A packet at least as long that was sent after packet `number` has arrived.
    fn passed_after(&self, number: u64, size: u16) -> bool {
        self.newest
            .iter()
            .any(|(known, of)| *known > number && *of >= size)
    }
}

impl MtuDiscovery {
    pub(crate) fn new(max: u16) -> Self {
        let max = max.max(MTU_BASE);
        Self {
            max,
            current: MTU_BASE,
            too_large: max.saturating_add(1),
            probe: None,
            lost_in_a_row: 0,
            base: MTU_BASE,
            is_base_confirmed: true,
            base_lost_at: None,
            losses: Losses::default(),
            arrivals: Arrivals::default(),
            suspected: None,
            raise_at: None,
            wait_until: Instant::ZERO,
            ignore_acks_through: None,
        }
    }

    pub(crate) fn current(&self) -> u16 {
        self.current
    }

    /// Largest size that is tried.
    pub(crate) fn max(&self) -> u16 {
        self.max
    }

    /// Searches again if the largest size that may be tried has changed.
    pub(crate) fn set_max(&mut self, max: u16) {
        if max.max(MTU_BASE) != self.max {
            *self = Self::new(max);
        }
    }

    /// The path leads elsewhere now: begin again.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.max);
    }

    /// The path has come up: a challenge of `size` was answered.
    pub(crate) fn on_validated(&mut self, size: u16) {
        self.reset();
        if size < MTU_BASE {
            (self.base, self.current) = (size, size);
            // It seems not to pass; that all challenges of it were lost by chance is found out first.
            self.too_large = MTU_BASE;
            self.suspected = Some(self.max);
        }
    }

    /// The path leads to another address, which has answered a short challenge only.
    pub(crate) fn on_moved(&mut self) {
        self.reset();
        self.is_base_confirmed = false;
        self.suspected = Some(self.max).filter(|max| *max > self.base);
    }

    /// Packets of the base size do not arrive any more: the path has to be validated again. Since when.
    pub(crate) fn base_lost_at(&self) -> Option<Instant> {
        self.base_lost_at
    }

    /// Size of the probe to send now, if any.
    pub(crate) fn wanted(&self, now: Instant) -> Option<u16> {
        if self.probe.is_some() || now < self.wait_until || self.base_lost_at.is_some() {
            return None;
        }
        if self.suspected.is_some() {
            return self.suspected;
        }
        if self.raise_at.is_some_and(|at| now >= at) && self.current < self.max {
            return Some(self.max);
        }
        if !self.is_base_confirmed {
            return Some(self.base);
        }
        let open = self.too_large - self.current - 1;
        if open == 0 || (open < PRECISION && self.too_large <= self.max) {
            return None;
        }
        // Nearly every path carries the maximum: ask for that first, then halve.
        Some(if self.too_large > self.max {
            self.max
        } else {
            self.current + open.div_ceil(2)
        })
    }

    /// When a probe that waits may be sent; `None`: none waits.
    pub(crate) fn due(&self) -> Option<Instant> {
        let waits = self.lost_in_a_row > 0 && self.wanted(self.wait_until).is_some();
        waits.then_some(self.wait_until)
    }

    pub(crate) fn on_probe_sent(&mut self, now: Instant, number: u64, size: u16) {
        if self.raise_at.is_some_and(|at| now >= at) {
            self.raise_at = None;
            self.too_large = self.max.saturating_add(1);
        }
        self.probe = Some(Probe { number, size });
    }

    /// A packet of `size` arrived; the new MTU if it changed.
    pub(crate) fn on_acked(&mut self, number: u64, size: u16) -> Option<u16> {
        if self
            .losses
            .shortest
            .is_some_and(|shortest| size >= shortest)
        {
            self.losses = Losses::default();
        }
        self.arrivals.on_arrived(number, size);
        if self.probe.is_some_and(|probe| probe.number == number) {
            self.probe = None;
            self.lost_in_a_row = 0;
        }
        // Only probes are longer than the MTU; one that was declared lost may merely be late.
        let void = self.ignore_acks_through.is_some_and(|last| number <= last);
        self.is_base_confirmed |= size >= self.base && !void;
        if size <= self.current || size > self.max || void {
            return None;
        }
        self.current = size;
        if size >= MTU_BASE {
            self.base = MTU_BASE;
        }
        self.suspected = self.suspected.filter(|suspected| *suspected > size);
        if self.too_large <= size {
            self.too_large = self.max.saturating_add(1);
            self.raise_at = None;
        }
        // A probe of a size that is known to pass is of no use any more, nor are the losses before it.
        self.probe = self.probe.filter(|probe| probe.size > size);
        self.lost_in_a_row = 0;
        Some(size)
    }

    /// A packet was lost or PTO-retransmitted; `true`: it was the probe.
    pub(crate) fn on_probe_lost(&mut self, now: Instant, number: u64) -> bool {
        let Some(probe) = self.probe.filter(|probe| probe.number == number) else {
            return false;
        };
        self.probe = None;
        self.lost_in_a_row += 1;
        self.wait_until = now + PROBE_WAIT * u32::from(self.lost_in_a_row).pow(2);
        if self.lost_in_a_row >= PROBES_MAX {
            self.lost_in_a_row = 0;
            self.wait_until = now;
            if probe.size <= self.base {
                self.base_lost_at = Some(now).filter(|_| !self.is_base_confirmed);
                return true;
            }
            self.too_large = self.too_large.min(probe.size);
            self.suspected = None;
            self.raise_at = Some(now + RAISE_AFTER);
        }
        true
    }

    /// A packet of `size` was lost: later ones arrived; the new MTU if it changed.
    pub(crate) fn on_lost(&mut self, now: Instant, number: u64, size: u16) -> Option<u16> {
        // Longer ones are probes, or left before the MTU fell.
        let says_something = (MTU_LEAST..=self.current).contains(&size);
        let waits = self.current == self.base && !self.is_base_confirmed;
        if !says_something || waits || self.arrivals.passed_after(number, size) {
            return None;
        }
        let shortest = self.losses.shortest.map_or(size, |known| known.min(size));
        self.losses.shortest = Some(shortest);
        self.losses.count += 1;
        if self.losses.count < BLACK_HOLE_LOSSES {
            return None;
        }
        self.losses = Losses::default();
        // A probe in flight belongs to the search before.
        self.probe = None;
        self.lost_in_a_row = 0;
        self.wait_until = now;
        self.is_base_confirmed = false;
        self.ignore_acks_through = Some(number);
        if self.current == self.base {
            self.suspected = None;
            return None;
        }
        self.suspected = Some(self.current);
        self.current = self.base;
        Some(self.base)
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        assert!(
            (self.base..=self.max).contains(&self.current)
                && (MTU_LEAST..=MTU_BASE).contains(&self.base),
            "the MTU is between its base and its maximum"
        );
        assert!(
            self.current < self.too_large && self.too_large <= self.max.saturating_add(1),
            "sizes that are too large are above the MTU"
        );
        assert!(
            self.losses.count < BLACK_HOLE_LOSSES
                && (self.losses.count > 0) == self.losses.shortest.is_some(),
            "losses in a row"
        );
        let newest = &self.arrivals.newest;
        assert!(
            newest.len() <= ARRIVALS_MAX
                && newest
                    .iter()
                    .zip(newest.iter().skip(1))
                    .all(|((number, size), (later, shorter))| number < later && size > shorter),
            "newer arrivals are remembered as far as they are shorter"
        );
        assert!(
            self.base_lost_at.is_none() || !self.is_base_confirmed,
            "a base size that is lost is not confirmed"
        );
        assert!(self.lost_in_a_row < PROBES_MAX, "lost probes of one size");
    }
}

#[cfg(test)]
mod tests {
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
    fn whatever_happens_in_whatever_order_only_larger_sizes_are_asked_for() {
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
    fn search_finds_what_passes() {
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
    fn black_hole_falls_back_and_is_not_tried_at_once() {
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
    fn what_only_looked_like_a_black_hole_leaves_no_smaller_mtu_behind() {
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
}
