//! What is known of a line's loss: how much, and how often copies are lost together.
//!
//! Everything forgets, and a change is news: as soon as the last moments differ from what was known
//! by more than chance explains, only they count.

use std::time::Duration;

use super::{Fates, Limits};
use crate::Instant;

/// What a line loses, without congestion and without the receiver's overflows.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    /// Of the last moments, the shortest first.
    newest: [Fading; 2],
    long: Fading,
    pairs: Pairs,
}

/// What periods have shown of the path, what the receiver dropped left out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Copies.
    pub(super) copies: Fates,
    /// Of the periods in which the receiver dropped nothing, copies and aggregates: these tell which
    /// copies were lost together.
    pub(super) whole_copies: Fates,
    pub(super) whole_aggregates: Fates,
}

/// Counts that forget.
#[derive(Clone, Copy, Debug, Default)]
struct Fading {
    at: Instant,
    sent: f64,
    lost: f64,
}

/// Of aggregates that were sent with one and the same N, how many copies and how many aggregates
/// were lost.
#[derive(Clone, Copy, Debug, Default)]
struct Pairs {
    copies: u8,
    at: Instant,
    copies_lost: f64,
    aggregates_lost: f64,
    /// What was found before N came down to one, and until when it counts.
    before: Option<(f64, Instant)>,
    /// For how long it counts next time.
    believed_for: Believed,
}

/// For how long it is believed that a further copy helps little: each time that it is found again, for
/// twice as long.
#[derive(Clone, Copy, Debug)]
struct Believed(Duration);

/// What N is to reach, and when one copy more is worth it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// Loss of aggregates at most.
    pub(super) target: f64,
    /// Where the target is out of reach, a copy more has to leave less than this part of the loss.
    pub(super) worth: f64,
}

/// Memories for news. Ours: two hundred and a thousand aggregates at 1 ms.
const NEWEST: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];
/// Memory else.
const LONG: Duration = Duration::from_secs(10);
/// News is what lies so many standard deviations off. Ours: once in thirty thousand by chance.
const NEWS: f64 = 4.0;
/// Losses that an estimate of loss is of at least.
const LOSSES_MIN: f64 = 3.0;
/// Halvings of what is looked for: to a millionth.
const HALVINGS: u32 = 20;
/// So many losses are assumed to have been independent before any was seen. Ours.
const PRIOR: f64 = 5.0;
/// How long what was found of copies lost together is believed with N = 1, which shows nothing: at
/// first, and at most. Ours: to find it again takes some tenths of a second.
const TOGETHER_FOR_MIN: Duration = Duration::from_secs(5);
const TOGETHER_FOR_MAX: Duration = Duration::from_secs(60);

impl Line {
    /// What was seen with so many copies each; a loss of `calm` at most is none.
    pub(super) fn add(&mut self, now: Instant, seen: &Seen, copies_each: u8, calm: f64) {
        self.long.add(now, seen.copies, LONG);
        for (newest, memory) in self.newest.iter_mut().zip(NEWEST) {
            newest.add(now, seen.copies, memory);
        }
        self.pairs.set_copies(now, copies_each, self.copies());
        self.pairs
            .add(now, seen.whole_copies.lost, seen.whole_aggregates.lost);
        let known = self.copies();
        let is_news = |newest: &&Fading| {
            let expected = newest.sent * known;
            (newest.lost - expected).abs() > NEWS * (expected + 1.0).sqrt()
        };
        if let Some(news) = self.newest.iter().find(is_news).copied() {
            // What was before is in the longer memories, and must not be taken for news itself.
            self.newest = [news; 2];
            self.long = news;
            self.pairs.clear();
        }
        // The trouble is over in which copies did not help: the next may be another one.
        if self.newest[1].loss() <= calm && self.pairs.forget_before() {
            self.long = self.newest[1];
        }
    }

    /// Nothing that was found holds.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// The share of copies lost.
    pub(super) fn copies(&self) -> f64 {
        self.long.loss()
    }

    /// Of the copies whose predecessor was lost, the share that was lost as well; at least that of
    /// all copies.
    pub(super) fn together(&self, now: Instant) -> f64 {
        self.pairs.together(now, self.copies())
    }

    /// With the present N aggregates were lost, as many as an estimate is of at least.
    pub(super) fn shows_lost_aggregates(&self) -> bool {
        self.pairs.aggregates_lost >= LOSSES_MIN
    }

    /// How many copies the line needs; `None`: it needs more than the least N, but how many is not
    /// known for certain.
    pub(super) fn copies_needed(&self, now: Instant, limits: &Limits, wish: Wish) -> Option<u8> {
        if self.long.lost < LOSSES_MIN && self.copies() > wish.target {
            return None;
        }
        Some(self.best(self.together(now), self.copies(), limits, wish))
    }

    /// How many copies the line needs if it is as bad as may be.
    pub(super) fn copies_needed_at_worst(&self, now: Instant, limits: &Limits, wish: Wish) -> u8 {
        // How often they are lost together is as it seems: at the worst no copy would help.
        self.best(self.together(now), self.long.loss_at_most(), limits, wish)
    }

    /// From the least N upward as long as the target is not reached and one more is worth it.
    fn best(&self, together: f64, loss: f64, limits: &Limits, wish: Wish) -> u8 {
        let mut best = limits.copies_min();
        for more in &limits.copies()[1..] {
            let (left, next) = (
                residual(loss, together, best),
                residual(loss, together, *more),
            );
            if left <= wish.target || (next > wish.target && next > left * wish.worth) {
                break;
            }
            best = *more;
        }
        best
    }
}

/// The share of aggregates lost with `copies`, if `loss` of the copies is lost, and of the second ones `together` behind a
/// lost one. Ours: there are moments in which every copy is lost, and beside them each is lost by itself, against which
/// alone a third copy helps.
pub(super) fn residual(loss: f64, together: f64, copies: u8) -> f64 {
    // Of moments m and a loss p beside them, loss = m + (1 − m)p, and m + (1 − m)p² is of both copies.
    let both = loss * together;
    let moments = (both - loss * loss) / (1.0 - 2.0 * loss + both);
    let moments = if both > loss * loss { moments } else { 0.0 };
    // At the worst more is lost than was seen, but not more of it together.
    with_moments(moments, (loss, together), copies)
}

/// The same, if there are so many `moments`.
fn with_moments(moments: f64, (loss, together): (f64, f64), copies: u8) -> f64 {
    if moments >= 1.0 {
        return 1.0;
    }
    let alone = ((loss - moments) / (1.0 - moments)).max(0.0);
    let further = alone.min(together).powi(i32::from(copies) - 1);
    moments + (1.0 - moments) * alone * further
}

/// The share at most, by what is known: two standard deviations of a Poisson count, and one more.
pub(super) fn loss_at_most(lost: f64, sent: f64) -> f64 {
    if sent < 1.0 {
        return 1.0;
    }
    ((lost + 1.0 + 2.0 * (lost + 1.0).sqrt()) / sent).min(1.0)
}

impl Seen {
    /// Of copies alone.
    pub(super) fn of(copies: Fates) -> Self {
        Self {
            copies,
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.copies.add(other.copies);
        self.whole_copies.add(other.whole_copies);
        self.whole_aggregates.add(other.whole_aggregates);
    }
}

impl Fading {
    fn add(&mut self, now: Instant, fates: Fates, memory: Duration) {
        let kept = kept(now, self.at, memory);
        self.at = now;
        self.sent = self.sent * kept + fates.sent as f64;
        self.lost = self.lost * kept + fates.lost.min(fates.sent) as f64;
    }

    fn loss(&self) -> f64 {
        if self.sent < 1.0 {
            return 0.0;
        }
        self.lost / self.sent
    }

    fn loss_at_most(&self) -> f64 {
        loss_at_most(self.lost, self.sent)
    }
}

impl Pairs {
    fn set_copies(&mut self, now: Instant, copies: u8, loss: f64) {
        if self.copies == copies {
            return;
        }
        if self.copies > 1 && copies == 1 {
            self.before = Some((self.measured(loss), now + self.believed_for.next()));
        }
        self.copies = copies;
        self.clear();
    }

    /// Whether what was found before counted.
    fn forget_before(&mut self) -> bool {
        self.believed_for = Believed::default();
        self.before.take().is_some() && self.copies == 1
    }

    fn clear(&mut self) {
        self.copies_lost = 0.0;
        self.aggregates_lost = 0.0;
    }

    fn add(&mut self, now: Instant, copies_lost: u64, aggregates_lost: u64) {
        let kept = kept(now, self.at, LONG);
        self.at = now;
        self.copies_lost = self.copies_lost * kept + copies_lost as f64;
        self.aggregates_lost = self.aggregates_lost * kept + aggregates_lost as f64;
    }

    fn together(&self, now: Instant, loss: f64) -> f64 {
        if self.copies > 1 {
            return self.measured(loss);
        }
        match self.before {
            Some((together, until)) if now < until => together.max(loss),
            _ => loss,
        }
    }

    /// Of second copies behind a lost one, the share lost, by the loss of N.
    fn measured(&self, loss: f64) -> f64 {
        let further = i32::from(self.copies) - 1;
        if further < 1 {
            return loss;
        }
        let firsts_lost = self.copies_lost / f64::from(self.copies);
        let independent = PRIOR * loss.powi(further);
        let all_lost = (self.aggregates_lost + independent) / (firsts_lost + PRIOR);
        if further == 1 {
            return all_lost.clamp(loss, 1.0);
        }
        // It grows with the moments that lose every copy.
        let (mut none, mut all) = (0.0, loss);
        for _ in 0..HALVINGS {
            let moments = f64::midpoint(none, all);
            match with_moments(moments, (loss, 1.0), self.copies) < loss * all_lost {
                true => none = moments,
                false => all = moments,
            }
        }
        let both = with_moments(f64::midpoint(none, all), (loss, 1.0), 2);
        (both / loss.max(f64::MIN_POSITIVE)).clamp(loss, 1.0)
    }
}

impl Default for Believed {
    fn default() -> Self {
        Self(TOGETHER_FOR_MIN)
    }
}

impl Believed {
    fn next(&mut self) -> Duration {
        let now = self.0;
        self.0 = now.saturating_mul(2).min(TOGETHER_FOR_MAX);
        now
    }
}

/// How much of what was counted until `before` counts now.
pub(super) fn kept(now: Instant, before: Instant, memory: Duration) -> f64 {
    let passed = now.saturating_duration_since(before);
    (-passed.as_secs_f64() / memory.as_secs_f64()).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WISH: Wish = Wish {
        target: 0.001,
        worth: 0.5,
    };
    const PERIOD: Duration = Duration::from_millis(50);

    fn at(periods: u32) -> Instant {
        Instant::ZERO + PERIOD * periods
    }

    /// Periods of a thousand aggregates with so many copies and aggregates lost of each.
    fn line(copies: u8, copies_lost: u64, aggregates_lost: u64) -> (Line, Instant) {
        let mut line = Line::default();
        for period in 1..400 {
            feed(&mut line, period, copies, copies_lost, aggregates_lost);
        }
        (line, at(400))
    }

    fn feed(line: &mut Line, period: u32, copies: u8, copies_lost: u64, aggregates_lost: u64) {
        let of_copies = Fates {
            sent: 1000 * u64::from(copies),
            lost: copies_lost,
        };
        let aggregates = Fates {
            sent: 1000,
            lost: aggregates_lost,
        };
        let seen = Seen {
            copies: of_copies,
            whole_copies: of_copies,
            whole_aggregates: aggregates,
        };
        line.add(at(period), &seen, copies, WISH.target);
    }

    #[test]
    fn independent_losses_need_as_many_copies_as_the_target_says() {
        let limits = Limits::default();
        for (copies_lost, aggregates_lost, needed) in [
            (0, 0, 1),
            (2, 0, 1),
            (20, 0, 2),
            (60, 1, 2),
            // 5 %: two copies leave 0.25 %.
            (100, 3, 3),
            // 30 %: even three leave 2.7 %, and each is worth it.
            (600, 90, 3),
        ] {
            let (line, now) = line(2, copies_lost, aggregates_lost);
            let found = line.copies_needed(now, &limits, WISH);
            assert_eq!(found, Some(needed), "{copies_lost} {line:?}");
        }
    }

    #[test]
    fn what_loses_every_copy_is_not_helped_by_a_third() {
        // Of a hundred copies one is lost by itself, and one with all others of its aggregate.
        let limits = Limits::default();
        for (copies, copies_lost, aggregates_lost) in [(2, 40, 10), (3, 60, 10)] {
            let (line, now) = line(copies, copies_lost, aggregates_lost);
            let together = line.together(now);
            assert!((together - 0.5).abs() < 0.01, "{copies}: {together}");
            let wish = Wish { worth: 0.6, ..WISH };
            assert_eq!(line.copies_needed(now, &limits, wish), Some(2), "{copies}");
            assert_eq!(line.copies_needed_at_worst(now, &limits, wish), 2);
        }
    }

    #[test]
    fn the_loss_of_copies_is_found_again_from_that_of_more() {
        for loss in [0.0, 1e-6, 0.01, 0.3, 0.99, 1.0] {
            for together in [loss, f64::midpoint(loss, 1.0), 1.0] {
                let one = residual(loss, together, 1);
                assert!((one - loss).abs() < 1e-12, "{loss} {together}: {one}");
                let two = residual(loss, together, 2);
                assert!(
                    (two - loss * together).abs() < 1e-12,
                    "{loss} {together}: {two}"
                );
                let three = residual(loss, together, 3);
                assert!(three <= two + 1e-12, "{loss} {together}: {three}");
            }
        }
        // Independent losses, and at the worst more than was seen.
        assert!((residual(0.1, 0.1, 3) - 1e-3).abs() < 1e-12);
        assert!((residual(1.0, 0.1, 3) - 1e-2).abs() < 1e-12);
    }

    #[test]
    fn copies_that_are_lost_together_are_not_worth_it() {
        let (line, now) = line(2, 100, 45);
        let together = line.together(now);
        assert!((together - 0.9).abs() < 0.01, "{together}");
        let limits = Limits::default();
        assert_eq!(line.copies_needed(now, &limits, WISH), Some(1));
        assert_eq!(line.copies_needed_at_worst(now, &limits, WISH), 1);
    }

    #[test]
    fn what_one_copy_cannot_show_is_believed_for_a_while_and_longer_when_found_again() {
        let (mut line, _) = line(2, 100, 45);
        let mut period = 400;
        for believed in [5, 10, 20, 40, 60, 60] {
            let began = at(period);
            for period in period..period + 20 {
                feed(&mut line, period, 1, 50, 50);
            }
            let just = line.together(began + Duration::from_secs(believed) - PERIOD);
            assert!(just > 0.8, "{believed} s: {just}");
            let later = line.together(began + Duration::from_secs(believed) + PERIOD);
            assert!(later < 0.1, "{believed} s: {later}");
            for period in period + 20..period + 420 {
                feed(&mut line, period, 2, 100, 45);
            }
            period += 420;
        }
    }

    #[test]
    fn what_was_found_in_a_trouble_that_is_over_says_nothing_of_the_next() {
        let (mut line, now) = line(2, 100, 45);
        feed(&mut line, 400, 1, 50, 50);
        assert!(line.together(now) > 0.85);
        let calm = 80;
        for period in 401..401 + calm {
            feed(&mut line, period, 1, 0, 0);
        }
        for period in 401 + calm..411 + calm {
            feed(&mut line, period, 1, 50, 50);
        }
        let now = at(411 + calm);
        assert!(line.together(now) < 0.1, "{}", line.together(now));
        assert_eq!(line.copies_needed(now, &Limits::default(), WISH), Some(3));
    }

    #[test]
    fn little_evidence_is_taken_for_the_worst() {
        let mut line = Line::default();
        let limits = Limits::default();
        let few = Fates { sent: 100, lost: 0 };
        line.add(at(1), &Seen::of(few), 2, WISH.target);
        assert_eq!(line.copies_needed(at(1), &limits, WISH), Some(1));
        assert_eq!(line.copies_needed_at_worst(at(1), &limits, WISH), 2);
        let one = Fates { sent: 100, lost: 1 };
        line.add(at(2), &Seen::of(one), 2, WISH.target);
        assert_eq!(line.copies_needed(at(2), &limits, WISH), None);
        assert_eq!(loss_at_most(0.0, 0.0), 1.0);
        assert_eq!(loss_at_most(0.0, 3000.0), 0.001);
    }

    #[test]
    fn a_change_of_loss_is_news_at_once() {
        let (mut line, _) = line(2, 2, 0);
        feed(&mut line, 401, 2, 100, 3);
        feed(&mut line, 402, 2, 100, 3);
        assert!(line.copies() > 0.004, "{}", line.copies());
        for period in 403..440 {
            feed(&mut line, period, 2, 100, 3);
        }
        assert!((line.copies() - 0.05).abs() < 0.01, "{}", line.copies());
        for period in 440..480 {
            feed(&mut line, period, 2, 0, 0);
        }
        assert!(line.copies() < 0.01, "{}", line.copies());
    }
}
