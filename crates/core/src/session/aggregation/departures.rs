//! When aggregates may leave: at most S bytes in every interval I.

use std::time::Duration;

use keiro_model::aggregation::{Cause, Decision, Observation, Parameters};
use keiro_units::Instant;

use crate::config::AggregationMode;

/// When aggregates of one path may leave.
#[derive(Debug)]
pub(super) struct Departures {
    mode: AggregationMode,
    /// When the next aggregate may leave: eager, the time at which what left is paid; by the clock,
    /// the next tick.
    next: Instant,
    /// IP bytes of one copy that left in the present I: by the clock, and where the peer is to get
    /// fewer packets.
    used: u64,
    /// When the present I began, where the peer is to get fewer packets.
    interval_since: Instant,
    /// I from which the controller has lengthened it while our own packets overflowed the peer's
    /// socket: as long as it is longer than this, the peer is to get fewer packets.
    pub(super) relieved_from: Option<Duration>,
}

impl Departures {
    pub(super) fn new(mode: AggregationMode) -> Self {
        Self {
            mode,
            next: Instant::ZERO,
            used: 0,
            interval_since: Instant::ZERO,
            relieved_from: None,
        }
    }

    /// An aggregate may leave.
    pub(super) fn may_send(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// When an aggregate may leave.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// IP bytes that may still leave in this I, of one copy.
    pub(super) fn room(&self, now: Instant, parameters: Parameters) -> u64 {
        let used = match self.is_interval_over(now, parameters) {
            true => 0,
            false => self.used,
        };
        parameters.size().get().saturating_sub(used)
    }

    /// IP bytes leave, N times over: at most S of them in every I.
    pub(super) fn charge(&mut self, now: Instant, ip_bytes: u64, parameters: Parameters) {
        let interval = parameters.interval();
        match self.mode {
            AggregationMode::Fixed => {
                self.used += ip_bytes;
                if self.room(now, parameters) == 0 {
                    self.end_tick(now, parameters);
                }
            }
            AggregationMode::Eager if self.relieved_from.is_some() => {
                if self.used == 0 || self.is_interval_over(now, parameters) {
                    self.used = 0;
                    self.interval_since = now;
                }
                self.used += ip_bytes;
                if self.room(now, parameters) == 0 {
                    self.end_interval(now, parameters);
                }
            }
            AggregationMode::Eager | AggregationMode::Off => {
                // S bytes per I, of which one S may be saved up.
                let size = parameters.size().get();
                let cost = interval.as_nanos() as u64 * ip_bytes / size;
                self.next = self.next.max(now - interval) + Duration::from_nanos(cost);
            }
        }
    }

    /// Something has come where nothing waited: by the clock it waits for the next tick.
    pub(super) fn on_first(&mut self, now: Instant, parameters: Parameters) {
        if self.mode == AggregationMode::Fixed && self.may_send(now) {
            self.end_tick(now, parameters);
        }
    }

    /// The next item does not fit any more, or nothing is left: by the clock, and where the peer is to
    /// get fewer packets, nothing more leaves in this I.
    pub(super) fn on_drained(&mut self, now: Instant, parameters: Parameters) {
        match self.mode {
            AggregationMode::Fixed if self.may_send(now) => self.end_tick(now, parameters),
            AggregationMode::Eager if self.used > 0 => self.end_interval(now, parameters),
            _ => {}
        }
    }

    /// The controller begins anew: the peer gets as many packets as it allows.
    pub(super) fn on_controller_restarted(&mut self) {
        self.relieved_from = None;
        if self.mode == AggregationMode::Eager {
            self.used = 0;
        }
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        let counts = match self.mode {
            AggregationMode::Fixed => true,
            AggregationMode::Eager => self.relieved_from.is_some(),
            AggregationMode::Off => false,
        };
        assert!(
            counts || self.used == 0,
            "bytes of an interval are counted where they are limited"
        );
    }

    /// The controller has decided from what was `seen`.
    pub(super) fn on_decision(&mut self, decision: &Decision, seen: &Observation) {
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

    /// The present I is over. At fixed intervals, ticks end it.
    fn is_interval_over(&self, now: Instant, parameters: Parameters) -> bool {
        self.mode == AggregationMode::Eager && now >= self.interval_since + parameters.interval()
    }

    fn end_tick(&mut self, now: Instant, parameters: Parameters) {
        let interval = parameters.interval().as_nanos() as u64;
        let tick = now.as_nanos() / interval + 1;
        self.next = Instant::from_nanos(tick.saturating_mul(interval));
        self.used = 0;
    }

    /// The first of the next I leaves at once, when that has begun.
    fn end_interval(&mut self, now: Instant, parameters: Parameters) {
        self.next = now.max(self.interval_since + parameters.interval());
        self.used = 0;
    }
}
