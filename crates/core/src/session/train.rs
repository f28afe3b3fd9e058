//! Packet trains: packets sent back to back, whose spacing at the receiver shows the path's capacity.
//!
//! A train is short (2 ms of the path's rate); where thin traffic passes, which has to wait behind it, trains are shorter and
//! those with padding rarer. Its packets carry what waits; the rest is padding. What is sent for measurement alone (padding,
//! the marks, pings on an idle path) is paid from a configured share of the rate; a train of data costs its marks only, so
//! where there is traffic trains are frequent. A part of the share is kept in reserve for the moment
//! when a train does not fit what is known. The receiver reports when each packet arrived; how a
//! capacity comes of that is `keiro_model::bottleneck`'s.

use std::{collections::VecDeque, time::Duration};

use keiro_model::{
    bottleneck::{CapacityTracker, ConfirmedCapacity},
    capacity::{Stamp, Train},
    probing,
};
use keiro_stats::PathStats;
use keiro_units::{Bandwidth, ByteCount, Instant, Probability};

use crate::wire::TrainReport;

/// Packets of a train: a pair at least.
pub(crate) const PACKETS_MIN: usize = 2;
/// Packets of a train at most: longer trains measure little better.
pub(crate) const PACKETS_MAX: usize = 16;
/// Longest train, as a time at the path's rate: that of every other burst.
const TRAIN_TIME: Duration = Duration::from_millis(2);
/// Where thin traffic passes. Ours: what comes while a train is sent waits for the rest of it. Three a second each way
/// of 2 ms meet one in 25 transactions of six round trips of 1 ms, and so make their 99th percentile, 1.4 ms beyond the mean.
const TRAIN_TIME_THIN: Duration = Duration::from_micros(500);
/// Trains with padding are never closer together.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Nor those of data alone. Ours: a dozen of them, which show a change, in a third of a second.
const DATA_INTERVAL_MIN: Duration = Duration::from_millis(25);
/// Mean interval of trains with padding where thin traffic passes; each is three to five quarters of it. Ours: about that of those
/// of 2 ms, which cost four times as much.
const INTERVAL_THIN: Duration = Duration::from_millis(400);
/// Trains that leave as soon as the share has paid for them while the estimate is uncertain. Ours: twice as many
/// as show a change; where jitter hides the capacity no number of them would show it.
const UNCERTAIN_TRAINS_MAX: u32 = 12;
/// Trains whose report may still come: 1.6 s of them.
const AWAITED_MAX: usize = 64;
/// Trains that the reserve pays for: as many as show a change.
const RESERVE_TRAINS: u32 = 6;
/// Percent of `train_cost_time` by which the interval of trains is longer while the reserve is filled: with pings,
/// a seventh of the share is left for it.
const FILLING_PERCENT: u32 = 65;
/// Longest time in which the share pays for what was sent, however slow the path.
const COST_TIME_MAX: Duration = Duration::from_secs(3600);
/// An idle path is pinged this often, if a quarter of the share pays for it.
const PING_INTERVAL: Duration = Duration::from_millis(100);
const PING_SHARE: u32 = 4;
/// A ping and what answers it, IP bytes.
const PING_BYTES: u64 = 160;

/// How long the receiver waits for further packets of a train.
const REPORT_WAIT: Duration = Duration::from_millis(5);

/// Sends trains over one path and keeps what came of them.
#[derive(Debug, Default)]
pub(crate) struct Trains {
    next_id: u64,
    last_at: Option<Instant>,
    /// From the last train to the next.
    min_interval: Duration,
    /// Trains sent since the estimate became uncertain.
    trains_while_uncertain: u32,
    /// Until when the share of the rate is spent on what was sent; in the past: since when it is saved.
    budget_used_until: Instant,
    /// In how long the share of the rate carries a train like the last one.
    train_cost_time: Duration,
    /// Bytes of the last one.
    train_bytes: u64,
    /// Percent of `train_cost_time`, and of the interval where thin traffic passes, after which the next train is due:
    /// random, so that paths do not send trains at the same time.
    interval_jitter_percent: u32,
    /// Of the path's counters, what was sent for measurement alone.
    counters: PathStats,
    padding_arrived: u64,
    padding_lost: u64,
    awaited: VecDeque<Awaited>,
    follower: CapacityTracker,
}

/// A train that has left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentTrain {
    pub(crate) packets: u32,
    /// IP bytes of each.
    pub(crate) packet_bytes: u32,
    /// Bytes that are not data.
    pub(crate) probe_bytes: u64,
    /// Packets at its beginning that carry data.
    pub(crate) with_data: u32,
    /// Aggregates leave on the path, which a train must not delay.
    pub(crate) is_thin: bool,
}

/// What pays for probes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeBudget {
    /// At which the path is paced.
    pub(crate) rate: Bandwidth,
    /// The part of `rate` that probes may take.
    pub(crate) share: Probability,
    /// What a limit leaves for them; `None`: there is none.
    pub(crate) limit: Option<Bandwidth>,
    /// How long the path had carried no data when the last of them left.
    pub(crate) idle: Duration,
}

#[derive(Debug)]
struct Awaited {
    id: u64,
    sent: SentTrain,
}

impl Trains {
    /// When the next train is due, with padding if there is no data; `None`: never.
    pub(crate) fn due(&self, budget: ProbeBudget) -> Option<Instant> {
        if self.share_of(budget).is_zero() {
            return None;
        }
        let last_at = self.last_at.unwrap_or(Instant::ZERO);
        let paid = self.budget_used_until + self.train_cost_time;
        // What is new or does not fit what is known is looked into with the reserve; else that is
        // filled first of all, slowly.
        if self.follower.is_uncertain() {
            let interval = match self.trains_while_uncertain < UNCERTAIN_TRAINS_MAX {
                true => INTERVAL_MIN,
                false => self.min_interval,
            };
            return Some(paid.max(last_at + interval));
        }
        let whole = self.budget_used_until
            + self.train_cost_time * RESERVE_TRAINS
            + self.percent_of_cost_time(self.interval_jitter_percent);
        let filling = paid.max(
            last_at + self.percent_of_cost_time(FILLING_PERCENT + self.interval_jitter_percent),
        );
        Some(whole.min(filling).max(last_at + self.min_interval))
    }

    /// `percent` of the time that pays for a train.
    fn percent_of_cost_time(&self, percent: u32) -> Duration {
        self.train_cost_time * percent / 100
    }

    /// A train of nothing but data may leave.
    pub(crate) fn may_carry(&self, now: Instant, share: Probability) -> bool {
        let spaced = self.last_at.is_none_or(|at| at + DATA_INTERVAL_MIN <= now);
        share > Probability::ZERO && spaced && self.budget_used_until <= now
    }

    /// Time between PINGs on an idle path; `None`: the share does not pay for them.
    pub(crate) fn ping_interval(&self, budget: ProbeBudget) -> Option<Duration> {
        Some((self.ping_cost_time(budget)? * PING_SHARE).max(PING_INTERVAL))
    }

    /// When a PING is paid for with the reserve of trains untouched; `None`: never.
    pub(crate) fn ping_paid_at(&self, budget: ProbeBudget) -> Option<Instant> {
        let reserve = self.train_cost_time * RESERVE_TRAINS;
        self.ping_cost_time(budget)
            .map(|pay| self.budget_used_until + reserve + pay)
    }

    /// In how long the share pays for a PING; `None`: never.
    fn ping_cost_time(&self, budget: ProbeBudget) -> Option<Duration> {
        let share = self.share_of(budget);
        let pay = share.transmission_time_ceil(ByteCount::new(PING_BYTES));
        (!share.is_zero()).then(|| pay.min(COST_TIME_MAX))
    }

    /// A ping of `ip_bytes` has left.
    pub(crate) fn on_ping(&mut self, now: Instant, ip_bytes: u64, budget: ProbeBudget) {
        self.counters.probe_bytes += ip_bytes;
        self.spend(now, PING_BYTES, self.share_of(budget));
    }

    /// The probe share of the configured or the measured rate, whichever is lower.
    fn share_of(&self, budget: ProbeBudget) -> Bandwidth {
        let found = self.follower.found().map(|found| found.capacity.rate);
        let rate = found.map_or(budget.rate, |found| found.min(budget.rate));
        let share = rate.share_floor(budget.share);
        let share = budget.limit.map_or(share, |limit| share.min(limit));
        probing::rate_when_idle(share, budget.idle)
    }

    /// There is another limit, or data again after a long time: what was put off is due as in use.
    pub(crate) fn on_budget_changed(&mut self, now: Instant, budget: ProbeBudget) {
        if self.train_bytes == 0 {
            return;
        }
        let bytes = ByteCount::new(self.train_bytes);
        let pay = self.share_of(budget).transmission_time_ceil(bytes);
        self.train_cost_time = pay.min(COST_TIME_MAX);
        // The last one is paid by the new share; else a peer that changes its limit all the time would get trains for nothing.
        self.budget_used_until = self.budget_used_until.min(now + self.train_cost_time);
    }

    fn spend(&mut self, now: Instant, bytes: u64, share: Bandwidth) {
        let saved_max = self.train_cost_time * (RESERVE_TRAINS + 2);
        let pay = share.transmission_time_ceil(ByteCount::new(bytes));
        self.budget_used_until =
            self.budget_used_until.max(now - saved_max) + pay.min(COST_TIME_MAX);
    }

    /// Packets of a train of `packet_bytes` each at `rate`. `is_thin`: thin traffic passes.
    pub(crate) fn packets(rate: Bandwidth, packet_bytes: u64, is_thin: bool) -> usize {
        let time = if is_thin { TRAIN_TIME_THIN } else { TRAIN_TIME };
        let bytes = rate.bytes_in_floor(time).get();
        let packets = usize::try_from(bytes / packet_bytes.max(1)).unwrap_or(PACKETS_MAX);
        packets.clamp(PACKETS_MIN, PACKETS_MAX)
    }

    /// The number of the next train.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    /// A train has left.
    pub(crate) fn on_sent(
        &mut self,
        now: Instant,
        sent: SentTrain,
        budget: ProbeBudget,
        random: u32,
    ) {
        if self.awaited.len() >= AWAITED_MAX {
            self.awaited.pop_front();
        }
        self.awaited.push_back(Awaited {
            id: self.next_id,
            sent,
        });
        self.next_id += 1;
        self.last_at = Some(now);
        self.trains_while_uncertain = match self.follower.is_uncertain() {
            true => self.trains_while_uncertain.saturating_add(1),
            false => 0,
        };
        self.counters.probe_bytes += sent.probe_bytes;
        let share = self.share_of(budget);
        let whole = u64::from(sent.packets) * u64::from(sent.packet_bytes);
        self.train_bytes = whole;
        if share.is_zero() {
            // Data alone, where probes may cost nothing.
            self.interval_jitter_percent = 75 + random % 51;
            self.min_interval = INTERVAL_MIN;
            return;
        }
        let pay = share.transmission_time_ceil(ByteCount::new(whole));
        self.train_cost_time = pay.min(COST_TIME_MAX);
        self.spend(now, sent.probe_bytes, share);
        // Three to five quarters.
        self.interval_jitter_percent = 75 + random % 51;
        self.min_interval = match sent.is_thin {
            true => INTERVAL_THIN * self.interval_jitter_percent / 100,
            false => INTERVAL_MIN,
        };
    }

    /// The peer reports a train; unknown ones are ignored.
    pub(crate) fn on_report(&mut self, now: Instant, report: TrainReport<'_>) {
        let Some(place) = self
            .awaited
            .iter()
            .position(|train| train.id == report.train)
        else {
            return;
        };
        let Some(awaited) = self.awaited.remove(place) else {
            return;
        };
        let sent = awaited.sent;
        let received = report.arrivals().map(|(index, at_nanos)| Stamp {
            index: u32::from(index),
            at_nanos,
            bytes: sent.packet_bytes,
        });
        let train = Train {
            send_span: None,
            sent_packets: sent.packets,
            received: received
                .filter(|stamp| stamp.index < sent.packets)
                .collect(),
        };
        // Padding is not acknowledged, so its losses are counted here.
        let arrived = train.received.iter();
        let arrived = arrived
            .filter(|stamp| stamp.index >= sent.with_data)
            .count() as u64;
        let padding = u64::from(sent.packets - sent.with_data);
        self.padding_arrived += arrived.min(padding);
        self.padding_lost += padding.saturating_sub(arrived);
        self.follower.on_train(now, train);
    }

    /// The path was away: what was under way is gone, what was found holds until it is refuted.
    pub(crate) fn on_return(&mut self) {
        self.awaited.clear();
        self.follower.on_return();
    }

    /// The path leads elsewhere.
    pub(crate) fn forget(&mut self) {
        self.awaited.clear();
        self.follower.forget();
    }

    pub(crate) fn found(&self) -> Option<ConfirmedCapacity> {
        self.follower.found()
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        assert!(self.awaited.len() <= AWAITED_MAX, "trains under way");
        assert!(
            self.train_cost_time <= COST_TIME_MAX,
            "what a train costs is bounded"
        );
    }

    /// Packets of padding of which it is known that they arrived, and that they did not.
    pub(crate) fn padding(&self) -> (u64, u64) {
        (self.padding_arrived, self.padding_lost)
    }

    /// Of the path's counters, those that are counted here.
    pub(crate) fn counters(&self) -> &PathStats {
        &self.counters
    }
}

/// Follows the trains that come over one path of the peer.
#[derive(Debug, Default)]
pub(crate) struct TrainReceiver {
    open: Option<Arriving>,
    done: Option<Arriving>,
}

#[derive(Debug)]
struct Arriving {
    id: u64,
    /// (place in the train, arrival).
    arrivals: Vec<(u8, Instant)>,
    report_at: Instant,
}

/// A packet of a train as it arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrainPacket {
    pub(crate) train: u64,
    pub(crate) index: u8,
    pub(crate) count: u8,
    pub(crate) received_at: Instant,
}

impl TrainReceiver {
    pub(crate) fn on_packet(&mut self, now: Instant, packet: TrainPacket) {
        let TrainPacket {
            train: id,
            index,
            count,
            received_at,
        } = packet;
        if self.open.as_ref().is_some_and(|open| open.id != id) {
            self.done = self.open.take();
        }
        let open = self.open.get_or_insert_with(|| Arriving {
            id,
            arrivals: Vec::with_capacity(PACKETS_MAX),
            report_at: now,
        });
        if open.arrivals.len() < PACKETS_MAX && open.arrivals.iter().all(|(seen, _)| *seen != index)
        {
            open.arrivals.push((index, received_at));
        }
        let complete = index + 1 >= count || open.arrivals.len() >= usize::from(count);
        open.report_at = if complete { now } else { now + REPORT_WAIT };
        if complete {
            self.done = self.open.take();
        }
    }

    /// When something is to be reported.
    pub(crate) fn report_due(&self) -> Option<Instant> {
        let waiting = self.done.iter().chain(&self.open);
        waiting.map(|train| train.report_at).min()
    }

    /// Appends a report for the peer's path `path` if one is due.
    pub(crate) fn write_report(&mut self, now: Instant, path: u8, out: &mut Vec<u8>) {
        if self.done.is_none() && self.open.as_ref().is_some_and(|open| open.report_at <= now) {
            self.done = self.open.take();
        }
        let Some(done) = self.done.take_if(|done| done.report_at <= now) else {
            return;
        };
        // One packet has no spacing.
        if let [(_, first), _, ..] = done.arrivals[..] {
            let arrivals = done.arrivals.iter().map(|(index, at)| {
                let after = at.saturating_duration_since(first);
                (*index, u64::try_from(after.as_nanos()).unwrap_or(u64::MAX))
            });
            TrainReport::encode(out, path, done.id, arrivals);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_changes_its_limit_all_the_time_gets_no_more_trains() {
        let share = Probability::new(0.005).expect("a share");
        let budget = |limit: u64| ProbeBudget {
            rate: Bandwidth::from_mbit_per_second(50),
            share,
            limit: Some(Bandwidth::from_bits_per_second(limit)),
            idle: Duration::ZERO,
        };
        let sent = SentTrain {
            packets: 8,
            packet_bytes: 1500,
            probe_bytes: 12_000,
            with_data: 0,
            is_thin: false,
        };
        let begin = Instant::from_nanos(3_600_000_000_000);
        let mut trains = Trains::default();
        let mut count = 0;
        for ms in 0..60_000 {
            let now = begin + Duration::from_millis(ms);
            let budget = budget(if ms % 2 == 0 { 1000 } else { 250_000 });
            trains.on_budget_changed(now, budget);
            if trains.due(budget).is_some_and(|due| due <= now) {
                trains.on_sent(now, sent, budget, 0);
                count += 1;
            }
        }
        // 250 kbit/s pay for 156 in a minute, and some were saved.
        println!("{count} trains");
        assert!((60..=170).contains(&count), "{count} trains");
        // What was put off for a long time is due soon once there is more.
        let now = begin + Duration::from_secs(60);
        trains.on_sent(now, sent, budget(1000), 0);
        assert!(
            trains
                .due(budget(1000))
                .is_some_and(|due| due > now + Duration::from_secs(60))
        );
        trains.on_budget_changed(now, budget(250_000));
        assert!(
            trains
                .due(budget(250_000))
                .is_some_and(|due| due < now + Duration::from_secs(5))
        );
    }

    #[test]
    fn trains_are_short_where_thin_traffic_passes() {
        let packets = |mbit, is_thin| {
            let rate = Bandwidth::from_mbit_per_second(mbit);
            Trains::packets(rate, 1500, is_thin)
        };
        let thin: Vec<usize> = [5, 50, 100, 1000].map(|mbit| packets(mbit, true)).into();
        assert_eq!(thin, [2, 2, 4, 16]);
        let other: Vec<usize> = [5, 50, 100, 1000].map(|mbit| packets(mbit, false)).into();
        assert_eq!(other, [2, 8, 16, 16]);
    }
}
