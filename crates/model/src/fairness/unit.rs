//! What a weight of 1 is to get where the queue has a certain length.
//!
//! Every ingress that shares a bottleneck has to use the same function of the queue, or shares are not as
//! the weights. Three things are common to them without any agreement: the queue q, what the bottleneck
//! carries, C, and what the gateway reports at which they all arrive, u: the largest rate per weight of
//! tenants that are limited. With S for the queue at which a weight of 1 gets its unit,
//!
//! ```text
//! u is reported:    ln(rate) = 0.98·ln(u) + 0.02·ln(C) + curve(q)    at most ln(40·C) + 2·ln(S/q)
//! it is not:        ln(rate) = ln(C) + 2·ln(S/q)
//! configured unit:  ln(rate) = ln(unit) + curve(q)
//! ```
//!
//! The curve is flat, so a tenant that passes several queues gets little less than one that passes a
//! single one. The law of C alone has to span any number of tenants, so it is steep, and such a tenant
//! gets a ninth over three queues.
//!
//! A unit that follows the own rate agrees with any shares, so a gateway that hears of one peer alone
//! reports none. Groups that arrive at different gateways and share a bottleneck are drawn together by
//! the part of C only, in a minute or more. Beyond 40·C·(S/q)² a report is of another bottleneck.

use super::controller::{FoundUnit, Line};
use keiro_units::Bandwidth;

/// Queueing time at which a weight of 1 gets its unit, s: seven full packets at 50 Mbit/s, a seventh of
/// the paper's buffer `[fairness §3.1]`. Ours, as all below, by experiments (`docs/fairness.md`).
pub(super) const QUEUE_AT_UNIT: f64 = 0.0018;
/// Beside that, a full packet's time where the line's rate is known: a shorter queue is empty
/// now and then.
const PACKETS_AT_UNIT: f64 = 1.0;
/// ln(q) per ln(rate) above.
const FLATNESS: f64 = 4.0;
/// ln(rate) per ln(q) below, where capacity is left.
///
/// A queue of two packets is half a millisecond at 50 Mbit/s, and is empty now and then: who is alone
/// and may have twice its unit is to find its queue above that, so that it uses all of the line.
const STEEP_LOW: f64 = 2.0;
/// Below, there is as good as no queue, s: less than a full packet at 100 Mbit/s.
const QUEUE_NONE: f64 = 0.0001;
/// ln(rate) per ln(q) there.
const STEEP_NONE: f64 = 3.0;
/// The shortest queue that is distinguished from none, s: what the kernel's stamps vary by.
const QUEUE_MIN: f64 = 0.000_01;
/// Above, the queue is longer than what fairness over several bottlenecks is worth, s.
const QUEUE_HIGH: f64 = 0.03;
/// ln(rate) per ln(q) there.
const STEEP_HIGH: f64 = 2.0;
/// ln(rate) per ln(q) where nothing is reported. With 1 the buffer is full before the queue is long enough
/// for many tenants; with 3 an error of the queue costs too much.
const STEEP_CAPACITY: f64 = 2.0;
/// The part of the capacity in a reported unit. Ours: with an eighth the queue is longer by the root of the sum of
/// weights, which a small buffer does not hold and which newcomers take for the way.
const ANCHOR: f64 = 0.02;
/// How far, ln(rate), a reported unit may lie above the law of the capacity: three queues are nine times,
/// and as much again when all begin. Beyond that it is the unit of another bottleneck.
const REPORTED_ABOVE: f64 = 3.7;
/// No tenant is faster than the line by more. Ours: over a long way a rate that rises until a queue is seen
/// overflows a buffer of a tenth of the round trip.
const ABOVE_LINE: f64 = 1.03;
/// The unit where nothing at all is known, bit/s: the default of a configured one.
const UNKNOWN: f64 = 4e6;
/// A configured unit contradicts what is found if it is off by such a factor: `docs/fairness.md` promises shares for a
/// unit within it.
const CONTRADICTS: f64 = 2.0;
/// The contradiction ends within this one: far enough below that it does not come and go.
const AGREES: f64 = 1.6;

/// Where the curve of one tenant on one path lies.
#[derive(Debug)]
pub(super) struct Unit {
    /// bit/s, as are all below.
    configured: Option<f64>,
    capacity: Option<f64>,
    reported: Option<f64>,
    /// Wire bytes of the largest packet.
    packet: f64,
    /// The configured unit is too large by [`CONTRADICTS`]: the found one is used.
    too_large: bool,
    too_small: bool,
}

impl Unit {
    pub(super) fn new(configured: Option<Bandwidth>, packet: f64) -> Self {
        Self {
            configured: configured.map(bits),
            capacity: None,
            reported: None,
            packet,
            too_large: false,
            too_small: false,
        }
    }

    pub(super) fn on_line(&mut self, line: Line) {
        self.capacity = line.capacity.map(bits);
        self.reported = line.reported_unit.map(bits);
        let Some(configured) = self.configured else {
            return;
        };
        let factor = |held| if held { AGREES } else { CONTRADICTS };
        // No unit is larger than the line; how much smaller it is the line does not say.
        let most = [self.reported, self.capacity].into_iter().flatten();
        let most = most.fold(f64::INFINITY, f64::min);
        self.too_large = configured > most * factor(self.too_large);
        let least = self.reported.filter(|reported| *reported <= most);
        self.too_small = least.is_some_and(|least| configured * factor(self.too_small) < least);
    }

    pub(super) fn set_packet(&mut self, packet: f64) {
        self.packet = packet;
    }

    /// The rate, bit/s, to which levels are related.
    pub(super) fn reference(&self) -> f64 {
        self.configured.unwrap_or(UNKNOWN)
    }

    /// Where a tenant begins, ln(rate / reference), before what every beginning is lower by.
    pub(super) fn beginning(&self) -> f64 {
        if self.is_configured() {
            return 0.0;
        }
        let unit = match (self.reported, self.capacity) {
            (Some(reported), Some(capacity)) => reported.min(capacity),
            (Some(reported), None) => reported,
            // Tenants of a weight of 54 are not rare.
            (None, Some(capacity)) => capacity / 54.0,
            (None, None) => UNKNOWN,
        };
        (unit / self.reference()).ln()
    }

    /// How much longer the queue is at which a weight of 1 gets its unit, because of slow packets.
    pub(super) fn scale(&self) -> f64 {
        match self.capacity.filter(|_| !self.is_configured()) {
            Some(capacity) => 1.0 + PACKETS_AT_UNIT * self.packet * 8.0 / capacity / QUEUE_AT_UNIT,
            None => 1.0,
        }
    }

    /// What a weight of 1 is to get, as ln(rate / reference), without loss. `queue`: s.
    pub(super) fn level(&self, queue: f64, weight: f64) -> f64 {
        let queue = queue / self.scale();
        if self.is_configured() {
            return curve(queue);
        }
        let by_capacity = self.capacity.map(|capacity| {
            let queue = QUEUE_AT_UNIT / queue.max(QUEUE_MIN);
            capacity.ln() + STEEP_CAPACITY * queue.ln()
        });
        let level = match (self.reported, self.capacity) {
            (Some(reported), Some(capacity)) => {
                let unit = reported.ln() * (1.0 - ANCHOR) + capacity.ln() * ANCHOR;
                let most = by_capacity.map_or(f64::INFINITY, |level| level + REPORTED_ABOVE);
                (unit + curve(queue)).min(most)
            }
            (Some(reported), None) => reported.ln() + curve(queue),
            (None, _) => by_capacity.unwrap_or_else(|| UNKNOWN.ln() + curve(queue)),
        };
        let line = self
            .capacity
            .map_or(f64::INFINITY, |capacity| capacity * ABOVE_LINE / weight);
        level.min(line.ln()) - self.reference().ln()
    }

    /// The configured unit is in force.
    fn is_configured(&self) -> bool {
        self.configured.is_some() && !self.too_large
    }

    /// 0: nothing is reported.
    pub(super) fn reported_mbit(&self) -> f64 {
        self.reported.unwrap_or(0.0) / 1e6
    }

    /// 0: it is not known.
    pub(super) fn capacity_mbit(&self) -> f64 {
        self.capacity.unwrap_or(0.0) / 1e6
    }

    pub(super) fn found(&self) -> Option<FoundUnit> {
        let most = [self.reported, self.capacity].into_iter().flatten();
        let found = most.reduce(f64::min)?;
        Some(FoundUnit {
            found: Bandwidth::from_bits_per_second(found as u64),
            contradicts_configured: self.too_large || self.too_small,
        })
    }
}

/// What a queue, s, allows, as ln(rate / unit).
fn curve(queue: f64) -> f64 {
    let flat = (QUEUE_AT_UNIT / queue.clamp(QUEUE_AT_UNIT, QUEUE_HIGH)).ln() / FLATNESS;
    let low = STEEP_LOW * (QUEUE_AT_UNIT / queue.clamp(QUEUE_NONE, QUEUE_AT_UNIT)).ln()
        + STEEP_NONE * (QUEUE_NONE / queue.clamp(QUEUE_MIN, QUEUE_NONE)).ln();
    let high = STEEP_HIGH * (queue.max(QUEUE_HIGH) / QUEUE_HIGH).ln();
    flat + low - high
}

fn bits(rate: Bandwidth) -> f64 {
    rate.as_bits_per_second().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: f64 = 1e6;

    fn line(capacity: Option<u64>, reported: Option<u64>) -> Line {
        Line {
            capacity: capacity.map(Bandwidth::from_mbit_per_second),
            reported_unit: reported.map(Bandwidth::from_mbit_per_second),
        }
    }

    /// What a weight of 1 is to get, Mbit/s.
    fn rate(configured: Option<u64>, line: Line, queue: f64) -> f64 {
        let configured = configured.map(Bandwidth::from_mbit_per_second);
        let mut unit = Unit::new(configured, 1500.0);
        unit.on_line(line);
        unit.level(queue, 1.0).exp() * unit.reference() / MBIT
    }

    #[test]
    fn a_configured_unit_is_an_upper_one() {
        let at_unit = QUEUE_AT_UNIT;
        assert!((rate(Some(4), line(None, None), at_unit) - 4.0).abs() < 1e-9);
        // Too small a one stays.
        assert!((rate(Some(4), line(Some(100), Some(40)), at_unit) - 4.0).abs() < 1e-9);
        // A full packet of this line takes 0.12 ms of the queue.
        let found = rate(Some(90), line(Some(100), Some(40)), at_unit + 0.000_12);
        assert!((40.0..43.0).contains(&found), "{found}");
        let found = rate(Some(90), line(Some(10), None), at_unit);
        assert!((10.0..31.0).contains(&found), "{found}");
    }

    #[test]
    fn a_unit_that_is_off_by_two_is_noticed_and_one_that_is_not_is_not() {
        let contradicts = |configured, line| {
            let configured = Some(Bandwidth::from_mbit_per_second(configured));
            let mut unit = Unit::new(configured, 1500.0);
            unit.on_line(line);
            unit.found().map(|found| found.contradicts_configured)
        };
        assert_eq!(contradicts(40, line(None, None)), None);
        for (unit, wrong) in [(19, true), (21, false), (79, false), (81, true)] {
            assert_eq!(
                contradicts(unit, line(Some(100), Some(40))),
                Some(wrong),
                "{unit}"
            );
        }
        // The line alone does not show that a unit is too small.
        for (unit, wrong) in [(1, false), (199, false), (201, true)] {
            assert_eq!(
                contradicts(unit, line(Some(100), None)),
                Some(wrong),
                "{unit}"
            );
        }
    }

    #[test]
    fn a_report_of_another_bottleneck_is_bounded_by_the_line() {
        let queue = 10.0 * QUEUE_AT_UNIT;
        let [own, other] =
            [5, 1000].map(|reported| rate(None, line(Some(10), Some(reported)), queue));
        assert!(own < 4.0 && other < 12.0, "{own}, {other}");
        let long = rate(None, line(Some(10), Some(1000)), 10.0 * queue);
        assert!(long < 0.5, "{long}");
    }
}
