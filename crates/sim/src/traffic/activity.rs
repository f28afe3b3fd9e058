//! Activity of a traffic source over time.

use std::time::Duration;

use keiro_units::Instant;

/// Periods in which a source has data to send, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity(Vec<(Instant, Instant)>);

impl Activity {
    /// From an instant on.
    pub fn from(begin: Instant) -> Self {
        Self(vec![(begin, Instant::MAX)])
    }

    /// From each first instant until before the second.
    ///
    /// `None` unless every period ends after its beginning and the next does not begin before that.
    pub fn stretches(stretches: Vec<(Instant, Instant)>) -> Option<Self> {
        let forward = stretches.iter().all(|stretch| stretch.0 < stretch.1);
        let apart = stretches.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        (forward && apart).then_some(Self(stretches))
    }

    /// The same, shifted to a later time.
    #[must_use]
    pub fn delayed(&self, by: Duration) -> Self {
        let stretches = self.0.iter().map(|&(begin, end)| (begin + by, end + by));
        Self(stretches.collect())
    }

    /// Whether the source has data to send.
    pub fn is_on(&self, now: Instant) -> bool {
        let begun = self.0.partition_point(|stretch| stretch.0 <= now);
        begun > 0 && now < self.0[begun - 1].1
    }

    /// The first instant at which it has; `None` if never.
    pub fn first_beginning(&self) -> Option<Instant> {
        self.0.first().map(|stretch| stretch.0)
    }

    /// The first beginning after `now`.
    pub fn next_beginning(&self, now: Instant) -> Option<Instant> {
        let begun = self.0.partition_point(|stretch| stretch.0 <= now);
        self.0.get(begun).map(|stretch| stretch.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn a_source_is_on_from_a_beginning_until_before_its_end() {
        let activity = Activity::stretches(vec![(at(5), at(7)), (at(7), at(8)), (at(20), at(21))]);
        let activity = activity.unwrap();
        let on: Vec<_> = (0..25).filter(|&nanos| activity.is_on(at(nanos))).collect();
        assert_eq!(on, [5, 6, 7, 20]);
        assert_eq!(activity.first_beginning(), Some(at(5)));
        assert_eq!(activity.next_beginning(at(7)), Some(at(20)));
        assert_eq!(activity.next_beginning(at(20)), None);
    }

    #[test]
    fn stretches_out_of_order_are_refused() {
        assert_eq!(Activity::stretches(vec![(at(5), at(5))]), None);
        assert_eq!(
            Activity::stretches(vec![(at(5), at(9)), (at(8), at(10))]),
            None
        );
    }
}
