//! Aggregates: small items are coalesced into few packets, each sent several times over
//! `[aggregation §2, §3]`.
//!
//! Per path. [`Aggregator`] says when the next aggregate may leave, how large it is and how often
//! it is sent, and lets a controller adapt that to the peer's reports; [`outcomes`] computes from them what was lost;
//! [`receiver`] drops duplicates and reports what has arrived. Instead of copies there may be parity: [`parity_group`]
//! makes it, [`recover`] uses it, `keiro_model::erasure` is the mathematics. Which items are coalesced, and
//! the content of an aggregate, is decided by `send_queues` and `transmit`.

pub(crate) mod copies;
mod outcomes;
mod parity_group;
pub(crate) mod receiver;
mod recover;

use std::{collections::BTreeMap, time::Duration};

use keiro_model::{
    aggregation::{
        self, Cause, Controller, ControllerKind, Decision, DeliveryCounts, Limits, Observation,
        Parameters, TooNarrow, spacing::SpacingEstimator,
    },
    bottleneck::Found,
    capacity::{Stamp, Train},
};
use keiro_units::{Bandwidth, ByteCount, Instant};

use self::{
    copies::CopyContent,
    outcomes::{DeliveryAccounting, Totals},
    parity_group::{ClosedGroup, OpenGroup},
};
use super::{recovery::Owner, sent_frames::SentFrames};
use crate::{
    config::{AggregationConfig, AggregationMode, CopySpread, Parity, Redundancy},
    id::PathId,
    snapshot::AggregationSnapshot,
    wire::{Feedback, Frame, ParityFrame},
};

/// Samples of queueing kept per period; the newest. Ours: a median needs no more.
const WAITS_MAX: usize = 64;
/// Thin traffic is taken to go on for so long. Ours.
const USED_FOR: Duration = Duration::from_secs(1);
/// Time between two checks whether there is bandwidth again after a pause: no
/// feedback comes then. Ours: what was known of the bandwidth ages by the second.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Aggregation resumes when the measured bandwidth exceeds the needed one by this part. Ours: a little
/// more than the error of the estimate.
const RESUME_MARGIN: u64 = 16;
/// Name under which the decision is counted that no combination fits.
const TOO_NARROW: &str = "too_narrow";

/// Bytes that the parity of the longest content takes beyond the content itself: the head of its
/// frame, less that of the aggregate's frame, and the length of the content, made even.
pub(crate) const PARITY_RESERVE: usize = ParityFrame::HEAD_LEN_MAX + 2;

/// What a path carries, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathCapacity {
    /// At which it is paced.
    pub(crate) rate: Bandwidth,
    pub(crate) rtt: Duration,
}

/// An aggregate that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentAggregate {
    pub(crate) number: u64,
    /// Of one copy.
    pub(crate) ip_bytes: u64,
}

/// The sending side of one path.
#[derive(Debug)]
pub(crate) struct Aggregator {
    mode: AggregationMode,
    kind: ControllerKind,
    limits: Limits,
    controller: Box<dyn Controller>,
    parameters: Parameters,
    /// I from which the controller has lengthened it while our own packets overflowed the peer's socket: as
    /// long as it is longer than this, the peer is to get fewer packets.
    relieved_from: Option<Duration>,
    /// The controller found no combination that the bandwidth carries.
    too_narrow: Option<TooNarrow>,
    /// When it is looked next whether it still is.
    look_at: Instant,
    next_number: u64,
    /// When the next aggregate may leave: eager, the time at which what left is paid; by the clock,
    /// the next tick.
    next: Instant,
    /// IP bytes of one copy that left in the present I: by the clock, and where the peer is to get fewer packets.
    used: u64,
    /// When the present I began, where the peer is to get fewer packets.
    interval_since: Instant,
    last_sent_at: Option<Instant>,
    outcomes: DeliveryAccounting,
    /// The spacing of copies that leave back to back on one path measures the path.
    spread: CopySpread,
    /// Parity takes the place of copies.
    parity: Option<Parity>,
    /// The group that the next aggregate joins.
    group: Option<OpenGroup>,
    /// IP bytes of parity that the group's aggregates have been charged for, each N times.
    parity_paid: u64,
    /// The peer's last report.
    last_feedback: Option<Feedback>,
    /// The first aggregate that left with the N and I in force, until the peer has reported it: earlier ones
    /// say nothing about these.
    settles_at: Option<u64>,
    period: Period,
    spacing: SpacingEstimator,
    last: Option<Decision>,
    /// Decisions by the name of their cause.
    decisions: BTreeMap<&'static str, u64>,
    last_change: Option<(Instant, Decision)>,
}

/// A change of the aggregation on a path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// The controller's parameters.
    Decided(Decision),
    /// Nothing is aggregated: the bandwidth carries no combination of parameters.
    Paused(TooNarrow),
    /// Items are aggregated again.
    Resumed {
        bandwidth: Bandwidth,
        parameters: Parameters,
    },
}

/// Measurements of the present period, for the controller.
#[derive(Debug, Default)]
struct Period {
    since: Instant,
    seen: Totals,
    /// IP bytes that left: of one copy, and of all.
    single_bytes: u64,
    all_bytes: u64,
    /// Bytes that waited to be coalesced when it began, with their headers or without.
    waiting_bytes: u64,
    /// Drops of the peer's socket while N or I settled, which the controller does not know.
    overflows_before: u64,
    /// Queueing on the way there.
    waits: Vec<Duration>,
}

impl Aggregator {
    /// `rate`: what the path is configured for. `first_number`: numbers below were used.
    pub(crate) fn new(config: &AggregationConfig, rate: Bandwidth, first_number: u64) -> Self {
        let (controller, too_narrow) = controller(config.controller, &config.limits, rate);
        Self {
            mode: config.mode,
            kind: config.controller,
            limits: config.limits.clone(),
            parameters: controller.parameters(),
            relieved_from: None,
            controller,
            too_narrow,
            look_at: Instant::ZERO,
            next_number: first_number,
            next: Instant::ZERO,
            used: 0,
            interval_since: Instant::ZERO,
            last_sent_at: None,
            outcomes: DeliveryAccounting::default(),
            spread: config.spread,
            parity: match config.redundancy {
                Redundancy::Copies => None,
                Redundancy::Parity(parity) => Some(parity),
            },
            group: None,
            parity_paid: 0,
            last_feedback: None,
            settles_at: None,
            period: Period::default(),
            spacing: SpacingEstimator::default(),
            last: None,
            decisions: BTreeMap::new(),
            last_change: None,
        }
    }

    /// Another configuration; numbers go on. What changes beside it, if anything.
    pub(crate) fn reconfigure(
        &mut self,
        config: &AggregationConfig,
        rate: Bandwidth,
    ) -> Option<Change> {
        *self = Self {
            outcomes: self.outcomes.opened_anew(),
            // The number of copies of earlier aggregates is not known any more.
            settles_at: Some(self.next_number),
            ..Self::new(config, rate, self.next_number)
        };
        let too_narrow = self.too_narrow.filter(|_| self.is_paused());
        too_narrow.map(Change::Paused)
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// IP bytes of the longest aggregate; `None`: nothing is coalesced.
    pub(crate) fn size_max(&self) -> Option<u64> {
        let gathers = self.mode != AggregationMode::Off && !self.is_paused();
        gathers.then(|| self.parameters.size().get())
    }

    /// Aggregation at fixed intervals is paused.
    fn is_paused(&self) -> bool {
        self.mode == AggregationMode::Fixed && self.too_narrow.is_some()
    }

    /// When it is looked whether what is paused may go on; `None`: nothing is.
    pub(crate) fn look_at(&self) -> Option<Instant> {
        self.is_paused().then_some(self.look_at)
    }

    /// Looks whether what is paused may go on, if that is due.
    pub(crate) fn on_timeout(&mut self, now: Instant, rate: Bandwidth) -> Option<Change> {
        self.look_at().filter(|at| *at <= now)?;
        self.look_again(now, rate)
    }

    /// Restarts the controller if the bandwidth carries a combination again.
    fn look_again(&mut self, now: Instant, rate: Bandwidth) -> Option<Change> {
        if !self.is_paused() {
            return None;
        }
        self.look_at = now + LOOK_EVERY;
        let bandwidth = self.bandwidth(now, rate);
        let needed = self.limits.bandwidth_min().as_bits_per_second();
        let with_margin = Bandwidth::from_bits_per_second(needed + needed / RESUME_MARGIN);
        let measured = self.spacing.estimate(now);
        if measured.is_some_and(|measured| measured.bandwidth() < with_margin) {
            return None;
        }
        self.controller = self.kind.controller(self.limits.clone(), bandwidth).ok()?;
        self.too_narrow = None;
        self.parameters = self.controller.parameters();
        self.relieved_from = None;
        self.settles_at = Some(self.next_number);
        Some(Change::Resumed {
            bandwidth,
            parameters: self.parameters,
        })
    }

    /// Thin traffic passes.
    pub(crate) fn is_used(&self, now: Instant) -> bool {
        self.last_sent_at.is_some_and(|at| at + USED_FOR > now)
    }

    /// An aggregate may leave.
    pub(crate) fn may_send(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// When an aggregate may leave.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// IP bytes that may still leave in this I, of one copy.
    pub(crate) fn room(&self, now: Instant) -> u64 {
        let used = if self.is_interval_over(now) {
            0
        } else {
            self.used
        };
        self.parameters.size().get().saturating_sub(used)
    }

    /// The present I is over. At fixed intervals, ticks end it.
    fn is_interval_over(&self, now: Instant) -> bool {
        self.mode == AggregationMode::Eager
            && now >= self.interval_since + self.parameters.interval()
    }

    /// I.
    pub(crate) fn interval(&self) -> Duration {
        self.parameters.interval()
    }

    /// How often each aggregate is sent: N.
    pub(crate) fn copies(&self) -> u8 {
        self.parameters.copies()
    }

    /// The place that the next aggregate takes in its group; `None`: it is in none, and copied.
    pub(crate) fn place_in_group(&self) -> Option<u8> {
        match &self.group {
            Some(group) => Some(group.len() as u8),
            None => (self.parity.is_some() && self.copies() > 1).then_some(0),
        }
    }

    /// Parity packets may protect aggregates, and have to hold their content.
    pub(crate) fn protects(&self) -> bool {
        self.parity.is_some()
    }

    /// The content of an aggregate that leaves joins its group.
    pub(crate) fn protect(&mut self, now: Instant, sent: SentAggregate, content: &[u8]) {
        let SentAggregate { number, ip_bytes } = sent;
        let Some(parity) = self.parity else { return };
        let copies = self.copies();
        let wait = parity.wait().unwrap_or(self.parameters.interval() * 3 / 2);
        if self.group.is_none() {
            self.parity_paid = 0;
        }
        self.parity_paid += ip_bytes * u64::from(copies.saturating_sub(1));
        self.group
            .get_or_insert_with(|| OpenGroup::new(number, copies))
            .push(now, content, wait);
    }

    /// When the parity of the group that is open is to leave; in the past: at once.
    pub(crate) fn parity_due(&self) -> Option<Instant> {
        Some(self.group.as_ref()?.due(self.parity.as_ref()?))
    }

    /// The parity packets that are to leave now. `path` numbers the aggregates; each packet has
    /// `ip_overhead` bytes of IP and UDP headers.
    pub(crate) fn poll_parity(
        &mut self,
        now: Instant,
        path: PathId,
        ip_overhead: u64,
    ) -> Option<Vec<CopyContent>> {
        let group = self.take_group(now)?;
        let count = group.parity.len() as u8;
        let mut packets = Vec::with_capacity(group.parity.len());
        for (shard, index) in group.parity.iter().zip(0..) {
            let mut clear = Vec::with_capacity(ParityFrame::HEAD_LEN_MAX + shard.len());
            Frame::Parity(ParityFrame {
                path: path.0,
                first: group.first,
                data: group.data,
                count,
                index,
                shard,
            })
            .encode(&mut clear);
            let content = CopyContent {
                clear,
                frames: SentFrames::default(),
                owner: Owner::default(),
            };
            self.on_parity(now, content.packet_bytes() as u64 + ip_overhead);
            packets.push(content);
        }
        Some(packets)
    }

    /// The group whose parity is to leave now.
    fn take_group(&mut self, now: Instant) -> Option<ClosedGroup> {
        self.parity_due().filter(|due| *due <= now)?;
        let closed = self.group.take()?.close(&self.parity?);
        let next = closed.first + u64::from(closed.data);
        let packets = closed.parity.len() as u64;
        self.outcomes.on_parity(next, packets);
        if let CopySpread::Spaced(gap) = self.spread {
            for gaps in 0..packets as u32 {
                self.outcomes.on_spaced(now + gap * gaps, next - 1);
            }
        }
        Some(closed)
    }

    /// No parity is to follow what was sent.
    pub(crate) fn drop_group(&mut self) {
        self.group = None;
    }

    /// A parity packet of `ip_bytes` is to leave.
    fn on_parity(&mut self, now: Instant, ip_bytes: u64) {
        self.period.all_bytes += ip_bytes;
        // Parity is as long as the longest of its group, and may be more than their copies would be.
        let paid = self.parity_paid.min(ip_bytes);
        self.parity_paid -= paid;
        let copies = u64::from(self.copies().max(1));
        self.charge(now, (ip_bytes - paid).div_ceil(copies));
    }

    /// An aggregate of `ip_bytes` leaves, `copies` times.
    pub(crate) fn on_sent(&mut self, now: Instant, ip_bytes: u64, copies: u8) -> SentAggregate {
        let number = self.next_number;
        self.next_number += 1;
        if !self.is_used(now) {
            // The next report does not cover the time since something was last sent.
            self.begin_period(now, 0);
        }
        self.last_sent_at = Some(now);
        self.outcomes.on_sent(number, copies);
        if let CopySpread::Spaced(gap) = self.spread {
            for gaps in 1..u32::from(copies) {
                self.outcomes.on_spaced(now + gap * gaps, number);
            }
        }
        self.period.single_bytes += ip_bytes;
        self.period.all_bytes += ip_bytes * u64::from(copies);
        self.charge(now, ip_bytes);
        SentAggregate { number, ip_bytes }
    }

    /// IP bytes leave, N times over: at most S of them in every I.
    fn charge(&mut self, now: Instant, ip_bytes: u64) {
        let interval = self.parameters.interval();
        match self.mode {
            AggregationMode::Fixed => {
                self.used += ip_bytes;
                if self.room(now) == 0 {
                    self.end_tick(now);
                }
            }
            AggregationMode::Eager if self.relieved_from.is_some() => {
                if self.used == 0 || self.is_interval_over(now) {
                    self.used = 0;
                    self.interval_since = now;
                }
                self.used += ip_bytes;
                if self.room(now) == 0 {
                    self.end_interval(now);
                }
            }
            AggregationMode::Eager | AggregationMode::Off => {
                // S bytes per I, of which one S may be saved up.
                let size = self.parameters.size().get();
                let cost = interval.as_nanos() as u64 * ip_bytes / size;
                self.next = self.next.max(now - interval) + Duration::from_nanos(cost);
            }
        }
    }

    /// A copy or parity of `ip_bytes` that was announced does not leave.
    pub(crate) fn on_copy_dropped(&mut self, ip_bytes: u64) {
        self.outcomes.on_copy_dropped();
        self.period.all_bytes = self.period.all_bytes.saturating_sub(ip_bytes);
    }

    /// Something has come where nothing waited: by the clock it waits for the next tick.
    pub(crate) fn on_first(&mut self, now: Instant) {
        if self.mode == AggregationMode::Fixed && self.may_send(now) {
            self.end_tick(now);
        }
    }

    /// The next item does not fit any more, or nothing is left: by the clock, and where the peer is to get fewer
    /// packets, nothing more leaves in this I.
    pub(crate) fn on_drained(&mut self, now: Instant) {
        match self.mode {
            AggregationMode::Fixed if self.may_send(now) => self.end_tick(now),
            AggregationMode::Eager if self.used > 0 => self.end_interval(now),
            _ => {}
        }
    }

    /// A packet waited for so long in queues of others.
    pub(crate) fn on_wait(&mut self, wait: Duration) {
        if self.mode == AggregationMode::Off {
            return;
        }
        if self.period.waits.len() >= WAITS_MAX {
            self.period.waits.remove(0);
        }
        self.period.waits.push(wait);
    }

    /// The peer reports what arrived. What changes, if anything.
    pub(crate) fn on_feedback(
        &mut self,
        now: Instant,
        feedback: Feedback,
        path: PathCapacity,
        waiting_bytes: u64,
    ) -> Option<Change> {
        let PathCapacity { rate, rtt } = path;
        if self.mode == AggregationMode::Off || feedback.highest >= self.next_number {
            return None;
        }
        self.outcomes.look(now, rtt);
        let is_over = |at| feedback.highest >= at && !self.outcomes.awaits_before(at);
        let settled = self.settles_at.is_none_or(is_over);
        match self.last_feedback {
            None if !settled => return None,
            // It was overtaken by one that has been counted.
            Some(last) if feedback.was_overtaken_by(&last) => return None,
            Some(last) if feedback.counts_on_from(&last) => {
                self.outcomes.count(&last, &feedback);
            }
            // The first, or the peer began anew.
            _ => {
                self.outcomes.begin(&feedback);
                self.begin_period(now, waiting_bytes);
            }
        }
        self.last_feedback = Some(feedback);
        // The spacing of other copies is their own, not the path's.
        let back_to_back = self.spread == CopySpread::BackToBack;
        if let Some(train) = train_of(&feedback).filter(|_| back_to_back) {
            self.spacing.on_copies(now, train);
        }
        if self.settles_at.is_some() {
            if settled {
                self.settles_at = None;
                let totals = self.outcomes.totals();
                let dropped = totals.since(&self.period.seen).socket_overflows;
                self.begin_period(now, waiting_bytes);
                self.period.overflows_before = dropped;
            }
            return None;
        }
        let wanted = aggregation::period(self.parameters.interval(), rtt);
        let length = now.saturating_duration_since(self.period.since);
        if length < wanted {
            return None;
        }
        let seen = self.observe(now, length, rate, waiting_bytes);
        self.begin_period(now, waiting_bytes);
        if self.is_paused() {
            // What left before says nothing about what is to leave.
            return self.look_again(now, rate);
        }
        if seen.aggregates.sent == 0 {
            self.period.overflows_before = seen.socket_overflows + seen.socket_overflows_before;
            return None;
        }
        let seen = match self.too_narrow {
            // The controller does not know with which N these left.
            Some(_) => Observation {
                aggregates: DeliveryCounts::default(),
                copies: DeliveryCounts::default(),
                ..seen
            },
            None => seen,
        };
        match self.controller.on_period(now, &seen) {
            Ok(decision) => {
                // The controller does not know of the least that was in force while nothing fitted.
                let decision = Decision {
                    before: self.parameters,
                    ..decision
                };
                self.too_narrow = None;
                self.parameters = decision.parameters;
                self.note_relief(&decision, &seen);
                self.last = Some(decision);
                *self.decisions.entry(decision.cause.name()).or_default() += 1;
                if !decision.is_change() {
                    return None;
                }
                self.last_change = Some((now, decision));
                self.let_settle(&decision);
                Some(Change::Decided(decision))
            }
            Err(too_narrow) => {
                self.too_narrow = Some(too_narrow);
                self.look_at = now + LOOK_EVERY;
                *self.decisions.entry(TOO_NARROW).or_default() += 1;
                match self.mode {
                    AggregationMode::Fixed => Some(Change::Paused(too_narrow)),
                    AggregationMode::Eager | AggregationMode::Off => {
                        self.take_least(now, too_narrow)
                    }
                }
            }
        }
    }

    /// Trains have measured the path's capacity. What changes, if anything.
    pub(crate) fn on_trains(
        &mut self,
        now: Instant,
        found: Found,
        rate: Bandwidth,
    ) -> Option<Change> {
        if self.mode != AggregationMode::Off {
            self.spacing.on_trains(found);
        }
        self.look_again(now, rate)
    }

    /// The path leads elsewhere.
    pub(crate) fn forget(&mut self) {
        self.spacing.forget();
        self.last_feedback = None;
        self.outcomes.forget();
        self.drop_group();
    }

    pub(crate) fn snapshot(&self, now: Instant) -> Option<AggregationSnapshot> {
        let totals = self.outcomes.totals();
        (self.mode != AggregationMode::Off).then(|| AggregationSnapshot {
            mode: self.mode,
            controller: self.kind,
            spread: self.spread,
            parameters: self.parameters,
            too_narrow: self.too_narrow,
            cause: self.last.map(|decision| decision.cause),
            decisions: self.decisions.clone(),
            last_change: self.last_change,
            aggregates: totals.aggregates,
            copies: totals.copies,
            copies_left_out: self.outcomes.copies_dropped(),
            redundancy: self.parity.map_or(Redundancy::Copies, Redundancy::Parity),
            socket_overflows: totals.socket_overflows,
            system_overflows: totals.system_overflows,
            bandwidth: self.spacing.estimate(now),
        })
    }

    fn end_tick(&mut self, now: Instant) {
        let interval = self.parameters.interval().as_nanos() as u64;
        let tick = now.as_nanos() / interval + 1;
        self.next = Instant::from_nanos(tick.saturating_mul(interval));
        self.used = 0;
    }

    /// The first of the next I leaves at once, when that has begun.
    fn end_interval(&mut self, now: Instant) {
        self.next = now.max(self.interval_since + self.parameters.interval());
        self.used = 0;
    }

    fn note_relief(&mut self, decision: &Decision, seen: &Observation) {
        let [before, after] = [decision.before, decision.parameters].map(|p| p.interval());
        // Sending less does not help where others overflow the buffer.
        let by_us = seen.socket_overflows > 0
            && seen.socket_overflows.saturating_mul(2) >= seen.system_overflows;
        if matches!(decision.cause, Cause::Overflows { .. }) && by_us && after > before {
            self.relieved_from.get_or_insert(before);
        }
        self.relieved_from = self.relieved_from.filter(|from| after > *from);
        if self.relieved_from.is_none() && self.mode == AggregationMode::Eager {
            self.used = 0;
        }
    }

    /// The path's rate, or the bandwidth that copies measure if that is less.
    fn bandwidth(&self, now: Instant, rate: Bandwidth) -> Bandwidth {
        let measured = self.spacing.estimate(now);
        measured.map_or(rate, |measured| rate.min(measured.capacity.rate))
    }

    /// Nothing stays within the bandwidth: eagerly, the combination that is nearest to it is in force.
    fn take_least(&mut self, now: Instant, too_narrow: TooNarrow) -> Option<Change> {
        let decision = Decision {
            before: self.parameters,
            parameters: too_narrow.smallest,
            cause: Cause::Bandwidth {
                wanted: self.parameters.rate(),
                bandwidth: too_narrow.bandwidth,
            },
        };
        self.parameters = decision.parameters;
        self.last = Some(decision);
        if !decision.is_change() {
            return None;
        }
        self.last_change = Some((now, decision));
        self.let_settle(&decision);
        Some(Change::Decided(decision))
    }

    /// Aggregates that left with another N or I are not evaluated.
    fn let_settle(&mut self, decision: &Decision) {
        let of = |p: Parameters| (p.interval(), p.copies());
        if of(decision.before) != of(decision.parameters) {
            self.settles_at = Some(self.next_number);
        }
    }

    fn begin_period(&mut self, now: Instant, waiting_bytes: u64) {
        self.period = Period {
            since: now,
            seen: self.outcomes.totals(),
            waiting_bytes,
            ..Period::default()
        };
    }

    fn observe(
        &mut self,
        now: Instant,
        length: Duration,
        rate: Bandwidth,
        waiting_bytes: u64,
    ) -> Observation {
        let seen = self.outcomes.totals().since(&self.period.seen);
        let waits = &mut self.period.waits;
        waits.sort_unstable();
        let queueing = waits.get(waits.len() / 2).copied();
        let per = |bytes: u64| ByteCount::new(bytes).rate_over_ceil(length);
        Observation {
            period: length,
            socket_overflows: seen.socket_overflows,
            socket_overflows_before: self.period.overflows_before,
            system_overflows: seen.system_overflows,
            aggregates: seen.aggregates,
            copies: seen.copies,
            bandwidth: self.bandwidth(now, rate),
            sent: per(self.period.all_bytes),
            // What left, but for what waited before and what waits now.
            offered: per((self.period.single_bytes + waiting_bytes)
                .saturating_sub(self.period.waiting_bytes)),
            queueing,
            spread: self.spacing.spread(now),
        }
    }
}

/// The copies whose arrivals the peer reports.
fn train_of(feedback: &Feedback) -> Option<Train> {
    let copies = feedback.spacing?;
    let mut at_nanos = 0;
    let received = copies.gaps().map(|(index, gap_nanos)| {
        at_nanos += gap_nanos;
        Stamp {
            index: u32::from(index),
            at_nanos,
            bytes: u32::from(copies.ip_bytes),
        }
    });
    Some(Train {
        send_span: None,
        sent_packets: u32::from(copies.sent),
        received: received.collect(),
    })
}

fn controller(
    kind: ControllerKind,
    limits: &Limits,
    rate: Bandwidth,
) -> (Box<dyn Controller>, Option<TooNarrow>) {
    // Where not even the smallest combination fits the rate, the controller begins with that at its own
    // rate, and gathering by the clock is refused.
    let made = |rate| kind.controller(limits.clone(), rate);
    match made(rate) {
        Ok(controller) => (controller, None),
        Err(too_narrow) => {
            let controller =
                made(limits.bandwidth_min()).expect("the smallest combination fits its rate");
            (controller, Some(too_narrow))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Bandwidth = Bandwidth::from_mbit_per_second(100);
    const RTT: Duration = Duration::from_millis(1);

    fn aggregator() -> Aggregator {
        let config = AggregationConfig {
            mode: AggregationMode::Eager,
            ..AggregationConfig::default()
        };
        Aggregator::new(&config, RATE, 0)
    }

    fn capacity(rate: Bandwidth) -> PathCapacity {
        PathCapacity { rate, rtt: RTT }
    }

    fn report(highest: u64, came: u64, overflows: u64) -> Feedback {
        Feedback {
            path: 0,
            highest,
            aggregates: came,
            copies: came,
            socket_overflows: overflows,
            system_overflows: 0,
            spacing: None,
        }
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn send(aggregator: &mut Aggregator, now: Instant, count: u64) {
        for _ in 0..count {
            aggregator.on_sent(now, 100, 1);
        }
    }

    #[test]
    fn what_was_overtaken_is_not_counted_again() {
        let mut aggregator = aggregator();
        send(&mut aggregator, at(0), 100);
        for (millis, highest, came, overflows) in
            [(1, 9, 9, 0), (2, 49, 40, 3), (3, 29, 25, 1), (4, 69, 60, 3)]
        {
            let report = report(highest, came, overflows);
            aggregator.on_feedback(at(millis), report, capacity(RATE), 0);
        }
        let Totals {
            aggregates,
            socket_overflows,
            ..
        } = aggregator.outcomes.totals();
        assert_eq!(aggregates, DeliveryCounts { sent: 60, lost: 9 });
        assert_eq!(socket_overflows, 3);
    }

    #[test]
    fn a_peer_that_counts_anew_is_counted_on() {
        let mut aggregator = aggregator();
        send(&mut aggregator, at(0), 100);
        for (millis, highest, came, overflows) in
            [(1, 9, 9, 7), (2, 19, 18, 8), (3, 29, 28, 0), (4, 39, 38, 2)]
        {
            let report = report(highest, came, overflows);
            aggregator.on_feedback(at(millis), report, capacity(RATE), 0);
        }
        // With another socket; what came with its first word is not known.
        assert_eq!(aggregator.outcomes.totals().socket_overflows, 3);
        assert_eq!(
            aggregator.outcomes.totals().aggregates,
            DeliveryCounts { sent: 20, lost: 1 }
        );
    }

    #[test]
    fn where_nothing_fits_the_bandwidth_the_least_leaves_until_more_fits_again() {
        let mut aggregator = aggregator();
        let mut next = 0;
        let mut period = |aggregator: &mut Aggregator, millis, rate| {
            send(aggregator, at(millis), 100);
            next += 100;
            aggregator.on_feedback(
                at(millis + 60),
                report(next - 1, next, 0),
                capacity(rate),
                0,
            )
        };
        let narrow = Bandwidth::from_bits_per_second(900_000);
        assert!(period(&mut aggregator, 0, RATE).is_none());
        let change = period(&mut aggregator, 100, narrow);
        let Some(Change::Decided(decision)) = change else {
            panic!("{change:?}")
        };
        assert_eq!(decision.parameters, aggregator.limits.smallest());
        assert!(matches!(decision.cause, Cause::Bandwidth { .. }));
        assert_eq!(aggregator.copies(), 1);
        assert!(period(&mut aggregator, 200, narrow).is_none(), "once");
        let change = period(&mut aggregator, 500, RATE);
        assert!(matches!(change, Some(Change::Decided(_))), "{change:?}");
        assert!(aggregator.parameters.rate() > decision.parameters.rate());
    }

    #[test]
    fn what_left_with_another_n_is_not_judged_and_drops_meanwhile_are_told() {
        let mut aggregator = aggregator();
        assert_eq!(aggregator.copies(), 2);
        let send = |aggregator: &mut Aggregator, now, count| {
            for _ in 0..count {
                let copies = aggregator.copies();
                aggregator.on_sent(now, 100, copies);
            }
        };
        let feedback = |highest, copies, overflows| Feedback {
            copies,
            ..report(highest, highest + 1, overflows)
        };
        // 8000 copies without a loss: one is enough, for what leaves from number 4000 on.
        send(&mut aggregator, at(0), 1);
        aggregator.on_feedback(at(0), feedback(0, 2, 0), capacity(RATE), 0);
        send(&mut aggregator, at(10), 3999);
        let change = aggregator.on_feedback(at(100), feedback(3999, 8000, 0), capacity(RATE), 0);
        assert!(matches!(change, Some(Change::Decided(_))), "{change:?}");
        assert_eq!(
            (aggregator.copies(), aggregator.settles_at),
            (1, Some(4000))
        );
        send(&mut aggregator, at(110), 100);
        // On the way there were more with two copies, as far as the peer knows.
        let since = aggregator.period.since;
        aggregator.on_feedback(at(150), feedback(3999, 8000, 3), capacity(RATE), 0);
        assert_eq!(aggregator.period.since, since);
        aggregator.on_feedback(at(170), feedback(4009, 8010, 5), capacity(RATE), 0);
        assert_eq!(
            (aggregator.period.since, aggregator.settles_at),
            (at(170), None)
        );
        let seen = aggregator.observe(at(300), Duration::from_millis(130), RATE, 0);
        assert_eq!(
            (seen.socket_overflows, seen.socket_overflows_before),
            (0, 5)
        );
    }

    #[test]
    fn a_relieved_peer_gets_s_in_every_interval_and_the_first_at_once() {
        let mut aggregator = aggregator();
        let interval = aggregator.interval();
        let size = aggregator.parameters.size().get();
        aggregator.relieved_from = Some(interval / 2);
        let mut now = at(1);
        for _ in 0..3 {
            assert!(aggregator.may_send(now));
            aggregator.on_sent(now, size / 2, 1);
            assert!(aggregator.may_send(now), "half of S is left");
            assert_eq!(aggregator.room(now), size - size / 2);
            aggregator.on_sent(now, size, 1);
            assert!(!aggregator.may_send(now));
            now += interval;
        }
        // However long it takes until S has left, the next begins an I after the first.
        aggregator.on_sent(now, size / 2, 1);
        aggregator.on_sent(now + interval / 2, size, 1);
        assert!(!aggregator.may_send(now + interval / 2));
        now += interval;
        assert!(aggregator.may_send(now));
        // Where nothing is left, the I is over; and what left long ago takes no room.
        aggregator.on_sent(now, 100, 1);
        aggregator.on_drained(now);
        assert!(!aggregator.may_send(now) && aggregator.may_send(now + interval));
        now += interval;
        aggregator.on_sent(now, 100, 1);
        assert_eq!(aggregator.room(now + interval), size);
    }

    #[test]
    fn totals_outlive_a_reload() {
        let mut aggregator = aggregator();
        send(&mut aggregator, at(0), 100);
        aggregator.on_feedback(at(1), report(9, 9, 0), capacity(RATE), 0);
        aggregator.on_feedback(at(2), report(49, 40, 3), capacity(RATE), 0);
        let before = aggregator.outcomes.totals().aggregates;
        aggregator.reconfigure(&AggregationConfig::default(), RATE);
        assert_eq!(aggregator.outcomes.totals().aggregates, before);
    }

    #[test]
    fn a_period_begins_with_traffic() {
        let mut aggregator = aggregator();
        let hour = 3_600_000;
        send(&mut aggregator, at(hour), 10);
        assert_eq!(aggregator.period.since, at(hour));
        aggregator.on_feedback(at(hour + 10), report(9, 9, 0), capacity(RATE), 0);
        assert_eq!(aggregator.period.since, at(hour + 10));
        // Within the same second it goes on, after a silence it begins anew.
        send(&mut aggregator, at(hour + 20), 10);
        assert_eq!(aggregator.period.since, at(hour + 10));
        send(&mut aggregator, at(2 * hour), 10);
        assert_eq!(aggregator.period.since, at(2 * hour));
    }

    #[test]
    fn what_waits_is_offered_once() {
        let mut aggregator = aggregator();
        send(&mut aggregator, at(0), 1);
        aggregator.on_feedback(at(0), report(0, 1, 0), capacity(RATE), 5_000);
        send(&mut aggregator, at(50), 10);
        let second = Duration::from_secs(1);
        let offered = |aggregator: &mut Aggregator, waiting| {
            let seen = aggregator.observe(at(1000), second, RATE, waiting);
            seen.offered.as_bits_per_second() / 8
        };
        assert_eq!(offered(&mut aggregator, 5_000), 1000);
        assert_eq!(offered(&mut aggregator, 7_000), 3000);
        assert_eq!(offered(&mut aggregator, 0), 0);
    }
}
