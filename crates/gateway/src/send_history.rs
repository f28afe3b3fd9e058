//! Samples of what an application has sent, to see whether its traffic has changed.

use std::{
    collections::VecDeque,
    time::{Duration, Instant as Stopwatch},
};

use keiro_core::AppSnapshot;

/// Totals that an application has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

/// Samples at equal intervals, the newest last: short ones at first, longer ones as there are more.
#[derive(Debug)]
pub(crate) struct SendHistory {
    samples: VecDeque<Sent>,
    spacing: Duration,
    sampled_at: Option<Stopwatch>,
}

/// First and largest interval; two halves of a window need three samples.
const SPACING_MIN: Duration = Duration::from_secs(2);
const SPACING_MAX: Duration = Duration::from_secs(16);
/// Number of samples at which the interval doubles.
const THINNED_AT: usize = 16;
/// Samples kept: half an hour.
const SAMPLES_MAX: usize = 120;
/// Messages of a window that is long enough to compare its halves.
const WINDOW_MESSAGES: u64 = 400;

impl Default for SendHistory {
    fn default() -> Self {
        Self {
            samples: VecDeque::new(),
            spacing: SPACING_MIN,
            sampled_at: None,
        }
    }
}

impl SendHistory {
    /// Adds a sample if one is due.
    pub(crate) fn record(&mut self, now: Stopwatch, sent: Sent) {
        let due = |at: Stopwatch| now.saturating_duration_since(at) >= self.spacing;
        if !self.sampled_at.is_none_or(due) {
            return;
        }
        self.sampled_at = Some(now);
        // Before the first message there is nothing to be halved.
        if self.samples.back() == Some(&Sent::default()) {
            self.samples.clear();
        }
        self.samples.push_back(sent);
        if self.samples.len() == THINNED_AT && self.spacing < SPACING_MAX {
            self.thin();
        }
        if self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
    }

    /// Drops every other sample; the newest stays.
    fn thin(&mut self) {
        let mut leave = self.samples.len().is_multiple_of(2);
        self.samples.retain(|_| {
            leave = !leave;
            leave
        });
        self.spacing *= 2;
    }

    /// Totals of the two halves of the recent window, the earlier one first. The window is as long
    /// as enough messages take. `None`: too few samples.
    pub(crate) fn halves(&self) -> Option<[Sent; 2]> {
        let newest = self.samples.len().checked_sub(1)?;
        let sent = |from: usize, to: usize| self.samples[to].since(&self.samples[from]);
        let enough = |half: &usize| sent(newest - 2 * half, newest).messages >= WINDOW_MESSAGES;
        let longest = newest / 2;
        let half = (1..=longest).find(enough).unwrap_or(longest);
        (half > 0).then(|| {
            let middle = newest - half;
            [sent(middle - half, middle), sent(middle, newest)]
        })
    }
}

impl Sent {
    pub(crate) fn of(app: &AppSnapshot) -> Self {
        Self {
            messages: app.stats.sent_messages,
            bytes: app.stats.sent_bytes,
        }
    }

    pub(crate) fn since(self, then: &Self) -> Self {
        Self {
            messages: self.messages.saturating_sub(then.messages),
            bytes: self.bytes.saturating_sub(then.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SendHistory of an application that sends so many messages of 100 B a second, looked at every second
    /// up to `seconds`.
    fn steady(per_second: u64, seconds: u64) -> SendHistory {
        let (mut samples, start) = (SendHistory::default(), Stopwatch::now());
        for second in 0..=seconds {
            let messages = (second + 1) * per_second;
            let bytes = messages * 100;
            let now = start + Duration::from_secs(second);
            samples.record(now, Sent { messages, bytes });
        }
        samples
    }

    #[test]
    fn a_start_is_known_after_two_distances() {
        assert_eq!(steady(100, 3).halves(), None);
        let half = Sent {
            messages: 200,
            bytes: 20_000,
        };
        assert_eq!(steady(100, 4).halves(), Some([half; 2]));
    }

    #[test]
    fn halves_are_equal_however_long_it_lasts_and_long_enough() {
        for seconds in 4..5000 {
            let [earlier, later] = steady(10, seconds).halves().unwrap();
            assert_eq!(earlier, later, "after {seconds} s");
            let messages = earlier.messages + later.messages;
            // As many as are wanted, up to the spacing between samples, once there are so many.
            let known = (seconds * 10).min(WINDOW_MESSAGES);
            assert!(messages + 320 >= known, "{messages} after {seconds} s");
            assert!(messages <= WINDOW_MESSAGES + 640, "{messages}");
        }
    }

    #[test]
    fn send_history_is_bounded_and_spans_half_an_hour() {
        let samples = steady(1, 20_000);
        assert_eq!(samples.samples.len(), SAMPLES_MAX);
        let span = samples.samples[SAMPLES_MAX - 1].since(&samples.samples[0]);
        assert!((1800..2000).contains(&span.messages), "{span:?}");
    }

    #[test]
    fn the_time_before_the_first_message_is_left_out() {
        let (mut samples, start) = (SendHistory::default(), Stopwatch::now());
        for second in 0..=26 {
            let messages = u64::saturating_sub(second, 19) * 10;
            let now = start + Duration::from_secs(second);
            samples.record(now, Sent { messages, bytes: 0 });
        }
        let [earlier, later] = samples.halves().unwrap();
        assert_eq!((earlier.messages, later.messages), (20, 20));
    }

    #[test]
    fn another_pace_is_seen_in_the_halves() {
        let (mut samples, start) = (SendHistory::default(), Stopwatch::now());
        let mut messages = 0;
        for second in 0..28 {
            messages += if second < 20 { 10 } else { 30 };
            let now = start + Duration::from_secs(second);
            samples.record(now, Sent { messages, bytes: 0 });
        }
        let [earlier, later] = samples.halves().unwrap();
        assert!(later.messages > earlier.messages, "{earlier:?} {later:?}");
    }
}
