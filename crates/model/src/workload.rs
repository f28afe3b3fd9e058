//! What an application sends, measured: how long its messages are, how far apart, and how much
//! both vary.
//!
//! The interval is time over count, whatever the pattern: twenty messages at once every second are
//! one every 50 ms, and how far they are from coming every 50 ms is shown by the spread, and by the
//! part of them that come together. Counted is over a window of the newest messages. It is as long
//! as it takes to know the mean of intervals that vary so much, some minutes at least, and no longer
//! than the present way of sending has lasted: what is older than a significant change of pace or
//! length is forgotten (in the manner of ADWIN, Bifet and Gavaldà, "Learning from time-changing data
//! with adaptive windowing", 2007).
//!
//! Two kinds of pauses are no intervals. After having sent for a while an application may be absent
//! ([`Workload::silence_max`]): its pace is the one while it is there. And a pause that is the only
//! one of its kind is no pattern yet.

use std::{collections::VecDeque, time::Duration};

use keiro_units::Instant;

/// Messages of the window, times the squared variation of intervals where that is more
/// than one. Ours: the mean interval is then known within some 9 %.
const MEMORY: f64 = 128.0;
/// The window is at least this long, in seconds: what comes twice in it is seen to be a pattern.
const WINDOW_MIN: f64 = 300.0;
/// It is no longer than this, in seconds, unless [`MEMORY`] messages take longer.
const WINDOW_MAX: f64 = 1800.0;
/// No pace is known from less than this, in seconds: what was sent in less counts as sent in it.
const PACE_MIN: f64 = 1.0;
/// Seconds from which what lasts is a way of sending; what does not is a burst. The silence after a
/// burst belongs to the pattern; a burst is no change of it.
const LASTING: f64 = 10.0;
/// Least seconds and least messages of a block of the window.
const BLOCK: f64 = LASTING / 2.0;
const BLOCK_MESSAGES: u64 = 8;
/// Multiple of the others' mean from which a pause stands out: exponential intervals are that long once in
/// 5 × 10^8.
const STANDS_OUT: f64 = 20.0;
/// Multiple of the next longest pause from which a pause is the only one of its kind.
const ONLY_ONE: f64 = 4.0;
/// Messages that come within this part of the mean interval come together; of a Poisson process
/// these are 9.5 %.
const TOGETHER: f64 = 0.1;
/// Blocks that show a new way of sending: one may be a burst or a pause.
const CHANGED_BLOCKS: usize = 2;
/// One in this number of older blocks may be like the newer ones, by chance.
const ALIKE: usize = 8;
/// Standard deviations from which a change of a mean counts. Ours: it is looked for often.
const SIGNIFICANT: f64 = 4.0;
/// And if it is at least this part of the mean.
const CHANGE_MIN: f64 = 0.2;

/// An application that is silent for longer than all of these has stopped: a minute, and [`SILENT_PAUSES`] of
/// its pauses.
const SILENCE_MIN: Duration = Duration::from_secs(60);
const SILENT_PAUSES: u32 = 20;
/// Pauses that are not intervals but the time between bursts count up to this silence.
const SILENCE_BETWEEN_BURSTS: Duration = Duration::from_secs(1800);

/// What an application sends, as measured over a window of its newest messages or datagrams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Intervals seen since the measurement began.
    pub count: u64,
    /// Mean length in bytes.
    pub length_bytes: f64,
    /// Standard deviation of the length over its mean.
    pub length_variation: f64,
    /// Mean time between two of them: time over count, absences left out.
    pub interval: Duration,
    /// Standard deviation of that time over its mean; 1 for a Poisson process.
    pub interval_variation: f64,
    /// The part of them that come with the one before, within a tenth of the mean interval: 0.1 for
    /// a Poisson process, 0.5 for pairs, more for larger bursts.
    pub together: f64,
    /// When the newest was made.
    pub last_made: Instant,
}

/// Follows one application.
#[derive(Clone, Debug, Default)]
pub struct WorkloadMeter {
    /// The window, the oldest first; then the block that is filled. At most some 400, where the
    /// window is at its longest.
    blocks: VecDeque<Block>,
    open: Block,
    /// Intervals in all.
    count: u64,
    last: Option<Instant>,
    /// Seconds since the application was last silent for long.
    session: f64,
    /// The mean interval in seconds, as of the last block.
    mean: f64,
}

/// Messages in a row.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    lengths: Sums,
    /// Of all, in seconds; the two longest count, but are not in the sums.
    intervals: Sums,
    /// The two longest, in seconds, the longer first; zero where there are fewer.
    longest: [f64; 2],
    /// Messages that came with the one before.
    together: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    count: u64,
    sum: f64,
    squares: f64,
}

impl Workload {
    /// An application that is silent for longer has stopped: 20 of its intervals, or of its pauses
    /// if it sends in bursts, and a minute.
    pub fn silence_max(&self) -> Duration {
        let regular = self.interval.saturating_mul(SILENT_PAUSES);
        // n messages at once have a squared variation of n - 1: this is their pause.
        let bursts = self.interval_variation.powi(2).max(1.0);
        let seconds = (regular.as_secs_f64() * bursts).min(SILENCE_BETWEEN_BURSTS.as_secs_f64());
        SILENCE_MIN
            .max(regular)
            .max(Duration::from_secs_f64(seconds))
    }
}

impl WorkloadMeter {
    /// A message or datagram of `len` bytes was made.
    pub fn on_made(&mut self, made: Instant, len: usize) {
        if let Some(last) = self.last {
            let interval = made.saturating_duration_since(last).as_secs_f64();
            self.on_interval(interval);
        }
        self.open.lengths.add(len as f64);
        self.last = Some(self.last.map_or(made, |last| last.max(made)));
        if self.open.lengths.count >= BLOCK_MESSAGES && self.open.all().sum >= BLOCK {
            self.on_block();
        } else if self.blocks.is_empty() {
            self.mean = self.open.all().mean();
        }
    }

    fn on_interval(&mut self, seconds: f64) {
        self.count += 1;
        if seconds > SILENCE_MIN.as_secs_f64() && self.is_silence(seconds) {
            let was_session = std::mem::take(&mut self.session) >= LASTING;
            if was_session {
                return;
            }
        } else {
            self.session += seconds;
        }
        self.open.together += u64::from(seconds <= self.mean * TOGETHER);
        self.open.add_interval(seconds);
    }

    /// Whether a pause of `seconds` is longer than the pattern's.
    fn is_silence(&self, seconds: f64) -> bool {
        self.seen()
            .is_none_or(|seen| seconds > seen.silence_max().as_secs_f64())
    }

    /// The open block is full.
    fn on_block(&mut self) {
        self.blocks.push_back(std::mem::take(&mut self.open));
        self.forget_before_change();
        self.forget_beyond_window();
        self.mean = self.window().all().mean();
    }

    /// Forgets what came before the most significant change.
    fn forget_before_change(&mut self) {
        let mut all = Block::default();
        let before = self.blocks.iter().map(|block| all.with(block));
        let before: Vec<Block> = before.collect();
        let mut newer = Block::default();
        let (mut forgotten, mut most) = (0, SIGNIFICANT);
        for split in (1..self.blocks.len()).rev() {
            newer.append(&self.blocks[split]);
            if self.blocks.len() - split < CHANGED_BLOCKS {
                continue;
            }
            let of = |sums: fn(&Block) -> Sums| {
                let [older, newer, all] = [&before[split - 1], &newer, &all].map(sums);
                let significance = change(&older, &newer, &all);
                let is_newer = |block: &Block| {
                    let between = (older.mean() * newer.mean()).sqrt();
                    (sums(block).mean() > between) == (newer.mean() > older.mean())
                };
                let (before, after) = (self.blocks.range(..split), self.blocks.range(split..));
                let alike = before.filter(|block| is_newer(block)).count();
                let apart = alike * ALIKE <= split && after.into_iter().all(is_newer);
                if apart { significance } else { 0.0 }
            };
            let change = of(Block::all).max(of(|block| block.lengths));
            if change > most {
                (forgotten, most) = (split, change);
            }
        }
        self.blocks.drain(..forgotten);
    }

    /// Forgets what the window does not need.
    fn forget_beyond_window(&mut self) {
        let mut newer: Vec<(u64, f64)> = Vec::with_capacity(self.blocks.len());
        let (mut messages, mut seconds) = (0, 0.0);
        for block in self.blocks.iter().rev() {
            newer.push((messages, seconds));
            messages += block.lengths.count;
            seconds += block.all().sum;
        }
        let needed = MEMORY * self.window().counted().variation().powi(2).max(1.0);
        let is_enough = |(messages, seconds): &(u64, f64)| {
            let messages = *messages as f64;
            let long = *seconds >= WINDOW_MAX && messages >= MEMORY;
            long || (*seconds >= WINDOW_MIN && messages >= needed)
        };
        let forgotten = newer.iter().filter(|rest| is_enough(rest)).count();
        self.blocks.drain(..forgotten);
    }

    fn window(&self) -> Block {
        let mut window = Block::default();
        for block in self.blocks.iter().chain([&self.open]) {
            window.append(block);
        }
        window
    }

    /// `None` before the second message.
    pub fn seen(&self) -> Option<Workload> {
        let window = self.window();
        let intervals = window.counted();
        if intervals.count == 0 {
            return None;
        }
        let seconds = intervals.sum.max(PACE_MIN) / intervals.count as f64;
        Some(Workload {
            count: self.count,
            length_bytes: window.lengths.mean(),
            length_variation: window.lengths.variation(),
            interval: Duration::from_secs_f64(seconds),
            interval_variation: intervals.variation(),
            together: window.together as f64 / intervals.count as f64,
            last_made: self.last?,
        })
    }
}

/// The difference of the means of two parts of `all`, in standard deviations; zero where the means
/// are too close to matter. A part's variance is at least that of `all`, because a rare event must not
/// count as a change, whether a part has none of them or the only one.
fn change(older: &Sums, newer: &Sums, all: &Sums) -> f64 {
    let difference = (older.mean() - newer.mean()).abs();
    let is_little = difference < CHANGE_MIN * older.mean().max(newer.mean());
    if older.count == 0 || newer.count == 0 || is_little {
        return 0.0;
    }
    let of = |part: &Sums| part.variance().max(all.variance()) / part.count as f64;
    let deviation = (of(older) + of(newer)).sqrt();
    if deviation > 0.0 {
        difference / deviation
    } else {
        0.0
    }
}

impl Block {
    fn add_interval(&mut self, seconds: f64) {
        let shorter = self.keep_longest(seconds);
        self.intervals.add(shorter);
    }

    fn append(&mut self, next: &Self) {
        self.lengths.append(&next.lengths);
        self.intervals.append(&next.intervals);
        self.together += next.together;
        for seconds in next.longest {
            let shorter = self.keep_longest(seconds);
            self.intervals = self.intervals.and(shorter);
        }
    }

    /// Appends, and is the result.
    fn with(&mut self, next: &Self) -> Self {
        self.append(next);
        *self
    }

    /// The one of it and the two longest that is not one of the two longest.
    fn keep_longest(&mut self, seconds: f64) -> f64 {
        let [longest, second] = self.longest;
        self.longest = if seconds > longest {
            [seconds, longest]
        } else if seconds > second {
            [longest, seconds]
        } else {
            return seconds;
        };
        second
    }

    fn all(&self) -> Sums {
        self.longest
            .iter()
            .fold(self.intervals, |sums, seconds| sums.and(*seconds))
    }

    /// The intervals that make the pattern: all but a pause that is the only one of its kind.
    fn counted(&self) -> Sums {
        let [longest, second] = self.longest;
        let others = Sums {
            count: self.intervals.count.saturating_sub(1),
            ..self.intervals.and(second)
        };
        let only = longest > ONLY_ONE * second
            && longest > STANDS_OUT * others.mean()
            && others.sum >= PACE_MIN;
        if only { others } else { self.all() }
    }
}

impl Sums {
    fn add(&mut self, value: f64) {
        self.count += 1;
        *self = self.and(value);
    }

    /// With a value that is counted already.
    fn and(self, value: f64) -> Self {
        Self {
            count: self.count,
            sum: self.sum + value,
            squares: self.squares + value * value,
        }
    }

    fn append(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.squares += other.squares;
    }

    /// Zero without values.
    fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    fn variance(&self) -> f64 {
        let mean = self.mean();
        (self.squares / self.count.max(1) as f64 - mean * mean).max(0.0)
    }

    /// Standard deviation over mean; 0 where the mean is.
    fn variation(&self) -> f64 {
        if self.mean() > 0.0 {
            self.variance().sqrt() / self.mean()
        } else {
            0.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(count: usize, size: usize, pause: f64) -> usize {
        let mut meter = WorkloadMeter::default();
        for burst in 0..count {
            for message in 0..size {
                let seconds = burst as f64 * pause + message as f64 * 1e-6;
                meter.on_made(Instant::from_nanos((seconds * 1e9).round() as u64), 1000);
            }
        }
        meter.blocks.len()
    }

    #[test]
    fn workload_history_is_bounded() {
        assert_eq!(blocks(2_000_000, 1, 1e-7), 0);
        assert_eq!(blocks(1, 1_000_000, 0.0), 0);
        for (size, pause) in [(1, 1.0), (1, 0.001), (1, 60.0), (100, 5.0), (500, 30.0)] {
            let blocks = blocks(5000, size, pause);
            assert!(blocks <= 400, "{size} every {pause} s: {blocks} blocks");
        }
    }
}
