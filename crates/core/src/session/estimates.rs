//! Estimators of a path: base round trip, self-queueing, jitter, recent loss and sent rate.
//!
//! Every figure forgets: the planner reads them to see a change within a second. What the path
//! carries is the trains' ([`super::train`]).

use std::{collections::VecDeque, time::Duration};

use keiro_model::loss_test::Outcomes;
use keiro_units::{Bandwidth, ByteCount, Instant, Probability};

/// The recent minimum of a time that a packet takes, in microseconds; what is constant
/// in it, as the offset of two clocks, does not matter.
///
/// A queue that empties now and then does not raise it: the minimum of 5 to 10 s is taken. A rise
/// that no queue explains is taken at once: for a while every single sample was far above the base,
/// and the lowest of them stayed where they were, as those of a queue do not. A fall is always taken
/// at once. A queue that never empties counts as delay.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WindowedMinDelay {
    base_us: Option<i64>,
    /// Mean of what samples were above the base, those of a rise left out; in nanoseconds, because
    /// single steps are small.
    excess_ns: i64,
    last: Instant,
    window: Window,
    /// The highest excess that was no rise, of this and of the previous period.
    highest_us: [i64; 2],
    highest_since: Instant,
    rise: Option<Rise>,
}

/// Smallest samples of this and of the previous period.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    since: Instant,
    samples: u32,
    current_us: Option<i64>,
    previous_us: Option<i64>,
}

/// Samples in a row far above the base.
#[derive(Clone, Copy, Debug)]
struct Rise {
    since: Instant,
    samples: u32,
    /// The smallest of the present stretch and of those before, the newest first. Both directions
    /// may change, one after the other, so that the first stretch says little.
    min_us: [Option<i64>; 4],
    stretch_since: Instant,
    max_above_us: i64,
}

/// Half of the time that a small rise takes to be seen at most. Ours: long against the busy
/// periods of a bottleneck at 90 % load (some 0.2 s at 10 Mbit/s).
const WINDOW: Duration = Duration::from_secs(5);
/// Least samples of a period.
const WINDOW_SAMPLES_MIN: u32 = 8;
/// A rise lasts four of these and has [`RISE_SAMPLES_MIN`] samples, at least. Ours: a few busy periods as above,
/// and little more than half a second.
const RISE_STRETCH: Duration = Duration::from_millis(150);
const RISE_SAMPLES_MIN: u32 = 4;
/// Above the base by this many mean excesses, and this, is a rise. Ours: exponential waits are that
/// long once in 400, and not all for half a second.
const RISE_EXCESSES: i64 = 6;
const RISE_MIN_US: i64 = 2000;
/// The lowest samples of a rise stay within this part of it, and this. Ours: within half of it if
/// the rise is less than the highest excess of the last minute.
const RISE_SPREAD: i64 = 8;
const RISE_SPREAD_MIN_US: i64 = 500;
const HIGHEST_TIME: Duration = Duration::from_secs(30);
/// Memory of the mean excess.
const EXCESS_TIME: Duration = Duration::from_secs(10);

impl WindowedMinDelay {
    /// Takes a sample and says how far above the base it is.
    pub(crate) fn on_sample(&mut self, now: Instant, sample_us: i64) -> Duration {
        self.window.on_sample(now, sample_us);
        let since_last = now.saturating_duration_since(self.last);
        self.last = now;
        let Some(base) = self.base_us.filter(|base| sample_us > *base) else {
            self.end_rise(now, 0);
            self.base_us = self.window.min_us();
            return self.above(sample_us);
        };
        let above = sample_us.saturating_sub(base);
        if above <= self.excess_ns / 1000 * RISE_EXCESSES + RISE_MIN_US {
            self.end_rise(now, above);
            self.blend_excess(above, since_last);
            self.base_us = self.window.min_us();
            return self.above(sample_us);
        }
        let rise = self.rise.get_or_insert(Rise::beginning(now));
        let known = KnownBase {
            base_us: base,
            highest_us: self.highest_us[0].max(self.highest_us[1]),
        };
        if let Some(risen_us) = rise.on_sample(now, sample_us, known) {
            self.window = Window::beginning(now, risen_us);
            self.base_us = self.window.min_us();
            self.rise = None;
        }
        self.above(sample_us)
    }

    /// The base in microseconds; `None` before the first sample.
    pub(crate) fn us(&self) -> Option<i64> {
        self.base_us
    }

    fn above(&self, sample_us: i64) -> Duration {
        let above = self
            .base_us
            .map_or(0, |base| sample_us.saturating_sub(base));
        Duration::from_micros(u64::try_from(above).unwrap_or(0))
    }

    /// An apparent rise was a queue; an excess of `above_us` is one, too.
    fn end_rise(&mut self, now: Instant, above_us: i64) {
        let rise = self.rise.take();
        if now.saturating_duration_since(self.highest_since) >= HIGHEST_TIME {
            self.highest_us = [0, self.highest_us[0]];
            self.highest_since = now;
        }
        let above_us = rise.map_or(0, |rise| rise.max_above_us).max(above_us);
        self.highest_us[0] = self.highest_us[0].max(above_us);
    }

    fn blend_excess(&mut self, above_us: i64, since_last: Duration) {
        // A long pause is no reason to believe one sample.
        let weight = since_last.min(EXCESS_TIME / 4).as_micros() as i64;
        let whole = EXCESS_TIME.as_micros() as i64;
        let step = (above_us.saturating_mul(1000) - self.excess_ns) / whole;
        self.excess_ns += step.saturating_mul(weight);
    }
}

/// The base that is in force, and the highest that samples have shown since.
#[derive(Clone, Copy, Debug)]
struct KnownBase {
    base_us: i64,
    highest_us: i64,
}

impl Rise {
    fn beginning(now: Instant) -> Self {
        Self {
            since: now,
            samples: 0,
            min_us: [None; 4],
            stretch_since: now,
            max_above_us: 0,
        }
    }

    /// Takes a sample; the new base if this is no queue above the old one.
    fn on_sample(&mut self, now: Instant, sample_us: i64, base: KnownBase) -> Option<i64> {
        let KnownBase {
            base_us,
            highest_us,
        } = base;
        self.samples += 1;
        self.max_above_us = self.max_above_us.max(sample_us.saturating_sub(base_us));
        let in_stretch = now.saturating_duration_since(self.stretch_since);
        if in_stretch >= RISE_STRETCH {
            self.min_us.rotate_right(1);
            self.min_us[0] = None;
            self.stretch_since = now;
        }
        let newest = self.min_us[0].map_or(sample_us, |min| min.min(sample_us));
        self.min_us[0] = Some(newest);
        let lasted = now.saturating_duration_since(self.since);
        if self.samples < RISE_SAMPLES_MIN || lasted < RISE_STRETCH * 4 {
            return None;
        }
        // The present stretch has just begun; rare samples are a stretch each.
        let whole = self.min_us[1..].iter().flatten();
        let (low, high) = (whole.clone().min()?, whole.max()?);
        let risen = low - base_us;
        let unseen = risen.min(newest - base_us) > highest_us;
        let spread_max = risen / if unseen { RISE_SPREAD } else { 2 * RISE_SPREAD };
        (high - low <= spread_max + RISE_SPREAD_MIN_US).then_some(newest.min(*low))
    }
}

impl Window {
    fn beginning(now: Instant, sample_us: i64) -> Self {
        Self {
            since: now,
            samples: 1,
            current_us: Some(sample_us),
            previous_us: None,
        }
    }

    fn on_sample(&mut self, now: Instant, sample_us: i64) {
        let old = now.saturating_duration_since(self.since) >= WINDOW;
        if old && self.samples >= WINDOW_SAMPLES_MIN {
            *self = Self {
                previous_us: self.current_us,
                ..Self::beginning(now, sample_us)
            };
            return;
        }
        self.samples += 1;
        self.current_us = Some(self.current_us.map_or(sample_us, |min| min.min(sample_us)));
    }

    fn min_us(&self) -> Option<i64> {
        self.current_us.into_iter().chain(self.previous_us).min()
    }
}

/// A model of our own packets at a bottleneck without other traffic: how long each takes there, and
/// which of them keep it busy without a break.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SelfQueueModel {
    clear_at: Instant,
    burst: u32,
    bits_sent: u64,
}

/// The time that a packet of ours spends at the bottleneck because of our own traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SelfQueueing {
    /// Time from its sending until it has left the bottleneck, microseconds: own packets before it, and
    /// itself.
    pub(crate) duration_us: u32,
    /// Number of the burst that it belongs to.
    pub(crate) burst: u32,
    /// It is the first of its burst.
    pub(crate) is_first: bool,
    /// Bits that we have sent up to its end.
    pub(crate) bits_sent: u64,
}

impl SelfQueueing {
    /// A round trip without the time of self-queueing, in microseconds. `None`:
    /// it was answered before it can have left; the bottleneck is quicker than it is known to be,
    /// and the way as long as ever.
    pub(crate) fn without_self_queueing(&self, round_trip: Duration) -> Option<i64> {
        let round_trip_us = i64::try_from(round_trip.as_micros()).unwrap_or(i64::MAX);
        Some(round_trip_us - i64::from(self.duration_us)).filter(|rest| *rest > 0)
    }
}

/// The pacer never lets more out at once; a queue that seems longer is a capacity that is known
/// wrongly. Ours.
const SELF_QUEUE_MAX: Duration = Duration::from_millis(3);

impl SelfQueueModel {
    /// A packet of `ip_bytes` leaves for a bottleneck of `rate`.
    pub(crate) fn on_sent(&mut self, now: Instant, ip_bytes: u64, rate: Bandwidth) -> SelfQueueing {
        let is_first = self.clear_at <= now;
        self.burst = self.burst.wrapping_add(u32::from(is_first));
        self.bits_sent += ip_bytes * 8;
        let waits = self.clear_at.saturating_duration_since(now);
        let own = if rate.is_zero() {
            Duration::ZERO
        } else {
            rate.transmission_time_nearest(ByteCount::new(ip_bytes))
        };
        let takes = waits.min(SELF_QUEUE_MAX) + own.min(TRANSMISSION_MAX);
        self.clear_at = now + takes;
        SelfQueueing {
            duration_us: takes.as_micros() as u32,
            burst: self.burst,
            is_first,
            bits_sent: self.bits_sent,
        }
    }

    /// The path is back: nothing of ours is on it.
    pub(crate) fn on_return(&mut self, now: Instant) {
        self.clear_at = now;
    }
}

/// A line on which a packet takes longer is not waited for.
const TRANSMISSION_MAX: Duration = Duration::from_secs(10);

/// Interarrival jitter (RFC 3550 §6.4.1), of the packets whose arrivals the peer reports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Jitter {
    /// (Arrival − departure) of the last packet, microseconds; the clocks' offset is in it.
    last: Option<i64>,
    jitter: Option<Duration>,
}

impl Jitter {
    /// `transit_us`: arrival by the peer's clock less departure by ours, less the packet's own
    /// transmission time.
    pub(crate) fn on_sample(&mut self, transit_us: i64) {
        if let Some(last) = self.last.replace(transit_us) {
            let apart = Duration::from_micros(transit_us.abs_diff(last));
            self.jitter = Some(match self.jitter {
                None => apart,
                Some(jitter) => (jitter * 15 + apart) / 16,
            });
        }
    }

    pub(crate) fn get(&self) -> Option<Duration> {
        self.jitter
    }
}

/// Recent loss and rate, from counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recent {
    slots: VecDeque<Slot>,
    seen: OutcomeTotals,
}

/// Counters since the beginning of the path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutcomeTotals {
    pub(crate) acked: u64,
    pub(crate) lost: u64,
    pub(crate) spurious: u64,
    pub(crate) bytes_sent: u64,
}

impl OutcomeTotals {
    /// What became of packets, without losses that turned out to be none.
    pub(crate) fn outcomes(&self) -> Outcomes {
        Outcomes {
            arrived: self.acked,
            lost: self.lost.saturating_sub(self.spurious),
        }
    }
}

/// Packets of a tenth of a second. Losses may turn out to be spurious later.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    number: u64,
    acked: i64,
    lost: i64,
    bytes_sent: u64,
}

/// The ratio of recent losses and how many packets it is of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RecentLoss {
    pub(crate) ratio: Probability,
    pub(crate) packets: u64,
    /// It was one short burst and is not typical of the path.
    pub(crate) is_burst: bool,
}

const SLOT: Duration = Duration::from_millis(100);
/// Slots of a second: recent, where there is enough traffic.
const RECENT_SLOTS: u64 = 10;
/// Least packets that a ratio is of, unless a minute has fewer. Ours: 5 % of them is three.
const LOSS_PACKETS_MIN: i64 = 50;
/// Slots from the first to the last loss of a burst. Ours: a route that changes or a radio that roams
/// loses for a tenth or two of a second, and is no reason to leave the path.
const BURST_SLOTS: u64 = 3;
/// A single loss is no burst: where little is sent, a path that loses often shows one at a time.
const BURST_MIN: i64 = 2;
/// Slots of a minute: nothing older counts.
const SLOTS_MAX: u64 = 600;

/// By how much a counter that may wrap has grown; less than zero: it has been corrected.
fn grown(now: u64, before: u64) -> i64 {
    now.wrapping_sub(before) as i64
}

impl Recent {
    /// Takes the counters as they are now.
    pub(crate) fn on_totals(&mut self, now: Instant, totals: OutcomeTotals) {
        let number = now.as_nanos() / SLOT.as_nanos() as u64;
        if self.slots.back().is_none_or(|slot| slot.number < number) {
            self.slots.push_back(Slot {
                number,
                ..Slot::default()
            });
        }
        while self
            .slots
            .front()
            .is_some_and(|slot| slot.number + SLOTS_MAX <= number)
        {
            self.slots.pop_front();
        }
        let Some(slot) = self.slots.back_mut() else {
            return;
        };
        let spurious = grown(totals.spurious, self.seen.spurious);
        slot.acked += grown(totals.acked, self.seen.acked);
        slot.lost += grown(totals.lost, self.seen.lost) - spurious;
        slot.bytes_sent += totals.bytes_sent.saturating_sub(self.seen.bytes_sent);
        self.seen = totals;
    }

    /// Loss within the last second, or within as long as it takes to have enough packets.
    pub(crate) fn loss(&self) -> Option<RecentLoss> {
        let newest = self.slots.back()?.number;
        let (mut acked, mut lost) = (0, 0);
        let mut lossy: Option<(u64, u64)> = None;
        for slot in self.slots.iter().rev() {
            if newest - slot.number >= RECENT_SLOTS && acked + lost >= LOSS_PACKETS_MIN {
                break;
            }
            acked += slot.acked;
            lost += slot.lost;
            if slot.lost > 0 {
                let last = lossy.map_or(slot.number, |(_, last)| last);
                lossy = Some((slot.number, last));
            }
        }
        let is_short = lossy.is_some_and(|(first, last)| last - first < BURST_SLOTS);
        let is_burst = lost >= BURST_MIN && is_short;
        // A loss of before that turned out to be none.
        let lost = u64::try_from(lost).unwrap_or(0);
        let packets = u64::try_from(acked).unwrap_or(0) + lost;
        let ratio = Probability::from_ratio(lost, packets)?;
        Some(RecentLoss {
            ratio,
            packets,
            is_burst,
        })
    }

    /// The rate in the last second before the present slot.
    pub(crate) fn sent_rate(&self) -> Bandwidth {
        let Some(newest) = self.slots.back().map(|slot| slot.number) else {
            return Bandwidth::ZERO;
        };
        let slots = self.slots.iter().rev().take(1 + RECENT_SLOTS as usize);
        let bytes = slots
            .filter(|slot| slot.number < newest && slot.number + RECENT_SLOTS >= newest)
            .map(|slot| slot.bytes_sent)
            .sum();
        ByteCount::new(bytes).rate_over_floor(SLOT * RECENT_SLOTS as u32)
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        assert!(self.slots.len() as u64 <= SLOTS_MAX, "slots are bounded");
        assert!(
            self.slots.iter().is_sorted_by(|a, b| a.number < b.number),
            "slots are in the order of time"
        );
    }

    /// The path comes up: what was lost until now, of which `totals` are the counters, says nothing
    /// about it. What was sent stays.
    pub(crate) fn on_return(&mut self, now: Instant, totals: OutcomeTotals) {
        self.on_totals(now, totals);
        for slot in &mut self.slots {
            (slot.acked, slot.lost) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const START: Instant = Instant::from_nanos(1_000_000_000);

    #[test]
    fn an_answer_from_before_a_packet_can_have_left_gives_no_sample() {
        // 1500 bytes take 1.2 ms at 10 Mbit/s, the second one 2.4.
        let mut queue = SelfQueueModel::default();
        let rate = Bandwidth::from_mbit_per_second(10);
        let places = [0, 1].map(|_| queue.on_sent(START, 1500, rate));
        assert_eq!(places.map(|place| place.duration_us), [1200, 2400]);
        let rests = places.map(|place| place.without_self_queueing(2 * MS));
        assert_eq!(rests, [Some(800), None]);
    }

    #[derive(Clone, Copy)]
    struct Sampling {
        interval: Duration,
        time: Duration,
    }

    fn every(interval: Duration, time: Duration) -> Sampling {
        Sampling { interval, time }
    }

    /// Feeds a sample every `interval` for `time`; when the base first was `wanted`.
    fn feed(
        base: &mut WindowedMinDelay,
        from: Instant,
        sampling: Sampling,
        sample_us: impl Fn(u32) -> i64,
        wanted: impl Fn(i64) -> bool,
    ) -> Option<Duration> {
        let Sampling { interval, time } = sampling;
        let mut number = 0;
        while interval * number < time {
            let at = from + interval * number;
            base.on_sample(at, sample_us(number));
            if base.us().is_some_and(&wanted) {
                return Some(at - from);
            }
            number += 1;
        }
        None
    }

    /// A wait of a mean of some 6 ms, in busy periods of up to 0.3 s.
    fn wait_us(number: u32) -> i64 {
        i64::from(number % 40).pow(2) * 11
    }

    #[test]
    fn base_delay_rises_after_half_a_second_and_falls_at_once() {
        let mut base = WindowedMinDelay::default();
        let busy = |number| 20_000 + wait_us(number);
        feed(&mut base, START, every(7 * MS, 20_000 * MS), busy, |_| {
            false
        });
        assert_eq!(base.us(), Some(20_000));
        let from = START + 20_000 * MS;
        let after = |number| 100_000 + wait_us(number);
        let risen = |found| found >= 100_000;
        let took = feed(&mut base, from, every(7 * MS, 2000 * MS), after, risen).unwrap();
        assert!(took <= 700 * MS, "{took:?}");
        let above = base.on_sample(from + 3000 * MS, 20_000);
        assert_eq!((base.us(), above), (Some(20_000), Duration::ZERO));
    }

    #[test]
    fn a_rise_of_one_direction_after_the_other_is_taken_whole() {
        let mut base = WindowedMinDelay::default();
        feed(
            &mut base,
            START,
            every(50 * MS, 5000 * MS),
            |_| 40_000,
            |_| false,
        );
        let from = START + 5000 * MS;
        let after = |number| if number < 2 { 80_000 } else { 120_000 };
        let risen = |found| found > 40_000;
        feed(&mut base, from, every(50 * MS, 1000 * MS), after, risen).unwrap();
        assert_eq!(base.us(), Some(120_000));
    }

    #[test]
    fn intermittent_queue_does_not_raise_the_base_delay() {
        let mut base = WindowedMinDelay::default();
        let busy = |number| 20_000 + wait_us(number);
        let risen = |found| found > 20_000;
        let time = every(7 * MS, 60_000 * MS);
        assert_eq!(feed(&mut base, START, time, busy, risen), None);
    }

    #[test]
    fn small_rise_of_the_base_delay_takes_a_window() {
        let mut base = WindowedMinDelay::default();
        let time = every(100 * MS, 20_000 * MS);
        feed(&mut base, START, time, |_| 20_000, |_| false);
        let from = START + 20_000 * MS;
        let took = feed(&mut base, from, time, |_| 21_000, |found| found == 21_000);
        assert!(took.is_some_and(|took| took <= 2 * WINDOW), "{took:?}");
    }

    #[test]
    fn keepalives_alone_show_a_rise_of_the_base_delay() {
        let mut base = WindowedMinDelay::default();
        let time = every(1000 * MS, 20_000 * MS);
        feed(&mut base, START, time, |_| -20_000, |_| false);
        let from = START + 20_000 * MS;
        let took = feed(&mut base, from, time, |_| 60_000, |found| found == 60_000);
        assert_eq!(took, Some(3000 * MS));
    }

    #[test]
    fn own_packets_queue_behind_each_other() {
        let mut own = SelfQueueModel::default();
        let rate = Bandwidth::from_mbit_per_second(12);
        let places = [0, 0, 1, 5].map(|ms| own.on_sent(START + MS * ms, 1500, rate));
        let queueing = places.map(|place| (place.duration_us, place.burst, place.is_first));
        assert_eq!(
            queueing,
            [
                (1000, 1, true),
                (2000, 1, false),
                (2000, 1, false),
                (1000, 2, true)
            ]
        );
        assert_eq!(places[3].bits_sent, 48_000);
    }

    #[test]
    fn jitter_matches_rfc_3550() {
        let mut jitter = Jitter::default();
        jitter.on_sample(-5_000);
        assert_eq!(jitter.get(), None);
        jitter.on_sample(-3_400);
        assert_eq!(jitter.get(), Some(Duration::from_micros(1600)));
        jitter.on_sample(-3_400);
        assert_eq!(jitter.get(), Some(Duration::from_micros(1500)));
    }

    #[test]
    fn loss_is_of_the_last_second_or_of_enough_packets() {
        let mut recent = Recent::default();
        assert_eq!(recent.loss(), None);
        let mut totals = OutcomeTotals::default();
        for slot in 0..20 {
            totals.acked += 95;
            totals.lost += if slot < 10 { 0 } else { 5 };
            recent.on_totals(START + SLOT * slot, totals);
        }
        let loss = recent.loss().unwrap();
        assert_eq!((loss.ratio.get(), loss.packets), (0.05, 1000));
        // They were only late.
        totals.spurious += 50;
        totals.acked += 50;
        recent.on_totals(START + SLOT * 20, totals);
        assert_eq!(recent.loss().unwrap().ratio, Probability::ZERO);
        // Hardly anything is sent: the ratio is of more than a second.
        for slot in 21..60 {
            totals.acked += 1;
            recent.on_totals(START + SLOT * slot, totals);
        }
        assert!(recent.loss().unwrap().packets >= 50);
        // An outage: what it took is counted only when the path is back.
        totals.lost += 40;
        recent.on_return(START + SLOT * 90, totals);
        assert_eq!(recent.loss(), None);
        totals.acked += 10;
        recent.on_totals(START + SLOT * 91, totals);
        assert_eq!(recent.loss().unwrap().ratio, Probability::ZERO);
    }

    #[test]
    fn losses_within_tenths_of_a_second_are_one_burst() {
        // By slot; a hundred packets each.
        let is_burst = |lost: &[u64]| {
            let mut recent = Recent::default();
            let mut totals = OutcomeTotals::default();
            for (slot, lost) in (0..).zip(lost) {
                totals.acked += 100 - lost;
                totals.lost += lost;
                recent.on_totals(START + SLOT * slot, totals);
            }
            recent.loss().unwrap().is_burst
        };
        assert!(is_burst(&[0, 100, 0, 0]));
        assert!(is_burst(&[0, 0, 40, 100, 60]));
        assert!(!is_burst(&[40, 0, 0, 60]));
        assert!(!is_burst(&[5, 5, 5, 5]));
        assert!(!is_burst(&[0, 1, 0, 0]));
        assert!(!is_burst(&[0, 0, 0]));
    }

    #[test]
    fn own_rate_is_that_of_the_last_second() {
        let mut recent = Recent::default();
        let mut totals = OutcomeTotals::default();
        for slot in 0..15 {
            recent.on_totals(START + SLOT * slot, totals);
            totals.bytes_sent += 12_500;
        }
        let rate = Bandwidth::from_mbit_per_second(1);
        assert_eq!(recent.sent_rate(), rate);
        recent.on_totals(START + SLOT * 40, totals);
        assert_eq!(recent.sent_rate(), Bandwidth::ZERO);
    }
}
