//! A path's capacity over time: keeps the newest trains, estimates anew with each, and notices when
//! the path has changed.

use std::{collections::VecDeque, time::Duration};

use crate::{
    Bandwidth, Instant,
    capacity::{self, Capacity, Settings, Train},
};

/// Trains that an estimate is made of, and how old the oldest may be. Ours.
const KEPT_MAX: usize = 48;
const KEPT_FOR: Duration = Duration::from_secs(60);
/// So many trains in a row that agree with each other but not with those before are news: the
/// path has changed. Ours: more where they come quickly, so that chance is not taken for news.
const NEWS: usize = 6;
const NEWS_MAX: usize = 12;
/// How long trains are news, if there are more than [`NEWS`].
const NEWS_FOR: Duration = Duration::from_millis(400);
/// A train that is this far off what was found raises doubts. Ours: one packet of others in a
/// train of eight.
const DOUBT_RATIO: f64 = 0.15;
/// What is news: more than a tenth, beside what chance explains. Ours.
const NEWS_RATIO: f64 = 0.1;

/// Follows one path.
#[derive(Clone, Debug, Default)]
pub struct CapacityFollower {
    kept: VecDeque<(Instant, Train)>,
    newest: Option<Found>,
    doubts: bool,
}

/// A path's capacity and when it was last confirmed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// What was found.
    pub capacity: Capacity,
    /// When the newest train had come.
    pub at: Instant,
}

impl CapacityFollower {
    /// A train has come.
    pub fn on_train(&mut self, now: Instant, train: Train) {
        let rate = capacity::train_rate(&train);
        self.kept.push_back((now, train));
        let old = |(at, _): &(Instant, Train)| now.saturating_duration_since(*at) > KEPT_FOR;
        while self.kept.len() > KEPT_MAX || self.kept.front().is_some_and(old) {
            self.kept.pop_front();
        }
        let settings = Settings {
            trains_min: NEWS,
            ..Settings::default()
        };
        let trains: Vec<&Train> = self.kept.iter().map(|(_, train)| train).collect();
        let fresh = |(at, _): &&(Instant, Train)| now.saturating_duration_since(*at) <= NEWS_FOR;
        let news = self.kept.iter().rev().take_while(fresh).count();
        let news = news.clamp(NEWS, NEWS_MAX).min(trains.len());
        let all = capacity::estimate_of(&trains, &settings);
        let newest = capacity::estimate_of(&trains[trains.len() - news..], &settings);
        let found = match (all, newest) {
            (Ok(all), Ok(newest)) if differs(&all, &newest) => {
                let surplus = self.kept.len() - news;
                self.kept.drain(..surplus);
                Ok(newest)
            }
            (all, _) => all,
        };
        if let Ok(capacity) = found {
            self.newest = Some(Found { capacity, at: now });
        }
        self.doubts = match (self.newest, rate) {
            (Some(found), Some(rate)) => {
                let known = found.capacity.rate.as_bits_per_second() as f64;
                (rate / known.max(1.0) - 1.0).abs() > DOUBT_RATIO
            }
            (found, _) => found.is_none(),
        };
    }

    /// Nothing was found yet, or the newest train does not fit it: more trains should come soon.
    pub fn doubts(&self) -> bool {
        self.doubts || self.newest.is_none()
    }

    /// The path leads elsewhere: nothing that was found holds.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// What was found last; `None`: nothing yet.
    pub fn found(&self) -> Option<Found> {
        self.newest
    }
}

/// Whether two estimates are of different capacities.
fn differs(all: &Capacity, news: &Capacity) -> bool {
    let bits = |rate: Bandwidth| rate.as_bits_per_second() as f64;
    let ratio = bits(news.rate) / bits(all.rate).max(1.0);
    let apart = news.low > all.high || news.high < all.low;
    apart && (ratio - 1.0).abs() > NEWS_RATIO
}
