//! What is known of a line's loss: how much, and how often copies are lost together.
//!
//! Everything forgets, and a change is news: as soon as the last moments differ from what was known
//! by more than chance explains, only they count.

use std::time::Duration;

use super::{DeliveryCounts, Limits, mixture::Mixture};
use keiro_units::Instant;

/// What a line loses, without congestion and without the receiver's overflows.
#[derive(Clone, Debug, Default)]
pub(super) struct LineLoss {
    /// Of the last moments, the shortest first.
    newest: [Fading; 2],
    long: Fading,
    pairs: Pairs,
    /// The number of copies that was not worth it, and until when that is assumed.
    worthless: Option<(u8, Instant)>,
    worthless_for: BeliefDuration,
}

/// What periods have shown of the path, what the receiver dropped left out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossSample {
    pub(super) copies: DeliveryCounts,
    /// Of the periods in which the receiver dropped nothing, copies and aggregates: these show which
    /// copies were lost together.
    pub(super) whole_copies: DeliveryCounts,
    pub(super) whole_aggregates: DeliveryCounts,
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
    /// What was found before N came down to one.
    before: Option<EarlierPairs>,
    /// For how long it counts next time.
    believed_for: BeliefDuration,
}

/// What one copy cannot show.
#[derive(Clone, Copy, Debug)]
struct EarlierPairs {
    /// The share lost of second copies behind a lost first one.
    together: f64,
    /// First copies lost that show it.
    firsts_lost: f64,
    at: Instant,
    /// How long it counts.
    until: Instant,
}

/// For how long it is believed that a further copy helps little: each time that it is found again, for
/// twice as long.
#[derive(Clone, Copy, Debug)]
struct BeliefDuration(Duration);

/// N goes down.
#[derive(Clone, Copy, Debug)]
pub(super) struct FewerCopies {
    pub(super) before: u8,
    pub(super) after: u8,
}

/// What N is to reach, and when one copy more is worth it.
#[derive(Clone, Copy, Debug)]
pub(super) struct LossGoal {
    /// Loss of aggregates at most.
    pub(super) target: f64,
    /// Where the target is out of reach, a copy more has to leave less than this part of the loss.
    pub(super) worth: f64,
}

/// Memories for news. Ours: two hundred and a thousand aggregates at 1 ms.
const NEWEST: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(1)];
/// Memory for everything else.
const LONG: Duration = Duration::from_secs(10);
/// Standard deviations from which a difference is news. Ours: once in thirty thousand by chance.
const NEWS: f64 = 4.0;
/// Losses that an estimate of loss is of at least.
const LOSSES_MIN: f64 = 3.0;
/// Losses that are assumed to have been independent before any was seen. Ours.
const PRIOR: f64 = 5.0;
/// Aggregates that are lost by chance, in standard deviations: a copy more is tried unless more were. Ours.
const BY_CHANCE: f64 = 2.0;
/// Lost first copies from before news that still count. Ours.
const REMEMBERED: f64 = 20.0;
/// How long what was found of copies lost together is believed with N = 1, which shows nothing: at
/// first, and at most. Ours: to find it again takes some tenths of a second.
const TOGETHER_FOR_MIN: Duration = Duration::from_secs(5);
const TOGETHER_FOR_MAX: Duration = Duration::from_secs(60);

impl LineLoss {
    /// What was seen with `copies_each` copies; a loss of `calm` at most is none.
    pub(super) fn add(&mut self, now: Instant, seen: &LossSample, copies_each: u8, calm: f64) {
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
            self.pairs.fade();
        }
        // The trouble is over in which copies did not help: the next may be another one.
        if self.newest[1].loss() <= calm {
            self.worthless = None;
            self.worthless_for = BeliefDuration::default();
            if self.pairs.forget_before() {
                self.long = self.newest[1];
            }
        }
    }

    /// N goes down although that leaves more than `target`: those that go were not worth it. What one copy leaves shows
    /// nothing of that, and is believed otherwise.
    pub(super) fn on_fewer(&mut self, now: Instant, change: FewerCopies, target: f64) {
        if change.after > 1 && self.losses(now).residual(change.after) > target {
            self.worthless = Some((change.before, now + self.worthless_for.next()));
        }
    }

    /// `copies` copies were not found to be worth nothing recently.
    pub(super) fn is_worth_trying(&self, now: Instant, copies: u8) -> bool {
        let worthless = self.worthless.filter(|(_, until)| now < *until);
        worthless.is_none_or(|(worthless, _)| copies < worthless)
    }

    /// Nothing that was found holds.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// The share of copies lost.
    pub(super) fn copies(&self) -> f64 {
        self.long.loss()
    }

    /// What copies are lost to.
    pub(super) fn losses(&self, now: Instant) -> Mixture {
        self.pairs.losses(now, self.copies(), 0.0)
    }

    /// With the present N aggregates were lost, as many as an estimate is of at least.
    pub(super) fn shows_lost_aggregates(&self) -> bool {
        self.pairs.aggregates_lost >= LOSSES_MIN
    }

    /// How many copies the line needs; `None`: it needs more than the least N, but how many is not
    /// known for certain.
    pub(super) fn copies_needed(
        &self,
        now: Instant,
        limits: &Limits,
        loss_goal: LossGoal,
    ) -> Option<u8> {
        if self.long.lost < LOSSES_MIN && self.copies() > loss_goal.target {
            return None;
        }
        let losses = self.pairs.losses(now, self.copies(), BY_CHANCE);
        Some(best(limits, loss_goal, |copies| losses.residual(copies)))
    }

    /// How many copies the line needs if it is as bad as may be.
    pub(super) fn copies_needed_at_worst(
        &self,
        now: Instant,
        limits: &Limits,
        loss_goal: LossGoal,
    ) -> u8 {
        let (losses, worst) = (self.losses(now), self.long.loss_at_most());
        best(limits, loss_goal, |copies| {
            losses.residual_at_worst(worst, copies)
        })
    }
}

/// From the least N upward as long as what is `left` is beyond the target and one more is worth it.
fn best(limits: &Limits, loss_goal: LossGoal, left: impl Fn(u8) -> f64) -> u8 {
    let mut best = limits.copies_min();
    for more in &limits.copies()[1..] {
        let (now, next) = (left(best), left(*more));
        if now <= loss_goal.target || (next > loss_goal.target && next > now * loss_goal.worth) {
            break;
        }
        best = *more;
    }
    best
}

/// The share at most, by what is known: two standard deviations of a Poisson count, and one more.
pub(super) fn loss_at_most(lost: f64, sent: f64) -> f64 {
    if sent < 1.0 {
        return 1.0;
    }
    ((lost + 1.0 + 2.0 * (lost + 1.0).sqrt()) / sent).min(1.0)
}

impl LossSample {
    /// Of copies alone.
    pub(super) fn of(copies: DeliveryCounts) -> Self {
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
    fn add(&mut self, now: Instant, fates: DeliveryCounts, memory: Duration) {
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
    /// What was seen with another N is taken along, as what it would have been with this one.
    fn set_copies(&mut self, now: Instant, copies: u8, loss: f64) {
        if self.copies == copies {
            return;
        }
        let firsts_lost = self.firsts_lost();
        let (firsts_lost, seen) = match self.remembered(now) {
            Some(before) if self.copies < 2 => {
                let firsts_lost = before.firsts_lost * kept(now, before.at, LONG);
                (
                    firsts_lost,
                    Mixture::measured(loss, loss * before.together, 2),
                )
            }
            _ if self.copies < 2 || firsts_lost <= 0.0 => (0.0, Mixture::independent(loss)),
            _ => {
                let all_lost = loss * (self.aggregates_lost / firsts_lost);
                (firsts_lost, Mixture::measured(loss, all_lost, self.copies))
            }
        };
        if self.copies > 1 && copies == 1 {
            self.before = Some(EarlierPairs {
                together: self.losses(now, loss, 0.0).together(),
                firsts_lost,
                at: now,
                until: now + self.believed_for.next(),
            });
        }
        self.copies = copies;
        self.copies_lost = firsts_lost * f64::from(copies);
        self.aggregates_lost = if loss > 0.0 {
            firsts_lost * seen.residual(copies) / loss
        } else {
            0.0
        };
    }

    /// Whether what was found before counted.
    fn forget_before(&mut self) -> bool {
        self.believed_for = BeliefDuration::default();
        self.before.take().is_some() && self.copies == 1
    }

    /// What was seen counts as no more than what is remembered: what is lost now may be lost otherwise.
    fn fade(&mut self) {
        let kept = REMEMBERED / self.firsts_lost().max(REMEMBERED);
        self.copies_lost *= kept;
        self.aggregates_lost *= kept;
    }

    fn firsts_lost(&self) -> f64 {
        self.copies_lost / f64::from(self.copies.max(1))
    }

    fn add(&mut self, now: Instant, copies_lost: u64, aggregates_lost: u64) {
        let kept = kept(now, self.at, LONG);
        self.at = now;
        self.copies_lost = self.copies_lost * kept + copies_lost as f64;
        self.aggregates_lost = self.aggregates_lost * kept + aggregates_lost as f64;
    }

    /// What was found before N came down to one, as long as it counts.
    fn remembered(&self, now: Instant) -> Option<EarlierPairs> {
        self.before.filter(|before| now < before.until)
    }

    /// What copies are lost to if `loss` of them is, and `fewer` standard deviations fewer aggregates than seen.
    fn losses(&self, now: Instant, loss: f64, fewer: f64) -> Mixture {
        if self.copies < 2 {
            let before = self.remembered(now);
            let together = before.map_or(0.0, |before| before.together);
            return Mixture::measured(loss, loss * together, 2);
        }
        let aggregates_lost = self.aggregates_lost - fewer * self.aggregates_lost.sqrt();
        let independent = PRIOR * loss.powi(i32::from(self.copies) - 1);
        let all_lost = (aggregates_lost.max(0.0) + independent) / (self.firsts_lost() + PRIOR);
        Mixture::measured(loss, loss * all_lost, self.copies)
    }
}

impl Default for BeliefDuration {
    fn default() -> Self {
        Self(TOGETHER_FOR_MIN)
    }
}

impl BeliefDuration {
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

    const WISH: LossGoal = LossGoal {
        target: 0.001,
        worth: 0.5,
    };
    const PERIOD: Duration = Duration::from_millis(50);

    fn at(periods: u32) -> Instant {
        Instant::ZERO + PERIOD * periods
    }

    /// Periods of a thousand aggregates, with the copies and aggregates lost in each.
    fn line(copies: u8, copies_lost: u64, aggregates_lost: u64) -> (LineLoss, Instant) {
        let mut line = LineLoss::default();
        for period in 1..400 {
            feed(&mut line, period, copies, copies_lost, aggregates_lost);
        }
        (line, at(400))
    }

    fn feed(line: &mut LineLoss, period: u32, copies: u8, copies_lost: u64, aggregates_lost: u64) {
        let of_copies = DeliveryCounts {
            sent: 1000 * u64::from(copies),
            lost: copies_lost,
        };
        let aggregates = DeliveryCounts {
            sent: 1000,
            lost: aggregates_lost,
        };
        let seen = LossSample {
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
        let fewer = LossGoal {
            target: WISH.target / 2.0,
            worth: 0.65,
        };
        for (copies, copies_lost, aggregates_lost) in [(2, 40, 10), (3, 60, 10)] {
            let (line, now) = line(copies, copies_lost, aggregates_lost);
            let together = line.losses(now).together();
            assert!((together - 0.5).abs() < 0.01, "{copies}: {together}");
            assert_eq!(line.copies_needed(now, &limits, WISH), Some(2), "{copies}");
            assert_eq!(line.copies_needed_at_worst(now, &limits, fewer), 2);
        }
    }

    #[test]
    fn what_was_seen_with_one_n_holds_with_another() {
        let (mut line, _) = line(3, 180, 10);
        let mut found = Vec::new();
        for (period, copies) in (401..).zip([3, 2, 3, 1, 2, 3]) {
            line.add(at(period), &LossSample::default(), copies, WISH.target);
            found.push(line.losses(at(period)).together());
        }
        let off = |together: &f64| (together - 0.207).abs();
        assert!(
            found[..4].iter().all(|found| off(found) < 0.005),
            "{found:?}"
        );
        // One copy shows nothing, and what is remembered counts for less.
        assert!(
            found[4..].iter().all(|found| off(found) < 0.05),
            "{found:?}"
        );
        // Nothing shows anything after a while with one copy.
        line.add(at(420), &LossSample::default(), 1, WISH.target);
        line.add(at(1000), &LossSample::default(), 2, WISH.target);
        assert!(line.losses(at(1000)).together() < 0.07);
    }

    #[test]
    fn copies_that_are_lost_together_are_not_worth_it() {
        let (line, now) = line(2, 100, 45);
        let together = line.losses(now).together();
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
            let just = line
                .losses(began + Duration::from_secs(believed) - PERIOD)
                .together();
            assert!(just > 0.8, "{believed} s: {just}");
            let later = line
                .losses(began + Duration::from_secs(believed) + PERIOD)
                .together();
            assert!(later < 0.1, "{believed} s: {later}");
            for period in period + 20..period + 420 {
                feed(&mut line, period, 2, 100, 45);
            }
            period += 420;
        }
    }

    #[test]
    fn findings_of_past_congestion_do_not_count_for_the_next() {
        let (mut line, now) = line(2, 100, 45);
        feed(&mut line, 400, 1, 50, 50);
        assert!(line.losses(now).together() > 0.85);
        let calm = 80;
        for period in 401..401 + calm {
            feed(&mut line, period, 1, 0, 0);
        }
        for period in 401 + calm..411 + calm {
            feed(&mut line, period, 1, 50, 50);
        }
        let now = at(411 + calm);
        assert!(
            line.losses(now).together() < 0.1,
            "{}",
            line.losses(now).together()
        );
        assert_eq!(line.copies_needed(now, &Limits::default(), WISH), Some(3));
    }

    #[test]
    fn little_evidence_is_taken_for_the_worst() {
        let mut line = LineLoss::default();
        let limits = Limits::default();
        let few = DeliveryCounts { sent: 100, lost: 0 };
        line.add(at(1), &LossSample::of(few), 2, WISH.target);
        assert_eq!(line.copies_needed(at(1), &limits, WISH), Some(1));
        assert_eq!(line.copies_needed_at_worst(at(1), &limits, WISH), 2);
        let one = DeliveryCounts { sent: 100, lost: 1 };
        line.add(at(2), &LossSample::of(one), 2, WISH.target);
        assert_eq!(line.copies_needed(at(2), &limits, WISH), None);
        assert_eq!(loss_at_most(0.0, 0.0), 1.0);
        assert_eq!(loss_at_most(0.0, 3000.0), 0.001);
    }

    #[test]
    fn changed_loss_is_reported_at_once() {
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
