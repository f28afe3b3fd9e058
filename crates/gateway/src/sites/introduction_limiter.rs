//! Which sites a hub has introduced of late.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant as Stopwatch},
};

use keiro_control::config::Name;

/// What a hub has introduced of late, so that two sites that ask at once are introduced once, and one that asks all the
/// time takes little of the hub's.
#[derive(Debug, Default)]
pub(crate) struct IntroductionLimiter {
    recent: BTreeMap<[Name; 2], Stopwatch>,
}

/// Two sites are not introduced again within this time. Ours: shorter than a branch waits between attempts.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Pairs that are introduced within that time; others stay with the hub. Ours: a thousand sites may each ask for one.
const RECENT_MAX: usize = 1024;
/// Of these, such that one site has asked for. Ours: as many sessions as a branch has.
const RECENT_PER_SITE_MAX: usize = 16;

impl IntroductionLimiter {
    /// Whether to introduce two sites of which the first has asked, which is taken as done.
    pub(crate) fn take(&mut self, now: Stopwatch, asks: &Name, other: &Name) -> bool {
        let is_recent = |at: &Stopwatch| now.saturating_duration_since(*at) < AGAIN_AFTER;
        self.recent.retain(|_, at| is_recent(at));
        let of_site = self.recent.keys().filter(|pair| pair[0] == *asks).count();
        let pair = [asks.clone(), other.clone()];
        let reverse = [other.clone(), asks.clone()];
        let is_known = self.recent.contains_key(&pair) || self.recent.contains_key(&reverse);
        if is_known || of_site >= RECENT_PER_SITE_MAX || self.recent.len() >= RECENT_MAX {
            return false;
        }
        self.recent.insert(pair, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sites_are_introduced_once_in_a_while_and_one_site_to_few() {
        let (mut introductions, start) = (IntroductionLimiter::default(), Stopwatch::now());
        let name = |number: usize| Name::new(format!("s{number}").as_str()).expect("a name");
        assert!(introductions.take(start, &name(0), &name(1)));
        assert!(!introductions.take(start, &name(0), &name(1)));
        assert!(!introductions.take(start, &name(1), &name(0)), "both ask");
        let more = (2..100).filter(|other| introductions.take(start, &name(0), &name(*other)));
        assert_eq!(more.count(), RECENT_PER_SITE_MAX - 1);
        assert!(introductions.take(start, &name(5), &name(6)));
        assert!(introductions.take(start + AGAIN_AFTER, &name(1), &name(0)));
        assert_eq!(introductions.recent.len(), 1, "others are forgotten");
    }
}
