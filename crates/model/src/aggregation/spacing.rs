//! The bandwidth of a path from the spacing of an aggregate's copies, `[aggregation §3.2.2]`.
//!
//! Copies leave back to back, so the bottleneck spreads them: B = A/T (eq. 3), A being the IP bytes
//! of a copy and T the time between two copies' arrivals. One pair is no estimate: others' packets
//! between two copies widen T, and stamps that are late, or set for several packets at once, narrow
//! it. So the copies of an aggregate (all their datagrams, where they are several) are a short train
//! as [`crate::capacity`] knows them, and [`crate::bottleneck`] finds the least spread that enough
//! of the newest trains agree on, and notices when it changes.
//!
//! Copies that take less time at the bottleneck than [`SPAN_MIN`] are too short for the stamps: what
//! they say is not given out. The largest of each [`TAKEN_EVERY`] are taken, because they say most.
//!
//! The sender's own processor may leave time between copies, and then short ones say less than there is. Where the
//! path's other trains, which are longer, have lately shown a faster path, copies that are too short at that
//! rate are not believed: if it has become slower, new trains show it within a second or two.
//!
//! With N = 1 there are no copies to space. Then the path's other trains are used, if there are any, or
//! the last estimate from copies; an [`Estimate`] says which.

use std::{collections::VecDeque, fmt, time::Duration};

use crate::{
    bottleneck::{CapacityTracker, ConfirmedCapacity},
    capacity::{Capacity, Train},
};
use keiro_units::{Bandwidth, ByteCount, Instant};

/// Estimates the bandwidth of one path and direction.
#[derive(Clone, Debug, Default)]
pub struct SpacingEstimator {
    follower: CapacityTracker,
    /// The largest copies since this instant.
    largest: Option<(Instant, Train)>,
    /// Mean bytes that a train's span is of.
    spaced_bytes: Option<f64>,
    copies: Option<ConfirmedCapacity>,
    trains: Option<ConfirmedCapacity>,
    /// How far copies were spread recently, by [`spread`]; the newest last.
    spreads: VecDeque<(Instant, f64)>,
}

/// B, and what it is worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The bandwidth with its interval, IP bytes.
    pub capacity: Capacity,
    /// What it is from.
    pub source: Source,
}

/// What an estimate is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The spacing of copies, now.
    Copies,
    /// The path's other trains, now: there are no copies.
    Trains,
    /// One of both, but not now.
    Aged(Duration),
}

/// Time in which one train of copies is taken. Ours: trains that are closer met the same packets of
/// others, and forty-eight of them, which is what is kept, are half a second.
pub const TAKEN_EVERY: Duration = Duration::from_millis(10);
/// Copies that are spread over less are not believed. Ours: five times what the stamps of a busy
/// virtual machine vary by; of half as long ones estimates were found to be up to 40 % wrong.
pub const SPAN_MIN: Duration = Duration::from_micros(100);
/// Memory of the mean length: this part is the newest train's.
const LENGTH_MEMORY: f64 = 1.0 / 16.0;
/// How long a figure counts as current. Ours: twice what changes take to be seen where trains are rare.
const FRESH_FOR: Duration = Duration::from_secs(2);
/// How long trains hold against short copies. Ours: where a machine is busy trains are rare.
const TRAINS_HOLD_FOR: Duration = Duration::from_secs(10);
/// After this nothing is known. A path's trains are kept as long.
const KNOWN_FOR: Duration = Duration::from_secs(60);
/// Samples of how far copies were spread: how many are kept, the least that are used, and their age. Ours: the peer
/// reports at most one in 20 ms, and what came between the copies of one aggregate is chance.
const SPREADS_MAX: usize = 32;
const SPREADS_MIN: usize = 8;
const SPREADS_FOR: Duration = Duration::from_secs(1);

impl SpacingEstimator {
    /// The copies of an aggregate have come: all datagrams of all of them in order of arrival, with
    /// their place as sent. Lone ones are ignored.
    pub fn on_copies(&mut self, now: Instant, copies: Train) {
        if copies.received.len() < 2 {
            return;
        }
        self.note_spread(now, &copies);
        let Some((since, largest)) = &mut self.largest else {
            self.largest = Some((now, copies));
            return;
        };
        if now.saturating_duration_since(*since) < TAKEN_EVERY {
            if spaced_bytes(&copies) > spaced_bytes(largest) {
                *largest = copies;
            }
            return;
        }
        *since = now;
        let taken = std::mem::replace(largest, copies);
        self.take(now, taken);
    }

    fn take(&mut self, now: Instant, train: Train) {
        let bytes = spaced_bytes(&train) as f64;
        let mean = self.spaced_bytes.get_or_insert(bytes);
        *mean += (bytes - *mean) * LENGTH_MEMORY;
        let spaced = ByteCount::new(*mean as u64);
        self.follower.on_train(now, train);
        let believed = |found: &ConfirmedCapacity| {
            let span = found.capacity.rate.transmission_time_nearest(spaced);
            span >= SPAN_MIN
        };
        if let Some(found) = self.follower.found().filter(believed) {
            self.copies = Some(found);
        }
    }

    fn note_spread(&mut self, now: Instant, copies: &Train) {
        // Beside an old bandwidth, less of it looks like others' packets.
        let fresh = |estimate: &Estimate| !matches!(estimate.source, Source::Aged(_));
        let estimate = self.estimate(now).filter(fresh);
        let Some(spread) = estimate.and_then(|e| spread(copies, e.bandwidth())) else {
            return;
        };
        if self.spreads.len() >= SPREADS_MAX {
            self.spreads.pop_front();
        }
        self.spreads.push_back((now, spread));
    }

    /// The median of how far copies were [spread](spread()) in the last second. `None`: there were too few.
    pub fn spread(&self, now: Instant) -> Option<f64> {
        let late = |(at, _): &&(Instant, f64)| *at + SPREADS_FOR >= now;
        let mut spreads: Vec<f64> = self.spreads.iter().filter(late).map(|(_, s)| *s).collect();
        spreads.sort_unstable_by(f64::total_cmp);
        (spreads.len() >= SPREADS_MIN).then(|| spreads[spreads.len() / 2])
    }

    /// The last estimate from the path's other trains.
    pub fn on_trains(&mut self, found: ConfirmedCapacity) {
        self.trains = Some(found);
    }

    /// The path leads elsewhere: nothing holds.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Trains have shown a path too fast for copies to measure.
    fn is_outdone(&self, now: Instant, copies: &ConfirmedCapacity) -> bool {
        let holds = |trains: &ConfirmedCapacity| {
            let spaced = ByteCount::new(self.spaced_bytes.unwrap_or_default() as u64);
            let rate = trains.capacity.rate;
            now.saturating_duration_since(trains.at) <= TRAINS_HOLD_FOR
                && rate > copies.capacity.rate
                && rate.transmission_time_nearest(spaced) < SPAN_MIN
        };
        self.trains.as_ref().is_some_and(holds)
    }

    /// The bandwidth; `None`: nothing is known, or not any more.
    pub fn estimate(&self, now: Instant) -> Option<Estimate> {
        let age = |found: &ConfirmedCapacity| now.saturating_duration_since(found.at);
        let fresh = |found: &ConfirmedCapacity| age(found) <= FRESH_FOR;
        let trains = self.trains;
        let copies = self.copies.filter(|found| !self.is_outdone(now, found));
        if let Some(found) = copies.filter(fresh) {
            return Some(found.estimate(Source::Copies));
        }
        if let Some(found) = trains.filter(fresh) {
            return Some(found.estimate(Source::Trains));
        }
        let newest = copies.into_iter().chain(trains).min_by_key(age)?;
        let age = age(&newest);
        (age <= KNOWN_FOR).then(|| newest.estimate(Source::Aged(age)))
    }
}

/// How far copies were spread on the way, as a multiple of what `bandwidth` explains: 1 where no other
/// else's packets came between. `None`: some of them are missing or out of order, or they are too
/// short to measure.
pub fn spread(copies: &Train, bandwidth: Bandwidth) -> Option<f64> {
    let (first, last) = (copies.received.first()?, copies.received.last()?);
    let whole = (0..copies.sent_packets).eq(copies.received.iter().map(|stamp| stamp.index));
    let own = bandwidth.transmission_time_nearest(ByteCount::new(spaced_bytes(copies)));
    if !whole || own < SPAN_MIN || own == Duration::MAX {
        return None;
    }
    let span = last.at_nanos.saturating_sub(first.at_nanos);
    Some(span as f64 / own.as_nanos() as f64)
}

/// Bytes that left the bottleneck between the first arrival and the last.
fn spaced_bytes(train: &Train) -> u64 {
    let later = train.received.iter().skip(1);
    later.map(|stamp| u64::from(stamp.bytes)).sum()
}

impl ConfirmedCapacity {
    fn estimate(self, source: Source) -> Estimate {
        Estimate {
            capacity: self.capacity,
            source,
        }
    }
}

impl Estimate {
    /// The path's bandwidth.
    pub fn bandwidth(&self) -> Bandwidth {
        self.capacity.rate
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copies => f.pad("copies"),
            Self::Trains => f.pad("trains"),
            Self::Aged(age) => write!(f, "{age:.1?} ago"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::Stamp;

    fn copies(sent: u32, stamps: &[(u32, u64)]) -> Train {
        let stamp = |(index, us): &(u32, u64)| Stamp {
            index: *index,
            at_nanos: us * 1000,
            bytes: 1250,
        };
        Train {
            send_span: None,
            sent_packets: sent,
            received: stamps.iter().map(stamp).collect(),
        }
    }

    #[test]
    fn copies_too_short_to_measure_do_not_outdo_trains_that_measure_more() {
        let found = |mbit, at| {
            let rate = Bandwidth::from_mbit_per_second(mbit);
            let capacity = Capacity {
                rate,
                low: rate,
                high: rate,
                trains_used: 48,
                agreement: 1.0,
            };
            ConfirmedCapacity { capacity, at }
        };
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut estimator = SpacingEstimator::default();
        estimator.on_trains(found(100, at(0)));
        // 200 bytes each, left 150 us apart by a busy sender.
        for number in 0..600 {
            let mut pair = copies(2, &[(0, 0), (1, 150)]);
            pair.received.iter_mut().for_each(|stamp| stamp.bytes = 200);
            let now = Instant::ZERO + Duration::from_millis(20) * number;
            estimator.on_copies(now, pair);
        }
        let estimate = estimator.estimate(at(1)).unwrap();
        assert_eq!(
            (estimate.source, estimate.bandwidth()),
            (Source::Trains, found(100, at(0)).capacity.rate)
        );
        // Trains that are new and say the same leave no doubt.
        estimator.on_trains(found(11, at(1)));
        assert_eq!(estimator.estimate(at(1)).unwrap().source, Source::Copies);
        // Without a recent one, copies are all there is.
        estimator.on_trains(found(100, at(1)));
        assert_eq!(estimator.estimate(at(12)).unwrap().source, Source::Copies);
    }

    #[test]
    fn copies_are_spread_by_what_comes_between() {
        let bandwidth = Bandwidth::from_mbit_per_second(10);
        let spread = |train: Train| spread(&train, bandwidth);
        assert_eq!(spread(copies(2, &[(0, 0), (1, 1000)])), Some(1.0));
        assert_eq!(
            spread(copies(3, &[(0, 0), (1, 1000), (2, 5000)])),
            Some(2.5)
        );
        assert_eq!(spread(copies(3, &[(0, 0), (2, 2000)])), None);
        assert_eq!(spread(copies(2, &[(1, 0), (0, 1000)])), None);
        assert_eq!(spread(copies(1, &[(0, 0)])), None);
        assert_eq!(spread(copies(0, &[])), None);
        let fast = Bandwidth::from_mbit_per_second(1000);
        let pair = copies(2, &[(0, 0), (1, 1000)]);
        assert_eq!(super::spread(&pair, fast), None);
        assert_eq!(super::spread(&pair, Bandwidth::ZERO), None);
    }
}
