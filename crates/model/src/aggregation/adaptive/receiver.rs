//! A receiver that overflows: fewer packets for it, whether that has helped, and whose packets it drops.

use std::time::Duration;

use keiro_units::{Bandwidth, ByteCount, Instant};

use super::{Adaptive, ROOM_MORE, scaled};
use crate::aggregation::{
    Cause, Held, Limits, Observation, Parameters, fits, line_loss::kept,
    probe_backoff::ProbeBackoff,
};

/// Whether fewer aggregates help a receiver that overflows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ReceiverBackoff {
    None,
    /// It was given fewer than with these.
    Tried {
        from: Parameters,
        before: f64,
        after: f64,
        periods: u32,
    },
    /// They do not: others overflow it.
    Others {
        until: Instant,
    },
}

/// What the receiver dropped recently, and how many copies of ours did not come. Its system drops
/// others' packets as well, some for sockets that have nothing to do with ours.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Drops {
    at: Instant,
    by_socket: f64,
    by_system: f64,
    ours: f64,
    sent: f64,
}

/// Packets that the receiver's socket dropped and that have not been missed yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnattributedDrops {
    at: Instant,
    packets: f64,
}

/// How long a drop by the socket is remembered before its loss shows. Ours: an overflowing socket's buffer is read
/// within this time.
const UNSEEN: Duration = Duration::from_secs(2);
/// How long the receiver's drops count. Ours: bursts of other senders come several times within it.
const DROPS: Duration = Duration::from_secs(1);
/// Multiple of what can be ours from which drops of the receiver's system are others'.
/// Ours: the smallest step relieves it by a quarter of our part.
const DROPS_OF_OURS: f64 = 4.0;
/// Loss of ours from which fewer packets are tried nevertheless: the others may be peers that do
/// the same. Ours: bursts that leave time between them take less.
const DROPS_HEAVY: f64 = 0.1;
/// Periods after which relief is judged. Ours: in the first, packets arrive that left before it.
const RELIEF_PERIODS: u32 = 2;
/// ReceiverBackoff leaves this part of the overflows at most. Ours: the smallest step leaves three quarters
/// of the aggregates.
const RELIEVED: f64 = 0.85;
/// How long it is assumed at first that others overflow the receiver; the time doubles with each check. Ours: a check
/// costs the overflows of [`RELIEF_PERIODS`].
pub(super) const OTHERS_MIN: Duration = Duration::from_secs(2);
/// The longest of these times. Ours: within a minute after others have gone, the receiver is relieved again.
const OTHERS_MAX: Duration = Duration::from_secs(60);

impl Adaptive {
    /// The receiver has too much: copies that the line does not need, then I up with S, at last S and N down.
    pub(super) fn relieve_receiver(
        &self,
        now: Instant,
        overflows: f64,
        seen: &Observation,
    ) -> Option<(Parameters, Cause)> {
        let Held {
            limits,
            wanted,
            current,
        } = &self.held;
        let cause = Cause::Overflows {
            per_second: overflows,
            threshold: limits.thresholds().overflow_high,
        };
        let with = |copies| (Parameters { copies, ..*wanted }, cause);
        // Its system's drops may be others', against which copies help.
        let ours = self.drops.are_by_socket();
        let needed = self.line.copies_needed(now, limits, self.loss_goal());
        let is_fewer = |needed: &u8| ours && *needed < current.copies;
        if let Some(needed) = needed.filter(is_fewer) {
            return Some(with(needed));
        }
        if let Some(interval) = limits.interval_above(current.interval) {
            return Some((
                Parameters {
                    interval,
                    ..*wanted
                },
                cause,
            ));
        }
        // Below what is to be carried S would make it wait, and for ever.
        let offered = scaled(seen.offered, ROOM_MORE).bytes_in_floor(current.interval);
        let least = limits.size_min().max(offered);
        let size = ByteCount::new(current.size.get() / 2).max(least);
        if size < current.size {
            return Some((Parameters { size, ..*wanted }, cause));
        }
        limits
            .copies_below(current.copies)
            .filter(|_| ours)
            .map(with)
    }

    /// Whether fewer aggregates have helped; `Some` until that is known.
    pub(super) fn judge_relief(
        &mut self,
        now: Instant,
        overflows: f64,
    ) -> Option<Option<(Parameters, Cause)>> {
        let ReceiverBackoff::Tried {
            from,
            before,
            after,
            periods,
        } = &mut self.relief
        else {
            return None;
        };
        *periods += 1;
        *after += (overflows - *after) / f64::from(*periods);
        if *periods < RELIEF_PERIODS {
            return Some(None);
        }
        let (from, before, after) = (*from, *before, *after);
        self.relief = ReceiverBackoff::None;
        let threshold = self.held.limits.thresholds().overflow_high;
        // Only gateways send to its socket.
        let ours = self.drops.are_by_socket();
        if ours || after < f64::from(threshold) || after <= before * RELIEVED {
            self.others_for = OTHERS_MIN;
            return None;
        }
        let until = now + self.others_for;
        self.relief = ReceiverBackoff::Others { until };
        self.others_for = self.others_for.saturating_mul(2).min(OTHERS_MAX);
        self.receiver = ProbeBackoff::default();
        let wanted = Parameters {
            copies: self.held.wanted.copies,
            ..from
        };
        Some(Some((wanted, Cause::OverflowsStay { before, after })))
    }

    /// The receiver has been calm: S back, then I down.
    pub(super) fn use_receiver(
        &mut self,
        now: Instant,
        limit: Bandwidth,
    ) -> Option<(Parameters, Cause)> {
        let Held {
            limits,
            wanted,
            current,
        } = &self.held;
        let step = if wanted.size < limits.size_max() {
            let size = wanted.size.saturating_mul(2).min(limits.size_max());
            Parameters { size, ..*wanted }
        } else {
            let interval = limits.interval_below(current.interval)?;
            let least = Parameters {
                interval,
                size: limits.size_min(),
                ..*current
            };
            // S yields to a shorter I, but not below what it was at first.
            let size = limits.initial().size.min(current.size);
            let enough = Parameters { size, ..least };
            if !fits(&enough, limits, limit) {
                return None;
            }
            Parameters {
                interval,
                ..*wanted
            }
        };
        let calm = self.receiver.take_step(now, receiver_load(&step, limits))?;
        Some((step, Cause::Calm { calm }))
    }

    /// Whether the receiver may be given `copies` copies again, which are sent then.
    pub(super) fn try_receiver(&mut self, now: Instant, copies: u8) -> bool {
        let Held {
            limits, current, ..
        } = &self.held;
        let parameters = Parameters { copies, ..*current };
        let load = receiver_load(&parameters, limits);
        let may_step_to = self.receiver.may_step_to(now, load);
        if may_step_to {
            self.receiver.on_step(now, load);
        }
        may_step_to
    }
}

impl Drops {
    /// What the receiver's system drops that fewer packets of ours may change: none if nearly all is others'.
    pub(super) fn on_period(&mut self, now: Instant, seen: &Observation) -> u64 {
        let kept = kept(now, self.at, DROPS);
        self.at = now;
        self.by_socket = self.by_socket * kept + seen.socket_overflows as f64;
        self.by_system = self.by_system * kept + seen.system_overflows as f64;
        self.ours = self.ours * kept + seen.copies.lost as f64;
        self.sent = self.sent * kept + seen.copies.sent as f64;
        let is_others = self.by_system > self.ours * DROPS_OF_OURS;
        match is_others && self.ours < self.sent * DROPS_HEAVY {
            true => 0,
            false => seen.system_overflows,
        }
    }

    /// Most of the recent drops were the socket's.
    pub(super) fn are_by_socket(&self) -> bool {
        self.by_socket >= self.by_system && self.by_socket > 0.0
    }
}

impl UnattributedDrops {
    /// Of the copies lost, those that the receiver's socket dropped.
    pub(super) fn on_period(&mut self, now: Instant, seen: &Observation) -> u64 {
        let kept = kept(now, self.at, UNSEEN);
        self.at = now;
        self.packets += seen.socket_overflows_before as f64;
        self.packets = self.packets * kept + seen.socket_overflows as f64;
        let dropped = seen.copies.lost.min(self.packets.round() as u64);
        self.packets = (self.packets - dropped as f64).max(0.0);
        dropped
    }

    pub(super) fn is_none(&self) -> bool {
        self.packets < 1.0
    }
}

/// What the receiver is given, in copies per second, and less where S was made smaller for it.
pub(super) fn receiver_load(parameters: &Parameters, limits: &Limits) -> f64 {
    let per_second = f64::from(parameters.copies) / parameters.interval.as_secs_f64();
    if parameters.interval < limits.interval_max() {
        return per_second;
    }
    per_second * parameters.size.get() as f64 / limits.size_max().get() as f64
}
