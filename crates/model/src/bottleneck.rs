//! A path's capacity over time: keeps the newest trains, estimates anew with each, and notices when
//! the path has changed.

use std::{collections::VecDeque, time::Duration};

use crate::capacity::{self, Capacity, Settings, Train};
use keiro_units::{Bandwidth, Instant};

/// Trains that an estimate is made of, and how old the oldest may be. Ours.
const KEPT_MAX: usize = 48;
const KEPT_FOR: Duration = Duration::from_secs(60);
/// Trains that the first estimate takes, and one of a path that has become faster. Ours: more
/// where they come quickly, so that chance is not taken for news.
const NEWS: usize = 6;
const NEWS_MAX: usize = 12;
/// How long trains are news, if there are more than [`NEWS`].
const NEWS_FOR: Duration = Duration::from_millis(400);
/// What is news: more than a tenth, beside what chance explains. Ours.
const NEWS_RATIO: f64 = 0.1;
/// A path has become slower when a row of slower trains is as long as chance brings about once in a hundred
/// million. Ours: a month of forty trains a second.
const FALL_CHANCE: f64 = 1e-8;
/// Memory of the share of slower trains: this part of it is the newest's.
const SLOWER_MEMORY: f64 = 1.0 / 256.0;
/// Fewer are never enough, more never needed.
const FALL_MIN: usize = 4;
const FALL_MAX: usize = 24;
/// A train whose fastest run is slower than known by more than this met others, or news. Ours.
const SLOWER_RATIO: f64 = 0.05;
/// A train that differs by this from what was found makes it uncertain. Ours.
const DOUBT_RATIO: f64 = 0.15;

/// Follows one path.
#[derive(Clone, Debug, Default)]
pub struct CapacityTracker {
    kept: VecDeque<Kept>,
    newest: Option<ConfirmedCapacity>,
    /// The share of recent trains that were slower than the known rate.
    slower_share: f64,
    is_uncertain: bool,
}

#[derive(Clone, Debug)]
struct Kept {
    at: Instant,
    train: Train,
    /// Rate of its fastest run, bit/s; `None`: it has none.
    fastest: Option<f64>,
}

/// A path's capacity and when it was last confirmed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfirmedCapacity {
    pub capacity: Capacity,
    /// When the newest train had come.
    pub at: Instant,
}

impl CapacityTracker {
    /// A train has come.
    pub fn on_train(&mut self, now: Instant, train: Train) {
        let fastest = capacity::fastest_run(&train);
        self.kept.push_back(Kept {
            at: now,
            train,
            fastest,
        });
        let old = |kept: &Kept| now.saturating_duration_since(kept.at) > KEPT_FOR;
        while self.kept.len() > KEPT_MAX || self.kept.front().is_some_and(old) {
            self.kept.pop_front();
        }
        if let Some(capacity) = self.estimate(now) {
            self.newest = Some(ConfirmedCapacity { capacity, at: now });
        }
        if let (Some(found), Some(rate)) = (self.newest, fastest) {
            let slower = f64::from(u8::from(rate < slower_limit(&found.capacity)));
            self.slower_share += (slower - self.slower_share) * SLOWER_MEMORY;
        }
        self.is_uncertain = match (self.newest, fastest) {
            (Some(found), Some(rate)) => {
                (rate / bits(found.capacity.rate).max(1.0) - 1.0).abs() > DOUBT_RATIO
            }
            _ => false,
        };
    }

    /// Of all trains that are kept, or of the newest if they are news; then only these are kept.
    fn estimate(&mut self, now: Instant) -> Option<Capacity> {
        let trains: Vec<&Train> = self.kept.iter().map(|kept| &kept.train).collect();
        let newest = |count: usize| {
            let settings = Settings {
                trains_min: count.min(NEWS),
                ..Settings::default()
            };
            capacity::estimate_of(&trains[trains.len() - count..], &settings).ok()
        };
        let all = newest(trains.len()).filter(|_| trains.len() >= NEWS)?;
        if let Some(count) = self.slower_in_a_row(&all)
            && let Some(news) = newest(count).filter(|news| differs(&all, news))
        {
            self.keep(count);
            return Some(news);
        }
        let fresh = |kept: &&Kept| now.saturating_duration_since(kept.at) <= NEWS_FOR;
        let count = self.kept.iter().rev().take_while(fresh).count();
        let count = count.clamp(NEWS, NEWS_MAX).min(trains.len());
        if !self.may_be_faster(&all, count) {
            return Some(all);
        }
        let faster = |news: &Capacity| news.rate > all.rate && news.trains_used * 3 >= count;
        if let Some(news) = newest(count).filter(|news| differs(&all, news) && faster(news)) {
            self.keep(count);
            return Some(news);
        }
        Some(all)
    }

    /// Whether enough of the newest trains have runs that are faster than `known`.
    fn may_be_faster(&self, known: &Capacity, newest: usize) -> bool {
        let limit = bits(known.high) * (1.0 + SLOWER_RATIO);
        let faster = |kept: &&Kept| kept.fastest.is_some_and(|rate| rate > limit);
        let newest = self.kept.iter().rev().take(newest);
        newest.filter(faster).count() >= NEWS / 2
    }

    /// The newest trains that were all slower than `known`, if there are too many for chance.
    fn slower_in_a_row(&self, known: &Capacity) -> Option<usize> {
        let limit = slower_limit(known);
        let slower = |kept: &&Kept| kept.fastest.is_some_and(|rate| rate < limit);
        let in_a_row = self.kept.iter().rev().take_while(slower).count();
        let before = self.kept.len() - in_a_row;
        let slower_before = self.kept.iter().take(before).filter(slower).count();
        // Laplace's rule: what has not been seen is not impossible.
        let chance = (slower_before + 1) as f64 / (before + 2) as f64;
        let chance = chance.max(self.slower_share);
        let needed = (FALL_CHANCE.ln() / chance.ln()).ceil() as usize;
        (in_a_row >= needed.clamp(FALL_MIN, FALL_MAX)).then_some(in_a_row)
    }

    fn keep(&mut self, newest: usize) {
        let surplus = self.kept.len().saturating_sub(newest);
        self.kept.drain(..surplus);
    }

    /// Nothing was found yet, or the newest train does not fit it: more trains should come soon.
    pub fn is_uncertain(&self) -> bool {
        self.is_uncertain || self.newest.is_none()
    }

    /// The path was away and is back: what was found holds until trains of now say otherwise, which
    /// they do among themselves.
    pub fn on_return(&mut self) {
        self.kept.clear();
        self.is_uncertain = true;
    }

    /// The path leads elsewhere: nothing that was found holds.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// What was found last; `None`: nothing yet.
    pub fn found(&self) -> Option<ConfirmedCapacity> {
        self.newest
    }
}

/// Whether two estimates are of different capacities.
fn differs(all: &Capacity, news: &Capacity) -> bool {
    let ratio = bits(news.rate) / bits(all.rate).max(1.0);
    let apart = news.low > all.high || news.high < all.low;
    apart && (ratio - 1.0).abs() > NEWS_RATIO
}

/// A run below it is slower than known.
fn slower_limit(known: &Capacity) -> f64 {
    bits(known.low) * (1.0 - SLOWER_RATIO)
}

fn bits(rate: Bandwidth) -> f64 {
    rate.as_bits_per_second() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capacity::Stamp;

    /// A train of 20 packets of 1250 bytes that a bottleneck of `mbit` has spread.
    fn train(mbit: u64) -> Train {
        let gap_nanos = 10_000_000 / mbit;
        let stamp = |index: u32| Stamp {
            index,
            at_nanos: 1_000_000 + u64::from(index) * gap_nanos,
            bytes: 1250,
        };
        Train {
            send_span: None,
            sent_packets: 20,
            received: (0..20).map(stamp).collect(),
        }
    }

    /// A tracker that has had `count` trains at `mbit`, 100 ms apart, and the time of the last.
    fn tracker(mbit: u64, count: u64) -> (CapacityTracker, Instant) {
        let mut tracker = CapacityTracker::default();
        let mut now = Instant::ZERO;
        for _ in 0..count {
            now += Duration::from_millis(100);
            tracker.on_train(now, train(mbit));
        }
        (tracker, now)
    }

    fn mbit(tracker: &CapacityTracker) -> f64 {
        bits(tracker.found().expect("trains agree").capacity.rate) / 1e6
    }

    /// Trains until the estimate is within 2 % of `to`.
    fn trains_until(from: u64, to: u64) -> usize {
        let (mut tracker, mut now) = tracker(from, 48);
        assert!((mbit(&tracker) / from as f64 - 1.0).abs() < 0.02);
        let follows = |_: &usize| {
            now += Duration::from_millis(100);
            tracker.on_train(now, train(to));
            (mbit(&tracker) / to as f64 - 1.0).abs() < 0.02
        };
        1 + (0..100).find(follows).expect("the change is followed")
    }

    #[test]
    fn a_fall_and_a_rise_by_half_are_followed_within_a_dozen_trains() {
        let (fall, rise) = (trains_until(50, 25), trains_until(25, 50));
        assert!((FALL_MIN..=12).contains(&fall), "{fall}");
        assert!(rise <= 12, "{rise}");
    }

    #[test]
    fn trains_older_than_a_minute_confirm_nothing() {
        let (mut tracker, last) = tracker(50, 10);
        let much_later = last + KEPT_FOR + Duration::from_secs(1);
        tracker.on_train(much_later, train(50));
        assert_eq!(tracker.found().map(|found| found.at), Some(last));
    }

    #[test]
    fn a_train_that_is_far_off_makes_the_estimate_uncertain_until_the_next_that_is_not() {
        let (mut tracker, mut now) = tracker(50, 20);
        assert!(!tracker.is_uncertain());
        for (rate, is_uncertain) in [(40, true), (50, false)] {
            now += Duration::from_millis(100);
            tracker.on_train(now, train(rate));
            assert_eq!(tracker.is_uncertain(), is_uncertain, "{rate}");
        }
    }
}
