//! The level of a noisy quantity: stays where it is until the newest samples say otherwise.
//!
//! A plan is made with levels, so noise around a level makes no plan. A change is news as soon as
//! the median of the newest 5, 17, 65 or 257 samples lies further from the level than chance
//! explains: a large one after three samples, a small one later. While the samples still run, news
//! waits a little, so that one change is one piece of news. How much is chance is taken from the
//! samples' own spread; below a floor a change is not worth a plan, whatever its certainty.

use std::collections::VecDeque;

use keiro_model::quantiles::median;

/// How far a median must lie from the level to be news.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MinChange {
    /// A part of the level.
    pub ratio: f64,
    /// In the quantity's unit; the larger of both counts.
    pub least: f64,
}

/// The floors of one kind of quantity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MinChanges {
    /// For medians of 5 and 17 samples.
    pub prompt: MinChange,
    /// For medians of 65 and 257 samples.
    pub patient: MinChange,
}

/// Detects changes of one noisy quantity.
#[derive(Clone, Debug)]
pub struct ChangeDetector {
    floors: MinChanges,
    level: Option<f64>,
    newest: VecDeque<f64>,
    /// Since the last news; decides which windows are looked at.
    count: u32,
    /// Samples that news was held back for.
    held: u32,
}

/// Samples that a median is taken of, and how many standard deviations of one sample it must lie
/// off. Independent samples' medians scatter by 1.25/√n of that, so these are 6 to 12 standard
/// deviations of the median: room for samples that are alike because their windows overlap.
const WINDOWS: [(usize, f64); 4] = [(5, 3.5), (17, 2.5), (65, 1.5), (257, 0.9)];
/// The spread is taken from so many samples.
const SPREAD_OF: usize = 64;
/// The spread of few samples says little: of so many it is taken twice.
const DOUBT: f64 = 16.0;
/// The first windows have the prompt floor.
const PROMPT: usize = 2;
/// News waits for samples that still run for so many of them at most.
const HELD_MAX: u32 = 6;

impl ChangeDetector {
    pub fn new(floors: MinChanges) -> Self {
        Self {
            floors,
            level: None,
            newest: VecDeque::new(),
            count: 0,
            held: 0,
        }
    }

    /// A sample has come; the level if it is another one now. Samples that are no numbers are left
    /// out.
    pub fn on_sample(&mut self, sample: f64) -> Option<f64> {
        if !sample.is_finite() {
            return None;
        }
        let (longest, _) = WINDOWS[WINDOWS.len() - 1];
        if self.newest.len() == longest {
            self.newest.pop_front();
        }
        self.newest.push_back(sample);
        self.count = self.count.wrapping_add(1);
        let Some(level) = self.level else {
            self.level = Some(sample);
            return self.level;
        };
        for (number, (window, deviations)) in WINDOWS.into_iter().enumerate() {
            // Long windows change slowly: they are looked at as they move on by a quarter.
            let step = (window / 4).max(1) as u32;
            if self.newest.len() < window || !self.count.is_multiple_of(step) {
                continue;
            }
            let floor = match number < PROMPT {
                true => self.floors.prompt,
                false => self.floors.patient,
            };
            let median = self.median_of_newest(window);
            let off = (median - level).abs();
            let floor = (floor.ratio * level.abs()).max(floor.least);
            if off > floor && off > deviations * self.spread() {
                if (sample - median).abs() > off / 4.0 && self.held < HELD_MAX {
                    self.held += 1;
                    return None;
                }
                self.held = 0;
                // What was before belongs to the old level.
                let surplus = self.newest.len() - window;
                self.newest.drain(..surplus);
                self.count = 0;
                self.level = Some(median);
                return self.level;
            }
        }
        // What was held back was nothing.
        self.held = 0;
        None
    }

    /// The level; `None` before the first sample.
    pub fn get(&self) -> Option<f64> {
        self.level
    }

    fn median_of_newest(&self, window: usize) -> f64 {
        let newest = self.newest.iter().rev().take(window).copied();
        median_of(newest)
    }

    /// Standard deviation of one sample about the median, robust against a few that lie far off;
    /// a level that has just moved is not taken for spread until it fills half of them.
    fn spread(&self) -> f64 {
        // Median absolute deviation of a normal law.
        const NORMAL: f64 = 1.4826;
        let newest = self.newest.iter().rev().take(SPREAD_OF).copied();
        let middle = median_of(newest.clone());
        let mut distances: Vec<f64> = newest.map(|sample| (sample - middle).abs()).collect();
        let doubt = 1.0 + DOUBT / distances.len() as f64;
        doubt * NORMAL * median(&mut distances).unwrap_or(0.0)
    }
}

/// The median of at least one value.
fn median_of(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    median(&mut values).expect("a window has at least one sample")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOORS: MinChanges = MinChanges {
        prompt: MinChange {
            ratio: 0.1,
            least: 1.0,
        },
        patient: MinChange {
            ratio: 0.03,
            least: 0.3,
        },
    };

    /// A level that has seen `count` samples of `value`, alternately `noise` above and below.
    fn steady(value: f64, noise: f64, count: usize) -> ChangeDetector {
        let mut level = ChangeDetector::new(FLOORS);
        for number in 0..count {
            let sign = if number % 2 == 0 { 1.0 } else { -1.0 };
            level.on_sample(value + sign * noise);
        }
        level
    }

    #[test]
    fn large_change_is_reported_once_after_three_samples() {
        let mut level = steady(100.0, 2.0, 300);
        let news: Vec<Option<f64>> = (0..100).map(|_| level.on_sample(50.0)).collect();
        let mut expected = vec![None; 100];
        expected[2] = Some(50.0);
        assert_eq!(news, expected);
    }

    #[test]
    fn what_runs_is_news_when_it_has_arrived() {
        let mut level = steady(0.0, 0.1, 300);
        let ramp = (1..=10).map(f64::from).chain([10.0; 30]);
        let news: Vec<f64> = ramp.filter_map(|sample| level.on_sample(sample)).collect();
        assert!(news.len() <= 2, "{news:?}");
        assert_eq!(level.get(), Some(10.0), "{news:?}");
    }

    #[test]
    fn what_does_not_stop_running_is_news_after_six_samples_of_waiting() {
        let mut level = steady(0.0, 0.1, 300);
        // Three of five samples show the change; news waits for six more.
        let mut samples = (1..=30).map(|number| f64::from(number) * 10.0);
        let first = samples.position(|sample| level.on_sample(sample).is_some());
        assert_eq!(first, Some(3 + 6 - 1));
        assert_eq!(level.get(), Some(70.0), "the median of the newest five");
    }

    #[test]
    fn two_outliers_change_no_level() {
        let mut level = steady(100.0, 2.0, 300);
        for sample in [5.0, 900.0, 100.0, 99.0, 101.0, 900.0, 900.0, 100.0, 100.0] {
            let before = level.get();
            level.on_sample(sample);
            assert_eq!(level.get(), before, "after {sample}");
        }
    }

    #[test]
    fn a_small_change_is_news_after_many_samples_and_a_smaller_one_never() {
        let mut level = steady(100.0, 1.0, 300);
        let until_news = (0..300).position(|_| level.on_sample(106.0).is_some());
        assert!(matches!(until_news, Some(17..=80)), "{until_news:?}");
        let mut level = steady(100.0, 1.0, 300);
        assert!((0..1000).all(|_| level.on_sample(101.5).is_none()));
    }

    #[test]
    fn nan_samples_are_ignored() {
        let mut level = ChangeDetector::new(FLOORS);
        assert_eq!(level.on_sample(f64::NAN), None);
        assert_eq!(level.get(), None);
        assert_eq!(level.on_sample(3.0), Some(3.0));
        assert_eq!(level.on_sample(f64::INFINITY), None);
    }
}
