//! Aggregates: small items are coalesced into few packets, each sent several times over
//! `[aggregation §2, §3]`.
//!
//! Per path. [`Aggregator`] says when the next aggregate may leave, how large it is and how often
//! it is sent, and lets a controller adapt that to the peer's reports; [`outcomes`] computes from them what was lost;
//! [`receiver`] drops duplicates and reports what has arrived. Instead of copies there may be parity: [`parity_group`]
//! makes it, [`recover`] uses it, `keiro_model::erasure` is the mathematics. Which items are coalesced, and
//! the content of an aggregate, is decided by `send_queues` and `transmit`.

pub(crate) mod copies;
mod departures;
mod outcomes;
mod parity_group;
pub(crate) mod receiver;
mod recover;

use std::{collections::BTreeMap, time::Duration};

use keiro_model::{
    aggregation::{
        self, Cause, Controller, ControllerKind, Decision, DeliveryCounts, Limits, Observation,
        Parameters, TooNarrow,
        spacing::{Estimate, SpacingEstimator},
    },
    bottleneck::ConfirmedCapacity,
    capacity::{Stamp, Train},
};
use keiro_stats::AggregationStats;
use keiro_units::{Bandwidth, ByteCount, Instant};

use self::{
    copies::{CopyContent, SentAggregate},
    departures::Departures,
    outcomes::{AggregateTotals, DeliveryAccounting},
    parity_group::{ClosedGroup, Protection},
};
use super::{recovery::ChargedTenant, sent_frames::SentFrames};
use crate::{
    config::{AggregationConfig, AggregationMode, CopySpread, Redundancy},
    id::PathId,
    snapshot::AggregationSnapshot,
    wire::{Feedback, Frame, ParityFrame},
};

/// Samples of queueing kept per period; the newest. Ours: a median needs no more.
const WAITS_MAX: usize = 64;
/// How long thin traffic is taken to go on after its last packet. Ours.
const USED_FOR: Duration = Duration::from_secs(1);
/// Time between two checks whether there is bandwidth again after a pause: no
/// feedback comes then. Ours: what was known of the bandwidth ages by the second.
const RESUME_CHECK_INTERVAL: Duration = Duration::from_secs(1);
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

/// The sending side of one path.
#[derive(Debug)]
pub(crate) struct Aggregator {
    mode: AggregationMode,
    kind: ControllerKind,
    limits: Limits,
    controller: Box<dyn Controller>,
    parameters: Parameters,
    /// The controller found no combination that the bandwidth carries.
    too_narrow: Option<TooNarrow>,
    /// When that is checked next.
    resume_check_at: Instant,
    next_number: u64,
    departures: Departures,
    last_sent_at: Option<Instant>,
    outcomes: DeliveryAccounting,
    /// The spacing of copies that leave back to back on one path measures the path.
    spread: CopySpread,
    /// Parity takes the place of copies.
    protection: Option<Protection>,
    /// The peer's last report.
    last_feedback: Option<Feedback>,
    /// The first aggregate that left with the N and I in force, until the peer has reported it: earlier ones
    /// say nothing about these.
    settles_at: Option<u64>,
    period: Period,
    spacing: SpacingEstimator,
    decisions: DecisionLog,
}

/// Decisions of the controller, for the snapshot.
#[derive(Debug, Default)]
struct DecisionLog {
    last: Option<Decision>,
    /// By the name of their cause.
    counts: BTreeMap<&'static str, u64>,
    last_change: Option<(Instant, Decision)>,
}

/// A change of the aggregation on a path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// The controller has decided on other parameters.
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
    seen: AggregateTotals,
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
    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        self.outcomes.check_invariants();
        self.departures.check_invariants();
        if let Some(protection) = &self.protection {
            protection.check_invariants();
        }
    }

    /// `rate`: what the path is configured for. `first_number`: numbers below were used.
    pub(crate) fn new(config: &AggregationConfig, rate: Bandwidth, first_number: u64) -> Self {
        let (controller, too_narrow) = controller(config.controller, &config.limits, rate);
        Self {
            mode: config.mode,
            kind: config.controller,
            limits: config.limits.clone(),
            parameters: controller.parameters(),
            controller,
            too_narrow,
            resume_check_at: Instant::ZERO,
            next_number: first_number,
            departures: Departures::new(config.mode),
            last_sent_at: None,
            outcomes: DeliveryAccounting::default(),
            spread: config.spread,
            protection: match config.redundancy {
                Redundancy::Copies => None,
                Redundancy::Parity(parity) => Some(Protection::new(parity)),
            },
            last_feedback: None,
            settles_at: None,
            period: Period::default(),
            spacing: SpacingEstimator::default(),
            decisions: DecisionLog::default(),
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

    /// When it is checked whether what is paused may go on; `None`: nothing is paused.
    pub(crate) fn resume_check_at(&self) -> Option<Instant> {
        self.is_paused().then_some(self.resume_check_at)
    }

    /// Checks whether what is paused may go on, if that is due.
    pub(crate) fn on_timeout(&mut self, now: Instant, rate: Bandwidth) -> Option<Change> {
        self.resume_check_at().filter(|at| *at <= now)?;
        self.try_resume(now, rate)
    }

    /// Restarts the controller if the bandwidth carries a combination again.
    fn try_resume(&mut self, now: Instant, rate: Bandwidth) -> Option<Change> {
        if !self.is_paused() {
            return None;
        }
        self.resume_check_at = now + RESUME_CHECK_INTERVAL;
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
        self.departures.on_controller_restarted();
        self.settles_at = Some(self.next_number);
        Some(Change::Resumed {
            bandwidth,
            parameters: self.parameters,
        })
    }

    /// An aggregate has left recently.
    pub(crate) fn is_used(&self, now: Instant) -> bool {
        self.last_sent_at.is_some_and(|at| at + USED_FOR > now)
    }

    /// An aggregate may leave.
    pub(crate) fn may_send(&self, now: Instant) -> bool {
        self.departures.may_send(now)
    }

    /// When an aggregate may leave.
    pub(crate) fn next(&self) -> Instant {
        self.departures.next()
    }

    /// IP bytes that may still leave in this I, of one copy.
    pub(crate) fn room(&self, now: Instant) -> u64 {
        self.departures.room(now, self.parameters)
    }

    /// The time between aggregates: I.
    pub(crate) fn interval(&self) -> Duration {
        self.parameters.interval()
    }

    /// How often each aggregate is sent: N.
    pub(crate) fn copies(&self) -> u8 {
        self.parameters.copies()
    }

    /// The place that the next aggregate takes in its group; `None`: it is in none, and copied.
    pub(crate) fn place_in_group(&self) -> Option<u8> {
        self.protection.as_ref()?.place_in_group(self.copies())
    }

    /// Parity packets may protect aggregates, and have to hold their content.
    pub(crate) fn protects(&self) -> bool {
        self.protection.is_some()
    }

    /// The content of an aggregate that leaves joins its group.
    pub(crate) fn protect(&mut self, now: Instant, sent: SentAggregate, content: &[u8]) {
        if let Some(protection) = &mut self.protection {
            protection.protect(now, sent, content, self.parameters);
        }
    }

    /// When the parity of the group that is open is to leave; in the past: at once.
    pub(crate) fn parity_due(&self) -> Option<Instant> {
        self.protection.as_ref()?.due()
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
                owner: ChargedTenant::default(),
            };
            self.on_parity(now, content.packet_bytes() as u64 + ip_overhead);
            packets.push(content);
        }
        Some(packets)
    }

    /// The group whose parity is to leave now.
    fn take_group(&mut self, now: Instant) -> Option<ClosedGroup> {
        let closed = self.protection.as_mut()?.take_group(now)?;
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
        if let Some(protection) = &mut self.protection {
            protection.drop_group();
        }
    }

    /// A parity packet of `ip_bytes` is to leave.
    fn on_parity(&mut self, now: Instant, ip_bytes: u64) {
        self.period.all_bytes += ip_bytes;
        let paid = self
            .protection
            .as_mut()
            .map_or(0, |p| p.take_paid(ip_bytes));
        let copies = u64::from(self.copies().max(1));
        let unpaid = (ip_bytes - paid).div_ceil(copies);
        self.departures.charge(now, unpaid, self.parameters);
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
        self.departures.charge(now, ip_bytes, self.parameters);
        SentAggregate { number, ip_bytes }
    }

    /// A copy or parity of `ip_bytes` that was announced does not leave.
    pub(crate) fn on_copy_dropped(&mut self, ip_bytes: u64) {
        self.outcomes.on_copy_dropped();
        self.period.all_bytes = self.period.all_bytes.saturating_sub(ip_bytes);
    }

    /// Something has come where nothing waited: by the clock it waits for the next tick.
    pub(crate) fn on_first(&mut self, now: Instant) {
        self.departures.on_first(now, self.parameters);
    }

    /// The next item does not fit any more, or nothing is left: by the clock, and where the peer is to get fewer
    /// packets, nothing more leaves in this I.
    pub(crate) fn on_drained(&mut self, now: Instant) {
        self.departures.on_drained(now, self.parameters);
    }

    /// A packet has waited for `wait` in queues of others.
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
        if self.mode == AggregationMode::Off || feedback.highest >= self.next_number {
            return None;
        }
        self.outcomes.forget_arrived(now, path.rtt);
        let is_settled = self.is_settled(&feedback);
        if !self.count(now, feedback, is_settled, waiting_bytes) {
            return None;
        }
        // The spacing of other copies is their own, not the path's.
        let back_to_back = self.spread == CopySpread::BackToBack;
        if let Some(train) = train_of(&feedback).filter(|_| back_to_back) {
            self.spacing.on_copies(now, train);
        }
        if self.settles_at.is_some() {
            if is_settled {
                self.on_settled(now, waiting_bytes);
            }
            return None;
        }
        let wanted = aggregation::period(self.parameters.interval(), path.rtt);
        let length = now.saturating_duration_since(self.period.since);
        if length < wanted {
            return None;
        }
        let seen = self.observe(now, length, path.rate, waiting_bytes);
        self.begin_period(now, waiting_bytes);
        if self.is_paused() {
            // What left before says nothing about what is to leave.
            return self.try_resume(now, path.rate);
        }
        if seen.aggregates.sent == 0 {
            self.period.overflows_before = seen.socket_overflows + seen.socket_overflows_before;
            return None;
        }
        self.decide(now, seen)
    }

    /// The peer has reported all aggregates that left with another N or I.
    fn is_settled(&self, feedback: &Feedback) -> bool {
        self.settles_at
            .is_none_or(|at| feedback.highest >= at && !self.outcomes.awaits_before(at))
    }

    /// Counts what the peer reports; `false`: the report says nothing.
    fn count(
        &mut self,
        now: Instant,
        feedback: Feedback,
        is_settled: bool,
        waiting_bytes: u64,
    ) -> bool {
        match self.last_feedback {
            None if !is_settled => return false,
            // It was overtaken by one that has been counted.
            Some(last) if feedback.was_overtaken_by(&last) => return false,
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
        true
    }

    /// A period begins with the N and I in force.
    fn on_settled(&mut self, now: Instant, waiting_bytes: u64) {
        self.settles_at = None;
        let totals = self.outcomes.totals();
        let dropped = totals.since(&self.period.seen).socket_overflows;
        self.begin_period(now, waiting_bytes);
        self.period.overflows_before = dropped;
    }

    /// A period is over: the controller decides what changes.
    fn decide(&mut self, now: Instant, seen: Observation) -> Option<Change> {
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
                self.departures.on_decision(&decision, &seen);
                self.decisions.count(decision.cause.name());
                self.apply(now, decision)
            }
            Err(too_narrow) => {
                self.too_narrow = Some(too_narrow);
                self.resume_check_at = now + RESUME_CHECK_INTERVAL;
                self.decisions.count(TOO_NARROW);
                match self.mode {
                    AggregationMode::Fixed => Some(Change::Paused(too_narrow)),
                    AggregationMode::Eager | AggregationMode::Off => {
                        self.take_least(now, too_narrow)
                    }
                }
            }
        }
    }

    /// A decision is in force from now on.
    fn apply(&mut self, now: Instant, decision: Decision) -> Option<Change> {
        self.parameters = decision.parameters;
        self.decisions.last = Some(decision);
        if !decision.is_change() {
            return None;
        }
        self.decisions.last_change = Some((now, decision));
        self.let_settle(&decision);
        Some(Change::Decided(decision))
    }

    /// Trains have measured the path's capacity. What changes, if anything.
    pub(crate) fn on_trains(
        &mut self,
        now: Instant,
        found: ConfirmedCapacity,
        rate: Bandwidth,
    ) -> Option<Change> {
        if self.mode != AggregationMode::Off {
            self.spacing.on_trains(found);
        }
        self.try_resume(now, rate)
    }

    /// The path leads elsewhere.
    pub(crate) fn forget(&mut self) {
        self.spacing.forget();
        self.last_feedback = None;
        self.outcomes.forget();
        self.drop_group();
    }

    pub(crate) fn snapshot(&self, now: Instant) -> Option<AggregationSnapshot> {
        let bandwidth = self.spacing.estimate(now);
        (self.mode != AggregationMode::Off).then(|| AggregationSnapshot {
            stats: self.stats(bandwidth.as_ref()),
            mode: self.mode,
            controller: self.kind,
            spread: self.spread,
            parameters: self.parameters,
            too_narrow: self.too_narrow,
            cause: self.decisions.last.map(|decision| decision.cause),
            decisions: self.decisions.counts.clone(),
            last_change: self.decisions.last_change,
            redundancy: self
                .protection
                .as_ref()
                .map_or(Redundancy::Copies, Protection::redundancy),
            bandwidth,
        })
    }

    fn stats(&self, bandwidth: Option<&Estimate>) -> AggregationStats {
        let totals = self.outcomes.totals();
        AggregationStats {
            size_bytes: self.parameters.size().get(),
            interval: self.parameters.interval(),
            copies: u64::from(self.parameters.copies()),
            paused: self.is_paused(),
            bandwidth: bandwidth.map(Estimate::bandwidth),
            sent_aggregates: totals.aggregates.sent,
            lost_aggregates: totals.aggregates.lost,
            sent_copies: totals.copies.sent,
            lost_copies: totals.copies.lost,
            unsent_copies: self.outcomes.copies_dropped(),
            peer_socket_dropped_packets: totals.socket_overflows,
            peer_system_dropped_packets: totals.system_overflows,
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
        self.apply(now, decision)
    }

    /// Aggregates that left with another N or I are not evaluated.
    fn let_settle(&mut self, decision: &Decision) {
        let Decision {
            before, parameters, ..
        } = decision;
        if before.interval() != parameters.interval() || before.copies() != parameters.copies() {
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
        // What left, but for what waited before and what waits now.
        let offered = self.period.single_bytes + waiting_bytes;
        let offered = offered.saturating_sub(self.period.waiting_bytes);
        Observation {
            period: length,
            socket_overflows: seen.socket_overflows,
            socket_overflows_before: self.period.overflows_before,
            system_overflows: seen.system_overflows,
            aggregates: seen.aggregates,
            copies: seen.copies,
            bandwidth: self.bandwidth(now, rate),
            sent: ByteCount::new(self.period.all_bytes).rate_over_ceil(length),
            offered: ByteCount::new(offered).rate_over_ceil(length),
            queueing,
            spread: self.spacing.spread(now),
        }
    }
}

impl DecisionLog {
    fn count(&mut self, cause: &'static str) {
        *self.counts.entry(cause).or_default() += 1;
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
    match kind.controller(limits.clone(), rate) {
        Ok(controller) => (controller, None),
        Err(too_narrow) => {
            let smallest = kind.controller(limits.clone(), limits.bandwidth_min());
            let controller = smallest.expect("the smallest combination fits its rate");
            (controller, Some(too_narrow))
        }
    }
}

#[cfg(test)]
mod tests;
