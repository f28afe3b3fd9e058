//! What an application has sent at certain times, for telling whether it goes on as it did.

use std::{
    collections::VecDeque,
    time::{Duration, Instant as Stopwatch},
};

use keiro_core::AppSnapshot;

/// What an application has sent in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

/// SendHistory at equal distances of time, the newest last. At first they are close, so that a start is
/// soon known; as they become many they are set farther apart.
#[derive(Debug)]
pub(crate) struct SendHistory {
    samples: VecDeque<Sent>,
    spacing: Duration,
    sampled_at: Option<Stopwatch>,
}

/// How far apart samples are at first, and at last: two halves of a window need three of them.
const SPACING_MIN: Duration = Duration::from_secs(2);
const SPACING_MAX: Duration = Duration::from_secs(16);
/// So many make them be set farther apart.
const THINNED_AT: usize = 16;
/// SendHistory kept: half an hour.
const SAMPLES_MAX: usize = 120;
/// A window with so many messages is long enough to tell two halves apart.
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
    /// Notes what has been sent, if it is time.
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

    /// Leaves every other one; the newest stays.
    fn thin(&mut self) {
        let mut leave = self.samples.len().is_multiple_of(2);
        self.samples.retain(|_| {
            leave = !leave;
            leave
        });
        self.spacing *= 2;
    }

    /// What was sent in the two halves of the last while, the earlier one first: as long as it takes
    /// for enough messages. `None` before that can be halved.
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
            messages: app.sent,
            bytes: app.sent_bytes,
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
    fn what_is_kept_is_bounded_and_spans_half_an_hour() {
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
