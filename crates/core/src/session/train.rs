//! Trains: packets sent back to back, whose spacing at the receiver tells a path's capacity.
//!
//! A train is so short (2 ms of the path's rate) and so rare (a configured share of it) that it is
//! felt by nobody. Its packets carry what waits; the rest is padding. The receiver reports when
//! each arrived; how a capacity comes of that is `keiro_model::bottleneck`'s.

use std::{collections::VecDeque, time::Duration};

use keiro_model::{
    Bandwidth, ByteCount, Instant, Probability,
    bottleneck::{CapacityFollower, Found},
    capacity::{Stamp, Train},
};

use crate::wire::TrainReport;

/// Packets of a train: a pair at least.
pub(crate) const PACKETS_MIN: usize = 2;
/// Packets of a train at most: more tell little more.
pub(crate) const PACKETS_MAX: usize = 16;
/// A train is at most so long at the path's rate, as every other burst.
const TRAIN_TIME: Duration = Duration::from_millis(2);
/// Trains are never closer together.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Trains whose report may still come.
const AWAITED_MAX: usize = 8;
/// Nor further apart, however slow the path.
const INTERVAL_MAX: Duration = Duration::from_secs(60);

/// The receiver waits so long for a train's further packets.
const REPORT_WAIT: Duration = Duration::from_millis(5);

/// Sends trains over one path and keeps what came of them.
#[derive(Debug, Default)]
pub(crate) struct Trains {
    next_id: u64,
    next_at: Instant,
    awaited: VecDeque<Awaited>,
    follower: CapacityFollower,
}

#[derive(Debug)]
struct Awaited {
    id: u64,
    packets: u32,
    packet_bytes: u32,
}

impl Trains {
    /// When the next train is due; `None`: never.
    pub(crate) fn due(&self, share: Probability) -> Option<Instant> {
        (share > Probability::ZERO).then_some(self.next_at)
    }

    /// Packets of a train of `packet_bytes` each at `rate`.
    pub(crate) fn packets(rate: Bandwidth, packet_bytes: u64) -> usize {
        let bytes = rate.bytes_in_floor(TRAIN_TIME).get();
        let packets = usize::try_from(bytes / packet_bytes.max(1)).unwrap_or(PACKETS_MAX);
        packets.clamp(PACKETS_MIN, PACKETS_MAX)
    }

    /// The number of the next train.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    /// A train of `packets` packets of `packet_bytes` IP bytes has left. The random number keeps
    /// trains of several paths from marching in step.
    pub(crate) fn on_sent(
        &mut self,
        now: Instant,
        (packets, packet_bytes): (u32, u32),
        (rate, share): (Bandwidth, Probability),
        random: u32,
    ) {
        if self.awaited.len() >= AWAITED_MAX {
            self.awaited.pop_front();
        }
        self.awaited.push_back(Awaited {
            id: self.next_id,
            packets,
            packet_bytes,
        });
        self.next_id += 1;
        let bytes = ByteCount::new(u64::from(packets) * u64::from(packet_bytes));
        let interval = rate.share_floor(share).transmission_time_ceil(bytes);
        let interval = interval.clamp(INTERVAL_MIN, INTERVAL_MAX);
        // Three quarters of it to five.
        self.next_at = now + interval * (75 + random % 51) / 100;
    }

    /// What the peer has seen of a train; strangers are ignored.
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
        let received = report.arrivals().map(|(index, at_nanos)| Stamp {
            index: u32::from(index),
            at_nanos,
            bytes: awaited.packet_bytes,
        });
        let train = Train {
            send_span: None,
            sent_packets: awaited.packets,
            received: received
                .filter(|stamp| stamp.index < awaited.packets)
                .collect(),
        };
        self.follower.on_train(now, train);
    }

    /// The path leads elsewhere.
    pub(crate) fn forget(&mut self) {
        self.awaited.clear();
        self.follower.forget();
    }

    pub(crate) fn found(&self) -> Option<Found> {
        self.follower.found()
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

impl TrainReceiver {
    /// Packet `index` of `count` of train `id` arrived at `received_at`.
    pub(crate) fn on_packet(
        &mut self,
        now: Instant,
        received_at: Instant,
        (id, index, count): (u64, u8, u8),
    ) {
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
