//! What the gateway at which tenants arrive reports to those that send them: the largest rate per weight
//! of tenants that are limited.
//!
//! The largest, because a tenant that is limited elsewhere too gets less, and what it leaves is for the
//! others. What counts is what has arrived, by this gateway's own count and weights: a sender can say
//! that a tenant is limited, but not how much it is worth.

use std::time::Duration;

use super::controller::Weight;
use keiro_units::{Bandwidth, ByteCount, Instant};

/// Reports are at least so far apart. Ours: a rate changes by a tenth in as long.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// A report is in force for so long. Ours: as long as round trips are, and a few lost reports.
pub const REPORT_LIFETIME: Duration = Duration::from_secs(2);
/// A tenant counts as limited for so long after its sender has said so. Ours: slow tenants send a packet
/// in as long.
const LIMITED_FOR: Duration = Duration::from_secs(1);
/// Time constant of an arriving rate, s. Ours: three reports.
const SMOOTHING: f64 = 0.3;
/// Packets that a sample of it has at least. Ours: one more or less is an eighth.
const SAMPLE_PACKETS: u64 = 8;
/// Time, s, after which a sample may have fewer. Ours: as [`LIMITED_FOR`], slow tenants send a packet in as long.
const SAMPLE_TIME: f64 = 1.0;
/// A report differs from the last one by this factor at most. Ours: one sample that is wrong moves rates by no more
/// than they change within a second or two.
const CHANGE_MAX: f64 = 1.25;

/// What arrives of one tenant from one peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct ArrivingRate {
    since: Instant,
    bytes: u64,
    packets: u64,
    /// bit/s; `None`: there was no sample yet.
    rate: Option<f64>,
    limited_at: Option<Instant>,
}

/// The unit that one gateway reports to its peers.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommonUnit {
    checked_at: Option<Instant>,
    /// When the last report was made.
    at: Option<Instant>,
    /// bit/s.
    unit: f64,
}

impl ArrivingRate {
    /// A packet has arrived.
    pub fn on_packet(&mut self, bytes: ByteCount) {
        self.packets += 1;
        self.bytes = self.bytes.saturating_add(bytes.get());
    }

    /// Its sender says that more waits than it lets go.
    pub fn on_limited(&mut self, now: Instant) {
        if !self.is_limited(now) {
            (self.since, self.bytes, self.packets, self.rate) = (now, 0, 0, None);
        }
        self.limited_at = Some(now);
    }

    /// Its sender has said so of late.
    pub fn is_limited(&self, now: Instant) -> bool {
        self.limited_at
            .is_some_and(|at| now.saturating_duration_since(at) < LIMITED_FOR)
    }

    /// Its rate per weight; `None`: it is not limited, or not known yet. Call it once per report.
    pub fn poll(&mut self, now: Instant, weight: Weight) -> Option<f64> {
        if !self.is_limited(now) {
            return None;
        }
        let time = now.saturating_duration_since(self.since).as_secs_f64();
        let is_sample = self.packets >= SAMPLE_PACKETS || time >= SAMPLE_TIME;
        if is_sample && time > 0.0 {
            let sample = self.bytes as f64 * 8.0 / time;
            let part = 1.0 - (-time / SMOOTHING).exp();
            let known = self.rate.unwrap_or(sample);
            self.rate = Some(known + (sample - known) * part);
            (self.since, self.bytes, self.packets) = (now, 0, 0);
        }
        Some(self.rate? / weight.get())
    }
}

impl CommonUnit {
    /// A report may be made.
    pub fn is_due(&self, now: Instant) -> bool {
        self.checked_at
            .is_none_or(|at| now.saturating_duration_since(at) >= REPORT_INTERVAL)
    }

    /// Takes the largest rate per weight, bit/s, of the limited tenants of each peer that has some; what is
    /// to be reported to these peers. `None`: nothing. Of one peer alone nothing is reported: its own
    /// rate says nothing of what others do.
    pub fn report(
        &mut self,
        now: Instant,
        largest: impl Iterator<Item = f64>,
    ) -> Option<Bandwidth> {
        self.checked_at = Some(now);
        let is_recent = self
            .at
            .is_some_and(|at| now.saturating_duration_since(at) < REPORT_LIFETIME);
        let (mut peers, mut unit) = (0, 0.0_f64);
        for of_peer in largest {
            peers += 1;
            unit = unit.max(of_peer);
        }
        if peers < 2 || unit < 1.0 {
            return None;
        }
        if is_recent && self.unit > 0.0 {
            unit = unit.clamp(self.unit / CHANGE_MAX, self.unit * CHANGE_MAX);
        }
        self.at = Some(now);
        self.unit = unit;
        Some(Bandwidth::from_bits_per_second(unit as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_rate_counts_from_when_its_tenant_is_limited_and_only_while_it_is() {
        let mut arriving = ArrivingRate::default();
        arriving.on_packet(ByteCount::new(1_000_000));
        assert_eq!(arriving.poll(at(0), Weight::ONE), None);
        arriving.on_limited(at(1000));
        for _ in 0..10 {
            arriving.on_packet(ByteCount::new(1250));
        }
        let weight = Weight::new(2.0).expect("above 0");
        let rate = arriving.poll(at(1100), weight).expect("it is limited");
        // 100 kbit in 100 ms.
        assert!((rate / 500_000.0 - 1.0).abs() < 1e-9, "{rate}");
        assert_eq!(arriving.poll(at(2000), weight), None);
    }

    #[test]
    fn reports_are_the_largest_of_two_peers_at_least_and_change_slowly() {
        let mut unit = CommonUnit::default();
        assert!(unit.is_due(at(0)));
        assert_eq!(unit.report(at(0), [5e6].into_iter()), None);
        assert!(!unit.is_due(at(99)) && unit.is_due(at(100)));
        let mut report = |ms: u64, rates: [f64; 2]| {
            let report = unit.report(at(ms), rates.into_iter());
            report.map(Bandwidth::as_bits_per_second)
        };
        assert_eq!(report(100, [5e6, 4e6]), Some(5_000_000));
        assert_eq!(report(200, [50e6, 4e6]), Some(6_250_000));
        assert_eq!(report(300, [1e6, 1e6]), Some(5_000_000));
        // The last one is out of force.
        assert_eq!(report(2300, [50e6, 4e6]), Some(50_000_000));
        assert_eq!(report(2400, [0.0, 0.0]), None);
    }
}
