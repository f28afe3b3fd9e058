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
/// The same where probes are limited. Ours: a search is 20 kB.
const RAISE_AFTER_LIMITED: Duration = Duration::from_secs(4 * 3600);
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
    raise_after: Duration,
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
            raise_after: RAISE_AFTER,
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
            self.max = max.max(MTU_BASE);
            self.reset();
        }
    }

    /// Probes are limited from now on, or not any more.
    pub(crate) fn set_limited(&mut self, is_limited: bool) {
        self.raise_after = match is_limited {
            true => RAISE_AFTER_LIMITED,
            false => RAISE_AFTER,
        };
    }

    /// The path leads elsewhere now: begin again.
    pub(crate) fn reset(&mut self) {
        *self = Self {
            raise_after: self.raise_after,
            ..Self::new(self.max)
        };
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
            self.raise_at = Some(now + self.raise_after);
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
mod tests;
