//! What other gateways of the site send over the lines of this one.
//!
//! Paths of one name at several gateways are one line. What is measured of a path is what the others
//! leave free of it, so their known traffic is added again before the whole line is forecast.

use std::{collections::BTreeMap, sync::Arc};

use keiro_control::config::{PathIndex, PeerIndex};
use keiro_planner::queueing::{OtherGateway, SharedLine};
use keiro_units::Bandwidth;

/// What another gateway sends over a line.
#[derive(Clone, Debug, PartialEq)]
pub struct LineUse {
    pub gateway: String,
    pub apps: u64,
    /// Its messages without headers [path-selection eq. 2].
    pub load: Bandwidth,
    /// The same on the wire.
    pub sender: OtherGateway,
}

/// The lines that others use, by path; and what each of these paths carries at most, by path and
/// peer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharedLines {
    pub uses: BTreeMap<PathIndex, Arc<[LineUse]>>,
    pub capacities: BTreeMap<(PathIndex, PeerIndex), Bandwidth>,
}

/// Traffic of others that is measured may exceed the known one by this part of it, and this part of
/// the line, and still be that. Ours: gateways publish changes of a load above 30 %, and a measurement
/// is off by some per cent of the line.
const MEASURED_MORE: f64 = 0.3;
const MEASURED_ERROR: f64 = 0.05;
/// Rates that differ by less are one: a measured capacity is as accurate.
const RATES_ALIKE: f64 = 0.05;

impl SharedLines {
    /// What others send over a path.
    pub fn of(&self, path: PathIndex) -> &[LineUse] {
        self.uses.get(&path).map_or(&[], |uses| uses)
    }

    /// What a path carries for all gateways of the site, where this one measures `usable`.
    pub fn line_rate(
        &self,
        path: PathIndex,
        peer: PeerIndex,
        usable: Bandwidth,
        configured: Bandwidth,
    ) -> Bandwidth {
        let uses = self.of(path);
        if uses.is_empty() {
            return usable;
        }
        let capacity = self.capacities.get(&(path, peer));
        let capacity = capacity.map_or(configured, |capacity| (*capacity).min(configured));
        let others = rate_on_wire(uses);
        let measured = capacity.saturating_sub(usable).as_bits_per_second() as f64;
        let known = others.as_bits_per_second() as f64;
        let line = capacity.as_bits_per_second() as f64;
        match measured <= known * (1.0 + MEASURED_MORE) + line * MEASURED_ERROR {
            true => capacity.max(usable),
            // There is traffic that is not the site's.
            false => usable.saturating_add(others).min(capacity),
        }
    }

    /// The line of a path over which this gateway sends at `own_rate` at most; `None`: no other gateway
    /// uses it.
    pub(crate) fn line(&self, path: PathIndex, own_rate: Bandwidth) -> Option<SharedLine> {
        let uses = self.of(path);
        let fastest = uses.iter().map(|other| other.sender.rate).max()?;
        let own = own_rate.as_bits_per_second() as f64;
        let rate = match fastest.as_bits_per_second() as f64 > own * (1.0 + RATES_ALIKE) {
            true => fastest,
            false => own_rate,
        };
        let alike = rate.as_bits_per_second() as f64 * (1.0 - RATES_ALIKE);
        let other = |other: &LineUse| OtherGateway {
            rate: match other.sender.rate.as_bits_per_second() as f64 >= alike {
                true => rate,
                false => other.sender.rate,
            },
            ..other.sender
        };
        Some(SharedLine {
            rate,
            own_rate,
            others: uses.iter().map(other).collect(),
        })
    }
}

/// The mean rate of messages without headers: their part of Q [path-selection eq. 2].
pub fn rate_of_messages(uses: &[LineUse]) -> Bandwidth {
    let loads = uses.iter().map(|other| other.load);
    loads.fold(Bandwidth::ZERO, Bandwidth::saturating_add)
}

/// The same with headers.
pub(crate) fn rate_on_wire(uses: &[LineUse]) -> Bandwidth {
    let rates = uses.iter().map(|other| other.sender.offered.rate());
    rates.fold(Bandwidth::ZERO, Bandwidth::saturating_add)
}

/// The capacity that is planned with: the known one while a new measurement is within the error of
/// measuring, and the configured rate where it is hardly more, because the path is paced at that.
pub fn steady_capacity(
    known: Option<Bandwidth>,
    measured: Option<Bandwidth>,
    configured: Bandwidth,
) -> Bandwidth {
    /// Ours: the capacity at rest is within 1 % of the line.
    const NOISE: f64 = 0.03;
    let number = |rate: Bandwidth| rate.as_bits_per_second() as f64;
    let Some(measured) = measured else {
        return configured;
    };
    if number(measured) >= number(configured) * (1.0 - RATES_ALIKE) {
        return configured;
    }
    let is_same =
        |known: &Bandwidth| (number(*known) - number(measured)).abs() <= NOISE * number(*known);
    known.filter(is_same).unwrap_or(measured)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use keiro_planner::{
        delay::AppSpec,
        queueing::{Offered, Traffic},
    };
    use keiro_units::ByteCount;

    use super::*;
    use crate::forecast::wire_format;

    const LINE: Bandwidth = Bandwidth::from_mbit_per_second(100);
    const PATH: PathIndex = PathIndex(0);
    const PEER: PeerIndex = PeerIndex(0);

    /// Another gateway sends 45 Mbit/s, which are 47.2 with headers.
    fn shared(rate: Bandwidth) -> SharedLines {
        let spec = AppSpec {
            length: ByteCount::new(100_000),
            interval: Duration::from_micros(17_800),
            latency_target: None,
        };
        let on_line = LineUse {
            gateway: "gw2".into(),
            apps: 1,
            load: spec.rate(),
            sender: OtherGateway {
                rate,
                offered: Offered::of(&[Traffic::paper(spec)], &wire_format(rate, 0.0)),
            },
        };
        SharedLines {
            uses: [(PATH, [on_line].into())].into(),
            capacities: [((PATH, PEER), LINE)].into(),
        }
    }

    fn mbit(rate: u64) -> Bandwidth {
        Bandwidth::from_mbit_per_second(rate)
    }

    #[test]
    fn known_traffic_is_not_taken_off_the_line_twice() {
        let line = |usable| shared(LINE).line_rate(PATH, PEER, mbit(usable), LINE);
        // Measured as it is known, not seen at all, and a little too much or little of it.
        for usable in [53, 100, 49, 58, 36] {
            assert_eq!(line(usable), LINE, "{usable}");
        }
        // Of 80 Mbit/s some 33 are not the site's.
        let left = line(20).as_bits_per_second();
        assert!((67_000_000..67_500_000).contains(&left), "{left}");
        // Without other gateways, what is measured counts.
        let alone = SharedLines::default();
        assert_eq!(alone.line_rate(PATH, PEER, mbit(53), LINE), mbit(53));
    }

    #[test]
    fn the_line_is_as_fast_as_the_fastest_gateway_on_it() {
        let line = shared(LINE).line(PATH, mbit(50)).unwrap();
        assert_eq!((line.rate, line.own_rate), (LINE, mbit(50)));
        // What differs by an error of measuring is the same.
        let line = shared(mbit(103)).line(PATH, LINE).unwrap();
        assert_eq!((line.rate, line.others[0].rate), (LINE, LINE));
        let line = shared(mbit(30)).line(PATH, LINE).unwrap();
        assert_eq!((line.rate, line.others[0].rate), (LINE, mbit(30)));
        assert_eq!(shared(LINE).line(PathIndex(1), LINE), None);
    }

    #[test]
    fn a_capacity_is_kept_while_measurements_are_within_their_error() {
        let configured = mbit(200);
        let of = |known, measured| steady_capacity(known, measured, configured);
        assert_eq!(of(None, None), configured);
        assert_eq!(of(None, Some(mbit(195))), configured);
        assert_eq!(of(None, Some(mbit(100))), mbit(100));
        assert_eq!(of(Some(mbit(100)), Some(mbit(102))), mbit(100));
        assert_eq!(of(Some(mbit(100)), Some(mbit(110))), mbit(110));
        // Another path, or another configuration, is not measured yet.
        assert_eq!(of(Some(mbit(100)), None), configured);
    }
}
