//! A path's queue served message by message: a check of the lattice, and for traffic it cannot do.
//!
//! Messages are drawn from a fixed seed, so the same question has the same answer everywhere. The
//! queue is the gateway's: one server of W, work-conserving, the next piece chosen when the path
//! has less than [`Gateway::ahead`] to send, pieces of [`Gateway::committed`] bytes at least. Only
//! where a message begins and ends is followed, not its packets, so the work per message does not
//! depend on its length.
//!
//! The work is bounded ([`Sampling::messages_max`]) and so is what it is sure of: where load is
//! high, what is drawn says less about the long run. The mean is then corrected by what is known
//! exactly: the mean of all work in the queue, which no order of service changes.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, binary_heap::PeekMut},
    time::Duration,
};

use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;

use super::{
    DelayDistribution, Forecast, ForecastTerms, Gateway, Outcome, Scheduler, Traffic, WireFormat,
    response,
    traffic::{Distribution, Spread},
};
use crate::delay::{AppSpec, PathSpec};
use keiro_units::{Bandwidth, ByteCount, Instant};

/// How much is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Messages of all applications together, at most; about 0.1 µs of work each.
    pub messages_max: u32,
    pub seed: u64,
}

/// A message of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedMessage {
    /// When it was made.
    pub made: Instant,
    /// Whose it is, an index into the applications.
    pub app: usize,
    /// Its length, without headers.
    pub length: ByteCount,
}

impl Default for Sampling {
    /// 200,000 messages.
    fn default() -> Self {
        Self {
            messages_max: 200_000,
            seed: 1,
        }
    }
}

/// A message as the queue sees it; times in ns.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    at: u64,
    class: usize,
    work: u64,
}

/// How the queue is served; times in ns.
struct Service<'a> {
    scheduler: Scheduler,
    /// By class; `u64::MAX` for none.
    latency_targets: &'a [u64],
    /// The path is given work until it has this much.
    ahead: u64,
    /// In pieces of this.
    piece: u64,
    /// Less urgent work than any of these always waits.
    always_busy: bool,
}

/// A message in the queue, ordered so that the most urgent is the greatest.
struct Waiting {
    key: (u64, u64),
    arrival: Arrival,
    left: u64,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}

impl Service<'_> {
    /// Serves `arrivals`, which rise in time, and returns when each is wholly sent, and how much
    /// work each finds.
    fn serve(
        &self,
        arrivals: impl Iterator<Item = Arrival>,
        mut done: impl FnMut(&Arrival, u64),
        mut found: impl FnMut(&Arrival, u64),
    ) {
        let mut queue: BinaryHeap<Waiting> = BinaryHeap::new();
        // Until when the path has something to send, and what waits behind that.
        let (mut busy_until, mut waiting) = (0_u64, 0_u64);
        for (number, arrival) in (0_u64..).zip(arrivals) {
            self.advance(
                arrival.at,
                &mut queue,
                &mut busy_until,
                &mut waiting,
                &mut done,
            );
            if queue.is_empty() {
                let idle_from = match self.always_busy {
                    true => arrival.at.saturating_add(self.ahead + self.piece / 2),
                    false => arrival.at,
                };
                busy_until = busy_until.max(idle_from);
            }
            found(&arrival, busy_until.saturating_sub(arrival.at) + waiting);
            let key = match self.scheduler {
                Scheduler::Fifo => arrival.at,
                Scheduler::Deadline => arrival
                    .at
                    .saturating_add(self.latency_targets[arrival.class]),
            };
            waiting = waiting.saturating_add(arrival.work);
            queue.push(Waiting {
                key: (key, number),
                left: arrival.work,
                arrival,
            });
        }
        self.advance(
            u64::MAX,
            &mut queue,
            &mut busy_until,
            &mut waiting,
            &mut done,
        );
    }

    /// Hands to the path what is handed to it until `now`.
    fn advance(
        &self,
        now: u64,
        queue: &mut BinaryHeap<Waiting>,
        busy_until: &mut u64,
        waiting: &mut u64,
        done: &mut impl FnMut(&Arrival, u64),
    ) {
        let horizon = now.saturating_add(self.ahead);
        while *busy_until <= horizon {
            let Some(mut first) = queue.peek_mut() else {
                return;
            };
            let pieces = ((horizon - *busy_until) / self.piece).saturating_add(1);
            let handed = first.left.min(pieces.saturating_mul(self.piece));
            *busy_until = busy_until.saturating_add(handed);
            *waiting -= handed;
            first.left -= handed;
            if first.left == 0 {
                done(&first.arrival, *busy_until);
                PeekMut::pop(first);
            }
        }
    }
}

/// When each message of a trace would be received, in the order of `messages`, which must rise in
/// time, over `path`, as delays from their making.
///
/// `latency_targets` are the applications'. The queue is that of the module's head; `None` for a message
/// that a path without bandwidth never delivers.
pub(super) fn replay(
    gateway: &Gateway,
    path: &PathSpec,
    latency_targets: &[Option<Duration>],
    messages: &[TracedMessage],
) -> Vec<Option<Duration>> {
    if path.bandwidth == Bandwidth::ZERO {
        return vec![None; messages.len()];
    }
    let latency_targets: Vec<u64> = latency_targets
        .iter()
        .map(|latency_target| latency_target_ns(*latency_target))
        .collect();
    let service = Service {
        scheduler: gateway.scheduler,
        latency_targets: &latency_targets,
        ahead: nanos(gateway.ahead),
        piece: piece_ns(gateway, path.bandwidth),
        always_busy: false,
    };
    // A message is identified by its index.
    let arrivals = messages.iter().map(|message| Arrival {
        at: message.made.as_nanos(),
        class: message.app,
        work: work_ns(&gateway.wire, path.bandwidth, message.length),
    });
    let mut left: Vec<std::collections::VecDeque<usize>> =
        vec![Default::default(); latency_targets.len()];
    for (place, message) in messages.iter().enumerate() {
        left[message.app].push_back(place);
    }
    let mut delays = vec![None; messages.len()];
    // Within an application, order of arrival is order of service whatever the scheduler.
    let done = |arrival: &Arrival, at: u64| {
        if let Some(place) = left[arrival.class].pop_front() {
            delays[place] = Some(Duration::from_nanos(at - arrival.at) + path.delay);
        }
    };
    service.serve(arrivals, done, |_, _| ());
    delays
}

/// What is predicted for each of `members` when exactly they share `path`, in their order.
pub(super) fn forecast(
    gateway: &Gateway,
    path: &PathSpec,
    traffic: &[Traffic],
    members: &[usize],
    sampling: Sampling,
) -> Vec<Forecast> {
    let of = |member: &usize| &traffic[*member];
    let mut terms: Vec<ForecastTerms> = members
        .iter()
        .map(|member| response::terms_of(gateway, path, &of(member).app))
        .collect();
    let load: f64 = terms.iter().map(|terms| terms.own_load).sum();
    for terms in &mut terms {
        terms.load = load;
    }
    let apps: Vec<&Traffic> = members.iter().map(of).collect();
    let served = stable(gateway.scheduler, &apps, &terms);
    let outcomes = sample(gateway, path, &apps, &served, load, sampling);
    terms
        .into_iter()
        .zip(&apps)
        .zip(outcomes)
        .map(|((terms, traffic), outcome)| Forecast {
            terms,
            latency_target: traffic.app.latency_target,
            outcome,
        })
        .collect()
}

/// Whose delay does not grow without end.
fn stable(scheduler: Scheduler, apps: &[&Traffic], terms: &[ForecastTerms]) -> Vec<bool> {
    let load_of = |counts: &dyn Fn(&AppSpec) -> bool| -> f64 {
        let both = apps.iter().zip(terms);
        both.filter(|(traffic, _)| counts(&traffic.app))
            .map(|(_, terms)| terms.own_load)
            .sum()
    };
    let all = load_of(&|_| true) < 1.0;
    let urgent = match scheduler {
        Scheduler::Fifo => all,
        Scheduler::Deadline => load_of(&|app| app.latency_target.is_some()) < 1.0,
    };
    apps.iter()
        .map(|traffic| all || (urgent && traffic.app.latency_target.is_some()))
        .collect()
}

/// One class of messages to draw.
struct Drawn {
    interval: Distribution,
    length: Distribution,
    app: AppSpec,
    random: ChaCha12Rng,
}

fn sample(
    gateway: &Gateway,
    path: &PathSpec,
    apps: &[&Traffic],
    served: &[bool],
    load: f64,
    sampling: Sampling,
) -> Vec<Outcome> {
    if !served.iter().any(|served| *served) {
        return vec![Outcome::Overloaded; apps.len()];
    }
    let mut drawn: Vec<Drawn> = (0..)
        .zip(apps)
        .map(|(stream, traffic)| Drawn::new(traffic, sampling.seed, stream))
        .collect();
    let latency_targets: Vec<u64> = apps
        .iter()
        .map(|t| latency_target_ns(t.app.latency_target))
        .collect();
    let service = Service {
        scheduler: gateway.scheduler,
        latency_targets: &latency_targets,
        ahead: nanos(gateway.ahead),
        piece: piece_ns(gateway, path.bandwidth),
        always_busy: load >= 1.0,
    };
    let mut next: BinaryHeap<Reverse<(u64, usize)>> = drawn
        .iter_mut()
        .enumerate()
        .filter(|(class, _)| served[*class])
        .map(|(class, drawn)| Reverse((drawn.gap(), class)))
        .collect();
    let mut batches = Batches::new(apps.len(), sampling.messages_max);
    let mut left = sampling.messages_max;
    let arrivals = std::iter::from_fn(|| {
        left = left.checked_sub(1)?;
        let mut first = next.peek_mut()?;
        let Reverse((at, class)) = *first;
        let drawn = &mut drawn[class];
        *first = Reverse((at.saturating_add(drawn.gap()), class));
        let work = work_ns(&gateway.wire, path.bandwidth, drawn.bytes());
        Some(Arrival { at, class, work })
    });
    let batches_cell = std::cell::RefCell::new(&mut batches);
    service.serve(
        arrivals,
        |arrival, at| batches_cell.borrow_mut().add_delay(arrival, at),
        |_, work| batches_cell.borrow_mut().add_found(work),
    );
    let known = (load < 1.0)
        .then(|| known_mean_work(gateway, path, apps))
        .flatten();
    (0..apps.len())
        .map(|class| match served[class] {
            true => batches.outcome(class, path.delay, known),
            false => Outcome::Overloaded,
        })
        .collect()
}

impl Drawn {
    fn new(traffic: &Traffic, seed: u64, stream: u64) -> Self {
        let mut random = ChaCha12Rng::seed_from_u64(seed);
        random.set_stream(stream);
        let interval = traffic.app.interval.as_nanos() as f64;
        let length = traffic.app.length.get() as f64;
        Self {
            interval: Distribution::new(interval, traffic.interval_spread),
            length: Distribution::new(length, traffic.length_spread),
            app: traffic.app,
            random,
        }
    }

    /// In ns; at least one, so that time passes.
    fn gap(&mut self) -> u64 {
        self.interval.draw(&mut self.random).max(1.0) as u64
    }

    fn bytes(&mut self) -> ByteCount {
        match self.length {
            Distribution::Fixed { .. } => self.app.length,
            law => ByteCount::new(law.draw(&mut self.random).round().max(1.0) as u64),
        }
    }
}

/// Delays by class and the work found, in batches of equally many messages; the first batch is
/// for the queue to fill.
struct Batches {
    per_batch: u32,
    /// Messages that arrived so far.
    arrived: u32,
    /// By class: (batch, delay in ns), in order of completion.
    delays: Vec<Vec<(u32, u64)>>,
    /// Sum of the work found, by batch.
    found: Vec<f64>,
}

/// Enough to see how delay goes with work.
const BATCHES: u32 = 32;

impl Batches {
    fn new(classes: usize, messages: u32) -> Self {
        Self {
            per_batch: (messages / (BATCHES + 1)).max(1),
            arrived: 0,
            delays: vec![Vec::new(); classes],
            found: Vec::new(),
        }
    }

    fn add_found(&mut self, work: u64) {
        let batch = (self.arrived / self.per_batch) as usize;
        if self.found.len() <= batch {
            self.found.push(0.0);
        }
        self.found[batch] += work as f64;
        self.arrived += 1;
    }

    fn add_delay(&mut self, arrival: &Arrival, at: u64) {
        // A message counts for the batch in which it is done: near enough, since only how
        // delays go with the work found is asked of batches.
        let batch = self.arrived / self.per_batch;
        self.delays[arrival.class].push((batch, at - arrival.at));
    }

    fn outcome(&self, class: usize, propagation: Duration, known: Option<f64>) -> Outcome {
        let counted: Vec<(u32, u64)> = self.delays[class]
            .iter()
            .copied()
            .filter(|(batch, _)| *batch > 0)
            .collect();
        let mut delays: Vec<u64> = counted.iter().map(|(_, delay)| *delay).collect();
        let Some(shortest) = delays.iter().copied().min() else {
            return Outcome::Overloaded;
        };
        let sum: f64 = delays.iter().map(|delay| *delay as f64).sum();
        let mean = sum / delays.len() as f64;
        let corrected = known.map_or(mean, |known| self.corrected(&counted, mean, known));
        // What is above the shortest is waiting; it is what was drawn too much or too little of.
        let waited = mean - shortest as f64;
        let scale = match waited > 0.0 {
            true => ((corrected - shortest as f64) / waited).clamp(0.5, 2.0),
            false => 1.0,
        };
        let mut quantile = |share: f64| {
            let rank = ((share * delays.len() as f64).ceil() as usize).clamp(1, delays.len()) - 1;
            *delays.select_nth_unstable(rank).1 as f64
        };
        let drawn = [mean, quantile(0.50), quantile(0.95), quantile(0.99)];
        let [mean, p50, p95, p99] = drawn.map(|ns| {
            let ns = shortest as f64 + (ns - shortest as f64) * scale;
            propagation.saturating_add(Duration::from_nanos(ns.ceil() as u64))
        });
        Outcome::Stable(DelayDistribution {
            mean,
            p50,
            p95,
            p99,
        })
    }

    /// The mean with the work found as a control variate: its long-run mean is `known`.
    fn corrected(&self, counted: &[(u32, u64)], mean: f64, known: f64) -> f64 {
        let mut sums = vec![(0.0, 0.0); self.found.len() + 1];
        for &(batch, delay) in counted {
            let (sum, count) = &mut sums[(batch as usize).min(self.found.len())];
            *sum += delay as f64;
            *count += 1.0;
        }
        let per_batch = f64::from(self.per_batch);
        let pairs: Vec<(f64, f64)> = (1..self.found.len())
            .filter(|&batch| sums[batch].1 > 0.0)
            .map(|batch| (self.found[batch] / per_batch, sums[batch].0 / sums[batch].1))
            .collect();
        let count = pairs.len() as f64;
        if count < 8.0 {
            return mean;
        }
        let found_mean = pairs.iter().map(|p| p.0).sum::<f64>() / count;
        let delay_mean = pairs.iter().map(|p| p.1).sum::<f64>() / count;
        let both: f64 = pairs
            .iter()
            .map(|p| (p.0 - found_mean) * (p.1 - delay_mean))
            .sum();
        let square: f64 = pairs.iter().map(|p| (p.0 - found_mean).powi(2)).sum();
        if square <= 0.0 {
            return mean;
        }
        mean - both / square * (found_mean - known)
    }
}

/// The mean work that a message finds, in ns, where it is known: Pollaczek and Khinchine's, for
/// exponential intervals of all.
fn known_mean_work(gateway: &Gateway, path: &PathSpec, apps: &[&Traffic]) -> Option<f64> {
    let (mut load, mut second) = (0.0, 0.0);
    for traffic in apps {
        if traffic.interval_spread != Spread::EXPONENTIAL || traffic.length_spread != Spread::NONE {
            return None;
        }
        let work = work_ns(&gateway.wire, path.bandwidth, traffic.app.length) as f64;
        let rate = 1.0 / traffic.app.interval.as_nanos() as f64;
        load += rate * work;
        second += rate * work * work;
    }
    (load < 1.0).then(|| second / (2.0 * (1.0 - load)))
}

fn work_ns(wire: &WireFormat, bandwidth: Bandwidth, length: ByteCount) -> u64 {
    nanos(bandwidth.transmission_time_ceil(wire.wire_length(length)))
}

fn piece_ns(gateway: &Gateway, bandwidth: Bandwidth) -> u64 {
    let bytes = gateway.wire.full_packet().max(gateway.committed);
    nanos(bandwidth.transmission_time_ceil(bytes)).max(1)
}

fn latency_target_ns(latency_target: Option<Duration>) -> u64 {
    latency_target.map_or(u64::MAX, nanos)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
