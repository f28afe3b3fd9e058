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

/// Marks at equal distances of time, the newest last. At first they are close, so that a start is
/// soon known; as they become many they are set farther apart.
#[derive(Debug)]
pub(crate) struct Marks {
    marks: VecDeque<Sent>,
    distance: Duration,
    marked_at: Option<Stopwatch>,
}

/// How far apart marks are at first, and at last: two halves of a window need three of them.
const DISTANCE_MIN: Duration = Duration::from_secs(2);
const DISTANCE_MAX: Duration = Duration::from_secs(16);
/// So many make them be set farther apart.
const THINNED_AT: usize = 16;
/// Marks kept: half an hour.
const MARKS_MAX: usize = 120;
/// A window with so many messages is long enough to tell two halves apart.
const WINDOW_MESSAGES: u64 = 400;

impl Default for Marks {
    fn default() -> Self {
        Self {
            marks: VecDeque::new(),
            distance: DISTANCE_MIN,
            marked_at: None,
        }
    }
}

impl Marks {
    /// Notes what has been sent, if it is time.
    pub(crate) fn note(&mut self, now: Stopwatch, sent: Sent) {
        let due = |at: Stopwatch| now.saturating_duration_since(at) >= self.distance;
        if !self.marked_at.is_none_or(due) {
            return;
        }
        self.marked_at = Some(now);
        // Before the first message there is nothing to be halved.
        if self.marks.back() == Some(&Sent::default()) {
            self.marks.clear();
        }
        self.marks.push_back(sent);
        if self.marks.len() == THINNED_AT && self.distance < DISTANCE_MAX {
            self.thin();
        }
        if self.marks.len() > MARKS_MAX {
            self.marks.pop_front();
        }
    }

    /// Leaves every other one; the newest stays.
    fn thin(&mut self) {
        let mut leave = self.marks.len().is_multiple_of(2);
        self.marks.retain(|_| {
            leave = !leave;
            leave
        });
        self.distance *= 2;
    }

    /// What was sent in the two halves of the last while, the earlier one first: as long as it takes
    /// for enough messages. `None` before that can be halved.
    pub(crate) fn halves(&self) -> Option<[Sent; 2]> {
        let newest = self.marks.len().checked_sub(1)?;
        let sent = |from: usize, to: usize| self.marks[to].since(&self.marks[from]);
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

    /// Marks of an application that sends so many messages of 100 B a second, looked at every second
    /// up to `seconds`.
    fn steady(per_second: u64, seconds: u64) -> Marks {
        let (mut marks, start) = (Marks::default(), Stopwatch::now());
        for second in 0..=seconds {
            let messages = (second + 1) * per_second;
            let bytes = messages * 100;
            let now = start + Duration::from_secs(second);
            marks.note(now, Sent { messages, bytes });
        }
        marks
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
            // As many as are wanted, up to the distance between marks, once there are so many.
            let known = (seconds * 10).min(WINDOW_MESSAGES);
            assert!(messages + 320 >= known, "{messages} after {seconds} s");
            assert!(messages <= WINDOW_MESSAGES + 640, "{messages}");
        }
    }

    #[test]
    fn what_is_kept_is_bounded_and_spans_half_an_hour() {
        let marks = steady(1, 20_000);
        assert_eq!(marks.marks.len(), MARKS_MAX);
        let span = marks.marks[MARKS_MAX - 1].since(&marks.marks[0]);
        assert!((1800..2000).contains(&span.messages), "{span:?}");
    }

    #[test]
    fn the_time_before_the_first_message_is_left_out() {
        let (mut marks, start) = (Marks::default(), Stopwatch::now());
        for second in 0..=26 {
            let messages = u64::saturating_sub(second, 19) * 10;
            let now = start + Duration::from_secs(second);
            marks.note(now, Sent { messages, bytes: 0 });
        }
        let [earlier, later] = marks.halves().unwrap();
        assert_eq!((earlier.messages, later.messages), (20, 20));
    }

    #[test]
    fn another_pace_is_seen_in_the_halves() {
        let (mut marks, start) = (Marks::default(), Stopwatch::now());
        let mut messages = 0;
        for second in 0..28 {
            messages += if second < 20 { 10 } else { 30 };
            let now = start + Duration::from_secs(second);
            marks.note(now, Sent { messages, bytes: 0 });
        }
        let [earlier, later] = marks.halves().unwrap();
        assert!(later.messages > earlier.messages, "{earlier:?} {later:?}");
    }
}
