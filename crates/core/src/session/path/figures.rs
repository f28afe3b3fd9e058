//! A path in numbers.

use keiro_stats::{PathStats, StatSet};

use super::Path;
use crate::{session::estimates::OutcomeTotals, snapshot::PathSnapshot, trace::RecoveryMetrics};

impl Path {
    /// `queued_bytes` wait for it elsewhere in the session. `others`: counters of it that are counted there.
    pub(crate) fn snapshot<'a>(
        &'a self,
        queued_bytes: u64,
        others: impl Iterator<Item = &'a PathStats>,
    ) -> PathSnapshot {
        let loss = self.estimates.loss();
        PathSnapshot {
            id: self.id,
            state: self.state(),
            remote: self.remote(),
            is_abandoned: self.is_abandoned(),
            stats: self.stats(queued_bytes, others),
            probe_limit: self.probe_limit(),
            peer_terms: self.peer_terms(),
            is_too_small: self.is_too_small(),
            unanswered: self.reachability.unanswered().filter(|_| !self.is_up()),
            capacity: self.trains.found(),
            aggregation: self.aggregator.snapshot(self.estimates.updated_at()),
            outcomes: self.totals().outcomes(),
            rate: self.rate.snapshot(self.estimates.updated_at()),
            loss_packets: loss.map_or(0, |loss| loss.packets),
            loss_is_burst: loss.is_some_and(|loss| loss.is_burst),
        }
    }

    pub(crate) fn recovery_metrics(&self) -> RecoveryMetrics {
        RecoveryMetrics {
            smoothed_rtt: self.rtt().smoothed(),
            rtt_variance: self.rtt().variation(),
            min_rtt: self.rtt().min(),
            bytes_in_flight: self.recovery.bytes_in_flight(),
            pacing_rate: self.pacer.rate(),
        }
    }

    /// Every component counts in its set; the gauges are added here.
    fn stats<'a>(
        &'a self,
        queued_bytes: u64,
        others: impl Iterator<Item = &'a PathStats>,
    ) -> PathStats {
        let estimates = &self.estimates;
        let sent_rate = estimates.sent_rate();
        let capacity = self.capacity();
        let cross_traffic = capacity.and_then(|capacity| estimates.cross_rate(capacity));
        let srtt = self.rtt().smoothed();
        let own = [
            &self.counters,
            self.recovery.counters(),
            self.trains.counters(),
        ];
        let rate = self.rate.snapshot(estimates.updated_at());
        PathStats {
            configured_rate: self.rate.configured(),
            pacing_rate: self.pacer.rate(),
            window_bytes: rate.map(|rate| rate.window.get()),
            queue: rate.map(|rate| rate.queue),
            target_queue: rate.map(|rate| rate.target_queue),
            sent_rate,
            cross_traffic,
            available: capacity
                .zip(cross_traffic)
                .map(|(capacity, cross)| capacity.saturating_sub(sent_rate).saturating_sub(cross)),
            srtt,
            rttvar: srtt.map(|_| self.rtt().variation()),
            min_rtt: self.rtt().min(),
            base_rtt: estimates.base_rtt(),
            jitter: estimates.jitter(),
            delay_variation: estimates.delay_variation().latest(),
            smoothed_delay_variation: estimates.delay_variation().smoothed(),
            loss: estimates.loss().map(|loss| loss.ratio),
            mtu_bytes: u64::from(self.mtu.current()),
            in_flight_bytes: self.recovery.bytes_in_flight(),
            queued_bytes,
            idle_month_bytes: self
                .idle_meter
                .bytes_per_month(self.last_eliciting_at, self.traffic_bytes()),
            ..PathStats::sum(own.into_iter().chain(others))
        }
    }

    pub(super) fn totals(&self) -> OutcomeTotals {
        let (padding_arrived, padding_lost) = self.trains.padding();
        let counters = self.recovery.counters();
        let late = self.recovery.spurious_after_outage();
        OutcomeTotals {
            acked: counters.acked_packets - late + padding_arrived,
            lost: counters.lost_packets + padding_lost - self.non_path_losses.total(),
            spurious: counters.spurious_lost_packets - late,
            bytes_sent: self.counters.sent_bytes,
        }
    }
}
