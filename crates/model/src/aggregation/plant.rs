//! Simple models of what a controller acts on, to compare controllers by: a receiver that overflows, a line that
//! loses, a path that others use as well.
//!
//! One [`Plant`] is one direction between two gateways. Payload arrives evenly and is sent as
//! aggregates by the clock. Every period gives an [`Observation`] and what became of the payload.
//! The models are coarse on purpose: overflows and congestion lose the share that is too much, a
//! copy of several datagrams lives or dies as one. Nothing here is a forecast; packets one by one
//! are the simulator's.

use std::time::Duration;

use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use super::{DeliveryCounts, Observation, Parameters};
use keiro_units::{Bandwidth, ByteCount};

/// What the direction is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Payload that arrives to be sent.
    pub offered: Bandwidth,
    /// What every copy carries beside payload, at its least.
    pub header: ByteCount,
    /// The largest datagram, an IP packet; larger copies are several.
    pub mtu: ByteCount,
    /// Datagrams per second that the receiver has room for; the share beyond overflows. `None`: all.
    pub receiver_per_second: Option<f64>,
    /// Share of what comes that the receiver drops because of others' packets, whatever is sent.
    pub receiver_loss: f64,
    /// Others' packets that it drops per second; they are counted with ours.
    pub others_overflows_per_second: f64,
    /// Share of copies that the line loses.
    pub line_loss: f64,
    /// Share of copies that the line loses behind a lost copy of the same aggregate, at least
    /// `line_loss`; as much if copies are lost independently.
    pub line_loss_together: f64,
    /// Share of aggregates all of whose copies the line loses, beside `line_loss`.
    pub line_moments: f64,
    /// What others leave of the bottleneck; the share that is sent beyond it is lost.
    pub available: Bandwidth,
    /// Whether congestion loses all copies of an aggregate or none, as a full buffer does.
    pub congestion_together: bool,
    /// The bottleneck's buffer, as time at its rate.
    pub buffer: Duration,
    /// Whether the queueing delay is known to the controller.
    pub queue_is_seen: bool,
    /// B, as the controller gets it.
    pub bandwidth: Bandwidth,
}

/// What became of a period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// What the controller gets.
    pub seen: Observation,
    /// Mean time that payload waited to be sent.
    pub wait: Duration,
    /// Share of payload that was given up because it would have waited for more than a second.
    pub given_up: f64,
    /// Delay of the bottleneck's queue.
    pub queueing: Duration,
}

/// One direction, from a seed.
#[derive(Clone, Debug)]
pub struct Plant {
    /// What it is like from now on.
    pub conditions: Conditions,
    rng: ChaCha12Rng,
    /// Payload bytes that did not fit yet.
    backlog: f64,
    given_up: f64,
    /// Parts of an aggregate that the last period has left over.
    begun: f64,
}

/// Longest wait of payload, after which it is given up.
const BACKLOG_MAX: Duration = Duration::from_secs(1);

impl Default for Conditions {
    /// A perfect path of 100 Mbit/s, and 5 Mbit/s of payload.
    fn default() -> Self {
        Self {
            offered: Bandwidth::from_mbit_per_second(5),
            header: ByteCount::new(74),
            mtu: ByteCount::new(1500),
            receiver_per_second: None,
            receiver_loss: 0.0,
            others_overflows_per_second: 0.0,
            line_loss: 0.0,
            line_loss_together: 0.0,
            line_moments: 0.0,
            available: Bandwidth::from_mbit_per_second(100),
            congestion_together: true,
            buffer: Duration::from_millis(20),
            queue_is_seen: true,
            bandwidth: Bandwidth::from_mbit_per_second(100),
        }
    }
}

impl Plant {
    /// With an empty queue.
    pub fn new(conditions: Conditions, seed: u64) -> Self {
        Self {
            conditions,
            rng: ChaCha12Rng::seed_from_u64(seed),
            backlog: 0.0,
            given_up: 0.0,
            begun: 0.0,
        }
    }

    /// A period passes in which aggregates are sent with `parameters`.
    pub fn pass(&mut self, parameters: &Parameters, period: Duration) -> Outcome {
        let interval = parameters.interval().as_secs_f64();
        let due = self.begun + period.as_secs_f64() / interval;
        self.begun = due.fract();
        let (mut seen, mut waited) = (self.nothing_seen(period), 0.0);
        let (mut bytes_sent, mut queueing) = (0.0, Duration::ZERO);
        let headers = self.conditions.header.rate_over_ceil(parameters.interval());
        seen.offered = self.conditions.offered.saturating_add(headers);
        for _ in 0..due as u64 {
            let (bytes, wait) = self.gather(parameters);
            let sent_bytes = bytes * f64::from(parameters.copies());
            bytes_sent += sent_bytes;
            waited += wait;
            let rate = sent_bytes * 8.0 / interval;
            queueing = self.queueing(rate);
            self.send(parameters, bytes, rate, &mut seen);
        }
        seen.sent =
            Bandwidth::from_bits_per_second((bytes_sent * 8.0 / period.as_secs_f64()) as u64);
        seen.queueing = self.conditions.queue_is_seen.then_some(queueing);
        let wait = waited / due.trunc().max(1.0);
        let others = self.conditions.others_overflows_per_second * period.as_secs_f64();
        seen.system_overflows += others as u64;
        let offered = self.conditions.offered.bytes_in_floor(period).get() as f64;
        Outcome {
            seen,
            given_up: std::mem::take(&mut self.given_up) / offered.max(1.0),
            wait: Duration::from_secs_f64(wait),
            queueing,
        }
    }

    fn nothing_seen(&self, period: Duration) -> Observation {
        Observation {
            period,
            bandwidth: self.conditions.bandwidth,
            ..Observation::default()
        }
    }

    /// Bytes of the next aggregate with headers, and how long its payload has waited in seconds.
    fn gather(&mut self, parameters: &Parameters) -> (f64, f64) {
        let offered = self.conditions.offered.as_bits_per_second() as f64 / 8.0;
        let header = self.conditions.header.get() as f64;
        let interval = parameters.interval().as_secs_f64();
        let before = self.backlog;
        let waiting = before + offered * interval;
        let room = (parameters.size().get() as f64 - header).max(0.0);
        let taken = waiting.min(room);
        self.backlog = (waiting - taken).min(offered * BACKLOG_MAX.as_secs_f64());
        self.given_up += waiting - taken - self.backlog;
        let wait = interval / 2.0 + before / offered.max(1.0);
        (taken + header, wait)
    }

    /// The copies of one aggregate and what becomes of them; `rate` is what is sent in bit/s.
    fn send(&mut self, parameters: &Parameters, bytes: f64, rate: f64, seen: &mut Observation) {
        let c = self.conditions;
        let datagrams = (bytes / c.mtu.get() as f64).ceil();
        let per_second = datagrams * parameters.aggregates_per_second();
        let overflowing = too_much(per_second, c.receiver_per_second.unwrap_or(f64::INFINITY));
        let congestion = too_much(rate, c.available.as_bits_per_second() as f64);
        let all_congested = self.happens(congestion);
        let all_lost = c.line_moments > 0.0 && self.happens(c.line_moments);
        let (mut line_lost, mut arrived) = (false, 0);
        for _ in 0..parameters.copies() {
            let behind_lost = c.line_loss_together.max(c.line_loss);
            // Behind one that came as many fewer are lost as keep the share of all.
            let behind_arrived = c.line_loss * (1.0 - behind_lost) / (1.0 - c.line_loss);
            let loss = match (seen.copies.sent % u64::from(parameters.copies()), line_lost) {
                (0, _) => c.line_loss,
                (_, true) => behind_lost,
                (_, false) => behind_arrived,
            };
            line_lost = self.happens(loss);
            let one_congested = self.happens(congestion);
            let congested = if c.congestion_together {
                all_congested
            } else {
                one_congested
            };
            let on_path = !line_lost && !all_lost && !congested;
            let overflows = self.happens(overflowing) && on_path;
            let dropped = self.happens(c.receiver_loss) && on_path && !overflows;
            seen.socket_overflows += u64::from(overflows);
            seen.system_overflows += u64::from(dropped);
            let comes = on_path && !overflows && !dropped;
            arrived += u32::from(comes);
            seen.copies.add(DeliveryCounts {
                sent: 1,
                lost: u64::from(!comes),
            });
        }
        seen.aggregates.add(DeliveryCounts {
            sent: 1,
            lost: u64::from(arrived == 0),
        });
    }

    /// The mean wait in the M/D/1 queue, or a full buffer.
    fn queueing(&self, rate: f64) -> Duration {
        let available = self.conditions.available.as_bits_per_second() as f64;
        let load = rate / available.max(1.0);
        if load >= 1.0 {
            return self.conditions.buffer;
        }
        let packet = self.conditions.mtu.get() as f64 * 8.0 / available;
        let wait = packet * load / (2.0 * (1.0 - load));
        Duration::from_secs_f64(wait.min(self.conditions.buffer.as_secs_f64()))
    }

    fn happens(&mut self, probability: f64) -> bool {
        ((self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64) < probability
    }
}

/// The share of `sent` that is beyond `room`.
fn too_much(sent: f64, room: f64) -> f64 {
    if sent <= room {
        return 0.0;
    }
    1.0 - room / sent
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(size: u64, copies: u8) -> Parameters {
        let ms = Duration::from_millis(1);
        Parameters::new(ByteCount::new(size), ms, copies).unwrap()
    }

    fn minute(conditions: Conditions, parameters: &Parameters) -> Outcome {
        Plant::new(conditions, 1).pass(parameters, Duration::from_secs(60))
    }

    #[track_caller]
    fn near(found: f64, expected: f64) {
        assert!(
            (found - expected).abs() <= 0.1 * expected,
            "{found} {expected}"
        );
    }

    #[test]
    fn a_perfect_path_carries_everything() {
        let found = minute(Conditions::default(), &parameters(2048, 2));
        assert_eq!(
            found.seen.aggregates,
            DeliveryCounts {
                sent: 60_000,
                lost: 0
            }
        );
        assert_eq!(
            found.seen.copies,
            DeliveryCounts {
                sent: 120_000,
                lost: 0
            }
        );
        assert_eq!(found.wait, Duration::from_micros(500));
        // 625 bytes and a header, twice in 1 ms.
        near(found.seen.sent.as_bits_per_second() as f64, 11.2e6);
    }

    #[test]
    fn a_line_loses_copies_alone_or_together() {
        let conditions = Conditions {
            line_loss: 0.1,
            ..Conditions::default()
        };
        let found = minute(conditions, &parameters(2048, 3));
        near(found.seen.copies.loss(), 0.1);
        near(
            minute(conditions, &parameters(2048, 2))
                .seen
                .aggregates
                .loss(),
            0.01,
        );
        let together = Conditions {
            line_loss_together: 0.8,
            ..conditions
        };
        let found = minute(together, &parameters(2048, 2));
        near(found.seen.copies.loss(), 0.1);
        near(found.seen.aggregates.loss(), 0.08);
    }

    #[test]
    fn a_receiver_overflows_by_what_is_too_much() {
        let conditions = Conditions {
            receiver_per_second: Some(1500.0),
            ..Conditions::default()
        };
        let found = minute(conditions, &parameters(2048, 2));
        near(found.seen.overflows_per_second(), 500.0);
        let found = minute(conditions, &parameters(2048, 1));
        assert_eq!(found.seen.socket_overflows, 0);
    }

    #[test]
    fn congestion_loses_what_is_too_much_and_fills_the_buffer() {
        let conditions = Conditions {
            available: Bandwidth::from_bits_per_second(5_600_000),
            ..Conditions::default()
        };
        let found = minute(conditions, &parameters(2048, 2));
        near(found.seen.aggregates.loss(), 0.5);
        assert_eq!(found.queueing, Duration::from_millis(20));
        let apart = Conditions {
            congestion_together: false,
            ..conditions
        };
        near(
            minute(apart, &parameters(2048, 2)).seen.aggregates.loss(),
            0.25,
        );
    }

    #[test]
    fn what_does_not_fit_waits_and_is_given_up() {
        let found = minute(Conditions::default(), &parameters(512, 1));
        assert!(found.wait > Duration::from_millis(500), "{:?}", found.wait);
        // 438 of 625 bytes fit, and a second's worth of a minute waits still.
        near(found.given_up, 1.0 - 438.0 / 625.0 - 1.0 / 60.0);
    }

    #[test]
    fn others_overflow_the_receiver_whatever_is_sent() {
        let conditions = Conditions {
            receiver_loss: 0.1,
            others_overflows_per_second: 1000.0,
            ..Conditions::default()
        };
        for copies in [1, 2] {
            let found = minute(conditions, &parameters(2048, copies));
            near(found.seen.copies.loss(), 0.1);
            near(
                found.seen.overflows_per_second(),
                1000.0 + 100.0 * f64::from(copies),
            );
            assert_eq!(found.seen.socket_overflows, 0);
        }
    }
}
