//! A reference queue, simulated message by message. With it, runs of minutes give the statistics of the long
//! run.
//!
//! At high load, delays are correlated over so long a time that a packet-level run cannot give their 99th
//! percentile within 10 %. The reference queue, serving the same messages, follows a run so closely that
//! their difference is soon known, and on its own it takes some hundred nanoseconds per message.
//! `followed.rs` combines the two.
//!
//! The reference shares no code with the forecasts. It draws messages and serves them in order of arrival or
//! by deadline; each path is handed 1 ms of work ahead, as Keiro's pacer does.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use crate::{
    setup::Scheduler,
    stats::{self, Estimate},
};

/// One path's queue. Times in ns.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) scheduler: Scheduler,
    /// Propagation delay, in ns.
    pub(super) delay: u64,
    /// The path is handed work until it has this much ahead.
    pub(super) ahead: u64,
    /// Size of the pieces in which work is handed over, at least 1.
    pub(super) piece: u64,
    pub(super) classes: Vec<Class>,
}

/// One application on the path. Times in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    /// Mean of the exponential interval between messages.
    pub(super) interval: f64,
    /// Time to transmit one message.
    pub(super) work: u64,
    pub(super) latency_target: u64,
}

/// A message. Times in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) made: u64,
    pub(super) class: usize,
    /// The classes of the messages.
    pub(super) tag: usize,
}

impl Queue {
    /// Serves messages in the order of their times and returns each one's delay.
    pub(super) fn serve(
        &self,
        messages: impl Iterator<Item = Message>,
        mut done: impl FnMut(&Message, u64),
    ) {
        match self.scheduler {
            Scheduler::Fifo => {
                let mut free = 0;
                for message in messages {
                    free = message.made.max(free) + self.classes[message.class].work;
                    done(&message, free - message.made + self.delay);
                }
            }
            Scheduler::Deadline => {
                let mut server = Server::new(self);
                for message in messages {
                    server.hand_over(message.made + self.ahead, &mut done);
                    server.accept(message);
                }
                server.hand_over(u64::MAX / 2, &mut done);
            }
        }
    }

    /// Delays of the long run by class. Ends when every 99th percentile is known within `width` (its 95 %
    /// interval relative to its value), or at the bound on work. `None` for a class without messages.
    pub(super) fn long_run(&self, seed: u64, width: f64) -> Vec<Option<LongRun>> {
        let mut messages = MESSAGES_LEAST;
        loop {
            let classes = self.run(seed, messages);
            let known = classes.iter().flatten().all(|class| {
                let p99 = class.quantile(0.99);
                super::relative_width(&p99) < width
            });
            if known || messages >= MESSAGES_MOST {
                return classes;
            }
            messages *= 4;
        }
    }

    /// Delays of `messages` messages by class; `None` for a class without messages.
    pub(super) fn run(&self, seed: u64, messages: u64) -> Vec<Option<LongRun>> {
        let mut batches: Vec<Vec<Histogram>> = vec![Vec::new(); self.classes.len()];
        let per_batch = messages / (BATCHES + 1);
        let mut counts: Vec<Histogram> = vec![Histogram::new(); self.classes.len()];
        let mut arrived = 0_u64;
        let drawn = Arrivals::new(&self.classes, seed).take(messages as usize);
        self.serve(drawn, |message, delay| {
            counts[message.class].add(delay);
            arrived += 1;
            if arrived.is_multiple_of(per_batch) {
                // The queue fills during the first batch, so it is not counted.
                let is_first = arrived == per_batch;
                for (batches, count) in batches.iter_mut().zip(&mut counts) {
                    let full = std::mem::replace(count, Histogram::new());
                    if !is_first && full.total > 0 {
                        batches.push(full);
                    }
                }
            }
        });
        batches.into_iter().map(LongRun::new).collect()
    }
}

/// The state of the queue by deadline.
struct Server<'a> {
    queue: &'a Queue,
    /// The path is busy until this time.
    free: u64,
    /// Deadline, sequence number and index of the message.
    waiting: BinaryHeap<Reverse<(u64, u64, usize)>>,
    /// Messages and their remaining work.
    slots: Vec<(Message, u64)>,
    unused: Vec<usize>,
    accepted: u64,
}

impl<'a> Server<'a> {
    fn new(queue: &'a Queue) -> Self {
        Self {
            queue,
            free: 0,
            waiting: BinaryHeap::new(),
            slots: Vec::new(),
            unused: Vec::new(),
            accepted: 0,
        }
    }

    /// Hands work to the path until it is busy beyond `until`.
    fn hand_over(&mut self, until: u64, done: &mut impl FnMut(&Message, u64)) {
        while self.free <= until {
            let Some(&Reverse((_, _, slot))) = self.waiting.peek() else {
                return;
            };
            let (message, left) = &mut self.slots[slot];
            let pieces = (until - self.free) / self.queue.piece + 1;
            let handed = (*left).min(pieces.saturating_mul(self.queue.piece));
            self.free += handed;
            *left -= handed;
            if *left == 0 {
                done(message, self.free - message.made + self.queue.delay);
                self.waiting.pop();
                self.unused.push(slot);
            }
        }
    }

    fn accept(&mut self, message: Message) {
        if self.waiting.is_empty() {
            self.free = self.free.max(message.made);
        }
        let class = &self.queue.classes[message.class];
        let slot = self.unused.pop().unwrap_or(self.slots.len());
        if slot == self.slots.len() {
            self.slots.push((message, class.work));
        } else {
            self.slots[slot] = (message, class.work);
        }
        let deadline = message.made + class.latency_target;
        self.waiting.push(Reverse((deadline, self.accepted, slot)));
        self.accepted += 1;
    }
}

/// Messages of all classes at exponential intervals.
pub(super) struct Arrivals {
    random: ChaCha12Rng,
    mean: f64,
    /// Cumulative shares of the classes.
    shares: Vec<f64>,
    now: f64,
}

impl Arrivals {
    pub(super) fn new(classes: &[Class], seed: u64) -> Self {
        let rate: f64 = classes.iter().map(|class| 1.0 / class.interval).sum();
        let mut below = 0.0;
        let shares = classes.iter().map(|class| {
            below += 1.0 / class.interval / rate;
            below
        });
        Self {
            shares: shares.collect(),
            random: ChaCha12Rng::seed_from_u64(seed),
            mean: 1.0 / rate,
            now: 0.0,
        }
    }

    /// Uniform in (0, 1].
    fn uniform(&mut self) -> f64 {
        ((self.random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

impl Iterator for Arrivals {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        self.now -= self.uniform().ln() * self.mean;
        let share = self.uniform();
        let last = self.shares.len() - 1;
        Some(Message {
            made: self.now as u64,
            class: self.shares[..last].partition_point(|below| *below < share),
            tag: 0,
        })
    }
}

/// Enough batches for Student's t; each is long enough to be nearly independent.
const BATCHES: u64 = 32;
/// About 0.1 s of CPU time.
const MESSAGES_LEAST: u64 = 1 << 20;
/// About 30 s of CPU time.
const MESSAGES_MOST: u64 = 1 << 28;

/// The delays of one class in the long run.
#[derive(Clone, Debug)]
pub(super) struct LongRun {
    all: Histogram,
    batches: Vec<Histogram>,
}

impl LongRun {
    /// `None` without a batch.
    fn new(batches: Vec<Histogram>) -> Option<Self> {
        let mut all = batches.first()?.clone();
        for batch in &batches[1..] {
            all.merge(batch);
        }
        Some(Self { all, batches })
    }

    /// In ms.
    pub(super) fn mean(&self) -> Estimate {
        self.estimate(&|histogram| histogram.sum / histogram.total as f64 / 1e6)
    }

    /// In ms.
    pub(super) fn quantile(&self, share: f64) -> Estimate {
        self.estimate(&|histogram| histogram.quantile(share) / 1e6)
    }

    fn estimate(&self, statistic: &dyn Fn(&Histogram) -> f64) -> Estimate {
        let value = statistic(&self.all);
        let own: Vec<f64> = self.batches.iter().map(statistic).collect();
        Estimate {
            value,
            interval: stats::sections(value, &own),
            samples: self.all.total as usize,
            batches: self.batches.len(),
        }
    }
}

/// Counts of delays in bins 1/64 of an octave wide.
#[derive(Clone, Debug)]
struct Histogram {
    counts: Vec<u32>,
    total: u64,
    sum: f64,
}

impl Histogram {
    const BITS: u32 = 6;

    fn new() -> Self {
        Self {
            counts: Vec::new(),
            total: 0,
            sum: 0.0,
        }
    }

    fn add(&mut self, ns: u64) {
        let bin = Self::bin(ns);
        if self.counts.len() <= bin {
            self.counts.resize(bin + 1, 0);
        }
        self.counts[bin] += 1;
        self.total += 1;
        self.sum += ns as f64;
    }

    fn merge(&mut self, other: &Self) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.sum += other.sum;
    }

    fn bin(ns: u64) -> usize {
        let value = ns.max(1 << Self::BITS);
        let octave = value.ilog2();
        let part = (value >> (octave - Self::BITS)) & ((1 << Self::BITS) - 1);
        ((octave - Self::BITS) << Self::BITS) as usize + part as usize
    }

    /// Lower bound of a bin, in ns.
    fn begin(bin: usize) -> f64 {
        let octave = (bin >> Self::BITS) as i32;
        let part = (bin & ((1 << Self::BITS) - 1)) as f64;
        (f64::from(1 << Self::BITS) + part) * 2_f64.powi(octave)
    }

    /// In ns, interpolated linearly within the bin.
    fn quantile(&self, share: f64) -> f64 {
        let wanted = share * self.total as f64;
        let mut below = 0.0;
        for (bin, count) in self.counts.iter().enumerate() {
            let count = f64::from(*count);
            if below + count >= wanted && count > 0.0 {
                let (from, to) = (Self::begin(bin), Self::begin(bin + 1));
                return from + (to - from) * (wanted - below) / count;
            }
            below += count;
        }
        Self::begin(self.counts.len())
    }
}

/// In ns, saturating.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(scheduler: Scheduler) -> Queue {
        Queue {
            scheduler,
            delay: 1_000_000,
            ahead: 0,
            piece: 1,
            classes: vec![Class {
                interval: 2e6,
                work: 1_000_000,
                latency_target: 5_000_000,
            }],
        }
    }

    #[test]
    fn one_class_waits_as_pollaczek_and_khinchine_say() {
        // M/D/1 at a load of one half: the mean wait is half a service time.
        for scheduler in [Scheduler::Fifo, Scheduler::Deadline] {
            let classes = queue(scheduler).long_run(1, 0.02);
            let mean = classes[0].as_ref().unwrap().mean();
            assert!((mean.value - 2.5).abs() < 0.02, "{mean:?}");
            let interval = mean.interval.unwrap();
            assert!(interval.low < 2.5 && 2.5 < interval.high, "{mean:?}");
        }
    }

    #[test]
    fn urgent_messages_overtake_work_not_yet_handed_over() {
        let mut queue = queue(Scheduler::Deadline);
        queue.delay = 0;
        queue.classes.push(Class {
            interval: 1.0,
            work: 10_000_000,
            latency_target: 1_000_000_000,
        });
        let message = |made, class| Message {
            made,
            class,
            tag: class,
        };
        let delays = |queue: &Queue| {
            let mut delays = [0, 0];
            let messages = [message(0, 1), message(2_000_000, 0)];
            queue.serve(messages.into_iter(), |message, delay| {
                delays[message.tag] = delay;
            });
            delays
        };
        let at_once = delays(&queue);
        assert_eq!(at_once[1], 11_000_000);
        assert!((1_000_000..1_000_002).contains(&at_once[0]), "{at_once:?}");
        queue.ahead = 3_000_000;
        let behind = delays(&queue);
        assert!((4_000_000..4_000_002).contains(&behind[0]), "{behind:?}");
    }

    #[test]
    fn histogram_quantiles_are_within_a_bin() {
        let mut histogram = Histogram::new();
        for ns in 1..=100_000 {
            histogram.add(ns * 1000);
        }
        for share in [0.5, 0.95, 0.99] {
            let quantile = histogram.quantile(share);
            assert!((quantile / (share * 1e8) - 1.0).abs() < 0.002, "{quantile}");
        }
    }
}
